"""``kernmantle info``: what is here, what works, and why the rest does not."""

from __future__ import annotations

import argparse
import os
import platform
import re
from collections import defaultdict
from collections.abc import Sequence
from importlib import metadata

import llvmlite.binding
import torch
from rich.console import Console
from rich.filesize import decimal
from rich.markup import escape
from rich.table import Table

from .._version import __version__
from ..backend import REFERENCE, backends
from ..config import config
from ..errors import KernmantleError
from ..linalg import cusolver
from ..runtime.cache import Cache, current_cache
from ..torch_ops.contract import contract
from . import check

Rows = list[tuple[str, str]]
_SIMD = ("avx2", "avx512f", "fma", "neon", "sve")


def main(arguments: Sequence[str]) -> int:
    """Run the command; returns the exit status."""
    parser = argparse.ArgumentParser(
        "kernmantle info", description="What is installed, what works on this machine, and why the rest does not."
    )
    parser.add_argument("--no-check", action="store_true", help="skip the self-check, which compiles kernels")
    options = parser.parse_args(arguments)
    console = Console()
    sections = {
        "versions": versions(),
        "devices": devices(),
        "backends": [(name, backend_state(name)) for name in (*backends(), REFERENCE)],
        "extras": extras(_requirements()),
        "cache": cache_state(current_cache()),
    }
    for title, rows in sections.items():
        table = Table(title=title, title_justify="left", show_header=False)
        for row in rows:
            table.add_row(*map(escape, row))
        console.print(table)
    return 0 if options.no_check else self_check(console)


def self_check(console: Console) -> int:
    """Compute a little of everything on every device; the exit status says whether all was right."""
    table = Table("", *check.devices(), title="self-check against float64", title_justify="left")
    found = check.results()
    for name, outcomes in found:
        table.add_row(name, *map(escape, outcomes))
    console.print(table)
    return int(any(outcome != "agrees" for _, outcomes in found for outcome in outcomes))


def versions() -> Rows:
    """Versions of what the results depend on."""
    llvm = ".".join(map(str, llvmlite.binding.llvm_version_info))
    found = [("kernmantle", __version__), ("Python", platform.python_version()), ("system", platform.platform())]
    found += [(name, metadata.version(name)) for name in ("torch", "numpy", "llvmlite")]
    return [*found, ("LLVM", llvm)]


def devices() -> Rows:
    """Processors, with what their kernels may use."""
    features = llvmlite.binding.get_host_cpu_features()
    simd = " ".join(name for name in _SIMD if features.get(name)) or "baseline"
    cpu = llvmlite.binding.get_host_cpu_name()
    rows = [("cpu", f"{cpu}, {os.cpu_count()} threads ({torch.get_num_threads()} in use), {simd}")]
    for index in range(torch.cuda.device_count()):
        card = torch.cuda.get_device_properties(index)
        rows.append((f"cuda:{index}", f"{card.name}, sm_{card.major}{card.minor}, {decimal(card.total_memory)}"))
    return [*rows, ("dense solvers", solver_state())]


def solver_state() -> str:
    """Return which library solves dense systems on GPUs, or why cuSOLVER does not."""
    if not torch.cuda.is_available():
        return "LAPACK on the CPU; torch finds no GPU"
    found = cusolver.load()
    return f"torch.linalg on GPUs: {found}" if isinstance(found, str) else "cuSOLVER through nvmath-python on GPUs"


def backend_state(name: str) -> str:
    """Return whether a backend works, found by using it."""
    device = "cpu" if name == REFERENCE else backends()[name].device
    if device == "cuda" and torch.version.cuda is None:
        return "no: this build of torch has no CUDA"
    if device == "cuda" and not torch.cuda.is_available():
        return "no: torch finds no GPU or no driver for it"
    x = torch.arange(6.0, device=device).reshape(2, 3)
    try:
        with config(backend=name):
            distance = contract("mk,nk->mn", lambda a, b: abs(a - b), x, x)
    except (KernmantleError, ImportError, OSError) as error:
        return f"no: {error}"
    return "works" if distance.tolist() == [[0, 9], [9, 0]] else "no: its results are wrong on this machine"


def extras(requirements: Sequence[str]) -> Rows:
    """Return what is installed of every extra, from the requirements that the package declares."""
    packages: defaultdict[str, list[str]] = defaultdict(list)
    for requirement in requirements:
        extra, package = re.search(r"extra == ['\"](\w+)['\"]", requirement), re.match(r"[\w.-]+", requirement)
        if extra and package:
            packages[extra[1]].append(package[0])
    rows: Rows = []
    for extra, names in packages.items():
        missing = [name for name in names if not _installed(name)]
        rows.append(
            (
                extra,
                f"missing {', '.join(missing)}; in a checkout: pip install '.[{extra}]'" if missing else "installed",
            )
        )
    return rows or [("unknown", "kernmantle runs from source and is not installed")]


def cache_state(cache: Cache) -> Rows:
    """Return the directory of compiled kernels and their number."""
    parent = next(path for path in (cache.directory, *cache.directory.parents) if path.exists())
    writable = parent.is_dir() and os.access(parent, os.W_OK)
    count = len(cache.entries())
    state = f"{count} kernel{'s' * (count != 1)}, {decimal(cache.size())}"
    return [("directory", str(cache.directory)), ("holds", state if writable else f"{state}; not writable")]


def _requirements() -> list[str]:
    try:
        return metadata.requires("kernmantle") or []
    except metadata.PackageNotFoundError:
        return []


def _installed(package: str) -> bool:
    try:
        return bool(metadata.version(package))
    except metadata.PackageNotFoundError:
        return False
