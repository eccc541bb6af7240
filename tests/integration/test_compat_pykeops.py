"""``kernmantle.compat.pykeops`` against dense arrays of torch in float64, and the calls that other libraries make."""

from __future__ import annotations

import itertools
import math
import pickle
import random
import sys
from functools import partial

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import kernmantle as km
from kernmantle.compat.pykeops import replay
from kernmantle.compat.pykeops import solve as solve_module
from kernmantle.compat.pykeops.expression import Leaf
from kernmantle.compat.pykeops.torch import (
    Genred,
    KernelSolve,
    LazyTensor,
    Pm,
    Vi,
    Vj,
    cluster,
    generic_argkmin,
    generic_argmin,
    generic_logsumexp,
    generic_sum,
)
from kernmantle.errors import DtypeError, GradientError, OutputError, ParameterError, ShapeError
from kernmantle.testing import assert_close
from kernmantle.torch_ops import row_reduce_autograd

M, N, D = 6, 7, 3


def rows(*shape, seed=0, low=-1.0):
    generator = torch.Generator().manual_seed(seed)
    return low + (1 - low) * torch.rand(*shape, generator=generator, dtype=torch.float64)


X, Y, B, C = rows(M, D), rows(N, D, seed=1), rows(N, 2, seed=2), rows(M, 1, seed=3, low=0.5)
XD, YD = X[:, None, :], Y[None, :, :]
DIFF = XD - YD


def pair():
    return LazyTensor(XD), LazyTensor(YD)


def dense(e, width):
    """All entries of a LazyTensor, by sums with the columns of an identity matrix."""
    entries = [(e * Vj(torch.eye(N, dtype=torch.float64)[:, j : j + 1])).sum(dim=1) for j in range(N)]
    return torch.stack(entries, 1).expand(M, N, width)


def norm(t):
    return t.norm(dim=-1, keepdim=True)


FUNCTIONS = {
    "exp": torch.exp, "log": lambda t: t.abs().log(), "xlogx": lambda t: torch.special.xlogy(t.abs(), t.abs()),
    "cos": torch.cos, "sin": torch.sin, "sinxdivx": lambda t: torch.sinc(t / math.pi), "sinc": torch.sinc,
    "asin": lambda t: (t / 2).asin(), "acos": lambda t: (t / 2).acos(), "atan": lambda t: (9 * t).atan(),
    "sqrt": lambda t: t.abs().sqrt(), "rsqrt": lambda t: t.abs().rsqrt(), "abs": torch.abs, "sign": torch.sign,
    "step": lambda t: (t >= 0).double(), "relu": torch.relu, "square": torch.square, "normalize": lambda t: t / norm(t),
    "sqnorm2": lambda t: norm(t) ** 2, "norm2": norm, "round": torch.round,
}  # fmt: skip
ARGUMENTS = {"log": abs, "xlogx": abs, "sqrt": abs, "rsqrt": abs, "asin": lambda e: e / 2.0, "acos": lambda e: e / 2.0,
             "atan": lambda e: 9 * e}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function(name, reference):
    x, y = pair()
    e = ARGUMENTS.get(name, lambda e: e)(x - y)
    expected = FUNCTIONS[name](DIFF)
    found = getattr(e, name)()
    assert found.shape == (M, N, D)[: 2 + (expected.shape[-1] > 1)]
    assert_close(dense(found, expected.shape[-1]), expected, depth=64)
    assert_close(found.sum(dim=0), expected.sum(0), depth=64)


FORMULAS = {
    "arithmetic": (lambda x, y: 2 - (1 / (3 + x * y)) * -x / 4.0 + 0.5 * y,
                   lambda x, y: 2 + x / (3 + x * y) / 4 + y / 2),
    "powers": (lambda x, y: (x - y) ** 2 + (x - y) ** 3 + abs(x - y) ** 0.5 + abs(x - y).power(1.3),
               lambda x, y: (x - y) ** 2 + (x - y) ** 3 + (x - y).abs() ** 0.5 + (x - y).abs() ** 1.3),
    "power by a variable": (lambda x, y: abs(x) ** (y + 2), lambda x, y: x.abs() ** (y + 2)),
    "scalar product": (lambda x, y: (x | y), lambda x, y: (x * y).sum(-1, keepdim=True)),
    "clamp": (lambda x, y: (x - y).clamp(-0.2, 1) + (x * y).clamp(0, y), lambda x, y: (x - y).clamp(-0.2, 1)
              + torch.where(x * y < 0, 0, torch.where(x * y > y, y, x * y))),
    "ifelse": (lambda x, y: (x - y).ifelse(x, -y), lambda x, y: torch.where(x >= y, x, -y)),
    "comparisons": (lambda x, y: (x < y) + 2 * (x >= y) + (x == x) + 5 * (x != y) + 7 * (x <= 0.2) + 9 * (y > 0.1),
                    lambda x, y: (x < y) + 2.0 * (x >= y) + 1 + 5 * (x != y) + 7 * (x <= 0.2) + 9 * (y > 0.1)),
    "mod": (lambda x, y: (5 * x).mod(2, 1) + y.mod(0.3), lambda x, y: 5 * x - 2 * ((5 * x - 1) / 2).floor() + y % 0.3),
    "round": (lambda x, y: (x - y).round(1), lambda x, y: (x - y).round(decimals=1)),
    "atan2": (lambda x, y: x.atan2(y), torch.atan2),
    "sqdist": (lambda x, y: x.sqdist(y) + x.weightedsqdist(y, [2.0]) + x.weightedsqdist(y, [1.0, 2.0, 3.0]),
               lambda x, y: ((x - y) ** 2 * torch.tensor([4.0, 5.0, 6.0])).sum(-1, keepdim=True)),
    "matrix weights": (lambda x, y: (x - y).weightedsqnorm([2.0, 1, 0, 1, 3, 1, 0, 1, 4]),
                       lambda x, y: ((x - y) @ torch.tensor([[2.0, 1, 0], [1, 3, 1], [0, 1, 4]]).double()
                                     * (x - y)).sum(-1, keepdim=True)),
    "components": (lambda x, y: (x - y)[0] * (x * y)[:, :, 1:3] + x.elem(2),
                   lambda x, y: (x - y)[..., :1] * (x * y)[..., 1:] + x[..., 2:]),
    "concatenation": (lambda x, y: LazyTensor.cat((x, x | y, y[1:]), -1),
                      lambda x, y: torch.cat([x + 0 * y, (x * y).sum(-1, True), y[..., 1:] + 0 * x[..., 1:]], -1)),
    "one hot": (lambda x, y: (1.6 * (x | y)).one_hot(4),
                lambda x, y: ((1.6 * (x * y).sum(-1, True) + 0.5).floor() == torch.arange(4)).double()),
    "tensor product": (lambda x, y: x.tensorprod(y), lambda x, y: (x[..., :, None] * y[..., None, :]).flatten(-2)),
    "matrix by vector": (lambda x, y: x.tensorprod(y[:2]).matvecmult(y[1:]),
                         lambda x, y: x * (y[..., :2] * y[..., 1:]).sum(-1, keepdim=True)),
    "vector by matrix": (lambda x, y: x[:2].vecmatmult(x[1:].tensorprod(y)),
                         lambda x, y: (x[..., :2] * x[..., 1:]).sum(-1, keepdim=True) * y),
    "tensordot": (lambda x, y: x.tensorprod(y).keops_tensordot(y, (3, 3), (3,), (0,), (0,)),
                  lambda x, y: (x * y).sum(-1, keepdim=True) * y),
    "tensordot in order": (lambda x, y: x.tensorprod(y).keops_tensordot(y, (3, 3), (3,), (), (), (1, 2, 0)),
                           lambda x, y: torch.einsum("mna,mnb,mnc->mncab", x.expand(M, N, 3), y.expand(M, N, 3),
                                                     y.expand(M, N, 3)).flatten(-3)),
    "kron": (lambda x, y: x.tensorprod(x).keops_kron(y, [3, 3], [1, 3]), lambda x, y: torch.einsum(
        "mna,mnb,mnc->mnabc", x.expand(M, N, 3), x.expand(M, N, 3), y.expand(M, N, 3)).flatten(-3)),
    "extremes of components": (lambda x, y: (x * y).max() - (x + y).min(dim=2) + (x * y).argmax(),
                               lambda x, y: (x * y).amax(-1, True) - (x + y).amin(-1, True) + (x * y).argmax(-1, True)),
    "sums of several lengths": (lambda x, y: (x | y) * (x[:2] - y[:2]).norm(-1) + abs(x - y)[0],
                                lambda x, y: (x * y).sum(-1, True) * norm((x - y)[..., :2]) + (x - y)[..., :1].abs()),
    "a sum inside another": (lambda x, y: ((x - y).normalize() | y) + ((x - y).norm2() * x).exp().sum(-1),
                             lambda x, y: ((x - y) / norm(x - y) * y).sum(-1, True)
                             + (norm(x - y) * x).exp().sum(-1, True)),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMULAS)
