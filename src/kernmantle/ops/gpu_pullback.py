"""Pullbacks on the GPU: the kernels of a plan one after another, with the memory that they pass on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache, partial

import torch

from ..codegen import cuda_pullback as text
from ..contraction.cuda_plan import Facts
from ..contraction.cuda_pullback import PullPlan, fixed, places, pull_plan, schedule
from ..contraction.cuda_tiles import DeviceLimits
from ..contraction.nest import Nest
from ..errors import OutOfMemoryError
from ..runtime.launch import Kernel
from ..runtime.lru import LRUCache
from .launcher import Job, Launcher, collecting, fetch_all, nothing

Start = Callable[..., None]
JobFor = Callable[[str, str, str], Job]
_AROUND_BLOCKS = 8
_LOADED: LRUCache[PullPlan, dict[str, Kernel]] = LRUCache(1024)


def launcher(
    nest: Nest, sizes: Mapping[str, int], integers: Sequence[int], limits: DeviceLimits, facts: Facts, index: int,
    start: Start, job_for: JobFor,
) -> Launcher | None:  # fmt: skip
    """What runs a nest that is a pullback; None for others."""
    quick = pull_plan(nest, sizes, limits, facts)
    if quick is None:
        return None
    prepared = partial(_prepared, sizes, integers, limits, facts, index, start, job_for)
    first = prepared(quick)
    if quick.slope.kind != "powers":
        return Launcher(first or nothing, str(quick))
    plain = pull_plan(nest, sizes, limits, facts, "plain")
    assert plain is not None
    if first is None:
        prepared(plain)
        return Launcher(nothing, str(quick))
    fits, last = lru_cache(maxsize=64)(quick.fits), cache(partial(prepared, plain))

    def run(pointers: Sequence[int], numbers: Sequence[float]) -> None:
        (first if fits(tuple(numbers)) else last() or nothing)(pointers, numbers)

    return Launcher(run, str(quick))


def _kernels(plan: PullPlan, job_for: JobFor) -> dict[str, Kernel] | None:
    """The kernels by name, compiled if the cache does not have them; None if they were only noted."""
    found = None if collecting() else _LOADED.get(plan)
    if found is None:
        main, *others = plan.kernels
        made = fetch_all([job_for(text.emit(plan, names), plan.arch, str(plan)) for names in ([main], others)])
        if made[0] is None or made[1] is None:
            return None
        binaries = dict.fromkeys(others, made[1]) | {main: made[0]}
        dynamic = {main: plan.tile.shared(plan.slope.kind)}
        found = _LOADED[plan] = {
            name: Kernel(binary, text.entry_name(name), text.threads_of(plan, name), dynamic.get(name, 0), str(plan))
            for name, binary in binaries.items()
        }
    return found


def _prepared(
    sizes: Mapping[str, int], integers: Sequence[int], limits: DeviceLimits, facts: Facts, index: int, start: Start,
    job_for: JobFor, plan: PullPlan,
) -> Callable[[Sequence[int], Sequence[float]], None] | None:  # fmt: skip
    kernels = _kernels(plan, job_for)
    if kernels is None:
        return None
    chosen = schedule(plan, sizes, limits)
    where, given = places(plan, sizes, facts, chosen), fixed(plan, integers)
    device, around = torch.device("cuda", index), _AROUND_BLOCKS * limits.sm_count
    powers = lru_cache(maxsize=64)(plan.power_arguments)
    rest = chosen.tiles - chosen.whole

    def run(pointers: Sequence[int], numbers: Sequence[float]) -> None:
        memory = _memory(where.size, device)
        memory[: where.zeroed].zero_()
        base = memory.data_ptr()
        handed = [base + offset for offset in where.offsets]
        arguments = (
            *pointers, *given, *numbers, *powers(tuple(numbers)), *handed, chosen.whole, chosen.splits, chosen.share
        )  # fmt: skip
        for name in plan.passes:
            start(kernels[name], index, around, arguments)
        start(kernels["main"], index, chosen.blocks, arguments)
        if chosen.splits > 1:
            start(kernels["finish"], index, rest, arguments)
        if plan.mends:
            start(kernels["mend"], index, min(chosen.tiles, around), arguments)

    return run


def _memory(size: int, device: torch.device) -> torch.Tensor:
    try:
        return torch.empty(size, dtype=torch.uint8, device=device)
    except RuntimeError as error:
        raise OutOfMemoryError(
            f"a pullback needs {size / 2**30:.1f} GiB on {device} beside the result, about as much as its rows; "
            "use fewer of them at a time"
        ) from error
