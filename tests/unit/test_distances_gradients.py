"""Derivatives of every metric, against differences, and zeros where a distance has a kink."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import kernmantle as km
from benchmarks.metric_samples import rows
from kernmantle.pairwise import METRICS
from kernmantle.testing import assert_close

from .distances import DIFFERENTIABLE, weights


def smooth(row, m, k, seed):
    """Rows away from the kinks of their metric."""
    return (rows(row.domain, m, k, seed) + (0.1 if row.domain == "positive" else 0)).requires_grad_()


def options(row, k):
    """Every option as a tensor that requires a gradient; powers are a batch."""
    given = {
        "w": torch.from_numpy(weights(k)) + 0.2,
        "p": torch.tensor([0.7, 1.3, 3.0], dtype=torch.float64),
        "V": torch.from_numpy(weights(k)) + 0.5,
        "VI": torch.cov(rows("real", k, 20, 3)),
        "base": torch.tensor(3.0, dtype=torch.float64),
    }
    return {name: given[name].clone().requires_grad_() for name in row.options}


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_first_and_second_order(name):
    row = METRICS[name]
    x, y, extra = smooth(row, 3, 4, 0), smooth(row, 2, 4, 1), options(row, 4)

    def call(x, y, *values):
        return km.cdist(x, y, metric=name, **dict(zip(extra, values, strict=True)))

    assert torch.autograd.gradcheck(call, (x, y, *extra.values()))
    with km.config(backend="reference"):
        assert torch.autograd.gradgradcheck(call, (x, y, *extra.values()), fast_mode=True)


@pytest.mark.parametrize("name", ["seuclidean", "mahalanobis"])
def test_through_variances_and_covariances(name):
    x, y = rows("real", 4, 3, 0).requires_grad_(), rows("real", 3, 3, 1).requires_grad_()
    with km.config(backend="reference"):
        assert torch.autograd.gradcheck(lambda x, y: km.cdist(x, y, metric=name), (x, y))
        assert torch.autograd.gradcheck(lambda x: km.pdist(x, metric=name), (x,))


def fixed(name, k):
    """Options without which the rows themselves would set a scale."""
    given = {"seuclidean": {"V": torch.ones(k).double()}, "mahalanobis": {"VI": torch.eye(k).double()}}
    return given.get(name, {})


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_one_set_of_rows(name):
    row = METRICS[name]
    x, extra = smooth(row, 6, 4, 0), fixed(name, 4)
    weight = rows("real", 6, 6, 2)
    (own,) = torch.autograd.grad((km.cdist(x, metric=name, **extra) * weight).sum(), x)
    twin = x.detach().clone().requires_grad_()
    pair = torch.autograd.grad((km.cdist(x, twin, metric=name, **extra) * weight).sum(), (x, twin))
    assert_close(own, pair[0] + pair[1], depth=6)


@pytest.mark.parametrize("name", [name for name in DIFFERENTIABLE if METRICS[name].zero_diagonal and name != "kl"])
@pytest.mark.parametrize("root", [True, False])
def test_equal_rows_have_finite_gradients(name, root):
    row = METRICS[name]
    x = rows(row.domain, 4, 3, 0)
    x[1], x[2, 0] = x[0], 0
    if row.domain == "boolean":
        x[:, 1] = 1
    extra = fixed(name, 3)
    x.requires_grad_()
    distances = km.cdist(x, metric=name, root=root, **extra)
    assert bool((distances.diagonal() == 0).all())
    (slope,) = torch.autograd.grad(distances.sum(), x, create_graph=True)
    assert bool(slope.isfinite().all())
    (curvature,) = torch.autograd.grad(slope.square().sum(), x)
    assert bool(curvature.isfinite().all())
    (alone,) = torch.autograd.grad(km.cdist(x[:1], x[:1].detach().clone(), metric=name, root=root, **extra).sum(), x)
    if row.domain != "boolean":
        assert_close(alone, torch.zeros_like(x), magnitude=1)


@pytest.mark.parametrize("p", [0, 0.5, 1, 1.3, 2, 3, math.inf])
@pytest.mark.parametrize("kind", ["number", "tensor", "batch"])
def test_power_at_equal_entries(p, kind):
    x = rows("real", 4, 3, 0)
    x[1], x[2, 0] = x[0], x[3, 0]
    x.requires_grad_()
    powers = {"number": p, "tensor": torch.tensor(p).double().requires_grad_(), "batch": torch.tensor([p, 1.0, 0.7])}
    (slope,) = torch.autograd.grad(km.cdist(x, p=powers[kind]).sum(), x)
    assert bool(slope.isfinite().all())
    if p == 0 and kind != "batch":
        assert bool((slope == 0).all())


def test_one_among_powers_has_the_gradient_of_one():
    x, y = rows("real", 4, 3, 0), rows("real", 3, 3, 1)
    y[0, 1] = x[2, 1]
    powers = torch.tensor([0.5, 1.0, 2.0, math.inf], dtype=torch.float64)
    for place, p in enumerate(powers.tolist()):
        ours = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(km.cdist(ours, y, p=powers)[place].sum(), ours)
        (alone,) = torch.autograd.grad(km.cdist(ours, y, p=p).sum(), ours)
        assert_close(slope, alone, depth=3)
        if p == 1:
            assert_close(alone, (ours - y[:, None]).sign().sum(0), depth=3)


def test_gradient_of_a_power_agrees_with_torch():
    x, y = rows("real", 5, 3, 0).requires_grad_(), rows("real", 4, 3, 1)
    for p in (1.0, 1.5, 2.0, 3.3):
        (ours,) = torch.autograd.grad(km.cdist(x, y, p=p).sum(), x)
        (theirs,) = torch.autograd.grad(torch.cdist(x, y, p=p).sum(), x)
        assert_close(ours, theirs, depth=4)


def test_ties_of_the_largest_difference_share():
    x = torch.tensor([[1.0, -1.0, 0.0]], requires_grad=True)
    (slope,) = torch.autograd.grad(km.cdist(x, torch.zeros(1, 3), p=math.inf).sum(), x)
    np.testing.assert_array_equal(slope.numpy(), [[0.5, -0.5, 0]])


@pytest.mark.parametrize("name", [name for name in METRICS if not METRICS[name].differentiable])
def test_metrics_without_gradient_refuse(name):
    row = METRICS[name]
    x, y = rows(row.domain, 3, 4, 0).requires_grad_(), rows(row.domain, 2, 4, 1)
    with pytest.raises(km.errors.GradientError, match=rf"metric '{name}' has no gradient, but x requires one"):
        km.cdist(x, y, metric=name)
    with pytest.raises(km.errors.GradientError, match="y requires one"):
        km.cdist(y, x, metric=name)
    with torch.no_grad():
        assert_close(km.cdist(x, y, metric=name), km.cdist(x.detach(), y, metric=name))


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_condensed(name):
    row = METRICS[name]
    x = smooth(row, 5, 3, 0)
    extra = fixed(name, 3)
    (slope,) = torch.autograd.grad(km.pdist(x, metric=name, **extra).square().sum(), x)
    (upper,) = torch.autograd.grad(km.cdist(x, metric=name, **extra).triu(1).square().sum(), x)
    assert_close(slope, upper, depth=5)
