"""Which chains fit a layer under a budget of parameters, time and error."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from ...checks import integer, positive
from ...errors import DtypeError, ParameterError
from ...runtime.progress import bar
from ...torch_ops.dtypes import name_of
from ..mode_product.cost import dense_seconds, quickest
from .chains import block_diagonal, monarch
from .dense import check_shape, matrix_of
from .matmul import FLOATS
from .pattern import KSPattern

Matrix = np.ndarray[Any, np.dtype[np.float64]]
_NARROW = 64  # columns of blocks whose products take no threads
_RESOLVED = 1e-6  # relative errors that squares in float64 have digits of
_PARTS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # blocks that are tried: p and q of Monarch chains


@dataclass(frozen=True)
class Choice:
    """A chain for a layer.

    Attributes
    ----------
    name : str
        Its family and parameters.
    patterns : tuple of KSPattern
    parameters : float
        Share of the dense layer's weights.
    latency : float
        Share of the dense layer's time, by the cost model.
    error : float or None
        Relative error in the Frobenius norm of the best weights, where a layer was given.
    """

    name: str
    patterns: tuple[KSPattern, ...]
    parameters: float
    latency: float
    error: float | None


def choose_patterns(
    layer: Any,
    budget: float | None = 0.5,
    *,
    latency: float | None = None,
    error: float | None = None,
    batch: int = 4096,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cuda",
    count: int = 10,
) -> list[Choice]:
    """Return the chains of patterns for a layer within a budget, the best first.

    Parameters
    ----------
    layer : Linear, Conv1D of transformers, matrix or (out_features, in_features)
        If it has weights, the error of each chain is that of its projection, and chains are sorted by error; else by
        predicted time.
    budget : float, optional
        Largest share of the dense layer's weights.
    latency : float, optional
        Largest share of the dense layer's time, by the cost model.
    error : float, optional
        Largest relative error; needs weights.
    batch : int
        Rows for which times are predicted.
    dtype, device
        Type and device for which times are predicted; the device is "cpu" or "cuda".
    count : int
        Most chains to return.

    Returns
    -------
    list of Choice
        Each with its ``name``, ``patterns``, and shares of the dense layer's ``parameters`` and ``latency``, and the
        relative ``error`` if there are weights. Empty where no chain is within the budget.

    Raises
    ------
    ParameterError
        For a budget that is not a positive number, an error without weights, or weights that are not finite.
    ShapeError, DtypeError, DeviceError
        For a layer without a matrix of floating-point numbers, or with weights on meta.

    Notes
    -----
    Block-diagonal, low-rank and Monarch chains. The errors of one Monarch family follow from the singular values of
    its blocks, one decomposition for all ranks, of the Gram matrices of the blocks in float64: a second for a million
    weights. Families that exceed the budget are not decomposed. A progress bar appears after one second.

    Examples
    --------
    >>> import kernmantle as km
    >>> best = km.choose_patterns((1536, 384), budget=0.25, count=1)[0]
    >>> best.parameters <= 0.25 and best.latency < 1
    True
    """
    shape = check_shape(layer)
    for name, value in (("budget", budget), ("latency", latency), ("error", error)):
        if value is not None:
            positive(value, name, infinite=True)
    batch, count = integer(batch, "batch"), integer(count, "count")
    kind = device.type if isinstance(device, torch.device) else str(device).partition(":")[0]
    if kind not in ("cpu", "cuda"):
        raise ParameterError(f'device must be "cpu" or "cuda", not {device!r}')
    if dtype not in FLOATS:
        raise DtypeError(f"dtype must be a floating-point type that products take, not {dtype}")
    matrix = matrix_of(layer)
    if error is not None and matrix is None:
        raise ParameterError("an error budget needs a layer or matrix, not only its shape")
    stored = name_of(dtype, "the layer")
    whole = shape[0] * shape[1]
    dense = dense_seconds(shape, batch, stored, kind)
    found: list[Choice] = []
    for name, chain, loss in _candidates(shape, matrix, whole if budget is None else budget * whole):
        parameters = sum(pattern.nnz for pattern in chain) / whole
        time = sum(quickest(pattern, batch, stored, kind)[1] for pattern in chain) / dense
        if (budget is None or parameters <= budget) and (latency is None or time <= latency):
            lost = None if loss is None else loss()
            if error is None or (lost is not None and lost <= error):
                found.append(Choice(name, tuple(chain), parameters, time, lost))
    found.sort(key=lambda choice: (choice.error or 0.0, choice.latency, choice.parameters))
    return found[:count]


def _candidates(
    shape: tuple[int, int], matrix: torch.Tensor | None, most: float
) -> Iterator[tuple[str, list[KSPattern], Callable[[], float] | None]]:
    """Yield the name and patterns of each chain, and a function that finds its error."""
    rows, columns = shape
    losses = None if matrix is None else _Losses(matrix)
    for blocks in _PARTS:
        if rows % blocks == 0 and columns % blocks == 0:
            yield (
                f"block_diagonal({blocks})",
                block_diagonal(shape, blocks),
                losses and partial(losses.block_diagonal, blocks),
            )
    indices = [(p, q) for p, q in itertools.product(_PARTS, _PARTS) if columns % p == rows % q == 0]
    families = [(1, 1), *indices]
    for p, q in families if matrix is None else bar(families, desc="chains", unit="family", leave=False):
        for rank in _ranks(most, q * columns + p * rows, min(rows // q, columns // p)):
            name = f"low_rank_like({rank})" if p == q == 1 else f"monarch({p}, {q}, {rank})"
            yield name, monarch(shape, p, q, rank), losses and partial(losses.monarch, p, q, rank)


def _ranks(most: float, each: int, largest: int) -> list[int]:
    """Return the ranks that cost up to ``most`` weights at ``each`` a rank: the largest, its half and its quarter."""
    top = int(min(most, each * largest) // each)
    return list(dict.fromkeys(rank for rank in (top, top // 2, top // 4) if rank))


class _Losses:
    """Relative errors of chains near a matrix, which is scaled so that its squares are finite.

    LAPACK is called once for each of thousands of small blocks, where threads of torch would wait for one another in
    every call, long ones where other processes use the cores. NumPy takes no threads for most of them.
    """

    def __init__(self, matrix: torch.Tensor) -> None:
        wide: Matrix = matrix.cpu().numpy().astype(np.float64)
        self.matrix = wide / (np.abs(wide).max() or 1.0)
        self.size = float(np.square(self.matrix).sum())
        self.family, self.values = (0, 0), self.matrix

    def block_diagonal(self, blocks: int) -> float:
        """Return the error of the entries on the blocks."""
        rows, columns = self.matrix.shape
        parts = self.matrix.reshape(blocks, rows // blocks, blocks, columns // blocks)
        return self._relative(self.size - float(np.square(np.einsum("ijik->ijk", parts)).sum()))

    def monarch(self, p: int, q: int, rank: int) -> float:
        """Return the error of the best blocks of a rank; one decomposition serves all ranks of a family."""
        if self.family != (p, q):
            self.family, self.values = (p, q), self._squares(p, q, False)
        found = self._relative(float(self.values[..., rank:].sum()))
        if 0 < found < _RESOLVED:
            found = self._relative(float(self._squares(p, q, True)[..., rank:].sum()))
        return found

    def _squares(self, p: int, q: int, exact: bool) -> Matrix:
        """Return the squared singular values of the blocks of a Monarch family (q, p, values), the largest first."""
        rows, columns = self.matrix.shape
        blocks = self.matrix.reshape(rows // q, q, p, columns // p).transpose(1, 2, 0, 3)
        if exact:
            return np.square(np.linalg.svd(blocks, compute_uv=False))
        high = np.ascontiguousarray(blocks if blocks.shape[2] >= blocks.shape[3] else blocks.swapaxes(2, 3))
        narrow = high.shape[3] <= _NARROW
        gram: Matrix = np.einsum("...ki,...kj->...ij", high, high) if narrow else high.swapaxes(2, 3) @ high
        return np.linalg.eigvalsh(gram)[..., ::-1].clip(min=0)

    def _relative(self, lost: float) -> float:
        return math.sqrt(max(lost, 0.0) / self.size) if self.size else 0.0
