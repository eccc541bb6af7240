"""Eigenvalues and vectors by direct methods: cuSOLVER on CUDA, LAPACK on the CPU."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch

from ..errors import BackendError, ParameterError, ShapeError
from ..torch_ops import cuda_eigen
from . import cusolver
from .arguments import Work
from .scaling import exponent, shifted

SMALL = 512
"""Order up to which a batch goes to XsyevBatched; 4 of order 1024 took 61 ms there, 43 one by one (H100, float32)."""
CAPTURED = 300
"""Order up to which XsyevBatched does not wait for the device, for one matrix at a time: for a batch of order 300, and
for one matrix of order 1024, it was seen to wait on an H200."""
_ROTATED = range(32, 513)
"""Orders for which torch takes Jacobi rotations for float32: residuals of 38 n eps ‖a‖ were seen there on an H200."""
_ORDINARY = 8
"""Binary exponents of the largest entry up to which a matrix goes to syevr as it is."""
_SYEVR = "LAPACK syevr through scipy"

Index = tuple[int, int]
Value = tuple[float, float]


@dataclass(frozen=True)
class Found:
    """Eigenvalues (..., k) in ascending order, vectors (..., n, k) or None, infos, and what ran."""

    w: torch.Tensor
    v: torch.Tensor | None
    info: torch.Tensor
    ran: str


def direct(
    a: torch.Tensor, lower: bool, overwrite: bool, vectors: bool, index: Index | None, value: Value | None
) -> Found:
    """Return all pairs, those of a range of indices with both ends, or those with values in (low, high]."""
    if value is not None and a.dim() > 2:
        raise ShapeError(
            f"subset_by_value may find another number of values in each item of a batch {tuple(a.shape)}; loop over it"
        )
    n = a.shape[-1]
    if index == (0, n - 1):
        index = None
    if a.numel() == 0:
        info = torch.zeros(a.shape[:-2], dtype=torch.int32, device=a.device)
        empty = Found(a.new_empty(a.shape[:-1]), a.new_empty(a.shape) if vectors else None, info, "nothing")
        return _cut(empty, index)
    if value is None and cuda_eigen.takes(a):
        return _by_rotations(a, lower, overwrite, vectors, index)
    library = cusolver.library(a)
    if cusolver.capturing(a):
        if library is None or n > CAPTURED or value is not None:
            raise cannot_be_captured(
                f"eigh of {tuple(a.shape)}", f"up to order {CAPTURED}, with nvmath-python, it can be"
            )
        return _captured(library, Work.on(a, overwrite), lower, vectors, index)
    if library is not None:
        return _by_cusolver(library, Work.on(a, overwrite), lower, vectors, index, value)
    if not a.is_cuda:
        return _on_host(a, lower, vectors, index, value)
    return _by_torch(a, lower, vectors, index, value)


def pairs(a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return all eigenvalues and vectors of symmetric matrices, not differentiable."""
    found = direct(a.detach(), True, False, True, None, None)
    assert found.v is not None
    return found.w, found.v


def _by_rotations(a: torch.Tensor, lower: bool, overwrite: bool, vectors: bool, index: Index | None) -> Found:
    """One kernel of Jacobi rotations, a group of lanes a matrix: for batches and for one, also in a CUDA graph."""
    n = a.shape[-1]
    flat = a if a.dim() == 3 else a.reshape(-1, n, n)
    over = overwrite and flat.data_ptr() == a.data_ptr()
    w = torch.empty(flat.shape[:-1], dtype=a.dtype, device=a.device)
    info = torch.empty(flat.shape[:1], dtype=torch.int32, device=a.device)
    v = None if not vectors else flat if over else torch.empty_like(flat, memory_format=torch.contiguous_format)
    cuda_eigen.run(flat if lower else flat.mT, w, v, info)
    found = None if v is None else v.reshape(a.shape)
    return _cut(Found(w.reshape(a.shape[:-1]), found, info.reshape(a.shape[:-2]), "one kernel of rotations"), index)


def _by_cusolver(
    library: cusolver.Library, work: Work, lower: bool, vectors: bool, index: Index | None, value: Value | None
) -> Found:
    memory, upper = work.memory, lower == work.flipped
    if index is not None or value is not None:
        return _some_by_cusolver(library, memory, upper, vectors, index, value)
    if cusolver.is_small(memory.shape[:-1], SMALL):
        flat = memory.mT.reshape(-1, *memory.shape[-2:]).contiguous()
        w, info = library.syev_batched(flat, upper, vectors)
        return _batched(memory, flat, w, info, vectors)
    w, info = library.syevd(memory, upper, vectors)
    return Found(w, memory if vectors else None, info, "cuSOLVER Xsyevd")


