"""Covariances of values and gradients of a process: second derivatives of a kernel, for all pairs of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.func import jvp

from ..arrays import is_numpy_like, promoted, unwrap
from ..backends.reference.evaluate import Namespace, evaluate
from ..errors import ParameterError
from ..ir.differentiate import differentiate
from ..ir.node import Node, const, postorder, rewrite, substitute, var, variables
from ..ir.ops import OPS
from ..torch_ops.namespaces import numpy_namespace, torch_namespace
from ..torch_ops.outside import outside
from .inputs import check_rows, floating
from .kernel import Kernel, check_kernel
from .kernel_form import Form, of_form
from .kernel_row import COLUMNS
from .transform import transform_vjp

_SMALL, _ORDERS = 3e-3, 6
"""Distance in units of the kernel's length, and order: below it, the slope over the distance is its series of
derivatives up to this order, whose error is that of rounding, 1e-13, as is that of the quotient above."""
_ROUNDING = 1e-9  # relative size of a slope that is rounding


@dataclass(frozen=True)
class Radial:
    """The output of a form as a function of the distances ``t0``, ... that it has roots of, and of the other sums.

    ``inner`` are the sums, of which those in ``roots`` are squares of distances. ``slopes`` and ``curvatures`` are the
    derivatives of ``output``; ``series`` those of order 2 and more by a distance where it is 0, ``corner`` the first.
    ``by_entries`` has each map and its derivatives by x, by y, and by both.
    """

    output: Node
    inner: tuple[str, ...]
    roots: frozenset[str]
    slopes: tuple[Node, ...]
    curvatures: tuple[tuple[Node, ...], ...]
    series: Mapping[str, tuple[Node, ...]]
    corner: Mapping[str, Node]
    by_entries: tuple[tuple[Node, ...], ...]


def _is_squared_distance(form: Form, index: int) -> bool:
    node = form.maps[index]
    return form.reductions[index].name == "sum" and node.op == "mul" and node.args[0] is node.args[1]


@of_form
def radial(form: Form) -> Radial:
    """Return the output as a function of distances; one that has no roots of sums of squares has ``roots`` empty."""
    count = len(form.maps)
    rooted = {node.args[0].name for node in postorder([form.output]) if node.op == "sqrt" and node.args[0].op == "var"}
    roots = {index for index in range(count) if f"s{index}" in rooted and _is_squared_distance(form, index)}
    names = {f"s{index}": f"t{index}" for index in roots}

    def build(node: Node, args: tuple[Node, ...]) -> Node:
        is_root = node.op == "sqrt" and node.args[0].op == "var" and node.args[0].name in names
        return var(names[node.args[0].name]) if is_root else Node(node.op, args)

    output = rewrite([form.output], lambda leaf: leaf, build)[0]
    squared = {name: Node("mul", (var(root), var(root))) for name, root in names.items()}
    output = substitute([output], squared)[0]
    inner = tuple(names.get(f"s{index}", f"s{index}") for index in range(count))
    slopes = differentiate(output, inner)
    curvatures = tuple(differentiate(slope, inner) for slope in slopes)
    series, corner = {}, {}
    for root in names.values():
        orders = [output]
        for _ in range(_ORDERS):
            orders.append(differentiate(orders[-1], [root])[0])
        _, corner[root], *series[root] = substitute(orders, {root: const(0)})
    by_entries = tuple(_by_entries(node) for node in form.maps)
    return Radial(
        output, inner, frozenset(names.values()), tuple(slopes), curvatures,
        {root: tuple(nodes) for root, nodes in series.items()}, corner, by_entries,
    )  # fmt: skip


def _by_entries(node: Node) -> tuple[Node, ...]:
    by_x, by_y = differentiate(node, ["x0", "x1"])
    return node, by_x, by_y, differentiate(by_x, ["x1"])[0]


@of_form
def corner(form: Form) -> bool:
    """Return whether the kernel has a slope by a distance that is 0, so that it is no covariance of derivatives."""
    own = radial(form)
    generator = np.random.default_rng(0)
    for _ in range(3):
        names = variables([own.output, *own.corner.values()])
        env = {name: np.float64(generator.uniform(0.5, 2.0)) for name in names}
        for root, node in own.corner.items():
            slope, curvature = evaluate([node, own.series[root][0]], env, numpy_namespace())
            if not abs(slope) <= _ROUNDING * max(1.0, abs(curvature)):
                return True
    return False


def radial_blocks(kernel: Kernel, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return values and derivatives of all pairs, (..., m, n, 1 + d, 1 + d), computed in float64."""
    call, _ = kernel.prepared(x, y)
    inputs = call.kernel_inputs(call.x, call.y, call.shared)
    left, right, *others = (operand.double() for operand in inputs.operands)
    parameters = {
        name: torch.as_tensor(value, dtype=torch.float64, device=left.device)
        for name, value in inputs.parameters.items()
    }  # fmt: skip
    parameters = {name: value[..., None, None] if value.dim() else value for name, value in parameters.items()}
    entries = {"x0": left[..., :, None, :], "x1": right[..., None, :, :]}
    entries |= {f"x{2 + index}": other[..., None, None, :] for index, other in enumerate(others)}
    entries |= {name: value[..., None] if value.dim() else value for name, value in parameters.items()}
    found = _assembled(radial(kernel.form), entries, parameters, torch_namespace(torch.float64, left.device))
    if kernel.transform is not None:
        found = _by_rows(found, kernel.transform)
    return found.to(x.dtype)


