"""Passes on NVIDIA GPUs that transpose the matrices in rows, and the arrays that they bring together."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ...backends.cuda.launch import Kernel
from ...torch_ops.cuda import Entry, bind_launch, index_of, limits, load_kernel, start
from ...torch_ops.dtypes import NAMES
from ...torch_ops.execute import allocate
from . import cuda_emit
from .bound_products import no_launch
from .transpose_plan import ACCESS, padded, transpose_plan, transpose_sums_plan

Maybe = torch.Tensor | None


def features_together(rows: torch.Tensor) -> torch.Tensor:
    """Return rows (G, N, features) whose batch lies together with the features together, each in whole vectors."""
    groups, count, features = rows.shape
    pitch = padded(features, rows.element_size())
    made = allocate((groups, count * pitch), rows.dtype, rows.device)
    transpose_rows(feature_by_feature(rows), made, 1, features, count, True)
    return made.view(groups, count, pitch)[..., :features]


def feature_by_feature(rows: torch.Tensor) -> torch.Tensor:
    """Return rows (G, N, features) whose batch lies together as (G, features N) in one piece each."""
    found = rows.mT.reshape(rows.shape[0], -1)
    return found if found.stride(1) == 1 else found.contiguous()  # of a single row it is a view of any step


def bind_vectors(rows: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return what copies rows (1, N, features) like these, the batch together, so that features begin at vectors."""
    _, count, features = rows.shape
    shape = features, padded(count, rows.element_size())
    launch = bind_transpose(rows[0].mT, allocate(shape, rows.dtype, rows.device), 1, count, 1, True)

    def copied(rows: torch.Tensor) -> torch.Tensor:
        made = allocate(shape, rows.dtype, rows.device)
        launch((rows.data_ptr(), made.data_ptr()))
        return made[:, :count].mT[None]

    return copied


def transpose_rows(
    source: torch.Tensor, target: torch.Tensor, a: int, high: int, l: int, pads: bool, bias: Maybe = None
) -> None:
    """Transpose a matrices ``high`` x ``l`` in each row and pad the new rows, or undo that."""
    kernel, blocks, rest = _pass(source, target, a, high, l, pads, bias)
    if kernel is not None:
        added = () if bias is None else (bias.data_ptr(),)
        start(kernel, index_of(source.device), blocks, (source.data_ptr(), target.data_ptr(), *rest, *added))


def rows_and_sums(rows: torch.Tensor, extent: int, d: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return rows (N, extent d) of whole squares as transposed ones (N, d extent), and sums of parts of them.

    The sums (parts, extent d), in float32, are together those of all rows.
    """
    launch, parts = bind_rows_and_sums(rows, extent, d)
    made = allocate(tuple(rows.shape), rows.dtype, rows.device)
    sums = allocate((parts, rows.shape[1]), torch.float32, rows.device)
    launch((rows.data_ptr(), made.data_ptr(), sums.data_ptr()))
    return made, sums


def bind_rows_and_sums(rows: torch.Tensor, extent: int, d: int) -> tuple[Callable[[Sequence[int]], None], int]:
    """Return the launch of the same on the addresses of the rows and of both results, and how many parts there are."""
    count, features = rows.shape
    index, size = index_of(rows.device), rows.element_size()
    own = limits(index)
    plan = transpose_sums_plan(own.arch, NAMES[rows.dtype], 1, extent, d)
    sets = plan.sets(1, extent, d)
    parts = plan.parts(count, sets, own.sm_count)
    kernel = load_kernel(plan, cuda_emit.emit_transpose_sums, Entry(cuda_emit.ENTRY, plan.threads, plan.shared))
    assert (rows.data_ptr() | rows.stride(0) * size) % ACCESS == 0
    if kernel is None:
        return no_launch, parts
    arguments = 0, 0, 0, count, 1, extent, d, rows.stride(0), features
    return bind_launch(kernel, arguments, range(3), index, sets * parts), parts


def bind_transpose(
    source: torch.Tensor, target: torch.Tensor, a: int, high: int, l: int, pads: bool, bias: Maybe = None
) -> Callable[[Sequence[int]], None]:
    """Return the launch of such a pass on the addresses of tensors like these, of a bias last if there is one.

    Each row (a, ``high``, ``l``) of the source becomes (a, ``l``, ``high``) of the target, whose rows are padded, or,
    without ``pads``, the other way round. A bias (features,) is added to what is brought back.
    """
    kernel, blocks, rest = _pass(source, target, a, high, l, pads, bias)
    if kernel is None:
        return no_launch
    arguments, positions = (0, 0, *rest), [0, 1]
    if bias is not None:
        arguments, positions = (*arguments, 0), [0, 1, len(arguments)]
    return bind_launch(kernel, arguments, positions, index_of(source.device), blocks)


def _pass(
    source: torch.Tensor, target: torch.Tensor, a: int, high: int, l: int, pads: bool, bias: Maybe = None
) -> tuple[Kernel | None, int, tuple[int, ...]]:
    """Return the kernel of a pass, its blocks, and its arguments behind the addresses."""
    size, pitch = source.element_size(), padded(high, source.element_size())
    plain, other = (source, target) if pads else (target, source)
    in_one_piece = (plain.stride(0), other.stride(0)) == (a * high * l, a * pitch * l)
    aligned = (plain.data_ptr() | plain.stride(0) * size) % ACCESS == 0
    added = "" if bias is None else NAMES[bias.dtype]
    plan = transpose_plan(limits(index_of(source.device)).arch, size, high, l, pads, in_one_piece, aligned, added)
    count = source.shape[0]
    blocks, extents = plan.tiles(count * a, high, pitch), (high, pitch)
    if plan.lanes:
        blocks, extents = -(-blocks // plan.warps), (high, l) if pads else (l, high)
    kernel = load_kernel(plan, cuda_emit.emit_transpose, Entry(cuda_emit.ENTRY, plan.threads, plan.shared))
    return kernel, blocks, (count, a, *extents, source.stride(0), target.stride(0))
