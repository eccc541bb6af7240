"""The pairwise metrics and kernels of ``sklearn.metrics`` under its names and signatures, on any array and device.

scikit-learn itself is not needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from inspect import signature
from typing import Any

import numpy as np
import torch

from ..arrays import Wrap, unwrap
from ..checks import positive
from ..errors import ParameterError, ShapeError
from ..ir.functions import FUNCTIONS
from ..pairwise import CONSTRUCTORS, METRICS, Kernel, cdist
from ..pairwise.inputs import HALVES
from ..pairwise.metric import Arguments
from ..pairwise.metric_prepare import directions, inverse_covariance_of, variance_of
from ..torch_ops.contract import Contraction
from ..torch_ops.torch_private import underlying

_ARRAYS, _NUMBERS = ("w", "V", "VI"), ("p", "base")
_where, _isnan, _sin, _asin, _sqrt, _exp, _or = (
    FUNCTIONS[name] for name in ("where", "isnan", "sin", "asin", "sqrt", "exp", "logical_or")
)


def pairwise_distances(
    X: Any,
    Y: Any = None,
    metric: str = "euclidean",
    *,
    n_jobs: int | None = None,  # noqa: ARG001  # part of the signature
    ensure_all_finite: bool | str = True,
    **kwds: Any,
) -> Any:
    """Return the distances between the rows of X and those of Y, as ``sklearn.metrics.pairwise_distances`` is called.

    Parameters
    ----------
    X : array or nested list, shape (m, k)
        Tensor, numpy, CuPy or DLPack array. With ``metric="precomputed"`` the distances themselves.
    Y : array or nested list, shape (n, k), optional
        By default ``X``, for half the work; passing X itself is the same.
    metric : str
        A name that scikit-learn or :func:`cdist` knows, ``"nan_euclidean"``, ``"haversine"`` or ``"precomputed"``.
    n_jobs : int, optional
        Accepted and not used: one call takes all cores.
    ensure_all_finite : bool or "allow-nan"
        Whether to refuse NaN and infinity. Arrays on a GPU are not looked at, which would wait for it.
    **kwds
        ``p, w, V, VI, base`` as of :func:`cdist`; ``squared`` of euclidean and nan_euclidean. ``V`` of seuclidean and
        ``VI`` of mahalanobis are by default those of X, and must be passed beside another Y.

    Returns
    -------
    array, shape (m, n)
        Of the kind and, if floating point, the dtype of X.

    Raises
    ------
    KernmantleError
        Before anything is computed; names the argument.

    Notes
    -----
    One pass, memory of inputs and result. Gradients as of :func:`cdist`; of nan_euclidean and haversine too. float32
    stays float32 where scipy's metrics under scikit-learn's would give float64. Boolean metrics take what is not 0
    for true. As in scikit-learn, and unlike :func:`cdist`, the cosine distance of a row of zeros to any other row is
    1, and the diagonal of one set is 0 for every metric, also where the metric itself is not 0 or NaN there.

    Examples
    --------
    >>> import kernmantle as km, numpy as np
    >>> km.pairwise_distances(np.array([[0.0, 0.0], [3.0, 4.0]]), metric="manhattan")
    array([[0., 7.],
           [7., 0.]])
    """
    if isinstance(metric, (list, dict, np.ndarray)):
        raise ParameterError(f"unknown metric {metric!r}")
    squared = kwds.pop("squared", False)
    if squared and metric not in ("euclidean", "l2", "nan_euclidean"):
        raise ParameterError(f"metric {metric!r} takes no squared; it is for euclidean and nan_euclidean")
    missing = metric == "nan_euclidean"
    options = {name: kwds.pop(name) for name in _ARRAYS if kwds.get(name) is not None}
    x, y, options, wrap = _arrays(X, None if Y is X else Y, options, "allow-nan" if missing else ensure_all_finite)
    if metric == "precomputed":
        distances = _precomputed(x, y)
        if distances.device.type == "cpu" and bool((distances.detach() < 0).any()):
            raise ParameterError("metric 'precomputed' takes non-negative values, X has negative ones")
        return wrap(distances)
    if metric in _OWN:
        if kwds or options:
            raise ParameterError(f"metric {metric!r} takes no {next(iter([*kwds, *options]))}")
        result = _OWN[metric](x, x if y is None else y)
        return wrap(result.square() if squared else result)
    if metric in METRICS and METRICS[metric].boolean:
        x, y = _truths(x), None if y is None else _truths(y)
    options = {**options, **_of_one_set(metric, x, y, options)}
    unknown = next((name for name in kwds if name not in _NUMBERS), None)
    if unknown is not None:
        raise ParameterError(f"metric {metric!r} takes no {unknown!r}; there are {', '.join((*_NUMBERS, *_ARRAYS))}")
    result = cdist(x, y, metric="sqeuclidean" if squared else metric, **options, **kwds)
    return wrap(result.fill_diagonal_(0) if y is None and metric in _SET_DIAGONAL else result)


_SET_DIAGONAL = ("braycurtis", "correlation", "dice", "russellrao", "sokalsneath")
"""Metrics whose value between equal rows may be other than 0."""


def _of_one_set(
    metric: str, x: torch.Tensor, y: torch.Tensor | None, options: Mapping[str, Any]
) -> dict[str, torch.Tensor]:
    """The variance or inverse covariance of the rows where it is not passed, which scikit-learn takes of X alone."""
    name, find = _OF_ROWS.get(metric, ("", variance_of))
    if not name or name in options:
        return {}
    if y is not None:
        raise ParameterError(f"{name} is required for metric {metric!r} where Y is passed: there are two sets of rows")
    return {name: find(x)}


_OF_ROWS = {"seuclidean": ("V", variance_of), "mahalanobis": ("VI", inverse_covariance_of)}


def pairwise_kernels(
    X: Any,
    Y: Any = None,
    metric: str | Kernel = "linear",
    *,
    filter_params: bool = False,
    n_jobs: int | None = None,  # noqa: ARG001  # part of the signature
    **kwds: Any,
) -> Any:
    """Return the kernel matrix of the rows of X and Y, as ``sklearn.metrics.pairwise.pairwise_kernels`` is called.

    Parameters
    ----------
    X : array or nested list, shape (m, k)
        Tensor, numpy, CuPy or DLPack array. With ``metric="precomputed"`` the matrix itself.
    Y : array or nested list, shape (n, k), optional
        By default ``X``.
    metric : str or Kernel
        ``additive_chi2, chi2, cosine, laplacian, linear, poly, polynomial, rbf, sigmoid, precomputed``, or a kernel.
    filter_params : bool
        Whether to leave out parameters that the kernel does not have; they are an error otherwise.
    n_jobs : int, optional
        Accepted and not used: one call takes all cores.
    **kwds
        ``gamma`` (1 / k by default, 1 for chi2), ``degree`` (3), ``coef0`` (1): numbers or tensors.

    Returns
    -------
    array, shape (m, n)
        Of the kind and, if floating point, the dtype of X.

    Raises
    ------
    KernmantleError
        Before anything is computed; names the argument.

    Notes
    -----
    One pass, memory of inputs and result. Gradients of every order for X, Y and the parameters. The products with
    such a matrix that never store it are methods of the kernels themselves: ``km.Gaussian(...).matmul``.

    Examples
    --------
    >>> import kernmantle as km, numpy as np
    >>> km.pairwise_kernels(np.array([[0.0], [1.0]]), metric="rbf", gamma=0.5).round(4)
    array([[1.    , 0.6065],
           [0.6065, 1.    ]])
    """
    x, y, _, wrap = _arrays(X, Y, {}, True)
    if isinstance(metric, Kernel):
        if kwds:
            raise ParameterError(f"a kernel takes no {next(iter(kwds))}; its hyperparameters are its own")
        return wrap(metric(x, y))
    if metric == "precomputed":
        return wrap(_precomputed(x, y))
    if not isinstance(metric, str) or metric not in _KERNELS:
        raise ParameterError(f"unknown kernel {metric!r}; there are {', '.join(_KERNELS)}, precomputed and km.Kernel")
    taken = signature(_KERNELS[metric]).parameters
    unknown = next((name for name in kwds if name not in taken), None)
    if unknown is not None and not filter_params:
        raise ParameterError(f"kernel {metric!r} takes no {unknown!r}; it has {', '.join(taken) or 'none'}")
    if "chi2" in metric:
        for rows, name in ((x, "X"), (y, "Y")):
            if rows is not None and rows.device.type == "cpu" and bool((rows.detach() < 0).any()):
                raise ParameterError(f"kernel {metric!r} is of rows without negative entries, {name} has some")
    values = {name: value for name, value in kwds.items() if name in taken}
    if "gamma" in taken:
        values["gamma"] = _gamma(values.get("gamma"), 1.0 if metric == "chi2" else 1 / max(x.shape[-1], 1))
    return wrap(_KERNELS[metric](**values)(x, y))


def _gamma(asked: Any, default: float) -> Any:
    gamma = default if asked is None else asked
    return gamma if isinstance(gamma, torch.Tensor) else positive(gamma, "gamma")


def _chi2(a: Any, b: Any) -> Any:
    total = a + b
    return _where(total == 0, 0, (a - b) ** 2 / _where(total == 0, 1, total))


def _plain(name: str) -> Callable[[], Kernel]:
    def make() -> Kernel:
        return CONSTRUCTORS[name]()

    return make


def _polynomial(gamma: Any, degree: Any = 3, coef0: Any = 1) -> Kernel:
    return CONSTRUCTORS["Polynomial"](gamma=gamma, degree=degree, coef0=coef0)


_KERNELS: dict[str, Callable[..., Kernel]] = {
    "additive_chi2": lambda: Kernel(_chi2, lambda s: -s),
    "chi2": lambda gamma: Kernel(_chi2, lambda s, gamma: _exp(-gamma * s), gamma=gamma),
    "cosine": _plain("Cosine"),
    "laplacian": lambda gamma: CONSTRUCTORS["Laplace"](bandwidth=1 / gamma),
    "linear": _plain("Linear"),
    "poly": _polynomial,
    "polynomial": _polynomial,
    "rbf": lambda gamma: CONSTRUCTORS["Gaussian"](bandwidth=(0.5 / gamma) ** 0.5),
    "sigmoid": lambda gamma, coef0=1: CONSTRUCTORS["Sigmoid"](gamma=gamma, coef0=coef0),
}


@lru_cache(maxsize=1)
def _present() -> Contraction:
    def mapped(a: Any, b: Any) -> Any:
        missing = _or(_isnan(a), _isnan(b))
        difference = _where(missing, 0, a - b)
        return difference * difference, _where(missing, 0, 1)

    return Contraction("mk,nk->mn", mapped, epilogue=lambda s, count, columns: _sqrt(s * (columns / count)))


def _nan_euclidean(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return distances over the columns that both rows have, scaled to all; NaN where there is none."""
    return _present()(x, y, columns=float(x.shape[-1]))


