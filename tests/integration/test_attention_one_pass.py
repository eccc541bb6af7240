"""Attention where a machine weighs in one pass: what it hands to the kernels and makes of their gradients.

The kernels are stood in for by dense float64 arithmetic on the program that they would compile.
"""

from __future__ import annotations

import math

import pytest
import torch

import kernmantle as km
from kernmantle.compiler.softmax import Weighting
from kernmantle.pairwise import attend
from kernmantle.testing import assert_close
from kernmantle.torch_ops import softmax
from kernmantle.torch_ops.autograd import apply
from kernmantle.torch_ops.execute import Types

DOT = km.Contraction("mk,nk->mn", lambda a, b: a * b)
CAPPED = km.Contraction("mk,nk->mn", lambda a, b: a * b, epilogue=lambda s: 5 * km.tanh(s / 5))


def dense(task, tensors):
    """Sums and logarithms of a task in float64."""
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
def passes(monkeypatch):
    """CPUs weigh in one pass, the calls of whose kernels are noted."""
    ran = []

    def evaluate(self, tensors):
        ran.append("evaluate")
        result, logs = dense(self, tensors)
        return result.to(tensors[-1].dtype), logs.float()

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

    monkeypatch.setattr(attend, "has_kernels", lambda _: True)
    monkeypatch.setattr(softmax, "has_kernels", lambda _: True)
    monkeypatch.setattr(attend, "_VENDORS", 1)
    monkeypatch.setattr(softmax.SoftmaxTask, "evaluates", lambda *_: True)
    monkeypatch.setattr(softmax.SoftmaxTask, "evaluate", evaluate)
    monkeypatch.setattr(softmax.SoftmaxTask, "gradients", gradients)
    return ran


def drawn(*shapes):
    generator = torch.Generator().manual_seed(1)
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
        *((DOT, mask, causal) for mask in MASKS for causal in (False, True)),
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


@pytest.mark.parametrize("what", ["scale", "ieee", "forward mode", "vmap"])
def test_what_takes_two_passes(passes, what):
    q, k, v = drawn((17, 4), (23, 4), (23, 5))
    if what == "scale":
        scale = torch.tensor(0.4, requires_grad=True)
        km.attention(q, k, v, score=DOT, scale=scale).sum().backward()
        assert scale.grad is not None
    elif what == "ieee":
        with km.config(precision="ieee"):
            km.attention(q, k, v, score=DOT)
    elif what == "forward mode":
        torch.func.jvp(lambda t: km.attention(t, k, v, score=DOT), (q,), (q,))
    else:
        torch.func.vmap(lambda t: km.attention(t, k, v, score=DOT))(q[None])
    assert passes == []
