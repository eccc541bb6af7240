"""Systems of at most 32 unknowns on CUDA, a batch in one kernel that factors and solves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..backends.cuda.launch import BoundLaunch
from ..runtime.dispatch import PLANS, CallKey
from ..torch_ops import call_key, cuda_system
from ..torch_ops.cuda_system import Arrays
from ..torch_ops.execute import allocate, allocate_as
from ..torch_ops.torch_private import PLAIN, is_tracked, plain
from .arguments import System, check_overwrite, compact, enough_memory
from .implicit import Solver, solved
from .solution import Solution, check_target, raise_for

RAN = "one kernel for small systems"
takes = cuda_system.takes


@dataclass(frozen=True, eq=False)
class BoundSystem:
    """Systems of one layout, checked and bound to their kernel; no gradient is recorded.

    ``shape`` is that of the solution, ``batch`` that of the infos.
    """

    launch: BoundLaunch
    shape: tuple[int, ...]
    batch: tuple[int, ...]
    route: str = RAN

    def __call__(self, tensors: Sequence[torch.Tensor], numbers: object = (), outs: object = None) -> Solution:  # noqa: ARG002
        """Return the solution in new memory."""
        a, b = tensors
        x, info = allocate_as(b, self.shape), allocate(self.batch, torch.int32, a.device)
        self.launch((a.data_ptr(), info.data_ptr(), b.data_ptr(), x.data_ptr()))
        return Solution(x, info, RAN)


def key_and_plan(operation: tuple[str, bool], a: Any, b: Any, *asked: object) -> tuple[CallKey | None, Any]:
    """Return the bound call of what asks for no more than a solution, and on a miss its key, where it has a kernel."""
    if any(asked) or type(a) not in PLAIN or a.dim() < 2 or not takes(a):
        return None, None
    key, found = call_key.key_and_plan(operation, (), (a, b), by_shape=True)
    return None if key is None or call_key.is_recorded(key) else key, found


def _bind(key: CallKey, pair: System, arrays: Arrays, pivoted: bool) -> None:
    """Keep what solves systems of this layout, where the kernel reads and writes the caller's memory."""
    own = (pair.a, arrays.a), (pair.b, arrays.b)
    if all(items is not None and items.data_ptr() == tensor.data_ptr() for tensor, items in own):
        launch = cuda_system.bind(arrays, pivoted)
        if launch is not None:
            shape = pair.shape[:-1] if pair.vector else pair.shape
            PLANS[key] = BoundSystem(launch, shape, tuple(pair.a.shape[:-2]))


def _items(tensor: torch.Tensor) -> torch.Tensor:
    """Return one batch axis; a view wherever the strides allow."""
    return tensor if tensor.dim() == 3 else tensor.reshape(-1, *tensor.shape[-2:])


def _target(tensor: torch.Tensor, overwrite: bool, shape: Sequence[int]) -> torch.Tensor:
    """Return the target of a result: the tensor itself where it may be written in order, else new memory."""
    if overwrite and tensor.shape == tuple(shape) and _items(tensor).data_ptr() == tensor.data_ptr():
        return tensor
    return allocate_as(tensor, shape)


def factor(a: torch.Tensor, pivoted: bool, overwrite: bool) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
    """Lower Cholesky factors with zeros above them, or LU factors with pivots; and infos."""
    target = _target(a, overwrite, a.shape)
    info = allocate(a.shape[:-2], torch.int32, a.device)
    pivots = allocate(a.shape[:-1], torch.int32, a.device) if pivoted else None
    cuda_system.run(Arrays(_items(a), _items(target), pivots, info), pivoted)
    if overwrite and target is not a:
        target = a.copy_(target)
    return target, pivots, info


def solve(
    factors: torch.Tensor, pivots: torch.Tensor | None, b: torch.Tensor, shape: Sequence[int], transposed: bool,
    overwrite: bool,
) -> torch.Tensor:  # fmt: skip
    """Solution of a shape with lower Cholesky factors, or LU factors and their pivots, all broadcast to its batch."""
    batch, n = tuple(shape[:-2]), factors.shape[-1]
    target = _target(b, overwrite, shape)
    factors_ = _items(factors if factors.shape[:-2] == batch else factors.expand(*batch, n, n))
    order = None if pivots is None else pivots.expand(*batch, n).contiguous()
    sides = _items(b if b.shape == tuple(shape) else b.expand(tuple(shape)))
    cuda_system.run(Arrays(factors_, pivots=order, b=sides, x=_items(target)), pivots is not None, transposed)
    return target


def at_once(pair: System) -> bool:
    """Return whether factors and solutions come together: each matrix has its own side, only autograd watches."""
    if not takes(pair.a) or 0 in pair.shape or compact(pair.a).shape[:-2] != pair.shape[:-2]:
        return False
    return plain([pair.a, pair.b])


def solution(
    pair: System, pivoted: bool, overwrite_b: bool, solver: Callable[..., Solver], meaning: str | None,
    lower: bool = True, key: CallKey | None = None,
) -> Solution:  # fmt: skip
    """Return the solution where :func:`at_once` says so, by LU factors that are ``pivoted`` or by Cholesky factors.

    Of symmetric matrices the ``lower`` triangle is read, or the upper one. ``solver`` makes what gradients solve with
    of the factors; errors are raised with their ``meaning`` where there is one. With a ``key`` the call is bound.
    """
    a, b = pair.a, pair.b
    if overwrite_b:
        check_overwrite(b, "b")
        check_target(b, pair.shape)
    recorded = is_tracked([a, b])
    sides = b if b.shape == pair.shape else b.expand(pair.shape)
    with torch.no_grad(), enough_memory("lu" if pivoted else "cholesky", a):
        x = _target(b, overwrite_b, pair.shape)
        info = allocate(a.shape[:-2], torch.int32, a.device)
        factors = allocate_as(a, a.shape) if recorded else None
        pivots = allocate(a.shape[:-1], torch.int32, a.device) if recorded and pivoted else None
        arrays = Arrays(_items(a if lower else a.mT), None if factors is None else _items(factors), pivots, info)
        arrays.b, arrays.x = _items(sides), _items(x)
        cuda_system.run(arrays, pivoted)
        if key is not None:
            _bind(key, pair, arrays, pivoted)
    if meaning is not None:
        raise_for(info, meaning)
    if factors is not None:
        own = solver(factors, pivots) if pivoted else solver(factors if lower else factors.mT)
        x = solved(a, sides, own, x=x)
    return Solution(pair.finished(b.copy_(x) if overwrite_b and x is not b else x), pair.wrap(info), RAN)
