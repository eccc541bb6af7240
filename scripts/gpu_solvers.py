"""Solvers on a GPU: times beside torch and cuSOLVER called directly, workspaces, thresholds. Prints JSON lines."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch

import kernmantle as km
from kernmantle.bench import machine, store
from kernmantle.bench import solvers as suite
from kernmantle.bench.run import Settings, measure
from kernmantle.bench.timing import Plan
from kernmantle.linalg import cholesky, cusolver, krylov, lu, spectrum


def seconds(call, repeats=3):
    """Least time of a call on the device's clock, after one that is not counted."""
    best = float("inf")
    for turn in range(repeats + 1):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
        if turn:
            best = min(best, begin.elapsed_time(end) * 1e-3)
    return best


def say(**row):
    """One line."""
    sys.stdout.write(json.dumps(row) + "\n")
    sys.stdout.flush()


def laplace(n, dtype):
    """The matrix of TARGETS: Laplacian kernel."""
    x = torch.randn(n, 2, generator=torch.Generator().manual_seed(0)).to("cuda", dtype)
    return km.Laplace(20.0, p=2)(x)


def factors(n=20000):
    """Cholesky and LU in place and by torch."""
    a = torch.randn(n, 64, device="cuda")
    a = a @ a.mT + n * torch.eye(n, device="cuda")
    b = torch.randn(n, 1, device="cuda")
    kept = a.clone()
    for name, ours, torchs in (
        ("cholesky", km.linalg.solve_cholesky, lambda: torch.cholesky_solve(b, torch.linalg.cholesky_ex(a).L)),
        ("lu", km.linalg.solve_lu, lambda: torch.linalg.solve_ex(a, b)),
    ):
        found = ours(a, b)
        residual = float((a @ found.x - b).norm() / b.norm())

        def call(ours=ours):
            ours(kept, b, overwrite_a=True)

        copied = seconds(lambda: kept.copy_(a))
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        taken = seconds(lambda: (kept.copy_(a), call()))
        peak = torch.cuda.max_memory_allocated() - before
        say(what=name, n=n, ours=taken - copied, torch=seconds(torchs), peak=peak, residual=residual)


def sizes():
    """Workspaces as cuSOLVER tells them."""
    for dtype in (torch.float32, torch.float64):
        for n in (1000, 5000, 20000, 65536):
            for name in ("cholesky", "lu", "eigh"):
                found = km.linalg.workspace(name, n, dtype=dtype)
                say(what="workspace", routine=name, n=n, dtype=str(dtype), device=found.device, host=found.host)


def batch(n, count):
    """One batch: on streams and by the batched routine."""
    a = torch.randn(count, n, n, device="cuda")
    a = a @ a.mT + n * torch.eye(n, device="cuda")
    b = torch.randn(count, n, 1, device="cuda")
    row = {}
    for limit in (0, 1 << 20):
        cholesky.SMALL = lu.SMALL = spectrum.SMALL = limit
        kind = "batched" if limit else "streams"
        row[f"cholesky {kind}"] = seconds(lambda: km.linalg.solve_cholesky(a, b), 2)
        row[f"lu {kind}"] = seconds(lambda: km.linalg.solve_lu(a, b), 2)
        row[f"eigh {kind}"] = seconds(lambda: km.linalg.eigh(a), 1)
    say(what="small", n=n, count=count, torch=seconds(lambda: torch.linalg.solve_ex(a, b), 2), **row)


def small():
    """Batches of several sizes."""
    for n, count in ((7, 1000), (32, 256), (128, 64), (256, 64), (512, 32)):
        batch(n, count)


