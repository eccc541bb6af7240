"""Arguments of cdist and pdist, checked and converted for their contraction."""

from __future__ import annotations

import difflib
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ..arrays import (
    Wrap,
    check_same_device,
    check_same_dtype,
    common_shape,
    dtype_name,
    is_numpy_like,
    promoted,
    unwrap,
)
from ..errors import DtypeError, GradientError, ParameterError, ShapeError
from ..ir.equation import broadcast
from ..torch_ops.checks import autocasts, is_number, without_autocast
from . import metric_prepare as prepare
from .metric import Arguments, Metric, Ready
from .metric_forms import POWERS
from .metric_prepare import readable
from .metrics import ALIASES, METRICS

_AXES = {"w": 1, "V": 1, "VI": 2, "p": 0, "base": 0}
STEEP = 16
"""Power beyond which powers of float32 differences may leave what it holds, so that their logarithms are added."""
HALVES = (torch.float16, torch.bfloat16)
FLOATS = (*HALVES, torch.float32, torch.float64)


@dataclass(frozen=True)
class Request:
    """A call that is checked: the variant of the metric's form, what it is given, and what to do with the result."""

    row: Metric
    variant: str
    arguments: Arguments
    parameters: Mapping[str, Any]
    dtype: torch.dtype
    wrap: Wrap
    inputs: Mapping[str, torch.Tensor]

    def prepared(self) -> Ready:
        """Return the operands and parameters of the contraction."""
        with without_autocast(self.arguments.x.device):
            ready = (self.row.prepare or prepare.plain)(self.arguments)
        return ready._replace(parameters={**ready.parameters, **self.parameters})

    def axes(self, weighted: bool) -> list[str]:
        """Return the axes of every operand."""
        form = POWERS[self.variant] if self.variant else self.row.form
        return [*form.operands.split(","), *("k" for _ in range(weighted))]

    @property
    def batch(self) -> tuple[int, ...]:
        """Batch axes of the result."""
        ranks = (_AXES.get(name, 2) for name in self.inputs)
        leading = (t.shape[: t.dim() - rank] for t, rank in zip(self.inputs.values(), ranks, strict=True))
        return common_shape(*leading)

    @property
    def is_converted(self) -> bool:
        """Return whether the result is computed in a wider type than its own."""
        return self.arguments.x.dtype != self.dtype


_INSTEAD = {
    "nan_euclidean": "there are no missing values here: fill them in, as by sklearn.impute, or pass "
    "sklearn.metrics.pairwise.nan_euclidean_distances(x, y) where distances are taken",
    "haversine": "points on a sphere as unit vectors have angles 2 * arcsin(km.cdist(u, v) / 2)",
    "wminkowski": "'minkowski' takes weights, w= of the powers: w ** p of what wminkowski had",
}
"""Replacements for metrics of SciPy and scikit-learn that are not here."""


def find(metric: Any) -> Metric:
    """Return the row of a metric by its name or an alias."""
    if not isinstance(metric, str):
        raise ParameterError(
            f"metric must be a name, not {type(metric).__name__}; a power is p=..., "
            "and a distance of your own is km.contract('mk,nk->mn', lambda x, y: ..., x, y)"
        )
    row = METRICS.get(metric)
    if row is not None:
        return row
    name = metric.lower()
    row = METRICS.get(ALIASES.get(name, name))
    if row is None:
        suggested = difflib.get_close_matches(name, [*METRICS, *ALIASES], 1)
        hint = f"did you mean {suggested[0]!r}?" if suggested else f"there are {', '.join(METRICS)}"
        hint = _INSTEAD.get(name, hint)
        raise ParameterError(f"unknown metric {metric!r}; {hint}")
    return row


def check_options(row: Metric, arguments: Mapping[str, Any]) -> None:
    """Raise ParameterError for what the metric does not take."""
    for name, value in arguments.items():
        if value is not None and name not in row.options:
            takers = ", ".join(other.name for other in METRICS.values() if name in other.options)
            raise ParameterError(f"metric {row.name!r} takes no {name}; {name} is for {takers}")


