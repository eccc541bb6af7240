"""Constants of models of kernels, fitted to measured times: a row names its card and the rows it was fitted to.

Models choose between plans, and predict times on machines without the card. For cards that are not named they are a
guess; ``km.tune`` measures there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

_H200, _TILES, _CONTRACTIONS = "NVIDIA H200", "h200-tiles (decision 0005)", "h200-contraction"


@dataclass(frozen=True)
class Fitted:
    """``card`` is torch's name of the device; ``rows`` is a file of ``benchmarks/results`` and its decision."""

    card: str
    rows: str


@dataclass(frozen=True)
class GramCosts(Fitted):
    """Constants of ``gram_plan.cost``: issue slots of a cell, and cycles.

    Parameters
    ----------
    heavy : float
        Slots of a step whose map calls functions, of others 1.
    cell : float
        Slots of a cell besides its steps.
    wave, stage, group : float
        Cycles of a wave of blocks, of a stage of shared memory, of merging a group of threads.
    """

    heavy: float
    cell: float
    wave: float
    stage: float
    group: float


@dataclass(frozen=True)
class SquaresCosts(Fitted):
    """Constants of ``squares_plan.cycles`` and of the same differences computed as written.

    Parameters
    ----------
    launches : float
        Cycles of three kernels, and of what is allocated for them.
    tile : float
        Cycles at the end of a tile of products.
    split_bytes, bytes_a_cycle : float
        Bytes that are moved to split a number in halves, and how many a cycle moves.
    differences, logarithms : float
        Terms that a multiprocessor computes as written in 2 cycles.
    entry : int
        Terms for which an entry that is computed as written counts besides its own.
    """

    launches: float
    tile: float
    split_bytes: float
    bytes_a_cycle: float
    differences: float
    logarithms: float
    entry: int


@dataclass(frozen=True)
class KernelTimes(Fitted):
    """Constants of ``kernel_cost``: seconds of a kernel from the cycles of its plan's model.

    Parameters
    ----------
    start, vendor_start : float
        Seconds of a kernel with nothing to do, of ours and of a product of the vendor's.
    overlap : float
        Of memory and arithmetic, the share of the shorter one that is not hidden.
    products : mapping
        Multiplications a second of the vendor's products of large matrices, by type.
    clock, light, pipelined, heavy, squares : float
        Cycles a second: of models that count all of them, of ``gram_plan.cost`` by the kind of map and tile, and of
        ``squares_plan.cycles``.
    usual, usual_heavy, positions : float
        Slots of the maps to which the former were fitted, |a - b| and |a - b| ** p; slots of a step that finds
        positions over the usual ones (h100-scores).
    tensor : float
        Share of the tensor cores' rate that row reductions reach.
    scored, column, selected, selected_more : float
        Slots to take an entry from products and check it, or to split it in halves; for each column of v; to compare
        an entry, and the same by the square of how many are wanted.
    joined : float
        Bytes that torch moves, at the rate of the memory, for an entry that was selected from a part of the columns
        (h200-scores, 100 nearest).
    shares : mapping
        Share of the issue slots that row reductions reach, by the form of their plan.
    """

    start: float
    vendor_start: float
    overlap: float
    products: Mapping[str, float] = field(hash=False)
    clock: float
    light: float
    pipelined: float
    heavy: float
    squares: float
    usual: float
    usual_heavy: float
    positions: float
    tensor: float
    scored: float
    column: float
    selected: float
    selected_more: float
    joined: float
    shares: Mapping[str, float] = field(hash=False)


GRAM = GramCosts(_H200, _TILES, heavy=2.3, cell=6.7, wave=2200, stage=2300, group=150)
SQUARES = SquaresCosts(
    _H200, _CONTRACTIONS, launches=34000, tile=5000, split_bytes=12, bytes_a_cycle=2170, differences=120,
    logarithms=16, entry=32,
)  # fmt: skip
TIMES = KernelTimes(
    _H200, f"{_TILES}; of large calls that call functions {_CONTRACTIONS}",
    start=2.5e-6, vendor_start=5e-6, overlap=0.15,
    products={"f16": 3.7e14, "bf16": 3.7e14, "f32": 2.5e13, "f64": 2.2e13},
    clock=1.75e9, light=2.45e9, pipelined=2.85e9, heavy=1.65e9, squares=1.85e9,
    usual=2.0, usual_heavy=14.0, positions=1.7,
    tensor=0.75, scored=8.0, column=1.6, selected=8.0, selected_more=0.033, joined=2800.0,
    shares={"pipelined": 0.93, "tile": 0.62, "thin": 1.1},
)  # fmt: skip
