"""The suites of estimators: fitting and predicting beside scikit-learn on the CPU, beside xrfm and torch on the GPU.

What a model predicts has no closed form. The result of a case that learns is the share of the variance of held rows
that is explained, which must come near 1, and the error of its row is what is missing.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any

import numpy as np
import torch

from kernmantle.pairwise import argkmin

from . import problems
from .case import Arrays, Case, Exact, Peer, Picks, Prepare, Problem, Suite, Target
from .work import Work

COLUMNS = 54
MEASURED = 10
BANDWIDTH, RIDGE, ROUNDS = 8.0, 1e-3, 3
NEIGHBOURS = 10
ROOM = 1 << 30
BLOCK = 2048
UNEXPLAINED = 0.2
FEW = 64
"""Rows of a first call, in which a peer loads what it needs."""
STEPS, RATE = 5, 0.1
"""Steps of a search for hyperparameters in GPyTorch, and how far they go."""
SKLEARN = "scikit-learn"


def learnable(known: int, held: int) -> Problem:
    """Ten measurements and forty-four kinds a row; the targets depend on three columns, and carry noise."""

    def inputs(device: str) -> Arrays:
        rows = known + held
        x = problems.normal(rows, COLUMNS, "f32", "cpu", 1).clone()
        kinds = x[:, MEASURED:].argmax(1)
        x[:, MEASURED:] = torch.nn.functional.one_hot(kinds, COLUMNS - MEASURED)
        truth = 2 * torch.sin(x[:, 0]) + x[:, 1] + x[:, 2].abs() - 0.8
        y = truth + 0.1 * problems.normal(rows, 1, "f32", "cpu", 2)[:, 0]
        parts = {"x": x[:known], "y": y[:known], "held": x[known:], "truth": truth[known:]}
        return {name: part.to(device) for name, part in parts.items()}

    def exact(given: Exact, _: Picks) -> np.ndarray[Any, Any]:
        return np.ones_like(given["truth"][:1, None])

    return Problem(inputs, exact, (1, 1), known, "f32")


def explained(predicted: torch.Tensor, given: Arrays) -> torch.Tensor:
    """Share of the variance of the held rows, (1, 1)."""
    truth = given["truth"]
    return (1 - (predicted.reshape(-1) - truth).square().mean() / truth.var(correction=0)).reshape(1, 1)


def own(name: str, *values: Any, **options: Any) -> Prepare:
    """One of the estimators, which need scikit-learn."""

    def prepare(given: Arrays) -> Callable[[], torch.Tensor]:
        make = getattr(import_module("kernmantle.estimators"), name)

        def call() -> torch.Tensor:
            return explained(make(*values, **options).fit(given["x"], given["y"]).predict(given["held"]), given)

        return call

    return prepare


def _sklearn_ridge(given: Arrays) -> Callable[[], torch.Tensor]:
    make = import_module("sklearn.kernel_ridge").KernelRidge
    x, y, held = (given[name].numpy() for name in ("x", "y", "held"))

    def call() -> torch.Tensor:
        model = make(alpha=RIDGE, kernel="laplacian", gamma=1 / BANDWIDTH).fit(x, y)
        return explained(torch.from_numpy(model.predict(held)), given)

    return call


def _torch_ridge(given: Arrays) -> Callable[[], torch.Tensor]:
    def kernel(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.cdist(a, b, p=1).div_(-BANDWIDTH).exp_()

    kernel(given["x"][:FEW], given["x"][:FEW])

    def call() -> torch.Tensor:
        matrix = kernel(given["x"], given["x"])
        matrix.diagonal().add_(RIDGE)
        weights = torch.cholesky_solve(given["y"][:, None], torch.linalg.cholesky_ex(matrix).L)
        return explained(kernel(given["held"], given["x"]) @ weights, given)

    return call


def _xrfm(given: Arrays) -> Callable[[], torch.Tensor]:
    machine, kernels = import_module("xrfm").RFM, import_module("xrfm.rfm_src.kernels")
    device = str(given["x"].device)

    def call(rows: int | None = None) -> torch.Tensor:
        kernel = kernels.ProductLaplaceKernel(bandwidth=BANDWIDTH, exponent=1.0)
        model = machine(kernel, iters=ROUNDS, device=device, verbose=False, tuning_metric="mse", diag=False)
        known = given["x"][:rows], given["y"][:rows, None]
        model.fit(known, (given["held"], given["truth"][:, None]), reg=RIDGE)
        return explained(model.predict(given["held"]), given)

    call(FEW)
    return call


def _machine(given: Arrays) -> Callable[[], torch.Tensor]:
    make = import_module("kernmantle.estimators").RecursiveFeatureMachine

    def call() -> torch.Tensor:
        model = make(
            RIDGE, kernel="laplace", kernel_params={"p": 1}, bandwidth=BANDWIDTH, n_iterations=ROUNDS, patience=ROUNDS,
            solver="cholesky",
        )  # fmt: skip
        model.fit(given["x"], given["y"], validation=(given["held"], given["truth"]))
        return explained(model.predict(given["held"]), given)

    return call


def _gpytorch(module: str) -> Prepare:
    """Steps of Adam in GPyTorch by conjugate gradients, with the ``RBFKernel`` of a module, and predictions."""

    def prepare(given: Arrays) -> Callable[[], torch.Tensor]:
        gpytorch, kernels = import_module("gpytorch"), import_module(module)

        class Process(gpytorch.models.ExactGP):
            def __init__(self, likelihood: Any) -> None:
                super().__init__(given["x"], given["y"], likelihood)
                own = kernels.RBFKernel()
                own.lengthscale = BANDWIDTH
                self.mean_module = gpytorch.means.ConstantMean()
                self.covar_module = gpytorch.kernels.ScaleKernel(own)

            def forward(self, x: torch.Tensor) -> Any:
                return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

        def call() -> torch.Tensor:
            torch.manual_seed(0)
            likelihood = gpytorch.likelihoods.GaussianLikelihood()
            model = Process(likelihood).to(given["x"].device).train()
            objective = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
            adam = torch.optim.Adam(model.parameters(), lr=RATE)
            with gpytorch.settings.max_cholesky_size(FEW), gpytorch.settings.skip_posterior_variances():
                for _ in range(STEPS):
                    adam.zero_grad()
                    (-objective(model(given["x"]), given["y"])).backward()
                    adam.step()
                with torch.no_grad():
                    return explained(model.eval()(given["held"]).mean, given)

        return call

    return prepare


def near(rows: int, known: int, columns: int, p: float) -> Problem:
    """Distances to the nearest of a set of points, nearest first."""

    def exact(given: Exact, picks: Picks) -> np.ndarray[Any, Any]:
        def row(place: int) -> np.ndarray[Any, Any]:
            blocks = np.array_split(given["y"], 1 + known // BLOCK)
            found = np.concatenate([np.linalg.norm(given["x"][place] - block, p, axis=1) for block in blocks])
            return np.sort(np.partition(found, NEIGHBOURS)[:NEIGHBOURS])[picks.columns]

        with ThreadPoolExecutor() as pool:
            return np.stack(list(pool.map(row, picks.rows)))

    return Problem(problems.distances(rows, known, columns, p).inputs, exact, (rows, NEIGHBOURS), columns, "f32")


def _nearest(p: float) -> Prepare:
    return lambda given: lambda: argkmin(given["x"], given["y"], NEIGHBOURS, p=p, return_values=True)[0]


def _chunks(block: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Prepare:
    """Distances of as many rows as fit into a GiB, then the best of them."""

    def prepare(given: Arrays) -> Callable[[], torch.Tensor]:
        x, y = given["x"], given["y"]
        rows = max(1, ROOM // (4 * y.shape[0]))
        block(x[:FEW], y[:FEW]).topk(1)
        return lambda: torch.cat([
            block(part, y).topk(NEIGHBOURS, largest=False).values for part in x.split(rows)
        ])  # fmt: skip

    return prepare


def _by_products(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Distances from squares and products, as libraries of exhaustive search take them."""
    return torch.addmm(y.square().sum(1), x, y.mT, alpha=-2).add_(x.square().sum(1)[:, None]).clamp_(min=0).sqrt_()