def _batched(memory: torch.Tensor, flat: torch.Tensor, w: torch.Tensor, info: torch.Tensor, vectors: bool) -> Found:
    """Return the results for one batch axis as those of the batch that was given."""
    batch = memory.shape[:-2]
    v = flat.mT.reshape(memory.shape) if vectors else None
    return Found(w.reshape(*batch, -1), v, info.reshape(batch), "cuSOLVER XsyevBatched")


def _captured(library: cusolver.Library, work: Work, lower: bool, vectors: bool, index: Index | None) -> Found:
    """Return one matrix after the other, in a CUDA graph."""
    memory, upper = work.memory, lower == work.flipped
    flat = memory.mT.reshape(-1, *memory.shape[-2:]).contiguous()
    results = [library.syev_batched(item, upper, True) for item in flat.split(1)]
    w, info = (torch.cat(parts) for parts in zip(*results, strict=True))
    return _cut(_batched(memory, flat, w, info, vectors), index)


def _some_by_cusolver(
    library: cusolver.Library, memory: torch.Tensor, upper: bool, vectors: bool, index: Index | None,
    value: Value | None,
) -> Found:  # fmt: skip
    n = memory.shape[-1]
    results = [
        library.syevdx(item, upper, vectors, index, value) for item in memory.reshape(-1, n, n).unbind()
    ] if memory.dim() > 2 else [library.syevdx(memory, upper, vectors, index, value)]  # fmt: skip
    count = results[0][2] if index is None else index[1] - index[0] + 1
    batch = memory.shape[:-2]
    w = torch.stack([values[:count] for values, _, _ in results]).reshape(*batch, count)
    # Fewer than were asked for count as not converged.
    info = torch.stack([state if found == count else state.new_full((), n) for _, state, found in results])
    info = info.reshape(batch)
    # A copy, so that a few vectors do not keep the whole matrix.
    v = memory[..., :count].mT.clone(memory_format=torch.contiguous_format).mT if vectors else None
    return Found(w, v, info, "cuSOLVER Xsyevdx")


def _by_torch(a: torch.Tensor, lower: bool, vectors: bool, index: Index | None, value: Value | None) -> Found:
    triangle, dtype = "L" if lower else "U", a.dtype
    if a.is_cuda and dtype == torch.float32 and a.shape[-1] in _ROTATED:
        a = a.double()
    info = torch.zeros(a.shape[:-2], dtype=torch.int32, device=a.device)
    ran = cusolver.instead(a, "torch.linalg.eigh" if vectors else "torch.linalg.eigvalsh")
    w, v = _all_by_torch(a, triangle, vectors, info)
    w, v = w.to(dtype), None if v is None else v.to(dtype)
    if value is not None:
        inside = (w > value[0]) & (w <= value[1])
        return Found(w[inside], None if v is None else v[:, inside], info, ran)
    return _cut(Found(w, v, info, ran), index)


