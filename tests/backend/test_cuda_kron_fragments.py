"""Kronecker passes on tensor cores, walked through on the host by the emitted functions: which lines lie where.

Every entry carries the numbers of its axes, so a line from the wrong place, or one written over another, shows.
"""

import itertools
import math
import re
from collections.abc import Callable, Sequence

import pytest

from kernmantle.structured.kron.mma_emit import emit
from kernmantle.structured.kron.mma_plan import LANES, MmaPlan, mma
from kernmantle.structured.kron.modes import Mode
from kernmantle.structured.kron.passes import plain_pass
from kernmantle.structured.kron.tensor_plan import MmaLayout, Tensor

from .test_cuda_compile import CARDS

SIZES = [
    [(3, 5)],
    [(16, 16), (16, 16)],
    [(3, 5), (4, 2)],
    [(20, 18), (5, 33)],
    [(3, 4), (5, 2), (17, 20)],
    [(2, 3), (3, 2), (4, 4), (2, 5)],
    [(4, 8), (12, 32)],
    [(3, 2), (8, 4), (33, 32)],
]
Entry = tuple[int, ...]


def planned(sizes: list[tuple[int, int]], right: int, stored: str = "f32") -> MmaPlan:
    modes = [Mode(p, q, number) for number, (p, q) in enumerate(sizes)]
    shapes = tuple((q, p) for p, q in sizes)
    run = plain_pass("mma", modes, 0, len(modes))
    tensor = Tensor("f16", 3) if stored == "f32" else Tensor("f64", 1)
    found = mma(run, shapes, stored, tensor, MmaLayout(8, 1, False), right, CARDS["sm_90"])
    assert found is not None
    return found


class Phase:
    """Constants and functions of a phase, read from the source."""

    def __init__(self, source: str, number: int) -> None:
        text = source.partition(f"struct Phase{number} {{")[2].partition("\n};")[0]
        self.constants = {name: int(value) for name, value in re.findall(r"([A-Z]+) = (\d+)", text)}
        self.swizzled = "ROW_SWIZZLED = true" in text
        self.functions: dict[str, Callable[[int], int]] = {
            name: eval("lambda line: " + body.replace("/", "//"), {})
            for name, body in re.findall(r"int (\w+)\(int line\) \{ return (.*); \}", text)
        }

    def __getattr__(self, name: str) -> Callable[[int], int]:
        return self.functions[name]

    def spot(self, line: int, row: int, column: int) -> int:
        """Place in the tile of a column of a line; ``row`` is the entry of the axis."""
        swizzle = self.swizzle(line) | (row % 4 * 8 if self.swizzled else 0)
        return self.tile_offset(line) + ((self.right(line) + column) ^ swizzle) + row * self.constants["PITCH"]


def _swizzle(phase: Phase, line: int) -> int:
    """By how much columns of a row have changed places."""
    return line % 4 * 8 if phase.swizzled else 0