def number_variant(p: Any) -> tuple[str, dict[str, Any]]:
    """Return the variant of Minkowski's form for a number, and its parameters."""
    value = p if type(p) is float or type(p) is int else float(p)
    if not value >= 0:
        raise ParameterError(f"p must be at least 0, got {p}")
    if value == 0:
        return "count", {}
    # Not == inf: torch.compile takes a changing number for finite and would drop that comparison.
    if value > sys.float_info.max:
        return "largest", {}
    return ("steep" if value > STEEP else "power"), {"p": value}


def _scalar(value: Any) -> Any:
    """Return the number of a constant 0-d tensor, as it costs nothing to read."""
    constant = isinstance(value, torch.Tensor) and value.dim() == 0 and not value.requires_grad
    return value.item() if constant and value.dtype != torch.bool and readable(value) else value


def tensor_variant(p: torch.Tensor, work: torch.dtype) -> tuple[str, dict[str, Any]]:
    """Return the variant for a tensor of powers; where its values cannot be seen they may be anything."""
    if p.dtype == torch.bool or p.is_complex():
        raise ParameterError(f"p has dtype {p.dtype}; pass real numbers")
    variant = "tensor or largest"
    if readable(p):
        values = p.detach()
        if not bool((values >= 0).all()):
            raise ParameterError("p must be at least 0 everywhere")
        if not bool((values == math.inf).any()):
            variant = "tensor"
    return variant, {"p": p.to(torch.float64 if work == torch.float64 else torch.float32)}


def floating(tensor: torch.Tensor, label: str, host: bool) -> torch.Tensor:
    """Return a tensor of real numbers as floating point, integers as float64 where they are from the host."""
    if tensor.dtype in FLOATS:
        return tensor
    if tensor.is_floating_point():
        raise DtypeError(f"{label} is {dtype_name(tensor.dtype)}; convert it with .float()")
    if tensor.is_complex():
        raise DtypeError(f"{label} is {dtype_name(tensor.dtype)}; rows are of real numbers: use torch.view_as_real")
    if tensor.is_quantized:
        raise DtypeError(f"{label} is quantized, {dtype_name(tensor.dtype)}; call .dequantize()")
    return tensor.to(torch.float64 if host else torch.float32)


def check_rows(x: torch.Tensor, y: torch.Tensor) -> None:
    """X and y are (batches of) matrices with as many columns on one device and of one dtype."""
    check_same_device((x, y), "xy")
    check_same_dtype((x, y), "xy")
    for label, rows in (("x", x), ("y", y)):
        if rows.dim() < 2:
            raise ShapeError(
                f"{label} must have rows and columns, it has shape {tuple(rows.shape)}; "
                f"use {label}[None] for one row and {label}[:, None] for one column"
            )
    if x.shape[-1] != y.shape[-1]:
        raise ShapeError(f"x and y must have the same number of columns: {_listing({'x': x, 'y': y})}")


def _listing(tensors: Mapping[str, torch.Tensor]) -> str:
    return ", ".join(f"{name} has shape {tuple(tensor.shape)}" for name, tensor in tensors.items())


def check_shapes(tensors: Mapping[str, torch.Tensor]) -> None:
    """Options are over the columns of x and y, and all batch axes broadcast."""
    columns = tensors["x"].shape[-1]
    leading: list[tuple[int, ...]] = []
    for name, tensor in tensors.items():
        wanted = (columns,) * _AXES[name] if name in _AXES else tuple(tensor.shape[-2:])
        rank = tensor.dim() - len(wanted)
        if tuple(tensor.shape[max(rank, 0) :]) != wanted:
            raise ShapeError(f"{name} must have shape {wanted} or a batch of it: {_listing(tensors)}")
        leading.append(tuple(tensor.shape[:rank]))
    if broadcast(leading) is None:
        raise ShapeError(f"batch axes do not broadcast: {_listing(tensors)}")


