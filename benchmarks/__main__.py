"""``python -m benchmarks``: measure a suite, compare two results, write the tables and the plot of README.md."""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from tqdm import tqdm

from kernmantle.config import current
from kernmantle.errors import DeviceError, KernmantleError, ParameterError

from . import (
    apply,
    attention,
    calibrate,
    clusters,
    compiling,
    contraction,
    cpu,
    estimates,
    estimators,
    gradient,
    history,
    host,
    keops_gallery,
    kron,
    kronsparse,
    kronsparse_models,
    layers,
    machine,
    many,
    pages,
    readme,
    report,
    roofline,
    scores,
    solvers,
    store,
    structured_random,
    structured_tables,
    tables,
    tiles,
    unseen,
    xrfm,
)
from .case import Case, Probe, Suite
from .remote import Remotes
from .run import Settings, blank, measure
from .timing import Plan

SUITES: dict[str, Callable[[], Suite]] = {
    "cpu": lambda: cpu.SUITE,
    "tables": tables.suite,
    "contraction": lambda: contraction.SUITE,
    "gradient": lambda: gradient.SUITE,
    "kron": kron.suite,
    "kronsparse": kronsparse.suite,
    "kronsparse-models": kronsparse_models.suite,
    "layers": layers.suite,
    "solvers": lambda: solvers.SUITE,
    "solvers-cpu": lambda: solvers.CPU_SUITE,
    "host": lambda: host.suite("cpu"),
    "host-cuda": lambda: host.suite("cuda"),
    "compile": lambda: compiling.SUITE,
    "apply": apply.suite,
    "attention": lambda: attention.SUITE,
    "apply-cpu": lambda: apply.CPU_SUITE,
    "scores": scores.suite,
    "xrfm": lambda: xrfm.SUITE,
    "estimators": lambda: estimators.SUITE,
    "estimators-cpu": lambda: estimators.CPU_SUITE,
    "clusters": clusters.suite,
    "clusters-cpu": clusters.cpu_suite,
    "keops-gallery": keops_gallery.suite,
    unseen.NAME: unseen.suite,
}
FULL: dict[str, Callable[[], Suite]] = {
    "apply": lambda: apply.suite(full=True),
    "kron": lambda: kron.suite(full=True),
    "kronsparse": lambda: kronsparse.suite(full=True),
}
NOTES = {"kronsparse": kronsparse.summary}
RESULTS = Path("benchmarks") / "results"
WIDTH = 150
QUICK = Plan(budget=0.3, least=2, most=5, pause=0.0)


