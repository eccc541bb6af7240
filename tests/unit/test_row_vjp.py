"""Gradients of products by points of few numbers: what the kernel is told, evaluated by torch in float64."""

import pytest
import torch

import kernmantle as km
from kernmantle.backends.cuda.emit import headers
from kernmantle.backends.cuda.row_vjp_emit import RowVjpPlan, emit
from kernmantle.backends.cuda.tiles import CARDS
from kernmantle.backends.reference.evaluate import evaluate
from kernmantle.compiler.row_vjp import row_vjp
from kernmantle.torch_ops import cuda_row_vjp
from kernmantle.torch_ops import row_reduce_autograd as autograd
from kernmantle.torch_ops.execute import Types
from kernmantle.torch_ops.namespaces import torch_namespace

from ..golden.compiled import compile_source

KERNELS = {"gaussian": km.Gaussian(1.7), "laplace": km.Laplace(2.3), "matern": km.Matern(2.0, nu=2.5)}
TENSORS = {
    "gaussian": km.Gaussian(torch.tensor(1.7)), "laplace": km.Laplace(torch.tensor(2.3), p=1),
    "rational": km.RationalQuadratic(torch.tensor(3.0), alpha=torch.tensor(2.0)),
    "both": torch.tensor(0.5) * km.Gaussian(torch.tensor(1.0)) + km.Gaussian(2.0),
    "power": km.Kernel(lambda a, b, p: abs(a - b) ** p, lambda s, w: km.exp(-s * w), w=torch.tensor(0.7), p=1.5),
}  # fmt: skip
"""Kernels whose numbers are tensors."""


@pytest.fixture(autouse=True)
def no_bound_blocks(monkeypatch):
    """Small matrices on the CPU go the way that large ones go on a GPU."""
    monkeypatch.setattr(autograd, "in_one_block", lambda *_: None)


@pytest.fixture
def taken(monkeypatch):
    """Texts and numbers of products whose gradients are asked for."""
    seen = []

    def note(task, operands, v, cotangent, wanted):
        seen.append((task.text, task.numbers, operands, v, cotangent, wanted))

    monkeypatch.setattr(autograd, "_in_kernels", note)
    return seen


def written_out(vjp, apply, numbers, scalars, own, other, g, v, products=None):
    """The formula of the kernel over all pairs."""
    assert products is None
    space = torch_namespace(torch.float64, torch.device("cpu"))
    given = dict(zip(vjp.scalars, scalars, strict=True))
    given |= {
        op.name: torch.tensor(value, dtype=torch.float64)
        for op, value in zip(apply.inner.numbers, numbers, strict=True)
    }
    names = vjp.numbers[len(numbers) :]
    given |= dict(zip(names, evaluate(vjp.folded, given, space), strict=True))
    ends = {vjp.own: own[:, None], vjp.other: other[None]}
    mapped, partial = evaluate([vjp.map, vjp.partial], given | ends, space)
    (slope,) = evaluate([vjp.slope], given | {"s0": mapped.sum(-1)}, space)
    return ((g @ v.mT) * slope)[..., None].mul(partial).sum(1)


def _gradients(kernel, tensors, cotangent):
    wanted = [tensor.clone().requires_grad_() for tensor in tensors]
    x, y = (wanted[0], wanted[0]) if len(wanted) == 2 else wanted[:2]
    return torch.autograd.grad(kernel.matmul(x, y, wanted[-1]), wanted, cotangent)


