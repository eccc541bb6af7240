"""Compare the speed of warm eager calls between two checkouts: ``python scripts/compare_speed.py BASE NEW``.

One process of each checkout runs the same calls in turns, a sample of one after a sample of the other in random order,
on one thread; processes are started anew each round. The table has the least times and the ratios new / base: of the
least times and of the medians, and the spread (20 and 80 % of the ratios of samples next to each other). A row that is
slower by more than ``--limit`` in both ratios is marked, and the exit status is 1 if there is one. The clock is the
processor's on a CPU (other programs disturb it less), and on a GPU the wall's until it is done; ``--clock host`` stops
when the calls have returned.

    python scripts/compare_speed.py ../base . --device cuda --clock host --case KSLinear
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

Call = Callable[[], Any]


def _steps(function: Callable[..., Any], *leaves: Any, layer: Any = None) -> dict[str, Call]:
    """Calls without and with gradients of the given tensors and of a layer's parameters."""
    torch: Any = import_module("torch")

    tracked = [each.detach().clone().requires_grad_() for each in leaves]
    parameters = [*tracked, *(layer.parameters() if layer is not None else ())]
    cotangent = torch.ones_like(function(*leaves))

    def forward() -> None:
        with torch.no_grad():
            function(*leaves)

    def step() -> None:
        for each in parameters:
            each.grad = None
        function(*tracked).backward(cotangent)

    return {"forward": forward, "step": step}


def cases(device: str) -> dict[str, Callable[[], dict[str, Call]]]:
    """What is compared, by public names that both checkouts have."""
    torch, km = import_module("torch"), import_module("kernmantle")

    torch.manual_seed(0)

    def array(*shape: int) -> Any:
        return (torch.randn(*shape) / shape[-1] ** 0.5).to(device)

    def gram(m: int, n: int, k: int, p: float) -> Callable[[], dict[str, Call]]:
        y = array(n, k)
        return lambda: _steps(lambda x: km.cdist(x, y, p=p), array(m, k))

    def metric() -> dict[str, Call]:
        x, y = array(16, 4), array(16, 4)
        out = torch.empty(16, 16, device=device)
        return {
            "canberra": lambda: km.cdist(x, y, metric="canberra"), "symmetric": lambda: km.cdist(x, p=1),
            "out": lambda: km.cdist(x, y, p=1, out=out), "power": lambda: km.cdist(x, y, p=1.3),
        }  # fmt: skip

    def contract() -> dict[str, Call]:
        l1, y, w = km.Contraction("mk,nk->mn", lambda a, b: abs(a - b)), array(64, 16), array(16).abs()
        found = _steps(lambda x: l1(x, y), array(64, 16))
        x, out = array(64, 16), torch.empty(64, 64, device=device)
        found["out"] = lambda: l1(x, y, out=out)
        found["lambda"] = lambda: km.contract("mk,nk->mn", lambda a, b: abs(a - b), x, y)
        found["named"] = lambda: km.contract("mk,nk,k->mn", lambda a, b, c: abs(a - b) * c, x, y, w)
        return found

    def kernel(m: int, k: int, columns: int) -> Callable[[], dict[str, Call]]:
        def make() -> dict[str, Call]:
            own, y, v = km.Gaussian(1.0), array(m, k), array(m, columns)
            return _steps(lambda x: own.matmul(x, y, v), array(m, k))

        return make

    def dense_kernel() -> dict[str, Call]:
        own, y = km.Laplace(1.0, p=1), array(64, 8)
        return _steps(lambda x: own(x, y), array(64, 8))

    def kron(rows: int, size: int, count: int) -> Callable[[], dict[str, Call]]:
        def make() -> dict[str, Call]:
            factors = [array(size, size) for _ in range(count)]
            return _steps(lambda x, *own: km.kron_matmul(x, own), array(rows, size**count), *factors)

        return make

    def kronsparse() -> dict[str, Call]:
        return _steps(km.kron_sparse_matmul, array(16, 384), array(6, 64, 64, 1))

    def layer(rows: int, dtype: str = "float32") -> Callable[[], dict[str, Call]]:
        def make() -> dict[str, Call]:
            kind = getattr(torch, dtype)
            own = km.KSLinear(384, 1536, [(6, 64, 64, 1), (1, 768, 192, 2)], device=device, dtype=kind)
            return _steps(own, array(rows, 384).to(kind), layer=own)

        return make

    def cholesky() -> dict[str, Call]:
        thin = array(32, 32)
        a = thin @ thin.mT + torch.eye(32, device=device)
        return _steps(lambda b: km.linalg.solve_cholesky(a, b).x, array(32, 1))

    large = 8 if device == "cuda" else 1
    found: dict[str, Callable[[], dict[str, Call]]] = {
        "cdist 16 x 16 x 4": gram(16, 16, 4, 1.0), "cdist p=2 64 x 64 x 32": gram(64, 64, 32, 2.0), "metrics": metric,
        "contract 64 x 64 x 16": contract, "k.matmul 64 x 8": kernel(64, 8, 1), "k(x, y) 64 x 8": dense_kernel,
        "kron_matmul 16 x 8^3": kron(16, 8, 3), "kron_matmul 16 x 64^2": kron(16, 64, 2),
        "kron_sparse_matmul 16": kronsparse, "KSLinear 16": layer(16), "KSLinear 256": layer(256),
        "solve_cholesky 32": cholesky, f"cdist {1024 * large} squared x 64": gram(1024 * large, 1024 * large, 64, 1.0),
        f"k.matmul {1024 * large} x 16": kernel(1024 * large, 16, 4),
    }  # fmt: skip
    if device == "cuda":
        found |= {"KSLinear 256 bf16": layer(256, "bfloat16"), "KSLinear 4096": layer(4096)}
        found |= _long(array)
    return found


