"""Compiled, exported and transformed calls on a GPU."""

from __future__ import annotations

import pytest
import torch
from torch.func import grad, vmap

import kernmantle as km
from kernmantle.testing import assert_close

pytestmark = pytest.mark.cuda
KERNEL = km.Laplace(1.5)
FUNCTIONS = {
    "cdist": lambda x, y: km.cdist(x, y, p=1.3),
    "kernel": KERNEL,
    "matmul": lambda x, y: KERNEL.matmul(x, y, y),
    **{how: getattr(KERNEL, how) for how in ("sum", "max", "min", "logsumexp")},
    "gradient": lambda x, y: KERNEL.gradient(x, y, y[:, 0]),
    "argkmin": lambda x, y: km.argkmin(x, y, 2, p=1.3, return_values=True)[0],
}


def rows():
    torch.manual_seed(0)
    return torch.randn(3, 40, 5, device="cuda"), torch.randn(3, 30, 5, device="cuda")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_compiled(name):
    torch._dynamo.reset()
    x, y = (value[0] for value in rows())
    found = torch.compile(FUNCTIONS[name], fullgraph=True, backend="aot_eager")(x, y)
    assert_close(found, FUNCTIONS[name](x, y), depth=32)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_saved_export(name, tmp_path):
    x, y = (value[0] for value in rows())

    class Module(torch.nn.Module):
        def forward(self, x, y):
            return FUNCTIONS[name](x, y)

    torch.export.save(torch.export.export(Module(), (x, y)), tmp_path / "saved.pt2")
    found = torch.export.load(tmp_path / "saved.pt2").module()(x, y)
    assert_close(found, FUNCTIONS[name](x, y), depth=32)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_through_vmap(name):
    x, y = rows()
    moving = x.clone().requires_grad_()
    total = sum(FUNCTIONS[name](moving[i], y[i]).sum() for i in range(3))
    (expected,) = torch.autograd.grad(total, moving)
    assert_close(grad(lambda x: vmap(FUNCTIONS[name])(x, y).sum())(x), expected, depth=64)
    vmap(FUNCTIONS[name])(moving, y).sum().backward()
    assert_close(moving.grad, expected, depth=64)
