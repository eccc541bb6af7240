"""Products of arrays like earlier ones are taken from the launch cache, and are right all the same."""

import pytest
import torch

import kernmantle as km
from kernmantle.errors import OutputError, ParameterError, ShapeError
from kernmantle.runtime.dispatch import PLANS, CallKey
from kernmantle.runtime.lru import LRUCache
from kernmantle.structured.kron import matmul
from kernmantle.structured.kron.autograd import KronCall
from kernmantle.structured.kron.inputs import gather
from kernmantle.testing import assert_close


@pytest.fixture(autouse=True)
def nothing_bound():
    PLANS.clear()


def calls():
    """Keys of the calls of kron_matmul that are bound."""
    return [key for key in PLANS if isinstance(key, CallKey) and key.operation[0] == "kron_matmul"]


@pytest.fixture
def unchecked(monkeypatch):
    def call(*args):
        raise AssertionError("went through all checks")

    return lambda: monkeypatch.setattr("kernmantle.structured.kron.matmul.gather", call)


def drawn(*shape, dtype=torch.float32):
    return torch.randn(shape, dtype=torch.float64).to(dtype)


def formed(factors):
    total = torch.ones(1, 1, dtype=torch.float64)
    for factor in factors:
        own = torch.eye(factor, dtype=torch.float64) if isinstance(factor, int) else factor.double().contiguous()
        total = torch.kron(total, own)
    return total


def near(value, exact, depth):
    assert_close(value, exact, dtype=value.dtype, depth=depth)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("into", ["new", "out", "y"])
def test_second_call(dtype, side, into, unchecked):
    for turn in range(2):
        factors = [drawn(3, 4, dtype=dtype), 2, drawn(5, 2, dtype=dtype).mT]
        x = drawn(7, 12, dtype=dtype) if side == "right" else drawn(40, 7, dtype=dtype)
        exact = x.double() @ formed(factors) if side == "right" else formed(factors) @ x.double()
        alpha, options = 0.5 + turn, {}
        if into != "new":
            options["out"] = drawn(*exact.shape, dtype=dtype)
        if into == "y":
            options |= {"y": options["out"], "beta": 2.0 - turn}
            exact = exact * alpha + options["y"].double() * options["beta"]
        else:
            exact = exact * alpha
        if turn:
            unchecked()
        value = km.kron_matmul(x, factors, side=side, alpha=alpha, **options)
        assert into == "new" or value is options["out"]
        near(value, exact, 40)


@pytest.mark.parametrize("shape", [(12,), (2, 3, 12)])
def test_vectors_and_batches(shape, unchecked):
    for turn in range(2):
        x, factors = drawn(*shape), [drawn(3, 2), drawn(4, 5)]
        if turn:
            unchecked()
        near(km.kron_matmul(x, factors), x.double() @ formed(factors), 12)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("sizes", [[(70, 65)], [(66, 65), (3, 2)], [(2, 3), (65, 70)], [(65, 66), (66, 65)]])
def test_large_factors(sizes, side):
    for turn in range(2):
        factors = [drawn(p, q) if turn else drawn(q, p).mT for p, q in sizes]
        exact = formed(factors)
        x, y = drawn(4, len(exact)), drawn(4, exact.shape[1])
        total = 0.5 * (x.double() @ exact) - y.double()
        if side == "left":
            x, y, total, factors = x.mT.contiguous(), y.mT.contiguous(), total.mT, [factor.mT for factor in factors]
        km.kron_matmul(x, factors, side=side, alpha=0.5, beta=-1.0, y=y)
        assert calls()
        value = km.kron_matmul(x, factors, side=side, alpha=0.5, beta=-1.0, y=y)
        near(value, total, sum(map(sum, sizes)))
        assert km.kron_matmul(x, factors, side=side, alpha=0.5, beta=-1.0, y=y, out=y) is y
        near(y, total, sum(map(sum, sizes)))


def test_one_factor_twice_is_not_two_factors():
    f, g, x = drawn(3, 3), drawn(3, 3), drawn(4, 9)
    for factors in ([f, f], [f, g], [g, g], [f, g]):
        near(km.kron_matmul(x, factors), x.double() @ formed(factors), 12)


