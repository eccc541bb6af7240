"""The operands of a Kronecker-sparse product, and memory for its result."""

from __future__ import annotations

from typing import NamedTuple

import torch

from ...torch_ops.execute import allocate
from .pack import PackedWeights


class Operands(NamedTuple):
    """A product ``activation(Σ_k weight[g, i, j, k, l] x[g, n, (i, k, l)] + bias[g, (i, j, l)])``.

    ``x`` is (G, N, a c d) with any strides, ``weight`` (H, a, b, c, d) with H = G or 1, ``bias`` (H, a b d) or None.
    The result has the batch last in memory if ``batch_last``; ``packed`` are copies of weights that do not change.
    """

    x: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor | None = None
    activation: str = ""
    batch_last: bool = False
    precision: str = ""
    packed: PackedWeights | None = None

    @property
    def features(self) -> int:
        """Features of the result."""
        return self.weight.shape[1] * self.weight.shape[2] * self.weight.shape[4]

    def allocated(self) -> torch.Tensor:
        """Return memory for the result."""
        return empty(self.x, self.features, self.batch_last)


def empty(x: torch.Tensor, features: int, batch_last: bool) -> torch.Tensor:
    """Return an uninitialised tensor (G, N, features), with the batch last in memory if asked."""
    groups, count, _ = x.shape
    if batch_last:
        return allocate((groups, features, count), x.dtype, x.device).transpose(1, 2)
    return allocate((groups, count, features), x.dtype, x.device)
