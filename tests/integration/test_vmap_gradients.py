"""Gradients of what runs inside vmap: they come from the level around it, where the batch hides requires_grad."""

from __future__ import annotations

import pytest
import torch
from torch.func import grad, vmap

import kernmantle as km
from kernmantle.testing import assert_close

KERNEL = km.Laplace(1.3)
FUNCTIONS = {
    "matmul": KERNEL.matmul,
    "@": lambda x, y, v: KERNEL.operator(x, y) @ v,
    "with a diagonal": lambda x, y, v: KERNEL.matmul(x, x, v, diagonal=0.5),
    "dense with a diagonal": lambda x, y, v: KERNEL(x, diagonal=0.5) @ v,
    **{
        how: lambda x, y, v, how=how: getattr(KERNEL, how)(x, y) * v[0, 0] for how in ("sum", "max", "min", "logsumexp")
    },
    "argkmin": lambda x, y, v: KERNEL.argkmin(x, y, 2, return_values=True)[0] * v[0, 0],
    "argkmax": lambda x, y, v: KERNEL.argkmax(x, y, 2, return_values=True)[0] * v[0, 0],
    "nearest": lambda x, y, v: km.argkmin(x, y, 2, return_values=True)[0] * v[0, 0],
    "gradient": KERNEL.gradient,
    "agop": KERNEL.agop,
}


def draw():
    torch.manual_seed(0)
    return tuple(torch.randn(shape, dtype=torch.float64) for shape in ((3, 5, 3), (3, 5, 3), (3, 5, 2)))


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("wanted", [0, 2], ids=["x", "v"])
def test_gradients_are_those_of_a_loop(name, wanted):
    function, given = FUNCTIONS[name], draw()

    def mapped(value):
        tensors = [*given[:wanted], value, *given[wanted + 1 :]]
        return vmap(function)(*tensors).sin().sum()

    loop = [value.clone().requires_grad_() for value in given]
    total = sum(function(*(value[i] for value in loop)).sin().sum() for i in range(3))
    expected = torch.autograd.grad(total, loop[wanted])[0]
    assert_close(grad(mapped)(given[wanted]), expected, depth=32)
    assert expected.abs().max() > 1e-3
    moving = given[wanted].clone().requires_grad_()
    mapped(moving).backward()
    assert_close(moving.grad, expected, depth=32)


def test_the_operator_itself_has_the_derivative():
    x, y, v = (value[0].requires_grad_() for value in draw())
    calls = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            calls.append((function, args))
            return function(*args, **(kwargs or {}))

    with Watch():
        KERNEL.matmul(x.detach(), y.detach(), v.detach())
    ((operator, (_, *rest)),) = [call for call in calls if call[0] is torch.ops.kernmantle.apply.default]
    found = torch.autograd.grad(operator([x, y, v], *rest)[0].square().sum(), (x, y, v))
    wanted = torch.autograd.grad((KERNEL(x, y) @ v).square().sum(), (x, y, v))
    for one, other in zip(found, wanted, strict=True):
        assert_close(one, other, depth=128)
