"""Reductions and semirings on arrays: exactness in every type, NaN, infinities, ties, shortest paths, user's own."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.sparse.csgraph import floyd_warshall

import kernmantle as km
from kernmantle.ir.reductions import REDUCTIONS
from kernmantle.testing import assert_close

from ..oracle import oracle

INTEGERS = ["int8", "uint8", "int16", "int32", "int64", "bool"]


def grid(dtype, shape, seed, device):
    random = np.random.default_rng(seed)
    low, high = {"bool": (0, 2), "uint8": (0, 12)}.get(dtype, (-6, 7))
    return torch.from_numpy(random.integers(low, high, shape)).to(device, getattr(torch, dtype))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_in_their_own_type(dtype, backend, device):
    x, y = grid(dtype, (9, 33), 0, device), grid(dtype, (17, 33), 1, device)
    wide = [x.cpu().numpy().astype(np.int64), y.cpu().numpy().astype(np.int64)]
    maps = {
        "sum": lambda a, b: abs(a - b) * 2 + 1,
        "min": lambda a, b: a * b - a,
        "max": lambda a, b: a * b + 3,
        "prod": lambda a, b: a - b,
        "any": lambda a, b: a * b > 4,
        "all": lambda a, b: a + b > -10,
        "argmin": lambda a, b: abs(a - b),
        "argmax": lambda a, b: a * b,
    }
    stored = np.dtype("int64" if dtype == "bool" else dtype)
    contraction = km.Contraction("mk,nk->mn", lambda a, b: tuple(f(a, b) for f in maps.values()), reduce=list(maps))
    for (reduce, function), found in zip(maps.items(), contraction(x, y), strict=True):
        wanted = oracle("mk,nk->mn", function, wide, reduce)
        assert found.dtype == {"b": torch.bool, "a": torch.int64}.get(
            {"any": "b", "all": "b", "argmin": "a", "argmax": "a"}.get(reduce, ""), getattr(torch, stored.name)
        )
        if reduce == "prod":
            wanted = np.prod((wide[0][:, None] - wide[1]).astype(np.int64), axis=-1)
        assert np.array_equal(found.cpu().numpy(), wanted.astype(stored) if wanted.dtype.kind == "i" else wanted), (
            reduce
        )


def test_large_integers_are_exact(backend, device):
    x = torch.tensor([[2**62 + 1, 3]], device=device)
    y = torch.tensor([[1, 2**53 + 1]], device=device)
    found = km.contract("mk,nk->mn", lambda a, b: a * b, x, y)
    assert found.item() == 2**62 + 1 + 3 * (2**53 + 1)
    c = torch.tensor(2**61 + 1, device=device)
    assert km.contract("mk,nk->mn", lambda a, b, c: a - a + b - b + c, x, y, c=c, reduce="max").item() == 2**61 + 1


def places(shape):
    """Entries for a special value: first, last and those around vectors' ends."""
    return [place for place in (0, 1, 7, 8, 15, 16, 31, shape - 1) if place < shape]


@pytest.mark.parametrize("reduce", [name for name, row in REDUCTIONS.items() if row.result != "bool"])
def test_nan_in_nan_out(reduce, backend, device):
    length = 37
    x = torch.linspace(-1, 1, length, dtype=torch.float64, device=device).repeat(len(places(length)), 1)
    for row, place in enumerate(places(length)):
        x[row, place] = math.nan
    y = torch.ones(19, length, dtype=torch.float64, device=device)
    for operands in ((x, y), (y, x)):
        found = km.contract("mk,nk->mn", lambda a, b: a * b + a, *operands, reduce=reduce)
        if reduce.startswith("arg"):
            rows = found if operands[0] is x else found.T
            assert rows.tolist() == [[place] * 19 for place in places(length)]
        else:
            assert found.isnan().all()


def test_the_first_nan_is_the_position(backend, device):
    x = torch.zeros(2, 70, dtype=torch.float32, device=device)
    x[0, [40, 3, 69]] = math.nan
    x[1, [69, 64]] = math.nan
    for reduce in ("argmin", "argmax"):
        assert km.contract("mk->m", lambda a: a, x, reduce=reduce).tolist() == [3, 64]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_logsumexp_of_infinities(dtype, backend, device):
    inf = math.inf
    rows = [
        [-inf] * 5,
        [-inf, 0, -inf, 1, -inf],
        [inf, 0, 1, 2, 3],
        [inf, inf, 0, 0, -inf],
        [1000.0] * 5,
        [-1000, -1001, 0, -2000, -inf],
    ]
    x = torch.tensor(rows, dtype=dtype, device=device)
    found = km.contract("mk->m", lambda a: a, x, reduce="logsumexp")
    assert_close(found, torch.logsumexp(x.double(), 1), depth=5)
    assert found[:1].tolist() == [-inf]


