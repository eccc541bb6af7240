"""Gradients of predictors, which are sums of a kernel's values at rows: one by one, and the sum of their products."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from ..torch_ops.checks import without_autocast
from ..torch_ops.recompute import recompute
from ..torch_ops.split_matmul import gram, worthwhile
from . import gradient
from .bias import at_points
from .gradient import placed, ranges, rows
from .kernel_inputs import Call
from .transform import transform_vjp


def _outer(
    call: Call, diagonal: bool, centred: bool, z: torch.Tensor, x: torch.Tensor, coef: torch.Tensor,
    *shared: torch.Tensor,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """Σ g gᵀ over outputs and points; if ``centred``, of g minus a shift, the last tensor, and the sum of those."""
    (found,) = rows(call, z, x, coef, *(shared[:-1] if centred else shared))
    found = found - shared[-1] if centred else found
    sums = (found.sum(-2),) if centred else ()
    if diagonal:
        return found.square().sum((-3, -2)), *sums
    flat = found.flatten(-3, -2)
    with without_autocast(z.device):
        return gram(flat) if worthwhile(flat.mT, flat) else flat.mT @ flat, *sums


def _outer_products(call: Call, coef: torch.Tensor, average: bool, centred: bool, diagonal: bool) -> torch.Tensor:
    """Return the sum of the outer products of all gradients; ``call`` has the points as x and the rows as y."""
    call, coef = placed(call, coef)
    columns, points = call.x.shape[-1], call.x.shape[-2]
    found: list[torch.Tensor] = []
    shift: tuple[torch.Tensor, ...] = ()
    for chosen in ranges(call, coef, coef.shape[-1] * columns):
        z = call.x[..., chosen, :]
        if centred and not shift:
            with torch.no_grad():
                shift = (rows(call, z, call.y, coef, *at_points(call, chosen))[0].mean(-2, keepdim=True),)
        function = partial(_outer, call, diagonal, centred)
        part = recompute(function, z, call.y, coef, *at_points(call, chosen), *shift)
        found = list(map(torch.add, found, part)) if found else list(part)
    total = found[0]
    if centred:
        with without_autocast(total.device):
            total = total - (found[1].square().sum(-2) if diagonal else found[1].mT @ found[1]) / max(points, 1)
    return total / max(points, 1) if average else total


class PredictorGradients:
    """Methods of a kernel for f_o(z) = Σ_n coef[n, o] k(z, x_n); ``_tabled`` is the kernel's."""

    __slots__ = ()
    _tabled: Callable[..., tuple[Call, list[torch.Tensor]]]
    _transform: torch.Tensor | None

    def gradient(self, z: Any, x: Any, coef: Any, *, table: Any = None) -> Any:
        """Return the gradient by z of the predictor f_o(z) = Σ_n coef[n, o] k(z, x_n).

        ``result[o, i, :] = Σ_n coef[n, o] ∂k(z_i, x_n) / ∂z_i``.

        Parameters
        ----------
        z, x : array, shapes (..., m, k) and (..., n, k)
            Points, and rows of the predictor; x None is z, which then moves as the points alone.
        coef : array, shape (n,) or (..., n, o)
            Coefficients.
        table : array, shape (..., m, n), optional
            As of a call; it does not move with z.

        Returns
        -------
        array, shape (..., m, k) for a vector, else (..., o, m, k)

        Raises
        ------
        ShapeError, DtypeError
            For coefficients without a row for each row of x, and as of a call.
        GradientError
            For a reduction of your own, which has no derivative.

        Notes
        -----
        The factors of the epilogue are included. Cost: one pass over the pairs, and ``2 o m n k`` operations. Memory:
        inputs, result, and a few blocks of 64 MB or, on GPUs, of half the result where that is more. Differentiable
        in z, x, coef, table and the hyperparameters; at a kink the gradient is 0.

        Examples
        --------
        >>> import kernmantle as km, numpy as np
        >>> km.Linear().gradient(np.zeros((1, 2)), np.array([[1.0, 2.0], [0.0, 1.0]]), np.array([1.0, 10.0]))
        array([[ 1., 12.]])
        """
        call, (coefficients,) = self._tabled(z, x, table, coef=coef)
        return call.finished(transform_vjp(gradient.gradient(call, coefficients), self._transform))

    def agop(
        self, z: Any, x: Any, coef: Any, *, average: bool = False, centred: bool = False, diagonal: bool = False,
        table: Any = None,
    ) -> Any:  # fmt: skip
        """Return the sum over outputs and points of the outer products of the predictor's gradients.

        ``result = Σ_o Σ_i g_oi g_oiᵀ`` with the gradients ``g`` of :meth:`gradient`.

        Parameters
        ----------
        z, x, coef, table : array
            As of :meth:`gradient`.
        average : bool
            Divide by the number of points.
        centred : bool
            Subtract each output's mean gradient first.
        diagonal : bool
            Only the diagonal, (..., k).

        Returns
        -------
        array, shape (..., k, k) or (..., k)

        Raises
        ------
        ShapeError, DtypeError, GradientError
            As of :meth:`gradient`.

        Notes
        -----
        Cost: gradients of all points, and ``2 o m k²`` operations, ``2 o m k`` for the diagonal. The gradients are
        made in blocks of 64 MB and never stored all at once. Differentiable as :meth:`gradient`, from blocks that are
        computed again.

        References
        ----------
        A. Radhakrishnan, D. Beaglehole, P. Pandit and M. Belkin, "Mechanism for feature learning in neural networks
        and backpropagation-free machine learning models", Science 383, 2024.

        Examples
        --------
        >>> import kernmantle as km, numpy as np
        >>> km.Linear().agop(np.zeros((3, 2)), np.array([[1.0, 2.0]]), np.array([1.0]))
        array([[ 3.,  6.],
               [ 6., 12.]])
        """
        call, (coefficients,) = self._tabled(z, x, table, coef=coef)
        alone = diagonal and (self._transform is None or self._transform.dim() == 1)
        found = _outer_products(call, coefficients, average, centred, alone)
        for _ in range(2):
            found = transform_vjp(found, self._transform)
            found = found if alone else found.mT
        return call.finished(found.diagonal(dim1=-2, dim2=-1) if diagonal and not alone else found)
