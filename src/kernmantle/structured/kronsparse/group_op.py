"""The operators by which layers of a group make their matrices together in a compiled graph.

``kernmantle::kron_sparse_matrices`` makes the matrices of chains of two factors, ``…_backward`` takes their gradients
apart: two operators of a step however many layers there are. Products with the matrices are torch's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from ...config import current
from ...runtime.dispatch import bound
from ...torch_ops.call_key import program_key
from ...torch_ops.dtypes import NAMES
from ...torch_ops.flops import counted
from ...torch_ops.operator import implement
from ...torch_ops.torch_private import assumed_constant, is_autocast_on, is_exported, is_transformed, write_as_node
from ..mode_product.chain_plan import Pattern, fused
from ..mode_product.torch_op import Options
from . import chain_training
from .chain_matrix import MatrixStep, bind_matrix
from .chain_op import flops_of_matrix
from .chain_products import Weights
from .matrices import BoundMatrices, bind_matrices, chains_of
from .pattern import KSPattern


def _bound(weights: Sequence[torch.Tensor]) -> BoundMatrices | None:
    """Return what makes the matrices by kernels; None for float32 arithmetic, which may be asked for after tracing."""
    if current().precision == "ieee":
        return None
    return bound(program_key(("kron_sparse matrices",), (), weights), partial(bind_matrices, weights))  # pyright: ignore


def _bind_make(weights: list[torch.Tensor]) -> Any:
    """Return what makes the matrices (features out, features in) of weights: first, second, first, ..."""
    found = _bound(weights)
    if found is not None:
        return found.make
    return lambda weights: [_step(own).make(own, own[0].dtype) for own in chains_of(weights)]


def _bind_gradients(weights: list[torch.Tensor], _: list[torch.Tensor]) -> Any:
    """Return what gives the gradients of all weights from those of the matrices."""
    found = _bound(weights)
    if found is not None:
        return partial(found.take_apart, are_same=all(weight.is_contiguous() for weight in weights))

    def take_apart(weights: list[torch.Tensor], grads: list[torch.Tensor]) -> list[torch.Tensor]:
        each = zip(chains_of(weights), grads, strict=True)
        return [of for own, grad in each for of in _step(own).bind_gradient(own, (True, True))(own, grad.contiguous())]  # pyright: ignore

    return take_apart


def _step(weights: Weights) -> MatrixStep:
    """Return what makes one matrix by torch's operations."""
    return bind_matrix(weights, weights[0].dtype, Options(False, "auto", "ieee"), True)


def _fake(weights: list[torch.Tensor]) -> list[torch.Tensor]:
    shapes = [fused(tuple(first.shape), tuple(second.shape)) for first, second in chains_of(weights)]  # pyright: ignore
    return [weights[0].new_empty(shape[1:3]) for shape in shapes]


def _fake_backward(weights: list[torch.Tensor], grads: list[torch.Tensor]) -> list[torch.Tensor]:
    return [weight.new_empty(weight.shape) for weight in weights]


@counted("kron_sparse_matrices")
def _flops(weights: Sequence[Pattern], *, out_shape: Any) -> int:
    return sum(flops_of_matrix(weights[begin : begin + 2]) for begin in range(0, len(weights), 2))


@counted("kron_sparse_matrices_backward")
def _flops_backward(weights: Sequence[Pattern], grads: Any, *, out_shape: Any) -> int:
    return 2 * _flops(weights, out_shape=None)


_matrices = implement("kron_sparse_matrices", _bind_make, _fake)
_matrices_backward = implement("kron_sparse_matrices_backward", _bind_gradients, _fake_backward)


class CompiledMatrices(torch.autograd.Function):
    """Weights of chains of two factors to their matrices, in a graph that is compiled."""

    @staticmethod
    def forward(*weights: torch.Tensor) -> Any:
        return tuple(_matrices(list(weights)))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        found = _matrices_backward(list(ctx.saved_tensors), list(grads))
        return tuple([own if needs else None for own, needs in zip(found, ctx.needs_input_grad, strict=True)])


def apply_traced(weights: Sequence[torch.Tensor]) -> Any:
    """Return the matrices by the operators: one node of a graph, into which nothing is looked."""
    return CompiledMatrices.apply(*weights)


def count_of(shape: Sequence[int], dtype: torch.dtype) -> int:
    """Return how many rows layers take, by the input of their module: of tokens, which are integers, each is one."""
    return math.prod(shape[:-1] if dtype.is_floating_point else shape)


@assumed_constant
def traced_chains(forms: list[tuple[Any, ...]], described: list[tuple[Any, ...]]) -> tuple[int, ...]:
    """Return which layers share the launch of their matrices, looked up while a graph is traced.

    ``forms`` has for each the text of its patterns, its options and the number of its weights, ``described`` shape,
    type, device, need of a gradient and whether it is in one piece of the rows and of all weights.
    """
    write_as_node(apply_traced)
    (rows, kind, device, *_), *weights = described
    dtype = kind if kind.is_floating_point or not weights else weights[0][1]
    name = NAMES.get(dtype)
    if current().precision or is_autocast_on() or is_transformed() or is_exported() or name is None:
        return ()
    found, begin, count = list[int](), 0, count_of(rows, kind)
    for at, (form, batch_last, algorithm, precision, length) in enumerate(forms):
        own, begin = weights[begin : begin + length], begin + length
        patterns = tuple([KSPattern(*shape) for shape, *_ in own if len(shape) == 4])
        free = length == 2 and not batch_last and algorithm == "auto" and not precision and str(patterns) == form
        alike = all((each, where, whole) == (dtype, device, True) for _, each, where, _, whole in own)
        recorded = any(needs for *_, needs, _ in own)
        if free and alike and recorded and chain_training.shares_matrix(patterns, count, name, device, True):
            found.append(at)
    return tuple(found)
