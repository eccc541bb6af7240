"""Derivatives: against finite differences to second order and forward, at ties, zeros, kinks and poles."""

from __future__ import annotations

import gc
import math
import weakref

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import kernmantle as km
from kernmantle.testing import assert_close

SIZES = {"m": 2, "n": 3, "k": 4, "l": 2, "o": 2}
REDUCTIONS = ["sum", "prod", "min", "max", "logsumexp"]


def draw(equation, batches=(), seed=0, low=0.3, high=1.7, sizes=SIZES, device="cpu"):
    """Operands of the equation's unnamed and named entries, far from zero and from each other."""
    random = np.random.default_rng(seed)
    every = [entry.rpartition(":")[2] for entry in equation.partition("->")[0].split(",")]
    leads = [*batches, *((),) * (len(every) - len(batches))]
    shapes = [(*lead, *(sizes[axis] for axis in axes)) for lead, axes in zip(leads, every, strict=True)]
    return [torch.tensor(random.uniform(low, high, shape), device=device).requires_grad_() for shape in shapes]


def check(function, inputs):
    """First order in reverse and forward mode, second order in reverse mode, along random directions."""
    inputs = tuple(inputs)
    assert gradcheck(function, inputs, check_forward_ad=True, fast_mode=True)
    assert gradgradcheck(function, inputs, fast_mode=True)


@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("equation", ["mk,nk->mn", "mk,nk->m", "mk,nk->k", "mk,nk->"])
def test_a_reduction(reduce, equation, reference):
    contraction = km.Contraction(equation, lambda a, b: a * km.sin(b) + b, reduce=reduce)
    check(contraction, draw(equation))


@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("kind", ["0-d", "length 1", "batch", "number"])
def test_a_parameter_of_map_and_epilogue(reduce, kind, reference):
    contraction = km.Contraction(
        "mk,nk->mn", lambda a, b, p: (a * b) ** p, reduce=reduce, epilogue=lambda s, p, c: c * km.tanh(s / p)
    )
    shape = {"0-d": (), "length 1": (1,), "batch": (3,), "number": ()}[kind]
    p = torch.linspace(1.2, 2.1, math.prod(shape), dtype=torch.float64).reshape(shape).requires_grad_()
    if kind == "number":
        check(lambda a, b: contraction(a, b, p=1.3, c=0.7), draw("mk,nk->mn"))
    else:
        c = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
        check(lambda a, b, p, c: contraction(a, b, p=p, c=c), [*draw("mk,nk->mn"), p, c])


