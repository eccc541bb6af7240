"""Derivatives as programs: what they read, when they vanish, and their values by finite differences."""

from __future__ import annotations

import math

import numpy as np
import pytest

import kernmantle as km
from kernmantle.backends.reference import evaluate
from kernmantle.compiler.lower import lower
from kernmantle.ir import autodiff
from kernmantle.ir.definition import bind, define
from kernmantle.ir.functions import FUNCTIONS
from kernmantle.ir.program import Program
from kernmantle.ir.reductions import REDUCTIONS
from kernmantle.testing import assert_close
from kernmantle.torch_ops.namespaces import numpy_namespace

NS = numpy_namespace()
SIZES = {"m": 2, "n": 3, "k": 4, "l": 3, "i": 2}
exp, where = FUNCTIONS["exp"], FUNCTIONS["where"]
DIFFERENTIABLE = [name for name, row in REDUCTIONS.items() if row.differentiable]


def made(equation="mk,nk->mn", function=lambda a, b: a * b, reduce="sum", epilogue=None, tensors=()):
    return bind(define(equation, function, reduce, epilogue), frozenset(tensors)).program


def value(program, arrays):
    named = {name: np.asarray(array, float) for name, array in arrays.items()}
    found = []
    for place, blocks in evaluate.run(program, named, SIZES, NS):
        assert place == tuple(slice(0, SIZES[axis]) for axis in program.out)
        found = [np.broadcast_to(block, [SIZES[axis] for axis in program.out]) for block in blocks]
    return found


def inputs(program, seed=0):
    random = np.random.default_rng(seed)
    return {op.name: random.uniform(0.3, 1.7, [SIZES[a] for a in op.axes]) for op in program.operands}


def gradients(program, arrays, cotangents):
    """Gradient of every operand by the programs alone, as the torch side puts them together."""
    present = tuple(True for _ in program.outputs)
    values = dict(arrays) | {f"g{o}": g for o, g in enumerate(cotangents)}
    accumulators = value(autodiff.with_accumulators(program), arrays)[len(program.outputs) :]
    values |= {f"a{i}": a for i, a in enumerate(accumulators)}
    through = []
    for i in range(len(program.reductions)):
        rule = autodiff.cotangent(program, i, present)
        through.append(rule is not None)
        if rule is not None:
            values[f"h{i}"] = value(rule, values)[0]
        extra = autodiff.statistics(program, i)
        if extra is not None:
            values |= {f"{letter}{i}": v for letter, v in zip(autodiff.STATISTICS, value(extra, values), strict=False)}
    found = {}
    for operand in program.operands:
        rules = autodiff.vjp(program, operand.name, through), autodiff.direct(program, operand.name, present)
        parts = [value(rule, values)[0] for rule in rules if rule is not None]
        found[operand.name] = sum(parts) if parts else np.zeros_like(arrays[operand.name])
    return found


def differences(program, arrays, cotangents, step=1e-5):
    def total(changed):
        return sum(float((g * out).sum()) for g, out in zip(cotangents, value(program, changed), strict=True))

    found = {}
    for name, array in arrays.items():
        found[name] = np.zeros_like(array)
        for place in np.ndindex(array.shape):
            moved = [array.copy(), array.copy()]
            moved[0][place] += step
            moved[1][place] -= step
            up, down = (total({**arrays, name: m}) for m in moved)
            found[name][place] = (up - down) / (2 * step)
    return found


