"""``kernmantle bench``: run the benchmarks of the checkout in the current folder; the installed package has none."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from ..errors import BackendError


def main(arguments: Sequence[str]) -> int:
    """Run ``python -m benchmarks`` with these arguments; returns the exit status."""
    folder = Path.cwd()
    if not (folder / "benchmarks" / "__main__.py").is_file():
        raise BackendError(f"{folder} has no benchmarks; run this command in a clone of the repository")
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    return import_module("benchmarks.__main__").main(arguments)
