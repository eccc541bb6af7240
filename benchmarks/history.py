"""Did main get worse, which case, by how much: our own time of every case over the commits that measured it.

``python -m benchmarks history`` collects the rows of all commits of ``benchmarks/results`` from git into one small
file; the page of the documentation is made from that file and from the rows that are there, without git.
"""

from __future__ import annotations

import json
import statistics
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import machine
from .report import OURS, SLOWER, duration
from .store import Row, read

FILE = "history.json"
SHOWN = 40
"""Lines of a table of a machine and a suite; the cases that changed most come first."""
Point = tuple[str, str, float]
Key = tuple[str, str, str, str]


@dataclass(frozen=True)
class Series:
    """Medians of one case on one machine in seconds, by date and commit, oldest first."""

    suite: str
    machine: str
    case: str
    definition: str
    points: tuple[Point, ...]

    @property
    def last(self) -> float:
        """The newest median."""
        return self.points[-1][2]

    @property
    def before(self) -> list[float]:
        """The medians before it."""
        return [seconds for _, _, seconds in self.points[:-1]]

    @property
    def change(self) -> float:
        """The newest median over the least before it, 1 where there is none."""
        return self.last / min(self.before) if self.before else 1.0

    @property
    def verdict(self) -> str:
        """What the series says, by the same threshold as ``--compare``; noise is one place, a trend is two."""
        if not self.before:
            return "measured once"
        if self.change > SLOWER:
            steady = len(self.before) > 1 and self.points[-2][2] > SLOWER * min(self.before)
            return "slower" if steady or len(self.before) == 1 else "slower, once"
        return "faster" if self.last * SLOWER < min(self.before) else "as before"


def points(rows: Iterable[Row]) -> dict[Key, set[Point]]:
    """Our medians of rows of suites, by suite, machine, case and definition; other rows are left out."""
    found: dict[Key, set[Point]] = {}
    for row in rows:
        results: Mapping[str, Any] = row.get("results", {}) if "suite" in row else {}
        ours = next((results[name] for name in results if name == OURS or name.endswith(", ours")), {})
        if "median" in ours and row.get("stamp", {}).get("commit"):
            stamp = row["stamp"]
            key = (row["suite"], machine.title(stamp["machine"]), row["case"], row["definition"])
            found.setdefault(key, set()).add((row["date"], stamp["commit"], ours["median"]))
    return found


def joined(parts: Iterable[Mapping[Key, Iterable[Point]]]) -> list[Series]:
    """Series of several sources; of what one commit measured again the last counts."""
    whole: dict[Key, set[Point]] = {}
    for part in parts:
        for key, found in part.items():
            whole.setdefault(key, set()).update((date, commit, seconds) for date, commit, seconds in found)
    series = []
    for key, found in sorted(whole.items()):
        of_commit = {commit: (date, commit, seconds) for date, commit, seconds in sorted(found)}
        series.append(Series(*key, tuple(sorted(of_commit.values()))))
    return series


def _git(root: Path, *command: str) -> str:
    return subprocess.run(["git", *command], cwd=root, check=True, capture_output=True, text=True).stdout


def collect(root: Path, results: Path) -> int:
    """Write the series of all commits to ``history.json``; returns how many have more than one point."""
    parts: list[Mapping[Key, Iterable[Point]]] = [stored(results)]
    for path in sorted(results.glob("*.jsonl")):
        name = path.relative_to(root).as_posix()
        for commit in _git(root, "log", "--format=%H", "--", name).split():
            listing = _git(root, "ls-tree", "--name-only", commit, name)
            if listing:
                lines = _git(root, "show", f"{commit}:{name}").splitlines()
                parts.append(points(json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")))
        parts.append(points(read(path)))
    several = [series for series in joined(parts) if len(series.points) > 1]
    lines = [json.dumps([s.suite, s.machine, s.case, s.definition, s.points]) for s in several]
    (results / FILE).write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")
    return len(several)


def stored(results: Path) -> dict[Key, set[Point]]:
    """What ``collect`` wrote, empty without it."""
    path = results / FILE
    if not path.is_file():
        return {}
    return {
        (suite, title, case, definition): {(date, commit, seconds) for date, commit, seconds in found}
        for suite, title, case, definition, found in json.loads(path.read_text(encoding="utf-8"))
    }


def all_series(results: Path) -> list[Series]:
    """Series of the collected history and of the rows that are there."""
    rows = [row for path in sorted(results.glob("*.jsonl")) for row in read(path)]
    return joined([stored(results), points(rows)])


def page(results: Path) -> str:
    """The answer, then a table for every machine and suite, as Markdown."""
    series = [one for one in all_series(results) if one.before]
    slower = [one for one in series if one.verdict.startswith("slower")]
    faster = sum(one.verdict == "faster" for one in series)
    lines = [
        f"**{len(slower)} of {len(series)} cases measured more than once are slower now than at their best by "
        f"more than {SLOWER - 1:.0%}**; {faster} are faster than ever before, the others are within {SLOWER - 1:.0%}.",
        "",
    ]
    groups: dict[tuple[str, str], list[Series]] = {}
    for one in series:
        groups.setdefault((one.suite, one.machine), []).append(one)
    for (suite, title), members in sorted(groups.items()):
        lines += [f"## {suite}: {title}", "", *_table(members), ""]
    return "\n".join(lines)


def _table(members: Sequence[Series]) -> list[str]:
    lines = [
        "| case | now | commit | least before | median before | now / least | verdict | series |",
        "|---|---|---|---|---|---|---|---|",
    ]
    ordered = sorted(members, key=lambda one: -one.change)
    for one in ordered[:SHOWN]:
        date, commit, _ = one.points[-1]
        path = " → ".join(f"{duration(seconds)} ({name[:7]})" for _, name, seconds in one.points[-4:])
        lines.append(
            f"| {one.case} | {duration(one.last)} | {commit[:7]}, {date[:10]} | {duration(min(one.before))} | "
            f"{duration(statistics.median(one.before))} | {one.change:.2f} | {one.verdict} | {path} |"
        )
    if len(ordered) > SHOWN:
        lines += ["", f"{len(ordered) - SHOWN} further cases, whose ratios are between "
                  f"{ordered[-1].change:.2f} and {ordered[SHOWN].change:.2f}, are left out."]  # fmt: skip
    return lines
