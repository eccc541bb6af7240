"""Passes of a Kronecker product over tensors, one after the other: the strides that each kernel is given."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from ..contraction.kron_modes import Mode
from ..contraction.kron_passes import Pass, View, views
from .kron_layout import Arrays, Port, port, spread, within
from .kron_torch import product
from .layout import merged

BATCH = 3
Numbers = tuple[float, float]


@dataclass(frozen=True)
class Launch:
    """One pass over arrays of given shapes and strides.

    ``dims`` are the extents of the batch axes, the axes left of the run included, and for each the strides of x, y,
    out and the factors; ``offsets`` say where each launch begins, in bytes, when there are more axes than a kernel
    takes. ``numbers`` says which factors of the product the pass applies.
    """

    run: Pass
    right: int
    ports: dict[str, Port]
    dims: tuple[tuple[int, tuple[int, ...]], ...]
    offsets: tuple[tuple[int, ...], ...]
    numbers: tuple[int, ...]
    arrays: Arrays

    @property
    def factors(self) -> list[torch.Tensor]:
        """Factors of the pass."""
        return [self.arrays.factors[number] for number in self.numbers]

    @property
    def added(self) -> bool:
        """Whether y is added."""
        return self.arrays.y is not None

    @property
    def varies(self) -> bool:
        """Whether factors differ along a batch axis."""
        return any(any(strides[3:]) for _, strides in self.dims)


Start = Callable[[Sequence[int], Numbers], None]
"""Starts a prepared kernel with the addresses of x, y, out and the factors of its pass, and alpha and beta."""
Prepare = Callable[[Launch], Start]


Layout = tuple[tuple[int, ...], tuple[int, ...]]
"""Sizes and strides."""


@dataclass(frozen=True)
class Dense:
    """One large factor by the vendor's matrix product, straight into the result: how each array is read."""

    x: Layout
    factor: Layout
    out: Layout

    def __call__(
        self, x: torch.Tensor, factor: torch.Tensor, y: torch.Tensor | None, out: torch.Tensor, numbers: Numbers
    ) -> None:
        """Write ``alpha`` times the product plus ``beta`` y."""
        if torch.is_autocast_enabled(x.device.type):
            with torch.autocast(x.device.type, enabled=False):
                self(x, factor, y, out, numbers)
            return
        x, factor, out = x.as_strided(*self.x), factor.as_strided(*self.factor), out.as_strided(*self.out)
        y, share = (out, 0) if y is None else (y.as_strided(*self.out), numbers[1])
        if factor.dim() == 2:
            torch.addmm(y, x, factor, beta=share, alpha=numbers[0], out=out)
        else:
            torch.baddbmm(y, factor, x, beta=share, alpha=numbers[0], out=out)


def _dense(own: Pass, view: View, modes: Sequence[Mode], arrays: Arrays) -> Dense | None:
    """None where an array does not lie in one piece, the factor varies, or torch rounds halves on the way."""
    mode, x, out, y = own.modes[0], arrays.x, arrays.out, arrays.out if arrays.y is None else arrays.y
    factor = arrays.factors[modes[own.parts[0][0]].factor or 0]
    half = x.dtype in (torch.float16, torch.bfloat16)
    if (half and not x.is_cuda) or factor.numel() != mode.rows * mode.columns or x.shape[:-2] != out.shape[:-2]:
        return None
    if not (x.is_contiguous() and out.is_contiguous() and y.is_contiguous()):
        return None
    right, (row, column) = view.right * x.shape[-1], factor.stride()[-2:]
    count = x.numel() // (mode.columns * right)
    if right == 1:
        lines = ((count, mode.columns), (mode.columns, 1)), ((count, mode.rows), (mode.rows, 1))
        return Dense(lines[0], ((mode.columns, mode.rows), (column, row)), lines[1])
    x_lines = (count, mode.columns, right), (mode.columns * right, right, 1)
    out_lines = (count, mode.rows, right), (mode.rows * right, right, 1)
    return Dense(x_lines, ((count, mode.rows, mode.columns), (0, row, column)), out_lines)


@dataclass(frozen=True)
class Stage:
    """A prepared pass: its kernel, which factors it takes and the shape of what it leaves, None for the result."""

    start: Start | Dense
    numbers: tuple[int, ...]
    offsets: tuple[tuple[int, ...], ...]
    shape: tuple[int, ...] | None


def launched(start: Start, offsets: Sequence[Sequence[int]], pointers: Sequence[int], numbers: Numbers) -> None:
    """Start a kernel once for every offset."""
    if len(offsets) == 1:
        start(pointers, numbers)
        return
    for own in offsets:
        start([pointer + offset for pointer, offset in zip(pointers, own, strict=True)], numbers)


@dataclass(frozen=True)
class Prepared:
    """A product of arrays like those seen before: what remains is to start its kernels."""

    stages: tuple[Stage, ...]

    def __call__(
        self, x: torch.Tensor, factors: Sequence[torch.Tensor], y: torch.Tensor | None, out: torch.Tensor,
        numbers: Numbers,
    ) -> None:  # fmt: skip
        """Write the product to ``out``."""
        held, source, alpha = x, x.data_ptr(), numbers[0]
        result = out.data_ptr()
        for stage in self.stages:
            last = stage.shape is None
            into = out if stage.shape is None else held.new_empty(stage.shape)
            target = result if last else into.data_ptr()
            added, shares = y if last else None, (alpha, numbers[1] if last else 0.0)
            if isinstance(stage.start, Dense):
                stage.start(held, factors[stage.numbers[0]], added, into, shares)
            else:
                beside = target if added is None else added.data_ptr()
                pointers = [source, beside, target, *(factors[number].data_ptr() for number in stage.numbers)]
                launched(stage.start, stage.offsets, pointers, shares)
            held, source, alpha = into, target, 1.0


