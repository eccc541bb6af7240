"""Gradients of Kronecker factors on the GPU: passes that apply and sum at once, or a kernel for one factor."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from ...backends.cuda.launch import BoundLaunch, Kernel
from ...torch_ops.cuda import Entry, bind_launch, index_of, is_captured, limits, load_kernel, load_kernels, start
from ...torch_ops.dtypes import NAMES
from ...torch_ops.execute import PlainLayout, allocate, layouts_in_one_piece
from ...torch_ops.joined_launches import JoinedLaunches
from ...torch_ops.side_stream import SideStream
from . import factor_gradient_emit, gradient_emit, separation
from .cuda import begins_early, resident, tensor_for
from .factor_gradient_plan import TOTAL_ENTRIES, TOTAL_THREADS, GramPlan, RegisterGramPlan, gram
from .factor_sums import View, product_of_rows
from .gradient_cost import PRICED, GpuPrice, PassPlan, pass_over, rows_together, sum_seconds
from .modes import Mode, contracted
from .separation import LONGEST, SeparationPlan, longest

Tensors = Sequence[torch.Tensor]
Finish = Callable[[], Tensors]


def _in_one_piece(grad: torch.Tensor) -> torch.Tensor:
    """Return a tensor in one piece that begins where wide accesses may."""
    own = grad.contiguous()
    return own.clone() if own.data_ptr() % 16 else own


@dataclass(frozen=True)
class Started:
    """Launches of a kernel on addresses, which stand at ``positions`` among its arguments, and on a number.

    That is the argument ``number``, where the kernel takes one.
    """

    kernel: Kernel
    index: int
    blocks: int
    arguments: tuple[float, ...]
    positions: tuple[int, ...]
    number: int | None = None

    def __call__(self, addresses: Sequence[int], number: float = 1.0) -> None:
        """Launch."""
        arguments = self._with(number)
        for at, address in zip(self.positions, addresses, strict=True):
            arguments[at] = address
        start(self.kernel, self.index, self.blocks, arguments)

    def bound(self, number: float = 1.0) -> BoundLaunch:
        """Return launches on addresses alone."""
        return bind_launch(self.kernel, self._with(number), self.positions, self.index, self.blocks)

    def _with(self, number: float) -> list[float]:
        arguments = [*self.arguments]
        if self.number is not None:
            arguments[self.number] = float(number)
        return arguments


def _started(kernel: Kernel, index: int, blocks: int, *arguments: int | None, number: int | None = None) -> Started:
    """Return launches of a kernel whose arguments that are None are addresses."""
    positions = tuple([at for at, argument in enumerate(arguments) if argument is None])
    return Started(kernel, index, blocks, tuple([argument or 0 for argument in arguments]), positions, number)


def _wide(entries: int, itemsize: int) -> PlainLayout:
    """Return the layout of so many entries of float32 in numbers of so many bytes."""
    return layouts_in_one_piece([(-(-4 * entries // itemsize),)])[0]


class Share(NamedTuple):
    """Where in what a block writes the gradient of a factor is, and its size."""

    offset: int
    size: tuple[int, int]


@dataclass(frozen=True)
class BackPass:
    """One pass without addresses: the factors that it applies, by number, and its launches.

    ``size`` is that of what leaves the pass. ``own`` and ``total``, which adds up what its ``blocks`` write, are None
    where kernels were only collected.
    """

    plan: PassPlan
    numbers: tuple[int, ...]
    own: Started | None
    total: Started | None
    blocks: int
    size: int
    shares: tuple[Share, ...]

    @property
    def count(self) -> int:
        """Return the entries of all gradients, which lie one behind the other."""
        return sum([share.size[0] * share.size[1] for share in self.shares])

    def __call__(self, v: torch.Tensor, x: torch.Tensor, factors: Tensors, slope: float) -> tuple[Any, Finish]:
        """Return what leaves the pass, and what adds up the gradients of its factors."""
        v, x, device = _in_one_piece(v), _in_one_piece(x), x.device
        out, count = allocate((self.size,), x.dtype, device), self.count
        parts = allocate((self.blocks, count), torch.float32, device)
        if self.own is not None:
            matrices = [factors[number].data_ptr() for number in self.numbers]
            self.own((v.data_ptr(), x.data_ptr(), out.data_ptr(), parts.data_ptr(), *matrices), slope)

        def finish() -> Tensors:
            found = allocate((count,), x.dtype, device)
            if self.total is not None:
                self.total((parts.data_ptr(), found.data_ptr()))
            return [found.as_strided(*view) for view in self.views]

        return out, finish

    @property
    def views(self) -> list[View]:
        """Return the view that each gradient is of all, which lie one behind the other."""
        return [(share.size, (share.size[1], 1), share.offset) for share in self.shares]

    def join(
        self, table: JoinedLaunches, both: tuple[int, int], to: tuple[int, int], factors: Sequence[int], slope: float,
        itemsize: int,
    ) -> bool:  # fmt: skip
        """Add the launches on the gradient and x, to what leaves the pass and to all gradients; return False if none.

        These are positions in the table, as those of the ``factors``.
        """
        if self.own is None or self.total is None:
            return False
        parts = table.part(_wide(self.blocks * self.count, itemsize))
        table.launch(self.own.bound(slope), (*both, to[0], parts, *[factors[number] for number in self.numbers]))
        table.launch(self.total.bound(), (parts, to[1]))
        return True


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
    shares = _shares(plan, transposed)
    found = BackPass(plan, numbers, None, None, 1, items * across * width, shares)
    if kernel is None or total is None:
        return found
    blocks = min(plan.tiles(items, width), resident(kernel, index) * own.sm_count)
    layout = *strides, items, width, int(is_later and kernel.overlapped)
    addresses = (None,) * (4 + len(numbers))
    started = _started(kernel, index, blocks, *addresses, *layout, 0, number=len(addresses) + len(layout))
    return replace(found, own=started, total=_totalled(total, index, blocks, found.count), blocks=blocks)


def _kernel(plan: PassPlan, is_early: bool) -> Kernel | None:
    """Return the kernel of a pass, which may begin early, None if it was only collected."""
    entry = Entry(gradient_emit.ENTRY, plan.threads, plan.shared, waits=is_early)
    return load_kernel(plan, gradient_emit.emit, entry)


def _total(stored: str, arch: str, transposed: tuple[tuple[int, int], ...] = ()) -> Kernel | None:
    title = f"sum of shares {stored}{' transposed ' * bool(transposed)}{transposed or ''}"
    kernels = load_kernels(
        ("kron total", stored, arch, transposed), arch, lambda: factor_gradient_emit.emit_total(stored, transposed),
        Entry(factor_gradient_emit.ENTRY, TOTAL_THREADS, waits=True), title=title,
    )  # fmt: skip
    return None if kernels is None else kernels[0]


def _totalled(total: Kernel, index: int, shares: int, count: int) -> Started:
    """Return launches that add up so many shares of so many entries."""
    return _started(total, index, -(-count // TOTAL_ENTRIES), None, None, shares, count)


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


def bind_sum(u: torch.Tensor, v: torch.Tensor, is_wide: bool = False) -> SumKernel | None:
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
    return _summing(chosen, index, (rows, columns), count, right, is_wide, begins_early(u, v))


@dataclass(frozen=True)
class SumKernel:
    """Launches that sum v[l, q, r] u[l, p, r] over l and r: of the kernel, and of what adds up ``shares`` of it.

    ``shape`` is that of the sum, in float32 if ``is_wide``. ``applied`` are the entries of v with the transposes of
    factors applied, times a number, which the kernel writes too; 0 where it does not. ``own`` is None where kernels
    were only collected, ``total`` where there is one share.
    """

    own: Started | None
    total: Started | None
    shares: int
    shape: tuple[int, int]
    is_wide: bool
    applied: int = 0

    def layout(self, itemsize: int) -> PlainLayout:
        """Return the layout of the sum in numbers of so many bytes."""
        entries = math.prod(self.shape)
        return _wide(entries, itemsize) if self.is_wide else layouts_in_one_piece([(entries,)])[0]

    def __call__(self, u: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Return the sum."""
        return self.started(u, v, (), 1.0)[0]()

    def started(
        self, u: torch.Tensor, v: torch.Tensor, factors: Tensors, slope: float
    ) -> tuple[Callable[[], torch.Tensor], torch.Tensor]:
        """Launch the kernel, and return what ends the sum, and v with the factors' transposes applied."""
        kind, device, entries = torch.float32 if self.is_wide else u.dtype, u.device, math.prod(self.shape)
        if self.total is None:
            parts = allocate(self.shape, kind, device)
        else:
            parts = allocate((self.shares, entries), torch.float32, device)
        applied = allocate((self.applied,), u.dtype, device) if self.applied else parts
        if self.own is not None:
            into = (applied.data_ptr(), *[factor.data_ptr() for factor in factors]) if self.applied else ()
            self.own((v.data_ptr(), u.data_ptr(), parts.data_ptr(), *into), slope)

        def finish() -> torch.Tensor:
            if self.total is None:
                return parts
            out = allocate(self.shape, kind, device)
            self.total((parts.data_ptr(), out.data_ptr()))
            return out

        return finish, applied

    def join(
        self, table: JoinedLaunches, both: tuple[int, int], to: tuple[int, int], factors: Sequence[int], slope: float,
        itemsize: int,
    ) -> bool:  # fmt: skip
        """Add the launches on v and u, to v with factors applied and to the sum; return False where there are none.

        These are positions in the table, as those of the ``factors``.
        """
        if self.own is None:
            return False
        parts = to[1] if self.total is None else table.part(_wide(self.shares * math.prod(self.shape), itemsize))
        table.launch(self.own.bound(slope), (*both, parts, *((to[0], *factors) if self.applied else ())))
        if self.total is not None:
            table.launch(self.total.bound(), (parts, to[1]))
        return True