def _check_weights(w: Any, tensor: torch.Tensor) -> None:
    """Raise ParameterError for negative weights of an array on the host; tensors are not read."""
    if is_numpy_like(w) and tensor.numel() and tensor.min() < 0:
        raise ParameterError(f"w must not be negative, it has {tensor.min().item()}")


def _check_base(base: Any) -> None:
    if isinstance(base, torch.Tensor):
        fits = not readable(base) or bool((base.detach() > 1).all())
    else:
        fits = float(base) > 1
    if not fits:
        raise ParameterError(f"base must be above 1, got {base!r}")


def tensors_of(named: Mapping[str, Any]) -> tuple[dict[str, torch.Tensor], Wrap]:
    """Return the tensors of x, which no call is without, and of what else is not None; DtypeError for a number."""
    present = {name: value for name, value in named.items() if value is not None or name == "x"}
    for name, value in present.items():
        if is_number(value) and not hasattr(value, "shape"):
            raise DtypeError(f"{name} is a number; pass an array")
    tensors, wrap = unwrap(*present.values(), names=list(present))
    return dict(zip(present, tensors, strict=True)), wrap


def request(
    row: Metric, x: Any, y: Any, *, p: Any, w: Any, V: Any, VI: Any, base: Any, condensed: bool = False
) -> Request:
    """Check the arguments of a call; ``y`` is ``x`` itself where it was omitted."""
    p, base = _scalar(p), _scalar(base)
    if isinstance(p, str):
        raise ParameterError(f"p must be a number or an array of numbers, got {p!r}" + "; float('inf')" * ("inf" in p))
    check_options(row, {"p": p, "w": w, "V": V, "VI": VI, "base": base})
    named = {"x": x, "y": None if y is x else y, "w": w, "V": V, "VI": VI}
    named |= {name: value for name, value in (("p", p), ("base", base)) if value is not None and not is_number(value)}
    inputs, wrap = tensors_of(named)
    check_same_device(list(inputs.values()), list(inputs))
    if w is not None:
        _check_weights(w, inputs["w"])
    autocast = autocasts(inputs["x"].device)
    tensors = {name: t.float() if autocast and t.dtype in HALVES else t for name, t in inputs.items()}
    real = {name: floating(tensor, name, is_numpy_like(x)) for name, tensor in tensors.items()}
    real |= promoted({name: tensor for name, tensor in real.items() if name not in ("p", "base")})
    left = real["x"]
    check_rows(left, real.get("y", left))
    check_shapes(real)
    _check_gradient(row, real)
    halves = row.prepare is not None
    work = {name: t.float() if halves and t.dtype in HALVES else t for name, t in real.items()}
    variant, parameters = _variant(row, tensors.get("p", p), left.dtype)
    if base is not None:
        base = work.get("base", base)
        _check_base(base)
    arguments = Arguments(
        work["x"], work.get("y", work["x"]), work.get("w"), work.get("V"), work.get("VI"), base, condensed
    )  # fmt: skip
    return Request(row, variant, arguments, parameters, left.dtype, wrap, inputs)


def _variant(row: Metric, p: Any, work: torch.dtype) -> tuple[str, dict[str, Any]]:
    if "p" not in row.options:
        return "", {}
    if isinstance(p, torch.Tensor):
        return tensor_variant(p, work)
    return number_variant(2 if p is None else p)


def _check_gradient(row: Metric, tensors: Mapping[str, torch.Tensor]) -> None:
    if row.differentiable or not torch.is_grad_enabled():
        return
    wanting = next((name for name, tensor in tensors.items() if tensor.requires_grad), None)
    if wanting:
        raise GradientError(
            f"metric {row.name!r} has no gradient, but {wanting} requires one; "
            f"pass {wanting}.detach() or use torch.no_grad()"
        )
