"""What every process of a group on GPUs runs: rows that are spread, against all rows at once."""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import threading
import traceback
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import kernmantle as km
from kernmantle import distributed as spread
from kernmantle.distributed import alone
from kernmantle.linalg import cusolvermp
from kernmantle.linalg.worker import communicator
from kernmantle.testing import assert_close

N, COLUMNS = 1100, 5
LIMITS = 0, N
"""By all GPUs, and by one of them."""
KERNEL = km.Gaussian(2.0)


def normal(*shape, seed=0):
    found = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return found.cuda()


def part(whole):
    """Uneven shares."""
    rank, size = dist.get_rank(), dist.get_world_size()
    ends = [whole.shape[0] * i * (i + 1) // (size * (size + 1)) for i in range(size + 1)]
    return whole[ends[rank] : ends[rank + 1]].clone()


def spd():
    root = normal(N, N, seed=5)
    return root @ root.mT / N + torch.eye(N, device="cuda", dtype=torch.float64)


def products():
    x, v = normal(N, COLUMNS), normal(N, 2, seed=2)
    assert_close(spread.gram(KERNEL, part(x)), part(KERNEL(x).cpu()), depth=COLUMNS)
    assert_close(spread.matmul(KERNEL, part(x), None, part(v)), part((KERNEL(x) @ v).cpu()), depth=N)
    assert_close(spread.agop(KERNEL, part(x), None, part(v)), KERNEL.agop(x, None, v), depth=N * N)


def iterations():
    x, b = normal(N, COLUMNS), normal(N, 2, seed=2)
    plan = spread.nystrom(KERNEL, part(x), 100, 0.1)
    found = spread.cg(spread.operator(KERNEL, part(x), diagonal=0.1), part(b), preconditioner=plan, tolerance=1e-11)
    expected = torch.linalg.solve(KERNEL(x, diagonal=0.1), b)
    assert_close(found.x, part(expected), depth=N, magnitude=1e6)


def _solves(solve, matrix):
    b = normal(N, 300, seed=2)
    for dtype in (torch.float64, torch.float32):
        found = solve(part(matrix).to(dtype), part(b).to(dtype))
        assert not found.info
        assert_close(found.x, part(torch.linalg.solve(matrix, b)), dtype=dtype, depth=N**2)


def cholesky():
    _solves(spread.solve_cholesky, spd())
    assert spread.solve_cholesky(part(-spd()), part(normal(N))).info > 0


def kernel_system():
    x, y = normal(N, COLUMNS), normal(N, 2, seed=2)
    found = spread.solve_kernel(KERNEL, part(x), part(y), 0.1)
    expected = torch.linalg.solve(KERNEL(x, diagonal=0.1), y)
    assert not found.info
    assert_close(found.x, part(expected), depth=N**2, magnitude=1e6)


def lu():
    for limit in LIMITS:
        alone.QUICKER["getrf"] = limit
        _solves(spread.solve_lu, spd() + 0.1 * normal(N, N, seed=9) / N**0.5)


def eigh():
    a = spd()
    expected = torch.linalg.eigvalsh(a)
    for dtype, limit in itertools.product((torch.float64, torch.float32), LIMITS):
        alone.QUICKER["syevd"] = limit
        w, v = spread.eigh(part(a).to(dtype))
        assert_close(w, expected.cpu(), dtype=dtype, depth=N**2)
        assert_close(a @ v.double(), v.double() * part(w.double()), dtype=dtype, depth=N**2, magnitude=1)


def kron():
    """Rows, and columns, against the whole matrix by torch."""
    size = dist.get_world_size()
    for shape in ((1, size), (size, 1)):
        mesh = init_device_mesh("cuda", shape, mesh_dim_names=("rows", "columns"))
        own = mesh.get_coordinate()[0]
        for dtype in (torch.float64, torch.float32):
            exact = [normal(p, q, seed=p).requires_grad_() for p, q in ((6, 4), (5, 7), (8, 8))]
            x = normal(6, 240, seed=4).requires_grad_()
            weight = normal(6, 224, seed=5)
            expected = x @ torch.kron(torch.kron(*exact[:2]), exact[2])
            slopes = torch.autograd.grad((expected * weight).sum(), [x, *exact])
            factors = [factor.detach().to(dtype).requires_grad_() for factor in exact]
            rows = slice(6 * own // shape[0], 6 * (own + 1) // shape[0])
            before, after = (spread.kron_columns(factors, mesh, result=result) for result in (False, True))
            mine = x[rows, before].detach().to(dtype).requires_grad_()
            found = spread.kron_matmul(mine, factors, mesh)
            assert_close(found, expected[rows, after], dtype=dtype, depth=1000, magnitude=expected.abs().max())
            got = torch.autograd.grad((found * weight[rows, after].to(dtype)).sum(), [mine, *factors])
            for one, wanted in zip(got, [slopes[0][rows, before], *slopes[1:]], strict=True):
                assert_close(one, wanted, dtype=dtype, depth=1000, magnitude=wanted.abs().max())


def workspaces():
    """What is told beforehand, against what cuSOLVERMp asks for."""
    device, size = torch.device("cuda", torch.cuda.current_device()), dist.get_world_size()
    if size == 1:
        return
    grid = cusolvermp.Grid(communicator(device), dist.get_rank(), size, device)
    for routine, name in {"cholesky": "potrf", "lu": "getrf", "eigh": "syevd"}.items():
        for n in (3000, 20_000, 60_000):
            for dtype in (torch.float32, torch.float64):
                asked, told = (
                    grid.workspace(name, n, dtype)[0],
                    km.linalg.workspace(routine, n, dtype=dtype, devices=size),
                )
                assert asked <= told.device <= 2 * asked, (routine, n, dtype, asked, told)
    grid.close()


def dies(rank, size):
    """The last process ends in the middle of factors; the others do not come back from them."""
    a, b = part(spd()), part(normal(N))
    spread.solve_cholesky(a, b)
    if rank == size - 1:
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
    while True:
        spread.solve_cholesky(a, b)


def main(folder, rank, size, what="checks"):
    torch.cuda.set_device(int(rank))
    dist.init_process_group(
        "nccl", init_method=f"file://{folder}/store", rank=int(rank), world_size=int(size),
        timeout=timedelta(seconds=60 if what == "checks" else 6), device_id=torch.device("cuda", int(rank)),
    )  # fmt: skip
    if what == "dies":
        dies(int(rank), int(size))
    said = {}
    for function in (products, iterations, cholesky, kernel_system, lu, eigh, kron, workspaces):
        try:
            function()
            said[function.__name__] = ""
        except Exception:  # noqa: BLE001
            said[function.__name__] = traceback.format_exc()
    Path(folder, f"said-{rank}").write_text(json.dumps(said))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
    sys.stdout.flush()
    os._exit(0)