def test_every_operation(name, reference):
    lazy, exact = FORMULAS[name]
    e, expected = lazy(*pair()), exact(XD, YD).double()
    expected = expected.expand(M, N, expected.shape[-1])
    for axis in (0, 1):
        assert_close(e.sum(dim=axis), expected.sum(axis), depth=64)
        assert_close(e.max(dim=axis), expected.amax(axis), depth=64)


KERNELS = {
    "one reduction": (lambda x, y: (-((x - y) ** 2).sum(-1) / 2).exp(), lambda x, y: (-norm(x - y) ** 2 / 2).exp()),
    "components": (lambda x, y: (x - y).sin(), lambda x, y: (x - y).sin()),
    "without a sum": (lambda x, y: (x[0] - y[1]) * abs(x[2]),
                      lambda x, y: (x[..., :1] - y[..., 1:2]) * x[..., 2:].abs()),
    "split": (lambda x, y: (-x.sqdist(y)).exp() * (x - y), lambda x, y: (-norm(x - y) ** 2).exp() * (x - y)),
    "blocks": (lambda x, y: ((x - y).norm2() * x).exp().sum(-1), lambda x, y: (norm(x - y) * x).exp().sum(-1, True)),
    "over i": (lambda x, y: (x | x) + 1.0, lambda x, y: norm(x) ** 2 + 1),
}  # fmt: skip


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("name", KERNELS)
def test_every_reduction(name, axis):
    lazy, exact = KERNELS[name]
    e, k = lazy(*pair()), exact(XD, YD)
    assert_close(e.sum(axis=axis), k.sum(axis), depth=64)
    assert_close(e.min(axis=axis), k.amin(axis), depth=64)
    assert_close(e.logsumexp(dim=axis), k.logsumexp(axis), depth=64)
    if k.shape[axis] == 1:
        return
    values, places = e.Kmin_argKmin(2, dim=axis)
    expected = k.topk(2, axis, largest=False)
    wanted = expected.values.movedim(axis, -2)
    assert_close(values, wanted.squeeze(-1) if k.shape[-1] == 1 else wanted, depth=64)
    assert torch.equal(e.argKmin(2, dim=axis), places)
    assert torch.equal(e.argmin(dim=axis), k.argmin(axis))
    assert torch.equal(e.argmax(dim=axis), k.argmax(axis))
    assert_close(e.min_argmin(dim=axis)[0], k.amin(axis), depth=64)
    assert_close(e.max_argmax(dim=axis)[0], k.amax(axis), depth=64)
    assert e.info


def test_weights(reference):
    x, y = pair()
    e, k = -x.sqdist(y), -(norm(DIFF) ** 2)
    weights = rows(N, 2, seed=5, low=0.1)
    assert_close(e.logsumexp(dim=1, weight=Vj(weights)), (k.exp() * weights).sum(1).log(), depth=64)
    assert_close(e.logsumexp(dim=0, weight=Vi(C)), (k.exp() * C[:, None]).sum(0).log(), depth=64)
    assert_close(e.sumsoftmaxweight(Vj(B), dim=1), k.squeeze(-1).softmax(1) @ B, depth=64)
    assert_close((1e4 * e).sumsoftmaxweight(x - y, dim=1), ((1e4 * k).softmax(1) * DIFF).sum(1), depth=64)
    assert_close((e - 1e4).logsumexp(dim=1, weight=Vj(weights)), (k.exp() * weights).sum(1).log() - 1e4, depth=64)
    nothing = (e + Vi(torch.full((M, 1), -math.inf, dtype=torch.float64))).logsumexp(dim=1, weight=Vj(weights[:, :1]))
    assert (nothing == -math.inf).all()


