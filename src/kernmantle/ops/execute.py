"""Runs a program on tensors: the vendor's matmul, a compiled kernel or the reference evaluator."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import torch

from ..codegen import reference
from ..config import current
from ..contraction import recognise
from ..contraction.lower import Lowering, lower
from ..contraction.program import Operand, Program, elementwise
from ..contraction.pullback import pullback
from ..errors import BackendError, OutOfMemoryError
from ..expr.node import substitute, var
from ..runtime.lru import LRUCache
from . import squares_cpu
from .dtypes import DTYPES, NAMES
from .launcher import collecting
from .layout import Geometry, aligned, arguments, geometry, strided
from .namespaces import torch_namespace
from .targets import Target, target_for

Tensors = Sequence[torch.Tensor]
Runner = Callable[[Tensors, Sequence[float], Tensors], None]
_PREPARED: LRUCache[tuple[object, ...], Prepared] = LRUCache(1024)
_RAN = threading.local()
_address = torch.Tensor.data_ptr


@dataclass(frozen=True)
class Types:
    """Type of the arithmetic and of each output, and how exact products must be."""

    compute: str
    outs: tuple[str, ...]
    precision: str = "default"

    @property
    def text(self) -> str:
        """Inverse of ``parse``."""
        return ";".join([self.compute, ",".join(self.outs), self.precision])

    @staticmethod
    @lru_cache(maxsize=1024)
    def parse(text: str) -> Types:
        """Types of a text."""
        compute, outs, precision = text.split(";")
        return Types(compute, tuple(outs.split(",")), precision)

    def configured(self, precision: str | None) -> Types:
        """With the precision of the configuration where the call asks for none."""
        return replace(self, precision=precision) if precision is not None and self.precision == "default" else self


@dataclass(frozen=True)
class Prepared:
    """Everything about a call that does not depend on the values."""

    run: Runner
    shape: tuple[int, ...]
    route: str


def allocate(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Uninitialised tensor, or OutOfMemoryError that says how much was wanted."""
    try:
        if len(shape) == 2:  # extents one by one cost torch 1.3 us less than a tuple of them
            return torch.empty(shape[0], shape[1], dtype=dtype, device=device)
        return torch.empty(shape, dtype=dtype, device=device)
    except RuntimeError as error:
        size = math.prod(shape) * dtype.itemsize
        raise OutOfMemoryError(
            f"cannot allocate the result of shape {tuple(shape)} ({size / 2**30:.1f} GiB) on {device}; "
            "use smaller blocks, or a form that never stores it"
        ) from error


def execute(
    text: str, types: str, tensors: Tensors, numbers: Sequence[float], outs: Tensors | None = None
) -> list[torch.Tensor]:
    """Outputs of the program ``text``; ``outs`` are written in place when given."""
    if any(tensor.is_neg() for tensor in tensors):
        tensors = [tensor.resolve_neg() for tensor in tensors]
    prepared = prepare(text, types, tensors, outs)
    device = tensors[0].device
    if outs is None:
        outs = [allocate(prepared.shape, DTYPES[name], device) for name in Types.parse(types).outs]
    prepared.run(tensors, numbers, outs)
    _RAN.route = prepared.route
    return list(outs)


def last_route() -> str:
    """What this thread ran last."""
    return getattr(_RAN, "route", "")


def prepare(text: str, types: str, tensors: Tensors, outs: Tensors | None) -> Prepared:
    """Plan of a call, kept by shapes, strides and types."""
    settings = current()
    arrays = [*tensors, *(outs or ())]
    key = (
        text,
        types,
        settings.backend,
        settings.precision,
        tuple((t.shape, t.stride(), t.dtype, t.device, t.data_ptr() % 16) for t in arrays),
    )
    found = None if collecting() else _PREPARED.get(key)
    if found is None:
        found = _prepare(Program.parse(text), Types.parse(types).configured(settings.precision), tensors, outs)
        if not collecting():
            _PREPARED[key] = found
    return found


def forget() -> None:
    """Plan every call anew."""
    _PREPARED.clear()


def _prepare(program: Program, types: Types, tensors: Tensors, outs: Tensors | None) -> Prepared:
    nested = next((operand.name for operand in program.operands if operand.inner is not None), None)
    if nested is not None:
        raise BackendError(
            f"operand {nested!r} of {program.equation!r} is a program of its own, which no backend runs yet: "
            "evaluate it by a call of its own and pass the result"
        )
    geo = geometry(program, [tuple(t.shape) for t in tensors])
    shape = geo.out_shape(program.out)
    target = target_for(tensors[0].device)
    if 0 in shape:
        return Prepared(_no_work, shape, "nothing: the result is empty")
    if any(geo.sizes[axis] == 0 for axis in program.reduced):
        return Prepared(
            _reference_runner(program, types, geo, _stored_integer(types)), shape, "reference: an axis is empty"
        )
    product = recognise.matmul(program)
    if product is not None and types.compute in ("f32", "f64") and types.precision != "ieee":
        return Prepared(_matmul_runner(program, product, types), shape, "matmul")
    if target is None:
        return Prepared(_reference_runner(program, types, geo), shape, "reference")
    runner, description = _kernel_runner(program, types, geo, tensors, outs, target)
    return Prepared(runner, shape, description)


