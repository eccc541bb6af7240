"""Kronecker-sparse products over transposed rows on NVIDIA GPUs: a pass before the product and one after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch.nn import functional

from ...backends.cuda.launch import Kernel
from ...torch_ops.cuda import index_of, limits, start
from ...torch_ops.dtypes import NAMES
from ...torch_ops.execute import allocate
from ...torch_ops.info import RunInfo
from . import cuda_emit
from .cost import TRANSPOSED, block_sum_seconds
from .cuda import choose_algorithm, load
from .pack import PackedWeights
from .transpose_plan import ACCESS, TransposePlan, padded, transpose_plan

Maybe = torch.Tensor | None
_MOST_BYTES = 4 << 30
_BLOCKS_EACH = 6  # of a multiprocessor, by their shared memory


class _Blocks(NamedTuple):
    """Weights (a, d, b, c, 1) with b and c padded by zeros, and what was packed of them."""

    weight: torch.Tensor
    packed: PackedWeights | None


def product(
    x: torch.Tensor, weight: torch.Tensor, bias: Maybe, activation: str, precision: str,
    out: torch.Tensor, packed: PackedWeights | None, by: Callable[..., torch.Tensor], info: RunInfo | None = None,
) -> None:  # fmt: skip
    """The product of one group to ``out``, of its blocks ``by`` what should be quickest.

    So many rows at a time that what is between is not too much.
    """
    _, a, b, c, d = weight.shape
    count, size = x.shape[1], x.element_size()
    high, wide = padded(b, size), padded(c, size)
    if packed is None:
        own = _blocks(weight, high, wide, None)
    else:
        key = TRANSPOSED, x.dtype
        own = packed.get_or_pack(key, lambda: _blocks(weight, high, wide, PackedWeights()), x.device)
    offset = None if bias is None else functional.pad(bias[0].view(a, b, d).mT, (0, high - b)).reshape(a, d * high)
    rows = max(1, min(count, _MOST_BYTES // (size * a * d * max(high, wide))))
    before, after = (allocate((rows, a * d * extent), x.dtype, x.device) for extent in (wide, high))
    for begin in range(0, count, rows):
        rows_of_x, target = x[0, begin : begin + rows], out[0, begin : begin + rows]
        present = rows_of_x.shape[0]
        source, result = (
            part[:present].unflatten(1, (a, d * extent)).transpose(0, 1)
            for part, extent in ((before, wide), (after, high))
        )
        _transpose(rows_of_x, before[:present], a, c, d, True)
        inner = (source, own.weight, offset, activation, precision, result)
        algorithm = choose_algorithm(*inner, own.packed is not None)
        by(
            algorithm, source, own.weight, offset, activation, False, precision, result, own.packed, info
        )  # fmt: skip
        _transpose(after[:present], target, a, b, d, False)


def gradient(
    x: torch.Tensor, grad: torch.Tensor, pattern: tuple[int, int, int, int], precision: str,
    by: Callable[..., torch.Tensor],
) -> torch.Tensor:  # fmt: skip
    """Return the gradient of weights of one group, of blocks ``by`` what should be quickest, some rows at a time."""
    a, b, c, d = pattern
    count, size = x.shape[1], x.element_size()
    high, wide = padded(b, size), padded(c, size)
    rows = max(1, min(count, _MOST_BYTES // (size * a * d * (high + wide))))
    total: Maybe = None
    for begin in range(0, count, rows):
        sides: list[torch.Tensor] = []
        for source, own, extent in ((x, c, wide), (grad, b, high)):
            part = source[0, begin : begin + rows]
            part = part if part.stride(1) == 1 else part.contiguous()
            rows_of_blocks = allocate((part.shape[0], a * d * extent), x.dtype, x.device)
            _transpose(part, rows_of_blocks, a, own, d, True)
            sides.append(rows_of_blocks.unflatten(1, (a, d * extent)).transpose(0, 1))
        algorithm, _ = block_sum_seconds((a * d, high, wide, 1), sides[0].shape[1], NAMES[x.dtype])
        summed = by(*sides, (d, high, wide, 1), algorithm, precision)[..., :b, :c, 0]
        total = summed if total is None else total + summed
    assert total is not None
    return total.permute(0, 2, 3, 1).contiguous()[None]


def _blocks(weight: torch.Tensor, high: int, wide: int, packed: PackedWeights | None) -> _Blocks:
    _, _, b, c, _ = weight.shape
    blocks = weight[0].permute(0, 3, 1, 2)
    if (high, wide) != (b, c):
        blocks = functional.pad(blocks, (0, wide - c, 0, high - b))
    return _Blocks(blocks[..., None], packed)


def _transpose(source: torch.Tensor, target: torch.Tensor, a: int, high: int, l: int, pads: bool) -> None:
    """Transpose a matrices ``high`` x ``l`` in each row and pad the new rows, or undo that."""
    index, size = index_of(source.device), source.element_size()
    plain, pitch = source if pads else target, padded(high, size)
    in_one_piece = plain.stride(0) == a * high * l
    aligned = (plain.data_ptr() | plain.stride(0) * size) % ACCESS == 0
    plan = transpose_plan(limits(index).arch, size, high, l, pads, in_one_piece, aligned)
    kernel = _kernel(plan)
    if kernel is None:
        return
    count = source.shape[0]
    tiles = plan.tiles(count * a, high, pitch)
    blocks, extents = -(-tiles // plan.warps), (high, pitch)
    if plan.lanes:
        extents = (high, l) if pads else (l, high)
    else:
        blocks = min(blocks, limits(index).sm_count * _BLOCKS_EACH)
    pointers = source.data_ptr(), target.data_ptr()
    start(kernel, index, blocks, (*pointers, count, a, *extents, source.stride(0), target.stride(0)))


def _kernel(plan: TransposePlan) -> Kernel | None:
    loaded = load(
        (plan,), lambda: cuda_emit.emit_transpose(plan), plan.arch, (cuda_emit.ENTRY, plan.threads, plan.shared, False)
    )
    return None if loaded is None else loaded[0]