def _long(array: Callable[..., Any]) -> dict[str, Callable[[], dict[str, Call]]]:
    """Calls of GPU kernels that take longer than the host: rows of the tables of speed, shortened."""
    torch, km = import_module("torch"), import_module("kernmantle")

    def distance(kind: str = "float32", **chosen: Any) -> Callable[[], dict[str, Call]]:
        def make() -> dict[str, Call]:
            x, y = (array(8192, 512).to(getattr(torch, kind)) for _ in range(2))
            return {"forward": lambda: km.cdist(x, y, **chosen)}

        return make

    def contraction(reduce: str) -> Callable[[], dict[str, Call]]:
        def make() -> dict[str, Call]:
            x, y, own = (
                array(4096, 512),
                array(4096, 512),
                km.Contraction("mk,nk->mn", lambda a, b: a + b, reduce=reduce),
            )
            return {"forward": lambda: own(x, y)}

        return make

    def product(own: Any, points: int, features: int, columns: int) -> Callable[[], dict[str, Call]]:
        def make() -> dict[str, Call]:
            x, v = array(points, features), array(points, columns)
            return {"forward": lambda: own.matmul(x, x, v)}

        return make

    def gradient(p: float, columns: int) -> Callable[[], dict[str, Call]]:
        def make() -> dict[str, Call]:
            x, y, v, own = array(2048, 512), array(2048, 512), array(2048, columns), km.Laplace(1.0, p=p)
            return {"forward": lambda: own.gradient(x, y, v), "agop": lambda: own.agop(x, y, v)}

        return make

    def kron(rows: int, size: int, count: int, kind: str) -> Callable[[], dict[str, Call]]:
        def make() -> dict[str, Call]:
            chosen = getattr(torch, kind)
            factors = [array(size, size).to(chosen) for _ in range(count)]
            x = array(rows, size**count).to(chosen)
            return _steps(lambda x, *own: km.kron_matmul(x, own), x, *factors)

        return make

    def kronsparse(pattern: tuple[int, ...], kind: str, first: bool) -> Callable[[], dict[str, Call]]:
        def make() -> dict[str, Call]:
            chosen, (a, b, c, d) = getattr(torch, kind), pattern
            x, w = array(25088, a * c * d).to(chosen), array(a, b, c, d).to(chosen)
            x = x if first else x.mT.contiguous()
            return {"forward": lambda: km.kron_sparse_matmul(x, w, batch_last=not first)}

        return make

    def solve() -> dict[str, Call]:
        a = array(4096, 4096)
        a, b = a @ a.mT + torch.eye(4096, device=a.device), array(4096, 4)
        return {
            "cholesky": lambda: km.linalg.solve_cholesky(a, b).x, "lu": lambda: km.linalg.solve_lu(a, b).x,
            "eigh": lambda: km.linalg.eigh(a[:1024, :1024], subset_by_index=(974, 1023)),
        }  # fmt: skip

    found = {f"long cdist p={p}": distance(p=p) for p in (1.0, 1.3, 1.5, 2.0, 3.0)}
    found |= {f"long cdist p={p} bf16": distance("bfloat16", p=p) for p in (1.0, 2.0)}
    found |= {f"long add-{reduce}": contraction(reduce) for reduce in ("min", "max")}
    found["long Laplace @ v, 16 columns"] = product(km.Laplace(1.0, p=1), 8192, 512, 16)
    found["long Laplace @ v"] = product(km.Laplace(1.0, p=1), 50000, 10, 1)
    found["long Gaussian @ v"] = product(km.Gaussian(1.0), 50000, 20, 1)
    found |= {f"long gradient p={p}, {o} columns": gradient(p, o) for p, o in ((1, 1), (1, 16), (1.3, 16), (2, 16))}
    for rows, size, count in ((1024, 8, 5), (1024, 16, 4), (1024, 32, 3), (1024, 64, 2), (512, 64, 3)):
        for kind in ("float32", "bfloat16"):
            found[f"long kron {rows} x {size}^{count} {kind}"] = kron(rows, size, count, kind)
    for pattern in ((6, 64, 64, 1), (1, 768, 192, 2), (2, 48, 192, 1), (1, 192, 48, 2), (1, 128, 128, 3)):
        for kind in ("float32", "bfloat16"):
            for first in (True, False):
                name = f"long kronsparse {pattern} {kind} {'first' if first else 'last'}"
                found[name] = kronsparse(pattern, kind, first)
    found["long solvers 4096"] = solve
    return found


