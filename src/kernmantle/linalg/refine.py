"""Iterative refinement: a factor in float32, residuals in float64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ..checks import integer
from ..errors import DtypeError, ParameterError
from .arguments import System, raises
from .implicit import Solver
from .scaling import exponent, shifted
from .solution import Solution, delivered, raise_for, solution

UNREFINED = "refinement with a factor in float32 did not get to the digits of float64; drop refine"


@dataclass(frozen=True)
class Refined:
    """How often to refine; 0 is a plain solution in the type of the matrix."""

    steps: int

    @staticmethod
    def asked(steps: Any, a: torch.Tensor, overwrite_a: bool) -> Refined:
        """Checked."""
        steps = steps if type(steps) is int and steps >= 0 else integer(steps, "refine", 0)
        if steps and a.dtype != torch.float64:
            raise DtypeError(f"refine factors in float32 what is float64; a is {a.dtype}")
        if steps and overwrite_a:
            raise ParameterError("refine needs a for its residuals: drop overwrite_a")
        return Refined(steps)

    def narrowed(self, a: torch.Tensor) -> torch.Tensor:
        """Return the matrix in the type it is factored in: a copy where that is another, scaled to its range."""
        return shifted(a, -_exponent(a)).float() if self.steps else a

    def solve(
        self, system: System, matrix: torch.Tensor, factored: Solver, info: torch.Tensor, ran: str, overwrite_b: bool,
        check_errors: bool | None, jitter: Any = None,
    ) -> Solution:  # fmt: skip
        """Return the solution of a system by its factors, refined with residuals of the matrix.

        Its info is -1 for items whose refinement did not get to the digits of float64.
        """
        refining = Relative(matrix, factored, self.steps, factored.symmetric, _exponent(matrix)) if self.steps else None
        x = solution(system.a, system.b, refining or factored, system.shape, overwrite_b)
        x = delivered(x, system.b, overwrite_b, info)
        info = info.expand(system.a.shape[:-2])
        if refining is None:
            return Solution(system.finished(x), system.wrap(info), ran, jitter)
        if refining.failed is not None:
            failed = refining.failed.to(torch.int32).sum_to_size(info.shape) > 0
            info = torch.where((info == 0) & failed, -1, info).to(torch.int32)
        if raises(check_errors, system.a):
            raise_for(info, UNREFINED)
        residual = None if refining.relative is None else system.wrap(refining.relative)
        return Solution(system.finished(x), system.wrap(info), ran, jitter, residual)


def _exponent(a: torch.Tensor) -> torch.Tensor:
    """Return the exponents (..., 1, 1) of the largest entries."""
    top = a.abs().amax((-2, -1), keepdim=True) if a.numel() else a.new_zeros((*a.shape[:-2], 1, 1))
    return exponent(top)


def _norms(columns: torch.Tensor) -> torch.Tensor:
    """Return the norms of columns of any scale."""
    top = columns.abs().amax(-2, keepdim=True) if columns.shape[-2] else columns.sum(-2, keepdim=True)
    size = exponent(top)
    return shifted(shifted(columns, -size).norm(dim=-2), size.squeeze(-2))


@dataclass
class Relative:
    """A solver that refines, and keeps the relative residuals of its last solution.

    ``failed`` says for which items a residual was above what rounding in float64 explains and stopped falling.
    """

    a: torch.Tensor
    narrow: Solver
    steps: int
    symmetric: bool
    exponents: torch.Tensor
    relative: torch.Tensor | None = None
    failed: torch.Tensor | None = None

    def _step(self, gap: torch.Tensor) -> torch.Tensor:
        """Correction for a residual, scaled so that nothing leaves the range of float32."""
        top = gap.abs().amax(-2, keepdim=True) if gap.numel() else gap.sum(-2, keepdim=True)
        size = exponent(top)
        found = self.narrow.solve(shifted(gap, -size).float()).double()
        return shifted(found, size - self.exponents)

    def solve(self, b: torch.Tensor, overwrite: bool = False) -> torch.Tensor:  # noqa: ARG002
        """Return the solution in float64: the best of all steps, column by column."""
        x = self._step(b)
        gap = b - self.a @ x
        rest, scale = _norms(gap), _norms(b)
        stopped = ~torch.isfinite(rest)
        for _ in range(self.steps):
            new = x + self._step(gap)
            left = b - self.a @ new
            now = _norms(left)
            stopped = ~(now <= rest / 2)
            better = (now < rest)[..., None, :]
            x, gap = torch.where(better, new, x), torch.where(better, left, gap)
            rest = torch.where(now < rest, now, rest)
        self.relative = rest / torch.where(scale > 0, scale, torch.ones_like(scale))
        explained = self.a.shape[-1] * torch.finfo(x.dtype).eps
        rounding = shifted(torch.full_like(rest, explained), self.exponents.squeeze(-1)) * self.a.shape[-1] * _norms(x)
        self.failed = (stopped & ~(rest <= rounding + explained * scale)).any(-1)
        return x

    def adjoint(self) -> Solver:
        """Return the solver of the transposed matrix."""
        a = self.a if self.symmetric else self.a.mT
        return Relative(a, self.narrow.adjoint(), self.steps, self.symmetric, self.exponents)
