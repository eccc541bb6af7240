"""What every process of a group runs: each check with rows that are spread unevenly, against all rows at once."""

from __future__ import annotations

import contextlib
import copy
import json
import math
import os
import re
import sys
import tempfile
import traceback
import warnings
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor, init_device_mesh

import kernmantle as km
from kernmantle import distributed as spread
from kernmantle.distributed import alone, dense, exchange, products, redistribute
from kernmantle.distributed.redistribute import Cyclic
from kernmantle.distributed.rows import rows
from kernmantle.linalg import cusolvermp
from kernmantle.testing import assert_close

N, COLUMNS, BLOCK = 41, 3, 4
KERNEL = km.Gaussian(1.5)
CHECKS = {}


def check(function):
    CHECKS[function.__name__] = function
    return function


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def counts(total, size):
    """Uneven, and nothing on the second process where there are four."""
    weights = [3, 0, 1, 2][:size] if size == 4 else list(range(1, size + 1))
    parts = [total * w // sum(weights) for w in weights]
    return [*parts[:-1], total - sum(parts[:-1])]


def part(whole):
    rank, size = dist.get_rank(), dist.get_world_size()
    shares = counts(whole.shape[0], size)
    return whole[sum(shares[:rank]) : sum(shares[: rank + 1])].clone()


def spd(n=N):
    root = normal(n, n, seed=5)
    return root @ root.mT + n * torch.eye(n, dtype=torch.float64)


@check
def gram():
    x, y = normal(N, COLUMNS), normal(29, COLUMNS, seed=1)
    assert_close(spread.gram(KERNEL, part(x), part(y)), part(KERNEL(x, y)), depth=COLUMNS)
    assert_close(spread.gram(KERNEL, part(x), diagonal=0.5), part(KERNEL(x, diagonal=0.5)), depth=COLUMNS)


def refuses(kind, words, call, *tensors, **options):
    with pytest.raises(kind, match=words):
        call(*tensors, **options)


@check
def tensors_that_disagree_are_an_error_on_every_process():
    last = dist.get_rank() == dist.get_world_size() - 1
    x, v = torch.ones(5, COLUMNS, dtype=torch.float64), torch.ones(5, 2, dtype=torch.float64)
    narrow, single = x[:, 1:] if last else x, x.float() if last else x
    errors = km.errors
    for call in (
        lambda x: spread.matmul(KERNEL, x, None, v), lambda y: spread.matmul(KERNEL, x, y, v),
        lambda x: spread.gram(KERNEL, x), lambda y: spread.gram(KERNEL, x, y),
        lambda x: spread.agop(KERNEL, x, None, v), lambda x: spread.operator(KERNEL, x),
        lambda x: spread.solve_kernel(KERNEL, x, v, 1.0), lambda x: spread.nystrom(KERNEL, x, 2, 1.0),
        lambda x: spread.from_local(x, init_device_mesh("cpu", (dist.get_world_size(),))),
    ):  # fmt: skip
        refuses(errors.ShapeError, "other axes|as many columns on every process", call, narrow)
        refuses((errors.DtypeError, errors.ShapeError), "another dtype|one dtype on every process", call, single)
    vector = v[:, 0] if last else v
    refuses(errors.ShapeError, "v must have as many columns .*a vector", spread.matmul, KERNEL, x, None, vector)
    refuses(errors.ShapeError, "matrices with as many columns", spread.matmul, KERNEL, x, x[:, 1:], v)
    refuses(errors.DtypeError, "v is torch.float32", spread.matmul, KERNEL, x, None, v.float())
    bad = x.clone().requires_grad_() if last else x
    refuses(
        errors.GradientError if last else errors.WorkerError, "gradient|is refused by process", spread.gram, KERNEL, bad
    )
    given = (x, x, v) if last else (x, None, v)
    refuses(errors.ShapeError, "different arguments", spread.matmul, KERNEL, *given)
    equal = torch.ones(5, COLUMNS, dtype=torch.float64)
    total = 5.0 * dist.get_world_size()
    assert_close(spread.matmul(KERNEL, equal, None, v), torch.full((5, 2), total, dtype=torch.float64), depth=20)


@check
def matmul():
    x, y, v = normal(N, COLUMNS), normal(29, COLUMNS, seed=1), normal(29, 2, seed=2)
    assert_close(spread.matmul(KERNEL, part(x), part(y), part(v)), part(KERNEL(x, y) @ v), depth=29)
    assert_close(spread.matmul(KERNEL, part(x), part(y), part(v[:, 0])), part(KERNEL(x, y) @ v[:, 0]), depth=29)
    w = normal(N, seed=3)
    expected = part(KERNEL(x, diagonal=0.5) @ w)
    assert_close(spread.matmul(KERNEL, part(x), None, part(w), diagonal=0.5), expected, depth=N)


@check
def agop():
    z, x, coef = normal(N, COLUMNS), normal(29, COLUMNS, seed=1), normal(29, 2, seed=2)
    expected = KERNEL.agop(z, x, coef)
    assert_close(spread.agop(KERNEL, part(z), part(x), part(coef)), expected, depth=29 * N)
    chunk, products.CHUNK_BYTES = products.CHUNK_BYTES, 5 * 2 * COLUMNS * 8
    found = spread.agop(KERNEL, part(z), part(x), part(coef), average=True, diagonal=True)
    products.CHUNK_BYTES = chunk
    assert_close(found, expected.diagonal() / N, depth=29 * N)
    vector = spread.agop(KERNEL, part(z), None, part(z[:, 0]))
    assert_close(vector, KERNEL.agop(z, None, z[:, 0]), depth=N * N)


def _blocks(x, factors, mesh):
    """This process's block of x and of the whole product."""
    rows = counts(x.shape[0], 2 * mesh.size(0))[: mesh.size(0)] if mesh.size(0) > 1 else [x.shape[0]]
    rows[-1] += x.shape[0] - sum(rows)
    own = mesh.get_coordinate()[0]
    here = slice(sum(rows[:own]), sum(rows[: own + 1]))
    return here, spread.kron_columns(factors, mesh), spread.kron_columns(factors, mesh, result=True)


KRONS = [[(4, 4), (2, 3), (4, 8)], [(3, 5), (5, 2)], [(2, 2), (3, 3), (2, 4), (2, 1)], [(4, 3)]]


@check
def kron():
    size = dist.get_world_size()
    for shape in ((1, size), (2, size // 2), (size, 1)):
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("rows", "columns"))
        for shapes in KRONS:
            whole = [normal(*own, seed=place).requires_grad_() for place, own in enumerate(shapes)]
            x = normal(7, math.prod(p for p, _ in shapes), seed=9).requires_grad_()
            weight = normal(7, math.prod(q for _, q in shapes), seed=8)
            expected = km.kron_matmul(x, whole)
            slopes = torch.autograd.grad((expected.square() * weight).sum(), [x, *whole])
            rows, before, after = _blocks(x, whole, mesh)
            mine = x[rows, before].detach().clone().requires_grad_()
            found = spread.kron_matmul(mine, whole, mesh)
            assert_close(found, expected[rows, after], depth=100)
            loss = (found.square() * weight[rows, after]).sum()
            got = torch.autograd.grad(loss, [mine, *whole], create_graph=True)
            assert_close(got[0], slopes[0][rows, before], depth=1000)
            for one, wanted in zip(got[1:], slopes[1:], strict=True):
                assert_close(one, wanted, depth=1000)
            again = torch.autograd.grad(got[0].square().sum(), whole[-1])[0]
            outer = torch.autograd.grad((km.kron_matmul(x, whole).square() * weight).sum(), x, create_graph=True)[0]
            assert_close(again, torch.autograd.grad(outer.square().sum(), whole[-1])[0], depth=100000)


@check
def kron_products_that_disagree_are_an_error_on_every_process():
    size, errors = dist.get_world_size(), km.errors
    last = dist.get_rank() == size - 1
    f, x = normal(4, 4), normal(3, 16 // size)
    mesh = init_device_mesh("cpu", (1, size))
    square = [f, f]
    refuses(
        errors.ShapeError, "must be the same on every process", spread.kron_matmul, x, [f, normal(4, 3 + last)], mesh
    )
    refuses(errors.ShapeError, "must be the same", spread.kron_matmul, x, [f, f.float() if last else f], mesh)
    precise = {"precision": "ieee"} if last else {}
    refuses(errors.ShapeError, "options must be the same", spread.kron_matmul, x, square, mesh, **precise)
    refuses(errors.ShapeError, "as many rows .*3", spread.kron_matmul, x[last:], square, mesh)
    refuses(errors.DtypeError, "one dtype .*float32", spread.kron_matmul, x.float() if last else x, square, mesh)
    kind = errors.ShapeError if last else errors.WorkerError
    refuses(kind, "this one takes|is refused by process", spread.kron_matmul, x[:, last:], square, mesh)
    refuses(kind, "matrices, not|is refused by", spread.kron_matmul, x, [f, f[None] if last else f], mesh)
    assert spread.kron_matmul(x, square, mesh).shape == x.shape
    column = init_device_mesh("cpu", (size, 1))
    own = [f.clone().requires_grad_(), f.clone().requires_grad_(not last)]
    loss = spread.kron_matmul(normal(2, 16), own, column).sum()
    refuses(errors.ShapeError, "gradients of factors differ", loss.backward)


@check
def kron_moves():
    size = dist.get_world_size()
    mesh = init_device_mesh("cpu", (2, size // 2))
    for shapes in KRONS:
        for dtype in (torch.float32, torch.complex128):
            factors = [normal(*own, seed=place).to(dtype) for place, own in enumerate(shapes)]
            x = normal(7, math.prod(p for p, _ in shapes), seed=9).to(dtype)
            local = spread.kron_scatter(x if dist.get_rank() == 0 else None, factors, mesh)
            whole = spread.kron_gather(spread.kron_matmul(local, factors, mesh), factors, mesh)
            if dist.get_rank() == 0:
                expected = km.kron_matmul(x, factors)
                real = [torch.view_as_real(t) if t.is_complex() else t for t in (whole, expected)]
                assert_close(real[0], real[1], depth=100)
            else:
                assert whole is None
    wrong = torch.zeros(2, 3, dtype=torch.float64)
    with pytest.raises(km.errors.ShapeError, match="this one takes"):
        spread.kron_matmul(wrong, [normal(4, 4), normal(4, 4)], mesh)
    with pytest.raises(km.errors.ParameterError, match="needs two"):
        spread.kron_matmul(wrong, [normal(4, 4)], init_device_mesh("cpu", (size,)))


@check
def cg():
    x, b = normal(N, COLUMNS), normal(N, 2, seed=2)
    expected = torch.linalg.solve(KERNEL(x, diagonal=0.1), b)
    operator = spread.operator(KERNEL, part(x), diagonal=0.1)
    plain = spread.cg(operator, part(b), tolerance=1e-13)
    approximate = spread.nystrom(KERNEL, part(x), 20, 0.1)
    better = spread.cg(operator, part(b), tolerance=1e-13, preconditioner=approximate)
    for found in (plain, better):
        assert_close(found.x, part(expected), depth=N * N, magnitude=expected.abs().max() * 1e3)
        assert found.converged.all()
    assert better.iterations < plain.iterations
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, better.history.tolist())
    assert all(each == everyone[0] for each in everyone)


@check
def checkpoints_are_written_by_all_in_the_same_iterations():
    x, b = normal(N, COLUMNS), normal(N, seed=2)
    operator = spread.operator(KERNEL, part(x), diagonal=0.1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fit.pt"
        first = dist.get_rank() == 0
        for every, words in (
            (3 if first else 4, "same number of iterations"),
            (3 if first else 0, "positive number|none on"),
        ):
            with pytest.raises(km.errors.ParameterError, match=words):
                spread.cg(operator, part(b), checkpoint=path, every=every)
        assert not list(Path(folder).iterdir())
        assert spread.cg(operator, part(b), checkpoint=path, every=3, tolerance=1e-10).converged


@check
def cg_is_verified_in_float64():
    """Where float32 cannot see its own rounding: close points, a small ridge."""
    x, b = normal(N, 1) / 8, normal(N, seed=2)
    operator = spread.operator(KERNEL, part(x).float(), diagonal=1e-4)
    assert operator.double().dtype == torch.float64
    wide = KERNEL(x.float().double(), diagonal=1e-4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", km.errors.KernmantleWarning)
        found = spread.cg(operator, part(b).float(), tolerance=1e-5)
    whole = exchange.all_gathered(found.x, counts(N, dist.get_world_size()), None).double()
    side = b.float().double()
    true = (side - wide @ whole).norm() / side.norm()
    assert_close(found.residual, true, depth=N)
    assert bool(found.converged) == bool(true <= 1e-5)


@check
def solves():
    a, b = spd(), normal(N, 2, seed=2)
    general = normal(N, N, seed=7)
    for solve, matrix in ((spread.solve_cholesky, a), (spread.solve_lu, general)):
        mine, side = part(matrix), part(b)
        found = solve(mine, side)
        assert_close(found.x, part(torch.linalg.solve(matrix, b)), depth=N**3)
        assert_close(solve(mine, side[:, 0]).x, part(torch.linalg.solve(matrix, b[:, 0])), depth=N**3)
        assert not found.info
        assert torch.equal(mine, part(matrix))
        assert torch.equal(side, part(b))


@check
def kernel_systems():
    x, y = normal(N, COLUMNS), normal(N, 2, seed=2)
    expected = torch.linalg.solve(KERNEL(x, diagonal=0.1), y)
    size = expected.abs().max() * 1e3
    assert_close(spread.solve_kernel(KERNEL, part(x), part(y), 0.1).x, part(expected), depth=N**2, magnitude=size)
    vector = spread.solve_kernel(KERNEL, part(x), part(y[:, 0]), 0.1)
    assert_close(vector.x, part(expected[:, 0]), depth=N**2, magnitude=size)
    found = spread.solve_kernel(-1 * KERNEL, part(x), part(y), 1e-3)
    assert found.info == 1
    assert found.x.isnan().all()
    with pytest.raises(km.errors.LinearAlgebraError, match="info 1"):
        spread.solve_kernel(-1 * KERNEL, part(x), part(y), 1e-3, check_errors=True)
    whole = exchange.all_gathered(part(x), counts(N, dist.get_world_size()), None)
    assert torch.equal(whole, x)
    kept, cusolvermp.block_of = cusolvermp.block_of, lambda *_: BLOCK
    try:
        given = rows(part(x), "x")
        built = dense._kernel_columns(KERNEL, given, 0.5)
        assert_close(built, KERNEL(x, diagonal=0.5)[Cyclic(given, N, BLOCK).here], depth=COLUMNS)
    finally:
        cusolvermp.block_of = kept


class Gathered:
    """In place of cuSOLVERMp: every process gathers the columns of all and solves the whole."""

    def __init__(self, size):
        self.size = size

    def whole(self, mine, n, width):
        """The matrix (n, width) of the columns that each process holds as rows."""
        parts = [None] * self.size
        dist.all_gather_object(parts, mine)
        found = torch.empty(n, width, dtype=mine.dtype)
        for rank, columns in enumerate(parts):
            found[:, cusolvermp.columns_of(width, rank, self.size, BLOCK)] = columns.mT
        return found

    def _solve(self, solve, a, n, b, width, agree):
        found = solve(self.whole(a, n, n), self.whole(b, n, width), check_errors=False)
        b.copy_(found.x[:, cusolvermp.columns_of(width, dist.get_rank(), self.size, BLOCK)].mT)
        return agree(found.info.reshape(1))

    def solve_cholesky(self, a, n, b, width, agree=int):
        return self._solve(km.linalg.solve_cholesky, a, n, b, width, agree)

    def solve_lu(self, a, n, b, width, agree=int):
        return self._solve(km.linalg.solve_lu, a, n, b, width, agree)

    def eigh(self, a, n, vectors):
        w, v = km.linalg.eigh(self.whole(a, n, n))
        here = cusolvermp.columns_of(n, dist.get_rank(), self.size, BLOCK)
        return cusolvermp.Pairs(w, v[:, here].mT.contiguous() if vectors else None, torch.zeros(1, dtype=torch.int32))


@contextlib.contextmanager
def gathered_grid(given):
    yield Gathered(given.size)


@check
def what_gpus_do():
    """Redistributed to cyclic blocks of columns and back, as for cuSOLVERMp."""
    kept = cusolvermp.block_of, dense.by_all, dense._grid
    cusolvermp.block_of, dense.by_all, dense._grid = (lambda *_: BLOCK), lambda *_: True, gathered_grid
    try:
        solves()
        kernel_systems()
        eigh()
        assert spread.solve_cholesky(part(-spd()), part(normal(N, seed=2))).info == 1
    finally:
        cusolvermp.block_of, dense.by_all, dense._grid = kept


@check
def failures_are_known_to_all():
    found = spread.solve_cholesky(part(-spd()), part(normal(N, seed=2)))
    assert found.info == 1
    assert found.x.isnan().all()
    for wrong in (
        lambda: spread.solve_cholesky(part(-spd()), part(normal(N)), check_errors=True),
        lambda: spread.solve_lu(part(torch.zeros(N, N).double()), part(normal(N)), check_errors=True),
    ):
        with pytest.raises(km.errors.LinearAlgebraError, match="info 1"):
            wrong()


@check
def eigh():
    a = spd()
    w, v = found = spread.eigh(part(a))
    assert_close(w, torch.linalg.eigvalsh(a), depth=N)
    assert v.shape == (N, part(a).shape[0])
    assert_close(a @ v, v * part(w), depth=N * N, magnitude=w[-1])
    assert_close(spread.eigh(part(a), eigvals_only=True), w)
    assert not found.info


@check
def cyclic_columns():
    """The redistribution that GPUs need, with blocks of four columns, at once and in several rounds."""
    kept, cusolvermp.block_of, chunk = cusolvermp.block_of, lambda *_: BLOCK, redistribute.CHUNK
    try:
        a, b = normal(N, N), normal(N, 10, seed=1)
        given = rows(part(a), "a")
        cyclic, sides = Cyclic(given, N, BLOCK), Cyclic(given, 10, BLOCK)
        for redistribute.CHUNK in (chunk, 1 << 12, 1 << 10, 1):
            assert torch.equal(cyclic.columns(part(a)), a.mT[cyclic.here])
            assert torch.equal(cyclic.rows(cyclic.columns(part(a))), part(a))
            assert torch.equal(sides.columns(part(b)), b.mT[sides.here])
            assert torch.equal(sides.rows(sides.columns(part(b))), part(b))
            symmetric = a + a.mT
            dealt = cyclic.of_symmetric(part(symmetric))
            assert torch.equal(dealt, symmetric[cyclic.here])
            assert torch.equal(cyclic.in_order(dealt), part(symmetric))
    finally:
        cusolvermp.block_of, redistribute.CHUNK = kept, chunk


def _trained(wrap):
    """Parameters after a few steps, each process with its share of a batch, and of one process with all of it."""
    torch.manual_seed(0)
    alone = torch.nn.Sequential(
        km.KSLinear(12, 24, [(2, 6, 6, 1), (1, 12, 6, 2)]), torch.nn.GELU(), km.KSLinear(24, 6, [(3, 2, 8, 1)])
    ).double()  # fmt: skip
    ours = copy.deepcopy(alone)
    wrapped = wrap(ours)
    size, rank = dist.get_world_size(), dist.get_rank()
    x, y = normal(8 * size, 12), normal(8 * size, 6, seed=1)
    own = slice(8 * rank, 8 * rank + 8)
    for model, rows_ in ((alone, slice(None)), (wrapped, own)):
        for _ in range(2):
            torch.nn.functional.mse_loss(model(x[rows_]), y[rows_]).backward()
            for parameter in model.parameters():  # torch.optim takes seconds to import
                parameter.data -= 0.1 * parameter.grad
                parameter.grad = None
    return dict(alone.named_parameters()), dict(ours.named_parameters())


@check
def layers_in_data_parallel_training():
    alone, ours = _trained(torch.nn.parallel.DistributedDataParallel)
    for name, value in alone.items():
        assert_close(ours[name].detach(), value.detach(), depth=1000)


@check
def layers_in_sharded_training():
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))

    def wrap(model):
        for layer in model:
            if isinstance(layer, km.KSLinear):
                fully_shard(layer, mesh=mesh)
        return fully_shard(model, mesh=mesh)

    alone, ours = _trained(wrap)
    for name, value in alone.items():
        assert isinstance(ours[name], DTensor)
        assert_close(ours[name].full_tensor().detach(), value.detach(), depth=1000)


@check
def dtensors():
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    x, v, a = normal(N, COLUMNS), normal(N, 2, seed=1), spd()
    even = [distribute_tensor(t, mesh, [Shard(0)]) for t in (x, v, a)]
    result = spread.matmul(KERNEL, even[0], None, even[1])
    assert isinstance(result, DTensor)
    assert_close(result.full_tensor(), KERNEL(x) @ v, depth=N)
    assert spread.gram(KERNEL, even[0]).shape == (N, N)
    whole = distribute_tensor(x, mesh, [Replicate()])
    assert_close(spread.gram(KERNEL, whole, even[0]).full_tensor(), KERNEL(x), depth=N)
    solution = spread.solve_cholesky(even[2], even[1]).x
    assert_close(solution.full_tensor(), torch.linalg.solve(a, v), depth=N**3)
    vectors = spread.eigh(even[2]).v
    assert vectors.shape == (N, N)
    assert vectors.placements == (Shard(1),)
    mine = spread.from_local(part(x), mesh)
    assert mine.shape == x.shape
    assert torch.equal(spread.to_local(mine), part(x))


@check
def bad_input():
    x = part(normal(N, COLUMNS))
    cases = [
        (lambda: spread.matmul(KERNEL, x, None, x[:-1] if len(x) else x), km.errors.ShapeError, "as many rows of v"),
        (lambda: spread.solve_cholesky(x, x), km.errors.ShapeError, "square"),
        (lambda: spread.solve_kernel(KERNEL, x, x, 0.0), km.errors.ParameterError, "ridge"),
        (lambda: spread.eigh(x.int()), km.errors.DtypeError, "float32"),
        (lambda: spread.gram(KERNEL, x.numpy()), km.errors.DtypeError, "tensor"),
        (lambda: spread.gram(KERNEL, x.requires_grad_()), km.errors.GradientError, "gradient"),
        (lambda: spread.cg(KERNEL, x), km.errors.ShapeError, "operator"),
        (lambda: spread.nystrom(KERNEL, x.detach(), 3, 0.0), km.errors.ParameterError, "ridge"),
    ]
    for call, kind, words in cases:
        with pytest.raises(kind, match=words):
            call()
        x = x.detach()


@check
def too_large_to_gather():
    available, alone.available = alone.available, lambda _: 1000
    with pytest.raises(km.errors.OutOfMemoryError, match=r"distributed\.cg"):
        spread.solve_cholesky(part(spd()), part(normal(N)))
    alone.available = available


@check
def blocks_of_the_pages():
    """The programs for torchrun, with gloo in place of NCCL; a mesh of 2 x 2 takes four processes."""
    rank, size = dist.get_rank(), dist.get_world_size()
    x, y, factors = normal(130, COLUMNS), normal(130, seed=1), [normal(4, 4, seed=place) for place in (2, 3)]
    names = {
        "km": km, "torch": torch, "k": KERNEL, "ridge": 0.5, "x": part(x), "y": part(y), "factors": factors,
        "load_my_rows": lambda: (part(x), part(y)), "K_rows": part(KERNEL(x)),
        "x_on_the_first": x[:6, :1].expand(6, 16) if rank == 0 else None,
    }  # fmt: skip
    tried = 0
    with tempfile.TemporaryDirectory() as folder:
        for page in ("distributed", "solvers", "kron"):
            text = (Path(__file__).parents[2] / "docs" / f"{page}.md").read_text(encoding="utf-8")
            for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
                if ">>>" in block or "torchrun" not in block or (size != 4 and "(2, 2)" in block):
                    continue
                own = [
                    line for line in block.splitlines() if "init_process_group" not in line and "set_device" not in line
                ]
                program = "\n".join(own).replace('"cuda"', '"cpu"').replace("fit.pt", f"{folder}/fit.pt")
                exec(program, names)  # noqa: S102
                tried += 1
    assert tried == 3 + (size == 4)
    k = km.Laplace(bandwidth=10.0)
    exact = torch.linalg.solve(k(x, diagonal=1e-2), y)
    assert_close(names["fit"].x, part(exact), depth=10**6)
    assert_close(names["M"], k.agop(x, None, exact), depth=10**6)


def member(folder, rank, size):
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size, timeout=timedelta(seconds=120)
    )
    torch.set_num_threads(1)
    said = {}
    for name, function in CHECKS.items():
        try:
            function()
            said[name] = ""
        except BaseException:  # noqa: BLE001
            said[name] = traceback.format_exc()
        dist.barrier()
    Path(folder, f"said-{rank}").write_text(json.dumps(said))
    dist.destroy_process_group()


def main(folder, size):
    """Fork the members, which so share what was imported, and tell how they ended."""
    members = []
    for rank in range(int(size)):
        child = os.fork()
        if not child:
            status = 1
            try:
                member(folder, rank, int(size))
                status = 0
            except BaseException:  # noqa: BLE001
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(status)
        members.append(child)
    sys.stdout.write(json.dumps([os.waitpid(child, 0)[1] for child in members]) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