def timed(call: Call, seconds: float, clock: str, device: str) -> float:
    """Seconds a call of a sample that lasts about so long."""
    torch: Any = import_module("torch")

    def wait() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    now = time.process_time if clock == "cpu" else time.perf_counter
    count, taken = 1, 0.0
    while True:
        wait()
        begin = now()
        for _ in range(count):
            call()
        if clock == "wall":
            wait()
        taken = now() - begin
        if taken >= seconds / 2 or (clock == "host" and count >= 200):
            wait()
            return taken / count
        count = max(count + 1, min(10 * count, int(count * seconds / max(taken, 1e-9))))
        if clock == "host":
            count = min(count, 200)


def work(device: str, clock: str) -> None:
    """Answer on standard output what is asked for on standard input: names, or [case, call, seconds]."""
    torch, kernmantle = import_module("torch"), import_module("kernmantle")

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    answers = sys.stdout
    sys.stdout = sys.stderr
    available, made = cases(device), {}
    answers.write(json.dumps([kernmantle.__file__, list(available)]) + "\n")
    answers.flush()
    for line in sys.stdin:
        name, call, seconds = json.loads(line)
        if name not in made:
            made.clear()
            made[name] = available[name]()
        found: Any = timed(made[name][call], seconds, clock, device) if call else list(made[name])
        answers.write(json.dumps(found) + "\n")
        answers.flush()