GRADIENTS = {
    "distances": ("mk,nk->mn", lambda a, b, p: abs(a - b) ** p, "sum", lambda s, p: s ** (1 / p)),
    "rows": ("mk,nk->m", lambda a, b, p: km.exp(-p * abs(a - b)), "sum", None),
    "weights": ("mk,nk,k->mn", lambda a, b, w, p: w * km.tanh(a * b * p), "sum", lambda s, p: s * p),
    "largest": ("mk,nk->mn", lambda a, b, p: a * b * p + a, "max", lambda s: s**2),
    "smallest of rows": ("mk,nk->m", lambda a, b, p: a * b * p + a, "min", None),
    "product": ("mk,nk->mn", lambda a, b, p: 1 + a * b * p / 8, "prod", None),
    "soft": ("mk,nk->mn", lambda a, b, p: a * b * p, "logsumexp", lambda s: s + 1),
    "three products": ("ok,km,nm,nk->onm", lambda c, a, d, b, p: c * a * km.sin(d * b * p), "sum", None),
    "two sums": ("mk,nk->mn", lambda a, b, p: (abs(a - b), abs(a + b) + p), "sum", lambda s, t: s / t),
    "total": ("mk,nl,kl->", lambda a, b, c, p: km.sigmoid(a * b + c * p), "sum", None),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_backends_agree(name, backend, device):
    equation, function, reduce, epilogue = GRADIENTS[name]
    contraction = km.Contraction(equation, function, reduce=reduce, epilogue=epilogue)
    inputs = draw(equation, low=-1.0, high=1.0, sizes={"m": 9, "n": 17, "k": 33, "l": 5, "o": 3}, device=device)
    p = torch.tensor(1.3, dtype=torch.float64, device=device, requires_grad=True)
    out = contraction(*inputs, p=p)
    cotangent = torch.linspace(-1, 1, out.numel(), dtype=out.dtype, device=device).reshape(out.shape)
    found = torch.autograd.grad(out, [*inputs, p], cotangent)
    leaves = [value.detach().cpu().requires_grad_() for value in (*inputs, p)]
    with km.config(backend="reference"):
        wanted = contraction(*leaves[:-1], p=leaves[-1])
        grads = torch.autograd.grad(wanted, leaves, cotangent.cpu())
    assert_close(out, wanted, depth=200)
    for got, want in zip(found, grads, strict=True):
        assert_close(got, want, depth=200)


EQUATIONS = {
    "swapped output": ("mk,kn->nm", lambda a, b: a * b * b),
    "weights": ("mk,nk,k->mn", lambda a, b, w: w * (a - b) ** 2),
    "every subset": ("mk,nk,m,n,mn,k->mn", lambda a, b, row, col, t, w: w * a * b**2 + row * col * t),
    "over all axes": ("mk,nk,mnk->mn", lambda a, b, c: a * b**2 + c**2),
    "three products": ("ok,km,nm,nk->onm", lambda c, a, d, b: c * a * d**2 * b),
    "three reduced": ("mk,nl,kl->", lambda a, b, c: a * b * c**2),
    "elementwise": ("mk->km", lambda a: a**3),
    "scalar operand": ("mk,->m", lambda a, c: a * c**2),
    "matmul": ("mk,nk->mn", lambda a, b: a * b),
    "matrix by vector": ("mk,k->m", lambda a, b: a * b),
    "inner product": ("k,k->", lambda a, b: a * b),
    "unread operand": ("mk,nk,m->mn", lambda a, b, c: a * b**2),
}


@pytest.mark.parametrize("name", EQUATIONS)
def test_an_equation(name, reference):
    equation, function = EQUATIONS[name]
    contraction = km.Contraction(equation, function)
    if name == "unread operand":
        fixed = draw(equation)[2]
        check(lambda a, b: contraction(a, b, fixed), draw(equation)[:2])
    else:
        check(contraction, draw(equation))


@pytest.mark.parametrize("batches", [[(3,)], [(), (3,)], [(2, 1), (3,)], [(1,), (2,), (2, 1)], [(), (), (2,)]], ids=str)
def test_batches_broadcast(batches, reference):
    contraction = km.Contraction("mk,nk,k->mn", lambda a, b, w: w * a * b**2 + a)
    check(contraction, draw("mk,nk,k->mn", batches))


def test_named_operands_in_map_and_epilogue(reference):
    equation = "mk,nk,w:k,row:m,table:mn->mn"
    contraction = km.Contraction(
        equation, lambda a, b, w, row: w * a * b + row, epilogue=lambda s, row, table: s * row + table * s**2
    )
    check(lambda a, b, w, row, table: contraction(a, b, w=w, row=row, table=table), draw(equation))


TUPLES = {
    "cosine": (lambda a, b: (a * b, a * a, b * b), "sum", lambda s, t, u: 1 - s / (t * u) ** 0.5),
    "bray-curtis": (lambda a, b: (abs(a - b), abs(a + b)), "sum", lambda s, t: s / t),
    "mixed": (lambda a, b: (a * b, a - b, a + b), ("max", "prod", "logsumexp"), lambda s, t, u: (s * t, u**2)),
    "results as they are": (lambda a, b: (a * b, a - b), ("sum", "max"), None),
    "one result unread": (lambda a, b: (a * b, a - b), ("sum", "max"), lambda s, t: s**2),
    "with a truth": (lambda a, b: (a * b, a - b), "sum", lambda s, t: (s * t, s > t)),
}


@pytest.mark.parametrize("name", TUPLES)
def test_several_accumulators(name, reference):
    function, reduce, epilogue = TUPLES[name]
    contraction = km.Contraction("mk,nk->mn", function, reduce=reduce, epilogue=epilogue)

    def floating(*operands):
        results = contraction(*operands)
        results = results if isinstance(results, tuple) else (results,)
        return tuple(result for result in results if result.is_floating_point())

    check(floating, draw("mk,nk->mn"))


def test_only_one_of_several_results_is_used(reference):
    x, y = draw("mk,nk->mn")
    contraction = km.Contraction("mk,nk->mn", lambda a, b: (a * b, a - b), reduce=("sum", "max"))
    check(lambda a, b: contraction(a, b)[1], (x, y))


def test_every_entry_of_the_jacobians(reference):
    contraction = km.Contraction("mk,nk,k->mn", lambda a, b, w: w * a * b**2, epilogue=lambda s: s**1.5)
    inputs = tuple(draw("mk,nk,k->mn"))
    assert gradcheck(contraction, inputs, check_forward_ad=True)
    assert gradgradcheck(contraction, inputs)


def test_an_operand_without_influence(reference):
    x, y = draw("mk,nk->mn")
    contraction = km.Contraction("mk,nk->mn", lambda a, b: 0 * a + b**2)
    check(lambda b: contraction(x, b), (y,))
    assert (torch.autograd.grad(contraction(x, y).sum(), x)[0] == 0).all()


def test_inputs_of_any_strides(reference):
    contraction = km.Contraction("mk,nk->mn", lambda a, b: abs(a - b) ** 1.5)
    x, y = draw("mk,nk->mn")

    def strided(a, b):
        return contraction(a.mT.contiguous().mT, b.repeat_interleave(2, -1)[:, ::2])

    def shared(a):
        return contraction(a[:, :1].expand(-1, 4), a.flip(0))

    check(strided, (x, y))
    check(shared, (x,))


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_one_array_for_both(reduce, reference):
    contraction = km.Contraction(
        "mk,nk,k->mn", lambda a, b, w, p: w * (abs(a - b) + 1) ** p, reduce=reduce, epilogue=lambda s, p: s**p
    )
    x = draw("mk->mk")[0]
    w = draw("k->k", seed=1)[0]
    p = torch.tensor(1.3, dtype=torch.float64, requires_grad=True)
    cotangent = torch.tensor([[1.0, 2.0], [-3.0, 0.5]], dtype=torch.float64)
    assert contraction.is_symmetric
    once = torch.autograd.grad(contraction(x, x, w, p=p), (x, w, p), cotangent, create_graph=True)
    twice = torch.autograd.grad(contraction(x, x + 0, w, p=p), (x, w, p), cotangent, create_graph=True)
    for one, two in zip(once, twice, strict=True):
        assert_close(one, two, depth=9)
    second = [torch.autograd.grad(sum((g**2).sum() for g in grads), (x, w, p)) for grads in (once, twice)]
    for one, two in zip(*second, strict=True):
        assert_close(one, two, depth=9)
    if reduce in ("sum", "logsumexp"):
        check(lambda x, w, p: contraction(x, x, w, p=p), (x, w, p))


def test_one_array_for_both_forward(backend, device):
    contraction = km.Contraction("mk,nk->mn", lambda a, b: (a - b) ** 2)
    (x,) = draw("mk->mk", device=device)
    tangent = torch.randn_like(x)
    once = torch.func.jvp(lambda x: contraction(x, x), (x.detach(),), (tangent,))[1]
    twice = torch.func.jvp(lambda x: contraction(x, x + 0), (x.detach(),), (tangent,))[1]
    assert_close(once, twice, depth=4)


def gradient(contraction, *inputs, cotangent=None, **params):
    leaves = [torch.tensor(value, dtype=torch.float64).requires_grad_() for value in inputs]
    out = contraction(*leaves, **params)
    return torch.autograd.grad(out, leaves, torch.ones_like(out) if cotangent is None else cotangent)


@pytest.mark.parametrize(("reduce", "sign"), [("max", 1.0), ("min", -1.0)])
def test_ties_share_equally(reduce, sign, backend):
    if backend == "cuda":
        return
    contraction = km.Contraction("mk->m", lambda a: sign * a, reduce=reduce)
    (found,) = gradient(contraction, [[1.0, 3.0, 3.0, 2.0], [5.0, 5.0, 5.0, 5.0], [0.0, -0.0, -1.0, -2.0]])
    shares = [[0, 0.5, 0.5, 0], [0.25] * 4, [0.5, 0.5, 0, 0]]
    assert found.tolist() == [[sign * share for share in row] for row in shares]


def test_ties_are_found_after_rounding(backend, device):
    """Whatever rewriting and fused instructions do, some term must be recognised as the largest."""
    random = np.random.default_rng(0)
    for dtype in (torch.float32, torch.float64):
        a, b, c = (torch.tensor(random.standard_normal((40, 9)), dtype=dtype, device=device) for _ in range(3))
        a.requires_grad_()
        for function, slope in (
            (lambda a, b, c: a * b + c, b),
            (lambda a, b, c: a * (b / a) + a, torch.ones_like(b)),
            (lambda a, b, c: (a * b + c) * b - a * c, b * b - c),
            (lambda a, b, c: (a - b) * (a - b) + c * b, 2 * (a - b)),
        ):
            out = km.contract("mk,mk,mk->m", function, a, b, c, reduce="max")
            (found,) = torch.autograd.grad(out.sum(), a)
            chosen = function(a, b, c).argmax(1, keepdim=True)
            wanted = torch.zeros_like(found).scatter(1, chosen, slope.detach().gather(1, chosen))
            assert_close(found, wanted.double(), depth=9)


@pytest.mark.parametrize(
    "values", [[2.0, 0.0, 3.0], [0.0, 2.0, 0.0], [0.0, 0.0, 0.0], [0.0], [2.0, -0.0, -3.0, 5.0]], ids=str
)
def test_products_with_zeros(values, reference):
    contraction = km.Contraction("k->", lambda a: a, reduce="prod")
    x = torch.tensor(values, dtype=torch.float64, requires_grad=True)
    others = [math.prod(values[:place] + values[place + 1 :]) for place in range(len(values))]
    (found,) = torch.autograd.grad(contraction(x), x)
    assert found.tolist() == others
    check(contraction, (x,))
    hessian = torch.autograd.functional.hessian(contraction, x)
    pairs = [
        [math.prod(v for k, v in enumerate(values) if k not in (i, j)) if i != j else 0.0 for j in range(len(values))]
        for i in range(len(values))
    ]
    assert hessian.tolist() == pairs


@pytest.mark.parametrize("zeros", range(6))
def test_third_derivatives_of_products_with_zeros(zeros, reference):
    contraction = km.Contraction("k->", lambda a: a, reduce="prod")
    values = torch.tensor([0.0] * zeros + [2.0, -3.0, 0.5, 1.5, 4.0][zeros:], dtype=torch.float64)
    along = torch.tensor([1.0, -0.5, 2.0, 0.25, 3.0], dtype=torch.float64)

    def third(function):
        x = values.clone().requires_grad_()
        found = function(x)
        for _ in range(3):
            (slope,) = torch.autograd.grad(found, x, create_graph=True)
            found = (slope * along).sum()
        return found.detach()

    assert_close(third(contraction), third(lambda x: x[0] * x[1] * x[2] * x[3] * x[4]), depth=60, magnitude=1e3)


def test_products_with_zeros_inside_the_map(reference):
    contraction = km.Contraction("mk,nk->mn", lambda a, b: a - b, reduce="prod")
    x = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], dtype=torch.float64, requires_grad=True)
    y = torch.tensor([[1.0, 7.0, 8.0], [1.0, 2.0, 9.0]], dtype=torch.float64, requires_grad=True)
    check(contraction, (x, y))