def begun(plan: MmaPlan, phase: Phase) -> dict[int, Entry]:
    """The tile after the first phase: of every place, the item, axes and column that it holds."""
    modes, tile = plan.run.modes, {}
    axes = [range(mode.columns) for mode in modes[:-1]]
    for line in range(phase.constants["FIBERS"]):
        item, run, column = phase.item(line), phase.run(line), phase.right(line)
        before = list(itertools.product(*axes))[run // modes[-1].columns]
        assert run % modes[-1].columns == 0
        for q in range(modes[-1].rows):
            entries = range(LANES) if plan.right > 1 else (0,)
            for own in entries:
                alone = phase.tile_offset(line) + (q ^ _swizzle(phase, line))
                place = phase.spot(line, q, own) if plan.right > 1 else alone
                assert place not in tile
                assert 0 <= place < max(plan.tile, 1) or len(modes) == 1
                tile[place] = (item, *before, q, column + own)
    if plan.right == 1:  # zeros behind the last column are written, too
        padding = range(modes[-1].rows, -(-modes[-1].rows // LANES) * LANES)
        lines = range(phase.constants["FIBERS"])
        zeros = [phase.tile_offset(line) + (q ^ _swizzle(phase, line)) for line in lines for q in padding]
        assert not any(place in tile for place in zeros)
    count = plan.items * math.prod(map(len, axes)) * modes[-1].rows * plan.right
    assert len(tile) == count
    return tile


def moved(plan: MmaPlan, phase: Phase, axis: int, tile: dict[int, Entry]) -> dict[int, Entry]:
    """The tile after a later phase."""
    found: dict[int, Entry] = {}
    mode = plan.run.modes[axis]
    for line, own in itertools.product(range(phase.constants["FIBERS"]), range(LANES)):
        places = [phase.spot(line, k, own) for k in range(mode.columns)]
        if places[0] not in tile:  # behind the last column, where zeros are
            assert phase.right(line) + own >= phase.constants["EXTENT"]
            assert not any(place in tile for place in places)
            continue
        entries = [tile[place] for place in places]
        assert [entry[1 + axis] for entry in entries] == list(range(mode.columns))
        assert len({entry[: 1 + axis] + entry[2 + axis :] for entry in entries}) == 1
        for q in range(mode.rows):
            place = phase.spot(line, q, own)
            assert place not in found
            assert place < plan.tile
            found[place] = (*entries[0][: 1 + axis], q, *entries[0][2 + axis :])
    return found


@pytest.mark.parametrize("stored", ["f32", "f64"])
@pytest.mark.parametrize("right", [1, 16, 20])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_every_line_is_read_and_written_in_its_place(sizes: list[tuple[int, int]], right: int, stored: str) -> None:
    plan = planned(sizes, right, stored)
    source, modes = emit(plan), plan.run.modes
    phases = [Phase(source, number) for number in range(len(modes))]
    tile = begun(plan, phases[0])
    for number in range(1, len(modes)):
        before, tile = tile, moved(plan, phases[number], len(modes) - 1 - number, tile)
        assert len(tile) * modes[-1 - number].columns == len(before) * modes[-1 - number].rows
    if len(modes) > 1:
        written(plan, phases[-1], tile)


def written(plan: MmaPlan, last: Phase, tile: dict[int, Entry]) -> None:
    """The last phase writes every entry of the result once, at the number that its axes make."""
    rows, seen = [mode.rows for mode in plan.run.modes], set()
    behind = last.constants["STRIDE"]
    for line, q, own in itertools.product(range(last.constants["FIBERS"]), range(rows[0]), range(LANES)):
        column = last.right(line) + own
        if plan.right == 1 and column >= last.constants["EXTENT"]:
            continue
        item, *axes, beside = tile[last.spot(line, q, own)]
        run = last.run_out(line) + q * behind + (column if plan.right == 1 else 0)
        wanted = 0
        for digit, extent in zip(axes, rows, strict=True):
            wanted = wanted * extent + digit
        assert (last.item(line), run) == (item, wanted)
        assert plan.right == 1 or beside == column
        seen.add((item, run, column if plan.right > 1 else 0))
    assert len(seen) == plan.items * math.prod(rows) * plan.right


def test_overlapping_lines_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    apart = MmaPlan.strides.func

    def narrow(plan: MmaPlan) -> dict[int, int]:
        return {axis: max(1, stride // 2) for axis, stride in apart(plan).items()}

    monkeypatch.setattr(MmaPlan, "strides", property(narrow))
    with pytest.raises((AssertionError, KeyError)):
        test_every_line_is_read_and_written_in_its_place([(20, 18), (5, 33)], 1, "f32")


def _row(lane: int) -> int:
    """Row of eight that a lane has."""
    return lane // 4 & 4 | (lane // 4 & 1) << 1 | lane // 8 & 1


def _meet(places: Sequence[int], wide: int) -> bool:
    """Whether accesses of so many words that are served together share a bank."""
    banks = [(place + word) % 32 for place in places for word in range(wide)]
    return len(set(banks)) < len(banks)


@pytest.mark.parametrize(
    ("sizes", "right"),
    [([(64, 64)] * 2, 1), ([(32, 32)] * 3, 1), ([(16, 16)] * 2, 256), ([(16, 16)] * 3, 1), ([(48, 32), (20, 16)], 1)],
    ids=str,
)
def test_neighbouring_lines_meet_in_no_bank(sizes: list[tuple[int, int]], right: int) -> None:
    plan = planned(sizes, right)
    source = emit(plan)
    for number in range(len(sizes)):
        phase = Phase(source, number)
        for half, line in itertools.product((0, 16), range(min(8, phase.constants["FIBERS"]))):
            if number:
                lanes = range(half, half + 16)
                assert not _meet([phase.spot(line, lane % 4, lane // 4 * 2) for lane in lanes], 2)
            if number + 1 < len(sizes):
                lanes = range(half // 2, half // 2 + 8)
                rows = [8 * (line // 8) + _row(lane) for lane in lanes]
                if number or right > 1:
                    places = [phase.spot(line, row, lane % 4 * 4) for row, lane in zip(rows, lanes, strict=True)]
                else:
                    places = [
                        phase.tile_offset(row) + (lane % 4 * 4 ^ _swizzle(phase, row))
                        for row, lane in zip(rows, lanes, strict=True)
                    ]
                assert not _meet(places, 4)
