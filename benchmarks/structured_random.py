"""``python -m benchmarks structured-random``: random structured products, each beside the best algorithm of torch.

Seconds are those of the device: on a GPU the calls of a sample wait behind a pause until all of them are queued, so
that the host is not what is timed. A Kronecker product, a step and the gradients of a sparse product are captured in a
CUDA graph first, whose plan is the one that takes the device least; eager plans go by what they take the host too.
Short calls are timed in two turns.
On a CPU the contestants take turns. With one thread (OMP_NUM_THREADS=1) seconds are the thread's own, so that other
processes may run.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

import torch

from kernmantle.runtime.cache import current_cache
from kernmantle.runtime.kernel_store import Job, collected
from kernmantle.structured.kron.matmul import multiply
from kernmantle.testing.tolerances import FORMATS
from kernmantle.torch_ops.info import RunInfo

from . import calibrate, machine, random_structured, store
from .case import DTYPES
from .random_structured import NAMED_ROWS, UNPACKED, Calls, Drawn, KronCase, SparseCase
from .run import OURS, now
from .work import Work, floor

SUITE = "structured-random"
LONG_FLOOR = 1e-5  # seconds of bytes and multiplications from which a launch is a small part
SIDES = ("forward", "backward", "step")
KINDS = {"kronsparse": "Kronecker-sparse products", "kron": "Kronecker products"}
CHUNK, WORST, BEHIND = 16, 15, 0.95
# What is wanted: times as fast as the best other at NAMED_ROWS rows in the median, by whether a type is a half, and
# times a floor of LONG_FLOOR or more, in the median and in the worst.
FASTER, FLOORS = {False: 3.0, True: 2.5}, (2.0, 4.0)
_LEAST_CALLS, _MOST_CALLS, _SAMPLE_SECONDS, _LONG = 2, 16, 2e-3, 5e-3
_CLOCK, _LONGEST_PAUSE = 2.0e9, 0.04
_SHORT = 3e-5  # seconds of a call up to which it is timed in two turns
# On a CPU: seconds of a sample of short calls, those of a call in all turns, and turns.
_CPU_SAMPLE, _CPU_SECONDS, _LEAST_TURNS, _MOST_TURNS = 1e-4, 2e-2, 5, 60
_FAILURES = (RuntimeError, ValueError, TypeError, MemoryError, ArithmeticError, LookupError)
_WIDE_ENOUGH = {"f64": 1e-14, "f32": 2e-6, "f16": 2e-3, "bf16": 1.6e-2}


def run(
    path: Path, seconds: float, names: Sequence[str] = (), device: str = "", sides: Sequence[str] = SIDES,
    part: tuple[int, int] = (1, 1), only: str = "",
) -> list[store.Row]:  # fmt: skip
    """Measure the cases with these names in their order, or all, until the time is over, and append their rows.

    Only those ``sides``, the K-th of N equal parts of the cases, and of one kind, "kronsparse" or "kron".
    """
    kind = device or ("cuda" if torch.cuda.is_available() else "cpu")
    stamp, begin = machine.stamp(kind), time.monotonic()
    every = {case.name: case for case in random_structured.cases(kind)}
    due = [every[name] for name in names if name in every] if names else list(every.values())
    due = [case for case in due if only in ("", case.kind)][part[0] - 1 :: part[1]]
    resources = {"fp16", "bytes"} if kind == "cuda" else {"fma.f32", "bytes"}
    rates = (
        calibrate.gpu_rates(resources, stamp["machine"]["gpu"])
        if kind == "cuda"
        else calibrate.cpu_rates(resources, stamp["machine"]["cpu"]["threads"])
    )
    found: list[store.Row] = []
    with ThreadPoolExecutor(max(1, (os.cpu_count() or 2) - 2)) as pool:
        chunks = [due[first : first + CHUNK] for first in range(0, len(due), CHUNK)]
        compiled = _compile(pool, chunks[0], kind, sides) if chunks else []
        for index, chunk in enumerate(chunks):
            waited = list(compiled)
            if time.monotonic() - begin > seconds:
                break
            compiled = _compile(pool, chunks[index + 1], kind, sides) if index + 1 < len(chunks) else []
            for job in waited:
                job.exception()
            for case in chunk:
                if time.monotonic() - begin <= seconds:
                    for row in measure(case, kind, stamp, rates, sides):
                        found.append(row)
                        store.append(path, row)
        for job in compiled:
            job.cancel()
    return found


def _compile(
    pool: ThreadPoolExecutor, chunk: Sequence[Drawn], kind: str, sides: Sequence[str]
) -> list[Future[Any]]:  # fmt: skip
    """Begin to compile what the cases need: arrays are made, and no kernel runs."""
    is_differentiated = set(sides) != set(SIDES[:1])
    jobs: dict[str, Job] = {}
    for case in chunk:
        try:
            given = case.arrays(kind)
            with collected() as own:
                backward = [case.backward(given)] if is_differentiated else []
                for calls in (case.forward(given), case.parts(given), *backward):
                    for name, call in calls.items():
                        if name in (OURS, UNPACKED) or any(word in name for word in ("auto", "kernel", "transposed")):
                            call()
                if kind == "cuda" and is_differentiated:
                    _captured(case.backward(given, True)[OURS])
            jobs |= own
        except _FAILURES as error:
            print(f"{case.name}: {type(error).__name__}: {str(error)[:200]}", flush=True)
    cache = current_cache()
    return [pool.submit(cache.fetch, job.key, job.build) for job in jobs.values()]


def measure(
    case: Drawn, kind: str, stamp: Mapping[str, Any], rates: Mapping[str, float], sides: Sequence[str] = SIDES
) -> list[store.Row]:
    """Rows of the product, of its gradients and of steps, or of some of these sides."""
    rows: list[store.Row] = []
    try:
        given = case.arrays(kind)
        status, error = _checked(case, given, set(sides) != set(SIDES[:1])), None
    except _FAILURES as failure:
        given, status, error = {}, "failed", f"{type(failure).__name__}: {failure}"[:500]
    for side in sides if given else sides[:1]:
        row: store.Row = {
            "suite": SUITE, "case": f"{case.name} {side}", "title": f"{case.kind} {case.name}, {side}",
            "definition": f"seed {random_structured.SEED}, {case.name}, {_how(case, side, kind)}", "stamp": dict(stamp),
            "date": now(), "status": status, "results": {}, "targets": [], "kind": case.kind, "dtype": case.dtype,
            "side": side, "rows": case.rows,
        }  # fmt: skip
        if error is not None:
            row["reason"] = error
        if given:
            try:
                graphs: list[torch.cuda.CUDAGraph] = []
                calls = case.forward(given) if side == "forward" else _backward(case, given, side, kind, graphs)
                row["results"] = _timed(calls, kind, _how(case, side, kind) != side)
                if side == "forward":
                    row["route"] = route(case, given)
                    row["parts"] = _timed(case.parts(given) if kind == "cuda" else {}, kind)
            except _FAILURES as failure:
                row |= {"status": "failed", "reason": f"{type(failure).__name__}: {failure}"[:500]}
            bound = floor(_work(case, side, kind), rates)
            if bound is not None:
                row["floor"] = {"seconds": bound.seconds, "bound": bound.bound}
        rows.append(row)
    return rows


def _backward(
    case: Drawn, given: Mapping[str, torch.Tensor], side: str, kind: str, graphs: list[torch.cuda.CUDAGraph]
) -> Calls:
    """Gradients, or steps; gradients that a graph captures are those of a product of a graph, which is kept."""
    if side == "backward" and kind == "cuda":
        return case.backward(given, False, partial(_made, graphs))
    return case.backward(given, side == "step")


def _how(case: Drawn, side: str, kind: str) -> str:
    is_captured = side != "forward" or case.kind == "kron"
    return f"{side} in a graph" if is_captured and kind == "cuda" else side


def route(case: Drawn, given: Mapping[str, torch.Tensor]) -> str:
    """What the product with packed weights, or the Kronecker product, ran as."""
    info = RunInfo()
    if isinstance(case, SparseCase):
        layer = case.layer("auto", given["w0"])
        layer(given["x"])
        return layer.info
    multiply(given["x"], case.factors(given), "right", 1, info=info)
    return info.route


def _work(case: Drawn, side: str, kind: str) -> Work:
    """Each array once, and the multiplications.

    A backward pass reads two arrays and the weights, writes gradients of one and of these, and multiplies twice.
    """
    (before, after), passes = case.ends, {"forward": (1, 0), "backward": (0, 1), "step": (1, 1)}[side]
    moved = passes[0] * (before + after) + passes[1] * (2 * before + after)
    products = case.products * (passes[0] + 2 * passes[1])
    size, weights = DTYPES[case.dtype].itemsize, (passes[0] + 2 * passes[1]) * case.weights
    resource = {"fp16": (3 if case.dtype == "f32" else 1) * products} if kind == "cuda" else {"fma.f32": products}
    return Work(float(size * (moved + weights)), resource, serial=False)


def _checked(case: Drawn, given: Mapping[str, torch.Tensor], is_differentiated: bool) -> str:
    """Whether the product and, if asked, the gradients are those of float64, each within its norm."""
    names = [name for name in given if name != "g"]
    leaves = {name: given[name].detach().requires_grad_(is_differentiated) for name in names}
    wide = {name: given[name].detach().double().requires_grad_(is_differentiated) for name in names}
    out, exact = case.ours(leaves), case.exact(wide)
    own, right = (), ()
    if is_differentiated:
        own = torch.autograd.grad(out, list(leaves.values()), given["g"])
        right = torch.autograd.grad(exact, list(wide.values()), given["g"].double())
    factors = case.factors(given) if isinstance(case, KronCase) else [given["w0"]]
    allowed = _WIDE_ENOUGH[case.dtype] * math.sqrt(len(factors))
    for name, found, wanted in zip(("out", *names), (out, *own), (exact, *right), strict=is_differentiated):
        error = float((found.detach().double() - wanted.detach()).norm() / wanted.detach().norm().clamp_min(1e-30))
        summed = 0.0 if name in ("out", "x") else math.sqrt(case.ends[0]) * FORMATS["float32"].roundoff
        if not error <= max(allowed, summed):
            return f"wrong: {name} {error:.3g}"
    return "ok"


def _timed(calls: Calls, kind: str, is_captured: bool = False) -> dict[str, dict[str, Any]]:
    """Seconds of each call, or of the replays of a graph that has captured it, or why there are none."""
    found: dict[str, dict[str, Any]] = {}
    able: Calls = {}
    for name, call in calls.items():
        try:
            if kind == "cuda":
                run = _captured(call) if is_captured else call
                found[name] = {"median": _seconds_on_gpu(run), "status": "ok"}
                if found[name]["median"] < _SHORT:
                    able[name] = run
            else:
                call()
                found[name], able[name] = {"status": "ok"}, call
        except _FAILURES as error:
            if kind == "cuda":
                torch.cuda.empty_cache()
            found[name] = {"status": "failed", "reason": f"{type(error).__name__}: {error}"[:200]}
    if kind == "cuda":  # a clock that rises meanwhile would be to the first one's cost
        again = {name: _seconds_on_gpu(run) for name, run in able.items()}
        for name, seconds in again.items():
            found[name]["median"] = min(found[name]["median"], seconds)
        return found
    for name, seconds in _seconds_in_turns(able).items():
        found[name]["median"] = seconds
    return found


def _captured(call: Callable[[], Any]) -> Callable[[], Any]:
    """Return what replays a call."""
    return _graph_of(call)[0].replay


def _made(graphs: list[torch.cuda.CUDAGraph], call: Callable[[], torch.Tensor]) -> torch.Tensor:
    """Return the result of a call in a graph, which is replayed once and kept among ``graphs``."""
    graph, found = _graph_of(call)
    graph.replay()
    graphs.append(graph)
    return found


def _graph_of(call: Callable[[], Any]) -> tuple[torch.cuda.CUDAGraph, Any]:
    """Return the graph of a call and its result."""
    side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
    torch.cuda.current_stream().wait_stream(side)
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        found = call()
    return graph, found


def _seconds_in_turns(calls: Calls) -> dict[str, float]:
    """Least of the samples of each call on a CPU, in turns; with one thread of torch its own seconds."""
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter

    def seconds(call: Callable[[], Any], count: int) -> float:
        begin = clock()
        for _ in range(count):
            call()
        return (clock() - begin) / count

    least = {name: seconds(call, 1) for name, call in calls.items()}
    counts = {name: max(1, min(_MOST_CALLS, int(_CPU_SAMPLE / least[name]))) for name in calls}
    spent, turns = dict.fromkeys(calls, 0.0), 0
    while due := [
        name for name in calls if turns < _LEAST_TURNS or (turns < _MOST_TURNS and spent[name] < _CPU_SECONDS)
    ]:
        turns += 1
        for name in due:
            taken = seconds(calls[name], counts[name])
            least[name], spent[name] = min(least[name], taken), spent[name] + counts[name] * taken
    return least


def _seconds_on_gpu(call: Callable[[], Any]) -> float:
    """Least of the samples; one whose calls were not all queued before the pause was over is taken again."""
    call()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    call()
    host = time.perf_counter() - begin
    torch.cuda.synchronize()
    whole = time.perf_counter() - begin
    calls = max(_LEAST_CALLS, min(_MOST_CALLS, int(_SAMPLE_SECONDS / whole)))
    pause, taken = 1.5 * calls * host + 1e-4, []
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for attempt in range(5):
        torch.cuda._sleep(int(min(pause, _LONGEST_PAUSE) * _CLOCK))
        start.record()
        for _ in range(calls):
            call()
        late = start.query()
        end.record()
        torch.cuda.synchronize()
        taken.append(start.elapsed_time(end) * 1e-3 / calls)
        if late and attempt < 4:
            pause *= 3
            taken.pop() if whole < _LONG else None
        elif len(taken) > 1 or whole > _LONG:
            break
    return min(taken)


def _best(row: store.Row) -> tuple[float, str]:
    """Seconds and name of the best algorithm of torch."""
    others = [(found["median"], name) for name, found in row["results"].items() if "median" in found]
    return min((one for one in others if one[1] not in (OURS, UNPACKED)), default=(math.inf, "none"))


def _is_long(row: store.Row) -> bool:
    return row.get("floor", {"seconds": 0.0})["seconds"] >= LONG_FLOOR


def ratio(row: store.Row) -> float:
    """How many times as fast as the best algorithm of torch."""
    return _best(row)[0] / row["results"][OURS]["median"]


def _beside_what_is_wanted(name: str, rows: Sequence[store.Row]) -> str:
    """Return what the rows of one kind and side come to, what is wanted in brackets."""
    found = [f"{min(map(ratio, rows)):.2f} times as fast as the best other in the worst [{BEHIND}]"]
    for is_half, wanted in FASTER.items():
        named = [row for row in rows if row["rows"] == NAMED_ROWS and (DTYPES[row["dtype"]].itemsize == 2) == is_half]
        if named:
            of = "halves" if is_half else "float32"
            found.append(
                f"{median(map(ratio, named)):.2f} in the median of {len(named)} of {of} at {NAMED_ROWS} rows [{wanted}]"
            )
    above = [row["results"][OURS]["median"] / row["floor"]["seconds"] for row in rows if _is_long(row)]
    if above:
        text = f"{median(above):.2f} [{FLOORS[0]}] in the median, {max(above):.1f} [{FLOORS[1]}] in the worst"
        found.append(f"times a floor of 10 us or more {text}")
    return f"{name}, wanted in brackets: {'; '.join(found)}"


def is_behind(row: store.Row) -> bool:
    """Whether the best algorithm of torch is faster."""
    return ratio(row) < 1


def _by(rows: Iterable[store.Row], *keys: str) -> dict[tuple[str, ...], list[store.Row]]:
    """Return the rows by what they have under some keys, sorted."""
    found: dict[tuple[str, ...], list[store.Row]] = {}
    for row in sorted(rows, key=lambda row: [row[key] for key in keys]):
        found.setdefault(tuple(row[key] for key in keys), []).append(row)
    return found


def in_short(rows: Sequence[store.Row]) -> str:
    """Median and least of the ratios by kind, side and type, and those to the floor, of rows that are right."""
    lines: list[str] = []
    for key, own in _by(rows, "kind", "side", "dtype").items():
        ratios = [ratio(row) for row in own]
        above = [row["results"][OURS]["median"] / row["floor"]["seconds"] for row in own if _is_long(row)]
        floors = f"; times a floor of 10 us or more {median(above):.2f} median, {max(above):.1f} worst" if above else ""
        lines.append(
            f"{' '.join(key)}: {len(own)} rows, {median(ratios):.2f} times as fast as the best other in the median, "
            f"{min(ratios):.2f} in the worst, {sum(value < BEHIND for value in ratios)} behind{floors}"
        )
    return "\n".join(lines)


def summary(rows: Iterable[store.Row]) -> str:
    """What is not right, the rows in short, beside what is wanted, and the worst rows."""
    every = list(rows)
    good = [row for row in every if row["status"] == "ok" and "median" in row["results"].get(OURS, {})]
    lines = [f"{len(every)} rows, {len(every) - len(good)} not ok"]
    lines += [f"  {row['case']}: {row['status']} {row.get('reason', '')}" for row in every if row not in good][:20]
    lines += [in_short(good)] if good else []
    lines += [_beside_what_is_wanted(" ".join(key), own) for key, own in _by(good, "kind", "side").items()]
    lines.append(f"the {WORST} worst:")
    for row in sorted(good, key=ratio)[:WORST]:
        seconds, name = _best(row)
        lines.append(
            f"  {ratio(row):.2f} {row['case']}: {1e6 * row['results'][OURS]['median']:.1f} us, {name} "
            f"{1e6 * seconds:.1f}; {row.get('route', '')}"
        )
    return "\n".join(lines)


def drawn(rows: Sequence[store.Row]) -> Any:
    """Return a figure: how many times as fast as the best algorithm of torch, sorted, for each kind and side."""
    plots = import_module("matplotlib.figure")
    figure = plots.Figure(figsize=(10, 3.6), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for axes, (kind, title) in zip(panels, KINDS.items(), strict=True):
        for side in SIDES:
            found = sorted(ratio(row) for row in rows if (row["kind"], row["side"]) == (kind, side))
            if found:
                axes.plot([100 * (place + 0.5) / len(found) for place in range(len(found))], found, label=side)
        axes.axhline(1, color="#333333", linewidth=0.8, linestyle=":")
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.set_title(title, loc="left", fontsize=10)
        axes.set_xlabel("per cent of the products, slowest first")
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("times as fast as torch's best algorithm")
    handles = next((axes.get_lines()[:-1] for axes in panels if len(axes.get_lines()) > 1), [])
    figure.legend(handles=handles, fontsize=8, frameon=False, loc="outside right upper")
    return figure
