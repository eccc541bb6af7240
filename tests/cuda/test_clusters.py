"""On a GPU k-means finds scikit-learn's means, after a cluster lost its rows, too; HDBSCAN its labels and trees."""

import numpy as np
import pytest
import sklearn.cluster
import torch

from kernmantle.estimators import HDBSCAN, KMeans, hdbscan, lloyd, spanning_tree
from kernmantle.estimators.hierarchy import condensed
from kernmantle.testing import assert_close

pytestmark = pytest.mark.cuda
RANDOM = np.random.default_rng(0)
ROWS = RANDOM.normal(size=(3000, 5)) + 10
WEIGHTS = RANDOM.integers(0, 4, 3000).astype(float)


@pytest.mark.parametrize("part", [lloyd.BLOCK, 1024])
@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["equal", "weighted"])
def test_means_on_a_gpu_are_those_of_scikit_learn(monkeypatch, weights, part):
    monkeypatch.setattr(lloyd, "BLOCK", part)
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


@pytest.mark.parametrize("limit", [1, 300])
def test_k_means_of_steps_that_end_early_is_that_of_scikit_learn(limit):
    """A step that was launched before it was known to be one too many is dropped."""
    for seed in range(8):
        random = np.random.default_rng(seed)
        x = random.normal(size=(60, 2)) + 8 * random.integers(0, 3, (60, 1))
        options = {"init": x[:3], "n_init": 1, "max_iter": limit, "tol": 0.0 if seed % 2 else 1e-4}
        ours = KMeans(3, **options).fit(torch.from_numpy(x).cuda())
        theirs = sklearn.cluster.KMeans(3, **options).fit(x)
        assert ours.n_iter_ == theirs.n_iter_
        assert (ours.labels_.cpu().numpy() == theirs.labels_).all()
        assert_close(ours.inertia_, theirs.inertia_, depth=60)


def blobs(rows, columns, seed):
    random = np.random.default_rng(seed)
    centres = 4 * random.normal(size=(7, columns))
    return centres[random.integers(0, 7, rows)] + random.normal(size=(rows, columns)) * random.uniform(
        0.3, 2, (rows, 1)
    )


@pytest.mark.parametrize("metric", ["euclidean", "cityblock"])
@pytest.mark.parametrize("how", ["eom", "leaf"])
def test_hdbscan_on_a_gpu_finds_the_labels_of_scikit_learn(metric, how):
    for seed, (size, count) in enumerate([(12, None), (25, 8)]):
        x = blobs(5000, 24, seed).astype(np.float32)
        options = {"min_samples": count, "metric": metric, "cluster_selection_method": how}
        theirs = sklearn.cluster.HDBSCAN(size, copy=True, **options).fit(x.astype(np.float64))
        ours = HDBSCAN(size, **options).fit(torch.from_numpy(x).cuda())
        assert (ours.labels_.cpu().numpy() == theirs.labels_).all()
        assert_close(ours.probabilities_.cpu(), theirs.probabilities_, dtype="float32", depth=1000)


@pytest.mark.parametrize("kind", ["blobs", "ties"])
def test_trees_by_products_are_those_by_differences(monkeypatch, kind):
    """And those of float64 on a CPU, of more rows than Prim's algorithm is asked for."""
    x = blobs(21_000, 20, 3) if kind == "blobs" else np.random.default_rng(0).integers(0, 3, (6000, 16))
    given = torch.from_numpy(x).float()
    asked, ask = [], spanning_tree._Reach.ask

    def counted(reach, rows, labels):
        asked.append(len(rows))
        ask(reach, rows, labels)

    monkeypatch.setattr(spanning_tree._Reach, "ask", counted)
    ours = HDBSCAN(20, 5).fit(given.cuda())
    by_products = sum(asked)
    asked.clear()
    exact = HDBSCAN(20, 5).fit(given.double())
    assert_close(np.sort(ours._weight), np.sort(exact._weight), dtype="float32", depth=10)
    if kind == "blobs":
        assert by_products < sum(asked) / 3
        assert (ours.labels_.cpu() == exact.labels_).all()
    monkeypatch.setattr(hdbscan, "rounded", lambda *_: None)
    plain = HDBSCAN(20, 5).fit(given.cuda())
    assert_close(np.sort(plain._weight), np.sort(exact._weight), dtype="float32", depth=100)


def test_the_hierarchy_on_a_gpu_is_that_on_a_cpu():
    random = np.random.default_rng(0)
    ends = np.array([(random.integers(max(0, row - 50), row), row) for row in range(1, 30_000)])
    one, other = torch.from_numpy(random.permutation(30_000)[ends][random.permutation(29_999)].T.copy())
    density = torch.linspace(9, 1, 29_999, dtype=torch.float64)
    there = condensed(one.cuda(), other.cuda(), density.cuda(), 5)
    here = condensed(one, other, density, 5)
    for name in ("parent", "birth", "size", "cluster", "leaves"):
        assert (getattr(there, name).cpu() == getattr(here, name)).all()
