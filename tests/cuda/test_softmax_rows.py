"""Attention in one pass by tensor cores, and its gradients, against float64."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
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
    for name in ("evaluate", "gradients", "tangent", "duals"):
        whole: Callable[..., Any] = getattr(softmax.SoftmaxTask, name)

        def noted(self: Any, *args: Any, name: str = name, whole: Callable[..., Any] = whole) -> Any:
            found = whole(self, *args)
            if found is not None or name == "duals":
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


def assert_near_with_gradients(
    found: torch.Tensor, given: Sequence[torch.Tensor], wanted: torch.Tensor, leaves: Sequence[torch.Tensor]
) -> None:
    """Also the gradients by what was given, for random ones of the result."""
    dtype = given[0].dtype
    assert_near(found.detach(), wanted.detach(), dtype)
    g = torch.randn_like(found)
    of_given, of_leaves = torch.autograd.grad(found, given, g), torch.autograd.grad(wanted, leaves, g.double())
    for mine, theirs in zip(of_given, of_leaves, strict=True):
        assert mine.shape == theirs.shape
        assert_near(mine, theirs, dtype, 3.0)


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
    assert_near_with_gradients(found, (q, k, v), wanted, leaves)
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
    if kind == "truths":
        assert (found[3] == 0).all()
    assert_near_with_gradients(found, (q, k, v), wanted, leaves)
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
    assert_near_with_gradients(found, (q, k, v), wanted, leaves)
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
    assert_near_with_gradients(found, (q, k, v), wanted, leaves)
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
    assert_near_with_gradients(found, (q, k, v), wanted, leaves)


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


Arguments = tuple[torch.Tensor, ...]


def of_forward_mode(dtype: torch.dtype, *widths: int) -> list[str]:
    """The passes of forward mode: one, of halves in rows of at most 64 numbers, whose entries have one slope."""
    return ["evaluate", "tangent"] if dtype == torch.float32 or max(widths) > 64 else ["duals"]


def assert_tangent(
    of: Callable[..., torch.Tensor], exact: Callable[..., torch.Tensor], primals: Arguments, tangents: Arguments,
    factor: float = 3.0,
) -> None:  # fmt: skip
    """The result and its tangent agree with those of ``exact`` in float64."""
    dtype = primals[0].dtype
    result, tangent = torch.func.jvp(of, primals, tangents)
    wide = [tuple(t.double() for t in each) for each in (primals, tangents)]
    wanted, moved = torch.func.jvp(exact, *wide)
    assert_near(result, wanted, dtype)
    assert_near(tangent, moved, dtype, factor)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("m", "n", "k", "width"), EDGES)
def test_tangents_agree_with_float64(
    m: int, n: int, k: int, width: int, dtype: torch.dtype, causal: bool, passes: list[str]
) -> None:
    shapes, scale = ((2, 3, m, k), (2, 3, n, k), (2, 3, n, width)), 1 / math.sqrt(k)
    primals, tangents = (tuple(drawn(*shapes, dtype=dtype, seed=seed)) for seed in (0, 7))
    assert_tangent(
        lambda *t: km.attention(*t, score=DOT, scale=scale, causal=causal),
        lambda *t: dense(*t, scale, causal), primals, tangents,
    )  # fmt: skip
    assert passes == of_forward_mode(dtype, k, width)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["capped", "truths", "terms", "columns"])
def test_tangents_of_any_function_and_mask(kind: str, dtype: torch.dtype, causal: bool, passes: list[str]) -> None:
    shapes = (2, 3, 200, 64), (2, 3, 300, 64), (2, 3, 300, 64)
    primals, tangents = (tuple(drawn(*shapes, dtype=dtype, seed=seed)) for seed in (0, 7))
    (mask,) = drawn((3, 1 if kind == "columns" else 200, 300), dtype=dtype)
    if kind == "truths":
        mask = mask > 0.5
        mask[1, 7] = False
    table, cap = (None, True) if kind == "capped" else (mask, False)
    assert_tangent(
        lambda *t: km.attention(*t, score=CAPPED if cap else DOT, scale=0.3, mask=table, causal=causal),
        lambda *t: dense(*t, 0.3, causal, cap, table), primals, tangents,
    )  # fmt: skip
    assert passes == (of_forward_mode(dtype, 64) if kind == "columns" else ["evaluate", "tangent"])


@pytest.mark.parametrize("dtype", DTYPES)
def test_tangents_of_scores_that_all_move_alike(dtype: torch.dtype, passes: list[str]) -> None:
    primals = tuple(drawn((2, 200, 64), (2, 300, 64), (2, 300, 64), dtype=dtype))
    q, k, v = primals
    moved = (torch.ones_like(q), torch.zeros_like(k), torch.zeros_like(v))
    away = (q, (k + 1).to(dtype), v)  # the tangent of a score is about 8, and varies by 1
    assert_tangent(lambda *t: km.attention(*t, score=DOT, scale=0.125), lambda *t: dense(*t, 0.125), away, moved)
    assert passes == of_forward_mode(dtype, 64)


@pytest.mark.parametrize("dtype", DTYPES)
def test_tangents_of_strides_and_broadcast_batches(dtype: torch.dtype, passes: list[str]) -> None:
    def inputs(seed: int) -> Arguments:
        q = drawn((300, 2, 8, 64), dtype=dtype, seed=seed)[0].permute(1, 2, 0, 3)
        k = drawn((2, 1, 64, 400), dtype=dtype, seed=seed)[0].mT
        return q, k, drawn((2, 8, 400, 128), dtype=dtype, seed=seed)[0][..., ::2]

    assert_tangent(
        lambda *t: km.attention(*t, score=DOT, scale=0.125), lambda *t: dense(*t, 0.125), inputs(0), inputs(7)
    )
    assert passes == of_forward_mode(dtype, 64)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_inner_product_and_shared_heads_have_tangents(dtype: torch.dtype, passes: list[str]) -> None:
    shapes = (2, 6, 300, 64), (2, 2, 400, 64), (2, 2, 400, 64)
    primals, tangents = (tuple(drawn(*shapes, dtype=dtype, seed=seed)) for seed in (0, 7))

    def exact(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return dense(q, *(t.repeat_interleave(3, 1) for t in (k, v)), 0.125)

    assert_tangent(lambda *t: km.attention(*t, enable_gqa=True), exact, primals, tangents)
    assert passes == of_forward_mode(dtype, 64)


@pytest.mark.parametrize("dtype", DTYPES)
def test_tangents_of_rows_that_see_nothing_are_zero(dtype: torch.dtype, passes: list[str]) -> None:
    q, k, v = drawn((2, 100, 64), (2, 200, 64), (2, 200, 64), dtype=dtype)
    nothing = torch.zeros(200, dtype=torch.bool, device="cuda")
    found = torch.func.jvp(lambda *t: km.attention(*t, score=DOT, mask=nothing), (q, k, v), (q, k, v))
    assert all((t == 0).all() for t in found)
    assert passes == ["evaluate", "tangent"]  # a mask of truths has slopes of its own


@pytest.mark.parametrize("dtype", DTYPES)
def test_entries_that_grow_and_one_tangent_alone(dtype: torch.dtype, passes: list[str]) -> None:
    """The largest entry of a row comes last, and k and v do not move."""
    q, k, v = drawn((2, 130, 64), (2, 1000, 64), (2, 1000, 64), dtype=dtype)
    k = (k + torch.linspace(-4, 4, 1000, device="cuda")[:, None] * q.mean(1, keepdim=True).sign()).to(dtype)
    (move,) = drawn((2, 130, 64), dtype=dtype, seed=7)
    result, tangent = torch.func.jvp(lambda q: km.attention(q, k, v, score=DOT, scale=0.125), (q,), (move,))
    wanted, moved = torch.func.jvp(lambda q: dense(q, k, v, 0.125), (q.double(),), (move.double(),))
    assert_near(result, wanted, dtype)
    assert_near(tangent, moved, dtype, 3.0)
    assert passes == of_forward_mode(dtype, 64)


def test_forward_mode_gives_the_same_bits_and_that_of_the_forward_pass(passes: list[str]) -> None:
    shapes = (3, 700, 64), (3, 900, 64), (3, 900, 64)
    primals, tangents = (tuple(drawn(*shapes, dtype=torch.bfloat16, seed=seed)) for seed in (0, 7))

    def of(*t: torch.Tensor) -> torch.Tensor:
        return km.attention(*t, score=DOT, scale=0.125)

    first = torch.func.jvp(of, primals, tangents)
    for _ in range(20):
        for one, other in zip(first, torch.func.jvp(of, primals, tangents), strict=True):
            assert torch.equal(one, other)
    assert passes == ["duals"] * 21
    difference = first[0].double() - of(*primals).double()
    assert difference.norm() < TOLERANCE[torch.bfloat16] * first[0].double().norm()


def test_tangents_of_random_shapes(passes: list[str]) -> None:
    source, wanted = random.Random(6), list[str]()
    for i in range(40):
        m, n = source.randint(1, 500), source.randint(2, 700)
        k, width, batch = source.randint(1, 64), source.randint(1, 64), source.choice([(), (2,), (2, 3)])
        dtype, causal = source.choice(DTYPES), source.random() < 0.5
        shapes = (*batch, m, k), (*batch, n, k), (*batch, n, width)
        primals, tangents = (tuple(drawn(*shapes, dtype=dtype, seed=seed)) for seed in (i, 100 + i))
        assert_tangent(
            lambda *t, c=causal: km.attention(*t, score=DOT, scale=0.2, causal=c),
            lambda *t, c=causal: dense(*t, 0.2, c), primals, tangents,
        )  # fmt: skip
        wanted += of_forward_mode(dtype, k, width)
    assert passes == wanted


def test_tangents_are_what_gradients_say(passes: list[str]) -> None:
    shapes = (2, 150, 64), (2, 250, 64), (2, 250, 64)
    primals, tangents = drawn(*shapes), drawn(*shapes, seed=7)
    (g,) = drawn((2, 150, 64), seed=9)
    leaves = [t.requires_grad_() for t in primals]
    gradients = torch.autograd.grad(km.attention(*leaves, score=DOT, scale=0.125), leaves, g)
    with torch.no_grad():
        _, moved = torch.func.jvp(lambda *t: km.attention(*t, score=DOT, scale=0.125), (*primals,), (*tangents,))
    backward = sum((a.double() * b.double()).sum() for a, b in zip(gradients, tangents, strict=True))
    forward = (moved.double() * g.double()).sum()
    assert abs(backward - forward) < 1e-4 * moved.double().norm() * g.double().norm()
    assert passes == ["evaluate", "gradients", "evaluate", "tangent"]


def test_tracked_parameters_take_two_passes(passes: list[str]) -> None:
    q, k, v = drawn((2, 100, 64), (2, 200, 64), (2, 200, 64))
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


def distances(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Squared distances as they are written."""
    return (q.unsqueeze(-2) - k.unsqueeze(-3)).square().sum(-1)


