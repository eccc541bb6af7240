"""Training steps of two factors of halves on a GPU by batched products; the intermediate result has the batch last.

The first factor is (a, b, c, 1), the second one (1, e, f, d). Batched products read and write blocks that interleave
where they lie if the batch is last, as it is between the factors, in either direction. The result and its gradient,
whose batch is first, go over transposed rows (N, d, e), one pass each, and weights of the second factor over blocks
(f, d, e). In both e is padded to whole vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from operator import itemgetter
from typing import Any

import torch

from ...compiler.nest import BYTES
from ...torch_ops.execute import allocate_as, layouts_in_one_piece
from ...torch_ops.info import RunInfo
from ...torch_ops.joined_launches import GRAD
from ...torch_ops.launch_sequence import Launch, LaunchSequence, Pick
from ...torch_ops.torch_private import is_capturing
from ..mode_product import execute
from ..mode_product.chain_plan import Pattern
from ..mode_product.execute import uncast
from ..mode_product.factor_matrix_plan import DTYPES as HALVES
from ..mode_product.torch_op import Maybe
from ..mode_product.torch_products import BLAS_FARTHEST
from ..mode_product.transpose_plan import ACCESS, in_squares, padded, pass_seconds, start_seconds
from ..mode_product.vendor_cost import batch_last_seconds
from .chain_launches import LaunchedBackward, LaunchedForward, Table
from .chain_products import (
    Backward,
    Gradients,
    Saved,
    Weights,
    bind_bias,
    bind_matmul,
    canonical,
    grouped,
    in_one_piece,
    is_in_one_piece,
    join_side_stream,
    matmul,
    maybe_side_stream,
    memory_shape,
    shaped,
    splits_streams,
)

_WHOLE = 8  # numbers of a vector
# Bytes of rows from which the pass that transposes them sums them: below, a launch that reads them again costs less.
_LEAST_SUMMED = 8 << 20
_MOST_BYTES = 4 << 30  # of the rows between the factors, and of transposed ones


def is_batched(patterns: tuple[Pattern, ...], batch: int, dtype: str, last: bool) -> bool:
    """Return whether this is a way to multiply so many rows by factors of these patterns."""
    if len(patterns) != 2 or dtype not in HALVES or last:
        return False
    (a, b, c, steps), (outer, e, f, d) = patterns
    whole = not any(extent % _WHOLE for extent in (batch, b, c, f, d))
    widest = max(a * b, d * padded(e, BYTES[dtype]))
    fits = BYTES[dtype] * batch * widest <= _MOST_BYTES and d * batch <= BLAS_FARTHEST
    return steps == outer == 1 < d and a * b == f * d and whole and fits


def batched_seconds(patterns: tuple[Pattern, ...], batch: int, dtype: str) -> float:
    """Return what a training step should take: six batched products, two passes and weights in another order twice."""
    (a, b, c, _), (_, e, f, d) = patterns
    whole, size = in_squares(e, d, BYTES[dtype]), BYTES[dtype]
    passes = sum(pass_seconds(e, d, batch, size, before, whole) for before in (True, False))
    products = sum(
        batch_last_seconds(*extents, count, dtype)
        for high, wide, count in ((b, c, a), (e, f, d))
        for extents in ((high, batch, wide), (wide, batch, high), (high, wide, batch))
    )
    return products + passes + start_seconds((e, e), d, size, whole)


_ROUTE = "torch bmm, batch last between"


@dataclass(frozen=True, eq=False)
class BatchedStep:
    """Forward: a batched product for each factor, and a pass behind the second one.

    ``launches`` are what an eager call takes where all of it is launched on addresses.
    """

    launches: LaunchedForward | None = None
    route: str = _ROUTE
    saves_between: bool = False

    def forward(self, x: torch.Tensor, weights: Weights, bias: Maybe, info: RunInfo) -> tuple[torch.Tensor, Saved]:
        """Return the product, what lies between the factors, features first, and the second one's blocks (f, d, e)."""
        info.route = self.route
        if self.launches is not None and not is_capturing():
            between, blocks, _, value = self.launches.run(x, weights, bias)
            return value, [between, blocks]
        first, second = in_one_piece(weights, x.dtype)
        (a, b, c, _), (_, e, f, d) = first.shape, second.shape
        rows = _rows(x)
        count = rows.shape[0]
        between, value = allocate_as(x, (a * b, count)), allocate_as(x, memory_shape(e * d, x, False))
        after = allocate_as(x, (count, d, padded(e, x.element_size())))
        splits = splits_streams(x.device)
        side = maybe_side_stream(x.device, splits)()
        _bmm(first[..., 0], rows.unflatten(1, (a, c)).permute(1, 2, 0), between.view(a, b, count))
        with side:
            blocks = execute.transposing().rows_of_blocks(second.view(1, -1), 1, e, f * d).view(f, d, -1)
        if splits:
            join_side_stream(x.device)
        _bmm(between.view(f, d, count).permute(1, 2, 0), blocks.transpose(0, 1), after.transpose(0, 1))
        added = None if bias is None else _at_vectors(bias)
        execute.transposing().bring_back(after.flatten(1), value.view(count, e * d), 1, e, d, added)
        return value, [between, blocks]

    def bind_backward(
        self, x: Maybe, weights: Weights, saved: Saved, grad: torch.Tensor, needed: Sequence[bool]
    ) -> Backward:
        """Return the gradients, of a factor by two batched products."""
        launches = None if self.launches is None else _bind_backward(x, weights, saved, grad, needed)
        return BatchedBackward(tuple(needed), bind_bias(canonical(grad, False)) if needed[1] else None, launches)

    @property
    def launched(self) -> LaunchedForward | None:
        """Return the launches of a pass."""
        return self.launches

    @property
    def on_addresses(self) -> bool:
        """Return whether it reads tensors in one piece where they lie."""
        return self.launches is not None


