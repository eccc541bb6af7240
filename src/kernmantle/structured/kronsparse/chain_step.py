"""Training steps of a chain of Kronecker-sparse products, bound: what remains of a pass are memory and launches.

A step of one kind binds its forward pass for tensors of one layout, and from what that saves its backward pass. ``x``
and gradients have the features last, or first with ``batch_last``; weights are (a, b, c, d), a bias (features,).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch

from ...torch_ops.execute import allocate_as
from ...torch_ops.info import RunInfo
from ..mode_product.execute import empty
from ..mode_product.torch_op import Maybe, Options
from .chain_matrix import bind_matrix
from .chain_products import (
    Backward,
    Both,
    Gradients,
    Multiply,
    Saved,
    Sum,
    Weights,
    bind_bias,
    bind_gradient,
    bind_gradients,
    bind_product,
    canonical,
    grouped,
    in_one_piece,
    is_in_one_piece,
    join_side_stream,
    memory_shape,
    reads_address,
    shaped,
    side_stream,
    splits_streams,
)

FACTORS, GROUPED, MATRIX = "factors", "grouped", "matrix"
Launch = Callable[[Sequence[int]], None]
PRODUCT_OPERANDS = 4
"""Addresses of one product of a launch, the gradient's the first of them in a backward pass."""
_MOST_READY = 1 << 24  # bytes that a forward pass takes for its backward pass; where it is more, the GPU takes longer


class Step(Protocol):
    """The forward pass of a step, bound, and what binds its backward pass."""

    @property
    def route(self) -> str:
        """What ``info`` says."""
        ...

    @property
    def saves_between(self) -> bool:
        """Whether what is saved lies between the factors."""
        ...

    def forward(self, x: torch.Tensor, weights: Weights, bias: Maybe, info: RunInfo) -> tuple[torch.Tensor, Saved]:
        """Return the product and what the backward pass reads beside x and the weights."""
        ...

    def bind_backward(
        self, x: Maybe, weights: Weights, saved: Saved, grad: torch.Tensor, needed: Sequence[bool]
    ) -> Backward:
        """Return the gradients ``needed``, of x, the bias and the weights."""
        ...


@dataclass(frozen=True, eq=False)
class GroupedStep:
    """A launch for each factor forward and one back.

    ``reads_x`` and ``reads_weights`` say that launches read these tensors, and the bias, where they lie.
    """

    launches: tuple[Launch, ...]
    shapes: tuple[tuple[int, ...], ...]
    reads_x: bool
    reads_weights: bool
    options: Options
    route: str
    saves_between: bool = True

    def forward(self, x: torch.Tensor, weights: Weights, bias: Maybe, info: RunInfo) -> tuple[torch.Tensor, Saved]:
        """Return the product, and what lies between the factors."""
        info.route = self.route
        dtype, last = x.dtype, len(weights) - 1
        source = x if self.reads_x else canonical(x, self.options.batch_last)
        own = weights
        if not self.reads_weights:
            own, bias = in_one_piece(weights, dtype), None if bias is None else bias.contiguous()
        between: list[torch.Tensor] = []
        for number, launch in enumerate(self.launches):
            out = allocate_as(x, self.shapes[number])
            offset = bias.data_ptr() if bias is not None and number == last else 0
            launch((source.data_ptr(), own[number].data_ptr(), out.data_ptr(), offset))
            between.append(out)
            source = out
        return between.pop(), between

    def bind_backward(
        self, x: Maybe, weights: Weights, saved: Saved, grad: torch.Tensor, needed: Sequence[bool]
    ) -> Backward:
        """Return the gradients, those of one factor in a launch."""
        of_x, of_bias, *of_weights = needed
        last, moved = self.options.batch_last, canonical(grad, self.options.batch_last)
        values = [None if value is None else canonical(value, last) for value in (x, *saved)]
        own, levels, written = in_one_piece(weights, grad.dtype), list[_Level](), 0
        reads = moved.data_ptr() == grad.data_ptr() and is_in_one_piece(weights, grad.dtype)
        reads = reads and all(
            one is None or other is None or one.data_ptr() == other.data_ptr()
            for one, other in zip(values, (x, *saved), strict=True)
        )
        for index in reversed(range(len(weights))):
            weight, value = own[index], values[index]
            a, b, c, d = weight.shape
            deeper = of_x or any(of_weights[:index])
            below = empty(moved, a * c * d, last) if deeper else None
            of_weight = torch.empty_like(weight) if of_weights[index] else None
            of_this = moved.new_empty(a * b * d) if of_bias and index == len(weights) - 1 else None
            if below is None and of_weight is None and of_this is None:
                break
            launch = grouped().bind_backward(
                moved if value is None else value, moved, weight, below, of_weight, of_this, self.options.precision
            )
            shape = memory_shape(a * c * d, grad, last) if deeper else None
            features = a * b * d if of_this is not None else 0
            own_shape = tuple(weight.shape) if of_weights[index] else None
            written += sum(each.numel() for each in (below, of_weight, of_this) if each is not None)
            levels.append(_Level(index, launch.launch, shape, own_shape, features))
            if below is None:
                break
            moved = below
        return GroupedBackward(
            tuple(levels), reads, of_x, last, grouped().backward_addresses, grad.element_size() * written
        )


