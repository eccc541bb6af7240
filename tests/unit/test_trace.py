"""Tracing: every way to write an operation, and a message that helps for everything that cannot be traced."""

import inspect
import math
import operator
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given

from kernmantle.errors import ParameterError, TraceError
from kernmantle.ir import functions as km
from kernmantle.ir.composites import COMPOSITES, SPELLINGS
from kernmantle.ir.differentiate import differentiate
from kernmantle.ir.node import Node, const, postorder, var
from kernmantle.ir.ops import OPS, evaluate
from kernmantle.ir.pattern import read
from kernmantle.ir.simplify import simplify
from kernmantle.ir.trace import signature, trace
from kernmantle.ir.traced import Traced
from kernmantle.testing import assert_close
from kernmantle.testing.strategies import lambdas

A, B, P = var("a"), var("b"), var("p")
TENSOR, ARRAY, SCALAR_TENSOR = torch.ones(3), np.ones((2, 3)), torch.tensor(2.0)
PLACES = [(0.5, 0.75), (0.25, -0.625), (0.75, 0.75), (0.0, 0.5)]


def roots(function, count=2):
    return trace(function, [A, B][:count]).roots


def one(function):
    (root,) = roots(function)
    return root


def same(function, text):
    return simplify(roots(function)) == simplify([read(text)])


@pytest.mark.parametrize("row", OPS.values(), ids=list(OPS))
def test_every_spelling_of_a_row_traces_to_it(row):
    args = [Traced(var(name)) for name in "abc"[: row.arity]]
    node = Node(row.name, tuple(arg.node for arg in args))
    spelt = [getattr(torch, name, None) or getattr(torch.special, name, None) for name in row.torch]
    absent = [name for name, function in zip(row.torch, spelt, strict=True) if function is None]
    assert not absent, f"torch has no {absent}: leave them out of the row (`torch=()`), and without any write _COMPOSED"
    spelt += [getattr(np, row.numpy)] if row.numpy else []
    spelt += [getattr(km, name) for name in (row.name, *row.torch, row.numpy) if name]
    for function in spelt:
        assert function(*args).node is node, function


@pytest.mark.parametrize("row", [row for row in OPS.values() if row.arity < 3], ids=lambda row: row.name)
def test_every_row_is_a_method(row):
    node = Node(row.name, (A, B)[: row.arity])
    for name in (row.name, *row.torch):
        assert getattr(Traced(A), name)(*[Traced(B)][: row.arity - 1]).node is node


@pytest.mark.parametrize("row", [row for row in OPS.values() if row.infix], ids=lambda row: row.name)
def test_every_infix_row_is_an_operator_from_both_sides(row):
    name = {"div": "truediv", "and": "and_", "or": "or_"}.get(row.name, row.name)
    function = getattr(operator, name)
    assert function(Traced(A), Traced(B)).node is Node(row.name, (A, B))
    assert function(Traced(A), 3).node is Node(row.name, (A, const(3)))
    mirrored = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}.get(row.name)
    expected = Node(mirrored, (A, const(3))) if mirrored else Node(row.name, (const(3), A))
    assert simplify([function(3, Traced(A)).node]) == simplify([expected])


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda a, b: abs(a), "abs(a)"),
        (lambda a, b: pow(b, a), "pow(b,a)"),
        (lambda a, b: -a, "neg(a)"),
        (lambda a, b: +a, "a"),
        (lambda a, b: ~(a < b), "not(lt(a,b))"),
        (lambda a, b: 2**a, "pow(2,a)"),
        (lambda a, b: math.floor(a) + math.ceil(b), "add(floor(a),neg(floor(neg(b))))"),
        (lambda a, b: (a < b) ^ (a < 1), "ne(not(lt(a,b)),not(lt(a,1)))"),
        (lambda a, b: torch.logical_and(a, a < b), "and(ne(a,0),lt(a,b))"),
        (lambda a, b: np.logical_not(a), "eq(a,0)"),
        (lambda a, b: sum([a, b, 1.5]), "add(add(a,b),1.5)"),
        (lambda a, b: torch.clamp(a, 0, 1), "min(max(a,0),1)"),
        (lambda a, b: torch.clamp(a, min=b), "max(a,b)"),
        (lambda a, b: np.clip(a, None, 1), "min(a,1)"),
        (lambda a, b: a.clamp(max=1.5), "min(a,1.5)"),
        (lambda a, b: km.clip(a, -1.5, b), "min(max(a,-1.5),b)"),
        (lambda a, b: F.relu(a) + torch.square(b), "add(max(a,0),mul(b,b))"),
        (lambda a, b: torch.where(a > b, a, 0.0), "where(gt(a,b),a,0)"),
        (lambda a, b: np.where(a > b, 1, b), "where(gt(a,b),1,b)"),
        (lambda a, b: torch.special.expit(a), "sigmoid(a)"),
        (lambda a, b: torch.special.erf(a), "erf(a)"),
        (lambda a, b: np.float32(1.5) * a, "mul(1.5,a)"),
        (lambda a, b: a * np.array(1.5) + np.int64(3), "add(mul(a,1.5),3)"),
        (lambda a, b: np.bool_(True) | (a > b), "true"),
        (lambda a, b: a.exp().pow(2), "pow(exp(a),2)"),
        (lambda a, b: 3.5, "3.5"),
        (lambda a, b: True, "true"),
        (operator.mul, "mul(a,b)"),
        (torch.maximum, "max(a,b)"),
        (np.subtract, "sub(a,b)"),
        (km.minimum, "min(a,b)"),
    ],
)  # fmt: skip
def test_ways_to_write(function, text):
    assert same(function, text)


