"""Inverses and determinants of symmetric positive definite matrices, from their Cholesky factors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from ..torch_ops.outside import outside
from . import transformed
from .arguments import enough_memory, matrix, raises, watched
from .cholesky import MEANING, Triangle, at_once, check_jitter, factorise, solve_cholesky
from .implicit import log_determinant
from .solution import Solution, nan_where_failed, raise_for


@outside
def inverse_spd(
    a: Any, *, lower: bool = True, jitter: Sequence[float] | float | None = None, check_errors: bool | None = None
) -> Solution:
    """Return the inverse of symmetric positive definite matrices, ``a⁻¹``.

    Parameters
    ----------
    a : array, shape (..., n, n)
        float32 or float64; one triangle is read.
    lower, jitter, check_errors
        As of :func:`cholesky_factor`.

    Returns
    -------
    Solution
        ``x`` is the inverse, with gradients of every order.

    Raises
    ------
    LinearAlgebraError
        As of :func:`cholesky_factor`.
    ShapeError, DtypeError
        If a is not a square matrix of float32 or float64.

    Notes
    -----
    Cost: n³ operations a matrix, and as much memory as a twice. By the factor of :func:`cholesky_factor`.

    Examples
    --------
    >>> import torch, kernmantle as km
    >>> km.linalg.inverse_spd(torch.tensor([[4.0, 2.0], [2.0, 2.0]])).x
    tensor([[ 0.5000, -0.5000],
            [-0.5000,  1.0000]])
    """
    tensor, wrap = matrix(a)
    with enough_memory("cholesky", tensor, "and twice as much again"):
        eye = torch.eye(tensor.shape[-1], dtype=tensor.dtype, device=tensor.device)
        found = solve_cholesky(tensor, eye.expand(tensor.shape), lower=lower, jitter=jitter, check_errors=check_errors)
    return replace(found, x=wrap(found.x), info=wrap(found.info), jitter=wrap(found.jitter))


@outside
def logdet_spd(
    a: Any, *, lower: bool = True, jitter: Sequence[float] | float | None = None, check_errors: bool | None = None
) -> Any:
    """Return the logarithm of the determinant of symmetric positive definite matrices, NaN where they are not.

    ``2 Σ log Lᵢᵢ`` of the Cholesky factor; the gradient by a, of every order, is ``a⁻¹``.

    Parameters
    ----------
    a : array, shape (..., n, n)
        float32 or float64; one triangle is read.
    lower, jitter, check_errors
        As of :func:`cholesky_factor`.

    Returns
    -------
    array, shape (...)

    Raises
    ------
    LinearAlgebraError
        As of :func:`cholesky_factor`.
    ShapeError, DtypeError
        If a is not a square matrix of float32 or float64.

    Notes
    -----
    Cost: n³ / 3 operations a matrix; its inverse is taken for a gradient alone.

    Examples
    --------
    >>> import torch, kernmantle as km
    >>> km.linalg.logdet_spd(torch.tensor([[4.0, 2.0], [2.0, 5.0]]))
    tensor(2.7726)
    """
    tensor, wrap = matrix(a)
    amounts = check_jitter(jitter)
    if watched(tensor):
        transformed.refuse(jitter=amounts, check_errors=check_errors)
        run = partial(at_once, lower=lower)
        return wrap(transformed.log_determinant(tensor, lambda a: _logarithm(a, lower)[0], run))
    value, triangle = _logarithm(tensor, lower, amounts, raises(check_errors, tensor))
    return wrap(log_determinant(tensor, value, triangle))


def _logarithm(
    a: torch.Tensor, lower: bool, amounts: Sequence[float] = (), check_errors: bool = False
) -> tuple[torch.Tensor, Triangle]:
    """Return the logarithm of the determinant, and the factor."""
    with torch.no_grad(), enough_memory("cholesky", a):
        found = factorise(a.detach(), lower, False, amounts, clean=False)
        if check_errors:
            raise_for(found.info, MEANING)
        triangle = Triangle(found.factor, found.lower)
        return nan_where_failed(triangle.log_determinant(), found.info), triangle
