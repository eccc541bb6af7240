"""The suite of Kronecker-sparse products: a grid of patterns, both layouts, several types, torch's algorithms."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import nn

from kernmantle.errors import BackendError, ParameterError
from kernmantle.kronsparse import KSLinear, KSPattern, kron_sparse_matmul
from kernmantle.structured.mode_product.torch_products import (
    block_matrices,
    block_rows,
    by_bsr,
    by_copies,
    by_sparse,
    dense,
    sparse_rows,
)

from .case import DTYPES, Arrays, Case, Exact, Peer, Picks, Prepare, Problem, Suite, Target
from .run import OURS
from .store import Row
from .work import Work

TARGETS = (
    (6, 64, 64, 1), (1, 768, 192, 2), (2, 48, 192, 1), (1, 192, 48, 2), (1, 128, 128, 3), (1, 64, 64, 128),
    (1, 256, 256, 64),
)  # fmt: skip
REACH = {"f32": (25, 120, 18, 17, 33, 550, 1600), "f16": (13, 50, 10, 9, 18, 270, 600)}
REACH_FIRST = {("f32", 6): 3200, ("f16", 6): 1500}
SLICE = (
    (1, 48, 48, 4), (4, 96, 96, 4), (1, 512, 512, 4), (16, 64, 64, 4), (2, 256, 64, 16), (4, 128, 512, 4),
    (1, 1024, 1024, 4), (3, 192, 192, 16), (1, 384, 96, 64), (512, 2, 2, 1), (1, 2, 2, 512), (32, 8, 8, 4),
)  # fmt: skip
SMALL, FEW_ROWS = ((512, 2, 2, 1), (1, 2, 2, 512), (64, 4, 4, 1)), (1, 4, 16)
CHAIN = ((6, 64, 64, 1), (1, 768, 192, 2))
BATCHES = (1, 16, 256, 1024, 4096, 25088, 65536)
EAGER = (16, 1024, 25088)
BATCH = {"cuda": 25088, "cpu": 1568}
TYPES = {"cuda": ("f32", "bf16"), "cpu": ("f32",)}
TARGET_TYPES = {"cuda": ("f32", "bf16", "f16"), "cpu": ("f32",)}
UNPACKED, KERNEL = "weights as given", "our kernel"  # ours without what is made beforehand; ours without a choice
SLOW = ("bsr", "sparse", "einsum")  # on a GPU milliseconds to seconds a call; bmm with the copies of einsum or more
PEERS = ("bmm", "einsum", "dense", "bsr", "sparse")
H200 = "H200"
_A = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
_BC = (48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
_SKIPPED = {(1024, 256), (256, 1024), (128, 512), (512, 128), (64, 256), (256, 64)}
_MOST_DENSE = 2**24
_MOST_NUMBERS = {"cuda": 2**31 - 1, "cpu": 2**23}


def grid(batch: int) -> Iterator[KSPattern]:
    """Patterns with b = c, b = 4 c or c = 4 b as transformers have them, as far as arrays stay below 2^31 numbers."""
    for a, b, c, d in itertools.product(_A, _BC, _BC, (4, 16, 64)):
        square = b == c or b == 4 * c or c == 4 * b
        if square and (b, c) not in _SKIPPED and batch * a * d * max(b, c) < 2**31:
            yield KSPattern(a, b, c, d)


def _inputs(patterns: Sequence[KSPattern], batch: int, dtype: str, last: bool) -> Callable[[str], Arrays]:
    def make(device: str) -> Arrays:
        source = torch.Generator(device).manual_seed(0)
        columns = patterns[0].in_features
        options: dict[str, Any] = {"generator": source, "device": device}
        x = torch.randn((columns, batch) if last else (batch, columns), **options).to(DTYPES[dtype])
        weights = [torch.randn(pattern, **options) / math.sqrt(pattern.c) for pattern in patterns]
        return {"x": x} | {f"w{i}": weight.to(DTYPES[dtype]) for i, weight in enumerate(weights)}

    return make


def _exact(last: bool) -> Callable[[Exact, Picks], np.ndarray[Any, Any]]:
    def block(given: Exact, _: Picks) -> np.ndarray[Any, Any]:
        value = np.einsum("nfk,fk->nf", given["x"], given["w0"])
        return value.T if last else value

    return block


def _cut(last: bool, whole: bool = False) -> Callable[[Arrays, Picks], Arrays]:
    """Entries of the batch that are compared; and all weights, or what is multiplied for the features compared."""

    def cut(given: Arrays, picks: Picks) -> Arrays:
        batch = torch.tensor(picks.columns if last else picks.rows, device=given["x"].device)
        x = given["x"].index_select(1 if last else 0, batch)
        if whole:
            return given | {"x": x}
        a, b, c, d = given["w0"].shape
        features = torch.tensor(picks.rows if last else picks.columns, device=x.device)
        i, j, l = features // (b * d), features // d % b, features % d
        rows = (x.T if last else x).reshape(-1, a, c, d)
        return {"x": rows[:, i, :, l].transpose(0, 1), "w0": given["w0"][i, j, :, l]}

    return cut


def graph(call: Callable[[], torch.Tensor], device: str) -> Callable[[], Any]:
    """A call without what it costs to start it: on a GPU the replay of its graph."""
    if device != "cuda":
        return call
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call()
    torch.cuda.current_stream().wait_stream(stream)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured, capture_error_mode="thread_local"):
        result = call()

    def replay(_: Callable[[], torch.Tensor] = call) -> torch.Tensor:
        """The graph reads what the call holds, so that is held here."""
        captured.replay()
        return result

    return replay


def _by(algorithm: str, last: bool) -> Prepare:
    """A call of one algorithm, matrices made beforehand where it goes through them."""

    def prepare(given: Arrays) -> Callable[[], Any]:
        x, weight = given["x"], given["w0"]
        rows, device = (x.mT if last else x)[None], x.device.type
        if algorithm == "dense":
            matrix = dense(weight)
            return graph((lambda: matrix @ x) if last else (lambda: x @ matrix.T), device)
        if algorithm in ("bsr", "sparse"):
            make, call = (block_rows, by_bsr) if algorithm == "bsr" else (sparse_rows, by_sparse)
            made = make(weight[None])
            call(rows, weight[None], made)  # may compile
            return lambda: call(rows, weight[None], made)[0].T if last else call(rows, weight[None], made)[0]
        if algorithm == "bmm":
            blocks = block_matrices(weight[None])
            return graph(lambda: by_copies(rows, blocks)[0].T if last else by_copies(rows, blocks)[0], device)
        return graph(lambda: kron_sparse_matmul(x, weight, batch_last=last, algorithm=algorithm), device)

    return prepare


def _packed(algorithm: str, last: bool) -> Prepare:
    """A layer whose weights are rearranged beforehand, as the matrices of others are made."""

    def prepare(given: Arrays) -> Callable[[], Any]:
        x, weight = given["x"], given["w0"]
        pattern = KSPattern(*weight.shape)
        layer = KSLinear(
            pattern.in_features, pattern.out_features, [pattern], False, [weight], last, algorithm
        ).pack()  # fmt: skip
        return graph(lambda: layer(x), x.device.type)

    return prepare


def clock_of(device: str) -> str:
    """The clock of a device."""
    return "events" if device == "cuda" else "wall"


def case(
    pattern: Sequence[int], dtype: str, last: bool, device: str, left: Sequence[str] = (), rows: int | None = None
) -> Case:
    """One pattern, type and layout against torch's algorithms, without those ``left`` out; the batch or some rows."""
    own, batch = KSPattern(*pattern), BATCH[device] if rows is None else rows
    size = DTYPES[dtype].itemsize
    multiplied = float(batch * own.nnz)
    resource = {"fp16": (3 if dtype == "f32" else 1) * multiplied} if device == "cuda" else {"fma.f32": multiplied}
    work = Work(float(size * (batch * (own.in_features + own.out_features) + own.nnz)), resource, serial=False)
    shape = (own.out_features, batch) if last else (batch, own.out_features)
    problem = Problem(_inputs([own], batch, dtype, last), _exact(last), shape, own.c, dtype, _cut(last))
    fits = own.in_features * own.out_features <= _MOST_DENSE
    out = left if fits else (*left, "dense", "bsr", "sparse")
    entered = [Peer(name, _by(name, last)) for name in PEERS if name not in out]
    entered += [Peer(UNPACKED, _by("auto", last))]
    if device == "cuda":
        entered += [Peer(KERNEL, _packed("kernel", last))]
    ours = _packed("auto", last)
    layout, few = "last" if last else "first", "" if rows is None else f"{rows} rows of "
    return Case(
        f"{few}{own} {dtype} {layout}", f"{few}{own} {dtype}, batch {layout}", problem, ours, tuple(entered), work,
        _targets(own, dtype, last, device), clock_of(device),
    )  # fmt: skip


