"""Plans for sums of squared differences by products on tensor cores: three kernels and their workspace.

The first splits the operands into halves, the second multiplies and computes entries that lose digits directly, the
third computes tiles where these are many. What the halves take is as large as the operands in float32.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ...compiler.nest import ROLES, Layout, Nest, batch_of
from ...compiler.patterns import LogProduct, Squares, log_product, squared_differences
from ...ir.node import Node
from .fitted import SQUARES
from .gram_plan import CudaPlan, planned, staged, supports_warp_specialized
from .tiles import DIFFERENCES, DIFFERENCES_PIPELINED, LOGARITHMS, PRODUCT_TILES, SPLITTER, DeviceLimits, Tile

BLOCK = 64  # rows and columns of a block of split operands
PROBE_BLOCKS = 32  # probe blocks that tell whether most entries lose digits
_LIST_TILES = 64
PROMISE = 1e-5
"""Largest relative error of a sum of squares, up to the deepest that is taken so."""
_LEAST_DEPTH, _DEEPEST = 32, 8192  # columns of the points
_ALIGNED = 1024  # bytes
_SURE = 0.95  # products are taken where they should take at most so much of the time of differences
_WIDEST_LOG = 128
"""Widest tile of logarithms: wider ones computed as written, with two registers an entry, do not fit."""


@dataclass(frozen=True)
class Scratch:
    """Offsets in bytes of the list, of the halves of both operands and of the norms of their rows, and the whole."""

    offsets: tuple[int, ...]
    size: int


@dataclass(frozen=True)
class SquaresPlan:
    """The three kernels; ``direct`` runs the tiles that ``main`` lists."""

    split: CudaPlan
    main: CudaPlan
    direct: CudaPlan
    scratch: Scratch
    split_blocks: int

    def __str__(self) -> str:
        others = "entries that underflow" if is_logarithm(self.main.nest) else "near entries"
        return f"{self.main}; {others} by {self.direct.schema}"


def planes(nest: Nest) -> int:
    """Return the halves that are kept of each number."""
    return 1 if nest.precision == "tf32" and squared_differences(nest) is not None else 2


def weight(nest: Nest) -> Node | None:
    """Return the weight of the squares."""
    found = squared_differences(nest)
    return None if found is None else found.weight


def _batches(nest: Nest, operand: str, sizes: Mapping[str, int], layout: Layout) -> int:
    """Return how many times an operand's rows are kept: its own batch and that of the weights."""
    over_k = {buffer.name for buffer in staged(nest)["vectors"]}
    indices = [index for index, buffer in enumerate(nest.operands) if buffer.name == operand or buffer.name in over_k]
    own = [role for role in "abc" if any(layout.strides[index][ROLES.index(role)] for index in indices)]
    return math.prod(sizes[role] for role in own)


