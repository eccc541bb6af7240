"""Plans of grouped launches on a GPU: several small products of a Kronecker-sparse training step in one launch.

A product is of three arrays that share batch axes: left over (p, r), right over (q, r), out over (p, q). The passes of
a factor are such products of x over (n, k), weights over (j, k) and y over (n, j), those of neighbours' matrix too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...backends.cuda.tiles import DeviceLimits
from ...compiler.nest import BYTES
from .chain_plan import Pattern, composes, fused

DTYPES = ("f32", "f16", "bf16")
_PARTS = _WARPS = (8, 4, 2, 1)
_SMALL = {"f32": 4e7, "f16": 1.5e8, "bf16": 1.5e8}  # multiplications up to which small tiles were quicker (H200)
_MANY = 128  # tiles, about as many as multiprocessors
_FILLED, _LONG = 640, 64  # warps below which tiles are made smaller, for sums so long
_SMALL_TILE = 4  # fragments of a tile that reads two sixteens of a long sum before the first is multiplied
_GATHERED = 256  # sums of a lane that the warps of a tile add up
_SHORT = 256  # rows that are summed by few warps
_MOST_REGISTERS = 255
_SHARING_REGISTERS = 100  # sums, numbers and places of a thread with which two blocks share a multiprocessor
# Fitted to the gradients of 119 random patterns on one H100 within 31 % (root mean square; decision 0032), to seven
# steps of a chain and to long sums on an H200: seconds to start, of a step of 16 r, of another behind it that reads
# numbers alone, times the tiles of a step to a power, and of a byte of neighbouring l; by bytes of a number those of a
# byte that is read in runs and of a number that is read alone; of a byte of the sectors that such numbers lie in, and
# that results are written to.
_START, _STEP, _ALONE_STEP, _STEP_POWER, _NEIGHBOURS_BYTE = 2.0e-6, 1.9e-7, 5e-7, 0.3, 9.0e-13
_RUN_BYTE, _ALONE = {4: 3.9e-13, 2: 1.8e-13}, {4: 5.7e-12, 2: 2.0e-12}
_READ_BYTE, _WRITTEN_BYTE = 7.2e-14, 4.9e-13
_SECTOR, _SHARE = 32, 0.3  # bytes of a sector; what is added of the smaller of memory and steps
_ARGUMENTS = 42  # of a product: four addresses, ``numbers_of`` it, and its blocks
_MOST_ARGUMENTS = 512  # 4 KiB, which every architecture takes
_MOST_JOINED = 5e-5  # seconds of the GPU up to which the host is what a pass takes long for (H200, decision 0071)


@dataclass(frozen=True)
class View:
    """Steps of an array in numbers: of the batch axes, the neighbouring l last, and of its own two.

    ``access`` is the largest power of 2 of bytes, 16 at most, that its address is a multiple of.
    """

    batch: tuple[int, int, int, int]
    first: int
    second: int
    access: int = 16

    @property
    def transposed(self) -> View:
        """Return the operand with its own axes exchanged."""
        return replace(self, first=self.second, second=self.first)


@dataclass(frozen=True)
class GroupedProduct:
    """``out[p, q] = Σ_r left[p, r] right[q, r]`` for all of ``sizes``, the last of which are neighbours (l).

    Without ``right`` sums over r, of one q and alone.
    """

    p: int
    q: int
    r: int
    sizes: tuple[int, int, int, int]
    left: View
    right: View | None
    out: View
    bias: View | None = None

    @property
    def work(self) -> int:
        """Products of two numbers."""
        return math.prod(self.sizes) * self.p * self.q * self.r


@dataclass(frozen=True)
class GroupedTile:
    """Template parameters, see ``kronsparse_grouped.cuh``."""

    l: int
    m: int
    n: int
    left: str
    right: str
    packed: bool
    bias: bool = False
    deep: int = 1

    @property
    def alone(self) -> bool:
        """Return whether it is of sums without products, those of neighbours together if packed."""
        return not self.right

    @property
    def sums(self) -> int:
        """Sums of a thread."""
        return 4 * self.l * self.m * self.n

    def registers(self, dtype: str) -> int:
        """Registers of a thread for sums, what it multiplies and where from; more with an address for each number."""
        if "ALONE" in (self.left, self.right):
            return _MOST_REGISTERS
        apart = 24 if dtype == "f32" else 0
        sides = (self.left, 2 * self.m), (self.right, self.n)
        reused = dtype != "f32" or self.sums < 32
        addresses = sum(2 * (own if "ALONG" in read else 4) for read, own in sides) if reused else 16
        numbers = self.deep * (2 * self.m + self.n) * self.l * BYTES[dtype]
        return self.sums + numbers + apart + addresses


@dataclass(frozen=True)
class GroupedPlan:
    """A launch: the tiles of its products, activation and passes over float32.

    ``levels`` are how many products there are that nothing has to precede, how many that read what those have written,
    and so on; none where no product waits for another one.
    """

    arch: str
    dtype: str
    tiles: tuple[GroupedTile, ...]
    warps: int
    activation: str = ""
    products: int = 3
    levels: tuple[int, ...] = ()

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.warps

    @property
    def each(self) -> int:
        """Blocks that are to share a multiprocessor."""
        small = all(tile.registers(self.dtype) <= _SHARING_REGISTERS for tile in self.tiles) and not all(
            tile.alone for tile in self.tiles
        )
        return (16 if small else 8) // self.warps

    @property
    def shared(self) -> int:
        """Bytes of shared memory of a block."""
        return 4 * self.threads * max(tile.sums for tile in self.tiles)  # more than sums alone need

    @property
    def rounds(self) -> int:
        """Numbers that a thread asks for at once in sums alone."""
        return 8 if self.each * self.warps > 8 else 16

    def __str__(self) -> str:
        shapes = ", ".join(f"{16 * own.m} x {8 * own.n} x {own.l}" for own in self.tiles)
        kind = "3 x tf32 " if self.dtype == "f32" and self.products == 3 else "tf32 " if self.dtype == "f32" else ""
        after = f" in {len(self.levels)} levels" if self.levels else ""
        return f"kron sparse grouped {self.arch} mma {shapes}, {kind}{self.dtype}{after}"


def _l(product: GroupedProduct) -> int:
    """Neighbouring l of a warp."""
    sides = (product.left, product.right, product.out, product.bias)
    together = all(side is None or side.batch[3] == 1 for side in sides)
    return math.gcd(product.sizes[3], 4) if together else 1


def _read(view: View, l: int, own: int, extent: int, r: int, size: int) -> str:
    others = _others(view, l)
    if others is not None and others.second == 2 and r % 4 == 0 and _fits(others, 8, size, others.first):
        return "ALONG_OTHER"
    even = own % 2 == 0 and extent % own == 0
    if others is not None and others.first == 2 and even and _fits(others, 2 * own, size, others.second):
        return "ACROSS_OTHER"
    if view.second == l and r % 4 == 0 and _fits(view, 4 * l, size, view.first):
        return "ALONG"
    if view.first == l and extent % own == 0 and own * l * size >= 4 and _fits(view, own * l, size, view.second):
        return "ACROSS"
    return "ADJACENT" if l * size >= 4 and l > 1 and _fits(view, l, size, view.first, view.second) else "ALONE"


def _others(view: View, l: int) -> View | None:
    """Return a view without the axis along which every number is another product's; None where no axis is."""
    steps = [step for step in view.batch if step]
    if l != 1 or steps.count(1) != 1 or 2 not in (view.first, view.second):
        return None
    return replace(view, batch=tuple([0 if step == 1 else step for step in view.batch]))


