"""Copies of generated sources, for ``km.config(dump_source=directory)``."""

from __future__ import annotations

import hashlib

from ..config import current


def dump(source: str, suffix: str) -> None:
    """Write a source under its digest."""
    directory = current().dump_source
    if directory is not None:
        directory.mkdir(parents=True, exist_ok=True)
        name = hashlib.sha256(source.encode()).hexdigest()[:16]
        (directory / f"{name}.{suffix}").write_text(source)
