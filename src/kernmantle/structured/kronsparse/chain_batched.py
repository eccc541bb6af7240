"""Training steps of two factors of halves on a GPU by batched products, with the batch last between the factors.

The first factor is (a, b, c, 1), the second one (1, e, f, d). Batched products read and write blocks that interleave
where they lie if the batch is last, as it is between the factors, in either direction. The result and its gradient,
whose batch is first, go over transposed rows (N, d, e), one pass each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any

import torch

from ...compiler.nest import BYTES
from ...torch_ops.execute import allocate_as
from ...torch_ops.info import RunInfo
from ..mode_product.chain_plan import Pattern
from ..mode_product.execute import block_matrices, uncast
from ..mode_product.factor_matrix_plan import DTYPES as HALVES
from ..mode_product.torch_op import Maybe
from ..mode_product.torch_products import BLAS_FARTHEST
from ..mode_product.transpose_plan import in_squares, pass_seconds, start_seconds
from ..mode_product.vendor_cost import batch_last_seconds
from .chain_products import (
    Backward,
    Gradients,
    Saved,
    Weights,
    bind_bias,
    canonical,
    in_one_piece,
    join_side_stream,
    memory_shape,
    shaped,
    side_stream,
    splits_streams,
)

_WHOLE = 8  # numbers of a vector
_MOST_BYTES = 4 << 30  # of the rows between the factors, and of transposed ones


def is_batched(patterns: tuple[Pattern, ...], batch: int, dtype: str, last: bool) -> bool:
    """Return whether this is a way to multiply so many rows by factors of these patterns."""
    if len(patterns) != 2 or dtype not in HALVES or last:
        return False
    (a, b, c, steps), (outer, e, f, d) = patterns
    whole = not any(extent % _WHOLE for extent in (batch, b, c, e, f, d))
    fits = BYTES[dtype] * batch * max(a * b, d * e) <= _MOST_BYTES and d * batch <= BLAS_FARTHEST
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


@dataclass(frozen=True, eq=False)
class BatchedStep:
    """Forward: a batched product for each factor, and a pass behind the second one."""

    route: str = "torch bmm, batch last between"
    saves_between: bool = False

    def forward(self, x: torch.Tensor, weights: Weights, bias: Maybe, info: RunInfo) -> tuple[torch.Tensor, Saved]:
        """Return the product, what lies between the factors, features first, and the second one's blocks (d, e, f)."""
        info.route = self.route
        first, second = in_one_piece(weights, x.dtype)
        (a, b, c, _), (_, e, f, d) = first.shape, second.shape
        rows = _rows(x)
        count = rows.shape[0]
        between, value = allocate_as(x, (a * b, count)), allocate_as(x, memory_shape(e * d, x, False))
        after = allocate_as(x, (count, d, e))
        _bmm(first[..., 0], rows.unflatten(1, (a, c)).permute(1, 2, 0), between.view(a, b, count))
        blocks = block_matrices(second[None])[0, 0]
        columns = between.view(f, d, count).permute(1, 2, 0)
        _bmm(columns, blocks.mT, after.transpose(0, 1))
        flat = value.view(count, e * d)
        _transposing().bring_back(after.flatten(1), flat, 1, e, d)
        if bias is not None:
            flat.add_(bias)
        return value, [between, blocks]

    def bind_backward(
        self, x: Maybe, weights: Weights, saved: Saved, grad: torch.Tensor, needed: Sequence[bool]
    ) -> Backward:
        """Return the gradients, of a factor by two batched products."""
        del x, weights, saved  # whose layouts it takes as they come
        return BatchedBackward(tuple(needed), bind_bias(canonical(grad, False)) if needed[1] else None)


@dataclass(frozen=True, eq=False)
class BatchedBackward:
    """The backward pass of :class:`BatchedStep`; while a graph is captured, sums lie on a second stream."""

    needed: tuple[bool, ...]
    bias: Callable[[torch.Tensor], torch.Tensor] | None
    route: str = BatchedStep.route

    def __call__(self, x: Maybe, weights: Weights, saved: Saved, grad: torch.Tensor) -> Gradients:
        """Return the gradients."""
        of_x, _, *of_weights = self.needed
        first, (between, blocks) = weights[0].to(grad.dtype).contiguous(), saved
        (a, b, c, _), (_, e, f, d) = first.shape, weights[1].shape
        device, found, below = grad.device, list[Maybe]([None, None]), None
        apart = (lambda: side_stream(device)) if splits_streams(device) else nullcontext
        with apart():
            of_bias = None if self.bias is None else self.bias(canonical(grad, False))
        rows = _rows(grad)
        count = rows.shape[0]
        columns = _transposing().rows_of_blocks(rows, 1, e, d).view(count, d, e).permute(1, 2, 0)
        if of_weights[1] and between is not None:
            with apart():
                found[1] = _second_gradient(columns, between.view(f, d, count).permute(1, 2, 0))
        if blocks is not None and (of_x or of_weights[0]):
            moved = allocate_as(grad, (a * b, count))
            _bmm(blocks.mT, columns, moved.view(f, d, count).transpose(0, 1))
            of_rows = moved.view(a, b, count)
            if of_weights[0] and x is not None:
                with apart():
                    found[0] = allocate_as(first, first.shape)
                    _bmm(of_rows, _rows(x).unflatten(1, (a, c)).transpose(0, 1), found[0][..., 0])
            if of_x:
                below = allocate_as(grad, (count, a, c))
                _bmm(of_rows.mT, first[..., 0], below.transpose(0, 1))
                below = shaped(below.view(1, count, a * c), grad, False)
        if splits_streams(device):
            join_side_stream(device)
        return below, of_bias, found


def _second_gradient(columns: torch.Tensor, between: torch.Tensor) -> torch.Tensor:
    """Return the gradient of weights (1, e, f, d) from rows (d, e, N) of one and (d, N, f) of what lies between."""
    (d, e, _), f = columns.shape, between.shape[2]
    made = allocate_as(columns, (d, e * f))
    _bmm(columns, between, made.view(d, e, f))
    return _transposing().weights_of_blocks(made, (1, e, f, d))


def _rows(x: torch.Tensor) -> torch.Tensor:
    """Return x as rows (N, features) with the features together in memory."""
    rows = canonical(x, False)[0]
    return rows if rows.stride(1) == 1 and rows.stride(0) % _WHOLE == 0 else rows.contiguous()


def _bmm(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor) -> None:
    """``left @ right`` of (blocks, ., .), in the types that they have."""
    uncast("cuda", _into, left, right, out)


def _into(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    return torch.bmm(left, right, out=out)


@lru_cache(maxsize=1)
def _transposing() -> Any:
    """Return what is loaded with the first step."""
    return import_module("..mode_product.transpose", __package__)