def prepare(passes: Sequence[Pass], modes: Sequence[Mode], arrays: Arrays, kernel: Prepare) -> Prepared | None:
    """The passes as prepared kernels; None where one needs a copy."""
    stages: list[Stage] = []
    value = arrays.x
    for own, view, into, y in _walk(passes, modes, arrays):
        given = within(arrays, value, into, y)
        shape = None if into is arrays.out else into.shape
        if own.kind == "matmul":
            dense = _dense(own, view, modes, given)
            if dense is None:
                return None
            stages.append(Stage(dense, (modes[own.parts[0][0]].factor or 0,), (), shape))
        else:
            ports = _ports(own, view, given)
            if ports is None:
                return None
            launch = _launch(own, view, modes, given, ports)
            stages.append(Stage(kernel(launch), launch.numbers, launch.offsets, shape))
        value = into
    return Prepared(tuple(stages))


def _walk(
    passes: Sequence[Pass], modes: Sequence[Mode], arrays: Arrays
) -> Iterator[tuple[Pass, View, torch.Tensor, torch.Tensor | None]]:
    """Each pass, its view, where its result goes and the y that it adds."""
    size = math.prod(mode.columns for mode in modes)
    for place, (own, view) in enumerate(zip(passes, views(modes, passes), strict=True)):
        size = size // own.columns * own.rows
        if place == len(passes) - 1:
            yield own, view, arrays.out, arrays.y
        else:
            yield own, view, arrays.x.new_empty((*arrays.batch, size, arrays.x.shape[-1])), None


def run(passes: Sequence[Pass], modes: Sequence[Mode], numbers: Numbers, arrays: Arrays, kernel: Prepare) -> None:
    """All passes, with the copies and matrix products that some need."""
    value, alpha = arrays.x, numbers[0]
    for own, view, into, y in _walk(passes, modes, arrays):
        given = within(arrays, value, into, y)
        shares = (alpha, 0.0 if y is None else numbers[1])
        if own.kind == "matmul":
            _multiplied(own, view, modes, given, shares)
        else:
            _pass(own, view, modes, given, shares, kernel)
        value, alpha = into, 1.0


def _ports(own: Pass, view: View, arrays: Arrays) -> dict[str, Port] | None:
    """Strides of every array, None where one has no such view."""
    x = port(arrays.x, view.left, own.columns, view.right)
    out = port(arrays.out, view.left, own.rows, view.right)
    y = out if arrays.y is None else port(arrays.y, view.left, own.rows, view.right)
    return None if x is None or out is None or y is None else {"x": x, "y": y, "out": out}


def _pass(own: Pass, view: View, modes: Sequence[Mode], arrays: Arrays, numbers: Numbers, kernel: Prepare) -> None:
    target = arrays.out
    ports = _ports(own, view, arrays)
    if ports is None:
        y = None if arrays.y is None else arrays.y.contiguous()
        arrays = within(arrays, arrays.x.contiguous(), target.contiguous(), y)
        ports = _ports(own, view, arrays)
    assert ports is not None
    launch = _launch(own, view, modes, arrays, ports)
    tensors = [arrays.x, arrays.out if arrays.y is None else arrays.y, arrays.out, *launch.factors]
    launched(kernel(launch), launch.offsets, [tensor.data_ptr() for tensor in tensors], numbers)
    if arrays.out is not target:
        target.copy_(arrays.out)


def _launch(own: Pass, view: View, modes: Sequence[Mode], arrays: Arrays, ports: dict[str, Port]) -> Launch:
    numbers = tuple(modes[place].factor or 0 for part in own.parts for place in part)
    factors = [arrays.factors[number] for number in numbers]
    strides = [(*spread(factor.stride()[:-2], factor.shape[:-2]), 0) for factor in factors]
    every = [*(ports[name].batch for name in ("x", "y", "out")), *strides]
    extents = (*arrays.batch, view.left)
    dims = merged([(extent, tuple(port[axis] for port in every)) for axis, extent in enumerate(extents)])
    extra, inner = dims[: max(0, len(dims) - BATCH)], dims[max(0, len(dims) - BATCH) :]
    inner = [(1, (0,) * len(every))] * (BATCH - len(inner)) + inner
    right = view.right * arrays.x.shape[-1]
    offsets = _offsets(extra, len(every), arrays.x.element_size())
    return Launch(own, right, ports, tuple(inner), offsets, numbers, arrays)


def _offsets(dims: Sequence[tuple[int, tuple[int, ...]]], ports: int, size: int) -> tuple[tuple[int, ...], ...]:
    offsets = [(0,) * ports]
    for extent, strides in dims:
        offsets = [
            tuple(base + place * stride * size for base, stride in zip(start, strides, strict=True))
            for start in offsets
            for place in range(extent)
        ]
    return tuple(offsets)


def _multiplied(own: Pass, view: View, modes: Sequence[Mode], arrays: Arrays, numbers: Numbers) -> None:
    """One large factor by the vendor's matrix product."""
    mode = own.modes[0]
    factor = arrays.factors[modes[own.parts[0][0]].factor or 0]
    dense = _dense(own, view, modes, arrays)
    if dense is not None:
        dense(arrays.x, factor, arrays.y, arrays.out, numbers)
        return
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
