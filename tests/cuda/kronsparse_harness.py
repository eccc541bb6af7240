"""Runs Kronecker-sparse products on a GPU with cuda.core alone, so that compute-sanitizer sees nothing but these.

``python -m tests.cuda.kronsparse_harness [word ...]`` runs every case, or those whose name contains one of the words.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernmantle.backends.cuda.emit import headers
from kernmantle.backends.cuda.launch import Kernel
from kernmantle.backends.cuda.nvrtc import compile_source
from kernmantle.backends.cuda.tiles import DeviceLimits
from kernmantle.structured.mode_product import cuda_emit, sum_emit
from kernmantle.structured.mode_product import tiles as kronsparse_tiles
from kernmantle.structured.mode_product.column_sum_plan import column_sum_choice
from kernmantle.structured.mode_product.narrow_plan import NarrowPlan, narrow_plan
from kernmantle.structured.mode_product.plan import KronSparsePlan, Problem, Tile
from kernmantle.structured.mode_product.row_sum_plan import row_sum_choice
from kernmantle.structured.mode_product.transpose_plan import padded, transpose_plan
from kernmantle.structured.mode_product.wide_sum_plan import tile as wide_tile
from kernmantle.testing import assert_close

from .harness import Machine, limits
from .report import report, selected

TYPES = {"f32": np.float32, "f16": np.float16, "f64": np.float64}
PATTERNS = (
    (2, 37, 45, 1), (2, 40, 33, 2), (1, 24, 20, 3), (1, 20, 40, 12), (2, 17, 19, 5), (3, 5, 70, 4), (1, 130, 9, 1),
    (1, 64, 64, 8), (2, 48, 192, 1), (1, 24, 24, 17),
)  # fmt: skip
NARROW = ((3, 2, 2, 1), (2, 2, 2, 8), (1, 4, 4, 3), (5, 3, 2, 1), (1, 8, 8, 16))
TILES = (
    ((1, 72, 80, 1), 300, "f32", "ll", "1.1.1.64.16.4.8.1.1.0.1"),
    ((2, 72, 60, 1), 200, "f32", "ff", "1.1.1.64.32.2.8.1.1.0.1"),
    ((1, 100, 70, 2), 130, "f32", "ff", "2.1.1.48.16.3.8.1.1.0.1"),
    ((1, 40, 90, 3), 150, "f32", "ff", "3.1.1.32.16.2.8.1.1.0.1"),
    ((1, 64, 90, 2), 333, "f16", "ll", "1.1.2.64.32.4.8.1.1.1.1"),
    ((1, 64, 48, 1), 290, "f16", "ff", "1.1.1.64.32.2.8.1.1.1.1"),
    ((1, 40, 50, 1), 150, "f16", "lf", "1.1.2.64.16.3.4.1.1.1.1"),
    ((1, 40, 50, 16), 70, "f16", "ff", "16.1.1.32.16.3.8.1.1.1.2"),
    ((1, 128, 70, 2), 100, "f32", "lf", "1.1.1.64.32.2.8.1.1.0.1"),
    ((1, 80, 72, 3), 140, "f16", "ff", "3.1.1.64.32.2.8.1.1.0.1"),
    ((2, 25, 40, 4), 70, "f32", "ff", "4.1.1.32.16.2.8.1.1.0.1"),
    ((1, 40, 24, 16), 150, "f16", "ff", "16.1.1.32.16.2.8.1.1.0.2"),
    ((1, 75, 40, 12), 150, "f32", "ff", "8.1.1.64.16.2.8.1.1.0.2"),
    ((1, 27, 40, 4), 150, "f16", "ff", "4.1.1.32.32.2.8.1.1.1.1"),
    ((1, 27, 40, 8), 150, "f16", "ff", "8.1.1.32.32.2.8.1.1.0.1"),
    ((1, 75, 40, 16), 150, "f32", "ff", "2.4.1.64.16.3.8.1.0.0.1"),
    ((1, 40, 24, 16), 70, "f32", "ff", "4.4.1.32.16.2.8.1.0.0.1"),
    ((2, 37, 40, 20), 90, "f32", "ff", "2.4.1.48.16.3.8.1.0.0.1"),
    ((1, 40, 24, 16), 70, "f32", "fl", "4.4.1.32.16.2.8.1.0.0.1"),
    ((1, 40, 40, 16), 70, "f32", "ff", "4.2.1.48.16.2.8.1.1.0.1"),
    ((1, 44, 40, 32), 70, "f16", "ff", "8.4.1.32.16.2.8.1.0.0.1"),
    ((1, 70, 64, 16), 70, "f16", "ff", "4.4.1.64.16.4.8.1.0.0.1"),
    ((1, 40, 50, 40), 60, "f16", "ff", "4.4.1.48.16.2.8.0.0.0.1"),
    ((2, 40, 53, 5), 150, "f32", "ff", "5.1.1.48.16.3.8.1.1.0.1"),
    ((1, 33, 65, 9), 77, "f32", "ff", "9.1.1.16.16.2.8.1.1.0.1"),
    ((2, 33, 35, 9), 77, "f16", "ff", "9.1.1.32.16.3.8.1.1.0.1"),
    ((1, 60, 60, 7), 140, "f16", "ff", "7.1.1.32.32.2.8.1.1.0.1"),
    ((1, 37, 40, 12), 90, "f32", "ff", "12.1.1.16.16.2.8.0.1.0.1"),
    ((1, 48, 40, 6), 90, "f16", "ff", "6.1.1.48.32.3.4.1.1.0.1"),
    ((1, 48, 40, 6), 90, "f32", "ff", "6.1.1.32.16.2.8.1.0.0.1"),
    ((1, 40, 30, 3), 555, "f16", "ll", "1.1.4.16.16.4.8.1.1.1.1"),
    ((1, 40, 31, 2), 77, "f16", "fl", "2.1.1.32.32.2.8.1.1.0.1"),
    ((1, 40, 51, 12), 150, "f16", "ff", "4.3.1.48.16.3.12.1.1.0.1"),
    ((2, 33, 22, 15), 77, "f32", "ff", "5.3.1.16.16.2.12.1.1.0.1"),
    ((2, 25, 30, 21), 70, "f32", "ff", "7.3.1.16.16.2.12.1.1.0.1"),
    ((1, 40, 24, 16), 150, "f32", "ff", "8.2.1.16.16.3.8.1.1.0.1"),
    ((2, 37, 45, 3), 151, "f16", "ll", "1.1.2.32.16.4.8.1.1.1.1"),
    ((2, 24, 20, 2), 130, "f16", "ll", "1.1.1.32.32.4.8.1.1.1.1"),
    ((1, 72, 80, 2), 301, "f32", "ll", "1.1.2.32.16.4.8.1.1.0.1"),
    ((2, 35, 21, 3), 90, "f16", "ff", "3.1.2.32.32.2.4.1.1.0.1"),
    ((2, 37, 45, 1), 151, "f16", "ff", "1.1.2.32.64.4.4.1.1.0.1"),
    ((2, 21, 33, 1), 101, "f16", "fl", "1.1.2.32.32.4.4.1.1.0.1"),
    ((1, 21, 33, 2), 100, "f16", "ff", "2.1.1.32.64.4.4.1.1.0.1"),
    ((2, 11, 50, 1), 65, "f32", "ff", "1.1.2.16.64.3.4.1.1.0.1"),
    ((1, 33, 17, 9), 130, "f16", "ff", "9.1.1.32.16.2.4.1.1.0.1"),
    ((3, 14, 40, 5), 151, "f16", "ll", "1.1.2.16.16.4.4.1.1.1.1.4"),
    ((1, 20, 30, 15), 100, "f16", "ff", "15.1.1.16.16.3.4.1.1.0.1"),
    ((1, 20, 30, 24), 100, "f16", "ff", "8.3.1.16.16.4.12.1.1.0.1"),
    ((1, 20, 30, 14), 100, "f32", "ff", "7.2.1.16.16.2.8.1.1.0.1"),
    ((2, 33, 65, 9), 133, "f16", "ff", "9.1.1.48.16.4.8.1.1.0.2"),
    ((1, 60, 30, 7), 150, "f32", "ff", "7.1.1.64.32.2.8.1.1.0.2"),
    ((2, 80, 45, 5), 75, "f16", "ff", "5.1.1.40.32.3.8.0.1.0.1"),
    ((1, 50, 300, 12), 200, "f32", "ff", "4.3.1.48.16.2.12.0.1.0.1"),
    ((2, 100, 600, 1), 300, "f32", "ll", "1.1.1.128.64.3.8.0.1.0.1"),
    ((1, 130, 700, 1), 300, "f16", "ff", "1.1.2.128.64.4.8.0.1.0.1"),
    ((1, 16, 70, 1), 40000, "f32", "ff", "1.1.1.16.16.3.8.0.1.0.1"),
    ((3, 60, 60, 7), 333, "f32", "ff", "7.1.1.64.16.3.8.1.1.0.2"),
    ((3, 57, 61, 5), 101, "f16", "ff", "5.1.1.56.16.3.8.1.1.0.1"),
    ((1, 80, 35, 5), 77, "f32", "ff", "5.1.1.80.16.2.8.1.1.0.2"),
    ((2, 50, 19, 12), 130, "f32", "ff", "4.3.1.48.16.2.12.1.1.0.1"),
    ((2, 110, 19, 6), 90, "f16", "ff", "6.1.1.112.16.2.8.1.1.0.2"),
    ((2, 20, 1, 3), 77, "f16", "ff", "3.1.1.32.16.3.4.1.1.0.1"),
    ((3, 71, 11, 7), 133, "f16", "ff", "7.1.1.40.16.2.4.1.1.0.1"),
    ((2, 70, 40, 16), 150, "f16", "ff", "8.2.1.32.16.3.8.1.1.0.1"),
    ((1, 40, 70, 16), 150, "f16", "ff", "8.2.1.32.32.2.8.0.1.0.1"),
)
# Patterns, batches, types and groups of products whose weights are rearranged 32 neighbours at a time, and whether
# features lie together.
NEIGHBOURS = (
    ((1, 7, 40, 8), 33, "f32", 1, True), ((2, 40, 70, 33), 129, "f32", 1, False), ((3, 9, 33, 31), 20, "f32", 2, False),
    ((1, 100, 50, 65), 20, "f32", 1, True), ((2, 33, 100, 16), 37, "f16", 2, True),
    ((1, 20, 50, 34), 129, "f16", 1, False), ((2, 96, 40, 24), 64, "f16", 1, False),
    ((1, 130, 17, 100), 16, "f16", 1, True),
)  # fmt: skip
EDGES = ((1, 1), (2, 1), (16, 2), (129, 1))


@dataclass(frozen=True)
class KronSparseCase:
    """A pattern, a batch, a type and the memory orders of x and y."""

    pattern: tuple[int, int, int, int]
    batch: int
    dtype: str
    x_first: bool
    y_first: bool
    groups: int = 1
    streamed: bool = False
    tile: str = ""
    sharing: int = 0
    """Blocks that share 32 neighbours of the weights, 0 where blocks take one each."""

    @property
    def name(self) -> str:
        """What its test is called."""
        ways = "".join("first" if first else "last" for first in (self.x_first, self.y_first))
        size = "x".join(map(str, self.pattern))
        kind = f"_{self.tile}" * bool(self.tile) + "_streamed" * self.streamed
        kind += f"_sharing{self.sharing}" if self.sharing else ""
        return f"{size}_{self.batch}_{self.dtype}_{ways}_{self.groups}{kind}"

    def problem(self) -> Problem:
        """As planned for."""
        a, b, c, d = self.pattern
        size = np.dtype(TYPES[self.dtype]).itemsize
        ends = (c, self.x_first), (b, self.y_first)
        access = [
            math.gcd(
                16, size * (a * m * d if first else self.batch), size * m * d if first else 0,
                size * self.batch * a * m * d if self.groups > 1 else 0,
            )
            for m, first in ends
        ]  # fmt: skip
        return Problem(
            self.pattern, self.groups, self.batch, self.dtype, self.x_first, self.y_first, access[0], access[1] // size,
            bias=True, activation="relu",
        )  # fmt: skip

    def arrays(self) -> tuple[np.ndarray[Any, Any], ...]:
        """x (groups, batch, a c d), weights (groups, a, b, c, d), bias (groups, a b d)."""
        a, b, c, d = self.pattern
        random = np.random.default_rng(self.pattern)
        shapes = (self.groups, self.batch, a * c * d), (self.groups, *self.pattern), (self.groups, a * b * d)
        return tuple(random.standard_normal(shape).astype(TYPES[self.dtype]) for shape in shapes)

    def expected(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Result and size of its terms in float64."""
        a, b, c, d = self.pattern
        x, weight, bias = (array.astype(np.float64) for array in self.arrays())
        x = x.reshape(self.groups, self.batch, a, c, d)
        equation, shape = "gnikl,gijkl->gnijl", (self.groups, self.batch, a * b * d)
        value = np.einsum(equation, x, weight).reshape(shape) + bias[:, None]
        terms = np.einsum(equation, abs(x), abs(weight)).reshape(shape) + abs(bias[:, None])
        return np.maximum(value, 0), terms

    def plan(self, own: DeviceLimits) -> KronSparsePlan | NarrowPlan:
        """The plan of its problem, in its tile where the GPU has it, with the weights in chunks where ``streamed``."""
        problem = self.problem()
        narrow = narrow_plan(problem, own)
        if narrow is not None:
            return narrow
        named = Tile.of(self.tile) if self.tile and own.arch == "sm_90" else None
        chosen = kronsparse_tiles.plan(problem, own, named)
        assert chosen is not None
        if not self.streamed:
            return chosen
        tile = Tile(**(vars(chosen.tile) | {"resident": False, "chunk": 16, "ahead": False}))
        streamed = kronsparse_tiles.plan(problem, own, tile)
        assert streamed is not None
        return streamed


