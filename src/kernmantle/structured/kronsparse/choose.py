"""Which chains fit a layer under a budget of parameters, time and error."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch

from ...errors import DtypeError, ParameterError
from ...torch_ops.dtypes import name_of
from ..mode_product.cost import dense_seconds, quickest
from .chains import block_diagonal, monarch
from .dense import check_shape, matrix_of
from .matmul import FLOATS
from .pattern import KSPattern, positive, split_blocks
from .progress import shown

_PARTS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)


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
    """Chains for a layer under a budget, the best first.

    Parameters
    ----------
    layer : Linear, Conv1D of transformers, matrix or (out_features, in_features)
        With weights, the error of each chain is that of its projection, and the smallest comes first; without, the
        quickest.
    budget : float, optional
        Largest share of the dense layer's weights.
    latency : float, optional
        Largest share of the dense layer's time, by the cost model.
    error : float, optional
        Largest relative error; needs weights.
    batch : int
        Batch that the times are for.
    dtype, device
        What the times are for; a device of the type "cpu" or "cuda".
    count : int
        How many to return.

    Returns
    -------
    list of Choice
        Each with its ``name``, ``patterns``, and shares of the dense layer's ``parameters`` and ``latency``, and the
        relative ``error`` if there are weights. Empty where no chain is within the budget.

    Raises
    ------
    ParameterError
        For a budget that is no positive number, an error without weights, or weights that are not finite.
    ShapeError, DtypeError, DeviceError
        For what is no matrix of floating-point numbers that are there.

    Notes
    -----
    Block-diagonal, low-rank and Monarch chains. The errors of one Monarch family follow from the singular values of
    its blocks, one decomposition for all ranks; what is done of them is shown where it takes longer than a second.

    Examples
    --------
    >>> import kernmantle as km
    >>> best = km.choose_patterns((1536, 384), budget=0.25, count=1)[0]
    >>> best.parameters <= 0.25 and best.latency < 1
    True
    """
    shape = check_shape(layer)
    for name, value in (("budget", budget), ("latency", latency), ("error", error)):
        if value is not None and (not isinstance(value, Real) or isinstance(value, bool) or not value > 0):
            raise ParameterError(f"{name} must be a positive number or None, not {value!r}")
    batch, count = positive("batch", batch), positive("count", count)
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
        within = (budget is None or parameters <= budget) and (latency is None or time <= latency)
        if within and (error is None or (loss is not None and loss <= error)):
            found.append(Choice(name, tuple(chain), parameters, time, loss))
    found.sort(key=lambda choice: (choice.error or 0.0, choice.latency, choice.parameters))
    return found[:count]


def _candidates(
    shape: tuple[int, int], matrix: torch.Tensor | None, most: float
) -> Iterator[tuple[str, list[KSPattern], float | None]]:
    rows, columns = shape
    size = 0.0 if matrix is None else float(matrix.square().sum())
    for blocks in _PARTS:
        if rows % blocks == 0 and columns % blocks == 0:
            (pattern,) = block_diagonal(shape, blocks)
            kept = None if matrix is None else float(pattern.from_dense(matrix).square().sum())
            yield f"block_diagonal({blocks})", [pattern], None if kept is None else _error(size - kept, size)
    indices = [(p, q) for p, q in itertools.product(_PARTS, _PARTS) if columns % p == rows % q == 0]
    families = [(1, 1), *indices]
    for p, q in families if matrix is None else shown(families, "chains", "family"):
        ranks = _ranks(most, q * columns + p * rows, min(rows // q, columns // p))
        values = _block_values(matrix, monarch(shape, p, q)) if ranks and matrix is not None else None
        for rank in ranks:
            name = f"low_rank_like({rank})" if p == q == 1 else f"monarch({p}, {q}, {rank})"
            yield name, monarch(shape, p, q, rank), _tail(values, rank, size)


def _ranks(most: float, each: int, largest: int) -> list[int]:
    """Ranks that cost up to ``most`` weights at ``each`` a rank: the largest, its half and its quarter."""
    top = int(min(most, each * largest) // each)
    return list(dict.fromkeys(rank for rank in (top, top // 2, top // 4) if rank))


def _block_values(matrix: torch.Tensor, family: list[KSPattern]) -> torch.Tensor:
    """Squared singular values of the blocks of a Monarch family, one row a block."""
    first, second = family
    blocks = split_blocks(second.fuse(first).from_dense(matrix), second, first)
    return torch.linalg.svdvals(blocks).square().flatten(0, -2)


def _tail(values: torch.Tensor | None, rank: int, size: float) -> float | None:
    return None if values is None else _error(float(values[:, rank:].sum()), size)


def _error(lost: float, size: float) -> float:
    return math.sqrt(max(lost, 0.0) / size) if size else 0.0
