"""Comparison with scikit-learn at the same hyperparameters: scores, and times to fit and predict.

Ridge regression and neighbours compute the same predictions, so scores agree up to rounding. Recursive feature machines
have no counterpart in scikit-learn and are compared with the ridge regression of their first round.
"""
# ruff: noqa: T201

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from sklearn.kernel_ridge import KernelRidge
from sklearn.metrics import accuracy_score, r2_score
from sklearn.model_selection import train_test_split
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.preprocessing import LabelBinarizer, StandardScaler

import kernmantle as km
from kernmantle import estimators as own


@dataclass(frozen=True)
class Table:
    """Training rows and targets, test rows and targets; classes are signs."""

    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    classes: bool

    @property
    def targets(self) -> np.ndarray:
        """What a regression learns."""
        return 2.0 * LabelBinarizer().fit_transform(self.y) - 1 if self.classes else self.y

    def score(self, predicted: np.ndarray) -> float:
        """Share of right classes, or variance explained."""
        if not self.classes:
            return float(r2_score(self.y_test, predicted))
        if predicted.ndim == 2 and predicted.shape[1] > 1:
            predicted = predicted.argmax(1)
        elif predicted.dtype.kind == "f":
            predicted = (predicted.ravel() > 0).astype(int)
        return float(accuracy_score(self.y_test, predicted))


def houses(rows: int = 1000) -> tuple[np.ndarray, np.ndarray]:
    """Eight columns and prices after the pattern of California's: income, age, rooms, people, and a coast."""
    random = np.random.default_rng(0)
    income, age = random.gamma(4.0, 1.0, rows), random.uniform(1, 52, rows)
    rooms, bedrooms = random.normal(5.4, 1.2, rows), random.normal(1.1, 0.2, rows)
    people, household = random.gamma(3.0, 470.0, rows), random.gamma(6.0, 0.5, rows)
    along, across = random.uniform(0, 10, rows), random.gamma(2.0, 1.0, rows)
    price = 0.45 * income + 0.01 * age - 0.25 * household + 1.5 * np.exp(-across) * (1 + np.sin(along))
    x = np.stack([income, age, rooms, bedrooms, people, household, along, across], 1)
    return x, price + 0.2 * random.normal(size=rows)


def tables() -> dict[str, Table]:
    """Columns of mean 0 and deviation 1, but pixels as they are."""
    found = {}
    sources = {
        "digits": (load_digits(return_X_y=True), True), "breast cancer": (load_breast_cancer(return_X_y=True), True),
        "diabetes": (load_diabetes(return_X_y=True), False), "houses": (houses(), False),
    }  # fmt: skip
    for name, ((x, y), classes) in sources.items():
        x_train, x_test, y, y_test = train_test_split(x[:1000], y[:1000], test_size=0.3, random_state=0)
        if name == "digits":
            x_train, x_test = x_train / 16, x_test / 16
        else:
            scale = StandardScaler().fit(x_train)
            x_train, x_test = scale.transform(x_train), scale.transform(x_test)
        middle = 0 if classes else y.mean()
        found[name] = Table(x_train, y - middle, x_test, y_test - middle, classes)
    return found


def pairs(table: Table) -> dict[str, tuple[Any, Any, bool]]:
    """Ours and theirs by name, and whether they learn targets instead of classes."""
    h = float(km.median_bandwidth(table.x))
    ours, theirs = (
        (own.KNeighborsClassifier, KNeighborsClassifier) if table.classes
        else (own.KNeighborsRegressor, KNeighborsRegressor)
    )  # fmt: skip
    ridge = KernelRidge(alpha=0.1, kernel="laplacian", gamma=1 / (3 * h))
    return {
        "ridge, Gaussian": (
            own.KernelRidge(0.1, kernel="gaussian", bandwidth=h),
            KernelRidge(alpha=0.1, gamma=0.5 / h**2, kernel="rbf"), True,
        ),
        "ridge, Laplace": (own.KernelRidge(0.1, kernel="laplace", bandwidth=3 * h), ridge, True),
        "5 neighbours, L1": (
            ours(5, metric="cityblock"), theirs(5, metric="cityblock", algorithm="brute"), False,
        ),
        "feature machine": (
            own.RecursiveFeatureMachine(
                0.1, kernel="laplace", kernel_params={"p": 1}, bandwidth=3 * h, n_iterations=2, diagonal=True
            ),
            ridge, True,
        ),
    }  # fmt: skip


def seconds(model: Any, x: np.ndarray, y: np.ndarray, x_test: np.ndarray) -> tuple[np.ndarray, float]:
    """Predictions, and the time of fitting and predicting, once the kernels are compiled."""
    model.fit(x[:100], y[:100]).predict(x_test[:10])
    begun = time.perf_counter()
    predicted = model.fit(x, y).predict(x_test)
    return predicted, time.perf_counter() - begun


def main() -> None:
    """Compare on four tables."""
    print(f"{'':14} {'':17} {'score':>7} {'theirs':>7} {'time':>8} {'theirs':>8}")
    for name, table in tables().items():
        for what, (mine, other, regression) in pairs(table).items():
            targets = table.targets if regression else table.y
            one, own_time = seconds(mine, table.x, targets, table.x_test)
            two, their_time = seconds(other, table.x, targets, table.x_test)
            score, their = table.score(one), table.score(two)
            print(f"{name:14} {what:17} {score:7.4f} {their:7.4f} {own_time * 1e3:5.0f} ms {their_time * 1e3:5.0f} ms")
            assert score >= their - 1e-6


if __name__ == "__main__":
    main()