def _no_work(tensors: Tensors, numbers: Sequence[float], outs: Tensors) -> None:
    pass


def _stored_integer(types: Types) -> torch.dtype | None:
    """Integer type of the results, whose extremes are the smallest and largest of nothing, or None."""
    integers = [name for name in types.outs if name != "bool"] if types.compute in ("i32", "i64") else []
    return DTYPES[integers[0]] if integers else None


def _paired(program: Program, tensors: Tensors) -> dict[str, torch.Tensor]:
    """Array of every operand by name, the twin included."""
    named = {operand.name: tensor for operand, tensor in zip(program.tensors, tensors, strict=True)}
    return named | ({"x1": named["x0"]} if program.symmetric else {})


def _reference_runner(program: Program, types: Types, geo: Geometry, extremes: torch.dtype | None = None) -> Runner:
    def run(tensors: Tensors, numbers: Sequence[float], outs: Tensors) -> None:
        compute = DTYPES[types.compute]
        ns = torch_namespace(compute, tensors[0].device, extremes)
        arrays = {name: t if t.dtype == torch.bool else t.to(compute) for name, t in _paired(program, tensors).items()}
        for operand, number in zip(program.numbers, numbers, strict=True):
            arrays[operand.name] = ns.full((), number, "value")
        limit = current().chunk_bytes // (4 * compute.itemsize)
        for place, values in reference.run(program, arrays, geo.sizes, ns, limit):
            for out, value in zip(outs, values, strict=True):
                out[(..., *place)] = value

    return run


def finishing(program: Program) -> Program | None:
    """Elementwise program of the outputs from finished accumulators a0, a1, ...; None if they are the outputs.

    It takes an accumulator even where no output reads one: only these have every batch axis of the result.
    """
    count = len(program.reductions)
    if list(program.outputs) == [var(f"s{i}") for i in range(count)]:
        return None
    operands = [op for op in program.operands if set(op.axes) <= set(program.out)]
    saved = {f"s{i}": Operand(f"a{i}", program.out) for i in range(count)}
    outputs = substitute(program.outputs, {name: var(operand.name) for name, operand in saved.items()})
    last = elementwise([*operands, *saved.values()], program.out, outputs).pruned()
    if any(operand in last.operands for operand in saved.values()):
        return last
    return replace(last, operands=(*last.operands, saved["s0"]))


def _finish(
    program: Program, types: Types, tensors: Tensors, numbers: Sequence[float], finished: Tensors, outs: Tensors
) -> None:
    """Write the outputs from the finished accumulators."""
    last = finishing(program)
    if last is None:
        for out, value in zip(outs, finished, strict=True):
            out.copy_(value)
        return
    arrays = _paired(program, tensors) | {f"a{i}": value for i, value in enumerate(finished)}
    values = {operand.name: number for operand, number in zip(program.numbers, numbers, strict=True)}
    execute(
        last.text, types.text, [arrays[op.name] for op in last.tensors], [values[op.name] for op in last.numbers], outs
    )


def _product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    kind = left.device.type
    if not torch.is_autocast_enabled(kind):
        return left @ right
    with torch.autocast(kind, enabled=False):
        return left @ right


def _matmul_runner(program: Program, product: recognise.Matmul, types: Types) -> Runner:
    left_axes, right_axes = program.operand(product.left).axes, program.operand(product.right).axes
    axis = product.reduced
    rows, columns = left_axes.replace(axis, ""), right_axes.replace(axis, "")
    swap = program.out != rows + columns
    direct = finishing(program) is None

    def run(tensors: Tensors, numbers: Sequence[float], outs: Tensors) -> None:
        arrays = _paired(program, tensors)
        left, right = arrays[product.left], arrays[product.right]
        compute = DTYPES[types.compute]
        if not (direct and left.dtype == right.dtype == outs[0].dtype):
            left, right = left.to(compute), right.to(compute)
        left = aligned(left, left_axes, rows + axis)
        right = aligned(right, right_axes, axis + columns)
        left = left if rows else left.unsqueeze(-2)
        right = right if columns else right.unsqueeze(-1)
        result = _product(right.mT, left.mT) if swap else _product(left, right)
        if not (columns and rows):
            result = result.squeeze(-1 if rows else -2)
        if not program.out:
            result = result.squeeze(-1)
        _finish(program, types, tensors, numbers, [result.expand(outs[0].shape)], outs)

    return run


