"""Estimators and solvers on arrays in any layout, and after fits that failed."""

import numpy as np
import pytest
import sklearn.decomposition
import torch
from sklearn.exceptions import NotFittedError

import kernmantle as km
from kernmantle import estimators
from kernmantle.testing import assert_close

RANDOM = np.random.default_rng(0)
ROW, COLUMN = np.ones((1, 3))[::-1], RANDOM.normal(size=(6, 1))[:, ::-1]  # numpy calls both of them contiguous
ROWS, TARGETS = RANDOM.normal(size=(6, 3)), RANDOM.normal(size=6)[::-1]
LABELS = np.array([0, 0, 1, 1, 0, 1])[::-1]
WEIGHTS, MASK = RANDOM.uniform(1, 2, 6)[::-1], np.array([True, True, False, True, False, True])[::-1]
SQUARE = ROWS @ ROWS.T + np.eye(6)


def plain(array):
    return np.array(array)


def machine(rows, targets, validation):
    made = estimators.RecursiveFeatureMachine(bandwidth=1.0, n_iterations=2)
    return made.fit(rows, targets, validation=validation).predict(ROWS)


CALLS = {
    "queries": lambda own: estimators.NearestNeighbors(1).fit(ROWS).kneighbors(own(ROW))[0],
    "rows": lambda own: estimators.KernelRidge(bandwidth=1.0).fit(own(COLUMN), TARGETS).predict(own(COLUMN)),
    "targets of tensors": lambda own: (
        estimators.KernelRidge(bandwidth=1.0).fit(torch.tensor(ROWS), own(TARGETS)).predict(torch.tensor(ROWS))
    ),
    "sample_weight": lambda own: (
        estimators.KernelRidge(bandwidth=1.0).fit(ROWS, ROWS, sample_weight=own(WEIGHTS)).predict(ROWS)
    ),
    "validation": lambda own: machine(ROWS, plain(TARGETS), (own(ROWS[::-1]), own(TARGETS))),
    "weights": lambda own: (
        estimators.KNeighborsRegressor(2, weights=lambda d: own(d[:, ::-1])).fit(ROWS, TARGETS).predict(ROWS)
    ),
    "centres": lambda own: estimators.KMeans(2, init=own(ROWS[:2][::-1]), n_init=1).fit(ROWS).cluster_centers_,
    "medoids": lambda own: estimators.KMedoids(2, init=own(np.array([1, 4])[::-1])).fit(ROWS).cluster_centers_,
    "labels": lambda own: estimators.KernelKMeans(2, init=own(LABELS), bandwidth=1.0).fit(ROWS).labels_,
    "metric_params": lambda own: (
        estimators.NearestNeighbors(2, metric="minkowski", metric_params={"w": own(WEIGHTS[:3])}).fit(ROWS)
    ).kneighbors(ROWS)[0],
    "medoids by weights": lambda own: (
        estimators.KMedoids(2, metric="seuclidean", metric_params={"V": own(WEIGHTS[:3])}, random_state=0)
    ).fit(ROWS).cluster_centers_,
    "ridge": lambda own: km.linalg.solve_kernel(km.Gaussian(1.0), ROWS, plain(TARGETS), own(WEIGHTS)).x,
    "ridge of a preconditioner": lambda own: (
        km.linalg.pivoted_cholesky(torch.tensor(SQUARE), 2, own(WEIGHTS)).log_determinant().numpy()
    ),
    "mask": lambda own: (
        km.linalg.MaskedKronecker(km.KroneckerProduct([torch.tensor(SQUARE)]), own(MASK), 0.1)
    ).mean(torch.tensor(plain(TARGETS)[: MASK.sum()])).numpy(),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_arrays_in_reverse_are_those_in_order(name):
    assert all(min(array.strides) < 0 for array in (ROW, COLUMN, TARGETS, WEIGHTS, LABELS, MASK))
    found, wanted = CALLS[name](lambda array: array), CALLS[name](plain)
    assert_close(np.asarray(found, float), np.asarray(wanted, float))


FAILING = {
    "KNeighborsClassifier": ({"metric": "haversine"}, ["predict", "predict_proba", "kneighbors"]),
    "KNeighborsRegressor": ({"weights": "nearest"}, ["predict", "kneighbors"]),
    "RadiusNeighborsClassifier": ({"outlier_label": "a"}, ["predict", "predict_proba", "radius_neighbors"]),
    "RadiusNeighborsRegressor": ({"metric": "haversine"}, ["predict", "radius_neighbors"]),
    "NearestNeighbors": ({"metric": "haversine"}, ["kneighbors", "radius_neighbors", "kneighbors_graph"]),
}


@pytest.mark.parametrize("name", FAILING)
def test_a_fit_that_failed_is_none(name):
    options, methods = FAILING[name]
    made = getattr(estimators, name)(**options)
    labels = plain(LABELS)
    with pytest.raises((ValueError, TypeError)):
        made.fit(ROWS, labels)
    for method in methods:
        with pytest.raises(NotFittedError):
            getattr(made, method)(ROWS)
    if hasattr(made, "classes_"):
        pytest.fail("classes of a fit that failed")


def test_a_fit_that_fails_leaves_the_one_before():
    made = estimators.KNeighborsClassifier(1).fit(ROWS, plain(LABELS))
    with pytest.raises(ValueError, match="haversine"):
        made.set_params(metric="haversine").fit(ROWS, np.array(list("abcabc")))
    assert (made.predict(ROWS) == LABELS).all()


@pytest.mark.parametrize("remove", [False, True])
@pytest.mark.parametrize("wanted", [None, 1, 4])
def test_components_without_an_eigenvalue_are_left_out_on_request(wanted, remove):
    rows = np.array(COLUMN)
    options = {"n_components": wanted, "kernel": "linear", "remove_zero_eig": remove}
    ours = estimators.KernelPCA(**options).fit(rows)
    theirs = sklearn.decomposition.KernelPCA(**options, eigen_solver="dense").fit(rows)
    assert ours.eigenvalues_.shape == theirs.eigenvalues_.shape
    assert_close(ours.eigenvalues_, theirs.eigenvalues_, depth=10)
    assert_close(abs(ours.transform(rows)), abs(theirs.transform(rows)), depth=100)
