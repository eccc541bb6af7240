"""Runs a program on tensors: the vendor's matmul, a compiled kernel or the reference evaluator."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial

import torch

from ..backends.reference import evaluate
from ..compiler import patterns
from ..compiler.gradient_patterns import recognised_vjp
from ..compiler.lower import Lowering, lower, result_kind
from ..config import current
from ..errors import BackendError, OutOfMemoryError
from ..ir.node import substitute, var
from ..ir.program import Operand, Program, elementwise
from ..runtime.dispatch import bound
from . import cpu_logs, cpu_squares
from .call_key import program_key
from .dtypes import DTYPES, NAMES, compute_type, stored_type
from .info import RunInfo
from .layout import Calls, Geometry, aligned, arguments, contiguous, geometry, strided
from .namespaces import torch_namespace
from .targets import Target, target_for
from .torch_private import count_modes, current_gpu, empty_on_gpu, is_out_of_memory, takes_memory_directly

Tensors = Sequence[torch.Tensor]
PlainLayout = tuple[tuple[int, ...], tuple[int, ...]]
"""Extents and strides as plain tuples, as ``empty_on_gpu`` takes them."""
Runner = Callable[[Tensors, Sequence[float], Tensors], None]
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
        """Return the types of a text."""
        compute, outs, precision = text.split(";")
        return Types(compute, tuple(outs.split(",")), precision)

    def configured(self, precision: str | None) -> Types:
        """Return the types with the precision of the configuration if the call sets none."""
        return replace(self, precision=precision) if precision is not None and self.precision == "default" else self


def result_types(text: str, stored: tuple[str, ...], precision: str) -> str:
    """Return the types of a program on operands of these types: the widest arithmetic, results as the first operand."""
    program = Program.parse(text)
    outs = tuple(stored_type(result_kind(output, program), stored[0]) for output in program.outputs)
    return Types(compute_type(stored), outs, precision).text


@dataclass(frozen=True, eq=False)
class BoundProgram:
    """The bound call of a program on arrays of one layout; ``launch`` runs it, ``shape`` is that of each result.

    ``layouts`` are extents and strides of a result, empty for a single number; ``only`` is the type of the only result.
    """

    launch: Runner
    shape: tuple[int, ...]
    dtypes: tuple[torch.dtype, ...]
    device: torch.device
    route: str
    layouts: tuple[PlainLayout, ...] = field(init=False)
    only: torch.dtype | None = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "layouts", layouts_in_one_piece([self.shape]) if self.shape else ())
        object.__setattr__(self, "only", self.dtypes[0] if len(self.dtypes) == 1 else None)

    def __call__(self, tensors: Tensors, numbers: Sequence[float], outs: Tensors) -> None:
        """Write the results to ``outs``."""
        self.launch(tensors, numbers, outs)

    def results(self, tensors: Tensors, numbers: Sequence[float]) -> list[torch.Tensor]:
        """Return the results in new tensors."""
        like = tensors[0]
        if like.dtype is self.only:
            outs = allocate_each(like, self.layouts) if self.layouts else [allocate_as(like, ())]
        else:
            outs = [allocate(self.shape, dtype, self.device) for dtype in self.dtypes]
        self.launch(tensors, numbers, outs)
        return outs


def allocate_as(like: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """Return an uninitialised tensor of the type and on the device of another."""
    try:
        if like.is_cuda and takes_memory_directly(like.get_device()):
            return empty_on_gpu(*_in_one_piece(tuple(shape)), like.dtype)
        return like.new_empty(*shape) if shape else like.new_empty(())  # a third quicker than torch.empty
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise _no_memory(shape, like.dtype, like.device) from error
        raise


def allocate_each(like: torch.Tensor, layouts: Sequence[PlainLayout]) -> list[torch.Tensor]:
    """Return uninitialised tensors with axes, of the type and on the device of another."""
    try:
        # What takes_memory_directly asks, without calling it, as each step of a layer comes here.
        if like.is_cuda and empty_on_gpu is not None and current_gpu() == like.get_device() and not count_modes():
            take, dtype = empty_on_gpu, like.dtype
            return [take(shape, strides, dtype) for shape, strides in layouts]
        if len(layouts) == 1:
            return [like.new_empty_strided(*layouts[0])]
        return [like.new_empty_strided(shape, strides) for shape, strides in layouts]
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise _no_memory(layouts[0][0], like.dtype, like.device) from error
        raise


def layouts_in_one_piece(shapes: Iterable[Sequence[int]]) -> tuple[PlainLayout, ...]:
    """Return the layouts of contiguous tensors of these shapes, as ``allocate_each`` takes them."""
    return tuple([_in_one_piece(tuple(shape)) for shape in shapes])


@lru_cache(maxsize=4096)
def _in_one_piece(shape: tuple[int, ...]) -> PlainLayout:
    """Return the extents and strides of a tensor that lies in one piece, as plain tuples of numbers."""
    like = torch.empty(shape, device="meta")
    return tuple(like.shape), like.stride()


def allocate(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return an uninitialised tensor, or raise OutOfMemoryError that says how many bytes were requested."""
    try:
        if device.type == "cuda" and takes_memory_directly(device.index):
            return empty_on_gpu(*_in_one_piece(tuple(shape)), dtype)
        if shape:  # extents one by one cost torch 0.5 to 1.3 us less than a tuple of them
            return torch.empty(*shape, dtype=dtype, device=device)
        return torch.empty((), dtype=dtype, device=device)
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise _no_memory(shape, dtype, device) from error
        raise


