"""Predicted times on a CPU core of each algorithm for a Kronecker-sparse product and the gradient of its weights.

A row of the tables has the six numbers of a machine with which an algorithm is estimated (decision 0044): seconds to
start, and of each block, cache line, byte that no second cache has, byte of the weights, and product of two vectors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ...compiler.nest import BYTES
from .cpu_plan import SMALL, group_of
from .vendor_cost import MOST_DENSE

Pattern = tuple[int, int, int, int]
MACHINE = "AMD EPYC (znver5, AVX-512 and its products of bfloat16), one core"
"""The machine that the tables were fitted on, to rows of ``python scripts/cpu_costs.py`` (decision 0044)."""
CACHE = 2**20
"""Bytes of its second cache."""
SURE = 0.85
"""An algorithm, or an order of x, takes the place of ours where it should take at most so much of its time."""
UNBOUND = 1e-5
"""Seconds that a call takes longer where it is not bound to our kernels (decision 0135)."""
_MAKING = 1.2e-5, 2e-10  # seconds to begin to make the matrix, and of each of its entries (decision 0135)
_FETCHED, VECTOR = 64, 64  # bytes of a cache line and of a vector
_SMALL_BLOCK = 16  # entries of a block that may be gone through one by one


class Costs(NamedTuple):
    """Seconds of a call, and of each block, cache line (``traffic``), far byte, byte of weights and product."""

    start: float
    block: float
    traffic: float
    far: float
    weight: float
    product: float

    def seconds(self, amounts: Amounts) -> float:
        """Return what a call with these amounts should take."""
        return sum(each * count for each, count in zip(self, amounts, strict=True))


class Amounts(NamedTuple):
    """Amounts of work of a call, in the order of :class:`Costs`."""

    starts: float
    blocks: float
    traffic: float
    far: float
    weights: float
    products: float


PRODUCT: Mapping[str, Costs] = {
    "bmm half first": Costs(2.1e-05, 9.9e-08, 5.3e-09, 1.2e-11, 2.9e-11, 4.2e-11),
    "bmm half first apart": Costs(2.2e-05, 6.9e-08, 1.5e-08, 2.9e-11, 1.9e-11, 6.1e-11),
    "bmm half last": Costs(2.1e-05, 5.7e-08, 6.5e-10, 0, 2.3e-11, 9.8e-11),
    "bmm half last apart": Costs(2.6e-05, 2.8e-08, 3.2e-09, 5.6e-12, 2.1e-11, 1.1e-10),
    "bmm wide first": Costs(1.3e-05, 6.9e-08, 4.8e-09, 2.7e-11, 2.5e-11, 2.2e-10),
    "bmm wide first apart": Costs(1.9e-05, 8.9e-08, 7.1e-09, 3.1e-11, 7.2e-12, 3.7e-10),
    "bmm wide last": Costs(1.2e-05, 9.2e-08, 0, 6.9e-12, 1.3e-10, 3e-10),
    "bmm wide last apart": Costs(1.7e-05, 4.7e-08, 4e-11, 4.3e-11, 2e-11, 3.7e-10),
    "dense half": Costs(1.3e-05, 0, 1.5e-09, 0, 3.4e-11, 6.2e-11),
    "dense wide": Costs(6.9e-06, 0, 1.4e-09, 0, 3.2e-11, 3.1e-10),
    "entries": Costs(6.1e-06, 5.5e-06, 8.2e-10, 4e-13, 0, 2.4e-09),
    "kernel half first": Costs(7.9e-06, 1.3e-08, 2.7e-10, 1.1e-11, 9.2e-12, 7.6e-11),
    "kernel half last": Costs(9.3e-06, 4.7e-09, 1.2e-09, 0, 2.3e-11, 7.1e-11),
    "kernel wide first": Costs(7.9e-06, 1.1e-08, 5.2e-12, 1.9e-11, 3.9e-12, 1.4e-10),
    "kernel wide last": Costs(8.5e-06, 3e-09, 2.6e-10, 1.1e-11, 4.3e-12, 1.4e-10),
}  # fmt: skip
"""Algorithm, numbers of two bytes or wider ones, layout: blocks that are narrow, or lie apart in memory."""
GRADIENT: Mapping[str, Costs] = {
    "bmm half first": Costs(1.7e-05, 2.1e-07, 8.6e-09, 7.8e-11, 3.6e-11, 4.6e-11),
    "bmm half first apart": Costs(1.8e-05, 6.2e-08, 1.6e-08, 5.4e-11, 1.5e-11, 8.2e-11),
    "bmm half last": Costs(2e-05, 3.9e-08, 2.2e-09, 0, 1.8e-11, 8.4e-11),
    "bmm half last apart": Costs(2e-05, 2.7e-08, 8.3e-09, 0, 1.5e-11, 1.3e-10),
    "bmm wide first": Costs(1.2e-05, 1.2e-07, 3.2e-09, 3.8e-11, 2e-11, 2.5e-10),
    "bmm wide first apart": Costs(1.8e-05, 7e-08, 7.2e-09, 6.1e-11, 7e-12, 4.5e-10),
    "bmm wide last": Costs(1.3e-05, 4.9e-08, 2.7e-10, 2.3e-12, 3.7e-11, 3.5e-10),
    "bmm wide last apart": Costs(1.4e-05, 3.6e-08, 9.7e-10, 5e-11, 1.6e-11, 3.4e-10),
    "dense half": Costs(1.4e-05, 0, 2.1e-09, 0, 3.2e-11, 6.9e-11),
    "dense wide": Costs(8.1e-06, 0, 2.8e-09, 1.7e-11, 2.3e-11, 2.9e-10),
    "entries": Costs(3.6e-06, 7.1e-06, 1.6e-10, 0, 0, 3.6e-09),
    "kernel half first": Costs(1.1e-05, 2e-09, 2.6e-10, 3.6e-11, 7e-12, 1e-10),
    "kernel half last": Costs(9.1e-06, 1.9e-08, 1.7e-09, 1.2e-11, 1.4e-11, 6.4e-11),
    "kernel wide first": Costs(9.1e-06, 4.1e-09, 1.8e-09, 2e-11, 1.4e-12, 1.6e-10),
    "kernel wide last": Costs(9e-06, 1e-08, 9.1e-10, 1.5e-11, 5.8e-12, 1.1e-10),
}  # fmt: skip
"""Costs of gradients of weights, by the same names."""


def amounts(algorithm: str, pattern: Pattern, batch: int, dtype: str, last: bool, is_gradient: bool) -> Amounts:
    """Return what a product, or a gradient of its weights, consists of; ``last``: the batch lies together in memory."""
    (a, b, c, d), size = pattern, BYTES[dtype]
    own, ends, weights = VECTOR // max(size, 4), size * batch * a * d * (b + c), size * a * b * c * d
    far, scattered = max(0, ends + weights - CACHE), weights * (1 if d == 1 else min(d, 16))
    if algorithm == "dense":
        entries = a * b * d * a * c * d
        return Amounts(1, 0, ends / _FETCHED, far, size * entries, batch * entries / own)
    if algorithm == "entries":
        return Amounts(1, b * c, ends / _FETCHED, far, 0, batch * a * b * c * d / own)
    if algorithm == "bmm":
        products = batch * a * d * b * c / own * max(1, 8 / min(b, c))
        return Amounts(1, a * d, ends / _FETCHED, far, scattered, products)
    together = 1 if last else group_of(pattern, batch, size == 2, own, is_gradient)
    rows, depth, lanes = (b, batch, c) if is_gradient else (b, c, batch) if last else (batch, c, b)
    blocks, vectors = a * -(-d // together), -(-lanes * together // own)
    traffic = ends / _FETCHED
    if not last:
        run = min(d & -d, _FETCHED // size)
        traffic = batch * (a * d // run) * (-(-c * run * size // _FETCHED) + -(-b * run * size // _FETCHED))
        if size == 2 and d > 1:  # each group is packed or written for itself
            traffic = batch * blocks * (c + b)
    if d == 1 and max(b, c) <= SMALL and not (is_gradient or last) and b & (b - 1) == 0:  # blocks that share vectors
        blocks, vectors, rows = -(-a * b // own), 1, batch
    tiles = blocks * -(-rows // 8) * -(-vectors // 3)
    return Amounts(1, tiles, traffic, far, scattered, blocks * rows * depth * vectors)


def row_of(algorithm: str, pattern: Pattern, dtype: str, last: bool) -> str:
    """Return the name of the row by which a call is estimated."""
    d = pattern[3]
    kind, layout = "half" if dtype == "bf16" else "wide", "last" if last else "first"
    if algorithm == "entries":
        return algorithm
    if algorithm == "dense":
        return f"{algorithm} {kind}"
    if algorithm == "bmm":
        return f"{algorithm} {kind} {layout}{'' if d == 1 else ' apart'}"
    return f"{algorithm} {kind} {layout}"


def estimate(
    algorithm: str, costs: Mapping[str, Costs], pattern: Pattern, batch: int, dtype: str, last: bool, is_gradient: bool
) -> float:
    """Return what an algorithm should take by a table; products of float16 take what those of float32 do."""
    own = costs[row_of(algorithm, pattern, dtype, last)]
    return own.seconds(amounts(algorithm, pattern, batch, dtype, last, is_gradient))


def _estimated(
    algorithms: list[str], pattern: Pattern, batch: int, dtype: str, last: bool, is_gradient: bool
) -> dict[str, float]:
    rows = GRADIENT if is_gradient else PRODUCT
    return {each: estimate(each, rows, pattern, batch, dtype, last, is_gradient) for each in algorithms}


def dense_seconds(shape: tuple[int, int], batch: int, dtype: str) -> float:
    """Return what a dense layer (out_features, in_features) should take."""
    return _estimated(["dense"], (1, shape[0], shape[1], 1), batch, dtype, False, False)["dense"]


def product_seconds(pattern: Pattern, batch: int, dtype: str, last: bool, packed: bool) -> dict[str, float]:
    """Return what each algorithm for a product should take; the matrix is made but where weights are ``packed``."""
    a, b, c, d = pattern
    if dtype == "f16":  # torch's products of these take 10 to 40 times as long on CPUs without instructions for them
        return _estimated(["kernel"], pattern, batch, dtype, last, False)
    found, entries = ["kernel"] if a * d == 1 else ["kernel", "bmm"], a * b * d * a * c * d
    if a * d > 1 and not last and BYTES[dtype] > 2 and b * c <= _SMALL_BLOCK:
        found.append("entries")
    if a * d == 1 or entries <= MOST_DENSE:
        found.append("dense")
    times = _estimated(found, pattern, batch, dtype, last, False)
    if a * d > 1 and not packed and "dense" in times:
        times["dense"] += _MAKING[0] + _MAKING[1] * entries
    return times


def gradient_seconds(pattern: Pattern, batch: int, dtype: str, last: bool) -> dict[str, float]:
    """Return what each algorithm for a gradient of weights should take."""
    a, b, c, d = pattern
    if dtype == "f16":
        return _estimated(["kernel"], pattern, batch, dtype, last, True)
    if a * d == 1:
        return {"bmm": dense_seconds((b, c), batch, dtype), **_estimated(["kernel"], pattern, batch, dtype, last, True)}
    found = ["kernel", "bmm"]
    if not last and BYTES[dtype] > 2 and b * c <= _SMALL_BLOCK:
        found.append("entries")
    if a * b * d * a * c * d <= MOST_DENSE:
        found.append("dense")
    return _estimated(found, pattern, batch, dtype, last, True)
