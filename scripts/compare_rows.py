"""Time our calls of the tables beside their committed rows, and slower ones in turns with another checkout.

``python scripts/compare_rows.py BASE --device cuda --output rows.jsonl`` from the root of a checkout. Processes plan,
compile and bind calls beside one another; one at a time has the GPU to time a call as its suite does, by fewer samples.
A call that takes more than ``--limit`` of its row's, by medians and by the least, is timed again in turns with BASE, if
BASE has it. Calls are in a random order, so that whatever the budget reaches is a fair sample; those in ``--output``
and in ``--done`` are left out. With ``--direct`` every call is timed in turns at once. On a CPU each pair of processes
has cores of its own, and times are of the processor, in one thread, so that other work on the machine counts less.
Nothing is compared with an oracle here: the suites do that.
"""

# ruff: noqa: T201
from __future__ import annotations

import argparse
import gc
import json
import os
import queue
import random
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SAMPLES, TURNS, SECONDS = 5, 4, 5e-3
SHORT, MANY = 2e-4, 12
"""Seconds of a call below which the host is heard, and the turns it is timed in."""
WARM, LONG, ENDLESS = 0.05, 0.5, 2.0
"""Seconds of a call from which it is not warmed up before each sample, is timed once, and in one turn."""
PLANNED = "kronsparse"
"""The suite whose calls are bound while others are timed: they run for milliseconds, once, on what memory holds."""
MEMORY = 24 << 30
"""Bytes of x and of results of the calls that memory holds: they take up to four times as much."""
LATE = ("compiled", "overhead", "several GPUs")


def benchmarks() -> Any:
    """Return the package of suites of a checkout, by its name of today or the one before."""
    try:
        return import_module("benchmarks.__main__")
    except ImportError:
        return import_module("kernmantle.bench.__main__")


def cases(wanted: Callable[[str], bool]) -> dict[str, Any]:
    """Return the cases of suites by "suite: case"."""
    package, found = benchmarks(), dict[str, Any]()
    for table in (package.SUITES, package.FULL):
        for name, make in table.items():
            if wanted(name):
                rows: Any = make()
                found |= {f"{name}: {row.name}": row for row in rows.rows if hasattr(row, "problem")}
    return found


def drawn(torch: Any, normal: Callable[..., Any]) -> Callable[..., Any]:
    """Return what draws normal numbers on the device, which takes a CPU up to seconds, and keeps none."""

    def draw(rows: int, columns: int, dtype: str, device: str, seed: int) -> Any:
        if device != "cuda":
            return normal(rows, columns, dtype, device, seed)
        source = torch.Generator(device).manual_seed(seed)
        found = torch.randn(rows, columns, generator=source, device=device)
        return found.to(import_module(f"{benchmarks().__package__}.case").DTYPES[dtype])

    return draw


def by_processor(call: Callable[[], object], calls: int, warm: bool = True) -> float:
    """Return seconds a call that all threads of the process take of the processor."""
    if warm:
        call()
    begin = time.process_time()
    for _ in range(calls):
        call()
    return (time.process_time() - begin) / calls


