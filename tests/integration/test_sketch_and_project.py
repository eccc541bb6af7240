"""Kernel systems by blocks of rows against Cholesky in float64: from memory, from files, and after an interruption."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import kernmantle as km
from kernmantle.linalg import row_source
from kernmantle.linalg.checkpoint import Checkpoint

from ..arrays import waves as task

quiet = pytest.mark.filterwarnings("ignore::kernmantle.errors.KernmantleWarning")
RIDGE = 2.0


def exact(x, y, ridge=RIDGE):
    matrix = torch.exp(-torch.cdist(x.double(), x.double()))
    diagonal = torch.as_tensor(ridge, dtype=torch.float64).expand(len(x))
    return torch.linalg.solve(matrix + torch.diag(diagonal), y.double()), matrix + torch.diag(diagonal)


def residual(x, y, c, ridge=RIDGE):
    _, matrix = exact(x, y, ridge)
    return (y.double() - matrix @ c.double()).norm(dim=0) / y.double().norm(dim=0)


LAPLACE = km.Laplace(1.0, p=2)


@pytest.mark.parametrize(
    ("options", "columns"),
    [({}, None), ({}, 3), ({"rank": 40}, None), ({"memory": 100}, 3), ({"memory": 100, "rank": 40}, 3)],
)
def test_solutions_are_those_of_cholesky(options, columns):
    x, y = task(columns=columns)
    found = km.linalg.sketch_and_project(LAPLACE, x, y, RIDGE, block=100, tolerance=1e-4, passes=200.0, **options)
    expected, _ = exact(x, y)
    assert found.x.shape == y.shape
    assert found.converged.all()
    assert (residual(x, y, found.x) <= 1e-4).all()
    assert torch.allclose(found.residual, residual(x, y, found.x), rtol=1e-6)
    assert (found.x - expected).norm() <= 1e-3 * expected.norm()
    assert ("streamed" in found.ran) == ("memory" in options)
    assert found.history.shape[0] == found.iterations


@pytest.mark.parametrize("n", [1, 2, 99, 100, 101, 257])
def test_any_number_of_rows(n):
    x, y = task(n)
    found = km.linalg.sketch_and_project(LAPLACE, x, y, RIDGE, block=100, tolerance=1e-4, passes=100.0)
    assert (residual(x, y, found.x) <= 1e-4).all()


def test_files_of_rows_and_a_ridge_for_each(tmp_path, monkeypatch):
    monkeypatch.setattr(row_source, "PIECE", 130)
    x, y = task(dtype=torch.float32)
    ridge = torch.linspace(1, 3, len(x), dtype=torch.float64)
    mapped = np.memmap(tmp_path / "x", np.float32, "w+", shape=tuple(x.shape))
    mapped[:] = x.numpy()
    mapped.flush()
    rows = np.memmap(tmp_path / "x", np.float32, "r", shape=tuple(x.shape))
    for memory in (None, 1000):
        found = km.linalg.sketch_and_project(
            LAPLACE, rows, y.numpy(), ridge.numpy(), block=100, tolerance=1e-3, passes=100.0, memory=memory
        )
        assert isinstance(found.x, np.ndarray)
        assert (residual(x, y, torch.from_numpy(found.x), ridge) <= 1e-3).all()


@quiet
def test_what_is_claimed_of_random_rows_covers_the_truth(monkeypatch):
    monkeypatch.setattr(_module(), "CHECKED", 200)
    for n in (1000, 1500):
        x, y = task(n)
        for passes in (0.5, 1.0, 3.0):
            found = km.linalg.sketch_and_project(LAPLACE, x, y, RIDGE, block=100, tolerance=1e-6, passes=passes)
            true = residual(x, y, found.x)
            assert not found.converged
            assert abs(float(found.residual) - float(true)) <= 4 * float(found.error)
            assert 0 < float(found.error) < 0.2 * float(true)


def _module():
    import sys

    return sys.modules["kernmantle.linalg.sketch_and_project"]


@quiet
@pytest.mark.parametrize("memory", [None, 100])
def test_an_interrupted_fit_goes_on_as_if_it_had_not_been(tmp_path, memory):
    x, y = task()
    options = {"block": 100, "tolerance": 1e-9, "memory": memory}
    whole = km.linalg.sketch_and_project(LAPLACE, x, y, RIDGE, passes=3.0, **options)
    path = tmp_path / "fit.pt"
    for passes in (1.0, 1.7, 3.0):
        parts = km.linalg.sketch_and_project(LAPLACE, x, y, RIDGE, passes=passes, checkpoint=path, **options)
    assert torch.equal(whole.x, parts.x)
    assert torch.equal(whole.history, parts.history)
    assert [file.name for file in tmp_path.iterdir()] == ["fit.pt"]


@quiet
def test_a_file_of_another_problem_is_refused(tmp_path):
    x, y = task(300)
    path = tmp_path / "fit.pt"
    km.linalg.sketch_and_project(LAPLACE, x, y, RIDGE, passes=1.0, checkpoint=path)
    for arguments, name in (
        ((x, y, 3.0), "ridge"),
        ((x, 2 * y, RIDGE), "sum of squares of y"),
        ((x + 1, y, RIDGE), "sum"),
    ):
        with pytest.raises(km.errors.CheckpointError, match=name):
            km.linalg.sketch_and_project(LAPLACE, *arguments, checkpoint=path)
    path.write_bytes(b"half")
    with pytest.raises(km.errors.CheckpointError, match="is not a checkpoint"):
        km.linalg.sketch_and_project(LAPLACE, x, y, RIDGE, checkpoint=path)
    path.unlink()
    path.mkdir()
    with pytest.raises(km.errors.CheckpointError, match=r"cannot be read: .*Is a directory"):
        km.linalg.sketch_and_project(LAPLACE, x, y, RIDGE, checkpoint=path)
    with pytest.raises(km.errors.CheckpointError, match="no directory"):
        km.linalg.sketch_and_project(LAPLACE, x, y, RIDGE, checkpoint=tmp_path / "none" / "fit.pt")


def test_a_checkpoint_is_whole_or_the_one_before(tmp_path, monkeypatch):
    file = Checkpoint(tmp_path / "state", {"of": 1}, 0.0)
    file.save({"step": 1})

    def fails(*_):
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", fails)
        with pytest.raises(OSError, match="disk full"):
            file.save({"step": 2})
    assert file.load() == {"step": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


@quiet
def test_what_does_not_converge_says_so():
    x, y = task()
    with pytest.raises(km.errors.LinearAlgebraError, match="raise passes"):
        km.linalg.sketch_and_project(LAPLACE, x, y, 1e-6, passes=1.0, tolerance=1e-8, check_errors=True)
    with pytest.warns(km.errors.KernmantleWarning, match="stopped after"):
        found = km.linalg.sketch_and_project(LAPLACE, x, y, 1e-6, passes=1.0, tolerance=1e-8)
    assert found.info == 1


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"ridge": 0.0}, km.errors.ParameterError, "ridge must be a positive number"),
        ({"ridge": torch.ones(3)}, km.errors.ShapeError, "ridge must be a number"),
        ({"block": 0}, km.errors.ParameterError, "block must be a positive integer"),
        ({"passes": -1.0}, km.errors.ParameterError, "passes must be a positive number"),
        ({"x": torch.rand(5)}, km.errors.ShapeError, "x must have shape"),
        ({"x": torch.ones(300, 3, dtype=torch.int64)}, km.errors.DtypeError, "float32 and float64"),
        ({"x": [[1.0]]}, km.errors.DtypeError, "memory-mapped or not"),
        ({"y": torch.rand(7).double()}, km.errors.ShapeError, "y must have shape"),
        ({"y": torch.rand(300)}, km.errors.ParameterError, "convert one of them"),
        ({"x": torch.rand(300, 3, dtype=torch.float64, requires_grad=True)}, km.errors.GradientError, "no gradient"),
    ],
)
def test_errors_name_the_argument(change, error, message):
    x, y = task(300)
    with pytest.raises(error, match=message):
        km.linalg.sketch_and_project(LAPLACE, **({"x": x, "y": y, "ridge": RIDGE} | change))
