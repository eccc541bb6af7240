"""Contractions on the GPU: one CUDA kernel, three of squared differences, or those of a VJP one after another."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache, partial

import numpy as np
import torch

from ..backends.cuda import emit, vjp_emit, vjp_plan
from ..backends.cuda.device import core, gpu
from ..backends.cuda.gram_plan import Argument, CudaPlan, plan
from ..backends.cuda.launch import Kernel
from ..backends.cuda.squares_plan import SquaresPlan, squares_plan
from ..backends.cuda.tiles import DeviceLimits
from ..backends.cuda.vjp_plan import VjpPlan, plan_vjp, schedule, workspace
from ..compiler.gradient_patterns import Vjp
from ..compiler.nest import Layout, Nest, sizes_and_layout
from ..ir.program import Program
from ..runtime.kernel_store import Job, loaded, loaded_each
from ..runtime.launcher import Launcher, nothing
from . import tuned_tiles
from .cuda import PRODUCTS_NEED, Numbers, index_of, job_for, limits, numbered, scratch, start

_AROUND_BLOCKS = 8  # blocks a multiprocessor


class CudaTarget:
    """CUDA kernels for NVIDIA GPUs from sm_80 on."""

    name = "cuda"

    def __init__(self) -> None:
        core()

    def parallel(self, device: torch.device) -> int:
        """Return the blocks that keep a device busy."""
        return limits(index_of(device)).sm_count

    def takes_vjp(self, found: Vjp, program: Program, sizes: Mapping[str, int], compute: str) -> bool:
        """Return whether the VJP is large enough for several kernels."""
        return vjp_plan.takes_vjp(found, program, sizes, compute)

    def prepare(self, nest: Nest, integers: np.ndarray, alignment: Sequence[int], device: torch.device) -> Launcher:
        """Compile the kernel or find it."""
        index = index_of(device)
        own = limits(index)
        values = integers.tolist()
        sizes, layout = sizes_and_layout(values, alignment)
        vjp = _vjp(nest, sizes, values, own, layout, index)
        if vjp is not None:
            return vjp

        def made(tile: str | None) -> Launcher:
            products = tile is None or tile in tuned_tiles.PRODUCTS
            squares = squares_plan(nest, sizes, own, layout, tile) if products else None
            if squares is not None:
                return _products(squares, values, sizes, index)
            return _single(plan(nest, sizes, own, layout, tile), values, sizes, index)

        return tuned_tiles.launcher(nest, sizes, own, layout, gpu(index).name, made)


def _single(chosen: CudaPlan, values: Sequence[int], sizes: Mapping[str, int], index: int) -> Launcher:
    """Return one kernel."""
    (kernel,) = load(chosen)
    if kernel is None:
        return Launcher(nothing, str(chosen))
    blocks = chosen.blocks(sizes, limits(index))
    fixed = chosen.fixed(values)

    @lru_cache(maxsize=64)
    def tabled(numbers: Numbers) -> tuple[Kernel, tuple[Argument, ...]]:
        """Return the kernel of the degree that the power takes, and its arguments behind the pointers."""
        own = chosen if chosen.power is None else chosen.of_degree(chosen.power.degree_for(numbers))
        (found,) = load(own)
        assert found is not None
        return found, (*fixed, *numbers, *own.trailing(numbers))

    def plain(numbers: Numbers) -> tuple[Kernel, tuple[Argument, ...]]:
        return kernel, (*fixed, *numbers)

    return Launcher(numbered(index, blocks, plain if chosen.power is None else tabled), str(chosen))


def _products(chosen: SquaresPlan, values: Sequence[int], sizes: Mapping[str, int], index: int) -> Launcher:
    """Return the three kernels of squared differences, one after another."""
    split, main, direct = load(chosen.split, chosen.main, chosen.direct)
    if split is None or main is None or direct is None:
        return Launcher(nothing, str(chosen))
    fixed, own, device = chosen.main.fixed(values), limits(index), torch.device("cuda", index)
    main_blocks, direct_blocks = chosen.main.blocks(sizes, own), chosen.direct.blocks(sizes, own)
    offsets, size = chosen.scratch.offsets, chosen.scratch.size

    def run(pointers: Sequence[int], numbers: Sequence[float]) -> None:
        memory = scratch(size, device, PRODUCTS_NEED, 'precision="ieee" takes differences and needs none')
        base = memory.data_ptr()
        handed = [base + offset for offset in offsets]
        arguments = (*pointers, *fixed, *numbers)
        start(split, index, chosen.split_blocks, (*handed, *arguments))
        start(main, index, main_blocks, (*handed, *arguments))
        start(direct, index, direct_blocks, (base, *arguments))

    return Launcher(run, str(chosen))


def _vjp(
    nest: Nest, sizes: Mapping[str, int], integers: Sequence[int], own: DeviceLimits, layout: Layout, index: int
) -> Launcher | None:
    """Return the kernels of a nest that is a VJP, one after another; None for others."""
    quick = plan_vjp(nest, sizes, own, layout)
    if quick is None:
        return None
    prepared = partial(_prepared, sizes, integers, own, layout, index)
    first = prepared(quick)
    if quick.slope.kind != "powers":
        return Launcher(first or nothing, str(quick))
    plain = plan_vjp(nest, sizes, own, layout, "plain")
    assert plain is not None
    if first is None:
        prepared(plain)
        return Launcher(nothing, str(quick))
    fits, last = lru_cache(maxsize=64)(quick.fits), cache(partial(prepared, plain))

    def run(pointers: Sequence[int], numbers: tuple[float, ...]) -> None:
        (first if fits(numbers) else last() or nothing)(pointers, numbers)

    return Launcher(run, str(quick))


def _kernels(plan: VjpPlan) -> dict[str, Kernel] | None:
    """Return the kernels by name, compiled if the cache does not have them; None if they were only collected."""
    main, *others = plan.kernels

    def load(own: bytes, rest: bytes) -> dict[str, Kernel]:
        dynamic = {main: plan.tile.shared(plan.slope.kind)}
        return {
            name: Kernel(
                own if name == main else rest, vjp_emit.entry_name(name), vjp_emit.threads_of(plan, name),
                dynamic.get(name, 0), str(plan),
            )
            for name in plan.kernels
        }  # fmt: skip

    return loaded(
        plan, lambda: [job_for(vjp_emit.emit(plan, names), plan.arch, str(plan)) for names in ([main], others)], load
    )


def _prepared(
    sizes: Mapping[str, int], integers: Sequence[int], own: DeviceLimits, layout: Layout, index: int, plan: VjpPlan
) -> Callable[[Sequence[int], tuple[float, ...]], None] | None:
    kernels = _kernels(plan)
    if kernels is None:
        return None
    chosen = schedule(plan, sizes, own)
    where, scalars = workspace(plan, sizes, layout, chosen), vjp_plan.fixed(plan, integers)
    device, around = torch.device("cuda", index), _AROUND_BLOCKS * own.sm_count
    powers = lru_cache(maxsize=64)(plan.power_arguments)
    rest = chosen.tiles - chosen.whole

    def run(pointers: Sequence[int], numbers: tuple[float, ...]) -> None:
        memory = scratch(where.size, device, "a gradient (VJP) needs", "use fewer rows at a time")
        memory[: where.zeroed].zero_()
        base = memory.data_ptr()
        handed = [base + offset for offset in where.offsets]
        arguments = (
            *pointers, *scalars, *numbers, *powers(numbers), *handed, chosen.whole, chosen.splits, chosen.share
        )  # fmt: skip
        for name in plan.passes:
            start(kernels[name], index, around, arguments)
        start(kernels["main"], index, chosen.blocks, arguments)
        if chosen.splits > 1:
            start(kernels["reduce_splits"], index, rest, arguments)
        if plan.mends:
            start(kernels["fix_non_finite"], index, min(chosen.tiles, around), arguments)

    return run


def job(chosen: CudaPlan) -> Job:
    """Return what compiling a plan takes."""
    return job_for(emit.emit(chosen), chosen.arch, str(chosen), not chosen.nest.reproducible, chosen.nest.expression)


def load(*plans: CudaPlan) -> list[Kernel | None]:
    """Return the kernels of plans, compiled if the cache does not have them; None if they were only collected."""
    return loaded_each(plans, job, _kernel)


def _kernel(chosen: CudaPlan, binary: bytes) -> Kernel:
    return Kernel(binary, emit.ENTRY, chosen.threads, chosen.shared, title=str(chosen))


TARGET = CudaTarget