def _assembled(
    own: Radial, entries: Mapping[str, torch.Tensor], parameters: Mapping[str, torch.Tensor], ns: Namespace
) -> torch.Tensor:
    shape = torch.broadcast_shapes(*(value.shape for value in entries.values()))
    parts = [[value.expand(shape) for value in evaluate(nodes, entries, ns)] for nodes in own.by_entries]
    env = dict(parameters)
    for name, (mapped, *_) in zip(own.inner, parts, strict=True):
        total = mapped.sum(-1)
        env[name] = _root(total) if name in own.roots else total

    def of(*nodes: Node) -> list[torch.Tensor]:
        return [value.expand(shape[:-1]) for value in evaluate(nodes, env, ns)]

    value, *slopes = of(own.output, *own.slopes)
    diagonal, outer = value.new_zeros(shape), value.new_zeros((*shape, shape[-1]))
    along_x, along_y = [], []
    for index, (name, (_, by_x, by_y, by_both)) in enumerate(zip(own.inner, parts, strict=True)):
        if name in own.roots:
            distance = env[name]
            over = _over_distance(distance, slopes[index], of(*own.series[name]))
            slopes[index] = over * distance
            by_x, by_y = _over(by_x, 2 * distance), _over(by_y, 2 * distance)
            diagonal = diagonal + (over / 2)[..., None] * by_both
            outer = outer - over[..., None, None] * by_x[..., :, None] * by_y[..., None, :]
        else:
            diagonal = diagonal + slopes[index][..., None] * by_both
        along_x.append(by_x)
        along_y.append(by_y)
    for one, row in enumerate(own.curvatures):
        for other, curvature in enumerate(of(*row)):
            outer = outer + curvature[..., None, None] * along_x[one][..., :, None] * along_y[other][..., None, :]
    whole = outer + torch.diag_embed(diagonal)
    by_x, by_y = (_combined(slopes, along) for along in (along_x, along_y))
    top = torch.cat([value[..., None], by_y], -1)
    return torch.cat([top[..., None, :], torch.cat([by_x[..., :, None], whole], -1)], -2)


def _root(total: torch.Tensor) -> torch.Tensor:
    """Return the root, with the gradient 0 at 0."""
    return torch.where(total == 0, 0.0, torch.where(total == 0, 1.0, total).sqrt())


def _over(vector: torch.Tensor, length: torch.Tensor) -> torch.Tensor:
    """Return a vector over a length, 0 where that is 0."""
    zero = (length == 0)[..., None]
    return torch.where(zero, 0.0, vector / torch.where(zero, 1.0, length[..., None]))


def _over_distance(distance: torch.Tensor, slope: torch.Tensor, series: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the slope by the distance over the distance, which is the second derivative where that is 0."""
    second, third, fourth = series[:3]
    small = (distance * third.abs() <= _SMALL * second.abs()) & (
        distance**2 * fourth.abs() <= _SMALL**2 * second.abs()
    )  # fmt: skip
    small = small | (distance == 0)
    total = torch.zeros_like(distance)
    for order, value in reversed(list(enumerate(series, 1))):
        total = total * distance / (order + 1) + value
    return torch.where(small, total, slope / torch.where(small, 1.0, distance))


def _combined(slopes: Sequence[torch.Tensor], along: Sequence[torch.Tensor]) -> torch.Tensor:
    total: Any = 0
    for slope, direction in zip(slopes, along, strict=True):
        total = total + slope[..., None] * direction
    return total


def _by_rows(found: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    """Return derivatives by the rows from those by the rows times the matrix of a kernel."""
    for _ in range(2):
        found = torch.cat([found[..., :1], transform_vjp(found[..., 1:], matrix)], -1).mT
    return found


Function = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@outside
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
    hyperparameters. Under torch.compile it is a graph break and runs eagerly. Source: [1]_.

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
    host = is_numpy_like(x)
    placed = promoted({name: floating(rows, name, host) for name, rows in zip("xy", tensors, strict=False)})
    left, right = placed["x"], placed.get("y", placed["x"])
    check_rows(left, right)
    return wrap(interleaved(blocks(kernel, left.contiguous(), right.contiguous())))


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
    """Raise ParameterError for a kernel whose expressions have a point without a slope."""
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
    """Return whether a base is a sum with a number, which is not zero where rows are equal."""
    return base.op == "add" and any(arg.number is not None and arg.number > 0 for arg in base.args)


def _cuts(node: Node, fixed: set[int], numbers: Mapping[str, Any]) -> bool:
    """Return whether a power above 2 of a maximum with 0: its second derivatives are continuous."""
    base, exponent = node.args
    if base.op != "max" or base.args[1].number != 0 or id(exponent) not in fixed:
        return False
    return float(evaluate([exponent], numbers, numpy_namespace())[0]) > 2