def _no_memory(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> OutOfMemoryError:
    """Return the error for a result there is no memory for."""
    size = math.prod(shape) * dtype.itemsize
    return OutOfMemoryError(
        f"cannot allocate memory for the result of shape {tuple(shape)} ({size / 2**30:.1f} GiB) on {device}; "
        "use smaller blocks, or a form that never stores it"
    )


def execute(
    text: str, types: str, tensors: Tensors, numbers: Sequence[float], outs: Tensors | None = None,
    info: RunInfo | None = None,
) -> list[torch.Tensor]:  # fmt: skip
    """Return the outputs of the program ``text``, written to ``outs`` if given; ``info`` takes the route."""
    if any(tensor.is_neg() for tensor in tensors):
        tensors = [tensor.resolve_neg() for tensor in tensors]
    program = prepare(text, types, tensors, outs)
    if info is not None:
        info.route = program.route
    if outs is None:
        return program.results(tensors, numbers)
    program(tensors, numbers, outs)
    return list(outs)


def prepare(text: str, types: str, tensors: Tensors, outs: Tensors | None = None) -> BoundProgram:
    """Return the bound call of a program on such tensors, with results of its own or in such ``outs``."""
    key = program_key(("program", text), (types,), (*tensors, *(outs or ())))
    return bound(key, lambda: _bind(Program.parse(text), Types.parse(types), tensors, outs))


def _bind(program: Program, types: Types, tensors: Tensors, outs: Tensors | None) -> BoundProgram:
    types = types.configured(current().precision)
    geo = geometry(program, [tuple(t.shape) for t in tensors])
    launch, route = planned(program, types, geo, tensors, outs, target_for(tensors[0].device))
    dtypes = tuple(DTYPES[name] for name in types.outs)
    return BoundProgram(launch, geo.out_shape(program.out), dtypes, tensors[0].device, route)


def is_matmul(program: Program, types: Types) -> patterns.Matmul | None:
    """Return the product of matrices that a program is and that the vendor's library computes, or None."""
    exact = types.compute not in ("f32", "f64") or types.precision == "ieee"
    return None if exact else patterns.matmul(program)


def planned(
    program: Program, types: Types, geo: Geometry, tensors: Tensors, outs: Tensors | None, target: Target | None
) -> tuple[Runner, str]:
    """Return what runs a program on such tensors, by the kernels of ``target``, and its description."""
    nested = next((operand.name for operand in program.operands if operand.inner is not None), None)
    if nested is not None:
        raise BackendError(
            f"operand {nested!r} of {program.equation!r} is a program of its own, which no backend runs yet: "
            "evaluate it by a call of its own and pass the result"
        )
    if 0 in geo.out_shape(program.out):
        return no_work, "nothing: the result is empty"
    if any(geo.sizes[axis] == 0 for axis in program.reduced):
        return _reference_runner(program, types, geo, _stored_integer(types)), "reference: an axis is empty"
    product = is_matmul(program, types)
    if product is not None:
        return _matmul_runner(program, product, types), "matmul"
    if target is None:
        return _reference_runner(program, types, geo), "reference"
    return _kernel(program, types, geo, tensors, outs, target)


def no_work(tensors: Tensors, numbers: Sequence[float], outs: Tensors) -> None:
    """Run nothing."""


def _stored_integer(types: Types) -> torch.dtype | None:
    """Return the integer type of the results, whose extremes are the identities of max and min; None for others."""
    integers = [name for name in types.outs if name != "bool"] if types.compute in ("i32", "i64") else []
    return DTYPES[integers[0]] if integers else None


def named_arrays(program: Program, tensors: Tensors) -> dict[str, torch.Tensor]:
    """Return the array of every operand by name, the alias included."""
    named = {operand.name: tensor for operand, tensor in zip(program.tensors, tensors, strict=True)}
    return named | ({"x1": named["x0"]} if program.symmetric else {})


def computed_arrays(program: Program, tensors: Tensors, compute: torch.dtype) -> dict[str, torch.Tensor]:
    """Return the array of every operand in the type of the arithmetic; truth values stay."""
    arrays = named_arrays(program, tensors)
    return {name: array if array.dtype == torch.bool else array.to(compute) for name, array in arrays.items()}


def _reference_runner(program: Program, types: Types, geo: Geometry, extremes: torch.dtype | None = None) -> Runner:
    def run(tensors: Tensors, numbers: Sequence[float], outs: Tensors) -> None:
        compute = DTYPES[types.compute]
        ns = torch_namespace(compute, tensors[0].device, extremes)
        arrays = computed_arrays(program, tensors, compute)
        for operand, number in zip(program.numbers, numbers, strict=True):
            arrays[operand.name] = ns.full((), number, "value")
        limit = current().chunk_bytes // (4 * compute.itemsize)
        for index, values in evaluate.run(program, arrays, geo.sizes, ns, limit):
            for out, value in zip(outs, values, strict=True):
                out[(..., *index)] = value

    return run


def finishing(program: Program) -> Program | None:
    """Return the elementwise program of finished accumulators a0, a1, ... to the outputs; None if these are the same.

    It takes an accumulator even if no output reads one, since only accumulators have every batch axis of the result.
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
    arrays = named_arrays(program, tensors) | {f"a{i}": value for i, value in enumerate(finished)}
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


def _matmul_runner(program: Program, product: patterns.Matmul, types: Types) -> Runner:
    left_axes, right_axes = program.operand(product.left).axes, program.operand(product.right).axes
    axis = product.reduced
    rows, columns = left_axes.replace(axis, ""), right_axes.replace(axis, "")
    swap = program.out != rows + columns
    direct = finishing(program) is None

    def run(tensors: Tensors, numbers: Sequence[float], outs: Tensors) -> None:
        arrays = named_arrays(program, tensors)
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


@dataclass(frozen=True, eq=False)
class KernelLaunch:
    """One launch of a kernel whose buffers are some of the tensors, then the results."""

    start: Callable[[Sequence[int], tuple[float, ...]], None]
    buffers: tuple[int, ...] | None

    def __call__(self, tensors: Tensors, numbers: Sequence[float], outs: Tensors) -> None:
        """Launch; if ``buffers`` is None, the kernel takes the tensors in their order."""
        arrays = tensors if self.buffers is None else [tensors[buffer] for buffer in self.buffers]
        self.start((*map(_address, arrays), *map(_address, outs)), tuple(map(float, numbers)) if numbers else ())


@dataclass(frozen=True, eq=False)
class PartialLaunch:
    """A launch for each offset of the batch axes; partial registers are then joined and finished."""

    start: Callable[[Sequence[int], tuple[float, ...]], None]
    buffers: tuple[int, ...]
    calls: Calls
    itemsizes: tuple[int, ...]
    program: Program
    types: Types
    lowering: Lowering
    shape: tuple[int, ...]

    def __call__(self, tensors: Tensors, numbers: Sequence[float], outs: Tensors) -> None:
        """Start all of them, and write the results of the joined registers."""
        written, lowering = outs, self.lowering
        if lowering.is_partial:
            written = [allocate(self.shape, DTYPES[buffer.dtype], outs[0].device) for buffer in lowering.nest.outs]
        pointers = [*(tensors[buffer].data_ptr() for buffer in self.buffers), *(t.data_ptr() for t in written)]
        values = tuple(map(float, numbers))
        for offsets in self.calls.offsets:
            self.start([p + o * size for p, o, size in zip(pointers, offsets, self.itemsizes, strict=True)], values)
        if lowering.is_partial:
            finished = _joined(self.program, self.types, lowering, written)
            _finish(self.program, self.types, tensors, numbers, finished, outs)


def _kernel(
    program: Program, types: Types, geo: Geometry, tensors: Tensors, outs: Tensors | None, target: Target
) -> tuple[Runner, str]:
    order = _operand_order(program)
    arrays = [tensors[index] for index in order]
    stored, parallel = [NAMES[t.dtype] for t in arrays], target.parallel(tensors[0].device)
    found = recognised_vjp(program)
    vjp = found if found and target.takes_vjp(found, program, geo.sizes, types.compute) else None
    lowering = lower(program, geo.sizes, stored, types.outs, types.compute, parallel, vjp)
    rank = len(geo.batch)
    named = [operand for operand in program.operands if not operand.number]
    buffers = [strided(op.axes, t.shape, t.stride(), rank) for op, t in zip(named, arrays, strict=True)]
    axes = program.out + lowering.partial
    shape = geo.out_shape(axes)
    if lowering.is_partial:
        shape = (lowering.splits, *shape)
    targets = outs if outs is not None and not lowering.is_partial else None
    strides = [t.stride() for t in targets] if targets else [contiguous(shape)] * len(lowering.nest.outs)
    lead = 1 if lowering.is_partial else 0
    buffers += [strided(axes, shape[lead:], stride[lead:], rank) for stride in strides]
    splits = [stride[0] if lead else 0 for stride in strides]
    calls = arguments(lowering, geo, buffers, splits)
    alignment = [t.data_ptr() % 16 or 16 for t in (*arrays, *(targets or ()))]
    alignment += [16] * (len(buffers) - len(alignment))
    nest = lowering.nest
    if types.precision == "half" or nest.vjp or patterns.is_by_products(nest):
        nest = replace(nest, precision=types.precision)
    launcher = target.prepare(nest, calls.integers, alignment, tensors[0].device)
    launch: Runner
    if len(calls.offsets) == 1 and not lowering.is_partial:
        launch = KernelLaunch(launcher.run, None if order == tuple(range(len(tensors))) else order)
    else:
        sizes = (*(t.element_size() for t in arrays), *(DTYPES[buffer.dtype].itemsize for buffer in lowering.nest.outs))
        launch = PartialLaunch(launcher.run, order, calls, sizes, program, types, lowering, shape)
    route = f"{target.name}: {launcher.description}"
    if target.name != "llvm":
        return launch, route
    return _by_products(program, replace(lowering, nest=nest), geo, types, tensors, outs, launch, route)


def _by_products(
    program: Program, lowering: Lowering, geo: Geometry, types: Types, tensors: Tensors, outs: Tensors | None,
    launch: Runner, route: str,
) -> tuple[Runner, str]:  # fmt: skip
    """Return the runner by the vendor on the CPU if that is as exact, else ``launch``, and its route."""
    logs = cpu_logs.planned(lowering, geo, types)
    if logs is not None:
        finish = partial(_finish, program, types)
        return cpu_logs.runner(logs, program, lowering, types, launch, finish), f"logarithms of matmul, else {route}"
    plan = cpu_squares.planned(program, lowering.nest, geo, types, tensors, outs)
    if plan is None:
        return launch, route
    return cpu_squares.runner(plan, program, types, launch, prepare), f"{plan}, else {route}"


def _operand_order(program: Program) -> tuple[int, ...]:
    """Return which of the tensors each operand is."""
    names = [operand.name for operand in program.tensors]
    named = [operand.name for operand in program.operands if not operand.number]
    return tuple(names.index("x0" if program.symmetric and name == "x1" else name) for name in named)


def _joined(program: Program, types: Types, lowering: Lowering, registers: Tensors) -> list[torch.Tensor]:
    """Finished accumulators from partial registers: joined over the partial axes, then over the splits."""
    ns = torch_namespace(DTYPES[types.compute], registers[0].device)
    finished: list[torch.Tensor] = []
    start = 0
    for reduction in program.reductions:
        state = list(registers[start : start + len(reduction.kinds)])
        start += len(reduction.kinds)
        for _ in lowering.partial:
            state = [register[..., 0] for register in evaluate.merge_axis(reduction, state, -1, ns)]
        state = [register[0] for register in evaluate.merge_axis(reduction, state, -state[0].dim(), ns)]
        env = {f"s{i}": register for i, register in enumerate(state)}
        finished += evaluate.evaluate([reduction.finish], env, ns)
    return finished
