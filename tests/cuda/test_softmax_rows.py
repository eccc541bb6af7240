"""Attention in one pass by tensor cores, and its gradients, against float64."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

import kernmantle as km
from kernmantle.backends.cuda import softmax_plan
from kernmantle.pairwise import attend
from kernmantle.runtime.dispatch import PLANS
from kernmantle.torch_ops import softmax

pytestmark = pytest.mark.cuda
DOT = km.Contraction("mk,nk->mn", lambda a, b: a * b)
CAPPED = km.Contraction("mk,nk->mn", lambda a, b: a * b, epilogue=lambda s: 5 * km.tanh(s / 5))
TOLERANCE = {torch.float32: 3e-6, torch.float16: 1.5e-3, torch.bfloat16: 8e-3}
DTYPES = list(TOLERANCE)
EDGES = [
    (1, 1, 1, 1), (5, 3, 64, 64), (64, 64, 64, 64), (65, 129, 8, 5), (191, 127, 33, 64), (193, 64, 64, 17),
    (300, 1000, 40, 50), (129, 257, 128, 128), (200, 200, 65, 64), (200, 333, 64, 100), (1, 1000, 64, 64),
]  # fmt: skip


@pytest.fixture(autouse=True)
def passes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Small sizes take the kernels too; the routes that ran."""
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("these kernels are of Hopper GPUs")
    monkeypatch.setattr(softmax_plan, "_LEAST_ENTRIES", 1)
    monkeypatch.setattr(attend, "_VENDORS", 1)
    ran: list[str] = []
    for name in ("evaluate", "gradients"):
        whole: Callable[..., Any] = getattr(softmax.SoftmaxTask, name)

        def noted(self: Any, *args: Any, name: str = name, whole: Callable[..., Any] = whole) -> Any:
            found = whole(self, *args)
            if found is not None:
                ran.append(name)
            return found

        monkeypatch.setattr(softmax.SoftmaxTask, name, noted)
    PLANS.clear()
    yield ran
    PLANS.clear()


def drawn(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator("cuda").manual_seed(seed + sum(map(sum, shapes)))
    return [torch.randn(*shape, device="cuda", generator=generator).to(dtype) for shape in shapes]


def dense(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, causal: bool = False, cap: bool = False,
    mask: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """Attention in float64, rows that see nothing 0."""
    q, k, v = (t.double() for t in (q, k, v))
    scores = q @ k.mT
    scores = (5 * torch.tanh(scores / 5) if cap else scores) * scale
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask.double()
    if causal:
        scores = scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=torch.bool, device="cuda").tril(), -math.inf)
    top = scores.amax(-1, keepdim=True)
    weights = torch.exp(scores - torch.where(top == -math.inf, 0, top))
    total = weights.sum(-1, keepdim=True)
    return (weights / torch.where(total == 0, 1, total)) @ v


def assert_near(found: torch.Tensor, wanted: torch.Tensor, dtype: torch.dtype, factor: float = 1.0) -> None:
    assert found.dtype == dtype
    assert torch.isfinite(found).all()
    error = (found.double() - wanted).norm() / wanted.norm().clamp_min(1e-300)
    assert error < factor * TOLERANCE[dtype], error.item()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("m", "n", "k", "width"), EDGES)
