"""What a Kronecker product will take beside its arrays, from its plan alone: nothing is computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import pairwise

import torch

from ..contraction.cuda_tiles import CARDS
from ..contraction.kron_cpu import width
from ..contraction.kron_modes import Mode, parse
from ..contraction.kron_passes import Pass, views
from .kron_execute import factor_sizes, has_kernels
from .kron_layout import Arrays, arranged
from .kron_run import Launch, Prepared, Start, prepare
from .targets import target_for

Found = tuple[int, int, str]
"""Bytes between the passes, bytes of each thread, and the route."""


@dataclass(frozen=True)
class KronWorkspace:
    """Shape of a product's result and the memory beside it.

    Attributes
    ----------
    shape : tuple of int
        Shape of the result.
    bytes : int or None
        Most memory at once of what stands between the passes, x and the result not counted; None where torch's
        matrix products run, which take memory of their own.
    bytes_per_thread : int or None
        Memory that each thread of the CPU keeps from call to call, a fraction of its second cache; 0 on GPUs.
    route : str
        The passes, as an operator's repr tells them after a call; "torch" where there are none.
    """

    shape: tuple[int, ...]
    bytes: int | None
    bytes_per_thread: int | None
    route: str


def workspace(
    text: str, options: str, x: torch.Tensor, factors: Sequence[torch.Tensor], out: torch.Tensor, device: str
) -> Found | None:
    """For arrays on "meta"; None where no kernels run or an array is copied on the way."""
    modes = parse(text, factor_sizes(factors))
    if not out.numel():
        return 0, 0, "nothing: the result is empty"
    if (device not in CARDS and target_for(torch.device(device)) is None) or not has_kernels(x.dtype, modes):
        return None
    arrays = arranged(x, factors, None, out)
    passes, route = _planned(modes, arrays, options, device)
    on_cpu = device == "cpu"
    if on_cpu and x.dtype in (torch.float16, torch.bfloat16) and any(own.kind == "matmul" for own in passes):
        return None
    # Of the passes only the shapes matter here; to those of halves the rules of the CPU are not to apply.
    wide = arrays if on_cpu else arranged(x.float(), [factor.float() for factor in factors], None, out.float())
    ready = prepare(passes, modes, wide, _unstarted)
    if ready is None:
        return None
    return _between(ready) * x.element_size(), _room(modes, passes, arrays) if on_cpu else 0, route


def _planned(modes: tuple[Mode, ...], arrays: Arrays, options: str, device: str) -> tuple[tuple[Pass, ...], str]:
    if device == "cpu":
        plan, _ = import_module(".kron_cpu", __package__).planned(modes, arrays, options)
        return plan.passes, f"llvm: {plan}"
    gpu = import_module(".kron_gpu", __package__)
    plan, _ = gpu.planned_for(_limits(device), modes, arrays, options)
    return plan.passes, f"cuda: {plan}"


def _limits(device: str) -> object:
    if device in CARDS:
        return CARDS[device]
    gpu = import_module(".gpu", __package__)
    return gpu.limits(gpu.index_of(torch.device(device)))


def _unstarted(_launch: Launch) -> Start:
    return lambda _pointers, _numbers: None


def _between(ready: Prepared) -> int:
    """Most entries of what a pass reads and what it leaves, x and the result apart."""
    sizes = [0, *(torch.Size(stage.shape).numel() for stage in ready.stages if stage.shape is not None), 0]
    return max(before + after for before, after in pairwise(sizes))


def _room(modes: Sequence[Mode], passes: Sequence[Pass], arrays: Arrays) -> int:
    cpu = import_module(".kron_cpu", __package__)
    compute = "f64" if arrays.x.dtype == torch.float64 else "f32"
    rooms = [0]
    for own, view in zip(passes, views(modes, passes), strict=True):
        if own.kind != "matmul":
            rooms.append(cpu.room_of(own, width(own, view.right * arrays.x.shape[-1], compute), compute))
    return max(rooms)
