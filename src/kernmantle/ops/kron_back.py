"""All gradients of a Kronecker product on the GPU, where a few passes find them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from ..codegen import kron_back
from ..contraction.kron_back import THREADS, BackPlan, Groups, back
from ..contraction.kron_modes import Mode
from ..runtime.launch import Kernel
from ..runtime.lru import LRUCache
from .dtypes import NAMES
from .gpu import index_of, job_for, limits, start
from .kron_gpu import resident
from .launcher import collecting, fetch

_LOADED: LRUCache[BackPlan, Kernel] = LRUCache(1024)
Apply = Callable[[torch.Tensor, Sequence[int]], torch.Tensor]
"""Factors at the places from the first of some on, applied to x."""


def plans(
    modes: Sequence[Mode], factors: Sequence[torch.Tensor], x: torch.Tensor
) -> tuple[tuple[BackPlan, Groups], ...]:
    """Passes for x (…, columns, c) in one piece; none where there are no kernels for it."""
    if x.dtype not in NAMES or not x.is_contiguous() or x.data_ptr() % 16 or not x.numel():
        return ()
    first, stop = _range(modes)
    if any(mode.factor is None or mode.rows != mode.columns for mode in modes[first:stop]):
        return ()
    if any(factor.dim() > 2 for factor in factors):
        return ()
    own, columns = limits(index_of(x.device)), x.shape[-1]
    extents = tuple([mode.columns for mode in modes[first:stop]])
    before, right = (math.prod([mode.columns for mode in part]) for part in (modes[:first], modes[stop:]))
    return back(extents, right * columns, NAMES[x.dtype], own.arch, own.shared_per_block, before, columns)


def _range(modes: Sequence[Mode]) -> tuple[int, int]:
    """From the first factor to behind the last."""
    places = [place for place, mode in enumerate(modes) if mode.factor is not None]
    return (places[0], places[-1] + 1) if places else (0, 0)


def _in_place(grad: torch.Tensor) -> torch.Tensor:
    """A tensor in one piece that begins where wide accesses may."""
    own = grad.contiguous()
    return own.clone() if own.data_ptr() % 16 else own


def gradients(
    chosen: Sequence[tuple[BackPlan, Groups]], modes: Sequence[Mode], factors: Sequence[torch.Tensor], x: torch.Tensor,
    grad: torch.Tensor, slope: float, apply: Apply,
) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:  # fmt: skip
    """Gradient of x, times ``slope``, and of the factors by their numbers."""
    found: dict[int, torch.Tensor] = {}
    first, stop = _range(modes)
    value, left = _in_place(grad), math.prod(x.shape[:-2]) * math.prod([mode.columns for mode in modes[:first]])
    for turn, (plan, groups) in enumerate(chosen):
        places = [first + place for group in groups for place in group]
        rest = range(places[-1] + 1, stop)
        lines = left * math.prod(modes[place].columns for place in places)
        width = x.numel() // lines
        if not plan.beside:
            lines, width = x.numel() // plan.across, plan.across
        share_of_x = float(slope) if turn == len(chosen) - 1 else 1.0
        own = [factors[modes[place].factor or 0] for place in places]
        value, shares = _run(plan, value, apply(x, rest) if rest else x, own, lines, width, share_of_x)
        left *= math.prod(modes[place].columns for place in places)
        for place, share in zip(places, shares, strict=True):
            number = modes[place].factor or 0
            found[number] = found[number] + share if number in found else share
    return value, {number: share.to(x.dtype) for number, share in found.items()}


def _run(
    plan: BackPlan, v: torch.Tensor, x: torch.Tensor, factors: Sequence[torch.Tensor], lines: int, width: int,
    slope: float,
) -> tuple[torch.Tensor, list[torch.Tensor]]:  # fmt: skip
    """What leaves a pass, and the gradients of its factors in float32."""
    index, out = index_of(x.device), torch.empty_like(v)
    sizes = plan.sizes
    found = None if collecting() else _LOADED.get(plan)
    if found is None:
        binary = fetch(job_for(kron_back.emit(plan), plan.arch, str(plan)))
        if binary is None:
            return out, [x.new_zeros(size, size, dtype=torch.float32) for size in sizes]
        found = _LOADED[plan] = Kernel(binary, kron_back.ENTRY, THREADS, plan.shared, title=str(plan))
    blocks = min(plan.tiles(lines, width), resident(found, index) * limits(index).sm_count)
    parts = torch.empty((blocks, plan.parts), dtype=torch.float32, device=x.device)
    count = len(plan.first)
    unused = [factors[0]] * kron_back.FACTORS
    given = [*[*factors[:count], *unused][:2], *factors[count:], *unused][: kron_back.FACTORS]
    pointers = (v.data_ptr(), x.data_ptr(), out.data_ptr(), parts.data_ptr(), *(own.data_ptr() for own in given))
    strides = [step for own in given for step in own.stride()[-2:]]
    start(found, index, blocks, (*pointers, *strides, lines, width, slope))
    whole = parts.sum(0).split([size * size for size in sizes])
    return out, [part.view(size, size) for part, size in zip(whole, sizes, strict=True)]
