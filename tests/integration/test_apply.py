"""Products with a kernel's matrix and reductions of its rows, fused: values, derivatives, memory, what ran."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import kernmantle as km
from kernmantle.pairwise import KERNELS
from kernmantle.testing import assert_close
from kernmantle.torch_ops import row_reduce_blocks, row_reduce_one_block

from ..arrays import normal as rows
from ..kernel_oracles import ORACLES, SETTINGS

NAMES = sorted(KERNELS)
DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}
REDUCTIONS = {
    "sum": lambda k: k.sum(-1), "max": lambda k: k.max(-1), "min": lambda k: k.min(-1),
    "logsumexp": lambda k: np.log(np.exp(k).sum(-1)),
}  # fmt: skip


@pytest.fixture(params=["llvm", pytest.param("cuda", marks=pytest.mark.cuda)])
def device(request):
    return {"llvm": "cpu"}.get(request.param, request.param)


def singles(device, *shapes):
    return [rows(*shape, seed=i, dtype=torch.float32, device=device) for i, shape in enumerate(shapes)]


def matrix(kernel, x, y):
    """The kernel's matrix in float64, by the evaluator that defines it."""
    with km.config(backend="reference"):
        return kernel(x.double().cpu(), y.double().cpu()).numpy()


@pytest.mark.parametrize(
    ("name", "dtype"),  # in other types, one of each kind of map: the rest of a product is the same for all
    [
        *((name, "float32") for name in NAMES),
        *itertools.product(
            ("Gaussian", "Laplace", "Linear", "Matern", "Cosine", "Periodic", "NTK"), ["float64", "bfloat16"]
        ),
    ],
)
def test_every_kernel(name, dtype, device):
    settings = SETTINGS[name][-1]
    x, y = (rows(count, 3, seed=count, dtype=DTYPES[dtype], device=device) for count in (35, 259))
    v = rows(259, 2, seed=1, dtype=DTYPES[dtype], device=device)
    kernel = getattr(km, name)(**settings)
    k = ORACLES[name](x.double().cpu().numpy(), y.double().cpu().numpy(), **settings)
    exact = v.double().cpu().numpy()
    result = kernel.matmul(x, y, v)
    assert result.dtype == DTYPES[dtype]
    assert_close(result, k @ exact, depth=259, magnitude=np.abs(k) @ np.abs(exact))
    assert_close(kernel.matmul(x, y, v[:, 0]), (k @ exact)[:, 0], depth=259, magnitude=np.abs(k) @ np.abs(exact[:, 0]))
    assert "product ran as " in kernel.info
    assert "apply product" in kernel.info


@pytest.mark.parametrize("k", [0, 1, 3, 16, 17, 33, 300])
@pytest.mark.parametrize("how", [*REDUCTIONS, "product"])
def test_columns_of_x(how, k, device):
    x, y = rows(70, k, device=device, dtype=torch.float32) / 4, rows(131, k, seed=1, device=device, dtype=torch.float32)
    kernel = 0.5 * km.Laplace(9.0) + km.Gaussian(4.0)
    v = rows(131, 5, seed=2, device=device, dtype=torch.float32)
    found = kernel.matmul(x, y, v) if how == "product" else getattr(kernel, how)(x, y)
    entries = matrix(kernel, x, y)
    exact = entries @ v.double().cpu().numpy() if how == "product" else REDUCTIONS[how](entries)
    assert_close(found, exact, depth=131 + k)


@pytest.mark.parametrize("c", [1, 2, 3, 8, 9, 17, 40, 200])
def test_columns_of_v(c, device):
    kernel = km.Matern(2.0, nu=2.5)
    for k in (3, 40):
        x, y, v = singles(device, (90, k), (140, k), (140, c))
        assert_close(kernel.matmul(x, y, v), matrix(kernel, x, y) @ v.double().cpu().numpy(), depth=140 + k)
        assert_close(kernel.matmul(x, y, v.mT.contiguous().mT), kernel.matmul(x, y, v), depth=140)


