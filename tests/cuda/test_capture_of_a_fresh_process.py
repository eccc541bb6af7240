"""Graphs of CUDA whose first product of torch's is a captured one: eager calls before it launch kernels of ours alone.

Torch makes its handle of cuBLAS with the first product of a thread, which takes memory, and what is captured must not;
the backward pass has a thread of its own. So each case is a process of its own.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.cuda

SCRIPT = """
import sys

import torch

import kernmantle as km
from kernmantle.structured.kronsparse import chain_training
from kernmantle.testing import assert_close

eager, captured, trained, rows = sys.argv[1], sys.argv[2], sys.argv[3] == "step", int(sys.argv[4])


def kind(*given, **_):
    return captured if given[-1] is True else eager


chain_training.kind_of = chain_training.forward_kind = kind
chain_training.cluster_for = lambda *_: None
torch.manual_seed(0)
patterns = ((8, 64, 32, 1), (1, 32, 64, 8))
layer = km.KSLinear(256, 256, patterns, dtype=torch.bfloat16)
x, grad = (torch.randn(rows, 256).bfloat16() for _ in range(2))
wide = [each.detach().double() for each in (x, layer.bias, *layer.weights)]


def exactly(x, bias, first, second):
    between = torch.einsum("nikl,ijkl->nijl", x.view(-1, 8, 32, 1), first).reshape(-1, 1, 64, 8)
    return torch.einsum("nikl,ijkl->nijl", between, second).reshape(-1, 256) + bias


def results(call, given, grad):
    leaves = [each.detach().requires_grad_() for each in given]
    value = call(*leaves)
    return [value.detach(), *torch.autograd.grad(value, leaves, grad)]


wanted = results(exactly, wide, grad.double())
terms = results(exactly, [each.abs() for each in wide], grad.double().abs())
layer, x, grad = layer.cuda().requires_grad_(trained), x.cuda().requires_grad_(trained), grad.cuda()


def call():
    value = layer(x)
    if not trained:
        return [value]
    return [value.detach(), *torch.autograd.grad(value, [x, layer.bias, *layer.weights], grad)]


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        call()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    found = call()
graph.replay()
torch.cuda.synchronize()
for one, other, magnitude in zip(found, wanted, terms):
    assert_close(one.cpu(), other, dtype=torch.bfloat16, depth=96 + rows, magnitude=magnitude)
print("captured")
"""
STEPS = [("grouped", "matrix"), ("grouped", "batched"), ("grouped", "factors"), ("factors", "factors")]


@pytest.mark.parametrize("rows", [256, 4096])
@pytest.mark.parametrize(
    ("eager", "captured", "what"), [*[(*kinds, "step") for kinds in STEPS], ("grouped", "factors", "product")]
)
def test_a_first_product_of_torch_may_be_captured(eager, captured, what, rows) -> None:
    own = [sys.executable, "-c", SCRIPT, eager, captured, what, str(rows)]
    ran = subprocess.run(own, capture_output=True, text=True, timeout=300, check=False)
    assert ran.stdout.strip() == "captured", ran.stderr[-2000:]
