"""Kronecker-sparse products over transposed rows on NVIDIA GPUs, with one pass before the product and one after it."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from ...torch_ops.cuda import Entry, index_of, limits, load_kernel, start
from ...torch_ops.dtypes import NAMES
from ...torch_ops.execute import allocate
from ...torch_ops.info import RunInfo
from . import cuda_emit
from .cost import TRANSPOSED, sums_of_blocks
from .cuda import choose_algorithm
from .dense_plan import dense_plan
from .operands import Operands
from .pack import PackedWeights
from .rearrange import transpose_rows
from .torch_products import add_strided, adds_strided
from .transpose_plan import arranges, padded

Maybe = torch.Tensor | None
_MOST_BYTES = 4 << 30  # of an array of transposed rows; more rows come in several turns


class _Blocks(NamedTuple):
    """Weights (a, d, b, c, 1) with b and c padded by zeros, and their packed copies."""

    weight: torch.Tensor
    packed: PackedWeights | None


def product(own: Operands, out: torch.Tensor, by: Callable[..., torch.Tensor], info: RunInfo | None = None) -> None:
    """Write the product of one group to ``out``, of its blocks ``by`` what should be quickest.

    The rows come in turns where the transposed arrays would have more than ``_MOST_BYTES``.
    """
    x, weight, bias, activation, _, precision, packed = own
    _, a, b, c, d = weight.shape
    count, size = x.shape[1], x.element_size()
    high, wide = padded(b, size), padded(c, size)
    if packed is None:
        blocks = _blocks(weight, high, wide, None)
    else:
        key = TRANSPOSED, x.dtype
        blocks = packed.get_or_pack(key, lambda: _blocks(weight, high, wide, PackedWeights()), x.device)
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
        transpose_rows(rows_of_x, before[:present], a, c, d, True)
        inner = source, blocks.weight, offset, activation
        algorithm = choose_algorithm(*inner, precision, result, blocks.packed is not None)
        by(algorithm, Operands(*inner, False, precision, blocks.packed), result, info)
        transpose_rows(after[:present], target, a, b, d, False)


def gradient(
    x: torch.Tensor, grad: torch.Tensor, pattern: tuple[int, int, int, int], precision: str,
    by: Callable[..., torch.Tensor],
) -> torch.Tensor:  # fmt: skip
    """Return the gradient of weights of one group, of blocks ``by`` what should be quickest, some rows at a time."""
    (a, b, c, d), total = pattern, None
    for begin, end in _parts(x, pattern):
        rows_of_x, rows_of_grad = _rows(x, a, c, d, begin, end), _rows(grad, a, b, d, begin, end)
        total = _plus(total, _summed(rows_of_x, rows_of_grad, pattern, precision, by))
    return _as_weights(total, pattern)


def gradients(
    x: torch.Tensor, grad: torch.Tensor, weight: torch.Tensor, precision: str, out: torch.Tensor,
    by: Callable[..., torch.Tensor], sums_by: Callable[..., torch.Tensor],
    apart: Callable[[], AbstractContextManager[Any]], alive: list[torch.Tensor],
) -> torch.Tensor:  # fmt: skip
    """Write the gradient of x of one group to ``out`` and return that of its weights (1, a, b, c, d).

    Both read the same transposed rows of the result's gradient. Those of weights are summed in the context ``apart``,
    and what they read is put into ``alive``.
    """
    _, a, b, c, d = weight.shape
    pattern = a, b, c, d
    own = _blocks(weight.transpose(2, 3), padded(c, x.element_size()), padded(b, x.element_size()), None)
    total: Maybe = None
    for begin, end in _parts(x, pattern):
        rows_of_grad = _rows(grad, a, b, d, begin, end)
        alive.append(rows_of_grad)
        with apart():
            rows_of_x = _rows(x, a, c, d, begin, end)
            total = _plus(total, _summed(rows_of_x, rows_of_grad, pattern, precision, sums_by))
        after = allocate((end - begin, a * d * own.weight.shape[2]), x.dtype, x.device)
        result = after.unflatten(1, (a, -1)).transpose(0, 1)
        algorithm = choose_algorithm(rows_of_grad, own.weight, None, "", precision, result, False)
        by(algorithm, Operands(rows_of_grad, own.weight, precision=precision), result)
        transpose_rows(after, out[0, begin:end], a, c, d, False)
    with apart():
        return _as_weights(total, pattern)


def rows_of_blocks(rows: torch.Tensor, a: int, extent: int, d: int) -> torch.Tensor:
    """Return rows (N, a extent d) with the features together as transposed ones (N, a d extent), blocks padded."""
    made = allocate((rows.shape[0], a * d * padded(extent, rows.element_size())), rows.dtype, rows.device)
    transpose_rows(rows, made, a, extent, d, True)
    return made


def bring_back(rows: torch.Tensor, out: torch.Tensor, a: int, extent: int, d: int, bias: Maybe = None) -> None:
    """Transpose rows of padded blocks back to the order of the features, with a bias (features,)."""
    transpose_rows(rows, out, a, extent, d, False, bias)


def block_matrices(weight: torch.Tensor) -> torch.Tensor:
    """Return the matrices (H, a, d, b, c) of weights in one piece, or of transposed ones as transposes."""
    if weight.stride(2) < weight.stride(3):
        return block_matrices(weight.transpose(2, 3)).mT
    groups, a, b, c, d = weight.shape
    pitch = padded(b * c, weight.element_size())
    made = allocate((groups, a * d * pitch), weight.dtype, weight.device)
    transpose_rows(weight.reshape(groups, -1), made, a, b * c, d, True)
    return made.view(groups, a, d, pitch)[..., : b * c].unflatten(3, (b, c))


def dense_matrix(weight: torch.Tensor) -> torch.Tensor:
    """Return the matrix (a b d, a c d) of weights (a, b, c, d) of 2 or 4 bytes, of any strides, in one pass."""
    a, b, c, d = weight.shape
    index, pattern = index_of(weight.device), (a, b, c, d)
    plan = dense_plan(limits(index).arch, pattern, weight.element_size())
    kernel = load_kernel(plan, cuda_emit.emit_dense, Entry(cuda_emit.ENTRY, plan.threads))
    out = allocate((a * b * d, a * c * d), weight.dtype, weight.device)
    if kernel is not None:
        start(kernel, index, plan.blocks(pattern), (weight.data_ptr(), out.data_ptr(), *pattern, *weight.stride()))
    return out


def is_arranged(weight: torch.Tensor) -> bool:
    """Return whether weights, or their gradients, are so many that blocks are brought together, or apart, here."""
    _, a, b, c, d = weight.shape
    usual = weight.is_contiguous() or weight.transpose(2, 3).is_contiguous()
    return usual and arranges((a, b, c, d), weight.element_size())


def gradient_by_bmm(x: torch.Tensor, gradient: torch.Tensor, a: int, b: int, c: int, d: int) -> torch.Tensor:
    """Return the gradient of weights by batched products, whose results are taken apart here."""
    groups, count = x.shape[:2]
    pitch = padded(b * c, x.element_size())
    made = allocate((groups * a * d, pitch), x.dtype, x.device)
    blocks = made[:, : b * c].unflatten(1, (b, c))
    if adds_strided(x, gradient, (a, b, c, d)):
        add_strided(x, gradient, blocks.unflatten(0, (groups, a, d)))
    else:
        columns = x.reshape(groups, count, a, c, d).permute(0, 2, 4, 1, 3).flatten(0, 2)
        rows = gradient.reshape(groups, count, a, b, d).permute(0, 2, 4, 3, 1).flatten(0, 2)
        torch.bmm(rows, columns, out=blocks)
    out = allocate((groups, a, b, c, d), x.dtype, x.device)
    transpose_rows(made.view(groups, -1), out.view(groups, -1), a, b * c, d, False)
    return out


def _parts(x: torch.Tensor, pattern: tuple[int, int, int, int]) -> list[tuple[int, int]]:
    """Return the parts of the batch for which what is between is not too much."""
    (a, b, c, d), size, count = pattern, x.element_size(), x.shape[1]
    rows = max(1, min(count, _MOST_BYTES // (size * a * d * (padded(b, size) + padded(c, size)))))
    return [(begin, min(count, begin + rows)) for begin in range(0, count, rows)]


def _rows(source: torch.Tensor, a: int, extent: int, d: int, begin: int, end: int) -> torch.Tensor:
    """Return transposed rows (a, N, d extent) of some rows of x or of a gradient, blocks padded."""
    part = source[0, begin:end]
    part = part if part.stride(1) == 1 else part.contiguous()
    return rows_of_blocks(part, a, extent, d).unflatten(1, (a, -1)).transpose(0, 1)


def _summed(
    x: torch.Tensor, grad: torch.Tensor, pattern: tuple[int, int, int, int], precision: str,
    by: Callable[..., torch.Tensor],
) -> torch.Tensor:  # fmt: skip
    """Return the sums (a, d, b, c) of transposed rows, b and c padded."""
    a, _, _, d = pattern
    blocks = d, grad.shape[2] // d, x.shape[2] // d, 1
    algorithm, _ = sums_of_blocks((a * d, *blocks[1:]), x.shape[1], NAMES[x.dtype])
    return by(x, grad, blocks, algorithm, precision)[..., 0]


def _plus(total: Maybe, part: torch.Tensor) -> torch.Tensor:
    return part if total is None else total + part


def _as_weights(total: Maybe, pattern: tuple[int, int, int, int]) -> torch.Tensor:
    assert total is not None, f"{pattern}: a batch has rows"
    a, b, c, d = pattern
    if not arranges(pattern, total.element_size()):
        return total[..., :b, :c].permute(0, 2, 3, 1).contiguous()[None]
    made = allocate((a, *total.shape[2:], d), total.dtype, total.device)
    transpose_rows(total.contiguous().view(a, -1), made.view(a, -1), 1, math.prod(total.shape[2:]), d, False)
    return made[:, :b, :c].contiguous()[None]


def _blocks(weight: torch.Tensor, high: int, wide: int, packed: PackedWeights | None) -> _Blocks:
    _, _, b, c, _ = weight.shape
    blocks = weight[0].permute(0, 3, 1, 2)
    if (high, wide) != (b, c):
        is_large = arranges(tuple(weight.shape[1:]), weight.element_size())  # pyright: ignore[reportArgumentType]
        blocks = _padded(weight, high, wide) if is_large else functional.pad(blocks, (0, wide - c, 0, high - b))
    return _Blocks(blocks[..., None], packed)


def _padded(weight: torch.Tensor, high: int, wide: int) -> torch.Tensor:
    """Return the blocks (a, d, high, wide) of weights, padded by zeros, or those of transposed ones as transposes."""
    if weight.stride(2) < weight.stride(3):
        return _padded(weight.transpose(2, 3), wide, high).mT
    _, a, b, c, d = weight.shape
    made = allocate((a, high, d, wide), weight.dtype, weight.device)
    made[:, b:].zero_()
    transpose_rows(weight.reshape(a, -1), made.view(a, -1), b, c, d, True)
    return made.transpose(1, 2)
