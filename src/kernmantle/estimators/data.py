"""Rows and targets of estimators: checked as scikit-learn does, as tensors, and back to what the caller has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

Back = Callable[[torch.Tensor], Any]


def placed(estimator: BaseEstimator, array: np.ndarray) -> torch.Tensor:
    """A numpy array on the device of the estimator."""
    own = array if array.flags.writeable and array.flags.c_contiguous else array.copy()
    tensor = torch.from_numpy(own)
    device = getattr(estimator, "device", None)
    return tensor if device is None else tensor.to(device)


def _numpy(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().cpu().numpy()


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _checked(estimator: Any, rows: torch.Tensor, reset: bool) -> torch.Tensor:
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
    if not torch.isfinite(wide).all():
        raise ValueError("X contains NaN or infinity")
    return wide


def rows_of(estimator: Any, X: Any, *, reset: bool = False) -> tuple[torch.Tensor, Back]:
    """Rows as a tensor, and how results go back."""
    if not reset:
        check_is_fitted(estimator)
    if isinstance(X, torch.Tensor):
        return _checked(estimator, X, reset), _same
    array: Any = validate_data(estimator, X, reset=reset, dtype=[np.float64, np.float32])
    return placed(estimator, array), _numpy


def rows_and_targets(
    estimator: Any, X: Any, y: Any, *, numeric: bool = True, multi_output: bool = True
) -> tuple[torch.Tensor, Any, Back]:
    """Rows as a tensor, targets (a tensor where they are numbers, else an array of labels), and the way back."""
    if isinstance(X, torch.Tensor):
        rows = _checked(estimator, X, True)
        targets = y if isinstance(y, torch.Tensor) else torch.as_tensor(np.asarray(y)) if numeric else np.asarray(y)
        if len(targets) != rows.shape[0]:
            raise ValueError(f"X has {rows.shape[0]} rows, y has {len(targets)}")
        return rows, targets.to(rows) if isinstance(targets, torch.Tensor) and numeric else targets, _same
    checked: Any = validate_data(
        estimator, X, y, dtype=[np.float64, np.float32], y_numeric=numeric, multi_output=multi_output
    )
    array, target = checked
    return placed(estimator, array), placed(estimator, target.astype(array.dtype)) if numeric else target, _numpy


def weights_of(sample_weight: Any, rows: torch.Tensor) -> torch.Tensor | None:
    """Weights of the rows, none of them negative; None if all are the same."""
    if sample_weight is None:
        return None
    given = sample_weight.detach().cpu().numpy() if isinstance(sample_weight, torch.Tensor) else sample_weight
    checked = _check_sample_weight(given, np.empty((rows.shape[0], 1)), ensure_non_negative=True)
    weights = torch.as_tensor(checked).to(rows)
    return None if bool((weights == weights[0]).all()) and float(weights[0]) == 1 else weights


def labels_as_array(y: Any) -> np.ndarray:
    """Labels on the host."""
    return y.detach().cpu().numpy() if isinstance(y, torch.Tensor) else np.asarray(y)
