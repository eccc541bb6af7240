"""The CPU as a target: LLVM kernels on as many threads as torch uses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from typing import Any

import numpy as np
import torch

from ..codegen.sources import sources
from ..config import current
from ..contraction.canonical import canonical
from ..contraction.cpu_plan import CpuPlan, plan, work
from ..contraction.nest import SIZES, Nest
from ..contraction.program import Program
from ..contraction.pullback import Pullback
from ..runtime import llvm
from ..runtime.cache import Built, Key, fingerprint
from ..runtime.lru import LRUCache
from .dump import dump
from .launcher import Job, Launcher, collecting, fetch, nothing

_LOADED: LRUCache[CpuPlan, llvm.LoadedKernel] = LRUCache(1024)


class CpuTarget:
    """LLVM kernels for this machine's vectors."""

    name = "llvm"

    def parallel(self, device: torch.device) -> int:
        """Pieces of work that keep the machine busy: a constant, so that results do not depend on its threads."""
        return 4

    def pulls(self, found: Pullback, program: Program, sizes: Mapping[str, int], compute: str) -> bool:
        """Where outputs share what the slope costs and columns fill a vector."""
        lanes = llvm.host().vector_bytes // (8 if compute == "f64" else 4)
        return sizes.get(found.outputs, 1) > 1 and sizes[found.columns] >= lanes and compute in ("f32", "f64")

    def prepare(self, nest: Nest, integers: np.ndarray, alignment: Sequence[int], device: torch.device) -> Launcher:
        """Compile the kernel or find it."""
        own = llvm.host()
        sizes: dict[str, int] = dict(zip(SIZES, integers.tolist(), strict=False))
        chosen = plan(nest, own.vector_bytes, own.vector_registers, sizes)
        kernel = load(chosen)
        if kernel is None:
            return Launcher(nothing, str(chosen))
        todo = work(chosen, sizes)
        packed = integers.tobytes()

        def run(pointers: Sequence[int], numbers: Sequence[float]) -> None:
            threads = current().threads or torch.get_num_threads()
            llvm.run(kernel, todo.items, todo.scratch_bytes, pointers, packed, numbers, threads, todo.grain)

        def run_alone(pointers: Sequence[int], numbers: Sequence[float]) -> None:
            llvm.run_alone(kernel, todo.items, todo.scratch_bytes, pointers, packed, numbers)

        return Launcher(run_alone if todo.items <= todo.grain else run, str(chosen))


def build(emitter: str, given: tuple[Any, ...]) -> Built:
    """Write a source and compile it for this machine."""
    source = emitted(emitter, given)
    return Built(llvm.compile_ir(source, llvm.host()), source=source)


def emitted(emitter: str, given: tuple[Any, ...]) -> str:
    """LLVM IR from ``emitter``, "module:function" of codegen, which is loaded for what the cache lacks only."""
    module, _, function = emitter.partition(":")
    return getattr(import_module(f"...codegen.{module}", __name__), function)(*given)


@lru_cache(maxsize=32)
def _digest(module: str) -> str:
    return fingerprint(sources(module))


def job_for(emitter: str, given: tuple[Any, ...], title: str) -> Job:
    """What compiling takes that which an emitter writes when it is given plans, texts and numbers.

    The key needs no source: that follows from what is given and from the emitter's module with all that it imports.
    """
    own = llvm.host()
    if current().dump_source is not None:
        dump(emitted(emitter, given), "ll")
    options, digest = (own.cpu, own.features), _digest(emitter.partition(":")[0])
    key = Key(own.triple, llvm.version(), canonical((emitter, *given)), digest, options, title)
    return Job(key, build, (emitter, given))


def job(chosen: CpuPlan) -> Job:
    """What compiling a plan takes."""
    return job_for("llvm:emit", (chosen,), str(chosen))


def load(chosen: CpuPlan) -> llvm.LoadedKernel | None:
    """The kernel of a plan, compiled if the cache does not have it; None if it was only noted."""
    found = None if collecting() else _LOADED.get(chosen)
    if found is None:
        binary = fetch(job(chosen))
        if binary is None:
            return None
        found = _LOADED.setdefault(chosen, llvm.load(binary))
    return found
