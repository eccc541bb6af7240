"""Gradients of predictors Σ_n coef[n, o] k(z, x_n) by z.

With K = u(s) for sums s_i = Σ_k f_i(z_k, x_k), the gradient is Σ_n coef[n, o] Σ_i W_i[m, n] ∂f_i/∂z, where the
outer factors W_i = ∂u/∂s_i are one contraction with another epilogue. Where ∂f/∂z = A(z) + B(z) x, the rest is
matrix products; otherwise one contraction with an axis o for each i. Points are taken in blocks, so that the factors of
all of them are never stored at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from ..errors import ShapeError
from ..ir.differentiate import differentiate
from ..ir.node import Node, const, postorder, rewrite, substitute, var, variables
from ..ir.reductions import REDUCTIONS
from ..ir.simplify import simplify
from ..torch_ops.blocks import LARGEST, block_bytes
from ..torch_ops.checks import without_autocast
from ..torch_ops.contract import Contraction
from ..torch_ops.execute import allocate
from ..torch_ops.recompute import FunctionVjp, recompute
from ..torch_ops.torch_private import is_untracked
from .bias import at_points
from .kernel_form import ROWS, Form, Squares, contraction_of, of_difference, of_form
from .kernel_inputs import Call
from .weighted_differences import blocks, centred, products, sums

_FIRST, _SECOND = ROWS
_GAP = Node("sub", (var(_FIRST), var(_SECOND)))
_SUM = REDUCTIONS["sum"]

Part = Contraction | float | None


@dataclass(frozen=True)
class _Affine:
    """∂f/∂z = constant(z) + factor(z) x: each a contraction of z and the weights, a number, or None for 0."""

    index: int
    constant: Part
    factor: Part
    centred: bool


@dataclass(frozen=True)
class _General:
    """Σ_n coef[n, o] W[m, n] ∂f/∂z of z, x, the weights, W at ``index`` and coef; the rows times ``scale`` first."""

    index: int
    contraction: Contraction
    scale: str


@dataclass(frozen=True)
class Plan:
    """How a form is differentiated: ``slopes`` are ∂u/∂s_i and ∂u/∂|z|², one matrix each."""

    slopes: Contraction
    count: int
    affine: tuple[_Affine, ...]
    general: tuple[_General, ...]
    squares: tuple[tuple[int, str], ...]


def _part(form: Form, value: Node) -> Part:
    if value.number is not None:
        return float(value.number) if value.number else None
    names = [_FIRST, *form.weights]
    renamed = substitute([value], {name: var(f"x{i}") for i, name in enumerate(names)})
    axes = ["mk", *("k" for _ in form.weights)]
    return contraction_of(axes, "mk", renamed, [_SUM], [var("s0")])


def _is_affine(root: Node) -> bool:
    """Return whether an expression is seen to be A + B x1, from its operations."""
    moving: set[Node] = {var(_SECOND)}
    for node in postorder([root]):
        indices = [index for index, arg in enumerate(node.args) if arg in moving]
        if not indices:
            continue
        straight = node.op in ("add", "sub", "neg") or (node.op == "mul" and len(indices) == 1)
        if not (straight or (node.op == "div" and indices == [0])):
            return False
        moving.add(node)
    return True


def _affine(form: Form, index: int, value: Node, slope: Node) -> _Affine | None:
    if not _is_affine(slope):
        return None
    (factor,) = differentiate(slope, [_SECOND])
    (constant,) = simplify(substitute([slope], {_SECOND: const(0)}), finite=True)
    return _Affine(index, _part(form, constant), _part(form, factor), of_difference(value))


@of_form
def plan(form: Form) -> Plan | None:
    """Return how to differentiate a form whose reductions are sums; None for others."""
    if any(reduction is not _SUM for reduction in form.reductions):
        return None
    slopes: list[Node] = []
    affine: list[_Affine] = []
    general: list[_General] = []
    for i, value in enumerate(form.maps):
        (outer,) = differentiate(form.output, [f"s{i}"])
        (inner,) = differentiate(value, [_FIRST])
        if outer.number == 0 or inner.number == 0:
            continue
        straight = _affine(form, len(slopes), value, inner)
        if straight is None:
            general.append(_general(form, len(slopes), inner))
        else:
            affine.append(straight)
        slopes.append(outer)
    squares: list[tuple[int, str]] = []
    for i, operand in enumerate(form.operands, len(ROWS)):
        if isinstance(operand, Squares) and operand.role == "m":
            (outer,) = differentiate(form.output, [f"x{i}"])
            if outer.number != 0:
                squares.append((len(slopes), operand.weight))
                slopes.append(outer)
    contraction = contraction_of(form.axes(), "mn", form.maps, form.reductions, slopes or [const(0)])
    return Plan(contraction, len(slopes), tuple(affine), tuple(general), tuple(squares))


def _rescaled(form: Form, inner: Node) -> tuple[Node, str]:
    """Return an expression that has the rows in their difference times one weight alone, of rows multiplied already."""
    gap = var("gap")

    def joined(node: Node, args: tuple[Node, ...], weight: Node) -> Node:
        return gap if node.op == "mul" and set(node.args) == {weight, _GAP} else Node(node.op, args)

    for name in form.weights:
        (changed,) = rewrite([inner], lambda leaf: leaf, partial(joined, weight=var(name)))
        if not set(ROWS) & set(variables([changed])):
            return substitute([changed], {gap.name: _GAP})[0], name
    return inner, ""


def _general(form: Form, index: int, inner: Node) -> _General:
    inner, scale = _rescaled(form, inner)
    names = [*ROWS, *form.weights]
    (slope,) = substitute([inner], {name: var(f"x{i}") for i, name in enumerate(names)})
    outer, coef = (var(f"x{len(names) + i}") for i in range(2))
    axes = ["mk", "nk", *("k" for _ in form.weights), "mn", "no"]
    mapped = Node("mul", (coef, Node("mul", (outer, slope))))
    return _General(index, contraction_of(axes, "omk", [mapped], [_SUM], [var("s0")]), scale)


def run(
    contraction: Contraction,
    operands: Sequence[torch.Tensor],
    parameters: Mapping[str, Any],
    out: torch.Tensor | None = None,
) -> Any:
    """Return a contraction with those of the parameters that it has."""
    takes = contraction.definition.parameters
    return contraction(*operands, out=out, **{name: value for name, value in parameters.items() if name in takes})


def _value(part: Contraction | float, operands: Sequence[torch.Tensor], parameters: Mapping[str, Any]) -> Any:
    return run(part, operands, parameters).unsqueeze(-3) if isinstance(part, Contraction) else part


def rows(
    call: Call, z: torch.Tensor, x: torch.Tensor, coef: torch.Tensor, *shared: torch.Tensor,
    out: torch.Tensor | None = None,
) -> tuple[torch.Tensor]:  # fmt: skip
    """Return the gradients at some points: (..., o, m, k); ``out`` is taken where no derivative is recorded."""
    steps = plan(call.form)
    with without_autocast(z.device):
        if steps is None:
            return (_written(_by_autograd(call, z, x, coef, shared), out),)
        call_inputs = call.kernel_inputs(z, x, shared)
        weights = dict(zip(call.form.weights, shared, strict=False))
        results = run(steps.slopes, call_inputs.operands, call_inputs.parameters)
        slopes: Sequence[torch.Tensor] = results if isinstance(results, tuple) else (results,)
        batch = torch.broadcast_shapes(call.batch, coef.shape[:-2])
        total: torch.Tensor | None = None
        for term in steps.general:
            ends = (z, x) if not term.scale else [one * weights[term.scale].unsqueeze(-2) for one in (z, x)]
            operands = [*ends, *weights.values(), slopes[term.index], coef]
            own = torch.broadcast_shapes(*(one.shape[:-2] for one in (*ends, slopes[term.index], coef)))
            target = out if total is None and own == batch else None
            total = _plus(total, run(term.contraction, operands, call_inputs.parameters, target))
        for part in steps.affine:
            points, others = centred(z, x) if part.centred and x.shape[-2] else (z, x)
            slope = slopes[part.index]
            if part.factor is not None:
                factor = _value(part.factor, [points, *weights.values()], call_inputs.parameters)
                number = isinstance(factor, float)
                found = products(slope, coef * factor if number else coef, others, out if total is None else None)
                total = _plus(total, found if number else factor * found)
            if part.constant is not None:
                constant = _value(part.constant, [points, *weights.values()], call_inputs.parameters)
                total = _plus(total, sums(slope, coef), constant)
        for index, name in steps.squares:
            scaled = z if name == "" else z * weights[name].square().unsqueeze(-2)
            total = _plus(total, sums(slopes[index], coef), (2 * scaled).unsqueeze(-3))
        whole = (z.new_zeros(()) if total is None else total).expand(*batch, coef.shape[-1], *z.shape[-2:])
        return (_written(whole, out),)


def _plus(total: torch.Tensor | None, part: torch.Tensor, factor: Any = 1.0) -> torch.Tensor:
    if isinstance(factor, torch.Tensor):
        return part * factor if total is None else torch.addcmul(total, part, factor)
    return part * factor if total is None else torch.add(total, part, alpha=factor)


def _written(result: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
    return result if out is None or result.data_ptr() == out.data_ptr() else out.copy_(result)


def _predictions(
    call: Call, z: torch.Tensor, x: torch.Tensor, coef: torch.Tensor, *shared: torch.Tensor
) -> tuple[torch.Tensor]:
    return (call.gram(z, x, shared) @ coef,)


def _by_autograd(
    call: Call, z: torch.Tensor, x: torch.Tensor, coef: torch.Tensor, shared: Sequence[torch.Tensor]
) -> torch.Tensor:
    batch = torch.broadcast_shapes(call.batch, coef.shape[:-2])
    spread = z.expand(*batch, *z.shape[-2:])
    needed = (True, *(False for _ in range(2 + len(shared))))
    vjp = FunctionVjp(partial(_predictions, call), needed, (True,))
    parts = []
    for o in range(coef.shape[-1]):
        cotangent = z.new_ones((*batch, z.shape[-2], 1))
        parts.append(vjp(spread, x, coef[..., o : o + 1], *shared, cotangent)[0])
    return torch.stack(parts, -3)


def placed(call: Call, coef: torch.Tensor) -> tuple[Call, torch.Tensor]:
    """Return the call and the coefficients (..., n, o) in the type they are computed in."""
    rows = call.y.shape[-2]
    passed, coef = coef, coef.unsqueeze(-1) if coef.dim() == 1 else coef
    if coef.dim() < 2 or coef.shape[-2] != rows:
        raise ShapeError(f"coef must have a row for each of the {rows} rows of x, it has shape {tuple(passed.shape)}")
    try:
        torch.broadcast_shapes(call.batch, coef.shape[:-2])
    except RuntimeError:
        shape = tuple(passed.shape)
        raise ShapeError(f"batch axes do not broadcast: coef has shape {shape}, the kernel {call.batch}") from None
    call = call.widened()
    return call, coef.to(call.x.dtype)


def ranges(call: Call, coef: torch.Tensor, per_point: int, budget: int = 0) -> Iterator[slice]:
    """Return the ranges of points whose matrices, and ``per_point`` further numbers each, stay within the bound.

    No points have one range, whose results have derivatives too.
    With ``budget`` the matrices may take as many bytes instead.
    """
    steps = plan(call.form)
    matrices = 2 if steps is None else max(1, steps.count)
    batch = math.prod(torch.broadcast_shapes(call.batch, coef.shape[:-2]))
    size = call.x.element_size() * max(1, batch)
    height = max(block_bytes(call.is_tracked, call.device), budget) // max(1, matrices * size * call.y.shape[-2])
    height = max(1, min(height, LARGEST // max(1, 2 * per_point * size)))
    yield from blocks(call.x.shape[-2], 1, height) if call.x.shape[-2] else (slice(0, 0),)


def gradient(call: Call, coef: torch.Tensor) -> torch.Tensor:
    """Return the gradients of all predictors at all points; ``call`` has the points as x and the rows as y."""
    vector = coef.dim() == 1
    call, coef = placed(call, coef)
    batch = torch.broadcast_shapes(call.batch, coef.shape[:-2])
    shape = (*batch, coef.shape[-1], *call.x.shape[-2:])
    inputs = (call.x, call.y, coef, *call.shared)
    if is_untracked(inputs):
        result = allocate(shape, call.x.dtype, call.x.device)
        for points in ranges(call, coef, 0, result.nbytes // 2 if result.is_cuda else 0):
            rows(call, call.x[..., points, :], call.y, coef, *at_points(call, points), out=result[..., points, :])
    else:
        parts = [
            recompute(partial(rows, call), call.x[..., points, :], call.y, coef, *at_points(call, points))[0]
            for points in ranges(call, coef, 0)
        ]
        result = torch.cat(parts, -2)
    return result.squeeze(-3) if vector else result