def _part(text: str) -> tuple[int, int]:
    """K and N of K/N."""
    own, _, parts = text.partition("/")
    if not (own.isdecimal() and parts.isdecimal() and 1 <= int(own) <= int(parts)):
        raise argparse.ArgumentTypeError(f"K/N with K from 1 to N, not {text!r}")
    return int(own), int(parts)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m benchmarks", description=__doc__)
    whats = [*SUITES, "many", "tiles", structured_random.SUITE, "list", "readme", "report", "history", "estimates"]
    parser.add_argument("what", nargs="?", choices=whats, help="a suite, or what to do with rows")
    parser.add_argument("--case", action="append", default=[], help="only this case; several run in their order")
    parser.add_argument("--again", action="store_true", help="also measure what was measured in this very state")
    parser.add_argument("--full", action="store_true", help=f"every case, not a slice of them: {', '.join(FULL)}")
    parser.add_argument("--quick", action="store_true", help="few samples: to see that it works, not for numbers")
    parser.add_argument(
        "--seconds", type=float, metavar="SECONDS",
        help=f"how long to time each library of a case, 3 by default; of {structured_random.SUITE}, all cases",
    )  # fmt: skip
    parser.add_argument(
        "--energy", type=float, default=0.0, metavar="SECONDS",
        help="also run each library for so long to see what energy the GPU takes for a call",
    )  # fmt: skip
    parser.add_argument(
        "--budget", type=float, default=float("inf"), metavar="SECONDS", help="begin no case after that"
    )
    parser.add_argument(
        "--part", type=_part, default=(1, 1), metavar="K/N", help="only the K-th of N equal parts of the cases"
    )
    parser.add_argument(
        "--side", action="append", default=[], choices=structured_random.SIDES, help="structured-random: only this side"
    )
    parser.add_argument(
        "--kind", default="", choices=["kronsparse", "kron"], help="structured-random: only these products"
    )
    parser.add_argument(
        "--summary", action="store_true", help="structured-random: what the rows of the file come to, none measured"
    )
    parser.add_argument(
        "--output", type=Path, help="file of rows; benchmarks/results/<suite>-<machine>.jsonl by default"
    )
    parser.add_argument(
        "--peer", action="append", default=[], metavar="PACKAGE=PYTHON", help="interpreter in which a peer lives"
    )
    parser.add_argument("--plot", type=Path, metavar="PNG", help="draw the rows; with readme, its plot")
    parser.add_argument("--csv", type=Path, metavar="CSV", help="write the rows as comma-separated values too")
    parser.add_argument("--roofline", type=Path, metavar="PNG", help="draw the rows under the roofs of the machine")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write tables and plots of the rows as one page")
    parser.add_argument("--compare", nargs=2, type=Path, metavar=("BEFORE", "AFTER"), help="two files of rows")
    parser.add_argument("--readme", type=Path, default=Path("README.md"), help="file with the markers")
    parser.add_argument("--targets", action="store_true", help="also show the targets of the cases")
    parser.add_argument("--check", action="store_true", help="readme: only say whether the table is that of the rows")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    parser = _parser()
    options = parser.parse_args(arguments)
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    if options.compare:
        before, after = (store.read(path) for path in options.compare)
        console.print(report.comparison(before, after))
        return 0
    if options.what is None:
        parser.error(f"say what to do: {', '.join(SUITES)}, list, readme, report, or --compare BEFORE AFTER")
    if options.what == "list":
        for name, suite in SUITES.items():
            console.print(f"{name}:", ", ".join(row.name for row in suite().rows), highlight=False)
        return 0
    if options.what == "readme":
        return _readme(options)
    if options.what == "history":
        count = history.collect(Path.cwd(), Path.cwd() / RESULTS)
        console.print(f"{count} cases with several measurements in {RESULTS / history.FILE}", soft_wrap=True)
        return 0
    if options.what == "estimates":
        return _estimates(console)
    if options.what == "report":
        return _report(options, console)
    if options.what == "tiles":
        return _tiles(options, console)
    if options.what == "many":
        return _many(options, console)
    if options.what == structured_random.SUITE:
        return _structured_random(options, console)
    if options.full and options.what not in FULL:
        raise ParameterError(f"{options.what} has no more cases than without --full; {', '.join(FULL)} has")
    return _measure((FULL if options.full else SUITES)[options.what](), options, console)


def _readme(options: argparse.Namespace) -> int:
    """Write the tables of README.md and its plot from the newest rows of each suite."""
    files = [options.output] if options.output else sorted(RESULTS.glob("*.jsonl"))
    rows = [row for path in files for row in store.read(path)]
    if not options.readme.is_file():
        raise ParameterError(f"{options.readme} does not exist; name the file with the markers by --readme")
    text = wanted = options.readme.read_text(encoding="utf-8")
    suites = [suite for suite in readme.PEERS if any(row.get("suite") == suite for row in rows)]
    if not suites:
        raise ParameterError(f"there are no rows of {' or '.join(readme.PEERS)} to show; run the suite first")
    for suite in suites:
        wanted = readme.insert(wanted, suite, readme.markdown(readme.chosen(rows, suite), suite))
    if f"begin generated: {structured_tables.NAME} -->" in wanted:
        wanted = readme.insert(wanted, structured_tables.NAME, structured_tables.readme(RESULTS))
    plot, plotted = options.plot or options.readme.parent / readme.PLOT, readme.plotted(rows)
    if options.check:
        drawn = plot.read_text(encoding="utf-8") if plot.is_file() else ""
        return int(wanted != text or escape(readme.caption(plotted), quote=False) not in drawn)
    options.readme.write_text(wanted, encoding="utf-8")
    if plotted:
        readme.draw(plotted, plot)
    return 0