def _summing(
    chosen: GramPlan | RegisterGramPlan, index: int, size: tuple[int, int], count: int, right: int, is_wide: bool,
    is_early: bool, transposed: bool = False, factors: Tensors = (),
) -> SumKernel:  # fmt: skip
    """Return the launches of a kernel of sums, which applies ``factors`` like these too where there are some.

    ``transposed``: of two shares at least.
    """
    entry = Entry(factor_gradient_emit.ENTRY, chosen.threads, chosen.shared, waits=is_early)
    kernel = load_kernel(chosen, factor_gradient_emit.emit, entry)
    kind, shape = "f32" if is_wide else chosen.stored, (size[1], size[0]) if transposed else size
    total, entries = _total(kind, chosen.arch, (size,) if transposed else ()), size[0] * size[1]
    applied = count * size[1] * right if factors else 0
    if kernel is None or total is None:
        return SumKernel(None, None, 1, shape, is_wide, applied)
    shares = chosen.shares(count, right, resident(kernel, index) * limits(index).sm_count)
    shares = max(2, shares) if is_wide or transposed else shares
    arguments: list[int | None] = [None, None, None, count, right]
    if factors:
        arguments += [None, 0]
        for factor in factors:
            arguments += [None, *factor.stride()]
    own = _started(kernel, index, shares * chosen.tiles, *arguments, number=6 if factors else None)
    added = None if shares == 1 else _totalled(total, index, shares, entries)
    return SumKernel(own, added, shares, shape, is_wide, applied)