def by_distances(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, of: Callable[[torch.Tensor], torch.Tensor], causal: bool = False
) -> torch.Tensor:
    """Sums weighted by a function of the squared distances in float64."""
    q, k, v = (t.double() for t in (q, k, v))
    scores = of(distances(q, k))
    if causal:
        scores = scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=torch.bool, device="cuda").tril(), -math.inf)
    return torch.softmax(scores, -1) @ v


OF_DISTANCES: dict[str, tuple[Any, float, Callable[[torch.Tensor], torch.Tensor]]] = {
    "negative": (lambda a, b: -((a - b) ** 2), 0.05, lambda s: -0.05 * s),
    "sqeuclidean": ("sqeuclidean", 0.05, lambda s: -0.05 * s),
    "euclidean": ("euclidean", 0.5, lambda s: -0.5 * torch.where(s > 0, s, 1).sqrt() * (s > 0)),
    "kernel": (km.Gaussian(4.0), 3.0, lambda s: 3 * torch.exp(-s / 32)),
}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", OF_DISTANCES)
@pytest.mark.parametrize(("m", "n", "k", "width"), [(200, 333, 64, 64), (129, 257, 128, 100), (300, 500, 3, 17)])
def test_scores_of_squared_distances(
    m: int, n: int, k: int, width: int, kind: str, dtype: torch.dtype, causal: bool, passes: list[str]
) -> None:
    score, scale, of = OF_DISTANCES[kind]
    shapes = (2, m, k), (2, n, k), (2, n, width)
    primals, tangents = (tuple(drawn(*shapes, dtype=dtype, seed=seed)) for seed in (0, 7))
    leaves = [t.clone().requires_grad_() for t in primals]
    found = km.attention(*leaves, score=score, scale=scale, causal=causal)
    wide = [t.double().requires_grad_() for t in primals]
    wanted = by_distances(*wide, of, causal)
    assert_near(found.detach(), wanted.detach(), dtype)
    (g,) = drawn((2, m, width), dtype=dtype, seed=9)
    for mine, theirs in zip(
        torch.autograd.grad(found, leaves, g), torch.autograd.grad(wanted, wide, g.double()), strict=True
    ):
        assert_near(mine, theirs, dtype, 3.0)
    assert_tangent(
        lambda *t: km.attention(*t, score=score, scale=scale, causal=causal), lambda *t: by_distances(*t, of, causal),
        primals, tangents,
    )  # fmt: skip
    assert passes == ["evaluate", "gradients", "evaluate", "tangent"]


