"""Calls of chains of Kronecker-sparse products: a key, the bound chain that the launch cache has for it, and a launch.

``weights`` are (a, b, c, d) each, ``bias`` (features,) or None, ``x`` has its features first or last.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from ...config import current
from ...runtime.dispatch import PLANS, CallKey
from ...torch_ops.call_key import call_key
from ...torch_ops.execute import allocate_as
from ...torch_ops.info import RunInfo
from ...torch_ops.torch_private import is_exported, is_tracked, is_transformed, plain
from ...torch_ops.tuned_tiles import session
from ..mode_product import execute
from ..mode_product.operands import empty
from ..mode_product.pack import PackedChain, PackedWeights
from ..mode_product.torch_op import Maybe, Options, product
from . import chain_cpu, chain_execute, chain_training
from .chain_op import compiled_chain
from .chain_products import ChainByCapture, Multiply, Weights, bind_product, canonical, choose_algorithm, shaped
from .chain_step import GROUPED, GroupedStep, bind_grouped

Parts = Sequence[PackedWeights] | None
Operands = tuple[torch.Tensor, Weights, Maybe, Parts]
"""x, weights, bias and packed weights of a call."""


def chain_key(
    x: Any, weights: Sequence[Any], bias: Any, activation: Any, options: Options, packed: PackedChain | None,
    out: Any = None, form: Hashable = None, is_cast: bool = False,
) -> CallKey | None:  # fmt: skip
    """Return the key of a call; None where it has none, and while tiles are tuned.

    ``form`` has everything else that the checks depend on. The key has the identity of packed weights, which are
    immutable. ``is_cast``: autocast has nothing to cast.
    """
    if torch.compiler.is_compiling() or not (activation is None or type(activation) is str):
        return None
    own = current()
    # The plan depends on the threads on a CPU, and on tuned tiles, which are in the cache, on a GPU.
    if not getattr(x, "is_cuda", False):
        machine = own.threads or torch.get_num_threads()
    elif session() is None:
        machine = own.cache_dir
    else:
        return None
    if packed is None:
        return call_key(("kron_sparse", form, activation), (options, machine), (x, *weights, bias, out), is_cast)
    return call_key(("kron_sparse", form, activation, packed.identity), (options, machine), (x, bias, out), is_cast)


@dataclass(frozen=True, eq=False)
class ProductChain:
    """One product after the other, each by its predicted fastest algorithm."""

    products: tuple[Multiply, ...]
    batch_last: bool
    route: str = ""

    def __call__(self, tensors: Operands, numbers: RunInfo | None, outs: Maybe) -> torch.Tensor:
        """Return the product, in ``outs`` where that is given; ``numbers`` takes the route."""
        x, weights, bias, parts = tensors
        info = RunInfo() if numbers is None else numbers
        value, last = canonical(x, self.batch_last), len(weights) - 1
        for number, (multiply, weight) in enumerate(zip(self.products, weights, strict=True)):
            ends = (None, None) if number < last else (bias, outs)
            part = None if parts is None else parts[number]
            into = None if ends[1] is None else canonical(ends[1], self.batch_last)
            value = multiply(value, weight, ends[0], part, into, info)
        if outs is None:
            return shaped(value, x, self.batch_last)
        if value.data_ptr() != outs.data_ptr():
            outs.copy_(shaped(value, x, self.batch_last))
        return outs


@dataclass(frozen=True, eq=False)
class StepChain:
    """A chain in steps: neighbours as one, or some rows of the batch at a time."""

    steps: tuple[Any, ...]
    rows: int
    activation: str
    options: Options
    route: str = ""

    def __call__(self, tensors: Operands, numbers: RunInfo | None, _outs: None) -> torch.Tensor:
        """Return the product; ``numbers`` takes the route."""
        x, weights, bias, parts = tensors
        info = RunInfo() if numbers is None else numbers
        value, offset = canonical(x, self.options.batch_last), None if bias is None else bias[None]
        found = chain_execute.run(
            self.steps, self.rows, value, weights, offset, self.activation, self.options, parts, info
        )
        return shaped(found, x, self.options.batch_last)


@dataclass(frozen=True, eq=False)
class MatrixChain:
    """A packed chain, or a packed factor, that goes through its matrix."""

    activation: str
    batch_last: bool
    route: str = execute.DENSE

    def __call__(self, tensors: Operands, numbers: RunInfo | None, _outs: None) -> torch.Tensor:
        """Return the product; ``numbers`` takes the route."""
        x, weights, bias, parts = tensors
        assert parts is not None
        if numbers is not None:
            numbers.route = self.route
        part, key = parts[-1] if len(weights) > 1 else parts[0], ("dense", x.dtype)
        matrix = part.get(key)
        if matrix is None:
            matrix = part.get_or_pack(key, partial(_matrix_of, weights, x.dtype), x.device)
        return execute.matrix_product(x, matrix, bias, self.activation, self.batch_last)


def _matrix_of(weights: Weights, dtype: torch.dtype) -> torch.Tensor:
    """Return the matrix of a chain, or of one factor."""
    if len(weights) > 1:
        return chain_execute.matrix_of(weights, dtype)
    return execute.MADE["dense"](weights[0].to(dtype))


@dataclass(frozen=True, eq=False)
class GroupedChain:
    """A chain of few rows on a GPU: a launch for each factor, the bias and the activation in the last."""

    step: GroupedStep

    @property
    def route(self) -> str:
        """The text of ``info``."""
        return self.step.route

    def __call__(self, tensors: Operands, numbers: RunInfo | None, _outs: None) -> torch.Tensor:
        """Return the product; ``numbers`` takes the route."""
        x, weights, bias, _ = tensors
        return self.step.forward(x, weights, bias, RunInfo() if numbers is None else numbers)[0]


@dataclass(frozen=True, eq=False)
class ClusterChain:
    """Two factors of a few rows on a GPU, in one launch with the bias and the activation, or in two.

    ``between`` counts the numbers that the first of two hands on.
    """

    launch: Callable[[list[int]], None]
    between: int
    features: int
    route: str

    def __call__(self, tensors: Operands, numbers: RunInfo | None, _outs: None) -> torch.Tensor:
        """Return the product; ``numbers`` takes the route."""
        x, (first, second), bias, parts = tensors
        if numbers is not None:
            numbers.route = self.route
        out = allocate_as(x, (*x.shape[:-1], self.features))
        offset = 0 if bias is None else bias.data_ptr()
        is_made = parts is not None and parts[-1].is_complete(x.device)
        table = [x.data_ptr(), first.data_ptr(), second.data_ptr(), offset, out.data_ptr(), is_made]
        if self.between:
            between = allocate_as(x, (self.between,))
            table.append(between.data_ptr())
        self.launch(table)
        return out


@dataclass(frozen=True, eq=False)
class WatchedChain:
    """Each product by its differentiable operator: under a transform of torch.func, and while torch.compile traces."""

    activation: str
    options: Options

    @property
    def route(self) -> str:
        """The text of ``info``."""
        return f"under a transform, factor by factor: {self.options.algorithm}"

    def __call__(self, tensors: Operands, numbers: RunInfo | None, _outs: None) -> torch.Tensor:
        """Return the product; ``numbers`` takes the route."""
        x, weights, bias, _ = tensors
        if numbers is not None:
            numbers.route = self.route
        return factor_by_factor(x, weights, bias, self.activation, self.options)


def factor_by_factor(x: torch.Tensor, weights: Weights, bias: Maybe, activation: str, options: Options) -> torch.Tensor:
    """Return the product, each factor by the operator with its own derivative."""
    value, last = canonical(x, options.batch_last), len(weights) - 1
    for number, weight in enumerate(weights):
        own = bias[None] if number == last and bias is not None else None
        value = product(value, weight[None], own, options, activation if number == last else "")
    return shaped(value, x, options.batch_last)


def bind_chain(
    key: CallKey | None, x: torch.Tensor, weights: Weights, bias: Maybe, activation: str, options: Options,
    packed: bool, out: Maybe = None,
) -> Any:  # fmt: skip
    """Return the bound chain of tensors that are checked, stored by their key if they have one."""
    tensors = [x, *weights] if bias is None else [x, *weights, bias]
    if not plain(tensors):
        return WatchedChain(activation, options)
    wanted = tuple([own.requires_grad for own in (x, *weights)]) if is_tracked(tensors) else ()
    found = _bind(x, weights, bias, activation, options, packed, wanted, out)
    if key is not None:
        PLANS[key] = found
    return found


def _bind(
    x: torch.Tensor, weights: Weights, bias: Maybe, activation: str, options: Options, packed: bool,
    wanted: tuple[bool, ...], out: Maybe,
) -> Any:  # fmt: skip
    value, packed = canonical(x.detach(), options.batch_last), packed and not wanted
    if not wanted and out is None and value.data_ptr() == x.data_ptr():
        plans = chain_training.cluster_for(value, weights, bias, activation, options, packed)
        if plans is not None:
            captured, eager = (_bind_cluster(each, value, weights, options) for each in plans)
            return eager if plans[0] == plans[1] else ChainByCapture(eager, lambda *_: captured)
    if not wanted and out is None:
        found = chain_execute.plan(value, weights, options.algorithm, packed and not options.precision)
        if found is not None and packed and found[0][0].kind == "dense" and len(found[0]) == 1:
            return MatrixChain(activation, options.batch_last)
        if found is not None:
            return StepChain(*found, activation, options)
    if x.is_cpu and out is None:
        kernels = chain_cpu.bind(x, weights, bias, activation, options, packed, wanted)
        if kernels is not None:
            return kernels
    if wanted:
        return chain_training.bind_recorded(x, weights, bias, activation, options)
    if out is None and _is_grouped(value, weights, bias, activation, options, packed):
        own = [weight.detach() for weight in weights]
        offset = None if bias is None else bias.detach()
        found = GroupedChain(bind_grouped(x.detach(), own, offset, options, activation))
        if _is_grouped(value, weights, bias, activation, options, packed, True):
            return found
        return ChainByCapture(found, partial(_bind_captured, activation=activation, options=options, packed=packed))
    return _bind_products(value, weights, bias, activation, options, packed, out)


def _bind_cluster(plans: Sequence[Any], value: torch.Tensor, weights: Weights, options: Options) -> ClusterChain:
    a, b, _, d = weights[-1].shape
    found = chain_training.clusters().bind_cluster(plans, value, empty(value, a * b * d, options.batch_last))
    return ClusterChain(found.launch, found.between, a * b * d, found.route)


def _is_grouped(value: torch.Tensor, weights: Weights, *rest: Any) -> bool:
    return chain_training.forward_kind(value, weights, *rest) == GROUPED


def _bind_captured(
    x: torch.Tensor, weights: Weights, bias: Maybe, activation: str, options: Options, packed: bool
) -> ProductChain | MatrixChain:
    return _bind_products(canonical(x.detach(), options.batch_last), weights, bias, activation, options, packed, None)


def _bind_products(
    value: torch.Tensor,
    weights: Weights,
    bias: Maybe,
    activation: str,
    options: Options,
    packed: bool,
    out: Maybe,
) -> ProductChain | MatrixChain:
    if packed and len(weights) == 1 and value.numel() and out is None and not options.precision:
        (weight,), offset = weights, None if bias is None else bias[None]
        a, b, _, d = weight.shape
        into = empty(value, a * b * d, options.batch_last)
        if choose_algorithm(value, weight.to(value.dtype)[None], offset, activation, options, into, packed) == "dense":
            return MatrixChain(activation, options.batch_last)
    products: list[Multiply] = []
    for number, weight in enumerate(weights):
        ends = (bias, activation) if number == len(weights) - 1 else (None, "")
        a, b, _, d = weight.shape
        into = empty(value, a * b * d, options.batch_last)
        if out is not None and number == len(weights) - 1:
            into = canonical(out, options.batch_last)
        products.append(bind_product(value, weight.detach(), *ends, options, into, packed))
        value = into
    return ProductChain(tuple(products), options.batch_last)


def chain(
    x: torch.Tensor, weights: Weights, bias: Maybe, activation: str, options: Options,
    packed: PackedChain | None = None,
    info: RunInfo | None = None,
) -> torch.Tensor:  # fmt: skip
    """Return the product with all weights of checked tensors, with whatever derivative is being recorded.

    ``packed`` belongs to weights that never change; ``info`` takes the route.
    """
    if torch.compiler.is_compiling():
        tensors = [x, *weights] if bias is None else [x, *weights, bias]
        steps = is_tracked(tensors) and not is_transformed() and not is_exported()
        found = compiled_chain(x, weights, bias, activation, options) if steps else None
        return factor_by_factor(x, weights, bias, activation, options) if found is None else found
    found = bind_chain(None, x, weights, bias, activation, options, packed is not None)
    return found((x, weights, bias, None if packed is None else packed.parts), info, None)
