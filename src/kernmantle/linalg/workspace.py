"""How much memory the dense routines take besides their matrices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..checks import integer
from ..errors import ParameterError
from . import cusolver, spectrum
from .arguments import check_dtype
from .cusolvermp import block_of, columns_of
from .krylov import Sizes

_NAMES = {"cholesky": "potrf", "lu": "getrf", "eigh": "syevd"}
ROUTINES = (*_NAMES, "eigh_iterative")


@dataclass(frozen=True)
class Workspace:
    """Bytes that a routine takes.

    Attributes
    ----------
    device, host : int
        Workspace on each GPU, or in host memory for one matrix there, and on the host in addition.
    matrix : int
        The matrices themselves, on each GPU, overwritten in place.
    exact : bool
        Whether the library was asked; otherwise a formula was used, fitted to its answers.
    """

    device: int
    host: int
    matrix: int
    exact: bool

    @property
    def total(self) -> int:
        """Workspace and matrices on each device."""
        return self.device + self.matrix


def workspace(
    routine: str,
    n: int,
    *,
    dtype: torch.dtype = torch.float32,
    batch: int = 1,
    devices: int = 1,
    eigvals_only: bool = False,
    subset_by_index: Sequence[int] | None = None,
) -> Workspace:
    """Return the bytes that a routine takes for matrices of order n.

    Parameters
    ----------
    routine : {"cholesky", "lu", "eigh", "eigh_iterative"}
        "lu" and "cholesky" for factorisation and solution.
    n : int
        Rows.
    dtype : torch.dtype
        float32 or float64.
    batch : int
        Matrices at once.
    devices : int
        GPUs that share each matrix, through cuSOLVERMp; more than there are may be asked for.
    eigvals_only : bool
        For "eigh": without vectors.
    subset_by_index : (first, last), optional
        For "eigh" and "eigh_iterative": a part of the spectrum.

    Returns
    -------
    Workspace
        Exact for one device where cuSOLVER can be asked, otherwise from a formula, which ``exact`` tells.

    Raises
    ------
    ParameterError
        For a routine that is not there, or a subset out of range.

    Notes
    -----
    Nothing is allocated and nothing computed.

    Examples
    --------
    >>> import kernmantle as km
    >>> km.linalg.workspace("cholesky", 20_000).matrix
    1600000000
    """
    _check(routine, n, batch, devices)
    check_dtype(torch.empty(0, dtype=dtype), "the matrix")
    size = dtype.itemsize
    if devices > 1:
        share = len(columns_of(n, 0, devices, block_of(_NAMES[routine], n, devices)))
        copies = 2 if routine.startswith("eigh") and not eigvals_only else 1
        return Workspace(_over_gpus(routine, n, devices, size), 0, batch * copies * share * n * size, False)
    matrix = batch * n * n * size
    if routine == "eigh_iterative":
        first, last = spectrum.index_of(subset_by_index, n) or (0, n - 1)
        sizes = Sizes.of(n, last - first + 1)
        return Workspace((2 * n * sizes.basis + 3 * sizes.basis**2 + 6 * n * sizes.block) * size, 0, matrix, False)
    library = cusolver.load() if torch.cuda.is_available() else ""
    if isinstance(library, cusolver.Library):
        device, host = _asked(library, routine, n, dtype, batch, not eigvals_only, subset_by_index)
        return Workspace(device, host, matrix, True)
    lanes = min(batch, cusolver.LANES)
    return Workspace(lanes * _FORMULAS[routine](n, size), 0, matrix, False)


_FORMULAS: dict[str, Callable[[int, int], int]] = {
    "cholesky": lambda n, _: n * n // 256 + 1280,
    "lu": lambda n, _: n * n // 256 + 8 * n + 1280,
    "eigh": lambda n, size: (4 * n * n + 128 * n + 32_000) * size,
}
"""Bytes that cuSOLVER 12 asks for, by the order and the bytes of a number."""


def _over_gpus(routine: str, n: int, devices: int, size: int) -> int:
    """Return what cuSOLVERMp 0.8 asks for, or somewhat more."""
    name = _NAMES[routine]
    block = block_of(name, n, devices)
    rows = n + 3 * block
    if name == "syevd":
        return (4 * n * (1 << max(0, n - 1).bit_length()) // devices + 4 * rows * block) * size
    return rows * (8 * block // 5 + 512 if name == "getrf" else block) * size


def _check(routine: str, n: Any, batch: Any, devices: Any) -> None:
    if routine not in ROUTINES:
        raise ParameterError(f"unknown routine {routine!r}; available are {', '.join(ROUTINES)}")
    for name, value, least in (("n", n, 0), ("batch", batch, 0), ("devices", devices, 1)):
        integer(value, name, least)
    if devices > 1 and routine == "eigh_iterative":
        raise ParameterError("the iteration runs on one device; ask for 'eigh'")


def _asked(
    library: cusolver.Library, routine: str, n: int, dtype: torch.dtype, batch: int, vectors: bool, subset: Any
) -> tuple[int, int]:
    device = torch.device("cuda", torch.cuda.current_device())
    lanes = min(batch, cusolver.LANES)
    if routine == "cholesky":
        sizes = library.potrf_sizes(device, n, dtype)
    elif routine == "lu":
        sizes = library.getrf_sizes(device, n, dtype)
    elif subset is not None:
        sizes, lanes = library.syevdx_sizes(device, n, dtype, vectors, (int(subset[0]), int(subset[1]))), 1
    elif cusolver.is_small((batch, n), spectrum.SMALL):
        return library.syev_batched_sizes(device, n, dtype, vectors, batch)
    else:
        sizes = library.syevd_sizes(device, n, dtype, vectors)
    return lanes * sizes[0], lanes * sizes[1]
