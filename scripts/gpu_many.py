"""Solvers and products over all GPUs of a machine, one process each: rows and lines of JSON. Checks come first."""

from __future__ import annotations

import datetime as dt
import json
import os
import sys
import tempfile
import time
import traceback
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import kernmantle as km
from kernmantle import distributed as spread
from kernmantle.bench import machine, store
from kernmantle.distributed.redistribute import Cyclic
from kernmantle.distributed.rows import rows
from kernmantle.linalg.cusolvermp import Grid
from kernmantle.linalg.worker import communicator

STARTED = time.perf_counter()
LAPLACE = km.Laplace(20.0, p=2)


def say(**row):
    """One line of the first process."""
    if dist.get_rank() == 0:
        sys.stdout.write(json.dumps({**row, "at": round(time.perf_counter() - STARTED, 1)}) + "\n")
        sys.stdout.flush()


def together(group=None):
    """Wait for the device and for the others."""
    torch.cuda.synchronize()
    dist.barrier(group, device_ids=[torch.cuda.current_device()])


def samples(call, count, group=None, warm=1):
    """Seconds of calls that all processes begin together."""
    for _ in range(warm):
        call()
    found = []
    for _ in range(count):
        together(group)
        begin = time.perf_counter()
        call()
        together(group)
        found.append(time.perf_counter() - begin)
    return found


