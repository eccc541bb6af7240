"""The fast eager path on a GPU: a chain that records no gradient and looks like an earlier one is only launched.

Two factors then take the host less than half the time; what takes the GPU longer than that is not remembered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..config import current
from ..errors import OutOfMemoryError
from . import kronsparse_gpu, kronsparse_run, kronsparse_steps
from .execute import allocate
from .gpu_tiles import session
from .info import RunInfo
from .kronsparse import Maybe, Way
from .kronsparse_chain import canonical
from .kronsparse_pack import PackedWeights
from .launcher import collecting
from .torch_private import PLAIN, is_batched, unwatched

Step = Callable[[torch.Tensor, torch.Tensor, Maybe, "PackedWeights | None", RunInfo], torch.Tensor]
_MOST_NUMBERS = 1 << 27  # of what stands behind a factor: 512 MiB of float32, more than 200 us of an H200


def look_of(
    x: torch.Tensor, weights: Sequence[torch.Tensor], bias: Maybe, activation: str | None, way: Way, packed: bool
) -> tuple[Any, ...] | None:
    """What a call looks like; None if somebody watches it, it records gradients, or it is none for this path."""
    if torch.is_autocast_enabled("cuda") or not unwatched() or collecting() or session() is not None:
        return None
    recorded, device = torch.is_grad_enabled(), x.device
    facts: list[Any] = [activation, way, packed, current().cache_dir, (device, x.data_ptr() % 16)]
    for value in (x, *weights) if bias is None else (x, *weights, bias):
        if type(value) not in PLAIN or value.device != device or value.is_neg() or is_batched(value):
            return None
        if recorded and value.requires_grad:
            return None
        facts += value.shape, value.stride(), value.dtype, False
    return tuple(facts)


def launched(
    x: torch.Tensor, weights: Sequence[torch.Tensor], bias: Maybe, activation: str, way: Way, packed: bool
) -> Callable[..., tuple[torch.Tensor, str]] | None:
    """What runs calls like this one, from x, weights, bias and packed weights; None for those not worth it."""
    tensors = [*weights] if bias is None else [*weights, bias]
    if way.algorithm not in ("auto", "kernel") or not x.numel() or any(own.dtype != x.dtype for own in tensors):
        return None
    if not (x.dim() == 2 or x.is_contiguous()) or (bias is not None and not bias.is_contiguous()):
        return None
    value = canonical(x, way.batch_last)
    widths = [weight.shape[0] * weight.shape[1] * weight.shape[3] for weight in weights]
    if value.shape[1] * max(widths) > _MOST_NUMBERS:
        return None
    if kronsparse_steps.plan(value, weights, way.algorithm, packed and not way.precision) is not None:
        return None
    try:
        steps, route = _steps(value, weights, widths, bias, activation, way, packed)
    except OutOfMemoryError:
        return None
    last, flat = len(weights) - 1, x.dim() == 2
    shape = (widths[-1], *x.shape[1:]) if way.batch_last else (*x.shape[:-1], widths[-1])

    def run(
        x: torch.Tensor, weights: Sequence[torch.Tensor], bias: Maybe, parts: Sequence[PackedWeights] | None
    ) -> tuple[torch.Tensor, str]:
        info = RunInfo()
        for place, step in enumerate(steps):
            part = None if parts is None else parts[place]
            x = step(x, weights[place], bias if place == last else None, part, info)
        return x if flat else x.view(shape), route or info.route

    return run


def _steps(
    value: torch.Tensor, weights: Sequence[torch.Tensor], widths: Sequence[int], bias: Maybe, activation: str, way: Way,
    packed: bool,
) -> tuple[list[Step], str]:  # fmt: skip
    """All products, and the route of the last where that is known beforehand."""
    steps, route = list[Step](), ""
    for place, weight in enumerate(weights):
        ends = (bias, activation) if place == len(weights) - 1 else (None, "")
        out = kronsparse_run.empty(value, widths[place], way.batch_last)
        step, route = _step(value, weight, *ends, way, out, packed)
        steps.append(step)
        value = out
    return steps, route


def _step(
    x: torch.Tensor, weight: torch.Tensor, bias: Maybe, activation: str, way: Way, out: torch.Tensor, packed: bool
) -> tuple[Step, str]:
    """One product, and its route where that is known beforehand."""
    batch_last, algorithm, precision = way
    offset = None if bias is None else bias[None]
    given = x, weight[None], offset, activation, precision, out
    name = kronsparse_gpu.way(*given, packed) if algorithm == "auto" else algorithm
    found = kronsparse_gpu.bound(*given, not packed, name) if name.startswith("kernel") else None
    if found is not None and found.run is not None:
        start, shape = found.run, out[0].mT.shape if batch_last else out[0].shape

        def launch(
            x: torch.Tensor, weight: torch.Tensor, bias: Maybe, part: PackedWeights | None, _: RunInfo
        ) -> torch.Tensor:
            out = allocate(shape, x.dtype, x.device)
            start(x, weight, bias, out, part)
            return out

        return launch, found.route

    def run(
        x: torch.Tensor, weight: torch.Tensor, bias: Maybe, part: PackedWeights | None, info: RunInfo
    ) -> torch.Tensor:
        rows, offset = canonical(x, batch_last), None if bias is None else bias[None]
        value = kronsparse_run.by(name, rows, weight[None], offset, activation, batch_last, precision, None, part, info)
        return value[0].mT if batch_last else value[0]

    return run, ""
