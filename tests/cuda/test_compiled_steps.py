"""Compiled steps on a GPU: one operator forward and one back, with the values of float64, in graphs of CUDA too."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import kernmantle as km
from kernmantle.structured.kronsparse import chain_training
from kernmantle.structured.kronsparse.chain_matrix import has_matrix
from kernmantle.testing import assert_close
from kernmantle.torch_ops import call_site

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
COMPOSE = [(6, 12, 24, 1), (1, 24, 12, 6)]  # 6 divides 12, and not 16
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
    """Return how often a call runs each operator of ours, by its call site; none by torch's dispatcher."""
    counted, through = Counter(), call_site.CallSite.__call__

    def count(site, *args):
        counted[site.name] += 1
        return through(site, *args)

    with pytest.MonkeyPatch.context() as patched, profile(activities=[ProfilerActivity.CPU]) as found:
        patched.setattr(call_site.CallSite, "__call__", count)
        call()
    assert not [event.key for event in found.key_averages() if event.key.startswith("kernmantle::")]
    return counted


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_rows_that_change(dtype):
    """The kind of step is chosen by the rows of each call."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    options = {"device": "cuda", "dtype": dtype}
    layer = km.KSLinear(384, 1536, [(6, 64, 64, 1), (1, 768, 192, 2)], **options)
    compiled, own = torch.compile(layer, fullgraph=True, dynamic=True), [layer.bias, *layer.weights]
    for rows in (16, 3000, 16, 700):
        x, cotangent = torch.randn(rows, 384, **options).requires_grad_(), torch.randn(rows, 1536, **options)
        found = gradients(lambda x, *_: compiled(x), [x, *own], cotangent)
        wanted, terms = (exactly(chain, [x, *own], cotangent, of) for of in (lambda value: value, torch.abs))
        for one, other, magnitude in zip(found, wanted, terms, strict=True):
            assert_close(one, other, depth=8 * 3000, magnitude=magnitude)


@pytest.mark.parametrize("kind", ["factors", "grouped", "matrix", "batched"])
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_each_kind_of_step(kind, mode, monkeypatch):
    torch._dynamo.reset()
    torch.manual_seed(0)
    monkeypatch.setattr(chain_training, "kind_for", lambda *_, **__: kind)
    options, patterns = {"device": "cuda", "dtype": torch.bfloat16}, [(16, 64, 64, 1), (1, 64, 64, 16)]
    layer = km.KSLinear(1024, 1024, patterns, **options)
    compiled, own = torch.compile(layer, fullgraph=True, mode=mode), [layer.bias, *layer.weights]
    x, cotangent = torch.randn(512, 1024, **options).requires_grad_(), torch.randn(512, 1024, **options)
    wanted, terms = (exactly(chain, [x, *own], cotangent, of) for of in (lambda value: value, torch.abs))
    for _ in range(4):
        found = gradients(lambda x, *_: compiled(x), [x, *own], cotangent)
        for one, other, magnitude in zip(found, wanted, terms, strict=True):
            assert_close(one, other, depth=8 * 1024, magnitude=magnitude)


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


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("chosen", ["matrices", "each its own way"])
def test_layers_of_a_group(chosen, mode, monkeypatch):
    torch._dynamo.reset()
    monkeypatch.setattr(chain_training, "shares_matrix", lambda patterns, *_: has_matrix(patterns))
    patterns = COMPOSE if chosen == "matrices" else PATTERNS
    torch.manual_seed(0)
    options = {"device": "cuda", "dtype": torch.bfloat16}
    layers = [km.KSLinear(144, 144, patterns, bias=number > 0, **options) for number in range(3)]
    block = torch.nn.Sequential(layers[0], torch.nn.Tanh(), *layers[1:])
    x, cotangent = (torch.randn(300, 144, **options) for _ in range(2))
    # Parameters of a ParameterList come after the bias.
    parameters = [own for layer in layers for own in (*layer.weights, *([] if layer.bias is None else [layer.bias]))]
    leaves = [x.requires_grad_(), *parameters]

    def exactly(of):
        wide = [of(leaf.detach().double()).requires_grad_() for leaf in leaves]
        own, value = iter(wide[1:]), wide[0]
        for number, layer in enumerate(layers):
            pair = next(own), next(own)
            value = chain(value, 0 if layer.bias is None else next(own), *pair)
            if not number:
                value = torch.tanh(value) if of is not torch.abs else value
        return [value.detach(), *torch.autograd.grad(value, wide, of(cotangent.double()))]

    compiled = torch.compile(km.kronsparse.group(block), fullgraph=True, mode=mode)
    wanted, terms = exactly(lambda value: value), exactly(torch.abs)
    for _ in range(3):
        value = compiled(x)
        found = [value.detach().clone(), *(own.clone() for own in torch.autograd.grad(value, leaves, cotangent))]
        for one, other, magnitude in zip(found, wanted, terms, strict=True):
            assert_close(one, other, depth=8 * 300, magnitude=magnitude)
    if mode == "default":
        counted = operators_of(lambda: torch.autograd.grad(compiled(x), leaves, cotangent))
        if chosen == "matrices":
            assert counted == {"kron_sparse_matrices": 1, "kron_sparse_matrices_backward": 1}
        else:  # factors that do not compose have no matrix that one product of their blocks makes
            assert "kron_sparse_matrices" not in counted
