"""Regularised transport between two weighted sets: soft minima of costs, the dual objective, products with a plan.

With potentials f and g the plan is ``p_ij = a_i b_j exp((f_i + g_j - c_ij) / eps)``. The potentials maximise

    Σ a φ(f) + Σ b φ(g) - eps (Σ_ij p_ij - Σ a Σ b),

where φ(f) is f if the marginals of the plan are the weights, and rho (1 - exp(-f / rho)) if they may differ at a price
of rho times their relative entropy. Each potential is, for the other one, a soft minimum over rows of costs, times
rho / (rho + eps).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from ..compiler.row_reduce import PRODUCT
from ..ir.functions import FUNCTIONS
from ..pairwise.scores import Outer, Scores

_exp = FUNCTIONS["exp"]
COSTS = Outer("costs", lambda cost, scale: cost * scale, ())
TERMS = Outer("terms of a soft minimum", lambda cost, scale, g: g - cost * scale, ("n",))
ENTRIES = Outer("entries of a plan", lambda cost, scale, f, g: _exp(f + g - cost * scale), ("m", "n"))
PRICES = Outer("prices of a plan", lambda cost, scale, f, g: cost * _exp(f + g - cost * scale), ("m", "n"))


def log_weights(weights: torch.Tensor) -> torch.Tensor:
    """Return logarithms of weights; those of zeros are minus infinity with a derivative of 0."""
    present = weights > 0
    return torch.where(present, torch.where(present, weights, 1.0).log(), -torch.inf)


@dataclass(frozen=True)
class Problem:
    """Costs between rows, weights (..., m) and (..., n), the regularisation, and the price of other marginals.

    ``eps`` is a number, or a tensor of one number that is differentiated by; ``rho`` None fixes the marginals.
    """

    costs: Scores
    a: torch.Tensor
    b: torch.Tensor
    eps: Any
    rho: float | None

    @property
    def transposed(self) -> Problem:
        """The problem in which the sides have changed."""
        return replace(self, costs=self.costs.transposed, a=self.b, b=self.a)

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """All tensors that a result depends on."""
        return self.a, self.b, *([self.eps] if isinstance(self.eps, torch.Tensor) else []), *self.costs.tensors

    def with_tensors(self, tensors: tuple[torch.Tensor, ...]) -> Problem:
        """Return the same problem of other tensors, in the order of ``tensors``."""
        a, b, *rest = tensors
        eps = rest.pop(0) if isinstance(self.eps, torch.Tensor) else self.eps
        return replace(self, costs=self.costs.with_tensors(tuple(rest)), a=a, b=b, eps=eps)

    @property
    def detached(self) -> Problem:
        """The problem as a constant; ``eps`` is a tensor still where it was one."""
        return self.with_tensors(tuple(tensor.detach() for tensor in self.tensors))

    @property
    def damping(self) -> Any:
        """Factor of the soft minima."""
        return 1.0 if self.rho is None else self.rho / (self.rho + self.eps)

    def extreme_costs(self) -> torch.Tensor:
        """Return the smallest and the largest cost."""
        return torch.stack([getattr(self.costs.reduced(how, COSTS, 1.0), f"a{how}")() for how in ("min", "max")])

    def softmin(self, g: torch.Tensor) -> torch.Tensor:
        """Return ``-eps log Σ_j b_j exp((g_j - c_ij) / eps)``, shape (..., m)."""
        terms = log_weights(self.b) + g / self.eps
        return -self.eps * self.costs.reduced("logsumexp", TERMS, 1 / self.eps, terms)

    def potential(self, g: torch.Tensor) -> torch.Tensor:
        """Return the best f for a g."""
        return self.damping * self.softmin(g)

    def prices(self, f: torch.Tensor) -> torch.Tensor:
        """Return φ(f)."""
        return f if self.rho is None else -self.rho * torch.expm1(-f / self.rho)

    def wanted_share(self, f: torch.Tensor) -> torch.Tensor:
        """Return the share of the weights that the marginal of the plan has at the optimum."""
        return torch.ones_like(f) if self.rho is None else torch.exp(-f / self.rho)

    def error(self, f: torch.Tensor, softmin: torch.Tensor) -> torch.Tensor:
        """Return the error of the marginal over rows, relative to the sum of the weights: (...)."""
        wanted = self.a * self.wanted_share(f)
        found = self.a * torch.exp((f - softmin) / self.eps)
        return (found - wanted).abs().sum(-1) / wanted.sum(-1)

    def dual(self, f: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        """Return the dual objective, (...).

        The mass of the plan is linear in a; of b it has no derivative where that is 0, which is therefore added.
        """
        mass = (self.a * torch.exp((f - self.softmin(g)) / self.eps)).sum(-1)
        missing = (torch.where(self.b > 0, 0.0, self.b) * self.wanted_share(g)).sum(-1)
        both = self.a.sum(-1) * self.b.sum(-1)
        values = (self.a * self.prices(f)).sum(-1) + (self.b * self.prices(g)).sum(-1)
        return values - self.eps * (mass + missing - both)

    def _exponents(self, f: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return log_weights(self.a) + f / self.eps, log_weights(self.b) + g / self.eps

    def product(self, f: torch.Tensor, g: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Return the plan times v, (..., m, c)."""
        return self.costs.reduced(PRODUCT, ENTRIES, 1 / self.eps, *self._exponents(f, g), v=v)

    def cost(self, f: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        """Return ``Σ_ij p_ij c_ij``, (...)."""
        return self.costs.reduced("sum", PRICES, 1 / self.eps, *self._exponents(f, g)).sum(-1)

    def weighted(self, f: torch.Tensor, softmin: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Return ``Σ_j a_i exp((f_i + softmin_j - c_ij) / eps) v_j``, the softmax over i at each j times v."""
        left, right = log_weights(self.a) + f / self.eps, softmin / self.eps
        return self.costs.reduced(PRODUCT, ENTRIES, 1 / self.eps, left, right, v=v.unsqueeze(-1)).squeeze(-1)


def balanced(problem: Problem, f: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return potentials that share the value alike where only their sum is determined."""
    if problem.rho is not None:
        return f, g
    both = (problem.a.sum(-1) + problem.b.sum(-1)).unsqueeze(-1)
    shift = ((problem.a * f).sum(-1) - (problem.b * g).sum(-1)).unsqueeze(-1) / both
    return f - shift, g + shift