def _targets(pattern: KSPattern, dtype: str, last: bool, device: str) -> tuple[Target, ...]:
    if device == "cpu":
        return (Target("faster", 1, "bmm"), Target("faster", 0.9, "dense"))
    kind = "f16" if dtype == "bf16" else dtype
    if pattern not in TARGETS:
        return ()
    place = TARGETS.index(tuple(pattern))
    most = REACH[kind][place] if last else REACH_FIRST.get((kind, place), REACH[kind][place])
    return (Target("seconds", 1e-6 * most, machine=H200),)


def _sparse_layer(given: Arrays, bias: bool = False) -> nn.Module:
    weights = [given["w0"], given["w1"]]
    patterns = [KSPattern(*weight.shape) for weight in weights]
    columns, rows = patterns[0].in_features, patterns[-1].out_features
    return KSLinear(columns, rows, patterns, bias=bias, weights=weights)


def _dense_layer(given: Arrays, bias: bool = False) -> nn.Module:
    matrix = dense(given["w1"]) @ dense(given["w0"])
    layer = nn.Linear(matrix.shape[1], matrix.shape[0], bias=bias, device=matrix.device, dtype=matrix.dtype)
    layer.weight.data = matrix
    return layer


def _forward(make: Callable[[Arrays], nn.Module], how: str) -> Prepare:
    def prepare(given: Arrays) -> Callable[[], Any]:
        layer, x = make(given).requires_grad_(False), given["x"]
        if isinstance(layer, KSLinear):
            layer = layer.pack()
        own = torch.compile(layer, dynamic=False) if how == "compiled" else layer
        return graph(lambda: own(x), "" if how else x.device.type)

    return prepare