@pytest.mark.parametrize("reduce", ["argmin", "argmax"])
@pytest.mark.parametrize("length", [5, 37, 9001])
def test_the_first_of_equals(reduce, length, backend, device):
    random = np.random.default_rng(0)
    values = random.integers(0, 3, (20, length)).astype(np.float64)
    values[0] = math.inf if reduce == "argmin" else -math.inf
    x = torch.from_numpy(values).to(device)
    found = km.contract("mk->m", lambda a: a, x, reduce=reduce)
    assert found.tolist() == getattr(values, reduce)(1).tolist()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_min_plus_closure_is_floyd_warshall(dtype, backend, device):
    random = np.random.default_rng(0)
    weights = (
        np.where(random.random((40, 40)) < 0.1, random.uniform(1, 9, (40, 40)), np.inf)
        .astype(np.float32)
        .astype(np.float64)
    )
    np.fill_diagonal(weights, 0)
    paths = torch.from_numpy(weights).to(device, dtype)
    step = km.Contraction("mk,kn->mn", lambda a, b: a + b, reduce="min")
    for _ in range(6):
        paths = step(paths, paths)
    wanted = floyd_warshall(np.where(np.isinf(weights), 0, weights))
    assert np.isinf(wanted).any()
    assert_close(paths, wanted, depth=40)
    assert_close(step(paths, paths), paths.double(), depth=1, dtype=dtype)


def test_reachability_is_the_boolean_closure(backend, device):
    random = np.random.default_rng(1)
    edges = random.random((30, 30)) < 0.06
    np.fill_diagonal(edges, True)
    reach = torch.from_numpy(edges).to(device)
    step = km.Contraction("mk,kn->mn", lambda a, b: a & b, reduce="any")
    for _ in range(5):
        reach = step(reach, reach)
    wanted = np.isfinite(floyd_warshall(np.where(edges, 1.0, 0.0)))
    assert reach.dtype == torch.bool
    assert np.array_equal(reach.cpu().numpy(), wanted)


def test_bottleneck_and_reliable_paths(backend, device):
    random = np.random.default_rng(2)
    capacity = random.uniform(0, 1, (12, 12))
    np.fill_diagonal(capacity, 1)
    for combine, function in ((np.minimum, lambda a, b: km.minimum(a, b)), (np.multiply, lambda a, b: a * b)):  # noqa: PLW0108
        paths, wanted = torch.from_numpy(capacity).to(device), capacity.copy()
        for _ in range(4):
            paths = km.contract("mk,kn->mn", function, paths, paths, reduce="max")
        for k in range(12):
            wanted = np.maximum(wanted, combine(wanted[:, k, None], wanted[k]))
        assert_close(paths, wanted, depth=16)


USERS = {
    "maximum": (km.Semiring(lambda a, b: km.maximum(a, b), -math.inf), "max"),  # noqa: PLW0108
    "product": (km.Semiring(lambda a, b: a * b, 1), "prod"),
    "soft": (km.Semiring(lambda a, b: km.logaddexp(a, b), -math.inf), "logsumexp"),  # noqa: PLW0108
    "sum": (km.Semiring(lambda a, b: a + b, 0), "sum"),
}


@pytest.mark.parametrize("name", USERS)
@pytest.mark.parametrize("equation", ["mk,nk->mn", "mk,nk->"])
def test_a_semiring_of_the_user(name, equation, backend, device):
    semiring, known = USERS[name]
    values = [np.random.default_rng(i).uniform(-1, 1, shape) for i, shape in enumerate([(5, 37), (9, 37)])]
    operands = [torch.from_numpy(value).to(device) for value in values]
    found = km.contract(equation, lambda a, b: 1 + a * b / 8, *operands, reduce=semiring)
    assert_close(found, oracle(equation, lambda a, b: 1 + a * b / 8, values, known), depth=400)
    empty = km.contract(equation, lambda a, b: a * b, operands[0][:, :0], operands[1][:, :0], reduce=semiring)
    assert (empty == semiring.zero).all()


def test_several_semirings_at_once(backend, device):
    values = [np.random.default_rng(i).uniform(-1, 1, shape) for i, shape in enumerate([(5, 7), (6, 7)])]
    found = km.contract(
        "mk,nk->mn", lambda a, b: (a - b, a + b), *[torch.from_numpy(v).to(device) for v in values],
        reduce=(USERS["maximum"][0], "logsumexp"), epilogue=lambda s, t: s * t,
    )  # fmt: skip
    assert_close(
        found,
        oracle("mk,nk->mn", lambda a, b: (a - b, a + b), values, ("max", "logsumexp"), lambda s, t: s * t),
        depth=7,
    )


def test_an_exclusive_or(backend, device):
    x, y = grid("int32", (5, 9), 0, device), grid("int32", (4, 9), 1, device)
    parity = km.Semiring(lambda a, b: abs(a - b), 0)
    found = km.contract("mk,nk->mn", lambda a, b: km.where(a > b, 1, 0), x, y, reduce=parity)
    wanted = (x.cpu().numpy()[:, None] > y.cpu().numpy()).sum(-1) % 2
    assert found.cpu().numpy().tolist() == wanted.tolist()


