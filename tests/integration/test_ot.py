"""Sinkhorn transport: values, plans and derivatives against dense iterations, linear programs and differences."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment
from torch.autograd import gradcheck, gradgradcheck

import kernmantle as km
from kernmantle.errors import (
    DeviceError,
    DtypeError,
    GradientError,
    KernmantleWarning,
    LinearAlgebraError,
    ParameterError,
    ShapeError,
)
from kernmantle.testing import assert_close

from ..arrays import normal as rows

EXACT = {"tolerance": 1e-13, "max_iterations": 10_000}


def weights(*shape, seed=0, dtype=torch.float64):
    return rows(*shape, seed=seed + 100).softmax(-1).to(dtype)


def logsumexp(terms, axis):
    top = terms.max(axis, keepdims=True)
    return np.log(np.exp(terms - top).sum(axis)) + top.squeeze(axis)


def dense(c, a, b, eps, rho=None, steps=2000):
    """Value, potentials and plan by the iteration on the matrix, and the objective of the problem itself."""
    c, a, b = (np.asarray(t, float) for t in (c, a, b))
    f, g, damping = np.zeros_like(a), np.zeros_like(b), 1 if rho is None else rho / (rho + eps)
    with np.errstate(divide="ignore"):
        la, lb = np.log(a), np.log(b)
    for _ in range(steps):
        f = -damping * eps * logsumexp(lb + (g - c) / eps, axis=1)
        g = -damping * eps * logsumexp(la[:, None] + (f[:, None] - c) / eps, axis=0)
    plan = np.exp(la[:, None] + lb + (f[:, None] + g - c) / eps)

    def entropy(p, q):
        return (np.where(p > 0, p * np.log(np.where(p > 0, p, 1) / np.where(q > 0, q, 1)), 0) - p + q).sum()

    value = (plan * c).sum() + eps * entropy(plan, np.outer(a, b))
    if rho is not None:
        value += rho * (entropy(plan.sum(1), a) + entropy(plan.sum(0), b))
    return value, f, g, plan


def l1(x, y):
    return abs(x - y)


COSTS = {
    "default": ({}, lambda d: (d**2).sum(-1)),
    "metric": ({"cost": "minkowski", "p": 1.5}, lambda d: (abs(d) ** 1.5).sum(-1) ** (1 / 1.5)),
    "lambda": ({"cost": l1}, lambda d: abs(d).sum(-1)),
    "kernel": ({"cost": km.Kernel(lambda x, y, p: abs(x - y) ** p, p=1.2)}, lambda d: (abs(d) ** 1.2).sum(-1)),
    "contraction": (
        {"cost": km.Contraction("ik,jk->ij", lambda x, y: abs(x - y), reduce="max", epilogue=lambda s: s * 2)},
        lambda d: 2 * abs(d).max(-1),
    ),
}


@pytest.mark.parametrize("rho", [None, 0.7])
@pytest.mark.parametrize("name", COSTS)
def test_every_cost(name, rho):
    options, formula = COSTS[name]
    x, y, a, b = rows(11, 3), rows(13, 3, seed=1) + 0.5, weights(11), weights(13, seed=1)
    c = formula(x[:, None].numpy() - y.numpy())
    for eps in (c.max() / 4, c.max() / 20) if name == "default" else (c.max() / 8,):
        value, f, g, plan = dense(c, a, b, eps, rho)
        found = km.ot.sinkhorn(x, y, a, b, eps=eps, rho=rho, **options, **EXACT)
        assert found.converged
        assert_close(found.value, value, depth=4000)
        assert_close(found.f[:, None] + found.g, f[:, None] + g, depth=100_000, magnitude=c.max())
        v, w = rows(13, 2, seed=2), rows(11, seed=3)
        assert_close(found.plan @ v, plan @ v.numpy(), depth=100_000, magnitude=1)
        assert_close(found.plan.T @ w, plan.T @ w.numpy(), depth=100_000, magnitude=1)
        assert_close(found.plan.cost(), (plan * c).sum(), depth=100_000)
        for one, other in zip(found.plan.marginals(), (plan.sum(1), plan.sum(0)), strict=True):
            assert_close(one, other, depth=100_000)


def test_costs_that_are_all_the_same_may_have_any_eps():
    x, y = torch.zeros(4, 2), torch.ones(3, 2)
    assert_close(km.ot.sinkhorn(x, y, eps=1e-12).value, torch.tensor(2.0, dtype=torch.float64), depth=4)


def test_small_eps_is_an_assignment():
    x, y = rows(12, 2), rows(12, 2, seed=1)
    c = ((x[:, None] - y) ** 2).sum(-1).numpy()
    i, j = linear_sum_assignment(c)
    found = km.ot.sinkhorn(x, y, eps=2e-3, max_iterations=20_000, tolerance=1e-4)
    assert ((found.plan @ torch.eye(12, dtype=x.dtype)).argmax(1).numpy()[i] == j).all()
    assert 0 <= found.plan.cost() - c[i, j].mean() + 1e-3 < 2e-3
    assert found.value - c[i, j].mean() < 2e-3 * np.log(12) + 1e-4


def test_debiased_is_a_divergence():
    x, y, a, b = rows(9, 2), rows(11, 2, seed=1), weights(9), weights(11, seed=1)
    squares = lambda s, t: ((s[:, None] - t) ** 2).sum(-1).numpy()  # noqa: E731
    for rho in (None, 1.5):
        scale = torch.tensor(1.0 if rho is None else 1.3, dtype=torch.float64)
        terms = [dense(squares(s, t), u, w, 1.0, rho, 4000)[0] for s, t, u, w in
                 ((x, y, a, scale * b), (x, x, a, a), (y, y, scale * b, scale * b))]  # fmt: skip
        want = terms[0] - (terms[1] + terms[2]) / 2
        want += 0 if rho is None else 1.0 * (1 - float(scale)) ** 2 / 2
        found = km.ot.sinkhorn(x, y, a, scale * b, eps=1.0, rho=rho, debiased=True, **EXACT)
        assert_close(found.value, want, depth=10_000)
        assert_close(km.ot.sinkhorn(x, x, a, a, eps=1.0, rho=rho, debiased=True, **EXACT).value + 1, 1.0, depth=1000)
    skewed = km.ot.sinkhorn(x.exp(), x.exp(), a, a, eps=3.0, cost="kl", debiased=True, **EXACT)
    assert_close(skewed.value + 1, 1.0, depth=10_000)


def test_batches_are_single_problems():
    x, y, a = rows(2, 1, 8, 2), rows(3, 9, 2, seed=1), weights(2, 3, 8)
    found = km.ot.sinkhorn(x, y, a, eps=0.5, **EXACT)
    assert found.value.shape == found.error.shape == (2, 3)
    assert found.f.shape == (2, 3, 8)
    assert found.plan.shape == (2, 3, 8, 9)
    v = rows(9, 4, seed=3)
    for i in range(2):
        for j in range(3):
            one = km.ot.sinkhorn(x[i, 0], y[j], a[i, j], eps=0.5, **EXACT)
            assert_close(found.value[i, j], one.value, depth=1000)
            assert_close((found.plan @ v)[i, j], one.plan @ v, depth=10_000, magnitude=1)


def test_weights_of_zero_leave_points_out():
    x, y = rows(12, 2), rows(14, 2, seed=1)
    a, b = weights(12), weights(14, seed=1)
    a[8:], b[9:], x[8:], y[9:] = 0, 0, 50.0, 50.0
    a, b = a / a.sum(), b / b.sum()
    short = km.ot.sinkhorn(x[:8], y[:9], a[:8], b[:9], eps=0.1, **EXACT)
    tensors = [t.clone().requires_grad_() for t in (x, y, a, b)]
    found = km.ot.sinkhorn(*tensors, eps=0.1, **EXACT)
    assert_close(found.value, short.value, depth=1000)
    entries = found.plan @ torch.eye(14, dtype=x.dtype)
    assert (entries[8:] == 0).all()
    assert (entries[:, 9:] == 0).all()
    slopes = torch.autograd.grad(found.value, tensors)
    assert_close(slopes[2] - slopes[2][0], found.f - found.f[0], depth=100_000, magnitude=found.f.abs().max().item())
    assert_close(slopes[3] - slopes[3][0], found.g - found.g[0], depth=100_000, magnitude=found.g.abs().max().item())
    for slope in torch.autograd.grad((entries @ y).square().sum(), tensors):
        assert slope.isfinite().all()
        assert slope.abs().sum() > 0


@pytest.mark.parametrize("rho", [None, 2.0])
def test_derivatives(rho):
    x, y = rows(7, 2).requires_grad_(), rows(8, 2, seed=1).requires_grad_()
    a, b = rows(7, seed=2).requires_grad_(), rows(8, seed=3).requires_grad_()
    eps = torch.tensor(1.5, dtype=torch.float64, requires_grad=True)
    p = torch.tensor(1.7, dtype=torch.float64, requires_grad=True)
    v, inputs = rows(8, 2, seed=4), (x, y, a, b, eps, p)

    def run(x, y, a, b, eps, p, debiased=False):
        cost = km.Kernel(lambda x, y, p: abs(x - y) ** p, p=p)
        options = {"cost": cost, "rho": rho, "debiased": debiased, **EXACT}
        return km.ot.sinkhorn(x, y, a.softmax(0), b.softmax(0), eps=eps, **options)

    def everything(*tensors):
        found = run(*tensors, debiased=True)
        return found.value, found.plan @ v, found.f, found.g, found.plan.cost()

    assert gradcheck(everything, inputs, fast_mode=True)
    assert gradgradcheck(lambda *t: run(*t).value, inputs, fast_mode=True)
    with pytest.raises(GradientError, match="first order, the value of the second"):
        torch.autograd.grad((run(*inputs).plan @ v).sum(), x, create_graph=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_types(dtype):
    x, y = rows(30, 3, dtype=dtype).requires_grad_(), rows(40, 3, seed=1, dtype=dtype)
    c = ((x.detach().double()[:, None] - y.double()) ** 2).sum(-1)
    value, _, _, plan = dense(c, torch.full((30,), 1 / 30), torch.full((40,), 1 / 40), 0.5)
    found = km.ot.sinkhorn(x, y, eps=0.5, tolerance=1e-6)
    assert found.value.dtype == torch.float32
    assert_close(found.value, value, depth=1000)
    slope = torch.autograd.grad(found.value, x)[0]
    assert slope.dtype == dtype
    wanted = 2 * (plan.sum(1)[:, None] * x.detach().double().numpy() - plan @ y.double().numpy())
    assert_close(slope, wanted, depth=10_000, magnitude=abs(wanted).max())


def test_numpy_comes_back():
    found = km.ot.sinkhorn(rows(5, 2).numpy(), rows(6, 2).numpy(), eps=0.5)
    kinds = found.value, found.f, found.g, found.error, found.converged, found.plan @ np.ones(6), found.plan.cost()
    assert all(isinstance(array, (np.ndarray, np.generic)) for array in kinds)
    assert "Plan(5, 6)" in repr(found)


def test_what_does_not_converge_says_so():
    x, y = rows(20, 2), rows(20, 2, seed=1)
    with pytest.warns(KernmantleWarning, match="Sinkhorn stopped after 3 iterations of 3"):
        found = km.ot.sinkhorn(x, y, eps=0.01, max_iterations=3, scaling=1)
    assert not found.converged
    assert found.iterations == 3
    with pytest.raises(LinearAlgebraError, match="raise max_iterations"):
        km.ot.sinkhorn(x, y, eps=0.01, max_iterations=3, check_errors=True)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a peak that is the process's own is Linux's to tell")
def test_memory(tmp_path):
    """The matrix of costs would take 324 MB, one block of it in a backward pass 64 MB.

    The first step compiles, so that the compiler's own memory is never part of the second one's.
    """
    code = """