@pytest.mark.parametrize(("m", "n"), [(1, 1), (1, 300), (9, 2), (128, 128), (129, 257), (1030, 3), (2, 5000)])
def test_extents(m, n, device):
    kernel = km.Laplace(9.0)
    for k in (2, 40):
        x, y, v = singles(device, (m, k), (n, k), (n, 3))
        entries = matrix(kernel, x, y)
        assert_close(kernel.matmul(x, y, v), entries @ v.double().cpu().numpy(), depth=n + k)
        assert_close(kernel.max(x, y), entries.max(-1), depth=k)
        values, places = kernel.argkmax(x, y, min(n, 5), return_values=True)
        assert_close(values, -np.sort(-entries, -1)[:, :5], depth=k)
        assert_close(values, np.take_along_axis(entries, places.cpu().numpy(), -1), depth=k)


def test_strides_and_expanded_arrays(device):
    kernel = km.Gaussian(2.0)
    x, y, v = rows(60, 4, device=device), rows(90, 4, seed=1, device=device), rows(90, 3, seed=2, device=device)
    want = kernel.matmul(x, y, v)
    assert_close(kernel.matmul(x.mT.contiguous().mT, y.repeat(2, 1)[:90], v.repeat(1, 2)[:, :3]), want, depth=90)
    assert_close(kernel.matmul(x[:1].expand(60, 4), y, v), want[:1].expand(60, 3), depth=90)
    same = v[:1].expand(90, 3)
    assert_close(kernel.matmul(x, y, same), matrix(kernel, x, y) @ same.cpu().numpy(), depth=90)
    assert_close(kernel.matmul(x.flip(0), y.flip(1), v).flip(0), kernel.matmul(x, y.flip(1), v), depth=90)


def test_batches(device):
    x, y, v = (rows(*s, seed=i, device=device) for i, s in enumerate([(2, 1, 19, 3), (3, 41, 3), (41, 2)]))
    kernel = km.Cauchy(torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64, device=device))
    dense = kernel(x, y)
    assert_close(kernel.matmul(x, y, v), dense @ v, depth=64)
    assert_close(kernel.logsumexp(x, y), dense.logsumexp(-1), depth=64)
    assert torch.equal(kernel.argkmax(x, y, 3), dense.topk(3).indices)
    wide = rows(4, 5, 41, 2, seed=4, device=device)
    assert_close(km.Cauchy(2.0).matmul(x[0, 0], y[0], wide), km.Cauchy(2.0)(x[0, 0], y[0]) @ wide, depth=64)
    lengths = km.Gaussian(1.5, lengthscales=rows(3, seed=5, device=device).abs() + 0.5)
    assert_close(lengths.matmul(x, y, v), lengths(x, y) @ v, depth=64)


def test_nan_and_infinity(device):
    x, y = rows(40, 3, device=device), rows(50, 3, seed=1, device=device)
    v = rows(50, 2, seed=2, device=device)
    x[3, 1] = y[7, 2] = torch.nan
    kernel = km.Laplace(2.0)
    assert kernel.matmul(x, y, v).isnan().all()
    assert kernel.max(x, y).isnan().all()
    assert kernel.logsumexp(x, y).isnan().all()
    rest = kernel.matmul(x, y[8:], v[8:])
    assert rest[3].isnan().all()
    assert rest.isnan().sum() == 2
    places = kernel.argkmax(x[:3], y, 50)
    assert (places[:, -1] == 7).all()
    v[9] = torch.inf
    assert (kernel.matmul(x[:3], y[8:], v[8:]) == torch.inf).all()
    far = torch.full_like(x, torch.inf)
    assert (kernel.matmul(far, y[8:], v[10:][:1].expand(42, 2)) == 0).all()


def test_signs_of_zeros_are_kept(device):
    kernel = lambda q: km.Kernel(lambda a, b: abs(a - b) + 1, lambda s, q: s / q, q=q)  # noqa: E731
    x = torch.ones(40, 3, device=device)
    assert [kernel(q).sum(x, x)[0].item() for q in (0.0, -0.0, 0.0)] == [np.inf, -np.inf, np.inf]


