"""Sinkhorn's iteration: each potential in turn as the soft minimum for the other, until the marginals fit."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..linalg.block_cg import Watch, bar
from .problem import Problem, balanced


@dataclass(frozen=True)
class Settings:
    """What ends the iteration: ``tolerance`` of the marginals, or ``limit``; and how fast eps gets to its value."""

    tolerance: float
    limit: int
    scaling: float


@dataclass(frozen=True)
class Found:
    """Potentials, the error of the marginals before the last step, (...), and the iterations that were run."""

    f: torch.Tensor
    g: torch.Tensor
    error: torch.Tensor
    iterations: int


def ladder(spread: float, eps: float, scaling: float) -> list[float]:
    """Return decreasing regularisations, from the largest difference of costs to above ``eps``."""
    if scaling >= 1 or not spread > eps:
        return []
    steps = math.ceil(math.log(spread / eps) / -math.log(scaling))
    return [spread * scaling**step for step in range(steps)]


@torch.no_grad()
def solve(problem: Problem, spread: float, settings: Settings, is_symmetric: bool) -> Found:
    """Return the potentials of a problem without derivatives, whose eps is a number.

    A problem between a set and itself has one potential, of which each step is the mean of the old and the new one:
    it converges in a small number of steps (Feydy et al., Interpolating between optimal transport and MMD, 2019).
    """
    step = _averaged if is_symmetric else _alternated
    f, g = torch.zeros_like(problem.a), torch.zeros_like(problem.b)
    watch, count = Watch(f.device, settings.limit, torch.float64), 0
    error = f.new_full(f.shape[:-1], math.inf)
    with bar(settings.limit) as shown:
        for eps in ladder(spread, problem.eps, settings.scaling)[: max(0, settings.limit - 1)]:
            f, g, _ = step(replace(problem, eps=eps), f, g)
            count += 1
            shown.update()
        if not is_symmetric:
            f = problem.potential(g)
        bound: Any = math.inf
        while count < settings.limit and bound > settings.tolerance:
            f, g, error = step(problem, f, g)
            count += 1
            bound = watch.worst(error)
            shown.set_postfix_str(f"marginals {bound:.2g}", refresh=False)
            shown.update()
    return Found(*balanced(problem, f, g), error, count)


def _alternated(problem: Problem, f: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    g = problem.transposed.potential(f)
    softmin = problem.softmin(g)
    return problem.damping * softmin, g, problem.error(f, softmin)


def _averaged(problem: Problem, f: torch.Tensor, _: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    softmin = problem.softmin(f)
    error = problem.error(f, softmin)
    f = (f + problem.damping * softmin) / 2
    return f, f, error