ASSOCIATIVE = {
    "hypot": (lambda a, b: km.hypot(a, b), 0, lambda v: np.sqrt((v**2).sum())),  # noqa: PLW0108
    "cubes": (lambda a, b: (abs(a) ** 3 + abs(b) ** 3) ** (1 / 3), 0, lambda v: np.cbrt((v**3).sum())),
    "logs": (lambda a, b: km.log(km.exp(a) + km.exp(b)), -math.inf, lambda v: np.log(np.exp(v).sum())),
    "velocities": (lambda a, b: (a + b) / (1 + a * b), 0, lambda v: np.tanh(np.arctanh(v).sum())),
    "either": (lambda a, b: a + b - a * b, 0, lambda v: 1 - np.prod(1 - v)),
    "Hamacher": (lambda a, b: a * b / (a + b - a * b), 1, lambda v: 1 / (1 + (1 / v - 1).sum())),
    "bounded": (lambda a, b: km.minimum(a + b, 1.0), 0, lambda v: min(v.sum(), 1)),
    "Lukasiewicz": (lambda a, b: km.maximum(a + b - 1, 0.0), 1, lambda v: max(v.sum() - len(v) + 1, 0)),
}


@pytest.mark.parametrize("name", ASSOCIATIVE)
def test_a_plus_that_is_associative_but_for_rounding_or_for_the_numbers_it_is_meant_for(name, reference):
    plus, zero, whole = ASSOCIATIVE[name]
    values = np.array([[0.125, 0.25, 0.0625], [0.75, 0.9, 0.95]])
    found = km.contract("mk,k->m", lambda a, b: a * b, values, np.ones(3), reduce=km.Semiring(plus, zero))
    assert_close(found, np.array([whole(row) for row in values]), depth=8)


FOLDS = {
    "horner": (lambda s, a, b: s * b + a, 0.0),
    "decay": (lambda s, a, b, rate: s * rate + a * b, 1.0),
    "longest run": (lambda s, a, b: km.where(a * b > 0, s + 1, 0), 0),
    "clipped": (lambda s, a, b: km.clamp(s + a - b, -1, 1), 0.25),
}


@pytest.mark.parametrize("name", FOLDS)
@pytest.mark.parametrize("equation", ["mk,nk->mn", "mk,k->m", "k,k->", "mk,nk,mn->mn"])
def test_a_fold_runs_in_order(name, equation, backend, device):
    step, init = FOLDS[name]
    shapes = {"mk": (5, 37), "nk": (9, 37), "k": (37,), "mn": (5, 9)}
    left, out = equation.split("->")
    values = [np.random.default_rng(i).uniform(-1, 1, shapes[axes]) for i, axes in enumerate(left.split(","))]
    params = {"rate": 0.75} if name == "decay" else {}
    extra = left.count(",") == 2
    fold = km.Fold((lambda s, a, b, c, **p: step(s, a, b)) if extra else step, init)
    if extra:
        if params:
            fold = km.Fold(lambda s, a, b, c, rate: s * rate + a * b + c, init)
        else:
            fold = km.Fold(lambda s, a, b, c: step(s, a, b) + c * 0, init)
    found = km.contract(equation, None, *[torch.from_numpy(v).to(device) for v in values], reduce=fold, **params)
    views = [
        v[:, None] if axes == "mk" and "n" in out else v[None] if axes == "nk" else v
        for v, axes in zip(values, left.split(","), strict=True)
    ]
    state = np.full(tuple({"m": 5, "n": 9}[axis] for axis in out), init)
    scalar = {
        "horner": lambda s, a, b: s * b + a,
        "decay": lambda s, a, b: s * 0.75 + a * b,
        "longest run": lambda s, a, b: np.where(a * b > 0, s + 1, 0),
        "clipped": lambda s, a, b: np.clip(s + a - b, -1, 1),
    }[name]
    for k in range(37):
        state = scalar(state, views[0][..., k], views[1][..., k])
        if extra and params:
            state = state + values[2]
    assert_close(found, state, depth=37, magnitude=8.0)


def test_a_fold_over_nothing_is_its_start(backend, device):
    x = torch.ones(3, 0, device=device)
    found = km.contract("mk,nk->mn", None, x, x, reduce=km.Fold(lambda s, a, b: s + a * b, 2.5))
    assert found.tolist() == [[2.5] * 3] * 3


def test_the_order_of_reduction_is_the_same_every_time(backend, device):
    torch.manual_seed(0)
    x, y = torch.randn(3, 30011, device=device), torch.randn(2, 30011, device=device)
    for equation in ("mk,nk->mn", "mk,nk->", "mk,nk->m"):
        results = {km.contract(equation, lambda a, b: abs(a - b), x, y).sum().item() for _ in range(5)}
        assert len(results) == 1
