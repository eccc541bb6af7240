"""Hyperparameters of a kernel, changed in place."""

from __future__ import annotations

from typing import Any

import torch

from ..errors import ParameterError, ShapeError
from .bound import classes_of
from .hyperparameters import shown, value_of
from .inputs import readable
from .kernel_algebra import ATOM
from .kernel_row import RANGES
from .kernels import KERNELS

LENGTHS = "lengthscales"
_LEAST = 0
"""Level of a text that is bracketed wherever it is part of another."""


def _check(name: str, value: Any) -> None:
    """Raise ParameterError where a value is out of the range that all kernels of the table have for the name."""
    base = name.rstrip("0123456789").rstrip("_")
    ranges = {hyper.range for row in KERNELS.values() for hyper in row.hyper if hyper.name == base}
    ranges |= {"positive"} if base == LENGTHS else set()
    if len(ranges) != 1:
        return
    text, inside = RANGES[ranges.pop()]
    values = value.detach() if isinstance(value, torch.Tensor) else value
    if isinstance(values, torch.Tensor):
        if not readable(values):
            return
        wrong = values[~inside(values)].flatten()
        if wrong.numel():
            raise ParameterError(f"{name} must be {text} everywhere, it has {wrong[0].item()}")
    elif not inside(values):
        raise ParameterError(f"{name} must be {text}, got {value!r}")


def assign(kernel: Any, name: str, new: Any) -> None:
    """Set a hyperparameter of a :class:`~.kernel.Kernel`; AttributeError where it has none of that name."""
    old = kernel.hyperparameters
    if name not in old or name == "transform":
        listing = ", ".join(other for other in old if other != "transform") or "none"
        raise AttributeError(
            f"{kernel!r} has no hyperparameter {name!r} to set; there are {listing}", name=name, obj=kernel
        )
    value = value_of(new, name)
    _check(name, value)
    if name.startswith(LENGTHS):
        index = [other for other in old if other.startswith(LENGTHS)].index(name)
        before = list(kernel._weights.values())[index]
        if not isinstance(value, torch.Tensor) or value.shape[-1:] != before.shape[-1:]:
            raise ShapeError(f"{name} has one entry per column, shape {tuple(before.shape)}, got {shown(new)}")
        kernel._weights[list(kernel._weights)[index]] = value
    else:
        kernel._values[name] = value
    kernel._classes = classes_of(kernel._values)
    spelled, now = f"{name}={shown(old[name])}", f"{name}={shown(value)}"
    if kernel._level == ATOM and kernel._text.count("(") == 1 + spelled.count("(") and spelled in kernel._text:
        kernel._text = kernel._text.replace(spelled, now)
    else:
        kernel._text, kernel._level = f"{kernel._text} with {now}", _LEAST
