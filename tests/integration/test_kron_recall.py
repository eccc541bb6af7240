"""Products that look like an earlier one skip the checks and the plan, and are right all the same."""

import pytest
import torch

import kernmantle as km
from kernmantle.errors import OutputError, ParameterError, ShapeError
from kernmantle.kron import recall
from kernmantle.kron.arguments import gather
from kernmantle.runtime.lru import LRUCache
from kernmantle.testing import assert_close


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch):
    monkeypatch.setattr(recall, "_KNOWN", {})


@pytest.fixture
def unchecked(monkeypatch):
    def call(*args):
        raise AssertionError("went through all checks")

    return lambda: monkeypatch.setattr("kernmantle.kron.matmul.gather", call)


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
        assert recall._KNOWN
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
    assert len(recall._KNOWN) == 1


def test_the_configured_precision_is_that_of_calls_without_their_own():
    f, x = drawn(3, 3), drawn(4, 3)
    km.kron_matmul(x, [f])
    with km.config(precision="ieee"):
        km.kron_matmul(x, [f])
        km.kron_matmul(x, [f], precision="ieee")
    assert {look[1] for look in recall._KNOWN} == {None, "ieee"}
    with km.config(precision="ieee"):
        assert gather(x, [f], "right", 1, 0, None, None, True).options == "ieee fuse"
    assert gather(x, [f], "right", 1, 0, None, None, True).options == "default fuse"


def test_the_least_recently_used_calls_leave_one_by_one(monkeypatch):
    calls = LRUCache(4)
    monkeypatch.setattr(recall, "_KNOWN", calls)
    factors = [torch.randn(3, 3, dtype=torch.float64), torch.randn(2, 2, dtype=torch.float64)]
    matrix, often = torch.kron(*factors), torch.randn(50, 6, dtype=torch.float64)
    km.kron_matmul(often, factors)
    (first,) = calls
    for rows in range(1, 20):
        for x in (torch.randn(rows, 6, dtype=torch.float64), often):
            assert_close(km.kron_matmul(x, factors), x @ matrix, depth=12)
        assert len(calls) == min(4, rows + 1)
        assert first in calls
