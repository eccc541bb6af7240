"""Recursive feature machines: kernel ridge regression whose metric is learned from its own gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn.base import MultiOutputMixin, RegressorMixin
from tqdm import tqdm

from ..arrays import to_tensor
from ..errors import LinearAlgebraError
from ..pairwise import Kernel
from .base import KernelEstimator
from .classifier import Decides, sharpness_of, signs_of
from .data import labels_as_array, rows_and_classes, rows_and_targets, rows_of
from .ridge import check_positive
from .solve import solve
from .state import Stored

Loss = Callable[[torch.Tensor, torch.Tensor], float]


@dataclass
class Machine(Stored):
    """A fitted round: the root of the metric, the rows under it, their coefficients, predictions left out."""

    root: torch.Tensor
    rows: torch.Tensor
    coefficients: torch.Tensor
    validation_values: torch.Tensor
    loss: float


def transformed(rows: torch.Tensor, root: torch.Tensor) -> torch.Tensor:
    """Return the rows under a metric: a diagonal as a vector, or a matrix."""
    return rows * root if root.dim() == 1 else rows @ root


def root_of(metric: torch.Tensor, power: float) -> torch.Tensor:
    """``(metric / largest diagonal entry)^power`` of a diagonal or a positive semidefinite matrix."""
    entries = metric if metric.dim() == 1 else metric.diagonal()
    metric = metric / entries.amax().clamp(min=torch.finfo(metric.dtype).tiny)
    if metric.dim() == 1:
        return metric.clamp(min=0) ** power
    try:
        values, vectors = torch.linalg.eigh(metric)
    except torch.linalg.LinAlgError as error:  # pyright: ignore[reportPrivateImportUsage]
        reason = "entries that are NaN or infinite" if not bool(metric.isfinite().all()) else "no eigenvalues"
        raise LinearAlgebraError(
            f"the matrix of gradients has {reason} ({error}); scale X by km.standardise"
        ) from error
    return (vectors * values.clamp(min=0) ** power) @ vectors.T


class _Recursive(KernelEstimator):
    """The rounds."""

    def __init__(
        self, alpha: float = 1e-3, *, kernel: str | Kernel = "laplace", bandwidth: float | None = None,
        kernel_params: Mapping[str, Any] | None = None, n_iterations: int = 5, patience: int = 2,
        diagonal: bool = False, power: float = 0.5, centred: bool = False, solver: str = "auto",
        device: str | None = None, verbose: bool = False,
    ) -> None:  # fmt: skip
        self.alpha = alpha
        self.kernel = kernel
        self.bandwidth = bandwidth
        self.kernel_params = kernel_params
        self.n_iterations = n_iterations
        self.patience = patience
        self.diagonal = diagonal
        self.power = power
        self.centred = centred
        self.solver = solver
        self.device = device
        self.verbose = verbose

    def _round(
        self, rows: torch.Tensor, targets: torch.Tensor, root: torch.Tensor, loss: Loss,
        validation: tuple[torch.Tensor, torch.Tensor] | None,
    ) -> Machine:  # fmt: skip
        own = transformed(rows, root)
        solution = solve(self.kernel_, own, targets, float(self.alpha), self.solver)
        if validation is not None:
            validation_values, truth = (
                self.kernel_.matmul(transformed(validation[0], root), own, solution.coefficients),
                validation[1],
            )
        elif solution.factor is not None:
            validation_values, truth = solution.left_out(targets, float(self.alpha), None), targets
        else:
            # Without a factor: the training error, which no longer tells rounds apart that fit everything.
            validation_values, truth = targets - float(self.alpha) * solution.coefficients, targets
        return Machine(root, own, solution.coefficients, validation_values, loss(validation_values, truth))

    def _fitted(
        self, rows: torch.Tensor, targets: torch.Tensor, loss: Loss,
        validation: tuple[torch.Tensor, torch.Tensor] | None,
    ) -> Machine:  # fmt: skip
        """Return rounds until the loss of rows that were left out, or of the validation rows, stops falling."""
        check_positive(self.alpha, "alpha")
        if isinstance(self.n_iterations, bool) or not isinstance(self.n_iterations, (int, np.integer)):
            raise ValueError(f"n_iterations must be an integer, got {self.n_iterations!r}")
        self.kernel_ = self._make_kernel(rows)
        width = rows.shape[1]
        root = rows.new_ones(width) if self.diagonal else torch.eye(width, dtype=rows.dtype, device=rows.device)
        best = current = self._round(rows, targets, root, loss, validation)
        self.losses_ = [current.loss]
        for done in tqdm(range(int(self.n_iterations)), desc="rounds", disable=not self.verbose):
            gradient = self.kernel_.agop(
                current.rows, current.rows, current.coefficients,
                average=True, centred=self.centred, diagonal=self.diagonal,
            )  # fmt: skip
            back = current.root
            metric = gradient * back.square() if self.diagonal else back.T @ gradient @ back
            current = self._round(rows, targets, root_of(metric, self.power), loss, validation)
            self.losses_.append(current.loss)
            if current.loss < best.loss:
                best, self.best_iteration_ = current, done + 1
            elif done + 1 - getattr(self, "best_iteration_", 0) >= self.patience:
                break
        return best

    def _keep(self, machine: Machine) -> None:
        self._machine = machine
        root = machine.root
        self.metric_ = (root.square() if root.dim() == 1 else root @ root.T).detach().cpu().numpy()

    def _predicted(self, X: Any) -> tuple[torch.Tensor, Any]:
        rows, back = rows_of(self, X)
        trained = self._machine
        own = transformed(rows, trained.root.to(rows))
        return self.kernel_.matmul(own, trained.rows.to(rows), trained.coefficients.to(rows)), back


def _squared(found: torch.Tensor, truth: torch.Tensor) -> float:
    return float((found - truth).square().mean())


class RecursiveFeatureMachine(MultiOutputMixin, RegressorMixin, _Recursive):
    """Kernel ridge regression that learns which directions of the features matter.

    Each round solves ``(K + alpha I) c = y`` for the predictor ``f``, takes the average outer product of its gradients,
    ``Σ ∇f(x_i) ∇f(x_i)ᵀ / n``, as the metric of the next, and the round with the least error on rows that were left out
    is kept.

    Parameters
    ----------
    alpha : float
        Regularisation.
    kernel, bandwidth, kernel_params, solver, device
        As of :class:`KernelRidge`.
    n_iterations : int
        Rounds after the first.
    patience : int
        Rounds without an improvement after which learning stops.
    diagonal : bool
        Learn a weight for each feature instead of a matrix.
    power : float
        Power of the outer product that features are multiplied by; 1/2 makes it the metric.
    centred : bool
        Subtract the mean gradient.
    verbose : bool
        Show progress.

    Attributes
    ----------
    metric_ : array, shape (features, features) or (features,)
        The learned metric.
    losses_ : list of float
        Error of each round on a validation set.
    best_iteration_ : int
        The round that was kept.

    Raises
    ------
    ValueError
        From ``fit`` and ``predict``, as of :class:`KernelRidge`; and for validation rows of another width.

    Notes
    -----
    Cost of a round of n rows and d features: that of :class:`KernelRidge`, n² d operations for the gradients, whose
    (n, d) blocks are the only further memory, and d³ for the root of the metric. Without ``validation`` the error of
    rows left out comes from the Cholesky factor and costs one inverse. Predictions are differentiable by tensors that
    are predicted.

    References
    ----------
    Radhakrishnan, Beaglehole, Pandit, Belkin: Mechanism for feature learning in neural networks and
    backpropagation-free machine learning models. Science 383 (2024).

    Examples
    --------
    >>> import numpy as np
    >>> from kernmantle.estimators import RecursiveFeatureMachine
    >>> x = np.random.default_rng(0).normal(size=(200, 5))
    >>> machine = RecursiveFeatureMachine().fit(x, np.sin(2 * x[:, 0]))
    >>> int(machine.metric_.diagonal().argmax())
    0
    """

    def fit(self, X: Any, y: Any, validation: tuple[Any, Any] | None = None) -> RecursiveFeatureMachine:
        """Learn the metric and the coefficients.

        Parameters
        ----------
        X : array, shape (n, features)
        y : array, shape (n,) or (n, outputs)
            The targets.
        validation : pair of arrays, optional
            Rows and targets that the best round is chosen by; without it, rows of X that are left out one at a time.

        Returns
        -------
        RecursiveFeatureMachine
            Itself.
        """
        rows, targets, _ = rows_and_targets(self, X, y)
        columns = targets if targets.dim() == 2 else targets[:, None]
        validation_set = None
        if validation is not None:
            own = _validation_rows(validation[0], rows)
            answers = to_tensor(labels_as_array(validation[1]), "validation[1]").to(rows)
            validation_set = own, answers.reshape(-1, columns.shape[1])
        self.best_iteration_ = 0
        self._keep(self._fitted(rows, columns, _squared, validation_set))
        self._flat = targets.dim() == 1
        return self

    def predict(self, X: Any) -> Any:
        """Return the predictions of rows, (m,) or (m, outputs)."""
        found, back = self._predicted(X)
        return back(found[:, 0] if self._flat else found)


class RecursiveFeatureMachineClassifier(Decides, _Recursive):
    """The classifier of :class:`RecursiveFeatureMachine`: one column for each class, calibrated.

    Parameters
    ----------
    alpha, kernel, bandwidth, kernel_params, n_iterations, patience, diagonal, power, centred, solver, device, verbose
        As of :class:`RecursiveFeatureMachine`.

    Attributes
    ----------
    classes_ : array
        Labels, sorted.
    metric_, losses_, best_iteration_
        As there.
    sharpness_ : float
        Factor of the decisions under which rows that were left out are likeliest.

    Raises
    ------
    ValueError
        From ``fit`` and ``predict``, as of :class:`RecursiveFeatureMachine`; and for a single class.

    Notes
    -----
    Cost as there, with as many outputs as classes; decisions and probabilities are differentiable as there.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from kernmantle.estimators import RecursiveFeatureMachineClassifier
    >>> x, y = load_iris(return_X_y=True)
    >>> bool(RecursiveFeatureMachineClassifier(alpha=0.1).fit(x, y).score(x, y) > 0.95)
    True
    """

    def fit(self, X: Any, y: Any, validation: tuple[Any, Any] | None = None) -> RecursiveFeatureMachineClassifier:
        """Learn the metric and the coefficients.

        Parameters
        ----------
        X : array, shape (n, features)
        y : array, shape (n,)
            The labels.
        validation : pair of arrays, optional
            Rows and labels that the best round is chosen by; without it, rows of X that are left out one at a time.

        Returns
        -------
        RecursiveFeatureMachineClassifier
            Itself.
        """
        rows, self.classes_, codes, _ = rows_and_classes(self, X, y)
        if len(self.classes_) < 2:
            raise ValueError(f"{type(self).__name__} needs at least two classes, y has one class")
        targets = signs_of(codes, len(self.classes_), rows)
        validation_set = None
        if validation is not None:
            own = _validation_rows(validation[0], rows)
            classes = labels_as_array(validation[1])
            unknown = np.setdiff1d(classes, self.classes_)
            if len(unknown):
                raise ValueError(f"validation has labels that y lacks: {', '.join(map(repr, unknown.tolist()))}")
            codes = np.searchsorted(self.classes_, classes)
            validation_set = own, signs_of(codes, len(self.classes_), rows)
        self.best_iteration_ = 0
        machine = self._fitted(rows, targets, _squared, validation_set)
        self.sharpness_ = sharpness_of(machine.validation_values, codes)
        self._keep(machine)
        return self

    def _decisions(self, X: Any) -> tuple[torch.Tensor, Any]:
        return self._predicted(X)


def _validation_rows(X: Any, like: torch.Tensor) -> torch.Tensor:
    """Return validation rows as a tensor like the rows of a fit."""
    rows = X.to(like) if isinstance(X, torch.Tensor) else to_tensor(np.asarray(X), "validation[0]").to(like)
    if rows.dim() != 2 or rows.shape[1] != like.shape[1]:
        raise ValueError(f"validation rows have shape {tuple(rows.shape)}, the others have {like.shape[1]} features")
    return rows
