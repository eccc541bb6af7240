"""Gradients of predictors Σ_n coef[n, o] k(z, x_n) by z, and sums of their outer products.

With K = u(s) for sums s_i = Σ_k f_i(z_k, x_k), the gradient is Σ_n coef[n, o] Σ_i W_i[m, n] ∂f_i/∂z, where the
outer factors W_i = ∂u/∂s_i are one contraction with another epilogue. Where ∂f/∂z = A(z) + B(z) x, the rest is
matrix products; otherwise one contraction with an axis o.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import torch

from ..contraction.semirings import REDUCTIONS
from ..errors import ShapeError
from ..expr.differentiate import differentiate
from ..expr.node import Node, const, postorder, substitute, var
from ..expr.simplify import simplify
from ..ops.contract import Contraction
from .blocks import LARGEST, block_bytes
from .call import Call
from .form import ROWS, Form, Squares, contraction_of, of_difference
from .recompute import Pullback, recompute

_FIRST, _SECOND = ROWS
_SUM = REDUCTIONS["sum"]
_COLUMNS_BYTES = 32 << 20


Part = Contraction | float | None


@dataclass(frozen=True)
class _Affine:
    """∂f/∂z = constant(z) + factor(z) x: each a contraction of z and the weights, a number, or None for 0."""

    place: int
    constant: Part
    factor: Part
    centred: bool


@dataclass(frozen=True)
class Plan:
    """How a form is differentiated: ``slopes`` are ∂u/∂s_i and ∂u/∂|z|², one matrix each.

    ``general`` takes z, x, the weights, the slopes at ``places`` and the coefficients.
    """

    slopes: Contraction
    count: int
    affine: tuple[_Affine, ...]
    general: Contraction | None
    places: tuple[int, ...]
    squares: tuple[tuple[int, str], ...]


def _part(form: Form, value: Node) -> Part:
    if value.number is not None:
        return float(value.number) if value.number else None
    names = [_FIRST, *form.weights]
    renamed = substitute([value], {name: var(f"x{i}") for i, name in enumerate(names)})
    axes = ["mk", *("k" for _ in form.weights)]
    return contraction_of(axes, "mk", renamed, [_SUM], [var("s0")])


def _is_affine(root: Node) -> bool:
    """Whether an expression is seen to be A + B x1, from its operations."""
    moving: set[Node] = {var(_SECOND)}
    for node in postorder([root]):
        places = [place for place, arg in enumerate(node.args) if arg in moving]
        if not places:
            continue
        straight = node.op in ("add", "sub", "neg") or (node.op == "mul" and len(places) == 1)
        if not (straight or (node.op == "div" and places == [0])):
            return False
        moving.add(node)
    return True


def _affine(form: Form, place: int, value: Node, slope: Node) -> _Affine | None:
    if not _is_affine(slope):
        return None
    (factor,) = differentiate(slope, [_SECOND])
    (constant,) = simplify(substitute([slope], {_SECOND: const(0)}), finite=True)
    return _Affine(place, _part(form, constant), _part(form, factor), of_difference(value))


@lru_cache(maxsize=256)
def plan(form: Form) -> Plan | None:
    """How to differentiate a form whose reductions are sums; None for others."""
    if any(reduction is not _SUM for reduction in form.reductions):
        return None
    slopes: list[Node] = []
    affine: list[_Affine] = []
    general: list[tuple[int, Node]] = []
    for i, value in enumerate(form.maps):
        (outer,) = differentiate(form.output, [f"s{i}"])
        (inner,) = differentiate(value, [_FIRST])
        if outer.number == 0 or inner.number == 0:
            continue
        straight = _affine(form, len(slopes), value, inner)
        if straight is None:
            general.append((len(slopes), inner))
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
    places = tuple(place for place, _ in general)
    inners = [inner for _, inner in general]
    return Plan(contraction, len(slopes), tuple(affine), _general(form, inners), places, tuple(squares))


def _general(form: Form, inners: Sequence[Node]) -> Contraction | None:
    """Σ_n coef[n, o] Σ_i W_i[m, n] ∂f_i/∂z."""
    if not inners:
        return None
    names = [*ROWS, *form.weights]
    renaming = {name: var(f"x{i}") for i, name in enumerate(names)}
    first = len(names)
    total: Node | None = None
    for i, inner in enumerate(substitute(inners, renaming)):
        term = Node("mul", (var(f"x{first + i}"), inner))
        total = term if total is None else Node("add", (total, term))
    assert total is not None
    coef = first + len(inners)
    axes = ["mk", "nk", *("k" for _ in form.weights), *("mn" for _ in inners), "no"]
    return contraction_of(axes, "omk", [Node("mul", (var(f"x{coef}"), total))], [_SUM], [var("s0")])


def run(contraction: Contraction, operands: Sequence[torch.Tensor], parameters: Mapping[str, Any]) -> Any:
    """A contraction with those of the parameters that it has."""
    known = contraction.definition.parameters
    return contraction(*operands, **{name: value for name, value in parameters.items() if name in known})


def _value(part: Contraction | float, operands: Sequence[torch.Tensor], parameters: Mapping[str, Any]) -> Any:
    return run(part, operands, parameters).unsqueeze(-3) if isinstance(part, Contraction) else part


def _products(slope: torch.Tensor, coef: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Σ_n slope[m, n] coef[n, o] x[n, k]: (..., o, m, k)."""
    outputs, columns = coef.shape[-1], x.shape[-1]
    size = x.shape[-2] * columns * x.element_size() * math.prod(torch.broadcast_shapes(coef.shape[:-2], x.shape[:-2]))
    step = max(1, _COLUMNS_BYTES // max(size, 1))
    parts = []
    for start in range(0, outputs, step):
        chosen = coef[..., start : start + step]
        scaled = (chosen.unsqueeze(-1) * x.unsqueeze(-2)).flatten(-2)
        parts.append((slope @ scaled).unflatten(-1, (chosen.shape[-1], columns)).movedim(-2, -3))
    return torch.cat(parts, -3)


def _centred(z: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Both minus the mean of x: what depends on differences alone does not change, but loses fewer digits."""
    middle = x.detach().mean(-2, keepdim=True)
    return z - middle, x - middle


def _rows(
    call: Call, z: torch.Tensor, x: torch.Tensor, coef: torch.Tensor, *shared: torch.Tensor
) -> tuple[torch.Tensor]:
    """Gradients at some points: (..., o, m, k)."""
    steps = plan(call.form)
    with torch.autocast(z.device.type, enabled=False):
        if steps is None:
            return (_by_autograd(call, z, x, coef, shared),)
        given = call.given(z, x, shared)
        weights = dict(zip(call.form.weights, shared, strict=False))
        results = run(steps.slopes, given.operands, given.parameters)
        slopes: Sequence[torch.Tensor] = results if isinstance(results, tuple) else (results,)
        batch = torch.broadcast_shapes(call.batch, coef.shape[:-2])
        total = z.new_zeros((*batch, coef.shape[-1], *z.shape[-2:]))
        if steps.general is not None:
            operands = [z, x, *weights.values(), *(slopes[place] for place in steps.places), coef]
            total = total + run(steps.general, operands, given.parameters)
        for part in steps.affine:
            points, rows = _centred(z, x) if part.centred and x.shape[-2] else (z, x)
            slope = slopes[part.place]
            if part.constant is not None:
                sums = (slope @ coef).mT.unsqueeze(-1)
                total = total + sums * _value(part.constant, [points, *weights.values()], given.parameters)
            if part.factor is not None:
                factor = _value(part.factor, [points, *weights.values()], given.parameters)
                total = total + factor * _products(slope, coef, rows)
        for place, name in steps.squares:
            scaled = z if name == "" else z * weights[name].square().unsqueeze(-2)
            total = total + (slopes[place] @ coef).mT.unsqueeze(-1) * (2 * scaled).unsqueeze(-3)
        return (total,)


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
    pullback = Pullback(partial(_predictions, call), needed, (True,))
    parts = []
    for o in range(coef.shape[-1]):
        cotangent = z.new_ones((*batch, z.shape[-2], 1))
        parts.append(pullback(spread, x, coef[..., o : o + 1], *shared, cotangent)[0])
    return torch.stack(parts, -3)


def _placed(call: Call, coef: torch.Tensor) -> tuple[Call, torch.Tensor]:
    """The call and the coefficients (..., n, o) in the type they are computed in."""
    rows = call.y.shape[-2]
    given, coef = coef, coef.unsqueeze(-1) if coef.dim() == 1 else coef
    if coef.shape[-2] != rows:
        raise ShapeError(f"coef must have a row for each of the {rows} rows of x, it has shape {tuple(given.shape)}")
    try:
        torch.broadcast_shapes(call.batch, coef.shape[:-2])
    except RuntimeError:
        shape = tuple(given.shape)
        raise ShapeError(f"batch axes do not broadcast: coef has shape {shape}, the kernel {call.batch}") from None
    call = call.widened()
    return call, coef.to(call.x.dtype)


def _ranges(call: Call, coef: torch.Tensor, per_point: int) -> Iterator[slice]:
    """Ranges of points whose matrices, and ``per_point`` further numbers each, stay within the bound."""
    steps = plan(call.form)
    matrices = 2 if steps is None else max(1, steps.count)
    batch = math.prod(torch.broadcast_shapes(call.batch, coef.shape[:-2]))
    size = call.x.element_size() * max(1, batch)
    height = block_bytes(call) // max(1, matrices * size * call.y.shape[-2])
    height = max(1, min(height, LARGEST // max(1, 2 * per_point * size)))
    points = call.x.shape[-2]
    for start in range(0, points, height):
        yield slice(start, min(start + height, points))


def gradient(call: Call, coef: torch.Tensor) -> torch.Tensor:
    """Gradients of all predictors at all points; ``call`` has the points as x and the rows as y."""
    vector = coef.dim() == 1
    call, coef = _placed(call, coef)
    parts = [
        recompute(partial(_rows, call), call.x[..., rows, :], call.y, coef, *call.shared)[0]
        for rows in _ranges(call, coef, 0)
    ]
    batch = torch.broadcast_shapes(call.batch, coef.shape[:-2])
    empty = (*batch, coef.shape[-1], 0, call.x.shape[-1])
    result = (torch.cat(parts, -2) if len(parts) > 1 else parts[0]) if parts else call.x.new_zeros(empty)
    return result.squeeze(-3) if vector else result


def _outer(
    call: Call, diagonal: bool, shift: torch.Tensor | None, z: torch.Tensor, x: torch.Tensor, coef: torch.Tensor,
    *shared: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Sums over outputs and points of g gᵀ, and over points of g; g minus ``shift``."""
    (found,) = _rows(call, z, x, coef, *shared)
    found = found if shift is None else found - shift
    sums = found.sum(-2)
    if diagonal:
        return found.square().sum((-3, -2)), sums
    flat = found.flatten(-3, -2)
    with torch.autocast(z.device.type, enabled=False):
        return flat.mT @ flat, sums


def agop(call: Call, coef: torch.Tensor, average: bool, centred: bool, diagonal: bool) -> torch.Tensor:
    """Sum of the outer products of all gradients."""
    call, coef = _placed(call, coef)
    columns, points = call.x.shape[-1], call.x.shape[-2]
    batch = torch.broadcast_shapes(call.batch, coef.shape[:-2])
    total = call.x.new_zeros((*batch, *(columns,) * (1 if diagonal else 2)))
    sums = call.x.new_zeros((*batch, coef.shape[-1], columns))
    shift: torch.Tensor | None = None
    for rows in _ranges(call, coef, coef.shape[-1] * columns):
        z = call.x[..., rows, :]
        if centred and shift is None:
            with torch.no_grad():
                shift = _rows(call, z, call.y, coef, *call.shared)[0].mean(-2, keepdim=True)
        part, found = recompute(partial(_outer, call, diagonal, shift), z, call.y, coef, *call.shared)
        total, sums = total + part, sums + found
    if centred and points:
        total = total - (sums.square().sum(-2) if diagonal else sums.mT @ sums) / points
    return total / max(points, 1) if average else total