import re, torch, warnings
import kernmantle as km
def peak():
    return int(re.findall(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[0])
warnings.simplefilter("ignore")
x, y = torch.randn(9000, 3).requires_grad_(), torch.randn(9000, 3)
def step(x, y):
    found = km.ot.sinkhorn(x, y, eps=10.0, max_iterations=2, scaling=1)
    found.value.backward()
    return found.plan @ y
step(x[:100], y[:100])
before = peak()
step(x, y)
print(peak() - before)
"""
    result = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=300,
        env={**os.environ, "KERNMANTLE_CACHE_DIR": str(tmp_path)},
    )  # fmt: skip
    assert int(result.stdout) * 1024 < 150e6


X, Y = rows(5, 2), rows(6, 2, seed=1)
NAN = X.clone()
NAN[2, 1] = torch.nan


@pytest.mark.parametrize(
    ("arguments", "options", "error", "words"),
    [
        ((X, Y), {"eps": 0}, ParameterError, "eps must be a positive number"),
        ((X, Y), {"eps": -1.0}, ParameterError, "eps must be a positive number"),
        ((X, Y), {"eps": torch.tensor(-1.0, requires_grad=True)}, ParameterError, "eps must be a positive number"),
        ((X, Y), {"eps": torch.ones(3)}, ParameterError, "eps is one number"),
        ((X, Y), {"eps": True}, ParameterError, "eps must be a positive number, not True"),
        ((X, Y), {"eps": 1e-18}, ParameterError, "lose by rounding in float64"),
        ((X.float(), Y.float()), {"eps": 1e-8}, ParameterError, "in float32, 1"),
        ((X, None), {}, DtypeError, "y is None"),
        ((X, Y), {"debiased": "yes"}, ParameterError, "debiased= is True or False"),
        ((X, Y), {"check_errors": "no"}, ParameterError, "check_errors= is True or False"),
        ((X, Y), {"cost": np.ones((5, 6))}, ParameterError, "cost= is the name of a metric"),
        ((X, Y), {"cost": lambda a, b: (a - b, a)}, ParameterError, "cost= is one number of a pair of rows"),
        ((X, Y), {"cost": km.Gaussian}, ParameterError, "cost=km.Gaussian makes kernels"),
        ((X, Y), {"rho": True}, ParameterError, "rho must be a positive number"),
        ((X, Y), {"rho": 0.0}, ParameterError, "rho must be a positive number"),
        ((X, Y), {"rho": torch.ones((), requires_grad=True)}, GradientError, "no gradient by rho"),
        ((X, Y), {"scaling": 1.5}, ParameterError, "scaling must be"),
        ((X, Y), {"tolerance": 0}, ParameterError, "tolerance must be a positive number"),
        ((X, Y), {"max_iterations": 0}, ParameterError, "max_iterations"),
        ((X, Y[:, :1]), {}, ShapeError, "the same number of columns"),
        ((X, Y[:0]), {}, ShapeError, "nothing to transport"),
        ((X, Y, torch.ones(4)), {}, ShapeError, "a must have a weight for each of 5 rows"),
        ((X, Y, None, torch.ones(5)), {}, ShapeError, "b must have a weight for each of 6 rows"),
        ((X[None].expand(2, -1, -1), Y[None].expand(3, -1, -1)), {}, ShapeError, "batch axes do not broadcast"),
        ((X, Y, torch.tensor([0.5, 0.5, 0.5, -0.5, 0.0])), {}, ParameterError, "not negative"),
        ((X, Y, torch.zeros(5)), {"rho": 1.0}, ParameterError, "not all 0"),
        ((X, Y, torch.ones(5)), {}, ParameterError, "sums that differ"),
        ((NAN, Y), {}, ParameterError, "costs are not finite"),
        ((X, Y.to("meta")), {}, DeviceError, "y is on meta"),
        ((X + 0j, Y), {}, DtypeError, "complex"),
        ((X, Y), {"cost": "euclidian"}, ParameterError, "euclidean"),
        ((X, Y), {"cost": "dot"}, ParameterError, "inner products are large"),
        ((X, Y), {"cost": km.Gaussian(1.0)}, ParameterError, "is large there"),
        ((X, Y), {"cost": l1, "p": 3}, ParameterError, "p= is an option of metrics"),
        ((X, Y), {"cost": "mahalanobis", "debiased": True}, ParameterError, "pass VI="),
        ((X.clone().requires_grad_(), Y), {"cost": "hamming"}, GradientError, "no gradient"),
    ],
)
def test_errors(arguments, options, error, words, monkeypatch):
    module = import_module("kernmantle.ot.sinkhorn")
    monkeypatch.setattr(module, "solve", lambda *_: pytest.fail("a half step was made"))
    with pytest.raises(error) as raised:
        km.ot.sinkhorn(*arguments, **{"eps": 0.5, **options})
    assert words in str(raised.value)


def test_transforms_are_refused():
    with pytest.raises(GradientError, match=r"leading axes for batches"):
        torch.func.vmap(lambda x: km.ot.sinkhorn(x, Y, eps=0.5).value)(X[None])
    with pytest.raises(ShapeError, match="v must have a row for each of the 6 columns"):
        _ = km.ot.sinkhorn(X, Y, eps=0.5).plan @ torch.ones(5)
