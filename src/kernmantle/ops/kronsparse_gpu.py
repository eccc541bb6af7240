"""Kronecker-sparse products on NVIDIA GPUs: the weights rearranged, then one kernel, on torch's current stream."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch

from ..codegen import kronsparse_cuda
from ..contraction.cuda_tiles import DeviceLimits
from ..contraction.kronsparse_cost import quickest
from ..contraction.kronsparse_plan import (
    KronSparsePlan,
    NarrowPlan,
    Problem,
    contiguous,
    expected_seconds,
    narrow_plan,
    plan,
)
from ..contraction.kronsparse_sum import DTYPES as SUMMED
from ..contraction.kronsparse_sum import sum_plan
from ..runtime.device import gpu
from ..runtime.launch import Kernel
from .dtypes import NAMES
from .execute import allocate
from .gpu import index_of, job_for, limits, start
from .gpu_tiles import session
from .kronsparse_keep import Kept
from .kronsparse_ways import KERNEL, tile_of, tuned, ways
from .kronsparse_ways import kept as kept_way
from .launcher import collecting, fetch

Maybe = torch.Tensor | None
_OVERLAPS = 90  # from this capability on a kernel may start while the one before it ends
_WARPS = kronsparse_cuda.PREPARE_THREADS // 32
_LOADED: dict[tuple[Any, ...], tuple[Kernel, ...]] = {}
_PROBLEMS: dict[tuple[Any, ...], Problem | None] = {}
_MOST_PROBLEMS = 4096


def _access(tensor: torch.Tensor, first: bool) -> int:
    """Bytes of the largest access that pointer and strides allow, at most 16."""
    others = [tensor.stride(0) if tensor.shape[0] > 1 else 0, tensor.stride(1 if first else 2)]
    return math.gcd(16, tensor.data_ptr(), *(stride * tensor.element_size() for stride in others))


def problem_of(
    x: torch.Tensor, weight: torch.Tensor, bias: Maybe, activation: str, precision: str, out: torch.Tensor
) -> Problem | None:
    """The product as the kernels see it; None if neither features nor batch of x or of the result lie together."""
    places = x.data_ptr() % 16, out.data_ptr() % 16
    key = (x.shape, x.stride(), out.stride(), places, x.dtype, weight.shape, bias is None, activation, precision)
    found = _PROBLEMS.get(key, False)
    if isinstance(found, bool):
        found = _problem_of(x, weight, bias, activation, precision, out)
        if len(_PROBLEMS) >= _MOST_PROBLEMS:
            _PROBLEMS.clear()
        _PROBLEMS[key] = found
    return found


def _problem_of(
    x: torch.Tensor, weight: torch.Tensor, bias: Maybe, activation: str, precision: str, out: torch.Tensor
) -> Problem | None:
    a, b, c, d = weight.shape[1:]
    groups, batch, _ = x.shape
    first = [tensor.stride(2) == 1 or tensor.shape[2] == 1 for tensor in (x, out)]
    last = [tensor.stride(1) == 1 or batch == 1 for tensor in (x, out)]
    if not all(one or other for one, other in zip(first, last, strict=True)):
        return None
    size = x.element_size()
    runs = [block * d * size if d < 4 else d * size for block in (c, b)]
    access = [
        math.gcd(_access(tensor, features), run if features else 0)
        for tensor, features, run in zip((x, out), first, runs, strict=True)
    ]
    return Problem(
        (a, b, c, d), groups, batch, NAMES[x.dtype], first[0], first[1], access[0], access[1] // size,
        1 if precision == "tf32" else 3, bias is not None, activation,
    )  # fmt: skip


def _taken(
    x: torch.Tensor, weight: torch.Tensor, bias: Maybe, activation: str, precision: str, out: torch.Tensor
) -> Problem | None:
    """The product as kernels for float32 or halves see it; None if they do not take it."""
    problem = problem_of(x, weight, bias, activation, precision, out)
    if problem is None or (precision == "ieee" and x.dtype != torch.float64):
        return None
    return None if expected_seconds(problem, limits(index_of(x.device))) == math.inf else problem


def way(
    x: torch.Tensor, weight: torch.Tensor, bias: Maybe, activation: str, precision: str, out: torch.Tensor, ready: bool
) -> str:
    """The way that was measured to be quickest or else should be, the weights rearranged before if ``ready``."""
    problem, own = _taken(x, weight, bias, activation, precision, out), limits(index_of(x.device))
    known = None
    if problem is not None:
        found = kept_way(problem, ready, own, gpu(index_of(x.device)).name)
        if found is not None:
            return found
        known = expected_seconds(problem, own, ready)
    last = x.stride(2) != 1 and x.shape[2] > 1
    return quickest(tuple(weight.shape[1:]), x.shape[1], NAMES[x.dtype], "cuda", last, known, ready)[0]


def expected(
    pattern: tuple[int, int, int, int], batch: int, dtype: str, first: bool, device: torch.device
) -> float | None:
    """What the kernels should take for arrays without gaps, the weights rearranged before."""
    found = expected_seconds(contiguous(pattern, batch, dtype, first), limits(index_of(device)), True)
    return None if found == math.inf else found


def tune(
    call: Callable[[str], object], default: str, x: torch.Tensor, weight: torch.Tensor, bias: Maybe, activation: str,
    precision: str, out: torch.Tensor, ready: bool,
) -> str:  # fmt: skip
    """While tuning, time ``call`` of every way and keep the quickest; while collecting, only note their kernels."""
    found = session()
    problem = None if found is None else _taken(x, weight, bias, activation, precision, out)
    if problem is None or found is None:
        return default
    index = index_of(x.device)
    calls = {name: partial(call, name) for name in {default: 0, **dict.fromkeys(ways(problem, limits(index), ready))}}
    if collecting():
        for each in calls.values():
            each()
        return default
    found.append(tuned(calls, default, problem, ready, gpu(index).name))
    return found[-1].best


def product(
    x: torch.Tensor, weight: torch.Tensor, bias: Maybe, activation: str, precision: str, out: torch.Tensor,
    kept: Kept | None = None, way: str = KERNEL,
) -> str | None:  # fmt: skip
    """Write the product to ``out``, in a tile if asked; returns what ran, None if the kernels do not take it."""
    index = index_of(x.device)
    problem = problem_of(x, weight, bias, activation, precision, out)
    if problem is None:
        return None
    narrow = narrow_plan(problem, limits(index))
    bias = None if bias is None else bias.contiguous()
    weight = weight.expand(x.shape[0], *weight.shape[1:])
    if narrow is not None:
        _narrow(narrow, problem, index, x, weight, bias, out)
        return str(narrow)
    chosen = plan(problem, limits(index), tile_of(way)) if x.dtype != torch.float64 and precision != "ieee" else None
    if chosen is None:
        return None
    _wide(chosen, problem, index, x, weight, bias, out, kept)
    return str(chosen)


def gradient(
    x: torch.Tensor, grad: torch.Tensor, pattern: tuple[int, int, int, int], precision: str
) -> torch.Tensor | None:
    """Gradient of the weights, (groups, a, b, c, d); None if the kernel does not take it."""
    if NAMES[x.dtype] not in SUMMED or precision == "ieee":
        return None
    first = [side.stride(2) <= side.stride(1) for side in (x, grad)]
    index, groups, batch = index_of(x.device), x.shape[0], x.shape[1]
    products = 1 if precision == "tf32" else 3
    chosen = sum_plan(limits(index).arch, pattern[3], NAMES[x.dtype], first[0], first[1], products)
    loaded = _load(
        (chosen,), lambda: kronsparse_cuda.emit_sum(chosen), chosen.arch,
        (kronsparse_cuda.ENTRY, chosen.threads, chosen.shared, False),
    )  # fmt: skip
    slots = chosen.slots(pattern, groups, batch, limits(index))
    parts = allocate((slots, groups, *pattern), torch.float32, x.device)
    if loaded is not None:
        given = (x.data_ptr(), grad.data_ptr(), parts.data_ptr(), batch, groups, *pattern, slots)
        start(loaded[0], index, chosen.tiles(pattern, groups) * slots, (*given, *x.stride(), *grad.stride()))
    total = parts[0] if slots == 1 else parts.sum(0)
    return total.to(x.dtype)


def _wide(
    chosen: KronSparsePlan, problem: Problem, index: int, x: torch.Tensor, weight: torch.Tensor, bias: Maybe,
    out: torch.Tensor, kept: Kept | None = None,
) -> None:  # fmt: skip
    grid = _grid(chosen, problem, limits(index))
    early = kept is None and limits(index).capability >= _OVERLAPS
    loaded = _load(
        (chosen, grid.shared, early), lambda: kronsparse_cuda.emit(chosen), chosen.arch,
        (kronsparse_cuda.PREPARE, kronsparse_cuda.PREPARE_THREADS, 0, False),
        (kronsparse_cuda.ENTRY, chosen.threads, grid.shared, early),
    )  # fmt: skip
    if loaded is None:
        return
    prepare, kernel = loaded

    def made() -> tuple[torch.Tensor, torch.Tensor]:
        return _rearranged(chosen, problem, index, prepare, weight)

    image, scale = made() if kept is None else kept.of(grid.arrangement, made, x.device)
    given = _arguments(x, weight, image, bias, scale, out, grid.tiles, grid.slots)
    start(kernel, index, grid.blocks, given)


class _Grid(NamedTuple):
    shared: int
    tiles: int
    slots: int
    blocks: int
    arrangement: tuple[int | str | bool, ...]


@lru_cache(maxsize=4096)
def _grid(chosen: KronSparsePlan, problem: Problem, own: DeviceLimits) -> _Grid:
    """What a plan is launched with."""
    slots = chosen.slots(problem, own)
    blocks = chosen.groups(problem) * slots
    return _Grid(chosen.shared(problem), chosen.tiles(problem), slots, blocks, chosen.arrangement(problem))


def _rearranged(
    chosen: KronSparsePlan, problem: Problem, index: int, prepare: Kernel, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The weights in the order in which a kernel reads them, and what undoes the scale of each column."""
    image = allocate((chosen.image_bytes(problem),), torch.uint8, weight.device)
    scale = allocate((chosen.scales(problem),), torch.float32, weight.device)
    pointers = (weight.data_ptr(), image.data_ptr(), scale.data_ptr())
    blocks = -(-chosen.preparing_warps(problem) // _WARPS)
    start(prepare, index, blocks, (*pointers, problem.groups, *problem.pattern, *weight.stride()))
    return image, scale


def _narrow(
    chosen: NarrowPlan, problem: Problem, index: int, x: torch.Tensor, weight: torch.Tensor, bias: Maybe,
    out: torch.Tensor,
) -> None:  # fmt: skip
    loaded = _load(
        (chosen,), lambda: kronsparse_cuda.emit_narrow(chosen), chosen.arch,
        (kronsparse_cuda.ENTRY, chosen.threads, 0, False),
    )  # fmt: skip
    if loaded is not None:
        blocks, slots = chosen.grid(problem, limits(index))
        start(loaded[0], index, blocks, _arguments(x, weight, None, bias, None, out, 0, slots))


def _arguments(
    x: torch.Tensor, weight: torch.Tensor, image: Maybe, bias: Maybe, scale: Maybe, out: torch.Tensor, tiles: int,
    slots: int,
) -> tuple[int, ...]:  # fmt: skip
    pointers = [0 if tensor is None else tensor.data_ptr() for tensor in (x, weight, image, bias, scale, out)]
    steps = 0 if bias is None or bias.shape[0] == 1 else bias.stride(0)
    strides = (*x.stride(), *out.stride(), *weight.stride(), steps)
    return (*pointers, x.shape[1], *weight.shape[1:], tiles, slots, *strides)


def _load(
    key: tuple[Any, ...], source: Any, arch: str, *entries: tuple[str, int, int, bool]
) -> tuple[Kernel, ...] | None:
    """Kernels of a source by entry, threads, shared memory and early start; None if they were only noted."""
    found = None if collecting() else _LOADED.get(key)
    if found is None:
        title = str(key[0])
        binary = fetch(job_for(source(), arch, title))
        if binary is None:
            return None
        found = _LOADED[key] = tuple(
            Kernel(binary, name, threads, shared, title, early) for name, threads, shared, early in entries
        )
    return found
