"""How far a computed number may be from the exact one: the only place where tolerances are written."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

MAP_ROUNDINGS = 16  # units of rounding that a map and an epilogue may add
DEVIATIONS = 6  # standard deviations of a sum of roundings


@dataclass(frozen=True)
class Format:
    """A floating-point type: unit roundoff, largest number, and where relative accuracy ends."""

    roundoff: float
    largest: float
    floor: float
    computes_in: str


FORMATS = {
    "float16": Format(2.0**-11, 65504.0, 2.0**-24, "float32"),
    "bfloat16": Format(2.0**-8, 3.3895313892515355e38, 2.0**-126, "float32"),
    "float32": Format(2.0**-24, 3.4028234663852886e38, 2.0**-126, "float32"),
    "float64": Format(2.0**-53, 1.7976931348623157e308, 2.0**-1022, "float64"),
}


def _name(dtype: Any) -> str:
    return getattr(dtype, "__name__", None) or str(dtype).rpartition(".")[2]


def tolerance(dtype: Any, depth: int = 1) -> float:
    """Return the largest acceptable error of a reduction, relative to the magnitude of its terms.

    With unit roundoff ``u``, each of ``depth`` roundings errs by at most ``u`` of a partial result. As rounding
    errors are nearly independent, their sum stays below ``DEVIATIONS * sqrt(depth) * u`` except with a
    probability of exp(-DEVIATIONS**2 / 2), 2e-8. Map and epilogue add up to ``MAP_ROUNDINGS`` roundings, and
    storing the result in a narrower type than it was computed in one more.

    Parameters
    ----------
    dtype
        Type of the result (torch, numpy or a name); integers and bool are exact.
    depth
        Number of terms reduced one after another.

    Returns
    -------
    float
        Relative tolerance.

    Examples
    --------
    >>> from kernmantle.testing import tolerance
    >>> tolerance("float32", depth=100) < 5e-6
    True
    """
    name = _name(dtype)
    if name not in FORMATS:
        return 0.0
    number_format = FORMATS[name]
    computed = FORMATS[number_format.computes_in].roundoff * (MAP_ROUNDINGS + DEVIATIONS * math.sqrt(max(depth, 1)))
    return computed + (number_format.roundoff if number_format.computes_in != name else 0.0)


def _exact(array: Any) -> np.ndarray[Any, Any]:
    if isinstance(array, torch.Tensor):
        detached = array.detach().cpu()
        # force: derivatives that are zero everywhere may come as torch's ZeroTensor, which has no storage.
        return (detached.double() if detached.is_floating_point() else detached).numpy(force=True)
    found = np.asarray(array)
    return found.astype(np.float64) if found.dtype.kind == "f" else found


def _stored(
    found: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any], name: str, depth: int
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return both sides as the type can hold them.

    What is too large by more than its tolerance must be infinite. Nearer to where rounding begins to overflow both
    the infinite and the finite may come out: there an infinite result counts as that limit.
    """
    if name not in FORMATS or name == "float64" or wanted.dtype.kind != "f":
        return found, wanted
    limit = FORMATS[name].largest * (1 + FORMATS[name].roundoff / 2)
    overflows = np.abs(wanted) > limit * (1 + tolerance(name, depth))
    overflown = np.isinf(found) & np.isfinite(wanted) & ~overflows & (np.sign(found) == np.sign(wanted))
    found = np.where(overflown, np.copysign(limit, wanted), found)
    return found, np.where(overflows, np.copysign(np.inf, wanted), wanted)


def _typical(values: np.ndarray[Any, Any]) -> float:
    """Return the root mean square, scaled so that nothing overflows or is lost."""
    top = float(np.abs(values).max())
    return top * math.sqrt(np.mean((values / top) ** 2)) if top > 0 else 0.0


def _differences(
    found: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any], name: str, depth: int, magnitude: Any
) -> np.ndarray[Any, Any]:
    """Return the error of each entry in units of what is allowed."""
    if name not in FORMATS:
        return np.where(found == wanted, 0.0, np.inf)
    found, wanted = found.astype(np.float64), wanted.astype(np.float64)
    finite = np.isfinite(found) & np.isfinite(wanted)
    same = (found == wanted) | (np.isnan(found) & np.isnan(wanted))
    values = np.where(finite, wanted, 0.0)
    terms = _typical(values) if magnitude is None else _exact(magnitude).astype(np.float64)
    with np.errstate(over="ignore"):
        allowed = tolerance(name, depth) * (np.abs(values) + terms) + FORMATS[name].floor
        errors = np.abs(np.where(finite, found, 0.0) - values) / allowed
    return np.where(finite, errors, np.where(same, 0.0, np.inf))


def assert_close(actual: Any, expected: Any, *, dtype: Any = None, depth: int = 1, magnitude: Any = None) -> None:
    """Assert that numbers agree to ``tolerance``; NaN and infinities must be in the same places.

    Parameters
    ----------
    actual, expected
        Arrays or numbers of the same shape; ``expected`` in higher precision.
    dtype
        Type whose accuracy is asked, that of ``actual`` by default.
    depth
        Length of the reduction.
    magnitude
        Magnitude of the terms that were reduced, which errors are relative to besides the result itself; the
        root mean square of ``expected`` by default. 0 asks for relative accuracy of every entry.

    Raises
    ------
    AssertionError
        Names the worst entry.

    Examples
    --------
    >>> import numpy as np
    >>> from kernmantle.testing import assert_close
    >>> assert_close(np.float32([1.0, 2.0]), np.array([1.0, 2.0 + 1e-7]))
    """
    checked = actual if hasattr(actual, "dtype") else np.asarray(actual)
    name = _name(checked.dtype if dtype is None else dtype)
    found, wanted = _exact(actual), _exact(expected)
    if found.shape != wanted.shape:
        raise AssertionError(f"shape {found.shape} where {wanted.shape} was expected")
    found, wanted = _stored(found, wanted, name, depth)
    if not found.size:
        return
    errors = _differences(found, wanted, name, depth, magnitude)
    worst = np.unravel_index(int(np.argmax(errors)), errors.shape)
    if errors[worst] > 1:
        at = ", ".join(map(str, worst))
        raise AssertionError(
            f"{np.count_nonzero(errors > 1)} of {errors.size} entries differ; worst is [{at}]: {found[worst]} where "
            f"{wanted[worst]} was expected, {errors[worst]:.3g} times the tolerance of {name} at depth {depth}"
        )
