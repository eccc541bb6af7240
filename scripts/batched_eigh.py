"""Batches of symmetric eigenproblems on a GPU: ``python scripts/batched_eigh.py --out rows.jsonl``.

``km.linalg.eigh`` beside ``torch.linalg.eigh``, and beside CuPy's where it is installed; without it, beside
``syevjBatched`` of cuSOLVER, which CuPy calls for batches, through nvmath-python. Each result is compared with float64
first: the residual of the pairs and the orthogonality of the vectors, in units of the type times the norm. Times are
medians by events, in milliseconds; a contestant that takes more than ``--limit`` seconds for one call is timed once.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from datetime import datetime, timezone
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

import kernmantle as km
from benchmarks import machine

CASES = (
    (100_000, 3), (100_000, 2), (10_000, 16), (10_000, 32), (5000, 33), (5000, 48), (2000, 64), (2000, 96), (500, 100),
    (1000, 128), (200, 128), (500, 192), (100, 256), (50, 384), (20, 512),
)  # fmt: skip
Result = tuple[torch.Tensor, torch.Tensor]
Solve = Callable[[torch.Tensor], Result]


def ours(a: torch.Tensor) -> Result:
    """km.linalg.eigh."""
    found = km.linalg.eigh(a)
    return found.w, found.v


def by_torch(a: torch.Tensor) -> Result:
    """torch.linalg.eigh."""
    w, v = torch.linalg.eigh(a)
    return w, v


def cupy() -> Solve:
    """cupy.linalg.eigh."""
    library = import_module("cupy")

    def solve(a: torch.Tensor) -> Result:
        w, v = library.linalg.eigh(library.from_dlpack(a))
        return torch.from_dlpack(w), torch.from_dlpack(v)

    return solve


def rotations() -> Solve:
    """syevjBatched, as CuPy calls it: a copy, the workspace, the call."""
    dense = import_module("nvmath.bindings.cusolverDn")

    handle, parameters = dense.create(), dense.create_syevj_info()

    def solve(a: torch.Tensor) -> Result:
        letter = {torch.float32: "s", torch.float64: "d"}[a.dtype]
        count, n, _ = a.shape
        v, w = a.clone(), a.new_empty(count, n)
        info = torch.empty(count, dtype=torch.int32, device=a.device)
        dense.set_stream(handle, torch.cuda.current_stream().cuda_stream)
        arguments = (handle, 1, 0, n, v.data_ptr(), n, w.data_ptr())
        size = getattr(dense, f"{letter}syevj_batched_buffer_size")(*arguments, parameters, count)
        work = a.new_empty(size)
        getattr(dense, f"{letter}syevj_batched")(*arguments, work.data_ptr(), size, info.data_ptr(), parameters, count)
        return w, v.mT

    return solve


def peers() -> dict[str, Solve]:
    """All that can be run here."""
    found: dict[str, Solve] = {"kernmantle": ours, "torch": by_torch}
    for name, make in (("CuPy", cupy), ("syevjBatched", rotations)):
        try:
            found[name] = make()
        except ImportError:
            sys.stdout.write(f"{name} is not installed\n")
    return found


def errors(a: torch.Tensor, result: Result) -> tuple[float, float]:
    """Largest residual and loss of orthogonality, in units of the type times the norm."""
    w, v = (part.double() for part in result)
    wide, unit = a.double(), torch.finfo(a.dtype).eps
    size = torch.linalg.matrix_norm(wide).clamp_min(1e-300)
    gap = torch.linalg.matrix_norm(wide @ v - v * w[:, None, :]) / size
    eye = torch.eye(a.shape[-1], dtype=torch.float64, device=a.device)
    return float(gap.max() / unit), float((v.mT @ v - eye).abs().max() / unit)


def elapsed(call: Callable[[], Any]) -> float:
    """Milliseconds between events around a call."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)


def milliseconds(call: Callable[[], Any], limit: float) -> tuple[float, int]:
    """Median by events, and of how many calls."""
    first = elapsed(call)
    if first > 1000 * limit:
        return first, 1
    samples = [elapsed(call) for _ in range(max(3, min(15, int(1000 * limit / max(first, 0.1)))))]
    return statistics.median(samples), len(samples)


def main() -> None:
    """Print and write a row for each batch and type."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", type=float, default=0.3)
    parser.add_argument("--types", nargs="+", default=["float32", "float64"])
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    stamp = {"date": datetime.now(timezone.utc).isoformat(timespec="seconds"), "stamp": machine.stamp("cuda")}
    contestants = peers()
    for name in asked.types:
        for count, n in CASES:
            source = torch.Generator("cuda").manual_seed(n)
            a = torch.randn(count, n, n, generator=source, device="cuda", dtype=torch.float64)
            a = ((a + a.mT) / 2).to(getattr(torch, name))
            row: dict[str, Any] = {"batch": count, "order": n, "type": name, "ran": km.linalg.eigh(a).ran}
            for peer, solve in contestants.items():
                try:
                    residual, lost = errors(a, solve(a))
                    time, samples = milliseconds(partial(solve, a), asked.limit)
                    row[peer] = {"ms": time, "samples": samples, "residual": residual, "orthogonality": lost}
                except Exception as error:  # noqa: BLE001
                    row[peer] = {"failed": f"{type(error).__name__}: {error}"[:200]}
            sys.stdout.write(f"{row}\n")
            sys.stdout.flush()
            if asked.out:
                with asked.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row | stamp) + "\n")


if __name__ == "__main__":
    main()
