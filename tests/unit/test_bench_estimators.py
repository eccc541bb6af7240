"""The suites of estimators: everybody's result is right on small cases, and a bad model is not timed."""

from dataclasses import replace

import pytest
import torch

from benchmarks import estimators, run
from benchmarks.case import Peer
from benchmarks.timing import Plan

STAMP = {"machine": {"cpu": {"model": "Abacus 9", "architecture": "wood", "threads": 1}}, "commit": ""}
SETTINGS = run.Settings(Plan(budget=0.0, least=1, most=1, pause=0.0))
TORCH = Peer("torch", estimators._torch_ridge)


def results(case):
    return run.measure(case, replace(estimators.CPU_SUITE, rows=(case,)), STAMP, SETTINGS)["results"]


@pytest.mark.parametrize("p", [1, 2])
def test_neighbours_of_everybody_agree(p):
    theirs = Peer("scikit-learn", estimators._sklearn_nearest(float(p)), "scikit-learn")
    peers = [theirs, estimators._cdist(float(p))]
    if p == 2:
        peers.append(Peer("products", estimators._chunks(estimators._by_products)))
    found = results(estimators._near_case(30, 200, 6, p, *peers))
    assert {name: each["status"] for name, each in found.items()} == dict.fromkeys(found, "ok")


def test_ridge_regressions_explain_equally_much():
    found = results(estimators._ridge(600, 100, TORCH, Peer("scikit-learn", estimators._sklearn_ridge, "scikit-learn")))
    errors = [each["error"] for each in found.values()]
    assert max(errors) - min(errors) < 1e-4 < max(errors) < estimators.UNEXPLAINED


def test_feature_machines_explain_equally_much():
    pytest.importorskip("xrfm")
    found = results(estimators._recursive(400, 100))
    assert abs(found["kernmantle"]["error"] - found["xrfm"]["error"]) < 1e-4


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_search_that_is_cut_short_explains_much():
    assert results(estimators._process(300, 50))["kernmantle"]["status"] == "ok"


def test_a_model_that_explains_nothing_is_wrong():
    mean = Peer("mean", lambda given: lambda: estimators.explained(torch.zeros_like(given["truth"]), given))
    assert results(estimators._ridge(600, 100, mean))["mean"]["status"] == "wrong"


def test_gpytorch_predicts_alike_on_its_kernel_and_ours():
    pytest.importorskip("gpytorch")
    found = results(estimators._in_gpytorch(300, 100))
    assert {row["status"] for row in found.values()} == {"ok"}
    assert abs(found["kernmantle"]["error"] - found["GPyTorch"]["error"]) < 1e-3
