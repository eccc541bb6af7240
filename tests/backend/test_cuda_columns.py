"""Score tiles times many columns of v: where they are planned, what their kernels take, what is launched."""

from __future__ import annotations

import pytest
import torch

from kernmantle.backends.cuda.columns_plan import columns_of, columns_tiles, list_bytes, registers, splitters
from kernmantle.backends.cuda.row_reduce_plan import CudaRowPlan
from kernmantle.backends.cuda.score_plan import SAMPLERS, blocks_of
from kernmantle.compiler.row_reduce import PRODUCT
from kernmantle.torch_ops import cuda_row_reduce, cuda_row_reduce_forms

from ..cuda.row_nests import SQUARES, RowCase
from .row_launches import check_memory, noted, planned, run
from .test_cuda_compile import CARDS
from .test_cuda_row_forms import CASES

GAUSSIAN = CASES["gauss_64_64"]


@pytest.mark.parametrize("k", [129, 192, 1000, 4096])
@pytest.mark.parametrize("width", [1, 16, 64, 200])
def test_memory_holds_every_stage_of_deep_points(k: int, width: int) -> None:
    plan = planned(CASES["gauss_1024_16"], k=k, l=width)
    sizes = CASES["gauss_1024_16"].sizes() | {"k": k, "l": width}
    layout, stages, tiles = plan.memory(sizes), -(-k // 64), -(-30000 // 128)
    split = tiles * stages * 128 * 64 * 4
    wanted = [list_bytes(width), split, split, tiles * 1024, tiles * 4 * (128 + 4)]
    wanted.append(-(-width // plan.group) * tiles * 512 * plan.group)
    check_memory(layout, wanted)
    assert plan.tile.stages >= 2
    assert plan.shared <= CARDS["sm_90"].shared_per_block
    assert plan.blocks(sizes, CARDS["sm_90"], width) == CARDS["sm_90"].sm_count


@pytest.mark.parametrize("width", [9, 16, 33, 64, 100, 128, 200, 256])
@pytest.mark.parametrize("k", [16, 33, 64, 96, 128])
def test_every_tile_has_what_it_needs(k: int, width: int) -> None:
    case, own = GAUSSIAN, CARDS["sm_90"]
    sizes = case.sizes() | {"k": k, "l": width}
    found = columns_tiles(case.rows, sizes, own)
    assert found
    for tile, columns in found:
        assert columns <= columns_of(width)
        assert tile.stages >= 2
        assert tile.depth >= k
        packed = 16 * tile.unroll > tile.depth
        assert 2 * tile.depth >= 16 * tile.unroll >= 3 * k if packed else 16 * tile.unroll >= k
        assert packed is (k == 33)
        groups = tile.threads // 128
        assert registers(tile, columns) + 24 <= {2: 232, 3: 160}[groups]
        assert tile.m == 64 * groups


@pytest.mark.parametrize("width", [9, 64, 130])
@pytest.mark.parametrize(("m", "k"), [(192, 16), (1001, 100)])
def test_memory_holds_every_tile_that_is_read(m: int, k: int, width: int) -> None:
    case, n = GAUSSIAN, 100001
    plan, sizes = planned(case, m=m, n=n, k=k, l=width), case.sizes() | {"m": m, "n": n, "k": k, "l": width}
    layout, (down, across) = plan.memory(sizes), blocks_of(plan.tile, sizes)
    passes = -(-width // plan.group)
    wanted = [list_bytes(width), down * 512 * plan.tile.depth, across * 512 * plan.tile.depth, down * 1024]
    wanted += [across * 4 * (128 + 4), passes * across * 512 * plan.group]
    check_memory(layout, wanted)
    assert list_bytes(width) >= 4 * (256 + width) >= 4 * (4 + SAMPLERS)
    assert splitters(plan.tile, plan.group, sizes) == SAMPLERS + down + (1 + passes) * across
    assert plan.shared <= CARDS["sm_90"].shared_per_block


def test_blocks_fill_the_card_with_as_many_columns_as_there_may_be() -> None:
    plan: CudaRowPlan = planned(GAUSSIAN, l=256)
    sizes = GAUSSIAN.sizes() | {"l": 256}
    assert plan.blocks(sizes, CARDS["sm_90"], 256) == CARDS["sm_90"].sm_count


def test_launches_what_splits_before_what_multiplies(monkeypatch: pytest.MonkeyPatch) -> None:
    made = noted(monkeypatch, cuda_row_reduce_forms, ("scale", "split", "products", "join products"))
    case = RowCase("launches", SQUARES, PRODUCT, 30000, 20000, 64, 130)
    assert cuda_row_reduce.TARGET().takes(case.rows, case.sizes(), torch.device("cuda"))
    run(case, (7.0, -0.02))
    plan = planned(case)
    assert [kernel for kernel, _, _ in made] == ["scale", "split", "products", "join products", "main", "join"]
    assert [blocks for _, blocks, _ in made[:4]] == [264, splitters(plan.tile, plan.group, case.sizes()), 132, 131]
    assert made[0][2] == made[1][2] == made[2][2] == made[3][2][:-3]
    assert made[4][2][-1] == made[0][2][-6]
