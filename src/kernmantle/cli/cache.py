"""``kernmantle cache``: list, prune and clear the compiled kernels, and carry them to another machine."""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from ..runtime import archive
from ..runtime.cache import Cache, current_cache

SHOWN = 20
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}
_AGES = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"))


def main(arguments: Sequence[str]) -> int:
    """Run the command; returns the exit status."""
    parser = argparse.ArgumentParser("kernmantle cache", description="Compiled kernels on disk.")
    parser.add_argument("--directory", type=Path, help="cache directory to use instead of the configured one")
    parser.set_defaults(action=_list, all=False)
    actions = parser.add_subparsers(metavar="action")
    listing = actions.add_parser("list", help="list the kernels, the last used first (the default)")
    listing.add_argument("--all", action="store_true", help=f"list all kernels, not only the last {SHOWN}")
    listing.set_defaults(action=_list)
    actions.add_parser("clear", help="remove all kernels").set_defaults(action=_clear)
    prune = actions.add_parser("prune", help="remove the least recently used kernels until the rest fits a size")
    prune.add_argument("size", type=_bytes, help="size in bytes, or with a unit: 500k, 200M, 1G")
    prune.set_defaults(action=_prune)
    out = actions.add_parser("export", help="write all kernels to one file, for a machine without a compiler")
    out.add_argument("file", type=Path, help="file to write, for example kernels.tar.gz")
    out.set_defaults(action=_export)
    into = actions.add_parser("import", help="read kernels from a file that export wrote; only import files you trust")
    into.add_argument("file", type=Path, help="file to read; it must be yours and writable by nobody else")
    into.set_defaults(action=_import)
    options = parser.parse_args(arguments)
    cache = Cache(options.directory) if options.directory else current_cache()
    options.action(cache, options, Console())
    return 0


def _bytes(text: str) -> int:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg]?)b?", text.strip().lower())
    if found is None:
        raise argparse.ArgumentTypeError(f"invalid size {text!r}; write 500k, 200M or 1G")
    return int(float(found[1]) * _UNITS[found[2]])


def _age(seconds: float) -> str:
    for length, unit in _AGES:
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def _list(cache: Cache, options: argparse.Namespace, console: Console) -> None:
    entries = cache.entries()
    shown = entries if options.all else entries[:SHOWN]
    table = Table(expand=True)
    table.add_column("used", no_wrap=True, justify="right")
    table.add_column("size", no_wrap=True, justify="right")
    table.add_column("kernel", no_wrap=True, overflow="ellipsis", ratio=1)
    table.add_column("target", no_wrap=True, overflow="ellipsis", max_width=10)
    for entry in shown:
        table.add_row(_age(time.time() - entry.used), decimal(entry.size), entry.name, entry.target)
    if shown:
        console.print(table)
    if len(shown) < len(entries):
        console.print(f"and {len(entries) - len(shown)} more: kernmantle cache list --all")
    console.print(f"{_kernels(len(entries))}, {decimal(cache.size())} in {cache.directory}", soft_wrap=True)


def _clear(cache: Cache, _options: argparse.Namespace, console: Console) -> None:
    console.print(f"freed {decimal(cache.clear())} in {cache.directory}", soft_wrap=True)


def _prune(cache: Cache, options: argparse.Namespace, console: Console) -> None:
    gone = cache.prune(options.size)
    freed = decimal(sum(entry.size for entry in gone))
    console.print(f"removed {_kernels(len(gone))}, freed {freed} in {cache.directory}", soft_wrap=True)


def _export(cache: Cache, options: argparse.Namespace, console: Console) -> None:
    console.print(f"wrote {_kernels(archive.export(cache, options.file))} to {options.file}", soft_wrap=True)


def _import(cache: Cache, options: argparse.Namespace, console: Console) -> None:
    added, present = archive.import_(cache, options.file)
    console.print(f"added {_kernels(added)} to {cache.directory}; {present} were present", soft_wrap=True)


def _kernels(count: int) -> str:
    return f"{count} kernel{'s' * (count != 1)}"
