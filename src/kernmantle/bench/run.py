"""One case from inputs to a row: every result is compared with the oracle before anything is timed."""

from __future__ import annotations

import datetime as dt
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch

from ..errors import KernmantleError
from ..testing import assert_close
from .case import Arrays, Case, Peer, Picks, Probe, Suite, Target
from .remote import Remote
from .startup import answer
from .store import Row
from .timing import CLOCKS, Plan, Sampler, summarise, take_turns
from .work import floor

OURS = "kernmantle"
_FAILURES = (KernmantleError, RuntimeError, MemoryError, ValueError, TypeError, ImportError, ArithmeticError)
_IMPORTED = {"scikit-learn": "sklearn", "keops": "pykeops"}


@dataclass(frozen=True)
class Settings:
    """How to measure, and in which interpreters the peers live that need their own."""

    plan: Plan = field(default_factory=Plan)
    interpreters: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    rates: Mapping[str, float] = field(default_factory=dict[str, float])
    seed: int = 0


@dataclass(frozen=True)
class Entrant:
    """A contestant whose result was right; ``sampler`` takes the number of calls and whether to warm up."""

    sampler: Callable[[int, bool], float]
    estimate: float
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])


def definition(row: Case | Probe) -> str:
    """What of a case makes another measurement of it when changed."""
    if isinstance(row, Probe):
        return row.question
    problem = row.problem
    return f"{'x'.join(map(str, problem.shape))}, depth {problem.depth}, {problem.dtype}, {row.clock}"


def blank(row: Case | Probe, suite: str, stamp: Mapping[str, Any]) -> Row:
    """A row without results."""
    now = dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds")
    empty: Row = {"results": {}, "targets": [], "status": "ok"}
    return {
        "case": row.name,
        "title": row.title,
        "suite": suite,
        "definition": definition(row),
        "stamp": dict(stamp),
        "date": now,
    } | empty


def measure(row: Case | Probe, suite: Suite, stamp: Mapping[str, Any], settings: Settings) -> Row:
    """Results of a case, with every contestant that is here."""
    if isinstance(row, Probe):
        return _probe(row, suite, stamp, settings)
    return _case(row, suite, stamp, settings)


def _probe(row: Probe, suite: Suite, stamp: Mapping[str, Any], settings: Settings) -> Row:
    result = blank(row, suite.name, stamp)
    try:
        samples = answer(row.question, settings.plan.least)
    except KernmantleError as error:
        return result | {"status": "failed", "results": {OURS: {"status": "failed", "reason": str(error)}}}
    result["results"] = {name: {"status": "ok", **summarise(taken).as_row()} for name, taken in samples.items()}
    result["targets"] = [reached(target, result, 0.0) for target in row.targets]
    return result


def _case(case: Case, suite: Suite, stamp: Mapping[str, Any], settings: Settings) -> Row:
    result = blank(case, suite.name, stamp)
    arrays = case.problem.inputs(suite.device)
    picks = Picks.of(*case.problem.shape, seed=settings.seed)
    exact = case.problem.exact({name: value.detach().double().cpu().numpy() for name, value in arrays.items()}, picks)
    entrants: dict[str, Entrant] = {}
    with ExitStack() as stack:
        for peer in (Peer(OURS, case.ours), *case.peers):
            try:
                entrants[peer.name] = enter(peer, case, suite.device, arrays, picks, exact, settings, stack)
            except AssertionError as error:
                result["results"][peer.name] = {"status": "wrong", "reason": str(error)}
            except LookupError as error:
                result["results"][peer.name] = {"status": "absent", "reason": str(error)}
            except _FAILURES as error:
                result["results"][peer.name] = {"status": "failed", "reason": f"{type(error).__name__}: {error}"[:500]}
        if OURS not in entrants:
            return result | {"status": result["results"][OURS]["status"]}
        summaries = timed(entrants, settings)
        result["results"] = {
            name: summaries.get(name) or result["results"][name] for name in (OURS, *(p.name for p in case.peers))
        }
    bound = floor(case.work, settings.rates)
    if bound is not None:
        result["floor"] = {"seconds": bound.seconds, "bound": bound.bound}
        result["rates"] = {
            name: settings.rates[name] for name in [*case.work.compute, *["bytes"] * bool(case.work.bytes)]
        }
    result["targets"] = [reached(target, result, case.elements) for target in case.targets]
    return result


