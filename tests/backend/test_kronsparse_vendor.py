"""Batched products of halves by the vendor: priced as they were timed, and taken where they are quicker."""

from __future__ import annotations

import pytest

from kernmantle.structured.mode_product.cost import quickest, transposed_seconds
from kernmantle.structured.mode_product.plan import contiguous
from kernmantle.structured.mode_product.tiles import tiled_seconds
from kernmantle.structured.mode_product.vendor_cost import blocks_seconds, matrix_seconds

from .test_cuda_compile import CARDS

CARD = CARDS["sm_90"]
# Microseconds of 25088 rows on an H200, the batch last (decisions 0013, 0088 and 0095).
TIMED = (
    ((6, 96, 96, 4), "bf16", 83), ((2, 128, 128, 4), "f16", 37), ((4, 96, 96, 4), "f16", 59),
    ((12, 48, 48, 4), "bf16", 84), ((32, 64, 64, 4), "f16", 245), ((3, 128, 128, 4), "f16", 55),
    ((24, 192, 48, 16), "f16", 1548), ((2, 192, 48, 4), "bf16", 35), ((1, 256, 256, 64), "bf16", 475),
    ((1, 768, 192, 2), "bf16", 38),
    ((3, 192, 192, 16), "bf16", 269), ((64, 64, 64, 16), "bf16", 1887), ((64, 192, 192, 4), "f16", 1345),
    ((2, 192, 192, 64), "bf16", 682), ((4, 256, 256, 16), "f16", 467),
    ((1, 96, 384, 64), "f16", 381), ((1, 64, 64, 4), "f16", 7.9), ((1, 128, 128, 16), "bf16", 60),
    ((3, 384, 96, 4), "bf16", 104), ((1, 192, 48, 2), "f16", 9.2), ((1, 192, 48, 64), "bf16", 249),
)  # fmt: skip
ONE_TILE = (1, 192, 48, 4), (1, 64, 64, 4), (1, 96, 96, 64), (1, 96, 384, 16), (1, 128, 128, 64), (4, 384, 96, 4)
DENSE = ((384, 96), 10.0, False), ((768, 192), 20.9, False), ((96, 384), 7.5, False), ((768, 192), 21.4, True)


@pytest.mark.parametrize(("pattern", "dtype", "taken"), TIMED, ids=str)
def test_calls_are_priced_as_timed(pattern, dtype, taken) -> None:
    assert 0.8 < taken / (1e6 * blocks_seconds(pattern, 25088, dtype, True)) < 1.2


@pytest.mark.parametrize(("pattern", "dtype", "taken"), TIMED[:7], ids=str)
def test_tiles_are_taken_where_they_are_quicker(pattern, dtype, taken) -> None:
    tile = tiled_seconds(contiguous(pattern, 25088, dtype, False), CARD, True)
    assert quickest(pattern, 25088, dtype, "cuda", True, tile, True)[0] == "kernel"
    assert 1e6 * tile < taken


@pytest.mark.parametrize("pattern", [(64, 192, 192, 4), (2, 192, 192, 64), (3, 192, 192, 16)], ids=str)
def test_blocks_of_two_tiles_are_the_vendors(pattern) -> None:
    tile = tiled_seconds(contiguous(pattern, 25088, "bf16", False), CARD, True)
    assert quickest(pattern, 25088, "bf16", "cuda", True, tile, True)[0] == "bmm"


@pytest.mark.parametrize("pattern", ONE_TILE, ids=str)
def test_blocks_of_one_tile_are_the_vendors_as_of_three(pattern) -> None:
    tile = tiled_seconds(contiguous(pattern, 25088, "bf16", False), CARD, True)
    assert quickest(pattern, 25088, "bf16", "cuda", True, tile, True)[0] == "bmm"


@pytest.mark.parametrize(("shape", "taken", "last"), DENSE, ids=str)
def test_outputs_cost_more_than_inputs(shape, taken, last) -> None:
    assert 0.85 < taken / (1e6 * matrix_seconds(shape, 25088, "f16", last)) < 1.15


@pytest.mark.parametrize(
    ("pattern", "kernel", "passes"), [((3, 512, 512, 4), 1644, 1876), ((1, 192, 192, 64), 2432, 2189)]
)
def test_float32_over_transposed_rows_is_taken_where_it_was_quicker(pattern, kernel, passes) -> None:
    problem = contiguous(pattern, 25088, "f32", True)
    found = transposed_seconds(problem, CARD, True), tiled_seconds(problem, CARD, True)
    assert (found[0] < found[1]) == (passes < kernel)


@pytest.mark.parametrize(("pattern", "taken"), [((4, 768, 768, 4), 1894), ((3, 768, 768, 4), 1380)], ids=str)
def test_passes_over_few_l_cost_more(pattern, taken) -> None:
    """What products between transposed rows took on an H200, where the kernel takes 1662 and 1168 us."""
    problem = contiguous(pattern, 25088, "f16", True)
    found = 1e6 * transposed_seconds(problem, CARD, True)
    assert 0.9 < taken / found < 1.1
    assert found > 1e6 * tiled_seconds(problem, CARD, True)


def test_small_matrices_of_halves_are_priced_by_whole_vectors() -> None:
    """The matrix takes 6.1 us where tiles take 7.8, and 19 where tiles take 16 (decision 0106)."""
    for pattern, batch, last, dense in (((12, 3, 36, 1), 16440, True, True), ((1, 49, 13, 3), 41999, False, False)):
        tile = tiled_seconds(contiguous(pattern, batch, "bf16", not last), CARD, True)
        found, _ = quickest(pattern, batch, "bf16", "cuda", last, tile, True)
        assert found == ("dense" if dense else "kernel")