def torch_composites():
    for name in COMPOSITES:
        for module, home in ((torch, "torch"), (np, "numpy"), (torch.special, "torch.special"), (F, "F")):
            function = getattr(module, name, None)
            if function is not None:
                yield pytest.param(name, function, module is np, id=f"{home}.{name}")
                break


@pytest.mark.parametrize(("name", "function", "is_numpy"), list(torch_composites()))
def test_composites_have_the_values_of_their_namesakes(name, function, is_numpy):
    arity = {"clamp": 3, "clip": 3, "addcmul": 3, "lerp": 3}.get(name) or len(
        inspect.signature(COMPOSITES[name]).parameters
    )
    logical = "xor" in name
    for first, second in PLACES:
        values = [first > 0.3, second > 0.3] if logical else [first, second, 0.875][:arity]
        if is_numpy:
            expected = np.asarray(function(*values))
        else:
            expected = function(*(torch.tensor(v, dtype=torch.bool if logical else torch.float64) for v in values))
        traced = trace(function, [A, B, P][:arity]).roots
        names = dict(zip("abp", values, strict=False))
        assert_close(float(evaluate(traced, names)[0]), float(expected))
        assert_close(float(getattr(km, name)(*values)), float(expected))


EXTREME = ["hypot", "logaddexp", "softplus", "sinh", "cosh", "xlogy", "fmin", "fmax", "isinf", "arcsin"]


@pytest.mark.parametrize("name", EXTREME)
def test_composites_at_extreme_values(name):
    function = getattr(np, name, None) or (lambda *values: getattr(torch.special, name, None) or getattr(F, name))
    arity = len(inspect.signature(COMPOSITES[name]).parameters)
    oracle = {
        "softplus": lambda x: np.logaddexp(0, x),
        "xlogy": lambda x, y: torch.special.xlogy(torch.tensor(x, dtype=torch.float64), y),
    }.get(name, function)
    values = [0.0, 1e-300, 1e-9, 0.3, -0.4999, 30.0, -30.0, 710.2, -710.2, 1e300, math.inf, -math.inf, math.nan]
    with np.errstate(all="ignore"):
        for first in values:
            for second in values if arity == 2 else [None]:
                args = (first, second)[:arity]
                assert_close(float(getattr(km, name)(*args)), float(oracle(*args)))


@pytest.mark.parametrize("name", ["floor_divide", "remainder"])
def test_quotients_are_those_of_numpy(name):
    divisors = [0.5, -0.5, 3.0, -7.25, 1e300, math.inf, -math.inf, math.nan, 0.0]
    with np.errstate(all="ignore"):
        for a in [0.0, 0.5, -0.5, 3.0, -7.25, 30.0, math.inf, -math.inf, math.nan]:
            for b in divisors:
                assert_close(float(getattr(km, name)(a, b)), float(getattr(np, name)(a, b)), magnitude=10)


@pytest.mark.parametrize("name", ["sinh", "arcsin"])
def test_slopes_at_zero(name):
    (root,) = trace(getattr(km, name), [A]).roots
    (slope,) = differentiate(root, ["a"])
    for place in (0.0, -0.0, 1e-12):
        assert_close(float(evaluate([slope], {"a": place})[0]), 1.0)


