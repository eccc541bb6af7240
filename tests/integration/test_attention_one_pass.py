"""Attention where a machine weighs in one pass: what it hands to the kernels and makes of their gradients.

The kernels are stood in for by dense float64 arithmetic on the program that they would compile.
"""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch.autograd import forward_ad

import kernmantle as km
from kernmantle.compiler.softmax import DUALS, Weighting
from kernmantle.pairwise import attend
from kernmantle.testing import assert_close
from kernmantle.torch_ops import softmax
from kernmantle.torch_ops.autograd import apply
from kernmantle.torch_ops.execute import Types
from kernmantle.torch_ops.torch_private import is_wrapped

DOT = km.Contraction("mk,nk->mn", lambda a, b: a * b)
CAPPED = km.Contraction("mk,nk->mn", lambda a, b: a * b, epilogue=lambda s: 5 * km.tanh(s / 5))


def dense(task, tensors):
    """Sums and logarithms of a task in float64."""
    assert not any(is_wrapped(t) for t in tensors)  # kernels read memory
    weighting = Weighting.parse(task.text)
    wide = [t.double() if t.is_floating_point() else t for t in tensors]
    types = Types("f64", ("f64",)).text
    (logits,) = apply(weighting.inner.text, types, list(task.numbers), wide[:-1])
    if weighting.causal:
        logits = logits.masked_fill(~torch.ones(logits.shape[-2:], dtype=torch.bool).tril(), -math.inf)
    top = logits.detach().amax(-1, keepdim=True)
    weights = torch.exp(logits - torch.where(top == -math.inf, 0, top))
    total = weights.sum(-1, keepdim=True)
    logs = torch.where(total == 0, -math.inf, top + total.clamp_min(1e-300).log())
    return weights / torch.where(total == 0, 1, total) @ wide[-1], logs[..., 0]


@pytest.fixture
def together():
    """Whether there are kernels that make sums and tangents at once."""
    return False


@pytest.fixture
def passes(monkeypatch, together):
    """CPUs weigh in one pass, the calls of whose kernels are noted."""
    ran = []

    def evaluate(self, tensors, wide=False):
        ran.append("evaluate")
        result, logs = dense(self, tensors)
        return result.to(torch.float32 if wide else tensors[-1].dtype), logs.float()

    def gradients(self, tensors, result, statistic, cotangent):
        ran.append("gradients")
        leaves = [t.detach().requires_grad_() for t in (*tensors[:2], tensors[-1])]
        batch = result.shape[:-2]
        with torch.enable_grad():
            wide = [t.expand(*batch, *t.shape[-2:]) for t in leaves]
            found, logs = dense(self, [*wide[:2], *tensors[2:-1], wide[2]])
        assert_close(statistic, logs.detach().numpy(), depth=64)
        assert_close(result, found.detach().numpy(), depth=64)
        return [*torch.autograd.grad(found, wide, cotangent.double())]

    def moving(self, tensors, moves):
        assert not any(is_wrapped(t) for t in moves)
        q, k, *others, v = tensors

        def of(*moving):
            return dense(self, [*moving[:2], *others, moving[2]])[0]

        return torch.autograd.functional.jvp(of, *(tuple(t.double() for t in each) for each in ((q, k, v), moves)))

    def tangent(self, tensors, result, statistic, moves):
        ran.append("tangent")
        found, moved = moving(self, tensors, moves)
        assert_close(statistic, dense(self, tensors)[1].numpy(), depth=64)
        assert_close(result, found.numpy(), depth=64)
        return moved.to(result.dtype)

    def allocated(self, tensors):
        result, logs = dense(self, tensors)
        stored = tensors[-1].dtype
        unset = ((result, stored), (logs, torch.float32), (result, stored))
        return [torch.full_like(t, math.nan, dtype=dtype) for t, dtype in unset]

    def duals(self, tensors, moves, outs):
        ran.append("duals")
        found, moved = moving(self, tensors, moves)
        for out, value in zip(outs, (found, dense(self, tensors)[1], moved), strict=True):
            assert not is_wrapped(out)
            out.copy_(value)

    def evaluates(self, tensors, how=""):
        return together or how != DUALS

    monkeypatch.setattr(attend, "has_kernels", lambda _: True)
    monkeypatch.setattr(softmax, "has_kernels", lambda _: True)
    monkeypatch.setattr(attend, "_VENDORS", 1)
    for stand_in in (evaluates, evaluate, gradients, tangent, allocated, duals):
        monkeypatch.setattr(softmax.SoftmaxTask, stand_in.__name__, stand_in)
    return ran


