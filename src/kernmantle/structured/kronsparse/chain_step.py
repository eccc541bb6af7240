"""Training steps of a chain of Kronecker-sparse products, bound: what remains of a pass are memory and launches.

A step of one kind binds its forward pass for tensors of one layout, and from what that saves its backward pass. ``x``
and gradients have the features last, or first with ``batch_last``; weights are (a, b, c, d), a bias (features,).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter
from typing import Any, Protocol

import torch

from ...torch_ops.execute import layouts_in_one_piece
from ...torch_ops.info import RunInfo
from ...torch_ops.joined_launches import GRAD
from ...torch_ops.launch_sequence import Launch, LaunchSequence, Pick
from ..mode_product.operands import empty
from ..mode_product.torch_op import Maybe, Options
from .chain_batched import bind_batched
from .chain_blocks import bind_blocks
from .chain_launches import LaunchedBackward, LaunchedForward, Table
from .chain_matrix import bind_matrix
from .chain_products import (
    Backward,
    FactorBackward,
    FactorLevel,
    Multiply,
    Saved,
    Weights,
    bind_bias,
    bind_gradient,
    bind_gradients,
    bind_product,
    canonical,
    grouped,
    in_one_piece,
    is_batched,
    is_in_one_piece,
    memory_shape,
    reads_address,
    shaped,
)

FACTORS, GROUPED, MATRIX, BATCHED, BLOCKS = "factors", "grouped", "matrix", "batched", "blocks"


class Step(Protocol):
    """The forward pass of a step, bound, and what binds its backward pass."""

    @property
    def route(self) -> str:
        """The text of ``info``."""
        ...

    @property
    def saves_between(self) -> bool:
        """Return whether what is saved lies between the factors."""
        ...

    @property
    def on_addresses(self) -> bool:
        """Return whether it reads tensors in one piece where they lie, the gradient of its result too."""
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
    """A launch for each factor forward and one back, or one for all where they can be joined.

    ``reads_x`` and ``reads_weights`` say that launches read these tensors, and the bias, where they lie.
    """

    launches: LaunchedForward
    reads_x: bool
    reads_weights: bool
    options: Options
    route: str
    saves_between: bool = True
    on_addresses: bool = False

    @property
    def launched(self) -> LaunchedForward | None:
        """Return the launches of a pass that reads all tensors where they lie."""
        return self.launches if self.reads_x and self.reads_weights else None

    def forward(self, x: torch.Tensor, weights: Weights, bias: Maybe, info: RunInfo) -> tuple[torch.Tensor, Saved]:
        """Return the product, and what lies between the factors."""
        info.route = self.route
        source = x if self.reads_x else canonical(x, self.options.batch_last)
        if not self.reads_weights:
            weights, bias = in_one_piece(weights, x.dtype), None if bias is None else bias.contiguous()
        results = self.launches.run(source, weights, bias)
        return results.pop(), results

    def bind_backward(
        self, x: Maybe, weights: Weights, saved: Saved, grad: torch.Tensor, needed: Sequence[bool]
    ) -> Backward:
        """Return the gradients, those of one factor in a launch."""
        of_x, of_bias, *of_weights = needed
        last, moved = self.options.batch_last, canonical(grad, self.options.batch_last)
        values = [None if value is None else canonical(value, last) for value in (x, *saved)]
        own = in_one_piece(weights, grad.dtype)
        reads = moved.data_ptr() == grad.data_ptr() and is_in_one_piece(weights, grad.dtype)
        reads = reads and all(
            one is None or other is None or one.data_ptr() == other.data_ptr()
            for one, other in zip(values, (x, *saved), strict=True)
        )
        table = Table(len(weights) + len(values))
        launches, operands, of_x_at, of_bias_at, of_weights_at = [], list[int](), 0, 0, [0] * len(weights)
        grad_at = GRAD
        for index in reversed(range(len(weights))):
            weight, value = own[index], values[index]
            a, b, c, d = weight.shape
            below = empty(moved, a * c * d, last) if of_x or any(of_weights[:index]) else None
            of_weight = torch.empty_like(weight) if of_weights[index] else None
            of_this = moved.new_empty(a * b * d) if of_bias and index == len(weights) - 1 else None
            if below is None and of_weight is None and of_this is None:
                break
            launches.append(grouped().plan_backward(
                moved if value is None else value, moved, weight, below, of_weight, of_this, self.options.precision
            ))  # fmt: skip
            below_at = 0 if below is None else table.add(memory_shape(a * c * d, grad, last))
            of_weights_at[index] = 0 if of_weight is None else table.add(tuple(weight.shape))
            of_this_at = 0 if of_this is None else table.add((a * b * d,))
            weight_at = GRAD + 1 + index
            read, written = (weight_at + len(weights), grad_at, weight_at), (below_at, of_weights_at[index], of_this_at)
            operands += grouped().backward_operands(*read, *written)
            of_bias_at = of_bias_at or of_this_at
            if below is None:
                break
            moved, grad_at, of_x_at = below, below_at, below_at if of_x else 0
        bound = _with_operands(grouped().bind_each(launches), operands)
        return table.bind(bound, (of_x_at, of_bias_at, *of_weights_at), reads, last)


def _with_operands(launches: Sequence[Any], operands: Sequence[int]) -> tuple[tuple[Launch, Pick], ...]:
    """Return each launch with what takes its operands out of a table of addresses, by the positions of all there."""
    positions = iter(operands)
    return tuple([(each.launch, itemgetter(*islice(positions, 4 * len(each.products)))) for each in launches])


@dataclass(frozen=True, eq=False)
class FactorStep:
    """One product after the other, each by what should be quickest; ``launched`` where they are launches alone."""

    products: tuple[Multiply, ...]
    options: Options
    launched: LaunchedForward | None = None
    route: str = "factor by factor"
    saves_between: bool = True

    @property
    def on_addresses(self) -> bool:
        """Return whether it reads tensors in one piece where they lie."""
        return self.launched is not None

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
        values, levels = [None if x is None else canonical(x, self.options.batch_last), *saved], list[FactorLevel]()
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
            transposes = multiply is not None and not reads_address(multiply)
            levels.append(FactorLevel(index, multiply, transposes, sums, both))
            if below is None:
                break
            moved = below
        # Beside sums over a batch that is last a batched product takes so much longer that a step of both takes 1.2 to
        # 2.4 times as long as of one behind the other (decision 0106).
        slows = self.options.batch_last and all(is_batched(level.multiply) for level in levels)
        apart = (of_x or any(of_weights[:-1])) and not slows
        launches = None if self.launched is None else _launched_backward(levels, of_bias, weights, x, grad, of_x)
        return FactorBackward(tuple(levels), bias, of_x, apart, self.options.batch_last, launches)


def bind_step(
    kind: str, x: torch.Tensor, weights: Weights, bias: Maybe, options: Options, of_x: bool, added: Maybe = None
) -> Step:
    """Return the step of a kind for tensors of these layouts; "matrix" adds what is like ``added`` to its result."""
    x, weights = x.detach(), [weight.detach() for weight in weights]
    if kind == MATRIX:
        return bind_matrix(weights, x.dtype, options, of_x, x, None if bias is None else bias.detach(), added)
    if kind == GROUPED:
        return bind_grouped(x, weights, bias, options)
    if kind == BATCHED:
        return bind_batched(x, weights, None if bias is None else bias.detach())
    if kind == BLOCKS:
        return bind_blocks(canonical(x, options.batch_last), weights, options, of_x)
    products, value = list[Multiply](), canonical(x, options.batch_last)
    values = [value]
    for number, weight in enumerate(weights):
        a, b, _, d = weight.shape
        offset, out = bias if number == len(weights) - 1 else None, empty(value, a * b * d, options.batch_last)
        products.append(bind_product(value, weight, offset, "", options, out, False))
        value = out
        values.append(out)
    return FactorStep(tuple(products), options, _launched_forward(products, x, weights, bias, values, options))


def _on_addresses(multiply: Multiply | None) -> Any:
    """Return what gives the launches of a product on addresses; None where it is more than launches."""
    return getattr(multiply.args[0], "on_addresses", None) if reads_address(multiply) else None  # pyright: ignore


def _launched_forward(
    products: Sequence[Multiply], x: torch.Tensor, weights: Weights, bias: Maybe, values: Sequence[torch.Tensor],
    options: Options,
) -> LaunchedForward | None:  # fmt: skip
    """Return products that follow one another as launches alone; None where something else is part of them."""
    each = [_on_addresses(multiply) for multiply in products]
    ready = is_in_one_piece(weights if bias is None else [*weights, bias], x.dtype) and x.is_contiguous()
    if options.batch_last or None in each or not ready:
        return None
    count, size, parts = len(weights), x.element_size(), list[tuple[int, ...]]()
    begin = 3 + count  # behind nothing, x, the weights and a bias

    def part(bytes_: int) -> int:
        """Return the position of memory behind what lies between the factors."""
        parts.append((-(-bytes_ // size),))
        return begin + count - 2 + len(parts)

    launches, result = list[tuple[Launch, Sequence[int]]](), -1
    for number, launch in enumerate(each):
        out = result if number == count - 1 else begin + number
        source = 1 if number == 0 else begin + number - 1
        launches += launch(source, 2 + number, begin - 1 if number == count - 1 and bias is not None else 0, out, part)
    shapes = [*[tuple(value.shape) for value in values[1:-1]], *parts, memory_shape(values[-1].shape[2], x, False)]
    end = begin + len(shapes) - 1
    own = [(launch, itemgetter(*[end if at == result else at for at in operands])) for launch, operands in launches]
    return LaunchedForward(LaunchSequence(own, True), layouts_in_one_piece(shapes), count - 1)


def _launched_backward(
    levels: Sequence[FactorLevel], of_bias: bool, weights: Weights, x: Maybe, grad: torch.Tensor, of_x: bool
) -> LaunchedBackward | None:
    """Return the gradients as launches alone; None where something else is part of them."""
    if x is None or not (grad.is_contiguous() and is_in_one_piece(weights, grad.dtype)):
        return None
    count, size = len(weights), grad.element_size()
    table, launches = Table(2 * count), list[tuple[Launch, Sequence[int]]]()  # reads weights, x and what is between
    found, moved = [0] * (2 + count), GRAD

    def part(bytes_: int) -> int:
        """Return the position of memory that launches alone read."""
        return table.add((-(-bytes_ // size),))

    if of_bias:
        found[1] = table.add((grad.shape[-1],))
        launches.append((grouped().bind_sums(canonical(grad, False)).launch, (GRAD, 0, found[1], 0)))
    for index, multiply, transposes, sums, both, of_saved in levels:
        on_addresses, multiplied = getattr(sums, "on_addresses", None), _on_addresses(multiply)
        odd = transposes or both is not None or of_saved or (sums is not None and on_addresses is None)
        if odd or (multiply is not None and multiplied is None):
            return None
        if on_addresses is not None:
            found[2 + index] = table.add(tuple(weights[index].shape))
            added = on_addresses(GRAD + 1 + count + index, moved, found[2 + index], part)
            if added is None:
                return None
            launches += added
        if multiplied is not None:
            a, _, c, d = weights[index].shape
            shape = (*x.shape[:-1], a * c * d)
            below = table.add(shape)
            launches += multiplied(moved, GRAD + 1 + index, 0, below, part)
            moved = below
    found[0] = moved if of_x else 0
    own = [(launch, itemgetter(*operands)) for launch, operands in launches]
    return table.bind(own, found, True, False, "factor by factor", True)


def bind_grouped(x: torch.Tensor, weights: Weights, bias: Maybe, options: Options, activation: str = "") -> GroupedStep:
    """Return a step of a launch for each factor; an activation is taken along where no gradient is recorded."""
    value, last = canonical(x, options.batch_last), options.batch_last
    reads, count = value.data_ptr() == x.data_ptr(), len(weights)
    launches, operands, shapes = [], list[int](), list[tuple[int, ...]]()
    for number, weight in enumerate(in_one_piece(weights, x.dtype)):
        a, b, _, d = weight.shape
        offset, after, offset_at = (bias, activation, 2 + count) if number == count - 1 else (None, "", 0)
        out = empty(value, a * b * d, last)
        launches.append(grouped().plan_forward(value, weight, offset, options.precision, out, after))
        operands += (2 + count + number if number else 1, 2 + number, 3 + count + number, offset_at)
        shapes.append(memory_shape(a * b * d, x, last))
        value = out
    inplace = is_in_one_piece(weights if bias is None else [*weights, bias], x.dtype)
    bound = grouped().bind_each(launches)
    launches = LaunchedForward(LaunchSequence(_with_operands(bound, operands)), layouts_in_one_piece(shapes), count - 1)
    return GroupedStep(launches, reads, inplace, options, bound[-1].route)
