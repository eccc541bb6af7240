"""Iterative refinement: a factor in float32, residuals in float64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ..errors import DtypeError, ParameterError
from .implicit import Solver


@dataclass(frozen=True)
class Refined:
    """How often to refine; 0 is a plain solution in the type of the matrix."""

    steps: int

    @staticmethod
    def asked(steps: Any, a: torch.Tensor, overwrite_a: bool) -> Refined:
        """Checked."""
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 0:
            raise ParameterError(f"refine must be a number of steps, 0 or more, not {steps!r}")
        if steps and a.dtype != torch.float64:
            raise DtypeError(f"refine factors in float32 what is float64; a is {a.dtype}")
        if steps and overwrite_a:
            raise ParameterError("refine needs a for its residuals: drop overwrite_a")
        return Refined(steps)

    def narrowed(self, a: torch.Tensor) -> torch.Tensor:
        """The matrix in the type it is factored in: a copy where that is another."""
        return a.float() if self.steps else a

    def solver(self, a: torch.Tensor, factored: Solver) -> Solver:
        """The solver itself, or one that refines with residuals of a."""
        return Relative(a, factored, self.steps, factored.symmetric) if self.steps else factored


@dataclass
class Relative:
    """A solver that refines, and keeps the relative residuals of its last solution."""

    a: torch.Tensor
    narrow: Solver
    steps: int
    symmetric: bool
    relative: torch.Tensor | None = None

    def _step(self, gap: torch.Tensor) -> torch.Tensor:
        """Correction for a residual, scaled so that nothing leaves the range of float32."""
        top = gap.abs().amax(-2, keepdim=True) if gap.numel() else gap.sum(-2, keepdim=True)
        top = torch.where(top > 0, top, torch.ones_like(top))
        return self.narrow.solve((gap / top).float()).double() * top

    def solve(self, b: torch.Tensor, overwrite: bool = False) -> torch.Tensor:  # noqa: ARG002
        """Solution in float64."""
        x = self._step(b)
        gap = b - self.a @ x
        for _ in range(self.steps):
            x = x + self._step(gap)
            gap = b - self.a @ x
        scale = b.norm(dim=-2)
        self.relative = gap.norm(dim=-2) / torch.where(scale > 0, scale, torch.ones_like(scale))
        return x

    def adjoint(self) -> Solver:
        """Of the transposed matrix."""
        return Relative(self.a if self.symmetric else self.a.mT, self.narrow.adjoint(), self.steps, self.symmetric)
