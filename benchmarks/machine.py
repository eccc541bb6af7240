"""What a row is stamped with: the machine, the versions, the source."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import subprocess
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import kernmantle
from kernmantle.backends.cpu import jit

PACKAGE = Path(kernmantle.__file__).parent
_UNMEASURED = {"cli", "testing"}
_VERSIONED = (
    "torch", "numpy", "llvmlite", "scipy", "scikit-learn", "hdbscan", "pykeops", "flashlib", "cuda-core",
    "nvmath-python",
)  # fmt: skip
_FEATURES = ("avx2", "fma", "avx512f", "avx512bf16", "neon", "sve")


def version_of(package: str) -> str:
    """Version of an installed package, empty without it."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _ask(*command: str, where: Path | None = None) -> str:
    """What a program prints, empty where it is absent or fails."""
    try:
        done = subprocess.run(command, cwd=where, check=True, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def _model() -> str:
    listing = Path("/proc/cpuinfo")
    text = listing.read_text(encoding="utf-8", errors="replace") if listing.is_file() else ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1].strip() if found else platform.processor() or platform.machine()


def cpu() -> dict[str, Any]:
    """The processor: what it is called, how many cores are here and in use, its vectors."""
    host = jit.host()
    enabled = {word[1:] for word in host.features.split(",") if word.startswith("+")}
    return {
        "model": _model(),
        "architecture": host.cpu,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "features": [name for name in _FEATURES if name in enabled],
    }


def gpu(index: int = 0) -> dict[str, Any]:
    """The GPU, with its highest clock and its driver."""
    card = torch.cuda.get_device_properties(index)
    query = _ask(
        "nvidia-smi", "--query-gpu=clocks.max.sm,driver_version", "--format=csv,noheader,nounits", "-i", str(index)
    )
    clock, _, driver = query.partition(", ")
    return {
        "model": card.name,
        "architecture": f"sm_{card.major}{card.minor}",
        "processors": card.multi_processor_count,
        "memory": card.total_memory,
        "megahertz": float(clock) if clock else 0.0,
        "driver": driver,
    }


@lru_cache(maxsize=1)
def source() -> str:
    """Digest of the sources that decide how fast the library is."""
    total = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*")):
        inside = path.relative_to(PACKAGE)
        if path.suffix in {".py", ".cuh"} and inside.parts[0] not in _UNMEASURED:
            total.update(f"{inside}\0".encode() + path.read_bytes())
    return total.hexdigest()[:12]


def commit() -> str:
    """Commit of the checkout, marked when its sources were changed since; empty outside of one."""
    found = _ask("git", "rev-parse", "--short=12", "HEAD", where=PACKAGE)
    changed = found and _ask("git", "status", "--porcelain", "--", str(PACKAGE), where=PACKAGE)
    return found + "+" * bool(changed)


def stamp(device: str) -> dict[str, Any]:
    """Where a row comes from, without its time."""
    versions = {"python": platform.python_version(), "system": f"{platform.system()} {platform.machine()}"}
    versions |= {name: found for name in _VERSIONED if (found := version_of(name))}
    machine: dict[str, Any] = {"cpu": cpu()}
    if device == "cuda":
        machine["gpu"] = gpu()
        versions["cuda"] = str(torch.version.cuda)
    return {"machine": machine, "versions": versions, "source": source(), "commit": commit()}


def short_name(machine: dict[str, Any]) -> str:
    """A machine in a few letters, for names of files."""
    if "gpu" in machine:
        return re.sub(r"\W+", "-", machine["gpu"]["model"].lower()).strip("-")
    return f"{machine['cpu']['architecture']}-{machine['cpu']['threads']}"


def title(machine: dict[str, Any]) -> str:
    """A machine in one line."""
    own = machine["cpu"]
    if "gpu" in machine:
        return str(machine["gpu"]["model"])
    return f"{own['model']} ({own['architecture']}), {own['threads']} thread{'s' * (own['threads'] != 1)}"
