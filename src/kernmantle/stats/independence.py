"""The Hilbert-Schmidt independence criterion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.checkpoint import checkpoint

from ..errors import ShapeError
from ..pairwise import Kernel
from ..torch_ops.torch_private import is_transformed
from .permutation import PermutationTest, chosen_kernel, permutation_count, permutation_test, row_sums, samples

BLOCK = {"cpu": 2 << 20, "cuda": 64 << 20}
"""Bytes of a block of either matrix: few enough that the caches of a CPU have both."""


@dataclass(frozen=True)
class _Joint:
    """Both variables, their kernels, and the row sums of the matrix of the first."""

    kernels: tuple[Kernel, Kernel]
    x: torch.Tensor
    y: torch.Tensor
    unbiased: bool
    sums: torch.Tensor

    def _centred(self, start: int, stop: int) -> torch.Tensor:
        """Rows of the matrix of x, whose rows and columns then sum to 0, without the diagonal if unbiased."""
        size = len(self.x)
        block, own = self.kernels[0](self.x[start:stop], self.x), self.sums[start:stop, None]
        if not self.unbiased:
            return block - own / size - self.sums / size + self.sums.mean() / size
        block = block - own / (size - 2) - self.sums / (size - 2) + self.sums.sum() / ((size - 1) * (size - 2))
        outside = torch.arange(size, device=block.device) != torch.arange(start, stop, device=block.device)[:, None]
        return block * outside

    def _part(self, start: int, stop: int, orders: Sequence[torch.Tensor | None]) -> torch.Tensor:
        """Return the share of a block of rows in the sums of products of entries, of y in some orders, in float64."""
        block, found = self._centred(start, stop), []
        for order in orders:
            rows = self.y if order is None else self.y[order]
            found.append(torch.linalg.vecdot(block, self.kernels[1](rows[start:stop], rows)).sum(dtype=torch.float64))
        return torch.stack(found)

    def statistics(self, orders: Sequence[torch.Tensor | None]) -> torch.Tensor:
        """Statistics of y in some orders; blocks of both matrices are computed again for gradients."""
        size = len(self.x)
        block = BLOCK.get(self.x.device.type, BLOCK["cuda"])
        lines = max(1, block // (size * self.x.element_size()))
        total = self.sums.new_zeros(len(orders), dtype=torch.float64)
        for start in range(0, size, lines):
            stop = min(start + lines, size)
            if torch.is_grad_enabled() and not is_transformed():  # in which torch has no checkpoints
                total = total + checkpoint(self._part, start, stop, orders, use_reentrant=False)
            else:
                total = total + self._part(start, stop, orders)
        return total / (size * (size - 3) if self.unbiased else size**2)

    def permuted(self, orders: np.ndarray) -> torch.Tensor:
        """Statistics of y in some orders, a row each."""
        return self.statistics(list(torch.as_tensor(orders, device=self.y.device)))


def hsic(
    x: Any, y: Any, kernel_x: Kernel | None = None, kernel_y: Kernel | None = None, *, unbiased: bool = True,
    permutations: int = 500, random_state: Any = None, verbose: bool = False,
) -> PermutationTest:  # fmt: skip
    """Hilbert-Schmidt independence criterion of two variables, and whether they may be independent.

    ``tr(K H L H) / n²`` with the matrices K of x and L of y and the centring H = I - 1/n; unbiased the estimate of Song
    and others, ``Σ_i≠j K̃_ij L_ij / (n (n - 3))``, with the matrix K̃ whose rows and columns sum to 0 without a diagonal.

    Parameters
    ----------
    x, y : array, shapes (n, k) and (n, l)
        Rows that were observed together; tensors, numpy or DLPack arrays. Integers count as floating point, halves are
        computed in float32.
    kernel_x, kernel_y : km.Kernel, optional
        By default Gaussians at the median distances of the rows of x and of y, which are constants in gradients.
    unbiased : bool
        Of mean 0 where the variables are independent, and then often below it.
    permutations : int
        Orders of the rows of y that are drawn; 0 for the statistic alone.
    random_state : int, numpy Generator or None
        Draws them.
    verbose : bool
        Progress of the permutations.

    Returns
    -------
    PermutationTest
        ``statistic``, ``p_value`` and ``null_distribution``.

    Raises
    ------
    ShapeError, ParameterError, GradientError
        For different numbers of rows, fewer than four rows (one, if biased), a kernel that is not symmetric, and
        permutations in a transform of torch.func.

    Notes
    -----
    Cost: n² values of the kernel of x for every 64 MB of permutations, and n² of that of y for every permutation.
    Blocks of 2 MB of both matrices are in memory at a time, on GPUs 64 MB. The statistic of tensors has gradients in x,
    y and the hyperparameters, for which the blocks are computed again (stored in transforms of torch.func), so that it
    can be a loss with ``permutations=0``. NaN in a row gives NaN. Sources: Gretton, Fukumizu, Teo, Song, Schölkopf and
    Smola, A kernel statistical test of independence, 2008; Song, Smola, Gretton, Bedo and Borgwardt, Feature selection
    via dependence maximization, 2012.

    Examples
    --------
    >>> import kernmantle as km, numpy as np
    >>> random = np.random.default_rng(0)
    >>> x = random.normal(size=(100, 1))
    >>> y = x**2 + 0.1 * random.normal(size=(100, 1))  # uncorrelated, and not independent
    >>> km.stats.hsic(x, y, permutations=99, random_state=0).p_value
    0.01
    """
    count = permutation_count(permutations)
    first, second = samples(x, y)
    least = 4 if unbiased else 1
    if len(first) != len(second) or len(first) < least:
        raise ShapeError(
            f"hsic takes at least {least} rows of x and as many of y: x has shape {tuple(first.shape)}, y "
            f"{tuple(second.shape)}"
        )
    kernels = chosen_kernel(kernel_x, first, "kernel_x"), chosen_kernel(kernel_y, second, "kernel_y")
    sums = row_sums(kernels[0], first, "kernel_x")
    row_sums(kernels[1], second[:1], "kernel_y")
    joint = _Joint(kernels, first, second, unbiased, sums - kernels[0].diagonal(first) if unbiased else sums)
    statistic = joint.statistics([None])[0].to(first.dtype)
    tensors = isinstance(x, torch.Tensor)
    return permutation_test(statistic, joint.permuted, len(first), count, random_state, tensors, verbose)