def bind_applying(u: torch.Tensor, v: torch.Tensor, factors: Tensors, transposed: bool) -> SumKernel | None:
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
    return _summing(
        chosen, index, (rows, columns), count, right, is_wide, begins_early(u, v), transposed, factors
    )  # fmt: skip


@dataclass(frozen=True)
class Separation:
    """A launch that finds the gradients of matrices of these ``sizes`` from that of their product."""

    own: Started | None
    sizes: tuple[tuple[int, int], ...]

    @property
    def shape(self) -> tuple[int]:
        """Return the shape of all gradients, which lie one behind the other."""
        return (sum(rows * columns for rows, columns in self.sizes),)

    def __call__(self, joint: torch.Tensor, factors: Tensors) -> Tensors:
        """Return the gradients."""
        out = allocate(self.shape, factors[0].dtype, joint.device)
        if self.own is not None:
            joint = joint.contiguous()
            self.own((joint.data_ptr(), out.data_ptr(), *[factor.data_ptr() for factor in factors]))
        return [out.as_strided(*view) for view in self.views]

    @property
    def views(self) -> list[View]:
        """Return the view that each gradient is of all, which lie one behind the other."""
        found, at = list[View](), 0
        for rows, columns in self.sizes:
            found.append(((rows, columns), (columns, 1), at))
            at += rows * columns
        return found

    def join(self, table: JoinedLaunches, joint: int, to: int, factors: Sequence[int]) -> bool:
        """Add the launch on the joint gradient, to all gradients; return False where there is none."""
        if self.own is None:
            return False
        table.launch(self.own.bound(), (joint, to, *factors))
        return True


def bind_separation(factors: Tensors) -> Separation | None:
    """Return what finds the gradients of matrices like these from that of their product; None without a kernel.

    The joint gradient lies in one piece, in float32 where the matrices are halves.
    """
    sizes = tuple([(int(factor.shape[-2]), int(factor.shape[-1])) for factor in factors])
    if factors[0].dtype not in NAMES or longest(sizes) > LONGEST:
        return None
    index, stored = index_of(factors[0].device), NAMES[factors[0].dtype]
    plan = SeparationPlan(sizes, stored, "f64" if stored == "f64" else "f32", limits(index).arch)
    entry = Entry(separation.ENTRY, separation.THREADS, waits=True)
    kernel = load_kernel(plan, separation.emit, entry)
    if kernel is None:
        return Separation(None, sizes)
    matrices = [argument for factor in factors for argument in (None, *factor.stride()[-2:])]
    return Separation(_started(kernel, index, plan.blocks, None, None, *matrices), sizes)
