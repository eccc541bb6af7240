"""Values of contractions: equations, reductions, types, layouts and edges, against numpy in float64."""

from __future__ import annotations

import inspect
import math
import types

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist

import kernmantle as km
from kernmantle.ir.reductions import REDUCTIONS
from kernmantle.testing import CASES, assert_close

from ..oracle import entries, oracle, over_nothing

SIZES = {"m": 5, "n": 7, "k": 9, "l": 3, "o": 2}
EQUATIONS = {
    "gram": ("mk,nk->mn", lambda a, b: abs(a - b)),
    "gram of columns": ("km,kn->mn", lambda a, b: abs(a - b)),
    "mixed columns": ("mk,kn->mn", lambda a, b: abs(a - 2 * b)),
    "swapped output": ("mk,nk->nm", lambda a, b: a - 2 * b),
    "weights": ("mk,nk,k->mn", lambda a, b, w: w * abs(a - b)),
    "every subset": ("mk,nk,m,n,mn,k->mn", lambda a, b, row, column, table, w: w * abs(a - b + row * column) - table),
    "over all axes": ("mk,nk,mnk->mn", lambda a, b, c: a * b + c),
    "over all axes, shuffled": ("mk,nk,knm->nm", lambda a, b, c: a * b + c),
    "rows": ("mk,nk->m", lambda a, b: np.exp(-abs(a - b))),
    "columns": ("mk,nk->n", lambda a, b: np.exp(-abs(a - b))),
    "features": ("mk,nk->k", lambda a, b: (a - b) ** 2),
    "rows and features": ("mk,nk,mn->mk", lambda a, b, g: g * np.sign(a - b)),
    "features and rows": ("mk,nk,mn->km", lambda a, b, g: g * np.sign(a - b)),
    "total": ("mk,nk->", lambda a, b: abs(a - b) ** 1.5),
    "total of one": ("mk->", lambda a: a * a),
    "scalar": ("->", lambda a: a * 3),
    "elementwise": ("mk->mk", lambda a: np.tanh(a)),  # noqa: PLW0108
    "transposed": ("mk->km", lambda a: np.tanh(a)),  # noqa: PLW0108
    "outer": ("m,n->mn", lambda a, b: np.sin(a) * b),
    "outer with a scalar": ("m,n,->mn", lambda a, b, c: a * b + c),
    "all axes kept": ("mk,nk->mnk", lambda a, b: abs(a - b)),
    "three products": ("ok,km,nm,nk->onm", lambda c, a, d, b: c * a * np.sign(d - b)),
    "three reduced": ("mk,nl,kl->", lambda a, b, c: np.sin(a * b + c)),
    "three reduced, one kept": ("mk,nl,kl->m", lambda a, b, c: np.sin(a * b + c)),
    "four reduced": ("mk,nl,okl->", lambda a, b, c: np.cos(a + b * c)),
    "unread operand": ("mk,nk,m->mn", lambda a, b, c: a * b),
    "axis of an unread operand": ("mk,nk,l->mn", lambda a, b, c: a * b),
    "constant map": ("mk,nk->mn", lambda a, b: 1.5),
    "matmul": ("mk,nk->mn", lambda a, b: a * b),
    "matmul of columns": ("km,kn->nm", lambda a, b: a * b),
    "matrix by vector": ("mk,k->m", lambda a, b: a * b),
    "vector by matrix": ("k,kn->n", lambda a, b: a * b),
    "inner product": ("k,k->", lambda a, b: a * b),
}


def arrays(equation, batches=(), seed=0, sizes=SIZES, dtype=np.float64):
    random = np.random.default_rng(seed)
    _, every, _ = entries(equation)
    shapes = [tuple(sizes[axis] for axis in axes) for axes in every]
    leads = [*batches, *((),) * (len(shapes) - len(batches))]
    return [random.standard_normal((*lead, *shape)).astype(dtype) for lead, shape in zip(leads, shapes, strict=True)]


def tensors(values, device="cpu"):
    return [torch.from_numpy(np.array(value)).to(device) for value in values]


