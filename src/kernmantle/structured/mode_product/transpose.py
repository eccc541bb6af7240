"""Kronecker-sparse products over turned rows on NVIDIA GPUs: a pass before the product and one after it."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ...backends.cuda.launch import Kernel
from ...torch_ops.cuda import index_of, limits, start
from ...torch_ops.execute import allocate
from ...torch_ops.info import RunInfo
from . import cuda_emit
from .cost import TRANSPOSED
from .cuda import choose_algorithm, load
from .pack import PackedWeights
from .transpose_plan import transpose_lanes

_MOST_BYTES = 4 << 30


def product(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, activation: str, precision: str,
    out: torch.Tensor, packed: PackedWeights | None, by: Callable[..., torch.Tensor], info: RunInfo | None = None,
) -> None:  # fmt: skip
    """The product of one group to ``out``, of its blocks ``by`` what should be quickest.

    So many rows at a time that what is between is not too much.
    """
    _, a, b, c, d = weight.shape
    count, size, wide = x.shape[1], x.element_size(), max(b, c)
    blocks = weight[0].permute(0, 3, 1, 2)[..., None]
    offset = None if bias is None else bias[0].view(a, b, d).mT.reshape(a, d * b)
    own = None if packed is None else packed.get_or_pack(TRANSPOSED, PackedWeights, x.device)
    rows = max(1, min(count, _MOST_BYTES // (size * a * d * wide)))
    before, after = (allocate((rows, a * d * high), x.dtype, x.device) for high in (c, b))
    for begin in range(0, count, rows):
        rows_of_x, target = x[0, begin : begin + rows], out[0, begin : begin + rows]
        present = rows_of_x.shape[0]
        source, result = (
            part[:present].unflatten(1, (a, d * high)).transpose(0, 1) for part, high in ((before, c), (after, b))
        )
        _transpose(rows_of_x, before, a, c, d)
        inner = (source, blocks, offset, activation, precision, result)
        by(
            choose_algorithm(*inner, own is not None),
            source,
            blocks,
            offset,
            activation,
            False,
            precision,
            result,
            own,
            info,
        )
        _transpose(after[:present], target, a, d, b)


def _transpose(source: torch.Tensor, target: torch.Tensor, a: int, high: int, wide: int) -> None:
    """Turn a matrices ``high`` x ``wide`` in each row."""
    index, size = index_of(source.device), source.element_size()
    lanes, each = transpose_lanes(high, wide, size)
    kernel = _kernel(size, lanes, limits(index).arch)
    if kernel is None:
        return
    warps = source.shape[0] * a * each
    pointers = source.data_ptr(), target.data_ptr()
    blocks = -(-warps // (cuda_emit.TRANSPOSE_THREADS // 32))
    start(kernel, index, blocks, (*pointers, source.shape[0], a, high, wide, source.stride(0), target.stride(0)))


def _kernel(size: int, lanes: int, arch: str) -> Kernel | None:
    loaded = load(
        (f"transposed rows of {size} bytes", lanes, arch), lambda: cuda_emit.emit_transpose(size, lanes), arch,
        (cuda_emit.ENTRY, cuda_emit.TRANSPOSE_THREADS, 0, False),
    )  # fmt: skip
    return None if loaded is None else loaded[0]
