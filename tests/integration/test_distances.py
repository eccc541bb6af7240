"""Distances under torch's transforms and compiler, on every backend; what compiles, what memory layouts do."""

from __future__ import annotations

import doctest
import math

import numpy as np
import pytest
import torch
from scipy.spatial import distance

import kernmantle as km
from benchmarks.metric_samples import rows
from kernmantle.pairwise import METRICS, condensed, distances
from kernmantle.runtime.kernel_store import KERNELS
from kernmantle.testing import assert_close

from ..cases import sampled
from ..unit.distances import DIFFERENTIABLE, NAMES, exact, pair, varied


@pytest.mark.parametrize("name", NAMES)
def test_value(name, device):
    row = METRICS[name]
    x, y = pair(row, 33, 70, 19)
    left, right = torch.from_numpy(x).to(device), torch.from_numpy(y).to(device)
    assert_close(km.cdist(left, right, metric=name), exact(row, x, y), depth=19)
    own = km.cdist(left, metric=name)
    assert_close(own, exact(row, x, x), depth=19)
    if name == "inner_product":
        assert_close(own, own.mT, depth=19)
    elif row.symmetric:
        assert torch.equal(own, own.mT)


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradient_in_float32(name, device):
    row = METRICS[name]
    x, y = (rows(row.domain, count, 6, count).float() for count in (9, 8))

    def slopes(*inputs):
        tracked = [given.requires_grad_() for given in inputs]
        return torch.autograd.grad(km.cdist(*tracked, metric=name).square().sum(), tracked)

    found = slopes(x.to(device, copy=True), y.to(device, copy=True))
    with km.config(backend="reference"):
        wanted = slopes(x.double(), y.double())
    for single, double in zip(found, wanted, strict=True):
        # Terms of several pairs cancel: they are as large as the largest of their sums.
        assert_close(single, double, depth=64, magnitude=float(double.abs().max()))


def compiled(function, backend="aot_eager"):
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=True, backend=backend)


@pytest.mark.parametrize("name", sampled(3, NAMES))
def test_compiled(name):
    row = METRICS[name]
    x, y = (rows(row.domain, count, 5, count).float() for count in (6, 4))
    options = varied(row)[-1]
    given = {
        label: torch.from_numpy(value).float() if isinstance(value, np.ndarray) else value
        for label, value in options.items()
    }
    call = compiled(lambda x, y: km.cdist(x, y, metric=name, **given), "eager")
    np.testing.assert_array_equal(call(x, y), km.cdist(x, y, metric=name, **given))


@pytest.mark.parametrize("name", ["minkowski", "braycurtis", "cosine", "jensenshannon", "chebyshev"])
def test_compiled_gradient(name):
    x, y = (rows(METRICS[name].domain, count, 5, count).float() for count in (6, 4))
    call = compiled(lambda x, y: km.cdist(x, y, metric=name))
    left, right = x.clone().requires_grad_(), x.clone().requires_grad_()
    call(left, y).sum().backward()
    km.cdist(right, y, metric=name).sum().backward()
    assert_close(left.grad, right.grad, depth=5)


def test_compiled_for_changing_shapes_and_powers():
    call = compiled(lambda x, p: km.cdist(x, p=p))
    powers = [1.3, 1.4, 1.5, 2.0, 1, 0.0, math.inf, torch.tensor([1.0, math.inf])]
    for m, p in enumerate(powers, 4):
        x = rows("real", m, 3, m).float()
        assert_close(call(x, p), km.cdist(x.double(), p=p), depth=3)
    call = compiled(lambda x: (km.cdist(x, metric="hamming"), km.pdist(x)))
    for m, k in [(4, 3), (6, 5), (7, 6)]:
        x = rows("boolean", m, k, m).float()
        square, flat = call(x)
        np.testing.assert_array_equal(square, km.cdist(x, metric="hamming"))
        np.testing.assert_array_equal(flat, km.pdist(x))


@pytest.mark.parametrize("name", NAMES)
def test_vmap(name):
    row = METRICS[name]
    x = torch.stack([rows(row.domain, 4, 5, seed) for seed in (1, 2, 3)])
    y = rows(row.domain, 6, 5, 9)
    result = torch.func.vmap(lambda x: km.cdist(x, y, metric=name))(x)
    assert_close(result, torch.stack([km.cdist(one, y, metric=name) for one in x]), depth=5)