def bind_batched(x: torch.Tensor, weights: Weights, bias: Maybe) -> BatchedStep:
    """Return the step for tensors like these, by launches on addresses where all of them are in one piece."""
    first, second = weights
    parameters = weights if bias is None else (*weights, bias)
    is_whole = x.is_contiguous() and is_in_one_piece(parameters, x.dtype)
    if splits_streams(x.device) or not is_whole or (bias is not None and bias.data_ptr() % ACCESS):
        return BatchedStep()
    (a, b, c, _), (_, e, f, d) = first.shape, second.shape
    rows = x.view(-1, a * c)
    count = len(rows)
    whole = padded(e, x.element_size())
    shapes = (a * b, count), (f, d, whole), (count, d, whole), memory_shape(e * d, x, False)
    between, blocks, after, value = (x.new_empty(shape) for shape in shapes)
    x_at, first_at, second_at, bias_at, between_at, blocks_at, after_at, value_at = range(1, 9)
    one = bind_matmul(first[..., 0], rows.unflatten(1, (a, c)).permute(1, 2, 0), between.view(a, b, count))
    other = bind_matmul(between.view(f, d, count).permute(1, 2, 0), blocks.transpose(0, 1), after.transpose(0, 1))
    if one is None or other is None:
        return BatchedStep()
    arrange = _passes().bind_transpose(second.view(1, -1), blocks.view(1, -1), 1, e, f * d, True)
    finish = _passes().bind_transpose(after.flatten(1), value.view(count, -1), 1, e, d, False, bias)
    finishes = (after_at, value_at) if bias is None else (after_at, value_at, bias_at)
    launches = (
        (one, itemgetter(first_at, x_at, between_at, 0)), (arrange, itemgetter(second_at, blocks_at)),
        (other, itemgetter(between_at, blocks_at, after_at, 0)), (finish, itemgetter(*finishes)),
    )  # fmt: skip
    return BatchedStep(LaunchedForward(LaunchSequence(launches, True), layouts_in_one_piece(shapes), 2))