def test_logsumexp_of_nothing_but_minus_infinity(backend):
    if backend == "cuda":
        return
    contraction = km.Contraction("mk->m", lambda a: a, reduce="logsumexp")
    low = -math.inf
    (found,) = gradient(contraction, [[low, low], [low, 1.0], [0.0, 0.0]])
    assert found.tolist() == [[0.0, 0.0], [0.0, 1.0], [0.5, 0.5]]


SINGULAR = {
    "sqrt of a distance": (lambda a, b: (a - b) ** 2, lambda s: s**0.5, {}),
    "sqrt in the map": (lambda a, b: km.sqrt(abs(a - b)), None, {}),
    "small power": (lambda a, b, p: abs(a - b) ** p, None, {"p": 0.3}),
    "power one": (lambda a, b, p: abs(a - b) ** p, None, {"p": 1}),
    "zeroth power": (lambda a, b, p: abs(a - b) ** p, None, {"p": 0}),
    "root of a power": (lambda a, b, p: abs(a - b) ** p, lambda s, p: s ** (1 / p), {"p": 1.3}),
    "root of a class": (lambda a, b, p: abs(a - b) ** p, lambda s, p: s ** (1 / p), {"p": 3}),
    "half": (lambda a, b: abs(a - b) ** 0.5, lambda s: s**2, {}),
    "quotient": (lambda a, b: (abs(a - b), abs(a - b)), lambda s, t: km.where(t == 0, 0, s / t), {}),
    "log": (lambda a, b: abs(a - b), lambda s: km.log1p(s) + km.xlogy(s, s), {}),
    "rsqrt": (lambda a, b: abs(a - b), lambda s: km.where(s == 0, 0, km.rsqrt(s)), {}),
}


