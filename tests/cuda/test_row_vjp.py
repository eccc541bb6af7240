"""Gradients of products by points of few numbers, which one kernel makes, against float64."""

import pytest
import torch

import kernmantle as km
from kernmantle.backends.cuda import columns_plan
from kernmantle.runtime.dispatch import PLANS
from kernmantle.torch_ops import cuda_row_vjp

pytestmark = pytest.mark.cuda
KERNELS = {"gaussian": km.Gaussian(1.7), "laplace": km.Laplace(2.3), "matern": km.Matern(2.0, nu=2.5), "sum": None}


def _points(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", generator=torch.Generator("cuda").manual_seed(seed))


def _kernel(name: str):
    return KERNELS[name] or 0.5 * km.Gaussian(1.0) + km.Laplace(3.0)


def _gradients(kernel, tensors, cotangent, **more):
    wanted = [tensor.detach().clone().requires_grad_() for tensor in tensors]
    x, y = (wanted[0], wanted[0]) if len(wanted) == 2 else wanted[:2]
    return torch.autograd.grad(kernel.matmul(x, y, wanted[-1]), wanted, cotangent, **more)


def _assert_right(found, want, limit=3e-6):
    for one, other in zip(found, want, strict=True):
        assert (one.double() - other).norm() <= limit * other.norm()


@pytest.fixture
def calls(monkeypatch):
    seen = []
    own = cuda_row_vjp.vjp

    def spy(*given):
        found = own(*given)
        seen.append(found is not None)
        return found

    monkeypatch.setattr(cuda_row_vjp, "vjp", spy)
    return seen


@pytest.mark.parametrize("name", ["gaussian", "laplace", "matern"])
@pytest.mark.parametrize(
    ("m", "n", "k", "c"),
    [(700, 900, 20, 1), (1025, 2049, 3, 2), (600, 5000, 1, 4), (513, 700, 32, 3), (900, 700, 64, 1)],
)
def test_both_sets_of_points(name, m, n, k, c, calls):
    tensors, g = (_points(m, k), _points(n, k, seed=1), _points(n, c, seed=2)), _points(m, c, seed=3)
    found = _gradients(_kernel(name), tensors, g)
    want = _gradients(_kernel(name), [tensor.double() for tensor in tensors], g.double())
    assert calls == [True]
    _assert_right(found, want)


@pytest.mark.parametrize("name", ["gaussian", "laplace", "rational", "both", "NaN", "zero"])
@pytest.mark.parametrize(("m", "n", "k", "c"), [(700, 900, 20, 1), (1025, 2049, 3, 3), (600, 5000, 1, 4)])
def test_numbers_that_are_tensors(name, m, n, k, c, calls):
    """Scales and widths on the GPU give what the same numbers give, without a wait."""

    def kernel(number, space):
        return {
            "gaussian": lambda: km.Gaussian(number(1.7)), "laplace": lambda: km.Laplace(number(2.3), p=1),
            "rational": lambda: km.RationalQuadratic(number(3.0), alpha=number(2.0)),
            "both": lambda: number(0.5) * km.Gaussian(number(1.0)) + km.Gaussian(3.0),
            "NaN": lambda: km.Gaussian(number(torch.nan)), "zero": lambda: number(0.0) * km.Gaussian(number(2.0)),
        }[space]()  # fmt: skip

    tensors, g = (_points(m, k), _points(n, k, seed=1), _points(n, c, seed=2)), _points(m, c, seed=3)
    given = kernel(lambda value: torch.tensor(value, device="cuda"), name)
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = _gradients(given, tensors, g)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert calls == [True]
    if name == "NaN":  # of which the host knows nothing
        assert all(bool(each.isnan().all()) for each in found)
    else:
        _assert_right(found, _gradients(kernel(float, name), [tensor.double() for tensor in tensors], g.double()))


@pytest.mark.parametrize(("m", "n", "k", "c"), [(700, 900, 20, 1), (1025, 2049, 3, 3)])
def test_gradients_by_numbers_that_are_tensors(m, n, k, c, calls):
    tensors, g = (_points(m, k), _points(n, k, seed=1), _points(n, c, seed=2)), _points(m, c, seed=3)
    found = []
    for dtype in (torch.float32, torch.float64):
        numbers = [torch.tensor(value, device="cuda", dtype=dtype, requires_grad=True) for value in (0.5, 1.7, 2.0)]
        weight, width, alpha = numbers
        kernel = weight * km.Gaussian(width) + km.RationalQuadratic(width, alpha=alpha)
        points = [tensor.to(dtype).requires_grad_() for tensor in tensors]
        found.append(torch.autograd.grad(kernel.matmul(*points), [*points, *numbers], g.to(dtype)))
    assert calls[0] is True
    _assert_right(*found, limit=1e-5)


def test_one_set_of_points(calls):
    tensors, g = (_points(800, 7), _points(800, 1, seed=2)), _points(800, 1, seed=3)
    found = _gradients(_kernel("gaussian"), tensors, g)
    _assert_right(found, _gradients(_kernel("gaussian"), [tensor.double() for tensor in tensors], g.double()))
    assert calls == [True]


def test_equal_points_have_no_slope_of_a_distance(calls):
    x = _points(600, 5)
    found = _gradients(_kernel("laplace"), (x, x.clone(), _points(600, 1, seed=2)), _points(600, 1, seed=3))
    assert calls == [True]
    assert all(bool(each.isfinite().all()) for each in found)


@pytest.fixture
def products(monkeypatch):
    """Whether derivatives were made of products, and whether these lost digits."""
    seen = []
    own = cuda_row_vjp._by_products
    for module, name in ((cuda_row_vjp, "_LEAST_BY_PRODUCTS"), (columns_plan, "_LEAST_ENTRIES")):
        monkeypatch.setattr(module, name, 1)

    def spy(*given):
        found = own(*given)
        seen.append(None if found is None else bool(found.loses))
        return found

    monkeypatch.setattr(cuda_row_vjp, "_by_products", spy)
    PLANS.clear()
    yield seen
    PLANS.clear()


@pytest.mark.parametrize("name", ["gaussian", "matern", "sum of both"])
@pytest.mark.parametrize(("m", "n", "k", "c"), [(1500, 1300, 16, 1), (700, 4097, 20, 3), (2049, 1025, 64, 1)])
def test_products_with_the_slopes(name, m, n, k, c, products):
    kernel = {"gaussian": km.Gaussian(4.0), "matern": km.Matern(4.0, nu=2.5)}.get(name) or (
        0.5 * km.Gaussian(3.0) + km.Gaussian(5.0)
    )
    tensors, g = (_points(m, k) + 10, _points(n, k, seed=1) + 10, _points(n, c, seed=2)), _points(m, c, seed=3)
    found = _gradients(kernel, tensors, g)
    assert products == [False, False]
    _assert_right(found, _gradients(kernel, [tensor.double() for tensor in tensors], g.double()), 1e-6)


@pytest.mark.parametrize("kind", ["itself", "narrow", "clusters", "NaN"])
def test_products_that_lose_digits_give_way(kind, products):
    x = _points(1500, 20)
    y = x.clone() if kind in ("itself", "narrow") else _points(1300, 20, seed=1)
    if kind == "clusters":
        centres = _points(30, 20, seed=5)
        x, y = (centres.repeat(50, 1) + 1e-2 * _points(1500, 20, seed=seed) for seed in (6, 7))
    if kind == "NaN":
        x[3, 4] = torch.nan
    kernel = km.Gaussian({"itself": 4.0, "NaN": 4.0, "narrow": 0.6, "clusters": 0.02}[kind])
    tensors, g = (x, y, _points(len(y), 1, seed=2)), _points(1500, 1, seed=3)
    found = _gradients(kernel, tensors, g)
    assert products == [kind != "itself"] * 2
    want = _gradients(kernel, [tensor.double() for tensor in tensors], g.double())
    if kind == "NaN":
        assert [bool(each.isnan().any()) for each in found] == [True, True, True]
        assert torch.equal(found[0].isnan().any(1), want[0].isnan().any(1))
    else:
        _assert_right(found, want)


def test_views_offsets_and_clusters(calls):
    x = _points(20, 700, seed=1).mT + 100
    y = x[::2] + 1e-2 * _points(350, 20, seed=4)
    tensors, g = (x, y, _points(1, 350, seed=2).mT), _points(700, 1, seed=3)
    kernel = km.Gaussian(0.5)
    found = _gradients(kernel, tensors, g)
    _assert_right(found, _gradients(kernel, [tensor.double() for tensor in tensors], g.double()), 2e-5)
    assert calls == []  # so few pairs go back through their whole matrix


def test_what_it_is_not_for(calls):
    tensors, g = (_points(700, 65), _points(700, 65, seed=1), _points(700, 1, seed=2)), _points(700, 1, seed=3)
    found = _gradients(_kernel("gaussian"), tensors, g)
    _assert_right(found, _gradients(_kernel("gaussian"), [tensor.double() for tensor in tensors], g.double()))
    assert True not in calls


def test_second_derivatives_go_through_blocks():
    tensors, g = (_points(600, 4), _points(700, 4, seed=1), _points(700, 1, seed=2)), _points(600, 1, seed=3)

    def second(given, cotangent):
        wanted = [tensor.detach().clone().requires_grad_() for tensor in given]
        first = torch.autograd.grad(_kernel("gaussian").matmul(*wanted), wanted, cotangent, create_graph=True)
        return torch.autograd.grad(sum(each.square().sum() for each in first), wanted)

    want = second([tensor.double() for tensor in tensors], g.double())
    _assert_right(second(tensors, g), want, 1e-5)