def test_transforms_of_the_power():
    x, y = rows("real", 4, 3, 1), rows("real", 5, 3, 2)
    powers = torch.tensor([0.7, 1.0, 2.0], dtype=torch.float64)
    result = torch.func.vmap(lambda p: km.cdist(x, y, p=p))(powers)
    assert_close(result, torch.stack([km.cdist(x, y, p=p) for p in powers.tolist()]), depth=3)
    slope = torch.func.grad(lambda p: km.cdist(x, y, p=p).sum())(powers[0])
    step = 1e-5
    sums = [km.cdist(x, y, p=powers[0].item() + side * step).sum() for side in (1, -1)]
    assert abs(slope - (sums[0] - sums[1]) / (2 * step)) < 1e-6 * abs(slope)
    moved = torch.func.jvp(lambda x: km.cdist(x, y, p=1.3), (x,), (torch.ones_like(x),))[1]
    ahead, behind = km.cdist(x + step, y, p=1.3), km.cdist(x - step, y, p=1.3)
    assert bool((abs(moved - (ahead - behind) / (2 * step)) < 1e-6).all())


def test_a_sweep_compiles_one_kernel():
    x, y = rows("real", 8, 6, 1), rows("real", 9, 6, 2)
    sweep = np.linspace(0.55, 6.05, 50)
    for call in (
        lambda p: km.cdist(x, y, p=float(p)),
        lambda p: km.cdist(x, y, p=float(p), w=torch.full((6,), p, dtype=torch.float64)),
        lambda p: km.cdist(x, y, p=torch.tensor([p, p + 1])),
        lambda p: km.cdist(x, metric="jensenshannon", base=1 + float(p)),
    ):
        known = set(KERNELS)
        for p in sweep:
            call(p)
        assert len(set(KERNELS) - known) <= 1
    known = set(KERNELS)
    km.cdist(x, y, p=1.3)
    km.cdist(x[:3], y[:2], p=2.7)
    km.cdist(2 * x, y.repeat(9, 1), p=0.9)
    assert set(KERNELS) == known


@pytest.mark.parametrize("scale", [1e-3, 1.0, 300.0])
@pytest.mark.parametrize("p", [16.5, 60, 300.0, 1e5])
def test_powers_beyond_what_the_type_holds(p, scale, device):
    x, y = (torch.randn(n, 7, generator=torch.Generator().manual_seed(n)) * scale for n in (40, 30))
    w = torch.rand(7, generator=torch.Generator().manual_seed(7))
    gaps = (x.double()[:, None] - y.double()).abs()
    most = gaps.amax(-1)
    for given, factor in ((None, 1.0), (w, w.double())):
        exact = most * (factor * (gaps / most[..., None]) ** p).sum(-1) ** (1 / p)
        weights = None if given is None else given.to(device)
        found = km.cdist(x.to(device), y.to(device), p=p, w=weights)
        # A logarithm is rounded by its own size, which is a relative error of the distance.
        assert_close(found, exact, depth=7, magnitude=most * (1 + most.log().abs()))
    near = km.argkmin(x.to(device), y.to(device), 3, p=p)
    exact = most * ((gaps / most[..., None]) ** p).sum(-1) ** (1 / p)
    assert_close(exact.gather(1, near.cpu()), exact.sort(1).values[:, :3], dtype="float32", depth=7)
    assert (km.cdist(x.to(device), p=p).diagonal() == 0).all()


def test_slopes_of_powers_beyond_what_the_type_holds():
    x, y = (torch.randn(n, 3, generator=torch.Generator().manual_seed(n), dtype=torch.float64) for n in (4, 3))
    y[0, 1] = x[0, 1]
    arguments = x.requires_grad_(), y.requires_grad_()
    assert torch.autograd.gradcheck(lambda x, y: km.cdist(x, y, p=20.0), arguments)
    assert torch.autograd.gradgradcheck(lambda x, y: km.cdist(x, y, p=20.0), arguments)
    zero = torch.zeros(2, 3, requires_grad=True)
    km.cdist(zero, torch.zeros(1, 3), p=40.0).sum().backward()
    assert (zero.grad == 0).all()


