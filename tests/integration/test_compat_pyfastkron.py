"""pyfastkron's functions: values, gradients that it leaves out, and itself where it is installed."""

from __future__ import annotations

import functools
import sys

import numpy as np
import pytest
import torch

import kernmantle
from kernmantle.compat import install
from kernmantle.compat.pyfastkron import KMM, MKM, gekmm, gemkm
from kernmantle.testing import assert_close

from ..kron_oracle import drawn, oracle

SIZE = (5, [(2, 3), (4, 2), (3, 3)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["torch", "numpy"])
def test_both_sides(dtype, kind):
    for side, function in (
        ("right", gemkm),
        ("left", lambda x, fs, *rest: gekmm(fs, x, *rest)),
    ):
        x, factors = drawn(SIZE, dtype, side)
        expected = oracle(x, factors, side)
        y = torch.ones(expected.shape, dtype=dtype)
        if kind == "numpy":
            x, y, factors = x.numpy(), y.numpy(), [factor.numpy() for factor in factors]
        assert_close(function(x, factors), expected, dtype=dtype, depth=30)
        assert_close(function(x, factors, 0.5, 2.0, y), 0.5 * expected + 2, dtype=dtype, depth=30)
        assert_close(function(x, factors, 1.0, 3.0), expected, dtype=dtype, depth=30)
        assert isinstance(function(x, factors), type(x))


def test_scalars_and_y_count_when_a_gradient_is_recorded():
    x, factors = drawn(SIZE, torch.float64)
    y = torch.ones(5, 18, dtype=torch.float64, requires_grad=True)
    x.requires_grad_()
    result = gemkm(x, factors, 0.5, 2.0, y)
    assert_close(result, 0.5 * oracle(x, factors) + 2, depth=30)
    assert_close(torch.autograd.grad(result.sum(), y)[0], torch.full((5, 18), 2.0))


@pytest.mark.parametrize("side", ["right", "left"])
def test_the_autograd_functions_of_both_sides(side):
    x, factors = drawn(SIZE, torch.float64, side)
    tensors = [value.requires_grad_() for value in (x, *factors)]
    whole = functools.reduce(torch.kron, factors)
    wanted = x @ whole if side == "right" else whole @ x
    found = (MKM if side == "right" else KMM).apply(x, *factors)
    assert_close(found.detach(), wanted.detach(), depth=30)
    pairs = zip(*(torch.autograd.grad(v.square().sum(), tensors) for v in (found, wanted)), strict=True)
    for ours, theirs in pairs:
        assert_close(ours, theirs, depth=1000)


def test_installed_under_its_name(monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "pyfastkron"]:
        monkeypatch.delitem(sys.modules, name)
    install("pyfastkron")
    import pyfastkron.fastkronnumpy
    import pyfastkron.fastkrontorch

    assert np.array_equal(pyfastkron.fastkronnumpy.gemkm(np.ones((1, 2)), [np.eye(2)]), np.ones((1, 2)))
    assert torch.equal(pyfastkron.fastkrontorch.gekmm([torch.eye(2)], torch.ones(2, 1)), torch.ones(2, 1))
    for name in [name for name in sys.modules if name.partition(".")[0] == "pyfastkron"]:
        del sys.modules[name]


def test_is_found_as_an_attribute():
    assert kernmantle.compat.pyfastkron.gemkm is gemkm
    with pytest.raises(AttributeError, match="no_such_library"):
        _ = kernmantle.compat.no_such_library


def test_beside_itself():
    own = pytest.importorskip("pyfastkron.fastkrontorch")
    for side in ("right", "left"):
        x, factors = drawn(SIZE, torch.float32, side)
        found = gemkm(x, factors) if side == "right" else gekmm(factors, x)
        theirs = own.gemkm(x, factors) if side == "right" else own.gekmm(factors, x)
        assert_close(theirs, found.double(), dtype=torch.float32, depth=30)
