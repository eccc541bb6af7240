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
