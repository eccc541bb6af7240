"""Runs nests through LLVM on numpy arrays, and the same nests as Python loops over scalars."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kernmantle.backends.cpu import emit as text
from kernmantle.backends.cpu import gram_plan
from kernmantle.backends.cpu import jit as runtime
from kernmantle.compiler.nest import ROLES, SIZES, Buffer, Nest, stride_slot
from kernmantle.ir.node import var
from kernmantle.ir.ops import evaluate

NUMPY = {
    "f16": np.float16, "f32": np.float32, "f64": np.float64, "i8": np.int8, "u8": np.uint8, "i16": np.int16,
    "i32": np.int32, "i64": np.int64, "bool": np.bool_, "bf16": np.uint16,
}  # fmt: skip
BATCH = "abc"


@dataclass(frozen=True)
class Kernel:
    """A compiled plan."""

    plan: gram_plan.CpuPlan
    loaded: runtime.LoadedKernel


def build(nest: Nest, vector_bytes: int | None = None, sizes: Mapping[str, int] | None = None) -> Kernel:
    host = runtime.host()
    size = vector_bytes or host.vector_bytes
    plan = gram_plan.plan(nest, size, host.vector_registers if size == host.vector_bytes else 16, sizes)
    return Kernel(plan, runtime.load(runtime.compile_ir(text.emit(plan), host)))


def integers(nest: Nest, arrays: Sequence[np.ndarray], sizes: Mapping[str, int]) -> np.ndarray:
    """Arguments for arrays whose dimensions are the batch roles, then those of their buffer ("s" first: splits)."""
    values = np.zeros(len(SIZES) + len(ROLES) * len(nest.buffers), np.int64)
    values[: len(SIZES)] = [sizes.get(role, 1) for role in SIZES]
    for place, (buffer, array) in enumerate(zip(nest.buffers, arrays, strict=True)):
        strides = [stride // array.itemsize for stride in array.strides]
        if nest.partial and buffer in nest.outs:
            values[stride_slot(place, "k")] = strides.pop(0)
        for role, stride in zip([*BATCH, *buffer.roles], strides, strict=True):
            values[stride_slot(place, role)] = stride
    return values


def run(
    kernel: Kernel, nest: Nest, arrays: Sequence[np.ndarray], sizes: Mapping[str, int], numbers: Sequence[float] = (),
    threads: int = 2, grain: int | None = None,
) -> None:  # fmt: skip
    """Compute the outputs, the last of the arrays, in place."""
    values = integers(nest, arrays, sizes)
    todo = gram_plan.work(kernel.plan, {role: sizes.get(role, 1) for role in SIZES})
    pointers = [array.__array_interface__["data"][0] for array in arrays]
    runtime.run(
        kernel.loaded, todo.items, todo.scratch_bytes, pointers, values, numbers, threads, grain or todo.grain
    )  # fmt: skip


def shape(buffer: Buffer, sizes: Mapping[str, int], shared: bool = False) -> tuple[int, ...]:
    batch = [1 if shared else sizes.get(role, 1) for role in BATCH]
    return (*batch, *(sizes.get(role, 1) for role in buffer.roles))


def outputs(nest: Nest, sizes: Mapping[str, int]) -> list[np.ndarray]:
    lead = (sizes.get("splits", 1),) if nest.partial else ()
    return [np.zeros((*lead, *shape(buffer, sizes)), NUMPY[buffer.dtype]) for buffer in nest.outs]


def broadcast(array: np.ndarray, buffer: Buffer, sizes: Mapping[str, int]) -> np.ndarray:
    """The array with stride 0 along batch axes that it shares."""
    return np.broadcast_to(array, shape(buffer, sizes))


def widened(array: np.ndarray, dtype: str) -> np.ndarray:
    """Values of an array; bfloat16 is held as its bits."""
    return (array.astype(np.uint32) << 16).view(np.float32) if dtype == "bf16" else array


def loops(
    nest: Nest, arrays: Sequence[np.ndarray], sizes: Mapping[str, int], numbers: Sequence[float] = ()
) -> list[np.ndarray]:
    """What the nest means, one scalar after the other in Python's double precision."""
    extent = {role: sizes.get(role, 1) for role in SIZES}
    given = {p.name: (p, widened(a, p.dtype)) for p, a in zip(nest.operands, arrays, strict=False)}
    constants = dict(zip(nest.numbers, numbers, strict=True))
    outer = "l" if any("l" in buffer.roles for buffer in nest.operands) else "k"
    results = [np.zeros(array.shape, object) for array in outputs(nest, sizes)]
    tiles = [[*BATCH, *buffer.roles] for buffer in nest.outs]
    spans = [range(extent[role]) for role in (*BATCH, "m", "n", "splits")]
    for a, b, c, m, n, s in itertools.product(*spans):
        at = {"a": a, "b": b, "c": c, "m": m, "n": n}
        spread = {role: range(extent[role]) for role in "kl"}
        if nest.partial:
            length, count = extent[outer], extent["splits"]
            spread[outer] = range(s * length // count, (s + 1) * length // count)
        registers = _registers(nest, given, constants, at, spread, extent["k"])
        values = _finished(nest, registers, given, constants, at)
        for result, roles, value in zip(results, tiles, values, strict=True):
            place = tuple(at[role] for role in roles)
            result[(s, *place) if nest.partial else place] = value
    return [np.array(result.tolist(), np.float64).reshape(result.shape) for result in results]


def _values(
    given: Mapping[str, tuple[Buffer, np.ndarray]], at: Mapping[str, int], constants: Mapping[str, float]
) -> dict:
    found = dict(constants)
    for name, (buffer, array) in given.items():
        if set(buffer.roles) <= at.keys():
            value = array[tuple(at[role] for role in (*BATCH, *buffer.roles))].item()
            found[name] = int(value) if isinstance(value, bool) else value
    return found


def _registers(nest, given, constants, at, spread, inner) -> list[list]:
    state = [list(reduction.init) for reduction in nest.reductions]
    for l, k in itertools.product(spread["l"], spread["k"]):
        known = _values(given, {**at, "k": k, "l": l}, constants)
        mapped = evaluate(nest.map, known)
        for q, reduction in enumerate(nest.reductions):
            own = {f"s{j}": value for j, value in enumerate(state[q])}
            state[q] = list(evaluate(reduction.step, {**known, **own, "t": mapped[q], "index": l * inner + k}))
    return state


def _finished(nest, state, given, constants, at) -> list:
    if nest.partial:
        return [register for registers in state for register in registers]
    known = _values(given, at, constants)
    for q, (reduction, registers) in enumerate(zip(nest.reductions, state, strict=True)):
        known[f"s{q}"] = evaluate([reduction.finish], {f"s{j}": value for j, value in enumerate(registers)})[0]
    return list(evaluate(nest.outputs, known))


def agree(got: np.ndarray, want: np.ndarray, tolerance: float) -> bool:
    """Equal where infinite or NaN, close relative to the largest value elsewhere."""
    got = np.asarray(got, np.float64)
    finite = np.isfinite(want)
    same = np.array_equal(got[~finite], want[~finite], equal_nan=True)
    scale = np.abs(want[finite]).max(initial=1.0)
    return bool(same and np.all(np.abs(got[finite] - want[finite]) <= tolerance * scale))


A, B = var("x0"), var("x1")