def test_sums_and_gradients_agree_with_float64(
    m: int, n: int, k: int, width: int, dtype: torch.dtype, causal: bool, passes: list[str]
) -> None:
    q, key, v = (t.requires_grad_() for t in drawn((2, 3, m, k), (2, 3, n, k), (2, 3, n, width), dtype=dtype))
    (g,) = drawn((2, 3, m, width), dtype=dtype, seed=9)
    scale = 1 / math.sqrt(k)
    found = km.attention(q, key, v, score=DOT, scale=scale, causal=causal)
    assert passes == ["evaluate"]
    leaves = [t.detach().double().requires_grad_() for t in (q, key, v)]
    wanted = dense(*leaves, scale, causal)
    assert_near(found.detach(), wanted.detach(), dtype)
    if k <= 64 and width <= 64:
        gradients = torch.autograd.grad(found, (q, key, v), g)
        assert passes == ["evaluate", "gradients"]
        expected = torch.autograd.grad(wanted, leaves, g.double())
        if n > 1:
            for mine, theirs in zip(gradients, expected, strict=True):
                if theirs.norm() > 1e-6:
                    assert_near(mine, theirs, dtype, 3.0)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_any_function_of_the_product(dtype: torch.dtype, causal: bool, passes: list[str]) -> None:
    q, k, v = (t.requires_grad_() for t in drawn((3, 333, 64), (3, 444, 64), (3, 444, 64), dtype=dtype))
    found = km.attention(q, k, v, score=CAPPED, scale=0.7, causal=causal)
    leaves = [t.detach().double().requires_grad_() for t in (q, k, v)]
    wanted = dense(*leaves, 0.7, causal, cap=True)
    assert_near(found.detach(), wanted.detach(), dtype)
    g = torch.randn_like(found)
    for mine, theirs in zip(
        torch.autograd.grad(found, (q, k, v), g), torch.autograd.grad(wanted, leaves, g.double()), strict=True
    ):
        assert_near(mine, theirs, dtype, 3.0)
    assert passes == ["evaluate", "gradients"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["truths", "terms"])
def test_masks_over_columns(kind: str, dtype: torch.dtype, passes: list[str]) -> None:
    q, k, v = (t.requires_grad_() for t in drawn((4, 200, 64), (4, 300, 64), (4, 300, 64), dtype=dtype))
    if kind == "truths":
        mask = torch.arange(300, device="cuda") < torch.tensor([300, 129, 1, 0], device="cuda")[:, None, None]
    else:
        mask = drawn((4, 1, 300), dtype=dtype)[0]
    found = km.attention(q, k, v, score=DOT, scale=0.125, mask=mask)
    leaves = [t.detach().double().requires_grad_() for t in (q, k, v)]
    wanted = dense(*leaves, 0.125, mask=mask)
    assert_near(found.detach(), wanted.detach(), dtype)
    if kind == "truths":
        assert (found[3] == 0).all()
    g = torch.randn_like(found)
    for mine, theirs in zip(
        torch.autograd.grad(found, (q, k, v), g), torch.autograd.grad(wanted, leaves, g.double()), strict=True
    ):
        assert_near(mine, theirs, dtype, 3.0)
    assert passes == ["evaluate", "gradients"]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["truths", "terms"])
def test_masks_of_every_row(kind: str, dtype: torch.dtype, causal: bool, passes: list[str]) -> None:
    q, k, v = (t.requires_grad_() for t in drawn((2, 3, 200, 64), (2, 3, 300, 64), (2, 3, 300, 64), dtype=dtype))
    (mask,) = drawn((3, 200, 300), dtype=dtype)
    if kind == "truths":
        mask = mask > 0.5
        mask[1, 7] = False
    found = km.attention(q, k, v, score=DOT, scale=0.125, mask=mask, causal=causal)
    leaves = [t.detach().double().requires_grad_() for t in (q, k, v)]
    wanted = dense(*leaves, 0.125, causal, mask=mask)
    assert_near(found.detach(), wanted.detach(), dtype)
    g = torch.randn_like(found)
    for mine, theirs in zip(
        torch.autograd.grad(found, (q, k, v), g), torch.autograd.grad(wanted, leaves, g.double()), strict=True
    ):
        assert_near(mine, theirs, dtype, 3.0)
    assert passes == ["evaluate", "gradients"]


def test_float32_takes_the_kernel_and_halves_the_vendors(passes: list[str]) -> None:
    q, k, v = drawn((2, 4, 512, 64), (2, 4, 512, 64), (2, 4, 512, 64))
    assert_near(km.attention(q, k, v), dense(q, k, v, 0.125), torch.float32)
    assert passes == ["evaluate"]
    km.attention(*(t.half() for t in (q, k, v)))
    assert passes == ["evaluate"]
    with km.config(precision="ieee"):
        assert_near(km.attention(q, k, v, score=DOT, scale=0.125), dense(q, k, v, 0.125), torch.float32)
    assert passes == ["evaluate"]


