"""Every mistake has one error, of a class that callers can catch, that names the argument, before anything runs."""

from __future__ import annotations

import math
import re
from fractions import Fraction

import numpy as np
import pytest
import torch

import kernmantle as km
from kernmantle.errors import (
    BackendError,
    DeviceError,
    DtypeError,
    EquationError,
    GradientError,
    KernmantleError,
    OutOfMemoryError,
    OutputError,
    ParameterError,
    ShapeError,
    TraceError,
)
from kernmantle.torch_ops import execute

X, Y = torch.ones(4, 5), torch.ones(6, 5)
PLAIN = km.Contraction("mk,nk->mn", lambda a, b: abs(a - b))
POWER = km.Contraction("mk,nk->mn", lambda a, b, p: abs(a - b) ** p)
WEIGHTED = km.Contraction("mk,nk,w:k->mn", lambda a, b, w: w * abs(a - b))
PAIR = km.Contraction("mk,nk->mn", lambda a, b: (abs(a - b), a * b))


@pytest.fixture(autouse=True)
def nothing_runs(monkeypatch):
    """On the reference backend, where only a test that asks for it may come as far as running a program."""

    def refuse(*args, **kwargs):
        raise AssertionError("a program was run")

    monkeypatch.setattr(execute, "prepare", refuse)
    with km.config(backend="reference"):
        yield


def rejects(kind, pattern, call):
    with pytest.raises(kind, match=pattern) as caught:
        call()
    assert isinstance(caught.value, KernmantleError)
    return str(caught.value)


THERE, COMPLEX, MEMORY = Y.to("meta"), torch.ones(4, 5, dtype=torch.complex64), torch.ones(10, 10)
TRACKED, SQUARE, ARRAY = X.clone().requires_grad_(), torch.empty(4, 6), torch.ones(3)
FOLD, TWO = km.Fold(lambda s, a, b: s + a * b, 0.0), km.Fold(lambda s, a, b: (s, a), 0.0)


def of(map_, equation="mk,nk->mn", **more):
    return lambda: km.Contraction(equation, map_, **more)