def test_of_half_precision_sums_are_not(device):
    for dtype in (torch.float16, torch.bfloat16):
        x, y = rows(33, 5, dtype=dtype, device=device), rows(3000, 5, seed=1, dtype=dtype, device=device)
        v = torch.ones(3000, dtype=dtype, device=device)
        kernel = km.Gaussian(3.0)
        entries = matrix(kernel, x, y)
        assert_close(kernel.matmul(x, y, v), entries.sum(-1), depth=3000)
        assert_close(kernel.sum(x, y), entries.sum(-1), depth=3000)


def test_any_number_of_threads_gives_the_same_bits():
    x, y, v = (rows(*s, seed=i, dtype=torch.float32) for i, s in enumerate([(700, 5), (900, 5), (900, 2)]))
    found = []
    for threads in (1, 2, 3):
        with km.config(threads=threads):
            found.append(km.Laplace(2.0).matmul(x, y, v))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_blocks_of_the_matrix_agree(monkeypatch):
    x, y, v = rows(30, 5), rows(40, 5, seed=1), rows(40, 2, seed=2)
    kernel = km.Laplace(2.0)

    def everything():
        return [kernel.matmul(x, y, v), *(getattr(kernel, how)(x, y) for how in REDUCTIONS)]

    fused = everything()
    places = kernel.argkmax(x, y, 4)
    for size in (8 * 1300, 8 * 40 * 7, 8 * 9):
        monkeypatch.setitem(row_reduce_blocks.BLOCK_BYTES, "cpu", size)
        with km.config(backend="reference"):
            blocks = everything()
            assert torch.equal(kernel.argkmax(x, y, 4), places)
        assert "blocks of the matrix" in kernel.info
        for one, other in zip(fused, blocks, strict=True):
            assert_close(one, other, depth=64)


@pytest.mark.parametrize("how", ["matmul", "sum", "max", "min", "logsumexp"])
def test_derivatives(how, reference, monkeypatch):
    monkeypatch.setattr(row_reduce_one_block.blocks, "LARGEST", row_reduce_one_block.COPIES * 8 * 30)
    x, y, v = (rows(*s, seed=i).requires_grad_() for i, s in enumerate([(17, 2), (9, 2), (9, 2)]))
    bandwidth = torch.tensor(1.3, dtype=torch.float64, requires_grad=True)
    lengths = torch.tensor([0.7, 1.6], dtype=torch.float64, requires_grad=True)

    def function(x, y, v, bandwidth, lengths):
        kernel = km.Gaussian(bandwidth, lengthscales=lengths) + bandwidth * km.Linear()
        return kernel.matmul(x, y, v) if how == "matmul" else getattr(kernel, how)(x, y)

    assert gradcheck(function, (x, y, v, bandwidth, lengths), fast_mode=True)
    assert gradgradcheck(function, (x, y, v, bandwidth, lengths), fast_mode=True)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_gradients_of_the_kernel_are_those_of_the_matrix(dtype, device):
    x, y, v = (
        rows(*s, seed=i, device=device, dtype=DTYPES[dtype]).requires_grad_()
        for i, s in enumerate([(40, 3), (300, 3), (300, 2)])
    )
    bandwidth = torch.tensor(2.0, dtype=torch.float64, device=device, requires_grad=True)
    cotangent = rows(40, 2, seed=5, device=device, dtype=DTYPES[dtype])
    result = km.Laplace(bandwidth).matmul(x, y, v)
    found = torch.autograd.grad(result, (x, y, v, bandwidth), cotangent)
    wide = [value.detach().double().requires_grad_() for value in (x, y, v, bandwidth)]
    with km.config(backend="reference"):
        dense = km.Laplace(wide[3])(wide[0], wide[1]) @ wide[2]
        exact = torch.autograd.grad(dense, wide, cotangent.double())
    for one, other, depth in zip(found, exact, (600, 80, 40, 24000), strict=True):
        assert_close(one, other, dtype=dtype, depth=depth, magnitude=other.abs().max())


def test_gradients_where_entries_tie():
    x = torch.zeros(9, 1, dtype=torch.float64, requires_grad=True)
    y = torch.tensor([[1.0], [-1.0], [2.0]], dtype=torch.float64, requires_grad=True)
    km.Gaussian(1.0).max(x, y).sum().backward()
    slope = np.exp(-0.5) / 2
    assert_close(y.grad, [[-9 * slope], [9 * slope], [0.0]])
    assert_close(x.grad, np.zeros((9, 1)))


