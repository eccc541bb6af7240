"""scikit-learn's own tests of pairwise distances, kernels and neighbours on this library's objects.

``python scripts/sklearn_suites.py [SUITE ...] [PYTEST OPTIONS]`` runs, of each module of tests that is installed with
scikit-learn, those tests that name an object of ours, which then stands for scikit-learn's. What is left out, and why,
is in ``SUITES``; see docs/estimators.md for what comes of it.
"""
# ruff: noqa: T201

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))


@dataclass(frozen=True)
class Suite:
    """A module of scikit-learn's tests, the names in it that are ours, and for tests that are left out the reason.

    ``inside`` are modules of which tests read them, as ``neighbors.NearestNeighbors``. A key of ``left_out`` is a
    regular expression of the test with its parameters.
    """

    module: str
    ours: Mapping[str, str]
    inside: tuple[str, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)


_SPARSE = "sparse matrices, which ours refuse: X.toarray()"
_NEIGHBORS = (
    "KNeighborsClassifier", "KNeighborsRegressor", "NearestNeighbors", "RadiusNeighborsClassifier",
    "RadiusNeighborsRegressor",
)  # fmt: skip
_PAIRS = "a function of two rows, or a DistanceMetric, is not one of their entries, which is what is compiled"
_TREES = "a tree of scikit-learn, of which ours have none, or what a tree refuses"
_LONE = "haversine and nan_euclidean, which are metrics of pairwise_distances alone"
_WEIGHTS = "weights as a function of arrays of distances: within a radius ours take one of a distance"
_WORDS = "the words of an error, or a warning that ours do not give"
SUITES = {
    "pairwise": Suite(
        "sklearn.metrics.tests.test_pairwise",
        {"pairwise_distances": "kernmantle", "pairwise_kernels": "kernmantle"},
        left_out={
            r"sparse_data|cosine_similarity\[csr_": _SPARSE,
            r"pairwise_kernels\[csr_.*-(rbf|laplacian|sigmoid|polynomial|linear)\]": _SPARSE,
            "callable_rbf|kernels_callable|custom_metric": _PAIRS,
            "pairwise_boolean_distance|derived_params_error": _WORDS,
            r"pairwise_precomputed\[": "asks for X itself, ours return an array on its memory",
            "filter_param|y_norm_squared": "parameters that are dropped, or squared lengths that are passed",
        },
    ),
    "neighbors": Suite(
        "sklearn.neighbors.tests.test_neighbors",
        dict.fromkeys(_NEIGHBORS, "kernmantle.estimators"),
        ("neighbors",),
        left_out={
            "sparse|_transformer|returns_array_of_objects|sort_results.brute-precomputed": _SPARSE,
            "for_auto_algorithm.*-(cosine|euclidean|l1|l2|manhattan|cityblock)": _SPARSE,
            "validate_parameters": _SPARSE,
            "DM_euclidean|test_callable_metric": _PAIRS,
            "test_auto_algorithm|semimetric|unsupervised_inputs": _TREES,
            "neighbors_metrics.*-(braycurtis|canberra|mahalanobis|minkowski|seuclidean)": _TREES,
            r"agnosticity.*KNeighbors.*-(50-500|100-1000)-.*-100-100-10": "asks for scikit-learn's own base class",
            "radius_neighbors_duplicates": "of neighbours at the same distance any may come first",
            r"haversine|nan_euclidean\]": _LONE,
            r"nan_euclidean_support\[(KN|Radius)\w+(Classifier|Regressor)": _LONE,
            "Classifier_multioutput": "several columns of labels",
            "classifier_zero_distance|radius_neighbors_regressor": _WEIGHTS,
            "parallel_array_radius": "a radius for each row",
            "outlier_labeling|metric_params_interface|validate_params|all_zero_weights": _WORDS,
        },
    ),
    "dbscan": Suite(
        "sklearn.cluster.tests.test_dbscan",
        {"DBSCAN": "kernmantle.estimators"},
        left_out={"csr_": _SPARSE, "callable": _PAIRS, "metric_params": _WORDS},
    ),
    "hdbscan": Suite(
        "sklearn.cluster.tests.test_hdbscan",
        {"HDBSCAN": "kernmantle.estimators"},
        left_out={
            "csr_|csc_|test_hdbscan_sparse": _SPARSE,
            "callable": _PAIRS,
            r"algorithms\[(braycurtis|canberra|correlation|cosine|dice|hamming|jaccard|matching|rogers|russell|seucl|sokal)"
            r".*kd_tree|algorithms\[(correlation|cosine|haversine|mahalanobis|matching|sqeucl|yule)-ball|"
            r"algorithms\[(sqeucl|yule)\w*-(kd|ball)_tree|invalid_algorithm|non_brute|tree_invalid": _TREES,
            "labelling_distinct": "reads an attribute of the implementation",
            "default_copy|distance_matrix": _WORDS,
        },
    ),
    "kernel_ridge": Suite(
        "sklearn.tests.test_kernel_ridge",
        {"KernelRidge": "kernmantle.estimators"},
        left_out={
            "csr_|csc_|sparse": _SPARSE,
            "singular_kernel": "alpha of 0",
            "ridge_precomputed$": "gamma of rbf has another default",
        },
    ),
}


