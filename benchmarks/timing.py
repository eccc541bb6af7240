"""The clock: contestants take turns in one process, in a new order every round, with a pause between."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

import torch

Call = Callable[[], object]
Sampler = Callable[[], float]


@dataclass(frozen=True)
class Summary:
    """Order statistics of samples, each in seconds a call."""

    median: float
    p20: float
    p80: float
    minimum: float
    samples: int

    def as_row(self) -> dict[str, float]:
        """For a row of results."""
        return asdict(self)


@dataclass(frozen=True)
class Plan:
    """How long to measure.

    A sample repeats short calls until it lasts ``sample`` seconds. A contestant gets as many samples as fit into
    ``budget`` seconds, from ``least`` to ``most``; one whose call takes longer than ``endless`` seconds gets one.
    Calls shorter than ``long`` seconds are warmed up before every sample.
    """

    budget: float = 3.0
    least: int = 5
    most: int = 25
    sample: float = 1e-2
    endless: float = 8.0
    long: float = 0.5
    pause: float = 0.05

    def samples(self, seconds: float) -> int:
        """Samples for a call of that length."""
        if seconds > self.endless:
            return 1
        return max(self.least, min(self.most, int(self.budget / max(seconds, self.sample))))

    def calls(self, seconds: float) -> int:
        """Calls in a sample."""
        return max(1, math.ceil(self.sample / max(seconds, 1e-9)))


def quantile(ordered: Sequence[float], share: float) -> float:
    """Value below which a share of the ordered samples lies, interpolated."""
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def summarise(samples: Sequence[float]) -> Summary:
    """Order statistics of at least one sample."""
    ordered = sorted(samples)
    return Summary(quantile(ordered, 0.5), quantile(ordered, 0.2), quantile(ordered, 0.8), ordered[0], len(ordered))


def wall(call: Call, calls: int, warm: bool = True) -> float:
    """Seconds a call by the clock on the wall, until the GPU is done where there is one."""
    wait = torch.cuda.synchronize if torch.cuda.is_initialized() else None
    if warm:
        call()
    if wait is not None:
        wait()
    begin = time.perf_counter()
    for _ in range(calls):
        call()
    if wait is not None:
        wait()
    return (time.perf_counter() - begin) / calls


def host(call: Call, calls: int, warm: bool = True) -> float:
    """Seconds a call until the last of them has returned, which need not have been run by then."""
    if warm:
        call()
    wait = torch.cuda.synchronize if torch.cuda.is_initialized() else None
    if wait is not None:
        wait()
    begin = time.perf_counter()
    for _ in range(calls):
        call()
    taken = (time.perf_counter() - begin) / calls
    if wait is not None:
        wait()
    return taken


def events(call: Call, calls: int, warm: bool = True) -> float:
    """Seconds a call on the GPU's own clock."""
    if warm:
        call()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(calls):
        call()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) * 1e-3 / calls


CLOCKS: dict[str, Callable[[Call, int, bool], float]] = {"wall": wall, "host": host, "events": events}


def take_turns(
    samplers: Mapping[str, Sampler], counts: Mapping[str, int], pause: float, order: random.Random
) -> dict[str, list[float]]:
    """Samples of every contestant; one with fewer samples than others has them spread over the rounds."""
    taken: dict[str, list[float]] = {name: [] for name in samplers}
    rounds = max((counts[name] for name in samplers), default=0)
    for turn in range(1, rounds + 1):
        due = [name for name in samplers if turn * counts[name] // rounds > len(taken[name])]
        order.shuffle(due)
        for name in due:
            time.sleep(pause)
            taken[name].append(samplers[name]())
    return taken