def training_step(make: Callable[[Arrays], nn.Module], how: str) -> Prepare:
    """Forward pass, and backward pass by ones to the gradients of everything; gives that of x."""

    def prepare(given: Arrays) -> Callable[[], Any]:
        layer, x = make(given), given["x"].detach().requires_grad_()
        wanted, own = [x, *layer.parameters()], torch.compile(layer, dynamic=False) if how == "compiled" else layer

        def call() -> torch.Tensor:
            result = own(x)
            return torch.autograd.grad(result, wanted, torch.ones_like(result))[0]

        return graph(call, "" if how else x.device.type)

    return prepare


def _forward_exact(given: Exact, picks: Picks) -> np.ndarray[Any, Any]:
    value = given["x"]
    for name in ("w0", "w1"):
        a, _, c, d = given[name].shape
        value = np.einsum("nikl,ijkl->nijl", value.reshape(-1, a, c, d), given[name]).reshape(len(value), -1)
    return value[:, picks.columns]


def _step_exact(given: Exact, picks: Picks) -> np.ndarray[Any, Any]:
    total = np.ones(KSPattern(*given["w1"].shape).out_features)
    for name in ("w1", "w0"):
        a, b, _, d = given[name].shape
        total = np.einsum("ijl,ijkl->ikl", total.reshape(a, b, d), given[name]).reshape(-1)
    return np.broadcast_to(total[picks.columns], (len(picks.rows), len(picks.columns)))


def layer_case(
    batch: int, dtype: str, step: bool, device: str, how: str = "", chain: Sequence[Sequence[int]] = CHAIN,
    name: str = "a layer", bias: bool = False,
) -> Case:  # fmt: skip
    """A layer of two factors against the dense layer of the same matrix: forward, or with its backward pass.

    On a GPU by its own clock in replays of a graph, or what a call takes in all if ``how`` is "eager" or "compiled".
    The gradients of a step are those of x, of the weights and, with a ``bias``, of the bias.
    """
    patterns = [KSPattern(*pattern) for pattern in chain]
    columns = patterns[0].in_features if step else patterns[-1].out_features
    depth = sum(pattern.b if step else pattern.c for pattern in patterns)
    if DTYPES[dtype].itemsize < 4:  # what is between the factors, or their product, is rounded to the type
        depth *= 4**9
    problem = Problem(
        _inputs(patterns, batch, dtype, False), _step_exact if step else _forward_exact, (batch, columns), depth, dtype,
        _cut(False, whole=True),
    )  # fmt: skip
    named = step and chain == CHAIN and batch == BATCH["cuda"] and not how and not bias
    targets = (Target("faster", 1.4, "dense", machine=H200),) if named else ()
    kind, prepare = ("training step", training_step) if step else ("forward pass", _forward)
    after, clock = (f" {how}", "wall") if how else ("", clock_of(device))
    after += " with a bias" * bias
    own = "" if chain == CHAIN else f"{name} "
    dense = Peer("dense", prepare(partial(_dense_layer, bias=bias), how), compiles=how == "compiled")
    return Case(
        f"{own}{kind} {batch} {dtype}{after}", f"{kind} of {name}, batch {batch}, {dtype}{after}", problem,
        prepare(partial(_sparse_layer, bias=bias), how), (dense,), Work(), targets, clock,
    )  # fmt: skip


