"""Which factors of a chain run as one."""

from __future__ import annotations

import itertools
import math
from contextlib import nullcontext

import pytest
import torch

from kernmantle.kronsparse import KSPattern, butterfly
from kernmantle.structured.kronsparse import chain_products
from kernmantle.structured.kronsparse.chain_training import _forward_kind
from kernmantle.structured.mode_product import cuda
from kernmantle.structured.mode_product.chain_plan import Step, composes, fused, steps
from kernmantle.structured.mode_product.cost import dense_seconds
from kernmantle.structured.mode_product.grouped_plan import factor as passes_of
from kernmantle.structured.mode_product.grouped_plan import (
    grouped_seconds,
    joined_seconds,
    launch_seconds,
    tile_of,
    tiles_of,
)
from kernmantle.structured.mode_product.plan import contiguous
from kernmantle.structured.mode_product.tiles import expected_seconds
from kernmantle.structured.mode_product.torch_op import Options
from tests.backend.test_cuda_compile import CARDS

LAUNCH = 1e-6


def test_blocks_that_meet_are_those_of_patterns() -> None:
    sizes = list(itertools.product((1, 2, 3, 6), (1, 2, 4), (1, 2, 6), (1, 2, 3)))
    kinds = {True: 0, False: 0}
    for first, second in itertools.product(map(KSPattern.of, sizes), repeat=2):
        found = second.rank(first) is not None
        kinds[found] += 1
        assert composes(first, second) == found
        if found:
            assert fused(first, second) == second.fuse(first)
    assert min(kinds.values()) > 50


def test_levels_of_a_butterfly_join_where_that_moves_less() -> None:
    levels = [tuple(pattern) for pattern in butterfly(4096)]

    def moved(pattern) -> float:
        return 1 + math.prod(pattern) / 4096 / 10

    found = steps(levels, moved, math.inf)
    assert [(step.begin, step.end) for step in found] == [(0, 3), (3, 6), (6, 9), (9, 12)]
    assert {step.kind for step in found} == {"factor"}
    assert steps(levels, moved, 7.0) == (Step("dense", 0, 12),)
    assert len(steps(levels, lambda pattern: math.prod(pattern) ** 1.1, math.inf)) == 12
    assert str(found[0]) == "factor 0..2"


def test_factors_that_do_not_meet_stay_apart() -> None:
    chain = [(1, 6, 4, 2), (3, 5, 4, 1)]
    assert [str(step) for step in steps(chain, lambda pattern: 1.0, math.inf)] == ["factor 0", "factor 1"]


def test_steps_are_the_best_of_all() -> None:
    chain = [(8, 3, 2, 1), (4, 4, 2, 3), (2, 5, 4, 6), (1, 2, 2, 30)]
    cost = {pattern: 1 + hash(pattern) % 7 for pattern in chain}

    def factor(pattern) -> float:
        return cost.get(pattern, 2 + math.prod(pattern) % 11)

    best = math.inf
    for cuts in itertools.product((False, True), repeat=3):
        total, own = 0.0, chain[0]
        for cut, pattern in zip(cuts, chain[1:], strict=True):
            if cut:
                total, own = total + factor(own), pattern
            else:
                own = fused(own, pattern)
        best = min(best, total + factor(own))
    found = steps(chain, factor, math.inf)
    total = 0.0
    for step in found:
        own = chain[step.begin]
        for pattern in chain[step.begin + 1 : step.end]:
            own = fused(own, pattern)
        total += factor(own)
    assert total == best


def test_nothing_costs_less_than_a_launch() -> None:
    own = CARDS["sm_90"]
    sizes = list(itertools.product((1, 6), (16, 768), (64, 192, 256), (1, 2, 16)))
    for pattern, batch, dtype in itertools.product(sizes, (1, 64), ("f32", "bf16")):
        for first, kept in itertools.product((False, True), repeat=2):
            assert expected_seconds(contiguous(pattern, batch, dtype, first), own, kept) > LAUNCH
        assert grouped_seconds([pattern], batch, dtype, False, own) > 2 * LAUNCH
        assert dense_seconds((pattern[1], pattern[2]), batch, dtype, "cuda") > LAUNCH
    assert joined_seconds([(6, 64, 64, 1), (1, 768, 192, 2)], "f32", own) > 2 * LAUNCH