class Caller:
    """Makes calls of cases ready, and times them."""

    def __init__(self, device: str, suites: list[str]) -> None:
        self.torch: Any = import_module("torch")
        self.device, self.cases = device, cases(lambda name: name in suites)
        package = benchmarks().__package__
        self.clocks = import_module(f"{package}.timing").CLOCKS
        if device == "cpu":
            self.torch.set_num_threads(1)
            self.clocks = dict.fromkeys(self.clocks, by_processor)
        self.suite: Any = import_module(f"{package}.kronsparse")
        self.ready: tuple[str, Any] = ("", None)
        normal = import_module(f"{package}.problems").normal
        draw = drawn(self.torch, normal)
        for module in [module for name, module in sys.modules.items() if name.startswith(f"{package}.")]:
            if getattr(module, "normal", None) is normal:
                module.normal = draw  # type: ignore[attr-defined]
        gc.collect()
        gc.freeze()
        gc.disable()  # a graph that is collected while another one is captured ends that capture

    def file(self) -> str:
        """Return where the library is."""
        return str(import_module("kernmantle").__file__)

    def definitions(self) -> dict[str, tuple[str, float]]:
        """Return what makes a row comparable, and the bytes of x and of the result."""
        define = import_module(f"{benchmarks().__package__}.run").definition
        return {name: (define(case), case.work.bytes or MEMORY / 8) for name, case in self.cases.items()}

    def wait(self) -> None:
        """Wait for the device."""
        if self.device == "cuda":
            self.torch.cuda.synchronize()

    def drop(self) -> None:
        """Give memory back to other processes: that of modules, which hold themselves, too."""
        self.ready = ("", None)
        gc.collect()
        if self.device == "cuda" and self.torch.cuda.memory_reserved() > 1 << 30:
            self.torch.cuda.empty_cache()

    def make(self, name: str) -> Any:
        """Return the call of a case, made once."""
        if self.ready[0] != name:
            self.drop()
            call = self.cases[name].ours(self.inputs(name))
            call()
            self.wait()
            self.ready = name, call
        return self.ready[1]

    def inputs(self, name: str) -> Any:
        """Return the inputs of a case without the values of torch that its result is checked by."""
        solve = self.torch.linalg.eigvalsh
        self.torch.linalg.eigvalsh = lambda a: a.diagonal().clone()
        try:
            return self.cases[name].problem.inputs(self.device)
        finally:
            self.torch.linalg.eigvalsh = solve

    def compile(self, name: str) -> None:
        """Run a call once."""
        self.make(name)
        self.drop()

    def plan(self, name: str) -> None:
        """Plan, compile and bind a product: it runs once, on what memory holds."""
        case = self.cases[name]
        if case.peers[0].name == "dense":  # of a layer, whose gradients make arrays of their own
            self.compile(name)
            return
        dtype = import_module(f"{benchmarks().__package__}.case").DTYPES[case.problem.dtype]
        torch, suite = self.torch, self.suite
        randn, graph = torch.randn, suite.graph

        def empty(*shape: Any, device: Any = None, **_: Any) -> Any:
            return torch.empty(*shape, device=device, dtype=dtype)

        torch.randn, suite.graph = empty, lambda call, _: call
        try:
            case.ours(case.problem.inputs(self.device))()
            self.wait()
        finally:
            torch.randn, suite.graph = randn, graph
        self.drop()

    def time(self, name: str, seconds: float, samples: int) -> list[float]:
        """Return seconds a call of samples."""
        call, clock = self.make(name), self.clocks[self.cases[name].clock]
        count = max(1, -(-SECONDS // max(seconds, 1e-7)))
        return [clock(call, int(count), seconds < WARM) for _ in range(samples)]


def work(device: str, suites: list[str]) -> None:
    """Answer on standard output what is asked for on standard input: a method of a Caller and its arguments."""
    answers, sys.stdout = sys.stdout, sys.stderr
    caller = Caller(device, suites)
    for line in sys.stdin:
        method, *arguments = json.loads(line)
        try:
            found: Any = getattr(caller, method)(*arguments)
        except Exception as error:  # noqa: BLE001, which is reported
            caller.drop()
            found = {"error": f"{type(error).__name__}: {error}"[:300]}
        answers.write(json.dumps(found) + "\n")
        answers.flush()


class Worker:
    """A process of a checkout that answers."""

    def __init__(self, tree: Path, options: argparse.Namespace, suites: list[str], cores: str = "") -> None:
        before = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
        others = [each for each in before if not Path(each).resolve().is_relative_to(ROOT)]
        path = os.pathsep.join([str(tree / "src"), str(tree), *others])
        self.command = ["taskset", "-c", cores] * bool(cores)
        self.command += [sys.executable, __file__, "", "--worker", json.dumps(suites), "--device", options.device]
        self.tree, self.environment = tree, os.environ | {"PYTHONPATH": path}
        self.process = self._started()

    def _started(self) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        return subprocess.Popen(self.command, env=self.environment, text=True, stdin=pipe, stdout=pipe)

    def check(self) -> None:
        """AssertionError unless the library is that of the checkout."""
        file = self.ask("file")
        assert Path(file).is_relative_to(self.tree), f"{self.tree} is not what was imported, but {file}"

    def ask(self, method: str, *arguments: Any) -> Any:
        """Return the answer; RuntimeError if it is an error or the process ended."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps([method, *arguments]) + "\n")
            self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:  # memory ran out, say
            self.process = self._started()
        found = json.loads(line) if line else {"error": "the process ended"}
        if isinstance(found, dict) and "error" in found:
            raise RuntimeError(found["error"])
        return found


class Memory:
    """Memory of the device that calls share while they are bound."""

    def __init__(self, most: float) -> None:
        self.most = self.free = most
        self.changed = threading.Condition()

    @contextmanager
    def taken(self, size: float) -> Generator[None]:
        """Wait for so many bytes, or for all."""
        size = min(size, self.most)
        with self.changed:
            self.changed.wait_for(lambda: self.free >= size)
            self.free -= size
        try:
            yield
        finally:
            with self.changed:
                self.free += size
                self.changed.notify_all()


class Comparison:
    """Rows to be timed, and what was found."""

    def __init__(
        self, options: argparse.Namespace, rows: Mapping[str, tuple[float, float]], sizes: Mapping[str, float],
        begin: float,
    ) -> None:  # fmt: skip
        self.options, self.sizes, self.memory = options, sizes, Memory(MEMORY)
        self.rows, self.least = ({name: row[number] for name, row in rows.items()} for number in (0, 1))
        self.device, self.writing = threading.Lock(), threading.Lock()
        self.begin, self.end = begin, begin + options.budget
        self.many: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.others: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.starved: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.slower: queue.PriorityQueue[tuple[float, str]] = queue.PriorityQueue()
        self.ratios: list[float] = []
        self.counts: Counter[tuple[str, str]] = Counter()
        self.planned, self.first, self.ended = 0, threading.Event(), threading.Event()

    def write(self, name: str, counted: str = "", **found: Any) -> None:
        """Write a row of the comparison, and count it."""
        with self.writing, self.options.output.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"case": name, "row": self.rows[name], **found}) + "\n")
            if counted:
                self.counts[name.partition(":")[0], counted] += 1

    def run(self, worker: Worker) -> None:
        """Plan and time cases until the budget ends."""
        worker.check()
        ahead = list[str]()
        with suppress(queue.Empty):
            while time.monotonic() < self.begin + self.options.compile:
                ahead.append(self.others.get_nowait())
                if self.rows[ahead[-1]] < LONG:
                    self._plan(worker, ahead[-1])
        with self.writing:
            self.planned += 1
            if self.planned == self.options.processes:
                print(f"compiled after {time.monotonic() - self.begin:.0f} s", flush=True)
                self.first.set()
        self.first.wait(self.options.compile)
        for name in ahead:
            self._time(worker, name)
        for names in (self.many, self.others, self.starved):
            with suppress(queue.Empty):
                while time.monotonic() < self.end:
                    name = names.get_nowait()
                    if names is not self.starved and self.rows[name] < LONG:
                        self._plan(worker, name)
                    self._time(worker, name, alone=names is self.starved)
        worker.process.kill()

    def _plan(self, worker: Worker, name: str) -> None:
        is_bound = name.partition(":")[0] == PLANNED
        try:
            with self.memory.taken(self.sizes[name]):
                worker.ask("plan" if is_bound else "compile", name)
        except RuntimeError as error:
            self.write(name, plan_error=str(error))

    def _time(self, worker: Worker, name: str, *, alone: bool = False) -> None:
        row = self.rows[name]
        samples = SAMPLES if row < WARM else 2 if row < LONG else 1
        try:
            with self.memory.taken(self.memory.most if alone else self.sizes[name]):
                with self.device:
                    if time.monotonic() > self.end:
                        return
                    began = time.monotonic()
                    taken = worker.ask("time", name, row, samples)
                    if min(taken) > (1 + self.options.limit) * self.least[name] and row < ENDLESS:
                        more = worker.ask("time", name, row, samples)
                        taken = min(taken, more, key=statistics.median)
                    seconds = time.monotonic() - began
                worker.ask("drop")
        except RuntimeError as error:
            if "memory" in str(error) and not alone:
                self.starved.put(name)
            else:
                self.write(name, "failed", error=str(error))
            return
        ratio, is_slower = statistics.median(taken) / row, min(taken) / self.least[name]
        is_slower = min(ratio, is_slower) > 1 + self.options.limit
        self.write(
            name, "slower than its row" if is_slower else "within", new=statistics.median(taken), least=min(taken),
            ratio=ratio, seconds=round(seconds, 2),
        )  # fmt: skip
        with self.writing:
            self.ratios.append(ratio)
        if is_slower:
            self.slower.put((-ratio, name))

    def again(self, pair: list[Worker]) -> None:
        """Time slower cases in turns with the other checkout."""
        for worker in pair:
            worker.check()
        while time.monotonic() < self.end + self.options.extra:
            try:
                negative, name = self.slower.get(timeout=1)
            except queue.Empty:
                if self.ended.is_set():
                    break
                continue
            self._again(pair, name, -negative)
        for worker in pair:
            worker.process.kill()

    def _again(self, pair: list[Worker], name: str, ratio: float, *, alone: bool = False) -> None:
        row, taken = self.rows[name], ([], [])
        known = f"{ratio:6.3f} of its row" if ratio > 0 else "row"
        on_cpu = self.options.device == "cpu"  # each pair has cores of its own
        samples, turns = (2, MANY if on_cpu or row < SHORT else TURNS) if row < WARM else (1, TURNS)
        try:
            with self.memory.taken(self.memory.most if alone else 2 * self.sizes[name]):
                if row < LONG:
                    for worker in pair:
                        worker.ask("compile", name)
                with nullcontext() if on_cpu else self.device:
                    for turn in range(turns if row < LONG else 2 if row < ENDLESS else 1):
                        for side in (turn % 2, 1 - turn % 2):
                            taken[side].extend(pair[side].ask("time", name, row, samples))
                for worker in pair:
                    worker.ask("drop")
        except RuntimeError as error:
            for worker in pair:
                with suppress(RuntimeError):
                    worker.ask("drop")
            if "memory" in str(error) and not alone:
                self._again(pair, name, ratio, alone=True)
                return
            text = f"{known} {row * 1e6:9.1f} us, not in base ({str(error)[:60]}): {name}"
            self.write(name, "of them not in base", ratio=ratio, base_error=str(error))
        else:
            middle = statistics.median(taken[1]) / statistics.median(taken[0])
            least = min(taken[1]) / min(taken[0])
            mark = "SLOWER" if min(middle, least) > 1 + self.options.limit else "same"
            self.write(
                name, "of them slower than base" if mark == "SLOWER" else "of them as base", ratio=ratio,
                base=taken[0], turns=taken[1], median_ratio=middle, least_ratio=least,
            )  # fmt: skip
            text = (
                f"{known} {row * 1e6:9.1f} us; base {statistics.median(taken[0]) * 1e6:9.1f} new "
                f"{statistics.median(taken[1]) * 1e6:9.1f} {middle:.3f} {least:.3f} {mark}: {name}"
            )
        with self.writing:
            print(text, flush=True)

    def report(self) -> None:
        """Print the counts of each suite."""
        ratios = sorted(self.ratios)
        if ratios:
            print(
                f"{len(ratios)} rows timed after {time.monotonic() - self.begin:.0f} s; of their rows: "
                f"median {statistics.median(ratios):.3f}, least {ratios[0]:.3f}, most {ratios[-1]:.3f}"
            )
        for suite in sorted({suite for suite, _ in self.counts}):
            own = (f"{text} {count}" for (name, text), count in sorted(self.counts.items()) if name == suite)
            print(f"{suite}: {', '.join(own)}", flush=True)


def committed(pattern: str, suites: list[str]) -> dict[str, tuple[str, float, float]]:
    """Return definition, median and least of the last good row of each case."""
    found: dict[str, tuple[str, float, float]] = {}
    for path in sorted((ROOT / "benchmarks" / "results").glob(pattern)):
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            if row.get("suite") in suites and row.get("status") == "ok":
                name = f"{row['suite']}: {row['case']}"
                own = row["results"]["kernmantle"]
                found[name] = row["definition"], own["median"], own["minimum"]
    return found


def left(rows: Sequence[str], paths: list[Path]) -> list[str]:
    """Return the rows that are to be timed: files have the names, or the rows, of those that are not."""
    done: set[str] = set()
    for path in paths:
        if path.is_file():
            lines = path.read_text(encoding="utf-8").splitlines()
            done |= {line for line in lines if not line.startswith("{")}
            found = map(json.loads, (line for line in lines if line.startswith("{")))
            done |= {row["case"] for row in found if {"new", "turns", "error"} & row.keys()}
    return [name for name in rows if name not in done and not any(word in name for word in LATE)]


def pair(options: argparse.Namespace, suites: list[str], number: int) -> list[Worker]:
    """Return processes of the base and of this checkout."""
    cores = ""
    if options.cores:
        first, count = map(int, options.cores.split(","))
        cores = f"{first + number * count}-{first + (number + 1) * count - 1}"
    return [Worker(tree, options, suites, cores) for tree in (options.base.resolve(), ROOT)]


def main() -> int:
    """Compare and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", type=Path, metavar="BASE", help="checkout that slower calls are compared with")
    parser.add_argument("--device", default="cuda", choices=("cpu", "cuda"))
    parser.add_argument("--rows", default="h200-*.jsonl", help="files of committed rows in benchmarks/results")
    parser.add_argument("--suite", action="append", default=[], help="of these suites, first those that come first")
    parser.add_argument("--budget", type=float, default=150, help="seconds")
    parser.add_argument("--compile", type=float, default=45, help="seconds of it for which nothing is timed, at most")
    parser.add_argument("--extra", type=float, default=20, help="seconds for what is timed in turns, afterwards")
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--pairs", type=int, default=1, help="pairs of processes for what is timed in turns")
    parser.add_argument("--part", default="1/1", metavar="K/N", help="only the K-th of N equal parts of the rows")
    parser.add_argument("--limit", type=float, default=0.03)
    parser.add_argument("--direct", action="store_true", help="time every call in turns, whatever its row")
    parser.add_argument("--cores", default="", metavar="FIRST,COUNT", help="of each pair of processes on a CPU")
    parser.add_argument("--output", type=Path, default=Path("rows.jsonl"))
    parser.add_argument("--done", type=Path, action="append", default=[], help="files of names or rows to leave out")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options.device, json.loads(options.worker))
        return 0
    suites = options.suite
    begin = time.monotonic()
    workers = [Worker(ROOT, options, suites) for _ in range(0 if options.direct else options.processes)]
    pairs = [pair(options, suites, number) for number in range(options.pairs)]
    known = pairs[0][1].ask("definitions")
    rows = {name: row for name, row in committed(options.rows, suites).items() if known.get(name, [""])[0] == row[0]}
    part, parts = map(int, options.part.split("/"))
    every = sorted(rows)
    random.Random(1).shuffle(every)
    due = left(every[part - 1 :: parts], [*options.done, options.output])
    print(f"{len(rows)} rows, {len(due)} due, after {time.monotonic() - begin:.0f} s", flush=True)
    sizes = {name: known[name][1] for name in due}
    comparison = Comparison(options, {name: rows[name][1:] for name in due}, sizes, begin)
    for name in sorted(due, key=lambda name: suites.index(name.partition(":")[0])):
        if options.direct:
            comparison.slower.put((comparison.slower.qsize(), name))
        else:
            (comparison.many if name.partition(":")[0] == PLANNED else comparison.others).put(name)
    threads = [threading.Thread(target=comparison.run, args=(worker,)) for worker in workers]
    last = [threading.Thread(target=comparison.again, args=(pair,)) for pair in pairs]
    for thread in (*threads, *last):
        thread.start()
    for thread in threads:
        thread.join()
    comparison.report()
    comparison.ended.set()
    for thread in last:
        thread.join()
    comparison.report()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
