"""Tiles of Kronecker passes that are measured: kept, found again, and left alone where measuring would spoil y."""

import math
from types import SimpleNamespace

import pytest

import kernmantle as km
from kernmantle.backends.cuda.tiles import DeviceLimits
from kernmantle.structured.kron import cuda
from kernmantle.structured.kron.mma_choice import spread
from kernmantle.structured.kron.mma_plan import mma_candidates
from kernmantle.structured.kron.modes import Mode
from kernmantle.structured.kron.passes import plain_pass
from kernmantle.structured.kron.tensor_plan import MmaLayout, Tensor
from kernmantle.torch_ops import cuda as torch_cuda
from kernmantle.torch_ops.tuned_tiles import tuning

HOPPER = DeviceLimits("sm_90", 132, 232448, 233472, 65536, 2048)
SIZES = {"entries": 1000, "right": 1}


def plans(added=False):
    modes = [Mode(64, 64, number) for number in range(2)]
    run = plain_pass("mma", modes, 0, 2)
    return mma_candidates(run, ((64, 64),) * 2, "f32", Tensor("f16", 3), MmaLayout(16, 4, added), 1, HOPPER)[:4]


@pytest.fixture(autouse=True)
def cache(tmp_path):
    with km.config(cache_dir=str(tmp_path)):
        yield


@pytest.fixture
def started(monkeypatch):
    def measured(found, default, pointers, numbers):
        for one in found.values():
            one.run(pointers, numbers)
        names = list(found)
        return {name: math.inf if name == names[0] else float(names.index(name)) for name in names}

    monkeypatch.setattr(cuda, "measured", measured)
    return []


def make(started):
    return lambda plan: lambda pointers, numbers: started.append(plan.tile_name)


def test_the_quickest_is_kept_for_its_likes(started):
    own = plans()
    assert len({plan.tile_name for plan in own}) == 4
    cuda.starter(own, SIZES, "card", make(started))([1, 2, 3], (1.0, 0.0))
    assert started == [own[0].tile_name]
    with tuning() as found:
        begin = cuda.starter(own, SIZES, "card", make(started))
        begin([1, 2, 3], (1.0, 0.0))
        begin([1, 2, 3], (1.0, 0.0))
    assert [one.default for one in found] == [own[0].tile_name]
    best = found[0].best
    assert best != own[0].tile_name
    assert started[-2:] == [best] * 2
    for sizes, card, wanted in (
        ({"entries": 520, "right": 1}, "card", best),
        ({"entries": 1025, "right": 1}, "card", own[0].tile_name),
        (SIZES, "another card", own[0].tile_name),
    ):
        cuda.starter(own, sizes, card, make(started))([1, 2, 3], (1.0, 0.0))
        assert started[-1] == wanted


def test_what_is_added_in_place_is_written_once(started):
    own = plans(added=True)
    with tuning() as found:
        cuda.starter(own, SIZES, "card", make(started))([1, 3, 3], (1.0, 2.0))
    assert started == [own[0].tile_name]
    assert not found


def _float32(sizes, layout):
    run = plain_pass("mma", [Mode(size, size, index) for index, size in enumerate(sizes)], 0, len(sizes))
    shapes = tuple((size, size) for size in sizes)
    return mma_candidates(run, shapes, "f32", Tensor("f16", 3), layout, 1, HOPPER)


def test_few_tiles_of_float32_are_shared_by_the_warps_of_a_block():
    """353 rows take 9.5 us so, and 24.3 by blocks of one warp each, which prepare the factors alone (H200)."""
    found = spread(_float32((62, 5), MmaLayout(4, 1, False)), 353, 1, HOPPER.sm_count)
    assert found[0].warps >= 8
    assert found[0].group > 1


def test_rows_of_float32_that_fill_no_sixteen_are_taken_sixteen_at_a_time():
    """57 x 57 takes 602 us so, 682 with 32 rows at a time (2.3 million rows, H200)."""
    assert _float32((57,), MmaLayout(4, 1, False))[0].phases[0].tiles == 1
    assert _float32((64, 64), MmaLayout(16, 4, False))[0].phases[0].tiles == 2


@pytest.mark.parametrize(
    ("columns", "rows", "together", "whole"),
    [(8, 37, True, True), (2, 129, True, True), (100, 181, True, False), (60, 110, True, True), (18, 18, False, False)],
)
def test_rows_of_float32_that_are_no_whole_vectors_leave_a_warp_together(columns, rows, together, whole):
    """Results one by one took 343 us of 2 x 129 on 364320 rows where 58 are enough (H200)."""
    run = plain_pass("mma", [Mode(columns, rows, 0)], 0, 1)
    layout = MmaLayout(4 * math.gcd(columns, 4), math.gcd(rows, 4), False, True)
    for tile in mma_candidates(run, ((rows, columns),), "f32", Tensor("f16", 3), layout, 1, HOPPER):
        assert (tile.is_coalesced, tile.is_whole) == (together, whole)
        kept = 16 * tile.phases[0].tiles * rows
        assert tile.out_stage >= (kept + 3 if whole else 16 * 32 if together else 0)


def test_a_launch_binds_the_numbers_of_its_first_call(monkeypatch):
    bound, started = [], []

    def bind(kernel, arguments, positions, index, blocks):
        assert list(positions) == [0, 1, 2]
        return lambda pointers: bound.append((*pointers, *arguments[3:]))

    for name, found in (
        ("_kernel", lambda *_: "kernel"), ("begins_early", lambda *_, most: True), ("_integers", lambda *_: [7, 8]),
        ("_tiles", lambda *_: 1),
        ("resident", lambda *_: 1), ("limits", lambda _: HOPPER),
    ):  # fmt: skip
        monkeypatch.setattr(cuda, name, found)
    monkeypatch.setattr(torch_cuda, "bind_launch", bind)
    monkeypatch.setattr(torch_cuda, "start", lambda kernel, index, blocks, arguments: started.append(arguments))
    begin = cuda._starting(SimpleNamespace(is_later=False, arrays=SimpleNamespace(x=None, out=None)), 0, plans()[0])
    calls = [((1, 2, 3), (1.0, 0.0)), ((4, 5, 6), (1.0, 0.0)), ((4, 5, 6), (2.0, 0.0)), ((9, 5, 6), (1.0, 0.0))]
    for pointers, numbers in calls:
        begin(pointers, numbers)
    wanted = [(*pointers, 7, 8, *numbers) for pointers, numbers in calls]
    assert started == [wanted[0], wanted[2]]
    assert bound == [wanted[1], wanted[3]]
