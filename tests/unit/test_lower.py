"""Lowering and layout, run: a target that walks nests in plain Python, reading memory by its integers alone."""

from __future__ import annotations

import ctypes
import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import kernmantle as km
from kernmantle.compiler import lower as lowering_module
from kernmantle.compiler.lower import lower, result_kind
from kernmantle.compiler.nest import ROLES, SIZES, size_slot, stride_slot
from kernmantle.ir.definition import bind, define
from kernmantle.ir.ops import evaluate
from kernmantle.runtime.dispatch import PLANS
from kernmantle.runtime.launcher import Launcher
from kernmantle.testing import assert_close
from kernmantle.torch_ops import execute

from ..oracle import oracle

CTYPES = {
    "f64": ctypes.c_double,
    "f32": ctypes.c_float,
    "i64": ctypes.c_int64,
    "i32": ctypes.c_int32,
    "bool": ctypes.c_bool,
}


class Interpreter:
    """Runs a nest one element at a time."""

    name = "interpreter"

    def __init__(self):
        self.nests = []

    def parallel(self, device):
        return 2

    def takes_vjp(self, found, program, sizes, compute):
        return False

    def prepare(self, nest, integers, alignment, device):
        self.nests.append(nest)
        assert len(integers) == len(SIZES) + len(nest.buffers) * len(ROLES)
        assert len(alignment) == len(nest.buffers)
        return Launcher(lambda pointers, numbers: Walk(nest, integers.tolist(), pointers, numbers).run(), "walk")