def test_sums_of_differences_far_from_the_origin():
    x, y = (rows(9, 3, seed=s).float() + 1000 for s in (0, 1))
    found = ((-Vi(x).sqdist(Vj(y))).exp() * (Vi(x) - Vj(y))).sum(dim=1)
    diff = x[:, None].double() - y.double()
    k = (-(diff**2).sum(-1, keepdim=True)).exp()
    assert_close(found, (k * diff).sum(1), depth=64, magnitude=(k * diff.abs()).sum(1))


def draw(generator, depth, parts):
    """A random formula and what it is on dense arrays."""
    if depth == 0:
        return generator.choice(parts)
    name = generator.choice(["add", "sub", "mul", "exp", "abs", "sum", "sqdist", "dot", "sin", "slice", "bounded"])
    a, exact = draw(generator, depth - 1, parts)
    if name in ("exp", "abs", "sin"):
        return getattr(a.sin(), name)(), getattr(exact.sin(), name)()
    if name == "sum":
        return a.sum(-1), exact.sum(-1, keepdim=True)
    if name == "bounded":
        return a / (1.0 + a * a), exact / (1 + exact**2)
    if name == "slice":
        return a[: a.ndim // 2 + 1], exact[..., : a.ndim // 2 + 1]
    b, other = draw(generator, depth - 1, parts)
    if a.ndim != b.ndim:
        a, exact = a.sum(-1), exact.sum(-1, keepdim=True)
    if name == "sqdist":
        return a.sqdist(b), ((exact - other) ** 2).sum(-1, keepdim=True)
    if name == "dot":
        return (a * b).sum(-1), (exact * other).sum(-1, keepdim=True)
    return {"add": (a + b, exact + other), "sub": (a - b, exact - other), "mul": (a * b, exact * other)}[name]


def test_random_formulas(reference):
    generator = random.Random(0)
    x, y = pair()
    parts = [
        (x, XD),
        (y, YD),
        (x, XD),
        (y, YD),
        (Vi(C), C[:, None]),
        (Pm([0.5, -1.0, 2.0]), torch.tensor([0.5, -1, 2]).double()),
    ]
    for _ in range(24):
        e, exact = draw(generator, 3, parts)
        exact = exact.expand(M if e.ni else 1, N if e.nj else 1, e.ndim)
        if not e._e.axes:
            continue
        depth, size = 4096, exact.abs()
        assert_close(e.sum(dim=1), exact.sum(1), depth=depth, magnitude=size.sum(1) + 1)
        assert_close(e.sum(dim=0), exact.sum(0), depth=depth, magnitude=size.sum(0) + 1)
        assert_close(e.max(dim=1), exact.amax(1), depth=depth, magnitude=size.amax() + 1)


@pytest.mark.parametrize("name", ["one reduction", "components", "without a sum", "split", "blocks"])
def test_derivatives(name, reference):
    lazy, _ = KERNELS[name]
    x, y, b = (t[:2].clone().requires_grad_() for t in (X, Y, B[:, :1]))

    def function(x, y, b):
        e = lazy(Vi(x), Vj(y)) * Vj(b)
        return e.sum(dim=1), e.logsumexp(dim=0), e.min(dim=1)

    assert gradcheck(function, (x, y, b), fast_mode=True)
    assert gradgradcheck(lambda *args: function(*args)[:2], (x, y, b), fast_mode=True)


def test_derivatives_of_weighted_and_smallest(reference):
    x, y, w = (t[:4].clone().requires_grad_() for t in (X, Y, rows(4, 2, seed=7, low=0.2)))

    def function(x, y, w):
        e = -Vi(x).sqdist(Vj(y))
        weighted = e.logsumexp(dim=1, weight=Vj(w)), e.sumsoftmaxweight(Vj(w), dim=1)
        return *weighted, e.Kmin(2, dim=1), e.Kmin(2, dim=0), e.max_argmax(dim=1)[0]

    assert gradcheck(function, (x, y, w), fast_mode=True)
    assert gradgradcheck(function, (x, y, w), fast_mode=True)


def test_transforms_of_functions(reference):
    def lazy(x, y, b):
        return Genred("Exp(-SqDist(x, y)) * b", ["x = Vi(3)", "y = Vj(3)", "b = Vj(2)"], axis=1)(x, y, b)

    def exact(x, y, b):
        return (-((x[..., :, None, :] - y[..., None, :, :]) ** 2).sum(-1)).exp() @ b

    xs = rows(2, M, D)
    assert_close(torch.vmap(lazy, (0, None, None))(xs, Y, B), exact(xs, Y, B), depth=64)
    for transform in (torch.func.jacrev, torch.func.jacfwd):
        assert_close(transform(lazy)(X[:2], Y, B), transform(exact)(X[:2], Y, B), depth=64)
    wanted = torch.func.hessian(lambda x: exact(x, Y, B).sum())(X[:2])
    assert_close(torch.func.hessian(lambda x: lazy(x, Y, B).sum())(X[:2]), wanted, depth=256)


def test_batches(reference):
    x, y, b = rows(2, 1, M, D), rows(4, N, D, seed=1), rows(2, 4, N, 2, seed=2)
    s = rows(2, 1, 1, 1, 1, seed=3, low=0.5)
    e = (-(LazyTensor(x[:, :, :, None, :]) - LazyTensor(y[:, None, :, :])).square().sum(-1) / LazyTensor(s)).exp()
    k = (-((x[..., :, None, :] - y[..., None, :, :]) ** 2).sum(-1) / s[..., 0]).exp()
    assert e.shape == (2, 4, M, N)
    assert e.nbatchdims == 2
    assert_close(e @ b, k @ b, depth=64)
    assert_close(e.sum(dim=2)[..., 0], k.sum(2), depth=64)
    assert_close(e.T @ rows(M, 1), k.mT @ rows(M, 1), depth=64)
    diff = (LazyTensor(x[:, :, :, None, :]) - LazyTensor(y[:, None, :, :])).sin()
    assert_close(diff.sum(dim=3), (x[..., :, None, :] - y[..., None, :, :]).sin().sum(3), depth=64)
    found = e.argKmin(3, dim=3)
    assert torch.equal(found, k.topk(3, -1, largest=False).indices)
    f = Genred("Exp(-SqDist(x, y)) * b", ["x = Vi(3)", "y = Vj(3)", "b = Vj(2)"], axis=1)
    assert_close(f(x, y, b), (-((x[..., :, None, :] - y[..., None, :, :]) ** 2).sum(-1)).exp() @ b, depth=64)


def test_operators_on_both_sides():
    x, y = pair()
    e = (x - y).sqnorm2()
    k = norm(DIFF)[..., 0] ** 2
    assert_close(e @ B, k @ B, depth=64)
    assert_close(e @ B[:, 0], k @ B[:, 0], depth=64)
    assert_close(e.T @ C[:, 0], k.T @ C[:, 0], depth=64)
    assert_close(e.rmatvec(C[:, 0]), k.T @ C[:, 0], depth=64)
    assert_close((YD - x).sqnorm2() @ B, k @ B, depth=64)
    assert_close(((torch.tensor(2.0).double() * e) + XD[..., :1]) @ B, (2 * k + X[:, :1]) @ B, depth=64)
    assert "product" in e.info
    assert "product" in repr(e)


def test_formulas_as_text(reference):
    p, b = torch.tensor([0.5], dtype=torch.float64), B
    k = (-0.5 * norm(DIFF) ** 2).exp()
    f = Genred("Exp(-p*SqDist(x,y))*b", ["p = Pm(1)", "x = Vi(3)", "y = Vj(3)", "b = Vj(2)"], axis=1)
    assert_close(f(p, X, Y, b), (k * b).sum(1), depth=64)
    assert "ran as" in repr(f)
    heterogeneous = Genred("Square(p-Var(3,1,1))*Exp(-SqNorm2(y-x))", ["p=Pm(0,1)", "x=Vi(1,3)", "y=Vj(2,3)"], axis=1)
    exact = ((0.5 - b[:, :1]) ** 2 * (-(norm(DIFF) ** 2)).exp()).sum(1)
    assert_close(heterogeneous(p, X, Y, b[:, :1]), exact, depth=64)
    split = Genred(
        "Pow((X|Y),2) * ((Elem(P,0) * X) + (Elem(P,1) * Y))", ["P = Pm(2)", "X = Vi(3)", "Y = Vj(3)"], axis=1
    )
    s = (X @ Y.T)[..., None] ** 2
    assert_close(split(torch.tensor([2.0, 3.0]).double(), X, Y), (s * (2 * XD + 3 * YD)).sum(1), depth=64)
    softmax = Genred("SqDist(x,y)", ["x=Vi(3)", "y=Vj(3)"], "SumSoftMaxWeight", axis=1, formula2="y")
    assert_close(softmax(X, Y), ((norm(DIFF) ** 2).softmax(1) * YD).sum(1), depth=64)
    lse = generic_logsumexp(
        "(B - (P * (SqDist(X,Y) / IntCst(2)) ) )", "A = Vi(1)", "X = Vi(3)", "Y = Vj(3)", "B = Vj(1)", "P = Pm(1)"
    )
    exact = (b[:, :1] - 0.25 * norm(DIFF) ** 2).logsumexp(1)
    assert_close(lse(X, Y, b[:, :1], p), exact, depth=64)
    total = generic_sum("(SqNorm2(x) < SqNorm2(y)) * Concat(x, y)", "a = Vj(6)", "x = Vi(3)", "y = Vj(3)")
    less = norm(XD) < norm(YD)
    assert_close(total(X, Y), (less * torch.cat([XD + 0 * YD, YD + 0 * XD], -1)).sum(0), depth=64)
    nearest = generic_argkmin("SqDist(x,y)", "a = Vi(2)", "x = Vi(3)", "y = Vj(3)")
    assert torch.equal(nearest(X, Y), norm(DIFF)[..., 0].topk(2, 1, largest=False).indices)
    assert torch.equal(generic_argmin("SqDist(x,y)", "a=Vj(1)", "x=Vi(3)", "y=Vj(3)")(X, Y), norm(DIFF).argmin(0))


DIFFERENTIABLE = {
    "sums": "Exp(-SqDist(x, y)) * (x - y) + Norm2(x) * y",
    "components": "Concat(Elem(x, 2) * Extract(x * y, 0, 2), (x | y) / (IntCst(9) + Elem(x, 0)))",
    "matrices": "MatVecMult(TensorProd(x, y), Normalize(x))",
    "one": "Pow(Elem(x, 0), 3) + Sum(Abs(x)) * Elem(y, 1)",
}


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_symbolic_derivatives(name, reference):
    formula, aliases = DIFFERENTIABLE[name], ["x = Vi(3)", "y = Vj(3)"]
    x = X.clone().requires_grad_()
    values = Genred(formula, aliases, axis=1)(x, Y)
    e, u = rows(M, values.shape[-1], seed=8), rows(M, 3, seed=9)
    (exact,) = torch.autograd.grad(values, x, e)
    found = Genred(f"Grad({formula}, x, e)", [*aliases, f"e = Vi({values.shape[-1]})"], axis=1)(X, Y, e)
    assert_close(found, exact, depth=256)
    found = Genred(f"Diff({formula}, x, u)", [*aliases, "u = Vi(3)"], axis=1)(X, Y, u)
    _, exact = torch.func.jvp(lambda x: Genred(formula, aliases, axis=1)(x, Y), (X,), (u,))
    assert_close(found, exact, depth=256)


def test_symbolic_derivatives_of_tensors(reference):
    x, y = pair()
    e = (x[:2] * y[1:]).sum(-1).exp()
    leaf = X.clone().requires_grad_()
    exact = (leaf[:, None, :2] * YD[..., 1:]).sum(-1, keepdim=True).exp().sum(1)
    (exact,) = torch.autograd.grad(exact.sum(), leaf)
    assert_close(e.grad(x, 1).sum(dim=1), exact, depth=256)
    nothing = Genred("Grad(Grad(x + Var(1,3,1), x, Var(2,3,0)), x, Var(3,3,0))", ["x=Vi(0,3)"], axis=1)
    assert torch.equal(nothing(X, Y, X, X), torch.zeros_like(X))
    with pytest.raises(ParameterError, match="one variable"):
        e.grad(x - y, 1)
    with pytest.raises(ParameterError, match="built from"):
        e.grad(Vi(X), 1)
    with pytest.raises(GradientError, match="autograd"):
        (x * y).max().grad(x, 1)


def test_symbolic_variables(reference):
    x, y, f, p = Vi(0, 3), Vj(1, 3), Vj(2, 1), Pm(3, 1)
    softmin = (f - p * x.sqdist(y)).logsumexp(dim=1)
    number = torch.tensor([2.0], dtype=torch.float64)
    exact = (B[:, :1] - 2 * norm(DIFF) ** 2).logsumexp(1)
    assert_close(softmin(X, Y, B[:, :1], number), exact, depth=64)
    with pytest.raises(ParameterError, match="4 arrays"):
        softmin(X, Y)
    with pytest.raises(ShapeError, match="D = 3"):
        softmin(X[:, :2], Y, B[:, :1], number)
    with pytest.raises(ParameterError, match="reduction already"):
        softmin.exp()


def test_ranges(reference):
    r_i, r_j = torch.tensor([[0, 2], [2, 5]]), torch.tensor([[0, 3], [3, 4], [4, 7]])
    keep = torch.tensor([[True, False, True], [False, True, False]])
    ranges = cluster.from_matrix(r_i, r_j, keep)
    mask = torch.zeros(M, N, 1, dtype=torch.bool)
    for (i, j), used in np.ndenumerate(keep.numpy()):
        mask[slice(*r_i[i]), slice(*r_j[j])] = bool(used)
    x, y = Vi(X.clone().requires_grad_()), Vj(Y)
    e = (-x.sqdist(y)).exp()
    e.ranges = ranges
    k = (-(norm(DIFF) ** 2)).exp()
    assert_close(e.sum(dim=1), (k * mask).sum(1), depth=64)
    assert_close((e + 1).sum(dim=0), ((k + 1) * mask).sum(0), depth=64)
    assert_close(e.T @ C, (k * mask)[..., 0].T @ C, depth=64)
    assert_close(e.logsumexp(dim=1), k.masked_fill(~mask, -math.inf).logsumexp(1), depth=64)
    assert_close(e.min(dim=0), k.masked_fill(~mask, math.inf).amin(0), depth=64)
    found = e.argmin(dim=1)[:5]
    assert torch.equal(found, k.masked_fill(~mask, math.inf).argmin(1)[:5])
    (slope,) = torch.autograd.grad((e @ B).sum(), [leaf.tensor for leaf in [x.formula]])
    leaf = X.clone().requires_grad_()
    dense_e = (-((leaf[:, None] - Y) ** 2).sum(-1, keepdim=True)).exp() * mask
    assert_close(slope, torch.autograd.grad((dense_e[..., 0] @ B).sum(), leaf)[0], depth=64)


def test_clusters():
    x = torch.tensor([[0.0], [0.1], [0.9], [0.05], [0.5]])
    labels = cluster.grid_cluster(x, 0.2)
    assert labels.tolist() == [0, 0, 2, 0, 1]
    ranges, centroids, weights = cluster.cluster_ranges_centroids(x, labels, torch.ones(5))
    assert ranges.tolist() == [[0, 3], [3, 4], [4, 5]]
    assert_close(centroids, np.array([[0.05], [0.5], [0.9]]), depth=8)
    assert weights.tolist() == [3, 1, 1]
    (points, same), order = cluster.sort_clusters((x, x), labels)
    assert points.squeeze(1).tolist() == x[[0, 1, 3, 4, 2], 0].tolist()
    assert order.tolist() == [0, 0, 0, 1, 2]
    assert torch.equal(points, same)
    wide = cluster.grid_cluster(rows(50, 5), 0.5)
    assert wide.max() < 50


def test_numpy():
    from kernmantle.compat.pykeops import numpy as keops
    from kernmantle.compat.pykeops.numpy import cluster as array_cluster

    x, y, b = X.numpy(), Y.numpy(), np.asfortranarray(B.numpy())
    e = (-((keops.LazyTensor(x[:, None, :]) - keops.LazyTensor(y[None, :, :])) ** 2).sum(2)).exp()
    k = np.exp(-((x[:, None] - y) ** 2).sum(-1))
    assert isinstance(e @ b, np.ndarray)
    assert_close(e @ b, k @ b, depth=64)
    assert_close((x[:, None, :] * keops.Vj(y)).sum(axis=1), (x[:, None] * y).sum(1), depth=64)
    assert e.argmin(axis=1).dtype == np.int64
    values, places = e.Kmin_argKmin(2, axis=0)
    assert_close(values, np.sort(k.T, 1)[:, :2], depth=64)
    assert isinstance(places, np.ndarray)
    f = keops.Genred("Exp(-SqDist(x,y))*b", ["x=Vi(3)", "y=Vj(3)", "b=Vj(2)"], axis=1)
    b.flags.writeable = False
    assert_close(f(x[::-1], y, b)[::-1], k @ b, depth=64)
    out = np.empty((M, 2))
    assert f(x, y, b, out=out) is not None
    assert_close(out, k @ b, depth=64)
    labels = array_cluster.grid_cluster(x, 0.5)
    assert isinstance(labels, np.ndarray)
    assert len(array_cluster.cluster_centroids(x, labels)) == labels.max() + 1
    from scipy.sparse.linalg import aslinearoperator, eigsh

    square = (-(keops.Vi(x).sqdist(keops.Vj(x)))).exp()
    own = np.linalg.eigvalsh(np.exp(-((x[:, None] - x) ** 2).sum(-1)))
    assert_close(eigsh(aslinearoperator(square), k=2)[0], own[-2:], depth=4096)


def test_systems(reference):
    x, b = X.clone().requires_grad_(), rows(M, 2, seed=9).requires_grad_()
    p = torch.tensor([0.7], dtype=torch.float64, requires_grad=True)
    solve = KernelSolve("Exp(-p*SqDist(x,y))*b", ["x=Vi(3)", "y=Vj(3)", "b=Vj(2)", "p=Pm(1)"], "b", axis=1)

    def found(x, b, p):
        return solve(x, x, b, p, alpha=0.3, eps=1e-14)

    def exact(x, b, p):
        k = (-((x[:, None] - x) ** 2).sum(-1) * p).exp()
        return torch.linalg.solve(k + 0.3 * torch.eye(M, dtype=x.dtype), b)

    assert_close(found(x, b, p), exact(x, b, p), depth=4096)
    for one, other in zip(
        *(torch.autograd.grad(f(x, b, p).sin().sum(), (x, b, p)) for f in (found, exact)), strict=True
    ):
        assert_close(one, other, depth=4096)
    few = x[:2].detach().requires_grad_(), b[:2, :1].detach().requires_grad_()
    lazy = lambda x, b: (-Vi(x).sqdist(Vj(x))).exp().solve(b, alpha=0.3, eps=1e-14)  # noqa: E731
    assert gradgradcheck(lazy, few, fast_mode=True)
    unknown = Vj(0, 2)
    linear = ((-Vi(X).sqdist(Vj(X)) * 0.7).exp() * unknown).solve(Vi(b.detach()), var=unknown, alpha=0.3, eps=1e-14)
    assert_close(linear, exact(X, b, 0.7), depth=4096)


@pytest.fixture
def solves(monkeypatch):
    """What conjugate gradients were given and found."""
    seen = []
    inner = solve_module.cg

    def spy(*args, **options):
        found = inner(*args, **options)
        seen.append((options["preconditioner"], found))
        return found

    monkeypatch.setattr(solve_module, "cg", spy)
    return seen


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("columns", [1, 2])
@pytest.mark.parametrize("alpha", [1e-2, 1e-10])
def test_systems_of_few_unknowns_are_factored(dtype, columns, alpha, solves):
    x, b = rows(400, 3, seed=3).to(dtype), rows(400, columns, seed=4).to(dtype)
    formula = "(Exp(-p*SqDist(x,y)) + IntCst(2)*Exp(-p*Norm2(x-y)))*b"
    aliases = ["x=Vi(3)", "y=Vj(3)", f"b=Vj({columns})", "p=Pm(1)"]
    found = KernelSolve(formula, aliases, "b", axis=1)(x, x, b, torch.tensor([3.0]).to(dtype), alpha=alpha, eps=1e-5)
    squares = torch.cdist(x.double(), x.double()) ** 2
    matrix = (-3 * squares).exp() + 2 * (-3 * squares.sqrt()).exp() + alpha * torch.eye(400)
    assert ((matrix @ found.double() - b.double()).square().mean().sqrt() < 1e-5).all()
    assert not solves  # corrections by the factor are enough


def test_corrections_that_are_not_enough_are_followed_by_conjugate_gradients(solves):
    """In float32 of so small a ridge the factor is that of a matrix with a larger one."""
    x, b = rows(500, 2, seed=3).float(), rows(500, 1, seed=4).float()
    solve = KernelSolve("Exp(-SqDist(x,y))*b", ["x=Vi(2)", "y=Vj(2)", "b=Vj(1)"], "b", axis=1)
    right = (-(torch.cdist(x.double(), x.double()) ** 2)).exp() @ b.double()
    found = solve(x, x, right.float(), alpha=1e-7, eps=1e-3)
    matrix = (-(torch.cdist(x.double(), x.double()) ** 2)).exp() + 1e-7 * torch.eye(500)
    assert (matrix @ found.double() - right).square().mean().sqrt() < 2e-3
    assert len(solves) <= 1
    assert all(inverse is not None for inverse, _ in solves)


def test_systems_that_are_not_factored(solves, monkeypatch):
    x, b = rows(60, 3, seed=3), rows(60, 1, seed=4)
    kernel = (-Vi(x).sqdist(Vj(x))).exp()
    monkeypatch.setattr(solve_module, "_FACTORED", 59)
    exact = torch.linalg.solve((-(torch.cdist(x, x) ** 2)).exp() + 0.5 * torch.eye(60), b)
    assert_close(kernel.solve(b, alpha=0.5, eps=1e-14), exact, depth=4096)
    assert solves.pop()[0] is None
    monkeypatch.setattr(solve_module, "_FACTORED", 60)
    unknown = Vj(0, 1)
    apart = (kernel * unknown * 0.5 + kernel * unknown * 0.5).solve(Vi(b), var=unknown, alpha=0.5, eps=1e-14)
    assert_close(apart, exact, depth=4096)
    assert solves.pop()[0] is None
    with pytest.warns(km.errors.KernmantleWarning):
        (-(Vi(x) | Vj(x))).solve(b, alpha=1e-3)
    assert solves.pop()[0] is None


def test_accumulators_out_and_dtypes():
    x, y = (t.float() for t in (X, Y))
    e = Vi(x).sqdist(Vj(y))
    exact = (norm(DIFF) ** 2).sum(1)
    found = e.sum(dim=1, use_double_acc=True)
    assert found.dtype == torch.float32
    assert_close(found, exact, depth=1)
    out = torch.empty(M, 1)
    assert e.sum(dim=1, out=out, backend="CPU") is out
    assert_close(out, exact, depth=64)
    assert e.dtype == "float32"
    half = Vi(X.half()).sqdist(Vj(Y.half())).sum(dim=1)
    assert half.dtype == torch.float16


def test_single_positions():
    one = LazyTensor(X[:1, None, :])
    assert_close((one - LazyTensor(YD)).sqnorm2().sum(dim=1), (norm(DIFF)[:1] ** 2).sum(1), depth=64)
    assert_close((one * one).sum(dim=1), X[:1] ** 2, depth=8)
    assert (LazyTensor(XD) * 0) == 0
    empty = Vi(X[:0]).sqdist(Vj(Y))
    assert empty.sum(dim=1).shape == (0, 1)
    assert (empty.sum(dim=0) == 0).all()


WRONG = [
    (lambda x, y: x.concat(y).laplacian(x), AttributeError, "autograd"),
    (lambda x, y: x.real2complex(), AttributeError, "real and imaginary"),
    (lambda x, y: x + Vi(Y), ShapeError, "6 and 7 rows|7 and 6 rows"),
    (lambda x, y: x + y[:2], ShapeError, "same dimension"),
    (lambda x, y: x | y[:1], ShapeError, "3 and 1"),
    (lambda x, y: x.elem(3), ShapeError, "dimension 3"),
    (lambda x, y: (x - y).sum(dim=5), ParameterError, "axis 0"),
    (lambda x, y: (x - y).Kmin(9, dim=1), ParameterError, "K = 9"),
    (lambda x, y: (x - y).Kmin("3", dim=1), ParameterError, "integer K"),
    (lambda x, y: (x - y) @ B, ShapeError, "scalar"),
    (lambda x, y: (x | y) @ X, ShapeError, "7 columns"),
    (lambda x, y: (x - y).sum(dim=1, backend="TPU"), ParameterError, "backend"),
    (lambda x, y: (x - y).sum(dim=1, speed=3), ParameterError, "speed"),
    (lambda x, y: (x - y).logsumexp(dim=1, weight=Vj(B)), ShapeError, "scalar formula"),
    (lambda x, y: (x - y.relu() + Vj(Y.float())).sum(dim=1), ParameterError, "dtypes"),
    (lambda x, y: LazyTensor(X), ShapeError, "axis=0 or axis=1"),
    (lambda x, y: LazyTensor(XD, axis=0), ShapeError, "drop axis"),
    (lambda x, y: Vi(X.to(torch.complex128)), DtypeError, "imaginary"),
    (lambda x, y: Vi(X.long()), DtypeError, "floating"),
    (lambda x, y: x["a"], ParameterError, "indexed"),
    (lambda x, y: (x | y).sum(dim=1, out=torch.empty(3)), OutputError, "out has"),
    (lambda x, y: (x | y).sum(dim=1, ranges=(1, 2)), ParameterError, "six"),
]


@pytest.mark.parametrize("case", range(len(WRONG)))
def test_what_is_refused(case):
    wrong, error, message = WRONG[case]
    with pytest.raises(error, match=message):
        wrong(*pair())


@pytest.mark.parametrize(
    ("formula", "message"),
    [
        ("Exp(x", "does not parse"), ("Exp(z)", "not a declared"), ("Laplacian(x, y)", "autograd"),
        ("Expo(x)", "not an operation"), ("x.data", "not an operation"), ("__import__('os')", "not an operation"),
        ("Exp(x, y)", "arguments"),
        ("SoftDTW_SqDist(x, y, x)", "recurrence"), ("Var(5,3,0) + x", "positions"), ("Var(0,2,0)", "declares variable"),
    ],
)  # fmt: skip
def test_formulas_that_are_refused(formula, message):
    with pytest.raises(ParameterError, match=message):
        Genred(formula, ["x = Vi(3)", "y = Vj(3)"], axis=1)


@pytest.fixture
def installed():
    before = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "pykeops"}
    yield km.compat.install("pykeops")
    for name in [name for name in sys.modules if name.partition(".")[0] == "pykeops"]:
        del sys.modules[name]
    sys.modules.update(before)


