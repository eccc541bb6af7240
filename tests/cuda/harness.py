"""Runs nests on a GPU with cuda.core alone, so that compute-sanitizer sees nothing but these kernels.

``python -m tests.cuda.harness [name ...]`` runs every case, or those whose name contains one of the words.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from itertools import repeat
from typing import Any

import numpy as np
from cuda.core import Device, LegacyPinnedMemoryResource

from kernmantle.backends.cuda.device import gpu
from kernmantle.backends.cuda.emit import ENTRY, emit, headers
from kernmantle.backends.cuda.gram_plan import CudaPlan, DeviceLimits, candidates, plan
from kernmantle.backends.cuda.launch import Kernel
from kernmantle.backends.cuda.nvrtc import Cubin, compile_source
from kernmantle.backends.cuda.pow_tables import table_power
from kernmantle.backends.cuda.squares_plan import PROMISE
from kernmantle.compiler.nest import Layout

from .log_products import log_cases, log_error
from .nests import NUMPY, S0, Case, cases, expected, op, value, widened
from .report import report, selected, within
from .squares import Given, error, squares_cases
from .squares import planned as planned_squares

_LIMITS = ("arch", "sm_count", "shared_per_block", "shared_per_sm", "registers_per_sm", "threads_per_sm")
_COMPILED: dict[str, Cubin] = {}
POWER_ERROR = 2e-6
PAIR_ROUNDINGS = 5
EPSILON = {"f16": 2.0**-11, "bf16": 2.0**-8, "f32": 2.0**-24, "f64": 2.0**-53}


def limits(index: int = 0) -> DeviceLimits:
    """Limits of a present GPU."""
    facts = asdict(gpu(index))
    return DeviceLimits(**{name: facts[name] for name in _LIMITS})


def planned(case: Case, device: DeviceLimits) -> CudaPlan:
    """Plan of a case whose arrays are all well aligned."""
    buffers = range(len(case.nest.buffers))
    facts = Layout(tuple(case.strides(i) for i in buffers), (16,) * len(buffers))
    names = [tile.name for tile in candidates(case.nest, case.extents(), device)]
    return plan(case.nest, case.extents(), device, facts, case.tile if case.tile in names else None)


def compiled(source: str, arch: str) -> Cubin:
    """Machine code of a source, which many cases share."""
    if source not in _COMPILED:
        _COMPILED[source] = compile_source(source, arch, headers(), "nest")
    return _COMPILED[source]


def compile_all(wanted: Sequence[Case], own: DeviceLimits) -> None:
    """Compile what cases need in several processes: NVRTC compiles one source at a time in each."""
    sources = list({emit(planned(case, own)): None for case in wanted})
    with ProcessPoolExecutor(os.cpu_count(), mp_context=multiprocessing.get_context("spawn")) as pool:
        made = pool.map(compile_source, sources, repeat(own.arch), repeat(headers()), repeat("nest"), chunksize=4)
        _COMPILED.update(zip(sources, made, strict=True))


class Machine:
    """One GPU with a stream of its own."""

    def __init__(self) -> None:
        self.device = Device(0)
        self.device.set_current()
        self.stream = self.device.create_stream()
        self.pinned = LegacyPinnedMemoryResource()

    def upload(self, array: np.ndarray[Any, Any], unit: int = 1) -> Any:
        """Copy of an array on the GPU, in memory of a multiple of ``unit`` bytes."""
        size = max(1, -(-array.nbytes // unit)) * unit
        host, there = self.pinned.allocate(size), self.device.allocate(size, stream=self.stream)
        ctypes.memmove(int(host.handle), array.ctypes.data, array.nbytes)
        there.copy_from(host, stream=self.stream)
        self.stream.sync()
        return there

    def download(self, buffer: Any, like: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Contents of a buffer in an array like the given."""
        host = self.pinned.allocate(max(1, like.nbytes))
        buffer.copy_to(host, stream=self.stream)
        self.stream.sync()
        found = np.empty_like(like)
        ctypes.memmove(found.ctypes.data, int(host.handle), like.nbytes)
        return found

    def run(self, case: Case) -> list[np.ndarray[Any, Any]]:
        """Outputs of a case, shaped as ``expected`` gives them."""
        chosen = planned(case, limits())
        if chosen.power is not None:
            chosen = chosen.of_degree(chosen.power.degree_for(case.numbers))
        cubin = compiled(emit(chosen), chosen.arch)
        kernel = Kernel(cubin.binary, ENTRY, chosen.threads, chosen.shared, case.name)
        arrays = case.arrays()
        buffers: list[Any] = []
        for place, array in enumerate(arrays):
            twin = place > 0 and arrays[place - 1] is array
            buffers.append(buffers[place - 1] if twin else self.upload(array))
        blank = [
            np.full(case.count(len(arrays) + i), 77, _stored(buffer.dtype)) for i, buffer in enumerate(case.nest.outs)
        ]
        buffers += [self.upload(array) for array in blank]
        integers = [case.extents()[role] for role in case.extents()]
        for place in range(len(buffers)):
            integers += case.strides(place)
        arguments = chosen.arguments([int(buffer.handle) for buffer in buffers], integers, case.numbers)
        kernel(0, int(self.stream.handle), chosen.blocks(case.extents(), limits()), arguments)
        found: list[np.ndarray[Any, Any]] = []
        for i, buffer in enumerate(case.nest.outs):
            flat = self.download(buffers[len(arrays) + i], blank[i])
            found.append(shaped(case, len(arrays) + i, widened(flat, buffer.dtype, case.nest.compute)))
        return found


