"""Squared differences on the CPU by a matrix product: exact where digits are lost, and only where it pays."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.spatial import distance

import kernmantle as km
from kernmantle.backends.cpu import squares_plan
from kernmantle.backends.cpu.squares_plan import PROMISE
from kernmantle.runtime.dispatch import PLANS
from kernmantle.torch_ops import cpu_squares as squares_cpu

M, N, K = 301, 262, 129
KINDS = ("plain", "near", "equal", "moved", "uneven", "large", "small", "zero", "clusters", "wild", "positive")


@pytest.fixture(autouse=True)
def _small_ones_too(monkeypatch):
    monkeypatch.setattr(squares_plan, "_LEAST", 1)
    PLANS.clear()
    yield
    PLANS.clear()


def is_product():
    """Whether a plan of this test is a product of rows; plans are forgotten then."""
    routes = [plan.route for plan in PLANS.values()]
    PLANS.clear()
    assert routes
    return any(route.startswith("product of rows") for route in routes)


def given(kind: str, m: int = M, n: int = N, k: int = K) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(KINDS.index(kind))
    x, y = (torch.randn(rows, k, generator=generator) for rows in (m, n))
    if kind == "near":
        y[:20] = x[:20] * (1 + 1e-7 * torch.arange(20)[:, None])
        y[20:40] = x[40:60] + 1e-3
    if kind == "equal":
        y[:7] = x[100:107]
    if kind == "moved":
        x, y = x + 1e4, y + 1e4
    if kind == "uneven":
        x, y = (part * 10.0 ** (torch.arange(len(part)) % 9 - 4)[:, None] for part in (x, y))
    if kind in ("large", "small", "zero"):
        x, y = (part * {"large": 1e15, "small": 1e-15, "zero": 0}[kind] for part in (x, y))
    if kind == "clusters":
        centres = 10 * torch.randn(5, k, generator=generator)
        x, y = (1e-4 * part + centres[torch.arange(len(part)) % 5] for part in (x, y))
    if kind == "wild":
        x[5, 3], x[70, 9], y[8, 3], y[9, 3] = torch.inf, torch.nan, torch.inf, -torch.inf
    if kind == "positive":
        x, y = x.abs(), y.abs()
    return x, y


def off(found: torch.Tensor, want: np.ndarray) -> float:
    """Largest relative error; infinite where NaN, infinity or zero differ."""
    kept = found.double().numpy()
    same = (kept == want) | (np.isnan(kept) & np.isnan(want))
    with np.errstate(all="ignore"):
        error = np.where(same, 0.0, np.abs(kept - want) / np.abs(want))
    return float(np.where(np.isfinite(error), error, np.inf).max())


def squares(x: torch.Tensor, y: torch.Tensor) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        return distance.cdist(x.double().numpy(), y.double().numpy(), "sqeuclidean")


@pytest.mark.parametrize("kind", KINDS)
def test_every_entry_keeps_its_promise(kind):
    x, y = given(kind)
    want = squares(x, y)
    assert off(km.cdist(x, y, metric="sqeuclidean"), want) <= PROMISE
    assert is_product()
    assert off(km.cdist(x, y), np.sqrt(want)) <= PROMISE


def test_the_comparison_can_fail():
    x, y = given("plain")
    found, want = km.cdist(x, y, metric="sqeuclidean"), squares(x, y)
    assert off(found * (1 + 2 * PROMISE), want) > PROMISE
    assert off(found.index_fill(0, torch.tensor([0]), torch.nan), want) == np.inf


@pytest.mark.parametrize(("kind", "mended", "direct"), [("plain", 0, 0), ("equal", 1, 0), ("clusters", 0, 1)])
def test_what_is_near_is_mended_or_all_is_taken_from_differences(monkeypatch, kind, mended, direct):
    calls = {"mend": 0, "direct": 0}
    mend, runner = squares_cpu._mend, squares_cpu.runner

    def counted(*arguments):
        calls["mend"] += 1
        mend(*arguments)

    def wrapped(plan, program, types, own, run):
        def instead(*arguments):
            calls["direct"] += 1
            own(*arguments)

        return runner(plan, program, types, instead, run)

    monkeypatch.setattr(squares_cpu, "_mend", counted)
    monkeypatch.setattr(squares_cpu, "runner", wrapped)
    km.Contraction("mk,nk->mn", lambda a, b: (a - b) ** 2)(*given(kind))
    assert calls == {"mend": mended, "direct": direct}


def test_many_near_entries_that_the_sample_misses(monkeypatch):
    monkeypatch.setattr(squares_cpu, "_SAMPLED", 2)
    x, y = given("plain")
    y[1::2] = x[5] + 1e-4
    x[1:60:2] = x[5]
    assert off(km.cdist(x, y, metric="sqeuclidean"), squares(x, y)) <= PROMISE


def test_kernels_finish_what_the_product_began():
    x, y = given("equal")
    want = np.exp(-squares(x, y) / (2 * 12.0**2))
    assert off(km.Gaussian(12.0)(x, y), want) <= 10 * PROMISE
    assert is_product()
    turned = km.contract("mk,nk->nm", lambda a, b: (a - b) ** 2, x, y, t=0.5, epilogue=lambda s, t: 3 * (s + t))
    assert off(turned, 3 * (squares(x, y) + 0.5).T) <= PROMISE
    assert is_product()


@pytest.mark.parametrize("layout", ["columns first", "strided", "narrow result"])
def test_any_strides(layout):
    x, y = given("equal")
    want, out = np.sqrt(squares(x, y)), None
    if layout == "columns first":
        x, y = x.T.contiguous().T, y.T.contiguous().T
    if layout == "strided":
        x, y = torch.stack((x, x), 2)[..., 0], torch.stack((y, y), 1)[:, 0]
    if layout == "narrow result":
        out = torch.empty(M, 2 * N)[:, :N]
    assert off(km.cdist(x, y, out=out), want) <= PROMISE
    assert is_product()


def test_autocast_and_threads_change_nothing():
    x, y = given("near")
    plain = km.cdist(x, y)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(km.cdist(x, y), plain)
    assert off(plain, np.sqrt(squares(x, y))) <= PROMISE


@pytest.mark.parametrize("precision", ["bf16", "tf32"])
def test_products_of_fewer_bits_are_not_taken(monkeypatch, precision):
    x, y = given("plain")
    settings = torch.backends.mkldnn.matmul
    before = settings.fp32_precision
    monkeypatch.setattr(squares_cpu, "_close", lambda *given: pytest.fail("a product was taken"))
    try:
        settings.fp32_precision = precision
        found = km.cdist(x, y, metric="sqeuclidean")
    finally:
        settings.fp32_precision = before
    assert off(found, squares(x, y)) <= PROMISE


def test_gradients_are_those_of_differences():
    x, y = given("plain")
    own, reference = x.clone().requires_grad_(), x.double().requires_grad_()
    (mine,) = torch.autograd.grad(km.cdist(own, y).sum(), own)
    (theirs,) = torch.autograd.grad(torch.cdist(reference, y.double()).sum(), reference)
    km.testing.assert_close(mine, theirs.float())


@pytest.mark.parametrize("why", ["as written", "own", "weights", "double", "shallow", "narrow", "batch", "columns"])
def test_what_does_not_pay_is_taken_from_differences(why):
    x, y = given("plain")
    options = {"as written": {"precision": "ieee"}, "weights": {"w": torch.rand(K)}}.get(why, {})
    if why == "double":
        x, y = x.double(), y.double()
    if why == "shallow":
        x, y = x[:, :100], y[:, :100]
    if why == "narrow":
        x = x[:100]
    if why == "batch":
        x, y = x[None], y.expand(2, N, K)
    if why == "columns":
        options = {"out": torch.empty(N, M).T}
    found = km.cdist(x, **options) if why == "own" else km.cdist(x, y, **options)
    assert not is_product()
    if why in ("as written", "columns"):
        assert off(found, np.sqrt(squares(x, y))) <= PROMISE


def test_all_its_kernels_are_compiled_ahead(tmp_path):
    x, y = given("equal", 300, 257, 130)
    with km.config(cache_dir=str(tmp_path)):
        call = km.Contraction("mk,nk->mn", lambda a, b: (a - b) ** 2, epilogue=lambda s: s + 7)
        assert km.precompile([lambda: call(x, y)], workers=1) == 5
        before = len(list(tmp_path.rglob("binary")))
        assert off(call(x, y), squares(x, y) + 7) <= PROMISE
        assert len(list(tmp_path.rglob("binary"))) == before == 5