def _sklearn_nearest(p: float) -> Prepare:
    def prepare(given: Arrays) -> Callable[[], Any]:
        make = import_module("sklearn.neighbors").NearestNeighbors
        x, y = given["x"].numpy(), given["y"].numpy()
        return lambda: make(n_neighbors=NEIGHBOURS, p=p, algorithm="brute").fit(y).kneighbors(x)[0]

    return prepare


def _near_case(rows: int, known: int, columns: int, p: int, *peers: Peer) -> Case:
    name = {1: "L1", 2: "L2"}[p]
    return Case(
        f"neighbours {name}", f"{NEIGHBOURS} nearest of {known} by {name}, {rows} rows of {columns}",
        near(rows, known, columns, float(p)), _nearest(float(p)), peers, Work(),
        tuple(Target("faster", 1, peer.name) for peer in peers), elements=float(rows) * known * columns, accuracy=1e-4,
    )  # fmt: skip


def _learning_case(name: str, title: str, known: int, held: int, ours: Prepare, *peers: Peer) -> Case:
    return Case(
        name, f"{title}, {known} x {COLUMNS}, fit and predict {held}", learnable(known, held), ours, peers, Work(),
        tuple(Target("faster", 1, peer.name) for peer in peers), accuracy=UNEXPLAINED,
    )  # fmt: skip


