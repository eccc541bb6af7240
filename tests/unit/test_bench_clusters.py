"""The suites of clusters and of KeOps' gallery: results are right on small cases, and wrong ones are not timed."""

from dataclasses import replace
from importlib.util import find_spec

import pytest
import torch

from benchmarks import clusters, keops_gallery
from benchmarks.__main__ import chosen
from benchmarks.case import Peer

from ..measured import statuses

HAS_HDBSCAN = find_spec("hdbscan") is not None
SMALL = clusters.suite(2000, 1000)
GALLERY = keops_gallery.suite(100)


@pytest.mark.parametrize("case", [*SMALL.rows, *clusters.cpu_suite(1500).rows], ids=lambda case: case.name)
def test_clusters_of_everybody_are_found(case):
    slow = (clusters.FLASHLIB, clusters.SKLEARN) if "lambda" in case.name else (clusters.FLASHLIB,)
    here = tuple(peer for peer in case.peers if peer.name not in slow)
    found = statuses(replace(case, peers=here))
    expected = {name: "absent" if name == clusters.HDBSCAN and not HAS_HDBSCAN else "ok" for name in found}
    assert found == expected


def test_one_cluster_of_everything_is_wrong():
    one = Peer("one", lambda given: lambda: clusters.right(torch.zeros_like(given["truth"]), given["truth"]))
    assert statuses(replace(SMALL.rows[0], peers=(one,)))["one"] == "wrong"


def test_noise_is_no_cluster():
    truth = torch.arange(40) % clusters.CENTRES
    assert clusters.right(truth.where(truth < 10, -1), truth).item() == 0.5


@pytest.mark.parametrize("case", GALLERY.rows, ids=lambda case: case.name)
def test_the_gallery_of_keops_runs_on_the_facade(case):
    assert statuses(replace(case, peers=())) == {"kernmantle": "ok"}


def test_a_program_of_the_gallery_with_another_width_is_wrong():
    case = GALLERY.rows[0]
    wrong = replace(case, ours=keops_gallery.convolution("cauchy", 100).ours, peers=())
    assert statuses(wrong)["kernmantle"] == "wrong"


def test_named_cases_run_in_the_order_of_their_names():
    names = ["DBSCAN L1 2000", "KMeans L2", "DBSCAN L1 2000"]
    assert [row.name for row in chosen(SMALL, names)] == names[:2]
    assert [row.name for row in chosen(SMALL, [])] == [row.name for row in SMALL.rows]