def _bind_backward(
    x: Maybe, weights: Weights, saved: Saved, grad: torch.Tensor, needed: Sequence[bool]
) -> LaunchedBackward | None:
    """Return the gradients by launches on addresses; None where some of it is left to torch's operations."""
    first, (between, blocks), (of_x, of_bias, of_first, of_second) = weights[0], saved, needed
    if x is None or between is None or blocks is None or not (x.is_contiguous() and grad.is_contiguous()):
        return None
    (a, b, c, _), (f, d, whole), e = first.shape, blocks.shape, weights[1].shape[1]
    rows, flat = x.view(-1, a * c), grad.view(-1, e * d)
    count, like = len(rows), grad.new_empty
    table, launches = Table(5), list[tuple[Launch | None, Pick]]()  # reads both factors, x and what was saved
    first_at, _, x_at, between_at, blocks_at = range(GRAD + 1, GRAD + 6)
    of_x_at = of_bias_at = of_first_at = of_second_at = 0
    transposed, transposed_at = like((count, d * whole)), table.add((count, d * whole))
    if of_bias:
        of_bias_at = table.add((e * d,))
    if of_bias and _transposing_sums(flat, e, d):
        launch, parts = _passes().bind_rows_and_sums(flat, e, d)
        sums_at = table.add((-(-4 * parts * e * d // flat.element_size()),))  # memory for float32
        launches.append((launch, itemgetter(GRAD, transposed_at, sums_at)))
        add = execute.sums().bind_parts(parts, e * d, flat.dtype, flat.get_device())
        launches.append((add, itemgetter(sums_at, of_bias_at)))
    else:
        if of_bias:
            launches.append((grouped().bind_sums(flat[None]).launch, itemgetter(GRAD, 0, of_bias_at, 0)))
        launches.append((_passes().bind_transpose(flat, transposed, 1, e, d, True), itemgetter(GRAD, transposed_at)))
    columns = transposed.view(count, d, whole).permute(1, 2, 0)
    if of_second:
        made, made_at = like((f, d, whole)), table.add((f, d, whole))
        product = bind_matmul(columns, between.view(f, d, count).permute(1, 2, 0), made.permute(1, 2, 0))
        launches.append((product, itemgetter(transposed_at, between_at, made_at, 0)))
        of_second_at = table.add((1, e, f, d))
        arrange = _passes().bind_transpose(made.view(1, -1), like((1, e * f * d)), 1, e, f * d, False)
        launches.append((arrange, itemgetter(made_at, of_second_at)))
    moved = like((a * b, count))
    if of_x or of_first:
        moved_at = table.add((a * b, count))
        product = bind_matmul(blocks.transpose(0, 1), columns, moved.view(f, d, count).transpose(0, 1))
        launches.append((product, itemgetter(blocks_at, transposed_at, moved_at, 0)))
        if of_first:
            of_first_at = table.add((a, b, c, 1))
            product = bind_matmul(
                moved.view(a, b, count), rows.unflatten(1, (a, c)).transpose(0, 1), like((a, b, c))
            )  # fmt: skip
            launches.append((product, itemgetter(moved_at, x_at, of_first_at, 0)))
        if of_x:
            of_x_at = table.add(tuple(x.shape))
            below = like((count, a, c)).transpose(0, 1)
            product = bind_matmul(moved.view(a, b, count).mT, first[..., 0], below)
            launches.append((product, itemgetter(moved_at, first_at, of_x_at, 0)))
    bound = [(launch, pick) for launch, pick in launches if launch is not None]
    if len(bound) < len(launches):
        return None
    found = of_x_at, of_bias_at, of_first_at, of_second_at
    return table.bind(bound, found, True, False, _ROUTE, True)


@dataclass(frozen=True, eq=False)
class BatchedBackward:
    """The backward pass of :class:`BatchedStep`; while a graph is captured, sums lie on a second stream.

    ``launches`` are what an eager call takes where all of it is launched on addresses.
    """

    needed: tuple[bool, ...]
    bias: Callable[[torch.Tensor], torch.Tensor] | None
    launches: LaunchedBackward | None = None
    route: str = _ROUTE

    def __call__(self, x: Maybe, weights: Weights, saved: Saved, grad: torch.Tensor) -> Gradients:
        """Return the gradients."""
        if self.launches is not None and not splits_streams(grad.device):
            return self.launches(x, weights, saved, grad)
        of_x, _, *of_weights = self.needed
        first, (between, blocks) = weights[0].to(grad.dtype).contiguous(), saved
        (a, b, c, _), (_, e, f, d) = first.shape, weights[1].shape
        device, found, below = grad.device, list[Maybe]([None, None]), None
        apart = maybe_side_stream(device, splits_streams(device))
        rows, of_bias, sums = _rows(grad), None, None
        count = rows.shape[0]
        if self.bias is not None and _transposing_sums(rows, e, d):
            transposed, sums = _passes().rows_and_sums(rows, e, d)
        else:
            with apart():
                of_bias = None if self.bias is None else self.bias(canonical(grad, False))
            transposed = execute.transposing().rows_of_blocks(rows, 1, e, d)
        columns = transposed.view(count, d, -1).permute(1, 2, 0)
        if of_weights[1] and between is not None:
            with apart():
                found[1] = _second_gradient(columns, between.view(f, d, count), e)
        of_rows = None
        if blocks is not None and (of_x or of_weights[0]):
            moved = allocate_as(grad, (a * b, count))
            _bmm(blocks.transpose(0, 1), columns, moved.view(f, d, count).transpose(0, 1))
            of_rows = moved.view(a, b, count)
            if of_weights[0] and x is not None:
                with apart():
                    found[0] = allocate_as(first, first.shape)
                    _bmm(of_rows, _rows(x).unflatten(1, (a, c)).transpose(0, 1), found[0][..., 0])
        if sums is not None:
            with apart():  # behind what takes longer
                of_bias = execute.sums().add_parts(sums, grad.dtype)
        if of_rows is not None and of_x:
            below = allocate_as(grad, (count, a, c))
            _bmm(of_rows.mT, first[..., 0], below.transpose(0, 1))
            below = shaped(below.view(1, count, a * c), grad, False)
        if splits_streams(device):
            join_side_stream(device)
        return below, of_bias, found

    @property
    def launched(self) -> LaunchedBackward | None:
        """Return the pass where it is launches alone."""
        return None if self.launches is None else self.launches.launched


def _second_gradient(columns: torch.Tensor, between: torch.Tensor, e: int) -> torch.Tensor:
    """Return the gradient of weights (1, e, f, d) from padded columns (d, e, N) and what lies between, (f, d, N)."""
    (d, whole, _), f = columns.shape, between.shape[0]
    made, found = allocate_as(columns, (f, d, whole)), allocate_as(columns, (1, e, f, d))
    _bmm(columns, between.permute(1, 2, 0), made.permute(1, 2, 0))
    execute.transposing().bring_back(made.view(1, -1), found.view(1, -1), 1, e, f * d)
    return found


def _transposing_sums(rows: torch.Tensor, e: int, d: int) -> bool:
    """Return whether the pass that transposes rows (N, e d) also sums them."""
    size = rows.element_size()
    return rows.numel() * size >= _LEAST_SUMMED and begins_at_vectors(rows) and in_squares(e, d, size)


def _at_vectors(bias: torch.Tensor) -> torch.Tensor:
    """Return a bias in one piece that begins at a vector."""
    bias = bias.contiguous()
    return bias.clone() if bias.data_ptr() % ACCESS else bias


def begins_at_vectors(rows: torch.Tensor) -> bool:
    """Return whether all rows begin at vectors."""
    return (rows.data_ptr() | rows.stride(0) * rows.element_size()) % ACCESS == 0


def _rows(x: torch.Tensor) -> torch.Tensor:
    """Return x as rows (N, features) with the features together in memory."""
    rows = canonical(x, False)[0]
    return rows if rows.stride(1) == 1 and rows.stride(0) % _WHOLE == 0 else rows.contiguous()


def _bmm(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor) -> None:
    """``left @ right`` of (blocks, ., .), in the types that they have."""
    if not (splits_streams(out.device) and matmul().capture_matmul(left, right, out)):
        uncast("cuda", _into, left, right, out)


def _into(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    return torch.bmm(left, right, out=out)


@lru_cache(maxsize=1)
def _passes() -> Any:
    """Return what binds passes that transpose, loaded with the first step."""
    return import_module("..mode_product.rearrange", __package__)