def drawn(*shapes, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, generator=generator) for shape in shapes]


MASKS = {
    "none": None,
    "truths": torch.arange(23) < torch.tensor([20, 0])[:, None, None, None],
    "terms": torch.linspace(-1, 1, 23),
    "rows": torch.arange(23) < torch.arange(17)[:, None],
}


@pytest.mark.parametrize(
    ("score", "mask", "causal"),
    [
        *((DOT, mask, causal) for mask, causal in zip(MASKS, itertools.cycle([False, True]), strict=False)),
        (DOT, "none", True),
        (CAPPED, "truths", True), (lambda a, b: a * b, "none", False), (None, "terms", False),
    ],
)  # fmt: skip
def test_one_pass_is_two_passes_in_float64(passes, score, mask, causal):
    q, k, v = drawn((2, 3, 17, 4), (2, 1, 23, 4), (3, 23, 5))
    table = MASKS[mask]
    wide = None if table is None or table.dtype == torch.bool else table.double()

    def run(*tensors, mask):
        leaves = [t.detach().requires_grad_() for t in tensors]
        found = km.attention(*leaves, score=score, scale=0.4, mask=mask, causal=causal)
        gradients = torch.autograd.grad(found, leaves, torch.ones_like(found).cumsum(-1))
        return [found.detach(), *gradients]

    mine = run(q, k, v, mask=table)
    assert passes == ["evaluate", "gradients"]
    theirs = run(q.double(), k.double(), v.double(), mask=table if wide is None else wide)
    assert passes == ["evaluate", "gradients"]  # float64 takes two passes
    for one, other in zip(mine, theirs, strict=True):
        assert one.shape == other.shape
        assert_close(one, other.numpy(), depth=256, magnitude=other.abs().max().item())


def test_halves_reach_the_kernel_as_they_are(passes):
    q, k, v = (t.bfloat16() for t in drawn((17, 4), (23, 4), (23, 5)))
    found = km.attention(q, k, v, score=DOT, scale=0.4)
    assert found.dtype == torch.bfloat16
    assert passes == ["evaluate"]
    km.attention(q, k, v)  # the vendor's
    assert passes == ["evaluate"]
    km.attention(q, k, v, scale=torch.tensor(0.4))  # the vendor takes no tensor
    assert passes == ["evaluate", "evaluate"]


def test_only_needed_gradients_come_back(passes):
    q, k, v = drawn((17, 4), (23, 4), (23, 5))
    k.requires_grad_()
    km.attention(q, k, v, score=DOT).sum().backward()
    assert passes == ["evaluate", "gradients"]
    assert k.grad is not None
    assert q.grad is None
    assert v.grad is None


def test_second_derivatives_are_of_the_program(passes):
    tensors = drawn((5, 3), (6, 3), (6, 2))

    def twice(*tensors):
        leaves = [t.detach().requires_grad_() for t in tensors]
        out = km.attention(*leaves, score=DOT, scale=0.4)
        first = torch.autograd.grad(out.sin().sum(), leaves, create_graph=True)
        return torch.autograd.grad(sum((t**2).sum() for t in first), leaves)

    mine = twice(*tensors)
    assert passes[0] == "evaluate"
    for one, other in zip(mine, twice(*(t.double() for t in tensors)), strict=True):
        assert_close(one, other.numpy(), depth=256, magnitude=max(1.0, other.abs().max().item()))


def test_few_inner_products_are_the_vendors(passes, monkeypatch):
    q, k, v = drawn((17, 4), (23, 4), (23, 5))
    km.attention(q, k, v)
    monkeypatch.setattr(attend, "_VENDORS", 17 * 23 + 1)
    km.attention(q, k, v)
    assert passes == ["evaluate"]


def by_func(function, primals, tangents):
    return torch.func.jvp(function, tuple(primals), tuple(tangents))


def by_duals(function, primals, tangents):
    with forward_ad.dual_level():
        found = function(*(forward_ad.make_dual(*both) for both in zip(primals, tangents, strict=True)))
        return tuple(forward_ad.unpack_dual(found))


