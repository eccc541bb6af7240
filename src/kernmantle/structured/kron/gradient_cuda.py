"""Gradients of Kronecker factors on the GPU: passes that apply and sum at once, or a kernel for one factor."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from ...backends.cuda.launch import Kernel
from ...torch_ops.cuda import Entry, index_of, is_captured, limits, load_kernels, start
from ...torch_ops.dtypes import NAMES
from ...torch_ops.execute import allocate
from ...torch_ops.side_stream import SideStream
from . import factor_gradient_emit, gradient_emit, separation
from .cuda import begins_early, resident, tensor_for
from .factor_gradient_plan import TOTAL_ENTRIES, TOTAL_THREADS, GramPlan, RegisterGramPlan, gram
from .factor_sums import product_of_rows
from .gradient_cost import PRICED, GpuPrice, PassPlan, pass_over, rows_together, sum_seconds
from .modes import Mode, contracted
from .separation import LONGEST, SeparationPlan, longest

Tensors = Sequence[torch.Tensor]
Finish = Callable[[], Tensors]


def _in_one_piece(grad: torch.Tensor) -> torch.Tensor:
    """Return a tensor in one piece that begins where wide accesses may."""
    own = grad.contiguous()
    return own.clone() if own.data_ptr() % 16 else own


class Share(NamedTuple):
    """Where in what a block writes the gradient of a factor is, and its size."""

    offset: int
    size: tuple[int, int]


@dataclass(frozen=True)
class BackPass:
    """One pass without addresses: the factors that it applies, by number, and its launch.

    ``layout`` are the integers of the kernel; ``size`` is that of what leaves the pass. ``kernel`` and ``total``, which
    adds up what its blocks write, are None where they were only collected.
    """

    plan: PassPlan
    numbers: tuple[int, ...]
    layout: tuple[int, ...]
    index: int
    kernel: Kernel | None
    total: Kernel | None
    blocks: int
    size: int
    shares: tuple[Share, ...]

    def __call__(self, v: torch.Tensor, x: torch.Tensor, factors: Tensors, slope: float) -> tuple[Any, Finish]:
        """Return what leaves the pass, and what adds up the gradients of its factors."""
        v, x, device = _in_one_piece(v), _in_one_piece(x), x.device
        out = allocate((self.size,), x.dtype, device)
        count = sum([share.size[0] * share.size[1] for share in self.shares])
        parts = allocate((self.blocks, count), torch.float32, device)
        if self.kernel is not None:
            pointers = [factors[number].data_ptr() for number in self.numbers]
            arguments = v.data_ptr(), x.data_ptr(), out.data_ptr(), parts.data_ptr(), *pointers, *self.layout, slope
            start(self.kernel, self.index, self.blocks, arguments)

        def finish() -> Tensors:
            found = allocate((count,), x.dtype, device)
            if self.total is not None:
                sums = parts.data_ptr(), found.data_ptr(), self.blocks, count
                start(self.total, self.index, -(-count // TOTAL_ENTRIES), sums)
            return [found.as_strided(share.size, (share.size[1], 1), share.offset) for share in self.shares]

        return out, finish


def _shares(plan: PassPlan, transposed: bool) -> tuple[Share, ...]:
    found, offset = list[Share](), 0
    for rows, columns in plan.sizes:
        found.append(Share(offset, (columns, rows) if transposed else (rows, columns)))
        offset += rows * columns
    return tuple(found)


def bind(
    modes: Sequence[Mode], factors: Tensors, x: torch.Tensor, transposed: bool = False, is_later: bool = False
) -> BackPass | None:
    """Return the pass that finds the gradients of x (…, columns, c) and of all factors; None where there is none.

    ``transposed``: gradients of factors are those of their transposes. ``is_later``: every call launches another kernel
    of ours ahead.
    """
    positions = contracted(modes)
    first, stop = (positions[0], positions[-1] + 1) if positions else (0, 0)
    if x.dtype not in NAMES or not x.numel() or len(positions) < stop - first or any(own.dim() > 2 for own in factors):
        return None
    stored, index = NAMES[x.dtype], index_of(x.device)
    own = limits(index)
    sizes = tuple([(mode.rows, mode.columns) for mode in modes[first:stop]])
    parts, arrays = (modes[:first], modes[first:stop], modes[stop:]), math.prod(x.shape[:-2])
    before, across, after = (math.prod([mode.columns for mode in part]) for part in parts)
    plan, _ = pass_over(sizes, (arrays, before, after, x.shape[-1]), stored, own)
    if plan is None:
        return None
    numbers = tuple(modes[position].factor or 0 for position in positions)
    kernel, total = _kernel(plan, begins_early(x, x)), _total(stored, own.arch, sizes if transposed else ())
    strides = tuple(step for number in numbers for step in factors[number].stride()[-2:])
    items, width = arrays * before, after * x.shape[-1]
    later = int(is_later and kernel is not None and kernel.overlapped)
    blocks = 1 if kernel is None else resident(kernel, index) * own.sm_count
    return BackPass(
        plan, numbers, (*strides, items, width, later), index, kernel, total, min(plan.tiles(items, width), blocks),
        items * across * width, _shares(plan, transposed),
    )  # fmt: skip


def _kernel(plan: PassPlan, is_early: bool) -> Kernel | None:
    """Return the kernel of a pass, which may begin early, None if it was only collected."""
    entry = Entry(gradient_emit.ENTRY, plan.threads, plan.shared, waits=is_early)
    kernels = load_kernels(plan, plan.arch, lambda: gradient_emit.emit(plan), entry)
    return None if kernels is None else kernels[0]


def _total(stored: str, arch: str, transposed: tuple[tuple[int, int], ...] = ()) -> Kernel | None:
    title = f"sum of shares {stored}{' transposed ' * bool(transposed)}{transposed or ''}"
    kernels = load_kernels(
        ("kron total", stored, arch, transposed), arch, lambda: factor_gradient_emit.emit_total(stored, transposed),
        Entry(factor_gradient_emit.ENTRY, TOTAL_THREADS, waits=True), title=title,
    )  # fmt: skip
    return None if kernels is None else kernels[0]


def price(shapes: tuple[tuple[int, int], ...], grad: torch.Tensor, options: str) -> GpuPrice | None:
    """Return what steps of gradients cost where products (…, columns, c) are like ``grad``; None for other types."""
    if grad.dtype not in NAMES or NAMES[grad.dtype] not in PRICED:
        return None
    own, stored = limits(index_of(grad.device)), NAMES[grad.dtype]
    tensor = tensor_for(stored, options.partition(" ")[0], own.arch)
    return GpuPrice(shapes, math.prod(grad.shape[:-2]), grad.shape[-1], stored, own, tensor, options.endswith(" fuse"))


def side_stream(grad: torch.Tensor) -> SideStream | None:
    """Return a stream beside the current one of a tensor's device where a graph is captured."""
    index = grad.get_device()
    return SideStream(index) if is_captured(index) else None