@pytest.mark.parametrize("name", EQUATIONS)
def test_an_equation(name, backend, device):
    equation, function = EQUATIONS[name]
    values = arrays(equation)
    found = km.contract(equation, function, *tensors(values, device))
    assert found.dtype == torch.float64
    assert_close(found, oracle(equation, function, values), depth=64)


@pytest.mark.parametrize(
    ("name", "batches"),
    [
        ("gram", [(4,)]),
        ("gram", [(4,), (1,)]),
        ("gram", [(), (4,)]),
        ("gram", [(2, 1), (3,)]),
        ("gram", [(2, 3, 1, 2), (1, 1, 4, 1)]),
        ("weights", [(), (), (3,)]),
        ("weights", [(3,), (), (2, 1)]),
        ("total", [(2, 3), (3,)]),
        ("rows and features", [(), (4,), (4,)]),
        ("matmul", [(2, 1), (3,)]),
        ("matrix by vector", [(3,), (2, 1)]),
        ("inner product", [(3,), (2, 1)]),
        ("vector by matrix", [(), (3,)]),
        ("unread operand", [(), (), (3,)]),
        ("scalar", [(4,)]),
        ("three products", [(2,), (2,), (), (1,)]),
        ("constant map", [(3,)]),
    ],
)
def test_batch_axes_broadcast(name, batches, backend, device):
    equation, function = EQUATIONS[name]
    values = arrays(equation, batches)
    found = km.contract(equation, function, *tensors(values, device))
    assert_close(found, oracle(equation, function, values), depth=64)


# What is reduced where a * b + b would be of another type, too large or the same for all.
MAPS = {
    "sum": lambda a, b: a * b + a,
    "prod": lambda a, b: 1 + a * b / 4,
    "min": lambda a, b: abs(a - b),
    "logsumexp": lambda a, b: 3 * a * b,
    "any": lambda a, b: a * b > 2,
    "all": lambda a, b: a * b > -2,
    "argmin": lambda a, b: abs(a - b),
}


@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("equation", ["mk,nk->mn", "mk,nk->m", "mk,nk->k", "mk,nk->"])
def test_a_reduction(reduce, equation, backend, device):
    if reduce.startswith("arg") and equation != "mk,nk->mn":
        equation = {"mk,nk->m": "mk,k->m", "mk,nk->k": "mk,nk,mn->mn", "mk,nk->": "k,k->"}[equation]
    count = equation.count(",") + 1
    function = MAPS.get(reduce, lambda a, b: a * b + b)
    wide = function if count == 2 else lambda a, b, c: function(a, b)
    values = arrays(equation)
    found = km.contract(equation, wide, *tensors(values, device), reduce=reduce)
    wanted = oracle(equation, wide, values, reduce)
    assert found.dtype == {"b": torch.bool, "i": torch.int64, "f": torch.float64}[wanted.dtype.kind]
    assert_close(found, wanted, depth=400)


@pytest.mark.parametrize("length", [1, 2, 31, 5000, 70001])
@pytest.mark.parametrize("reduce", ["sum", "min", "logsumexp", "argmax"])
def test_a_long_axis_into_one_number(length, reduce, backend, device):
    values = arrays("k,k->", sizes={"k": length})
    found = km.contract("k,k->", lambda a, b: a * b + a, *tensors(values, device), reduce=reduce)
    wanted = oracle("k,k->", lambda a, b: a * b + a, values, reduce)
    assert_close(found, wanted, depth=length, magnitude=np.abs(values[0]).sum())


def test_positions_are_those_of_the_whole_axis(backend, device):
    values = np.zeros((3, 60000))
    for row, place in enumerate((0, 31234, 59999)):
        values[row, place] = -1
    found = km.contract("mk->m", lambda a: a, torch.from_numpy(values).to(device), reduce="argmin")
    assert found.tolist() == [0, 31234, 59999]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_the_table_of_cases(name, dtype, backend, device):
    case = CASES[name]
    sizes = {"m": 6, "n": 5, "k": 17}
    operands = [torch.from_numpy(value).to(device, getattr(torch, dtype)) for value in case.operands(sizes)]
    contraction = km.Contraction(case.equation, case.map, reduce=case.reduce, epilogue=case.epilogue)
    found = contraction(*operands, **case.params)
    with km.config(backend="reference"):
        wanted = contraction(*[operand.cpu().double() for operand in operands], **case.params)
    assert_close(found, wanted, dtype=None if case.smooth else wanted.dtype, depth=17, magnitude=None)


