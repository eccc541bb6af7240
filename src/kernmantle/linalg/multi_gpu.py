"""Eigenvalues and vectors of a matrix in host memory by all GPUs of the machine, called from one process."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from ..arrays import Wrap
from ..checks import integer
from ..errors import DeviceError, OutOfMemoryError, ShapeError
from . import spectrum
from .arguments import check_overwrite, check_reverse, check_values, enough_memory, matrix
from .cusolvermp import QUICKER, SOLVING, bindings
from .eigh import MEANING, Spectrum
from .processes import Team
from .row_source import available
from .solution import nan_where_failed, raise_for

WORKER = "kernmantle.linalg.worker"


def eigh_multi_gpu(
    a: Any,
    *,
    max_devices: int | None = None,
    eigvals_only: bool = False,
    overwrite_a: bool = False,
    timeout: float | None = None,
    check: bool = False,
    check_errors: bool = False,
) -> Any:
    """Return all eigenvalues and vectors of a symmetric matrix in host memory, by several GPUs at once.

    One worker process a GPU, with cuSOLVERMp and NCCL; the matrix and the vectors pass through shared memory. With
    one GPU it is :func:`eigh` there. A worker that dies or fails ends the others and is an error here; none is left
    behind, whatever becomes of the calling process.

    Parameters
    ----------
    a : array, shape (n, n)
        float32 or float64, in host memory; both triangles are read.
    max_devices : int, optional
        GPUs to use at most; by default one up to order 20 000, where it is quicker, and all that are visible beyond.
    eigvals_only : bool
        Return w alone.
    overwrite_a : bool
        Let the vectors take the place of a.
    timeout : float, optional
        Seconds after which the workers are ended.
    check : bool
        See that a is finite and symmetric.
    check_errors : bool
        Raise if the info is not 0.

    Returns
    -------
    Spectrum or array
        ``w, v`` in host memory, as of :func:`eigh`.

    Raises
    ------
    DeviceError
        Without a GPU.
    BackendError
        If cuSOLVERMp is missing, or does not go with torch's NCCL.
    WorkerError
        If a worker died, failed or did not finish in time; a is as it was.

    Notes
    -----
    Memory: each GPU holds n² / GPUs numbers twice, and the workspace that :func:`workspace` tells; the host a copy.
    Under torchrun, with the matrix already spread, use ``km.distributed.eigh``.

    Cost: as of :func:`eigh`, divided among the GPUs, and the seconds that workers take to start. No gradient.

    Examples
    --------
    >>> import torch, kernmantle as km
    >>> if torch.cuda.device_count() > 1:
    ...     w, v = km.linalg.eigh_multi_gpu(torch.eye(2000).numpy(), timeout=120)
    """
    tensor, wrap = matrix(a)
    check_reverse(tensor, "a")
    if tensor.dim() != 2:
        raise ShapeError(f"eigh_multi_gpu takes one matrix, not a batch {tuple(tensor.shape)}; loop over it")
    if tensor.is_cuda:
        raise DeviceError("a must be in host memory; call .cpu(), or km.linalg.eigh for one GPU")
    if overwrite_a:
        check_overwrite(tensor, "a")
    if check:
        check_values(tensor, symmetric=True)
    count = _devices(max_devices, tensor)
    if count > 1:
        bindings()
    tensor = tensor.detach()
    if count == 1:
        with enough_memory("eigh", tensor, "and four times as much again"):
            found = spectrum.direct(tensor.cuda(), True, True, not eigvals_only, None, None)
        w, info = found.w.cpu(), found.info.cpu()
        v, ran = None if found.v is None else found.v.cpu(), found.ran
    else:
        w, v, info = over_workers(tensor, count, "nccl", not eigvals_only, timeout)
        ran = f"cuSOLVERMp syevd on {count} GPUs"
    return _result(tensor, w, v, info, ran, overwrite_a, check_errors, wrap)


def _result(
    tensor: torch.Tensor, w: torch.Tensor, v: torch.Tensor | None, info: torch.Tensor, ran: str, overwrite: bool,
    check_errors: bool, wrap: Wrap,
) -> Any:  # fmt: skip
    if check_errors:
        raise_for(info, MEANING)
    w = nan_where_failed(w, info)
    if v is None:
        return wrap(w)
    v = nan_where_failed(v, info)
    return Spectrum(wrap(w), wrap(tensor.copy_(v) if overwrite else v), wrap(info), None, ran)


def _devices(most: Any, a: torch.Tensor) -> int:
    most = None if most is None else integer(most, "max_devices")
    present = torch.cuda.device_count()
    if not present:
        raise DeviceError("eigh_multi_gpu needs an NVIDIA GPU, and torch finds none; km.linalg.eigh runs on the CPU")
    if most is not None:
        return min(most, present)
    fits = SOLVING * a.nbytes <= available(torch.device("cuda", torch.cuda.current_device()))
    return 1 if fits and a.shape[0] <= QUICKER["syevd"] else present


def _shared_folder(size: int) -> Path:
    """Return a directory for a file that processes share: in memory if there is room."""
    folders = [Path("/dev/shm"), Path(tempfile.gettempdir())]
    for folder in folders:
        if folder.is_dir() and os.access(folder, os.W_OK) and shutil.disk_usage(folder).free > size:
            return folder
    raise OutOfMemoryError(f"{size} bytes are needed to share the matrix, in {' or '.join(map(str, folders))}")


def shared(path: Path, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor in the memory of a file."""
    size = 1
    for extent in shape:
        size *= extent
    return torch.from_file(str(path), shared=True, size=size, dtype=dtype).reshape(shape)


def over_workers(
    a: torch.Tensor, count: int, backend: str, vectors: bool, timeout: float | None, worker: str = WORKER
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
    """Return the eigenvalues, vectors and info of a matrix from ``count`` processes."""
    n = a.shape[0]
    folder = Path(tempfile.mkdtemp(prefix="kernmantle-", dir=_shared_folder(a.nbytes + (1 << 20))))
    try:
        square, line, state = (folder / name for name in ("matrix", "values", "info"))
        matrix_ = shared(square, (n, n), a.dtype)
        matrix_.copy_(a)
        w, info = shared(line, (n,), a.dtype), shared(state, (1,), torch.int32)
        task = {"folder": str(folder), "n": n, "dtype": str(a.dtype).removeprefix("torch."), "backend": backend}
        task |= {"vectors": vectors, "size": count, "timeout": timeout}
        commands = [[sys.executable, "-m", worker, json.dumps({**task, "rank": rank})] for rank in range(count)]
        with Team(commands) as team:
            team.wait(timeout)
        return w.clone(), matrix_.mT if vectors else None, info[0].clone()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
