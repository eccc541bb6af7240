"""Random shapes, layouts and lambdas on the GPU, and results of more than 2^32 entries: all against float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import kernmantle as km
from kernmantle.testing import assert_close
from kernmantle.testing.strategies import as_lambda, expressions

pytestmark = [pytest.mark.cuda, pytest.mark.slow]

CHUNKS, EACH = 20, 500
POWERS = (1.0, 1.3, 1.5, 0.5, 2.0, 3.0, np.inf)
NAMES = ("a", "b", "p")
REDUCTIONS = ("sum", "max", "min", "logsumexp")
MOST = 1 << 20
EDGES = (1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257)


def _extent(random: np.random.Generator, most: int) -> int:
    edges = [edge for edge in EDGES if edge <= most]
    return int(random.choice(edges)) if random.random() < 0.6 else int(np.exp(random.uniform(0, np.log(most + 1))))


def _rows(
    random: np.random.Generator, lead: tuple[int, ...], rows: int, depth: int, dtype: torch.dtype, layout: int
) -> torch.Tensor:
    """Normal numbers as a tensor of a layout: dense, transposed, every other column, or off by one element."""
    seed = torch.Generator("cuda").manual_seed(int(random.integers(1 << 30)))

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*lead, *shape, device="cuda", generator=seed).to(dtype)

    if layout == 1:
        return normal(depth, rows).mT
    if layout == 2:
        return normal(rows, 2 * depth)[..., ::2]
    return normal(rows, depth + 1)[..., 1:] if layout == 3 else normal(rows, depth)


def _exact(x: torch.Tensor, y: torch.Tensor, p: float) -> torch.Tensor:
    gaps = (x.double().unsqueeze(-2) - y.double().unsqueeze(-3)).abs()
    return gaps.amax(-1) if p == np.inf else (gaps**p).sum(-1) ** (1 / p)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_random_shapes(chunk: int) -> None:
    """A chunk keeps to one power, type and pair of layouts, since each new one is another kernel to compile."""
    random = np.random.default_rng(chunk)
    p, dtype = POWERS[chunk % len(POWERS)], torch.float16 if chunk % 5 == 4 else torch.float32
    batched = chunk % 6 == 5
    for _ in range(EACH):
        m = _extent(random, 600)
        n = _extent(random, min(600, MOST // m))
        k = _extent(random, min(2000, MOST // (m * n)))
        lead = (2,) if batched and random.random() < 0.5 else ()
        x = _rows(random, lead, m, k, dtype, chunk % 4)
        y = _rows(random, (), n, k, dtype, chunk // 4 % 4)
        found = km.cdist(x, y, p=p)
        assert_close(found, _exact(x, y, p), dtype=dtype, depth=k)
        if m == n and not lead:
            own = km.cdist(x, p=p)
            assert torch.equal(own, own.mT), (m, k, p)
            assert not own.diagonal().any(), (m, k, p)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_random_lambdas(chunk: int) -> None:
    dtype = torch.float64 if chunk % 2 else torch.float32

    @settings(max_examples=10, phases=(Phase.explicit, Phase.generate), database=None, deadline=None)
    @given(expressions(NAMES, depth=3, kind="any" if chunk % 2 else "continuous"), st.sampled_from(REDUCTIONS))
    def agrees(node: object, reduce: str) -> None:
        contraction = km.Contraction("mk,nk->mn", as_lambda(node, NAMES), reduce=reduce)
        random = np.random.default_rng(chunk)
        x, y = (torch.tensor(random.uniform(-2, 2, (rows, 19))).to(dtype) for rows in (37, 21))
        with km.config(backend="reference"):
            exact = contraction(x.double(), y.double(), p=0.7)
        assert_close(contraction(x.cuda(), y.cuda(), p=0.7).cpu(), exact, dtype=dtype, depth=19, magnitude=8.0 * 19)

    agrees()


@pytest.mark.parametrize(("k", "p"), [(3, 1.0), (32, 1.0), (5, 1.5), (32, 2.0)])
@pytest.mark.parametrize("own", [False, True])
def test_seventy_thousand_rows(k: int, p: float, own: bool) -> None:
    if torch.cuda.mem_get_info()[0] < 40 << 30:
        pytest.skip("needs 40 GiB of GPU memory")
    x = torch.randn(70000, k, device="cuda")
    found = km.cdist(x, None if own else x.clone(), p=p)
    for rows in (slice(0, 3), slice(35000, 35003), slice(69997, 70000)):
        assert_close(found[rows], _exact(x[rows], x, p), dtype=torch.float32, depth=k)
    del found
    torch.cuda.empty_cache()


def test_pairs_of_float16() -> None:
    """A sum of 16 errs by five roundings at most, and the result by one more."""
    for m, n, k in ((300, 200, 512), (64, 65, 96), (129, 31, 34)):
        x, y = (torch.randn(rows, k, device="cuda").half() for rows in (m, n))
        exact = _exact(x, y, 1.0)
        error = (km.cdist(x, y, p=1, precision="half").double() - exact).abs() / exact
        assert float(error.max()) <= 6 * 2.0**-11
        assert_close(km.cdist(x, y, p=1), exact, dtype=torch.float16, depth=k)