def enter(
    peer: Peer, case: Case, device: str, arrays: Arrays, picks: Picks, exact: Any, settings: Settings, stack: ExitStack
) -> Entrant:
    """A contestant, once its result is known to be right; LookupError if it is not here."""
    if peer.remote:
        return _enter_remote(peer, case, device, arrays, picks, exact, settings, stack)
    if find_spec(_IMPORTED.get(peer.package, peer.package)) is None:
        raise LookupError(f"{peer.package} is not installed")
    if peer.prepare is None:
        raise LookupError(f"{peer.name} has neither a call here nor one in another interpreter")
    call = peer.prepare(arrays)
    extra: dict[str, Any] = {}
    if device == "cuda":
        extra["bytes"] = _memory(call)
    begin = time.perf_counter()
    result = call()
    clock = CLOCKS[case.clock]
    block = _block(result, picks)
    estimate = time.perf_counter() - begin
    del result
    check(block, exact, case)
    if estimate < settings.plan.endless:
        estimate = clock(call, 1, False)
    return Entrant(lambda calls, warm: clock(call, calls, warm), estimate, extra)


def _enter_remote(
    peer: Peer, case: Case, device: str, arrays: Arrays, picks: Picks, exact: Any, settings: Settings, stack: ExitStack
) -> Entrant:
    command = settings.interpreters.get(peer.package)
    if command is None:
        raise LookupError(f"no interpreter was given for {peer.package}: --peer {peer.package}=PYTHON")
    remote = stack.enter_context(Remote(command))
    remote.load(arrays, device)
    version = remote.prepare(peer.remote, peer.options)
    block, seconds = remote.check(picks)
    check(block, exact, case)
    return Entrant(lambda calls, warm: remote.time(calls, case.clock, warm), seconds, {"version": version})


def check(block: Any, exact: Any, case: Case) -> None:
    """Assert that a block of a result is right to the accuracy of the case's type."""
    dtype = {"f32": "float32", "f64": "float64", "f16": "float16", "bf16": "bfloat16"}[case.problem.dtype]
    assert_close(block, exact, dtype=dtype, depth=case.problem.depth)


def _block(result: Any, picks: Picks) -> Any:
    if isinstance(result, torch.Tensor):
        rows = torch.tensor(picks.rows, device=result.device)
        columns = torch.tensor(picks.columns, device=result.device)
        return result.detach().index_select(0, rows).index_select(1, columns)
    return np.asarray(result)[picks.rows][:, picks.columns]


def _memory(call: Callable[[], Any]) -> int:
    """Bytes that a call took at most beyond its result, after one that may have compiled."""
    call()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = call()
    torch.cuda.synchronize()
    kept = result.nbytes if isinstance(result, torch.Tensor) else 0
    return max(0, torch.cuda.max_memory_allocated() - before - kept)


def timed(entrants: Mapping[str, Entrant], settings: Settings) -> dict[str, dict[str, Any]]:
    """Summary of each contestant, all of them measured in turns."""
    plan = settings.plan
    counts = {name: plan.samples(entrant.estimate) for name, entrant in entrants.items()}

    def sampler(entrant: Entrant) -> Sampler:
        calls = plan.calls(entrant.estimate)
        return lambda: entrant.sampler(calls, entrant.estimate < plan.long)

    samplers = {name: sampler(entrant) for name, entrant in entrants.items() if entrant.estimate <= plan.endless}
    samples = take_turns(samplers, counts, plan.pause, random.Random(settings.seed))
    samples = {name: samples.get(name) or [entrants[name].estimate] for name in entrants}
    return {
        name: {"status": "ok", **summarise(taken).as_row(), **entrants[name].extra} for name, taken in samples.items()
    }


def reached(target: Target, row: Row, elements: float) -> dict[str, Any]:
    """What was found where something was to be reached; ``met`` is None if it cannot be said here."""
    ours = row["results"][OURS]["median"]
    found: float | None = None
    machine = row["stamp"]["machine"]
    if target.kind == "seconds":
        found = ours
    elif target.kind == "faster":
        peer = row["results"].get(target.peer, {})
        found = peer["median"] / ours if "median" in peer else None
    elif target.kind == "rate":
        found = elements / ours
    elif target.kind == "floor":
        found = row["floor"]["seconds"] / ours if "floor" in row else None
    elif target.kind == "bytes":
        found = row["results"][OURS].get("bytes")
    here = machine.get("gpu", machine["cpu"])
    met: bool | None = None
    if found is not None and target.machine in here["model"]:
        met = found <= target.value if target.kind in ("seconds", "bytes") else found >= target.value
    return {"kind": target.kind, "value": target.value, "peer": target.peer, "found": found, "met": met}
