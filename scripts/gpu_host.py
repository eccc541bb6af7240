"""What a warm call of the host suite does: Python functions and files it passes, launches, and time on the GPU.

``python scripts/gpu_host.py [NAME ...]`` from the root of a checkout; a NAME is a part of the name of a case.
"""

# ruff: noqa: T201
from __future__ import annotations

import cProfile
import io
import pstats
import sys
import time
from collections.abc import Callable

import torch

from benchmarks import host
from benchmarks.calls import passed
from benchmarks.case import Case

CALLS = 50


def _launches(call: Callable[[], object]) -> tuple[float, float, list[str]]:
    """Launches and GPU seconds of a call, and names of what ran."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        for _ in range(3):
            call()
        torch.cuda.synchronize()
    ran = [event for event in profile.events() or [] if event.device_type.name == "CUDA"]
    seconds = sum(event.device_time_total for event in ran) * 1e-6 / 3
    own: dict[str, list[float]] = {}
    for event in ran:
        own.setdefault(event.name[:70], []).append(event.device_time_total)
    names = [f"{sum(taken) / 3:8.1f} us {len(taken) / 3:4.1f} x {name}" for name, taken in own.items()]
    return len(ran) / 3, seconds, names


def _timed(call: Callable[[], object]) -> tuple[float, float]:
    """Median seconds of a call by the clock on the wall, and until calls return."""
    found: list[tuple[float, float]] = []
    for _ in range(5):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(CALLS):
            call()
        until_return = time.perf_counter() - begin
        torch.cuda.synchronize()
        found.append(((time.perf_counter() - begin) / CALLS, until_return / CALLS))
    return sorted(found)[2]


def _profile(call: Callable[[], object]) -> str:
    profile = cProfile.Profile()
    profile.enable()
    for _ in range(CALLS):
        call()
    profile.disable()
    torch.cuda.synchronize()
    text = io.StringIO()
    pstats.Stats(profile, stream=text).sort_stats("tottime").print_stats(22)
    lines = [line for line in text.getvalue().splitlines() if line.strip()][3:]
    return "\n".join(line.replace(f"{sys.prefix}/lib/", "")[:150] for line in lines)


def show(case: Case) -> None:
    """Print a case's own call and those of its peers."""
    given = case.problem.inputs("cuda")
    for name, prepare in (("kernmantle", case.ours), *((peer.name, peer.prepare) for peer in case.peers)):
        assert prepare is not None
        call = prepare(given)
        for _ in range(20):
            call()
        wall, until_return = _timed(call)
        with torch.autograd.set_multithreading_enabled(False):  # so that what backward runs in Python is seen
            alone, _ = _timed(call)
            functions = passed(call)
            launches, busy, names = _launches(call)
            files = {own.file for own in functions}
            print(
                f"== {case.name} | {name}: {wall * 1e6:.1f} us, {until_return * 1e6:.1f} to return, "
                f"{alone * 1e6:.1f} in one thread; {launches:.1f} on the GPU, {busy * 1e6:.1f} us; "
                f"{len(functions)} functions in {len(files)} files",
                flush=True,
            )
            print(*names, sep="\n", flush=True)
            if name == "kernmantle":
                print(_profile(call), flush=True)
                print(*(f"{own.calls:4d} x {own.file}:{own.line} {own.name}" for own in functions), sep="\n")


def main(parts: list[str]) -> None:
    """Show every case whose name has one of the parts, or all that are eager."""
    cases = [case for case in host.suite("cuda").rows if isinstance(case, Case) and case.clock == "wall"]
    for part in parts or [""]:
        for case in cases:
            if part in case.name and ("compiled" in case.name) == ("compiled" in part):
                try:
                    show(case)
                except (RuntimeError, ValueError, TypeError, AssertionError) as error:
                    print(f"== {case.name} failed: {error!r}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
