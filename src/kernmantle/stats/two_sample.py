"""Maximum mean discrepancy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..errors import ShapeError
from ..pairwise import Kernel
from .permutation import PermutationTest, chosen_kernel, permutation_count, permutation_test, row_sums, samples


@dataclass(frozen=True)
class _Pooled:
    """Both samples as the rows of one, of which ``first`` are of x, and what all divisions of them have in common."""

    kernel: Kernel
    rows: torch.Tensor
    first: int
    unbiased: bool
    sums: torch.Tensor
    diagonal: torch.Tensor

    def statistics(self, members: torch.Tensor) -> torch.Tensor:
        """Statistics in float64 of divisions, columns (n, c) of 1 for rows of the first sample and 0 for the others.

        The matrix is multiplied by columns of mean 0, so that nearly equal sums are not subtracted from each other.
        """
        size, m = self.rows.shape[0], self.first
        share, n = m / size, size - m
        centred = members - share
        within = (centred * self.kernel.matmul(self.rows, None, centred)).sum(0, dtype=torch.float64)
        wide, total = centred.double(), self.sums.sum(dtype=torch.float64)
        across = wide.mT @ self.sums.double()
        of_x = within + 2 * share * across + share**2 * total
        of_y = within - 2 * (1 - share) * across + (1 - share) ** 2 * total
        between = -within + (1 - 2 * share) * across + share * (1 - share) * total
        if not self.unbiased:
            return of_x / m**2 + of_y / n**2 - 2 * between / (m * n)
        own = wide.mT @ self.diagonal.double() + share * self.diagonal.sum(dtype=torch.float64)
        rest = self.diagonal.sum(dtype=torch.float64) - own
        return (of_x - own) / (m * (m - 1)) + (of_y - rest) / (n * (n - 1)) - 2 * between / (m * n)

    def permuted(self, orders: np.ndarray) -> torch.Tensor:
        """Statistics of divisions whose first sample are the rows that come first in an order."""
        chosen = torch.as_tensor(orders[:, : self.first], device=self.rows.device)
        members = self.rows.new_zeros(len(orders), self.rows.shape[0]).scatter_(1, chosen, 1)
        return self.statistics(members.mT.contiguous())


def mmd(
    x: Any, y: Any, kernel: Kernel | None = None, *, unbiased: bool = True, permutations: int = 500,
    random_state: Any = None, verbose: bool = False,
) -> PermutationTest:  # fmt: skip
    """Return the squared maximum mean discrepancy of two samples, and whether they may have one distribution.

    ``Σ_ij k(x_i, x_j) / m² + Σ_ij k(y_i, y_j) / n² - 2 Σ_ij k(x_i, y_j) / (m n)``, the squared distance of the means in
    the feature space of the kernel; unbiased without the terms i = j, over ``m (m - 1)`` and ``n (n - 1)``.

    Parameters
    ----------
    x, y : array, shapes (m, k) and (n, k)
        Tensors, numpy or DLPack arrays; integers count as floating point, halves are computed in float32.
    kernel : km.Kernel, optional
        By default the Gaussian at the median distance of all rows, which is a constant in gradients.
    unbiased : bool
        Of mean 0 where the distributions are equal, and then often below it.
    permutations : int
        Divisions of all rows into samples of m and n that are drawn; 0 for the statistic alone.
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
        For rows of different numbers of columns, fewer than two rows (one, if biased), a kernel that is not
        symmetric, and permutations in a transform of torch.func.

    Notes
    -----
    Cost: the N² kernel values of all N = m + n rows, twice, and once more for every 64 MB of permutations, each of
    which is a column that the matrix is multiplied by; the matrix is not stored. The statistic of tensors has
    gradients of every order in x, y and the hyperparameters, so that it can be a loss with ``permutations=0``. NaN in a
    row gives NaN. Source: Gretton, Borgwardt, Rasch, Schölkopf and Smola, A kernel two-sample test, 2012.

    Examples
    --------
    >>> import kernmantle as km, numpy as np
    >>> random = np.random.default_rng(0)
    >>> x, y = random.normal(size=(200, 3)), 1.5 * random.normal(size=(200, 3))
    >>> km.stats.mmd(x, y, random_state=0).p_value < 0.01
    True
    >>> km.stats.mmd(x, random.normal(size=(150, 3)), random_state=0).p_value > 0.05
    True
    """
    count = permutation_count(permutations)
    first, second = samples(x, y)
    least = 2 if unbiased else 1
    if first.shape[1] != second.shape[1] or min(len(first), len(second)) < least:
        raise ShapeError(
            f"mmd takes at least {least} rows of x and of y, with the same number of columns: "
            f"x has shape {tuple(first.shape)}, y {tuple(second.shape)}"
        )
    rows = torch.cat([first, second])
    own = chosen_kernel(kernel, rows, "kernel")
    sums = row_sums(own, rows, "kernel")
    pooled = _Pooled(own, rows, len(first), unbiased, sums, own.diagonal(rows))
    members = torch.cat([rows.new_ones(len(first), 1), rows.new_zeros(len(second), 1)])
    statistic = pooled.statistics(members)[0].to(rows.dtype)
    tensors = isinstance(x, torch.Tensor)
    return permutation_test(statistic, pooled.permuted, len(rows), count, random_state, tensors, verbose)