def partial(n, dtype):
    """Top twentieth of the spectrum."""
    a = laplace(n, dtype)
    index = (n - n // 20, n - 1)
    begin = time.perf_counter()
    found = km.linalg.eigh(a, subset_by_index=index, method="iterative")
    torch.cuda.synchronize()
    first = time.perf_counter() - begin
    taken = seconds(lambda: km.linalg.eigh(a, subset_by_index=index, method="iterative"), 1)
    residual = (a @ found.v - found.v * found.w).norm(dim=0).max() / found.w[-1]
    unit = (found.v.mT @ found.v - torch.eye(n // 20, device="cuda", dtype=dtype)).abs().max()
    begin = time.perf_counter()
    direct = km.linalg.eigh(a, subset_by_index=index, method="direct", overwrite_a=True)
    torch.cuda.synchronize()
    say(
        what="partial", n=n, dtype=str(dtype), iterative=taken, first=first, direct=time.perf_counter() - begin,
        ran=found.ran, residual=float(residual), orthogonality=float(unit),
        difference=float((direct.w - found.w).abs().max() / found.w[-1]), basis=krylov.Sizes.of(n, n // 20).basis,
    )  # fmt: skip


def triangles(n=20000):
    """Both triangles of column-major memory."""
    library = cusolver.load()
    a = torch.randn(n, 64, device="cuda")
    a = a @ a.mT / n + torch.eye(n, device="cuda")
    kept = a.clone()
    row = {}
    copied = seconds(lambda: kept.copy_(a))
    row["lower"] = seconds(lambda: (kept.copy_(a), library.potrf(kept.mT, False))) - copied
    row["upper"] = seconds(lambda: (kept.copy_(a), library.potrf(kept.mT, True))) - copied
    say(what="potrf", n=n, **row)


def rows():
    """Rows of the suite, with few samples: times on this device vary by less than a hundredth."""
    stamp = machine.stamp("cuda")
    settings = Settings(Plan(budget=0.5, least=2, most=5, endless=1.0))
    wanted = os.environ.get("CASES", "").split(",")
    for case in suite.SUITE.rows:
        if wanted != [""] and not any(name in case.name for name in wanted):
            continue
        begin = time.perf_counter()
        store.append(Path(os.environ["OUT"], "h200-solvers.jsonl"), measure(case, suite.SUITE, stamp, settings))
        say(what="row", case=case.name, seconds=time.perf_counter() - begin)
        torch.cuda.empty_cache()


def large(n=65536):
    """2^32 entries in place, built by tiles."""
    x = torch.randn(n, 8, device="cuda")
    y = torch.randn(n, 1, device="cuda")
    k = km.Laplace(3.0, p=2)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    begin = time.perf_counter()
    with torch.no_grad():
        found = km.linalg.solve_kernel(k, x, y, 1.0, method="cholesky")
    torch.cuda.synchronize()
    taken, peak = time.perf_counter() - begin, torch.cuda.max_memory_allocated() - before
    gap = k.matmul(x, None, found.x, diagonal=1.0) - y
    say(what="build and factor", n=n, seconds=taken, peak=peak, matrix=4 * n * n, residual=float(gap.norm() / y.norm()))


def iterate(n=200_000):
    """Kernel ridge regression without the matrix."""
    x, y = torch.randn(n, 10, device="cuda"), torch.randn(n, 1, device="cuda")
    k = km.Gaussian(3.0)
    begin = time.perf_counter()
    found = km.linalg.solve_kernel(k, x, y, 1.0, method="cg", rank=500)
    torch.cuda.synchronize()
    state = found.iterations
    say(
        what="cg", n=n, seconds=time.perf_counter() - begin, iterations=state.iterations,
        residual=float(state.residual.max()), peak=torch.cuda.max_memory_allocated(),
    )  # fmt: skip


if __name__ == "__main__":
    say(what="library", loaded=isinstance(cusolver.load(), cusolver.Library), reason=str(cusolver.load())[:200])
    parts = {
        "sizes": sizes, "small": small, "factors": factors,
        "partial": lambda: [partial(n, d) for n in (5000, 10000, 20000) for d in (torch.float32, torch.float64)],
        "iterate": iterate, "large": large, "triangles": triangles, "rows": rows,
    }  # fmt: skip
    for name in sys.argv[1:] or parts:
        try:
            parts[name]()
        except Exception as error:  # noqa: BLE001
            say(what=name, error=f"{type(error).__name__}: {error}"[:600])
        torch.cuda.empty_cache()
