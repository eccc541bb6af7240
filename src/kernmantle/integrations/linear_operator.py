"""linear_operator's Kronecker products through our products, for GPyTorch's multitask and grid models.

After ``km.integrations.linear_operator.install()`` every Kronecker operator of linear_operator multiplies with fused
factors, those made before included; :class:`KroneckerProductLinearOperator` does so without it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from linear_operator.operators import IdentityLinearOperator, kronecker_product_linear_operator
from linear_operator.operators import KroneckerProductLinearOperator as _Original

from ..structured.kron import kron_matmul

_Product = Callable[[Sequence[Any], torch.Size, torch.Tensor], torch.Tensor]
_MULTIPLY: _Product = kronecker_product_linear_operator._matmul
_MULTIPLY_TRANSPOSED: _Product = kronecker_product_linear_operator._t_matmul


def _factors(operators: Sequence[Any]) -> list[Any]:
    """Return matrices of the operators; an identity is its size."""
    return [op.size(-1) if isinstance(op, IdentityLinearOperator) else op.to_dense() for op in operators]


def _matmul(operators: Sequence[Any], shape: torch.Size, rhs: torch.Tensor) -> torch.Tensor:
    return _broadcast(kron_matmul(rhs, _factors(operators), side="left"), shape)


def _t_matmul(operators: Sequence[Any], shape: torch.Size, rhs: torch.Tensor) -> torch.Tensor:
    factors = [factor if isinstance(factor, int) else factor.mT for factor in _factors(operators)]
    return _broadcast(kron_matmul(rhs, factors, side="left"), shape)


def _broadcast(result: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """Return a result with the batch of the operator, which identities have and their sizes do not."""
    return result.expand(*torch.broadcast_shapes(result.shape[:-2], shape[:-2]), *result.shape[-2:])


class KroneckerProductLinearOperator(_Original):
    """linear_operator's class, multiplying with all factors fused.

    Parameters
    ----------
    *linear_ops : LinearOperator or tensor
        The factors. Each is read as a dense matrix, structured ones too.

    Examples
    --------
    >>> import torch
    >>> from kernmantle.integrations.linear_operator import KroneckerProductLinearOperator
    >>> k = KroneckerProductLinearOperator(torch.eye(2), torch.tensor([[2.0, 1.0], [1.0, 2.0]]))
    >>> k @ torch.ones(4)
    tensor([3., 3., 3., 3.])
    """

    def _matmul(self, rhs: torch.Tensor) -> torch.Tensor:
        flat = rhs.dim() == 1
        result = _matmul(self.linear_ops, self.shape, rhs.unsqueeze(-1) if flat else rhs)
        return result.squeeze(-1) if flat else result

    def _t_matmul(self, rhs: Any) -> torch.Tensor:
        flat = rhs.dim() == 1
        result = _t_matmul(self.linear_ops, self.shape, rhs.unsqueeze(-1) if flat else rhs)
        return result.squeeze(-1) if flat else result


def install() -> None:
    """Have linear_operator's own Kronecker operators multiply with fused factors, in this process."""
    kronecker_product_linear_operator._matmul = _matmul
    kronecker_product_linear_operator._t_matmul = _t_matmul


def uninstall() -> None:
    """Undo ``install``."""
    kronecker_product_linear_operator._matmul = _MULTIPLY
    kronecker_product_linear_operator._t_matmul = _MULTIPLY_TRANSPOSED
