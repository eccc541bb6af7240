"""Runs Kronecker products on a GPU with cuda.core alone, so that compute-sanitizer sees nothing but their passes.

``python -m tests.cuda.kron_harness [word ...]`` runs every case, or those whose name contains one of the words;
with ``--few`` of cases whose kernels come from the same branches of the templates only the smallest.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kernmantle.backends.cuda.emit import headers
from kernmantle.backends.cuda.launch import Kernel
from kernmantle.backends.cuda.nvrtc import compile_source
from kernmantle.backends.cuda.tiles import DeviceLimits
from kernmantle.runtime.cache import Built, Key, current_cache
from kernmantle.structured.kron import (
    axis_plan,
    cluster_plan,
    cuda_emit,
    factor_gradient_emit,
    mma_emit,
    separation,
    tensor_emit,
)
from kernmantle.structured.kron.axis_plan import AxisPlan
from kernmantle.structured.kron.cluster_plan import FACTORS, ClusterPlan, cluster
from kernmantle.structured.kron.cuda_entry import AXES, ENTRY, LATER, parameters
from kernmantle.structured.kron.cuda_plan import plan
from kernmantle.structured.kron.factor_gradient_emit import emit_total
from kernmantle.structured.kron.factor_gradient_plan import (
    STAGES,
    TOTAL_ENTRIES,
    TOTAL_THREADS,
    GramPlan,
    RegisterGramPlan,
    gram,
)
from kernmantle.structured.kron.fma_plan import FmaLayout, FmaPlan, fma
from kernmantle.structured.kron.mma_choice import joined, takes
from kernmantle.structured.kron.mma_plan import LANES, MmaPlan, mma
from kernmantle.structured.kron.modes import Mode
from kernmantle.structured.kron.passes import Pass, plain_pass, views
from kernmantle.structured.kron.tensor_plan import WIDEST_DOUBLE, MmaLayout, Tensor
from kernmantle.structured.kron.two_axis_plan import TwoAxisPlan, two_axis_candidates, two_axis_passes
from kernmantle.structured.kron.wgmma_plan import LEAST_TILES, WgmmaPlan, suits, wgmma
from kernmantle.testing import assert_close
from kernmantle.testing.tolerances import DEVIATIONS

from .harness import Machine, limits
from .kron_backs import (
    ALONE,
    CHAINS,
    REGISTERS,
    TILES,
    BackAxisCase,
    BackCase,
    BackRegistersCase,
    BackWgmmaCase,
    ChainCase,
    run_back,
)
from .kron_separations import SEPARATIONS, SeparationCase, run_separation
from .report import report, selected

Plan = FmaPlan | MmaPlan | WgmmaPlan | ClusterPlan | TwoAxisPlan | AxisPlan
Sizes = tuple[tuple[int, int], ...]
Array = np.ndarray[Any, Any]
TYPES = {"f32": np.float32, "tf32": np.float32, "f16": np.float16, "f64": np.float64}
TENSORS = {"f32": Tensor("f16", 3), "tf32": Tensor("f16", 1), "f16": Tensor("f16", 1), "f64": Tensor("f64", 1)}
ALPHA, BETA = 0.5, -2.0
GRAM_SHARES = 4


def powers(base: int, count: int) -> Sizes:
    """So many square factors."""
    return ((base, base),) * count


TENSOR = (
    powers(16, 1), powers(16, 3), powers(16, 4), powers(32, 2), powers(32, 3), powers(50, 2), powers(64, 2),
    powers(128, 1), powers(8, 5), powers(4, 6), ((16, 48), (64, 20)), ((31, 63), (20, 8)), powers(25, 2),
    powers(127, 1), ((17, 9), (69, 69)), ((11, 75), (10, 91), (8, 25)), ((126, 2), (58, 2)), ((3, 30), (13, 78)),
    ((72, 4), (2, 33)), ((3, 5), (45, 60), (2, 2)), ((4, 4), (66, 33)), powers(163, 1), powers(190, 1),
    ((186, 130), (8, 8)), powers(75, 1), ((12, 90),), ((33, 21),),
)  # fmt: skip
# By wgmma, for blocks that take several tiles each, and more pieces than a ring has stages.
WGMMA = ((powers(64, 2), 23), (powers(128, 2), 16), (powers(64, 2), 1))
# By clusters of blocks, for one that takes several rows.
CLUSTERS = ((powers(16, 4), 3), (powers(64, 3), 2), (powers(32, 3), 3), (powers(4, 8), 2))
# Over one axis by wgmma: columns and rows, entries of the batch, columns to its right.
AXES_ALONE = (
    ((57, 57), 9, 300), ((57, 57), 2, 1280), ((57, 57), 5, 301), ((249, 249), 40, 14), ((216, 216), 3, 193),
    ((20, 24), 9, 300), ((20, 24), 2, 2048), ((13, 13), 90, 27), ((96, 96), 3, 136), ((5, 40), 33, 33),
    ((128, 128), 2, 400),
)  # fmt: skip
# Over two axes, neighbours multiplied out: rows, and the place of the plan among all of the pass in fifths.
TWO_AXES: tuple[tuple[Sizes, int, int], ...] = (
    (((34, 34), (21, 21)), 200, 0), (((55, 40), (29, 31)), 60, 0), (((3, 5), (9, 7)), 2500, 0),
    (((2, 2), (2, 54)), 600, 0), (((54, 2), (2, 2)), 150, 0), (((109, 109), (63, 63)), 14, 0),
    (((17, 17), (64, 64)), 60, 1), (((12, 40), (40, 12)), 1, 0), (((8, 8), (120, 120)), 60, 0),
    (((45, 45), (27, 26)), 80, 2), (((10, 10), (11, 11), (9, 9)), 40, 0), (((40, 40), (44, 44)), 60, 3),
    (((6, 6), (44, 44)), 200, 1), (((24, 24), (36, 36)), 100, 5),
)  # fmt: skip
ADDED = (powers(2, 6), powers(5, 3), powers(8, 3), powers(16, 2), ((2, 3), (3, 2), (4, 5)), ((7, 32), (3, 3)))


@dataclass(frozen=True)
class KronCase:
    """x (left, product of p, beside) of a type times factors of sizes (p, q), with or without y."""

    sizes: Sizes
    left: int
    beside: int
    dtype: str
    tensor: bool
    added: bool
    aligned: str = ""

    @property
    def name(self) -> str:
        """What its test is called."""
        size = "*".join(f"{p}x{q}" for p, q in self.sizes)
        kind = f"_{self.aligned}" if self.aligned else "_mma" * self.tensor
        return f"{self.left}_{size}_{self.beside}_{self.dtype}{kind}{'_y' * self.added}"

    @property
    def modes(self) -> tuple[Mode, ...]:
        """Axes."""
        return tuple(Mode(p, q, place) for place, (p, q) in enumerate(self.sizes))

    @property
    def stored(self) -> str:
        """Type of the arrays."""
        return self.dtype.replace("t", "")

    def arrays(self) -> tuple[Array, list[Array], Array]:
        """x, factors (p, q), y."""
        random = np.random.default_rng(len(self.sizes))
        kind = TYPES[self.dtype]
        inner, outer = (math.prod(pair[side] for pair in self.sizes) for side in (0, 1))
        x = random.standard_normal((self.left, inner, self.beside)).astype(kind)
        factors = [(random.standard_normal(pair) / math.sqrt(pair[0])).astype(kind) for pair in self.sizes]
        return x, factors, random.standard_normal((self.left, outer, self.beside)).astype(kind)

    def expected(self) -> tuple[Array, Array]:
        """Result and the root of the sum of the squares of its terms, in float64."""
        x, factors, y = (self.arrays()[0], *self.arrays()[1:])
        value = ALPHA * _product(x, factors)
        size = ALPHA * np.sqrt(
            _product(np.square(x, dtype=np.float64), [np.square(f, dtype=np.float64) for f in factors])
        )
        return (value + BETA * y, size + abs(BETA * y)) if self.added else (value, size)


def _product(x: Array, factors: Sequence[Array]) -> Array:
    value, (left, _, beside) = x.astype(np.float64), x.shape
    done = 1
    for place, factor in enumerate(factors):
        rest = math.prod(later.shape[0] for later in factors[place + 1 :]) * beside
        value = np.matmul(factor.T.astype(np.float64), value.reshape(left * done, factor.shape[0], rest))
        done *= factor.shape[1]
    return value.reshape(left, done, beside)


@dataclass(frozen=True)
class GramCase:
    """The gradient of a factor (rows, columns) from ``count`` lines with ``right`` entries to their right.

    ``factors``: sizes of those that are applied by the same kernel.
    """

    rows: int
    columns: int
    count: int
    right: int
    dtype: str
    factors: Sizes = ()

    @property
    def name(self) -> str:
        """What its test is called."""
        applied = "_by_" + "*".join(f"{q}x{p}" for q, p in self.factors) if self.factors else ""
        return f"gram_{self.rows}x{self.columns}_{self.count}x{self.right}_{self.dtype}{applied}"

    @property
    def transposed(self) -> tuple[tuple[int, int], ...]:
        """The size of a sum that goes to its transpose."""
        return ((self.rows, self.columns),) if self.dtype == "f32" and self.count % 2 else ()

    def arrays(self) -> tuple[Array, Array]:
        """v and u."""
        random = np.random.default_rng(self.count)
        shapes = (self.count, self.rows, self.right), (self.count, self.columns, self.right)
        v, u = (random.standard_normal(shape).astype(TYPES[self.dtype]) for shape in shapes)
        return v, u

    def matrices(self) -> list[Array]:
        """The factors, which lie by columns where there is an odd number of lines."""
        random = np.random.default_rng(self.count + 1)
        found = [(random.standard_normal(size) / math.sqrt(size[0])).astype(TYPES[self.dtype]) for size in self.factors]
        return [np.asfortranarray(own) for own in found] if self.count % 2 else found

    def plan(self, own: DeviceLimits) -> GramPlan | RegisterGramPlan:
        """Of arrays that are well aligned."""
        found = gram(self.rows, self.columns, self.right, self.dtype, True, own.arch, self.factors)
        assert found is not None
        return found

    def check(self, found: Array) -> None:
        """Assert that a result is right."""
        v, u = (array.astype(np.float64) for array in self.arrays())
        terms = np.sqrt(np.einsum("lqr,lpr->qp", v**2, u**2))
        assert_close(found, np.einsum("lqr,lpr->qp", v, u), depth=self.count * self.right, magnitude=terms)

    def check_applied(self, found: Array) -> None:
        """Assert that v with the transposes of the factors applied is right."""
        whole, v = np.ones((1, 1)), self.arrays()[0].astype(np.float64)
        for factor in self.matrices():
            whole = np.kron(whole, factor.astype(np.float64))
        wanted, terms = np.einsum("qp,lqr->lpr", whole, v), np.sqrt(np.einsum("qp,lqr->lpr", whole**2, v**2))
        several = DEVIATIONS if self.dtype == "f16" and len(self.factors) > 1 else 1.0  # their product is rounded
        assert_close(found, ALPHA * wanted, depth=self.rows, magnitude=ALPHA * several * terms)


GRAM_SIZES = (
    (8, 8), (3, 5), (12, 4), (16, 16), (31, 63), (64, 64), (20, 32), (128, 100), (69, 69), (90, 20), (5, 130),
    (218, 239), (140, 141), (150, 163), (160, 7), (37, 165), (251, 30), (134, 150), (180, 168),
)  # fmt: skip
GRAMS = [
    GramCase(rows, columns, count, right, dtype)
    for rows, columns in GRAM_SIZES
    for count, right in (
        (1, 1),
        (700, 1),
        (37, 8),
        (5, 64),
        (3, 130),
        (400, 4),
        (33, 3),
        (7, 15),
        (9, 75),
        (9000, 17),
        (3, 301),
    )
    for dtype in ("f32", "f16")
    if count * right * rows * columns < 2**28
]
APPLIED: tuple[Sizes, ...] = (
    ((8, 8),), ((5, 3),), ((2, 3), (4, 2)), ((2, 2), (2, 2), (2, 2)), ((16, 16),), ((31, 63),), ((64, 64),),
    ((12, 20),), ((5, 5), (3, 3), (2, 2)), ((48, 17),), ((8, 8), (8, 4)), ((40, 24),),
)  # fmt: skip
GRAMS += [
    GramCase(math.prod(q for q, _ in sizes), math.prod(p for _, p in sizes), count, right, dtype, sizes)
    for sizes in APPLIED
    for count, right in ((700, 1), (37, 8), (5, 64), (3, 130), (400, 4), (33, 3), (7, 15), (9, 75), (2000, 17))
    for dtype in ("f32", "f16")
    if gram(math.prod(q for q, _ in sizes), math.prod(p for _, p in sizes), right, dtype, True, "sm_90", sizes)
]


AnyCase = KronCase | GramCase | BackCase | SeparationCase


def binary_of(source: str) -> bytes:
    """Machine code, kept."""
    arch = limits().arch
    return current_cache().fetch(_key(source, arch), lambda: built(source, arch))


def run_gram(machine: Machine, case: GramCase) -> tuple[Array, Array]:
    """The result, in shares of few blocks, and v with the factors' transposes applied where there are any."""
    own = limits()
    chosen, (v, u) = case.plan(own), case.arrays()
    source = factor_gradient_emit.emit(chosen)
    kernel = Kernel(binary_of(source), factor_gradient_emit.ENTRY, chosen.threads, chosen.shared, case.name)
    shares, stream = chosen.shares(case.count, case.right, GRAM_SHARES * chosen.tiles), int(machine.stream.handle)
    result = np.full((case.rows, case.columns), np.nan, TYPES[case.dtype])
    left, right, out = machine.upload(v), machine.upload(u), machine.upload(result)
    parts = out if shares == 1 else machine.upload(np.full((shares, *result.shape), np.nan, np.float32))
    pointers = [int(buffer.handle) for buffer in (left, right, parts)]
    applied, others = np.full((case.count, case.columns, case.right), np.nan, TYPES[case.dtype]), list[float]()
    into, matrices = machine.upload(applied), case.matrices()
    there = [machine.upload(np.ascontiguousarray(own.T if case.count % 2 else own)) for own in matrices]
    if matrices:
        others = [int(into.handle), ALPHA]
        for own_factor, memory in zip(matrices, there, strict=True):
            others += [int(memory.handle), *(step // own_factor.itemsize for step in own_factor.strides)]
    kernel(0, stream, shares * chosen.tiles, (*pointers, case.count, case.right, *others))
    if shares > 1:
        total = Kernel(
            binary_of(emit_total(case.dtype, case.transposed)), factor_gradient_emit.ENTRY, TOTAL_THREADS, 0, "total"
        )
        total(0, stream, -(-result.size // TOTAL_ENTRIES), (int(parts.handle), int(out.handle), shares, result.size))
    found = machine.download(out, result)
    found = found.reshape(case.columns, case.rows).T if case.transposed and shares > 1 else found
    return found, machine.download(into, applied)


def cases() -> Iterator[KronCase]:
    """Tensor cores and additions, rows and columns, halves, y, and rests of tiles."""
    for place, sizes in enumerate(TENSOR):
        for dtype in ("f32", "f16", "tf32", "f64"):
            if dtype == "f64" and max(map(max, sizes)) > WIDEST_DOUBLE:
                continue
            yield KronCase(sizes, 3 + 30 * (len(sizes) < 3), 1, dtype, True, place % 2 == 1)
            if dtype != "tf32" and math.prod(p for p, _ in sizes) <= 1 << 13:
                yield KronCase(sizes, 2, 20 + place % 5, dtype, True, place % 2 == 0)
    for dtype in ("f32", "f16"):
        for sizes, left in WGMMA:
            yield KronCase(sizes, left, 1, dtype, True, False, "wgmma")
        for sizes, left in CLUSTERS[: 4 if dtype == "f32" else 3]:
            yield KronCase(sizes, left, 1, dtype, True, False, "clusters")
        for size, left, beside in AXES_ALONE:
            yield KronCase((size,), left, beside, dtype, True, False, "one_axis")
        for place, (sizes, left, _) in enumerate(TWO_AXES):
            yield KronCase(sizes, left, 1, dtype, True, False, "two_axes" + "_apart" * (place % 3 == 1))
            if dtype == "f16" or max(map(max, sizes)) < 100:  # else more than a block has room for
                yield KronCase(sizes, left, 1, dtype, True, False, "two_axes_saving" + "_apart" * (place % 4 == 3))
    for place, sizes in enumerate(ADDED):
        for dtype in ("f32", "f64", "f16"):
            yield KronCase(sizes, 37, 1, dtype, False, place % 2 == 0)
            yield KronCase(sizes, 2, 9, dtype, False, place % 2 == 1)
    # Rows that fill a block, for more blocks than there are multiprocessors: each copies the next one's first entries.
    for place, sizes in enumerate((powers(8, 5), ((8, 8), (16, 16), (8, 8), (32, 32)), ((28, 20), (32, 32), (32, 28)))):
        yield KronCase(sizes, 150, 1, "f32", False, place == 1)


def prepared(case: KronCase, own: DeviceLimits) -> list[tuple[Plan, Pass, int, int]]:
    """For each pass its plan, and what lies to the left and to the right of it."""
    if case.aligned.startswith("two_axes"):
        return _by_two_axes(case, own)
    if case.aligned == "one_axis":
        return [_by_one_axis(case, own)]
    if case.aligned:
        return _by_wgmma(case, own) if case.aligned == "wgmma" else _by_clusters(case, own)
    tensor = TENSORS[case.dtype] if case.tensor else None
    kinds = ("fma",) if tensor is None else ("mma",) if _suits(case, tensor) else ("mma", "fma")
    chosen = plan(case.modes, case.beside, case.stored, own, True, tensor, case.left, kinds)
    vector = {"f64": 2}.get(case.stored, 4)
    found: list[tuple[Plan, Pass, int, int]] = []
    for place, (run, view) in enumerate(zip(chosen.passes, views(case.modes, chosen.passes), strict=True)):
        left, right = case.left * view.left, view.right * case.beside
        added = case.added and place == len(chosen.passes) - 1
        if run.kind == "mma":
            assert tensor is not None
            shapes = tuple((case.sizes[number][1], case.sizes[number][0]) for part in run.parts for number in part)
            widths = [_width(extent if right == 1 else right, most) for extent, most in _ends(run, case.stored)]
            facts = MmaLayout(widths[0] * _bytes(case.stored), widths[1], added)
            own_plan = mma(run, shapes, case.stored, tensor, facts, right, own)
            assert own_plan is not None
            found.append((own_plan, run, left, right))
        else:
            assert run.kind == "fma", f"{case.name} is the vendor's"
            wide = (
                all(mode.rows % vector == 0 == mode.columns % vector for mode in run.modes)
                if right == 1
                else right % vector == 0
            )
            width = vector if wide else 1
            compute = "f64" if case.stored == "f64" else "f32"
            found.append(
                (
                    fma(run, case.stored, compute, FmaLayout(width, width, added, False), left, right, own),
                    run,
                    left,
                    right,
                )
            )
    return found


def _by_wgmma(case: KronCase, own: DeviceLimits) -> list[tuple[Plan, Pass, int, int]]:
    """Both axes in one pass."""
    tensor, run = replace(TENSORS[case.dtype], is_aligned=True), plain_pass("mma", case.modes, 0, 2)
    assert suits(run, LEAST_TILES * own.sm_count, 1, tensor, own)
    shapes = tuple((q, p) for p, q in case.sizes)
    return [(wgmma(run, shapes, case.stored, tensor, MmaLayout(16, 4, False), own), run, case.left, 1)]


def _by_clusters(case: KronCase, own: DeviceLimits) -> list[tuple[Plan, Pass, int, int]]:
    """All axes in one pass."""
    tensor = replace(TENSORS[case.dtype], is_aligned=True)
    run = cluster_plan.joined_pass(plain_pass("mma", case.modes, 0, len(case.modes)), tensor)
    assert run is not None
    shapes = tuple((q, p) for p, q in case.sizes)
    return [(cluster(run, shapes, case.stored, tensor, MmaLayout(16, 4, False), own), run, case.left, 1)]


def _by_one_axis(case: KronCase, own: DeviceLimits) -> tuple[Plan, Pass, int, int]:
    """The axis by itself."""
    run = replace(plain_pass("fma", case.modes, 0, 1), kind="axis")
    vector = math.gcd(case.beside, 16 // _bytes(case.stored))
    facts = MmaLayout(vector * _bytes(case.stored), vector, False)
    shapes = tuple((q, p) for p, q in case.sizes)
    chosen = axis_plan.axis(run, shapes, case.stored, TENSORS[case.dtype], facts, case.beside, own)
    return chosen, run, case.left, case.beside


def _by_two_axes(case: KronCase, own: DeviceLimits) -> list[tuple[Plan, Pass, int, int]]:
    """All axes in one pass over two, by the plan that is asked for; of rows that lie apart where the name says so.

    Also where it says that what comes between the products is saved.
    """
    tensor = TENSORS[case.dtype]
    run = min(
        two_axis_passes(plain_pass("fma", case.modes, 0, len(case.modes)), case.stored),
        key=lambda one: max(max(mode.columns, mode.rows) for mode in one.modes),
    )
    run = replace(run, saves="saving" in case.aligned)
    widths = [math.gcd(extent, 16 // _bytes(case.stored)) for extent, _ in _ends(run, case.stored)]
    facts = MmaLayout(widths[0] * _bytes(case.stored), widths[1], False, not case.aligned.endswith("apart"))
    shapes = tuple((q, p) for p, q in case.sizes)
    found = two_axis_candidates(run, shapes, case.stored, tensor, facts, own)
    index = next(index for sizes, _, index in TWO_AXES if sizes == case.sizes)
    return [(found[index * (len(found) - 1) // 5], run, case.left, 1)]


def _suits(case: KronCase, tensor: Tensor) -> bool:
    """Whether tensor cores take all factors, small neighbours multiplied out."""
    return all(takes(group.mode, tensor) for group in joined(case.modes, tensor))


def _bytes(stored: str) -> int:
    return {"f16": 2, "f64": 8}.get(stored, 4)


def _ends(run: Pass, stored: str) -> list[tuple[int, int]]:
    """Lengths of the lines before and after a pass on tensor cores, and the widest access of each."""
    return [(run.modes[-1].columns, 16 // _bytes(stored)), (run.modes[-1].rows, min(4, 16 // _bytes(stored)))]


def _width(extent: int, most: int) -> int:
    return max(width for width in (1, 2, 4, 8) if width <= most and extent % width == 0)


def emitted(chosen: Plan) -> str:
    """Source of a pass."""
    if isinstance(chosen, WgmmaPlan):
        return tensor_emit.emit_wgmma(chosen)
    if isinstance(chosen, ClusterPlan):
        return tensor_emit.emit_clusters(chosen)
    if isinstance(chosen, TwoAxisPlan):
        return tensor_emit.emit_two_axes(chosen)
    if isinstance(chosen, AxisPlan):
        return tensor_emit.emit_axis(chosen)
    return mma_emit.emit(chosen) if isinstance(chosen, MmaPlan) else cuda_emit.emit(chosen)


def _key(source: str, arch: str) -> Key:
    return Key(arch, "harness", source, options=tuple(headers().values()))


def built(source: str, arch: str) -> Built:
    """Machine code of a source."""
    return Built(compile_source(source, arch, headers(), "kron").binary)


def sources_of(case: AnyCase, own: DeviceLimits) -> list[str]:
    """Sources that a case needs."""
    if isinstance(case, GramCase):
        return [factor_gradient_emit.emit(case.plan(own)), emit_total(case.dtype, case.transposed)]
    if isinstance(case, BackCase):
        return [case.source(own)]
    if isinstance(case, SeparationCase):
        return [separation.emit(case.plan(own))]
    return [emitted(chosen) for chosen, *_ in prepared(case, own)]


def branches(case: AnyCase, own: DeviceLimits) -> set[tuple[object, ...]]:
    """What of the templates the kernels of a case take."""
    if isinstance(case, GramCase):
        found = case.plan(own)
        if isinstance(found, RegisterGramPlan):
            applies = bool(found.factors)
            return {("gram", found.stored, found.order, found.vec, found.vec_v, found.vec_u, applies)}
        is_round = case.count * case.right > GRAM_SHARES * (STAGES + 1) * found.deep
        kind = "gram", found.stored, found.order, bool(found.factors)
        return {(*kind, is_round), (*kind, found.capacities, found.vec_u > 1)}
    if isinstance(case, ChainCase):
        plan = case.plan(own)
        parted = any(len(group) > 1 for group in plan.groups)
        ragged = any(extent % 8 for axis in plan.axes for extent in axis)
        return {
            ("chain", min(len(plan.axes), 3), case.dtype),
            ("chain", plan.items > 1, case.beside > 1, case.dtype, plan.vector > 1),
            ("chain", parted, ragged, max(map(max, plan.axes)) // 16),
        }  # fmt: skip
    if isinstance(case, BackRegistersCase):
        plan = case.plan(own)
        return {
            ("registers", case.dtype, plan.vector, plan.items > 1, plan.across > 0, plan.team),
            ("registers", any(len(group) > 1 for group in plan.groups)),
        }
    if isinstance(case, BackWgmmaCase):
        plan = case.plan(own)
        return {
            ("tiles", case.dtype, plan.pack, plan.vector),
            ("tiles", any(len(group) > 1 for group in plan.groups)),
        }
    if isinstance(case, BackAxisCase):
        return {("one axis", case.plan(own).items, any(len(group) > 1 for group in case.plan(own).groups))}
    if isinstance(case, SeparationCase):
        return {("separation", case.dtype), ("separation", case.entries > separation.THREADS)}
    return {branch for chosen, *_ in prepared(case, own) for branch in _branches(chosen)}


def _branches(chosen: Plan) -> Iterator[tuple[object, ...]]:
    if isinstance(chosen, WgmmaPlan):
        yield "wgmma", chosen.stored, chosen.size
        return
    if isinstance(chosen, ClusterPlan):
        yield "clusters", chosen.stored, chosen.size, any(len(part) > 1 for part in chosen.run.parts)
        return
    if isinstance(chosen, TwoAxisPlan):
        yield "two axes", chosen.stored, chosen.stays, chosen.layout.is_dense
        yield "two axes", chosen.stored, chosen.vector, chosen.layout.out_width
        yield "two axes", chosen.run.saves and chosen.saved_width
        yield "two axes", chosen.group > 1, chosen.group == chosen.warps, chosen.pitch != chosen.last.columns
        return
    if isinstance(chosen, AxisPlan):
        yield "one axis", chosen.stored, chosen.packed > 0, chosen.copies
        yield "one axis", chosen.stored, chosen.blocks, chosen.mode.columns > axis_plan.COLUMNS, chosen.vector
        return
    kind, beside, several = chosen.run.kind, chosen.right > 1, len(chosen.phases) > 1
    yield kind, beside, several, chosen.layout.added
    if isinstance(chosen, MmaPlan):
        yield chosen.stored, chosen.tensor, beside, several
        yield chosen.tensor, chosen.stages > 1, chosen.group > 1, chosen.is_shifted
        yield kind, beside, any(len(part) > 1 for part in chosen.run.parts)
        yield (
            chosen.stored,
            beside,
            chosen.is_coalesced,
            chosen.is_whole,
            chosen.is_coalesced and chosen.layout.out_width,
        )
        yield (
            kind,
            chosen.pitch % LANES == 0,
            chosen.swizzled_axis is not None,
            beside,
            chosen.run.modes[-1].columns > LANES,
        )
    else:
        yield kind, chosen.stored, beside
        yield kind, chosen.direct_in, chosen.direct_out, chosen.gap is None


def few(wanted: Sequence[AnyCase], own: DeviceLimits) -> list[AnyCase]:
    """The smallest cases that together take every branch."""
    found: list[AnyCase] = []
    known: set[tuple[object, ...]] = set()
    for case in sorted(wanted, key=_work):
        taken = branches(case, own)
        if not taken <= known:
            known |= taken
            found.append(case)
    return found


def _work(case: AnyCase) -> int:
    if isinstance(case, GramCase):
        return case.count * case.right * case.rows * case.columns
    if isinstance(case, BackCase):
        return case.entries * sum(map(max, case.sizes))
    if isinstance(case, SeparationCase):
        return case.entries * len(case.sizes)
    inner, outer = (math.prod(pair[side] for pair in case.sizes) for side in (0, 1))
    return case.left * case.beside * max(inner, outer) * sum(max(pair) for pair in case.sizes)


def compile_all(wanted: Sequence[AnyCase], own: DeviceLimits) -> None:
    """Compile what cases need in several processes, and keep it."""
    sources = list({source: None for case in wanted for source in sources_of(case, own)})
    missing = [source for source in sources if current_cache().find(_key(source, own.arch)) is None]
    if len(missing) < 2:
        return
    with ProcessPoolExecutor(os.cpu_count(), mp_context=multiprocessing.get_context("spawn")) as pool:
        for source, made in zip(missing, pool.map(built, missing, [own.arch] * len(missing)), strict=True):
            current_cache().fetch(_key(source, own.arch), lambda made=made: made)


def run(machine: Machine, case: KronCase) -> Array:
    """The result."""
    own = limits()
    x, factors, y = case.arrays()
    # The copy engine reads whole vectors, the last one too, of which less may be in the array.
    unit = 16 if case.aligned.startswith("two_axes") else 1
    value, there, beside = machine.upload(x, unit), [machine.upload(factor) for factor in factors], machine.upload(y)
    numbers, stream = [ALPHA, BETA], int(machine.stream.handle)
    result = np.full(x.shape, np.nan, x.dtype)
    for chosen, passed, left, right in prepared(case, own):
        used = [number for part in passed.parts for number in part]
        result = np.full((left, passed.rows, right), np.nan, x.dtype)
        out = machine.upload(result)
        saved = np.full((left, passed.modes[0].columns * passed.modes[-1].rows, right), np.nan, x.dtype)
        beside = machine.upload(saved) if passed.saves else beside
        sizes = {"a": 1, "b": 1, "c": left, "run": passed.columns, "right": right}
        values = {f"size_{axis}": sizes[axis] for axis in AXES}
        for buffer, length in (("x", passed.columns), ("y", passed.rows), ("out", passed.rows)):
            values |= {
                f"{buffer}_{axis}": step for axis, step in zip(AXES, (0, 0, length * right, right, 1), strict=True)
            }
        for place, number in enumerate(used):
            values |= {f"f{place}_row": 1, f"f{place}_column": case.sizes[number][1]}
        source = emitted(chosen)
        kernel = Kernel(binary_of(source), ENTRY, chosen.threads, chosen.shared, case.name)
        pointers = [int(buffer.handle) for buffer in (value, beside, out, *(there[number] for number in used))]
        names = parameters(len(used), chosen.layout.added, False)
        # Few blocks, so that each takes several tiles.
        many, groups = (2, chosen.groups) if isinstance(chosen, TwoAxisPlan | AxisPlan) else (3, 1)
        tiles = chosen.count(left, right)
        blocks = chosen.cluster if isinstance(chosen, ClusterPlan) else min(-(-tiles // groups), many)
        for is_later in (0, 1):  # either order of reading x and factors
            values[LATER] = is_later
            kernel(0, stream, blocks, (*pointers, *(values[name] for name in names), *numbers))
        if passed.saves:
            _check_saved(case, passed, machine.download(beside, saved))
        value, numbers[0] = out, 1.0
    return machine.download(value, result).reshape(case.left, -1, case.beside)


def _check_saved(case: KronCase, run: Pass, found: Array) -> None:
    """Assert that what a pass saves is x times the factors of the last axis."""
    x, factors, _ = case.arrays()
    last = [np.eye(len(factor)) if place in run.parts[0] else factor for place, factor in enumerate(factors)]
    wide, rows = [np.asarray(factor, np.float64) for factor in last], x.astype(np.float64)
    terms = DEVIATIONS * math.sqrt(2 * len(last)) * np.sqrt(_product(rows**2, [factor**2 for factor in wide]))
    depth = sum(p for p, _ in case.sizes)
    assert_close(found, _product(rows, wide), dtype=found.dtype, depth=depth, magnitude=terms)


def check(case: KronCase, found: Array) -> None:
    """Assert that a result is right."""
    wanted, terms = case.expected()
    depth = sum(p for p, _ in case.sizes)
    if case.aligned == "clusters":  # neighbours are multiplied out
        depth = max(depth, sum(count * size for size, count in FACTORS.items() if size**count == found.shape[1]))
    if case.dtype in ("f16", "tf32"):
        # every pass and every factor of several is rounded to halves
        terms = DEVIATIONS * math.sqrt(2 * len(case.sizes)) * terms
    assert_close(found, wanted, dtype="float16" if case.dtype == "tf32" else found.dtype, depth=depth, magnitude=terms)


def main(words: Sequence[str]) -> int:
    """Run and report; the number of cases that disagree."""
    machine = Machine()
    every = (*cases(), *GRAMS, *CHAINS, *TILES, *ALONE, *REGISTERS, *SEPARATIONS)
    wanted = selected(every, [word for word in words if word != "--few"])
    if "--few" in words:
        wanted = few(wanted, limits())
    compile_all(wanted, limits())

    def verify(case: Any) -> None:
        if isinstance(case, GramCase):
            found, applied = run_gram(machine, case)
            case.check(found)
            if case.factors:
                case.check_applied(applied)
        elif isinstance(case, BackCase):
            case.check(run_back(machine, case, limits(), binary_of(case.source(limits()))))
        elif isinstance(case, SeparationCase):
            binary = binary_of(separation.emit(case.plan(limits())))
            case.check(run_separation(machine, case, limits(), binary))
        else:
            check(case, run(machine, case))

    return report(wanted, verify)


if __name__ == "__main__":
    sys.exit(min(1, main(sys.argv[1:])))