def test_values_that_decide_are_looked_at():
    f, x, y = drawn(3, 3), drawn(4, 3), torch.full((4, 3), torch.nan)
    for beta in (0, 1, 0.0, 1.0):
        assert km.kron_matmul(x, [f], beta=beta, y=y).isnan().all() == (beta != 0)
    wide = drawn(6, 4).mT[:, ::2]
    near(km.kron_matmul(wide, [f]), wide.double() @ f.double(), 12)
    for fuse in (False, 1, True, 0):
        near(km.kron_matmul(x, [f], fuse=fuse), x.double() @ f.double(), 12)


def test_errors_after_a_call_that_was_right():
    f, x, out = drawn(3, 3), drawn(4, 3), drawn(4, 3)
    km.kron_matmul(x, [f], out=out)
    with pytest.raises(OutputError, match="overlaps x"):
        km.kron_matmul(x, [f], out=x)
    whole = drawn(9, 3)
    with pytest.raises(OutputError, match="overlaps x"):
        km.kron_matmul(whole[:4], [f], out=whole[3:7])
    with pytest.raises(OutputError, match="without being y"):
        km.kron_matmul(x, [f], y=whole[:4], beta=1, out=whole[3:7])
    with pytest.raises(OutputError, match="overlaps x or a factor"):
        km.kron_matmul(x[:3], [f], out=f)
    with pytest.raises(ShapeError):
        km.kron_matmul(x, [f, 2])
    for side in ("up", ["right"]):
        with pytest.raises(ParameterError):
            km.kron_matmul(x, [f], side=side)


def test_gradients_and_versions_after_a_call_without():
    f, x, out = drawn(3, 3), drawn(4, 3), drawn(4, 3)
    km.kron_matmul(x, [f])
    own = f.clone().requires_grad_()
    km.kron_matmul(x, [own]).sum().backward()
    near(own.grad, x.double().mT @ torch.ones(4, 3, dtype=torch.float64), 12)
    with torch.no_grad():
        assert not km.kron_matmul(x, [own]).requires_grad
    before = out._version
    for turn in range(3):
        km.kron_matmul(x, [f], out=out)
        assert out._version == before + turn + 1
    rows = torch.func.vmap(lambda row: km.kron_matmul(row, [f]))(x)
    near(rows, x.double() @ f.double(), 12)


def test_autocast_and_backend_are_looked_at():
    f, x = drawn(3, 3), drawn(4, 3)
    km.kron_matmul(x, [f])
    with torch.autocast("cpu", torch.bfloat16):
        assert km.kron_matmul(x, [f]).dtype == torch.bfloat16
    assert km.kron_matmul(x, [f]).dtype == torch.float32
    with km.config(backend="reference"):
        near(km.kron_matmul(x, [f]), x.double() @ f.double(), 12)
    assert len(calls()) == 1


def test_the_configured_precision_is_that_of_calls_without_their_own():
    f, x = drawn(3, 3), drawn(4, 3)
    km.kron_matmul(x, [f])
    with km.config(precision="ieee"):
        km.kron_matmul(x, [f])
        km.kron_matmul(x, [f], precision="ieee")
    assert {PLANS.get(key).options for key in calls()} == {"default fuse", "ieee fuse"}
    with km.config(precision="ieee"):
        assert gather(x, [f], "right", 1, 0, None, None, True).options == "ieee fuse"
    assert gather(x, [f], "right", 1, 0, None, None, True).options == "default fuse"


def test_the_least_recently_used_calls_leave_one_by_one(monkeypatch):
    plans = LRUCache(4)
    monkeypatch.setattr(matmul, "PLANS", plans)
    factors = [torch.randn(3, 3, dtype=torch.float64), torch.randn(2, 2, dtype=torch.float64)]
    matrix, often = torch.kron(*factors), torch.randn(50, 6, dtype=torch.float64)
    km.kron_matmul(often, factors)
    (first,) = plans
    for rows in range(1, 20):
        for x in (torch.randn(rows, 6, dtype=torch.float64), often):
            assert_close(km.kron_matmul(x, factors), x @ matrix, depth=12)
        assert len(plans) == min(4, rows + 1)
        assert first in plans