def cases() -> Iterator[KronSparseCase]:
    """Every kind of tile, at its edges."""
    for place, pattern in enumerate(PATTERNS):
        for dtype in ("f32", "f16"):
            for x_first, y_first in ((True, True), (False, False), (True, False), (False, True)):
                batch, groups = EDGES[(place + 2 * x_first + y_first) % len(EDGES)]
                streamed = (place + x_first) % 3 == 0
                yield KronSparseCase(pattern, batch, dtype, x_first, y_first, groups, streamed)
    for pattern, batch, dtype, layout, tile in TILES:
        yield KronSparseCase(pattern, batch, dtype, layout[0] == "f", layout[1] == "f", 1, tile=tile)
    for place, (pattern, batch, dtype, groups, first) in enumerate(NEIGHBOURS):
        yield KronSparseCase(pattern, batch, dtype, first, first, groups, sharing=1 + place % 3)
    for place, pattern in enumerate(NARROW):
        for dtype in TYPES:
            for first in (True, False):
                batch, groups = EDGES[(place + first) % len(EDGES)]
                yield KronSparseCase(pattern, batch, dtype, first, first, groups)


def in_words(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The numbers of an array, behind an odd number of halves one more, NaN: memcheck takes 2 of 4 bytes for all 4."""
    return np.append(array, np.array(np.nan, array.dtype)) if array.nbytes % 4 else array


def strides(groups: int, batch: int, features: int, first: bool) -> tuple[int, int, int]:
    """Steps of an array (groups, batch, features) with the features or the batch together."""
    return (batch * features, features, 1) if first else (batch * features, 1, batch)


def run(machine: Machine, case: KronSparseCase) -> np.ndarray[Any, Any]:
    """The result."""
    own, problem = limits(), case.problem()
    a, b, c, d = case.pattern
    chosen = case.plan(own)
    x, weight, bias = case.arrays()
    steps = [
        strides(case.groups, case.batch, features, first)
        for features, first in ((a * c * d, case.x_first), (a * b * d, case.y_first))
    ]
    blank = np.full((case.groups, case.batch, a * b * d), np.nan, TYPES[case.dtype])
    laid = [
        array if first else array.swapaxes(1, 2).copy() for array, first in ((x, case.x_first), (blank, case.y_first))
    ]
    given, there, offset, out = (machine.upload(array) for array in (in_words(laid[0]), weight, bias, laid[1]))
    weight_steps = [step // weight.itemsize for step in weight.strides]
    stream = int(machine.stream.handle)
    pointers = [int(buffer.handle) for buffer in (given, there, offset, out)]
    image = scale = tiles = 0
    if isinstance(chosen, NarrowPlan):
        source, shared, (blocks, slots) = cuda_emit.emit_narrow(chosen), 0, chosen.grid(problem, own)
        binary = compile_source(source, own.arch, headers(), case.name).binary
    else:
        source, shared = cuda_emit.emit(chosen, case.sharing > 0), chosen.shared(problem)
        binary = compile_source(source, own.arch, headers(), case.name).binary
        held = machine.device.allocate(chosen.image_bytes(problem), stream=machine.stream)
        scales = machine.device.allocate(max(4, 4 * chosen.scales(problem)), stream=machine.stream)
        image, scale = int(held.handle), int(scales.handle)
        threads = cuda_emit.PREPARE_THREADS
        name, more = (cuda_emit.PREPARE_NEIGHBOURS, (case.sharing,)) if case.sharing else (cuda_emit.PREPARE, ())
        prepare = Kernel(binary, name, threads, 0, case.name)
        units = chosen.preparing_blocks(problem, case.sharing)
        prepare(0, stream, units, (pointers[1], image, scale, case.groups, *case.pattern, *weight_steps, *more))
        tiles, slots = chosen.tiles(problem), chosen.slots(problem, own)
        blocks = chosen.groups(problem) * slots
    overlapped = own.has(("overlapped_launch",)) and not isinstance(chosen, NarrowPlan)
    kernel = Kernel(binary, cuda_emit.ENTRY, chosen.threads, shared, case.name, overlapped)
    sizes = (case.batch, *case.pattern, tiles, slots)
    ends = (pointers[0], pointers[1], image, pointers[2], scale, pointers[3])
    kernel(0, stream, blocks, (*ends, *sizes, *steps[0], *steps[1], *weight_steps, a * b * d))
    found = machine.download(out, laid[1])
    return found if case.y_first else found.swapaxes(1, 2)


@dataclass(frozen=True)
class GradientCase:
    """The gradient of a pattern's weights: a batch, a type and the memory order of x and of the result's gradient.

    ``wide``: groups of 64 columns, and positions, of a tile of wide blocks.
    """

    pattern: tuple[int, int, int, int]
    batch: int
    dtype: str
    first: bool
    groups: int = 1
    wide: tuple[int, int] | None = None

    @property
    def name(self) -> str:
        """What its test is called."""
        order = "first" if self.first else "last"
        kind = "gradient" if self.wide is None else f"wide_{'x'.join(map(str, self.wide))}"
        return f"{kind}_{'x'.join(map(str, self.pattern))}_{self.batch}_{self.dtype}_{order}_{self.groups}"

    def arrays(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """x (groups, batch, a c d) and the result's gradient (groups, batch, a b d)."""
        a, b, c, d = self.pattern
        random = np.random.default_rng(self.pattern)
        shapes = (self.groups, self.batch, a * c * d), (self.groups, self.batch, a * b * d)
        x, grad = (random.standard_normal(shape).astype(TYPES[self.dtype]) for shape in shapes)
        return x, grad

    def expected(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Result and size of its terms in float64."""
        a, b, c, d = self.pattern
        x, grad = (array.astype(np.float64) for array in self.arrays())
        x, grad = x.reshape(self.groups, -1, a, c, d), grad.reshape(self.groups, -1, a, b, d)
        equation = "gnikl,gnijl->gijkl"
        return np.einsum(equation, x, grad), np.einsum(equation, abs(x), abs(grad))


@dataclass(frozen=True)
class TurnCase:
    """Matrices in rows of memory, with a gap between rows."""

    a: int
    high: int
    wide: int
    batch: int
    dtype: str
    gap: int = 0

    @property
    def name(self) -> str:
        """What its test is called."""
        return f"turn_{self.a}x{self.high}x{self.wide}_{self.batch}_{self.dtype}_{self.gap}"

    def arrays(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """The rows with a gap of NaN behind each, and every matrix of them transposed and padded by zeros."""
        shape = self.batch, self.a, self.high, self.wide
        matrices = np.random.default_rng(self.high).standard_normal(shape).astype(TYPES[self.dtype])
        gap = np.full((self.batch, self.gap), np.nan, matrices.dtype)
        rows = np.concatenate([matrices.reshape(self.batch, -1), gap], 1)
        pitch = padded(self.high, matrices.itemsize)
        wide = np.zeros((self.batch, self.a, self.wide, pitch), matrices.dtype)
        wide[..., : self.high] = matrices.swapaxes(2, 3)
        return rows, wide.reshape(self.batch, -1)


def turn_cases() -> Iterator[TurnCase]:
    """Edges of the tiles of a warp, whole vectors and odd numbers."""
    extents = (
        (8, 8), (33, 9), (40, 72), (64, 128), (256, 24), (7, 3), (80, 5), (300, 70), (5, 200), (13, 1), (20, 300),
        (3, 2), (65, 258), (301, 1), (9001, 1),
    )  # fmt: skip
    for high, wide in extents:
        yield TurnCase(1 + high % 3, high, wide, 5, "f32", wide % 3)
        yield TurnCase(1 + wide % 3, high, wide, 3, "f16", high % 5)
        yield TurnCase(1 + wide % 2, high, wide, 7, "f16")


def run_turn(machine: Machine, case: TurnCase) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The transposed rows, and what comes of them on the way back."""
    own, (rows, transposed) = limits(), case.arrays()
    found = []
    for source, target, pads in ((rows, transposed, True), (transposed, rows, False)):
        aligned = case.gap * rows.itemsize % 16 == 0 and case.a * case.high * case.wide * rows.itemsize % 16 == 0
        plan = transpose_plan(own.arch, rows.itemsize, case.high, case.wide, pads, case.gap == 0, aligned)
        binary = compile_source(cuda_emit.emit_transpose(plan), own.arch, headers(), case.name).binary
        kernel = Kernel(binary, cuda_emit.ENTRY, plan.threads, plan.shared, case.name, False)
        blank = np.full_like(target, np.nan)
        given, out = machine.upload(source), machine.upload(blank)
        pitch = padded(case.high, rows.itemsize)
        blocks = plan.tiles(case.batch * case.a, case.high, pitch)
        extents = (case.high, pitch) if not plan.lanes else (case.high, case.wide) if pads else (case.wide, case.high)
        blocks = -(-blocks // plan.warps) if plan.lanes else blocks
        pointers, sizes = (int(given.handle), int(out.handle)), (case.batch, case.a, *extents)
        kernel(0, int(machine.stream.handle), blocks, (*pointers, *sizes, source.shape[1], target.shape[1]))
        found.append(machine.download(out, blank))
    return found[0], found[1]


def check_turn(case: TurnCase, found: tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]) -> None:
    """Assert that every number is where it belongs, and that nothing else was written."""
    rows, transposed = case.arrays()
    np.testing.assert_array_equal(found[0], transposed)
    np.testing.assert_array_equal(found[1], rows)


def gradient_cases() -> Iterator[GradientCase]:
    """Every number of neighbours along l, at the edges of tiles; several of a warp where l are many."""
    patterns = (
        (2, 37, 65, 1), (1, 64, 48, 2), (3, 5, 70, 3), (2, 66, 17, 5), (1, 3, 130, 8), (2, 33, 40, 17), (1, 20, 37, 42),
        (1, 40, 50, 24),
    )  # fmt: skip
    for place, (pattern, dtype) in enumerate(itertools.product(patterns, ("f32", "f16"))):
        batch, groups = ((1, 2), (33, 1), (600, 1))[place % 3]
        for first in (True, False):
            yield GradientCase(pattern, batch, dtype, first, groups)
    # Wide blocks: rows that begin at 16 bytes and anywhere, fewer entries than a stage and several parts.
    tiles = ((1, 64), (2, 128), (3, 64), (2, 64), (2, 96))
    wide = ((2, 70, 72, 1), (1, 136, 152, 1), (1, 145, 77, 1), (1, 60, 33, 3), (2, 130, 100, 2))
    for place, (pattern, dtype) in enumerate(itertools.product(wide, ("f32", "f16"))):
        for batch, first in itertools.product((21, 352, 1003), (True, False)):
            if pattern[3] == 1 or not first:
                yield GradientCase(pattern, batch, dtype, first, 1 + place % 2, tiles[(place + batch) % len(tiles)])


def run_gradient(machine: Machine, case: GradientCase) -> np.ndarray[Any, Any]:
    """The result, parts of the batch added."""
    own, size = limits(), TYPES[case.dtype]().itemsize
    a, b, c, d = case.pattern
    rows = case.arrays()
    x, grad = rows if case.first else (array.swapaxes(1, 2).copy() for array in rows)
    bytes_ = [math.gcd(16, size * (extent * d if case.first else case.batch)) for extent in (c, b)]
    products = 3 if case.dtype == "f32" else 1
    if case.wide is not None:
        chosen = wide_tile(case.dtype, case.first, min(bytes_) < 4, *case.wide, products, own)
    else:
        choice = row_sum_choice if case.first else column_sum_choice
        chosen = choice(case.pattern, case.batch, case.dtype, *bytes_, products, own)[1]
    slots = 1 if chosen.whole else chosen.slots(case.pattern, case.groups, case.batch, own)
    pitch = b * c if d == 1 else padded(b * c, size)
    shape = case.pattern if case.wide is None else (a, d, pitch)
    blank = np.full((slots, case.groups, *shape), np.nan, TYPES[case.dtype] if chosen.whole else np.float32)
    # NaN around arrays: the aligned 16 bytes around runs are read.
    edge = np.full(16 // size, np.nan, TYPES[case.dtype])
    buffers = [machine.upload(np.concatenate([edge, array.ravel(), edge])) for array in (x, grad)]
    buffers.append(machine.upload(blank))
    binary = compile_source(sum_emit.emit_tile_sum(chosen), own.arch, headers(), case.name).binary
    kernel = Kernel(binary, cuda_emit.ENTRY, chosen.threads, chosen.shared, case.name, False)
    pointers = [int(buffer.handle) + 16 * (buffer is not buffers[2]) for buffer in buffers]
    blocks = chosen.blocks(chosen.tiles(case.pattern, case.groups) * slots, own)
    steps = [step for array in (x, grad) for step in (array[0].size, array.shape[2])]
    given = (*pointers, case.batch, case.groups, *case.pattern, slots, *steps)
    kernel(0, int(machine.stream.handle), blocks, given)
    found = machine.download(buffers[2], blank).astype(np.float64)
    if case.wide is not None:
        found = found[..., : b * c].reshape(slots, case.groups, a, d, b, c).transpose(0, 1, 2, 4, 5, 3)
    return found.sum(0)


def check_gradient(case: GradientCase, found: np.ndarray[Any, Any]) -> None:
    """Assert that a gradient is right."""
    wanted, terms = case.expected()
    dtype = "float32" if case.dtype == "f32" else "float16"
    assert_close(found, wanted, dtype=dtype, depth=case.batch, magnitude=terms)


def check(case: KronSparseCase, found: np.ndarray[Any, Any]) -> None:
    """Assert that a result is right."""
    wanted, terms = case.expected()
    assert_close(found, wanted, depth=case.pattern[2], magnitude=terms)


def main(words: Sequence[str]) -> int:
    """Run and report; the number of cases that disagree."""
    machine = Machine()

    def verify(case: Any) -> None:
        if isinstance(case, GradientCase):
            check_gradient(case, run_gradient(machine, case))
        elif isinstance(case, TurnCase):
            check_turn(case, run_turn(machine, case))
        else:
            check(case, run(machine, case))

    return report(selected((*cases(), *gradient_cases(), *turn_cases()), words), verify)


if __name__ == "__main__":
    sys.exit(min(1, main(sys.argv[1:])))
