"""Formulas of KeOps that lack some variables, have constants, or parts that cancel, against dense arrays."""

from __future__ import annotations

import pytest
import torch

from kernmantle.compat.pykeops.torch import Genred, LazyTensor, Vj
from kernmantle.testing import assert_close

M, N = 4, 5
SOURCE = torch.Generator().manual_seed(0)
X, Y, Z = (torch.randn(*shape, generator=SOURCE, dtype=torch.float64) for shape in ((M, 3), (N, 2), (M, 1)))
ALIASES = ["x = Vi(3)", "y = Vj(2)", "z = Vi(1)"]
WHOLE = {"x": X[:, None].expand(M, N, 3), "y": Y.expand(M, N, 2), "z": Z[:, None].expand(M, N, 1)}
ONE = torch.ones(M, N, 1, dtype=torch.float64)

FORMULAS = {
    "x": lambda x, y, z: x,
    "y": lambda x, y, z: y,
    "Square(z)": lambda x, y, z: z * z,
    "IntCst(3)": lambda x, y, z: 3 * ONE,
    "IntCst(1) + IntCst(2) * IntCst(2)": lambda x, y, z: 5 * ONE,
    "Elem(y, 1) + IntCst(3) * IntCst(3)": lambda x, y, z: y[..., 1:] + 9,
    "x - TensorProd(Elem(y, 0) * x, Sqrt(Abs(IntCst(3)) + IntCst(1)))": lambda x, y, z: x - 2 * y[..., :1] * x,
    "Elem(Concat(Elem(z, 0), Elem(z, 0)), 1) * Elem(y, 1)": lambda x, y, z: z * y[..., 1:],
    "Elem(y, 0) + Elem(Concat(z, z), 0)": lambda x, y, z: y[..., :1] + z,
    "Elem(y, 0) * ArgMax(Concat(y, z))": lambda x, y, z: y[..., :1] * torch.cat([y, z], -1).argmax(-1, True),
    "SqDist(y, z * IfElse(z, z, ArgMax(Concat(y, z))))": lambda x, y, z: (
        (y - z * torch.where(z >= 0, z, torch.cat([y, z], -1).argmax(-1, True))).square().sum(-1, True)
    ),
}
REDUCED = {
    "Sum": lambda entries, axis: entries.sum(axis),
    "LogSumExp": lambda entries, axis: entries.logsumexp(axis),
    "Max": lambda entries, axis: entries.amax(axis),
    "ArgMin": lambda entries, axis: entries.argmin(axis),
}


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("formula", FORMULAS)
def test_every_variable_says_how_many_rows_there_are(formula, axis):
    """Whether or not the formula has it, as sizes are found in KeOps."""
    entries = FORMULAS[formula](**WHOLE)
    for name, reduce in REDUCED.items():
        if name == "LogSumExp" and entries.shape[-1] > 1:
            continue
        found = Genred(formula, ALIASES, reduction_op=name, axis=axis)
        for _ in range(3):  # as it is, noted, and repeated
            assert_close(found(X, Y, Z), reduce(entries, axis), depth=10)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("formula", ["IntCst(2)", "z", "Elem(y, 1)", "z - Elem(y, 0)"])
def test_weights_say_it_too(formula, axis):
    entries = {"IntCst(2)": 2 * ONE, "z": WHOLE["z"], "Elem(y, 1)": WHOLE["y"][..., 1:],
               "z - Elem(y, 0)": WHOLE["z"] - WHOLE["y"][..., :1]}[formula]  # fmt: skip
    for weights, values in (("y", WHOLE["y"]), ("x", WHOLE["x"])):
        found = Genred(formula, ALIASES, reduction_op="SumSoftMaxWeight", axis=axis, formula2=weights)(X, Y, Z)
        assert_close(found, (entries.softmax(axis) * values).sum(axis), depth=10)


def test_gradients_of_what_is_repeated():
    x, y, z = (values.clone().requires_grad_() for values in (X, Y, Z))
    weights = torch.randn(M, 3, generator=SOURCE, dtype=torch.float64)
    (Genred("x * Square(z)", ALIASES, axis=1)(x, y, z) * weights).sum().backward()
    assert_close(x.grad, N * weights * Z * Z)
    assert_close(z.grad, (2 * N * Z * X * weights).sum(1, True), depth=4)
    assert y.grad is None or not y.grad.any()


def test_lazy_tensors_have_the_axes_of_their_own_variables():
    """A missing axis has one position, but for weights that have it."""
    assert_close(LazyTensor(X[:, None]).sum(1), X)
    weighted = Vj(Y[:, :1]).sumsoftmaxweight(LazyTensor(X[:, None]), axis=1)
    assert_close(weighted, X, depth=10)


def test_constants_have_the_type_of_the_variables():
    found = Genred("z * Exp(IntCst(1)) + IntCst(1)", ALIASES, axis=1)(X.float(), Y.float(), Z.float())
    assert found.dtype == torch.float32
    assert_close(found.double(), N * (Z.float().double() * torch.e + 1), dtype=torch.float32, depth=N)
