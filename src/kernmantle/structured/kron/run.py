"""Passes of a Kronecker product over tensors: the layout of its arrays, the strides of every pass, its launches."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch

from ...torch_ops.dtypes import NAMES
from ...torch_ops.execute import allocate_as
from ...torch_ops.layout import merged
from ...torch_ops.torch_private import is_autocast_on
from .arrays import Arrays
from .cost import ACCESS, goes_by_rows, takes_copy
from .modes import Mode
from .passes import ALONG, VENDOR, Pass, View, views
from .torch_products import multiplied_out, product

BATCH = 3  # batch axes that a kernel takes; more take a launch for each of their entries
# Stands among the options of a product whose gradients may take what lies between its passes, before a digit for x and
# each factor: whether its gradient is wanted.
SAVING = "saving"
# Share of a device's memory that products keep for their gradients unasked.
_SAVED = 1 / 128
Numbers = tuple[float, float]
Tensors = Sequence[torch.Tensor]


@lru_cache
def most_saved(device: torch.device) -> float:
    """Return the bytes that a product on a device keeps for its gradients unasked: of none without memory any."""
    if device.type == "meta":
        return math.inf
    if device.type == "cuda":
        return _SAVED * torch.cuda.get_device_properties(device).total_memory
    names = getattr(os, "sysconf_names", {})  # which not every system has
    return _SAVED * math.prod(os.sysconf(own) if own in names else 0 for own in ("SC_PHYS_PAGES", "SC_PAGE_SIZE"))


@dataclass(frozen=True)
class ArrayLayout:
    """Strides of one array in a pass: of the batch axes (``left`` last), of the run, and of the entries right of it."""

    batch: tuple[int, ...]
    run: int
    right: int


def layout_of(tensor: torch.Tensor, left: int, run: int, right: int) -> ArrayLayout | None:
    """Return the strides of (…, left * run * right, columns); None if ``right`` and columns have no common stride."""
    *batch, own, across = tensor.stride()
    batch = [0 if size == 1 else stride for size, stride in zip(tensor.shape[:-2], batch, strict=True)]
    columns = tensor.shape[-1]
    if right > 1 and columns > 1 and own != columns * across:
        return None
    inner = across if columns > 1 else own
    return ArrayLayout((*batch, own * run * right if left > 1 else 0), own * right, inner)


def spread(strides: Sequence[int], sizes: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of batch axes, 0 for axes of length 1."""
    return tuple(0 if size == 1 else stride for size, stride in zip(sizes, strides, strict=True))


@dataclass(frozen=True)
class Launch:
    """One pass over arrays of given shapes and strides.

    ``dims`` are the extents of the batch axes, the axes left of the run included, and for each the strides of x, y,
    out and the factors; ``offsets`` say where each launch begins, in bytes, when there are more axes than a kernel
    takes. ``numbers`` says which factors of the product it applies, ``is_later`` that a pass of ours is always ahead.
    """

    run: Pass
    right: int
    layouts: dict[str, ArrayLayout]
    dims: tuple[tuple[int, tuple[int, ...]], ...]
    offsets: tuple[tuple[int, ...], ...]
    numbers: tuple[int, ...]
    arrays: Arrays
    is_later: bool = False

    @property
    def factors(self) -> list[torch.Tensor]:
        """Factors of the pass."""
        return [self.arrays.factors[number] for number in self.numbers]

    @property
    def added(self) -> bool:
        """Return whether y is added."""
        return self.arrays.y is not None

    @property
    def varies(self) -> bool:
        """Return whether factors differ along a batch axis."""
        return any(any(strides[3:]) for _, strides in self.dims)


Start = Callable[[Sequence[int], Numbers], None]
"""Starts a prepared kernel with the addresses of x, y, out and the factors of its pass, and alpha and beta."""
Prepare = Callable[[Any], Any]
"""Returns what starts the kernel of a :class:`Launch`, or of the :class:`Dense` of a pass along one axis."""
Layout = tuple[tuple[int, ...], tuple[int, ...]]
"""Sizes and strides."""