def test_halves_are_summed_in_float32(backend, device):
    ones = torch.ones(1, 5000, dtype=torch.float16, device=device)
    assert km.contract("mk,nk->mn", lambda a, b: a + 0 * b, ones, ones).item() == 5000
    small = torch.full((1, 4096), 2.0**-8, dtype=torch.bfloat16, device=device)
    assert km.contract("mk,nk->mn", lambda a, b: abs(a) + 0 * b, small, small).item() == 16


def test_halves_do_not_overflow_inside(backend, device):
    large = torch.full((1, 4), 300.0, dtype=torch.float16, device=device)
    found = km.contract("mk,nk->mn", lambda a, b: a**2 + b**2, large, large, epilogue=lambda s: s**0.5)
    assert_close(found.double(), [[math.sqrt(8) * 300]], dtype="float16")


@pytest.mark.parametrize("layout", ["rows", "columns", "strided", "sliced", "expanded", "misaligned", "flipped batch"])
@pytest.mark.parametrize("name", ["gram", "weights", "rows and features", "matmul"])
def test_any_strides(layout, name, backend, device):
    equation, function = EQUATIONS[name]

    def laid(value):
        tensor = torch.from_numpy(value).to(device)
        if layout == "columns":
            return tensor.mT.contiguous().mT
        if layout == "strided":
            return tensor.repeat_interleave(2, -1)[..., ::2]
        if layout == "sliced":
            return torch.nn.functional.pad(tensor, (3, 4, 1, 2))[..., 1:-2, 3:-4]
        if layout == "expanded":
            return tensor[..., :1, :].expand(tensor.shape)
        if layout == "misaligned":
            flat = torch.empty(tensor.numel() + 1, dtype=tensor.dtype, device=device)
            return flat[1:].view(tensor.shape).copy_(tensor)
        return tensor.permute(1, 0, 2).contiguous().permute(1, 0, 2) if layout == "flipped batch" else tensor

    leads = [(3,), (3,), (3,)][: equation.count(",") + 1]
    operands = [
        laid(value) if value.ndim > 2 else torch.from_numpy(value).to(device) for value in arrays(equation, leads)
    ]
    found = km.contract(equation, function, *operands)
    assert_close(found, oracle(equation, function, [operand.cpu().numpy() for operand in operands]), depth=9)


EDGES = [0, 1, 7, 8, 9, 16, 17, 33]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_edge_sizes(dtype, backend, device):
    contraction = km.Contraction("mk,nk->mn", lambda a, b: abs(a - b))
    for place, m in enumerate(EDGES):
        for n, k in ((EDGES[-1 - place], EDGES[place - 3]), (EDGES[place - 5], EDGES[-place])):
            values = arrays("mk,nk->mn", seed=m, sizes={"m": m, "n": n, "k": k}, dtype=np.float32)
            found = contraction(*[tensor.to(dtype) for tensor in tensors(values, device)])
            wide = [value.astype(np.float64) for value in values]
            assert_close(found, oracle("mk,nk->mn", lambda a, b: abs(a - b), wide), depth=k)


@pytest.mark.parametrize("reduce", [name for name, row in REDUCTIONS.items() if row.result != "index"])
@pytest.mark.parametrize("equation", ["mk,nk->mn", "mk,nl,kl->mn", "mk,nk->m"])
def test_an_empty_axis_gives_the_identity(reduce, equation, backend, device):
    values = arrays(equation, [(2,)], sizes={**SIZES, "k": 0})
    function = (lambda a, b: a * b > 0) if equation.count(",") == 1 else lambda a, b, c: a * b * c > 0
    found = km.contract(equation, function, *tensors(values, device), reduce=reduce)
    assert found.shape == (2, *(SIZES[axis] for axis in equation.partition("->")[2]))
    assert (found == over_nothing(reduce)).all()


