"""K-means on a GPU finds scikit-learn's means, with weights, in parts and after a cluster lost its rows."""

import numpy as np
import pytest
import sklearn.cluster
import torch

from kernmantle.estimators import KMeans, kmeans
from kernmantle.testing import assert_close

pytestmark = pytest.mark.cuda
RANDOM = np.random.default_rng(0)
ROWS = RANDOM.normal(size=(3000, 5)) + 10
WEIGHTS = RANDOM.integers(0, 4, 3000).astype(float)


@pytest.mark.parametrize("part", [kmeans.BLOCK, 1024])
@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["equal", "weighted"])
def test_means_on_a_gpu_are_those_of_scikit_learn(monkeypatch, weights, part):
    monkeypatch.setattr(kmeans, "BLOCK", part)
    own = None if weights is None else torch.from_numpy(weights).cuda()
    options = {"init": ROWS[:7], "n_init": 1, "max_iter": 300}
    ours = KMeans(7, **options).fit(torch.from_numpy(ROWS).cuda(), sample_weight=own)
    theirs = sklearn.cluster.KMeans(7, **options).fit(ROWS, sample_weight=weights)

    assert ours.labels_.is_cuda
    assert (ours.labels_.cpu().numpy() == theirs.labels_).all()
    assert ours.n_iter_ == theirs.n_iter_
    assert_close(ours.cluster_centers_.cpu(), theirs.cluster_centers_, depth=3000)
    assert_close(ours.inertia_, theirs.inertia_, depth=3000)


def test_a_cluster_that_lost_its_rows_takes_another():
    start = np.vstack([ROWS[:4], np.full((1, 5), 1e3)])
    found = KMeans(5, init=start, max_iter=500).fit(torch.from_numpy(ROWS).cuda())
    assert found.labels_.unique().numel() == 5
    assert found.cluster_centers_.max() < 20


def test_sums_of_float32_lose_no_digits_on_a_gpu():
    x = (RANDOM.uniform(size=(200_000, 2)) + 1000).astype(np.float32)
    found = KMeans(1).fit(torch.from_numpy(x).cuda())
    assert_close(found.cluster_centers_[0].cpu(), x.astype(np.float64).mean(0), magnitude=0)


def test_centres_far_from_the_origin_keep_their_digits():
    """Products of rows that are not centred would lose the distances."""
    x = (RANDOM.normal(size=(5000, 16)) + 1e4).astype(np.float32)
    ours = KMeans(4, init=x[:4], n_init=1).fit(torch.from_numpy(x).cuda())
    theirs = sklearn.cluster.KMeans(4, init=x[:4].astype(np.float64), n_init=1).fit(x.astype(np.float64))
    assert (ours.labels_.cpu().numpy() == theirs.labels_).mean() > 0.999
    assert_close(ours.inertia_, theirs.inertia_, dtype="float32", depth=5000)
