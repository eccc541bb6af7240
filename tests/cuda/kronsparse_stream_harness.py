"""Runs products of a few rows by tensor cores, over weights that are read where they lie, with cuda.core alone.

``python -m tests.cuda.kronsparse_stream_harness [word ...]`` runs all, or the cases whose name has one of the words.
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
from kernmantle.structured.mode_product.plan import Problem
from kernmantle.structured.mode_product.stream_mma_plan import StreamMmaPlan, candidates
from kernmantle.structured.mode_product.transpose_plan import padded
from kernmantle.testing import assert_close

from .report import report, selected

PATTERNS = (
    ((1, 50, 90, 37), 70, 1), ((2, 33, 35, 24), 9, 2), ((1, 20, 130, 97), 12, 1), ((3, 64, 48, 16), 130, 1),
    ((1, 17, 33, 3), 5, 3),
)  # fmt: skip
KINDS = 4
_GUARD = 8  # numbers before and behind an array, which no result may depend on or change


@dataclass(frozen=True)
class StreamCase:
    """A pattern, its rows and groups, the memory orders of weights and of the result, and which kind of plan."""

    pattern: tuple[int, int, int, int]
    batch: int
    groups: int
    along: bool
    last: bool
    kind: int

    @property
    def name(self) -> str:
        """What its test is called."""
        orders = f"{'along' if self.along else 'across'}_{'last' if self.last else 'first'}"
        return f"stream_{'x'.join(map(str, self.pattern))}_{self.batch}_{self.groups}_{orders}_{self.kind}"

    @property
    def pitch(self) -> int:
        """Numbers from a row of x to the next; those of a batch that was last begin at whole accesses."""
        a, _, c, d = self.pattern
        return padded(a * c * d, 2) if self.last else a * c * d

    def problem(self) -> Problem:
        """As planned for."""
        c, d = self.pattern[2:]
        access = math.gcd(16, 2 * self.pitch, 2 * c * d, 2 * self.batch * self.pitch if self.groups > 1 else 0)
        return Problem(
            self.pattern, self.groups, self.batch, "f16", True, not self.last, access, 1, bias=True, activation="relu"
        )

    def plan(self, own: DeviceLimits) -> StreamMmaPlan:
        """The plan of its kind: kinds differ in accesses, blocks that share k, warps for j, stages and their copies."""
        every = candidates(self.problem(), self.along, own)
        kinds = {(one.bulk, one.cluster, one.warp_l, one.warps_j > 1, one.full, one.stages > 2): one for one in every}
        places = sorted(kinds)
        return kinds[places[(2 * self.kind + 1) * len(places) // (2 * KINDS)]]

    def arrays(self) -> list[np.ndarray[Any, Any]]:
        """x (groups, batch, a c d), weights (groups, a, b, c, d) and bias (groups, a b d)."""
        a, b, c, d = self.pattern
        random = np.random.default_rng((*self.pattern, self.kind))
        shapes = (self.groups, self.batch, a * c * d), (self.groups, *self.pattern), (self.groups, a * b * d)
        return [random.standard_normal(shape).astype(np.float16) for shape in shapes]


def cases() -> Iterator[StreamCase]:
    """Every order of weights and results with some kinds of plans."""
    for (pattern, batch, groups), along, last in itertools.product(PATTERNS, (True, False), (False, True)):
        for kind in range(KINDS):
            yield StreamCase(pattern, batch, groups, along, last, kind)


def guarded(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The numbers of an array with NaN before and behind them, in whole accesses of 16 bytes."""
    memory = np.full(padded(array.size, 2) + 2 * _GUARD, np.nan, array.dtype)
    memory[_GUARD : _GUARD + array.size] = array.ravel()
    return memory


def run(machine: Any, case: StreamCase, own: DeviceLimits, chosen: StreamMmaPlan | None = None) -> np.ndarray[Any, Any]:
    """The result (groups, batch, a b d) of a plan, which writes nothing else."""
    from kernmantle.backends.cuda.launch import Kernel

    from .harness import compiled

    chosen = case.plan(own) if chosen is None else chosen
    (a, b, c, d), (x, weight, bias) = case.pattern, case.arrays()
    rows = np.full((case.groups, case.batch, case.pitch), np.nan, x.dtype)
    rows[..., : a * c * d] = x
    laid = weight if case.along else weight.swapaxes(2, 3)
    wide = a * b * d
    blank = np.full((case.groups, case.batch * wide), np.nan, x.dtype)
    given = [guarded(array) for array in (rows, laid, bias, blank)]
    buffers = [machine.upload(array) for array in given]
    at = [int(buffer.handle) + _GUARD * x.itemsize for buffer in buffers]
    steps = [
        case.batch * case.pitch, case.pitch, 1,
        case.batch * wide, *((1, case.batch) if case.last else (wide, 1)),
        a * b * c * d, b * c * d, *((c * d, d) if case.along else (d, b * d)), 1, wide,
    ]  # fmt: skip
    binary = compiled(cuda_emit.emit_stream_mma(chosen), own.arch).binary
    kernel = Kernel(binary, cuda_emit.ENTRY, chosen.threads, chosen.shared, case.name, True)
    operands, sizes = (at[0], at[1], 0, at[2], 0, at[3]), (case.batch, *case.pattern, 0, 0)
    kernel(0, int(machine.stream.handle), chosen.blocks(case.problem()), (*operands, *sizes, *steps))
    memory = machine.download(buffers[3], given[3])
    found, outside = memory[_GUARD : _GUARD + blank.size], [*memory[:_GUARD], *memory[_GUARD + blank.size :]]
    assert np.isnan(outside).all(), "numbers outside the result"
    found = found.reshape(case.groups, *((wide, case.batch) if case.last else (case.batch, wide)))
    return found.swapaxes(1, 2) if case.last else found


def check(case: StreamCase, found: np.ndarray[Any, Any]) -> None:
    """Assert that a result is that of float64."""
    a, _, c, d = case.pattern
    x, weight, bias = (array.astype(np.float64) for array in case.arrays())
    value, terms = (
        np.einsum("gnikl,gijkl->gnijl", way(x).reshape(case.groups, case.batch, a, c, d), way(weight)).reshape(
            case.groups, case.batch, -1
        )
        + way(bias)[:, None]
        for way in (np.asarray, np.abs)
    )
    assert_close(found, np.maximum(value, 0), depth=c, magnitude=terms)


def main(words: Sequence[str]) -> int:
    """Run and report; the number of cases that disagree."""
    from .harness import Machine, limits

    machine = Machine()
    return report(selected(cases(), words), lambda case: check(case, run(machine, case, limits())))


if __name__ == "__main__":
    sys.exit(min(1, main(sys.argv[1:])))
