"""One kernel ridge regression for each class, with calibrated probabilities."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from sklearn.base import ClassifierMixin

from ..errors import instead_of
from ..pairwise import Kernel
from .base import TakesMatrices
from .data import rows_and_classes, rows_of, weights_of
from .ridge import check_positive
from .solve import Solution, solve


def signs_of(codes: np.ndarray, count: int, like: torch.Tensor) -> torch.Tensor:
    """Return one column for each class, 1 where a row is of it, else -1; of two classes the second's only."""
    indices = torch.as_tensor(codes, device=like.device)
    one = torch.nn.functional.one_hot(indices, count).to(like) * 2 - 1
    return one[:, 1:] if count == 2 else one


def probabilities(decisions: torch.Tensor, sharpness: float) -> torch.Tensor:
    """Return the softmax of decisions times a sharpness; of one column c that of (-c, c)."""
    both = torch.cat([-decisions, decisions], 1) if decisions.shape[1] == 1 else decisions
    return torch.softmax(sharpness * both, 1)


def sharpness_of(decisions: torch.Tensor, codes: np.ndarray, weights: torch.Tensor | None = None) -> float:
    """Return the sharpness under which the classes of rows that were left out are likeliest."""
    wanted = torch.as_tensor(codes, device=decisions.device)[:, None]
    wide = decisions.double()
    shares = torch.ones_like(wide[:, 0]) if weights is None else weights.double()
    shares = shares / shares.sum()

    def loss(exponent: float) -> float:
        likely = probabilities(wide, 10.0**exponent).gather(1, wanted)[:, 0]
        return -float(likely.clamp(min=1e-300).log() @ shares)

    best: Any = minimize_scalar(loss, bounds=(-2.0, 3.0), method="bounded")
    return 10.0 ** float(best.x)


class Decides(ClassifierMixin):
    """Predictions of classifiers with one column for each class, which ``_decisions`` returns."""

    classes_: np.ndarray
    sharpness_: float

    @abstractmethod
    def _decisions(self, X: Any) -> tuple[torch.Tensor, Any]: ...

    def decision_function(self, X: Any) -> Any:
        """Return the values around -1 and 1: (m, classes), or (m,) for two classes."""
        decisions, back = self._decisions(X)
        return back(decisions[:, 0] if decisions.shape[1] == 1 else decisions)

    def predict_proba(self, X: Any) -> Any:
        """Return probabilities of the classes, (m, classes)."""
        decisions, back = self._decisions(X)
        return back(probabilities(decisions, self.sharpness_))

    def predict(self, X: Any) -> Any:
        """Return the labels; for tensors a tensor where labels are numbers."""
        decisions, _ = self._decisions(X)
        best = (decisions[:, 0] > 0).long() if decisions.shape[1] == 1 else decisions.argmax(1)
        return named(self.classes_, best, X)


class KernelClassifier(Decides, TakesMatrices):
    """Kernel ridge regression of one against all others, for each class: ``(K + alpha I) c = ±1``.

    Probabilities are the softmax of the decisions times one number, chosen so that the rows are likeliest when
    each is predicted without itself; the class is always that of the largest decision.

    Parameters
    ----------
    alpha : float
        Regularisation.
    kernel, bandwidth, kernel_params, gamma, degree, coef0, solver, device, verbose
        As of :class:`KernelRidge`.

    Attributes
    ----------
    classes_ : array
        Labels, sorted.
    kernel_ : km.Kernel
        The kernel, with its bandwidth.
    sharpness_ : float
        The factor of the decisions.

    Raises
    ------
    ValueError
        From ``fit`` and ``predict``, as of :class:`KernelRidge`; and for a single class.

    Notes
    -----
    With Cholesky the predictions without a row are exact and cost one inverse; with conjugate gradients a fifth
    of the rows is predicted from the others, for a second solution.

    Cost: that of one :class:`KernelRidge` with as many outputs as classes. Decisions and probabilities are
    differentiable by tensors that are predicted.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from kernmantle.estimators import KernelClassifier
    >>> x, y = load_iris(return_X_y=True)
    >>> bool(KernelClassifier(alpha=0.1).fit(x, y).score(x, y) > 0.97)
    True
    """

    @instead_of(
        C="the penalty is alpha=, as of KernelRidge: large where C is small",
        class_weight="fit takes sample_weight=, as of sklearn.utils.class_weight.compute_sample_weight('balanced', y)",
        probability="predict_proba is always there",
    )  # fmt: skip
    def __init__(
        self, alpha: float = 1.0, *, kernel: str | Kernel | Callable[..., Any] = "laplace",
        bandwidth: float | None = None, kernel_params: Mapping[str, Any] | None = None,
        gamma: float | str | None = None, degree: float | None = None, coef0: float | None = None,
        solver: str = "auto", device: str | None = None, verbose: bool = False,
    ) -> None:  # fmt: skip
        self.alpha = alpha
        self.kernel = kernel
        self.bandwidth = bandwidth
        self.kernel_params = kernel_params
        self.gamma = gamma
        self.degree = degree
        self.coef0 = coef0
        self.solver = solver
        self.device = device
        self.verbose = verbose

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> KernelClassifier:
        """Solve for the coefficients of the rows, one column for each class."""
        rows, self.classes_, codes, _ = rows_and_classes(self, X, y)
        alpha = check_positive(self.alpha, "alpha")
        if len(self.classes_) < 2:
            raise ValueError(f"{type(self).__name__} needs at least two classes, y has one class")
        weights = weights_of(sample_weight, rows)
        self.kernel_ = self._kernel_or_matrix(rows, None if weights is None else weights > 0)
        targets = signs_of(codes, len(self.classes_), rows)
        solution = solve(self.kernel_, rows, targets, alpha, self.solver, weights, bool(self.verbose))
        self._rows, self._coefficients = rows, solution.coefficients
        self.sharpness_ = self._calibrated(solution, targets, codes, alpha, weights)
        return self

    def _calibrated(
        self, solution: Solution, targets: torch.Tensor, codes: np.ndarray, alpha: float, weights: torch.Tensor | None
    ) -> float:
        rows = self._rows
        if solution.factor is not None:
            if weights is None:
                return sharpness_of(solution.left_out(targets, alpha, None), codes)
            positive = weights > 0
            own = Solution(solution.coefficients[positive], solution.factor)
            decisions = own.left_out(targets[positive], alpha, weights[positive])
            return sharpness_of(decisions, codes[positive.cpu().numpy()], weights[positive])
        order = torch.from_numpy(np.random.default_rng(0).permutation(rows.shape[0])).to(rows.device)
        validation, training = order[: len(order) // 5], order[len(order) // 5 :]
        part = None if weights is None else weights[training]
        assert isinstance(self.kernel_, Kernel)
        again = solve(self.kernel_, rows[training], targets[training], alpha, self.solver, part, bool(self.verbose))
        decisions = self.kernel_.matmul(rows[validation], rows[training], again.coefficients)
        return sharpness_of(
            decisions, codes[validation.cpu().numpy()], None if weights is None else weights[validation]
        )

    def _decisions(self, X: Any) -> tuple[torch.Tensor, Any]:
        rows, back = rows_of(self, X)
        return self.kernel_.matmul(rows, self._rows.to(rows), self._coefficients.to(rows)), back


def named(classes: np.ndarray, indices: torch.Tensor, X: Any) -> Any:
    """Return the labels of indices, as an array or, for tensors and labels that are numbers, as a tensor."""
    if isinstance(X, torch.Tensor) and classes.dtype.kind in "biuf":
        return torch.from_numpy(classes).to(indices.device)[indices]
    return classes[indices.cpu().numpy()]