def keep(case, title, taken, targets=(), **more):
    """A row of the first process; ``taken`` are samples by contestant."""
    if dist.get_rank():
        return
    results = {}
    for name, values in taken.items():
        ordered = sorted(values)
        results[name] = {
            "status": "ok", "samples": len(ordered), "median": ordered[len(ordered) // 2], "minimum": ordered[0],
            "p20": ordered[0], "p80": ordered[-1],
        }  # fmt: skip
    results["kernmantle"] |= more
    row = {
        "case": case, "title": title, "suite": "solvers", "definition": f"{dist.get_world_size()} processes, wall",
        "stamp": machine.stamp("cuda"), "date": dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds"),
        "results": results, "targets": list(targets), "status": "ok",
    }  # fmt: skip
    store.append(Path(os.environ["OUT"], "h200-many.jsonl"), row)
    say(case=case, medians={name: result["median"] for name, result in results.items()}, **more)


def seconds(most, found):
    """A target in seconds."""
    return {"kind": "seconds", "value": most, "peer": "", "found": found, "met": found <= most}


def share(n):
    """First and last row here."""
    rank, size = dist.get_rank(), dist.get_world_size()
    return n * rank // size, n * (rank + 1) // size


def near_unity(n, dtype):
    """Rows here of a symmetric matrix whose condition number is near 2, a right-hand side, and the solution."""
    generator = torch.Generator("cuda").manual_seed(1)
    thin = torch.randn(n, 64, device="cuda", generator=generator, dtype=torch.float64)
    x = torch.randn(n, 4, device="cuda", generator=generator, dtype=torch.float64)
    first, last = share(n)
    local = (thin[first:last].to(dtype) @ thin.to(dtype).mT) / n
    local.diagonal(first).add_(1)
    b = x + thin @ (thin.mT @ x) / n
    return local, b[first:last].to(dtype), x[first:last]


def factor(kind, n, dtype):
    """Cholesky or LU of rows that are spread: the whole call, and cuSOLVERMp alone."""
    local, b, exact = near_unity(n, dtype)
    solve = {"cholesky": spread.solve_cholesky, "lu": spread.solve_lu}[kind]
    found = solve(local, b)
    error = float((found.x.double() - exact).abs().max())
    whole = samples(lambda: solve(local, b), 3, warm=0)
    given = rows(local, "a")
    kept, side = Cyclic(given, n).of_symmetric(local), Cyclic(given, b.shape[1]).columns(b)
    grid = Grid(communicator(local.device), given.rank, given.size, local.device)
    alone = []
    for _ in range(3):
        work, right = kept.clone(), side.clone()
        call = grid.solve_cholesky if kind == "cholesky" else grid.solve_lu
        alone += samples(lambda work=work, right=right, call=call: call(work, n, right, b.shape[1]), 1, warm=0)
    grid.close()
    name = str(dtype).removeprefix("torch.float")
    target = {"cholesky": {"32": 94e-3, "64": 98e-3}}.get(kind, {}).get(name)
    targets = [seconds(target, sorted(alone)[1])] if target else []
    keep(
        f"{kind} n={n} f{name}, {given.size} GPUs", f"{kind} of order {n} whose rows are spread over {given.size} GPUs",
        {"kernmantle": whole, "cuSOLVERMp alone": alone}, targets, error=error,
    )  # fmt: skip


def spectrum(n, dtype, most):
    """All pairs of a Laplacian kernel's matrix."""
    generator = torch.Generator("cuda").manual_seed(0)
    x = torch.randn(n, 2, device="cuda", generator=generator, dtype=torch.float64).to(dtype)
    first, last = share(n)
    local = LAPLACE(x[first:last], x)
    together()
    begin = time.perf_counter()
    w, v = spread.eigh(local)
    together()
    taken = time.perf_counter() - begin
    mine = slice(v.shape[1] - 8, v.shape[1])
    gap = LAPLACE(x) @ v[:, mine] - v[:, mine] * w[first:last][mine]
    unit = v[:, mine].mT @ v[:, mine] - torch.eye(8, device="cuda", dtype=dtype)
    name = str(dtype).removeprefix("torch.float")
    size = dist.get_world_size()
    keep(
        f"eigh n={n} f{name}, {size} GPUs", f"all pairs of order {n} whose rows are spread over {size} GPUs",
        {"kernmantle": [taken]}, [seconds(most, taken)], residual=float(gap.norm(dim=0).max() / w[-1]),
        orthogonality=float(unit.abs().max()),
    )  # fmt: skip


def kernel_system(n):
    """A kernel's regularised matrix that one GPU cannot hold, written into its factor."""
    generator = torch.Generator("cuda").manual_seed(0)
    x, y = (torch.randn(n, width, device="cuda", generator=generator) for width in (10, 1))
    first, last = share(n)
    mine, side, k = x[first:last].clone(), y[first:last].clone(), km.Laplace(3.0, p=2)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    together()
    begin = time.perf_counter()
    found = spread.solve_kernel(k, mine, side, 1.0)
    together()
    taken, peak = time.perf_counter() - begin, torch.cuda.max_memory_allocated()
    torch.cuda.empty_cache()
    gap = spread.matmul(k, mine, None, found.x, diagonal=1.0) - side
    size = dist.get_world_size()
    keep(
        f"kernel system n={n}, {size} GPUs", f"(K + I) c = y of {n} rows by the factor of a matrix over {size} GPUs",
        {"kernmantle": [taken]}, residual=float(gap.norm() / side.norm()), peak=peak, matrix=4 * n * n,
    )  # fmt: skip


def weak(name, title, call, n, one, alone):
    """A call on all GPUs beside the same on one with as much work a GPU: half as many pairs of rows on two."""
    size = dist.get_world_size()
    single = samples(lambda: call(one, alone), 3, alone)
    many = samples(lambda: call(n, None), 3)
    ratio = sorted(single)[1] / sorted(many)[1]
    target = {"kind": "faster", "value": 0.9, "peer": "one GPU, as much work", "found": ratio, "met": ratio >= 0.9}
    keep(f"{name} n={n}, {size} GPUs", title, {"kernmantle": many, "one GPU, as much work": single}, [target])


def scaling(alone, wanted=("ring gram", "ring matmul", "ring cg")):
    """Weak scaling of what goes round in a ring."""
    size, k = dist.get_world_size(), km.Laplace(20.0, p=1.3)
    held = {}

    def points(n, group, columns=64):
        if (n, group) not in held:
            count = n if group is not None else n // size
            generator = torch.Generator("cuda").manual_seed(dist.get_rank())
            held[n, group] = torch.randn(count, columns, device="cuda", generator=generator)
        return held[n, group]

    def gram(n, group):
        return spread.gram(k, points(n, group), points(n, group).flip(0), group=group)

    def matmul(n, group):
        x = points(n, group)
        return spread.matmul(k, x, None, x[:, :4], group=group)

    def cg(n, group):
        x = points(n, group)
        return spread.cg(spread.operator(k, x, diagonal=10.0, group=group), x[:, :1], max_iterations=8, tolerance=1e-12)

    for name, call, n in (("ring gram", gram, 80_000), ("ring matmul", matmul, 160_000), ("ring cg", cg, 100_000)):
        if name not in wanted:
            continue
        one = int(n / size**0.5)
        weak(name, f"{name[5:]}, {n} x {n} x 64, Laplace p=1.3, against {one} x {one} on one GPU", call, n, one, alone)
        held.clear()
        torch.cuda.empty_cache()


def member(rank, size, folder, parts):
    """One process."""
    torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl", init_method=f"file://{folder}/store", rank=rank, world_size=size, timeout=timedelta(seconds=100),
        device_id=torch.device("cuda", rank),
    )  # fmt: skip
    groups = [dist.new_group([i]) for i in range(size)]
    single, double = torch.float32, torch.float64
    everything = {
        "scaling": lambda: scaling(groups[rank]),
        "factors": lambda: [factor(kind, 20_000, dtype) for kind in ("cholesky", "lu") for dtype in (single, double)],
        "small": lambda: spectrum(2000, single, 10.0),
        "spectra": lambda: [spectrum(20_000, single, 4.21), spectrum(20_000, double, 6.03)],
        "gram": lambda: scaling(groups[rank], ("ring gram",)),
        "system": lambda: kernel_system(200_000),
    }
    say(what="together", processes=size)
    for name in parts or everything:
        try:
            everything[name]()
        except Exception:  # noqa: BLE001
            sys.stderr.write(f"{rank} {name}: {traceback.format_exc()[-1500:]}\n")
        torch.cuda.empty_cache()
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(member, (torch.cuda.device_count(), tempfile.mkdtemp(), sys.argv[1:]), torch.cuda.device_count())
