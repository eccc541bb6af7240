"""Small products of training steps: which arrays they are of, how those are read, and that the kernels compile."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from kernmantle.backends.cuda.emit import headers
from kernmantle.compiler.nest import BYTES
from kernmantle.structured.kronsparse.chain_matrix import has_matrix
from kernmantle.structured.mode_product import grouped, grouped_plan
from kernmantle.structured.mode_product.chain_plan import fused
from kernmantle.structured.mode_product.cuda_emit import emit_grouped
from kernmantle.structured.mode_product.grouped_plan import (
    blocks_of,
    factor,
    neighbours,
    numbers_of,
    parts_of,
    plan_grouped,
    tile_of,
    tiles_of,
)

from ..cuda.kronsparse_grouped_harness import FACTORS, TYPES, cases, expected, seen
from ..golden.compiled import compile_source
from .test_cuda_compile import CARDS

MONARCH = (6, 64, 64, 1), (1, 768, 192, 2)
MOST_SPILLED = 64
PATTERNS = (*MONARCH, (1, 64, 64, 64), (1, 1024, 64, 4), *FACTORS)


def passes(pattern, rows, last=False, access=16):
    a, b, c, d = pattern
    x, y = ((1, rows) if last else (a * m * d, 1) for m in (c, b))
    return factor(pattern, rows, (*x, access), (*y, access), access)


def launches(pattern, rows, last=False):
    own, bias = passes(pattern, rows, last), grouped_plan.bias_view(pattern)
    a, b, _, d = pattern
    alone = grouped_plan.sums(a * b * d, rows, (1, rows, 16) if last else (a * b * d, 1, 16))
    return [[own.forward(bias)], [own.of_x(), own.of_weight(), alone]]


@pytest.mark.parametrize(
    ("dtype", "pattern", "card"),
    [
        *itertools.product(("f32", "bf16"), PATTERNS[:4:3], ("sm_90",)),
        *(("f32", PATTERNS[3], card) for card in CARDS if card != "sm_90"),
    ],
    ids=str,
)
def test_compiles_within_its_registers(dtype, pattern, card) -> None:
    for products in (*launches(pattern, 200), *launches(pattern, 5, True)):
        chosen = plan_grouped(CARDS[card], dtype, products, "relu")
        resources = compile_source(emit_grouped(chosen), card, headers(), "few").resources
        assert resources.registers * chosen.threads <= CARDS[card].registers_per_sm
        assert resources.spill_stores <= MOST_SPILLED
        assert chosen.shared <= CARDS[card].shared_per_block


def joined(chain, rows, dtype, own, backward=False):
    """The launches of a pass of a chain one by one, and their plan as one."""
    factors = [passes(pattern, rows) for pattern in chain]
    found = [[each.of_x(), each.of_weight()] for each in reversed(factors)] if backward else []
    if backward:
        a, b, _, d = chain[-1]
        found[0].insert(0, grouped_plan.sums(a * b * d, rows, (a * b * d, 1, 16)))
    else:
        ends = [None] * (len(chain) - 1) + [grouped_plan.bias_view(chain[-1])]
        found = [[each.forward(bias)] for each, bias in zip(factors, ends, strict=True)]
    plans = [plan_grouped(own, dtype, each, "" if backward else "relu") for each in found]
    return found, plans, grouped_plan.joined_plan(plans, found, own)


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize(("dtype", "card"), [("bf16", "sm_90"), ("f32", "sm_80")])
def test_launches_of_a_chain_compile_as_one(dtype, card, backward) -> None:
    found, plans, plan = joined(MONARCH, 256, dtype, CARDS[card], backward)
    source = emit_grouped(plan)
    assert plan.levels == tuple(map(len, found))
    assert plan.warps == max(each.warps for each in plans)
    assert source.count("km::wait_for_blocks") == len(found[1])
    assert source.count("km::arrive_block") == sum(map(len, found))
    resources = compile_source(source, card, headers(), "joined").resources
    assert resources.registers * plan.threads <= CARDS[card].registers_per_sm
    assert resources.spill_stores <= MOST_SPILLED


def test_launches_are_joined_where_the_host_takes_longer() -> None:
    """Not those that take the GPU long, nor more than a launch has arguments for; the last one has the activation."""
    own = CARDS["sm_90"]
    assert joined(MONARCH, 16, "f32", own)[2].levels == (1, 1)
    assert joined(MONARCH, 25088, "f32", own)[2] is None
    assert joined(MONARCH[:1], 16, "f32", own)[2] is None
    five = ((16, 16, 16, 1), (4, 16, 16, 4), (1, 16, 16, 16), (4, 16, 16, 4), (16, 16, 16, 1))
    assert joined(five, 16, "bf16", own)[2].levels == (1,) * 5
    assert joined(five, 16, "bf16", own, True)[2].levels == (3, 2, 2, 2, 2)
    assert joined((*five, five[1]), 16, "bf16", own, True)[2] is None
    source = emit_grouped(joined(MONARCH, 16, "f32", own)[2])
    first, second = (source.split(f"struct Traits{index}")[1].split("};")[0] for index in (0, 1))
    assert "ACTIVATION = 0" in first
    assert "ACTIVATION = 1" in second


def test_a_graph_has_joined_launches_apart(monkeypatch) -> None:
    """A counter of blocks belongs to a stream, and a graph may be replayed on any; kernels are bound once."""
    products = [passes(pattern, 16).forward() for pattern in MONARCH]
    apart = tuple([grouped.PlannedProducts(None, (product,), 3) for product in products])
    joined, launched, bound = [], [], []

    def bind(planned):
        bound.append(planned)
        return grouped.BoundProducts("", planned.products, launched.append)

    captured = iter((False, True, True, False))
    monkeypatch.setattr(grouped, "_bind", bind)
    monkeypatch.setattr(grouped, "is_captured", lambda index: next(captured) if index == 3 else None)
    launch, addresses = grouped.JoinedLaunch(joined.append, apart, 3), (1, 2, 3, 0, 3, 4, 5, 6)
    for _ in range(4):
        launch(addresses)
    assert joined == [addresses] * 2
    assert launched == [addresses[:4], addresses[4:]] * 2
    assert bound == list(apart)


def test_an_activation_needs_no_bias() -> None:
    chosen = plan_grouped(CARDS["sm_90"], "f32", [passes(MONARCH[0], 16).forward()], "relu")
    assert "ACTIVATION = 1" in emit_grouped(chosen)


def test_products_are_the_passes_of_a_factor() -> None:
    a, b, c, d = pattern = (2, 3, 5, 4)
    random = np.random.default_rng(0)
    for rows, last in ((7, False), (7, True)):
        own, bias = passes(pattern, rows, last), grouped_plan.bias_view(pattern)
        x, y = (random.standard_normal((rows, a * m * d)) for m in (c, b))
        weight, offset = random.standard_normal(pattern), random.standard_normal(a * b * d)
        laid = [np.ravel(side.T if last else side) for side in (x, y)]
        x, y = x.reshape(rows, a, c, d), y.reshape(rows, a, b, d)
        found, _ = expected(own.forward(bias), [laid[0], weight, offset], "")
        wanted = np.einsum("nikl,ijkl->nijl", x, weight) + offset.reshape(a, b, d)
        np.testing.assert_allclose(found[0, 0], wanted.transpose(1, 3, 0, 2))
        found, _ = expected(own.of_x(), [laid[1], weight], "")
        np.testing.assert_allclose(found[0, 0], np.einsum("nijl,ijkl->ilnk", y, weight))
        found, _ = expected(own.of_weight(), [laid[1], laid[0]], "")
        np.testing.assert_allclose(found[0, 0], np.einsum("nijl,nikl->iljk", y, x))
        steps = (1, rows, 16) if last else (a * b * d, 1, 16)
        found, _ = expected(grouped_plan.sums(a * b * d, rows, steps), [laid[1], None], "")
        np.testing.assert_allclose(found.ravel(), y.sum(0).ravel())


@pytest.mark.parametrize("chain", [((6, 4, 3, 1), (1, 5, 12, 2)), ((4, 6, 5, 2), (2, 7, 4, 6))], ids=str)
def test_products_are_those_of_neighbours(chain) -> None:
    random = np.random.default_rng(0)
    first, second = (random.standard_normal(pattern) for pattern in chain)
    shape = fused(*chain)
    own = neighbours(*chain)
    whole = np.full(shape, np.nan)
    seen(whole.reshape(-1), own.y, own.forward(), (own.rows, own.j))[:] = expected(
        own.forward(), [second.reshape(-1), first.reshape(-1)], ""
    )[0]
    np.testing.assert_allclose(_matrix(whole), _matrix(second) @ _matrix(first))


def test_factors_that_do_not_compose_are_no_neighbours() -> None:
    """6 does not divide 16: blocks of the second reach into parts of blocks of the first."""
    chain = (6, 16, 24, 1), (1, 24, 16, 6)
    assert not has_matrix(chain)
    assert has_matrix(((6, 12, 24, 1), (1, 24, 12, 6)))
    with pytest.raises(AssertionError):
        neighbours(*chain)


def _matrix(weight):
    a, b, c, d = weight.shape
    found = np.zeros((a, b, d, a, c, d))
    for i, l in itertools.product(range(a), range(d)):
        found[i, :, l, i, :, l] = weight[i, :, :, l]
    return found.reshape(a * b * d, a * c * d)


@pytest.mark.parametrize("access", [2, 4, 8, 16])
def test_several_numbers_are_read_at_once_where_they_lie_so(access) -> None:
    """Every address that is a multiple of the step between such places keeps the alignment that the access needs."""
    kinds = set()
    for pattern, rows, dtype, last in itertools.product(PATTERNS, (1, 16, 30), ("f32", "f16"), (False, True)):
        size, own = BYTES[dtype], passes(pattern, rows, last, max(access, BYTES[dtype]))
        for product in (own.forward(), own.of_x(), own.of_weight()):
            tile = tile_of(product, dtype)
            sides = (
                (product.left, tile.left, 2 * tile.m, product.p), (product.right, tile.right, tile.n, product.q),
            )  # fmt: skip
            for side, read, count, extent in sides:
                kinds.add(read)
                if read == "ALONE":
                    continue
                together, other, step = {
                    "ALONG": (4 * tile.l, side.first, side.second), "ACROSS": (count * tile.l, side.second, side.first),
                    "ADJACENT": (tile.l, math.gcd(side.first, side.second), tile.l),
                    "ALONG_OTHER": (8, side.first, side.second), "ACROSS_OTHER": (2 * count, side.second, side.first),
                }[read]  # fmt: skip
                wanted = min(16, together * size)
                kind, _, other_ones = read.partition("_")
                assert step == (2 if other_ones else tile.l)
                assert (product.r % 4 if kind == "ALONG" else extent % count if kind == "ACROSS" else 0) == 0
                others = [*side.batch[:3], other] + [side.batch[3] * tile.l] * (product.sizes[3] > tile.l)
                if other_ones:
                    others.remove(1)
                    assert tile.l == 1
                assert max(access, size) % wanted == 0
                assert all(each * size % wanted == 0 for each in others)
    assert kinds >= ({"ALONG", "ACROSS", "ADJACENT", "ALONE"} if access == 16 else {"ALONE"})


def test_blocks_cover_every_tile_and_warps_share_long_sums() -> None:
    own = CARDS["sm_90"]
    for case in cases():
        for product in case.products():
            tile = tile_of(product, case.dtype)
            warps = case.plan(own).warps
            numbers, blocks = numbers_of(product, tile, case.dtype, warps, own)
            assert len(numbers) == 37
            assert blocks == blocks_of(product, tile, case.dtype, warps, own) > 0
            if not tile.alone:
                parts = parts_of(product, tile, own)
                assert warps % parts == 0
                assert tiles_of(product, tile) * parts <= blocks * warps
                assert math.prod(numbers[-10:-6]) * tile.l == math.prod(product.sizes)
    of_x = passes(MONARCH[1], 16).of_x()
    assert parts_of(of_x, tile_of(of_x, "f32"), own) == 8
    assert set(TYPES) <= set(grouped_plan.DTYPES)
