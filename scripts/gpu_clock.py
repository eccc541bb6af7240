"""The clock of scripts that time kernels on a GPU, and the rows that they write."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch


def elapsed(call: Callable[[], object]) -> float:
    """Return the milliseconds between events around a call."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)


def milliseconds(call: Callable[[], object], seconds: float, least: int = 3) -> tuple[float, float, float]:
    """Return the median, 20th and 80th percentile of calls behind a first one: ``least``, or up to 50 in that time."""
    call()
    torch.cuda.synchronize()
    times: list[float] = []
    while len(times) < least or (sum(times) < 1000 * seconds and len(times) < 50):
        times.append(elapsed(call))
    times.sort()
    return times[len(times) // 2], times[len(times) // 5], times[-1 - len(times) // 5]


def write(row: Mapping[str, Any], path: Path | None) -> None:
    """Print a row at once, and append it to a file."""
    text = json.dumps(row) + "\n"
    sys.stdout.write(text)
    sys.stdout.flush()
    if path is not None:
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
