"""The CPU as a target: LLVM kernels on as many threads as torch uses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from struct import Struct
from typing import Any

import numpy as np
import torch

from ..backends.cpu import jit
from ..backends.cpu.gram_plan import CpuPlan, Work, plan, work
from ..backends.cpu.threads import SCRATCH
from ..compiler.canonical import canonical
from ..compiler.gradient_patterns import Vjp
from ..compiler.nest import BYTES, Nest, size_slot, sizes_of, stride_slot
from ..config import current
from ..ir.program import Program
from ..runtime.cache import Built, Key, fingerprint
from ..runtime.dump import dump
from ..runtime.kernel_store import Job, loaded
from ..runtime.launcher import Launcher, nothing
from ..runtime.sources import sources

_LONGEST = 1 << 33
"""Operations of a thread between two checks for Ctrl-C: 0.1 to 0.4 s at the 2e10 to 9e10 operations a second of a core
with 512-bit vectors (maps from a difference to a power)."""


class CpuTarget:
    """LLVM kernels for this machine's vectors."""

    name = "llvm"

    def parallel(self, device: torch.device) -> int:
        """Pieces of work for all cores: a constant, so that results do not depend on the number of threads."""
        return 4

    def takes_vjp(self, found: Vjp, program: Program, sizes: Mapping[str, int], compute: str) -> bool:
        """Return whether several outputs share the cost of the slope and columns fill a vector."""
        lanes = jit.host().vector_bytes // (8 if compute == "f64" else 4)
        return sizes.get(found.outputs, 1) > 1 and sizes[found.columns] >= lanes and compute in ("f32", "f64")

    def prepare(self, nest: Nest, integers: np.ndarray, alignment: Sequence[int], device: torch.device) -> Launcher:
        """Return the launcher of a kernel, compiled if the cache does not have it."""
        own = jit.host()
        sizes = sizes_of(integers.tolist())
        chosen = plan(nest, own.vector_bytes, own.vector_registers, sizes)
        kernel = load(chosen)
        if kernel is None:
            return Launcher(nothing, str(chosen))
        todo = work(chosen, sizes)
        long = min(todo.items, jit.SPLIT_ITEMS) * todo.cost > _LONGEST
        if long and not chosen.vjp and not chosen.symmetric:
            return Launcher(PiecedLaunch(kernel, chosen, todo, integers), str(chosen))
        return Launcher(launch(kernel, todo, integers, len(nest.buffers), len(nest.numbers)), str(chosen))


class SharedLaunch:
    """A kernel with its extents and strides, on as many threads as the configuration allows."""

    __slots__ = ("_integers", "_kernel", "_work")

    def __init__(self, kernel: jit.LoadedKernel, todo: Work, integers: bytes) -> None:
        self._kernel, self._work, self._integers = kernel, todo, integers

    def __call__(self, pointers: Sequence[int], numbers: Sequence[float]) -> None:
        """Run it."""
        threads, own = current().threads or torch.get_num_threads(), self._work
        jit.run(self._kernel, own.items, own.scratch_bytes, pointers, self._integers, numbers, threads, own.grain)


class AloneLaunch:
    """A kernel with its extents and strides, on the calling thread: there is no work for others."""

    __slots__ = ("_entry", "_integers", "_items", "_kernel", "_pack_numbers", "_pack_pointers", "_scratch_bytes")

    def __init__(self, kernel: jit.LoadedKernel, todo: Work, integers: bytes, buffers: int, numbers: int) -> None:
        self._kernel, self._entry, self._integers = kernel, kernel.entry, integers
        self._items, self._scratch_bytes = todo.items, todo.scratch_bytes
        self._pack_pointers, self._pack_numbers = Struct(f"{buffers}Q").pack, Struct(f"{numbers}d").pack

    def __call__(self, pointers: Sequence[int], numbers: Sequence[float]) -> None:
        """Run it."""
        scratch = SCRATCH.take(self._scratch_bytes)
        addresses, values = self._pack_pointers(*pointers), self._pack_numbers(*numbers)
        self._entry(addresses, self._integers, values, 0, self._items, scratch)


