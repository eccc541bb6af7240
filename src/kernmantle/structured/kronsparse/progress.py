"""Progress bars for long loops."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TypeVar

from tqdm import tqdm

from ...config import current

Item = TypeVar("Item")


def shown(items: Sequence[Item], what: str, unit: str) -> Iterable[Item]:
    """Return the items, with a bar on a terminal once they take longer than a second."""
    quiet = not current().progress or not sys.stderr.isatty()
    return tqdm(items, desc=what, unit=unit, delay=1, leave=False, disable=quiet)
