"""VJPs on the GPU: the kernels of a plan one after another, and their workspace."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache, partial

import torch

from ..backends.cuda import vjp_emit as text
from ..backends.cuda.launch import Kernel
from ..backends.cuda.tiles import DeviceLimits
from ..backends.cuda.vjp_plan import VjpPlan, fixed, plan_vjp, schedule, workspace
from ..compiler.nest import Layout, Nest
from ..errors import OutOfMemoryError
from ..runtime.kernel_store import Job, loaded
from ..runtime.launcher import Launcher, nothing
from .torch_private import is_out_of_memory

Start = Callable[..., None]
JobFor = Callable[[str, str, str], Job]
_AROUND_BLOCKS = 8  # blocks a multiprocessor


def launcher(
    nest: Nest, sizes: Mapping[str, int], integers: Sequence[int], limits: DeviceLimits, layout: Layout, index: int,
    start: Start, job_for: JobFor,
) -> Launcher | None:  # fmt: skip
    """Return what runs a nest that is a VJP; None for others."""
    quick = plan_vjp(nest, sizes, limits, layout)
    if quick is None:
        return None
    prepared = partial(_prepared, sizes, integers, limits, layout, index, start, job_for)
    first = prepared(quick)
    if quick.slope.kind != "powers":
        return Launcher(first or nothing, str(quick))
    plain = plan_vjp(nest, sizes, limits, layout, "plain")
    assert plain is not None
    if first is None:
        prepared(plain)
        return Launcher(nothing, str(quick))
    fits, last = lru_cache(maxsize=64)(quick.fits), cache(partial(prepared, plain))

    def run(pointers: Sequence[int], numbers: tuple[float, ...]) -> None:
        (first if fits(numbers) else last() or nothing)(pointers, numbers)

    return Launcher(run, str(quick))


def _kernels(plan: VjpPlan, job_for: JobFor) -> dict[str, Kernel] | None:
    """Return the kernels by name, compiled if the cache does not have them; None if they were only collected."""
    main, *others = plan.kernels

    def load(own: bytes, rest: bytes) -> dict[str, Kernel]:
        dynamic = {main: plan.tile.shared(plan.slope.kind)}
        return {
            name: Kernel(
                own if name == main else rest, text.entry_name(name), text.threads_of(plan, name),
                dynamic.get(name, 0), str(plan),
            )
            for name in plan.kernels
        }  # fmt: skip

    return loaded(
        plan, lambda: [job_for(text.emit(plan, names), plan.arch, str(plan)) for names in ([main], others)], load
    )


def _prepared(
    sizes: Mapping[str, int], integers: Sequence[int], limits: DeviceLimits, layout: Layout, index: int, start: Start,
    job_for: JobFor, plan: VjpPlan,
) -> Callable[[Sequence[int], tuple[float, ...]], None] | None:  # fmt: skip
    kernels = _kernels(plan, job_for)
    if kernels is None:
        return None
    chosen = schedule(plan, sizes, limits)
    where, scalars = workspace(plan, sizes, layout, chosen), fixed(plan, integers)
    device, around = torch.device("cuda", index), _AROUND_BLOCKS * limits.sm_count
    powers = lru_cache(maxsize=64)(plan.power_arguments)
    rest = chosen.tiles - chosen.whole

    def run(pointers: Sequence[int], numbers: tuple[float, ...]) -> None:
        memory = _memory(where.size, device)
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


def _memory(size: int, device: torch.device) -> torch.Tensor:
    try:
        return torch.empty(size, dtype=torch.uint8, device=device)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemoryError(
            f"a gradient (VJP) needs {size / 2**30:.1f} GiB on {device} in addition to the result, about as much as "
            "its rows; use fewer of them at a time"
        ) from error