def test_public_functions_take_numbers():
    assert km.exp(0) == 1
    assert km.maximum(2, 3.5) == 3.5
    assert km.where(True, 1, 2) == 1
    assert km.clamp(5, max=2) == 2
    assert set(dir(km)) == set(SPELLINGS)


@pytest.mark.parametrize("value", [TENSOR, ARRAY, SCALAR_TENSOR, [1.0]], ids=["tensor", "array", "0-d tensor", "list"])
def test_public_functions_point_to_torch(value):
    with pytest.raises(TypeError, match=r"km\.exp works on traced values.*use torch's or numpy's function"):
        km.exp(value)


def test_unknown_public_function():
    with pytest.raises(AttributeError, match="fft"):
        _ = km.fft


@given(lambdas(["a", "b"], kind="any"))
def test_random_lambdas_trace(function):
    assert postorder(roots(function))
    assert function.__doc__.startswith("lambda a, b: ")


def test_tuples_are_several_values():
    found = trace(lambda a, b: (a, b * 2, 3), [A, B])
    assert found.roots == (A, read("mul(b,2)"), const(3))
    assert found.is_tuple
    assert not trace(lambda a, b: a, [A, B]).is_tuple


def test_parameters_by_name():
    def function(a, b, p, q=2.5, *, r, s=4.5):
        return a * b + p + q + r + s

    found = trace(function, [A, B], {"p": P, "r": var("r"), "s": var("s"), "other": var("other")})
    assert found.used == ("p", "r", "s")
    assert found.defaults == {"q": 2.5}
    assert found.roots == (read("add(add(add(add(mul(a,b),p),2.5),r),s)"),)
    assert signature(function, 2) == (("p", "q", "r", "s"), {"q": 2.5, "s": 4.5})


def test_default_arguments_may_be_anything():
    assert trace(lambda a, f=torch.abs: f(a), [A]).roots == (read("abs(a)"),)


def test_starred_arguments():
    assert roots(lambda *args: args[0] - args[1]) == (read("sub(a,b)"),)
    assert signature(lambda a, *rest: a, 3) == ((), {})


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda a: a, "takes 1 positional argument but there are 2"),
        (lambda: 1, "takes 0 positional arguments but there are 2"),
        (lambda a, **more: a, r"takes 1 positional"),
        (lambda a, b, **more: a, r"(?s)takes \*\*arguments.*name each parameter"),
        (3, "the epilogue must be a function, not int"),
        (math.hypot, r"float\(\) was asked"),
    ],
)
def test_wrong_arity(function, message):
    with pytest.raises(TraceError, match=message):
        trace(function, [A, B], what="epilogue")


def test_wrong_arity_quotes_the_source():
    with pytest.raises(TraceError, match=r"lambda a: a \* 7") as caught:
        roots(lambda a: a * 7)
    assert f"{__file__}:" in str(caught.value)


def test_positional_only_parameters():
    def function(a, b, c, /):
        return a + b + c

    with pytest.raises(TraceError, match="'c' cannot be given by name"):
        roots(function)


def test_missing_params():
    with pytest.raises(ParameterError, match="params that were not given: p, q"):
        trace(lambda a, b, p, q, r=1: a, [A, B], {})


