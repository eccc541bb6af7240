"""What a contraction must give, written out with numpy: broadcast everything, map, reduce once."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy.special import logsumexp

Array = np.ndarray[Any, Any]

# Each reduction of the table by NumPy, and its result over nothing, None where it has none.
REDUCE: dict[str, Callable[..., Array]] = {
    "sum": np.sum,
    "prod": np.prod,
    "min": lambda values, axis: np.min(values, axis=axis, initial=_largest(values.dtype)),
    "max": lambda values, axis: np.max(values, axis=axis, initial=-1 - _largest(values.dtype)),
    "logsumexp": lambda values, axis: logsumexp(values, axis=axis) if values.size else _nothing(values, axis, -np.inf),
    "any": np.any,
    "all": np.all,
    "argmin": lambda values, axis: np.argmin(values, axis=axis[0]),
    "argmax": lambda values, axis: np.argmax(values, axis=axis[0]),
}
OVER_NOTHING: dict[str, float | bool | None] = {
    "sum": 0.0, "prod": 1.0, "min": np.inf, "max": -np.inf, "logsumexp": -np.inf, "any": False, "all": True,
    "argmin": None, "argmax": None,
}  # fmt: skip


def reduction(name: str) -> Callable[..., Array]:
    """Return a reduction's definition by NumPy: of values and the axes to reduce."""
    assert name in REDUCE, (
        f"reduction {name!r} has no expected values: write its definition into REDUCE of tests/oracle.py"
    )
    return REDUCE[name]


def over_nothing(name: str) -> float | bool | None:
    """Return the result of a reduction over no values."""
    assert name in OVER_NOTHING, (
        f"reduction {name!r} has no expected result over nothing: OVER_NOTHING of tests/oracle.py"
    )
    return OVER_NOTHING[name]


def _largest(dtype: Any) -> Any:
    return np.inf if dtype.kind == "f" else np.iinfo(dtype).max if dtype.kind == "i" else dtype.type(1)


def _nothing(values: Array, axis: tuple[int, ...], identity: float) -> Array:
    return np.full(np.sum(values, axis=axis).shape, identity)


def entries(equation: str) -> tuple[list[str | None], list[str], str]:
    """Names and axes of the operands, axes of the output."""
    left, out = equation.replace(" ", "").split("->")
    split = [entry.rpartition(":") for entry in left.split(",")]
    return [name or None for name, _, _ in split], [axes for _, _, axes in split], out


def spread(array: Array, axes: str, order: str) -> Array:
    """The array with its axes in ``order``, missing ones of length 1, batch axes on the left."""
    array = np.asarray(array)
    rank = array.ndim - len(axes)
    present = [axis for axis in order if axis in axes]
    array = array.transpose([*range(rank), *(rank + axes.index(axis) for axis in present)])
    lengths = [array.shape[rank + present.index(axis)] if axis in axes else 1 for axis in order]
    return array.reshape((*array.shape[:rank], *lengths))


def _called(function: Callable[..., Any], positional: Sequence[Any], named: dict[str, Any]) -> tuple[Any, ...]:
    known = list(inspect.signature(function).parameters)[len(positional) :]
    result = function(*positional, **{name: named[name] for name in known if name in named})
    return result if isinstance(result, tuple) else (result,)


def oracle(
    equation: str, function: Callable[..., Any], operands: Sequence[Any], reduce: str | Sequence[str] = "sum",
    epilogue: Callable[..., Any] | None = None, **params: Any,
) -> Any:  # fmt: skip
    """Result for arrays in the equation's order, named ones included; params have batch axes only."""
    names, every, out = entries(equation)
    order = out + "".join(dict.fromkeys(axis for axes in every for axis in axes if axis not in out))
    reduced = tuple(range(len(out) - len(order), 0))
    views = [spread(array, axes, order) for array, axes in zip(operands, every, strict=True)]
    hyper = {name: np.reshape(value, (*np.shape(value), *(1,) * len(order))) for name, value in params.items()}
    named = {name: view for name, view in zip(names, views, strict=True) if name is not None}
    shape = np.broadcast_shapes(*(view.shape for view in views), *(value.shape for value in hyper.values()))
    positional = [view for name, view in zip(names, views, strict=True) if name is None]
    with np.errstate(all="ignore"):
        mapped = _called(function, positional, named | hyper)
        kinds = [reduce] * len(mapped) if isinstance(reduce, str) else reduce
        full = [np.broadcast_to(value, shape) for value in mapped]
        finished = [
            reduction(kind)(value, axis=reduced) if reduced else value for kind, value in zip(kinds, full, strict=True)
        ]
        if epilogue is None:
            return finished[0] if len(finished) == 1 else tuple(finished)
        tail = len(order) - len(out)
        flat = {name: value.reshape(value.shape[: value.ndim - tail]) for name, value in hyper.items()}
        flat |= {
            name: spread(array, axes, out)
            for name, axes, array in zip(names, every, operands, strict=True)
            if name is not None and set(axes) <= set(out)
        }
        results = _called(epilogue, finished, flat)
        results = tuple(np.broadcast_to(result, finished[0].shape) for result in results)
    return results[0] if len(results) == 1 else results
