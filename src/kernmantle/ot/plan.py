"""A transport plan that is never stored: products with it and its transpose, marginals, cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ..arrays import Wrap, check_same_device, unwrap
from ..errors import ShapeError
from ..pairwise.kernel_inputs import floating
from .problem import Problem


@dataclass(frozen=True, repr=False)
class Plan:
    """The plan ``p_ij = a_i b_j exp((f_i + g_j - c_ij) / eps)`` of a transport, (..., m, n), which is not stored.

    ``plan @ v`` and ``plan.T @ v`` take v of shape (n,) or (..., n, c), (m,) or (..., m, c), in one pass over all
    pairs of rows with memory of inputs and result. They have first-order gradients by v and by all that the plan
    depends on, in another pass and a linear solve with the plan.

    Attributes
    ----------
    shape : tuple of int
        (..., m, n).
    T : Plan
        The transposed plan.
    """

    problem: Problem
    f: torch.Tensor
    g: torch.Tensor
    wrap: Wrap

    def __repr__(self) -> str:
        return f"Plan{self.shape}"

    @property
    def shape(self) -> tuple[int, ...]:
        """(..., m, n)."""
        return (*self.f.shape, self.g.shape[-1])

    @property
    def T(self) -> Plan:
        """The transposed plan."""
        return Plan(self.problem.transposed, self.g, self.f, self.wrap)

    def __matmul__(self, v: Any) -> Any:
        (operand,), wrap = unwrap(v, names=["v"])
        check_same_device([self.f, operand], ["x", "v"])
        columns = floating(operand, "v", True).to(self.f.dtype)
        is_vector = columns.dim() == 1
        columns = columns.unsqueeze(-1) if is_vector else columns
        if not operand.dim() or columns.shape[-2] != self.shape[-1]:
            raise ShapeError(f"v must have a row for each of the {self.shape[-1]} columns of the plan, it has shape "
                             f"{tuple(operand.shape)}")  # fmt: skip
        found = self.problem.product(self.f, self.g, columns)
        return wrap(found.squeeze(-1) if is_vector else found)

    def marginals(self) -> tuple[Any, Any]:
        """Return the sums of the plan over its columns and over its rows.

        Returns
        -------
        array, shape (..., m), and array, shape (..., n)
            In a balanced problem these come to the weights of both sides as the iterations converge.

        Notes
        -----
        Cost: two passes over all pairs of rows, with memory of the results. Gradients exist as of ``plan @ v``.
        """
        sums = [
            plan.problem.product(plan.f, plan.g, torch.ones_like(plan.g).unsqueeze(-1)).squeeze(-1)
            for plan in (self, self.T)
        ]
        return self.wrap(sums[0]), self.wrap(sums[1])

    def cost(self) -> Any:
        """Return ``Σ_ij p_ij c_ij`` (...), what the transport costs without the regularisation.

        Notes
        -----
        Cost: one pass over all pairs of rows. Gradients of first order exist.
        """
        return self.wrap(self.problem.cost(self.f, self.g))
