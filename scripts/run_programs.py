"""Random contractions by brute force for a given time: ``python scripts/run_programs.py FIRST COUNT --seconds 180``.

The programs of seeds ``FIRST .. FIRST + COUNT - 1`` of ``tests/random_programs.py`` in several processes of one thread,
which take the next seed when they are done with one, until the seeds or the time are used up. The last lines say which
seeds were done and how many programs were wrong, and how many of them had gradients and second gradients. The exit
status is 1 if a program was wrong, did not end, or took its process with it. Run it in the root of a checkout with
``PYTHONPATH=src:.``.
"""

from __future__ import annotations

import argparse
import collections
import json
import multiprocessing
import os
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

AFTER = 15.0
"""Seconds after the end of the time until programs that run still are called hung."""


def _work(place: int, last: int, end: float, following: Any, running: Any, results: Any) -> None:
    programs = import_module("tests.random_programs")
    import_module("torch").set_num_threads(1)
    while time.time() < end:
        with following.get_lock():
            seed = following.value
            following.value += seed < last
        if seed >= last:
            break
        running[place] = seed
        case = programs.generate(seed)
        error = None
        try:
            orders = programs.check(case)
        except Exception as found:  # noqa: BLE001, all seeds are tried
            orders, error = None, f"{type(found).__name__}: {found}\n    {case}"
        results.put({"seed": seed, "orders": orders, "error": error})
        running[place] = -1
    results.put(None)


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("first", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--output", type=Path, help="a file of JSON lines, one for each program")
    given = parser.parse_args()
    end = time.time() + given.seconds
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = "1"
    spawn = multiprocessing.get_context("spawn")
    following, results = spawn.Value("q", given.first), spawn.Queue()
    running = spawn.Array("q", [-1] * given.processes, lock=False)
    last = given.first + given.count
    workers = [
        spawn.Process(target=_work, args=(place, last, end, following, running, results), daemon=True)
        for place in range(given.processes)
    ]
    for worker in workers:
        worker.start()
    done: dict[int, dict[str, Any]] = {}
    ended, said = 0, time.time()
    while ended < len(workers) and time.time() < end + AFTER:
        try:
            row = results.get(timeout=0.5)
        except Exception:  # noqa: BLE001, an empty queue: processes may have died
            if not any(worker.is_alive() for worker in workers):
                break
            continue
        if row is None:
            ended += 1
            continue
        done[row["seed"]] = row
        if row["error"]:
            _say(f"WRONG seed {row['seed']}: {row['error']}")
        if time.time() > said + 15:
            said = time.time()
            _say(f"{len(done)} programs, next seed {following.value}")
    stop = following.value
    missing = sorted(set(range(given.first, stop)) - set(done))
    if given.output:
        given.output.write_text("".join(json.dumps(done[seed]) + "\n" for seed in sorted(done)))
    wrong = [seed for seed, row in done.items() if row["error"]]
    orders = collections.Counter(row["orders"] for row in done.values())
    _say(f"seeds {given.first} to {stop - 1}: {len(done)} programs ran, {len(wrong)} wrong {sorted(wrong)}")
    _say(f"with gradients of first and second order {orders[2]}, without {orders[0]}")
    died = sum(worker.exitcode not in (None, 0) for worker in workers)
    _say(f"seeds that did not end: {missing}; processes that died: {died}")
    _say(f"{given.processes} processes, {time.time() - end + given.seconds:.0f} s")
    for worker in workers:
        worker.kill()
    return 1 if wrong or missing else 0


if __name__ == "__main__":
    sys.exit(main())