def _estimates(console: Console) -> int:
    """Show how far predictions are from the committed rows."""
    rows = estimates.compared(RESULTS)
    console.print(estimates.table(rows))
    console.print("furthest from their predictions, predicted over measured:")
    console.print("\n".join(estimates.worst(rows)), highlight=False)
    return 0


def _report(options: argparse.Namespace, console: Console) -> int:
    """Show the rows of all suites, or of one file, without measuring."""
    paths = [options.output] if options.output else sorted(RESULTS.glob("*.jsonl"))
    found = pages.groups(paths)
    if not found:
        raise ParameterError(f"there are no rows of a suite in {options.output or RESULTS}; run one first")
    for group in found:
        console.rule(f"{group.suite}: {group.machine}", align="left")
        console.print(report.terminal(group.rows, options.targets))
        note = NOTES.get(group.suite)
        if note:
            console.print(note(group.rows))
    _page(options, paths, console)
    return 0


def _page(options: argparse.Namespace, paths: Sequence[Path], console: Console) -> None:
    if options.html:
        options.html.write_text(pages.html(paths), encoding="utf-8")
        console.print(f"page in {options.html}", soft_wrap=True)


def _tiles(options: argparse.Namespace, console: Console) -> int:
    """Time all tiles over the grid."""
    if not torch.cuda.is_available():
        raise DeviceError("tiles are timed on an NVIDIA GPU, and torch finds none")
    path = options.output or RESULTS / f"tiles-{machine.short_name({'gpu': machine.gpu()})}.jsonl"
    return tiles.show(tiles.run(path, options.budget, options.case), console)


def _many(options: argparse.Namespace, console: Console) -> int:
    """Time what several GPUs do together."""
    path = options.output or RESULTS / f"many-{torch.cuda.device_count()}.jsonl"
    rows = many.run(path, options.case, _plan(options), options.budget, options.again)
    console.print(report.terminal(rows, options.targets))
    console.print(f"rows in {path}", soft_wrap=True)
    return int(any(row["status"] != "ok" for row in rows))


def _structured_random(options: argparse.Namespace, console: Console) -> int:
    """Time random structured products, as many as ``--seconds`` allow; all of them without it."""
    kind = "cuda" if torch.cuda.is_available() else "cpu"
    path = options.output or RESULTS / f"{machine.short_name(machine.stamp(kind)['machine'])}-structured-random.jsonl"
    if options.summary:
        console.print(
            structured_random.summary(store.latest(store.read(path)).values()), highlight=False, soft_wrap=True
        )
        return 0
    sides = [side for side in structured_random.SIDES if side in options.side] or structured_random.SIDES
    seconds = options.seconds or float("inf")
    rows = structured_random.run(path, seconds, options.case, sides=sides, part=options.part, only=options.kind)
    console.print(structured_random.summary(rows), highlight=False, soft_wrap=True)
    console.print(f"rows in {path}", soft_wrap=True)
    return int(any(row["status"] != "ok" for row in rows))


def _plan(options: argparse.Namespace) -> Plan:
    plan = QUICK if options.quick else Plan()
    if options.seconds is None:
        return plan
    return replace(plan, budget=options.seconds, least=2, endless=4 * options.seconds, long=options.seconds / 4)