def _fits(view: View, count: int, size: int, *others: int) -> bool:
    """Return whether so many numbers may be at once read or written at steps of these and of the batch axes."""
    wanted = min(16, count * size)
    return view.access % wanted == 0 and all(step * size % wanted == 0 for step in (*view.batch, *others))


def _shape(product: GroupedProduct, l: int, dtype: str) -> tuple[int, int]:
    """Sixteens of p and eights of q of a tile: smaller ones where long sums would leave most multiprocessors idle."""
    m, n = _widest(product, l, dtype)
    across = product.right is not None and product.right.first == l
    least = -(-4 // (l * BYTES[dtype])) if across else 1  # four bytes at once
    shared = max(own for own in _PARTS if own == 1 or -(-product.r // 16) >= 2 * own)
    while product.r >= _LONG:
        warps = math.prod(product.sizes) // l * -(-product.p // (16 * m)) * -(-product.q // (8 * n)) * shared
        if warps >= _FILLED or (m == 1 and n <= least):
            break
        m, n = (m, n // 2) if n > max(2, least) else (1, n) if m > 1 else (m, n // 2)
    return m, n


def _widest(product: GroupedProduct, l: int, dtype: str) -> tuple[int, int]:
    """Wide ones only for much work, or many of one l."""
    m = 1 if product.p <= 16 or (l == 4 and dtype == "f32") else 2
    wide = -(-product.p // 32) * -(-product.q // 32) * math.prod(product.sizes)
    if product.q <= 16:
        return m, 1 if product.q <= 8 else 2
    if l == 1 and wide >= _MANY:
        return m, 4
    narrow = l == 4 and (m == 2 or dtype == "f32")
    return m, 2 if narrow or product.work < _SMALL[dtype] else 4


def tile_of(product: GroupedProduct, dtype: str) -> GroupedTile:
    """Return the tile of a product."""
    size, l = BYTES[dtype], _l(product)
    if product.right is None:
        together = product.left.first == 1 and _fits(product.left, 16 // size, size, product.left.second)
        return GroupedTile(1, 1, 1, "", "", together and product.p * size % 16 == 0)
    m, n = _shape(product, l, dtype)

    def stepped(view: View) -> View:
        return replace(view, batch=(*view.batch[:3], view.batch[3] * l if product.sizes[3] > l else 0))

    left = _read(stepped(product.left), l, 2 * m, product.p, product.r, size)
    right = _read(stepped(product.right), l, n, product.q, product.r, size)
    out = stepped(product.out)
    packed = out.second == l and product.q % (2 * n) == 0 and _fits(out, 2 * n * l, size, out.first)
    deep = 2 if l * m * n <= _SMALL_TILE and product.r >= _LONG else 1
    return GroupedTile(l, m, n, left, right, packed, product.bias is not None, deep)


def tiles_of(product: GroupedProduct, tile: GroupedTile) -> int:
    """Return the tiles of a product, one for a warp or several."""
    shape = -(-product.p // (16 * tile.m)) * -(-product.q // (8 * tile.n))
    return math.prod(product.sizes) // tile.l * shape


def parts_of(product: GroupedProduct, tile: GroupedTile, limits: DeviceLimits) -> int:
    """Return warps that share the r of a tile."""
    tiles, steps = tiles_of(product, tile), -(-product.r // 16)
    most = min(16 * limits.sm_count // tiles, steps // 2, _GATHERED // tile.sums)
    return next(own for own in _PARTS if own == 1 or own <= most)


def blocks_of(product: GroupedProduct, tile: GroupedTile, dtype: str, warps: int, limits: DeviceLimits) -> int:
    """Return the blocks of a product."""
    if tile.alone:
        return -(-product.p * BYTES[dtype] // 32) if tile.packed else -(-product.p // warps)
    return -(-tiles_of(product, tile) * parts_of(product, tile, limits) // warps)


def plan_grouped(
    limits: DeviceLimits, dtype: str, products: Sequence[GroupedProduct], activation: str = "", passes: int = 3
) -> GroupedPlan:
    """The plan of a launch: as many blocks as there are multiprocessors, where that takes no more than fewer warps."""
    tiles = tuple(tile_of(product, dtype) for product in products)
    several = [(product, tile) for product, tile in zip(products, tiles, strict=True) if not tile.alone]
    parts = [parts_of(product, tile, limits) for product, tile in several]
    total = sum(own * tiles_of(*each) for own, each in zip(parts, several, strict=True))
    long = any(tile.alone and product.r > _SHORT for product, tile in zip(products, tiles, strict=True))
    least = 8 if long or not several else max(parts)
    warps = next((own for own in _WARPS if own <= least or total >= 2 * own * limits.sm_count), least)
    return GroupedPlan(limits.arch, dtype, tiles, max(warps, least, 2), activation, passes if dtype == "f32" else 1)


def joined_plan(
    plans: Sequence[GroupedPlan], products: Sequence[Sequence[GroupedProduct]], limits: DeviceLimits
) -> GroupedPlan | None:
    """Return one plan for consecutive launches, with the most warps of any; None for one, or if they are long."""
    first, tiles = plans[0], tuple([tile for plan in plans for tile in plan.tiles])
    alone = any(tile.alone for plan in plans[1:] for tile in plan.tiles)  # which reads what nobody writes meanwhile
    if len(plans) == 1 or alone or 1 + _ARGUMENTS * len(tiles) > _MOST_ARGUMENTS:
        return None
    if sum(launch_seconds(each, first.dtype, limits) for each in products) > _MOST_JOINED:
        return None
    warps, levels = max(plan.warps for plan in plans), tuple([len(plan.tiles) for plan in plans])
    return replace(first, tiles=tiles, warps=warps, activation=plans[-1].activation, levels=levels)


def numbers_of(
    product: GroupedProduct, tile: GroupedTile, dtype: str, warps: int, limits: DeviceLimits
) -> tuple[tuple[int, ...], int]:
    """Return the arguments of a launch for a product, without its addresses, and the blocks it takes."""

    def steps(view: View | None) -> tuple[int, ...]:
        if view is None:
            return (0,) * 6
        return (*view.batch[:3], view.batch[3] * tile.l, view.first, view.second)

    bias = steps(product.bias)[:5]
    parts = 1 if tile.alone else parts_of(product, tile, limits)
    sizes = (*product.sizes[:3], product.sizes[3] // tile.l)
    within = *sizes, -(-product.q // (8 * tile.n)), -(-product.p // (16 * tile.m))
    exact = (math.prod(within) + 8) * max(within) < 2**32  # some warps of the last block are behind all tiles
    inverses = [-(-(2**32) // size) if exact and size > 1 else 0 for size in (*within[4:], *sizes)]
    own = product.p, product.q, product.r, parts, *sizes, *inverses
    numbers = (*steps(product.left), *steps(product.right), *steps(product.out), *bias, *own)
    return numbers, blocks_of(product, tile, dtype, warps, limits)


@dataclass(frozen=True)
class Passes:
    """A factor's arrays x (n, k), weights (j, k) and y (n, j), and its products."""

    rows: int
    j: int
    k: int
    sizes: tuple[int, int, int, int]
    x: View
    weight: View
    y: View

    def forward(self, bias: View | None = None) -> GroupedProduct:
        """Return the product itself."""
        return GroupedProduct(self.rows, self.j, self.k, self.sizes, self.x, self.weight, self.y, bias)

    def of_x(self) -> GroupedProduct:
        """Return the gradient of x, whose place the view of x is."""
        return GroupedProduct(self.rows, self.k, self.j, self.sizes, self.y, self.weight.transposed, self.x)

    def of_weight(self) -> GroupedProduct:
        """Return the gradient of the weights, written along what lies together."""
        if self.weight.first < self.weight.second:
            return GroupedProduct(
                self.k, self.j, self.rows, self.sizes, self.x.transposed, self.y.transposed, self.weight.transposed
            )
        return GroupedProduct(self.j, self.k, self.rows, self.sizes, self.y.transposed, self.x.transposed, self.weight)


def sums(features: int, rows: int, x: tuple[int, int, int]) -> GroupedProduct:
    """Return the sums over rows; x: steps of rows and of features, and the largest access its address allows."""
    none = (0, 0, 0, 0)
    left, out = View(none, x[1], x[0], x[2]), View(none, 1, 1)
    return GroupedProduct(features, 1, rows, (1, 1, 1, 1), left, None, out)


def factor(pattern: Pattern, rows: int, x: tuple[int, int, int], y: tuple[int, int, int], access: int = 16) -> Passes:
    """Passes of one factor; x and y: steps of rows and of features, and the largest access their addresses allow."""
    a, b, c, d = pattern
    return Passes(
        rows, b, c, (1, 1, a, d),
        View((0, 0, c * d * x[1], x[1]), x[0], d * x[1], x[2]),
        View((0, 0, b * c * d, 1), c * d, d, access),
        View((0, 0, b * d * y[1], y[1]), y[0], d * y[1], y[2]),
    )  # fmt: skip


def bias_view(pattern: Pattern, access: int = 16) -> View:
    """Return a bias over the rows of a factor."""
    _, b, _, d = pattern
    return View((0, 0, b * d, 1), d, 0, access)


def neighbours(first: Pattern, second: Pattern, access: tuple[int, int, int] = (16, 16, 16)) -> Passes:
    """Two factors that compose as passes: rows are those of the second's blocks, and y is the weights of their product.

    ``access`` is of the second, the first and their product.
    """
    assert composes(first, second)  # others have no such blocks: sums would be of other weights, and some unwritten
    (blocks, high, columns, steps), (a, b, c, d) = first, second
    outer, inner, block, wide = blocks // a, d // steps, columns * steps, blocks // a * columns * steps
    return Passes(
        b, columns, c // outer, (a, outer, inner, steps),
        View((b * c * d, c // outer * d, steps, 1), c * d, d, access[0]),
        View((outer * high * block, high * block, block, 1), steps, inner * block, access[1]),
        View((b * inner * wide, block, wide, 1), inner * wide, steps, access[2]),
    )  # fmt: skip


def _sector_bytes(view: View, least: int, size: int) -> int:
    """Return bytes of the sectors that a number belongs to for itself, where neighbours along its own axes are read."""
    return min(_SECTOR, max(least, min(view.first or _SECTOR, view.second or _SECTOR) * size))


def _read_seconds(view: View, read: str, count: int, present: float, l: int, size: int) -> float:
    """Return what it takes to read so many numbers, of which some are beyond the edges."""
    if read == "ALONE":
        return count * _ALONE[size] + present * _sector_bytes(view, size, size) * _READ_BYTE
    if read == "ADJACENT":
        return count * size * _NEIGHBOURS_BYTE + present * _sector_bytes(view, l * size, size) * _READ_BYTE
    return count * size * _RUN_BYTE[size]


def _product_seconds(product: GroupedProduct, size: int, tile: GroupedTile, parts: int) -> tuple[float, float]:
    """Return the memory and multiplications of a product, and the steps of a warp one after the other."""
    tiles, steps = tiles_of(product, tile), -(-product.r // (16 * parts))
    assert product.right is not None
    moved = 0.0
    sides = (product.left, tile.left, product.p, 16 * tile.m), (product.right, tile.right, product.q, 8 * tile.n)
    for view, read, extent, edge in sides:
        count = tiles * parts * steps * 16 * tile.l * edge
        present = tiles * extent / -(-extent // edge) * product.r * tile.l
        moved += _read_seconds(view, read, count, present, tile.l, size)
    each = size if tile.packed else _sector_bytes(product.out, size, size)
    moved += math.prod(product.sizes) * product.p * product.q * each * _WRITTEN_BYTE
    if "ALONE" not in (tile.left, tile.right):
        return moved, steps * _STEP
    return moved, _STEP + (steps - 1) * _ALONE_STEP / tile.deep * (tile.l * tile.m * tile.n) ** _STEP_POWER


def launch_seconds(products: Sequence[GroupedProduct], dtype: str, limits: DeviceLimits) -> float:
    """Return what a launch should take."""
    size, moved, longest = BYTES[dtype], 0.0, 0.0
    for product in products:
        tile = tile_of(product, dtype)
        if tile.alone:
            moved += product.p * product.r * size * _RUN_BYTE[size]
            continue
        own, steps = _product_seconds(product, size, tile, parts_of(product, tile, limits))
        moved, longest = moved + own, max(longest, steps)
    return _START + max(moved, longest) + _SHARE * min(moved, longest)


def forward_seconds(pattern: Pattern, batch: int, dtype: str, last: bool, limits: DeviceLimits) -> float:
    """Return what the product with one factor should take."""
    a, b, c, d = pattern
    x, y = ((1, batch, 16) if last else (a * m * d, 1, 16) for m in (c, b))
    return launch_seconds([factor((a, b, c, d), batch, x, y).forward()], dtype, limits)


def grouped_seconds(patterns: Sequence[Pattern], batch: int, dtype: str, last: bool, limits: DeviceLimits) -> float:
    """Return what a training step of a chain should take, a launch for each factor forward and one back."""
    total = 0.0
    for a, b, c, d in patterns:
        x, y = ((1, batch, 16) if last else (a * m * d, 1, 16) for m in (c, b))
        own = factor((a, b, c, d), batch, x, y)
        total += launch_seconds([own.forward()], dtype, limits)
        total += launch_seconds([own.of_x(), own.of_weight(), sums(a * b * d, batch, y)], dtype, limits)
    return total


def joined_seconds(patterns: Sequence[Pattern], dtype: str, limits: DeviceLimits) -> float:
    """Return the seconds of a training step for the matrix of a chain and the gradients of its factors."""
    total, whole = 0.0, patterns[0]
    for pattern in patterns[1:]:
        own = neighbours(whole, pattern)
        whole = fused(whole, pattern)
        total += launch_seconds([own.forward()], dtype, limits)
        total += launch_seconds([own.of_x(), own.of_weight()], dtype, limits)
    return total
