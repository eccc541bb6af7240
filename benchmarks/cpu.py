"""The CPU suite: float32 and float64 distances, a semiring, a kernel, a gradient, and what a new process pays."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch

from kernmantle.ir.functions import FUNCTIONS
from kernmantle.pairwise import cdist
from kernmantle.torch_ops.contract import Contraction

from . import problems
from .case import Arrays, Case, Peer, Prepare, Probe, Suite, Target
from .work import Work

M = N = 2048
K = 256
PAIRS = float(M * N * K)
POWER_STEPS = 16  # multiply-adds of a logarithm and an exponential as polynomials of float32 accuracy
BANDWIDTH = 100.0
BLOCK = 2

_tropical = Contraction("mk,nk->mn", lambda a, b: a + b, reduce="min")
_laplace = Contraction(
    "mk,nk->mn", lambda a, b: abs(a - b), epilogue=lambda s, bandwidth: FUNCTIONS["exp"](-s / bandwidth)
)
_sums = Contraction("mk,nk->m", lambda a, b: abs(a - b))


def _ours(**options: Any) -> Prepare:
    return lambda given: lambda: cdist(given["x"], given.get("y"), **options)


def _torch(p: float, mode: str = "use_mm_for_euclid_dist_if_necessary") -> Prepare:
    return lambda given: lambda: torch.cdist(given["x"], given.get("y", given["x"]), p=p, compute_mode=mode)


def _scipy(metric: str, **options: Any) -> Prepare:
    def prepare(given: Arrays) -> Callable[[], Any]:
        distance = import_module("scipy.spatial.distance")
        x, y = given["x"].numpy(), given.get("y", given["x"]).numpy()
        return lambda: distance.cdist(x, y, metric, **options)

    return prepare


def _scipy_own(metric: str) -> Prepare:
    def prepare(given: Arrays) -> Callable[[], Any]:
        distance = import_module("scipy.spatial.distance")
        return lambda: distance.squareform(distance.pdist(given["x"].numpy(), metric))

    return prepare


def _sklearn(name: str) -> Prepare:
    def prepare(given: Arrays) -> Callable[[], Any]:
        call = getattr(import_module("sklearn.metrics.pairwise"), name)
        return lambda: call(given["x"].numpy(), given["y"].numpy())

    return prepare


def _blocks(body: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Prepare:
    """Plain torch over blocks of rows, so that what is between fits into the cache."""

    def prepare(given: Arrays) -> Callable[[], torch.Tensor]:
        x, y = given["x"], given["y"]
        return lambda: torch.cat([body(rows[:, None], y) for rows in x.split(BLOCK)])

    return prepare


def _keops_sums(given: Arrays) -> Callable[[], Any]:
    lazy = import_module("pykeops.torch").LazyTensor
    return lambda: (lazy(given["x"][:, None]) - lazy(given["y"][None])).abs().sum(-1).sum(1)


def _backward(forward: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Prepare:
    def prepare(given: Arrays) -> Callable[[], torch.Tensor]:
        x = given["x"].detach().requires_grad_()
        result = forward(x, given["y"])
        return lambda: torch.autograd.grad(result, x, given["g"], retain_graph=True)[0]

    return prepare


def _work(mix: str, dtype: str = "f32", share: float = 1.0, steps: float = 1.0) -> Work:
    size = 4 if dtype == "f32" else 8
    return Work(size * (M * K + N * K + M * N), {f"{mix}.{dtype}": PAIRS * share * steps})


TORCH, SCIPY, SKLEARN = "torch.cdist", "scipy", "scikit-learn"
_GRAMS = (
    Case(
        "l1", "L1 distances", problems.distances(M, N, K, 1.0), _ours(p=1),
        (
            Peer(TORCH, _torch(1.0)),
            Peer(SCIPY, _scipy("cityblock"), "scipy"),
            Peer(SKLEARN, _sklearn("manhattan_distances"), SKLEARN),
        ),
        _work("sub-abs-add"), (Target("faster", 15, TORCH),), elements=PAIRS,
    ),
    Case(
        "l1 own", "L1 distances, one set", problems.own_distances(M, K, 1.0), _ours(p=1),
        (Peer(TORCH, _torch(1.0)), Peer(SCIPY, _scipy_own("cityblock"), "scipy")),
        _work("sub-abs-add", share=0.5), elements=PAIRS,
    ),
    Case(
        "p=1.3", "distances of power 1.3", problems.distances(M, N, K, 1.3), _ours(p=1.3),
        (Peer(TORCH, _torch(1.3)), Peer(SCIPY, _scipy("minkowski", p=1.3), "scipy")),
        _work("fma", steps=POWER_STEPS), (Target("faster", 7.5, TORCH),), elements=PAIRS,
    ),
    Case(
        "p=2", "L2 distances, exact", problems.distances(M, N, K, 2.0), _ours(p=2),
        (
            Peer(TORCH, _torch(2.0)),
            Peer("torch.cdist, exact", _torch(2.0, "donot_use_mm_for_euclid_dist")),
            Peer(SCIPY, _scipy("euclidean"), "scipy"),
            Peer(SKLEARN, _sklearn("euclidean_distances"), SKLEARN),
        ),
        _work("sub-fma"), (Target("faster", 1, TORCH),), elements=PAIRS,
    ),
    Case(
        "min-plus", "min-plus product", problems.least_sums(M, N, K),
        lambda given: lambda: _tropical(given["x"], given["y"]),
        (Peer("torch in blocks", _blocks(lambda rows, y: (rows + y).amin(-1))),),
        _work("add-min"), (Target("rate", 40e9),), elements=PAIRS,
    ),
    Case(
        "laplace", "Laplace kernel, L1", problems.laplace(M, N, K, BANDWIDTH),
        lambda given: lambda: _laplace(given["x"], given["y"], bandwidth=BANDWIDTH),
        (Peer(TORCH, lambda given: lambda: torch.cdist(given["x"], given["y"], p=1).div_(-BANDWIDTH).exp_()),),
        _work("sub-abs-add"), elements=PAIRS,
    ),
    Case(
        "l1 f64", "L1 distances, float64", problems.distances(M, N, K, 1.0, "f64"), _ours(p=1),
        (Peer(TORCH, _torch(1.0)), Peer(SCIPY, _scipy("cityblock"), "scipy")),
        _work("sub-abs-add", "f64"), elements=PAIRS,
    ),
    Case(
        "sums", "sums of L1 distances over one set", problems.row_sums(M, N, K),
        lambda given: lambda: _sums(given["x"], given["y"])[:, None],
        (
            Peer(TORCH, lambda given: lambda: torch.cdist(given["x"], given["y"], p=1).sum(1, keepdim=True)),
            Peer("KeOps", _keops_sums, "pykeops"),
        ),
        _work("sub-abs-add"), elements=PAIRS,
    ),
    Case(
        "l1 backward", "gradient of L1 distances", problems.slopes(M, N, K),
        _backward(lambda x, y: cdist(x, y, p=1)), (Peer(TORCH, _backward(lambda x, y: torch.cdist(x, y, p=1))),),
        _work("sub-fma"), elements=PAIRS,
    ),
    Case(
        "tiny", "16 x 16 distances of 4 numbers", problems.distances(16, 16, 4, 1.0), _ours(p=1),
        (Peer(TORCH, _torch(1.0)), Peer(SCIPY, _scipy("cityblock"), "scipy")),
        Work(4.0 * (16 * 4 * 2 + 16 * 16)), elements=16 * 16 * 4.0,
    ),
)  # fmt: skip
_STARTS = (
    Probe("import", "import, beyond torch's", "import", (Target("seconds", 0.1),)),
    Probe("cold f32", "first call of a new kernel, float32", "cold f32", (Target("seconds", 0.6),)),
    Probe("cold f64", "first call of a new kernel, float64", "cold f64", (Target("seconds", 0.8),)),
    Probe("warm", "first call in a new process, kernel cached", "warm", (Target("seconds", 0.04),)),
    Probe("hit", "first call of one more cached kernel", "hit", (Target("seconds", 0.005),)),
)

SUITE = Suite("cpu", "cpu", (*_GRAMS, *_STARTS))