class Walk:
    def __init__(self, nest, integers, pointers, numbers):
        self.nest, self.integers, self.pointers = nest, integers, pointers
        self.numbers = dict(zip(nest.numbers, numbers, strict=True))
        self.size = {role: integers[size_slot(role)] for role in SIZES}

    def element(self, buffer, place):
        offset = sum(self.integers[stride_slot(buffer, role)] * place[role] for role in ROLES)
        kind = CTYPES[self.nest.buffers[buffer].dtype]
        return kind.from_address(self.pointers[buffer] + offset * ctypes.sizeof(kind))

    def loads(self, place):
        buffers = enumerate(self.nest.operands)
        return self.numbers | {buffer.name: self.element(i, place).value for i, buffer in buffers}

    def ranges(self):
        outer = "l" if self.size["l"] > 1 else "k"
        chunk = -(-self.size[outer] // self.size["splits"])
        for split in range(self.size["splits"]):
            whole = {role: range(self.size[role]) for role in "kl"}
            yield split, {**whole, outer: range(self.size[outer])[split * chunk : (split + 1) * chunk]}

    def run(self):
        spaces = [range(self.size[role]) for role in "abcmn"]
        for outer in itertools.product(*spaces):
            place = dict(zip("abcmn", outer, strict=True))
            for split, ranges in self.ranges():
                self.cell(place, split, ranges)

    def cell(self, place, split, ranges):
        states = [list(reduction.init) for reduction in self.nest.reductions]
        for l, k in itertools.product(ranges["l"], ranges["k"]):
            values = self.loads({**place, "k": k, "l": l})
            for reduction, mapped, state in zip(self.nest.reductions, self.nest.map, states, strict=True):
                names = values | {f"s{i}": value for i, value in enumerate(state)} | {"index": k}
                if not reduction.is_fold:
                    names["t"] = evaluate([mapped], values)[0]
                state[:] = evaluate(reduction.step, names)
        if self.nest.partial:
            written = [value for state in states for value in state]
        else:
            names = self.loads({**place, "k": 0, "l": 0})
            for i, (reduction, state) in enumerate(zip(self.nest.reductions, states, strict=True)):
                names[f"s{i}"] = evaluate([reduction.finish], {f"s{j}": v for j, v in enumerate(state)})[0]
            written = evaluate(self.nest.outputs, names)
        for i, value in enumerate(written):
            self.element(len(self.nest.operands) + i, {**place, "k": split, "l": 0}).value = value


@pytest.fixture
def interpreter(monkeypatch):
    """The interpreter as the only target; reductions of more than four terms are cut into ranges."""
    target = Interpreter()
    monkeypatch.setattr(execute, "target_for", lambda device: target)
    PLANS.clear()
    monkeypatch.setattr(execute.patterns, "matmul", lambda program: None)
    monkeypatch.setattr(lowering_module, "_LONG_REDUCTION", 4)
    yield target
    PLANS.clear()


SIZE = {"m": 3, "n": 2, "k": 17, "l": 4, "o": 2, "i": 2}
EQUATIONS = {
    "mk,nk->mn": lambda a, b: a * b + a,
    "mk,nk->nm": lambda a, b: a * b + a,
    "km,kn->mn": lambda a, b: a - 2 * b,
    "mk,nk,k,m,n,mn,->mn": lambda a, b, w, r, c, t, s: w * a * b + r * c * t + s,
    "mk,nk->m": lambda a, b: abs(a - b),
    "mk,nk->k": lambda a, b: abs(a - b),
    "mk,nk->": lambda a, b: abs(a - b),
    "k,k->": lambda a, b: a * b + b,
    "m,n->mn": lambda a, b: a * b + b,
    "mk->km": lambda a: a + 1,
    "->": lambda a: a + 1,
    "mk,nk->mnk": lambda a, b: a - b,
    "ok,km,nm,nk->onm": lambda c, a, d, b: c * a * d - b,
    "mk,nl,kl->": lambda a, b, c: a * b - c,
    "mk,nl,kl->mn": lambda a, b, c: a * b - c,
    "mk,nl,okl->": lambda a, b, c: a + b * c,
    "mk,nl,okl->o": lambda a, b, c: a + b * c,
    "mk,nl,okli->o": lambda a, b, c: a + b * c,
    "moi,nk->monik": lambda a, b: a - b,
}


def made(equation, batches=(), dtype=torch.float64, seed=0):
    random = np.random.default_rng(seed)
    shapes = [tuple(SIZE[axis] for axis in axes) for axes in equation.partition("->")[0].split(",")]
    leads = [*batches, *((),) * (len(shapes) - len(batches))]
    return [
        torch.tensor(random.uniform(-1, 1, (*lead, *shape)), dtype=dtype)
        for lead, shape in zip(leads, shapes, strict=True)
    ]


@pytest.mark.parametrize("reduce", ["sum", "max", "logsumexp"])
@pytest.mark.parametrize("equation", EQUATIONS)
def test_every_equation(equation, reduce, interpreter):
    operands = made(equation)
    found = km.Contraction(equation, EQUATIONS[equation], reduce=reduce)(*operands)
    cut = {"mk,nk->mn", "km,kn->mn", "k,k->", "mk,nk->", "mk,nl,kl->", "mk,nl,okl->", "mk,nl,okli->o"}
    assert interpreter.nests[0].partial or equation not in cut
    wanted = oracle(equation, EQUATIONS[equation], [value.numpy() for value in operands], reduce)
    assert_close(found, wanted, depth=300)


@pytest.mark.parametrize(
    "batches",
    [
        [(2,)],
        [(), (3,)],
        [(2, 1), (3,)],
        [(2, 1, 2), (1, 3, 1)],
        [(2, 1, 2, 1, 2), (1, 2, 1, 2, 1)],
        [(2, 1, 2, 1, 2), (2, 1, 2, 1)],
    ],
    ids=str,
)
@pytest.mark.parametrize("equation", ["mk,nk->mn", "mk,nk->", "mk,nk,mn->mnk"])
def test_batches(batches, equation, interpreter):
    function = EQUATIONS["mk,nk->mn"]
    if equation == "mk,nk,mn->mnk":
        function = lambda a, b, c: a * b + c  # noqa: E731
    operands = [value.mT.contiguous().mT for value in made(equation, batches)]
    found = km.Contraction(equation, function)(*operands)
    assert_close(found, oracle(equation, function, [value.numpy() for value in operands]), depth=40)


@pytest.mark.parametrize("reduce", ["argmin", "any", "all", "argmax"])
@pytest.mark.parametrize("equation", ["mk,nk->mn", "mk,k->m", "k,k->"])
def test_registers_of_other_kinds(reduce, equation, interpreter):
    operands = made(equation)
    function = (lambda a, b: a > b) if reduce in ("any", "all") else lambda a, b: a * b
    found = km.Contraction(equation, function, reduce=reduce)(*operands)
    assert np.array_equal(found, oracle(equation, function, [value.numpy() for value in operands], reduce))


def test_several_accumulators_with_an_epilogue(interpreter):
    equation = "mk,nk,row:m->mn"
    operands = made("mk,nk,m->mn", [(2,)])
    maps, kinds = (lambda a, b: (a * b, a - b, a + b)), ("logsumexp", "max", "sum")
    epilogue = lambda s, t, u, row, c: (s * row + c, t - u)  # noqa: E731
    contraction = km.Contraction(equation, maps, reduce=kinds, epilogue=epilogue)
    found = contraction(*operands[:2], row=operands[2], c=1.7)
    wanted = oracle(equation, maps, [value.numpy() for value in operands], kinds, epilogue, c=1.7)
    assert interpreter.nests[0].partial
    for got, want in zip(found, wanted, strict=True):
        assert_close(got, want, depth=9)


@pytest.mark.parametrize("equation", ["mk,nk->mn", "k,k->", "mk,nk,mn->mn"])
def test_a_fold_is_never_cut(equation, interpreter):
    three = equation.count(",") == 2
    step = (lambda s, a, b, c: s * a + b + c) if three else lambda s, a, b: s * a + b
    operands = made(equation)
    found = km.Contraction(equation, None, reduce=km.Fold(step, 0.5))(*operands)
    assert not interpreter.nests[0].partial
    with km.config(backend="reference"):
        assert interpreter.nests[0].reductions[0].is_fold
    state = torch.full(found.shape, 0.5, dtype=torch.float64)
    views = [
        v[:, None] if axes == "mk" else v
        for v, axes in zip(operands, equation.partition("->")[0].split(","), strict=True)
    ]
    for k in range(17):
        a, b, *c = (view[..., k] if i < 2 else view for i, view in enumerate(views))
        state = state * a + b + (c[0] if c else 0)
    assert_close(found, state, depth=5)


def test_one_array_for_both(interpreter):
    (x,) = made("mk->mk", [(2,)])
    contraction = km.Contraction("mk,nk->mn", lambda a, b: abs(a - b), epilogue=lambda s: s**2)
    found = contraction(x, x)
    assert interpreter.nests[0].symmetric
    assert_close(found, (abs(x[:, :, None] - x[:, None]).sum(-1)) ** 2, depth=5)


def test_out_of_any_strides(interpreter):
    operands = made("mk,nk->mn", [(2,)])
    contraction = km.Contraction("mk,nk->mn", lambda a, b: a * b + a)
    buffer = torch.full((5, 9, 7), math.nan, dtype=torch.float64)
    out = buffer[1::3, 1:9:3, ::4].permute(0, 1, 2)[:, :3, :2]
    contraction(*operands, out=out)
    assert_close(out, oracle("mk,nk->mn", lambda a, b: a * b + a, [value.numpy() for value in operands]), depth=5)
    assert buffer.isnan().sum() == buffer.numel() - out.numel()


def test_parameters_that_are_tensors(interpreter):
    operands = made("mk,nk->mn")
    p = torch.tensor([[1.0], [2.0]], dtype=torch.float64)
    found = km.Contraction("mk,nk->mn", lambda a, b, p: a * b * p + p)(*operands, p=p)
    assert found.shape == (2, 1, 3, 2)
    assert_close(
        found, oracle("mk,nk->mn", lambda a, b, p: a * b * p + p, [v.numpy() for v in operands], p=p.numpy()), depth=5
    )


def lowered(equation, sizes, parallel=1, reduce="sum"):
    count = equation.count(",") + 1
    names = [f"a{i}" for i in range(count)]
    function = eval(f"lambda {', '.join(names)}: {' + '.join(names)}")
    program = bind(define(equation, function, reduce), frozenset()).program
    letters = define(equation, function, reduce).equation.letters
    return lower(
        program, {letters[a]: s for a, s in sizes.items() if a in letters}, ["f32"] * count, ["f32"], "f32", parallel
    ), letters


@pytest.mark.parametrize(
    ("equation", "roles", "batch", "partial"),
    [
        ("mk,nk->mn", {"m": "m", "n": "n", "k": "k"}, "", ""),
        ("km,kn->nm", {"n": "m", "m": "n", "k": "k"}, "", ""),
        ("mk->m", {"m": "n", "k": "k"}, "", ""),
        ("k->", {"k": "k"}, "", ""),
        ("mk->", {"m": "n", "k": "k"}, "", "m"),
        ("ok,km,nm,nk->onm", {"n": "m", "m": "n", "k": "k"}, "o", ""),
        ("mk,nk,nl->ml", {"m": "m", "l": "n", "k": "k", "n": "l"}, "", ""),
        ("mk,nl,kl->", {"m": "m", "n": "n", "k": "k", "l": "l"}, "", "mn"),
    ],
)
def test_roles(equation, roles, batch, partial):
    found, letters = lowered(equation, {"m": 100, "n": 10, "k": 9, "l": 8, "o": 7})
    back = {new: old for old, new in letters.items()}
    assert "".join(back[a] for a in found.batch) == batch
    assert "".join(back[a] for a in found.partial) == partial
    assert {back[axis]: role for axis, role in found.roles.items()} == roles
    assert found.is_partial == bool(partial)


@pytest.mark.parametrize(
    ("sizes", "parallel", "cut"),
    [
        ({"m": 4, "n": 4, "k": 100}, 8, False),
        ({"m": 4, "n": 4, "k": 100_000}, 8, True),
        ({"m": 4000, "n": 4000, "k": 100_000}, 8, False),
        ({"m": 300, "n": 30, "k": 100_000}, 2, False),
        ({"m": 300, "n": 30, "k": 100_000}, 100, True),
    ],
)
def test_long_reductions_into_few_cells_are_cut(sizes, parallel, cut):
    found, _ = lowered("mk,nk->mn", sizes, parallel)
    assert (found.splits > 1) == cut == found.is_partial
    assert found.splits <= 8 * parallel
    assert found.nest.outputs == (() if cut else found.nest.outputs)


def test_types_of_partial_registers():
    program = bind(define("mk,nk->mn", lambda a, b: (a, b, a > b), ("argmin", "logsumexp", "any")), frozenset()).program
    found = lower(program, {"m": 2, "n": 2, "k": 10**6}, ["f16", "f16"], ["i64", "f16", "bool"], "f32", 4)
    assert [buffer.dtype for buffer in found.nest.outs] == ["f32", "i64", "f32", "f32", "bool"]
    whole = lower(program, {"m": 2, "n": 2, "k": 10}, ["f16", "f16"], ["i64", "f16", "bool"], "f32", 4)
    assert [buffer.dtype for buffer in whole.nest.outs] == ["i64", "f16", "bool"]
    assert [result_kind(output, program) for output in program.outputs] == ["index", "value", "bool"]


def test_the_role_of_nothing_is_of_length_one(interpreter):
    contraction = km.Contraction("->", lambda a: a + 1)
    assert contraction(torch.tensor(2.0, dtype=torch.float64)).item() == 3.0
    nest = interpreter.nests[0]
    assert [buffer.roles for buffer in nest.buffers] == ["", ""]
    assert replace(nest, partial=False) == nest