@dataclass(frozen=True)
class Dense:
    """One factor by the vendor's matrix product, straight into the result: how each array is read.

    Several factors that a pass takes as one are multiplied out first; ``parts`` has the layout in which each is read.
    With ``by_rows``, matrices with few columns are copied into rows first; ``copied``: a transposed factor is.
    """

    x: Layout
    factor: Layout
    out: Layout
    dtype: torch.dtype
    parts: tuple[Layout, ...] = ()
    by_rows: bool = False
    copied: bool = False

    def matrix(self, factors: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the matrix to multiply by, from any views of the factors with the addresses of the layouts."""
        if not self.parts:
            return factors[0]
        return multiplied_out([own.as_strided(*layout) for own, layout in zip(factors, self.parts, strict=True)])

    def product(self, x: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        """Return the product in new memory with the layout of ``out``; not with ``parts`` or ``by_rows``."""
        if is_autocast_on() and torch.is_autocast_enabled(x.device.type):
            with torch.autocast(x.device.type, enabled=False):
                return self.product(x, factor)
        x, factor = x.as_strided(*self.x), factor.as_strided(*self.factor)
        factor = factor.contiguous() if self.copied else factor
        return torch.mm(x, factor) if factor.dim() == 2 else torch.bmm(factor, x)

    def __call__(
        self, x: torch.Tensor, factor: torch.Tensor, y: torch.Tensor | None, out: torch.Tensor, numbers: Numbers
    ) -> None:
        """Write ``alpha`` times the product plus ``beta`` y."""
        if is_autocast_on() and torch.is_autocast_enabled(x.device.type):
            with torch.autocast(x.device.type, enabled=False):
                self(x, factor, y, out, numbers)
            return
        x, out, (sizes, steps) = x.as_strided(*self.x), out.as_strided(*self.out), self.factor
        if factor.shape != sizes or factor.stride() != steps:
            factor = factor.as_strided(sizes, steps)
        factor = factor.contiguous() if self.copied else factor
        if y is None and numbers[0] == 1:
            if len(self.factor[0]) == 2:
                torch.mm(x, factor, out=out)
            elif self.by_rows:
                count, rows, right = out.shape
                value = x.mT.reshape(count * right, x.shape[1]) @ factor[0].mT
                out.copy_(value.view(count, right, rows).mT)
            else:
                torch.bmm(factor, x, out=out)
            return
        y, share = (out, 0) if y is None else (y.as_strided(*self.out), numbers[1])
        if factor.dim() == 2:
            torch.addmm(y, x, factor, beta=share, alpha=numbers[0], out=out)
        else:
            torch.baddbmm(y, factor, x, beta=share, alpha=numbers[0], out=out)


def _dense(own: Pass, view: View, modes: Sequence[Mode], arrays: Arrays) -> Dense | None:
    """Return the product of a pass; None if arrays are not contiguous, the factor varies, or halves would round.

    Our tiles along one axis add halves in float32.
    """
    mode, x, out, y = own.modes[0], arrays.x, arrays.out, arrays.out if arrays.y is None else arrays.y
    factors = _factors_of(own, modes, arrays)
    half, entries = x.dtype in (torch.float16, torch.bfloat16), math.prod(factor.numel() for factor in factors)
    rounds = half and not x.is_cuda and own.kind == VENDOR
    if rounds or entries != mode.rows * mode.columns or x.shape[:-2] != out.shape[:-2]:
        return None
    if not (x.is_contiguous() and out.is_contiguous() and y.is_contiguous()):
        return None
    right = view.right * x.shape[-1]
    parts: tuple[Layout, ...] = ()
    row, column = factors[0].stride()[-2:]
    if len(factors) > 1:
        # Rows of the product follow each other, or columns: what are whole vectors, else as those of the factors do.
        uneven = [side % (ACCESS // x.element_size()) > 0 for side in (mode.columns, mode.rows)]
        is_down = uneven[0] if uneven[0] != uneven[1] else row == 1
        whole = [factor.mT if is_down else factor for factor in factors]
        parts = tuple((tuple(own.shape[-2:]), own.stride()[-2:]) for own in whole)
        row, column = (1, mode.rows) if is_down else (mode.columns, 1)
    count = x.numel() // (mode.columns * right)
    if right == 1:
        shapes = ((count, mode.columns), (mode.columns, 1)), ((count, mode.rows), (mode.rows, 1))
        copied = x.is_cuda and column == 1 and takes_copy(mode, count, NAMES[x.dtype])
        layout = (mode.columns, mode.rows), (column, row)
        return Dense(shapes[0], layout, shapes[1], x.dtype, parts, copied=copied)
    x_rows = (count, mode.columns, right), (mode.columns * right, right, 1)
    out_rows = (count, mode.rows, right), (mode.rows * right, right, 1)
    by_rows = x.is_cuda and goes_by_rows(mode, count, right, NAMES[x.dtype])
    return Dense(x_rows, ((count, mode.rows, mode.columns), (0, row, column)), out_rows, x.dtype, parts, by_rows)


def _factors_of(own: Pass, modes: Sequence[Mode], arrays: Arrays) -> list[torch.Tensor]:
    return [arrays.factors[modes[index].factor or 0] for index in own.parts[0]]


@dataclass(frozen=True)
class Stage:
    """A prepared pass: its kernel, its factors, and the shape of its intermediate result, None for the last pass.

    ``inner`` is that of what it saves of its own, None where it saves nothing.
    """

    start: Start | Dense
    numbers: tuple[int, ...]
    offsets: tuple[tuple[int, ...], ...]
    shape: tuple[int, ...] | None
    inner: tuple[int, ...] | None = None

    @property
    def left(self) -> list[tuple[int, ...]]:
        """Shapes of what it saves and of its intermediate result, where there are such."""
        return [shape for shape in (self.inner, self.shape) if shape is not None]


def launched(start: Start, offsets: Sequence[Sequence[int]], pointers: Sequence[int], numbers: Numbers) -> None:
    """Start a kernel once for every offset."""
    if len(offsets) == 1:
        start(pointers, numbers)
        return
    for own in offsets:
        start([pointer + offset for pointer, offset in zip(pointers, own, strict=True)], numbers)


@dataclass(frozen=True)
class Prepared:
    """The kernels of a product, prepared for arrays of equal layouts and ready to be launched."""

    stages: tuple[Stage, ...]

    @property
    def entries_between(self) -> int:
        """Return the entries of all intermediate results."""
        return sum([math.prod(shape) for stage in self.stages for shape in stage.left])

    @property
    def has_kernels(self) -> bool:
        """Return whether every call launches a kernel of ours."""
        return any(not isinstance(stage.start, Dense) for stage in self.stages)

    def new(self, x: torch.Tensor, factors: Sequence[torch.Tensor], alpha: float, shape: tuple[int, ...]) -> Any:
        """Return ``alpha`` times the product in new memory of that shape; a single vendor product takes it itself."""
        first = self.stages[0]
        start = first.start
        if alpha == 1 and isinstance(start, Dense) and not (first.shape or start.parts or start.by_rows):
            return start.product(x, factors[first.numbers[0]])
        out = allocate_as(x, shape)
        self(x, factors, None, out, (alpha, 0.0))
        return out

    def __call__(
        self, x: torch.Tensor, factors: Sequence[torch.Tensor], y: torch.Tensor | None, out: torch.Tensor,
        numbers: Numbers, saved: list[torch.Tensor] | None = None,
    ) -> None:  # fmt: skip
        """Write the product to ``out``; ``saved`` receives the intermediate results."""
        source, alpha = x, numbers[0]
        for stage in self.stages:
            if stage.shape is None:
                into, added, shares = out, y, (alpha, numbers[1])
            else:
                into, added, shares = allocate_as(x, stage.shape), None, (alpha, 0.0)
            if isinstance(stage.start, Dense):
                matrix = stage.start.matrix([factors[number] for number in stage.numbers])
                stage.start(source, matrix, added, into, shares)
            else:
                target = into.data_ptr()
                second = added if stage.inner is None else allocate_as(x, stage.inner)
                pointers = [source.data_ptr(), target if second is None else second.data_ptr(), target]
                pointers += [factors[number].data_ptr() for number in stage.numbers]
                launched(stage.start, stage.offsets, pointers, shares)
                if saved is not None and stage.inner is not None and second is not None:
                    saved.append(second)
            source, alpha = into, 1.0
            if saved is not None and stage.shape is not None:
                saved.append(into)


def prepare(passes: Sequence[Pass], modes: Sequence[Mode], arrays: Arrays, kernel: Prepare) -> Prepared | None:
    """Return the passes as prepared kernels; None where one needs a copy."""
    stages: list[Stage] = []
    value = arrays.x
    for own, view, into, y in _walk(passes, modes, arrays):
        step = replace(arrays, x=value, out=into, y=y)
        shape = None if into is arrays.out else into.shape
        if own.kind in (VENDOR, ALONG):
            dense = _dense(own, view, modes, step)
            if dense is None:
                return None
            dense = kernel(dense) if own.kind == ALONG else dense
            stages.append(Stage(dense, tuple(modes[index].factor or 0 for index in own.parts[0]), (), shape))
        else:
            layouts = _layouts(own, view, step)
            if layouts is None:
                return None
            launch = replace(_launch(own, view, modes, step, layouts), is_later=Prepared(tuple(stages)).has_kernels)
            inner = _inner(launch, into) if own.saves else None
            if own.saves and inner is None:
                return None
            stages.append(Stage(kernel(launch), launch.numbers, launch.offsets, shape, inner))
        value = into
    return Prepared(tuple(stages))


def _inner(launch: Launch, out: torch.Tensor) -> tuple[int, ...] | None:
    """Return the shape of what a pass saves of its own; None unless its entries follow each other, as those do."""
    first = launch.run.modes[0]
    *others, _ = [extent for extent, _ in launch.dims]
    if len(launch.offsets) > 1 or math.prod(others) > 1:
        return None
    return (*out.shape[:-2], out.shape[-2] // first.rows * first.columns, out.shape[-1])


def _walk(
    passes: Sequence[Pass], modes: Sequence[Mode], arrays: Arrays
) -> Iterator[tuple[Pass, View, torch.Tensor, torch.Tensor | None]]:
    """Yield each pass, its view, where its result goes and the y that it adds."""
    size = math.prod(mode.columns for mode in modes)
    for index, (own, view) in enumerate(zip(passes, views(modes, passes), strict=True)):
        size = size // own.columns * own.rows
        if index == len(passes) - 1:
            yield own, view, arrays.out, arrays.y
        else:
            yield own, view, arrays.x.new_empty((*arrays.batch, size, arrays.x.shape[-1])), None


def run(passes: Sequence[Pass], modes: Sequence[Mode], numbers: Numbers, arrays: Arrays, kernel: Prepare) -> None:
    """Run all passes, with the copies and matrix products that some need."""
    value, alpha = arrays.x, numbers[0]
    for own, view, into, y in _walk(passes, modes, arrays):
        step = replace(arrays, x=value, out=into, y=y)
        shares = (alpha, 0.0 if y is None else numbers[1])
        if own.kind == VENDOR:
            _multiplied(own, view, modes, step, shares)
        else:
            _pass(own, view, modes, step, shares, kernel)
        value, alpha = into, 1.0


def _layouts(own: Pass, view: View, arrays: Arrays) -> dict[str, ArrayLayout] | None:
    """Return the strides of every array, None if an array has no such view."""
    x = layout_of(arrays.x, view.left, own.columns, view.right)
    out = layout_of(arrays.out, view.left, own.rows, view.right)
    y = out if arrays.y is None else layout_of(arrays.y, view.left, own.rows, view.right)
    return None if x is None or out is None or y is None else {"x": x, "y": y, "out": out}


def _pass(own: Pass, view: View, modes: Sequence[Mode], arrays: Arrays, numbers: Numbers, kernel: Prepare) -> None:
    target = arrays.out
    layouts = _layouts(own, view, arrays)
    if layouts is None:
        y = None if arrays.y is None else arrays.y.contiguous()
        arrays = replace(arrays, x=arrays.x.contiguous(), out=target.contiguous(), y=y)
        layouts = _layouts(own, view, arrays)
    assert layouts is not None
    launch = _launch(own, view, modes, arrays, layouts)
    tensors = [arrays.x, arrays.out if arrays.y is None else arrays.y, arrays.out, *launch.factors]
    launched(kernel(launch), launch.offsets, [tensor.data_ptr() for tensor in tensors], numbers)
    if arrays.out is not target:
        target.copy_(arrays.out)


def _launch(own: Pass, view: View, modes: Sequence[Mode], arrays: Arrays, layouts: dict[str, ArrayLayout]) -> Launch:
    numbers = tuple(modes[index].factor or 0 for part in own.parts for index in part)
    factors = [arrays.factors[number] for number in numbers]
    strides = [(*spread(factor.stride()[:-2], factor.shape[:-2]), 0) for factor in factors]
    every = [*(layouts[name].batch for name in ("x", "y", "out")), *strides]
    extents = (*arrays.batch, view.left)
    dims = merged([(extent, tuple(own[axis] for own in every)) for axis, extent in enumerate(extents)])
    extra, inner = dims[: max(0, len(dims) - BATCH)], dims[max(0, len(dims) - BATCH) :]
    inner = [(1, (0,) * len(every))] * (BATCH - len(inner)) + inner
    right = view.right * arrays.x.shape[-1]
    offsets = _offsets(extra, len(every), arrays.x.element_size())
    return Launch(own, right, layouts, tuple(inner), offsets, numbers, arrays)


def _offsets(dims: Sequence[tuple[int, tuple[int, ...]]], count: int, size: int) -> tuple[tuple[int, ...], ...]:
    offsets = [(0,) * count]
    for extent, strides in dims:
        offsets = [
            tuple(base + index * stride * size for base, stride in zip(start, strides, strict=True))
            for start in offsets
            for index in range(extent)
        ]
    return tuple(offsets)


def _multiplied(own: Pass, view: View, modes: Sequence[Mode], arrays: Arrays, numbers: Numbers) -> None:
    """Multiply by one factor, by the vendor's matrix product."""
    mode, factors = own.modes[0], _factors_of(own, modes, arrays)
    dense = _dense(own, view, modes, arrays)
    if dense is not None:
        dense(arrays.x, dense.matrix(factors), arrays.y, arrays.out, numbers)
        return
    factor = multiplied_out(factors)
    axes = (Mode(view.left, view.left), Mode(mode.columns, mode.rows, 0), Mode(view.right, view.right))
    half = arrays.x.dtype in (torch.float16, torch.bfloat16)
    wide = torch.float32 if half and not arrays.x.is_cuda else arrays.x.dtype
    with torch.autocast(arrays.x.device.type, enabled=False):
        result = product(arrays.x.to(wide), [factor.to(wide)], axes)
    if numbers[0] != 1:
        result *= numbers[0]
    if arrays.y is not None:
        result = torch.add(result, arrays.y.to(wide), alpha=numbers[1])
    arrays.out.copy_(result)
