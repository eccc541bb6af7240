"""Rows and targets of estimators: checked as scikit-learn does, as tensors, and back to what the caller has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from ..arrays import to_tensor
from .state import Stored

Back = Callable[[torch.Tensor], Any]
PRECOMPUTED = "precomputed"


class TakesPrecomputed(Stored, BaseEstimator):
    """An estimator whose rows may be distances or kernel values: where the parameter ``_choice`` says so."""

    _choice = "metric"

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.pairwise = self._is_precomputed
        return tags

    @property
    def _is_precomputed(self) -> bool:
        choice = getattr(self, self._choice, None)
        return isinstance(choice, str) and choice == PRECOMPUTED


def placed(estimator: BaseEstimator, array: np.ndarray, *, copy: bool = False) -> torch.Tensor:
    """Return a numpy array on the device of the estimator; a copy has memory of its own, for what a fit stores."""
    flags = (
        array.flags
    )  # numpy calls what is reversed along an axis of one entry contiguous, and torch does not take it
    shared = flags.writeable and flags.c_contiguous and all(stride >= 0 for stride in array.strides) and not copy
    own = array if shared else array.copy()
    tensor = torch.from_numpy(own)
    device = getattr(estimator, "device", None)
    if device is None:
        return tensor
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, TypeError) as error:
        name = type(estimator).__name__
        raise ValueError(
            f"device={device!r} of {name} cannot be used here: {error}; leave it out for the CPU"
        ) from error
    return tensor.to(device)


def _numpy(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().cpu().numpy()


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _checked(estimator: Any, rows: torch.Tensor, reset: bool, finite: bool = True) -> torch.Tensor:
    name = type(estimator).__name__
    if rows.dim() != 2 or not rows.shape[0]:
        raise ValueError(f"{name} takes rows of shape (samples, features), it was given {tuple(rows.shape)}")
    if reset:
        estimator.n_features_in_ = rows.shape[1]
    elif rows.shape[1] != estimator.n_features_in_:
        raise ValueError(
            f"X has {rows.shape[1]} features, but {name} is expecting {estimator.n_features_in_} features as input"
        )
    wide = rows if rows.dtype in (torch.float32, torch.float64) else rows.float()
    if finite and not torch.isfinite(wide).all():
        raise ValueError("X contains NaN or infinity")
    return wide.clone() if reset and wide is rows else wide


def rows_of(estimator: Any, X: Any, *, reset: bool = False, finite: bool = True) -> tuple[torch.Tensor, Back]:
    """Rows as a tensor, and how results go back; with ``reset``, for a fit, a copy that the caller cannot change.

    NaN and infinity are errors, but not without ``finite``.
    """
    if not reset:
        check_is_fitted(estimator)
    if isinstance(X, torch.Tensor):
        return _checked(estimator, X, reset, finite), _same
    kinds = [np.float64, np.float32]
    array: Any = validate_data(estimator, X, reset=reset, dtype=kinds, ensure_all_finite=finite)
    return placed(estimator, array, copy=reset), _numpy


def rows_and_targets(
    estimator: Any, X: Any, y: Any, *, numeric: bool = True, multi_output: bool = True
) -> tuple[torch.Tensor, Any, Back]:
    """Copies of the rows, as a tensor, and of the targets (numbers as a tensor, else labels); how results go back."""
    if isinstance(X, torch.Tensor):
        rows = _checked(estimator, X, True)
        targets = y if isinstance(y, torch.Tensor) else to_tensor(np.asarray(y), "y") if numeric else np.array(y)
        if len(targets) != rows.shape[0]:
            raise ValueError(f"X has {rows.shape[0]} rows, y has {len(targets)}")
        if isinstance(targets, torch.Tensor):
            targets = targets.to(rows, copy=True) if numeric else targets.clone()
        return rows, targets, _same
    checked: Any = validate_data(
        estimator, X, y, dtype=[np.float64, np.float32], y_numeric=numeric, multi_output=multi_output
    )
    array, target = checked
    own = placed(estimator, target.astype(array.dtype)) if numeric else np.array(target)
    return placed(estimator, array, copy=True), own, _numpy


def rows_and_classes(estimator: Any, X: Any, y: Any) -> tuple[torch.Tensor, np.ndarray, np.ndarray, Back]:
    """Return copies of the rows, as a tensor, the sorted classes and the index of each row's; how results go back."""
    rows, labels, back = rows_and_targets(estimator, X, y, numeric=False, multi_output=False)
    values = labels_as_array(labels)
    check_classification_targets(values)
    classes, codes = np.unique(values, return_inverse=True)
    return rows, classes, codes, back


def weights_of(sample_weight: Any, rows: torch.Tensor, *, negative: bool = False) -> torch.Tensor | None:
    """Return the weights of the rows, none of them negative but with ``negative``; None if all are 1."""
    if sample_weight is None:
        return None
    values = sample_weight.detach().cpu().numpy() if isinstance(sample_weight, torch.Tensor) else sample_weight
    checked = _check_sample_weight(values, np.empty((rows.shape[0], 1)), ensure_non_negative=not negative)
    weights = to_tensor(checked, "sample_weight").to(rows)
    return None if bool((weights == weights[0]).all()) and float(weights[0]) == 1 else weights


def labels_as_array(y: Any) -> np.ndarray:
    """Return the labels on the host."""
    return y.detach().cpu().numpy() if isinstance(y, torch.Tensor) else np.asarray(y)
