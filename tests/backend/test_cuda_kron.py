"""Kronecker passes on GPUs: what is planned for every card, and that the kernels compile without spilling."""

import itertools
import math
import random
from dataclasses import replace
from functools import cache

import pytest

from kernmantle.backends.cuda.emit import headers
from kernmantle.backends.cuda.nvrtc import Cubin
from kernmantle.backends.cuda.tiles import RESERVED_SHARED
from kernmantle.structured.kron import (
    cluster_plan,
    cuda_emit,
    factor_gradient_emit,
    gradient_emit,
    mma_emit,
    separation,
    tensor_emit,
)
from kernmantle.structured.kron.chain_gradient_plan import chain
from kernmantle.structured.kron.cluster_plan import ClusterPlan, cluster
from kernmantle.structured.kron.cuda_plan import CudaKronPlan, plan
from kernmantle.structured.kron.factor_gradient_plan import WIDEST_APPLIED, WIDEST_FLAT, GramPlan, gram
from kernmantle.structured.kron.fma_plan import FmaLayout, FmaPlan, fma
from kernmantle.structured.kron.mma_plan import STATIC_BYTES, MmaPlan, mma
from kernmantle.structured.kron.modes import Mode
from kernmantle.structured.kron.passes import plain_pass, square_groups
from kernmantle.structured.kron.separation import LONGEST, SeparationPlan, longest, separating_seconds
from kernmantle.structured.kron.tensor_plan import MmaLayout, Tensor
from kernmantle.structured.kron.wgmma_plan import WgmmaPlan, joined_pass, suits, wgmma

from ..golden.compiled import compile_source
from .test_cuda_compile import CARDS, SPILL_FREE

TENSORS = {
    "f32": Tensor("f16", 3),
    "f16": Tensor("f16", 1),
    "bf16": Tensor("bf16", 1),
    "f64": Tensor("f64", 1),
    "tf32": Tensor("f16", 1),
}
# Name: sizes (p, q) of the factors, columns to their right, storage.
CASES = {
    "8^5": ([(8, 8)] * 5, 1, "f32"),
    "16^2": ([(16, 16)] * 2, 1, "f32"),
    "32^3": ([(32, 32)] * 3, 1, "f32"),
    "64^2": ([(64, 64)] * 2, 1, "f32"),
    "64 beside": ([(64, 64)], 4096, "f32"),
    "128": ([(128, 128)], 1, "f32"),
    "96": ([(96, 96)], 1, "f32"),
    "128 beside": ([(128, 128)], 128, "f32"),
    "31x63": ([(31, 63)], 1, "f32"),
    "64^2 f16": ([(64, 64)] * 2, 1, "f16"),
    "128 bf16": ([(128, 128)], 1, "bf16"),
    "64^2 tf32": ([(64, 64)] * 2, 1, "tf32"),
    "8^3 f64": ([(8, 8)] * 3, 1, "f64"),
    "64^2 f64": ([(64, 64)] * 2, 1, "f64"),
    "64 beside f64": ([(64, 64)], 4096, "f64"),
}
MANY = 1 << 16
PORTABLE = ("8^5", "64^2", "96", "64^2 f16")


def modes(sizes: list[tuple[int, int]]) -> tuple[Mode, ...]:
    return tuple(Mode(p, q, number) for number, (p, q) in enumerate(sizes))


def planned(name: str, card: str) -> CudaKronPlan:
    sizes, right, kind = CASES[name]
    return plan(modes(sizes), right, kind.replace("t", ""), CARDS[card], True, TENSORS[kind])


