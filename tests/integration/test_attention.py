"""Attention with any score: values by brute force in float64, derivatives of every order, masks, transforms, errors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.nn.functional import scaled_dot_product_attention

import kernmantle as km
from kernmantle.errors import DeviceError, DtypeError, EquationError, GradientError, ParameterError, ShapeError
from kernmantle.testing import assert_close

from ..arrays import normal as rows

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def l1(a, b):
    return -abs(a - b)


SCORES = {
    "inner product": (None, lambda d, a, b: (a * b).sum(-1) / np.sqrt(d)),
    "own": (l1, lambda d, a, b: -abs(a - b).sum(-1)),
    "metric": ("euclidean", lambda d, a, b: -np.sqrt(((a - b) ** 2).sum(-1))),
    "kernel": (km.Gaussian(2.0), lambda d, a, b: np.exp(-((a - b) ** 2).sum(-1) / 8)),
    "contraction": (
        km.Contraction("ik,jk->ij", lambda a, b: a + b, reduce="max"), lambda d, a, b: (a + b).max(-1),
    ),
}  # fmt: skip


def drawn(dtype=torch.float64, batch=(2, 3), extents=(17, 23), columns=(4, 5)):
    shapes = [(*batch, extents[0], columns[0]), (*batch, extents[1], columns[0]), (*batch, extents[1], columns[1])]
    return [rows(*shape, seed=i, dtype=dtype) for i, shape in enumerate(shapes)]


def expected(name, q, k, v, mask=None, causal=False):
    """Softmax-weighted sums by brute force; rows without a column are 0."""
    q, k, v = (t.detach().double().numpy() for t in (q, k, v))
    logits = SCORES[name][1](q.shape[-1], q[..., :, None, :], k[..., None, :, :])
    if mask is not None:
        mask = mask.detach()
        given = mask.numpy() if mask.dtype == torch.bool else mask.double().numpy()
        logits = np.where(given, logits, -np.inf) if mask.dtype == torch.bool else logits + given
    if causal:
        logits = np.where(np.tri(*logits.shape[-2:], dtype=bool), logits, -np.inf)
    top = np.maximum(logits.max(-1, keepdims=True), -1e300)
    weights = np.exp(logits - top)
    return (weights / np.maximum(weights.sum(-1, keepdims=True), 1e-300)) @ v


MASKS = {
    "none": None,
    "rows": torch.rand(17, 23, generator=torch.Generator().manual_seed(1)) > 0.4,
    "heads": rows(3, 17, 23, seed=5),
    "padding": torch.arange(23) < torch.tensor([20, 9])[:, None, None, None],
    "columns": rows(23, seed=6),
}
MASKS["rows"][3] = False


@pytest.mark.parametrize(
    ("name", "mask"),
    [
        *((name, mask) for name in ("inner product", "own") for mask in MASKS if mask != "columns"),
        *((name, "heads") for name in SCORES),
    ],
)
def test_every_score_and_mask(name, mask):
    q, k, v = drawn()
    for causal in (False, True) if name == "inner product" else (mask != "padding",):
        found = km.attention(q, k, v, score=SCORES[name][0], mask=MASKS[mask], causal=causal)
        assert_close(found, expected(name, q, k, v, MASKS[mask], causal), depth=32)


SHARED_MASKS = {
    "none": None,
    "heads": rows(6, 17, 23, seed=5),
    "padding": torch.arange(23) < torch.tensor([20, 9])[:, None, None, None],
    "rows": torch.rand(17, 23, generator=torch.Generator().manual_seed(1)) > 0.4,
}


@pytest.mark.parametrize(
    ("name", "mask"),
    [
        *(("inner product", mask) for mask in SHARED_MASKS),
        ("own", "none"), ("own", "heads"), ("kernel", "padding"), ("kernel", "rows"),
    ],
)  # fmt: skip
def test_heads_that_share_keys_and_values(name, mask):
    q = rows(2, 6, 17, 4)
    k, v = (rows(2, groups, 23, columns, seed=seed) for groups, columns, seed in ((3, 4, 1), (3, 5, 2)))
    inputs = [t.requires_grad_() for t in (q, k, v)]
    table, causal = SHARED_MASKS[mask], mask == "none"
    found = km.attention(*inputs, score=SCORES[name][0], mask=table, causal=causal, enable_gqa=True)
    repeated = [q, *(t.repeat_interleave(2, 1) for t in (k, v))]
    assert_close(found, expected(name, *repeated, table, causal), depth=32)
    cotangent = rows(*found.shape, seed=7)
    wanted = torch.autograd.grad(
        km.attention(*repeated, score=SCORES[name][0], mask=table, causal=causal), inputs, cotangent
    )
    for slope, want in zip(torch.autograd.grad(found, inputs, cotangent), wanted, strict=True):
        assert_close(slope, want, depth=64)


def test_shared_heads_are_those_of_torch():
    q, k, v = rows(8, 17, 4), rows(2, 23, 4, seed=1), rows(2, 23, 5, seed=2)
    for batch in ((), (3,), (1, 2)):
        inputs = [t.expand(*batch, *t.shape) for t in (q, k, v)]
        assert_close(
            km.attention(*inputs, enable_gqa=True), scaled_dot_product_attention(*inputs, enable_gqa=True), depth=32
        )


@pytest.mark.parametrize(
    ("shapes", "error"),
    [
        (((2, 6, 5, 4), (2, 4, 7, 4), (2, 4, 7, 3)), ShapeError),
        (((2, 6, 5, 4), (2, 3, 7, 4), (2, 2, 7, 3)), ShapeError),
        (((2, 6, 5, 4), (3, 3, 7, 4), (3, 3, 7, 3)), ShapeError),
        (((5, 4), (7, 4), (7, 3)), ShapeError),
    ],
)
def test_heads_that_cannot_be_shared(shapes, error):
    with pytest.raises(error, match=r"enable_gqa|batch axes"):
        km.attention(*(torch.ones(shape) for shape in shapes), enable_gqa=True)


def test_shared_heads_are_asked_for():
    q, k = torch.ones(2, 6, 5, 4), torch.ones(2, 3, 7, 4)
    with pytest.raises(ShapeError, match="enable_gqa=True"):
        km.attention(q, k, k)
    with pytest.raises(ParameterError, match="enable_gqa= is True or False"):
        km.attention(q, k, k, enable_gqa=1)
    with pytest.raises(ShapeError, match=r"does not broadcast to that of the scores, \(2, 6, 5, 7\)"):
        km.attention(q, k, k, mask=torch.ones(3, 5, 7, dtype=torch.bool), enable_gqa=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["inner product", "own"])
def test_every_type(name, dtype):
    q, k, v = drawn(dtype)
    found = km.attention(q, k, v, score=SCORES[name][0], mask=MASKS["heads"].to(dtype))
    assert found.dtype == dtype
    assert_close(found, expected(name, q, k, v, MASKS["heads"].to(dtype)), depth=32, magnitude=v.abs().max().item())


@pytest.mark.parametrize("name", ["inner product", "own"])
@pytest.mark.parametrize(
    ("extents", "columns"),
    [((1, 1), (1, 1)), ((9, 130), (3, 70)), ((70, 1), (2, 2)), ((0, 3), (2, 1)), ((3, 0), (2, 1))],
)
def test_extents(name, extents, columns):
    q, k, v = drawn(batch=(), extents=extents, columns=columns)
    found = km.attention(q, k, v, score=SCORES[name][0])
    want = expected(name, q, k, v) if extents[1] else np.zeros((extents[0], columns[1]))
    assert_close(found, want, depth=130)


def test_numpy_strides_and_batches():
    q, k, v = drawn()
    want = km.attention(q, k, v, score=l1)
    found = km.attention(q.numpy(), k.numpy(), v.numpy(), score=l1)
    assert isinstance(found, np.ndarray)
    assert_close(found, want)
    swapped = [t.transpose(0, 1).contiguous().transpose(0, 1) for t in (q, k, v)]
    assert_close(km.attention(*swapped, score=l1), want)
    for score in (None, l1):
        shared = km.attention(q, k[:, :1], v[:1], score=score)
        assert_close(shared, km.attention(q, k[:, :1].expand_as(k), v[:1].expand_as(v), score=score), depth=32)


@pytest.mark.parametrize("name", ["inner product", "own"])
def test_derivatives(name):
    q, k, v = (t.requires_grad_() for t in drawn(batch=(2,), extents=(5, 6), columns=(2, 3)))
    mask, scale = rows(5, 6, seed=4).requires_grad_(), torch.tensor(0.7, dtype=torch.float64, requires_grad=True)

    def function(q, k, v, mask):
        return km.attention(q, k, v, score=SCORES[name][0], mask=mask, causal=True)

    assert gradcheck(function, (q, k, v, mask), fast_mode=True)
    assert gradgradcheck(function, (q, k, v, mask), fast_mode=True)
    assert gradcheck(lambda scale: km.attention(q, k, v, score=SCORES[name][0], scale=scale), scale)
    if name == "own":
        hidden = MASKS["rows"][:5, :6]
        assert gradgradcheck(lambda q: km.attention(q, k, v, score=l1, mask=hidden), q, fast_mode=True)


def test_gradients_by_the_vendor_are_those_of_the_program():
    q, k, v = (t.requires_grad_() for t in drawn(torch.float32))
    cotangent = rows(2, 3, 17, 5, seed=9, dtype=torch.float32)
    vendor = torch.autograd.grad(km.attention(q, k, v), (q, k, v), cotangent)
    program = torch.autograd.grad(km.attention(q, k, v), (q, k, v), cotangent, create_graph=True)
    exact = [t.detach().double().requires_grad_() for t in (q, k, v)]
    wanted = torch.autograd.grad(scaled_dot_product_attention(*exact), exact, cotangent.double())
    for one, other, want in zip(vendor, program, wanted, strict=True):
        assert not one.requires_grad
        assert_close(one, want, dtype="float32", depth=400, magnitude=want.abs().max().item())
        assert_close(other, want, dtype="float32", depth=400, magnitude=want.abs().max().item())


def test_rows_that_see_nothing_have_no_gradient():
    q, k, v = (t.requires_grad_() for t in drawn(batch=()))
    for score in (None, l1):
        found = km.attention(q, k, v, score=score, mask=MASKS["rows"])
        assert (found[3] == 0).all()
        of_q = torch.autograd.grad(found.sum(), q)[0]
        assert (of_q[3] == 0).all()
        assert of_q.isfinite().all()
        assert of_q.abs().sum() > 0


def test_nan_stays():
    q, k, v = drawn(batch=())
    q[2, 1] = torch.nan
    found = km.attention(q, k, v, score=l1)
    assert found[2].isnan().all()
    assert found.isnan().sum() == 5


@pytest.mark.parametrize("score", [None, l1])
def test_transforms(score):
    q, k, v = drawn(batch=(), extents=(9, 8), columns=(3, 2))

    def fused(q):
        return km.attention(q, k, v, score=score, causal=True).square().sum()

    def dense(q):
        scores = q @ k.mT / np.sqrt(3) if score is None else -(q[:, None] - k).abs().sum(-1)
        hidden = torch.ones(9, 8, dtype=torch.bool).tril().logical_not()
        return (scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v).square().sum()

    tangent = rows(9, 3, seed=8)
    for transform in (
        torch.func.grad,
        lambda f: lambda q: torch.func.jvp(f, (q,), (tangent,))[1],
        lambda f: lambda q: torch.func.jvp(torch.func.grad(f), (q,), (tangent,))[1],
    ):
        assert_close(transform(fused)(q), transform(dense)(q), depth=512)
    many = rows(3, 9, 3, seed=7)
    assert_close(torch.func.vmap(torch.func.grad(fused))(many), torch.func.vmap(torch.func.grad(dense))(many), depth=64)


@pytest.mark.parametrize("score", [None, l1])
def test_compiled(score):
    q, k, v = (t.requires_grad_() for t in drawn(torch.float32))

    def function(q, k, v):
        return km.attention(q, k, v, score=score, causal=True).square().sum()

    found = torch.autograd.grad(torch.compile(function, fullgraph=True, backend="aot_eager")(q, k, v), (q, k, v))
    want = torch.autograd.grad(function(q, k, v), (q, k, v))
    for one, other in zip(found, want, strict=True):
        assert_close(one, other, depth=512, magnitude=other.abs().max().item())


Q, K, V = drawn()


@pytest.mark.parametrize("options", [{}, {"scale": 0.3}, {"causal": True}])
def test_the_inner_product_by_name_is_no_distance(options):
    """It is large where rows are close: it counts as it is, where distances count with a minus."""
    expected = km.attention(Q, K, V, **options)
    for name in ("inner_product", "dot", "Inner"):
        assert_close(km.attention(Q, K, V, score=name, **options), expected, depth=23)
    weights = torch.linspace(0.5, 2, Q.shape[-1], dtype=Q.dtype)
    weighted = km.attention(Q, K, V, score="dot", w=weights, **options)
    assert_close(weighted, km.attention(Q * weights, K, V, **options), depth=64)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "words"),
    [
        ((Q[0, 0, 0], K, V), {}, ShapeError, "q has shape (4,)"),
        ((Q[..., :3], K, V), {}, ShapeError, "the same number of columns"),
        ((Q, K, V[..., :7, :]), {}, ShapeError, "as many rows"),
        ((Q, K[:1].expand(3, -1, -1, -1), V), {}, ShapeError, "batch axes do not broadcast"),
        ((Q, K, V), {"mask": MASKS["rows"][:5]}, ShapeError, "mask has shape (5, 23)"),
        ((Q, K, V), {"mask": torch.ones(7, 2, 3, 17, 23)}, ShapeError, "mask has shape (7, 2, 3, 17, 23)"),
        ((Q, K, V), {"mask": torch.ones(17, 23, dtype=torch.int64)}, DtypeError, "mask != 0"),
        ((Q, K, V), {"mask": torch.ones(17, 23, device="meta")}, DeviceError, "mask is on meta"),
        ((Q, K, V), {"causal": 1}, ParameterError, "causal= is True or False"),
        ((Q, None, V), {}, DtypeError, "k is None"),
        ((Q, K, V), {"score": km.Gaussian}, ParameterError, "call it, as km.Gaussian()"),
        ((Q, K, V), {"score_mod": None}, ParameterError, "no score_mod=; score= is a lambda"),
        ((Q, K, V), {"block_mask": None}, ParameterError, "mask= takes a boolean mask"),
        ((Q, K, V), {"out": None}, ParameterError, "attention has no out=; options of a metric by name are p, w"),
        ((Q, K, V), {"scale": True}, ParameterError, "scale= is a finite number"),
        ((Q, K, V), {"scale": "large"}, ParameterError, "scale= is a finite number"),
        ((Q, K, V), {"scale": float("nan")}, ParameterError, "scale= is a finite number"),
        ((Q, K, V), {"scale": torch.ones(2)}, ParameterError, "scale= is one number"),
        ((Q, K, V), {"score": lambda a, b: (a, b)}, ParameterError, "score= is one number of a pair of rows"),
        ((Q, K, V), {"score": 3}, ParameterError, "score= is the name of a metric"),
        ((Q, K, V), {"score": "euclidian"}, ParameterError, "euclidean"),
        ((Q, K, V), {"p": 3}, ParameterError, "p= is an option of a metric"),
        ((Q, K, V), {"score": l1, "p": 3}, ParameterError, "p= is an option of metrics"),
        ((Q, K, V), {"score": km.Contraction("mk,kn->mn", lambda a, b: a * b)}, EquationError, "is a contraction"),
        ((Q, K, V), {"score": km.Contraction("mk,nk->mn", lambda a, b, p: abs(a - b) ** p)}, ParameterError, "'p'"),
        ((Q.clone().requires_grad_(), K, V), {"score": "hamming"}, GradientError, "has no gradient"),
        ((Q + 0j, K, V), {}, DtypeError, "complex"),
    ],
)  # fmt: skip
def test_errors(arguments, options, error, words):
    with pytest.raises(error) as raised:
        km.attention(*arguments, **options)
    assert words in str(raised.value)
