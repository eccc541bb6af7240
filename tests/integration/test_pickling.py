"""A contraction is its text: pickled, copied, printed, the same in another process."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch

import kernmantle as km
from kernmantle.testing import CASES, assert_close

X = torch.linspace(0.1, 1, 12, dtype=torch.float64).reshape(3, 4)
Y = torch.linspace(1, 2, 8, dtype=torch.float64).reshape(2, 4)

CONTRACTIONS = {
    "captured numbers": (km.Contraction("mk,nk->mn", lambda a, b: 0.3 * abs(a - b) ** 1.7), {}),
    "parameters": (
        km.Contraction("mk,nk->mn", lambda a, b, p, c=2.5: c * abs(a - b) ** p, epilogue=lambda s, p: s ** (1 / p)),
        {"p": 1.3},
    ),
    "named operand": (km.Contraction("mk,nk,w:k->mn", lambda a, b, w: w * a * b), {"w": torch.ones(4).double()}),
    "semiring": (km.Contraction("mk,nk->mn", lambda a, b: a * b, reduce=km.Semiring(km.maximum, float("-inf"))), {}),
    "integer zero": (km.Contraction("mk,nk->mn", lambda a, b: a * b, reduce=km.Semiring(lambda a, b: a + b, 0)), {}),
    "boolean zero": (
        km.Contraction("mk,nk->mn", lambda a, b: a > b, reduce=km.Semiring(lambda a, b: a | b, False)),
        {},
    ),
    "fold": (km.Contraction("mk,nk->mn", None, reduce=km.Fold(lambda s, a, b, r: s * r + a * b, 0.5)), {"r": 0.9}),
    "tuple": (
        km.Contraction("mk,nk->mn", lambda a, b: (a - b, a + b), reduce=("max", "sum"), epilogue=lambda s, t: (s, t)),
        {},
    ),
}


def results(contraction, params):
    found = contraction(X, Y, **params)
    return found if isinstance(found, tuple) else (found,)


@pytest.mark.parametrize("name", CONTRACTIONS)
@pytest.mark.parametrize("way", [lambda c: pickle.loads(pickle.dumps(c)), copy.copy, copy.deepcopy])
def test_copies(name, way, backend):
    if backend == "cuda":
        return
    contraction, params = CONTRACTIONS[name]
    twin = way(contraction)
    assert twin is not contraction
    assert (twin.text, twin.program.text, twin.is_symmetric) == (
        contraction.text, contraction.program.text, contraction.is_symmetric,
    )  # fmt: skip
    for found, wanted in zip(results(twin, params), results(contraction, params), strict=True):
        assert torch.equal(found, wanted)


SQUARE = np.eye(4) + X.numpy().T @ X.numpy()
RESULTS = {
    "Spectrum": lambda own: km.linalg.eigh(own(SQUARE)),
    "part of a Spectrum": lambda own: km.linalg.eigh(own(SQUARE), subset_by_index=(2, 3)),
    "SVD": lambda own: km.linalg.svd(own(SQUARE), 2),
    "Solution": lambda own: km.linalg.solve_cholesky(own(SQUARE), own(SQUARE[0])),
    "KernelSolution": lambda own: km.linalg.solve_kernel(km.Gaussian(1.0), own(SQUARE), own(SQUARE[0]), 0.1),
    "CholeskyFactor": lambda own: km.linalg.cholesky_factor(own(SQUARE)),
    "LUFactor": lambda own: km.linalg.lu_factor(own(SQUARE)),
    "Transport": lambda own: km.ot.sinkhorn(own(SQUARE), own(SQUARE + 1), eps=1.0),
    "PermutationTest": lambda own: km.stats.mmd(own(SQUARE), own(SQUARE + 1), permutations=3, random_state=0),
}


def arrays_of(record):
    """All arrays in a record, by the way to them."""
    if hasattr(record, "dtype"):
        return {"": record}
    inside = dict(enumerate(record)) if isinstance(record, tuple) else {}
    inside |= getattr(record, "__dict__", {})
    return {f"{name}.{key}": own for name, each in inside.items() for key, own in arrays_of(each).items()}


@pytest.mark.parametrize("own", [np.array, torch.tensor], ids=["numpy", "torch"])
@pytest.mark.parametrize("way", [lambda c: pickle.loads(pickle.dumps(c)), copy.copy, copy.deepcopy])
@pytest.mark.parametrize("name", RESULTS)
def test_results_are_copied_and_pickled_whole(name, way, own):
    found = RESULTS[name](own)
    twin = way(found)
    assert type(twin) is type(found)
    assert repr(twin) == repr(found)
    ours, theirs = arrays_of(twin), arrays_of(found)
    assert ours.keys() == theirs.keys() != set()
    for key, array in ours.items():
        assert type(array) is type(theirs[key])
        assert_close(array, theirs[key])
    if name == "Transport":
        assert_close(twin.plan @ own(SQUARE[0]), found.plan @ own(SQUARE[0]))


@pytest.mark.parametrize("name", CASES)
def test_the_table_of_cases_round_trips(name):
    case = CASES[name]
    contraction = km.Contraction(case.equation, case.map, reduce=case.reduce, epilogue=case.epilogue)
    assert pickle.loads(pickle.dumps(contraction)).program == contraction.program


def test_another_process_reads_the_pickle(tmp_path):
    contraction, params = CONTRACTIONS["parameters"]
    (tmp_path / "c").write_bytes(pickle.dumps(contraction))
    code = (
        "import pickle, sys, torch, kernmantle as km\n"
        "c = pickle.load(open(sys.argv[1], 'rb'))\n"
        "x = torch.linspace(0.1, 1, 12, dtype=torch.float64).reshape(3, 4)\n"
        "y = torch.linspace(1, 2, 8, dtype=torch.float64).reshape(2, 4)\n"
        "with km.config(backend='reference'):\n    print(c(x, y, p=1.3).tolist())"
    )
    run = subprocess.run([sys.executable, "-c", code, str(tmp_path / "c")], capture_output=True, text=True, check=True)
    with km.config(backend="reference"):
        assert_close(np.array(eval(run.stdout)), contraction(X, Y, **params))


def test_one_meaning_has_one_text():
    spellings = [
        km.Contraction("mk,nk->mn", lambda a, b, p: abs(a - b) ** p),
        km.Contraction("mk,nk->mn", lambda u, v, power: torch.pow(torch.abs(v - u), power)),
        km.Contraction("mk,nk->mn", lambda a, b, p: np.abs(b - a) ** p),
        km.Contraction("ik,jk->ij", lambda a, b, zz: km.abs(a + -b) ** zz),
        km.Contraction(" ik, jk -> ij", lambda a, b, p: abs(-a + b) ** p),
    ]
    assert len({contraction.program.text for contraction in spellings}) == 1


def test_names_of_parameters_do_not_matter():
    def texts(*functions):
        return {km.Contraction("mk,nk->mn", function).program.text for function in functions}

    assert len(texts(lambda a, b, w: w * (a * b), lambda a, b, z: (a * b) * z, lambda a, b, A: A * (b * a))) == 1
    assert len(texts(lambda a, b: 0.3 * (a * b), lambda a, b: (b * a) * 0.7, lambda a, b: 5 * (a * b))) == 1
    assert len(texts(lambda a, b: a * b, lambda a, b: a - b)) == 2


def test_the_repr_says_what_is_computed_and_what_ran(backend):
    if backend == "cuda":
        return
    contraction = km.Contraction("mk,nk->mn", lambda a, b, p: abs(a - b) ** p, epilogue=lambda s, p: s ** (1 / p))
    assert "mk,nk->mn" in repr(contraction)
    assert "sum" in repr(contraction)
    assert "sum abs(x0 - x1) ** p -> s0 ** rcp(p)" in repr(contraction)
    assert "ran as" not in repr(contraction)
    contraction(X, Y, p=1.3)
    assert f"ran as {backend}" in repr(contraction)
    contraction(X, Y[:0], p=1.3)
    assert "the result is empty" in repr(contraction)


def test_the_repr_of_every_kind():
    assert "fold r * s0 + x0 * x1" in repr(CONTRACTIONS["fold"][0])
    assert "max x0 - x1, sum x0 + x1 -> s0, s1" in repr(CONTRACTIONS["tuple"][0])
    assert "semiring" in repr(CONTRACTIONS["semiring"][0])
    assert "sum x1 * (x0 * w)" in repr(CONTRACTIONS["named operand"][0])
    assert "sum 0.3 * abs(x0 - x1) ** 1.7" in repr(CONTRACTIONS["captured numbers"][0])
    product = km.Contraction("mk,nk->mn", lambda a, b: a * b)
    product(X, Y)
    assert repr(product) == "Contraction('mk,nk->mn': sum x0 * x1, ran as matmul)"
