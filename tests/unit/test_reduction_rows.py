"""A reduction is one row: its gradient and its use on the rows of a kernel's matrix follow from that."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import kernmantle as km
from kernmantle.ir.reductions import REDUCTIONS
from kernmantle.pairwise import matrix
from kernmantle.testing import assert_close

from ..oracle import over_nothing

NAME = "madeup"
X = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
Y = torch.randn(7, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


@pytest.fixture
def madeup(monkeypatch):
    """Put the largest value into the table under another name, whose slope goes to values that are exactly equal."""
    row = replace(
        REDUCTIONS["max"], name=NAME, weight="where(eq(t,a),div(2,b),0)",
        statistics=(("sum", "where(eq(t,a),1,0)"),),
    )  # fmt: skip
    monkeypatch.setitem(REDUCTIONS, NAME, row)
    return row


def gradients(value, x, y):
    return torch.autograd.grad(value.sum(), (x, y))


def test_a_row_with_a_weight_has_a_gradient(madeup):
    x, y = X.clone().requires_grad_(), Y.clone().requires_grad_()
    found = km.contract("mk,nk->mn", lambda a, b: a + 2 * b, x, y, reduce=NAME)
    expected = (x[:, None] + 2 * y).amax(-1)
    assert torch.equal(found, expected)
    for got, want in zip(gradients(found, x, y), gradients(2 * expected, x, y), strict=True):
        assert_close(got, want, depth=3)


def test_a_row_with_functions_of_torch_reduces_rows_of_kernels(madeup):
    x, y = X.clone().requires_grad_(), Y.clone().requires_grad_()
    kernel = km.Gaussian(1.5)
    call = kernel.prepared(x, y)[0]
    found = matrix.reduced(call, NAME)
    expected = kernel(x, y).amax(-1)
    assert_close(found, expected, depth=3)
    for got, want in zip(gradients(found, x, y), gradients(2 * expected, x, y), strict=True):
        assert_close(got, want, depth=7)


@pytest.mark.parametrize("name", [name for name, row in REDUCTIONS.items() if row.differentiable])
def test_every_gradient_agrees_with_finite_differences(name):
    x, y = X.clone().requires_grad_(), Y.clone().requires_grad_()
    assert torch.autograd.gradcheck(
        lambda *xy: km.contract("mk,nk->mn", lambda a, b: a + 2 * b, *xy, reduce=name), (x, y)
    )


@pytest.mark.parametrize("name", [name for name, row in REDUCTIONS.items() if row.torch])
def test_every_reduction_of_rows_is_that_of_the_stored_matrix(name):
    x, y = X.clone().requires_grad_(), Y.clone().requires_grad_()
    kernel = km.Gaussian(1.5)
    found = matrix.reduced(kernel.prepared(x, y)[0], name)
    expected = getattr(torch, REDUCTIONS[name].torch[0])(kernel(x, y), -1)
    assert_close(found, expected, depth=7)
    for got, want in zip(gradients(found, x, y), gradients(expected, x, y), strict=True):
        assert_close(got, want, depth=7)


def test_identities_are_results_of_nothing():
    expected = {name: over_nothing(name) for name, row in REDUCTIONS.items() if row.result != "index"}
    assert {name: row.identity for name, row in REDUCTIONS.items()} == {**expected, "argmin": 0, "argmax": 0}


def test_extrema_are_seen_in_the_step():
    seen = {name: row.extremum for name, row in REDUCTIONS.items() if row.extremum}
    assert seen.items() >= {"min": "min", "max": "max"}.items()
    assert "logsumexp" not in seen


def test_a_row_without_a_weight_has_no_gradient():
    assert {"any", "all", "argmin", "argmax"} <= {name for name, row in REDUCTIONS.items() if not row.differentiable}
    assert {"min", "max", "logsumexp"} <= {name for name, row in REDUCTIONS.items() if row.reads_accumulator}
    assert not REDUCTIONS["sum"].reads_accumulator
