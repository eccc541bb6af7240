"""What a program means does not depend on how it is simplified, lowered or found again."""

from __future__ import annotations

import builtins
import functools
import math
import os
import sys
import types

import numpy as np
import pytest
import torch

import kernmantle as km
from kernmantle.ir.node import var
from kernmantle.ir.program import Operand, Program, elementwise
from kernmantle.testing import assert_close
from kernmantle.torch_ops.execute import execute
from kernmantle.torch_ops.lambda_keys import fingerprint

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


SETTINGS = types.ModuleType("settings_of_a_test")
TABLE = {"scale": 1.0}
SCALE = 1.0


def doubled(value):
    return value * SCALE


def with_import(a):
    import settings_of_a_test

    return a * settings_of_a_test.scale


def with_environment(a):
    return a * float(os.environ["KERNMANTLE_TEST_SCALE"])


class Holder:
    scale = 1.0

    def __call__(self, a):
        return a * self.scale


HOLDER = Holder()


def wrapped(scale):
    @functools.wraps(torch.nn.functional.relu)
    def helper(t):
        return km.relu(t) * scale

    return lambda a: 1 * helper(a)


def through_a_default(scale):
    def helper(t, c=scale):
        return t * c

    return lambda a: 1 * helper(a)


READERS = {
    "import": lambda scale: with_import,
    "environment": lambda scale: with_environment,
    "wrapped helper": wrapped,
    "default of a helper": through_a_default,
    "globals": lambda scale: lambda a: a * globals()["SCALE"],
    "builtins": lambda scale: lambda a: a * scale_of_a_test,  # noqa: F821
    "helper of a global": lambda scale: lambda a: 1 * doubled(a),
    "dictionary": lambda scale: lambda a: a * TABLE["scale"],
    "attribute": lambda scale: lambda a: a * HOLDER.scale,
    "object": lambda scale: HOLDER,
    "method": lambda scale: HOLDER.__call__,
    "module": lambda scale: lambda a: a * SETTINGS.scale,
    "nested function": lambda scale: lambda a: max([a], key=lambda b: SCALE) * SCALE,
    "comprehension": lambda scale: lambda a: sum([a * c for c in (SCALE, 0)]),
    "partial": lambda scale: functools.partial(lambda a, c: a * c, c=scale),
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("role", ["map", "epilogue"])
def test_a_lambda_computes_what_it_reads_now(name, role, monkeypatch):
    monkeypatch.setitem(sys.modules, SETTINGS.__name__, SETTINGS)
    x = ones(3)
    for scale in (2.0, 3.0, 3.0, 2.0, 4.0):
        monkeypatch.setattr(SETTINGS, "scale", scale, raising=False)
        monkeypatch.setenv("KERNMANTLE_TEST_SCALE", str(scale))
        monkeypatch.setitem(TABLE, "scale", scale)
        monkeypatch.setitem(globals(), "SCALE", scale)
        monkeypatch.setattr(Holder, "scale", scale)
        monkeypatch.setattr(builtins, "scale_of_a_test", scale, raising=False)
        function = READERS[name](scale)
        if role == "map":
            found = km.contract("m->m", function, x)
        else:
            found = km.contract("m->m", lambda a: a, x, epilogue=function)
        assert found.tolist() == [scale] * 3


def test_a_patched_function_of_torch_is_seen(monkeypatch):
    x = ones(3)

    def call():
        return km.contract("m->m", lambda a: torch.square(a) * math.pi, x)

    assert_close(call(), np.full(3, math.pi))
    monkeypatch.setattr(torch, "square", functools.wraps(torch.square)(lambda a: a * a * 5))
    assert_close(call(), np.full(3, 5 * math.pi))
    monkeypatch.setattr(math, "pi", 3.0)
    assert_close(call(), np.full(3, 15.0))


def test_ordinary_lambdas_are_found_again():
    scale = 2.5
    for first, second in [
        [lambda a, b, p=2: abs(a - b) ** p for _ in range(2)],
        [lambda a: km.exp(-a * scale) + torch.exp(a) * np.pi - math.sqrt(2.0) for _ in range(2)],
        [lambda a: a.relu() + doubled(a) for _ in range(2)],
        [lambda s, p: (+s) ** (1 / p) if scale > 0 else (s, p)[0] for _ in range(2)],
    ]:
        assert first is not second
        assert fingerprint(first) is not None
        assert fingerprint(first) == fingerprint(second)


def test_signs_of_zero_and_types_are_told_apart():
    def of(value):
        return fingerprint(lambda a: a * value)

    values = (0.0, -0.0, 0, False, 1, True, 1.0, math.nan)
    assert len({of(value) for value in values}) == len(values)


UNSEEN = {
    "dictionary": (lambda x: km.contract("m->m", lambda a: a * TABLE["scale"], x), "global value 'TABLE'"),
    "attribute": (lambda x: km.contract("m->m", lambda a: a * HOLDER.scale, x), "attribute 'scale' of 'HOLDER'"),
    "helper": (lambda x: km.contract("m->m", lambda a: 1 * doubled(a), x), "global function 'doubled'"),
    "import": (lambda x: km.contract("m->m", with_import, x), "IMPORT_NAME"),
}


@pytest.mark.parametrize("name", UNSEEN)
def test_what_a_compiled_lambda_reads_is_refused(name):
    call, reason = UNSEEN[name]
    torch._dynamo.reset()
    with pytest.raises(Exception, match=reason):
        torch.compile(call, backend="eager")(ones(3))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
@pytest.mark.parametrize("reduce", ["sum", "prod", "min", "max"])
def test_literals_of_any_sign_meet_an_empty_axis(dtype, reduce):
    found = km.contract("ak->k", lambda a: a * -2 + 300, torch.ones(0, 5, dtype=dtype), reduce=reduce)
    limits = torch.iinfo(dtype)
    wanted = {"sum": 0, "prod": 1, "min": limits.max, "max": limits.min}[reduce]
    assert found.equal(torch.full((5,), wanted, dtype=dtype))


@pytest.mark.parametrize("number", [2**53 + 1, -(2**53) - 1, 2**60])
def test_integers_that_a_float64_cannot_hold_are_refused(number):
    x = torch.zeros(1, dtype=torch.int64)
    parameter = km.Contraction("m->m", lambda a, p=number: a + p)
    for call in (
        lambda: km.contract("m->m", lambda a: a + number, x),
        lambda: km.contract("m->m", lambda a, p: a + p, x, p=number),
        lambda: parameter(x),
        lambda: km.Contraction.of(type(parameter.definition).parse(parameter.text))(x),
    ):
        with pytest.raises(km.errors.DtypeError, match="too large for integer operands; pass it as an int64 tensor"):
            call()
    assert km.contract("m->m", lambda a, p: a + p, x, p=torch.tensor(number)).tolist() == [number]
    assert km.contract("m->m", lambda a: a + (2**53 - 1), x).tolist() == [2**53 - 1]


@pytest.mark.parametrize("zeros", range(6))
def test_derivatives_of_a_product_with_zeros(zeros):
    start = torch.tensor([1.5, -0.7, 2.0, 0.3, -1.1], dtype=torch.float64)
    start[:zeros] = 0

    def total(product, order):
        x = start.clone().requires_grad_()
        value = product(x)
        for step in range(order):
            (slope,) = torch.autograd.grad(value, x, create_graph=True)
            value = (slope * torch.cos(torch.arange(5.0) + step)).sum()
        return value

    for order in (0, 1, 2, 3):
        found = total(lambda x: km.contract("k->", lambda a: a, x, reduce="prod"), order)
        assert_close(found.detach(), total(torch.prod, order).detach().numpy(), depth=100, magnitude=10.0)
    with pytest.raises(km.errors.GradientError, match="prod has derivatives up to order 3"):
        total(lambda x: km.contract("k->", lambda a: a, x, reduce="prod"), 4)
    with pytest.raises(km.errors.GradientError, match="prod has derivatives up to order 3"):
        total(lambda x: km.contract("k->", lambda a: torch.exp(a) - 1, x, reduce="prod", epilogue=torch.exp), 4)


def test_other_reductions_have_a_fourth_derivative():
    x = torch.tensor([0.3, -0.2], dtype=torch.float64, requires_grad=True)
    value, wanted = km.contract("k->", torch.exp, x), x.exp().sum()
    for _ in range(5):
        value, wanted = (torch.autograd.grad(part, x, create_graph=True)[0].sum() for part in (value, wanted))
    assert_close(value.detach(), wanted.detach().numpy(), depth=100)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_remainders_are_exact(dtype, backend, device):
    random = np.random.default_rng(3)
    a = np.concatenate(
        [[1e10, -1e10, 1e30, 2.0**60, 7.5, -7.5, 0.0], random.normal(size=200) * 10 ** random.uniform(0, 30, 200)]
    )
    x = torch.tensor(a, dtype=dtype, device=device)
    for divisor in (3.0, -3.0, 0.7):
        small = float(torch.tensor(divisor, dtype=dtype))
        found = km.contract("m->m", lambda a, b: a % b, x, b=divisor).cpu()
        wanted = np.remainder(x.cpu().double().numpy(), small)
        assert_close(found, wanted)
        assert ((found / small >= 0) & (found / small <= 1)).all()
    exact = km.contract("m->m", lambda a, b: km.fmod(a, b), x, b=0.7).cpu()  # noqa: PLW0108
    assert_close(exact, np.fmod(x.cpu().double().numpy(), float(torch.tensor(0.7, dtype=dtype))), magnitude=0)