def test_transforms(reference):
    kernel = 0.5 * km.Gaussian(2.0) + km.Laplace(1.5)
    x, y, v = (rows(*s, seed=i) for i, s in enumerate([(4, 9, 3), (11, 3), (11, 2)]))

    def fused(x, v=v):
        return kernel.matmul(x, y, v).square().sum() + kernel.logsumexp(x, y).sum() + kernel.max(x, y).sum()

    def dense(x, v=v):
        matrix = kernel(x, y)
        return (matrix @ v).square().sum() + matrix.logsumexp(-1).sum() + matrix.amax(-1).sum()

    for transform in (
        torch.func.grad, torch.func.jacfwd, torch.func.hessian,
        lambda f: lambda x: torch.func.jvp(torch.func.grad(f), (x,), (x.cos(),))[1],
    ):  # fmt: skip
        assert_close(transform(fused)(x[0]), transform(dense)(x[0]), depth=512)
        assert_close(torch.func.vmap(transform(fused))(x), torch.stack([transform(dense)(one) for one in x]), depth=512)
    vs = rows(5, 11, 2, seed=7)
    found = torch.func.vmap(torch.func.grad(fused, argnums=1), in_dims=(None, 0))(x[0], vs)
    assert_close(found, torch.stack([torch.func.grad(dense, argnums=1)(x[0], one) for one in vs]), depth=512)


def test_mapped_over_batches(device):
    kernel = km.Laplace(1.5)
    x, y, v = (rows(*s, seed=i, device=device) for i, s in enumerate([(4, 19, 3), (11, 3), (5, 11, 2)]))
    found = torch.func.vmap(lambda v: torch.func.vmap(lambda x: kernel.matmul(x, y, v))(x))(v)
    assert_close(found, kernel(x, y) @ v[:, None], depth=32)
    assert torch.equal(torch.func.vmap(lambda x: kernel.argkmax(x, y, 2))(x), kernel(x, y).topk(2).indices)
    gradients = torch.func.vmap(torch.func.grad(lambda x: kernel.matmul(x, y, v[0]).sum()))(x)
    x.requires_grad_()
    assert_close(gradients, torch.autograd.grad((kernel(x, y) @ v[0]).sum(), x)[0], depth=64)


def test_the_operator_of_the_dispatcher(device):
    kernel = km.Laplace(1.5)
    calls = []
    x, y, v = (rows(*s, seed=i, device=device) for i, s in enumerate([(20, 3), (11, 3), (11, 2)]))

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            calls.append((function, args))
            return function(*args, **(kwargs or {}))

    with Watch():
        kernel.matmul(x, y, v)
        kernel.argkmax(x, y, 2)
    recorded = [args for function, args in calls if function is torch.ops.kernmantle.apply.default]
    assert len(recorded) == 2
    for args in recorded:
        torch.library.opcheck(torch.ops.kernmantle.apply.default, args)


@pytest.mark.cuda
@pytest.mark.parametrize("c", [1, 3, 16, 17])
def test_rows_that_pass_in_bands(c):
    x, y, v = singles("cuda", (17000, 1024), (2100, 1024), (2100, c))
    kernel = km.Laplace(400.0)
    found = kernel.matmul(x, y, v)
    parts = [kernel.matmul(some, y, v) for some in x.split(3000)]
    assert_close(found, torch.cat(parts), depth=2100)
    picked = [0, 127, 128, 8447, 8448, 16895, 16896, 16999]
    assert_close(found[picked], matrix(kernel, x[picked], y) @ v.double().cpu().numpy(), depth=2100 + 1024)


@pytest.mark.cuda
def test_products_are_replayed_from_a_graph():
    x, y, v = singles("cuda", (500, 7), (700, 7), (700, 3))
    kernel = km.Laplace(9.0)
    calls = [lambda: kernel.matmul(x, y, v), lambda: kernel.logsumexp(x, y), lambda: kernel.argkmax(x, y, 3)]
    once = [call() for call in calls]
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        captured = [call() for call in calls]
    v.mul_(2)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(captured[0], 2 * once[0])
    assert torch.equal(captured[1], once[1])
    assert torch.equal(captured[2], once[2])


