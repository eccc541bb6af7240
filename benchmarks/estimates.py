"""``km.estimate`` beside the committed rows: how far predicted times and memory are from what was measured.

No GPU is needed: the calls are made on tensors without memory.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch
from rich.table import Table

from kernmantle.kron import kron_matmul
from kernmantle.kronsparse import kron_sparse_matmul
from kernmantle.prediction import estimate

from . import apply, contraction, scores, store, structured_random, unseen
from .case import DTYPES, Case, Suite
from .random_structured import UNPACKED
from .run import OURS

Call = Callable[[], Any]
_SPARSE = re.compile(r"\((\d+), (\d+), (\d+), (\d+)\) (\d+) (\w+) (first|last) forward")
_KRON = re.compile(r"(\d+) \[([\dx ]+)\] (\w+)(?: frozen [\d,]+)? forward")
_KRON_TABLE = re.compile(r"(\d+) (\d+)\^(\d+) (\w+)")
# Backward passes; replays of graphs; and points that nearly coincide, of which no shape tells.
_LEFT_OUT = re.compile(r"backward|graph|clusters")
_SUITES: Mapping[str, Callable[[], Suite]] = {
    "h200-contraction": lambda: contraction.SUITE, "h100-scores": scores.suite, "h200-scores": scores.suite,
    "h200-apply": lambda: apply.suite(True),
    "h200-unseen": unseen.suite,
}  # fmt: skip
_LEAST_SECONDS = 1e-4
"""Shorter calls are left out of files whose calls were timed one by one, which the host starts."""
_SINCE = (
    ("streamed weights", "2026-11-28T15:30"), (" columns, of columns ", "2026-11-28T15:30"),
    (" deep, of deep ", "2026-11-28T17:00"), (" score, of score sm_90 tile 192x128x80 ", "2026-11-29T00:00"),
    ("FMA instructions", "2026-11-29T18:40"), ("axis ", "2026-11-29T19:00"),
)  # fmt: skip
"""Kernels that older rows do not have, by their descriptions; such rows measured others."""
_LESS_RESULT = ("h200-kron", "2026-11-29T09:00")
"""A file whose products are written to ``out``, and until when its bytes were counted less those of the result,
so that 0 says nothing."""
_WHAT = {
    "h200-contraction": "contractions, H200", "h100-scores": "nearest rows, products with kernels, semirings, H100",
    "h200-scores": "the same, H200", "h200-apply": "products with kernels, H200",
    "h200-unseen": "shapes that no constant was fitted to, of all kinds, H200", "h200-kron": "Kronecker products, H200",
    "h200-structured-random": "random Kronecker and Kronecker-sparse products, H200, also shorter ones",
}  # fmt: skip
FILES = tuple(_WHAT)


@dataclass(frozen=True)
class Comparison:
    """One row: seconds and bytes, predicted and measured; no bytes where none were measured."""

    file: str
    case: str
    predicted: float
    measured: float
    predicted_bytes: int = 0
    measured_bytes: int | None = None

    @property
    def ratio(self) -> float:
        """Predicted over measured seconds."""
        return self.predicted / self.measured


def _empty(*shape: int, dtype: str) -> torch.Tensor:
    return torch.empty(shape, dtype=DTYPES[dtype], device="meta")


def _structured(case: str) -> Call | None:
    """The product that a row of random structured products or of the table of Kronecker products names."""
    if found := _SPARSE.fullmatch(case):
        a, b, c, d, rows = (int(text) for text in found.groups()[:5])
        dtype, last = found[6], found[7] == "last"
        shape = (a * c * d, rows) if last else (rows, a * c * d)
        x, weight = _empty(*shape, dtype=dtype), _empty(a, b, c, d, dtype=dtype)
        return lambda: kron_sparse_matmul(x, weight, batch_last=last)
    if found := _KRON.fullmatch(case):
        sizes, dtype = [(int(size.split("x")[0]), int(size.split("x")[-1])) for size in found[2].split()], found[3]
    elif found := _KRON_TABLE.fullmatch(case):
        sizes, dtype = [(int(found[2]), int(found[2]))] * int(found[3]), found[4]
    else:
        return None
    x = _empty(int(found[1]), math.prod(rows for rows, _ in sizes), dtype=dtype)
    factors = [_empty(*size, dtype=dtype) for size in sizes]
    return lambda: kron_matmul(x, factors)


def _calls(file: str, rows: Mapping[str, store.Row]) -> Iterator[tuple[store.Row, Call]]:
    """The rows of a file whose time is a GPU's and the calls that they measured, on tensors without memory."""
    cases: dict[str, Case] = {}
    if file in _SUITES:
        cases = {case.name: case for case in _SUITES[file]().rows if isinstance(case, Case)}
    for name, row in rows.items():
        if _LEFT_OUT.search(name):
            continue
        if name in cases and cases[name].clock == "events":
            yield row, cases[name].ours(cases[name].problem.inputs("meta"))
        elif file not in _SUITES and (call := _structured(name)) is not None:
            yield row, call


def compared(folder: Path, files: Sequence[str] = FILES) -> list[Comparison]:
    """Every row that has a call, predicted and measured."""
    found: list[Comparison] = []
    for file in files:
        for row, call in _calls(file, store.latest(store.read(folder / f"{file}.jsonl"))):
            measured = row["results"].get(UNPACKED) or row["results"][OURS]
            in_graphs = row.get("suite") == structured_random.SUITE
            if measured["status"] != "ok" or (measured["median"] < _LEAST_SECONDS and not in_graphs):
                continue
            own = estimate(call, card=file.partition("-")[0])
            names = [name for name, _ in own.launches]
            if any(kernel in name and row["date"] < since for kernel, since in _SINCE for name in names):
                continue
            taken = measured.get("bytes")
            if file == _LESS_RESULT[0] and row["date"] < _LESS_RESULT[1]:
                taken = taken + own.result_bytes if taken else None
            found.append(Comparison(file, row["case"], own.seconds, measured["median"], own.bytes, taken))
    return found


def _summary(rows: Sequence[Comparison]) -> Iterator[tuple[str, list[str]]]:
    """Each file, with how many ratios of predicted to measured seconds it has, and how they are spread."""
    for file in dict.fromkeys(row.file for row in rows):
        ratios = sorted(row.ratio for row in rows if row.file == file)
        low, *_, high = quantiles(ratios, n=10)
        values = (median(ratios), low, high, ratios[0], ratios[-1])
        yield file, [str(len(ratios)), *(f"{value:.2f}" for value in values)]


def table(rows: Sequence[Comparison]) -> Table:
    """Ratios of predicted to measured seconds by file."""
    shown = Table(
        "rows of", "how many", "median ratio", "10 %", "90 %", "least", "most", title="predicted over measured seconds"
    )
    for file, values in _summary(rows):
        shown.add_row(file, *values)
    return shown


def markdown(rows: Sequence[Comparison]) -> str:
    """The same as a table of the documentation."""
    lines = ["| rows | how many | median | 10 % | 90 % | least | most |", "|---|---|---|---|---|---|---|"]
    lines += [f"| {_WHAT[file]} | {' | '.join(values)} |" for file, values in _summary(rows)]
    return "\n".join(lines)


def worst(rows: Sequence[Comparison], count: int = 10) -> list[str]:
    """The rows furthest from their predictions, a line each."""
    far = sorted(rows, key=lambda row: max(row.ratio, 1 / row.ratio))[-count:]
    return [f"{row.ratio:6.2f}  {row.file}  {row.case}" for row in reversed(far)]
