"""The tile of a kernel on the GPU: the fastest one that ``tune`` measured, else the default."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache, partial

import torch

from ..backends.cuda import emit
from ..backends.cuda.gram_plan import candidates, cost, is_choice
from ..backends.cuda.squares_plan import product_tiles, squares_plan
from ..backends.cuda.tiles import PRODUCT_TILES, DeviceLimits
from ..compiler.canonical import canonical
from ..compiler.nest import SIZES, Layout, Nest
from ..errors import LaunchError
from ..runtime.cache import Built, Key, current_cache, fingerprint
from ..runtime.kernel_store import compile_only
from ..runtime.launcher import Launcher, nothing

PRODUCTS = frozenset(tile.name for tile in PRODUCT_TILES)
_SESSION: ContextVar[list[Tuned] | None] = ContextVar("kernmantle_tuning", default=None)
session = _SESSION.get
"""Return the list that measurements are added to; None while nothing is tuned."""
_SLOWEST = 8.0  # times the least predicted time: slower tiles are not measured
_HOPELESS = 3.0  # times the least measured time: slower tiles are measured once
_LEAST, _MOST = 2e-4, 40  # seconds that a measurement takes at least; calls of it at most
_REPLAYS = 5  # measurements, of which the least counts

Make = Callable[[str | None], Launcher]


@dataclass(frozen=True)
class Tuned:
    """Measurements of one kernel: its extents by role, the tile it has by default, seconds of every tile."""

    sizes: Mapping[str, int]
    default: str
    seconds: Mapping[str, float]

    @property
    def best(self) -> str:
        """The quickest tile."""
        return min(self.seconds, key=lambda name: self.seconds[name])

    @property
    def gain(self) -> float:
        """The number of times as long that the default takes."""
        return self.seconds[self.default] / self.seconds[self.best]


@contextmanager
def tuning() -> Iterator[list[Tuned]]:
    """Make kernels that are prepared inside time all their tiles at their first call and store the fastest."""
    measured: list[Tuned] = []
    token = _SESSION.set(measured)
    try:
        yield measured
    finally:
        _SESSION.reset(token)


def launcher(
    nest: Nest, sizes: Mapping[str, int], own: DeviceLimits, layout: Layout, card: str, make: Make
) -> Launcher:
    """Return the launcher of a nest in its tuned or default tile; while tuning, one that tries all tiles."""
    measured_now = session()
    if measured_now is None:
        return make(recorded(nest, sizes, own, layout, card))
    default = default_name(nest, sizes, own, layout)
    makers = {name: (lambda name=name: make(name)) for name in names(nest, sizes, own, layout)}
    if compile_only():
        for made in makers.values():
            made()
        return Launcher(nothing, default)
    chosen: list[Launcher] = []

    def run(pointers: Sequence[int], numbers: tuple[float, ...]) -> None:
        if not chosen:
            found = {name: made() for name, made in makers.items()}
            tuned = Tuned(dict(sizes), default, measured(found, default, pointers, numbers))
            measured_now.append(tuned)
            keep(nest, sizes, card, tuned.best)
            chosen.append(found[tuned.best])
        chosen[0].run(pointers, numbers)

    return Launcher(run, f"all tiles, to choose one for {dict(sizes)}")


def names(nest: Nest, sizes: Mapping[str, int], own: DeviceLimits, layout: Layout) -> tuple[str, ...]:
    """Return the tiles that can run a nest and are not predicted to be far slower, unmeasured ones among them."""
    squares = [tile.name for tile in product_tiles(nest, sizes, own, nest.mirrors)]
    products = [name for name in squares if squares_plan(nest, sizes, own, layout, name) is not None]
    single = [tile for tile in candidates(nest, sizes, own) if is_choice(nest, sizes, own, layout, tile)]
    costs = {tile.name: cost(tile, nest, sizes, nest.mirrors, own) for tile in single}
    limit = _SLOWEST * min((each for each in costs.values() if each > 0), default=0.0)
    return (*products, *(name for name, each in costs.items() if each <= limit or each == math.inf))


def default_name(nest: Nest, sizes: Mapping[str, int], own: DeviceLimits, layout: Layout) -> str:
    """Return the tile taken where nothing was measured."""
    squares = squares_plan(nest, sizes, own, layout)
    if squares is not None:
        return squares.main.tile.name
    return next(tile.name for tile in candidates(nest, sizes, own) if is_choice(nest, sizes, own, layout, tile))


def _key(nest: Nest, sizes: Mapping[str, int], card: str) -> Key:
    """Return the device, contraction and shape class: extents between two powers of 2 are alike."""
    alike = tuple((sizes[role] - 1).bit_length() for role in SIZES)
    return Key(card, "tile", canonical((nest, alike)), _headers(), name=f"tile for extents of {alike} bits")


@lru_cache(maxsize=1)
def _headers() -> str:
    return fingerprint(emit.headers())


def recorded(nest: Nest, sizes: Mapping[str, int], own: DeviceLimits, layout: Layout, card: str) -> str | None:
    """Tile kept for a nest of about these extents; None where nothing was measured or it cannot run this one."""
    found = current_cache().find(_key(nest, sizes, card))
    if found is None:
        return None
    name = found.binary.decode()
    single = (tile for tile in candidates(nest, sizes, own) if tile.name == name)
    valid = any(is_choice(nest, sizes, own, layout, tile) for tile in single)
    return name if valid or squares_plan(nest, sizes, own, layout, name) is not None else None


def keep(nest: Nest, sizes: Mapping[str, int], card: str, name: str) -> None:
    """Store a tile for a nest and for all with about these extents."""
    current_cache().put(_key(nest, sizes, card), Built(name.encode()))


def measured(
    found: Mapping[str, Launcher], default: str, pointers: Sequence[int], numbers: tuple[float, ...]
) -> dict[str, float]:
    """Return the seconds of each launcher, the default first; one that takes much longer than another is timed once."""
    times: dict[str, float] = {}
    for name in sorted(found, key=lambda name: name != default):
        limit = _HOPELESS * min(times.values(), default=math.inf)
        try:
            times[name] = _seconds(partial(found[name].run, pointers, numbers), limit)
        except LaunchError:
            times[name] = math.inf
    return times


def _once(call: Callable[[], object]) -> float:
    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    first.record()
    call()
    last.record()
    last.synchronize()
    return first.elapsed_time(last) * 1e-3


def _seconds(call: Callable[[], None], limit: float) -> float:
    """Return the seconds on the GPU, of calls in a graph where they are short."""
    call()
    alone = _once(call)
    if alone > limit and alone > _LEAST:
        return alone
    if alone > 5 * _LEAST:
        return min(alone, _once(call))
    count = max(1, min(_MOST, math.ceil(_LEAST / alone)))
    side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
    torch.cuda.current_stream().wait_stream(side)
    with torch.cuda.graph(graph):
        for _ in range(count):
            call()
    graph.replay()
    return min(_once(graph.replay) for _ in range(_REPLAYS)) / count
