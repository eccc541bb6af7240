"""From a row of the table to the function that makes its kernels."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from inspect import Parameter, Signature
from typing import Any

import torch

from ..errors import GradientError, ParameterError, ShapeError
from ..torch_ops.autograd import constant
from .hyperparameters import shown, value_of
from .inputs import readable
from .kernel import Kernel
from .kernel_form import WEIGHT, Form, gram
from .kernel_row import COLUMNS, RANGES, Hyper, Option, Row, form_of, literal
from .kernels import KERNELS

LENGTHS = "lengthscales"
_LENGTH = ("sigma", "scale", "width", "bw", "ell")
_GAMMA = {
    "Gaussian": "exp(-gamma d^2) has bandwidth=(2 * gamma) ** -0.5",
    "Laplace": "exp(-gamma d) has bandwidth=1 / gamma",
}
"""The bandwidth of a kernel, from scikit-learn's ``gamma``."""


def _check(kernel: str, name: str, value: Any, range_name: str) -> None:
    text, inside = RANGES[range_name]
    if isinstance(value, torch.Tensor):
        if not readable(value):
            return
        values = value.detach()
        wrong = values[~inside(values) | values.isinf()].flatten()
        if wrong.numel():
            number = "; an infinite one only as a number, for the whole batch" if name == "p" else ""
            raise ParameterError(
                f"{name} of {kernel} must be {text} and finite everywhere, it has {wrong[0].item()}{number}"
            )
    elif not inside(value) or (math.isinf(value) and name != "p"):
        raise ParameterError(f"{name} of {kernel} must be {text} and finite, got {value!r}")


@constant
def _written_default(kernel: str, name: str) -> str:
    row = KERNELS[kernel]
    return next(str(each.default) for each in (*row.hyper, *row.options) if each.name == name)


def _number(kernel: str, own: Hyper | Option) -> Any:
    """Return a default; torch.compile would take it for symbolic where sizes are dynamic, and reads its text."""
    if not torch.compiler.is_compiling() or own.default == COLUMNS:
        return own.default
    text = _written_default(kernel, own.name)
    return int(text) if text.isdigit() else float(text)


def _hyper(row: Row, hyper: Hyper, passed: Any) -> Any:
    if passed is None:
        return _number(row.name, hyper)
    value = value_of(passed, hyper.name)
    _check(row.name, hyper.name, value, hyper.range)
    if hyper.rounded and isinstance(value, torch.Tensor) and value.requires_grad:
        raise GradientError(f"{row.name} varies in steps with {hyper.name}, which has no gradient: pass it detached")
    return value


def _chosen(row: Row, passed: Mapping[str, Any]) -> tuple[tuple[str, float], ...]:
    chosen = []
    for option in row.options:
        value = passed[option.name] if option.name in passed else _number(row.name, option)
        if isinstance(value, torch.Tensor) or not isinstance(value, (int, float)) or not option.is_allowed(value):
            raise ParameterError(f"{option.name} of {row.name} must be {option.allowed}, got {value!r}")
        chosen.append((option.name, value))
    return tuple(chosen)


def _lengths(row: Row, passed: Any) -> dict[str, torch.Tensor]:
    if passed is None:
        return {}
    value = value_of(passed, LENGTHS)
    if not isinstance(value, torch.Tensor) or value.dim() == 0:
        raise ShapeError(f"{LENGTHS} of {row.name} has one entry per column; for one number use the bandwidth")
    _check(row.name, LENGTHS, value, "positive")
    return {WEIGHT: value}


def _text(row: Row, passed: Mapping[str, Any]) -> str:
    return f"{row.name}({', '.join(f'{name}={shown(value)}' for name, value in passed.items() if value is not None)})"


@constant
def _form(name: str, *passed: Any) -> Form:
    """Return the expressions of a row; torch.compile takes them as they are and does not look into their making."""
    return form_of(KERNELS[name], *passed)


def make(row: Row, passed: Mapping[str, Any]) -> Kernel:
    """Return the kernel of a row with these hyperparameters and options, defaults for the others."""
    values = {hyper.name: _hyper(row, hyper, passed.get(hyper.name)) for hyper in row.hyper}
    exponents = {hyper.name for hyper in row.hyper if hyper.exponent}
    literals = tuple((name, values[name]) for name in sorted(exponents) if literal(values[name]))
    options = _chosen(row, passed)
    weights = _lengths(row, passed.get(LENGTHS))
    form = _form(row.name, literals, options, isinstance(values.get("p"), torch.Tensor), bool(weights))
    used = {name: values[name] for name in form.parameters}
    text = row.name if torch.compiler.is_compiling() else _text(row, passed)
    return Kernel.made(form, used, weights, text, named=True)