def test_strides_and_broadcast_batches(passes: list[str]) -> None:
    q = drawn((300, 2, 8, 64))[0].permute(1, 2, 0, 3)
    k = drawn((2, 1, 64, 400))[0].mT
    v = drawn((2, 8, 400, 128))[0][..., ::2]
    q, k, v = (t.requires_grad_() for t in (q, k, v))
    found = km.attention(q, k, v, score=DOT, scale=0.125)
    leaves = [t.detach().double().requires_grad_() for t in (q, k, v)]
    wanted = dense(*leaves, 0.125)
    assert_near(found.detach(), wanted.detach(), torch.float32)
    g = torch.randn_like(found)
    for mine, theirs in zip(
        torch.autograd.grad(found, (q, k, v), g), torch.autograd.grad(wanted, leaves, g.double()), strict=True
    ):
        assert mine.shape == theirs.shape
        assert_near(mine, theirs, torch.float32, 3.0)
    assert passes == ["evaluate", "gradients"]


@pytest.mark.parametrize("score", [DOT, None])
@pytest.mark.parametrize("dtype", DTYPES)
def test_heads_that_share_keys_and_values(score: Any, dtype: torch.dtype) -> None:
    q, k, v = (t.to(dtype).requires_grad_() for t in drawn((2, 6, 300, 64), (2, 2, 400, 64), (2, 2, 400, 64)))
    mask = torch.arange(400, device="cuda") < torch.tensor([400, 123], device="cuda")[:, None, None, None]
    found = km.attention(q, k, v, score=score, scale=0.125, mask=mask, enable_gqa=True)
    leaves = [t.detach().double().requires_grad_() for t in (q, k, v)]
    repeated = [leaves[0], *(t.repeat_interleave(3, 1) for t in leaves[1:])]
    wanted = scaled_dot_product_attention(*repeated, mask, scale=0.125)
    assert_near(found.detach(), wanted.detach(), dtype)
    g = torch.randn_like(found)
    for mine, theirs in zip(
        torch.autograd.grad(found, (q, k, v), g), torch.autograd.grad(wanted, leaves, g.double()), strict=True
    ):
        assert mine.shape == theirs.shape
        assert_near(mine, theirs, dtype, 3.0)


@pytest.mark.parametrize("size", [1e-18, 1e-3, 30.0])
def test_values_and_points_of_any_size(size: float) -> None:
    q, k, v = drawn((2, 300, 64), (2, 500, 64), (2, 500, 64))
    v = v * size * torch.logspace(-8, 8, 64, device="cuda")
    found, wanted = km.attention(q, k * size, v, score=DOT, scale=0.125), dense(q, k * size, v, 0.125)
    share = (found - wanted).abs() / dense(q, k * size, v.abs(), 0.125)
    assert share.max() < (2e-6 if size < 1 else 5e-5)  # of scores of 1000 a rounding is 6e-5 of a weight


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_not_finite_stays_where_it_belongs(dtype: torch.dtype) -> None:
    q, k, v = drawn((1, 300, 64), (1, 300, 64), (1, 300, 64), dtype=dtype)
    q[0, 5, 3] = math.nan
    v[0, 7, 2], v[0, 9, 4], v[0, 11, 6] = math.inf, math.nan, -math.inf
    found, wanted = km.attention(q, k, v, score=DOT, scale=0.01), dense(q, k, v, 0.01)
    assert (found.isnan() == wanted.isnan()).all()
    assert (found.isinf() == wanted.isinf()).all()
    k[0, 299, 1] = math.nan
    assert km.attention(q, k, v, score=DOT, scale=0.01).isnan().all()


