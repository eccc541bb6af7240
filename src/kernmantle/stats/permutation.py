"""Shared by permutation tests: their result, the samples and kernels they take, and how often chance does better."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from ..arrays import check_same_device, unwrap
from ..checks import integer
from ..errors import GradientError, ParameterError, ShapeError
from ..pairwise import CONSTRUCTORS, Kernel
from ..pairwise.bandwidth import typical_distance
from ..torch_ops.torch_private import is_transformed, underlying

BYTES = 64 << 20
"""Bytes of the permutations that are there at a time."""
ROUNDING = 100
"""Units of the type within which two statistics count as equal, as in scipy's permutation tests."""


@dataclass(frozen=True)
class PermutationTest:
    """A statistic, and how often it is as large by chance.

    Attributes
    ----------
    statistic : float, or 0-d tensor for tensors
        Its value; that of tensors has gradients.
    p_value : float or None
        Share of the permutations, the given order counted among them, whose statistic is at least as large; None
        without permutations.
    null_distribution : array of float64, shape (permutations,), or None
        Statistics of the permutations, a numpy array.
    """

    statistic: Any
    p_value: float | None = None
    null_distribution: Any = field(default=None, repr=False)


def samples(x: Any, y: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the rows of floating-point numbers of one type, float32 or float64."""
    (left, right), _ = unwrap(x, y, names="xy")
    check_same_device([left, right], "xy")
    wide = []
    for name, array, rows in (("x", x, left), ("y", y, right)):
        if rows.dim() != 2 or not rows.shape[1]:
            raise ShapeError(f"{name} must have rows and columns, it has shape {tuple(rows.shape)}")
        if not rows.is_floating_point():
            rows = rows.to(torch.float32 if isinstance(array, torch.Tensor) else torch.float64)
        wide.append(rows.float() if rows.dtype in (torch.float16, torch.bfloat16) else rows)
    dtype = torch.promote_types(wide[0].dtype, wide[1].dtype)
    return wide[0].to(dtype), wide[1].to(dtype)


def chosen_kernel(kernel: Any, rows: torch.Tensor, name: str) -> Kernel:
    """Return a kernel; by default the Gaussian at the median distance of the rows."""
    if kernel is None:
        if underlying(rows).dim() > rows.dim():
            raise GradientError(f"rows of torch.func.vmap have no values to take a median of: pass {name}")
        return CONSTRUCTORS["Gaussian"](bandwidth=typical_distance(rows.detach()))
    if not isinstance(kernel, Kernel):
        raise ParameterError(f"{name} must be a km.Kernel or None, got {kernel!r}")
    if not kernel.is_symmetric:
        raise ParameterError(f"{name}={kernel!r} is not symmetric in its two rows: pass a kernel that is")
    return kernel


def permutation_count(permutations: Any) -> int:
    """Return the number of permutations; GradientError for some under a transform, where statistics have no values."""
    count = integer(permutations, "permutations", 0)
    if count and is_transformed():
        raise GradientError("a transform of torch.func has no values to count: pass permutations=0")
    return count


def row_sums(kernel: Kernel, rows: torch.Tensor, name: str) -> torch.Tensor:
    """Return the sums over the rows of the kernel's matrix, (n,)."""
    sums = kernel.sum(rows)
    if sums.dim() != 1:
        raise ShapeError(f"{name}={kernel!r} has a batch of hyperparameters: test with one after the other")
    return sums


def permutation_test(
    statistic: torch.Tensor, permuted: Callable[[np.ndarray], torch.Tensor], rows: int, permutations: int,
    random_state: Any, tensors: bool, verbose: bool,
) -> PermutationTest:  # fmt: skip
    """Return the test of a statistic; ``permuted`` gives those of permutations, a row each, as float64."""
    if not permutations:
        return PermutationTest(statistic if tensors else float(statistic.detach()))
    try:
        random, found = np.random.default_rng(random_state), list[np.ndarray]()
    except (TypeError, ValueError) as error:
        raise ParameterError(f"random_state must be an integer, a numpy Generator or None: {error}") from error
    size = max(1, BYTES // (8 * rows))
    with torch.no_grad(), tqdm(total=permutations, desc="permutations", disable=not verbose) as bar:
        for start in range(0, permutations, size):
            count = min(size, permutations - start)
            found.append(permuted(np.stack([random.permutation(rows) for _ in range(count)])).cpu().numpy())
            bar.update(count)
    null, own = np.concatenate(found), float(statistic.detach())
    value = statistic if tensors else own
    slack = ROUNDING * torch.finfo(statistic.dtype).eps * abs(own)
    p_value = (1 + int((null >= own - slack).sum())) / (1 + permutations)
    return PermutationTest(value, p_value if np.isfinite(own) else float("nan"), null)