def replaced(kernel: Kernel, values: Mapping[str, Any]) -> Kernel:
    """Return the kernel with other values of the hyperparameters that are named, as in ``hyperparameters``."""
    form, own, weights, *rest = kernel.__reduce__()[1]
    lengths = [name for name in kernel.hyperparameters if name.startswith(LENGTHS)]
    scales = {weight: values.get(name, weights[weight]) for name, weight in zip(lengths, weights, strict=True)}
    return Kernel.made(form, {name: values.get(name, value) for name, value in own.items()}, scales, *rest)


def exponents(kernel: Kernel) -> frozenset[str]:
    """Return the hyperparameters that are powers, of which numbers are part of the compiled expression."""
    return gram(kernel.form).definition.exponents


def is_positive(name: str) -> bool:
    """Return whether a hyperparameter is positive wherever the table has it; ``scale`` is the weight of a kernel."""
    ranges = {hyper.range for row in KERNELS.values() for hyper in row.hyper if hyper.name == name}
    return ranges == {"positive"} or name in ("scale", "divisor", LENGTHS)


def _signature(row: Row) -> Signature:
    kinds = [Parameter(h.name, Parameter.POSITIONAL_OR_KEYWORD, default=_default(h)) for h in row.hyper]
    kinds += [Parameter(o.name, Parameter.POSITIONAL_OR_KEYWORD, default=o.default) for o in row.options]
    return Signature([*kinds, Parameter(LENGTHS, Parameter.KEYWORD_ONLY, default=None)])


def _default(hyper: Hyper) -> Any:
    return None if isinstance(hyper.default, str) else hyper.default


_REST = """
Returns
-------
Kernel

Raises
------
ParameterError, ShapeError
    For a hyperparameter out of its range or of a name that the kernel does not have.

Notes
-----
``k(x, y)`` costs one pass over all pairs and columns and no memory but the result; ``k.matmul``, ``k.gradient``,
``k.agop`` and ``k.argkmax`` never store the matrix. Gradients of every order exist for rows and hyperparameters.
{source}
Examples
--------
>>> import kernmantle as km, numpy as np
>>> km.{name}()(np.array([[1.0, 0.0], [0.0, 2.0]])).shape
(2, 2)
"""


def _documentation(row: Row) -> str:
    lines = [f"{row.formula}: {row.summary}.", "", "Parameters", "----------"]
    for hyper in row.hyper:
        default = "the number of columns" if isinstance(hyper.default, str) else f"{hyper.default:g}"
        lines += [
            f"{hyper.name} : number or tensor, default {default}",
            f"    {hyper.meaning}; {RANGES[hyper.range][0]}.",
        ]
    for option in row.options:
        lines += [f"{option.name} : number, default {option.default:g}", f"    {option.meaning}; {option.allowed}."]
    lines += [f"{LENGTHS} : tensor, shape (..., k), optional", "    Divides the columns of x and y."]
    rest = _REST.format(name=row.name, source=row.source and f"Source: {row.source}.\n").splitlines()
    return "\n".join([*lines, *rest])


def constructor(row: Row) -> Callable[..., Kernel]:
    """Return the public function of a row."""
    signature = _signature(row)

    def construct(*args: Any, **kwargs: Any) -> Kernel:
        unknown = next((name for name in kwargs if name not in signature.parameters), None)
        if unknown is not None:
            suggested = difflib.get_close_matches(unknown, signature.parameters, 1)
            hint = f"did you mean {suggested[0]!r}?" if suggested else f"it has {', '.join(signature.parameters)}"
            if suggested == [LENGTHS] and "bandwidth" in signature.parameters:
                hint = f"bandwidth is one length for all columns, {LENGTHS} is one for each"
            elif unknown in _LENGTH and "bandwidth" in signature.parameters:
                hint = f"{unknown} is bandwidth here"
            elif unknown == "gamma" and row.name in _GAMMA:
                hint = _GAMMA[row.name]
            raise ParameterError(f"{row.name} has no hyperparameter {unknown!r}; {hint}")
        return make(row, signature.bind(*args, **kwargs).arguments)

    construct.__name__ = construct.__qualname__ = row.name
    construct.__module__ = "kernmantle"
    construct.__doc__ = _documentation(row)
    construct.__signature__ = signature  # pyright: ignore[reportFunctionMemberAccess]
    return construct


CONSTRUCTORS: dict[str, Callable[..., Kernel]] = {name: constructor(row) for name, row in KERNELS.items()}
