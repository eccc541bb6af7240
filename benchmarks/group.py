"""Measuring by several processes: each has a device, all of them begin together, and the first writes the rows."""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from kernmantle.errors import KernmantleError
from kernmantle.linalg.processes import Team, end_with_owner

from . import store
from .case import Probe, Target
from .run import OURS, blank, reached
from .timing import Plan, summarise, take_turns

TIMEOUT = timedelta(seconds=100)
_FAILURES = (KernmantleError, RuntimeError, MemoryError, ValueError, TypeError, ImportError)


@dataclass(frozen=True)
class Member:
    """One of the processes; ``alone`` is a group of it and nobody else."""

    rank: int
    size: int
    device: torch.device
    alone: Any

    def wait(self) -> None:
        """For the device and for the others."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()
            dist.barrier(device_ids=[self.device.index])
        else:
            dist.barrier()

    def share(self, n: int) -> slice:
        """Of n rows those that are here."""
        return slice(n * self.rank // self.size, n * (self.rank + 1) // self.size)

    def mesh(self, rows: int, columns: int) -> DeviceMesh:
        """All processes in rows and columns."""
        return _mesh(self.device.type, rows, columns)

    def all_gathered(self, value: Any) -> list[Any]:
        """A small Python value of each process."""
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value)
        return found


@lru_cache(maxsize=8)
def _mesh(device: str, rows: int, columns: int) -> DeviceMesh:
    return init_device_mesh(device, (rows, columns), mesh_dim_names=("rows", "columns"))


@dataclass(frozen=True)
class Entrant:
    """A call that all processes make together, and what its result is compared with: the error, or AssertionError.

    With ``once`` the call that is checked may be the only sample: nothing is loaded or compiled in it.
    """

    call: Callable[[], Any]
    check: Callable[[Any], float]
    once: bool = False


@dataclass(frozen=True)
class Shared:
    """A row: ``prepare`` gives the contestants, ours first, which then are checked and timed in turns."""

    name: str
    title: str
    prepare: Callable[[Member], Mapping[str, Entrant]]
    targets: tuple[Target, ...] = ()

    def probe(self, size: int, device: str) -> Probe:
        """What a row is made of."""
        name = f"{self.name}, {size} {'GPUs' if device == 'cuda' else 'processes'}"
        return Probe(name, self.title, f"{size} processes, wall: {self.title}", self.targets)


@dataclass
class Timed:
    """Samples and what else is known of one contestant."""

    samples: list[float]
    extra: dict[str, Any] = field(default_factory=dict[str, Any])


def _agreed(member: Member, why: str) -> None:
    """AssertionError on every process where one has a reason."""
    reasons = [reason for reason in member.all_gathered(why) if reason]
    if reasons:
        raise AssertionError(reasons[0])


def _first(member: Member, entrant: Entrant) -> Timed:
    """A call whose result is checked, with its seconds and the most memory it took."""
    on_gpu = member.device.type == "cuda"
    if on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    seconds, result = _sample(member, entrant.call, 1)
    extra: dict[str, Any] = {"peak": torch.cuda.max_memory_allocated()} if on_gpu else {}
    why, error = "", 0.0
    try:
        error = entrant.check(result)
    except AssertionError as caught:
        why = str(caught) or "wrong"
    _agreed(member, why)
    return Timed([max(member.all_gathered(seconds))], extra | {"error": max(member.all_gathered(error))})


def _sample(member: Member, call: Callable[[], Any], calls: int) -> tuple[float, Any]:
    member.wait()
    begin = time.perf_counter()
    result = call()
    for _ in range(calls - 1):
        result = call()
    member.wait()
    return (time.perf_counter() - begin) / calls, result


def timed(member: Member, entrants: Mapping[str, Entrant], plan: Plan) -> dict[str, Timed]:
    """Every contestant: checked, then measured in turns."""
    found = {name: _first(member, entrant) for name, entrant in entrants.items()}
    estimates: dict[str, float] = {}
    for name, entrant in entrants.items():
        if not entrant.once or found[name].samples[0] < plan.endless:
            estimates[name] = max(member.all_gathered(_sample(member, entrant.call, 1)[0]))

    def sampler(name: str) -> Callable[[], float]:
        calls = plan.calls(estimates[name])
        return lambda: _sample(member, entrants[name].call, calls)[0]

    counts = {name: plan.samples(seconds) for name, seconds in estimates.items()}
    taken = take_turns({name: sampler(name) for name in estimates}, counts, plan.pause, random.Random(0))
    for name, samples in taken.items():
        found[name].samples = samples
    return found


def measure(member: Member, case: Shared, stamp: Mapping[str, Any], plan: Plan) -> store.Row:
    """The row of a case, as each process sees it."""
    row = blank(case.probe(member.size, member.device.type), "many", stamp)
    try:
        with torch.no_grad():
            found = timed(member, case.prepare(member), plan)
    except AssertionError as error:
        return row | {"status": "wrong", "results": {OURS: {"status": "wrong", "reason": str(error)[:500]}}}
    except _FAILURES as error:
        reason = f"process {member.rank}: {type(error).__name__}: {error}"[:500]
        return row | {"status": "failed", "results": {OURS: {"status": "failed", "reason": reason}}}
    row["results"] = {
        name: {"status": "ok", **summarise(each.samples).as_row(), **each.extra} for name, each in found.items()
    }
    row["targets"] = [reached(target, row, 0.0) for target in case.targets]
    return row


def work(
    member: Member, cases: Sequence[Shared], path: Path, stamp: Mapping[str, Any], plan: Plan, deadline: float
) -> None:
    """Measure cases until a moment of the monotonic clock; the first process writes each row when it is done."""
    for case in cases:
        if max(member.all_gathered(time.monotonic())) > deadline:
            return
        row = measure(member, case, stamp, plan)
        if member.rank == 0:
            store.append(path, row)
        if member.device.type == "cuda":
            torch.cuda.empty_cache()


@contextmanager
def joined(folder: Path, rank: int, size: int, device: str) -> Any:
    """Make this process one of a group."""
    place = torch.device("cuda", rank) if device == "cuda" else torch.device("cpu")
    if device == "cuda":
        torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl" if device == "cuda" else "gloo", init_method=f"file://{folder / 'store'}", rank=rank,
        world_size=size, timeout=TIMEOUT, device_id=place if device == "cuda" else None,
    )  # fmt: skip
    groups = [dist.new_group([other]) for other in range(size)]
    try:
        yield Member(rank, size, place, groups[rank])
    finally:
        dist.destroy_process_group()


def start(
    module: str, path: Path, size: int, stamp: Mapping[str, Any], names: Sequence[str], sizes: Any, plan: Plan,
    budget: float,
) -> None:  # fmt: skip
    """Run the cases of a module in processes of their own; WorkerError if one of them dies."""
    with tempfile.TemporaryDirectory(prefix="kernmantle-") as folder:
        task = {
            "folder": folder, "size": size, "stamp": stamp, "output": str(path.resolve()), "names": list(names),
            "sizes": asdict(sizes), "plan": asdict(plan), "budget": min(budget, 1e9),
        }  # fmt: skip
        commands = [[sys.executable, "-m", module, json.dumps({**task, "rank": rank})] for rank in range(size)]
        with Team(commands) as team:
            team.wait()


def serve(task: Mapping[str, Any], cases: Sequence[Shared]) -> None:
    """What each of those processes does."""
    end_with_owner()
    device = "cuda" if "gpu" in task["stamp"]["machine"] else "cpu"
    if device == "cpu":
        torch.set_num_threads(1)
    wanted = [case for case in cases if case.name in task["names"]]
    with joined(Path(task["folder"]), task["rank"], task["size"], device) as member:
        end = time.monotonic() + task["budget"]
        work(member, wanted, Path(task["output"]), task["stamp"], Plan(**task["plan"]), end)
