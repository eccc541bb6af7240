"""Runs pairs of Kronecker-sparse products on a GPU with cuda.core alone: compute-sanitizer sees nothing but these.

``python -m tests.cuda.kronsparse_fused_harness [word ...]`` runs all, or the cases whose name has one of the words.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernmantle.backends.cuda.launch import Kernel
from kernmantle.backends.cuda.tiles import DeviceLimits
from kernmantle.structured.mode_product import cuda_emit, fused_plan
from kernmantle.structured.mode_product.fused_plan import FusedPlan, FusedProblem
from kernmantle.testing import assert_close

from .harness import Machine, compiled, limits
from .kronsparse_harness import TYPES, strides
from .report import report, selected

CHAINS = (
    ((3, 10, 7, 1), (1, 5, 6, 5)), ((4, 6, 5, 3), (2, 7, 4, 9)), ((4, 21, 33, 1), (2, 19, 14, 3)),
    ((3, 40, 20, 1), (1, 37, 3, 40)), ((2, 64, 24, 2), (1, 50, 32, 8)), ((1, 33, 20, 1), (1, 17, 33, 1)),
)  # fmt: skip


@dataclass(frozen=True)
class PairCase:
    """Two patterns, a batch, a type, memory orders of x and y, and which of the plans of each kind."""

    chain: tuple[tuple[int, int, int, int], tuple[int, int, int, int]]
    batch: int
    dtype: str
    x_first: bool
    y_first: bool
    kind: tuple[bool, int]

    @property
    def name(self) -> str:
        """What its test is called."""
        ways = "".join("first" if first else "last" for first in (self.x_first, self.y_first))
        size = "_".join("x".join(map(str, pattern)) for pattern in self.chain)
        across, m = self.kind
        return f"pair_{size}_{self.batch}_{self.dtype}_{ways}_{m}{'_across' * across}"

    def problem(self) -> FusedProblem:
        """As planned for."""
        first, second = self.chain
        vector = self.x_first and first[3] == 1 and first[2] % 4 == 0
        return FusedProblem(
            first, second, self.batch, self.dtype, self.x_first, self.y_first, vector,
            fused_plan.run_of(second, np.dtype(TYPES[self.dtype]).itemsize, 16), bias=True, activation="relu",
        )  # fmt: skip

    def plans(self, own: DeviceLimits) -> list[FusedPlan]:
        """The cheapest of its kind with each part of the inner blocks, one tile of columns at a time or several."""
        problem = self.problem()
        found = sorted(fused_plan.candidates(problem, own), key=lambda each: fused_plan.seconds(each, problem, own))
        alike = {}
        for each in found:
            narrow = each.columns == fused_plan.EDGE
            if (each.across, each.m) == self.kind and (narrow == each.slice % 2 or self.chain[1][1] <= 17):
                alike.setdefault(each.slice, each)
        return list(alike.values())

    def arrays(self) -> tuple[np.ndarray[Any, Any], ...]:
        """x (batch, features), both weights, bias."""
        first, second = self.chain
        random = np.random.default_rng(first)
        shapes = (self.batch, first[0] * first[2] * first[3]), first, second, (second[0] * second[1] * second[3],)
        return tuple(random.standard_normal(shape).astype(TYPES[self.dtype]) for shape in shapes)

    def expected(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Result and size of its terms in float64."""
        *arrays, bias = (array.astype(np.float64) for array in self.arrays())
        value, terms = _chain(*arrays), _chain(*map(abs, arrays))
        return np.maximum(value + bias, 0), terms + abs(bias)


def _chain(x: np.ndarray[Any, Any], *weights: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    for weight in weights:
        a, _, c, d = weight.shape
        x = np.einsum("nikl,ijkl->nijl", x.reshape(-1, a, c, d), weight).reshape(len(x), -1)
    return x


def cases() -> Iterator[PairCase]:
    """Every kind of plan, at its edges."""
    orders = ((True, True), (False, False), (True, False), (False, True))
    kinds = itertools.product((False, True), (1, 2))
    for place, (chain, kind) in enumerate(itertools.product(CHAINS, list(kinds))):
        for dtype in ("f32", "f16"):
            x_first, y_first = orders[(place + place // 4) % 4]
            yield PairCase(chain, (1, 37, 16, 70)[(3 * place + place // 8) % 4], dtype, x_first, y_first, kind)


def run(machine: Machine, case: PairCase, chosen: FusedPlan) -> np.ndarray[Any, Any]:
    """The result."""
    problem = case.problem()
    x, *weights, bias = case.arrays()
    blank = np.full((case.batch, len(bias)), np.nan, bias.dtype)
    laid = [array if first else array.T.copy() for array, first in ((x, case.x_first), (blank, case.y_first))]
    given, one, two, offset, out = (machine.upload(array) for array in (laid[0], *weights, bias, laid[1]))
    binary = compiled(cuda_emit.emit_fused(chosen), limits().arch).binary
    stream, threads = int(machine.stream.handle), cuda_emit.PREPARE_THREADS
    prepare = Kernel(binary, cuda_emit.PREPARE, threads, 0, case.name)
    parts = []
    for weight, view in zip((one, two), chosen.views(problem), strict=True):
        size, scales, units = chosen.image(view)
        made = [
            machine.device.allocate(size, stream=machine.stream),
            machine.device.allocate(max(4, 4 * scales), stream=machine.stream),
        ]
        pointers = [int(buffer.handle) for buffer in (weight, *made)]
        prepare(0, stream, units, (*pointers, *view))
        parts.append(made)
    kernel = Kernel(
        binary,
        cuda_emit.ENTRY,
        chosen.threads,
        chosen.shared(problem),
        case.name,
        limits().has(("overlapped_launch",)),
    )
    buffers = (given, one, two, parts[0][0], parts[1][0], offset, parts[0][1], parts[1][1], out)
    steps = [
        strides(1, case.batch, features, first)[1:]
        for features, first in ((x.shape[1], case.x_first), (len(bias), case.y_first))
    ]
    pointers = [int(buffer.handle) for buffer in buffers]
    kernel(0, stream, chosen.blocks(problem), (*pointers, case.batch, *chosen.sizes(problem), *steps[0], *steps[1]))
    found = machine.download(out, laid[1])
    return found if case.y_first else found.T


def check(case: PairCase, found: np.ndarray[Any, Any]) -> None:
    """Assert that a result is right; the middle is rounded to the type, which may be narrow."""
    wanted, terms = case.expected()
    assert_close(found, wanted, depth=case.chain[0][2] + case.chain[1][2], magnitude=terms)


def main(words: Sequence[str]) -> int:
    """Run and report; the number of cases that disagree."""
    machine = Machine()

    def verify(case: Any) -> str:
        plans = case.plans(limits())
        for plan in plans:
            check(case, run(machine, case, plan))
        return f"slices {', '.join(str(plan.slice) for plan in plans)} "

    return report(selected(cases(), words), verify)


if __name__ == "__main__":
    sys.exit(min(1, main(sys.argv[1:])))