@pytest.fixture
def unplanned(monkeypatch):
    """Call to make every check and every plan from then on fail."""

    def fail(*_, **__):
        raise AssertionError("went through checks or plans")

    def begin():
        for module, name in (
            ("matmul", "gather"), ("execute", "_bind"), ("gradient", "_bind_gradients"), ("gradient", "gradients"),
            ("autograd", "gradients"), ("autograd", "bind_gradients"),
        ):  # fmt: skip
            monkeypatch.setattr(f"kernmantle.structured.kron.{module}.{name}", fail)

    return begin


@pytest.mark.parametrize("alpha", [1, -0.5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("shape", "factors", "side"),
    [
        ((5, 512), ((8, 8), (8, 8), (8, 8)), "right"), ((2, 3, 24), ((3, 2), 2, (4, 5)), "right"),
        ((80, 7), ((3, 4), 2, (5, 10)), "left"), ((12,), ((3, 2), (4, 5)), "right"), ((66,), ((3, 66),), "left"),
        ((9, 130), ((65, 3), (2, 2)), "right"), ((1, 4096), ((64, 64), (64, 64)), "right"),
    ],
)  # fmt: skip
def test_gradients_come_from_bound_calls(shape, factors, side, dtype, alpha, unplanned):
    tensors = [drawn(*shape, dtype=dtype), *(drawn(*f, dtype=dtype) for f in factors if not isinstance(f, int))]

    def product(call, own, **options):
        rest = iter(own[1:])
        return call(own[0], [f if isinstance(f, int) else next(rest) for f in factors], side=side, **options)

    for repeated in (False, True):
        if repeated:
            unplanned()
        for mask in {
            (True,) * len(tensors),
            (True, *(False,) * (len(tensors) - 1)),
            (False, *(True,) * (len(tensors) - 1)),
        }:
            own = [t.clone().requires_grad_(flag) for t, flag in zip(tensors, mask, strict=True)]
            exact = [t.double().clone().requires_grad_() for t in tensors]
            found = product(km.kron_matmul, own, alpha=alpha)
            wanted = product(lambda x, f, side: x @ formed_with(f) if side == "right" else formed_with(f) @ x, exact)
            cotangent = drawn(*found.shape, dtype=dtype)
            slopes = torch.autograd.grad(found, [t for t in own if t.requires_grad], cotangent)
            whole = torch.autograd.grad(alpha * wanted, exact, cotangent.double())
            for one, other in zip(slopes, [w for w, flag in zip(whole, mask, strict=True) if flag], strict=True):
                assert one.shape == other.shape
                assert_close(one, other, dtype=dtype, depth=4096, magnitude=other.abs().max())


def formed_with(factors):
    """The Kronecker product of matrices and identities, differentiable."""
    total = torch.ones(1, 1, dtype=torch.float64)
    for factor in factors:
        total = torch.kron(total, torch.eye(factor, dtype=torch.float64) if isinstance(factor, int) else factor)
    return total


def test_gradients_of_tensors_that_hooks_bring_back_in_another_layout():
    whole, f = drawn(5, 12, dtype=torch.float64), drawn(3, 3, dtype=torch.float64).requires_grad_()
    x = whole[:, :9].requires_grad_()
    km.kron_matmul(x, [f, f]).sum().backward()
    first = f.grad.clone()
    f.grad = None
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: t.clone(memory_format=torch.contiguous_format), lambda t: t
    ):
        value = km.kron_matmul(x, [f, f])
    value.sum().backward()
    assert_close(f.grad, first, depth=90)


def test_a_second_derivative_after_a_first_from_bound_calls():
    f, g = (drawn(3, 3, dtype=torch.float64).requires_grad_() for _ in range(2))
    x = drawn(4, 9, dtype=torch.float64).requires_grad_()
    for _ in range(2):
        torch.autograd.grad(km.kron_matmul(x, [f, g]).sum(), [x, f, g])
        assert torch.autograd.gradgradcheck(lambda *own: km.kron_matmul(own[0], own[1:]), [x, f, g])


def test_calls_belong_to_the_one_launch_cache():
    f, x = drawn(3, 3).requires_grad_(), drawn(4, 3)
    km.kron_matmul(x, [f]).sum().backward()
    assert {key.operation[0] for key in PLANS if isinstance(key, CallKey)} == {"kron_matmul", "kron", "kron gradients"}
    assert isinstance(PLANS.get(calls()[0]), KronCall)