MISTAKES = {
    "an unsupported type": (
        DtypeError, r"operand 0 has dtype torch.complex64; supported are .*float32", lambda: PLAIN(COMPLEX, COMPLEX),
    ),
    "two types": (
        DtypeError, "operand 0 is float32 but operand 1 is float64; convert one of them", lambda: PLAIN(X, Y.double()),
    ),
    "a named operand of another type": (
        DtypeError, "operand 0 is float32 but operand 'w' is int64", lambda: WEIGHTED(X, Y, w=torch.arange(5)),
    ),
    "two devices": (
        DeviceError, "operand 0 is on cpu but operand 1 is on meta; move one with .to()", lambda: PLAIN(X, THERE),
    ),
    "a parameter elsewhere": (
        DeviceError, "operand 0 is on cpu but parameter 'p' is on meta", lambda: POWER(X, Y, p=ARRAY.to("meta")),
    ),
    "out over an operand": (
        OutputError, "out overlaps an operand in memory", lambda: PLAIN(MEMORY[:4, :5], Y, out=MEMORY[3:7, 4:10]),
    ),
    "out over a parameter": (
        OutputError, "out overlaps an operand in memory",
        lambda: POWER(X, Y, p=MEMORY[0, :1], out=MEMORY[:4, :6][None]),
    ),
    "one out of two": (
        OutputError, "out has 1 arrays, the contraction has 2 outputs", lambda: PAIR(X, Y, out=(SQUARE,)),
    ),
    "an array as two": (
        OutputError, "out must be a tuple of arrays, one per output, not Tensor",
        lambda: PAIR(X, Y, out=torch.empty(2, 4, 6)),
    ),
    "out twice": (OutputError, "two arrays of out overlap in memory", lambda: PAIR(X, Y, out=(SQUARE, SQUARE))),
    "out with a gradient": (
        GradientError, "out= cannot be combined with a gradient", lambda: PLAIN(TRACKED, Y, out=SQUARE),
    ),
    "no map": (ParameterError, "map=None is for reduce=Fold", of(None)),
    "a fold over two axes": (
        EquationError, r"fold needs exactly one reduced axis, 'mk,nk->m' reduces 2", of(None, "mk,nk->m", reduce=FOLD),
    ),
    "a fold from nothing": (
        ParameterError, "init must be a number", of(None, reduce=km.Fold(lambda s, a, b: s, None)),
    ),
    "a fold to two values": (ParameterError, "the step of the fold returns 2 values", of(None, reduce=TWO)),
    "a position in three axes": (
        EquationError,
        r"argmin needs exactly one reduced axis, .* reduces 3; keep all but the last .*reduce=\('min', 'argmin'\)",
        of(lambda a, b: a, "mk,nk->", reduce="argmin"),
    ),
    "more parameters than operands": (
        ParameterError, "parameter 'c' is missing: pass it by name or in params=",
        lambda: km.contract("mk,nk->mn", lambda a, b, c: a, X, Y),
    ),
    "a number as map": (TraceError, "the map must be a function, not int", of(3)),
    "parameters that do not broadcast": (
        ShapeError, r"batch axes do not broadcast in 'mk,nk->mn'; got .*parameter 'p': \(3,\)",
        lambda: POWER(X.expand(2, 4, 5), Y, p=ARRAY),
    ),
    "a parameter twice": (
        ParameterError, "parameter 'p' is given by name and in params=", lambda: POWER(X, Y, params={"p": 1}, p=2),
    ),
    "the name of an accumulator in an epilogue": (
        ParameterError, "parameter 'x1' of the epilogue", of(lambda a, b: a, epilogue=lambda s, x1: s),
    ),
    "an array as default": (
        ParameterError, "the default of parameter 'w' is a Tensor; pass it at the call",
        of(lambda a, b, w=ARRAY: a * w),
    ),
    "two defaults": (
        ParameterError, "parameter 'p' has default 2 in the map, 3 in the epilogue",
        of(lambda a, b, p=2: a**p, epilogue=lambda s, p=3: s**p),
    ),
    "no named operand": (ParameterError, "parameter 'w' is missing", lambda: WEIGHTED(X, Y)),
    "a number as named operand": (DtypeError, "operand 'w' is a number", lambda: WEIGHTED(X, Y, w=2.0)),
    "a short named operand": (
        ShapeError, r"axis 'k' of .* has size 5 in operand 0 but 4 in operand 'w'",
        lambda: WEIGHTED(X, Y, w=torch.ones(4)),
    ),
    "a reduced operand in an epilogue": (
        EquationError, "the epilogue of 'mk,nk,w:k->mn' reads an operand over 'k', but axis 'k' is reduced",
        of(lambda a, b, w: a * w, "mk,nk,w:k->mn", epilogue=lambda s, w: s * w),
    ),
    "a precision": (
        ParameterError, "precision must be one of None, 'ieee', 'tf32', 'half', not 'high'",
        lambda: PLAIN(X, Y, precision="high"),
    ),
    "a gradient that numpy would lose": (
        GradientError, "operand 0 is a ndarray",
        lambda: POWER(np.ones((4, 5)), np.ones((6, 5)), p=torch.tensor(1.5, dtype=torch.float64, requires_grad=True)),
    ),
    "a number beyond int32": (
        DtypeError, "too large for integer operands",
        lambda: km.Contraction("mk,nk->mn", lambda a, b, c: a * b + c)(X.int(), Y.int(), c=2**40),
    ),
    "a mask of other rows": (ShapeError, r"mask has shape", lambda: km.attention(X, Y, Y, mask=torch.ones(5, 6))),
    "a mask of other columns": (ShapeError, r"mask has shape", lambda: km.attention(X, Y, Y, mask=torch.ones(4, 5))),
    "no eps": (ParameterError, "eps must be a positive number, not 0", lambda: km.ot.sinkhorn(X, Y, eps=0)),
    "a negative eps": (ParameterError, "eps must be a positive number", lambda: km.ot.sinkhorn(X, Y, eps=-0.5)),
    "a position's gradient": (
        GradientError, "a reduction by argmin has no gradient",
        lambda: km.contract("mn->m", lambda s: s, PLAIN.lazy(TRACKED, Y), reduce="argmin"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named(name):
    rejects(*MISTAKES[name])


ARRAYS = {
    "None": (None, r"operand 1 must be .* not NoneType"),
    "list": ([[1.0], []], r"operand 1 is a list that cannot be converted to an array"),
    "string": ("x", r"operand 1 must be .* not str"),
    "number": (3.0, r"operand 1 is a number; pass an array"),
    "object array": (np.array([[object()]]), r"operand 1 is a numpy array of object"),
    "sparse": (torch.eye(5).to_sparse(), r"operand 1 has layout torch.sparse_coo"),
    "complex": (torch.ones(6, 5, dtype=torch.complex64), r"operand 0 is float32 but operand 1 is complex64"),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_what_is_no_array(name):
    value, pattern = ARRAYS[name]
    rejects(DtypeError, pattern, lambda: PLAIN(X, value))


@pytest.mark.parametrize(
    ("operands", "pattern"),
    [
        ((X,), r"'mk,nk->mn' takes 2 operands, got 1"),
        ((X, Y, Y), r"'mk,nk->mn' takes 2 operands, got 3"),
        ((X, Y[0]), r"operand 1 has 1 axes, equation 'mk,nk->mn' wants at least 2 \('nk'\); got .*operand 1: \(5,\)"),
        ((X, torch.tensor(1.0)), r"operand 1 has 0 axes"),
        ((X, Y[:, :4]), r"axis 'k' of 'mk,nk->mn' has size 5 in operand 0 but 4 in operand 1; got operand 0: \(4, 5\)"),
        ((X[:, :1], Y), r"axis 'k' of 'mk,nk->mn' has size 1 in operand 0 but 5 in operand 1"),
        ((X.expand(2, 4, 5), Y.expand(3, 6, 5)), r"batch axes do not broadcast in 'mk,nk->mn'; got .*\(2, 4, 5\)"),
    ],
)
def test_shapes(operands, pattern):
    rejects(ShapeError, pattern, lambda: PLAIN(*operands))


def base():
    return torch.zeros(40)


OUTS = {
    "shape": (lambda: torch.empty(6, 4), OutputError, r"out has shape \(6, 4\), the result has \(4, 6\)"),
    "batch": (lambda: torch.empty(1, 4, 6), OutputError, r"out has shape \(1, 4, 6\)"),
    "dtype": (
        lambda: torch.empty(4, 6).double(),
        OutputError,
        r"out has dtype torch.float64, the result has torch.float32",
    ),
    "device": (lambda: torch.empty(4, 6, device="meta"), OutputError, "out is on meta, the operands are on cpu"),
    "expanded": (lambda: torch.empty(4, 1).expand(4, 6), OutputError, "out has elements that share memory"),
    "windows": (lambda: base().as_strided((4, 6), (3, 1)), OutputError, "out has elements that share memory"),
    "gradient": (lambda: torch.empty(4, 6, requires_grad=True), GradientError, "out requires a gradient"),
    "number": (lambda: 3.0, DtypeError, "out must be"),
    "read-only": (lambda: np.broadcast_to(np.float32(0), (4, 6)), OutputError, "out is a read-only numpy array"),
}


@pytest.mark.parametrize("name", OUTS)
def test_out(name):
    make, kind, pattern = OUTS[name]
    rejects((kind, OutputError), pattern, lambda: PLAIN(X, Y, out=make()))


@pytest.mark.parametrize(
    ("reduce", "pattern"),
    [
        ("summ", r"reduce='summ' is none of sum, prod.*did you mean 'sum'\?"),
        ("logsumexpp", r"did you mean 'logsumexp'\?"),
        ("argmim", r"did you mean 'argmin'\?"),
        ("smallest", r"the five smallest entries of each row are km\.Smallest\(5\)"),
        (km.Largest, r"the five largest entries of each row are km\.Largest\(5\)"),
        (None, "reduce=None is none of"),
        (3, "reduce=3 is none of"),
        (("sum", "max"), "reduce names 2 reductions, the map returns 1 values"),
        ([], "reduce names 0 reductions"),
        ([km.Fold(lambda s, a, b: s, 0)], "a Fold takes the place of the map and cannot be one of several"),
        (km.Fold(lambda s, a, b: s, 0), "a Fold takes the place of the map: pass map=None"),
        (km.Semiring(lambda a, b: (a, b), 0), "the plus of the semiring returns 2 values"),
        (km.Semiring(lambda a, b: a + b, "0"), "zero must be a number, not '0'"),
        (km.Semiring(lambda a, b: a + b, math.nan), "zero is NaN"),
        (km.Semiring(km.maximum, 0.0), r"zero=0.0 is not an identity .* pass -inf"),
        (km.Semiring(km.minimum, 0), r"zero=0 is not an identity .* pass inf"),
        (km.Semiring(lambda a, b: a * b, 0), "pass 1, which is one"),
        (km.Semiring(lambda a, b: a + b, 1), "pass 0, which is one"),
        (km.Semiring(lambda a, b: km.logaddexp(a, b), 0), "pass -inf, which is one"),  # noqa: PLW0108
        (km.Semiring(lambda a, b: (a + b) / 2, 0), "none of 0, 1, inf, -inf is one"),
        (km.Semiring(lambda a, b: km.where(a != 0, a, b), 0), "depends on the order"),
        (
            km.Semiring(lambda a, b: a + b + 0.01 * a * b * km.maximum(a, b), 0),
            r"is not associative: plus\(plus\(.* use a Fold, which keeps the order",
        ),
    ],
)
def test_reductions(reduce, pattern):
    rejects(ParameterError, pattern, lambda: km.Contraction("mk,nk->mn", lambda a, b: a * b, reduce=reduce))


def branching(a, b):
    if a > b:
        return a
    return b


def mutating(a, b):
    a[0] = b
    return a


LAMBDAS = {
    "branch": (branching, r"test_bad_input.py:\d+: the truth of a traced value was asked.*\n *if a > b:\n.*km.where"),
    "mutation": (mutating, r"test_bad_input.py:\d+: a traced value cannot be assigned to.*\n *a\[0\] = b"),
    "in place": (lambda a, b: a.add_(b), "add_ works in place"),
    "too few parameters": (lambda a: a, "takes 1 positional argument but there are 2"),
    "no return": (lambda a, b: None, "returned None"),
    "a string": (lambda a, b: "x", "returned str"),
    "float": (lambda a, b: float(a), r"float\(\) was asked of a traced value"),
    "math": (lambda a, b: math.exp(a), r"float\(\) was asked of a traced value"),
    "an array": (lambda a, b: a * torch.ones(3), r"a captured array \(Tensor of shape \(3,\)\)"),
    "an unknown function": (lambda a, b: torch.fft.fft(a), "unknown to tracing"),
    "any number of names": (lambda a, b, **rest: a, r"takes \*\*arguments"),
}


@pytest.mark.parametrize("name", LAMBDAS)
@pytest.mark.parametrize("where", ["map", "epilogue"])
def test_lambdas_that_cannot_be_traced(name, where):
    function, pattern = LAMBDAS[name]
    map_, epilogue = (function, None) if where == "map" else (lambda a, b: (a, b), function)
    message = rejects(TraceError, f"(?s){pattern}", lambda: km.Contraction("mk,nk->mn", map_, epilogue=epilogue))
    assert "test_bad_input.py" in message


@pytest.mark.parametrize(
    ("params", "kind", "pattern"),
    [
        ({}, ParameterError, "parameter 'p' is missing"),
        ({"p": 1.0, "q": 2.0}, ParameterError, "unknown parameter 'q'; this contraction has p"),
        ({"p": None}, DtypeError, "parameter 'p' must be a torch tensor"),
        ({"p": "1"}, DtypeError, "parameter 'p' must be .* not str"),
        ({"p": Fraction(1, 2)}, DtypeError, "parameter 'p' must be .* not fractions.Fraction"),
        ({"p": 1j}, DtypeError, "parameter 'p' must be .* not complex"),
        ({"p": np.complex128(1j)}, ParameterError, "parameter 'p' is 1j, which is not a real number"),
        ({"p": 10**400}, ParameterError, "parameter 'p' is 10+, which is not a real number that float64 can represent"),
        ({"p": torch.ones(3, dtype=torch.complex64)}, ParameterError, "parameter 'p' has dtype torch.complex64"),
        ({"p": torch.ones(3, dtype=torch.bool)}, ParameterError, "parameter 'p' has dtype torch.bool"),
    ],
)
def test_parameters(params, kind, pattern):
    rejects(kind, pattern, lambda: POWER(X, Y, **params))


def test_names_that_stand_for_operands():
    for name in ("x0", "x12", "s0"):
        function = eval(f"lambda a, b, {name}: a * {name}")
        rejects(
            ParameterError,
            f"parameter {name!r} of the map has the name of an operand or accumulator",
            lambda f=function: km.Contraction("mk,nk->mn", f),
        )


@pytest.mark.parametrize("equation", [3, None, ["mk", "nk"], lambda a: a])
def test_an_equation_that_is_no_string(equation):
    rejects(
        EquationError,
        "the equation is a string such as 'mk,nk->mn' and comes first",
        lambda: km.Contraction(equation, lambda a, b: a),
    )


def test_equations_quote_themselves():
    message = rejects(EquationError, "axis 'm' appears twice", lambda: km.contract("mk,nmm->mn", lambda a, b: a, X, Y))
    assert re.search(r"\n  mk,nmm->mn\n       \^", message)


NO_GRADIENT = {
    "argmin": ("argmin", lambda a, b: a * b),
    "argmax": ("argmax", lambda a, b: a * b),
    "any": ("any", lambda a, b: a > b),
    "all": ("all", lambda a, b: a > b),
    "fold": (km.Fold(lambda s, a, b: s + a * b, 0.0), None),
    "semiring": (km.Semiring(lambda a, b: a + b, 0.0), lambda a, b: a * b),
}


@pytest.mark.parametrize("name", NO_GRADIENT)
@pytest.mark.parametrize("what", ["operand", "parameter"])
def test_no_gradient(name, what):
    reduce, function = NO_GRADIENT[name]
    epilogue = (lambda s, p: s * p) if what == "parameter" and name in ("fold", "semiring") else None
    contraction = km.Contraction("mk,nk->mn", function, reduce=reduce, epilogue=epilogue)
    x = X.clone().requires_grad_(what == "operand" or epilogue is None)
    params = {} if epilogue is None else {"p": torch.tensor(2.0, requires_grad=True)}
    pattern = rf"a reduction by {name} has no gradient; detach the operands, use torch.no_grad\(\)"
    rejects(GradientError, pattern, lambda: contraction(x, Y, **params))


INTEGERS = {
    "division": (lambda a, b: a / b, {}, "sum", "rcp|div"),
    "root": (lambda a, b: abs(a - b) ** 0.5, {}, "sum", "sqrt"),
    "exp": (lambda a, b: km.exp(a - b), {}, "sum", "exp"),
    "logsumexp": (lambda a, b: a - b, {}, "logsumexp", "logsumexp"),
    "fraction": (lambda a, b: a * 0.5 + b, {}, "sum", "the number 0.5 meets integer operands"),
    "parameter": (lambda a, b, c: a * c, {"c": 1.5}, "sum", "the number 1.5 meets integer operands"),
    "infinite": (lambda a, b, c: a * c, {"c": math.inf}, "sum", "the number inf meets integer operands"),
    "NaN": (lambda a, b, c: a * c, {"c": math.nan}, "sum", "the number nan meets integer operands"),
    "tensor": (
        lambda a, b, c: a * c,
        {"c": torch.tensor(1.5)},
        "sum",
        "parameter 'c' is floating point, the operands are",
    ),
    "zero": (lambda a, b: a * b, {}, km.Semiring(lambda a, b: 2 * a * b, 0.5), "the number 0.5 meets integer"),
    "too large": (lambda a, b, c: a * c, {"c": 2**60 + 1}, "sum", "is too large for integer operands"),
}


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.bool])
def test_integers_that_need_fractions(name, dtype):
    function, params, reduce, pattern = INTEGERS[name]
    contraction = km.Contraction("mk,nk->mn", function, reduce=reduce)
    rejects(DtypeError, pattern, lambda: contraction(X.to(dtype), Y.to(dtype), **params))


@pytest.mark.parametrize("reduce", ["argmin", "argmax"])
@pytest.mark.parametrize("rows", [0, 4])
def test_positions_in_an_empty_axis(reduce, rows):
    contraction = km.Contraction("mk,nk->mn", lambda a, b: a * b, reduce=reduce)
    pattern = rf"{reduce} over axis 'k' of 'mk,nk->mn', which has size 0: no position exists"
    rejects(ShapeError, pattern, lambda: contraction(X[:rows, :0], Y[:, :0]))


class TestBackends:
    @pytest.fixture(autouse=True)
    def nothing_runs(self, monkeypatch):
        def refuse(*args):
            raise AssertionError("a kernel was built")

        monkeypatch.setattr(execute, "_kernel", refuse)
        monkeypatch.setattr(execute, "_reference_runner", refuse)

    def test_a_device_without_an_engine(self):
        there = X.to("meta"), Y.to("meta")
        rejects(
            DeviceError, 'no kernels for tensors on meta: .* km.config\\(backend="reference"\\)', lambda: PLAIN(*there)
        )
        with km.config(backend="llvm"):
            rejects((DeviceError, BackendError), "meta", lambda: PLAIN(*there))

    def test_cuda_on_the_cpu(self):
        with km.config(backend="cuda"):
            rejects(BackendError, "backend='cuda' cannot run on cpu; 'llvm' runs there", lambda: PLAIN(X, Y))

    def test_a_cuda_tensor_without_the_engine(self, monkeypatch):
        def missing():
            raise BackendError("no CUDA engine: pip install 'kernmantle[cuda13]'")

        monkeypatch.setattr("kernmantle.torch_ops.cuda_contract.core", missing)
        from kernmantle.torch_ops import targets

        targets._target.cache_clear()
        rejects(BackendError, "no CUDA engine", lambda: targets.target_for(torch.device("cuda")))

    def test_legacy_vmap(self):
        x = X.double().requires_grad_()
        out = 2 * x
        rejects(
            GradientError,
            "is_grads_batched",
            lambda: torch._vmap_internals._vmap(lambda a: PLAIN(a, Y.double()), 0, 0)(out.detach().expand(3, 4, 5)),
        )

    @pytest.mark.filterwarnings("ignore")
    def test_jit_trace(self):
        rejects(BackendError, "torch.jit.trace cannot record", lambda: torch.jit.trace(lambda x: PLAIN(x, Y), (X,)))


class TestMemory:
    @pytest.fixture(autouse=True)
    def nothing_runs(self):
        """These reach the allocation of the result."""

    @pytest.mark.parametrize("backend", ["reference", "auto"])
    def test_a_result_that_is_too_large(self, backend):
        huge = torch.ones(1, 1).expand(2**24, 1)
        with km.config(backend=backend):
            message = rejects(
                OutOfMemoryError,
                r"cannot allocate memory for the result of shape \(16777216, 16777216\)",
                lambda: PLAIN(huge, huge),
            )
        assert "1048576.0 GiB" in message

    def test_the_limit_is_that_of_memory(self):
        with km.config(backend="reference"):
            assert POWER(X, Y, p=math.nan).isnan().all()


@pytest.mark.parametrize(
    "function",
    [
        lambda a, b: a & b, lambda a, b: a | b, lambda a, b: ~a + b, lambda a, b: a ^ b, lambda a, b: (a > 1) & b,
        torch.bitwise_or,
    ],
)  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.float32])
def test_bits_of_numbers_are_not_joined(function, dtype):
    x = torch.tensor([[1, 2], [4, 3]], dtype=dtype)
    with pytest.raises(DtypeError, match="not the bits of numbers"):
        km.contract("mk,nk->mn", function, x, x)


