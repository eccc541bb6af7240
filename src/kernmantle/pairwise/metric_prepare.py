"""Functions that some metrics apply to their inputs before the contraction, in O((m + n) k), with gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from ..errors import ParameterError
from ..torch_ops.torch_private import plain as plain_tensors
from .metric import Arguments, Ready

Rows = Callable[[torch.Tensor], torch.Tensor]


def readable(p: torch.Tensor) -> bool:
    """Return whether values can be looked at without waiting for a device, a compiler or a transform."""
    return p.device.type == "cpu" and not torch.compiler.is_compiling() and plain_tensors([p])


def plain(arguments: Arguments, **parameters: Any) -> Ready:
    """Return the rows as they are."""
    weights = () if arguments.w is None else (arguments.w,)
    return Ready((arguments.x, arguments.y, *weights), parameters, arguments.w is not None)


def _changed(arguments: Arguments, change: Rows) -> Arguments:
    x = change(arguments.x)
    return arguments._replace(x=x, y=x if arguments.y is arguments.x else change(arguments.y))


def _scaled_rows(arguments: Arguments) -> Arguments:
    """Return the rows divided by their largest entries where a square might overflow or be lost."""

    def scaled(x: torch.Tensor) -> torch.Tensor:
        if not x.shape[-1]:
            return x
        largest = x.detach().abs().amax(-1, keepdim=True)
        if readable(x) and _has_moderate_squares(largest):
            return x
        return x / torch.where(largest > 0, largest, 1.0)

    return _changed(arguments, scaled)


def _has_moderate_squares(largest: torch.Tensor) -> bool:
    limits = torch.finfo(largest.dtype)
    moderate = (largest >= limits.tiny**0.25) & (largest <= limits.max**0.25)
    return bool((moderate | (largest == 0)).all())


def _unit(arguments: Arguments) -> Arguments:
    weights = None if arguments.w is None else arguments.w.unsqueeze(-2)

    def unit(x: torch.Tensor) -> torch.Tensor:
        squares = x * x if weights is None else weights * x * x
        return x / squares.sum(-1, keepdim=True).sqrt()

    return _changed(arguments, unit)


def directions(arguments: Arguments) -> Ready:
    """Return the rows of length 1: half their squared distance is 1 - cos, exact where it is small."""
    return plain(_unit(_scaled_rows(arguments)))


def centred_directions(arguments: Arguments) -> Ready:
    """Return the rows of mean 0 and length 1."""
    arguments = _scaled_rows(arguments)
    if arguments.w is None:
        return directions(_changed(arguments, lambda x: x - x.mean(-1, keepdim=True)))
    weights = arguments.w.unsqueeze(-2)
    total = weights.sum(-1, keepdim=True)
    return directions(_changed(arguments, lambda x: x - (weights * x).sum(-1, keepdim=True) / total))


def square_roots(arguments: Arguments) -> Ready:
    """Return the square roots of the entries, with gradient 0 at 0."""
    return plain(_changed(arguments, lambda x: _masked(torch.sqrt, x, 0.0)))


def _masked(function: Rows, x: torch.Tensor, at_zero: float) -> torch.Tensor:
    """Return a function whose slope at 0 is infinite, with the slope 0 there."""
    zero = x == 0
    return torch.where(zero, at_zero, function(torch.where(zero, 1.0, x)))


def logarithms(arguments: Arguments) -> Ready:
    """Return the rows of x, the logarithms of y and those of x."""
    logs = _changed(arguments, lambda x: _masked(torch.log, x, -math.inf))
    ready = plain(logs._replace(x=arguments.x))
    return ready._replace(operands=(*ready.operands[:2], logs.x, *ready.operands[2:]))


def shares(arguments: Arguments) -> Ready:
    """Return the rows divided by their sums; the scale is that of the divergence in units of the logarithm's base."""
    base = math.e if arguments.base is None else arguments.base
    unit = base.to(arguments.x.dtype).log() if isinstance(base, torch.Tensor) else math.log(base)
    return plain(_changed(arguments, lambda x: x / x.sum(-1, keepdim=True)), scale=0.5 / unit)