def test_rows_that_see_nothing_and_calls_without_rows(passes: list[str]) -> None:
    q, k, v = (t.requires_grad_() for t in drawn((2, 100, 64), (2, 200, 64), (2, 200, 64)))
    nothing = torch.zeros(200, dtype=torch.bool, device="cuda")
    found = km.attention(q, k, v, score=DOT, scale=1.0, mask=nothing)
    assert (found == 0).all()
    for gradient in torch.autograd.grad(found.sum(), (q, k, v)):
        assert (gradient == 0).all()
    assert passes == ["evaluate", "gradients"]
    assert km.attention(q[:, :0], k, v, score=DOT).shape == (2, 0, 64)
    assert (km.attention(q, k[:, :0], v[:, :0], score=DOT) == 0).all()


def test_calls_give_the_same_bits_and_can_be_captured(passes: list[str]) -> None:
    q, k, v = (t.requires_grad_() for t in drawn((3, 700, 64), (3, 900, 64), (3, 900, 64)))
    first = km.attention(q, k, v, score=DOT, scale=0.125)
    g = torch.randn_like(first)
    gradients = torch.autograd.grad(first, (q, k, v), g)
    again = km.attention(q, k, v, score=DOT, scale=0.125)
    assert torch.equal(first, again)
    for one, other in zip(gradients, torch.autograd.grad(again, (q, k, v), g), strict=True):
        assert torch.equal(one, other)
    with torch.no_grad():
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = km.attention(q, k, v, score=DOT, scale=0.125)
        captured.zero_()
        graph.replay()
        assert torch.equal(captured, first)


def test_derivatives_of_derivatives_are_of_the_program(passes: list[str]) -> None:
    q, k, v = (t.requires_grad_() for t in drawn((2, 40, 8), (2, 50, 8), (2, 50, 8)))

    def square(way: Callable[..., torch.Tensor]) -> list[torch.Tensor]:
        out = way(q, k, v)
        first = torch.autograd.grad(out.sin().sum(), (q, k, v), create_graph=True)
        return [*torch.autograd.grad(sum((t**2).sum() for t in first), (q, k, v))]

    mine = square(lambda *t: km.attention(*t, score=DOT, scale=0.3))
    assert passes[0] == "evaluate"
    for one, other in zip(mine, square(lambda *t: dense(*t, 0.3)), strict=True):
        assert_near(one, other.double(), torch.float32, 30.0)


def test_transforms_and_tracked_parameters_take_two_passes(passes: list[str]) -> None:
    q, k, v = drawn((2, 100, 64), (2, 200, 64), (2, 200, 64))
    value, moved = torch.func.jvp(lambda t: km.attention(t, k, v, score=DOT, scale=0.125), (q,), (q,))
    assert passes == []
    assert_near(value, dense(q, k, v, 0.125), torch.float32)
    assert torch.isfinite(moved).all()
    scale = torch.tensor(0.125, device="cuda", requires_grad=True)
    (gradient,) = torch.autograd.grad(km.attention(q, k, v, score=DOT, scale=scale).sum(), scale)
    assert passes == []
    assert torch.isfinite(gradient)
    with torch.no_grad():
        km.attention(q, k, v, score=DOT, scale=scale)
    assert passes == ["evaluate"]


def test_random_shapes(passes: list[str]) -> None:
    source = random.Random(5)
    for i in range(40):
        m, n = source.randint(1, 500), source.randint(1, 700)
        k, width, batch = source.randint(1, 64), source.randint(1, 64), source.choice([(), (2,), (2, 3)])
        dtype, causal = source.choice(DTYPES), source.random() < 0.5
        q, key, v = drawn((*batch, m, k), (*batch, n, k), (*batch, n, width), dtype=dtype, seed=i)
        found = km.attention(q, key, v, score=DOT, scale=0.2, causal=causal)
        assert_near(found, dense(q, key, v, 0.2, causal), dtype)
    assert len(passes) == 40


def test_what_is_not_an_inner_product_takes_two_passes(passes: list[str]) -> None:
    q, k, v = drawn((2, 100, 16), (2, 200, 16), (2, 200, 16))
    for score in ("euclidean", km.Gaussian(2.0), lambda a, b: -abs(a - b)):
        km.attention(q, k, v, score=score)
    assert passes == []
