"""Log-sum-exps of rows whose entries are no products, on the GPU against float64."""

from __future__ import annotations

import math

import pytest
import torch

import kernmantle as km

pytestmark = pytest.mark.cuda


@pytest.mark.parametrize(
    ("m", "n", "k"), [(700, 3000, 64), (129, 257, 20), (1, 5000, 40), (400, 127, 130), (300, 4000, 3)]
)
@pytest.mark.parametrize("terms", ["normal", "rising", "absent", "infinite", "not a number", "nothing"])
def test_log_sums_of_sums_of_absolute_differences(m: int, n: int, k: int, terms: str) -> None:
    generator = torch.Generator("cuda").manual_seed(m)
    x, y, t = (torch.randn(*shape, device="cuda", generator=generator) for shape in ((m, k), (n, k), (n,)))
    middle = torch.arange(n, device="cuda") == n // 2
    t = {
        "normal": t, "rising": torch.linspace(-500, 500, n, device="cuda"), "absent": torch.where(middle, t, -math.inf),
        "infinite": torch.where(middle, math.inf, t), "not a number": torch.where(middle, math.nan, t),
        "nothing": torch.full_like(t, -math.inf),
    }[terms]  # fmt: skip
    scores = km.Contraction("mk,nk,t:n->mn", lambda a, b: abs(a - b), epilogue=lambda s, t: t - s / 4).lazy(x, y, t=t)
    found = km.contract("mn->m", lambda s: s, scores, reduce="logsumexp")
    wanted = torch.logsumexp(t.double() - torch.cdist(x.double(), y.double(), p=1) / 4, 1)
    assert torch.allclose(found.double(), wanted, rtol=1e-6, atol=3e-6, equal_nan=True)


@pytest.mark.parametrize(
    ("k", "dtype"),
    [(64, torch.float32), (40, torch.float16), (35, torch.float32), (20, torch.float32), (3, torch.float32)],
)
@pytest.mark.parametrize("order", ["rows", "columns"])
def test_log_sums_with_terms_of_rows_and_columns_in_batches(k: int, dtype: torch.dtype, order: str) -> None:
    generator = torch.Generator("cuda").manual_seed(k)
    x, y = (torch.randn(3, n, k, device="cuda", generator=generator).to(dtype) for n in (300, 1000))
    r, t = (4 * torch.randn(3, n, device="cuda", generator=generator).to(dtype) for n in (300, 1000))
    if order == "columns":
        x, y = (points.mT.contiguous().mT for points in (x, y))
        t = torch.stack((t, t), -1)[..., 0]
    contraction = km.Contraction("mk,nk,r:m,t:n->mn", lambda a, b: abs(a - b), epilogue=lambda s, r, t: r * t - s / 4)
    found = km.contract("mn->m", lambda s: s, contraction.lazy(x, y, r=r, t=t), reduce="logsumexp")
    costs = torch.cdist(x.double(), y.double(), p=1) / 4
    wanted = torch.logsumexp(r.double()[..., None] * t.double()[..., None, :] - costs, -1)
    assert torch.allclose(found.double(), wanted, rtol=1e-3 if dtype == torch.float16 else 1e-6, atol=3e-6)


@pytest.mark.parametrize("size", [1e6, 1e8, 2.6e8, 2.8e8, 1e37, 3e38])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("k", [3, 20, 64])
def test_log_sums_of_large_numbers(size: float, sign: int, k: int) -> None:
    generator = torch.Generator("cuda").manual_seed(int(math.log2(size)))
    x, y = (torch.randn(n, k, device="cuda", generator=generator) for n in (200, 700))
    t = sign * size * (1 + torch.rand(700, device="cuda", generator=generator) / 8)
    t[350:] = t[:350]
    scores = km.Contraction("mk,nk,t:n->mn", lambda a, b: abs(a - b), epilogue=lambda s, t: t - s).lazy(x, y, t=t)
    found = km.contract("mn->m", lambda s: s, scores, reduce="logsumexp")
    wanted = torch.logsumexp(t.double() - torch.cdist(x.double(), y.double(), p=1), 1)
    assert torch.allclose(found.double(), wanted, rtol=2e-7, atol=0)


@pytest.mark.parametrize(("m", "k"), [(300, 1), (300, 3), (100_000, 3), (100_000, 2), (700, 5), (4000, 10), (300, 16)])
@pytest.mark.parametrize("kind", ["differences", "squares"])
def test_log_sums_of_equal_terms(m: int, k: int, kind: str) -> None:
    """Rounding of every addition in one direction does not add up."""
    n = 100_000
    terms = torch.cat([torch.full((1,), 1.0), torch.full((n - 1,), 0.29)]).cuda()
    x, y = torch.zeros(m, k, device="cuda"), torch.full((n, k), 0.1, device="cuda")
    mapped = (lambda a, b: abs(a - b)) if kind == "differences" else (lambda a, b: (a - b) ** 2)
    scores = km.Contraction("mk,nk,t:n->mn", mapped, epilogue=lambda s, t: t - s).lazy(x, y, t=terms)
    found = km.contract("mn->m", lambda s: s, scores, reduce="logsumexp")
    cost = (y.double() if kind == "differences" else y.double() ** 2).sum(1)
    wanted = torch.logsumexp(terms.double() - cost, 0)
    assert torch.allclose(found.double(), wanted.expand(m), rtol=0, atol=3e-6)


@pytest.mark.parametrize("large", [1e9, -1e9, math.inf])
@pytest.mark.parametrize("k", [2, 5, 16])
def test_log_sums_whose_runs_are_of_other_sizes(large: float, k: int) -> None:
    """Entries of one run are so large that no sum counts beside them, or nothing is but so small ones before others."""
    x, y = torch.zeros(300, k, device="cuda"), torch.zeros(3000, k, device="cuda")
    t = torch.linspace(-3, 3, 3000, device="cuda")
    t[: 700 if large < 0 else 1] = large
    if large > 0:
        t = t.roll(2000)
    scores = km.Contraction("mk,nk,t:n->mn", lambda a, b: abs(a - b), epilogue=lambda s, t: t - s).lazy(x, y, t=t)
    found = km.contract("mn->m", lambda s: s, scores, reduce="logsumexp")
    wanted = torch.logsumexp(t.double(), 0).expand(300)
    assert torch.allclose(found.double(), wanted, rtol=2e-7, atol=3e-6)
