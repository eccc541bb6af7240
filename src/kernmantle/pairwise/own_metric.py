"""Your own metrics: functions, contractions and kernels where a metric is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..errors import KernmantleError, ParameterError, TraceError
from ..torch_ops.contract import Contraction
from .hyperparameters import value_of
from .inputs import check_options, find
from .kernel import Kernel
from .kernel_form import Form
from .metrics import METRICS

OPTIONS = ("p", "w", "V", "VI", "base")
_COUNTS = ("k", "n_neighbors", "neighbors", "topk")
Metric = str | Kernel | Contraction | Callable[..., Any]
_NO_SIMILARITY = "call the kernel itself, k(x, y)"


def named_or_own(metric: Any, root: bool = True, **options: Any) -> str | Kernel:
    """Return the name of a function of ``scipy.spatial.distance``, or the kernel of your own metric.

    The options are those of a metric's name, None where they are not given.
    """
    name = getattr(metric, "__name__", "")
    if str(getattr(metric, "__module__", "")).startswith("scipy.spatial.") and name in METRICS:
        return name
    kernel = kernel_of(metric, {})
    if kernel is None:
        described, hint = repr(metric), ""
        if isinstance(metric, (int, float)):
            hint = "; a power is p=..."
        elif hasattr(metric, "shape"):
            described = f"an array of shape {tuple(metric.shape)}"
            hint = "; distances between two sets of rows are cdist(x, y)"
        raise ParameterError(f"metric must be a name, a function, a kernel or a contraction, not {described}{hint}")
    unwanted = next((option for option, value in options.items() if value is not None), None if root else "root")
    if unwanted is not None:
        raise ParameterError(
            f"a metric of your own takes no {unwanted}; its numbers are captured, or km.Kernel(..., p=3)"
        )
    check_distance(kernel, _NO_SIMILARITY)
    return kernel


def kernel_of(metric: Metric, options: Mapping[str, Any]) -> Kernel | None:
    """Return a function, a contraction or a kernel as a kernel, None for the name of a metric.

    ``options`` are the hyperparameters of a function or a contraction. A function is traced here.
    """
    if isinstance(metric, Kernel):
        if options:
            raise ParameterError(f"a kernel takes no {next(iter(options))}; its hyperparameters are its own")
        return metric
    if isinstance(metric, Contraction):
        return _of_contraction(metric, options)
    if not callable(metric):
        return None
    try:
        return Kernel(metric, **options)
    except (KernmantleError, TypeError, AttributeError) as error:
        kind = type(error) if isinstance(error, KernmantleError) else TraceError
        name = getattr(metric, "__name__", "")
        named = f"; the metric of this name is metric={name!r}" if name in METRICS else ""
        raise kind(
            "metric= is a function of one entry of each row, whose values are summed over the columns, as "
            f"lambda a, b: abs(a - b){named}; with something made of the sum, km.Kernel(map, epilogue): {error}"
        ) from error


def _of_contraction(metric: Contraction, options: Mapping[str, Any]) -> Kernel:
    definition = metric.definition
    equation = definition.equation
    fits = len(equation.positional) == len(equation.operands) == 2 and all(len(axes) == 2 for axes in equation.operands)
    if fits:
        (row, left), (column, right) = equation.operands
        fits = left == right and equation.out == row + column
    if not fits or not definition.single:
        raise ParameterError(
            f"metric= takes a contraction of two sets of rows to one value for every pair, as 'mk,nk->mn', not "
            f"{equation.text!r}"
        )
    settings = {**dict(definition.defaults), **options}
    unknown = next((name for name in options if name not in definition.parameters), None)
    if unknown is not None:
        listing = ", ".join(definition.parameters) or "none"
        raise ParameterError(f"unknown parameter {unknown!r} of the metric; the contraction has {listing}")
    missing = next((name for name in definition.parameters if name not in settings), None)
    if missing is not None:
        raise ParameterError(f"parameter {missing!r} of the metric is missing: pass it in metric_params=")
    values = {name: value_of(settings[name], name) for name in definition.parameters}
    form = Form(definition.map, definition.reductions, definition.outputs[0], definition.parameters)
    return Kernel.made(form, values, {}, repr(metric))


def check_metric(metric: Metric, options: Mapping[str, Any], instead: str) -> Kernel | None:
    """Return ``kernel_of``; ParameterError for similarities, unknown names, and options that a metric has not."""
    kernel = kernel_of(metric, options)
    if kernel is not None:
        check_distance(kernel, instead)
        return kernel
    check_names(options)
    row = find(metric)
    check_options(row, options)
    if row.name == "inner_product":
        raise ParameterError(f"metric= is a distance; 'inner_product' is a similarity, as km.Linear(): {instead}")
    return None


def check_distance(kernel: Kernel, instead: str) -> None:
    """Raise ParameterError for a kernel whose values are larger where rows are nearer."""
    if kernel.is_similarity:
        raise ParameterError(
            f"metric= is a distance, whose smallest value is the nearest; {kernel!r} is a similarity, larger where "
            f"rows are nearer: {instead}"
        )


def check_names(options: Mapping[str, Any]) -> None:
    """Raise ParameterError for what is an option of no metric."""
    unknown = next((name for name in options if name not in OPTIONS), None)
    if unknown is not None:
        hint = "how many neighbours is count=" if unknown in _COUNTS else f"there are {', '.join(OPTIONS)}"
        raise ParameterError(f"metrics have no option {unknown!r}; {hint}")