def test_installed_names(installed):
    import pykeops
    import pykeops.torch
    from pykeops.numpy import LazyTensor as ArrayLazyTensor
    from pykeops.torch.cluster import from_matrix
    from pykeops.torch.operations import KernelSolve as Solve

    assert pykeops is installed
    assert pykeops.torch.LazyTensor is LazyTensor
    assert ArrayLazyTensor is not LazyTensor
    assert Solve is KernelSolve
    assert from_matrix is cluster.from_matrix
    assert hasattr(LazyTensor(XD), "_shape")


def test_kernels_of_linear_operator(reference):
    """The calls that gpytorch.kernels.keops makes."""
    x1, x2, length = rows(2, M, D), rows(N, D, seed=1), rows(2, 1, D, seed=2, low=0.5)
    x1_, x2_ = LazyTensor(x1[..., :, None, :]), LazyTensor(x2[..., None, :, :])
    squared = ((x1_ - x2_) ** 2).sum(-1)
    distance = (squared + 1e-20).sqrt()
    matern = ((math.sqrt(5) * distance) + (1 + 5.0 / 3.0 * squared)) * (-math.sqrt(5) * distance).exp()
    s = ((x1[..., :, None, :] - x2) ** 2).sum(-1)
    exact = (math.sqrt(5) * s.sqrt() + 1 + 5 / 3 * s) * (-math.sqrt(5) * s.sqrt()).exp()
    assert_close(matern @ B, exact @ B, depth=256)
    periodic = ((((x1_ - x2_).abs().sin()) ** 2) * (-2.0 / length[..., None, None, 0, :])).sum(-1).exp()
    exact = ((x1[..., :, None, :] - x2).sin() ** 2 * (-2 / length[..., None, :, :])).sum(-1).exp()
    assert_close(periodic @ B, exact @ B, depth=256)
    assert_close(periodic.sum(dim=2)[..., 0], exact.sum(-1), depth=256)


