"""What each way to a Kronecker-sparse product should take, and which is the quickest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from .nest import BYTES

Pattern = tuple[int, int, int, int]


@dataclass(frozen=True)
class Rates:
    """A kind of machine: bytes and operations a second, and seconds that any call takes.

    ``dense`` are operations of the vendor's matrix product, ``kernel`` those of our kernel where its blocks are wide.
    ``strided`` is how many times the bytes of x and y the permuted copies around a batched product move.
    """

    bytes: float
    dense: Mapping[str, float]
    kernel: Mapping[str, float]
    overhead: float
    strided: float


_CPU = Rates(20e9, {"f32": 1e11, "f64": 5e10}, {"f32": 9e10, "f64": 4.5e10}, 2e-5, 6.0)
_CUDA = Rates(
    4.3e12,
    {"f32": 4.6e13, "f64": 5e13, "f16": 5e14, "bf16": 5e14},
    {"f32": 2.5e13, "f64": 1.2e13, "f16": 2.5e13, "bf16": 2.5e13},
    5e-6,
    3.0,
)
MACHINES = {"cpu": _CPU, "cuda": _CUDA}


def _rate(rates: Mapping[str, float], dtype: str) -> float:
    return rates.get(dtype, rates["f32"])


def dense_seconds(shape: tuple[int, int], batch: int, dtype: str, kind: str) -> float:
    """A dense layer (out_features, in_features)."""
    rows, columns = shape
    own = MACHINES[kind]
    moved = BYTES[dtype] * (batch * (rows + columns) + rows * columns)
    return own.overhead + max(moved / own.bytes, 2 * batch * rows * columns / _rate(own.dense, dtype))


def seconds(pattern: Pattern, batch: int, dtype: str, kind: str) -> dict[str, float]:
    """Time of each algorithm worth choosing."""
    a, b, c, d = pattern
    own = MACHINES[kind]
    ends = BYTES[dtype] * batch * a * d * (b + c)
    moved = ends + BYTES[dtype] * a * b * c * d
    work = 2.0 * batch * a * b * c * d
    found = {"dense": dense_seconds((a * b * d, a * c * d), batch, dtype, kind)}
    if a * d == 1:
        return found
    found["kernel"] = own.overhead + max(moved / own.bytes, work / _rate(own.kernel, dtype))
    copies = own.strided if d > 1 else 1.0
    found["bmm"] = 2 * own.overhead + copies * ends / own.bytes + work / _rate(own.dense, dtype)
    return found


@lru_cache(maxsize=4096)
def quickest(pattern: Pattern, batch: int, dtype: str, kind: str) -> tuple[str, float]:
    """The algorithm that should be quickest, and its time."""
    times = seconds(pattern, batch, dtype, kind)
    return min(times.items(), key=lambda item: item[1])
