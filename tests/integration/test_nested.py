"""Contractions of scores that are not stored: values, derivatives, transforms, what they refuse."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import kernmantle as km
from kernmantle.testing import assert_close
from kernmantle.torch_ops import nested

from ..arrays import normal as rows

L1 = km.Contraction("mk,nk->mn", lambda a, b, h=1.0: abs(a - b) / h)
SQUARES = km.Contraction("mk,nk->mn", lambda a, b: (a - b) ** 2)
SOFTMAX = km.Contraction("mn,nc->mc", lambda s, v: (-s, v), reduce="softmax")


def test_each_accumulator_is_one_row_reduction():
    x, y, v = rows(40, 3), rows(50, 3, seed=1), rows(50, 2, seed=2)
    product = km.Contraction("mn,m,mn,nc->mc", lambda s, a, t, v, q: km.exp(-s * a * a - q) * (1 + t) * v)
    product(SQUARES.lazy(x, y), rows(40), rows(40, 50), v, q=0.3)
    assert product.info.route.startswith("cpu: apply product")
    SOFTMAX(SQUARES.lazy(x, y), v)
    assert SOFTMAX.info.route.startswith("2 passes: cpu: apply logsumexp")
    assert "; cpu: apply product" in SOFTMAX.info.route
    line = km.Contraction("mn->m", lambda s: s, reduce="max")
    line(km.Contraction("m,n->mn", lambda a, b: abs(a - b)).lazy(x[:, 0], y[:, 0]))
    assert line.info.route.startswith("cpu: apply max")


def test_scores_say_what_they_are():
    scores = L1.lazy(np.zeros((2, 1, 4, 3), np.float32), np.zeros((5, 6, 3), np.float32), h=2.0)
    assert scores.shape == (2, 5, 4, 6)
    assert scores.ndim == 4
    assert scores.dtype == np.float32
    assert scores.device.type == "cpu"
    assert repr(scores).startswith("<2 x 5 x 4 x 6 scores of Contraction('mk,nk->mn'")
    dense = scores.evaluate()
    assert isinstance(dense, np.ndarray)
    assert dense.shape == scores.shape
    named = km.Contraction("mk,nk,w:k->mn", lambda a, b, w: w * a * b).lazy(rows(2, 3), rows(4, 3), w=rows(3))
    assert_close(named.evaluate(), (rows(2, 3) * rows(3)) @ rows(4, 3).T)


def test_arrays_of_any_kind_come_back():
    x, y, v = (rows(*shape, seed=i).numpy() for i, shape in enumerate([(4, 3), (5, 3), (5, 2)]))
    found = SOFTMAX(SQUARES.lazy(x, y), v)
    assert isinstance(found, np.ndarray)
    assert_close(SOFTMAX(SQUARES.lazy(x.tolist(), y.tolist()), v.tolist()), found)
    total = np.empty((4, 2))
    assert SOFTMAX(SQUARES.lazy(x, y), v, out=total) is total
    assert_close(total, found)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_types(dtype, reference):
    x, y, v = (rows(*shape, seed=i, dtype=dtype) for i, shape in enumerate([(9, 3), (11, 3), (11, 2)]))
    found = SOFTMAX(SQUARES.lazy(x, y), v.requires_grad_())
    (gradient,) = torch.autograd.grad(found.sum(), v)
    assert found.dtype == gradient.dtype == dtype
    weights = torch.softmax(-torch.cdist(x.double(), y.double()).square(), -1)
    assert_close(found.detach(), weights @ v.detach().double(), depth=16)
    assert_close(gradient, weights.sum(0)[:, None].expand(11, 2), dtype=dtype, depth=16)


@pytest.mark.parametrize(("m", "n"), [(0, 3), (3, 0), (1, 1), (0, 0)])
def test_no_rows_and_no_columns(m, n, reference):
    x, y, v = (rows(*shape).requires_grad_() for shape in [(m, 2), (n, 2), (n, 3)])
    scores = SQUARES.lazy(x, y)
    found = SOFTMAX(scores, v)
    assert found.shape == (m, 3)
    assert all(g.shape == t.shape for g, t in zip(torch.autograd.grad(found.sum(), (x, y, v)), (x, y, v), strict=True))
    if n == 0:
        assert (found == 0).all()
        assert (km.contract("mn->m", lambda s: s, scores, reduce="logsumexp") == -torch.inf).all()
        with torch.no_grad():
            assert km.contract("mn->m", lambda s: s > 0, scores, reduce="all").all()
        with pytest.raises(km.errors.ShapeError, match="'n'"):
            km.contract("mn->m", lambda s: s, scores.contraction.lazy(rows(3, 2), rows(0, 2)), reduce="argmin")


def test_nan_and_infinity():
    x, y, v = rows(9, 2), rows(7, 2, seed=1), rows(7, 2, seed=2)
    y[3, 0] = torch.nan
    scores = SQUARES.lazy(x, y)
    for kind in ("sum", "min", "max", "logsumexp"):
        assert km.contract("mn->m", lambda s: s, scores, reduce=kind).isnan().all()
    assert (km.contract("mn->m", lambda s: s, scores, reduce="argmin") == 3).all()
    assert (km.contract("mn->m", lambda s: s, scores, reduce="argmax") == 3).all()
    assert (km.contract("mn->m", lambda s: s, scores, reduce=km.Smallest(7))[1][:, -1] == 3).all()
    assert SOFTMAX(scores, v).isnan().all()
    mask = torch.zeros(9, 7, dtype=torch.float64)
    mask[4] = -torch.inf
    masked = lambda s, mask, v: (mask - s, v)  # noqa: E731
    y[3, 0] = 0.5
    x.requires_grad_()
    with km.config(backend="reference"):
        found = km.contract("mn,mn,nc->mc", masked, SQUARES.lazy(x, y), mask, v, reduce="softmax")
        (gradient,) = torch.autograd.grad(found.sum(), x)
    assert (found[4] == 0).all()
    assert gradient.isfinite().all()
    assert (gradient[4] == 0).all()


@pytest.mark.parametrize("kind", ["product", "softmax"])
def test_derivatives(kind, reference):
    x, y, v, a, b, t = (
        rows(*shape, seed=i).requires_grad_() for i, shape in enumerate([(4, 2), (5, 2), (5, 2), (4,), (5,), (4, 5)])
    )
    h = torch.tensor(1.3, dtype=torch.float64, requires_grad=True)
    maps = {
        "product": lambda s, a, b, t, v, h: km.exp(-s * a * a / h) * (b + t) * v,
        "softmax": lambda s, a, b, t, v, h: (b * t - s * a * h, v),
    }
    outer = km.Contraction("mn,m,n,mn,nc->mc", maps[kind], reduce={"product": "sum"}.get(kind, kind))

    def function(x, y, v, a, b, t, h):
        return outer(L1.lazy(x, y, h=h), a, b, t, v, h=h)

    assert gradcheck(function, (x, y, v, a, b, t, h), fast_mode=True, check_forward_ad=True)
    assert gradgradcheck(function, (x, y, v, a, b, t, h), fast_mode=True)


@pytest.mark.parametrize("reduce", ["max", km.Smallest(2)])
def test_derivatives_of_entries_that_are_chosen(reduce, reference):
    x, y, t = (rows(*shape, seed=i).requires_grad_() for i, shape in enumerate([(4, 2), (5, 2), (4, 5)]))

    def function(x, y, t):
        found = km.contract("mn,mn->n", lambda s, t: s * t, L1.lazy(x, y), t, reduce=reduce)
        return found[0] if isinstance(found, tuple) else found

    assert gradcheck(function, (x, y, t), fast_mode=True, check_forward_ad=True)
    assert gradgradcheck(function, (x, y, t), fast_mode=True)


def test_transforms(reference):
    xs, y, v = rows(3, 4, 2), rows(5, 2, seed=1), rows(5, 2, seed=2)

    def fused(x):
        scores = SQUARES.lazy(x, y)
        return SOFTMAX(scores, v).square().sum() + km.contract("mn->", lambda s: s, scores, reduce="logsumexp")

    def dense(x):
        scores = (x[:, None] - y).square().sum(-1)
        return (torch.softmax(-scores, -1) @ v).square().sum() + scores.flatten().logsumexp(0)

    for transform in (torch.func.grad, torch.func.jacfwd):
        found = torch.func.vmap(transform(fused))(xs)
        assert_close(found, torch.stack([transform(dense)(x) for x in xs]), depth=64)


def test_compiled_in_one_graph(reference):
    x, y, v = (rows(*shape, seed=i).requires_grad_() for i, shape in enumerate([(4, 2), (5, 2), (5, 2)]))
    nearest = km.Contraction("mn->m", lambda s: s, reduce=km.Smallest(2))

    def function(x, y, v):
        scores = SQUARES.lazy(x, y)
        means = km.contract("mn,nc->mc", lambda s, v: (-s, v), scores, v, reduce="softmax")
        return means, nearest(SQUARES.lazy(x.detach(), y.detach()))[0]

    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    for one, other in zip(compiled(x, y, v), function(x, y, v), strict=True):
        assert_close(one, other)
    found = torch.autograd.grad(compiled(x, y, v)[0].square().sum(), (x, y, v))
    for one, other in zip(found, torch.autograd.grad(function(x, y, v)[0].square().sum(), (x, y, v)), strict=True):
        assert_close(one, other, depth=16)


REFUSED = {
    "two axes beside": (lambda s: km.contract("mn,mc->mc", lambda s, v: km.exp(-s) * v, s, rows(4, 2)), "rows of the"),
    "not linear": (lambda s: km.contract("mn,nc->mc", lambda s, v: abs(s - v), s, rows(5, 2)), "not a factor"),
    "best of columns": (
        lambda s: km.contract("mn,nc->mc", lambda s, v: s * v, s, rows(5, 2), reduce="max"), r"scores\.evaluate\(\)",
    ),
    "another axis": (lambda s: km.contract("mn,nj->m", lambda s, v: s * v, s, rows(5, 2)), "'j'"),
    "product of rows": (lambda s: km.contract("mn->m", lambda s: s, s, reduce="prod"), r"evaluate"),
    "two scores": (lambda s: km.contract("mn,mn->m", lambda s, t: s * t, s, L1.lazy(rows(4, 2), rows(5, 2))), "two"),
    "extents": (lambda s: km.contract("mn,n->m", lambda s, v: s * v, s, rows(6)), "'n'"),
    "dtype": (lambda s: km.contract("mn,n->m", lambda s, v: s * v, s, rows(5).float()), "float32"),
    "parameter": (lambda s: km.contract("mn->m", lambda s, q: s * q, s), "'q'"),
    "scores as a parameter": (lambda s: km.contract("mn->m", lambda s, q: s * q, s, q=s), "name them"),
    "too many": (lambda s: km.contract("mn->m", lambda s: s, s, reduce=km.Largest(6)), "needs 6"),
    "no count": (lambda s: km.contract("mn->m", lambda s: s, s, reduce=km.Largest(0)), "positive integer"),
    "three axes": (lambda s: km.contract("bmn->bm", lambda s: s, s), "two axes"),
    "one value": (lambda s: km.contract("mn->m", lambda s: s, s, reduce="softmax"), r"\(logit, value\)"),
    "an array": (
        lambda s: km.contract("mn,n->m", lambda s, v: (s, v), s.evaluate(), rows(5), reduce="softmax"),
        r"\.lazy\(x, y\)",
    ),
    "whole numbers": (lambda s: L1.lazy([[1, 2]], [[3, 4]]), r"\.double\(\)"),
    "three axes of scores": (lambda s: km.Contraction("mk,k->mk", lambda a, b: (a, b)).lazy(rows(2, 3), rows(3)), "2"),
    "gradient of a position": (
        lambda s: km.contract("mn->m", lambda s: s, L1.lazy(rows(4, 2).requires_grad_(), rows(5, 2)), reduce="argmin"),
        "no gradient",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_says_what_to_do(name):
    make, message = REFUSED[name]
    with pytest.raises(km.errors.KernmantleError, match=message):
        make(SQUARES.lazy(rows(4, 2), rows(5, 2)))


@pytest.mark.parametrize("name", ["sum", "argmin", "softmax"])
def test_reductions_that_a_matrix_has_name_the_contraction(name):
    scores = SQUARES.lazy(rows(4, 2), rows(5, 2))
    with pytest.raises(AttributeError, match=rf"no attribute '{name}': km\.contract\(.*reduce='{name}'\)"):
        getattr(scores, name)
    with pytest.raises(AttributeError, match=r"no attribute 'cumsum'$"):
        scores.cumsum()
    with pytest.raises(TypeError, match=r'km\.contract\("mn,nc->mc", lambda s, v: s \* v, scores, v\)'):
        scores @ rows(5, 2)


def test_scores_are_not_made_an_object_by_numpy():
    with pytest.raises(TypeError, match=r"scores\.evaluate\(\) makes their matrix"):
        np.asarray(SQUARES.lazy(rows(4, 2), rows(5, 2)))


@pytest.mark.parametrize("kind", ["sum", "softmax", "max", "argmin", "any", "largest"])
def test_warm_calls_are_bound_to_what_they_depend_on(kind, monkeypatch):
    maps = {
        "sum": lambda s, v, p: s**p * v, "softmax": lambda s, v, p: (-p * s, v), "any": lambda s, p: s > p,
        "max": lambda s, p: s - p, "argmin": lambda s, p: (s - p) ** 2, "largest": lambda s, p: -p * s,
    }  # fmt: skip
    weighted = kind in ("sum", "softmax")
    reduce = km.Largest(2) if kind == "largest" else kind
    outer = km.Contraction("mn,nc->mc" if weighted else "mn->m", maps[kind], reduce=reduce)
    calls = [(20, 0.7, 2.0), (20, 1.3, 0.5), (20, 1.3, 2.0), (20, 1.1, 1.7), (12, 0.7, 2.0)]

    def call(m, h, p):
        x, y, v = (rows(*shape, seed=i) for i, shape in enumerate([(m, 3), (15, 3), (15, 2)]))
        found = outer(L1.lazy(x, y, h=h), *([v] if weighted else []), p=p)
        scores = (x[:, None] - y).abs().sum(-1) / h
        mapped = None if weighted else maps[kind](scores, p)
        return found, {
            "sum": lambda: scores**p @ v, "softmax": lambda: torch.softmax(-p * scores, -1) @ v,
            "max": lambda: mapped.amax(-1), "argmin": lambda: mapped.argmin(-1), "any": lambda: mapped.any(-1),
            "largest": lambda: mapped.topk(2).values,
        }[kind]()  # fmt: skip

    for again in range(2):
        if again:
            monkeypatch.setattr(nested, "nest", None)
            monkeypatch.setattr(nested, "_results", None)
        for arguments in calls:
            found, wanted = call(*arguments)
            assert_close(found[0] if kind == "largest" else found, wanted, depth=64)
            assert "cpu: apply" in outer.info.route


def test_a_warm_call_is_not_taken_for_another():
    x, y = rows(9, 3), rows(11, 3, seed=1)
    first = km.contract("mn->m", lambda s: s, L1.lazy(x, y))
    x.requires_grad_()
    found = km.contract("mn->m", lambda s: s, L1.lazy(x, y))
    assert found.requires_grad
    assert_close(found.detach(), first)
    assert isinstance(km.contract("mn->m", lambda s: s, L1.lazy(x.detach().numpy(), y.numpy())), np.ndarray)
    with torch.no_grad(), km.config(backend="reference"):
        outer = km.Contraction("mn->m", lambda s: s)
        assert_close(outer(L1.lazy(x, y)), first)
        assert "blocks" in outer.info.route
    tensor = km.contract("mn->m", lambda s, q: s * q, L1.lazy(x.detach(), y), q=torch.tensor([1.0, 2.0]).double())
    assert_close(tensor, torch.stack([first, 2 * first]))


def test_sums_with_equal_weights_are_one_product():
    x, y, v, b = (rows(*shape, seed=i) for i, shape in enumerate([(20, 3), (15, 3), (2, 15, 2), (15,)]))
    outer = km.Contraction("mn,nc,n->mc", lambda s, v, b: (km.exp(-s) * v, km.exp(-s), km.exp(-s) * b))
    weights = torch.exp(-(x[:, None] - y).square().sum(-1))
    for one, other in zip(outer(SQUARES.lazy(x, y), v, b), (v, torch.ones(15, 1), b[:, None]), strict=True):
        assert_close(one, (weights @ other.double()).expand(2, 20, 2), depth=32)
    assert outer.info.route.startswith("cpu: apply product")
    parts = km.Contraction("mn,nc->mc", lambda s, v: (km.exp(-s) * v, s), reduce=("sum", "max"))
    parts(SQUARES.lazy(x, y), v)
    assert parts.info.route.startswith("2 passes: cpu: apply product")


def test_kernels_are_scores(reference):
    x, y, v = (rows(*shape, seed=i).requires_grad_() for i, shape in enumerate([(6, 3), (7, 3), (7, 2)]))
    table, h = rows(6, 7, seed=4).requires_grad_(), torch.tensor(1.4, dtype=torch.float64, requires_grad=True)
    kernel = 0.5 * km.Laplace(h) + km.Gaussian(1.5, lengthscales=rows(3, seed=5).abs() + 0.5)
    scores = kernel.lazy(x, y)
    assert "Laplace" in repr(scores)
    found = km.contract("mn,nc->mc", lambda k, v: km.log(k) * v, scores, v)
    wanted = kernel(x, y).log() @ v
    assert_close(found.detach(), wanted.detach(), depth=16)
    inputs = (x, y, v, h)
    for one, other in zip(*(torch.autograd.grad(r.sum(), inputs) for r in (found, wanted)), strict=True):
        assert_close(one, other, depth=64)
    tabled = km.contract("mn->n", lambda k: k, km.Laplace(h).lazy(x, y, table=table), reduce="max")
    dense = km.Laplace(h)(x, y, table=table).amax(0)
    for one, other in zip(*(torch.autograd.grad(r.sum(), (x, h, table)) for r in (tabled, dense)), strict=True):
        assert_close(one, other, depth=64)


def test_masks_of_truths():
    x, y, v = (rows(*shape, seed=i) for i, shape in enumerate([(6, 3), (7, 3), (7, 2)]))
    mask = rows(6, 7, seed=4) > -0.5
    found = km.contract(
        "mn,mn,nc->mc", lambda s, mask, v: (km.where(mask, -s, -float("inf")), v), SQUARES.lazy(x, y), mask, v,
        reduce="softmax",
    )  # fmt: skip
    weights = torch.softmax((-(x[:, None] - y).square().sum(-1)).masked_fill(~mask, -torch.inf), -1)
    assert_close(found, weights @ v, depth=16)