def test_bits_are_not_joined_by_a_semiring_or_after_it():
    x = torch.tensor([[1, 2], [4, 3]])
    with pytest.raises(DtypeError, match="not the bits of numbers"):
        km.contract("mk,nk->mn", lambda a, b: a + b, x, x, reduce=km.Semiring(lambda s, t: s | t, 0))
    with pytest.raises(DtypeError, match="not the bits of numbers"):
        km.contract("mk,nk->mn", lambda a, b: a + b, x, x, epilogue=lambda s: ~s)


INDICES = {
    "x": lambda x: km.argkmin(x, Y, 2),
    "y": lambda x: km.argkmin(Y, x, 2, metric="cityblock"),
    "a lambda's": lambda x: km.argkmin(x, Y, 2, metric=lambda a, b: abs(a - b)),
    "a kernel's": lambda x: km.Gaussian(1.0).argkmax(x, Y, 2),
    "a bandwidth": lambda x: km.Gaussian(x[0, 0].abs() + 1).argkmin(x.detach(), Y, 2),
}


@pytest.mark.parametrize("name", INDICES)
def test_indices_alone_have_no_gradient(name):
    rejects(
        GradientError,
        r"indices have no gradient, and one by \w+ is recorded: pass return_values=True for values that have one, \w+",
        lambda: INDICES[name](X.clone().requires_grad_()),
    )


SCORES = PLAIN.lazy(X, Y)
REDUCED = ("prod", "min", "max", "logsumexp", "any", "all", "argmin", "argmax", km.Smallest(2), km.Largest(2))


@pytest.mark.parametrize("reduce", REDUCED, ids=str)
def test_reductions_of_scores_that_take_no_values(reduce):
    rejects(
        EquationError,
        r"a reduction by \w+ takes no operand with axes that the scores lack.* evaluate the scores first",
        lambda: km.contract("mn,nc->mc", lambda s, v: s * v, SCORES, torch.ones(6, 2), reduce=reduce),
    )


COUNTS = (0, -1, 7, 1.5, True, None, "2")


@pytest.mark.parametrize("count", COUNTS, ids=repr)
def test_counts_of_neighbours(count):
    got = re.escape(repr(count))
    rejects(ParameterError, rf"count must be an integer from 1 to 6, .* not {got}", lambda: km.argkmin(X, Y, count))
    if count != 7:
        rejects(ParameterError, rf"count of Smallest must be a positive integer, not {got}", lambda: km.Smallest(count))