@pytest.mark.parametrize(
    ("name", "parameter"),
    [(name, kind) for name in SINGULAR for kind in ("number", *(["tensor"] if SINGULAR[name][2] else []))],
)
def test_singular_points_have_finite_derivatives(name, parameter, backend, device):
    function, epilogue, params = SINGULAR[name]
    contraction = km.Contraction("mk,nk->mn", function, epilogue=epilogue)
    x = torch.tensor([[1.0, 2.0], [0.0, 0.0]], dtype=torch.float64, device=device, requires_grad=True)
    y = torch.tensor([[1.0, 2.0], [0.0, 2.0], [3.0, -1.0]], dtype=torch.float64, device=device, requires_grad=True)
    leaves = [x, y]
    if parameter == "tensor":
        params = {
            k: torch.tensor(float(v), dtype=x.dtype, device=device, requires_grad=True) for k, v in params.items()
        }
        leaves += params.values()
    out = contraction(x, y, **params)
    assert out.isfinite().all()
    first = torch.autograd.grad(out.sum(), leaves, create_graph=True)
    assert all(g.isfinite().all() for g in first)
    if backend == "reference":
        second = torch.autograd.grad(sum((g**2).sum() for g in first), leaves, allow_unused=True)
        assert all(g is None or g.isfinite().all() for g in second)
    coinciding = torch.autograd.grad(contraction(x[:1], y[:1], **params).sum(), x)[0]
    assert (coinciding == 0).all()