def first_pass(name: str, card: str) -> FmaPlan | MmaPlan:
    sizes, right, kind = CASES[name]
    run, tensor, stored = planned(name, card).passes[0], TENSORS[kind], kind.replace("t", "")
    wide = all(size % 4 == 0 for pair in sizes for size in pair)
    if run.kind == "fma":
        wide = 16 // (8 if stored == "f64" else 4)
        return fma(
            run,
            stored,
            "f64" if stored == "f64" else "f32",
            FmaLayout(wide, wide, False, False),
            1024,
            right,
            CARDS[card],
        )
    assert tensor is not None
    shapes = tuple((q, p) for p, q in sizes)[run.first : run.stop]
    size = {"f64": 8}.get(stored, 4)
    facts = MmaLayout(16 if wide else size, 16 // size if wide else 1, False)
    found = mma(run, shapes, stored, tensor, facts, right, CARDS[card])
    assert found is not None
    return found


def emit(found: FmaPlan | MmaPlan) -> str:
    return mma_emit.emit(found) if isinstance(found, MmaPlan) else cuda_emit.emit(found)


@cache
def compiled(source: str, card: str) -> Cubin:
    return compile_source(source, card, headers(), "kron")


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize("right", [1, 1000])
@pytest.mark.parametrize("size", [16, 31, 50, 64, 100, 128])
def test_every_plan_fits_its_card(card: str, size: int, right: int) -> None:
    for kind, tensor in TENSORS.items():
        stored = kind.replace("t", "")
        for count in (1, 2, 3):
            chosen = plan(modes([(size, size)] * count), right, stored, CARDS[card], True, tensor)
            beside = right
            for run in sorted(chosen.passes, key=lambda run: -run.first):
                beside, here = beside * run.columns, beside
                if run.kind != "mma":
                    continue
                found = mma(run, (), stored, tensor, MmaLayout(8, 1, True), here, CARDS[card])
                assert found is not None
                assert found.shared + STATIC_BYTES <= CARDS[card].shared_per_block
                assert found.registers * found.threads <= CARDS[card].registers_per_sm
                assert found.warps % found.group == 0
                assert found.group <= found.phases[0].units


def test_precision_and_small_factors_stay_with_additions() -> None:
    card = CARDS["sm_90"]
    assert {run.kind for run in plan(modes([(64, 64)] * 2), 1, "f32", card, True, None).passes} == {"matmul"}
    assert {run.kind for run in plan(modes([(8, 8)] * 3), 1, "f32", card, True, TENSORS["f32"]).passes} == {"fma"}


def test_small_factors_are_multiplied_out_where_that_saves_a_pass() -> None:
    card = CARDS["sm_90"]
    halves = plan(modes([(8, 8)] * 5), 1, "f16", card, True, TENSORS["f16"]).passes
    assert sorted(len(part) for run in halves for part in run.parts) == [1, 2, 2]
    assert {run.kind for run in halves} == {"mma"}
    for count in range(1, 12):
        for size in (2, 3, 4, 5, 8):
            found = plan(modes([(size, size)] * count), 1, "f32", card, True, TENSORS["f32"]).passes
            places = [place for run in found for part in run.parts for place in part]
            assert sorted(places) == list(range(count))
            assert all(len(part) == 1 for run in found if run.kind == "fma" for part in run.parts)


def test_passes_are_balanced() -> None:
    for size in (16, 32):
        found = plan(modes([(size, size)] * 4), 1, "f32", CARDS["sm_90"], True, TENSORS["f32"]).passes
        assert sorted((run.first, run.stop) for run in found) == [(0, 2), (2, 4)]


def test_two_large_factors_need_eight_warps() -> None:
    for size, count in (128, 2), (64, 1):
        chosen = plan(modes([(size, size)] * 2), 1, "f32", CARDS["sm_90"], True, Tensor("f16", 3))
        assert len(chosen.passes) == count


@pytest.mark.parametrize("kind", ["f32", "f16", "f64"])
def test_passes_are_those_of_least_time(kind: str) -> None:
    """Any extents, on every card: each factor once, in ranges of neighbours that some kernel takes."""
    draw = random.Random(7)
    for _ in range(20):
        sizes = [(draw.randint(2, 150), draw.randint(2, 150)) for _ in range(draw.randint(1, 5))]
        rows, right = draw.choice((1, 40, 5000)), draw.choice((1, 1, 33))
        for card in CARDS.values():
            found = plan(modes(sizes), right, kind, card, True, TENSORS[kind], rows).passes
            assert sorted(place for run in found for part in run.parts for place in part) == list(range(len(sizes)))
            ranges = sorted((run.first, run.stop) for run in found)
            assert all(one[1] == other[0] for one, other in itertools.pairwise(ranges))
            assert all(len(run.parts) == len(run.modes) == 1 for run in found if run.kind == "matmul")


def test_few_rows_of_wide_factors_are_left_to_the_vendor() -> None:
    card = CARDS["sm_90"]
    assert {run.kind for run in plan(modes([(256, 256)] * 2), 1, "f32", card, True, TENSORS["f32"], 64).passes} == {
        "matmul"
    }


def test_neighbours_of_a_thread_divide_what_lies_beside() -> None:
    """135 entries beside an axis are no pairs: three neighbours fit, and no power of two but one."""
    run = plain_pass("fma", modes([(2, 2), (7, 7), (20, 20), (9, 9), (15, 15)]), 0, 5)
    found = fma(run, "f16", "f32", FmaLayout(4, 4, False, False), 3550, 1, CARDS["sm_90"])
    for phase in found.phases:
        beside = math.prod(found.extents[phase.stop :]) * found.right
        assert beside % phase.along == 0
        assert phase.along & (phase.along - 1) == 0


def test_rows_that_fill_a_block_are_copied_ahead() -> None:
    card, layout = CARDS["sm_90"], FmaLayout(4, 4, False, False)
    run = plain_pass("fma", modes([(8, 8)] * 5), 0, 5)
    found = fma(run, "f32", "f32", layout, 1024, 1, card)
    assert 0 < found.ahead < 8**5
    assert found.ahead % 8**3 == 0
    assert found.shared + STATIC_BYTES <= card.shared_per_block
    assert fma(run, "f32", "f32", layout, card.sm_count, 1, card).ahead == 0  # no block has another row
    assert fma(run, "f32", "f32", FmaLayout(1, 1, False, False), 1024, 1, card).ahead == 0  # rows begin anywhere


def test_halves_between_phases_are_halves() -> None:
    sizes, facts = modes([(48, 48), (54, 54)]), MmaLayout(4, 2, False)
    run = plain_pass("mma", sizes, 0, 2)
    own = {kind: mma(run, (), kind.replace("t", ""), TENSORS[kind], facts, 1, CARDS["sm_90"]) for kind in TENSORS}
    assert {kind: found.between for kind, found in own.items() if found is not None} == {
        "f32": "f32", "tf32": "f32", "f64": "f64", "f16": "f16", "bf16": "bf16",
    }  # fmt: skip


def test_small_factors_join_larger_ones_of_halves() -> None:
    """2 x 2 beside 58 x 58 is a factor of 116 x 116, and 3 x 3 beside two large ones a phase of their pass."""
    card = CARDS["sm_90"]
    (one,) = plan(modes([(2, 2), (58, 58)]), 1, "f16", card, True, TENSORS["f16"], MANY).passes
    assert (one.kind, one.rows, len(one.modes)) == ("mma", 116, 1)
    (one,) = plan(modes([(3, 3), (127, 127), (95, 95)]), 1, "bf16", card, True, TENSORS["bf16"], 1483).passes
    assert (one.kind, len(one.modes)) == ("mma", 3)


def test_without_fusion_every_factor_has_its_pass() -> None:
    assert len(plan(modes([(32, 32)] * 3), 1, "f32", CARDS["sm_90"], False, TENSORS["f32"]).passes) == 3
    assert len(planned("32^3", "sm_90").passes) == 1


WGMMA = {f"wgmma {extent}^2 {stored}": (extent, stored) for extent in (64, 128) for stored in ("f32", "f16", "bf16")}


def by_wgmma(name: str) -> WgmmaPlan:
    """Return the plan of a pass over two factors."""
    extent, stored = WGMMA[name]
    tensor, run = replace(TENSORS[stored], is_aligned=True), plain_pass("mma", modes([(extent, extent)] * 2), 0, 2)
    assert suits(run, MANY, 1, tensor, CARDS["sm_90"])
    return wgmma(run, ((extent, extent),) * 2, stored, tensor, MmaLayout(16, 4, False), CARDS["sm_90"])


@pytest.mark.parametrize("name", WGMMA)
def test_passes_by_wgmma_compile_without_spills(name: str) -> None:
    found = by_wgmma(name)
    taken = compiled(tensor_emit.emit_wgmma(found), "sm_90").resources
    assert taken.spill_stores == 0
    assert taken.registers * found.threads <= CARDS["sm_90"].registers_per_sm
    assert found.shared <= CARDS["sm_90"].shared_per_block
    assert found.stages >= 2
    assert found.stages % found.sets == 0


CLUSTERS = {
    f"{extent}^{count} clusters {stored}": (extent, count, stored)
    for extent, count in cluster_plan.FACTORS.items()
    for stored in ("f32", "f16", "bf16")
}


def by_clusters(name: str) -> ClusterPlan:
    """Return the plan of a pass over all axes of a row."""
    extent, count, stored = CLUSTERS[name]
    tensor, card = replace(TENSORS[stored], is_aligned=True), CARDS["sm_90"]
    run = cluster_plan.joined_pass(plain_pass("mma", modes([(extent, extent)] * count), 0, count), tensor)
    assert run is not None
    assert cluster_plan.suits(run, MANY, 1, stored, tensor, card)
    return cluster(run, ((extent, extent),) * count, stored, tensor, MmaLayout(16, 4, False), card)


@pytest.mark.parametrize("name", CLUSTERS)
def test_passes_by_clusters_compile_without_spills(name: str) -> None:
    found, card = by_clusters(name), CARDS["sm_90"]
    taken = compiled(tensor_emit.emit_clusters(found), "sm_90").resources
    assert taken.spill_stores == 0
    assert taken.registers * found.threads * found.blocks <= card.registers_per_sm
    assert (found.shared + RESERVED_SHARED) * found.blocks <= card.shared_per_sm


def test_rows_take_one_pass_by_clusters_where_arrays_are_aligned() -> None:
    card, aligned = CARDS["sm_90"], Tensor("f16", 3, is_aligned=True, has_wgmma=True)
    for extents in ((16,) * 4, (4,) * 8, (16, 2, 8, 4, 4, 16), (64,) * 3, (4,) * 9, (8, 8, 2, 32, 64)):
        sizes = modes([(extent, extent) for extent in extents])
        for rows in (200, 1024):
            assert len(plan(sizes, 1, "f32", card, True, aligned, rows).passes) == 1
        assert len(plan(sizes, 1, "f32", card, True, TENSORS["f32"], 1024).passes) > 1
        assert len(plan(sizes, 8, "f32", card, True, aligned, 1024).passes) > 1
    # few rows, another axis, products that leave what lies between their passes
    sizes = modes([(16, 16)] * 4)
    assert len(plan(sizes, 1, "f32", card, True, aligned, 4).passes) > 1
    assert len(plan(modes([(16, 16)] * 5), 1, "f32", card, True, aligned, 1024).passes[0].modes) < 4
    assert len(plan(sizes, 1, "f32", card, True, aligned, 1024, ("mma", "fma", "matmul")).passes) > 1
    # other generations, factors that are not square, neighbours that make none of 16
    run = plain_pass("mma", sizes, 0, 4)
    assert cluster_plan.suits(run, 1024, 1, "f32", aligned, card)
    for name in ("sm_80", "sm_100", "sm_120"):
        assert not cluster_plan.suits(run, 1024, 1, "f32", aligned, CARDS[name])
    for others in (
        [(16, 16)] * 3,
        [(16, 8), (8, 16), (16, 16), (16, 16), (16, 16)],
        [(8, 8), (32, 32), (16, 16), (16, 16)],
    ):
        assert cluster_plan.joined_pass(plain_pass("mma", modes(others), 0, len(others)), aligned) is None
    # float16 may not hold what factors are multiplied out to
    joint = plain_pass("mma", modes([(4, 4)] * 8), 0, 8)
    assert cluster_plan.joined_pass(joint, Tensor("f16", 1, is_aligned=True)) is None
    assert cluster_plan.joined_pass(joint, Tensor("bf16", 1, is_aligned=True)) is not None


def test_multiples_of_64_take_wgmma_where_arrays_are_aligned() -> None:
    card, aligned = CARDS["sm_90"], Tensor("f16", 3, is_aligned=True, has_wgmma=True)
    for extent, rows in (64, 1024), (128, 320):
        sizes = modes([(extent, extent)] * 3)
        found = plan(sizes, 1, "f32", card, True, aligned, rows)
        assert [(run.first, run.stop) for run in found.passes] == ([(0, 3)] if extent == 64 else [(1, 3), (0, 1)])
        assert found.seconds < plan(sizes, 1, "f32", card, True, TENSORS["f32"], rows).seconds
    # few tiles, other extents, a second factor behind which something lies
    run = plain_pass("mma", modes([(64, 64)] * 2), 0, 2)
    assert not suits(run, 100, 1, aligned, card)
    assert not suits(run, MANY, 64, aligned, card)
    assert not suits(run, MANY, 1, TENSORS["f32"], card)
    assert not suits(plain_pass("mma", modes([(64, 64), (128, 128)]), 0, 2), MANY, 1, aligned, card)
    assert not suits(plain_pass("mma", modes([(128, 128)]), 0, 1), MANY, 64, aligned, card)


def test_small_neighbours_make_factors_of_64_or_128() -> None:
    assert square_groups(modes([(8, 8)] * 4), 64, 2) == [(0, 1), (2, 3)]
    assert square_groups(modes([(2, 2), (32, 32), (64, 64)]), 64, 2) == [(0, 1), (2,)]
    assert square_groups(modes([(4, 4), (32, 32), (128, 128)]), 128, 2) == [(0, 1), (2,)]
    assert square_groups(modes([(128, 128), (2, 2), (64, 64)]), 128, 2) == [(0,), (1, 2)]
    assert square_groups(modes([(4, 4)] * 6), 64, 2) == [(0, 1, 2), (3, 4, 5)]
    for sizes in (
        [(32, 32)],
        [(64, 64)],
        [(16, 16), (256, 256)],
        [(64, 64), (128, 128)],
        [(64, 64)] * 3,
        [(8, 4), (8, 16)],
        [(2, 2)] * 6,
    ):
        assert joined_pass(plain_pass("mma", modes(sizes), 0, len(sizes))) is None
    # float16 may not hold what factors are multiplied out to
    run = replace(plain_pass("mma", modes([(64, 64)] * 2), 0, 2), parts=((0, 1), (2,)))
    assert not suits(run, MANY, 1, Tensor("f16", 1, is_aligned=True), CARDS["sm_90"])
    assert suits(run, MANY, 1, Tensor("bf16", 1, is_aligned=True), CARDS["sm_90"])


GRAMS = [
    (64, 64, 64, "f32"), (64, 64, 1, "f32"), (8, 8, 1, "f32"), (31, 63, 7, "f32"), (128, 128, 1, "f16"),
    (69, 69, 75, "bf16"), (17, 17, 5175, "bf16"), (34, 34, 21, "bf16"), (49, 49, 1, "f16"), (48, 48, 64, "f32"),
    (90, 90, 1, "f32"), (60, 60, 3, "f16"), (5, 10, 4, "f16"), (218, 130, 33, "f16"),
    (84, 84, 64, "bf16"), (140, 66, 1, "f16"), (64, 20, 1, "bf16"), (33, 7, 1, "f16"),
    (4, 4, 100, "f32"), (8, 8, 1, "f32"), (8, 8, 75, "bf16"), (3, 5, 6, "f16"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "columns", "right", "stored", "card"),
    [
        *((*case, "sm_90") for case in GRAMS),
        *((*case, card) for case, card in zip(GRAMS, itertools.cycle(["sm_80", "sm_120"]), strict=False)),
    ],
)
@pytest.mark.parametrize("applied", [False, True])
def test_gradients_of_factors_compile_for_two_blocks(rows, columns, right, stored, card, applied) -> None:
    found = gram(rows, columns, right, stored, True, card, ((rows, columns),) if applied else ())
    is_short = 1 < right < 16 or (right == 1 and rows % 2 + columns % 2 > 0)
    is_flat = stored != "f32" and is_short and max(rows, columns) > WIDEST_FLAT
    if applied and (max(rows, columns) > WIDEST_APPLIED or is_flat):
        assert found is None
        return
    if found is None:  # its stages do not fit
        assert applied
        assert CARDS[card].shared_per_block < CARDS["sm_90"].shared_per_block
        return
    taken = compiled(factor_gradient_emit.emit(found), card).resources
    assert taken.spill_stores <= (SPILL_FREE if applied else 0)
    assert taken.registers * found.threads * found.blocks <= CARDS[card].registers_per_sm
    assert found.shared <= CARDS[card].shared_per_block


@pytest.mark.parametrize("stored", ["f32", "bf16", "f64"])
@pytest.mark.parametrize("card", ["sm_80", "sm_90", "sm_100"])
def test_gradients_are_separated_without_spills(stored, card) -> None:
    sizes = ((20, 5), (1, 7), (16, 3), (2, 41))
    found = SeparationPlan(sizes, stored, "f64" if stored == "f64" else "f32", card)
    assert found.blocks == 100 + 7 + 48 + 82
    assert SeparationPlan(((64, 64), (2, 3)), stored, stored, card).blocks == 4096 // 32 + 6
    assert compiled(separation.emit(found), card).resources.spill_stores == 0


def test_long_sums_are_left_to_the_vendor() -> None:
    assert longest(((40, 40), (7, 7), (7, 7))) == 40 * 40 * 7 * 7 < LONGEST
    assert longest(((2, 2), (1024, 1024))) > LONGEST
    sizes = [((4, 4),), ((4, 4), (5, 5)), ((2, 2), (1024, 1024))]
    seconds = [separating_seconds(own, "f32", CARDS["sm_90"]) for own in sizes]
    assert seconds[0] == 0 < seconds[1] < seconds[2]


@pytest.mark.parametrize(
    ("size", "right", "stored", "card"),
    [
        *itertools.product([(8,) * 4, (12,) * 3, (34, 4, 10), (25, 16, 8), (7, 9)], [1], ["f32", "f16"], ["sm_90"]),
        *itertools.product([(8, 8), (41, 5), (3, 24, 4)], [5, 32], ["f32", "bf16"], ["sm_90"]),
        ((8,) * 4, 1, "f32", "sm_80"), ((10, 12), 3, "bf16", "sm_120"),
    ],
)  # fmt: skip
def test_passes_over_whole_rows_compile_for_their_blocks(size, right, stored, card) -> None:
    found = chain(tuple((extent, extent) for extent in size), 500, right, stored, CARDS[card])
    assert found is not None
    taken = compiled(gradient_emit.emit(found), card).resources
    assert taken.spill_stores <= SPILL_FREE
    assert taken.registers * found.threads * found.blocks <= CARDS[card].registers_per_sm
    assert found.shared <= CARDS[card].shared_per_block


def test_gradients_of_factors_are_shared_out() -> None:
    found = gram(64, 64, 16, "f32", True, "sm_90")
    assert found is not None
    assert [found.shares(count, 16, 264) for count in (1, 8, 9, 10**6)] == [1, 1, 5, 264]
    assert gram(257, 5, 1, "f32", True, "sm_90") is None
    assert gram(257, 5, 1, "f16", True, "sm_90") is None
    wide = gram(171, 100, 1, "f32", True, "sm_90")
    assert wide is not None
    assert (wide.capacities, wide.tiles) == ((96, 128), 2)
    assert gram(16, 16, 1, "f64", True, "sm_90") is None
    short = gram(16, 16, 3, "f16", False, "sm_90")
    assert short is not None
    assert (short.order, short.right, short.vec_v) == ("flat", 3, 1)
    assert short.shares(42 * 10, 3, 264) == 10


def test_tiles_of_halves_are_as_small_as_they_may_be_but_of_single_copies() -> None:
    def capacities(rows: int, columns: int, right: int) -> tuple[int, int]:
        found = gram(rows, columns, right, "bf16", True, "sm_90")
        assert isinstance(found, GramPlan)
        return found.capacities

    assert [capacities(84, 84, right) for right in (1, 64, 65)] == [(96, 96), (96, 96), (128, 128)]
    assert [capacities(*size, 64) for size in ((66, 20), (97, 64), (140, 140))] == [(96, 32), (128, 64), (160, 160)]


def test_runs_of_float32_lie_in_one_piece() -> None:
    def vectors(*sizes: tuple[int, bool]) -> list[int]:
        found = [gram(size, size, 5, "f32", is_aligned, "sm_90") for size, is_aligned in sizes]
        return [own.vec_v for own in found if own is not None and own.order == "flat"]

    assert vectors((27, True), (128, True), (27, False), (130, True)) == [4, 4, 1, 1]


def test_odd_rows_are_copied_as_wide_as_they_allow() -> None:
    odd = gram(30, 7, 1, "f32", True, "sm_90")
    assert odd is not None
    assert (odd.vec_v, odd.vec_u) == (2, 1)


def test_doubles_leave_large_factors_to_the_vendor() -> None:
    kinds = {
        size: plan(modes([(size, size)]), 1, "f64", CARDS["sm_90"], True, TENSORS["f64"], MANY).passes[0].kind
        for size in (16, 64, 65, 128)
    }
    assert kinds == {16: "mma", 64: "mma", 65: "matmul", 128: "matmul"}


def test_a_plan_prints_what_it_does() -> None:
    assert str(planned("64^2", "sm_90")) == "3 products of scaled f16 halves, mma 64x64*64x64"
    assert "3 products of scaled f16 halves, tile" in str(first_pass("64^2", "sm_90"))
