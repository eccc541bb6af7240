"""Runs two Kronecker-sparse factors in one launch of clusters with cuda.core alone, for compute-sanitizer.

``python -m tests.cuda.kronsparse_cluster_harness [word ...]`` runs all, or the cases whose name has one of the words.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernmantle.backends.cuda.tiles import DeviceLimits
from kernmantle.structured.mode_product import cuda_emit
from kernmantle.structured.mode_product.cluster_plan import ClusterPlan, cluster_plan
from kernmantle.testing import assert_close

from .report import report, selected

TYPES = {"f32": np.float32, "f16": np.float16}
CHAINS = {
    "monarch": ((32, 128, 128, 1), (1, 128, 128, 32)), "wider": ((64, 64, 64, 1), (1, 172, 64, 64)),
    "several": ((8, 24, 264, 1), (2, 40, 12, 8)), "odd": ((16, 40, 72, 1), (4, 33, 20, 8)),
    "long": ((6, 16, 304, 1), (1, 9, 12, 8)), "few": ((4, 8, 8, 1), (1, 2, 4, 8)),
    "many": ((8, 288, 16, 1), (1, 3, 288, 8)),
}  # fmt: skip
KINDS = ((1, False, ""), (3, True, ""), (4, True, "relu"), (7, False, ""), (16, True, ""))


@dataclass(frozen=True)
class ClusterCase:
    """A chain, its rows, and what is done with a sum."""

    chain: str
    rows: int
    bias: bool
    activation: str
    dtype: str

    @property
    def name(self) -> str:
        """What its test is called."""
        return f"cluster_{self.chain}_{self.rows}_{'bias' * self.bias}{self.activation}_{self.dtype}"

    def plan(self, own: DeviceLimits) -> ClusterPlan:
        """As planned."""
        found = cluster_plan(*CHAINS[self.chain], self.rows, self.dtype, self.bias, self.activation, own)
        assert found is not None
        return found

    def arrays(self) -> list[np.ndarray[Any, Any]]:
        """Rows, both factors and the bias."""
        random, (first, second) = np.random.default_rng(self.rows), CHAINS[self.chain]
        x = random.standard_normal((self.rows, first[0] * first[2]))
        weights = [random.standard_normal(own) / math.sqrt(own[2]) for own in (first, second)]
        return [each.astype(TYPES[self.dtype]) for each in (x, *weights, random.standard_normal(features(second)))]


def features(pattern: Sequence[int]) -> int:
    """Features that a factor gives."""
    return pattern[0] * pattern[1] * pattern[3]


def cases() -> Iterator[ClusterCase]:
    """Every chain with every kind of rows."""
    for chain, (rows, bias, activation), dtype in itertools.product(CHAINS, KINDS, TYPES):
        yield ClusterCase(chain, rows, bias, activation, dtype)


def run(machine: Any, case: ClusterCase, own: DeviceLimits) -> np.ndarray[Any, Any]:
    """The result, in memory that held NaN."""
    from kernmantle.backends.cuda.launch import Kernel

    from .harness import compiled

    chosen, given = case.plan(own), case.arrays()
    blank = np.full((case.rows, features(chosen.second)), np.nan, TYPES[case.dtype])
    kernel = Kernel(
        compiled(cuda_emit.emit_cluster(chosen), own.arch).binary, cuda_emit.ENTRY, cuda_emit.CLUSTER_THREADS,
        chosen.shared, case.name, True,
    )  # fmt: skip
    *buffers, bias, out = [machine.upload(each) for each in (*given, blank)]
    operands = [*(int(each.handle) for each in buffers), int(bias.handle) if case.bias else 0, int(out.handle)]
    rest = case.rows, given[0].shape[1], blank.shape[1]
    kernel(0, int(machine.stream.handle), chosen.blocks, (*operands, *rest))
    return machine.download(out, blank)


def check(case: ClusterCase, found: np.ndarray[Any, Any]) -> None:
    """Assert that the result is that of float64, what lies between both factors rounded to the type."""
    x, *weights, bias = case.arrays()
    value, terms = x.astype(np.float64), abs(x.astype(np.float64))
    for weight in weights:
        a, _, c, d = weight.shape
        shape, own = (case.rows, a, c, d), weight.astype(np.float64)
        value = np.einsum("nikl,ijkl->nijl", value.reshape(shape), own).reshape(case.rows, -1)
        terms = np.einsum("nikl,ijkl->nijl", terms.reshape(shape), abs(own)).reshape(case.rows, -1)
        if weight is weights[0]:
            value = value.astype(found.dtype).astype(np.float64)
    if case.bias:
        value, terms = value + bias, terms + abs(bias)
    value = np.maximum(value, 0) if case.activation else value
    assert_close(found, value, depth=sum(pattern[2] for pattern in CHAINS[case.chain]), magnitude=terms)


def main(words: Sequence[str]) -> int:
    """Run and report; the number of cases that disagree."""
    from .harness import Machine, limits

    machine = Machine()
    return report(selected(cases(), words), lambda case: check(case, run(machine, case, limits())))


if __name__ == "__main__":
    sys.exit(min(1, main(sys.argv[1:])))