def test_inf_times_zero_does_not_appear_forward(backend, device):
    contraction = km.Contraction("mk,nk->mn", lambda a, b: (a - b) ** 2, epilogue=lambda s: s**0.5)
    x = torch.tensor([[1.0, 2.0]], dtype=torch.float64, device=device)
    tangent = torch.func.jvp(lambda x: contraction(x, x + 0), (x,), (torch.ones_like(x),))[1]
    assert tangent.tolist() == [[0.0]]


@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("empty", ["m", "n", "k"])
def test_empty_axes(reduce, empty, backend, device):
    sizes = {**SIZES, empty: 0}
    x = torch.ones(sizes["m"], sizes["k"], dtype=torch.float64, device=device, requires_grad=True)
    y = torch.ones(sizes["n"], sizes["k"], dtype=torch.float64, device=device, requires_grad=True)
    c = torch.tensor(2.0, dtype=torch.float64, device=device, requires_grad=True)
    out = km.contract("mk,nk->mn", lambda a, b, c: a * b * c, x, y, c=c, reduce=reduce)
    grads = torch.autograd.grad(torch.where(out.isfinite(), out, 0).sum(), (x, y, c))
    assert [g.shape for g in grads] == [x.shape, y.shape, c.shape]
    assert all((g == 0).all() for g in grads)