def _all_by_torch(
    a: torch.Tensor, triangle: str, vectors: bool, info: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return all pairs; items that do not converge are NaN, with their info set to 1."""
    try:
        if vectors:
            w, v = torch.linalg.eigh(a, triangle)
            return w, v
        return torch.linalg.eigvalsh(a, triangle), None
    except torch.linalg.LinAlgError:  # pyright: ignore[reportPrivateImportUsage]
        if a.dim() == 2:
            info.fill_(1)
            nan = a.new_full((), float("nan"))
            return nan.expand(a.shape[-1]), nan.expand(a.shape) if vectors else None
    each = [_all_by_torch(*one) for one in zip(
        a.flatten(0, -3), [triangle] * info.numel(), [vectors] * info.numel(), info.view(-1), strict=True
    )]  # fmt: skip
    w = torch.stack([values for values, _ in each]).reshape(a.shape[:-1])
    v = torch.stack([found for _, found in each if found is not None]).reshape(a.shape) if vectors else None
    return w, v


def _cut(found: Found, index: Index | None) -> Found:
    """Return pairs of a range of positions, which do not keep the others."""
    if index is None:
        return found
    some = slice(index[0], index[1] + 1)
    v = None if found.v is None else found.v[..., some].clone()
    return Found(found.w[..., some].clone(), v, found.info, found.ran)


def cannot_be_captured(what: str, instead: str) -> BackendError:
    """Return what waits for the device, in a CUDA graph."""
    return BackendError(f"{what} waits for the device and cannot be captured in a CUDA graph; {instead}")


def _on_host(a: torch.Tensor, lower: bool, vectors: bool, index: Index | None, value: Value | None) -> Found:
    """LAPACK, which does not end on every NaN: matrices that have one get NaN and info n + 1."""
    n = a.shape[-1]
    triangle = a.tril() if lower else a.triu()
    bad = ~torch.isfinite(triangle).flatten(-2).all(-1)
    if bad.any():
        a = torch.where(bad[..., None, None], torch.eye(n, dtype=a.dtype), a)
        if value is not None and a.dim() == 2:
            value, index = None, (0, n - 1)
    if index is not None or value is not None:
        found = _by_scipy(a, lower, vectors, index, value)
    else:
        found = _by_torch(a, lower, vectors, index, value)
    if bad.any():
        w = torch.where(bad[..., None], float("nan"), found.w)
        v = None if found.v is None else torch.where(bad[..., None, None], float("nan"), found.v)
        return Found(w, v, torch.where(bad, n + 1, 0).to(torch.int32), found.ran)
    return found


def _by_scipy(a: torch.Tensor, lower: bool, vectors: bool, index: Index | None, value: Value | None) -> Found:
    items = a.reshape(-1, *a.shape[-2:]).unbind()
    results = [_some_by_scipy(item, lower, vectors, index, value) for item in items]
    batch = a.shape[:-2]
    w = torch.stack([found.w for found in results]).reshape(*batch, -1)
    info = torch.stack([found.info for found in results]).reshape(batch)
    v = torch.stack([found.v for found in results if found.v is not None]) if vectors else None
    ran = next((found.ran for found in results if found.ran != _SYEVR), _SYEVR)
    return Found(w, None if v is None else v.reshape(*batch, *v.shape[-2:]), info, ran)


def _some_by_scipy(a: torch.Tensor, lower: bool, vectors: bool, index: Index | None, value: Value | None) -> Found:
    """Some pairs of one matrix by syevr, which may find fewer than it is asked for where eigenvalues are clustered.

    Such matrices, and those where it does not converge, are taken by the method for all pairs. Matrices whose largest
    entry is far from one lose digits there, and are scaled by a power of two.
    """
    linalg: Any = import_module("scipy.linalg")
    size = exponent(a.abs().amax())
    scaled = abs(int(size)) > _ORDINARY
    matrix = shifted(a, -size) if scaled else a
    half = -int(size) // 2
    ends = value if value is None or not scaled else tuple(e * 2.0**half * 2.0 ** (-int(size) - half) for e in value)
    try:
        result = linalg.eigh(
            matrix.numpy(), lower=lower, eigvals_only=not vectors, check_finite=False, subset_by_index=index,
            subset_by_value=ends,
        )  # fmt: skip
    except linalg.LinAlgError:
        return _by_torch(a, lower, vectors, index, value)
    w, v = result if vectors else (result, None)
    if index is not None and w.shape[0] != index[1] - index[0] + 1:
        return _by_torch(a, lower, vectors, index, value)
    found = None if v is None else torch.from_numpy(v)
    values = torch.from_numpy(w)
    return Found(shifted(values, size) if scaled else values, found, torch.zeros((), dtype=torch.int32), _SYEVR)


def index_of(subset: Any, n: int) -> Index | None:
    """Return the checked positions of a part of the spectrum."""
    if subset is None:
        return None
    try:
        low, high = map(operator.index, subset)
    except (TypeError, ValueError):
        raise ParameterError(f"subset_by_index must be a pair of integers (first, last), not {subset!r}") from None
    if not (0 <= low <= high < n):
        raise ParameterError(
            f"subset_by_index={(low, high)} must be first <= last within 0 and {n - 1}, both ends included"
        )
    return low, high


def value_of(subset: Any) -> Value | None:
    """Return the checked bounds of a part of the spectrum."""
    if subset is None:
        return None
    try:
        low, high = map(float, subset)
    except (TypeError, ValueError):
        low = high = math.nan
    if not low < high:
        raise ParameterError(
            f"subset_by_value must be a pair low < high, for the half-open (low, high], not {subset!r}"
        )
    return low, high