def _kernel_runner(
    program: Program, types: Types, geo: Geometry, tensors: Tensors, outs: Tensors | None, target: Target
) -> tuple[Runner, str]:
    places = _places(program)
    arrays = [tensors[place] for place in places]
    stored, parallel = [NAMES[t.dtype] for t in arrays], target.parallel(tensors[0].device)
    found = pullback(program)
    pulled = found if found and target.pulls(found, program, geo.sizes, types.compute) else None
    lowering = lower(program, geo.sizes, stored, types.outs, types.compute, parallel, pulled)
    rank = len(geo.batch)
    named = [operand for operand in program.operands if not operand.number]
    ports = [strided(op.axes, t.shape, t.stride(), rank) for op, t in zip(named, arrays, strict=True)]
    axes = program.out + lowering.partial
    shape = geo.out_shape(axes)
    if lowering.is_partial:
        shape = (lowering.splits, *shape)
    targets = outs if outs is not None and not lowering.is_partial else None
    strides = [t.stride() for t in targets] if targets else [_contiguous(shape)] * len(lowering.nest.outs)
    lead = 1 if lowering.is_partial else 0
    ports += [strided(axes, shape[lead:], stride[lead:], rank) for stride in strides]
    splits = [stride[0] if lead else 0 for stride in strides]
    calls = arguments(lowering, geo, ports, splits)
    written = targets if targets else []
    alignment = [t.data_ptr() % 16 or 16 for t in (*arrays, *written)]
    alignment += [16] * (len(ports) - len(alignment))
    nest = lowering.nest
    if types.precision == "half" or nest.pulled or recognise.squared_differences(nest) is not None:
        nest = replace(nest, precision=types.precision)
    launcher = target.prepare(nest, calls.integers, alignment, tensors[0].device)
    itemsizes = [t.element_size() for t in arrays] + [DTYPES[port.dtype].itemsize for port in lowering.nest.outs]

    start = launcher.run

    def run_once(tensors: Tensors, numbers: Sequence[float], outs: Tensors) -> None:
        given = tensors if in_order else [tensors[place] for place in places]
        start((*map(_address, given), *map(_address, outs)), [*map(float, numbers)])

    def run(tensors: Tensors, numbers: Sequence[float], outs: Tensors) -> None:
        written = outs
        if lowering.is_partial:
            written = [allocate(shape, DTYPES[port.dtype], outs[0].device) for port in lowering.nest.outs]
        pointers = [*(tensors[place].data_ptr() for place in places), *(t.data_ptr() for t in written)]
        values = [*map(float, numbers)]
        for offsets in calls.offsets:
            start([p + o * size for p, o, size in zip(pointers, offsets, itemsizes, strict=True)], values)
        if lowering.is_partial:
            _finish(program, types, tensors, numbers, _joined(program, types, lowering, written), outs)

    in_order = places == tuple(range(len(tensors)))
    once = len(calls.offsets) == 1 and not lowering.is_partial
    chosen, description = run_once if once else run, f"{target.name}: {launcher.description}"
    plan = squares_cpu.planned(program, nest, geo, types, tensors, outs) if target.name == "llvm" else None
    if plan is None:
        return chosen, description
    return squares_cpu.runner(plan, program, types, chosen, prepare), f"{plan}, else {description}"


def _places(program: Program) -> tuple[int, ...]:
    """Which of the tensors each operand is."""
    names = [operand.name for operand in program.tensors]
    named = [operand.name for operand in program.operands if not operand.number]
    return tuple(names.index("x0" if program.symmetric and name == "x1" else name) for name in named)


def _contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    strides = [1]
    for extent in reversed(shape[1:]):
        strides.append(strides[-1] * max(extent, 1))
    return tuple(reversed(strides)) if shape else ()


def _joined(program: Program, types: Types, lowering: Lowering, registers: Tensors) -> list[torch.Tensor]:
    """Finished accumulators from partial registers: joined over the partial axes, then over the splits."""
    ns = torch_namespace(DTYPES[types.compute], registers[0].device)
    finished: list[torch.Tensor] = []
    place = 0
    for reduction in program.reductions:
        state = list(registers[place : place + len(reduction.kinds)])
        place += len(reduction.kinds)
        for _ in lowering.partial:
            state = [register[..., 0] for register in reference.merge_axis(reduction, state, -1, ns)]
        state = [register[0] for register in reference.merge_axis(reduction, state, -state[0].dim(), ns)]
        env = {f"s{i}": register for i, register in enumerate(state)}
        finished += reference.evaluate([reduction.finish], env, ns)
    return finished