@pytest.mark.parametrize("kernel", [*KERNELS.values(), *TENSORS.values()], ids=[*KERNELS, *(f"{n}s" for n in TENSORS)])
@pytest.mark.parametrize("same", [False, True])
def test_gradients_by_the_points(kernel, same, taken, monkeypatch):
    monkeypatch.setattr(cuda_row_vjp, "_vjp", written_out)
    monkeypatch.setattr(cuda_row_vjp, "LEAST_IN_KERNELS", 1)
    x, y = torch.randn(30, 5, dtype=torch.float64), torch.randn(30 if same else 40, 5, dtype=torch.float64)
    tensors = (x, torch.randn(30, 2).double()) if same else (x, y, torch.randn(40, 2).double())
    want = _gradients(kernel, tensors, torch.randn(30, 2, dtype=torch.float64))
    ((text, numbers, *given),) = taken
    found = cuda_row_vjp.vjp(text, numbers, *given)
    one = cuda_row_vjp.vjp(text, numbers, *given[:-1], (False, True, *given[-1][2:]))
    assert one[0] is None
    assert torch.equal(one[1], found[1])
    assert found[2:] == [None] * (len(found) - 2)  # those by tensors of one number, and that by v
    found = found[:2]
    found = [sum(found)] if same else found  # one tensor is given twice
    assert len(found) == len(tensors) - 1
    for one, other in zip(found, want, strict=False):
        assert torch.allclose(one, other, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("kernel", [*KERNELS.values(), *map(TENSORS.get, ("gaussian", "rational"))])
def test_kernels_compile(kernel, taken):
    _gradients(kernel, (torch.randn(8, 5), torch.randn(9, 5), torch.randn(9, 1)), torch.randn(8, 1))
    for by_columns, card in ((False, "sm_80"), (True, "sm_90")):
        for depth, registers in ((20, 128), (64, 255)):
            plan = RowVjpPlan(row_vjp(taken[0][0], by_columns), depth, 1, card)
            found = compile_source(emit(plan), card, headers(), "vjp").resources
            assert found.spill_stores == 0
            assert found.registers <= registers


def test_others_go_through_blocks(taken):
    x, y, v = torch.randn(8, 65), torch.randn(9, 65), torch.randn(9, 1)
    wide = _gradients(KERNELS["gaussian"], (x, y, v), torch.randn(8, 1))
    text, numbers, *given = taken[-1]
    assert wide[0].shape == x.shape
    assert cuda_row_vjp.vjp(text, numbers, *given) is None
    both = 0.5 * km.Gaussian(1.0) + km.Laplace(3.0)
    _gradients(both, (x[:, :5], y[:, :5], v), torch.randn(8, 1))
    assert row_vjp(taken[-1][0], False) is None
    plan = RowVjpPlan(row_vjp(text, False), 20, 1, "sm_90")
    assert plan.parts(100_000, 100_000, 132) == 5
    assert plan.parts(100, 100_000, 132) == 97
    assert plan.parts(1 << 24, 1 << 20, 132) == 1


@pytest.fixture
def by_products(monkeypatch):
    """Derivatives by products on the CPU, and whether they lost digits; the kernel behind them is not there."""
    seen = []

    def vjp(vjp, apply, numbers, scalars, own, other, g, v, products):
        seen.append(bool(products.loses))
        return products.derivative

    monkeypatch.setattr(cuda_row_vjp, "_vjp", vjp)
    monkeypatch.setattr(cuda_row_vjp, "limits", lambda index: CARDS["sm_90"])
    monkeypatch.setattr(cuda_row_vjp, "index_of", lambda device: 0)
    for name in ("LEAST_IN_KERNELS", "_LEAST_BY_PRODUCTS"):
        monkeypatch.setattr(cuda_row_vjp, name, 1)
    monkeypatch.setattr(autograd, "_in_kernels", lambda task, *given: cuda_row_vjp.vjp(task.text, task.numbers, *given))
    return seen


def test_factors_of_tensors(by_products):
    x, y, v, g = torch.randn(200, 20), torch.randn(300, 20), torch.randn(300, 2), torch.randn(200, 2)
    for width in (4.0, torch.tensor(4.0)):
        found = _gradients(km.Gaussian(width), (x, y, v), g)
        for one, other in zip(found, _exactly(km.Gaussian(4.0), (x, y, v), g), strict=True):
            assert (one.double() - other).norm() <= 1e-6 * other.norm()
    assert by_products == [False] * 4


@pytest.mark.parametrize("same", [False, True])
@pytest.mark.parametrize("columns", [1, 3])
def test_gradients_by_tensors_of_one_number_are_products(same, columns, monkeypatch):
    monkeypatch.setattr(cuda_row_vjp, "_vjp", written_out)
    monkeypatch.setattr(cuda_row_vjp, "LEAST_IN_KERNELS", 1)
    monkeypatch.setattr(cuda_row_vjp, "_TYPES", Types("f64", ("f64",)).text)
    seen = []

    def vjp(task, *given):
        seen.append(cuda_row_vjp.vjp(task.text, task.numbers, *given))
        return seen[-1]

    x, y = torch.randn(30, 5).double(), torch.randn(30 if same else 40, 5).double()
    v, g = torch.randn(len(y), columns).double(), torch.randn(30, columns).double()
    found, width, weight = [], *(torch.tensor(value, dtype=torch.float64).requires_grad_() for value in (1.7, 0.6))
    for ours in (True, False):
        monkeypatch.setattr(autograd, "_in_kernels", vjp if ours else lambda *_: None)
        kernel = weight * km.Gaussian(width) + km.RationalQuadratic(2.0, alpha=width)
        points = x.clone().requires_grad_()
        product = kernel.matmul(points, None if same else y, v)
        found.append(torch.autograd.grad((product * g).sum(), (points, width, weight)))
    assert len(seen) == 1
    assert seen[0] is not None
    for one, other in zip(*found, strict=True):
        assert torch.allclose(one, other, rtol=1e-9, atol=1e-12)


def test_a_tensor_that_the_sum_reads_goes_through_blocks(taken):
    power = torch.tensor(1.5, requires_grad=True)
    x, y, v = torch.randn(30, 5).requires_grad_(), torch.randn(40, 5), torch.randn(40, 2)
    km.Kernel(lambda a, b, p: abs(a - b) ** p, lambda s: km.exp(-s), p=power).matmul(x, y, v).sum().backward()
    ((text, numbers, *given),) = taken
    assert cuda_row_vjp.vjp(text, numbers, *given) is None
    assert power.grad is not None


def _exactly(kernel, tensors, cotangent):
    wanted = [tensor.double().requires_grad_() for tensor in tensors]
    x, y = (wanted[0], wanted[0]) if len(wanted) == 2 else wanted[:2]
    return torch.autograd.grad(kernel(x, y) @ wanted[-1], wanted, cotangent.double())


@pytest.mark.parametrize("name", ["gaussian", "matern", "rational", "sum"])
@pytest.mark.parametrize("same", [False, True])
@pytest.mark.parametrize("columns", [1, 3])
def test_derivatives_by_products(name, same, columns, by_products):
    kernel = {
        "gaussian": km.Gaussian(4.0), "matern": km.Matern(4.0, nu=2.5),
        "rational": km.RationalQuadratic(3.0, alpha=2.0), "sum": 0.5 * km.Gaussian(3.0) + km.Gaussian(5.0),
    }[name]  # fmt: skip
    torch.manual_seed(0)
    x, y = torch.randn(200, 20) + 30, torch.randn(300, 20) + 30
    tensors = (x, torch.randn(200, columns)) if same else (x, y, torch.randn(300, columns))
    g = torch.randn(200, columns)
    found = _gradients(kernel, tensors, g)
    assert by_products == [False, False]
    for one, other in zip(found, _exactly(kernel, tensors, g), strict=True):
        assert (one.double() - other).norm() <= 1e-6 * other.norm()


@pytest.mark.parametrize("scale", [1e-30, 1e30])
@pytest.mark.parametrize("h", [0.6, 4.0])
def test_digits_are_told_at_any_scale(h, scale, by_products):
    x = torch.randn(300, 20)
    _gradients(km.Gaussian(h), (x, scale * torch.randn(300, 1)), torch.randn(300, 1))
    assert by_products == [h < 1] * 2


@pytest.mark.parametrize("kind", ["narrow", "clusters", "NaN"])
def test_derivatives_by_products_say_when_digits_are_lost(kind, by_products):
    x = torch.randn(300, 20)
    if kind == "clusters":
        x = x[:20].repeat(15, 1) + 1e-2 * torch.randn(300, 20)
    if kind == "NaN":
        x[3, 4] = torch.nan
    kernel = km.Gaussian({"narrow": 0.6, "clusters": 0.02, "NaN": 4.0}[kind])
    _gradients(kernel, (x, torch.randn(300, 1)), torch.randn(300, 1))
    assert by_products == [True, True]


def test_products_take_bounded_memory(by_products, monkeypatch):
    tensors = torch.randn(200, 20), torch.randn(300, 20), torch.randn(300, 1)
    taken = []
    monkeypatch.setattr(cuda_row_vjp, "_vjp", lambda *given: taken.append(given[-1]) or torch.zeros_like(given[4]))
    for limit, there in ((300 * 24, True), (300 * 24 - 1, False)):
        monkeypatch.setattr(cuda_row_vjp, "_LARGEST_PRODUCT", limit)
        _gradients(km.Gaussian(4.0), tensors, torch.randn(200, 1))
        assert [found is not None for found in taken[-2:]] == [there, there]


def test_signs_have_no_pattern():
    signs = cuda_row_vjp._signs(4096, 4, torch.device("cpu"))
    assert set(signs.flatten().tolist()) == {-1.0, 1.0}
    assert (signs.T @ signs - 4096 * torch.eye(4)).abs().max() < 400
    assert signs.cumsum(0).abs().max() < 400
