"""Every scalar operation through LLVM: in units in the last place against mpmath, and exactly at the edges."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import mpmath
import numpy as np
import pytest

from kernmantle.backends.cpu.spelling import SPELLED
from kernmantle.compiler.nest import Buffer, Nest
from kernmantle.ir.node import Node, var
from kernmantle.ir.ops import OPS
from kernmantle.ir.reductions import REDUCTIONS

from .llvm_nests import NUMPY, Kernel, build, run

INF, NAN = math.inf, math.nan
X, Y = var("x0"), var("x1")
PRECISION = 220


def _elementwise(outputs: tuple[Node, ...], inputs: int, dtype: str) -> Nest:
    buffers = tuple(Buffer(f"x{i}", "n", dtype) for i in range(inputs))
    outs = tuple(Buffer(f"out{i}", "n", dtype) for i in range(len(outputs)))
    results = tuple(var(f"s{i}") for i in range(len(outputs)))
    return Nest(buffers, (), outs, outputs, (REDUCTIONS["sum"],) * len(outputs), results, dtype)


MP: dict[str, Callable[..., object]] = {
    "exp": mpmath.exp, "exp2": lambda x: mpmath.mpf(2) ** x, "expm1": mpmath.expm1, "log": mpmath.log,
    "log2": lambda x: mpmath.log(x, 2), "log1p": mpmath.log1p, "sin": mpmath.sin, "cos": mpmath.cos,
    "tan": mpmath.tan, "acos": mpmath.acos, "tanh": mpmath.tanh, "erf": mpmath.erf,
    "sigmoid": lambda x: 1 / (1 + mpmath.exp(-x)), "sqrt": mpmath.sqrt, "rsqrt": lambda x: 1 / mpmath.sqrt(x),
    "rcp": lambda x: 1 / x,
}  # fmt: skip
BOUND = dict.fromkeys(MP, 2.5) | {"erf": 8.0, "tan": 3.0, "rsqrt": 1.5, "sqrt": 0.5, "rcp": 0.5}
POSITIVE = {"log", "log2", "sqrt", "rsqrt"}


def _nest(dtype: str) -> Nest:
    return _elementwise(tuple(Node(name, (X,)) for name in MP), 1, dtype)


@cache
def _unary(dtype: str) -> Kernel:
    return build(_nest(dtype))


def _points(dtype: str) -> np.ndarray:
    rng = np.random.default_rng(3)
    tiny, huge = (-44, 38) if dtype == "f32" else (-320, 307)
    values = np.concatenate([
        rng.normal(size=150) * 3, rng.uniform(-1, 1, 100), rng.uniform(-100, 100, 100), rng.uniform(-0.5, 0.5, 40) ** 3,
        10.0 ** rng.uniform(tiny, huge, 120), -(10.0 ** rng.uniform(tiny, huge, 60)),
        np.arange(1, 30) * (math.pi / 2), 2.0 ** np.arange(-30, 31), [1e5, 1e9, 2e9, 3e15, 1e22],
    ])  # fmt: skip
    return values.astype(NUMPY[dtype])


def _exact(name: str, x: float) -> mpmath.mpf | None:
    """The value in many digits, None where there is no finite real one."""
    if (name in POSITIVE and x <= 0) or (name == "log1p" and x <= -1) or (name == "acos" and abs(x) > 1):
        return None
    with mpmath.workprec(PRECISION if abs(x) < 1e30 else 1400):
        value = MP[name](mpmath.mpf(x)) if x != 0 or name != "rcp" else mpmath.inf
        return value if mpmath.isfinite(value) else None


def _worst(name: str, dtype: str, x: np.ndarray, got: np.ndarray) -> float:
    """Largest error in units in the last place; infinite where the result is not a number at all."""
    kind, worst = NUMPY[dtype], 0.0
    for point, result in zip(x.tolist(), got.tolist(), strict=True):
        want = _exact(name, point)
        if want is None:
            continue
        with np.errstate(all="ignore"):
            rounded = kind(float(want))
        if not np.isfinite(rounded):
            worst = max(worst, 0.0 if result == rounded else INF)
            continue
        unit = mpmath.mpf(float(np.spacing(np.abs(rounded))))
        error = float(abs(mpmath.mpf(result) - want) / unit) if math.isfinite(result) else INF
        worst = max(worst, error)
    return worst


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_functions_are_accurate(dtype):
    x = _points(dtype)
    results = [np.zeros((1, 1, 1, x.size), x.dtype) for _ in MP]
    run(_unary(dtype), _nest(dtype), [x.reshape(1, 1, 1, -1), *results], {"n": x.size})
    errors = {name: _worst(name, dtype, x, result.ravel()) for name, result in zip(MP, results, strict=True)}
    assert {name: error for name, error in errors.items() if error > BOUND[name]} == {}


EDGES: dict[str, dict[float, float]] = {
    "exp": {0: 1, INF: INF, -INF: 0, NAN: NAN, 1e3: INF, -1e3: 0},
    "exp2": {0: 1, 3: 8, -2: 0.25, INF: INF, -INF: 0, NAN: NAN, 2e3: INF, -2e3: 0, -149: 2.0**-149},
    "expm1": {0: 0, INF: INF, -INF: -1, NAN: NAN, -1e3: -1},
    "log": {1: 0, 0: -INF, INF: INF, -1: NAN, -INF: NAN, NAN: NAN},
    "log2": {1: 0, 8: 3, 0.25: -2, 2.0**-149: -149, 0: -INF, INF: INF, -1: NAN, NAN: NAN},
    "log1p": {0: 0, -1: -INF, -2: NAN, INF: INF, -INF: NAN, NAN: NAN, 2.0**-100: 2.0**-100},
    "sin": {0: 0, INF: NAN, -INF: NAN, NAN: NAN},
    "cos": {0: 1, INF: NAN, -INF: NAN, NAN: NAN},
    "tan": {0: 0, INF: NAN, -INF: NAN, NAN: NAN},
    "acos": {1: 0, 2: NAN, -2: NAN, INF: NAN, -INF: NAN, NAN: NAN},
    "tanh": {0: 0, INF: 1, -INF: -1, NAN: NAN, 50: 1, -50: -1},
    "erf": {0: 0, INF: 1, -INF: -1, NAN: NAN, 10: 1, -10: -1},
    "sigmoid": {0: 0.5, INF: 1, -INF: 0, NAN: NAN, 1e3: 1, -1e3: 0},
    "sqrt": {0: 0, 4: 2, INF: INF, -1: NAN, NAN: NAN},
    "rsqrt": {0: INF, 4: 0.5, INF: 0, -1: NAN, NAN: NAN},
    "rcp": {0: INF, 4: 0.25, INF: 0, -INF: -0.0, NAN: NAN},
}


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_functions_at_their_edges(dtype):
    points = [(name, x, y) for name, table in EDGES.items() for x, y in table.items()]
    x = np.array([point for _, point, _ in points], NUMPY[dtype])
    results = [np.zeros((1, 1, 1, x.size), x.dtype) for _ in MP]
    run(_unary(dtype), _nest(dtype), [x.reshape(1, 1, 1, -1), *results], {"n": x.size})
    got = dict(zip(MP, (result.ravel().tolist() for result in results), strict=True))
    wrong = [
        (name, point, got[name][place], want)
        for place, (name, point, want) in enumerate(points)
        if not (got[name][place] == want or (math.isnan(want) and math.isnan(got[name][place])))
    ]
    assert wrong == []


SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 3.0, -3.0, 2.5, 1 / 3, INF, -INF, NAN, 1e-42, -1e-42, 1e30]


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_powers(dtype):
    kind = NUMPY[dtype]
    rng = np.random.default_rng(5)
    x, y = (grid.ravel() for grid in np.meshgrid([*SPECIAL, 1e5 + 1, 2.0**53 + 2], [*SPECIAL, 1e5 + 1, 2.0**53 + 2]))
    reach = 37 if dtype == "f32" else 300
    near, steps = 1 + rng.normal(size=60) * 1e-4, np.linspace(0.5, 2, 100)
    bases = x, 10 ** rng.uniform(-reach, reach, 300), -rng.uniform(0.1, 9, 60), near, steps
    exponents = (
        y,
        rng.uniform(-4, 4, 300),
        rng.integers(-9, 9, 60),
        rng.normal(size=60) * 1e5,
        rng.uniform(-500, 500, 100),
    )
    x, y = (np.concatenate(parts).astype(kind) for parts in (bases, exponents))
    one = _elementwise((Node("pow", (X, Y)), Node("pow", (Node("abs", (X,)), Y))), 2, dtype)
    results = [np.zeros((1, 1, 1, x.size), kind) for _ in range(2)]
    run(build(one), one, [x.reshape(1, 1, 1, -1), y.reshape(1, 1, 1, -1), *results], {"n": x.size})
    for result, base in zip(results, (x, np.abs(x)), strict=True):
        with np.errstate(all="ignore"):
            exact = np.power(base.astype(np.longdouble), y.astype(np.longdouble))
            want = exact.astype(kind)
        got, regular = result.ravel(), np.isfinite(want) & (want != 0)
        assert np.array_equal(got[~regular], want[~regular], equal_nan=True)
        error = np.abs(got[regular] - exact[regular]) / np.spacing(np.abs(want[regular]))
        assert error.max() <= 4


def _nan_if(a: float, b: float, value: float) -> float:
    return NAN if math.isnan(a) or math.isnan(b) else value


SIMPLE: dict[str, Callable[[float, float], float]] = {
    "neg": lambda a, _: -a,
    "abs": lambda a, _: abs(a),
    "sign": lambda a, _: math.copysign(1, a) if a and not math.isnan(a) else a,
    "floor": lambda a, _: math.floor(a) if math.isfinite(a) else a,
    "copysign": math.copysign,
    "fmod": lambda a, b: NAN if math.isinf(a) or b == 0 else math.fmod(a, b),
    "min": lambda a, b: _nan_if(a, b, min(a, b)),
    "max": lambda a, b: _nan_if(a, b, max(a, b)),
    "not": lambda a, _: float(not a),
    "and": lambda a, b: float(bool(a) and bool(b)),
    "or": lambda a, b: float(bool(a) or bool(b)),
    "lt": lambda a, b: float(a < b),
    "le": lambda a, b: float(a <= b),
    "gt": lambda a, b: float(a > b),
    "ge": lambda a, b: float(a >= b),
    "eq": lambda a, b: float(a == b),
    "ne": lambda a, b: float(a != b),
    "where": lambda a, b: b if a else a,
}


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_simple_operations_on_special_values(dtype):
    a, b = (grid.ravel().astype(NUMPY[dtype]) for grid in np.meshgrid(SPECIAL, SPECIAL))
    nodes = tuple(Node(name, {1: (X,), 2: (X, Y), 3: (X, Y, X)}[OPS[name].arity]) for name in SIMPLE)
    one = _elementwise(nodes, 2, dtype)
    results = [np.zeros((1, 1, 1, a.size), a.dtype) for _ in nodes]
    run(build(one), one, [a.reshape(1, 1, 1, -1), b.reshape(1, 1, 1, -1), *results], {"n": a.size})
    for (name, function), result in zip(SIMPLE.items(), results, strict=True):
        want = np.array([float(function(*pair)) for pair in zip(a.tolist(), b.tolist(), strict=True)])
        assert np.array_equal(result.ravel().astype(np.float64), want, equal_nan=True), name


@pytest.mark.parametrize("name", OPS)
def test_every_operation_is_spelled_and_tested(name):
    spelling = "an instruction in backends/cpu/spelling.py, or a function in backends/cpu/libm.py"
    expected = "SIMPLE, or MP, BOUND and EDGES for a function that rounds, in tests/backend/test_llvm_functions.py"
    assert name in SPELLED, f"operation {name!r} cannot be compiled for a CPU: write {spelling}"
    assert name in {*MP, *SIMPLE, "pow", "add", "sub", "mul", "div"}, f"{name!r} has no expected values: {expected}"
    assert (name in MP) == (name in BOUND) == (name in EDGES), f"{name!r} needs a row in all: {expected}"


def test_the_measure_of_error_can_fail():
    x = np.array([1.0], np.float32)
    assert _worst("exp", "f32", x, np.array([math.e + 1e-5], np.float32)) > BOUND["exp"]
    assert _worst("exp", "f32", x, np.array([NAN], np.float32)) == INF
