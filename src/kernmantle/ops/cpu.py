"""The CPU as a target: LLVM kernels on as many threads as torch uses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from ..codegen import llvm as text
from ..config import current
from ..contraction.cpu_plan import CpuPlan, plan, work
from ..contraction.nest import SIZES, Nest
from ..contraction.pullback import Pullback
from ..runtime import llvm
from ..runtime.cache import Built, Key
from .dump import dump
from .launcher import Job, Launcher, collecting, fetch, nothing

_LOADED: dict[CpuPlan, llvm.LoadedKernel] = {}


class CpuTarget:
    """LLVM kernels for this machine's vectors."""

    name = "llvm"

    def parallel(self, device: torch.device) -> int:
        """Pieces of work that keep the machine busy: a constant, so that results do not depend on its threads."""
        return 4

    def pulls(self, found: Pullback, sizes: Mapping[str, int], compute: str, precision: str) -> bool:
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


def build(source: str) -> Built:
    """Compile a source for this machine."""
    return Built(llvm.compile_ir(source, llvm.host()))


def job_for(source: str, title: str) -> Job:
    """What compiling a source takes."""
    own = llvm.host()
    dump(source, "ll")
    key = Key(own.triple, llvm.version(), source, options=(own.cpu, own.features), name=title)
    return Job(key, build, (source,))


def job(chosen: CpuPlan) -> Job:
    """What compiling a plan takes."""
    return job_for(text.emit(chosen), str(chosen))


def load(chosen: CpuPlan) -> llvm.LoadedKernel | None:
    """The kernel of a plan, compiled if the cache does not have it; None if it was only noted."""
    found = None if collecting() else _LOADED.get(chosen)
    if found is None:
        binary = fetch(job(chosen))
        if binary is None:
            return None
        found = _LOADED[chosen] = llvm.load(binary)
    return found