class _Copy(SimpleNamespace):
    """A module with some names replaced."""

    def __init__(self, module: ModuleType, **names: Any) -> None:
        super().__init__(**names)
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


class Replaced:
    """Plugin of pytest: a module of tests with our objects, of which tests that name none are left aside."""

    def __init__(self, suite: Suite) -> None:
        self._suite, self._left = suite, [(re.compile(key), reason) for key, reason in suite.left_out.items()]

    def pytest_configure(self, config: pytest.Config) -> None:  # noqa: ARG002
        """Import the tests while the names are ours: parameters of tests read them then."""
        pytest.register_assert_rewrite(self._suite.module)
        ours = {name: getattr(import_module(home), name) for name, home in self._suite.ours.items()}
        homes = [module for name, module in list(sys.modules.items()) if name.startswith("sklearn.")]
        before = [(home, name, vars(home)[name]) for home in homes for name in ours if name in vars(home)]
        for home, name, _ in before:
            if not home.__name__.startswith("kernmantle"):
                setattr(home, name, ours[name])
        try:
            tests = import_module(self._suite.module)
        finally:
            for home, name, value in before:
                setattr(home, name, value)
        vars(tests).update(ours)
        for module in self._suite.inside:
            vars(tests)[module] = _Copy(vars(tests)[module], **ours)

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Take the tests that are about us; those that are left out must fail, so that the list stays true."""
        names = re.compile(rf"\b({'|'.join(self._suite.ours)})\b")
        about_us: list[pytest.Item] = []
        for item in items:
            if names.search(inspect.getsource(item.function) + item.name):  # type: ignore[attr-defined]
                about_us.append(item)
                reason = next((reason for key, reason in self._left if key.search(item.name)), None)
                if reason is not None:
                    item.add_marker(pytest.mark.xfail(reason=reason, strict=True))
        config.hook.pytest_deselected(items=[item for item in items if item not in about_us])
        items[:] = about_us


def run(name: str, options: list[str]) -> int:
    """Run a suite; returns pytest's status."""
    suite = SUITES[name]
    folder, _, last = suite.module.rpartition(".")
    tests = Path(import_module(folder).__file__ or "").parent
    root = Path(import_module("sklearn").__file__ or "").parent
    plugin = Replaced(suite)
    arguments = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-c", os.devnull, f"--rootdir={root}"]
    status = pytest.main([*arguments, str(tests / f"{last}.py"), *options], [plugin])
    for key, reason in suite.left_out.items():
        print(f"left out: {key}: {reason}")
    return int(status)


def main(arguments: list[str]) -> int:
    """Run the suites that are named, or all, each in a process of its own."""
    named = [text for text in arguments if text in SUITES]
    options = [text for text in arguments if text not in SUITES]
    if len(named) == 1:
        return run(named[0], options)
    status = 0
    for name in named or SUITES:
        print(f"== {name}", flush=True)
        status |= os.spawnv(os.P_WAIT, sys.executable, [sys.executable, __file__, name, *options])
    return status


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
