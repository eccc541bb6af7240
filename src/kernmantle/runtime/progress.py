"""Progress bars, where ``km.config(progress=...)`` wants them and somebody looks."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from tqdm import tqdm

from ..config import current


def bar(
    items: Iterable[Any] | None = None, *, total: int | None = None, desc: str | None = None, unit: str = "iteration",
    delay: float = 1, leave: bool = True,
) -> Any:  # fmt: skip
    """Return a bar over items, or over steps that the caller counts; on a terminal, after ``delay`` seconds."""
    quiet = not current().progress or not sys.stderr.isatty()
    return tqdm(items, total=total, desc=desc, unit=unit, delay=delay, leave=leave, disable=quiet)