def suite(device: str = "", full: bool = False) -> Suite:
    """The slice of the grid, or all of it without what is nowhere near the quickest, on the GPU where there is one."""
    kind = device or ("cuda" if torch.cuda.is_available() else "cpu")
    fits = _MOST_NUMBERS[kind] // BATCH[kind]
    named = [KSPattern(*pattern) for pattern in TARGETS]
    others = [KSPattern(*pattern) for pattern in SLICE]
    if full:
        others = list(grid(BATCH[kind]))
        random.Random(0).shuffle(others)  # so that whatever a budget reaches is a fair sample
    types, left = (TARGET_TYPES if full else TYPES)[kind], SLOW if full and kind == "cuda" else ()

    def cases(patterns: Iterable[KSPattern], types: Sequence[str]) -> list[Case]:
        return [
            case(own, dtype, last, kind, left)
            for own in patterns
            if max(own.in_features, own.out_features) <= fits
            for dtype in types
            for last in (False, True)
        ]

    batches = BATCHES if kind == "cuda" else BATCHES[:5]
    layers = [
        layer_case(batch, dtype, step, kind) for batch in batches for dtype in TYPES[kind] for step in (False, True)
    ]
    eager = [
        layer_case(batch, dtype, step, kind, "eager")
        for batch in (EAGER if kind == "cuda" else ())
        for dtype in TYPES[kind]
        for step in (False, True)
    ]
    small = [
        case(pattern, dtype, last, kind, left, rows)
        for pattern in SMALL
        for dtype in types
        for rows in FEW_ROWS
        for last in (False, True)
    ]
    rows = (
        cases(named, TARGET_TYPES[kind])
        + layers
        + eager
        + small
        + cases((own for own in others if own not in named), types)
    )
    return Suite("kronsparse", kind, tuple(rows), picture, summary)


def ratios(rows: Iterable[Row]) -> dict[tuple[str, str], list[tuple[KSPattern, float]]]:
    """Speed-up over the best of torch's algorithms of every row of the grid, by type and layout."""
    found: dict[tuple[str, str], list[tuple[KSPattern, float]]] = {}
    for row in rows:
        if not row["case"].startswith("(") or row["status"] != "ok":
            continue
        text, _, rest = row["case"].partition(") ")
        dtype, layout = rest.split()
        others = [r["median"] for name, r in row["results"].items() if name in PEERS and "median" in r]
        if others:
            pattern = KSPattern(*map(int, text[1:].split(", ")))
            found.setdefault((dtype, layout), []).append((pattern, min(others) / row["results"][OURS]["median"]))
    return found


def summary(rows: Iterable[Row]) -> str:
    """Median and least of the speed-ups, by type and layout."""
    lines: list[str] = []
    for (dtype, layout), pairs in sorted(ratios(rows).items()):
        pattern, least = min(pairs, key=lambda pair: pair[1])
        middle = median(value for _, value in pairs)
        lines.append(
            f"{dtype}, batch {layout}: {middle:.2f} times as fast as the best other algorithm in the median of "
            f"{len(pairs)} patterns, {least:.2f} times at {pattern}"
        )
    return "\n".join(lines)


def listed(row: Row) -> bool:
    """Whether a row stands in tables for itself; those of the whole grid are summed up and drawn."""
    text = row["case"].partition(") ")[0][1:]
    return not row["case"].startswith("(") or tuple(map(int, text.split(", "))) in {*TARGETS, *SLICE}


def picture(rows: Sequence[Row], path: Path) -> None:
    """Write the picture of the grid."""
    drawn(rows).savefig(path, dpi=150)


def drawn(rows: Sequence[Row]) -> Any:
    """Speed-up over the best other algorithm against (b + c) / (b c) and against the density, as a figure."""
    try:
        plots = import_module("matplotlib.figure")
    except ImportError as error:
        raise BackendError("a picture needs matplotlib: pip install matplotlib") from error
    found = ratios(rows)
    if not found:
        raise ParameterError("there are no rows of the grid to draw")
    figure = plots.Figure(figsize=(10, 4.2), layout="constrained")
    sides = figure.subplots(1, 2, sharey=True)
    for (dtype, layout), pairs in sorted(found.items()):
        values = [value for _, value in pairs]
        for axes, place in (
            (sides[0], [(p.b + p.c) / (p.b * p.c) for p, _ in pairs]), (sides[1], [p.density for p, _ in pairs]),
        ):  # fmt: skip
            style = {"marker": "o" if layout == "first" else "^", "ms": 3 if len(pairs) > 100 else 4, "ls": "none"}
            axes.plot(place, values, label=f"{dtype}, batch {layout}", alpha=0.7, rasterized=True, **style)
    for axes, label in zip(sides, ("(b + c) / (b c)", "density"), strict=True):
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.xaxis.set_minor_formatter("")
        axes.set_xlabel(label)
        axes.axhline(1, color="#333333", linewidth=0.8, linestyle=":")
        axes.spines[["top", "right"]].set_visible(False)
    sides[0].set_ylabel("times as fast as the best other algorithm")
    sides[1].legend(fontsize=7)
    return figure