class _Level(NamedTuple):
    """The launch for one factor: shapes of the gradients below and of its weights, and features of a bias it sums."""

    position: int
    launch: Launch
    below: tuple[int, ...] | None
    of_weight: tuple[int, ...] | None
    of_bias: int


@dataclass(frozen=True, eq=False)
class GroupedBackward:
    """The backward pass of :class:`GroupedStep`; ``reads`` says that launches read all tensors where they lie."""

    levels: tuple[_Level, ...]
    reads: bool
    of_x: bool
    batch_last: bool
    addresses: Callable[..., tuple[int, ...]]
    written_bytes: int
    route: str = "grouped"

    def __call__(self, x: Maybe, weights: Weights, saved: Saved, grad: torch.Tensor) -> Gradients:
        """Return the gradients."""
        dtype, values = grad.dtype, (x, *saved)
        if not self.reads:
            grad, weights = canonical(grad, self.batch_last), in_one_piece(weights, dtype)
            values = [None if value is None else canonical(value, self.batch_last) for value in values]
        calls, found = self._arranged(values, weights, grad, grad.data_ptr())
        for launch, addresses in calls:
            launch(addresses)
        return found.below[-1] if self.of_x else None, found.of_bias, found.of_weights

    def _arranged(
        self, values: Sequence[Maybe], weights: Weights, like: torch.Tensor, grad_at: int
    ) -> tuple[list[tuple[Launch, tuple[int, ...]]], _Written]:
        """Return the launches with their addresses, and what they write; the gradient is like ``like``."""
        calls, below = list[tuple[Launch, tuple[int, ...]]](), list[torch.Tensor]()
        of_weights: list[Maybe] = [None] * len(weights)
        of_bias: Maybe = None
        for index, launch, shape, weight_shape, features in self.levels:
            value = values[index]
            value_at = 0 if value is None else value.data_ptr()
            below_at = of_weight_at = of_bias_at = None
            if shape is not None:
                below.append(allocate_as(like, shape))
                below_at = below[-1].data_ptr()
            if weight_shape is not None:
                of_weights[index] = of_weight = allocate_as(like, weight_shape)
                of_weight_at = of_weight.data_ptr()
            if features:
                of_bias = allocate_as(like, (features,))
                of_bias_at = of_bias.data_ptr()
            own = self.addresses(value_at, grad_at, weights[index].data_ptr(), below_at, of_weight_at, of_bias_at)
            calls.append((launch, own))
            if below_at is not None:
                grad_at = below_at
        return calls, _Written(below, of_bias, of_weights)

    def prepare(
        self, x: Maybe, weights: Weights, saved: Saved, result: torch.Tensor, needed: tuple[bool, ...]
    ) -> ReadyBackward | None:
        """Return the pass for a gradient like the result, its memory taken now; None where that is too much or copied.

        In the thread of the forward pass this takes the host a third of what it takes in autograd's own.
        """
        if not self.reads or self.written_bytes > _MOST_READY:
            return None
        values = (x, *saved)
        calls, found = self._arranged(values, weights, result, 0)
        addresses = [0 if each is None else each.data_ptr() for each in (x, *weights, *saved)]
        (first, own), *rest = calls
        return ReadyBackward(first, [*own], rest, found, self.of_x, needed, result.dtype, addresses)