def _tiles(tile: Tile, sizes: Mapping[str, int], symmetric: bool) -> int:
    batch = batch_of(sizes)
    if not symmetric:
        return batch * -(-sizes["m"] // tile.m) * -(-sizes["n"] // tile.n)
    side = math.lcm(tile.m, tile.n)
    squares = -(-sizes["m"] // side)
    return batch * squares * (squares + 1) // 2 * (side // tile.m) * (side // tile.n)


def _scratch(
    nest: Nest, found: Squares | LogProduct, sizes: Mapping[str, int], layout: Layout, tile: Tile, symmetric: bool
) -> tuple[Scratch, int]:
    """Return the workspace, and how many rows are split."""
    offsets, end = [0], 4 * (_LIST_TILES + 4 * _tiles(tile, sizes, symmetric))
    across = -(-sizes["k"] // BLOCK)
    rows = [
        _batches(nest, operand, sizes, layout) * -(-sizes[role] // BLOCK) * BLOCK
        for operand, role in ((found.row, "m"), (found.column, "n"))
    ]
    for width in (across * BLOCK * 2 * planes(nest), 8):
        for index, count in enumerate(rows):
            if symmetric and index == 1:
                offsets.append(offsets[-1])
                continue
            offsets.append(-(-end // _ALIGNED) * _ALIGNED)
            end = offsets[-1] + count * width
    return Scratch(tuple(offsets), end), rows[0] if symmetric else sum(rows)


def cycles(tile: Tile, nest: Nest, sizes: Mapping[str, int], symmetric: bool, limits: DeviceLimits) -> float:
    """Return the time of the products by a coarse model, in clocks; infinite for a tile that was not measured."""
    if not tile.efficiency:
        return math.inf
    own = limits.generation
    rate = own.half_products * (own.mma_share if tile.schema == "mma" else 1.0)
    products = 1 if planes(nest) == 1 else 3
    depth = -(-sizes["k"] // BLOCK) * BLOCK
    each = tile.m * tile.n * depth * products / (rate * tile.efficiency) + SQUARES.tile
    share = 0.5 if symmetric else 1.0
    moved = SQUARES.split_bytes * math.prod(sizes[role] for role in "abck") * (sizes["m"] + sizes["n"])
    split = moved / SQUARES.bytes_a_cycle
    return math.ceil(share * _tiles(tile, sizes, False) / limits.sm_count) * each + share * split + SQUARES.launches


def _direct_cycles(nest: Nest, sizes: Mapping[str, int], symmetric: bool, limits: DeviceLimits) -> float:
    terms = math.prod(sizes[role] for role in "abcmn") * (sizes["k"] + SQUARES.entry) * (0.5 if symmetric else 1.0)
    rate = SQUARES.logarithms if is_logarithm(nest) else SQUARES.differences
    return 2 * terms / (rate * limits.sm_count)


def is_logarithm(nest: Nest) -> bool:
    """Return whether it is the logarithm of a product, not a sum of squared differences."""
    return nest.reductions[0].name == "logsumexp"


def _direct_tile(tile: Tile, nest: Nest, sizes: Mapping[str, int], limits: DeviceLimits) -> Tile:
    """Return a tile of the same extent that is computed as written."""
    if is_logarithm(nest):
        return replace(LOGARITHMS, columns=tile.n // LOGARITHMS.threads_n)
    pipelined = tile.schema == "wgmma" and supports_warp_specialized(nest, sizes, limits)
    own = DIFFERENCES_PIPELINED if pipelined else DIFFERENCES
    return replace(own, columns=tile.n // own.threads_n)


def product_tiles(nest: Nest, sizes: Mapping[str, int], limits: DeviceLimits, symmetric: bool) -> list[Tile]:
    """Return the tiles that products may be taken in, the one believed fastest first."""
    valid = [
        tile
        for tile in PRODUCT_TILES
        if limits.has(tile.requires)
        and shared_bytes(nest, tile) <= limits.shared_per_block
        and (tile.n <= _WIDEST_LOG or not is_logarithm(nest))
    ]
    return sorted(valid, key=lambda tile: cycles(tile, nest, sizes, symmetric, limits))


def shared_bytes(nest: Nest, tile: Tile) -> int:
    """Return the dynamic shared memory of a block that multiplies."""
    half = (tile.m + tile.n) * 2 * BLOCK
    return 1024 + tile.stages * (half + 16) if tile.schema == "wgmma" else tile.stages * planes(nest) * half


def squares_plan(
    nest: Nest, sizes: Mapping[str, int], limits: DeviceLimits, layout: Layout, tile: str | None = None
) -> SquaresPlan | None:
    """Plan of a sum of squared differences or a log-sum-exp of sums; None if it must be as written or is quicker so.

    ``tile`` names one of ``PRODUCT_TILES`` to take, whether or not it pays.
    """
    found = (squared_differences(nest) or log_product(nest)) if nest.compute == "f32" else None
    shallow = tile is None and sizes["k"] < _LEAST_DEPTH
    if found is None or nest.precision == "ieee" or shallow or sizes["k"] > _DEEPEST:
        return None
    symmetric = nest.mirrors
    valid = [one for one in product_tiles(nest, sizes, limits, symmetric) if tile in (None, one.name)]
    direct_cycles = _direct_cycles(nest, sizes, symmetric, limits)
    quick = valid and cycles(valid[0], nest, sizes, symmetric, limits) < _SURE * direct_cycles
    if not valid or not (quick or tile is not None):
        return None
    best = valid[0]
    scratch, rows = _scratch(nest, found, sizes, layout, best, symmetric)
    text = f"products of f16 halves to {PROMISE:g}" if planes(nest) == 2 else "one product of f16 halves"
    text = "logarithms of products of f16 halves" if is_logarithm(nest) else text
    main = replace(planned(nest, sizes, limits, layout, best), numerics=text, shared=shared_bytes(nest, best))
    split = replace(planned(nest, sizes, limits, layout, SPLITTER), numerics=text, shared=4 * _DEEPEST)
    direct = replace(planned(nest, sizes, limits, layout, _direct_tile(best, nest, sizes, limits)), listed=True)
    blocks = PROBE_BLOCKS + max(1, min(-(-rows // 8), 4 * limits.sm_count))
    return SquaresPlan(split, main, direct, scratch, blocks)
