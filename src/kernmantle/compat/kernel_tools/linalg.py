"""kernel_tools.linalg's functions: spectra and LU factors, in place where asked.

Unlike there, CPU tensors are taken except over several GPUs, LU solves ``a x = b`` also for matrices that are not
symmetric, the triangle is that of the array, parts of the vectors do not keep the matrix, and a worker process that
fails is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ... import linalg
from ...errors import LinearAlgebraError
from ...linalg import cusolver
from ...linalg.arguments import columns_of

Pairs = torch.Tensor | tuple[torch.Tensor, torch.Tensor]


def _check(a: torch.Tensor, axes: int, name: str = "a") -> None:
    if a.dim() != axes:
        raise ValueError(f"{name} matrix must have {axes} axes, it has shape {tuple(a.shape)}")
    if a.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"{name} matrix must be float32 or float64")
    if name == "a" and a.shape[-1] != a.shape[-2]:
        raise ValueError("a matrix must be square")


def _raising(call: Callable[[], Any], routine: str) -> Any:
    try:
        return call()
    except LinearAlgebraError as error:
        raise ValueError(f"info of {routine} is not equal to 0: {error}") from error


def _pairs(found: Any, eigvals_only: bool) -> Pairs:
    return found if eigvals_only else (found.w, found.v)


def cusolver_eigh(
    a: torch.Tensor,
    overwrite_a: bool = False,
    subset_by_index: Sequence[int] | None = None,
    lower: bool = True,
    eigvals_only: bool = False,
    verbose: bool = False,  # noqa: ARG001
) -> Pairs:
    """Return all eigenvalues, and vectors, or those of a range of indices with both ends."""
    _check(a, 2)
    found = _raising(
        lambda: linalg.eigh(
            a, subset_by_index=subset_by_index, eigvals_only=eigvals_only, lower=lower, overwrite_a=overwrite_a,
            method="direct", check_errors=True,
        ),
        "syevdx",
    )  # fmt: skip
    return _pairs(found, eigvals_only)


def cusolver_batched_eigh(
    a: torch.Tensor,
    overwrite_a: bool = False,
    lower: bool = True,
    eigvals_only: bool = False,
    verbose: bool = False,  # noqa: ARG001
) -> Pairs:
    """Return all eigenvalues, and vectors, of a batch (count, n, n)."""
    _check(a, 3)
    found = _raising(
        lambda: linalg.eigh(a, eigvals_only=eigvals_only, lower=lower, overwrite_a=overwrite_a, check_errors=True),
        "syev_batched",
    )
    return _pairs(found, eigvals_only)


def cusolver_mg_eigh(
    a: torch.Tensor,
    overwrite_a: bool = False,
    max_num_devices: int = 16,
    verbose: bool = False,  # noqa: ARG001
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return all eigenvalues and vectors of a matrix in host memory, by all visible GPUs."""
    _check(a, 2)
    found = _raising(
        lambda: linalg.eigh_multi_gpu(a, max_devices=max_num_devices, overwrite_a=overwrite_a, check_errors=True),
        "mgSyevd",
    )
    return found.w, found.v


def cusolver_getrf(
    a: torch.Tensor,
    overwrite_a: bool = False,
    verbose: bool = False,  # noqa: ARG001
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return LU factors, as they lie in memory, and pivots, for :func:`cusolver_getrs`."""
    _check(a, 2)
    with torch.no_grad():
        found = _raising(lambda: linalg.lu_factor(a, overwrite_a=overwrite_a, check_errors=True), "getrf")
    return found.factors, found.pivots.to(torch.int64)


def cusolver_getrs(
    a: torch.Tensor,
    ipiv: torch.Tensor,
    targets: torch.Tensor,
    overwrite_targets: bool = False,
    verbose: bool = False,  # noqa: ARG001
) -> torch.Tensor:
    """Return the solutions, as rows (count, n), for targets as rows."""
    _check(a, 2)
    _check(targets, 2, "targets")
    if targets.shape[1] != a.shape[0]:
        raise ValueError("the dimension of a does not match the dimension of b")
    if a.dtype != targets.dtype:
        raise ValueError("a dtype must match targets dtype")
    storage = columns_of(a)
    if storage is None:
        raise ValueError("a must be the factors that cusolver_getrf returned")
    pivots = ipiv.to(torch.int32) if cusolver.library(a) is None else ipiv
    info = torch.zeros((), dtype=torch.int32, device=a.device)
    factor = linalg.LUFactor(a, pivots, info, storage[1], "cusolver_getrf")
    return linalg.lu_solve(factor, targets.mT, overwrite_b=overwrite_targets).x.mT


def cusolver_eigh_workspace_requirements(N: int, dtype: torch.dtype) -> tuple[int, int]:
    """Return the bytes on device and host of :func:`cusolver_eigh`."""
    found = linalg.workspace("eigh", N, dtype=dtype, subset_by_index=(0, N - 1))
    return found.device, found.host


def cusolver_batched_eigh_workspace_requirements(N: int, batch_size: int, dtype: torch.dtype) -> tuple[int, int]:
    """Return the bytes on device and host of :func:`cusolver_batched_eigh`."""
    found = linalg.workspace("eigh", N, dtype=dtype, batch=batch_size)
    return found.device, found.host


def cusolver_getrf_workspace_requirements(M: int, N: int, dtype: torch.dtype) -> tuple[int, int]:
    """Return the bytes on device and host of :func:`cusolver_getrf`."""
    found = linalg.workspace("lu", max(M, N), dtype=dtype)
    return found.device, found.host


def cusolver_mg_eigh_workspace_requirements(
    N: int,
    dtype: torch.dtype,
    num_devices: int | None = None,
    verbose: bool = False,  # noqa: ARG001
) -> int:
    """Return the bytes on each device of :func:`cusolver_mg_eigh`, for more devices than there are, too."""
    count = max(1, torch.cuda.device_count()) if num_devices is None else num_devices
    return linalg.workspace("eigh", N, dtype=dtype, devices=count).device
