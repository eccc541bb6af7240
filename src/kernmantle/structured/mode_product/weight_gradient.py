"""Gradients of the weights of Kronecker-sparse products on NVIDIA GPUs: sums over the batch, bound for one layout.

``x`` and ``grad`` are (groups, N, features), the sums (groups, a, b, c, d).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import torch

from ...backends.cuda.launch import BoundLaunch, Kernel
from ...backends.cuda.tiles import DeviceLimits
from ...torch_ops.cuda import Entry, index_of, limits, load_kernel
from ...torch_ops.dtypes import NAMES
from ...torch_ops.execute import allocate
from . import sum_emit
from .block_sum_plan import BlockSumPlan, block_sum_plan, block_sums_seconds
from .bound_products import Launches, bind_ready
from .column_sum_plan import ColumnSumPlan, column_sum_choice
from .cuda_emit import ENTRY
from .fma_sum_plan import FmaSumPlan, fma_sum_choice, least_seconds, rows_seconds
from .plan import MOST_EXTENT, Pattern
from .rearrange import feature_by_feature, features_together, transpose_rows
from .row_sum_plan import RowSumPlan, row_sum_choice
from .transpose_plan import ACCESS, padded
from .weight_gradient_plan import DTYPES as SUMMED
from .weight_gradient_plan import MOST_PART_BYTES, parts_plan
from .wide_sum_plan import WideSumPlan, wide_sum_choice

Sums = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
_Tiles = RowSumPlan | ColumnSumPlan | BlockSumPlan | WideSumPlan
_Choice = tuple[float, Callable[[], Sums]]
"""Seconds that sums should take for one group, and what binds them."""


def bind_gradient(x: torch.Tensor, grad: torch.Tensor, pattern: Pattern, precision: str) -> Sums | None:
    """Return what sums the gradient of weights, (groups, a, b, c, d); None if the kernels do not take it."""
    if NAMES[x.dtype] not in SUMMED or precision == "ieee" or max(pattern) > MOST_EXTENT:
        return None
    first = [side.stride(2) <= side.stride(1) for side in (x, grad)]
    own, products = limits(index_of(x.device)), 1 if precision == "tf32" else 3
    axis = 2 if first[0] else 1
    if first[0] != first[1] or not x.stride(axis) == 1 == grad.stride(axis):
        return _over_rows(x, grad, lambda x, grad: _by_tiles(x, grad, pattern, products, own, True)[1]())
    choices = [_by_tiles(x, grad, pattern, products, own, first[0])]
    choices += [] if first[0] else _by_blocks(x, pattern, own)
    if least_seconds(pattern, x.shape[1], own) < min(choices, key=itemgetter(0))[0]:
        choices += _by_fma(x, grad, pattern, own, first[0])
    return min(choices, key=itemgetter(0))[1]()


def _over_rows(x: torch.Tensor, grad: torch.Tensor, bind: Callable[[torch.Tensor, torch.Tensor], Sums]) -> Sums:
    """Return bound sums over rows of features that lie together, which are made where arrays lie otherwise."""
    sums = bind(_rows(x), _rows(grad))
    return lambda x, grad: sums(_rows(x), _rows(grad))


def _rows(side: torch.Tensor) -> torch.Tensor:
    return side if side.stride(2) == 1 else features_together(side)


def _by_tiles(
    x: torch.Tensor, grad: torch.Tensor, pattern: Pattern, products: int, own: DeviceLimits, first: bool
) -> _Choice:
    """Return sums by tensor cores over rows, or features, as they lie; ``first``: features lie together."""
    (_, b, c, d), batch, dtype = pattern, x.shape[1], NAMES[x.dtype]
    runs = (c * d, b * d) if first else (0, 0)
    bytes_ = [_copied(side, *_apart(side, first), run) for side, run in zip((x, grad), runs, strict=True)]
    choice: Any = row_sum_choice if first else column_sum_choice
    taken, chosen = choice(pattern, batch, dtype, *bytes_, products, own)
    of_wide, wide = wide_sum_choice(pattern, batch, dtype, first, bytes_[0], bytes_[1], products, own)
    if wide is not None and of_wide < taken:
        taken, chosen = of_wide, wide
    steps = *_apart(x, first), *_apart(grad, first)
    return taken, lambda: _bind_tiles(x, pattern, chosen, own, steps)


def _bind_tiles(x: torch.Tensor, pattern: Pattern, chosen: _Tiles, own: DeviceLimits, steps: Sequence[int]) -> Sums:
    """Return sums of arrays like x, with such strides of both."""
    groups, batch, _ = x.shape
    entry = Entry(ENTRY, chosen.threads, chosen.shared)
    kernel = load_kernel(chosen, sum_emit.emit_tile_sum, entry)
    slots = 1 if chosen.whole else chosen.slots(pattern, groups, batch, own)
    rest = (batch, groups, *pattern, slots, *steps)
    blocks = chosen.blocks(chosen.tiles(pattern, groups) * slots, own)
    a, b, c, d = pattern
    if d == 1 or not isinstance(chosen, WideSumPlan):
        return _in_parts(kernel, pattern, groups, slots, blocks, rest, x, chosen.whole)
    sums = _in_parts(kernel, (a, d, 1, padded(b * c, x.element_size())), groups, slots, blocks, rest, x, chosen.whole)

    def arranged(x: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
        out = allocate((groups, *pattern), x.dtype, x.device)
        transpose_rows(sums(x, grad).view(groups, -1), out.view(groups, -1), a, b * c, d, False)
        return out

    return arranged


def _by_blocks(x: torch.Tensor, pattern: Pattern, own: DeviceLimits) -> list[_Choice]:
    """Return sums of halves whose batch lies together, of one group, over transposed rows, which are made before."""
    (groups, batch, _), dtype = x.shape, NAMES[x.dtype]
    chosen = block_sum_plan(pattern, batch, dtype, own)
    if chosen is None or groups > 1:
        return []
    taken = block_sums_seconds(pattern, batch, dtype, own)
    return [(taken, lambda: _bind_blocks(x, pattern, chosen, own))]


def _bind_blocks(x: torch.Tensor, pattern: Pattern, chosen: BlockSumPlan, own: DeviceLimits) -> Sums:
    (a, b, c, d), count = pattern, x.shape[1]
    pitches = [padded(extent, x.element_size()) for extent in (c, b)]

    def moved(side: torch.Tensor, extent: int, pitch: int) -> torch.Tensor:
        """Return rows (a, d, N, extent) in whole vectors."""
        made = allocate((1, count, a * d * pitch), side.dtype, side.device)
        transpose_rows(feature_by_feature(side), made.view(1, -1), a, extent, d * count, True)
        return made

    steps = [step for pitch in pitches for step in (count * pitch, pitch)]
    sums = _bind_tiles(moved(x, c, pitches[0]), pattern, chosen, own, steps)
    return lambda x, grad: sums(moved(x, c, pitches[0]), moved(grad, b, pitches[1]))


def _by_fma(x: torch.Tensor, grad: torch.Tensor, pattern: Pattern, own: DeviceLimits, first: bool) -> list[_Choice]:
    """Return sums by FMA instructions; a batch that is last and short is transposed before, where that is quicker."""
    batch, dtype, d, found = x.shape[1], NAMES[x.dtype], pattern[3], list[_Choice]()
    access = min(_copied(side, *_apart(side, first), *[d] * first) for side in (x, grad))
    direct = fma_sum_choice(pattern, batch, dtype, first, access, own)
    if direct is not None:
        found.append((direct[0], lambda: _bind_fma(x, grad, direct[1])))
    rows = None if first else fma_sum_choice(pattern, batch, dtype, True, math.gcd(ACCESS, x.element_size() * d), own)
    if rows is not None:
        taken = rows[0] + rows_seconds(pattern, batch, dtype)
        found.append((taken, lambda: _over_rows(x, grad, lambda x, grad: _bind_fma(x, grad, rows[1]))))
    return found


def _bind_fma(x: torch.Tensor, grad: torch.Tensor, chosen: FmaSumPlan) -> Sums:
    entry = Entry(ENTRY, chosen.threads, chosen.shared)
    groups, batch, _ = x.shape
    slots = max(1, min(chosen.slots, MOST_PART_BYTES // (4 * groups * math.prod(chosen.pattern))))
    kernel = load_kernel(chosen, sum_emit.emit_fma_sum, entry)
    rest = (batch, groups, slots, *_apart(x, chosen.first), *_apart(grad, chosen.first))
    return _in_parts(kernel, chosen.pattern, groups, slots, groups * chosen.tiles * slots, rest, x, chosen.whole)


def _apart(side: torch.Tensor, first: bool) -> tuple[int, int]:
    """Return the strides of groups, and of rows or features."""
    return side.stride(0), side.stride(1 if first else 2)


def _copied(side: torch.Tensor, *steps: int) -> int:
    """Return the bytes of the largest copy that the pointer and steps of so many entries allow, at most 16."""
    size = side.element_size()
    return math.gcd(16, side.data_ptr(), *(size * step for step in steps))


def _in_parts(
    kernel: Kernel | None, pattern: tuple[int, int, int, int], groups: int, slots: int, blocks: int,
    rest: tuple[int, ...], like: torch.Tensor, whole: bool = False,
) -> Sums:  # fmt: skip
    """Return sums in so many parts of the batch, which are added and rounded to the type of ``like``.

    ``whole``: the one part is of that type already.
    """
    index, shape, dtype = index_of(like.device), (groups, *pattern), like.dtype
    launch = None if kernel is None else bind_ready(kernel, 3, rest, index, blocks)
    if whole or (slots == 1 and dtype == torch.float32):
        return BoundSums(launch, None, shape, 0, dtype)
    add = bind_parts(slots, groups * math.prod(pattern), dtype, index)
    return BoundSums(launch if add is not None else None, add, shape, slots, dtype)


def bind_parts(slots: int, count: int, dtype: torch.dtype, index: int) -> BoundLaunch | None:
    """Return the launch that adds parts (``slots``, ``count``) in float32, and rounds the sums to a type.

    None where its kernel was only collected.
    """
    chosen = parts_plan(limits(index).arch, NAMES[dtype], slots)
    kernel = load_kernel(chosen, sum_emit.emit_parts, Entry(ENTRY, chosen.threads, waits=True))
    return None if kernel is None else bind_ready(kernel, 2, (slots, count), index, chosen.blocks(count))


def add_parts(parts: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the sum of parts (slots, count) in float32, rounded to a type."""
    slots, count = parts.shape
    found = allocate((count,), dtype, parts.device)
    add = bind_parts(slots, count, dtype, index_of(parts.device))
    if add is not None:
        add((parts.data_ptr(), found.data_ptr()))
    return found


@dataclass(frozen=True, eq=False)
class BoundSums:
    """The launch of sums, in as many parts of float32 as ``slots``, and that which adds these; none if only noted."""

    launch: BoundLaunch | None
    add: BoundLaunch | None
    shape: tuple[int, ...]
    slots: int
    dtype: torch.dtype

    def __call__(self, x: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
        """Return the sums."""
        made = allocate((self.slots, *self.shape), torch.float32, x.device) if self.slots else None
        out = allocate(self.shape, self.dtype, x.device)
        if self.launch is not None:
            self.launch((x.data_ptr(), grad.data_ptr(), (out if made is None else made).data_ptr()))
            if self.add is not None and made is not None:
                self.add((made.data_ptr(), out.data_ptr()))
        return out

    def on_addresses(self, x: int, grad: int, out: int, part: Callable[[int], int]) -> Launches | None:
        """Return the launches on a table of addresses, in which ``part`` gives the position of so many bytes."""
        if self.launch is None:
            return None
        if self.add is None:
            return [(self.launch, (x, grad, out))]
        made = part(4 * self.slots * math.prod(self.shape))
        return [(self.launch, (x, grad, made)), (self.add, (made, out))]
