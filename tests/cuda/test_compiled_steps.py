"""Compiled steps on a GPU: one operator forward and one back, with the values of float64, in graphs of CUDA too."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import kernmantle as km
from kernmantle.testing import assert_close

pytestmark = pytest.mark.cuda


def chain(x, bias, *weights):
    rows = x
    for weight in weights:
        a, b, c, d = weight.shape
        rows = torch.einsum("nikl,ijkl->nijl", rows.reshape(-1, a, c, d), weight).reshape(len(x), a * b * d)
    return rows + bias


def kronecker(x, *factors):
    whole = factors[0]
    for factor in factors[1:]:
        whole = torch.kron(whole, factor)
    return x @ whole


PATTERNS = [(6, 16, 24, 1), (1, 24, 16, 6)]
SHAPES = {"chain": [(144,), *PATTERNS], "kron": [(8, 8)] * 3}
CALLS = {
    "chain": (lambda x, bias, *weights: km.kron_sparse_matmul(x, list(weights), bias=bias), chain),
    "kron": (lambda x, *factors: km.kron_matmul(x, list(factors)), kronecker),
}
OPERATORS = {"chain": ["kron_sparse_chain", "kron_sparse_chain_backward"], "kron": ["kron", "kron_backward"]}
CASES = [
    ("chain", 16, torch.float32, "default"), ("chain", 700, torch.float32, "default"),
    ("chain", 700, torch.bfloat16, "default"), ("chain", 16, torch.float32, "reduce-overhead"),
    ("kron", 40, torch.float32, "default"), ("kron", 40, torch.float32, "reduce-overhead"),
]  # fmt: skip


def gradients(call, tensors, cotangent):
    """Return the result and the gradients, copied: graphs overwrite theirs."""
    for tensor in tensors:
        tensor.grad = None
    result = call(*tensors)
    result.backward(cotangent)
    return [result.detach().clone(), *(tensor.grad.clone() for tensor in tensors)]


def exactly(call, tensors, cotangent, of):
    """Return the same in float64 of what ``of`` gives for each tensor."""
    wide = [of(tensor.detach()).double().requires_grad_() for tensor in tensors]
    return gradients(call, wide, of(cotangent).double())


def operators_of(call):
    """Return how often a call runs each operator of ours."""
    with profile(activities=[ProfilerActivity.CPU]) as found:
        call()
    counted = Counter({event.key: event.count for event in found.key_averages()})
    return {name.removeprefix("kernmantle::"): n for name, n in counted.items() if name.startswith("kernmantle::")}


@pytest.mark.parametrize(("name", "rows", "dtype", "mode"), CASES, ids=lambda value: str(value).removeprefix("torch."))
def test_compiled_steps(name, rows, dtype, mode):
    torch._dynamo.reset()
    torch.manual_seed(0)
    (call, oracle), shapes = CALLS[name], SHAPES[name]
    width = 144 if name == "chain" else 512
    tensors = [torch.randn(shape, device="cuda", dtype=dtype).requires_grad_() for shape in [(rows, width), *shapes]]
    compiled = torch.compile(call, fullgraph=True, mode=mode)
    for _ in range(3):  # of graphs the first call warms up, the second one records, the third one replays
        cotangent = torch.randn(rows, width, device="cuda", dtype=dtype)
        with torch.no_grad():
            tensors[0].normal_()
        found = gradients(compiled, tensors, cotangent)
        wanted, terms = (exactly(oracle, tensors, cotangent, of) for of in (lambda value: value, torch.abs))
        for one, other, magnitude in zip(found, wanted, terms, strict=True):
            assert_close(one, other, depth=8 * max(rows, width), magnitude=magnitude)
    if mode == "default":
        counted = operators_of(lambda: gradients(compiled, tensors, cotangent))
        assert counted == dict.fromkeys(OPERATORS[name], 1)


def test_compiled_distances():
    torch._dynamo.reset()
    torch.manual_seed(0)
    x, y = (torch.randn(rows, 7, device="cuda").requires_grad_() for rows in (30, 50))
    compiled = torch.compile(lambda x, y: km.cdist(x, y, p=1), fullgraph=True)
    cotangent = torch.randn(30, 50, device="cuda")
    found = gradients(compiled, (x, y), cotangent)
    signs = torch.sign(x.detach()[:, None] - y.detach()).double()
    wanted = (
        torch.einsum("mn,mnk->mk", cotangent.double(), signs),
        -torch.einsum("mn,mnk->nk", cotangent.double(), signs),
    )
    for one, other, axis in zip(found[1:], wanted, (1, 0), strict=True):
        assert_close(one, other, depth=50, magnitude=cotangent.abs().double().sum(axis)[:, None])
    counted = operators_of(lambda: gradients(compiled, (x, y), cotangent))
    assert counted == {"contract": 1, "contract_backward": 1}