def _interpreters(given: Sequence[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for text in given:
        package, equals, command = text.partition("=")
        if not (package and equals and command):
            raise ParameterError(f"--peer takes PACKAGE=PYTHON, not {text!r}")
        found[package] = shlex.split(command)
    return found


def chosen(suite: Suite, names: Sequence[str]) -> list[Case | Probe]:
    """Rows of a suite: those of the given names, in that order, or all."""
    known = {row.name: row for row in suite.rows}
    unknown = set(names) - set(known)
    if unknown:
        raise ParameterError(
            f"{suite.name} has no case {sorted(unknown)[0]!r}; it has {', '.join(row.name for row in suite.rows)}"
        )
    return [known[name] for name in dict.fromkeys(names)] if names else list(suite.rows)


def _rates(suite: Suite, rows: Sequence[Case | Probe], stamp: Mapping[str, Any]) -> dict[str, float]:
    works = [row.work for row in rows if isinstance(row, Case)]
    resources = {name for work in works for name in work.compute} | {"bytes" for work in works if work.bytes}
    if suite.device == "cuda":
        return calibrate.gpu_rates(resources, stamp["machine"]["gpu"])
    return calibrate.cpu_rates(resources, stamp["machine"]["cpu"]["threads"])


def _measure(suite: Suite, options: argparse.Namespace, console: Console) -> int:
    if suite.device == "cuda" and not torch.cuda.is_available():
        raise DeviceError(f"the suite {suite.name!r} needs an NVIDIA GPU, and torch finds none")
    stamp = machine.stamp(suite.device)
    path = options.output or RESULTS / f"{suite.name}-{machine.short_name(stamp['machine'])}.jsonl"
    kept = store.read(path)
    known = set() if options.again else store.done(kept)
    rows = chosen(suite, options.case)
    own, parts = options.part
    rows = rows[len(rows) * (own - 1) // parts : len(rows) * own // parts]
    due = [row for row in rows if store.identity(blank(row, suite.name, stamp)) not in known]
    if len(due) < len(rows):
        console.print(f"{len(rows) - len(due)} of {len(rows)} cases were measured in this state; --again for all")
    plan = QUICK if options.quick else Plan()
    if options.seconds is not None:
        plan = replace(
            plan, budget=options.seconds, least=2, endless=4 * options.seconds, long=options.seconds / 4,
            sample=min(plan.sample, options.seconds / 4), pause=min(plan.pause, options.seconds / 4),
        )  # fmt: skip
    rates = _rates(suite, due, stamp) if due else {}
    begin, left = time.monotonic(), 0
    with (
        Remotes(_interpreters(options.peer)) as remotes,
        tqdm(due, unit="case", disable=not current().progress or not sys.stderr.isatty()) as bar,
    ):
        settings = Settings(plan, remotes, rates, energy=options.energy)
        for row in bar:
            if time.monotonic() - begin > options.budget:
                left += 1
                continue
            bar.set_postfix_str(row.name)
            kept.append(measure(row, suite, stamp, settings))
            store.append(path, kept[-1])
    names = {row.name for row in rows}
    last = {row["case"]: row for row in kept if row["case"] in names and row["stamp"]["machine"] == stamp["machine"]}
    console.print(report.terminal(last.values(), options.targets))
    if suite.note:
        console.print(suite.note(list(last.values())))
    console.print(f"rows in {path}", soft_wrap=True)
    if left:
        console.print(f"{left} cases did not fit into the budget; run again to go on")
    if options.csv:
        report.spreadsheet(last.values(), options.csv)
        console.print(f"values in {options.csv}", soft_wrap=True)
    if options.plot:
        (suite.picture or report.picture)(list(last.values()), options.plot)
        console.print(f"picture in {options.plot}", soft_wrap=True)
    if options.roofline:
        roofline.draw(last.values(), suite, options.roofline)
        console.print(f"roofline in {options.roofline}", soft_wrap=True)
    _page(options, [path], console)
    return int(any(row["status"] != "ok" for row in last.values()))


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except KernmantleError as error:
        print(f"python -m benchmarks: {error}", file=sys.stderr)
        raise SystemExit(1) from None
