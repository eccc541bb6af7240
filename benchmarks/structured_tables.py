"""Tables of the pages of structured products from committed rows; ``docs/conf.py`` puts them into the pages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median

from . import kron, kronsparse, store, structured_random
from .machine import title as machine_title
from .pages import VARIANTS, Group
from .report import OURS, digits, duration
from .store import Row

NAME = "structured"
"""Of the table between the markers of README."""
BATCHES = kronsparse.BATCHES
_TYPES = {"f32": "float32", "f64": "float64", "bf16": "bfloat16", "f16": "float16"}
_CPU = "znver5-1"
_README = {
    "h200-kron": ("1024 8^5 f32", "1024 64^3 f32", "1024 64^3 bf16", "320 128^3 f32", "1024 64^3 f32 backward"),
    "h200-kronsparse": ("(1, 768, 192, 2) f32 first", "(1, 768, 192, 2) bf16 first", "(1, 64, 64, 128) f32 first"),
    "h200-layers": (
        "training step 4096 f32", "training step 4096 bf16", "4096 to 4096, 32 blocks training step 4096 f32",
        "4096 to 4096, 32 blocks training step 4096 bf16",
    ),
}  # fmt: skip
"""Cases in README by their file."""
_SHOWN = ((1024, 8, 5), (1024, 16, 4), (1024, 32, 3), (1024, 64, 2), (1024, 64, 3), (320, 128, 3))


def _rows(folder: Path, *names: str) -> dict[str, Row]:
    """Return the newest good row of each case of some files."""
    rows = [row for name in names for row in store.read(folder / f"{name}.jsonl")]
    return store.latest(sorted(rows, key=lambda row: row["date"]))


def _table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    every = [["", *head], ["---", *["---:"] * len(head)], *lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in every)


def _seconds(row: Row, name: str = OURS) -> float:
    return row["results"][name]["median"]


def _speedup(row: Row | None, name: str) -> str:
    """Return how many times as fast as a contestant, empty without a row."""
    return "" if row is None else f"{_seconds(row, name) / _seconds(row):.2f}"


def grid(folder: Path) -> str:
    """Return the speed-ups of Kronecker-sparse products in short, and how many are slower than torch's algorithms."""
    rows = _rows(folder, "h200-kronsparse")
    found = kronsparse.ratios(rows.values())
    lines: list[list[str]] = []
    for dtype in kronsparse.TARGET_TYPES["cuda"]:
        cells: list[str] = []
        for layout in ("first", "last"):
            own = found[dtype, layout]
            pattern, least = min(own, key=lambda one: one[1])
            cells += [f"{median(value for _, value in own):.1f}", f"{least:.2f} at {pattern}"]
        lines.append([_TYPES[dtype], *cells])
    every = [value for own in found.values() for _, value in own]
    slower, clearly = sum(value < 1 for value in every), sum(value < structured_random.BEHIND for value in every)
    head = [f"batch {layout}: {what}" for layout in ("first", "last") for what in ("median", "minimum")]
    patterns = max(map(len, found.values()))
    return (
        f"{_table(head, lines)}\n\nThat is {len(every)} products of {patterns} patterns; {slower} are slower than the "
        f"best algorithm of torch, {clearly} of them by more than 5 %. torch's block-sparse product "
        f"{_behind_others(rows.values(), 'bsr')}, its sparse product {_behind_others(rows.values(), 'sparse')}."
    )


def _behind_others(rows: Iterable[Row], name: str) -> str:
    """Return how many times as long as the best of torch's algorithms one of them takes, and in how many rows."""
    timed = [
        {peer: row["results"][peer]["median"] for peer in kronsparse.PEERS if "median" in row["results"].get(peer, {})}
        for row in rows
        if row["case"].startswith("(")
    ]
    found = [own[name] / min(own.values()) for own in timed if name in own]
    return f"takes at least {min(found):.1f} times as long as the best of its algorithms in {len(found)} products"


def layers(folder: Path) -> str:
    """Return the speed-up of a layer over a dense one, by batch."""
    gpu, cpu = _rows(folder, "h200-kronsparse", "h200-layers"), _rows(folder, "kronsparse-cpu-rocketlake-1")
    lines: list[list[str]] = []
    for machine, rows, types in (("H200", gpu, ("f32", "bf16")), ("CPU", cpu, ("f32",))):
        for after in ("", " with a bias"):
            for dtype in types:
                for kind, title in (("forward pass", "forward"), ("training step", "training step")):
                    own = [rows.get(f"{kind} {batch} {dtype}{after}") for batch in BATCHES]
                    if any(own):
                        cells = [_speedup(row, "dense") for row in own]
                        lines.append([f"{machine}, {_TYPES[dtype]}, {title}{after}", *cells])
    return _table([str(batch) for batch in BATCHES], lines)


