"""Symmetric-definite pairs of matrices, ``a x = w b x``, reduced to one symmetric matrix by a Cholesky factor of b."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ..arrays import Wrap, check_same_device, check_same_dtype, unwrap
from ..errors import ShapeError
from .arguments import check_square

NOT_DEFINITE = "the leading minor of order {info} of b is not positive definite"


@dataclass(frozen=True)
class Pair:
    """``c = L⁻¹ a L⁻ᵀ`` for ``b = L Lᵀ``; infos of L, whose failed items have the identity in place of c."""

    c: torch.Tensor
    factor: torch.Tensor
    info: torch.Tensor
    wrap: Wrap

    @staticmethod
    def of(a: Any, b: Any, lower: bool) -> Pair:
        """Check both and reduce them; one triangle of each is read. Batch axes must be equal or broadcast."""
        (left, right), wrap = unwrap(a, b, names=["a", "b"])
        check_square(left)
        check_square(right, "b")
        check_same_device([left, right], ["a", "b"])
        check_same_dtype([left, right], ["a", "b"])
        if left.shape[-1] != right.shape[-1]:
            raise ShapeError(
                f"a and b must be of one order, they have shapes {tuple(left.shape)}, {tuple(right.shape)}"
            )
        try:
            left, right = torch.broadcast_tensors(left.resolve_neg(), right.resolve_neg())
        except RuntimeError:
            shapes = f"{tuple(left.shape)}, {tuple(right.shape)}"
            raise ShapeError(f"batch axes of a and b do not broadcast: they have shapes {shapes}") from None
        factor, info = torch.linalg.cholesky_ex(_whole(right, lower))
        failed = (info != 0)[..., None, None]
        unit = torch.eye(left.shape[-1], dtype=left.dtype, device=left.device)
        factor = torch.where(failed, unit, factor)
        half = torch.linalg.solve_triangular(factor, _whole(left, lower), upper=False)
        c = torch.linalg.solve_triangular(factor, half.mT, upper=False)
        return Pair(torch.where(failed, unit, (c + c.mT) / 2), factor, info.to(torch.int32), wrap)

    def infos(self, info: torch.Tensor) -> torch.Tensor:
        """Return those of the spectrum of c, or n + i where the leading minor of order i of b is not definite."""
        return torch.where(self.info > 0, self.info + self.c.shape[-1], info).to(torch.int32)

    def vectors(self, v: torch.Tensor) -> torch.Tensor:
        """Return eigenvectors of the pair, with ``vᵀ b v = 1``, for those of c."""
        return torch.linalg.solve_triangular(self.factor.mT, v, upper=True)


def _whole(a: torch.Tensor, lower: bool) -> torch.Tensor:
    """Return the symmetric matrix of a triangle."""
    return a.tril() + a.tril(-1).mT if lower else a.triu() + a.triu(1).mT
