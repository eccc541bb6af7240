"""Kernels where several of their parts meet: batches of diagonals, transforms in solvers, autocast, odd values."""

from __future__ import annotations

import math
import pickle
from importlib import import_module

import pytest
import torch

import kernmantle as km
from kernmantle import errors
from kernmantle.ir.node import var
from kernmantle.testing import assert_close


def rows(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@pytest.mark.parametrize("batch", [(), (3,)])
def test_an_operator_with_a_batch_of_diagonals(batch):
    x, ridge, kernel = rows(*batch, 3, 2), rows(3, seed=1).abs(), km.Gaussian()
    operator = kernel.operator(x, diagonal=ridge)
    dense = kernel(x) + ridge[:, None, None] * torch.eye(3, dtype=x.dtype)
    assert operator.shape == (3, 3, 3)
    assert_close(operator.dense(), dense, depth=8)
    assert_close(operator.diagonal(), dense.diagonal(dim1=-2, dim2=-1), depth=8)
    assert_close(operator.columns([2, 0]), dense[..., [2, 0]], depth=8)
    assert_close(operator @ torch.eye(3, dtype=x.dtype), dense, depth=8)


def test_a_diagonal_that_does_not_broadcast_is_refused_before_anything_runs():
    x, ridge, out = rows(2, 4, 3), rows(3), torch.zeros(2, 4, 4, dtype=torch.float64)
    for call in (
        lambda: km.Gaussian()(x, diagonal=ridge),
        lambda: km.Gaussian()(x, diagonal=ridge, out=out),
        lambda: km.Gaussian().matmul(x, x, rows(4), diagonal=ridge),
        lambda: km.Gaussian().matmul(x, x, rows(4), diagonal=ridge, table=rows(4, 4)),
        lambda: km.Gaussian().operator(x, diagonal=ridge),
    ):
        with pytest.raises(errors.ShapeError, match=r"diagonal has shape \(3,\)"):
            call()
    with pytest.raises(errors.ShapeError, match="out has no such batch"):
        km.Gaussian()(x[0], diagonal=ridge, out=out[0])
    assert not out.any()


@pytest.mark.parametrize("method", ["cholesky", "cg"])
@pytest.mark.parametrize("transform", [rows(3, seed=3).abs() + 0.5, rows(3, 3, seed=4), rows(3, 2, seed=5)], ids=len)
def test_rows_are_transformed_once_in_a_solver(method, transform):
    x, y, kernel = rows(12, 3, seed=1), rows(12, seed=2), km.Laplace(2.0)
    transform = transform.requires_grad_()
    found = km.linalg.solve_kernel(kernel.transformed(transform), x, y, 0.5, method=method, tolerance=1e-12).x
    by_hand = x * transform if transform.dim() == 1 else x @ transform
    expected = torch.linalg.solve(kernel(by_hand) + 0.5 * torch.eye(12, dtype=x.dtype), y)
    assert_close(found, expected, depth=10**5)
    slopes = [torch.autograd.grad(value.square().sum(), transform)[0] for value in (found, expected)]
    assert_close(*slopes, depth=10**6)


@pytest.mark.parametrize("name", ["table", "transform", "centred"])
def test_autocast_leaves_products_in_float32(name):
    x, y, v, table = (rows(*shape, dtype=torch.float32) for shape in ((6, 3), (5, 3), (5, 2), (6, 5)))
    matrix = rows(3, 3, dtype=torch.float32)
    calls = {
        "table": lambda: km.Gaussian().matmul(x, y, v, table=table),
        "transform": lambda: km.Gaussian().transformed(matrix).transformed(matrix).agop(x, y, v),
        "centred": lambda: km.Gaussian().agop(x, y, v, centred=True),
    }
    expected = calls[name]()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = calls[name]()
    assert found.dtype == torch.float32
    assert torch.equal(found, expected)


def test_an_infinite_power_in_a_tensor():
    p = torch.tensor([2.0, math.inf])
    with pytest.raises(
        errors.ParameterError, match=r"p of Laplace must be above 0 and finite everywhere.* only as a num"
    ):
        km.Laplace(1.0, p=p)
    with pytest.raises(errors.ParameterError, match=r"bandwidth of Gaussian .* it has inf"):
        km.Gaussian(torch.tensor(math.inf))
    kernel = km.Laplace(1.0, p=torch.tensor([2.0, 3.0]))
    kernel.hyperparameters["p"].fill_(math.inf)
    assert kernel(rows(4, 3, dtype=torch.float32), rows(5, 3, dtype=torch.float32)).isnan().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_columns_that_do_not_vary_become_zero(dtype):
    x = rows(37, dtype=dtype).expand(7, 37).clone()
    x[:, 3] = rows(7, seed=1, dtype=dtype)
    x.requires_grad_()
    ready, others = km.standardise(x, x + 1)
    steady = [place for place in range(37) if place != 3]
    assert not ready[:, steady].any()
    assert_close(others[:, steady], torch.ones(7, 36, dtype=dtype), depth=4)
    assert_close(ready[:, 3].square().mean(), torch.ones((), dtype=dtype), depth=32)
    (slope,) = torch.autograd.grad(ready.square().sum() + others.sum(), x)
    assert slope.isfinite().all()


@pytest.mark.parametrize("scale", [1e-36, 1e-30, 1e-3, 1e20, 1e37])
def test_columns_of_any_scale_are_standardised(scale):
    """Also where squares of the entries overflow, or are lost."""
    x = (rows(30, 4) * scale).float()
    exact = x.double()
    exact = (exact - exact.mean(0)) / exact.std(0, correction=0)
    assert_close(km.standardise(x), exact, depth=30)
    x.requires_grad_()
    (slope,) = torch.autograd.grad(km.standardise(x)[:, 0].square().sum(), x)
    assert slope.isfinite().all()


def test_lengthscales_on_another_device_are_named():
    x = rows(4, 3)
    with pytest.raises(errors.DeviceError, match="x is on cpu but lengthscales is on meta"):
        km.Gaussian(lengthscales=torch.ones(3, device="meta"))(x)
    with pytest.raises(errors.DeviceError, match="the transform is on meta, x on cpu"):
        km.Gaussian().transformed(torch.ones(3, device="meta"))(x)


@pytest.mark.parametrize("call", [
    lambda x: km.cdist(x, metric="cosine"), lambda x: km.Gaussian()(x[None]), lambda x: km.Linear().agop(x, x, x),
])  # fmt: skip
def test_a_device_without_an_engine(call):
    with pytest.raises(errors.DeviceError, match="no kernels for tensors on meta"):
        call(torch.ones(3, 3, device="meta"))


def test_hyperparameters_are_mapped():
    x, y, v, widths = rows(6, 3), rows(5, 3, seed=1), rows(5, 2, seed=2), torch.tensor([1.3, 2.0, 1.0]).double()
    for of in (
        lambda h: km.Gaussian(h)(x, y),
        lambda h: (0.5 * km.Laplace(h, p=h) + h * km.Gaussian(h)).matmul(x, y, v),
        lambda h: km.Laplace(h, p=1.5).gradient(x, y, v),
        torch.func.grad(lambda s: km.Matern(s).agop(x, y, v).sum()),
    ):
        assert_close(torch.func.vmap(of)(widths), torch.stack([of(h) for h in widths]), depth=64)


WIDTH = torch.nn.Parameter(torch.tensor(1.5))
COMPILED = {
    "matrix": lambda k, x, y, v: k(x, y),
    "one array": lambda k, x, y, v: k(x, diagonal=0.1),
    "batch": lambda k, x, y, v: k(x[None], y),
    "diagonal": lambda k, x, y, v: k.diagonal(x),
    "product": lambda k, x, y, v: k.matmul(x, y, v),
    "gradient": lambda k, x, y, v: k.gradient(x, y, v),
    "outer products": lambda k, x, y, v: k.agop(x, y, v),
    "neighbours": lambda k, x, y, v: k.argkmax(x, y, 2),
}


@pytest.mark.parametrize("name", COMPILED)
def test_a_kernel_made_beforehand_is_compiled_whole(name):
    torch.compiler.reset()
    x, y, v = (rows(*shape, dtype=torch.float32) for shape in ((6, 4), (5, 4), (5, 2)))
    kernel = 0.5 * km.Gaussian(2.0) + km.Laplace(1.5, p=1.3)

    def call(x):
        return COMPILED[name](kernel, x, y, v)

    assert_close(torch.compile(call, backend="aot_eager", fullgraph=True)(x), call(x), depth=16)


def test_a_kernel_from_a_pickle_is_compiled_as_itself():
    torch.compiler.reset()
    x = rows(6, 4, dtype=torch.float32)
    kernel, other = (pickle.loads(pickle.dumps(k)) for k in (km.Cauchy(3.0), km.Linear(2.0)))
    assert kernel.form == km.Cauchy(3.0).form
    assert kernel.form.key == km.Cauchy(2.0).form.key != other.form.key
    for own in (kernel, other):
        found = torch.compile(lambda x, own=own: own(x), backend="aot_eager", fullgraph=True)(x)
        assert_close(found, own(x), depth=16)


@pytest.mark.parametrize("name", ["matrix", "one array", "diagonal"])
def test_gradients_of_a_compiled_kernel(name):
    torch.compiler.reset()
    x, y = rows(6, 4, dtype=torch.float32).requires_grad_(), rows(5, 4, dtype=torch.float32)
    kernel = 0.5 * km.Gaussian(WIDTH) + km.Linear(WIDTH)

    def call(x):
        return COMPILED[name](kernel, x, y, None).square().sum()

    found = torch.autograd.grad(torch.compile(call, backend="aot_eager", fullgraph=True)(x), [x, WIDTH])
    for own, wanted in zip(found, torch.autograd.grad(call(x), [x, WIDTH]), strict=True):
        assert_close(own, wanted, depth=64)


def test_a_compiled_function_that_makes_a_kernel_guards_no_table_of_expressions(monkeypatch):
    """With the table traced, compiling takes longer the more expressions there are: 40 s, not 2 s, after 8000 tests."""
    torch.compiler.reset()
    kept = [var(f"variable {i}") for i in range(64)]
    x, y, seen = rows(6, 4, dtype=torch.float32), rows(5, 4, dtype=torch.float32), []
    builder = import_module("torch._dynamo.variables.builder").VariableBuilder
    wrap = builder._wrap

    def watched(self, value):
        if isinstance(value, dict):
            seen.append(len(value))
        return wrap(self, value)

    monkeypatch.setattr(builder, "_wrap", watched)

    def call(x):
        return (0.5 * km.Gaussian(2.0) + km.Laplace(1.5, p=1.3))(x, y)

    assert_close(torch.compile(call, backend="aot_eager")(x), call(x), depth=16)
    assert seen
    assert max(seen) < len(kept)


@pytest.mark.parametrize("name", ["product", "gradient"])
def test_what_keeps_its_memory_bound_runs_beside_the_compiled_graph(name):
    torch.compiler.reset()
    x, y, v = (rows(*shape, dtype=torch.float32) for shape in ((6, 4), (5, 4), (5, 2)))
    x.requires_grad_()

    def call(x):
        return COMPILED[name](km.Gaussian(2.0), x, y, v).square().sum()

    (found,) = torch.autograd.grad(torch.compile(call, backend="aot_eager")(x), x)
    assert_close(found, torch.autograd.grad(call(x), x)[0], depth=64)


def test_operators_of_tensors_and_what_is_scaled_are_its_own():
    x, y, v, number = rows(6, 3), rows(5, 3, seed=1), rows(4, seed=2), rows(1, seed=3)[0]
    kernel, matrix = km.Gaussian(), km.KroneckerProduct([rows(2, 2), rows(2, 2, seed=4)])
    entries, dense = kernel(x, y), matrix.to_dense()
    for own, wanted in (
        (number * kernel, number * entries),
        (kernel * number, number * entries),
        (number + kernel, number + entries),
        (number - kernel, number - entries),
        (kernel - number, entries - number),
        (kernel / number, entries / number),
        (number / kernel, number / entries),
        (number.numpy() * kernel, number * entries),
    ):
        assert isinstance(own, km.Kernel)
        assert_close(own(x, y), wanted, depth=8)
    total = number * matrix + matrix
    for own, wanted in (
        (v @ matrix, v @ dense),
        (matrix @ v, dense @ v),
        ((number * matrix).matmul(v), number * (dense @ v)),
        (v @ total, (number + 1) * (v @ dense)),
        ((number * total) @ v, number * (number + 1) * (dense @ v)),
    ):
        assert_close(own, wanted, depth=16)
    for wrong in (
        lambda: v + matrix,
        lambda: torch.exp(kernel),
        lambda: v.clone().mul_(kernel),
    ):
        with pytest.raises(TypeError):
            wrong()


def test_products_of_no_points_under_transforms():
    kernel, nothing, v = km.Matern(1.0, nu=1.5), torch.zeros(0, 3), torch.zeros(0, 2)

    def product(x, v):
        return kernel.matmul(x, x, v)

    assert torch.func.vmap(product)(nothing[None][:0], v[None][:0]).shape == (0, 0, 2)
    assert torch.func.hessian(lambda v: product(nothing, v).square().sum())(v).shape == (0, 2, 0, 2)
    compiled = torch.compile(product, backend="aot_eager", fullgraph=True)
    assert compiled(nothing, v).shape == (0, 2)