def refused():
    yield lambda a, b: a if a > b else b, "km.where"
    yield lambda a, b: a > 0 and b, "use & instead of `and`"
    yield lambda a, b: a > 0 or b, "use | instead of `or`"
    yield lambda a, b: not a, "use ~ instead of `not`"
    yield lambda a, b: min(a, b, 2), "km.minimum(a, b) or torch.minimum(a, b)"
    yield lambda a, b: max(a, b, 2), "km.maximum(a, b) or torch.maximum(a, b)"
    yield lambda a, b: 0 < a < 1, "a < b < c"
    yield lambda a, b: a in (1, 2), "(x == a) | (x == b)"
    yield lambda a, b: 1 in a, "`in` was asked of a traced value"
    yield lambda a, b: bool(a), "has no value yet"
    yield lambda a, b: int(a), "int() was asked of a traced value"
    yield lambda a, b: float(a), "float() was asked of a traced value"
    yield lambda a, b: complex(a), "complex() was asked"
    yield lambda a, b: math.exp(a), "not math.*"
    yield lambda a, b: [1, 2][a], "an index was asked"
    yield lambda a, b: round(a), "km.floor(x + 0.5)"
    yield lambda a, b: len(a), "len() of a traced value"
    yield lambda a, b: a[0], "one element of each operand"
    yield lambda a, b: sum(a), "iterated or unpacked"
    yield lambda a, b: {a: b}, "hashed"
    yield lambda a, b: a @ b, "let the equation sum"
    yield lambda a, b: a << 2, "shifts are unknown"
    yield lambda a, b: divmod(a, 2), "x // y and x % y"
    yield lambda a, b: pow(a, 2, 3), "(x ** y) % m"
    yield lambda a, b: a.shape, "no attribute 'shape'"
    yield lambda a, b: a.add_(b), "in place; use the new value of add()"
    yield lambda a, b: setattr(a, "x", 1), "cannot be assigned to"
    yield lambda a, b: operator.setitem(a, 0, 1), "cannot be assigned to"
    yield lambda a, b: torch.cumsum(a, 0), "cumsum() is unknown to tracing"
    yield lambda a, b: torch.max(a), "max() missing 1 required positional argument"
    yield lambda a, b: torch.add(a, b, alpha=2), "unexpected keyword argument 'alpha'"
    yield lambda a, b: torch.clamp(a), "clamp needs min or max"
    yield lambda a, b: F.softplus(a, beta=2), "softplus() cannot be called like this"
    yield lambda a, b: np.sum(a), "sum() is unknown to tracing"
    yield lambda a, b: np.add.reduce(a), "let the equation reduce"
    yield lambda a, b: np.add(a, b, out=ARRAY), "not a number"
    yield lambda a, b: km.sqr(a) if hasattr(km, "sqr") else torch.sqrt_(a), "sqrt"
    yield lambda a, b: a * TENSOR, "captured array (Tensor of shape (3,))"
    yield lambda a, b: TENSOR * a, "captured array (Tensor of shape (3,))"
    yield lambda a, b: a * SCALAR_TENSOR, "pass it as an operand of the equation or in params="
    yield lambda a, b: SCALAR_TENSOR + a, "pass it as an operand of the equation or in params="
    yield lambda a, b: a - ARRAY, "captured array (ndarray of shape (2, 3))"
    yield lambda a, b: ARRAY - a, "captured array (ndarray of shape (2, 3))"
    yield lambda a, b: torch.maximum(a, TENSOR), "captured array"
    yield lambda a, b: km.maximum(a, TENSOR), "captured array"
    yield lambda a, b: a * 1j, "complex is not a number"
    yield lambda a, b: a * "x", "str is not a number"
    yield lambda a, b: a == None, "NoneType is not a number"  # noqa: E711
    yield lambda a, b: None, "returned None"
    yield lambda a, b: "x", "returned str"
    yield lambda a, b: (a, (b,)), "returned tuple"
    yield lambda a, b: (), "returned no value"
    yield lambda a, b: TENSOR, "returned a captured array (Tensor)"


REFUSED = list(refused())


@pytest.mark.parametrize(("function", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_what_cannot_be_traced_is_explained(function, message):
    with pytest.raises(TraceError) as caught:
        roots(function)
    line = function.__code__.co_firstlineno
    source = Path(__file__).read_text(encoding="utf-8").splitlines()[line - 1].strip()
    assert message in str(caught.value)
    assert f"{__file__}:{line}" in str(caught.value)
    assert source in str(caught.value)


def test_the_line_of_a_function_called_by_the_lambda_is_named():
    def distance(a, b):
        return abs(a - b) if a else b

    with pytest.raises(TraceError, match=r"return abs\(a - b\) if a else b"):
        roots(lambda a, b: distance(a, b) * 2)


def test_functions_without_source_are_still_explained():
    with pytest.raises(TraceError, match=r"km\.minimum"):
        trace(min, [A, B])
    with pytest.raises(TraceError, match="<string>:1"):
        trace(eval("lambda a, b: a if a else b"), [A, B])


def test_users_own_errors_pass():
    with pytest.raises(ZeroDivisionError):
        roots(lambda a, b: a * (1 / 0))


def test_traced_values_show_their_expression():
    assert repr(Traced(read("mul(abs(a),2.5)"))) == "Traced(abs(a) * 2.5)"
    assert not hasattr(Traced(A), "shape")


def test_a_near_name_is_suggested():
    with pytest.raises(TraceError, match=r"did you mean arcsin\?"):
        roots(lambda a, b: np.arcsinh(a))
