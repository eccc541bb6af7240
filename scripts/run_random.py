"""Cases of a randomised test for a given time: ``python scripts/run_random.py programs 0 10000 --seconds 180``.

The cases ``FIRST .. FIRST + COUNT - 1`` in several processes of one thread, which take the next case when they are done
with one, until the cases or the time are used up. The last lines say which cases were done, how many were wrong, and
how the numbers that they return are distributed: orders of derivatives of a program, checks of a state. The exit status
is 1 if a case was wrong, did not end, or took its process with it. Run it in the root of a checkout with
``PYTHONPATH=src:.``.
"""

from __future__ import annotations

import argparse
import collections
import json
import multiprocessing
import os
import queue
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

DRIVERS = {"programs": "tests.random_programs", "states": "tests.integration.test_state"}
MOST_SHOWN = 50
"""Wrong cases that the last lines list."""
AFTER = 15.0
"""Seconds after the end of the time until cases that run still are called hung."""


def _work(driver: str, last: int, end: float, following: Any, results: Any) -> None:
    run_case = import_module(DRIVERS[driver]).run_case
    import_module("torch").set_num_threads(1)
    while time.time() < end:
        with following.get_lock():
            case = following.value
            following.value += case < last
        if case >= last:
            break
        row: dict[str, Any] = {"case": case, "found": None, "error": None}
        try:
            row["found"] = run_case(case)
        except Exception as error:  # noqa: BLE001, all cases are tried
            row["error"] = f"{type(error).__name__}: {error}"
        results.put(row)
    results.put(None)


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _collected(workers: Any, again: Any, results: Any, end: float, output: Any) -> dict[int, dict[str, Any]]:
    """Return what the processes have found when all have ended, or the time is over; write it down as it comes.

    ``again`` starts another process for one that has died.
    """
    done: dict[int, dict[str, Any]] = {}
    ended, said = 0, time.time()
    while ended < len(workers) and time.time() < end + AFTER:
        try:
            row = results.get(timeout=0.5)
        except queue.Empty:
            for place, worker in enumerate(workers):
                if worker.exitcode not in (None, 0):
                    _say(f"DIED {worker.name}, exit code {worker.exitcode}")
                    workers[place] = again()
            continue
        if row is None:
            ended += 1
            continue
        done[row["case"]] = row
        output.write(json.dumps(row) + "\n")
        if row["error"]:
            _say(f"WRONG {row['case']}: {row['error']}")
        if time.time() > said + 15:
            said = time.time()
            _say(f"{len(done)} cases")
    return done


def main() -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("driver", choices=DRIVERS)
    parser.add_argument("first", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--output", type=Path, help="a file of JSON lines, one for each case")
    given = parser.parse_args()
    end, last = time.time() + given.seconds, given.first + given.count
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = "1"
    spawn = multiprocessing.get_context("spawn")
    following, results = spawn.Value("q", given.first), spawn.Queue()

    def started() -> Any:
        worker = spawn.Process(target=_work, args=(given.driver, last, end, following, results), daemon=True)
        worker.start()
        return worker

    workers = [started() for _ in range(given.processes)]
    with (given.output or Path(os.devnull)).open("w", buffering=1) as output:
        done = _collected(workers, started, results, end, output)
    stop = following.value
    missing = sorted(set(range(given.first, stop)) - set(done))
    for worker in workers:
        worker.kill()
    wrong = sorted(case for case, row in done.items() if row["error"])
    found = collections.Counter(row["found"] for row in done.values() if not row["error"])
    _say(f"{given.driver} {given.first} to {stop - 1}: {len(done)} ran, {len(wrong)} wrong {wrong[:MOST_SHOWN]}")
    _say(f"returned: {dict(sorted(found.items()))}, in all {sum(key * times for key, times in found.items())}")
    _say(f"did not end: {missing}")
    _say(f"{given.processes} processes, {time.time() - end + given.seconds:.0f} s")
    return 1 if wrong or missing else 0


if __name__ == "__main__":
    sys.exit(main())