def with_total(arguments: Arguments) -> Ready:
    """Return the operands with the sum of the weights too, by default the number of columns."""
    return plain(arguments, total=float(arguments.x.shape[-1]) if arguments.w is None else arguments.w.sum(-1))


def truths(arguments: Arguments) -> Ready:
    """1 where an entry is not 0, NaN included, else 0."""
    return plain(_changed(arguments, _truth))


def truths_with_total(arguments: Arguments) -> Ready:
    """Return the same, and the sum of the weights."""
    return with_total(_changed(arguments, _truth))


def _truth(x: torch.Tensor) -> torch.Tensor:
    return (x != 0).to(x.dtype)


def _stacked(arguments: Arguments) -> torch.Tensor:
    """Return the rows that a variance is taken of, as scipy: of pdist the rows, of cdist those of x and y."""
    if arguments.condensed:
        return arguments.x
    batch = torch.broadcast_shapes(arguments.x.shape[:-2], arguments.y.shape[:-2])
    return torch.cat([rows.expand(*batch, *rows.shape[-2:]) for rows in (arguments.x, arguments.y)], -2)


def _centred(rows: torch.Tensor) -> torch.Tensor:
    return rows - rows.mean(-2, keepdim=True)


def divided_by_variance(arguments: Arguments) -> Ready:
    """Return the rows, weighted by the reciprocals of V."""
    variance = arguments.V
    if variance is None:
        variance = variance_of(_stacked(arguments))
    return plain(arguments._replace(w=variance.reciprocal()))


def variance_of(rows: torch.Tensor) -> torch.Tensor:
    """Return the variance of every column, with one less than the number of rows as divisor."""
    return _centred(rows).square().sum(-2) / (rows.shape[-2] - 1)


def inverse_covariance_of(rows: torch.Tensor) -> torch.Tensor:
    """Return the inverse covariance of the columns; a singular one is an error on the CPU, NaN elsewhere."""
    count, columns = rows.shape[-2:]
    if count <= columns:
        raise ParameterError(
            f"the covariance of {count} rows with {columns} columns is singular: "
            f"pass VI=, or at least {columns + 1} rows"
        )
    if not columns:
        return rows.new_empty(*rows.shape[:-2], 0, 0)
    centred = _centred(rows)
    covariance = centred.mT @ centred / (count - 1)
    scale = covariance.detach().diagonal(dim1=-2, dim2=-1).sqrt()
    scale = torch.where(scale > 0, scale, 1.0)
    scales = scale.unsqueeze(-1) * scale.unsqueeze(-2)
    correlation = covariance / scales  # so that units of columns do not matter
    inverse = torch.linalg.inv_ex(correlation).inverse
    condition = _one_norm(correlation) * _one_norm(inverse)
    regular = condition * columns * torch.finfo(rows.dtype).eps < 1
    if readable(regular) and not bool((regular | rows.isnan().any((-2, -1))).all()):
        raise ParameterError(
            "the covariance is singular, a column is constant or depends on others: leave it out, or pass VI="
        )
    return torch.where(regular[..., None, None], inverse / scales, math.nan)


def _one_norm(matrix: torch.Tensor) -> torch.Tensor:
    return matrix.detach().abs().sum(-2).amax(-1)


def multiplied_by_inverse(arguments: Arguments) -> Ready:
    """Return the rows and their products with VI, both moved towards the origin, which changes no difference."""
    inverse = inverse_covariance_of(_stacked(arguments)) if arguments.VI is None else arguments.VI
    middle = arguments.x.detach().mean(tuple(range(arguments.x.dim() - 1))).nan_to_num(0.0, 0.0, 0.0)
    moved = _changed(arguments, lambda x: x - middle)
    u = moved.x @ inverse
    v = u if moved.y is moved.x else moved.y @ inverse
    return Ready((moved.x, moved.y, u, v), {}, False)