def test_small_weights_of_float16_beside_a_large_one(passes: list[str]) -> None:
    """Weights of 4e-8, less than the least number of float16, make all of a result and of gradients."""
    q, k, v, g = (torch.zeros(2, n, 64, dtype=torch.float16, device="cuda") for n in (300, 5000, 5000, 300))
    q[..., 0], k[:, 1:, 0], v[:, 1:], g[...] = 100, -0.17, 1, 8
    leaves = [t.requires_grad_() for t in (q, k, v)]
    wide = [t.detach().double().requires_grad_() for t in leaves]
    found, wanted = km.attention(*leaves, score=DOT, scale=1.0), dense(*wide, 1.0)
    assert_near(found.detach(), wanted.detach(), torch.float16)
    _, of_keys, of_values = torch.autograd.grad(found, leaves, g)
    _, keys, values = torch.autograd.grad(wanted, wide, g.double())
    assert_near(of_keys[:, 1:], keys[:, 1:], torch.float16, 3.0)
    assert_near(of_values[:, 1:], values[:, 1:], torch.float16, 3.0)
    primals = tuple(t.detach() for t in (q, k, v))
    moves = torch.zeros_like(primals[0]), torch.zeros_like(primals[1]), primals[2]
    _, tangent = torch.func.jvp(lambda *t: km.attention(*t, score=DOT, scale=1.0), primals, moves)
    assert_near(tangent, wanted.detach(), torch.float16, 3.0)
    assert passes == ["evaluate", "gradients", "duals"]


