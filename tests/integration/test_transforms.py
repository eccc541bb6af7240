"""torch.func on contractions: vmap over operands and parameters, grad, jvp, jacrev, hessian, autocast."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

import kernmantle as km
from kernmantle.errors import GradientError
from kernmantle.testing import assert_close

LAPLACE = km.Contraction(
    "mk,nk->mn", lambda a, b, p: abs(a - b) ** p, epilogue=lambda s, p, h: km.exp(-(s ** (1 / p)) / h)
)


def laplace(x, y, p, h):
    """The same in torch."""
    return torch.exp(-((abs(x[..., :, None, :] - y[..., None, :, :]) ** p).sum(-1) ** (1 / p)) / h)


def number(value, device):
    return torch.tensor(value, dtype=torch.float64, device=device)


@pytest.fixture
def x(device):
    torch.manual_seed(0)
    return torch.randn(3, 4, 5, dtype=torch.float64).to(device)


@pytest.fixture
def y(device):
    torch.manual_seed(1)
    return torch.randn(3, 6, 5, dtype=torch.float64).to(device)


@pytest.mark.parametrize("in_dims", [(0, None), (None, 0), (0, 0), (0, 1), (2, 1)], ids=str)
def test_vmap_over_operands(in_dims, x, y, backend):
    operands = [value[0] if dim is None else value.movedim(0, dim) for value, dim in zip((x, y), in_dims, strict=True)]
    found = vmap(lambda a, b: LAPLACE(a, b, p=1.3, h=2.0), in_dims)(*operands)
    wanted = laplace(x[:1] if in_dims[0] is None else x, y[:1] if in_dims[1] is None else y, 1.3, 2.0)
    assert_close(found, wanted, depth=5)


@pytest.mark.parametrize("batched", ["p", "h", "both"])
def test_vmap_over_parameters(batched, x, y, backend, device):
    p, h = torch.linspace(1, 2, 7, dtype=torch.float64, device=device), number(2.0, device)
    hs = torch.linspace(1, 3, 7, dtype=torch.float64, device=device)
    if batched == "p":
        found = vmap(lambda p: LAPLACE(x[0], y[0], p=p, h=h))(p)
        wanted = laplace(x[0], y[0], p[:, None, None, None], h)[:, :, :]
        wanted = torch.stack([laplace(x[0], y[0], q, h) for q in p])
    elif batched == "h":
        found = vmap(lambda h: LAPLACE(x[0], y[0], p=1.3, h=h))(hs)
        wanted = torch.stack([laplace(x[0], y[0], 1.3, q) for q in hs])
    else:
        found = vmap(lambda p, h: LAPLACE(x[0], y[0], p=p, h=h), out_dims=1)(p, hs).movedim(1, 0)
        wanted = torch.stack([laplace(x[0], y[0], q, r) for q, r in zip(p, hs, strict=True)])
    assert_close(found, wanted, depth=5)


def test_vmap_beside_batch_axes(x, y, backend, device):
    stacked = torch.stack([x, 2 * x], 2)
    found = vmap(lambda a, h: LAPLACE(a, y, p=1.3, h=h), (2, 0))(stacked, torch.rand(2, 3, device=device).double() + 1)
    assert found.shape == (2, 3, 4, 6)
    hs = number([2.0, 3.0], device)
    found = vmap(lambda a, h: LAPLACE(a, y, p=1.3, h=h), (2, 0))(stacked, hs)
    assert_close(found, torch.stack([laplace(x, y, 1.3, 2.0), laplace(2 * x, y, 1.3, 3.0)]), depth=5)


def test_nested_vmap(x, y, backend, device):
    hs = number([1.0, 2.0], device)
    found = vmap(lambda a: vmap(lambda h: LAPLACE(a, y[0], p=2, h=h))(hs))(x)
    assert_close(found, torch.stack([torch.stack([laplace(a, y[0], 2, h) for h in hs]) for a in x]), depth=5)


@pytest.mark.parametrize("reduce", ["argmin", "any"])
def test_vmap_of_what_has_no_gradient(reduce, x, y, backend):
    contraction = km.Contraction(
        "mk,nk->mn", lambda a, b: abs(a - b) > 0.3 if reduce == "any" else abs(a - b), reduce=reduce
    )
    assert torch.equal(vmap(contraction)(x, y), torch.stack([contraction(a, b) for a, b in zip(x, y, strict=True)]))


def test_vmap_with_one_array_for_both(x, backend):
    found = vmap(lambda a: LAPLACE(a, a, p=1.3, h=2.0))(x)
    assert torch.equal(found, found.mT)
    assert_close(found, laplace(x, x, 1.3, 2.0), depth=5)


def test_grad(x, y, backend):
    found = grad(lambda a: LAPLACE(a, y[0], p=1.3, h=2.0).sum())(x[0])
    assert_close(found, grad(lambda a: laplace(a, y[0], 1.3, 2.0).sum())(x[0]), depth=30)


def test_grad_of_grad(x, y, backend, device):
    def inner(f):
        return lambda p: grad(lambda h: f(x[0], y[0], p, h).sum())(number(2.0, device))

    found = grad(inner(lambda a, b, p, h: LAPLACE(a, b, p=p, h=h)))(number(1.3, device))
    assert_close(found, grad(inner(laplace))(number(1.3, device)), depth=120)


def test_samples_have_gradients_of_their_own(x, y, backend):
    found = vmap(grad(lambda a, b: LAPLACE(a, b, p=1.3, h=2.0).sum()))(x, y)
    assert_close(found, vmap(grad(lambda a, b: laplace(a, b, 1.3, 2.0).sum()))(x, y), depth=30)


def test_jvp_and_vjp(x, y, backend):
    tangent, cotangent = torch.randn_like(x), torch.randn(3, 4, 6, dtype=x.dtype, device=x.device)
    function = lambda a: LAPLACE(a, y, p=1.3, h=2.0)  # noqa: E731
    value, forward = jvp(function, (x,), (tangent,))
    (backward,) = vjp(function, x)[1](cotangent)
    wanted, wanted_forward = jvp(lambda a: laplace(a, y, 1.3, 2.0), (x,), (tangent,))
    assert_close(value, wanted, depth=5)
    assert_close(forward, wanted_forward, depth=30)
    assert_close((forward * cotangent).sum(), (backward * tangent).sum(), depth=300, magnitude=1.0)


@pytest.mark.parametrize("reduce", ["sum", "prod", "min", "max", "logsumexp"])
def test_forward_and_reverse_jacobians_agree(reduce, x, y, backend):
    contraction = km.Contraction("mk,nk->mn", lambda a, b: a * b + a, reduce=reduce, epilogue=lambda s: km.tanh(s))  # noqa: PLW0108
    one, two = (way(lambda a: contraction(a, y[0]))(x[0]) for way in (jacrev, jacfwd))
    assert one.shape == (4, 6, 4, 5)
    assert_close(one, two, depth=10, magnitude=1.0)


def test_a_tangent_that_lacks_batch_axes(x, y, backend):
    contraction = km.Contraction("mk,nk,k->mn", lambda a, b, c: a * b + c)
    c = torch.randn(7, 5, dtype=x.dtype, device=x.device)
    value, tangent = jvp(lambda a: contraction(a, y[0], c), (x[0],), (x[1],))
    assert value.shape == tangent.shape == (7, 4, 6)
    assert_close(tangent, (x[1] @ y[0].T).expand(7, 4, 6), depth=5)


def test_what_does_not_move_has_tangent_zero(x, y, backend):
    contraction = km.Contraction("mk,nk->mn", lambda a, b: (a * 1, b * 2))
    _, (first, second) = jvp(lambda b: contraction(x[0], b), (y[0],), (y[0],))
    assert (first == 0).all()
    assert_close(second, (2 * y[0].sum(-1)).expand(4, 6), depth=5)


def test_a_truth_has_no_tangent(x, y, backend):
    contraction = km.Contraction("mk,nk->mn", lambda a, b: a * b, epilogue=lambda s: (s, s > 0))
    (value, truth), (tangent, none) = jvp(lambda a: contraction(a, y[0]), (x[0],), (x[0],))
    assert torch.equal(truth, value > 0)
    assert_close(tangent, value, depth=5)
    assert not none.any()


def test_hessian(x, y, backend, device):
    found = hessian(lambda p: LAPLACE(x[0], y[0], p=p, h=2.0).sum())(number(1.3, device))
    assert_close(found, hessian(lambda p: laplace(x[0], y[0], p, 2.0).sum())(number(1.3, device)), depth=400)
    cubic = km.Contraction("mk,nk->", lambda a, b: (a - b) ** 3)
    found = hessian(lambda a: cubic(a, y[0]))(x[0, :2])
    wanted = hessian(lambda a: ((a[:, None] - y[0]) ** 3).sum())(x[0, :2])
    assert_close(found, wanted, depth=60)


@pytest.mark.parametrize("batched", [False, True])
def test_jvp_of_what_is_added_to_a_sum(batched, x, y, backend, device):
    """Nothing but a number moves, and it has no axis of the output."""
    offset = torch.linspace(1, 2, 3, dtype=torch.float64, device=device) if batched else number(0.5, device)
    contraction = km.Contraction("mk,nk->mn", lambda a, b: a * b, epilogue=lambda s, t: s + t)
    found, tangent = jvp(lambda t: contraction(x, y, t=t), (offset,), (offset,))
    added = offset.reshape(-1, 1, 1).expand(3, 4, 6)
    assert_close(found, x @ y.mT + added, depth=5)
    assert_close(tangent, added, depth=5)


@pytest.mark.parametrize("reduce", ["argmin", "any", "fold", "semiring"])
@pytest.mark.parametrize("way", ["requires_grad", "grad", "jvp"])
def test_what_has_no_gradient_says_so(reduce, way, x, y, backend):
    reduction = {
        "fold": km.Fold(lambda acc, a, b: acc * a + b, 0.0),
        "semiring": km.Semiring(lambda a, b: km.maximum(a, b), float("-inf")),  # noqa: PLW0108
    }.get(reduce, reduce)
    contraction = km.Contraction("mk,nk->mn", None if reduce == "fold" else lambda a, b: a * b, reduce=reduction)

    def function(a):
        return contraction(a, y[0]).double().sum()

    with pytest.raises(GradientError, match=rf"a reduction by {reduce} has no gradient; detach the operands"):  # noqa: PT012
        if way == "requires_grad":
            function(x[0].requires_grad_())
        elif way == "grad":
            grad(function)(x[0])
        else:
            jvp(function, (x[0],), (x[0],))
    with torch.no_grad():
        function(x[0].requires_grad_())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_autocast_computes_and_gives_float32(dtype, backend, device):
    x, y = (torch.randn(n, 40, device=device).to(dtype) for n in (4, 5))
    for function, direct in (
        (lambda a, b: a * b, lambda a, b: a @ b.T),
        (lambda a, b: abs(a - b), lambda a, b: torch.cdist(a, b, 1.0)),
    ):
        with torch.autocast(device, dtype=torch.bfloat16):
            found = km.contract("mk,nk->mn", function, x, y)
            again = km.contract("mk,nk->mn", function, x, y)
        assert found.dtype == again.dtype == torch.float32
        assert_close(found, direct(x.double(), y.double()), depth=40)
    plain = km.Contraction("mk,nk->mn", lambda a, b: abs(a - b))
    assert plain(x, y).dtype == dtype
    with torch.autocast(device, dtype=torch.bfloat16):
        assert plain(x, y).dtype == torch.float32
    assert plain(x, y).dtype == dtype


def test_autocast_with_a_gradient(backend, device):
    x, y = (torch.randn(n, 6, device=device, dtype=torch.bfloat16).requires_grad_() for n in (4, 5))
    with torch.autocast(device, dtype=torch.bfloat16):
        loss = km.contract("mk,nk->mn", lambda a, b: (a - b) ** 2, x, y).sum()
    found = torch.autograd.grad(loss, (x, y))
    wide = [v.detach().double().requires_grad_() for v in (x, y)]
    wanted = torch.autograd.grad(((wide[0][:, None] - wide[1]) ** 2).sum(), wide)
    for got, want in zip(found, wanted, strict=True):
        assert got.dtype == torch.bfloat16
        assert_close(got, want, depth=30)


def test_in_a_module(backend, device):
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(3, 5, dtype=torch.float64))
            self.scale = torch.nn.Parameter(torch.tensor(1.5, dtype=torch.float64))

        def forward(self, x):
            return LAPLACE(x, self.weight, p=1.3, h=self.scale)

    layer = Layer().to(device)
    x = torch.randn(4, 5, dtype=torch.float64, device=device)
    params = dict(layer.named_parameters())
    found = grad(lambda given: functional_call(layer, given, (x,)).sum())(params)
    wanted = grad(lambda given: laplace(x, given["weight"], 1.3, given["scale"]).sum())(params)
    for name, value in wanted.items():
        assert_close(found[name], value, depth=30)
    ensemble = {name: torch.stack([value, 2 * value]) for name, value in params.items()}
    outs = vmap(lambda given: functional_call(layer, given, (x,)))(ensemble)
    assert_close(outs[1], laplace(x, 2 * layer.weight, 1.3, 2 * layer.scale), depth=5)


def test_in_inference_mode_and_without_grad(x, y, backend):
    contraction = km.Contraction("mk,nk->mn", lambda a, b: abs(a - b))
    wanted = contraction(x, y)
    with torch.inference_mode():
        found = contraction(x, y)
    assert torch.equal(found, wanted)
    x.requires_grad_()
    with torch.no_grad():
        assert not contraction(x, y).requires_grad
    assert contraction(x, y).requires_grad


def test_many_threads(x, y, backend):
    from concurrent.futures import ThreadPoolExecutor

    contraction = km.Contraction("mk,nk->mn", lambda a, b, p: abs(a - b) ** p)
    wanted = {p: laplace_free(x, y, p) for p in np.linspace(1, 2, 8)}

    def work(p):
        with km.config(backend=backend):
            return contraction(x, y, p=float(p))

    with ThreadPoolExecutor(4) as pool:
        for p, found in zip(list(wanted) * 5, pool.map(work, list(wanted) * 5), strict=True):
            assert_close(found, wanted[p], depth=5)


def laplace_free(x, y, p):
    return (abs(x[..., :, None, :] - y[..., None, :, :]) ** float(p)).sum(-1)