def test_sinkhorn_of_geomloss(reference):
    """The calls that geomloss makes, online and with ranges."""
    x, y, h = rows(2, M, D), rows(2, N, D, seed=1), rows(2, N, seed=2)
    cost = ((LazyTensor(x[:, :, None, :]) - LazyTensor(y[:, None, :, :])) ** 2).sum(-1) / 2
    found = (LazyTensor(h[:, None, :, None]) - cost * LazyTensor(torch.tensor([3.0]).double())).logsumexp(2)
    exact = h[:, None] - 1.5 * ((x[:, :, None] - y[:, None]) ** 2).sum(-1)
    assert_close(found.view(2, -1), exact.logsumexp(2), depth=64)
    distances = (((Vi(X) / 0.1) - (Vj(Y) / 0.1)) ** 2).sum(-1).sqrt()
    assert_close((-distances).exp() @ B, (-norm(DIFF / 0.1)[..., 0]).exp() @ B, depth=256)


def test_geomloss_itself(installed):
    geomloss = pytest.importorskip("geomloss")
    x, y = rows(40, 2, low=0).requires_grad_(), rows(50, 2, seed=1, low=0)
    options = {"blur": 0.3, "truncate": None, "cluster_scale": 1e-4}  # every point is a cluster: coarse steps are exact
    for loss, backend in itertools.product(("gaussian", "sinkhorn"), ("online", "multiscale")):
        found, exact = (geomloss.SamplesLoss(loss, backend=b, **options)(x, y) for b in (backend, "tensorized"))
        assert_close(torch.autograd.grad(found, x)[0].float(), torch.autograd.grad(exact, x)[0], depth=4096)
    assert installed