def test_an_empty_axis_runs_the_epilogue(backend, device):
    x = torch.ones(3, 0, dtype=torch.float64, device=device)
    row = torch.arange(3.0, dtype=torch.float64, device=device)
    found = km.contract(
        "mk,nk,row:m->mn", lambda a, b: a * b, x, x, row=row, epilogue=lambda s, row, c: s + row + c, c=0.5
    )
    assert found.tolist() == [[0.5] * 3, [1.5] * 3, [2.5] * 3]


@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [
        (torch.int8, -128, 127),
        (torch.uint8, 0, 255),
        (torch.int32, -(2**31), 2**31 - 1),
        (torch.int64, -(2**63), 2**63 - 1),
        (torch.bool, -(2**31), 2**31 - 1),
    ],
)
def test_an_empty_axis_of_integers(dtype, low, high, backend, device):
    x = torch.ones(2, 0, dtype=dtype, device=device)
    for reduce, wanted in (("min", high), ("max", low), ("sum", 0), ("prod", 1)):
        found = km.contract("mk,nk->mn", lambda a, b: a + b, x, x, reduce=reduce)
        assert found.dtype == (torch.int64 if dtype == torch.bool else dtype)
        assert (found == wanted).all(), reduce


def test_small_integers_are_computed_in_32_bits(backend, device):
    x, y = (torch.tensor([values], dtype=torch.uint8, device=device) for values in ([3, 200], [5, 10]))
    for reduce, wanted in (("min", 254), ("max", 190), ("sum", 188)):  # of -2 and 190
        assert km.contract("mk,nk->mn", lambda a, b: a - b, x, y, reduce=reduce).tolist() == [[wanted]]


@pytest.mark.parametrize("empty", ["m", "n", "batch"])
@pytest.mark.parametrize("reduce", ["sum", "argmin", "logsumexp"])
def test_empty_results(empty, reduce, backend, device):
    sizes = {**SIZES, empty: 0}
    lead = (0,) if empty == "batch" else (2,)
    values = arrays("mk,nk->mn", [lead], sizes=sizes)
    found = km.contract("mk,nk->mn", lambda a, b: a * b + b, *tensors(values, device), reduce=reduce)
    assert found.shape == (*lead, sizes["m"], sizes["n"])
    assert found.dtype == (torch.int64 if reduce == "argmin" else torch.float64)


@pytest.mark.parametrize(
    ("equation", "shapes"), [("mk,k->m", [(0, 3), (3,)]), ("k,kn->n", [(3,), (3, 0)]), ("k,k->", [(0,), (0,)])]
)
def test_empty_products(equation, shapes, backend, device):
    operands = [torch.ones(shape, device=device) for shape in shapes]
    found = km.contract(equation, lambda a, b: a * b, *operands)
    assert torch.equal(found, torch.einsum(equation, *operands))


PARAMETERS = {
    "number": 1.3,
    "integer": 2,
    "0-d": np.array(1.3),
    "length 1": np.array([1.3]),
    "batch": np.array([0.7, 1.3, 2.0]),
    "two batch axes": np.array([[0.7], [1.3]]),
}


@pytest.mark.parametrize("kind", PARAMETERS)
@pytest.mark.parametrize("batch", [(), (3,)])
def test_parameters(kind, batch, backend, device):
    p = PARAMETERS[kind]
    values = arrays("mk,nk->mn", [batch])

    def function(a, b, p):
        return abs(a - b) ** p

    def epilogue(s, p, bandwidth):
        return np.exp(-(s ** (1 / p)) / bandwidth)

    given = torch.from_numpy(p).to(device) if isinstance(p, np.ndarray) else p
    found = km.contract("mk,nk->mn", function, *tensors(values, device), p=given, bandwidth=3.0, epilogue=epilogue)
    wanted = oracle("mk,nk->mn", function, values, epilogue=epilogue, p=p, bandwidth=3.0)
    assert_close(found, wanted, depth=64)