def eager(folder: Path) -> str:
    """Return microseconds of eager calls of a layer and of torch's."""
    rows, batches = _rows(folder, "h200-host"), (16, 256, 1024, 4096, 25088)
    lines: list[list[str]] = []
    for title, what in (("forward", "forward"), ("training step", "forward and backward")):
        for dtype, mark in (("f32", ""), ("bf16", " bf16")):
            own = [rows[f"KSLinear {batch} x 384 to 1536{mark}, {what}"] for batch in batches]
            cells = [f"{1e6 * _seconds(row):.0f} / {1e6 * _seconds(row, 'torch.nn.Linear'):.0f}" for row in own]
            lines.append([f"{_TYPES[dtype]}, {title}", *cells])
    return _table([str(batch) for batch in batches], lines)


def products(folder: Path) -> str:
    """Return times of Kronecker products and of their gradients beside the shuffle algorithm."""
    rows = _rows(folder, "h200-kron")
    lines: list[list[str]] = []
    for size in _SHOWN:
        cells: list[str] = []
        for name in ("f32", "f16", "f32 backward"):
            row = rows.get(f"{size[0]} {size[1]}^{size[2]} {name}")
            times = "" if row is None else digits(_seconds(row, kron.SHUFFLE) / _seconds(row))
            cells += ["", ""] if row is None else [duration(_seconds(row)), f"{times} x"]
        lines.append([f"{size[0]} rows, {size[2]} factors {size[1]} x {size[1]}", *cells])
    head = [title for name in ("float32", "float16", "float32, all gradients") for title in (name, "faster")]
    return _table(head, lines)


def readme(folder: Path) -> str:
    """Return some products and layers beside the best of torch's algorithms for each."""
    found = [(name, rows[case]) for name, cases in _README.items() for rows in [_rows(folder, name)] for case in cases]
    lines: list[list[str]] = []
    for name, row in found:
        best = min(
            each["median"] for peer, each in row["results"].items()
            if "median" in each and peer not in VARIANTS and not peer.startswith(OURS)
        )  # fmt: skip
        shown = f"pattern {row['title']}" if name == "h200-kronsparse" else row["title"]
        lines.append([shown, duration(_seconds(row)), duration(best), f"{digits(best / _seconds(row))} x"])
    table, rows = _table([OURS, "torch", "faster than torch"], lines), [row for _, row in found]
    return f"{table}\n\nMedian times on {Group(NAME, machine_title(rows[0]['stamp']['machine']), tuple(rows)).origin}."


def random(folder: Path, kind: str, machine: str = "h200") -> str:
    """Return the speed-ups of random products of a kind on a machine in short."""
    rows = [row for row in _rows(folder, f"{machine}-structured-random").values() if row["kind"] == kind]
    lines: list[list[str]] = []
    for side in structured_random.SIDES:
        for dtype, name in _TYPES.items():
            own = [structured_random.ratio(row) for row in rows if (row["side"], row["dtype"]) == (side, dtype)]
            if own:
                slower = f"{sum(value < structured_random.BEHIND for value in own)} of {len(own)}"
                lines.append([f"{side}, {name}", f"{median(own):.1f}", f"{min(own):.2f}", slower])
    return _table(["median", "minimum", "slower by more than 5 %"], lines)


TABLES: Mapping[str, Mapping[str, Callable[[Path], str]]] = {
    "kron": {
        "products": products, "random": lambda folder: random(folder, "kron"),
        "random on a CPU": lambda folder: random(folder, "kron", _CPU),
    },
    "kronsparse": {
        "grid": grid, "layers": layers, "eager": eager, "random": lambda folder: random(folder, "kronsparse"),
        "random on a CPU": lambda folder: random(folder, "kronsparse", _CPU),
    },
}  # fmt: skip
"""Functions of the folder of rows by page and by the name that stands in it as a comment."""


def insert(text: str, page: str, folder: Path) -> str:
    """Return the text of a page with its tables."""
    for name, table in TABLES.get(page, {}).items():
        text = text.replace(f"<!-- {name} -->", table(folder))
    return text