def is_stored(t: torch.Tensor) -> bool:
    """Whether float16 has the numbers of an array: neither too small nor too large."""
    return bool(t.square().mean().sqrt() > 2.0**-12 and t.abs().max() < 60000)


@pytest.mark.parametrize("score", ["product", "kernel"])
@pytest.mark.parametrize("size", [2.0**-12, 1.0, 2.0**12])
def test_slopes_of_any_size_in_float16(size: float, score: str, passes: list[str]) -> None:
    """Cotangents of scores are about 1e-7 or 1e3, and grow from tile to tile."""
    q, k, v = drawn((2, 200, 64), (2, 700, 64), (2, 700, 64), dtype=torch.float16)
    growth = torch.logspace(-2, 1, 700, device="cuda").unsqueeze(-1)
    v = (v * growth).half()
    (g,) = drawn((2, 200, 64), dtype=torch.float16, seed=9)
    g = (g * size).half()
    if score == "product":
        q, k = q / 1024, k * 1024  # gradients by q are large, by k small
        of, exact = partial(km.attention, score=DOT, scale=0.125), partial(dense, scale=0.125)
    else:
        of = partial(km.attention, score=km.Gaussian(4.0), scale=3.0)
        exact = partial(by_distances, of=OF_DISTANCES["kernel"][2])
    leaves, wide = [t.clone().requires_grad_() for t in (q, k, v)], [t.double().requires_grad_() for t in (q, k, v)]
    found, wanted = of(*leaves), exact(*wide)
    gradients, expected = torch.autograd.grad(found, leaves, g), torch.autograd.grad(wanted, wide, g.double())
    for mine, theirs in zip(gradients, expected, strict=True):
        if is_stored(theirs):
            assert_near(mine, theirs, torch.float16, 3.0)
    moves = [(t * size).half() for t in drawn((2, 200, 64), (2, 700, 64), dtype=torch.float16, seed=7)]
    _, moved = torch.func.jvp(
        lambda *t: exact(*t, v.double()), (q.double(), k.double()), tuple(t.double() for t in moves)
    )
    _, tangent = torch.func.jvp(lambda *t: of(*t, v), (q, k), tuple(moves))
    if is_stored(moved):
        assert_near(tangent, moved, torch.float16, 3.0)
    assert passes[:2] == ["evaluate", "gradients"]