@lru_cache(maxsize=1)
def _haversines() -> Contraction:
    def mapped(a: Any, b: Any, u: Any, v: Any) -> Any:
        half = _sin((a - b) / 2)
        return u * v * (half * half)

    return Contraction("mk,nk,mk,nk->mn", mapped, epilogue=lambda s: 2 * _asin(_sqrt(_where(s > 1, 1, s))))


def _haversine(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the angle between places given by latitude and longitude in radians."""
    if x.shape[-1] != 2 or y.shape[-1] != 2:
        raise ShapeError(f"haversine is of two columns, latitude and longitude, got {x.shape[-1]} and {y.shape[-1]}")
    weights = [torch.stack([torch.ones_like(rows[:, 0]), rows[:, 0].cos()], 1) for rows in (x, y)]
    return _haversines()(x, y, *weights)


@lru_cache(maxsize=1)
def _cosines() -> Contraction:
    return Contraction(
        "mk,nk,zeros_x:m,zeros_y:n->mn", lambda a, b: (a - b) ** 2,
        epilogue=lambda s, zeros_x, zeros_y: (s + zeros_x + zeros_y) / 2,
    )  # fmt: skip


def _cosine(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Half the squared difference of rows of length 1; a row of zeros is at 1 from all others."""
    wide = (x.float(), y.float()) if x.dtype in HALVES else (x, y)
    left, none_left = _directions(wide[0])
    right, none_right = (left, none_left) if x is y else _directions(wide[1])
    found = _cosines()(left, right, zeros_x=none_left, zeros_y=none_right).to(x.dtype)
    return found.fill_diagonal_(0) if x is y else found


def _directions(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the rows of length 1 or, where all entries are 0, of zeros; and 1 for these, else 0."""
    none = (rows == 0).all(-1)
    safe = torch.where(none[:, None], 1, rows)
    unit, _ = directions(Arguments(safe, safe)).operands
    return torch.where(none[:, None], 0, unit), none.to(rows.dtype)


_OWN: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "cosine": _cosine,
    "nan_euclidean": _nan_euclidean,
    "haversine": _haversine,
}


def _arrays(
    X: Any, Y: Any, options: Mapping[str, Any], finite: bool | str
) -> tuple[torch.Tensor, torch.Tensor | None, dict[str, Any], Wrap]:
    """Return the rows and the options that are arrays, as floating point, checked, and the way back."""
    named = {"X": X, **({} if Y is None else {"Y": Y})}
    names = [*named, *options]
    asked = [_array(value, name) for name, value in {**named, **options}.items()]
    tensors, wrap = unwrap(*asked, names=names)
    wide = torch.float64 if isinstance(asked[0], np.ndarray) else torch.float32
    tensors = [t if t.is_floating_point() or t.is_complex() else t.to(wide) for t in tensors]
    found = dict(zip(names, tensors, strict=True))
    for name in named:
        if found[name].dim() != 2:
            raise ShapeError(f"{name} must have rows and columns, it has shape {tuple(found[name].shape)}")
        _check_finite(found[name], name, finite)
    return found["X"], found.get("Y"), {name: found[name] for name in options}, wrap


def _array(value: Any, name: str) -> Any:
    if hasattr(value, "toarray"):
        raise ParameterError(f"{name} is sparse; pass {name}.toarray()")
    is_array = hasattr(value, "__dlpack__") or hasattr(value, "__cuda_array_interface__")
    return value if is_array else np.asarray(value)


def _check_finite(rows: torch.Tensor, name: str, finite: bool | str) -> None:
    if finite is False or rows.device.type != "cpu":
        return
    values, what = underlying(rows).detach(), "infinity" if finite == "allow-nan" else "infinity or NaN"
    wrong = values.isinf() if finite == "allow-nan" else ~values.isfinite()
    if bool(wrong.any()):
        raise ParameterError(f"{name} holds {what}; ensure_all_finite=False lets it pass")


def _truths(rows: torch.Tensor) -> torch.Tensor:
    return (rows.detach() != 0).to(rows.dtype)


def _precomputed(x: torch.Tensor, y: torch.Tensor | None) -> torch.Tensor:
    rows = x.shape[0] if y is None else y.shape[0]
    if x.shape[1] != rows:
        raise ShapeError(f"precomputed: X has shape {tuple(x.shape)}, it needs {rows} columns")
    return x
