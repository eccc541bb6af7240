"""Derivatives of Kronecker products: every argument, every order, transforms and torch.compile."""

from __future__ import annotations

import math

import pytest
import torch

import kernmantle as km
from kernmantle.testing import assert_close

from ..kron_oracle import drawn


def _leaf(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype).requires_grad_()


@pytest.mark.parametrize("side", ["right", "left"])
def test_every_argument(side):
    factors = [_leaf(2, 1, seed=1), _leaf(1, 2, seed=2), _leaf(2, 1, 1, 2, seed=3)]
    x = _leaf(2, 1, 2, seed=4) if side == "right" else _leaf(2, 4, 1, seed=4)
    y = _leaf(4, seed=5) if side == "right" else _leaf(2, 1, seed=5)
    alpha, beta = _leaf(), _leaf(2, 1, seed=6)

    def function(x, y, alpha, beta, *factors):
        return km.kron_matmul(x, factors, side=side, alpha=alpha, beta=beta, y=y)

    arguments = (x, y, alpha, beta, *factors)
    assert torch.autograd.gradcheck(function, arguments, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(function, arguments)


def test_a_repeated_factor_has_one_gradient():
    x, f = _leaf(2, 12), _leaf(2, 2, seed=1)
    repeated = lambda x, f: km.kron_matmul(x, [f, 3, f], alpha=0.5)  # noqa: E731
    assert torch.autograd.gradcheck(repeated, (x, f), check_forward_ad=True)
    other = f.detach().clone().requires_grad_()
    separate = km.kron_matmul(x, [f, 3, other]).square().sum()
    parts = torch.autograd.grad(separate, [f, other])
    (whole,) = torch.autograd.grad(km.kron_matmul(x, [f, 3, f]).square().sum(), [f])
    assert_close(whole, sum(parts), depth=20)


@pytest.mark.filterwarnings("ignore::kernmantle.errors.KernmantleWarning")
def test_complex_gradients():
    x, f, g = (_leaf(*shape, seed=i, dtype=torch.complex128) for i, shape in enumerate([(3, 6), (2, 2), (3, 1)]))
    function = lambda x, f, g: km.kron_matmul(x, [f, g], alpha=1 + 2j)  # noqa: E731
    assert torch.autograd.gradcheck(function, (x, f, g))


@pytest.mark.parametrize(
    "sizes",
    [[(8, 8)] * 4, [(40, 40), (3, 3)], [(2, 70), (70, 2)], [(16, 5)], [(2, 3), (3, 2), (1, 4), (20, 5), (3, 3)]],
)
def test_against_the_dense_product(sizes):
    x, factors = drawn((7, sizes), torch.float64)
    leaves = [x.requires_grad_(), *(f.requires_grad_() for f in factors)]
    dense = factors[0]
    for factor in factors[1:]:
        dense = torch.kron(dense, factor)
    weight = torch.randn(7, dense.shape[1], dtype=torch.float64, generator=torch.Generator().manual_seed(9))
    expected = torch.autograd.grad((x @ dense * weight).sum(), leaves)
    found = torch.autograd.grad((km.kron_matmul(x, factors) * weight).sum(), leaves)
    for got, wanted in zip(found, expected, strict=True):
        assert_close(got, wanted, depth=7 * dense.shape[0])


def test_only_what_is_needed():
    x, factors = drawn((7, [(3, 3)] * 3), torch.float64)
    factors[1].requires_grad_()
    km.kron_matmul(x, factors).sum().backward()
    assert factors[1].grad is not None
    assert x.grad is None


def test_vmap_and_func():
    x, f = torch.randn(5, 3, 4).double(), torch.randn(5, 2, 2).double()
    batched = torch.func.vmap(lambda x, f: km.kron_matmul(x, [f, f]))(x, f)
    assert_close(batched, km.kron_matmul(x, [f, f]), depth=4)
    slope = torch.func.vmap(torch.func.grad(lambda f, x: km.kron_matmul(x, [f, 2]).sin().sum()), (0, 0))(f, x)
    single = torch.stack(
        [torch.func.grad(lambda f, x=x[i]: km.kron_matmul(x, [f, 2]).sin().sum())(f[i]) for i in range(5)]
    )
    assert_close(slope, single, depth=12)
    jacobian = torch.func.jacrev(lambda f: km.kron_matmul(x[0], [f, f]))(f[0])
    forward = torch.func.jacfwd(lambda f: km.kron_matmul(x[0], [f, f]))(f[0])
    assert_close(jacobian, forward, depth=12)


def test_the_operator_passes_opcheck():
    x, f = torch.randn(3, 6, 1), torch.randn(2, 2)
    for y in (None, torch.randn(3, 6, 1)):
        torch.library.opcheck(
            torch.ops.kernmantle.kron.default, (x, [f], y, 1.5, 0.5 * (y is not None), "0 i3", "default fuse")
        )


@pytest.mark.parametrize("scale", ["number", "tensor"])
def test_compiled_with_gradients(scale):
    torch.compiler.reset()
    x, f = _leaf(3, 12, dtype=torch.float32), _leaf(2, 2, seed=1, dtype=torch.float32)
    leaves, options = (x, f), {"alpha": 2.0}
    if scale == "tensor":
        alpha, beta = _leaf(seed=2, dtype=torch.float32), _leaf(seed=3, dtype=torch.float32)
        options, leaves = {"alpha": alpha, "beta": beta, "y": torch.ones(3, 12)}, (x, f, alpha, beta)
    function = lambda x, f: km.kron_matmul(x, [f, f, 3], **options).sin().sum()  # noqa: E731
    expected = torch.autograd.grad(function(x, f), leaves)
    found = torch.autograd.grad(torch.compile(function, fullgraph=True, backend="aot_eager")(x, f), leaves)
    for got, wanted in zip(found, expected, strict=True):
        assert_close(got, wanted.double(), depth=40)


def test_out_does_not_take_gradients():
    x, f = _leaf(3, 4), _leaf(2, 2)
    with pytest.raises(km.errors.GradientError, match="out="):
        km.kron_matmul(x, [f, f], out=torch.empty(3, 4).double())
    with pytest.raises(km.errors.GradientError, match=r"torch\.func"):
        torch.func.vmap(lambda x: km.kron_matmul(x, [2, 2], out=torch.empty(4).double()))(x.detach())


@pytest.mark.parametrize("sizes", [((0, 2), (2, 4)), ((3, 0), (2, 4)), ((3, 2), (0, 4)), ((3, 2), (2, 4))])
@pytest.mark.parametrize("rows", [0, 3])
def test_products_of_nothing_have_gradients(sizes, rows):
    factors = [_leaf(*size, seed=place) for place, size in enumerate(sizes)]
    x = _leaf(rows, factors[0].shape[0] * factors[1].shape[0], seed=5)
    found = torch.autograd.grad(km.kron_matmul(x, factors).square().sum(), [x, *factors])
    expected = torch.autograd.grad((x @ torch.kron(*factors)).square().sum(), [x, *factors])
    for own, wanted in zip(found, expected, strict=True):
        assert_close(own, wanted, depth=64)


@pytest.mark.parametrize("side", ["right", "left"])
def test_what_lies_between_passes_may_be_kept(side):
    torch.manual_seed(0)
    sizes = [(2, 3), (16, 16), (16, 8), (16, 16)]
    factors = [torch.randn(size, dtype=torch.float64, requires_grad=True) for size in sizes]
    width = math.prod(p if side == "right" else q for p, q in sizes)
    x = torch.randn((2, width) if side == "right" else (width, 2), dtype=torch.float64, requires_grad=True)
    y = torch.randn_like(km.kron_matmul(x, factors, side=side)).detach().requires_grad_()
    leaves = [x, y, *factors]

    def call(store):
        return km.kron_matmul(x, factors, side=side, alpha=0.5, beta=-2, y=y, store=store)

    one, other = call(True), call(False)
    assert torch.allclose(one, other)
    weight = torch.randn_like(one)
    for found, wanted in zip(*(torch.autograd.grad(way, leaves, weight) for way in (one, other)), strict=True):
        assert torch.allclose(found, wanted)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: kept.append(tensor.numel()) or tensor, lambda tensor: tensor
    ):
        call(True)
    assert kept.count(x.numel()) == 1
    assert len([size for size in kept if size > 4096]) == 2
    with pytest.raises(km.errors.ParameterError, match="store"):
        km.kron_matmul(x, factors, side=side, store=1)


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_small_results_between_passes_are_kept_on_cpus(dtype):
    torch.manual_seed(0)
    leaves = [torch.randn(size).to(getattr(torch, dtype)).requires_grad_() for size in [(7, 480), (24, 40), (20, 9)]]
    kept: list[int] = []

    def gradients(store):
        kept.clear()
        with torch.autograd.graph.saved_tensors_hooks(lambda own: kept.append(own.numel()) or own, lambda own: own):
            out = km.kron_matmul(leaves[0], leaves[1:], fuse=False, store=store)
        return torch.autograd.grad(out.square().sum(), leaves)

    own = gradients(None)
    assert len(kept) == 4
    others = gradients(False)
    assert len(kept) == 3
    assert all(map(torch.equal, own, others))
    if dtype == "float64":
        wide = [each.detach().clone().requires_grad_() for each in leaves]
        exact = torch.autograd.grad((wide[0] @ torch.kron(*wide[1:])).square().sum(), wide)
        for one, wanted in zip(own, exact, strict=True):
            assert_close(one, wanted, depth=3360)


def test_second_derivatives_by_a_factor_without_entries():
    x, factor = torch.zeros(2, 0), torch.zeros(0, 3)
    found = torch.func.hessian(lambda own: km.kron_matmul(x, [own, own]).square().sum())(factor)
    assert found.shape == (0, 3, 0, 3)