class Worker:
    """A process that runs the calls of a checkout."""

    def __init__(self, tree: Path, cache: Path, options: argparse.Namespace) -> None:
        path = [str(tree / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(path), "KERNMANTLE_CACHE_DIR": str(cache),
            "OMP_NUM_THREADS": str(options.threads),
        }  # fmt: skip
        command = [sys.executable, __file__, "--worker", "--device", options.device, "--clock", options.clock, "", ""]
        self.process = subprocess.Popen(
            command, env=environment, cwd=cache, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        file, self.cases = self._answer()
        assert Path(file).is_relative_to(tree), f"{tree} is not what was imported, but {file}"

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("a worker ended; its message is above")
        return json.loads(line)

    def ask(self, name: str, call: str = "", seconds: float = 0.0) -> Any:
        """Names of the calls of a case, or the seconds that one takes."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([name, call, seconds]) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def end(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


Samples = list[tuple[float, float]]


def compared(options: argparse.Namespace) -> Iterator[tuple[str, Samples]]:
    """Calls and their seconds of (base, new), sample by sample, over all rounds: each when its last round is done."""
    order, found = random.Random(0), dict[str, Samples]()
    with tempfile.TemporaryDirectory() as folder:
        caches = [Path(folder, side) for side in ("base", "new")]
        for cache in caches:
            cache.mkdir()
        for turn in range(options.rounds):
            both = [
                Worker(tree.resolve(), cache, options)
                for tree, cache in zip((options.base, options.new), caches, strict=True)
            ]
            for name in both[0].cases:
                if options.case and not any(re.search(case, name) for case in options.case):
                    continue
                calls = both[0].ask(name)
                for call in calls:
                    for worker in both:
                        worker.ask(name, call, options.seconds)
                    samples = found.setdefault(f"{name}, {call}", [])
                    for _ in range(options.samples):
                        taken = [0.0, 0.0]
                        for side in order.sample((0, 1), 2):
                            taken[side] = both[side].ask(name, call, options.seconds)
                        samples.append((taken[0], taken[1]))
                    if turn == options.rounds - 1:
                        yield f"{name}, {call}", samples
            for worker in both:
                worker.end()


def main() -> int:
    """Compare and report; 1 if a call is slower by more than the limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", type=Path, metavar="BASE", help="checkout that is compared with")
    parser.add_argument("new", type=Path, metavar="NEW", help="checkout that is compared")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--clock", choices=("cpu", "wall", "host"), help="cpu on a CPU and wall on a GPU by default")
    parser.add_argument(
        "--case",
        action="append",
        default=[],
        help="only names in which this regular expression is found; may be repeated",
    )
    parser.add_argument("--rounds", type=int, default=3, help="how often the processes are started anew")
    parser.add_argument("--samples", type=int, default=12, help="of each call in a round")
    parser.add_argument("--seconds", type=float, default=0.02, help="of a sample")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--limit", type=float, default=0.02, help="how much slower is marked")
    parser.add_argument("--output", type=Path, help="file for the samples, as JSON")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.clock = options.clock or ("cpu" if options.device == "cpu" else "wall")
    if options.worker:
        work(options.device, options.clock)
        return 0
    found, slower = dict[str, Samples](), 0
    sys.stdout.write(f"{'':45s} {'base us':>10s} {'new us':>10s} {'least':>7s} {'median':>7s} spread\n")
    for name, samples in compared(options):
        found[name] = samples
        base, new = ([sample[side] for sample in samples] for side in (0, 1))
        ratios = sorted(b / a for a, b in samples)
        least, middle = min(new) / min(base), statistics.median(ratios)
        marked = min(least, middle) > 1 + options.limit
        slower += marked
        low, high = ratios[len(ratios) // 5], ratios[-1 - len(ratios) // 5]
        sys.stdout.write(
            f"{name:45s} {min(base) * 1e6:10.2f} {min(new) * 1e6:10.2f} {least:7.3f} {middle:7.3f} "
            f"{low:.3f}-{high:.3f}{'  SLOWER' if marked else ''}\n"
        )
        sys.stdout.flush()
        if options.output:
            options.output.write_text(json.dumps(found))
    sys.stdout.write(f"{slower} of {len(found)} slower by more than {options.limit:.0%}\n")
    return int(slower > 0)


if __name__ == "__main__":
    raise SystemExit(main())