PROGRAMS = {
    "epilogue and parameter": made(
        "mk,nk,row:m->mn", lambda a, b, p: (a * b) ** p, "sum", lambda s, p, row: s ** (1 / p) * row + row, ("p",)
    ),
    "two accumulators": made("mk,nk->mn", lambda a, b: (a * b, a * a), ("logsumexp", "sum"), lambda s, t: s / t),
    "rows": made("mk,nk->m", lambda a, b: exp(-a * b), "sum"),
    "number": made("mk,nk->", lambda a, b, c: a * b**c, "sum", None, ("c",)),
    **{f"{name} of three": made("mk,nk,k->mn", lambda a, b, w: w * a + b, name) for name in DIFFERENTIABLE},
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_are_finite_differences(name):
    program = PROGRAMS[name]
    arrays = inputs(program)
    cotangents = [np.random.default_rng(9).standard_normal([SIZES[a] for a in program.out]) for _ in program.outputs]
    found, wanted = (way(program, arrays, cotangents) for way in (gradients, differences))
    for operand in program.operands:
        assert np.allclose(found[operand.name], wanted[operand.name], rtol=1e-7, atol=1e-8), operand.name


@pytest.mark.parametrize("name", PROGRAMS)
def test_derivatives_are_programs_that_can_be_written_down(name):
    program = PROGRAMS[name]
    present = tuple(True for _ in program.outputs)
    every = [True] * len(program.reductions)
    rules = [autodiff.cotangent(program, i, present) for i in range(len(every))]
    rules += [autodiff.statistics(program, i) for i in range(len(every))]
    moving = tuple(op.name for op in program.operands)
    for operand in program.operands:
        rules += [autodiff.vjp(program, operand.name, every), autodiff.direct(program, operand.name, present)]
    rules += [autodiff.tangent(program, i, moving) for i in range(len(every))]
    rules.append(autodiff.output_tangent(program, moving, every))
    for rule in rules:
        if rule is not None:
            assert autodiff.undifferentiable(rule) is None
            assert Program.parse(rule.renamed().text) == rule.renamed()


@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_of_equal_axes_are_one_program(name):
    program, every = PROGRAMS[name], [True] * len(PROGRAMS[name].reductions)
    single = {op.name: autodiff.vjp(program, op.name, every) for op in program.operands if not op.number}
    alike: dict[str, list[str]] = {}
    for operand in program.operands:
        if single.get(operand.name) is not None:
            alike.setdefault(operand.axes, []).append(operand.name)
    for axes, names in alike.items():
        joined = autodiff.VJPs(program, names, every)
        arrays = inputs(joined)
        assert (joined.out, len(joined.outputs), joined.product_order) == (
            axes,
            len(names),
            single[names[0]].product_order,
        )
        assert Program.parse(joined.renamed().text) == joined.renamed()
        for found, operand in zip(value(joined, arrays), names, strict=True):
            assert np.allclose(found, value(single[operand], arrays)[0], rtol=1e-12), operand


def test_what_has_no_influence_has_no_program():
    program = made(function=lambda a, b: a * 1, epilogue=lambda s: s)
    assert autodiff.vjp(program, "x1", [True]) is None
    assert autodiff.vjp(program, "x0", [False]) is None
    assert autodiff.direct(program, "x0", (True,)) is None
    assert autodiff.tangent(program, 0, ("x1",)) is None
    unread = made(function=lambda a, b: (a, b), epilogue=lambda s, t: t)
    assert autodiff.cotangent(unread, 0, (True,)) is None
    assert autodiff.cotangent(unread, 1, (False,)) is None
    assert autodiff.cotangent(unread, 1, (True,)) is not None


def test_only_what_is_read_is_an_operand():
    program = made("mk,nk,m->mn", lambda a, b, c: a * b + c)
    rule = autodiff.vjp(program, "x0", [True])
    assert rule is not None
    assert [op.name for op in rule.operands] == ["x1", "h0"]
    assert rule.out == "mk"
    assert rule.equation == "nk,mn->mk"
    scalar = autodiff.vjp(made(function=lambda a, b, c: a * b * c, tensors=("c",)), "p0", [True])
    assert scalar is not None
    assert scalar.out == ""


@pytest.mark.parametrize(
    ("reduce", "epilogue", "reads"),
    [
        ("sum", None, False),
        ("prod", None, False),
        ("min", None, True),
        ("max", None, True),
        ("logsumexp", None, True),
        ("sum", lambda s: 2 * s + 1, False),
        ("sum", lambda s: s**2, True),
        ("sum", lambda s: s > 0, False),
        ("sum", lambda s, c: s * c, True),
        ("sum", lambda s, c: s + c, False),
    ],
)
def test_when_accumulators_must_be_saved(reduce, epilogue, reads):
    assert autodiff.reads_accumulators(made(reduce=reduce, epilogue=epilogue, tensors=("c",))) == reads


def test_outputs_that_are_the_accumulators():
    assert autodiff.accumulator_is_output(made())
    assert autodiff.accumulator_is_output(made(function=lambda a, b: (a, b)))
    assert not autodiff.accumulator_is_output(made(epilogue=lambda s: 2 * s))
    assert not autodiff.accumulator_is_output(made(function=lambda a, b: (a, b), epilogue=lambda s, t: (t, s)))
    full = autodiff.with_accumulators(made(epilogue=lambda s: 2 * s))
    assert [str(output) for output in full.outputs] == ["mul(s0, 2)", "s0"]


def extremum(values, seen, reduce="max"):
    """Shares of the terms ``values`` when the extremum was computed as ``seen``."""
    program = made("mk->m", lambda a: a, reduce)
    arrays = {"x0": np.array(values), "a0": np.array([seen]), "h0": np.ones(1)}
    sizes = {"m": 1, "k": len(values[0])}
    extra, rule = autodiff.statistics(program, 0), autodiff.vjp(program, "x0", [True])
    assert extra is not None
    assert rule is not None
    with np.errstate(invalid="ignore", divide="ignore"):
        ((_, (arrays["b0"],)),) = evaluate.run(extra, arrays, sizes, NS)
        ((_, (share,)),) = evaluate.run(rule, arrays, sizes, NS)
    return share[0].tolist()


def test_ties_share_and_are_seen_through_rounding():
    assert extremum([[1.0, 3.0, 3.0]], 3.0) == [0, 0.5, 0.5]
    assert extremum([[1.0, 3.0, 2.0]], math.nextafter(3.0, 4.0)) == [0, 1, 0]
    assert extremum([[1.0, 3.0, 2.0]], math.nextafter(3.0, 2.0)) == [0, 1, 0]
    assert extremum([[1.0, 3.0, 3.0 * (1 - 1e-12)]], 3.0) == [0, 1, 0]
    assert extremum([[-math.inf, -math.inf]], -math.inf) == [0.5, 0.5]
    assert extremum([[math.inf, 1.0]], math.inf) == [1, 0]
    assert extremum([[0.0, -0.0, -1e-300]], 0.0) == [0.5, 0.5, 0]
    assert extremum([[2.0, 2.0, 5.0]], 2.0, "min") == [0.5, 0.5, 0]


@pytest.mark.parametrize("values", [[2.0, 3.0, 4.0], [2.0, 0.0, 4.0], [0.0, 0.0, 4.0], [0.0, 0.0, 0.0]], ids=str)
def test_products_divide_by_no_zero(values):
    program = made("k->", lambda a: a, "prod")
    arrays = {"x0": np.array(values), "h0": np.ones(())}
    extra, rule = autodiff.statistics(program, 0), autodiff.vjp(program, "x0", [True])
    assert extra is not None
    assert rule is not None
    with np.errstate(all="ignore"):
        ((_, statistics),) = evaluate.run(extra, arrays, {"k": 3}, NS)
        arrays |= {f"{letter}0": v for letter, v in zip(autodiff.STATISTICS, statistics, strict=True)}
        ((_, (found,)),) = evaluate.run(rule, arrays, {"k": 3}, NS)
    assert found.tolist() == [math.prod(values[:i] + values[i + 1 :]) for i in range(3)]


def test_a_tangent_is_the_gradient_seen_from_the_other_side():
    program = PROGRAMS["two accumulators"]
    arrays = inputs(program)
    moving = tuple(op.name for op in program.operands)
    tangents = {f"t_{name}": np.random.default_rng(3).standard_normal(arrays[name].shape) for name in moving}
    accumulators = value(autodiff.with_accumulators(program), arrays)[1:]
    values = arrays | tangents | {f"a{i}": a for i, a in enumerate(accumulators)}
    for i in range(2):
        rule = autodiff.tangent(program, i, moving)
        assert rule is not None
        values[f"u{i}"] = value(rule, values)[0]
    (forward,) = value(autodiff.output_tangent(program, moving, (True, True)), values)
    cotangent = np.random.default_rng(4).standard_normal((2, 3))
    backward = gradients(program, arrays, [cotangent])
    total = sum((tangents[f"t_{name}"] * backward[name]).sum() for name in moving)
    assert_close(np.array((forward * cotangent).sum()), np.array(total), depth=50, magnitude=1.0)


def test_only_derivatives_that_compare_ask_to_round_alike():
    def program(function, reduce="sum"):
        return bind(define("mk,nk->mn", function, reduce), frozenset()).program

    for function in (km.xlogy, km.hypot, km.logaddexp, lambda a, b: km.where(a == b, a, b), km.maximum):
        forward = program(function)
        assert not forward.rounds_alike
        assert not lower(forward, {"m": 3, "n": 3, "k": 3}, ("f32",) * 2, ("f32",), "f32").nest.reproducible
        assert not autodiff.vjp(forward, "x0", (True,)).rounds_alike
    for reduce in ("min", "max"):
        forward = program(lambda a, b: a * b, reduce)
        assert lower(forward, {"m": 3, "n": 3, "k": 3}, ("f32",) * 2, ("f32",), "f32").nest.reproducible
        for derived in (
            autodiff.vjp(forward, "x0", (True,)), autodiff.statistics(forward, 0),
            autodiff.tangent(forward, 0, ("x0",)),
        ):  # fmt: skip
            assert derived.reproducible
            assert Program.parse(derived.text) == derived
        assert autodiff.vjp(autodiff.vjp(forward, "x0", (True,)), "x1", (True,)).rounds_alike
    assert not autodiff.vjp(program(lambda a, b: a * b, "logsumexp"), "x0", (True,)).rounds_alike
