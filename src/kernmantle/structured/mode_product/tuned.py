"""The algorithm of a Kronecker-sparse product on a GPU: the fastest one that ``tune`` measured.

A choice is the name of one of torch's algorithms, "kernel", or "kernel" and the name of a tile.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

from ...backends.cuda import emit
from ...backends.cuda.tiles import DeviceLimits
from ...compiler.canonical import canonical
from ...runtime.cache import Built, Cache, Key, current_cache, fingerprint
from ...runtime.launcher import Launcher
from ...torch_ops.tuned_tiles import Tuned, measured
from .cost import TRANSPOSED, seconds
from .plan import Problem, Tile
from .tiles import plan, tiles_to_try
from .transpose_plan import inner

KERNEL = "kernel"
_TILES = 8  # tiles that are measured
_SLOWEST = 8.0  # times the least predicted time: slower ways are not measured


def tile_of(algorithm: str) -> Tile | None:
    """Return the tile that a choice names."""
    name = algorithm.removeprefix(KERNEL).strip()
    return Tile.of(name) if algorithm.startswith(KERNEL) and name else None


def candidate_algorithms(problem: Problem, own: DeviceLimits, packed: bool) -> tuple[str, ...]:
    """Return the choices that are not predicted to be far slower; ``packed``: with weights that are packed already."""
    taken = seconds(problem.pattern, problem.batch, problem.dtype, "cuda", not problem.x_first, packed)
    limit = _SLOWEST * min(taken.values())
    torch_has = tuple(name for name, each in taken.items() if name != KERNEL and each <= limit)
    default = plan(problem, own)
    tiles = [] if default is None else [tile for tile in tiles_to_try(problem, own, _TILES) if tile != default.tile]
    transposed = () if inner(problem) is None else (TRANSPOSED,)
    return (KERNEL, *(f"{KERNEL} {tile.name}" for tile in tiles), *transposed, *torch_has)


def _key(problem: Problem, packed: bool, card: str) -> Key:
    """Return the key of a product; batches between the same powers of 2 share one."""
    alike = replace(problem, batch=(problem.batch - 1).bit_length())
    return Key(card, "kronsparse", canonical((alike, packed)), _headers(), name=f"way of {problem.pattern}")


@lru_cache(maxsize=1)
def _headers() -> str:
    return fingerprint(emit.headers())


def find_tuned(problem: Problem, packed: bool, own: DeviceLimits, card: str) -> str | None:
    """Return the choice stored for such products; None if nothing was measured or its tile does not fit."""
    return _find_tuned(current_cache(), problem, packed, own, card)


@lru_cache(maxsize=4096)
def _find_tuned(cache: Cache, problem: Problem, packed: bool, own: DeviceLimits, card: str) -> str | None:
    found = cache.find(_key(problem, packed, card))
    if found is None:
        return None
    algorithm = found.binary.decode()
    tile = tile_of(algorithm)
    return algorithm if tile is None or plan(problem, own, tile) is not None else None


def tuned(calls: dict[str, Callable[[], object]], default: str, problem: Problem, packed: bool, card: str) -> Tuned:
    """Time every choice and store the fastest."""
    found = {name: Launcher(lambda *_, call=call: call(), name) for name, call in calls.items()}
    sizes = dict(zip("abcd", problem.pattern, strict=True)) | {"batch": problem.batch}
    result = Tuned(sizes, default, measured(found, default, (), ()))
    current_cache().put(_key(problem, packed, card), Built(result.best.encode()))
    _find_tuned.cache_clear()
    return result