def terms_of_gradients(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, factor: float, g: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sizes of the gradients by q and k, root-sum-square, were the terms of 2 (q Σ c - Σ c k) independent.

    The first row of k is subtracted from both, c are the cotangents of distances, all in float64.
    """
    q, k = q.double(), k.double()
    d = distances(q, k).requires_grad_()
    (c,) = torch.autograd.grad(torch.softmax(-factor * d, -1) @ v.double(), d, g.double())
    q, k, c = (q - k[:, :1]).square(), (k - k[:, :1]).square(), c.square()
    own, others = c.sum(-1).unsqueeze(-1), c.sum(-2).unsqueeze(-1)
    return 2 * (own * q + c @ k).sqrt(), 2 * (others * k + c.mT @ q).sqrt()


@pytest.mark.parametrize("kind", ["itself", "offset", "clusters", "points of two numbers"])
def test_close_points_lose_no_digits(kind: str, passes: list[str]) -> None:
    q, k, v = drawn((2, 400, 32), (2, 500, 32), (2, 500, 40))
    factor = 0.5
    if kind == "itself":
        q = k[:, :400]
    elif kind == "offset":
        q, k = q + 1e4, k + 1e4
    elif kind == "clusters":  # 100 apart, as wide as 0.1, which the scale sees
        (centres,) = drawn((5, 32), seed=3)
        q, k = (100 * centres[torch.arange(t.shape[1], device="cuda") % 5] + 0.1 * t for t in (q, k))
        factor = 5.0
    else:
        q, k, factor = q[..., :2], k[..., :2], 20.0
    leaves = [t.clone().requires_grad_() for t in (q, k, v)]
    found = km.attention(*leaves, score="sqeuclidean", scale=factor)
    wide = [t.double().requires_grad_() for t in (q, k, v)]
    wanted = by_distances(*wide, lambda s: -factor * s)
    assert_near(found.detach(), wanted.detach(), torch.float32, 3.0)
    g = torch.randn_like(found)
    gradients, exact = torch.autograd.grad(found, leaves, g), torch.autograd.grad(wanted, wide, g.double())
    terms = (*terms_of_gradients(q, k, v, factor, g), None)
    for mine, theirs, size in zip(gradients, exact, terms, strict=True):
        if size is not None and kind == "clusters":  # gradients are a thousandth of their terms there
            assert (mine.double() - theirs).norm() < 1e-6 * size.norm()
        else:
            assert_near(mine, theirs, torch.float32, 30.0 if kind == "offset" else 5.0)
    assert passes == ["evaluate", "gradients"]


def test_points_that_are_not_finite_stay_where_they_belong(passes: list[str]) -> None:
    q, k, v = drawn((1, 300, 64), (1, 300, 64), (1, 300, 64))
    k[0, 0, 3], q[0, 5, 3], k[0, 9, 7] = (
        math.inf,
        math.nan,
        -math.inf,
    )  # the first row of k, from which others are taken
    found, wanted = (km.attention(q, k, v, score="sqeuclidean", scale=0.1), by_distances(q, k, v, lambda s: -0.1 * s))
    assert (found.isnan() == wanted.isnan()).all()
    rest = [i for i in range(300) if i != 5]
    assert_near(found[:, rest], wanted[:, rest], torch.float32)
    assert passes == ["evaluate"]


def test_other_scores_take_two_passes(passes: list[str]) -> None:
    q, k, v = drawn((2, 100, 16), (2, 200, 16), (2, 200, 16))
    for score in ("cityblock", km.Laplace(2.0, p=1), lambda a, b: -abs(a - b)):
        km.attention(q, k, v, score=score)
    assert passes == []
