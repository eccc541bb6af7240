"""The suites of estimators: everybody's result is right on small cases, and a bad model is not timed."""

import pytest
import torch

from benchmarks import estimators
from benchmarks.case import Peer

from ..measured import measured, statuses

TORCH = Peer("torch", estimators._torch_ridge)


def errors(case):
    return {name: found["error"] for name, found in measured(case)["results"].items()}


@pytest.mark.parametrize("p", [1, 2])
def test_neighbours_of_everybody_agree(p):
    theirs = Peer("scikit-learn", estimators._sklearn_nearest(float(p)), "scikit-learn")
    peers = [theirs, estimators._cdist(float(p))]
    if p == 2:
        peers.append(Peer("products", estimators._chunks(estimators._by_products)))
    found = statuses(estimators._near_case(30, 200, 6, p, *peers))
    assert found == dict.fromkeys(found, "ok")


def test_ridge_regressions_explain_equally_much():
    theirs = Peer("scikit-learn", estimators._sklearn_ridge, "scikit-learn")
    found = errors(estimators._ridge(600, 100, TORCH, theirs)).values()
    assert max(found) - min(found) < 1e-4 < max(found) < estimators.UNEXPLAINED


def test_feature_machines_explain_equally_much():
    pytest.importorskip("xrfm")
    found = errors(estimators._recursive(400, 100))
    assert abs(found["kernmantle"] - found["xrfm"]) < 1e-4


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_search_that_is_cut_short_explains_much():
    assert statuses(estimators._process(300, 50))["kernmantle"] == "ok"


def test_a_model_that_explains_nothing_is_wrong():
    mean = Peer("mean", lambda given: lambda: estimators.explained(torch.zeros_like(given["truth"]), given))
    assert statuses(estimators._ridge(600, 100, mean))["mean"] == "wrong"


def test_gpytorch_predicts_alike_on_its_kernel_and_ours():
    pytest.importorskip("gpytorch")
    found = measured(estimators._in_gpytorch(300, 100))["results"]
    assert {row["status"] for row in found.values()} == {"ok"}
    assert abs(found["kernmantle"]["error"] - found["GPyTorch"]["error"]) < 1e-3
