"""The learning of the demonstration: kernel ridge regression, nearest neighbours, weights of features by gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import torch

from ..errors import BackendError
from ..ir.functions import FUNCTIONS
from ..pairwise import cdist
from ..torch_ops.contract import Contraction

TRAINED = 1200
BROKEN = 0.2
NEIGHBOURS = 5
FOLDS = 4
DIGIT_GRID = ((0.25, 0.5), (1e-2,))
DIABETES_GRID = ((2.0, 4.0, 8.0), (0.1, 0.3, 1.0))
FOREIGN = 20
STEPS = 30
_exp = FUNCTIONS["exp"]


@dataclass(frozen=True)
class Distance:
    """A distance of the tables, as sums over columns before any root: of two sets, and inside an exponential.

    ``numbers`` are its parameters for pixels and for standardised features.
    """

    name: str
    sums: Callable[..., torch.Tensor]
    kernel: Contraction
    pixels: Mapping[str, Any] = field(default_factory=dict[str, Any])
    features: Mapping[str, Any] = field(default_factory=dict[str, Any])


def _by_power(x: torch.Tensor, y: torch.Tensor, p: float) -> torch.Tensor:
    return cdist(x, y, p=p, root=False)


_power_kernel = Contraction(
    "mk,nk->mn", lambda a, b, p: abs(a - b) ** p, epilogue=lambda s, bandwidth: _exp(-s / bandwidth)
)
# A distance written by the user: every column adds at most 1, so that a broken pixel cannot decide.
_capped = Contraction("mk,nk->mn", lambda a, b, c: 1 - _exp(-(((a - b) / c) ** 2)))
_capped_kernel = Contraction(
    "mk,nk->mn", lambda a, b, c: 1 - _exp(-(((a - b) / c) ** 2)), epilogue=lambda s, bandwidth: _exp(-s / bandwidth)
)
DISTANCES = (
    *(Distance(f"p = {p:g}", _by_power, _power_kernel, {"p": p}, {"p": p}) for p in (0.5, 1.0, 1.3, 2.0)),
    Distance("your own", _capped, _capped_kernel, {"c": 0.5}, {"c": 2.0}),
)
_weighted_kernel = Contraction(
    "mk,nk,w:k->mn", lambda a, b, w: w * abs(a - b), epilogue=lambda s, scale: scale * _exp(-s)
)


@dataclass(frozen=True)
class Digits:
    """Pixels in [0, 1] of handwritten digits, and the same test digits with a fifth of their pixels broken."""

    train: torch.Tensor
    labels: torch.Tensor
    test: torch.Tensor
    broken: torch.Tensor
    answers: torch.Tensor


@dataclass(frozen=True)
class Diabetes:
    """Standardised features of patients, and how far the disease went in a year."""

    x: torch.Tensor
    y: torch.Tensor
    names: tuple[str, ...]

    def folds(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield the rows to learn from and rows to predict, in turns."""
        order = torch.randperm(len(self.x), generator=torch.Generator().manual_seed(0))
        for start in range(FOLDS):
            tested = torch.zeros(len(self.x), dtype=torch.bool)
            tested[order[start::FOLDS]] = True
            yield (~tested).nonzero()[:, 0].to(self.x.device), tested.nonzero()[:, 0].to(self.x.device)


def load(device: str) -> tuple[Digits, Diabetes]:
    """Return both data sets, as scikit-learn brings them."""
    try:
        datasets = import_module("sklearn.datasets")
    except ImportError as error:
        raise BackendError("the demonstration needs scikit-learn for its data: pip install scikit-learn") from error
    random = torch.Generator().manual_seed(0)
    pixels, labels = (torch.from_numpy(part) for part in datasets.load_digits(return_X_y=True))
    order = torch.randperm(len(pixels), generator=random)
    pixels, labels = (pixels[order] / 16).float(), labels[order]
    broken = pixels[TRAINED:].clone()
    where = torch.rand(broken.shape, generator=random) < BROKEN
    broken[where] = torch.randint(2, (int(where.sum()),), generator=random).float()
    parts = (pixels[:TRAINED], labels[:TRAINED], pixels[TRAINED:], broken, labels[TRAINED:])
    bunch = datasets.load_diabetes()
    x, y = torch.from_numpy(bunch.data), torch.from_numpy(bunch.target)
    x, y = (x - x.mean(0)) / x.std(0), (y - y.mean()) / y.std()
    return Digits(*(part.to(device) for part in parts)), Diabetes(
        x.to(device), y.to(device), tuple(bunch.feature_names)
    )


def neighbours(distance: Distance, digits: Digits, test: torch.Tensor) -> float:
    """Return the share of test digits that most of their nearest neighbours are like."""
    gaps = distance.sums(test, digits.train, **distance.pixels)
    votes = digits.labels[gaps.topk(NEIGHBOURS, largest=False).indices]
    return float((votes.mode(1).values == digits.answers).double().mean())


@dataclass(frozen=True)
class Ridge:
    """Kernel ridge regression, fitted."""

    distance: Distance
    x: torch.Tensor
    coefficients: torch.Tensor
    numbers: Mapping[str, Any]

    def __call__(self, z: torch.Tensor) -> torch.Tensor:
        """Return the predictions for new rows."""
        return self.distance.kernel(z, self.x, **self.numbers).double() @ self.coefficients