def passes_of(together):
    return ["duals"] if together else ["evaluate", "tangent"]


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("way", [by_func, by_duals])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("score", "mask", "causal"), [(DOT, "none", True), (CAPPED, "truths", False), (None, "terms", True)]
)
def test_tangents_are_those_of_the_program_in_float64(passes, score, mask, causal, dtype, way, together):
    shapes = (2, 3, 17, 4), (2, 1, 23, 4), (3, 23, 5)
    primals, tangents = ([t.to(dtype) for t in drawn(*shapes, seed=seed)] for seed in (1, 2))
    table = MASKS[mask]

    def attend_to(*tensors):
        own = table if table is None or table.dtype == torch.bool else table.to(tensors[0].dtype)
        return km.attention(*tensors, score=score, scale=0.4, mask=own, causal=causal)

    mine = way(attend_to, primals, tangents)
    assert passes == passes_of(together)
    theirs = way(attend_to, *([t.double() for t in each] for each in (primals, tangents)))
    assert passes == passes_of(together)
    for one, other in zip(mine, theirs, strict=True):
        assert one.dtype == dtype
        assert_close(one, other.numpy(), depth=256, magnitude=other.abs().max().item())


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("which", range(3))
def test_what_does_not_move_has_no_tangent(passes, which, together):
    tensors, (move,) = drawn((17, 4), (23, 4), (23, 5)), drawn(((17, 4), (23, 4), (23, 5))[which], seed=3)

    def of(moving):
        return km.attention(*(moving if i == which else t.to(moving.dtype) for i, t in enumerate(tensors)), score=DOT)

    _, mine = torch.func.jvp(of, (tensors[which],), (move,))
    assert passes == passes_of(together)
    _, theirs = torch.func.jvp(of, (tensors[which].double(),), (move.double(),))
    assert_close(mine, theirs.numpy(), depth=256, magnitude=theirs.abs().max().item())


@pytest.mark.parametrize("together", [True])
def test_without_a_tangent_nothing_waits_for_one(passes, together):
    q, k, v = drawn((17, 4), (23, 4), (23, 5))
    with forward_ad.dual_level():
        found = km.attention(q, k, v, score=DOT)
        assert passes == ["evaluate"]
        with forward_ad._set_fwd_grad_enabled(False):
            km.attention(forward_ad.make_dual(q, q), k, v, score=DOT)
    assert passes == ["evaluate"] * 2
    assert torch.isfinite(found).all()


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize(
    "what", ["jvp of jvp", "jvp of grad", "grad of jvp", "vmap of jvp", "scale moves", "mask moves"]
)
def test_other_forward_derivatives_are_of_the_program(passes, what, together):
    q, k, v, move = drawn((17, 4), (23, 4), (23, 5), (17, 4))

    def of(t, scale=0.4, mask=None):
        kind = {"score": DOT, "scale": scale, "mask": mask}
        return km.attention(t, *(own.to(t.dtype) for own in (k, v)), **kind)

    def moved(t):
        return torch.func.jvp(of, (t,), (move.to(t.dtype),))[1]

    def run(dtype):
        own, tangent = q.to(dtype), move.to(dtype)
        if what == "jvp of jvp":
            return torch.func.jvp(moved, (own,), (tangent,))[1]
        if what == "jvp of grad":
            return torch.func.jvp(torch.func.grad(lambda t: of(t).sin().sum()), (own,), (tangent,))[1]
        if what == "grad of jvp":
            leaf = own.requires_grad_()
            return torch.autograd.grad(moved(leaf).sin().sum(), leaf)[0]
        if what == "vmap of jvp":
            return torch.func.vmap(moved)(own[None])[0]
        if what == "scale moves":
            number = torch.tensor(0.4, dtype=dtype)
            return torch.func.jvp(of, (own, number), (tangent, number))[1]
        mask = torch.linspace(-1, 1, 23, dtype=dtype)
        return torch.func.jvp(lambda t, c: of(t, mask=c), (own, mask), (tangent, mask))[1]

    mine = run(torch.float32)
    assert passes == []
    theirs = run(torch.float64)
    assert_close(mine, theirs.detach().numpy(), depth=256, magnitude=theirs.abs().max().item())


@pytest.mark.parametrize("what", ["scale", "ieee", "vmap"])
def test_what_takes_two_passes(passes, what):
    q, k, v = drawn((17, 4), (23, 4), (23, 5))
    if what == "scale":
        scale = torch.tensor(0.4, requires_grad=True)
        km.attention(q, k, v, score=DOT, scale=scale).sum().backward()
        assert scale.grad is not None
    elif what == "ieee":
        with km.config(precision="ieee"):
            km.attention(q, k, v, score=DOT)
    else:
        torch.func.vmap(lambda t: km.attention(t, k, v, score=DOT))(q[None])
    assert passes == []
