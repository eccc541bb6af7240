"""One case from inputs to a row: every result is compared with the oracle before anything is timed."""

from __future__ import annotations

import datetime as dt
import math
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch

from kernmantle.errors import KernmantleError
from kernmantle.testing import assert_close
from kernmantle.testing.tolerances import DEVIATIONS

from .case import Arrays, Case, Peer, Picks, Probe, Suite, Target
from .energy import joules
from .remote import Remotes
from .startup import answer
from .store import Row
from .timing import CLOCKS, Plan, Sampler, summarise, take_turns
from .work import floor

OURS = "kernmantle"
_FAILURES = (KernmantleError, RuntimeError, MemoryError, ValueError, TypeError, ImportError, ArithmeticError)
_IMPORTED = {"scikit-learn": "sklearn", "keops": "pykeops", "flash-sinkhorn": "flash_sinkhorn"}


@dataclass(frozen=True)
class Settings:
    """How to measure, and the processes of the peers that need an interpreter of their own.

    ``energy``: for how many seconds each contestant is run to see what energy the GPU takes for it.
    """

    plan: Plan = field(default_factory=Plan)
    remotes: Remotes = field(default_factory=Remotes)
    rates: Mapping[str, float] = field(default_factory=dict[str, float])
    seed: int = 0
    energy: float = 0.0


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


def now() -> str:
    """The time a row carries."""
    return dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds")


def blank(row: Case | Probe, suite: str, stamp: Mapping[str, Any]) -> Row:
    """A row without results."""
    empty: Row = {"results": {}, "targets": [], "status": "ok"}
    return {
        "case": row.name,
        "title": row.title,
        "suite": suite,
        "definition": definition(row),
        "stamp": dict(stamp),
        "date": now(),
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
    picks = Picks.of(*case.problem.shape, seed=settings.seed, most=case.problem.picked)
    read = case.problem.part(arrays, picks)
    exact = case.problem.exact({name: value.detach().double().cpu().numpy() for name, value in read.items()}, picks)
    entrants: dict[str, Entrant] = {}
    for peer in (Peer(OURS, case.ours), *case.peers):
        try:
            entrants[peer.name] = enter(peer, case, suite.device, arrays, picks, exact, settings)
        except AssertionError as error:
            result["results"][peer.name] = {"status": "wrong", "reason": str(error)}
        except LookupError as error:
            result["results"][peer.name] = {"status": "absent", "reason": str(error)}
        except _FAILURES as error:
            settings.remotes.end(peer.name)
            result["results"][peer.name] = {"status": "failed", "reason": f"{type(error).__name__}: {error}"[:500]}
    if OURS not in entrants:
        return result | {"status": result["results"][OURS]["status"]}
    summaries = timed(entrants, settings)
    if settings.energy and suite.device == "cuda":
        for name, entrant in entrants.items():
            taken = joules(lambda calls, own=entrant: own.sampler(calls, False), entrant.estimate, settings.energy)
            summaries[name] |= {} if taken is None else {"joules": taken}
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


def enter(peer: Peer, case: Case, device: str, arrays: Arrays, picks: Picks, exact: Any, settings: Settings) -> Entrant:
    """A contestant, once its result is known to be right; LookupError if it is not here."""
    case = case if peer.accuracy is None else replace(case, accuracy=peer.accuracy)
    if peer.remote:
        return _enter_remote(peer, case, device, arrays, picks, exact, settings)
    if find_spec(_IMPORTED.get(peer.package, peer.package)) is None:
        raise LookupError(f"{peer.package} is not installed")
    if peer.prepare is None:
        raise LookupError(f"{peer.name} has neither a call here nor one in another interpreter")
    call = peer.prepare(arrays)
    block, estimate, beyond = _first(call, device, picks)
    extra: dict[str, Any] = {"error": check(block, exact, case)}
    clock = CLOCKS[case.clock]
    if estimate < settings.plan.endless or peer.compiles or peer.name == OURS:  # the first call of ours compiles, too
        if device == "cuda":
            beyond = _first(call, device, picks)[2]
        estimate = clock(call, 1, False)
    if device == "cuda":
        extra["bytes"] = beyond
    return Entrant(lambda calls, warm: clock(call, calls, warm), estimate, extra)


def _enter_remote(
    peer: Peer, case: Case, device: str, arrays: Arrays, picks: Picks, exact: Any, settings: Settings
) -> Entrant:
    remote = settings.remotes.of(peer.name, peer.package)
    if device == "cuda":
        torch.cuda.empty_cache()
    remote.load(arrays, device)
    version = remote.prepare(peer.remote, peer.options)
    block, seconds, taken = remote.check(picks)
    extra = {"version": version, "error": check(block, exact, case), **taken}
    return Entrant(lambda calls, warm: remote.time(calls, case.clock, warm), seconds, extra)


def check(block: Any, exact: Any, case: Case) -> float:
    """Largest relative error of a block of a result, asserted to be within that of the case or else of its type."""
    dtype = {"f32": "float32", "f64": "float64", "f16": "float16", "bf16": "bfloat16"}[case.problem.dtype]
    if case.accuracy is None:
        typical = DEVIATIONS * math.sqrt(case.roundings) * float(np.sqrt(np.mean(np.square(exact))))
        magnitude = typical if case.roundings else None
        assert_close(block, exact, dtype=dtype, depth=case.problem.depth, magnitude=magnitude)
    found = block.double().cpu().numpy() if isinstance(block, torch.Tensor) else np.asarray(block, np.float64)
    some = np.isfinite(exact) & (exact != 0)
    error = float((np.abs(found - exact)[some] / np.abs(exact[some])).max(initial=0.0))
    if case.accuracy is not None and not error <= case.accuracy:
        raise AssertionError(f"relative error {error:.3g} where {case.accuracy:.3g} was promised")
    return error


def _block(result: Any, picks: Picks) -> Any:
    if isinstance(result, torch.Tensor):
        rows = torch.tensor(picks.rows, device=result.device)
        columns = torch.tensor(picks.columns, device=result.device)
        return result.detach().index_select(0, rows).index_select(1, columns)
    return np.asarray(result)[picks.rows][:, picks.columns]


def _first(call: Callable[[], Any], device: str, picks: Picks) -> tuple[Any, float, int]:
    """A call that is not timed with others: block of its result, its seconds, the bytes it took beyond the result."""
    on_gpu = device == "cuda"
    before = 0
    if on_gpu:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    begin = time.perf_counter()
    result = call()
    if on_gpu:
        torch.cuda.synchronize()
    seconds = time.perf_counter() - begin
    kept = result.nbytes if isinstance(result, torch.Tensor) else 0
    if on_gpu:  # a result that is written to ``out`` was there before
        kept = min(kept, max(0, torch.cuda.memory_allocated() - before))
    beyond = max(0, torch.cuda.max_memory_allocated() - before - kept) if on_gpu else 0
    return _block(result, picks), seconds, beyond


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