@pytest.mark.cuda
def test_squared_differences_of_many_numbers_by_products():
    x, y, v = singles("cuda", (2100, 256), (2300, 256), (2300, 2))
    kernel = km.Gaussian(16.0)
    exact = matrix(kernel, x, y) @ v.double().cpu().numpy()
    hopper = torch.cuda.get_device_capability() == (9, 0)
    for precision, route in ((None, "blocks of the matrix" if hopper else "product ran as"), ("ieee", "apply product")):
        with km.config(precision=precision):
            assert_close(kernel.matmul(x, y, v), exact, depth=2300 + 256)
        assert route in kernel.info


@pytest.mark.cuda
def test_neighbours_of_many_numbers_by_products():
    x, y = singles("cuda", (2100, 384), (2300, 384))
    kernel = km.Gaussian(16.0)
    exact = torch.exp(-torch.cdist(x.double(), y.double()).square() / 512).sort(1, descending=True).values.cpu()
    for precision in (None, "ieee"):
        with km.config(precision=precision):
            values, places = kernel.argkmax(x, y, 5, return_values=True)
        assert_close(values, exact[:, :5], depth=384)
        assert_close(kernel(x, y).gather(1, places), exact[:, :5], depth=384)
    assert (kernel(x, x).argmax(1) == kernel.argkmax(x, x, 1)[:, 0]).all()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a peak that is the process's own is Linux's to tell")
@pytest.mark.parametrize("tabled", [False, True])
def test_memory_of_a_large_product(tabled, tmp_path):
    """The first product compiles, so that the compiler's own memory is never part of the second one's."""
    code = """
import re, sys, torch
import kernmantle as km
def peak():
    return int(re.findall(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[0])
x, v = torch.randn(20000, 20), torch.randn(20000)
table = torch.rand(20000, 1).expand(-1, 20000) if "tabled" in sys.argv else None
km.Laplace(10.0).matmul(x[:300], x[:300], v[:300], table=None if table is None else table[:300, :300])
before = peak()
km.Laplace(10.0).matmul(x, None, v, table=table)
print(peak() - before)
"""
    command = [sys.executable, "-c", code, *["tabled"] * tabled]
    own = {**os.environ, "KERNMANTLE_CACHE_DIR": str(tmp_path)}
    result = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300, env=own)
    assert int(result.stdout) * 1024 < 100e6


def test_neighbours_agree_with_sorted_distances(device):
    x, y = rows(50, 4, device=device), rows(300, 4, seed=1, device=device)
    for options in ({}, {"p": 1}, {"p": 1.3, "w": rows(4, seed=3, device=device).abs()}, {"metric": "mahalanobis"}):
        exact = km.cdist(x.cpu(), y.cpu(), **{k: v.cpu() if hasattr(v, "cpu") else v for k, v in options.items()})
        values, places = km.argkmin(x, y, 6, return_values=True, **options)
        assert torch.equal(places.cpu(), exact.topk(6, largest=False).indices)
        assert_close(values, exact.topk(6, largest=False).values, depth=16)
    assert torch.equal(km.argkmin(x, x, 1)[:, 0].cpu(), torch.arange(50))


def test_values_of_neighbours_have_gradients(device):
    x, y = rows(12, 3, device=device).requires_grad_(), rows(9, 3, seed=1, device=device).requires_grad_()
    h = torch.tensor(1.3, dtype=torch.float64, device=device, requires_grad=True)
    assert gradcheck(lambda x, y: km.argkmin(x, y, 2, return_values=True)[0], (x, y), fast_mode=True)
    assert gradcheck(
        lambda x, y, h: (km.NTK() * km.Gaussian(h)).argkmax(x, y, 2, return_values=True)[0], (x, y, h), fast_mode=True
    )
    found = torch.func.jacrev(lambda x: km.argkmin(x, y.detach(), 2, return_values=True)[0])(x.detach())
    assert found.shape == (12, 2, 12, 3)