def fit(
    distance: Distance, numbers: Mapping[str, Any], x: torch.Tensor, y: torch.Tensor,
    grid: tuple[tuple[float, ...], tuple[float, ...]],
) -> Ridge:  # fmt: skip
    """Return the bandwidth (in medians of the distances) and ridge that predict every row best from all the others."""
    middle = float(distance.sums(x, x, **numbers).median())
    one = torch.eye(len(x), dtype=torch.float64, device=x.device)
    best, chosen = float("inf"), None
    for factor in grid[0]:
        options = {**numbers, "bandwidth": factor * middle}
        kernel = distance.kernel(x, x, **options).double()
        for ridge in grid[1]:
            inverse = torch.cholesky_solve(one, torch.linalg.cholesky(kernel + ridge * one))
            coefficients = inverse @ y
            left_out = coefficients / (inverse.diagonal()[:, None] if y.ndim == 2 else inverse.diagonal())
            error = float((left_out**2).mean())
            if error < best:
                best, chosen = error, Ridge(distance, x, coefficients, options)
    if chosen is None:
        raise BackendError("kernel regression found no finite fit; the kernel matrix holds NaN")
    return chosen


def read_digits(distance: Distance, digits: Digits) -> tuple[float, float]:
    """Return the shares of digits, whole and broken, that kernel regression on ten indicators reads right."""
    wanted = torch.nn.functional.one_hot(digits.labels, 10).double() * 2 - 1
    model = fit(distance, distance.pixels, digits.train, wanted, DIGIT_GRID)
    right = [(model(test).argmax(1) == digits.answers).double().mean() for test in (digits.test, digits.broken)]
    return float(right[0]), float(right[1])


def explained(predicted: torch.Tensor, y: torch.Tensor) -> float:
    """Return the share of the variance that predictions explain."""
    return float(1 - ((predicted - y) ** 2).sum() / ((y - y.mean()) ** 2).sum())


def predict_disease(distance: Distance, diabetes: Diabetes) -> float:
    """Return the variance explained in rows that were not learned from."""
    predicted = torch.zeros_like(diabetes.y)
    for training, tested in diabetes.folds():
        model = fit(distance, distance.features, diabetes.x[training], diabetes.y[training], DIABETES_GRID)
        predicted[tested] = model(diabetes.x[tested])
    return explained(predicted, diabetes.y)


@dataclass(frozen=True)
class Learned:
    """Weights that the gradient found, of the features and of foreign columns, and what they are worth."""

    names: tuple[str, ...]
    weights: tuple[float, ...]
    equal: float
    own: float


Fitted = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def most_likely(x: torch.Tensor, y: torch.Tensor, each: bool) -> Fitted:
    """Weights (own or equal), scale and noise that make the data most likely, by Adam on their logarithms."""
    columns = x.shape[1]
    logs = [
        torch.full(shape, value, dtype=x.dtype, device=x.device, requires_grad=True)
        for shape, value in (((columns if each else 1,), -3.0), ((), 0.0), ((), 0.0))
    ]
    adam = torch.optim.Adam(logs, lr=0.4)
    one = torch.eye(len(x), dtype=x.dtype, device=x.device)
    for _ in range(STEPS):
        adam.zero_grad()
        weights, scale, noise = (value.exp() for value in logs)
        covariance = _weighted_kernel(x, x, w=weights.expand(columns).contiguous(), scale=scale) + noise * one
        inverse = torch.cholesky_solve(one, torch.linalg.cholesky(covariance.detach()))
        solved = inverse @ y
        covariance.backward((inverse - torch.outer(solved, solved)) / 2)  # slope of the likelihood, closed form
        adam.step()
    weights, scale, noise = (value.detach().exp() for value in logs)
    return weights.expand(columns).contiguous(), scale, noise


def trained_weights(diabetes: Diabetes) -> Learned:
    """Return which columns matter, when as many columns of pure noise are among them; scored on rows held out."""
    y = diabetes.y
    foreign = torch.randn(len(y), FOREIGN, generator=torch.Generator().manual_seed(2), dtype=y.dtype).to(y.device)
    x = torch.cat([diabetes.x, foreign], 1)
    worth: list[float] = []
    weights = x[0]
    for each in (False, True):
        predicted = torch.zeros_like(y)
        for training, tested in diabetes.folds():
            weights, scale, noise = most_likely(x[training], y[training], each)
            covariance = _weighted_kernel(x[training], x[training], w=weights, scale=scale)
            covariance = covariance + noise * torch.eye(len(training), dtype=x.dtype, device=x.device)
            solved = torch.linalg.solve(covariance, y[training])
            predicted[tested] = _weighted_kernel(x[tested], x[training], w=weights, scale=scale) @ solved
        worth.append(explained(predicted, y))
    names = (*diabetes.names, *(f"noise {i + 1}" for i in range(FOREIGN)))
    return Learned(names, tuple((weights / weights.sum()).tolist()), worth[0], worth[1])
