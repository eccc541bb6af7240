"""The smallest and largest entries of rows that are searched in blocks on the GPU, with NaN of either sign."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import kernmantle as km
from kernmantle.torch_ops.row_reduce_blocks import smallest

from .tasks import apply

pytestmark = pytest.mark.cuda


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize(("columns", "count"), [(4, 4), (40, 7), (1000, 40), (20_000, 300)])
def test_nan_of_either_sign_comes_last(dtype: torch.dtype, columns: int, count: int) -> None:
    source = torch.Generator().manual_seed(columns)
    keys = torch.randn(5, columns, generator=source).round(decimals=1).to(dtype)
    keys[1, :3] = torch.tensor([math.nan, -math.inf, math.inf])
    keys[2, ::2] = -torch.tensor(math.nan, dtype=dtype)
    keys[3], keys[4] = math.nan, math.inf
    keys[3, 1::2].neg_()
    keys[4, :2] = -torch.tensor(math.nan, dtype=dtype)
    values, places = (found.cpu() for found in smallest(keys.cuda(), count))
    order = np.argsort(keys.double().numpy(), axis=-1, kind="stable")[:, :count]
    assert torch.equal(places, torch.as_tensor(order))
    assert torch.equal(values.double().nan_to_num(7e9), keys.gather(-1, places).double().nan_to_num(7e9))


@pytest.mark.parametrize("how", ["smallest", "largest"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_infinite_less_infinite_comes_last(how: str, dtype: torch.dtype) -> None:
    source = torch.Generator().manual_seed(0)
    x, y = (torch.randn(rows, 3, generator=source, dtype=torch.float64).to(dtype) for rows in (6, 50))
    x[2, 0], y[::7, 0], y[3, 1] = math.inf, math.inf, -math.inf
    score = km.Contraction("mk,nk->mn", lambda a, b: abs(a - b) + abs(a - b) ** 2)
    values, places = (found.cpu() for found in apply(score, how, [x.cuda(), y.cuda()], {}, count=50))
    gaps = (x.double()[:, None] - y.double()).abs()
    d = (gaps + gaps**2).sum(-1)
    there = d.gather(-1, places)
    wanted = torch.as_tensor(np.sort(d.numpy() if how == "smallest" else -d.numpy(), axis=-1))
    wanted = wanted if how == "smallest" else -wanted
    for found in (there, values.double()):
        assert torch.equal(found.isnan(), wanted.isnan())
        close = (found == wanted) | ((found - wanted).abs() <= 1e-5 * wanted.abs())
        assert bool((close | wanted.isnan()).all())
