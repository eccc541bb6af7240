"""What is made of the rows of a kernel's matrix without storing it, with derivatives of every order.

Forward is one kernel. The gradient of a product by v is the product with the transposed matrix; the others go back
through blocks of the matrix, which are computed again: with a cotangent g of the result, that of an entry w[m, n] is

* Σ_c g[m, c] v[n, c] of a product, g[m] of a sum,
* g[m] exp(w[m, n] - result[m]) of a logsumexp,
* g[m] / count[m] of a maximum or minimum where w[m, n] is one of its ``count`` places, else 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from ..contraction.apply import PRODUCT
from ..ops.apply import apply
from ..ops.row_blocks import REDUCE, block_shape, product, ranges
from ..ops.torch_private import is_recorded, takes_functions, unwatched
from . import blocks
from .call import Call
from .form import gram, swapped
from .recompute import pulled, recompute

Tensors = tuple[torch.Tensor, ...]
COPIES = 6
"""Arrays as large as a block of the matrix that a backward pass has at a time."""
_SLACK = 1 / 16


@dataclass(frozen=True)
class Rowwise:
    """A product with the matrix of a form, or a reduction of its rows; the tensors are given apart."""

    call: Call
    how: str

    def split(self, tensors: Sequence[torch.Tensor]) -> tuple[Call, torch.Tensor | None]:
        """The call with these rows and shared tensors, and v."""
        weighted = self.how == PRODUCT
        x, y = tensors[:2]
        shared = tuple(tensors[2 + weighted :])
        return replace(self.call, x=x, y=y, shared=shared), tensors[2] if weighted else None

    def fused(self, *tensors: torch.Tensor) -> torch.Tensor:
        """The result, without derivatives."""
        return _fused(self.how, *self.split(tensors))

    def in_blocks(self, *tensors: torch.Tensor) -> torch.Tensor:
        """The same from blocks of the matrix, for derivatives that go forward with it."""
        call, v = self.split(tensors)
        parts: list[torch.Tensor] = []
        height, width = block_shape(call.x.shape[-2], call.y.shape[-2], _entries(call), call.device)
        for rows in ranges(call.x.shape[-2], height):
            total: torch.Tensor | None = None
            for columns in ranges(call.y.shape[-2], width):
                entries = call.gram(call.x[..., rows, :], call.y[..., columns, :], call.shared)
                found = REDUCE[self.how][0](entries) if v is None else product(entries, v[..., columns, :])
                total = found if total is None else REDUCE["sum" if v is not None else self.how][1](total, found)
            assert total is not None
            parts.append(total)
        return torch.cat(parts, -1 if v is None else -2)


def rowwise(call: Call, how: str, v: torch.Tensor | None = None) -> torch.Tensor:
    """The result with whatever derivative is being recorded; both arrays have rows."""
    task = Rowwise(call, how)
    tensors = (call.x, call.y, *([v] if v is not None else []), *call.shared)
    if is_recorded(tensors):
        if not takes_functions():
            return task.in_blocks(*tensors)
        return _Rowwise.apply(task, *tensors)  # pyright: ignore[reportReturnType]
    return _fused(how, call, v)


def _fused(how: str, call: Call, v: torch.Tensor | None) -> torch.Tensor:
    given = call.given(call.x, call.y, call.shared)
    return apply(gram(call.form), how, given.operands, given.parameters, v, precision=call.precision)[0]


def _entries(call: Call) -> int:
    """Entries of a block of the matrix in a backward pass."""
    room = blocks.LARGEST * (1 if call.device.type == "cpu" else blocks.ON_GPU)
    return max(1, room // (COPIES * call.x.element_size() * max(1, math.prod(call.batch))))


class _Rowwise(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(task: Rowwise, *tensors: torch.Tensor) -> torch.Tensor:
        return task.fused(*tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        ctx.task, ctx.context = inputs[0], copy_context()
        ctx.save_for_backward(*inputs[1:], output)

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor) -> tuple[Any, ...]:
        *tensors, result = ctx.saved_tensors
        # In the configuration of the forward call: torch may run this in a thread of its own.
        found = ctx.context.copy().run(_backward, ctx.task, tensors, result, *cotangents, ctx.needs_input_grad[1:])
        return None, *found


def _backward(
    task: Rowwise,
    tensors: Sequence[torch.Tensor],
    result: torch.Tensor,
    cotangent: torch.Tensor,
    needed: Sequence[bool],
) -> list[torch.Tensor | None]:
    call, v = task.split(tensors)
    found: list[torch.Tensor | None] = [None] * len(tensors)
    places = [0, 1, *range(2 + (v is not None), len(tensors))]
    wanted = tuple(needed[place] for place in places)
    if v is not None and needed[2]:
        turned = replace(call, form=swapped(call.form), x=call.y, y=call.x)
        found[2] = rowwise(turned, PRODUCT, cotangent).sum_to_size(v.shape)
    if any(wanted):
        gradients = iter(_through_blocks(task.how, call, v, result, cotangent, wanted))
        for place, chosen in zip(places, wanted, strict=True):
            found[place] = next(gradients) if chosen else None
    return found


def _through_blocks(
    how: str,
    call: Call,
    v: torch.Tensor | None,
    result: torch.Tensor,
    cotangent: torch.Tensor,
    wanted: tuple[bool, ...],
) -> list[torch.Tensor]:
    """Gradients by x, y and the shared tensors, those that are wanted, added up over blocks."""
    height, width = block_shape(call.x.shape[-2], call.y.shape[-2], _entries(call), call.device)
    kept = _extremum(how, call, height, width) if how in ("max", "min") else (result,) if how == "logsumexp" else ()
    of_rows, of_columns = _Sum(call.x.shape[-2], -2), _Sum(call.y.shape[-2], -2)
    of_shared: list[torch.Tensor] = []
    for rows in ranges(call.x.shape[-2], height):
        for columns in ranges(call.y.shape[-2], width):
            if v is None:
                along = (cotangent[..., rows], *(value[..., rows] for value in kept))
            else:
                along = (cotangent[..., rows, :], v[..., columns, :])
            part = (call.x[..., rows, :], call.y[..., columns, :], *call.shared, *along)
            found = list(recompute(partial(_block, how, call, wanted), *part))
            if wanted[0]:
                of_rows.add(rows, found.pop(0))
            if wanted[1]:
                of_columns.add(columns, found.pop(0))
            of_shared = [_added(old, new) for old, new in zip(of_shared, found, strict=True)] if of_shared else found
    gradients = [of_rows.whole()] if wanted[0] else []
    gradients += [of_columns.whole()] if wanted[1] else []
    return gradients + of_shared


class _Sum:
    """Parts of a tensor, added up by their range of one axis.

    Where no derivative is recorded and no transform watches they are written into one tensor that is allocated first:
    parts that stay among the blocks would hold the heap at the size of the whole matrix.
    """

    def __init__(self, extent: int, axis: int) -> None:
        self._extent, self._axis = extent, axis
        self._parts: dict[int, torch.Tensor] = {}
        self._whole: torch.Tensor | None = None

    def add(self, where: slice, part: torch.Tensor) -> None:
        """Add a part that covers a range of the axis."""
        if torch.is_grad_enabled() or not unwatched():
            self._parts[where.start] = _added(self._parts.get(where.start), part)
            return
        if self._whole is None:
            shape = list(part.shape)
            shape[self._axis] = self._extent
            self._whole = part.new_zeros(shape)
        self._whole.narrow(self._axis, where.start, where.stop - where.start).add_(part)

    def whole(self) -> torch.Tensor:
        """Return the tensor of all ranges."""
        return self._whole if self._whole is not None else torch.cat(list(self._parts.values()), self._axis)


def _added(total: torch.Tensor | None, part: torch.Tensor) -> torch.Tensor:
    return part if total is None else total + part


def _block(how: str, call: Call, wanted: tuple[bool, ...], *tensors: torch.Tensor) -> Tensors:
    """Gradients of what a block contributes; the tensors are x, y, the shared ones and what the slope takes."""
    count = len(wanted)
    inputs, along = tensors[:count], tensors[count:]

    def matrix(x: torch.Tensor, y: torch.Tensor, *shared: torch.Tensor) -> Tensors:
        return (call.gram(x, y, shared),)

    return tuple(pulled(matrix, inputs, wanted, lambda outputs: (_SLOPES[how](outputs[0], *along),)))


def _of_product(entries: torch.Tensor, cotangent: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return product(cotangent, v.mT).sum_to_size(entries.shape)


def _of_sum(entries: torch.Tensor, cotangent: torch.Tensor) -> torch.Tensor:
    return cotangent.unsqueeze(-1).expand(entries.shape)


def _of_logsumexp(entries: torch.Tensor, cotangent: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    result = result.unsqueeze(-1)
    shares = torch.where(result == -math.inf, 0.0, (entries - result).exp())
    return cotangent.unsqueeze(-1) * shares


def _of_extremum(
    entries: torch.Tensor, cotangent: torch.Tensor, best: torch.Tensor, count: torch.Tensor
) -> torch.Tensor:
    shares = torch.where(_tied(entries, best), 1 / count.unsqueeze(-1), 0.0)
    return cotangent.unsqueeze(-1) * shares


_SLOPES: dict[str, Callable[..., torch.Tensor]] = {
    PRODUCT: _of_product,
    "sum": _of_sum,
    "logsumexp": _of_logsumexp,
    "max": _of_extremum,
    "min": _of_extremum,
}


def _tied(entries: torch.Tensor, best: torch.Tensor) -> torch.Tensor:
    """Which entries are the extremum, up to some units in the last place: they are computed again for it."""
    best = best.unsqueeze(-1)
    return (entries == best) | (best + (entries - best) * _SLACK == best)


def _extremum(how: str, call: Call, height: int, width: int) -> Tensors:
    """Extremum of every row and how many entries are equal to it, as blocks of this shape give them."""
    bests, counts = _Sum(call.x.shape[-2], -1), _Sum(call.x.shape[-2], -1)
    with torch.no_grad():
        for rows in ranges(call.x.shape[-2], height):
            best: torch.Tensor | None = None
            count: torch.Tensor | None = None
            for wants_count in (False, True):
                for columns in ranges(call.y.shape[-2], width):
                    entries = call.gram(call.x[..., rows, :], call.y[..., columns, :], call.shared)
                    if wants_count and best is not None:
                        tied = _tied(entries, best)
                        count = _added(count, tied.sum(-1, dtype=entries.dtype))
                    else:
                        found = REDUCE[how][0](entries)
                        best = found if best is None else REDUCE[how][1](best, found)
            assert best is not None
            assert count is not None
            bests.add(rows, best)
            counts.add(rows, count)
    return bests.whole(), counts.whole()