@pytest.mark.parametrize("p", [0, 0.5, 1, 1.5, 2, 2.5, 3, 4, 1.3, 7, -1.5, math.inf, math.nan])
def test_power_classes(p, backend, device):
    values = arrays("mk,nk->mn")
    found = km.contract("mk,nk->mn", lambda a, b, p: abs(a - b) ** p, *tensors(values, device), p=p)
    assert_close(found, oracle("mk,nk->mn", lambda a, b, p: abs(a - b) ** p, values, p=float(p)), depth=64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_whole_quotients_of_infinities_are_those_of_numpy(dtype, backend, device):
    values = [np.inf, -np.inf, np.nan, 0.0, 0.5, 3.0, -7.25]
    x = torch.tensor(values, dtype=dtype, device=device)[:, None]
    found = km.contract("mk,nk->mn", lambda a, b: a // b, x, x.clone())
    with np.errstate(all="ignore"):
        exact = np.floor_divide.outer(np.array(values), np.array(values))
    np.testing.assert_array_equal(found.cpu().numpy(), exact)


def test_a_float32_parameter_of_halves(backend, device):
    values = arrays("mk,nk->mn", dtype=np.float16)
    p = torch.tensor(1.3, device=device)
    found = km.contract("mk,nk->mn", lambda a, b, p: abs(a - b) ** p, *tensors(values, device), p=p)
    assert found.dtype == torch.float16
    wide = [value.astype(np.float64) for value in values]
    assert_close(found, oracle("mk,nk->mn", lambda a, b, p: abs(a - b) ** p, wide, p=p.item()), depth=9)


def test_defaults_of_parameters(backend, device):
    values = arrays("mk,nk->mn")
    contraction = km.Contraction("mk,nk->mn", lambda a, b, p=np.float64(1.5), c=True: abs(a - b) ** p * c)  # noqa: B008
    for given in ({}, {"p": 2.5}, {"p": 1.2, "c": 3}):
        wanted = oracle("mk,nk->mn", lambda a, b, p=1.5, c=1: abs(a - b) ** p * c, values, **given)
        assert_close(contraction(*tensors(values, device), **given), wanted, depth=9)


def test_names_that_collide_go_through_params(backend, device):
    values = arrays("mk,nk->mn")
    contraction = km.Contraction(
        "mk,nk->mn", lambda a, b, out, t, index, p0, c0: abs(a - b) * out + t + index * p0 * c0
    )
    given = {"out": 2.0, "t": 3.0, "index": 5.0, "p0": 7.0, "c0": 11.0}
    found = contraction(*tensors(values, device), params=given)
    assert_close(found, oracle("mk,nk->mn", lambda a, b: abs(a - b) * 2 + 3 + 5 * 77, values), depth=9)


def test_named_operands_reach_map_and_epilogue(backend, device):
    equation = "mk,w:k,nk,row:m,table:mn->mn"
    values = arrays(equation)

    def function(a, b, w, row):
        return w * abs(a - b) + row

    def epilogue(s, row, table, scale):
        return scale * s + row * table

    x, w, y, row, table = tensors(values, device)
    found = km.contract(equation, function, x, y, epilogue=epilogue, w=w, table=table, params={"row": row}, scale=0.5)
    assert_close(found, oracle(equation, function, values, epilogue=epilogue, scale=0.5), depth=64)


TUPLES = {
    "cosine": (lambda a, b: (a * b, a * a, b * b), "sum", lambda ab, aa, bb: 1 - ab / (np.sqrt(aa) * np.sqrt(bb))),
    "bray-curtis": (lambda a, b: (abs(a - b), abs(a + b)), "sum", lambda s, t: s / t),
    "range": (lambda a, b: (a - b, a - b), ("max", "min"), lambda high, low: high - low),
    "several results": (lambda a, b: (a * b, abs(a - b), a + b), ("sum", "max", "prod"), lambda s, t, u: (s + t, u)),
    "smallest and where": (lambda a, b: (abs(a - b), abs(a - b)), ("min", "argmin"), None),
    "any and sum": (lambda a, b: (a > b, a * b), ("any", "sum"), None),
}


@pytest.mark.parametrize("name", TUPLES)
def test_several_accumulators(name, backend, device):
    function, reduce, epilogue = TUPLES[name]
    values = arrays("mk,nk->mn", [(2,)])
    found = km.contract("mk,nk->mn", function, *tensors(values, device), reduce=reduce, epilogue=epilogue)
    wanted = oracle("mk,nk->mn", function, values, reduce, epilogue)
    assert isinstance(found, tuple) == isinstance(wanted, tuple)
    for got, want in zip(*((r if isinstance(r, tuple) else (r,)) for r in (found, wanted)), strict=True):
        assert_close(got, want, depth=64)


@pytest.mark.parametrize("equation", ["mk,nk->mn", "mk,nk->m", "mk,nk->"])
@pytest.mark.parametrize("reduce", ["sum", "max"])
def test_out_is_written_in_place(equation, reduce, backend, device):
    values = arrays(equation, [(2,)])
    wanted = oracle(equation, lambda a, b: abs(a - b), values, reduce)
    buffer = torch.full([extent * 2 + 1 for extent in wanted.shape], math.nan, dtype=torch.float64, device=device)
    out = buffer[tuple(slice(1, None, 2) for _ in wanted.shape)]
    found = km.contract(equation, lambda a, b: abs(a - b), *tensors(values, device), reduce=reduce, out=out)
    assert found is out
    assert_close(out, wanted, depth=64)
    assert buffer.isnan().sum() == buffer.numel() - out.numel()


def test_out_of_several_results(backend, device):
    values = arrays("mk,nk->mn")
    outs = torch.empty(5, 7, dtype=torch.float64, device=device), torch.empty(5, 7, dtype=torch.int64, device=device)
    found = km.contract(
        "mk,nk->mn", lambda a, b: (abs(a - b), abs(a - b)), *tensors(values, device), reduce=("min", "argmin"), out=outs
    )
    assert found is outs
    for got, want in zip(
        outs, oracle("mk,nk->mn", lambda a, b: (abs(a - b),) * 2, values, ("min", "argmin")), strict=True
    ):
        assert_close(got, want)


def test_out_of_a_matmul(backend, device):
    x, y = tensors(arrays("mk,nk->mn"), device)
    out = torch.empty(7, 5, dtype=torch.float64, device=device).mT
    assert km.contract("mk,nk->mn", lambda a, b: a * b, x, y, out=out) is out
    assert_close(out, x @ y.T, depth=9)


def test_numpy_in_numpy_out(backend):
    if backend == "cuda":
        return
    values = arrays("mk,nk->mn")
    found = km.contract("mk,nk->mn", lambda a, b, p: abs(a - b) ** p, *values, p=np.float64(1.5))
    assert isinstance(found, np.ndarray)
    assert_close(found, oracle("mk,nk->mn", lambda a, b: abs(a - b) ** 1.5, values), depth=9)
    out = np.empty((5, 7))
    assert km.contract("mk,nk->mn", lambda a, b: abs(a - b), *values, out=out) is out
    assert_close(out, cdist(*values, "cityblock"), depth=9)


@pytest.mark.parametrize("length", [1, 5, 40])
def test_one_array_for_both_is_exactly_symmetric(length, backend, device):
    (x,) = tensors(arrays("mk->mk", [(2,)], sizes={"m": length, "k": 9}), device)
    contraction = km.Contraction("mk,nk->mn", lambda a, b, w: w * abs(a - b) ** 1.5)
    assert contraction.is_symmetric
    found = contraction(x, x, w=1.7)
    assert torch.equal(found, found.mT)
    assert (found.diagonal(dim1=-2, dim2=-1) == 0).all()
    assert_close(found, contraction(x, x.clone(), w=1.7), depth=9)


@pytest.mark.parametrize("reduce", ["sum", "argmax", "logsumexp"])
def test_one_array_for_both_along_a_long_axis(reduce, backend, device):
    (x,) = tensors(arrays("mk->mk", [(2,)], sizes={"m": 3, "k": 40001}), device)
    contraction = km.Contraction("mk,nk->mn", lambda a, b: abs(a - b), reduce=reduce)
    found = contraction(x, x)
    assert torch.equal(found, found.mT)
    values = x.cpu().numpy()
    assert_close(found, oracle("mk,nk->mn", lambda a, b: abs(a - b), [values, values], reduce), depth=40001)


def test_one_array_for_both_in_an_asymmetric_map(backend, device):
    (x,) = tensors(arrays("mk->mk"), device)
    contraction = km.Contraction("mk,nk->mn", lambda a, b: abs(a - 2 * b))
    assert not contraction.is_symmetric
    assert_close(contraction(x, x), contraction(x, x.clone()), depth=9)


def test_precision_is_that_of_the_call_then_of_the_configuration(backend, device):
    x = torch.randn(4, 5, device=device)
    product = km.Contraction("mk,nk->mn", lambda a, b: a * b)
    product(x, x)
    assert "matmul" in repr(product)
    assert_close(product(x, x, precision="ieee"), x.double() @ x.double().T, depth=5)
    assert "matmul" not in repr(product)
    with km.config(precision="ieee"):
        fresh = km.Contraction("mk,nk->mn", lambda a, b: a * b)
        fresh(x, x)
    assert "matmul" not in repr(fresh)


def test_a_call_that_was_seen_before_gives_the_same(backend, device):
    contraction = km.Contraction("mk,nk->mn", lambda a, b, p, c=2.0: c * abs(a - b) ** p)
    for dtype in (torch.float64, torch.float32):
        for p in (1.3, 2, 1.3, 2.5, 2, torch.tensor(1.3, device=device), 1.4):
            values = arrays("mk,nk->mn", seed=int(p * 10))
            found = contraction(*[tensor.to(dtype) for tensor in tensors(values, device)], p=p)
            wanted = oracle("mk,nk->mn", lambda a, b: 2 * abs(a - b) ** float(p), values)  # noqa: B023
            assert_close(found, wanted, dtype="float32", depth=9)


def test_memory_of_the_reference_is_bounded():
    x, y = tensors(arrays("mk,nk->mn", sizes={"m": 40, "n": 50, "k": 60}))
    with km.config(backend="reference", chunk_bytes=4096):
        found = km.contract("mk,nk->mn", lambda a, b: abs(a - b), x, y, reduce="max")
    assert_close(found, torch.cdist(x, y, math.inf))


def test_signatures_of_the_front_door():
    keywords = set(inspect.signature(km.contract).parameters)
    assert {"reduce", "epilogue", "params", "out", "precision"} < keywords


SCALE = 2.0


def test_lambdas_written_on_the_spot_see_what_they_capture(backend, device):
    """One-shot contractions are remembered by their code, and must not be confused by what the code refers to."""
    x, y = tensors(arrays("mk,nk->mn"), device)
    wanted = torch.cdist(x, y, 1.0)
    module = types.ModuleType("settings")
    holder = types.SimpleNamespace()

    def total(function, **options):
        return (km.contract("mk,nk->mn", function, x, y, **options) / wanted).mean().item()

    for value in (2.0, 3.0, -0.0, 0.0, True):
        module.scale = holder.scale = globals()["SCALE"] = value
        found = [
            total(lambda a, b: abs(a - b) * value),  # noqa: B023
            total(lambda a, b: abs(a - b) * SCALE),
            total(lambda a, b: abs(a - b) * module.scale),
            total(lambda a, b: abs(a - b) * holder.scale),
            total(lambda a, b, c=value: abs(a - b) * c),
            total(lambda a, b: abs(a - b), epilogue=lambda s: s * value),  # noqa: B023
            total(lambda a, b: abs(a - b), reduce=km.Semiring(lambda s, t: s + t * value, 0)) if value == 1 else value,  # noqa: B023
        ]
        assert found == pytest.approx([float(value)] * len(found))


def test_truths_are_joined(backend, device):
    x = torch.tensor([[True, False, True], [False, False, True]], device=device)
    number = x.int()
    wanted = (x[:, None] & x[None]).any(-1)
    for operand, function in (
        (x, lambda a, b: a & b), (number, lambda a, b: (a != 0) & (b != 0)), (number, torch.logical_and),
    ):  # fmt: skip
        assert km.contract("mk,nk->mn", function, operand, operand, reduce="any").equal(wanted)
    xor = km.contract("mk,nk->mn", lambda a, b: a ^ b, x, x, reduce="any")
    assert xor.equal((x[:, None] ^ x[None]).any(-1))
    assert km.contract("mk->m", lambda a: a, x, reduce="any", epilogue=lambda s: ~s).equal(~x.any(-1))