def calls_again(call, oracle, arguments, times=4):
    """The first call lowers the formula, the second notes its steps, the others repeat them: with other values each."""
    for seed in range(times):
        tensors = arguments(seed)
        found, wanted = call(*tensors), oracle(*tensors)
        for own, their in zip(*(each if isinstance(each, tuple) else (each,) for each in (found, wanted)), strict=True):
            assert_close(own.detach(), their.detach(), depth=10**4)
        inputs = [tensor for tensor in tensors if tensor.requires_grad]
        if inputs:
            first = found[0] if isinstance(found, tuple) else found
            theirs = wanted[0] if isinstance(wanted, tuple) else wanted
            own, their = (torch.autograd.grad(value.square().sum(), inputs) for value in (first, theirs))
            for mine, exact in zip(own, their, strict=True):
                assert_close(mine, exact, depth=10**5)


def uniform(*shapes, tracked=False):
    def arguments(seed):
        source = torch.Generator().manual_seed(seed)
        return [torch.rand(shape, generator=source, dtype=torch.float64, requires_grad=tracked) for shape in shapes]

    return arguments


def squares(x, y):
    return (x[..., :, None, :] - y[..., None, :, :]).square().sum(-1)


REPEATED = {
    "product": (
        "Exp(-SqDist(X,Y)) * B", ["X = Vi(3)", "Y = Vj(3)", "B = Vj(2)"], "Sum",
        lambda x, y, b: torch.exp(-squares(x, y)) @ b, ((5, 3), (7, 3), (7, 2)),
    ),
    "with a parameter": (
        "Exp(-P * SqDist(X,Y))", ["X = Vi(3)", "Y = Vj(3)", "P = Pm(1)"], "Sum",
        lambda x, y, p: torch.exp(-p * squares(x, y)).sum(1, keepdim=True), ((5, 3), (7, 3), (1,)),
    ),
    "a vector": (
        "Exp(X|Y) * (X - Y)", ["X = Vi(3)", "Y = Vj(3)"], "Sum",
        lambda x, y: (torch.exp(x @ y.T)[..., None] * (x[:, None] - y)).sum(1), ((5, 3), (7, 3)),
    ),
    "logsumexp": (
        "-SqDist(X,Y)", ["X = Vi(3)", "Y = Vj(3)"], "LogSumExp",
        lambda x, y: (-squares(x, y)).logsumexp(1, keepdim=True), ((5, 3), (7, 3)),
    ),
    "elements": (
        "Elem(X,0) * Elem(Y,1)", ["X = Vi(3)", "Y = Vj(3)"], "Sum",
        lambda x, y: x[:, :1] * y[:, 1].sum(), ((5, 3), (7, 3)),
    ),
    "smallest": (
        "SqDist(X,Y)", ["X = Vi(3)", "Y = Vj(3)"], "Min_ArgMin",
        lambda x, y: (squares(x, y).min(1, keepdim=True).values, squares(x, y).argmin(1, keepdim=True)),
        ((5, 3), (7, 3)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("tracked", [False, True])
@pytest.mark.parametrize("name", REPEATED)
def test_reductions_are_repeated_with_other_values(name, tracked):
    formula, aliases, how, oracle, shapes = REPEATED[name]
    product = Genred(formula, aliases, reduction_op=how, axis=1)
    calls_again(product, oracle, uniform(*shapes, tracked=tracked))
    assert len(product._tapes) == 1 or name == "elements"
    assert "over j" in product.info
    copied = pickle.loads(pickle.dumps(product))
    assert copied.info == ""
    calls_again(copied, oracle, uniform(*shapes))


def test_lazy_tensors_are_repeated_with_other_values_and_numbers():
    def call(x, y, b, number=2.0):
        kernel = (-number * ((LazyTensor(x[:, None]) - LazyTensor(y[None])) ** 2).sum(-1)).exp()
        return kernel @ b

    def oracle(x, y, b, number=2.0):
        return torch.exp(-number * squares(x, y)) @ b

    for number in (2.0, 0.5):
        for tracked in (False, True):
            own, theirs = partial(call, number=number), partial(oracle, number=number)
            calls_again(own, theirs, uniform((5, 3), (7, 3), (7, 2), tracked=tracked))
    calls_again(call, oracle, uniform((6, 3), (2, 3), (2, 4)))
    x, y, b = uniform((5, 3), (5, 3), (5, 2))(3)
    for rows in (y, x, y, x):  # one array for two variables is another structure than two arrays
        assert_close(call(x, rows, b), oracle(x, rows, b), depth=1000)


def test_steps_that_depend_on_values_are_not_repeated():
    def reduction(parts, notes):
        notes.append("ran")
        (e,) = parts
        return (e.tensor * (2 if bool(e.tensor.sum() > 0) else 3),)

    key = object()
    for value in (1.0, 1.0, -1.0, 1.0, -1.0):
        again = replay.reduced_again((Leaf(torch.tensor([[value]]), "i"),), (key,), reduction)
        assert float(again.result[0]) == value * (2 if value > 0 else 3)
        assert (again.tape, again.notes) == (None, ["ran"])


def test_an_error_of_a_noted_call_is_that_of_the_call():
    failing = [False, True, False, False]

    def reduction(parts, notes):
        if failing.pop(0):
            raise MemoryError("full")
        return (parts[0].tensor * 2,)

    key, parts = object(), (Leaf(torch.ones(1, 1), "i"),)
    assert replay.reduced_again(parts, (key,), reduction).tape is None
    with pytest.raises(MemoryError, match="full"):
        replay.reduced_again(parts, (key,), reduction)
    for _ in range(2):  # noted by the next call, repeated by the one behind it
        again = replay.reduced_again(parts, (key,), reduction)
        assert again.tape is not None
        assert float(again.result[0]) == 2
    assert failing == [False]


def test_steps_without_a_gradient_have_none_again():
    def reduction(parts, notes):
        (e,) = parts
        with torch.no_grad():
            size = e.tensor.abs()
        return (e.tensor * size,)

    key = object()
    for value in (1.0, 2.0, 3.0, 4.0):
        tensor = torch.tensor([[value]], requires_grad=True)
        again = replay.reduced_again((Leaf(tensor, "i"),), (key,), reduction)
        assert float(torch.autograd.grad(again.result[0], tensor)[0]) == value
    assert again.tape is not None
    wide = replay.reduced_again((Leaf(torch.ones(1, 1, dtype=torch.float64), "i"),), (key,), reduction)
    assert (wide.result[0].dtype, wide.tape) == (torch.float64, None)


@pytest.mark.parametrize("batch", [(), (2,)])
@pytest.mark.parametrize("rows", [0, 5])
def test_formulas_that_are_repeated_are_prepared_once(monkeypatch, batch, rows):
    counted = []
    inner = row_reduce_autograd.task_of
    monkeypatch.setattr(row_reduce_autograd, "task_of", lambda *a, **k: counted.append(a) or inner(*a, **k))
    product = Genred("Exp(-p*SqDist(x, y)) * b", ["x = Vi(3)", "y = Vj(3)", "b = Vj(2)", "p = Pm(1)"], axis=1)
    for seed in range(6):
        g = torch.Generator().manual_seed(seed)
        x, y, b, p = (
            torch.rand(s, generator=g).double() for s in ((*batch, rows, 3), (*batch, N, 3), (*batch, N, 2), (1,))
        )
        exact = (-p * torch.cdist(x, y) ** 2).exp() @ b
        assert_close(product(x, y, b, p), exact, depth=64)
        if seed == 2:
            counted.clear()
    assert (not counted) == (rows > 0)
