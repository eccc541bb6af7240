"""What a program means does not depend on how it is simplified, lowered or found again."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import kernmantle as km
from kernmantle.contraction.program import Operand, Program, elementwise
from kernmantle.expr.node import var
from kernmantle.ops.execute import execute
from kernmantle.testing import assert_close

P = torch.tensor([0.6, 0.4, 0.3], dtype=torch.float64)


def ones(*shape):
    return torch.ones(shape, dtype=torch.float64)


@pytest.mark.parametrize("equation", ["an->n", "an->", "an->a"])
def test_an_epilogue_need_not_read_its_accumulator(equation, backend, device):
    x, half = ones(13, 31).to(device), torch.tensor([0.5], dtype=torch.float64, device=device)
    found = km.contract(equation, lambda a, p: a * p, x, p=P.to(device), q=half, epilogue=lambda s, q: q * 2)
    assert found.shape == (3, *{"n": (31,), "": (), "a": (13,)}[equation.partition("->")[2]])
    assert_close(found, np.ones(found.shape))


CONSTANT = {
    "a number only": (lambda x: km.contract("mn->", lambda a: a, x, epilogue=lambda s, p: p * 1.0, p=2.0), ()),
    "a literal": (lambda x: km.contract("mn->", lambda a: a, x, epilogue=lambda s: 2.0), ()),
    "batch of an operand": (
        lambda x: km.contract("mn,q:->", lambda a, q: a, x[:, None], q=x[0, 0], epilogue=lambda s, q: q * 2),
        (4,),
    ),
    "scalar operands": (lambda x: km.contract(",->", lambda a, b: 2.0, x[0, 0], x[:, 0]), (4,)),
    "a scalar operand": (lambda x: km.contract("->", lambda a: a, x, reduce="max", epilogue=lambda s: 2.0), (4, 3)),
    "several outputs": (
        lambda x: km.contract("mn->", lambda a: (a, a), x, reduce=["sum", "max"], epilogue=lambda s, t: (2.0, t))[0],
        (),
    ),
}


@pytest.mark.parametrize("name", CONSTANT)
def test_what_is_constant_has_the_shape_of_the_equation(name, backend, device):
    call, shape = CONSTANT[name]
    x = torch.ones(4, 3, dtype=torch.float64, device=device)
    found = call(x)
    assert found.shape[-len(shape) :] == shape if shape else found.shape == ()
    assert (found == 2).all()


CANCELLED = {
    "unused": lambda a, p: a,
    "cancelled": lambda a, p: km.where(p < a, a, a),
    "power of one": lambda a, p: a * 1**p,
}


@pytest.mark.parametrize("name", CANCELLED)
@pytest.mark.parametrize("equation", ["mk->m", "mk->", "mk->mk"])
def test_simplification_keeps_batch_axes(name, equation, backend, device):
    x, p = torch.rand(5, 4, dtype=torch.float64, device=device), P.to(device).requires_grad_()
    found = km.contract(equation, CANCELLED[name], x, p=p)
    wanted = np.einsum(equation, x.cpu().numpy())
    assert_close(found.detach(), np.broadcast_to(wanted, (3, *wanted.shape)), depth=20)
    (slope,) = torch.autograd.grad(found.sum(), p)
    assert_close(slope, np.zeros(3))
    with torch.no_grad():
        assert_close(km.contract(equation, CANCELLED[name], x, p=p), found.detach(), depth=20)


def test_nested_programs_are_refused():
    inner = elementwise([Operand("x0", "m")], "m", [var("x0")])
    outer = Program((Operand("x0", "m", inner=inner),), "m", inner.map, inner.reductions, inner.outputs)
    with pytest.raises(km.errors.BackendError, match="a program of its own"):
        execute(outer.text, "f64;f64;default", [ones(3)], [])
