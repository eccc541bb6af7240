"""Kernel ridge regression on centres against dense float64 solutions: from memory, from files, after interruptions."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

import kernmantle as km
from kernmantle.linalg import row_source

from ..arrays import waves as task

quiet = pytest.mark.filterwarnings("ignore::kernmantle.errors.KernmantleWarning")
RIDGE = 0.5
LAPLACE = km.Laplace(1.0, p=2)


def matrices(x, c):
    return torch.exp(-torch.cdist(x.double(), c.double())), torch.exp(-torch.cdist(c.double(), c.double()))


def exact(x, y, c, ridge=RIDGE):
    """Least squares of the stacked equations, without normal ones."""
    wide, square = matrices(x, c)
    root = torch.linalg.cholesky(square).mT
    stacked = torch.cat([wide, ridge**0.5 * root])
    right = torch.cat([y.double(), y.new_zeros(len(c), *y.shape[1:]).double()])
    return torch.linalg.lstsq(stacked, right.reshape(len(right), -1)).solution.reshape(len(c), *y.shape[1:])


def excess(x, y, c, a, ridge=RIDGE):
    """The root of twice the objective above its minimum, relative to the targets."""
    wide, square = matrices(x, c)
    gap = (a.double() - exact(x, y, c, ridge)).reshape(len(c), -1)
    value = (wide @ gap).square().sum(0) + ridge * (gap * (square @ gap)).sum(0)
    return (value.sqrt() / y.double().norm(dim=0)).reshape(y.shape[1:])


@pytest.mark.parametrize("memory", [None, 1000])
@pytest.mark.parametrize("columns", [None, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_solutions_are_those_of_least_squares(monkeypatch, memory, columns, dtype):
    monkeypatch.setattr(row_source, "PIECE", 130)
    x, y = task(columns=columns, dtype=dtype)
    limit = {torch.float32: 1e-4, torch.float64: 1e-8}[dtype]
    found = km.linalg.falkon(LAPLACE, x, y, RIDGE, 60, tolerance=limit, memory=memory, device="cpu")
    assert found.converged.all()
    assert found.x.dtype == dtype
    assert found.x.shape == (60, *y.shape[1:])
    assert found.centres.shape == (60, 3)
    assert (excess(x, y, found.centres, found.x) <= limit).all()
    assert found.residual.shape == found.error.shape == y.shape[1:]
    assert found.history.shape[0] == found.iterations + 1
    rows = {tuple(row) for row in x.tolist()}
    assert len({tuple(row) for row in found.centres.tolist()} & rows) == 60


@quiet
@pytest.mark.parametrize("sample", [40, 120, 400])
def test_the_residual_is_about_the_distance_to_the_minimiser(sample):
    x, y = task(2000)
    for iterations in range(5):
        found = km.linalg.falkon(LAPLACE, x, y, RIDGE, 40, sample=sample, max_iterations=iterations, tolerance=1e-12)
        true = float(excess(x, y, found.centres, found.x))
        assert found.iterations == iterations
        assert not found.converged
        assert found.info == 1
        assert 0.4 * true <= float(found.residual) <= 2.5 * true


def test_all_rows_as_centres_predict_as_the_system_of_all_rows():
    x, y = task(200)
    found = km.linalg.falkon(LAPLACE, x, y, RIDGE, 200, tolerance=1e-9)
    expected = km.linalg.solve_kernel(LAPLACE, x, y, RIDGE, method="cholesky").x
    predicted = LAPLACE.matmul(x, None, expected)
    assert (LAPLACE.matmul(x, found.centres, found.x) - predicted).norm() <= 1e-8 * y.norm()


@pytest.mark.parametrize("n", [1, 2, 7, 129, 130, 131, 257])
def test_any_number_of_rows_and_centres(monkeypatch, n):
    monkeypatch.setattr(row_source, "PIECE", 130)
    x, y = task(n)
    for m in {1, min(n, 5), n, n + 3}:
        found = km.linalg.falkon(LAPLACE, x, y, RIDGE, m, tolerance=1e-6)
        assert len(found.centres) == min(m, n)
        assert float(excess(x, y, found.centres, found.x)) <= 1e-6


def test_given_centres_need_not_be_rows():
    x, y = task()
    centres = torch.rand(30, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = km.linalg.falkon(LAPLACE, x, y, RIDGE, centres, tolerance=1e-6)
    assert torch.equal(found.centres, centres)
    assert float(excess(x, y, centres, found.x)) <= 1e-6


def test_centres_that_are_the_same_row_are_no_harm():
    x, y = task()
    centres = x[:20].repeat(2, 1)
    found = km.linalg.falkon(LAPLACE, x, y, RIDGE, centres, tolerance=1e-6)
    expected = matrices(x, x[:20])[0] @ exact(x, y, x[:20])
    assert (LAPLACE.matmul(x, centres, found.x) - expected).norm() <= 1e-5 * y.norm()


def test_rows_in_files_give_what_rows_in_memory_do(tmp_path):
    x, y = task(dtype=torch.float32)
    for name, array in (("x", x), ("y", y)):
        file = np.memmap(tmp_path / name, np.float32, "w+", shape=tuple(array.shape))
        file[:] = array.numpy()
        file.flush()
    rows = np.memmap(tmp_path / "x", np.float32, "r", shape=tuple(x.shape))
    targets = np.memmap(tmp_path / "y", np.float32, "r", shape=tuple(y.shape))
    whole = km.linalg.falkon(LAPLACE, x, y, RIDGE, 60, tolerance=1e-4)
    for memory in (None, 1000):
        found = km.linalg.falkon(LAPLACE, rows, targets, RIDGE, 60, tolerance=1e-4, memory=memory, device="cpu")
        assert isinstance(found.x, np.ndarray)
        assert isinstance(found.centres, np.ndarray)
        assert np.array_equal(found.centres, whole.centres.numpy())
        assert np.array_equal(found.x, whole.x.numpy())
        assert ("streamed" in found.ran) == (memory is not None)


def test_small_ridges_in_float32_predict_as_in_float64():
    """Coefficients are large and cancel; residuals of the recursion alone would be off by as much."""
    source = torch.Generator().manual_seed(3)
    x = torch.randn(20000, 2, generator=source, dtype=torch.float64)
    y = (x[:, 0] * x[:, 1]).sin() + 0.1 * torch.randn(20000, generator=source, dtype=torch.float64)
    kernel, ridge = km.Gaussian(2.0), 1e-4 * 20000
    wide = km.linalg.falkon(kernel, x, y, ridge, 400, tolerance=1e-6)
    narrow = km.linalg.falkon(kernel, x.float(), y.float(), ridge, 400, tolerance=2e-3)
    test = torch.randn(2000, 2, generator=source, dtype=torch.float64)
    difference = kernel.matmul(test, narrow.centres.double(), narrow.x.double()) - kernel.matmul(
        test, wide.centres, wide.x
    )
    assert wide.converged
    assert narrow.converged
    assert difference.square().mean().sqrt() <= 2e-3


@quiet
def test_an_interrupted_fit_continues(tmp_path, monkeypatch):
    x, y = task(2000)
    options = {"tolerance": 1e-6, "sample": 60, "checkpoint": tmp_path / "fit.pt", "every": 0.0}
    module = sys.modules["kernmantle.linalg.falkon"]
    ends, saved = 4, module.Checkpoint.save

    def save(self, state):
        saved(self, state)
        if len(state["history"]) == ends:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module.Checkpoint, "save", save)
        with pytest.raises(KeyboardInterrupt):
            km.linalg.falkon(LAPLACE, x, y, RIDGE, 40, **options)
    found = km.linalg.falkon(LAPLACE, x, y, RIDGE, 40, **options)
    whole = km.linalg.falkon(LAPLACE, x, y, RIDGE, 40, tolerance=1e-6, sample=60)
    assert found.converged
    assert torch.equal(found.history[: ends - 1], whole.history[: ends - 1])
    assert abs(float(found.history[ends - 1] - whole.history[ends - 1])) <= 1e-9
    assert float(excess(x, y, found.centres, found.x)) <= 1e-5
    again = km.linalg.falkon(LAPLACE, x, y, RIDGE, 40, **options)
    assert again.iterations == found.iterations
    assert torch.equal(again.x, found.x)
    assert [file.name for file in tmp_path.iterdir()] == ["fit.pt"]


def test_a_file_of_another_problem_is_refused(tmp_path):
    x, y = task(300)
    path = tmp_path / "fit.pt"
    km.linalg.falkon(LAPLACE, x, y, RIDGE, 20, checkpoint=path)
    for arguments, name in (
        ((x, y, 3.0, 20), "ridge"),
        ((x, 2 * y, RIDGE, 20), "sum of squares of y"),
        ((x + 1, y, RIDGE, 20), "sum of the centres"),
        ((x, y, RIDGE, 21), "centres"),
    ):
        with pytest.raises(km.errors.CheckpointError, match=name):
            km.linalg.falkon(LAPLACE, *arguments, checkpoint=path)


def test_what_does_not_converge_says_so():
    x, y = task(2000)
    options = {"sample": 40, "max_iterations": 1, "tolerance": 1e-8}
    with pytest.raises(km.errors.LinearAlgebraError, match="after 1 of 1 iterations"):
        km.linalg.falkon(LAPLACE, x, y, RIDGE, 40, check_errors=True, **options)
    with pytest.warns(km.errors.KernmantleWarning, match="after 1 of 1 iterations"):
        found = km.linalg.falkon(LAPLACE, x, y, RIDGE, 40, **options)
    assert found.info == 1
    with pytest.warns(km.errors.KernmantleWarning, match="raise max_iterations"):
        found = km.linalg.falkon(LAPLACE, x.float(), y.float(), RIDGE, 40, tolerance=1e-12, max_iterations=200)
    assert found.info == 2
    assert not found.converged


def test_targets_that_are_not_numbers_are_no_solution():
    x, y = task()
    y[5] = float("nan")
    with pytest.raises(km.errors.LinearAlgebraError, match="nan"):
        km.linalg.falkon(LAPLACE, x, y, RIDGE, 40)


def test_targets_of_zero_have_coefficients_of_zero():
    x, _ = task()
    found = km.linalg.falkon(LAPLACE, x, torch.zeros_like(x[:, 0]), RIDGE, 40)
    assert found.converged
    assert not found.x.any()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"ridge": 0.0}, km.errors.ParameterError, "ridge must be a positive number"),
        ({"ridge": float("inf")}, km.errors.ParameterError, "ridge must be a positive number, not inf"),
        ({"centres": 0}, km.errors.ParameterError, "centres must be a positive integer"),
        ({"centres": torch.rand(5, 2).double()}, km.errors.ShapeError, "centres must have 3 columns"),
        ({"centres": torch.rand(5, 3)}, km.errors.ShapeError, "centres must have 3 columns of torch.float64"),
        ({"sample": 0}, km.errors.ParameterError, "sample must be a positive integer"),
        ({"max_iterations": -1}, km.errors.ParameterError, "max_iterations must be"),
        ({"tolerance": 0.0}, km.errors.ParameterError, "tolerance must be a positive number"),
        ({"seconds": 0}, km.errors.ParameterError, "seconds must be a positive number"),
        ({"x": torch.rand(5)}, km.errors.ShapeError, "x must have shape"),
        ({"x": torch.ones(300, 3, dtype=torch.int64)}, km.errors.DtypeError, "float32 and float64"),
        ({"y": torch.rand(7).double()}, km.errors.ShapeError, "y must have shape"),
        ({"y": [1.0]}, km.errors.ShapeError, "y must have shape"),
        ({"y": torch.rand(300)}, km.errors.ParameterError, "convert one of them"),
        ({"x": torch.rand(300, 3, dtype=torch.float64, requires_grad=True)}, km.errors.GradientError, "no gradient"),
    ],
)
def test_errors_name_the_argument(change, error, message):
    x, y = task(300)
    with pytest.raises(error, match=message):
        km.linalg.falkon(LAPLACE, **({"x": x, "y": y, "ridge": RIDGE, "centres": 20} | change))


@pytest.mark.parametrize("outputs", [None, 2])
def test_an_estimator_of_centres_predicts_as_least_squares(outputs):
    x, y = task(columns=outputs)
    options = {"kernel": "laplace", "bandwidth": 1.0, "kernel_params": {"p": 2}, "centres": 50}
    found = km.estimators.KernelRidge(0.5, random_state=3, **options).fit(x.numpy(), y.numpy())
    centres = torch.from_numpy(found.centres_)
    wide, _ = matrices(x, centres)
    assert found.dual_coef_.shape == (50, *y.shape[1:])
    difference = torch.from_numpy(found.predict(x.numpy())) - wide @ exact(x, y, centres)
    assert difference.norm() <= 1e-3 * y.norm()
    again = km.estimators.KernelRidge(0.5, random_state=3, **options).fit(x, y)
    assert torch.equal(again.centres_, centres)
    other = km.estimators.KernelRidge(0.5, random_state=4, **options).fit(x, y)
    assert not torch.equal(other.centres_, centres)
    for change, fit in (({"centres": 0}, {}), ({}, {"sample_weight": torch.arange(700) + 1.0}), ({"centres": 2.5}, {})):
        with pytest.raises(ValueError, match="centres"):
            km.estimators.KernelRidge(0.5, **options | change).fit(x, y, **fit)