# Microseconds of both gradients in one launch on an H100: pattern, rows, type, is the batch last.
GROUPED_GRADIENTS = (
    ((125, 17, 210, 69), 137, "bf16", False, 7847), ((56, 4, 30, 65), 2169, "f16", False, 6253),
    ((86, 3, 31, 87), 344, "bf16", False, 1810), ((33, 144, 7, 31), 427, "f16", False, 785),
    ((6, 302, 390, 42), 16, "bf16", True, 741), ((82, 129, 173, 17), 18, "f16", True, 706),
    ((4, 182, 342, 31), 1, "f32", True, 153), ((12, 3, 36, 1), 16440, "bf16", True, 57.2),
    ((8, 333, 30, 4), 50, "bf16", False, 16.3), ((2, 3, 63, 1), 51, "bf16", False, 3.4),
)  # fmt: skip


@pytest.mark.parametrize(("pattern", "rows", "dtype", "last", "taken"), GROUPED_GRADIENTS, ids=str)
def test_numbers_that_are_read_alone_cost_their_sectors(pattern, rows, dtype, last, taken) -> None:
    a, b, c, d = pattern
    x, y = ((1, rows, 16) if last else (a * m * d, 1, 16) for m in (c, b))
    own = passes_of(pattern, rows, x, y)
    seconds = launch_seconds([own.of_x(), own.of_weight()], dtype, CARDS["sm_90"])
    assert taken / 2 < 1e6 * seconds < taken * 2


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("last", [False, True])
def test_tiles_of_few_columns_and_long_sums_have_columns(dtype: str, last: bool) -> None:
    """Halves are read four bytes at a time across, more than the one column of a tile of at most 8 columns."""
    for (b, c), rows in itertools.product(((97, 8), (16, 6), (3, 300), (700, 1), (1, 1)), (1, 4, 64, 2354)):
        x, y = ((1, rows, 16) if last else (14 * m, 1, 16) for m in (c, b))
        own = passes_of((14, b, c, 1), rows, x, y)
        for product in (own.forward(), own.of_x(), own.of_weight()):
            tile = tile_of(product, dtype)
            assert tile.m >= 1
            assert tile.n >= 1
            assert tiles_of(product, tile) >= 1


# Microseconds on an H200: pattern, rows, type, is the batch last; by the packed kernel, and in one launch that reads
# weights where they lie.
PACKED = (
    ((5, 3, 944, 1), 66, "bf16", True, (13.3, 3.5)), ((10, 12, 851, 2), 7, "f16", True, (15.8, 5.0)),
    ((1, 9, 897, 2), 5, "bf16", True, (15.6, 5.1)), ((12, 685, 16, 2), 15955, "f32", False, (1137, 3415)),
)  # fmt: skip


@pytest.mark.parametrize(("pattern", "rows", "dtype", "last", "taken"), PACKED, ids=str)
def test_packed_products_of_small_batches_go_in_one_launch(pattern, rows, dtype, last, taken, monkeypatch) -> None:
    monkeypatch.setattr(cuda, "limits", lambda index: CARDS["sm_90"])
    monkeypatch.setattr(cuda, "index_of", lambda device: 0)
    found = _forward_kind((pattern,), rows, dtype, last, torch.device("cuda", 0), False, False, True)
    assert found == ("factors", "grouped")[taken[1] < taken[0]]


def test_a_pass_that_splits_has_a_stream_for_each_of_its_sums(monkeypatch):
    asked = []
    monkeypatch.setattr(chain_products, "side_stream", lambda device: asked.append(device) or nullcontext())
    for splits, most in ((False, []), (True, ["cuda:1", "cuda:1"])):
        apart = chain_products.maybe_side_stream("cuda:1", splits)
        for _ in range(2):
            with apart():
                pass
        assert asked == most


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("side", [0, 1])
def test_one_number_for_all_costs_a_sector(side, dtype) -> None:
    lies = (400, 1, 16)
    for pattern in ((2, 5, 4, 5), (9, 2, 1, 2), (4, 32, 32, 4)):
        one, usual = (passes_of(pattern, 70, *((own, lies) if side == 0 else (lies, own))) for own in ((0, 0, 4), lies))
        for name in ("forward", "of_x", "of_weight"):
            found, most = (launch_seconds([getattr(own, name)()], dtype, CARDS["sm_90"]) for own in (one, usual))
            assert 0 < found < 2 * most


@pytest.mark.parametrize("last", [False, True])
def test_weights_of_no_rows_have_gradients_without_a_choice(last, monkeypatch) -> None:
    monkeypatch.setattr(chain_products.execute, "described", lambda x: (x.shape[1], "f16", "cuda", last))
    for pattern in ((4, 5, 57, 8), (2, 32, 2, 4), (1, 8, 57, 5)):
        a, b, c, d = pattern
        x, grad = torch.empty(1, 0, a * c * d), torch.empty(1, 0, a * b * d)
        sums = chain_products.bind_gradient(x, grad, pattern, Options(last, "auto", ""))
        assert torch.equal(sums(x, grad), torch.zeros(1, *pattern))
