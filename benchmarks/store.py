"""Rows of results: one JSON object a line, appended as soon as measured, found again when a run is resumed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def read(path: Path) -> list[Row]:
    """Rows of a file, none if it is absent; a line cut short by an interrupted run is left out."""
    if not path.is_file():
        return []
    rows: list[Row] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return rows


def append(path: Path, row: Row) -> None:
    """Write a row so that it survives whatever comes next."""
    path.parent.mkdir(parents=True, exist_ok=True)
    torn = path.is_file() and path.stat().st_size > 0 and path.read_bytes()[-1:] != b"\n"
    with path.open("a", encoding="utf-8") as file:
        file.write("\n" * torn + json.dumps(row, sort_keys=True) + "\n")
        file.flush()
        os.fsync(file.fileno())


def state(row: Mapping[str, Any]) -> str:
    """What a row was measured on: machine, versions and source."""
    stamp = row["stamp"]
    return json.dumps([stamp["machine"], stamp["versions"], stamp["source"]], sort_keys=True)


def identity(row: Mapping[str, Any]) -> str:
    """What makes two rows the same measurement: the case, its definition, and what it was measured on."""
    return json.dumps([row["case"], row["definition"], state(row)])


def done(rows: Iterable[Row]) -> set[str]:
    """Identities of rows that need not be measured again."""
    return {identity(row) for row in rows if row["status"] == "ok"}


def latest(rows: Iterable[Row]) -> dict[str, Row]:
    """The last good row of each case, in the order in which the cases first came."""
    found: dict[str, Row] = {}
    for row in rows:
        if row["status"] == "ok":
            found[row["case"]] = row
    return found