class _Written(NamedTuple):
    """What a backward pass writes: gradients below each factor, the last that of x, of the bias and of the weights."""

    below: list[torch.Tensor]
    of_bias: Maybe
    of_weights: list[Maybe]


@dataclass(frozen=True, eq=False)
class ReadyBackward:
    """A backward pass, to be run once, whose memory is taken and whose launches lack the address of the gradient.

    ``addresses`` are those of the saved tensors.
    """

    first: Launch
    operands: list[int]
    rest: list[tuple[Launch, tuple[int, ...]]]
    found: _Written
    of_x: bool
    needed: tuple[bool, ...]
    dtype: torch.dtype
    addresses: list[int]

    def fits(self, tensors: Sequence[Maybe], grad: torch.Tensor, needed: tuple[bool, ...]) -> bool:
        """Return whether the saved tensors lie where they lay, and the gradient is as was expected."""
        return (
            grad.is_contiguous() and grad.dtype == self.dtype and grad.data_ptr() % 16 == 0 and needed == self.needed
            and [0 if each is None else each.data_ptr() for each in tensors] == self.addresses
        )  # fmt: skip

    def run(self, grad: torch.Tensor) -> Gradients:
        """Return the gradients."""
        own = self.operands
        own[::PRODUCT_OPERANDS] = [grad.data_ptr()] * (len(own) // PRODUCT_OPERANDS)
        self.first(own)
        for launch, addresses in self.rest:
            launch(addresses)
        return self.found.below[-1] if self.of_x else None, self.found.of_bias, self.found.of_weights


@dataclass(frozen=True, eq=False)
class FactorStep:
    """One product after the other, each by what should be quickest."""

    products: tuple[Multiply, ...]
    options: Options
    route: str = "factor by factor"
    saves_between: bool = True

    def forward(self, x: torch.Tensor, weights: Weights, bias: Maybe, info: RunInfo) -> tuple[torch.Tensor, Saved]:
        """Return the product, and what lies between the factors."""
        value, between, last = canonical(x, self.options.batch_last), list[torch.Tensor](), len(weights) - 1
        for number, (multiply, weight) in enumerate(zip(self.products, weights, strict=True)):
            value = multiply(value, weight, bias if number == last else None, None, None, info)
            between.append(value)
        return shaped(between.pop(), x, self.options.batch_last).detach(), between

    def bind_backward(
        self, x: Maybe, weights: Weights, saved: Saved, grad: torch.Tensor, needed: Sequence[bool]
    ) -> Backward:
        """Return the gradients: for each factor a product by its transpose, and a sum over the rows."""
        of_x, of_bias, *of_weights = needed
        moved = canonical(grad, self.options.batch_last)
        bias = bind_bias(moved) if of_bias else None
        values, levels = [None if x is None else canonical(x, self.options.batch_last), *saved], list[_FactorLevel]()
        for index in reversed(range(len(weights))):
            weight, value, below = weights[index], values[index], None
            sums = multiply = both = None
            if of_x or any(of_weights[:index]):
                a, _, c, d = weight.shape
                below = empty(moved, a * c * d, self.options.batch_last)
                multiply = bind_product(moved, weight.transpose(1, 2), None, "", self.options, below, False)
            if of_weights[index] and value is not None:
                sums = bind_gradient(value, moved, weight.shape, self.options)
                both = None if below is None else bind_gradients(value, moved, weight, self.options)
            levels.append(_FactorLevel(index, multiply, not reads_address(multiply), sums, both))
            if below is None:
                break
            moved = below
        return FactorBackward(tuple(levels), bias, of_x, of_x or any(of_weights[:-1]), self.options.batch_last)


class _FactorLevel(NamedTuple):
    """The product by the transpose of a factor, and the gradient of its weights, or ``both`` in one.

    ``transposes``: the product takes the transposed factor, not only its address.
    """

    position: int
    multiply: Multiply | None
    transposes: bool
    sums: Sum | None
    both: Both | None


@dataclass(frozen=True, eq=False)
class FactorBackward:
    """The backward pass of :class:`FactorStep`; while a graph is captured, sums lie ``apart`` on a second stream."""

    levels: tuple[_FactorLevel, ...]
    bias: Callable[[torch.Tensor], torch.Tensor] | None
    of_x: bool
    apart: bool
    batch_last: bool
    route: str = "factor by factor"

    def __call__(self, x: Maybe, weights: Weights, saved: Saved, grad: torch.Tensor) -> Gradients:
        """Return the gradients."""
        moved, info = canonical(grad, self.batch_last), RunInfo()
        found: list[Maybe] = [None] * len(weights)
        alive = [moved]  # what another stream reads stays
        splits = self.apart and splits_streams(grad.device)
        with side_stream(grad.device) if splits else nullcontext():
            of_bias = None if self.bias is None else self.bias(moved)
        for index, multiply, transposes, sums, both in self.levels:
            value, weight = (saved[index - 1] if index else x), weights[index]
            if both is not None and value is not None:
                value = value if index else canonical(value, self.batch_last)
                apart = partial(side_stream, grad.device) if splits else nullcontext
                moved, of_weight = both(value, moved, weight, apart, alive)
                found[index] = of_weight[0]
                alive.append(moved)
                continue
            if sums is not None and value is not None:
                value = value if index else canonical(value, self.batch_last)
                with side_stream(grad.device) if splits else nullcontext():
                    found[index] = sums(value, moved)[0]
            if multiply is not None:
                other = weight.transpose(1, 2) if transposes else weight
                moved = multiply(moved, other, None, None, None, info)
                alive.append(moved)
        if splits:
            join_side_stream(grad.device)
        return shaped(moved, grad, self.batch_last) if self.of_x else None, of_bias, found


def bind_step(kind: str, x: torch.Tensor, weights: Weights, bias: Maybe, options: Options, of_x: bool) -> Step:
    """Return the step of a kind for tensors of these layouts."""
    x, weights = x.detach(), [weight.detach() for weight in weights]
    if kind == MATRIX:
        return bind_matrix(weights, x.dtype, options, of_x)
    if kind == GROUPED:
        return bind_grouped(x, weights, bias, options)
    products, value = list[Multiply](), canonical(x, options.batch_last)
    for number, weight in enumerate(weights):
        a, b, _, d = weight.shape
        offset, out = bias if number == len(weights) - 1 else None, empty(value, a * b * d, options.batch_last)
        products.append(bind_product(value, weight, offset, "", options, out, False))
        value = out
    return FactorStep(tuple(products), options)


def bind_grouped(x: torch.Tensor, weights: Weights, bias: Maybe, options: Options, activation: str = "") -> GroupedStep:
    """Return a step of a launch for each factor; an activation is taken along where no gradient is recorded."""
    value, last = canonical(x, options.batch_last), options.batch_last
    reads, products, shapes = value.data_ptr() == x.data_ptr(), list[Any](), list[tuple[int, ...]]()
    for number, weight in enumerate(in_one_piece(weights, x.dtype)):
        a, b, _, d = weight.shape
        offset, after = (bias, activation) if number == len(weights) - 1 else (None, "")
        out = empty(value, a * b * d, last)
        products.append(grouped().bind_forward(value, weight, offset, options.precision, out, after))
        shapes.append(memory_shape(a * b * d, x, last))
        value = out
    inplace = is_in_one_piece(weights if bias is None else [*weights, bias], x.dtype)
    launches = tuple([product.launch for product in products])
    return GroupedStep(launches, tuple(shapes), reads, inplace, options, products[-1].route)