def sum_by(
    u: torch.Tensor, v: torch.Tensor, options: str, is_wide: bool = False
) -> tuple[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None]:
    """Return the method of a sum that should be quickest, and its kernel where that is ours; float32 if ``is_wide``."""
    if options.startswith("ieee") or u.dim() != 3 or u.dtype not in NAMES or NAMES[u.dtype] not in PRICED:
        return "", None
    (count, columns, right), rows, own = u.shape, v.shape[1], limits(index_of(u.device))
    in_order = u.is_contiguous() and v.is_contiguous()
    methods = sum_seconds((rows, columns), count, right, NAMES[u.dtype], own, in_order, is_wide)
    method = min(methods, key=methods.__getitem__)
    if method == "two rows":
        return method, bind_two_rows(u, v, is_wide)
    if method == "mm of rows":
        return method, bind_rows(u, v, is_wide)
    return method, bind_sum(u, v, is_wide) if method == "kernel" else None


def bind_two_rows(
    u: torch.Tensor, v: torch.Tensor, is_wide: bool
) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None:
    """Return what sums v[l, q] u[l, p] over an even number of l, two at a time; None where there is no kernel."""
    (count, columns, _), rows = u.shape, v.shape[1]
    summed = bind_sum(u.view(count // 2, 2 * columns, 1), v.view(count // 2, 2 * rows, 1), True)
    if summed is None:
        return None

    def run(u: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        joint = summed(u, v)
        found = joint[:rows, :columns] + joint[rows:, columns:]
        return found if is_wide else found.to(u.dtype)

    return run


def bind_rows(u: torch.Tensor, v: torch.Tensor, is_wide: bool) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Return what sums v[l, q] u[l, p] over l by the vendor's product of several rows as one."""
    (count, columns, _), rows = u.shape, v.shape[1]
    together = rows_together((rows, columns), count, 1, NAMES[u.dtype])

    def run(u: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        sides = ((count // together, side * together) for side in (columns, rows))
        u, v = (own.as_strided(size, (size[1], 1)) for own, size in zip((u, v), sides, strict=True))
        return product_of_rows(u, v, together, is_wide)

    return run


def bind_sum(
    u: torch.Tensor, v: torch.Tensor, is_wide: bool = False
) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None:
    """Return what sums v[l, q, r] u[l, p, r] over l and r of tensors like these; None where there is no kernel.

    The tensors lie in one piece. Sums are in float32 if ``is_wide``, which one chunk alone is not.
    """
    if not (u.is_contiguous() and v.is_contiguous()) or u.dtype not in NAMES:
        return None
    index, (count, columns, right), rows = index_of(u.device), u.shape, v.shape[1]
    aligned, own = (u.data_ptr() | v.data_ptr()) % 16 == 0, limits(index)
    chosen = gram(rows, columns, right, NAMES[u.dtype], aligned, own.arch)
    if chosen is None or (is_wide and chosen.chunks(count, right) < 2):
        return None
    summed = _summing(chosen, index, (rows, columns), count, right, is_wide, begins_early(u, v))
    return lambda u, v: summed(u, v)()


def _summing(
    chosen: GramPlan | RegisterGramPlan, index: int, size: tuple[int, int], count: int, right: int, is_wide: bool,
    is_early: bool, transposed: bool = False,
) -> Callable[..., Callable[[], torch.Tensor]]:  # fmt: skip
    """Return what starts a kernel of sums, with what it takes beside its operands, and returns what adds up its shares.

    ``transposed``: of two shares at least.
    """
    entry = Entry(factor_gradient_emit.ENTRY, chosen.threads, chosen.shared, waits=is_early)
    kernels = load_kernels(chosen, chosen.arch, lambda: factor_gradient_emit.emit(chosen), entry)
    kind, shape = "f32" if is_wide else chosen.stored, size[::-1] if transposed else size
    total, entries = _total(kind, chosen.arch, (size,) if transposed else ()), size[0] * size[1]
    if kernels is None or total is None:
        return lambda u, *_: lambda: u.new_zeros(shape, dtype=torch.float32 if is_wide else u.dtype)
    kernel = kernels[0]
    shares = chosen.shares(count, right, resident(kernel, index) * limits(index).sm_count)
    shares = max(2, shares) if is_wide or transposed else shares

    def run(u: torch.Tensor, v: torch.Tensor, *others: float) -> Callable[[], torch.Tensor]:
        kind, device = torch.float32 if is_wide else u.dtype, u.device
        parts = allocate(shape, kind, device) if shares == 1 else allocate((shares, entries), torch.float32, device)
        arguments = v.data_ptr(), u.data_ptr(), parts.data_ptr(), count, right, *others
        start(kernel, index, shares * chosen.tiles, arguments)

        def finish() -> torch.Tensor:
            if shares == 1:
                return parts
            out = allocate(shape, kind, device)
            start(total, index, -(-entries // TOTAL_ENTRIES), (parts.data_ptr(), out.data_ptr(), shares, entries))
            return out

        return finish

    return run


Applying = Callable[[torch.Tensor, torch.Tensor, Tensors, float], tuple[Callable[[], torch.Tensor], torch.Tensor]]
"""A function that ends the sum of u and v, and v with the factors' transposes applied, times a number, in one piece."""


def bind_applying(u: torch.Tensor, v: torch.Tensor, factors: Tensors, transposed: bool) -> Applying | None:
    """Return what sums tensors like these and applies the factors' transposes; None where there is no kernel.

    The sum is in float32 where several factors are halves; ``transposed``: it is that of the transposes.
    """
    if not (u.is_contiguous() and v.is_contiguous()) or u.dtype not in NAMES:
        return None
    index, (count, columns, right), rows = index_of(u.device), u.shape, v.shape[1]
    aligned, own = (u.data_ptr() | v.data_ptr()) % 16 == 0, limits(index)
    sizes = tuple([(int(factor.shape[0]), int(factor.shape[1])) for factor in factors])
    chosen = gram(rows, columns, right, NAMES[u.dtype], aligned, own.arch, sizes)
    if chosen is None or chosen.chunks(count, right) < 2:
        return None
    is_wide = len(factors) > 1 and u.dtype in (torch.float16, torch.bfloat16)
    summed = _summing(chosen, index, (rows, columns), count, right, is_wide, begins_early(u, v), transposed)
    strides = [factor.stride() for factor in factors]

    def run(u: torch.Tensor, v: torch.Tensor, factors: Tensors, slope: float) -> tuple[Any, torch.Tensor]:
        applied = allocate((count * columns * right,), u.dtype, u.device)
        others: list[float] = [applied.data_ptr(), float(slope)]
        for factor, steps in zip(factors, strides, strict=True):
            others += [factor.data_ptr(), *steps]
        return summed(u, v, *others), applied

    return run


def bind_separation(factors: Tensors) -> Callable[[torch.Tensor, Tensors], Sequence[torch.Tensor]] | None:
    """Return what finds the gradients of matrices like these from that of their product; None without a kernel.

    The joint gradient lies in one piece, in float32 where the matrices are halves.
    """
    sizes = tuple([(int(factor.shape[-2]), int(factor.shape[-1])) for factor in factors])
    if factors[0].dtype not in NAMES or longest(sizes) > LONGEST:
        return None
    index, stored = index_of(factors[0].device), NAMES[factors[0].dtype]
    plan = SeparationPlan(sizes, stored, "f64" if stored == "f64" else "f32", limits(index).arch)
    entry = Entry(separation.ENTRY, separation.THREADS, waits=True)
    kernels = load_kernels(plan, plan.arch, lambda: separation.emit(plan), entry)
    strides, offsets = [factor.stride()[-2:] for factor in factors], [0]
    for rows, columns in sizes:
        offsets.append(offsets[-1] + rows * columns)

    def run(joint: torch.Tensor, factors: Tensors) -> Sequence[torch.Tensor]:
        out = allocate((offsets[-1],), factors[0].dtype, joint.device)
        if kernels is not None:
            own = joint.contiguous()
            matrices = [v for factor, steps in zip(factors, strides, strict=True) for v in (factor.data_ptr(), *steps)]
            start(kernels[0], index, plan.blocks, (own.data_ptr(), out.data_ptr(), *matrices))
        return [out.as_strided(size, (size[1], 1), at) for size, at in zip(sizes, offsets, strict=False)]

    return run