def _ridge(known: int, held: int, *peers: Peer) -> Case:
    ours = own(
        "KernelRidge", RIDGE, kernel="laplace", kernel_params={"p": 1}, bandwidth=BANDWIDTH, solver="cholesky"
    )  # fmt: skip
    return _learning_case("ridge", "kernel ridge regression", known, held, ours, *peers)


def _recursive(known: int, held: int) -> Case:
    title = f"feature machine of {ROUNDS} rounds"
    return _learning_case("feature machine", title, known, held, _machine, Peer("xrfm", _xrfm, "xrfm"))


def _process(known: int, held: int, searched: int = 10) -> Case:
    title = f"Gaussian process, a bandwidth a column, {searched} steps of its search"
    ours = own("GaussianProcessRegressor", ard=True, max_iter=searched)
    return _learning_case("process", title, known, held, ours)


def _in_gpytorch(known: int, held: int) -> Case:
    title = f"Gaussian process in GPyTorch, {STEPS} steps of Adam"
    own = _gpytorch("kernmantle.integrations.gpytorch")
    return _learning_case(
        "GPyTorch", title, known, held, own, Peer("GPyTorch", _gpytorch("gpytorch.kernels"), "gpytorch")
    )


def _cdist(p: float) -> Peer:
    return Peer("torch.cdist, topk", _chunks(lambda x, y: torch.cdist(x, y, p=p)))


SUITE = Suite(
    "estimators",
    "cuda",
    (
        _near_case(20_000, 100_000, 64, 2, _cdist(2.0), Peer("torch products, topk", _chunks(_by_products))),
        _recursive(8_000, 2_000),
        _near_case(20_000, 100_000, 64, 1, _cdist(1.0)),
        _ridge(20_000, 5_000, Peer("torch", _torch_ridge)),
        _process(10_000, 2_000, 5),
        _in_gpytorch(20_000, 2_000),
    ),
)
CPU_SUITE = Suite(
    "estimators-cpu",
    "cpu",
    (
        _near_case(5_000, 20_000, COLUMNS, 1, Peer(SKLEARN, _sklearn_nearest(1.0), SKLEARN)),
        _near_case(5_000, 20_000, COLUMNS, 2, Peer(SKLEARN, _sklearn_nearest(2.0), SKLEARN)),
        _ridge(5_000, 1_000, Peer(SKLEARN, _sklearn_ridge, SKLEARN)),
        _recursive(2_000, 500),
        _process(5_000, 500),
    ),
)
