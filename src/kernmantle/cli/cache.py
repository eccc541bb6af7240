"""``kernmantle cache``: what is kept, how large it is, and getting rid of it."""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from ..runtime.cache import Cache, current_cache

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}
_AGES = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"))


def main(arguments: Sequence[str]) -> int:
    """Run the command; returns the exit status."""
    parser = argparse.ArgumentParser("kernmantle cache", description="The compiled kernels kept on disk.")
    parser.add_argument("--directory", type=Path, help="look here instead of in the configured cache")
    parser.set_defaults(action=_list)
    actions = parser.add_subparsers(metavar="action")
    actions.add_parser("list", help="every kept kernel (the default)").set_defaults(action=_list)
    actions.add_parser("clear", help="remove all").set_defaults(action=_clear)
    prune = actions.add_parser("prune", help="remove the least recently used until the rest fits a size")
    prune.add_argument("size", type=_bytes, help="bytes, or with a unit: 500k, 200M, 1G")
    prune.set_defaults(action=_prune)
    options = parser.parse_args(arguments)
    cache = Cache(options.directory) if options.directory else current_cache()
    options.action(cache, options, Console())
    return 0


def _bytes(text: str) -> int:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg]?)b?", text.strip().lower())
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write 500k, 200M or 1G")
    return int(float(found[1]) * _UNITS[found[2]])


def _age(seconds: float) -> str:
    for length, unit in _AGES:
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def _list(cache: Cache, _options: argparse.Namespace, console: Console) -> None:
    entries = cache.entries()
    table = Table("kernel", "target", "compiler", "size", "last used", "entry")
    for entry in entries:
        ago = _age(time.time() - entry.used)
        table.add_row(entry.name, entry.target, entry.compiler, decimal(entry.size), ago, entry.digest[:12])
    if entries:
        console.print(table)
    console.print(f"{len(entries)} kernels, {decimal(cache.size())} in {cache.directory}", soft_wrap=True)


def _clear(cache: Cache, _options: argparse.Namespace, console: Console) -> None:
    console.print(f"freed {decimal(cache.clear())} in {cache.directory}", soft_wrap=True)


def _prune(cache: Cache, options: argparse.Namespace, console: Console) -> None:
    gone = cache.prune(options.size)
    freed = decimal(sum(entry.size for entry in gone))
    console.print(f"removed {len(gone)} kernels, freed {freed} in {cache.directory}", soft_wrap=True)
