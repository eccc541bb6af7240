"""The table drives everything: contractions, documentation, benchmarks, these tests."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial import distance

import kernmantle as km
from benchmarks import metrics
from kernmantle.pairwise import METRICS, Form, Metric
from kernmantle.pairwise.metrics import ALIASES
from kernmantle.testing import assert_close

from .. import pages
from . import distances

SCIPY = {
    "braycurtis", "canberra", "chebyshev", "cityblock", "correlation", "cosine", "dice", "euclidean", "hamming",
    "jaccard", "jensenshannon", "mahalanobis", "minkowski", "rogerstanimoto", "russellrao", "seuclidean",
    "sokalsneath", "sqeuclidean", "yule",
}  # fmt: skip


def test_every_metric_of_scipy():
    assert {row.scipy for row in METRICS.values() if row.scipy} == SCIPY
    assert set(METRICS) - SCIPY == {*distances.ORACLES} - SCIPY
    assert all(name == row.name for name, row in METRICS.items())
    assert not set(ALIASES) & set(METRICS)


@pytest.mark.parametrize("name", distances.NAMES)
def test_symmetric_metrics_are_proven_so(name):
    row = METRICS[name]
    if row.symmetric and row.form.operands == "mk,nk" and name != "yule":
        assert row.form.contraction(weighted="w" in row.options, root=True).is_symmetric
    if not row.symmetric:
        assert not row.form.contraction(weighted=False, root=True).is_symmetric


def test_a_new_row_is_all_there_is_to_a_metric(monkeypatch):
    lorentzian = Metric(
        "lorentzian", "Σ w log(1 + |x − y|)", Form(lambda x, y, w: w * np.log1p(abs(x - y))), options=("w",)
    )
    monkeypatch.setitem(METRICS, lorentzian.name, lorentzian)
    monkeypatch.setitem(distances.ORACLES, "lorentzian", lambda x, y, w: (w * np.log1p(abs(x - y))).sum(-1))
    assert any("`lorentzian`" in line and "yes | yes | yes" in line for line in pages.metrics().splitlines())
    assert "lorentzian" in [case.name for case in metrics.cases()]
    x, y = distances.pair(lorentzian)
    for options in distances.varied(lorentzian):
        wanted = distances.exact(lorentzian, x, y, **options)
        assert_close(km.cdist(x, y, metric="lorentzian", **options), wanted, depth=5)
    assert_close(km.pdist(x, metric="lorentzian"), distances.exact(lorentzian, x, x)[np.triu_indices(7, 1)], depth=5)
    with pytest.raises(km.errors.ParameterError, match="did you mean 'lorentzian'"):
        km.cdist(x, y, metric="lorenzian")


def test_the_oracles_can_fail():
    x, y = distances.pair(METRICS["cityblock"])
    with pytest.raises(AssertionError):
        assert_close(km.cdist(x, y, metric="cityblock"), distance.cdist(x, y, "euclidean"), depth=5)