def layouts(x):
    """The same rows in memory in other ways."""
    m, k = x.shape
    wide = torch.full((2 * m, 3 * k), math.nan, dtype=x.dtype)
    wide[::2, ::3] = x
    odd = torch.full((m * k + 1,), math.nan, dtype=x.dtype)
    odd[1:] = x.flatten()
    return [x.mT.contiguous().mT, wide[::2, ::3], odd[1:].view(m, k), x.expand(2, m, k)]


@pytest.mark.parametrize("p", [1, 1.3, 2, math.inf])
def test_any_strides(p):
    x, y = rows("real", 5, 7, 1).float(), rows("real", 6, 7, 2).float()
    wanted = km.cdist(x.double(), y.double(), p=p)
    for left in layouts(x):
        for right in layouts(y):
            result = km.cdist(left, right, p=p)
            assert_close(result, wanted.expand(result.shape), depth=7)
    for shape, axes in (((6, 5), (1, 0)), ((5, 6), (0, 1))):
        out = torch.empty(shape).permute(axes)
        assert km.cdist(x, y, p=p, out=out) is out
        assert_close(out, wanted, depth=7)
    wide = torch.zeros(5, 12)
    km.cdist(x, y, p=p, out=wide[:, ::2])
    assert_close(wide[:, ::2], wanted, depth=7)
    assert bool((wide[:, 1::2] == 0).all())


def test_two_axes_in_two_axes_out_and_no_state():
    x, y = rows("real", 4, 3, 1), rows("real", 5, 3, 2)
    before = km.cdist(x, y, p=3)
    sums = km.cdist(x, y, p=3, root=False)
    assert before.shape == sums.shape == (4, 5)
    assert torch.equal(km.cdist(x, y, p=3), before)
    assert_close(sums, before**3, depth=3)
    assert km.cdist(x[None], y, p=3).shape == (1, 4, 5)


def test_arrays_come_back_as_what_they_were():
    x, y = (part.numpy() for part in (rows("real", 4, 3, 1), rows("real", 5, 3, 2)))
    x.flags.writeable = False
    result = km.cdist(x[::-1], y[:, ::-1], p=1)
    assert type(result) is np.ndarray
    assert_close(result, abs(x[::-1][:, None] - y[None, :, ::-1]).sum(-1), depth=3)
    out = np.empty((4, 5))
    assert km.cdist(x, y, metric="cosine", out=out) is out
    assert type(km.pdist(x)) is np.ndarray


@pytest.mark.parametrize("module", [distances, condensed])
def test_examples(module):
    assert doctest.testmod(module).attempted > 0
    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize("metric", ["cityblock", "cosine", "euclidean"])
def test_mixed_types_are_promoted_with_and_without_autocast(metric, backend, device):
    x, y = (rows("real", count, 5, count).to(device) for count in (6, 4))
    wanted = km.cdist(x.half().double(), y.float().double(), metric=metric)
    with torch.autocast(device, dtype=torch.bfloat16):
        found = km.cdist(x.half(), y.float(), metric=metric)
        turned = km.cdist(y.float(), x.half(), metric=metric)
    assert found.dtype == turned.dtype == torch.float32
    assert_close(found, wanted, depth=20)
    assert_close(turned, wanted.mT, depth=20)
    promoted = km.cdist(x.half(), y.float(), metric=metric)
    assert promoted.dtype == torch.float32
    assert_close(promoted, wanted, depth=20)


def test_condensed_distances_are_written_once(monkeypatch):
    x = rows("real", 300, 4, 0)
    wanted = distance.pdist(x.numpy(), "cityblock")
    monkeypatch.setattr(torch, "cat", lambda *_: pytest.fail("blocks are gathered"))
    assert_close(km.pdist(x, metric="cityblock"), wanted, depth=5)
    assert_close(km.pdist(x.numpy(), metric="cityblock"), wanted, depth=5)


def test_condensed_distances_of_many_kinds_of_calls():
    x = rows("real", 9, 4, 0)
    wanted = torch.tensor(distance.pdist(x.numpy(), "cityblock"))
    tracked = x.clone().requires_grad_()
    assert_close(km.pdist(tracked, metric="cityblock").detach(), wanted, depth=5)
    assert torch.autograd.gradcheck(lambda x: km.pdist(x, p=3), tracked)
    assert_close(torch.func.vmap(lambda x: km.pdist(x, p=1))(x[None]), wanted[None], depth=5)
    assert_close(km.pdist(x.half(), p=1), distance.pdist(x.half().numpy().astype(float), "cityblock"), depth=9)
