"""Covariances of values and gradients of a process: second derivatives of a kernel, for all pairs of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch.func import jvp

from ..arrays import unwrap
from ..backends.reference.evaluate import evaluate
from ..errors import ParameterError
from ..ir.node import Node, postorder, variables
from ..ir.ops import OPS
from ..torch_ops.namespaces import numpy_namespace
from .inputs import check_rows
from .kernel import Kernel, check_kernel
from .kernel_row import COLUMNS
from .radial_gradients import corner, radial, radial_blocks

Function = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def with_gradients(kernel: Kernel, x: Any, y: Any = None) -> Any:
    """Return the covariances of the value and the d partial derivatives at each row of x and each of y.

    ``cov(∂f(x)/∂x_i, ∂f(y)/∂y_j) = ∂²k(x, y)/∂x_i ∂y_j`` for a process f with covariance k, its value being derivative
    0. Rows and columns are in the order value, derivatives by the columns; then those of the next row.

    Parameters
    ----------
    kernel : Kernel
        One whose second derivatives exist everywhere, as of Gaussian, RationalQuadratic, Cauchy, Periodic, Linear,
        Polynomial of a whole degree, SpectralMixture, Matern with nu of 1.5 or 2.5, their sums and products, and your
        own.
    x, y : array, shapes (..., m, d) and (..., n, d)
        y is x if omitted.

    Returns
    -------
    array, shape (..., m (1 + d), n (1 + d))
        Of the kind and type of x.

    Raises
    ------
    ParameterError
        For a kernel whose process has no derivatives, such as Laplace and Matern with nu = 0.5, which have a corner
        where rows are equal; and for one with another operation that has no slope somewhere, where this cannot be told.
    ShapeError, DtypeError
        As a call of the kernel.

    Notes
    -----
    Costs (1 + d)² matrices of m n entries, each by one pass; of kernels of a distance, such as Matern, by torch in
    float64 and with a few times the memory of the result. Gradients of first order exist for the rows and the
    hyperparameters. Source: [1]_.

    References
    ----------
    .. [1] E. Solak et al., "Derivative observations in Gaussian process models of dynamic systems", NIPS 2002.

    Examples
    --------
    >>> import kernmantle as km, numpy as np
    >>> km.with_gradients(km.Gaussian(2.0), np.array([[0.0], [1.0]])).shape
    (4, 4)
    >>> float(km.with_gradients(km.Gaussian(2.0), np.zeros((1, 1)))[1, 1])
    0.25
    """
    check_kernel(kernel)
    check_twice_differentiable(kernel)
    tensors, wrap = unwrap(*([x] if y is None else [x, y]), names=["x", "y"])
    left, right = tensors[0], tensors[-1]
    if not left.is_floating_point():
        left, right = (rows.to(torch.float64) for rows in (left, right))
    check_rows(left, right)
    return wrap(interleaved(blocks(kernel, left, right)))


def blocks(kernel: Kernel, x: torch.Tensor, y: torch.Tensor, length: Any = None) -> torch.Tensor:
    """Return values and derivatives of all pairs of rows over ``length``: (..., m, n, 1 + d, 1 + d)."""
    if not radial(kernel.form).roots:
        return _by_passes(kernel if length is None else lambda a, b: kernel(a / length, b / length), x, y)
    if length is None:
        return radial_blocks(kernel, x, y)
    scale = torch.cat([torch.ones_like(length[..., :1]), (1 / length).expand(*length.shape[:-1], x.shape[-1])], -1)
    scale = scale.unsqueeze(-2)
    return radial_blocks(kernel, x / length, y / length) * scale * scale.mT


def _by_passes(function: Function, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    columns = x.shape[-1]
    steps = torch.eye(columns, dtype=x.dtype, device=x.device)
    value = function(x, y)
    entries: list[list[Any]] = [[value, *[None] * columns], *([None] * (1 + columns) for _ in range(columns))]
    for i in range(columns):
        for j in range(columns):
            (_, by_x), (by_y, by_both) = _mixed(function, x, y, steps[i], steps[j])
            entries[1 + i][0], entries[0][1 + j], entries[1 + i][1 + j] = by_x, by_y, by_both
    return torch.stack([torch.stack(row, -1) for row in entries], -2)


def _mixed(function: Function, x: torch.Tensor, y: torch.Tensor, one: torch.Tensor, other: torch.Tensor) -> Any:
    """Return the derivatives of all pairs along a direction of x and one of y: every entry reads one row of each."""

    def along_x(rows: torch.Tensor) -> Any:
        return jvp(lambda points: function(points, rows), (x,), (one.expand_as(x),))

    return jvp(along_x, (y,), (other.expand_as(y),))


def interleaved(found: torch.Tensor) -> torch.Tensor:
    """Return the blocks as one matrix, value and derivatives of a row together."""
    return found.transpose(-3, -2).flatten(-4, -3).flatten(-2, -1)


def check_twice_differentiable(kernel: Kernel) -> None:
    """ParameterError for a kernel whose expressions have a point without a slope."""
    form = kernel.form
    if not form.reads_squares and corner(form):
        raise ParameterError(
            f"{kernel!r} has no second derivatives where rows are equal: it falls linearly with their distance, so its "
            "process has no gradients to observe. Gaussian, RationalQuadratic and Matern with nu=1.5 or nu=2.5 have"
        )
    found = "sqrt" if form.reads_squares else next(_kinks([*form.maps, radial(form).output], _numbers(kernel)), None)
    if found is not None:
        raise ParameterError(
            f"{kernel!r} has no second derivatives where rows are equal, as far as its expression tells: it has "
            f"{found!r}. Kernels without absolute values and maxima have them, such as Gaussian, RationalQuadratic, "
            "Cauchy, Periodic, SpectralMixture and Matern with nu=1.5 or nu=2.5"
        )


def _numbers(kernel: Kernel) -> dict[str, Any]:
    """Return the hyperparameters that are numbers; the number of columns as the least there is."""
    found = kernel.hyperparameters.items()
    values = {name: 1.0 if value == COLUMNS else value for name, value in found if not isinstance(value, torch.Tensor)}
    return {name: np.float64(value) for name, value in values.items()}


def _kinks(roots: Iterable[Node], numbers: Mapping[str, Any]) -> Iterator[str]:
    """Return the operations that have no slope somewhere; ``numbers`` are parameters whose values are known."""
    order = postorder(roots)
    fixed = {id(node) for node in order if set(variables([node])) <= set(numbers)}
    cutting = {id(node) for node in order if node.op == "pow" and _cuts(node, fixed, numbers)}
    cut = {id(node.args[0]) for node in order if id(node) in cutting}
    cut -= {id(arg) for node in order if id(node) not in cutting for arg in node.args}
    for node in order:
        if not node.args or id(node) in fixed or id(node) in cut:
            continue
        row = OPS[node.op]
        if node.op == "pow":
            base, exponent = node.args
            if id(base) in cut:
                continue
            whole = exponent.number is not None and float(exponent.number).is_integer() and exponent.number >= 0
            if not whole and not _is_shifted(base):
                yield node.op
        elif node.op in ("log", "log2", "log1p"):
            if node.op != "log1p" and not _is_shifted(node.args[0]):
                yield node.op
        elif node.op not in ("div", "rcp", "mul") and (row.singular != "none" or "" in row.slopes or not row.slopes):
            yield node.op


def _is_shifted(base: Node) -> bool:
    """Whether a base is a sum with a number, which is not zero where rows are equal."""
    return base.op == "add" and any(arg.number is not None and arg.number > 0 for arg in base.args)


def _cuts(node: Node, fixed: set[int], numbers: Mapping[str, Any]) -> bool:
    """Return whether a power above 2 of a maximum with 0: its second derivatives are continuous."""
    base, exponent = node.args
    if base.op != "max" or base.args[1].number != 0 or id(exponent) not in fixed:
        return False
    return float(evaluate([exponent], numbers, numpy_namespace())[0]) > 2