def run_squares(machine: Machine, given: Given) -> np.ndarray[Any, Any]:
    """The output of a case, shaped as ``expected`` gives it."""
    case, arrays, own = given.case, given.arrays(), limits()
    chosen = planned_squares(case, own)
    buffers: list[Any] = []
    for place, array in enumerate(arrays):
        twin = place > 0 and arrays[place - 1] is array
        buffers.append(buffers[place - 1] if twin else machine.upload(array))
    blank = np.full(case.count(len(arrays)), 77, np.float16 if case.nest.outs[0].dtype == "f16" else np.float32)
    buffers.append(machine.upload(blank))
    scratch = machine.device.allocate(chosen.scratch.size, stream=machine.stream)
    integers = [*case.extents().values(), *(step for place in range(len(buffers)) for step in case.strides(place))]
    common = chosen.main.arguments([int(buffer.handle) for buffer in buffers], integers, case.numbers)
    handed = [int(scratch.handle) + offset for offset in chosen.scratch.offsets]
    for one, blocks, first in (
        (chosen.split, chosen.split_blocks, handed),
        (chosen.main, min(3, chosen.main.blocks(case.extents(), own)), handed),
        (chosen.direct, 3, handed[:1]),
    ):
        kernel = Kernel(compiled(emit(one), one.arch).binary, ENTRY, one.threads, one.shared, case.name)
        kernel(0, int(machine.stream.handle), blocks, (*first, *common))
    flat = machine.download(buffers[-1], blank)
    return shaped(case, len(arrays), widened(flat, case.nest.outs[0].dtype, case.nest.compute))


def _stored(dtype: str) -> Any:
    return np.uint16 if dtype == "bf16" else NUMPY[dtype]


def shaped(case: Case, place: int, flat: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A buffer's elements as (a, b, c, m, n, 1, splits)."""
    roles = case.roles(place)
    order = [role for role in "abcmnk" if role in roles]
    array = flat.reshape([case.length(place, role) for role in roles])
    array = array.transpose([roles.index(role) for role in order])
    return array.reshape([case.length(place, role) if role in roles else 1 for role in "abcmnlk"])


def joined(case: Case, found: Sequence[np.ndarray[Any, Any]]) -> tuple[Case, list[np.ndarray[Any, Any]]]:
    """The registers of all ranges merged in order, and the case with one range."""
    whole: list[np.ndarray[Any, Any]] = []
    place = 0
    for reduction in case.nest.reductions:
        mine = found[place : place + len(reduction.kinds)]
        place += len(mine)
        state = [register[..., :1] for register in mine]
        assert reduction.merge is not None
        for split in range(1, mine[0].shape[-1]):
            env = {f"s{i}": register for i, register in enumerate(state)}
            env |= {f"r{i}": register[..., split : split + 1] for i, register in enumerate(mine)}
            with np.errstate(all="ignore"):
                state = [value(node, env) for node in reduction.merge]
        whole += state
    return replace(case, sizes=case.sizes | {"splits": 1}), whole


def approximated(case: Case) -> np.ndarray[Any, Any] | float:
    """What the documented error of every term may add to a sum of them: terms that cancel keep theirs."""
    plain = case.nest.outputs == (S0,) and case.nest.reductions[0].name == "sum"
    paired = case.nest.precision == "half"
    if not plain or (table_power(case.nest) is None and not paired):
        return 0.0
    each = PAIR_ROUNDINGS * EPSILON[case.nest.operands[0].dtype] if paired else POWER_ERROR
    sizes = replace(case, nest=replace(case.nest, map=(op("abs", *case.nest.map),)))
    (total,) = expected(sizes, case.arrays())
    return each * np.where(np.isfinite(total), total, 0.0)


def disagreement(case: Case, found: Sequence[np.ndarray[Any, Any]]) -> float:
    """Largest error in units of what rounding may do; infinite where a NaN, an infinity or an integer differs."""
    if case.nest.partial:
        case, found = joined(case, found)
    worst, extents = 0.0, case.extents()
    depth = extents["k"] * extents["l"]
    for buffer, got, want in zip(case.nest.outs, found, expected(case, case.arrays()), strict=True):
        if got.shape != want.shape:
            return np.inf
        got, want = got.astype(np.float64), np.asarray(want, np.float64)
        if buffer.dtype not in EPSILON:
            worst = max(worst, 0.0 if np.array_equal(got, want) else np.inf)
            continue
        with np.errstate(over="ignore", invalid="ignore"):
            want = (
                np.where(np.abs(want) > np.finfo(np.float32).max, want * np.inf, want)
                if buffer.dtype == "f32"
                else want
            )
        plain = np.isfinite(want)
        if not np.array_equal(got[~plain], want[~plain], equal_nan=True) or not np.isfinite(got[plain]).all():
            return np.inf
        near = 0.0 if case.nest.partial else approximated(case)
        allowed = 2 * EPSILON[buffer.dtype] + (8 + depth) * EPSILON["f64" if case.nest.compute == "f64" else "f32"]
        size = np.maximum(np.abs(want[plain]), np.abs(want[plain]).max(initial=0.0) * 0.2 + 1e-30)
        bound = size * allowed + np.broadcast_to(near, want.shape)[plain]
        worst = max(worst, float((np.abs(got[plain] - want[plain]) / bound).max(initial=0.0)))
    return worst


def main(words: Sequence[str]) -> int:
    """Run and report; the number of cases that disagree."""
    machine = Machine()
    wrong = report(selected(cases(), words), lambda case: within(disagreement(case, machine.run(case))))
    wrong += report(
        selected(squares_cases(), words), lambda own: within(error(own, run_squares(machine, own)) / PROMISE)
    )
    return wrong + report(selected(log_cases(), words), lambda own: within(log_error(own, run_squares(machine, own))))


if __name__ == "__main__":
    sys.exit(min(1, main(sys.argv[1:])))