@pytest.mark.parametrize(
    ("dtype", "reduce"),
    [
        (torch.float16, "sum"),
        (torch.bfloat16, "max"),
        (torch.float32, "prod"),
        (torch.float32, "logsumexp"),
        (torch.float16, "min"),
    ],
)
def test_gradients_in_other_types(dtype, reduce, backend, device):
    contraction = km.Contraction(
        "mk,nk->mn",
        lambda a, b, p: (a * b) ** p / 2,
        reduce=reduce,
        epilogue=lambda s: km.tanh(s),  # noqa: PLW0108
    )
    x, y = (v.detach().to(dtype).requires_grad_() for v in draw("mk,nk->mn", high=1.2, device=device))
    p = torch.tensor(1.25, device=device, requires_grad=True)
    out = contraction(x, y, p=p)
    assert out.dtype == dtype
    cotangent = torch.linspace(-1, 1, 6, device=device).reshape(2, 3)
    found = torch.autograd.grad(out, (x, y, p), cotangent.to(dtype))
    assert [g.dtype for g in found] == [dtype, dtype, torch.float32]
    wide = [v.detach().double().requires_grad_() for v in (x, y, p)]
    with km.config(backend="reference"):
        wanted = torch.autograd.grad(contraction(*wide[:2], p=wide[2]), wide, cotangent.to(dtype).double())
    for got, want in zip(found, wanted, strict=True):
        assert_close(got, want, dtype=dtype, depth=12, magnitude=1.0)


def test_the_result_may_be_changed_where_nothing_is_saved(backend, device):
    x, y = draw("mk,nk->mn", device=device)
    for function, epilogue in ((lambda a, b: a * b, None), (lambda a, b: abs(a - b), lambda s: 0.5 * s + 1)):
        out = km.contract("mk,nk->mn", function, x, y, epilogue=epilogue)
        out += torch.eye(2, 3, dtype=out.dtype, device=device)
        wanted = torch.autograd.grad(km.contract("mk,nk->mn", function, x, y, epilogue=epilogue).sum(), x)
        assert torch.equal(torch.autograd.grad(out.sum(), x)[0], wanted[0])


def test_a_saved_result_must_not_be_changed(backend, device):
    x, y = draw("mk,nk->mn", device=device)
    out = km.contract("mk,nk->mn", lambda a, b: a * b, x, y, reduce="max")
    out += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_only_what_needs_a_gradient_is_computed(backend, device):
    x, y = draw("mk,nk->mn", device=device)
    y = y.detach()
    out = km.contract("mk,nk->mn", lambda a, b: a * b**2, x, y)
    assert_close(torch.autograd.grad(out.sum(), x)[0], (y**2).sum(0).expand(2, 4), depth=3)


def test_a_training_step_lowers_the_loss(backend, device):
    torch.manual_seed(0)
    x = torch.randn(30, 4, device=device)
    target = torch.exp(-torch.cdist(x, x, 1.0) / 2.0)
    bandwidth = torch.nn.Parameter(torch.tensor(5.0, device=device))
    laplace = km.Contraction("mk,nk->mn", lambda a, b: abs(a - b), epilogue=lambda s, bandwidth: km.exp(-s / bandwidth))
    optimizer = torch.optim.Adam([bandwidth], lr=0.1)
    for _ in range(150):
        optimizer.zero_grad()
        ((laplace(x, x, bandwidth=bandwidth) - target) ** 2).mean().backward()
        optimizer.step()
    assert abs(bandwidth.item() - 2.0) < 0.05


@pytest.mark.parametrize("reduce", ["sum", "min"])
def test_a_finished_backward_leaves_nothing_behind(reduce, device):
    contraction = km.Contraction("mk,nk->mn", lambda a, b: abs(a - b), reduce=reduce, epilogue=lambda s: s * s)
    gc.collect()
    gc.disable()
    try:
        leaf = torch.randn(10, 3, device=device, requires_grad=True)
        rows = leaf.clone()
        result = contraction(rows, torch.randn(4, 3, device=device))
        result.sum().backward()
        watched = [weakref.ref(rows), weakref.ref(result)]
        del rows, result
        assert [reference() for reference in watched] == [None, None]
    finally:
        gc.enable()