class PiecedLaunch:
    """A kernel of few long items, in ranges of columns between which the interpreter checks for Ctrl-C."""

    __slots__ = ("_integers", "_kernel", "_plan", "_work")

    def __init__(self, kernel: jit.LoadedKernel, chosen: CpuPlan, todo: Work, integers: np.ndarray) -> None:
        self._kernel, self._plan, self._work, self._integers = kernel, chosen, todo, integers.copy()

    def __call__(self, pointers: Sequence[int], numbers: Sequence[float]) -> None:
        """Run it."""
        threads, own = current().threads or torch.get_num_threads(), self._work
        for offsets, extents in _column_pieces(self._plan, own, self._integers, threads):
            moved = [pointer + offset for pointer, offset in zip(pointers, offsets, strict=True)]
            jit.run(self._kernel, own.items, own.scratch_bytes, moved, extents, numbers, threads, own.grain)


def launch(
    kernel: jit.LoadedKernel, todo: Work, integers: np.ndarray, buffers: int, numbers: int
) -> SharedLaunch | AloneLaunch:
    """Return what launches a kernel on so many buffers and numbers, with these extents and strides."""
    if todo.items <= todo.grain:
        return AloneLaunch(kernel, todo, integers.tobytes(), buffers, numbers)
    return SharedLaunch(kernel, todo, integers.tobytes())


def _column_pieces(
    chosen: CpuPlan, todo: Work, integers: np.ndarray, threads: int
) -> Iterator[tuple[list[int], bytes]]:
    """Yield the offsets of the buffers, in bytes, and the integers of consecutive ranges of columns.

    A thread finishes its items of one range in a fraction of a second, and the interpreter checks for Ctrl-C between
    ranges; with many items, it checks between these.
    """
    role, buffers = chosen.actual("n"), chosen.nest.buffers
    columns = int(integers[size_slot(role)])
    rounds = -(-todo.items // threads) if todo.items < jit.SPLIT_ITEMS * threads else 1
    step = max(columns * _LONGEST // (todo.cost * rounds) // chosen.columns, 1) * chosen.columns
    strides = [int(integers[stride_slot(index, role)]) * BYTES[buffer.dtype] for index, buffer in enumerate(buffers)]
    for start in range(0, columns, step):
        piece = integers.copy()
        piece[size_slot(role)] = min(step, columns - start)
        yield [start * stride for stride in strides], piece.tobytes()


def build(emitter: str, arguments: tuple[Any, ...]) -> Built:
    """Write a source and compile it for this machine."""
    source = emitted(emitter, arguments)
    return Built(jit.compile_ir(source, jit.host()), source=source)


def emitted(emitter: str, arguments: tuple[Any, ...]) -> str:
    """Return LLVM IR from ``emitter``, "module:function", whose module is loaded on a miss of the cache only."""
    module, _, function = emitter.partition(":")
    return getattr(import_module(f"...{module}", __name__), function)(*arguments)


@lru_cache(maxsize=32)
def _digest(module: str) -> str:
    return fingerprint(sources(module))


def job_for(emitter: str, arguments: tuple[Any, ...], title: str, expression: str = "") -> Job:
    """Return the job that compiles the text that an emitter writes for these plans, texts and numbers.

    The key needs no source, which depends on the arguments and on the emitter's module with all that it imports.
    """
    own = jit.host()
    if current().dump_source is not None:
        dump(emitted(emitter, arguments), "ll")
    options, digest = (own.cpu, own.features), _digest(emitter.partition(":")[0])
    name = f"{expression}: {title}" if expression else title
    key = Key(own.triple, jit.version(), canonical((emitter, *arguments)), digest, options, name)
    return Job(key, build, (emitter, arguments))


def job(chosen: CpuPlan) -> Job:
    """Return the job that compiles a plan."""
    return job_for("backends.cpu.emit:emit", (chosen,), str(chosen), chosen.nest.expression)


def load(chosen: CpuPlan) -> jit.LoadedKernel | None:
    """Return the kernel of a plan, compiled if the cache does not have it; None if it was only collected."""
    return loaded(chosen, lambda: [job(chosen)], jit.load)


TARGET = CpuTarget
