"""Reductions of the rows of a kernel's matrix that is not stored, with derivatives of every order.

Forward is one kernel. The gradient of a product by v is the product with the transposed matrix; the others recompute
the matrix in blocks: with a cotangent g of the result, that of an entry w[m, n] is

* Σ_c g[m, c] v[n, c] of a product,
* g[m] times the weight of w[m, n] in a reduction, which stands in the reduction's row: 1 of a sum, the softmax weight
  of a logsumexp, the share of a tie of a maximum or minimum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import copy_context
from functools import partial
from importlib import import_module
from itertools import zip_longest
from typing import Any

import torch

from ..backends.reference.evaluate import evaluate
from ..compiler.row_reduce import Apply, transposed
from ..config import current
from ..errors import GradientError
from ..ir.definition import Definition
from ..ir.pattern import read as read_pattern
from ..ir.reductions import REDUCTIONS, STATISTICS, Reduction
from .autograd import apply, constant, program_vjp
from .dtypes import DTYPES
from .execute import Types
from .flops import counted, rows_backward_flops
from .info import RunInfo
from .namespaces import torch_namespace
from .operator import LIBRARY, by_key, implement, packed, read, unpacked
from .recompute import recompute
from .row_reduce import Defined, Task, task_of
from .row_reduce_blocks import cut, join_rows, product, ranges, reduce_rows
from .row_reduce_one_block import block_geometry, entry_types, in_one_block
from .torch_private import (
    apply_here,
    goes_forward,
    is_tracked,
    is_transformed,
    is_written_down,
    no_transform,
    one_level_down,
    plain,
    refuse_derivative,
    register_derivative,
)

Tensors = Sequence[torch.Tensor]


def rowwise(
    score: Defined, how: str, operands: Tensors, parameters: Mapping[str, Any], v: torch.Tensor | None = None,
    precision: str | None = None, info: RunInfo | None = None,
) -> torch.Tensor:  # fmt: skip
    """Return a product with the matrix of a score or a reduction of its rows, with whatever derivative is recorded.

    Arguments are those of ``row_reduce.task_of``; the matrix may have no rows or no columns. Columns of v over batch
    axes that the score has not are taken in one pass.
    """
    sizes, batch = _extents(score.definition, operands, parameters)
    row, column = score.definition.equation.out
    if v is not None and v.dim() > 2 and not batch and 0 not in v.shape:
        joined = rowwise(score, how, operands, parameters, v.movedim(-2, 0).flatten(1), precision, info)
        return joined.unflatten(-1, (*v.shape[:-2], v.shape[-1])).movedim(0, -2)
    task, tensors = task_of(score, how, operands, parameters, v, precision=precision, info=info)
    shape = (*batch, sizes[row])
    if v is not None:
        shape = (*(torch.broadcast_shapes(batch, v.shape[:-2]) if v.dim() > 2 else batch), sizes[row], v.shape[-1])
    if 0 in (*shape, sizes[column]):
        identity, name = _identity(task.text, task.types)
        empty = operands[0].new_full(shape, identity, dtype=DTYPES[name])
        # Connected, with gradients of zero; torch's vmap of no samples adds no sums without an axis.
        return sum((t.flatten()[:0].sum(0, keepdim=True) for t in tensors), empty)
    return _evaluate(task, tensors)


@constant
def _identity(text: str, types: str) -> tuple[float, str]:
    """Return the result of a reduction of nothing, and the name of its type."""
    (name,) = Types.parse(types).outs
    return Apply.parse(text).reduction.identity, name


class RepeatedRows:
    """``rowwise`` for calls that differ only in the values of their tensors: checks and plan are made once."""

    def __init__(self) -> None:
        self._found: tuple[Task, tuple[int, ...]] | None = None

    def __call__(
        self, score: Defined, how: str, operands: Tensors, parameters: Mapping[str, Any],
        v: torch.Tensor | None = None, precision: str | None = None, info: RunInfo | None = None,
    ) -> torch.Tensor:  # fmt: skip
        """Return what ``rowwise`` returns."""
        tensors = [*operands, *parameters.values(), *([] if v is None else [v])]
        if self._found is not None:
            task, order = self._found
            return _evaluate(task, [tensors[at] for at in order])
        _, batch = _extents(score.definition, operands, parameters)
        filled = all(tensor.numel() for tensor in tensors if isinstance(tensor, torch.Tensor))
        if filled and (v is None or v.dim() == 2 or batch):
            task, taken = task_of(score, how, operands, parameters, v, precision=precision, info=info)
            positions = {id(tensor): at for at, tensor in enumerate(tensors)}
            if all(id(tensor) in positions for tensor in taken):
                self._found = task, tuple(positions[id(tensor)] for tensor in taken)
        return rowwise(score, how, operands, parameters, v, precision, info)


def _extents(
    definition: Definition, operands: Tensors, parameters: Mapping[str, Any]
) -> tuple[dict[str, int], tuple[int, ...]]:
    """Return the sizes of the axes of a score, and its batch axes."""
    sizes: dict[str, int] = {}
    shapes = [value.shape for value in parameters.values() if isinstance(value, torch.Tensor)]
    for axes, operand in zip(definition.equation.operands, operands, strict=True):
        rank = operand.dim() - len(axes)
        sizes |= zip(axes, operand.shape[rank:], strict=True)
        shapes.append(operand.shape[:rank])
    shapes = [shape for shape in shapes if shape]
    return sizes, tuple(torch.broadcast_shapes(*shapes)) if shapes else ()


def _evaluate(task: Task, tensors: Tensors) -> torch.Tensor:
    """Return the result with whatever derivative is being recorded."""
    if not torch.compiler.is_compiling() and is_tracked(tensors) and plain(tensors):
        return recorded(task, tensors)
    return task.evaluate(tensors)[0]


def recorded(task: Task, tensors: Tensors) -> torch.Tensor:
    """Return the result with the derivative that is recorded at the level in hand."""
    if goes_forward():
        return _in_blocks(task, tensors)
    return apply_here(_Rowwise, task, *tensors)


def _of_operator(tensors: Tensors, *numbers_and_texts: Any) -> list[torch.Tensor]:
    *numbers, text, types = numbers_and_texts
    task = Task(text, types, unpacked(*numbers))
    if task.apply.selects:
        raise GradientError(
            "which entries are chosen has no derivative: call argkmin or argkmax with return_values=True, or "
            "detach the tensors"
        )
    return [recorded(task, tensors)]


register_derivative(LIBRARY, "apply", lambda tensors, *_: tensors, _of_operator)


def _split(task: Task, tensors: Tensors) -> tuple[Tensors, torch.Tensor | None]:
    """Return the tensors of the matrix, and v."""
    return (tensors[:-1], tensors[-1]) if task.apply.weighted else (tensors, None)


def _entries(task: Task, operands: Tensors, rows: slice, columns: slice) -> torch.Tensor:
    """Return a block of the matrix."""
    part = cut(task.apply, operands, rows, columns)
    return apply(task.apply.inner.text, entry_types(task.types), task.numbers, part)[0]


def _in_blocks(task: Task, tensors: Tensors) -> torch.Tensor:
    """Return the result from blocks of the matrix, for derivatives that go forward with it."""
    operands, v = _split(task, tensors)
    reduction = task.apply.reduction
    geo, height, width = block_geometry(task, tensors)
    parts: list[torch.Tensor] = []
    for rows in ranges(geo.sizes[task.apply.row], height):
        total: torch.Tensor | None = None
        for columns in ranges(geo.sizes[task.apply.column], width):
            entries = _entries(task, operands, rows, columns)
            weights = None if v is None else v[..., columns, :].to(entries.dtype)
            found = reduce_rows(reduction, entries) if weights is None else product(entries, weights)
            total = found if total is None else join_rows(reduction, total, found)
        assert total is not None
        parts.append(total)
    (name,) = Types.parse(task.types).outs
    return torch.cat(parts, -1 if v is None else -2).to(DTYPES[name])


class _Rowwise(torch.autograd.Function):
    @staticmethod
    def forward(task: Task, *tensors: torch.Tensor) -> torch.Tensor:
        if plain(tensors):
            return task.evaluate(tensors)[0]
        with one_level_down():
            return task.evaluate(tensors)[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        ctx.task, ctx.context = inputs[0], copy_context()
        ctx.save_for_backward(*inputs[1:], output)

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor) -> tuple[Any, ...]:
        *tensors, result = ctx.saved_tensors
        needed = ctx.needs_input_grad[1:]
        if is_written_down() and not is_transformed():
            task = ctx.task
            found = iter(
                _backward_operator(tensors, result, *cotangents, *packed(task.numbers), task.text, task.types, needed)
            )
            return None, *(next(found) if wanted else None for wanted in needed)
        # In the configuration of the forward call: torch may run this in a thread of its own.
        return None, *ctx.context.copy().run(_backward, ctx.task, tensors, result, *cotangents, needed)


def _run_backward(
    tensors: Tensors, result: torch.Tensor, cotangent: torch.Tensor, *numbers_and_texts: Any
) -> list[torch.Tensor]:
    *numbers, text, types, needed = numbers_and_texts
    found = _backward(Task(text, types, read(*numbers)), tensors, result, cotangent, needed)
    return [gradient for gradient in found if gradient is not None]


def _fake_backward(tensors: Tensors, *others: Any) -> list[torch.Tensor]:
    return [tensor.new_empty(tensor.shape) for tensor, wanted in zip(tensors, others[-1], strict=True) if wanted]


_backward_operator = implement("apply_backward", by_key(_run_backward), _fake_backward)
refuse_derivative(
    LIBRARY, "apply_backward", lambda tensors, _, cotangent, *__: [*tensors, cotangent],
    "take derivatives of higher order outside of what is compiled",
)  # fmt: skip


@counted("apply_backward")
def _flops(shapes: Any, *others: Any, **_: Any) -> int:
    text, needed = others[-3], others[-1]
    return rows_backward_flops(Apply.parse(text), shapes, needed)


def _backward(
    task: Task, tensors: Tensors, result: torch.Tensor, cotangent: torch.Tensor, needed: Sequence[bool]
) -> list[torch.Tensor | None]:
    """Return the gradients of the tensors that are needed."""
    is_plain = not torch.is_grad_enabled() and plain((*tensors, cotangent))
    if is_plain and (several := in_one_block(task, tensors, cotangent, tuple(needed))) is not None:
        of_v = _of_v(task, tensors, cotangent) if needed[-1] else None
        return [*several, of_v]
    wide = [tensor.to(DTYPES[Types.parse(task.types).compute]) for tensor in (*tensors, cotangent)]
    operands, v = _split(task, wide[:-1])
    found: list[torch.Tensor | None] = [None] * len(tensors)
    wanted = tuple(needed[: len(operands)])
    if any(wanted):
        several = _in_kernels(task, operands, v, wide[-1], wanted)
        several = several or _through_blocks(task, operands, v, result, wide[-1], wanted)
        found = [gradient if asked else None for gradient, asked in zip_longest(several, needed)]
    if v is not None and needed[-1] and found[-1] is None:
        found[-1] = _of_v(task, tensors, cotangent).sum_to_size(v.shape)
    return [
        None if gradient is None else gradient.to(tensor.dtype) for gradient, tensor in zip(found, tensors, strict=True)
    ]


def _of_v(task: Task, tensors: Tensors, cotangent: torch.Tensor) -> torch.Tensor:
    """Return the product of the transposed matrix and a cotangent."""
    own = Task(transposed(task.text), task.types, task.numbers)
    swapped = [*reversed(tensors[:2]), *tensors[2:-1]] if len(tensors) > 2 else tensors[:1]
    return _evaluate(own, [*swapped, cotangent])


def _in_kernels(
    task: Task, operands: Tensors, v: torch.Tensor | None, cotangent: torch.Tensor, wanted: tuple[bool, ...]
) -> list[torch.Tensor | None] | None:
    """Return gradients by the points, and by v if it is to be had too, without blocks of the matrix.

    Where a GPU can and no derivative is recorded; None elsewhere.
    """
    types = Types.parse(task.types)
    plain_call = v is not None and not torch.is_grad_enabled() and no_transform()
    suits = plain_call and types.compute == "f32" and types.precision != "ieee" and current().precision != "ieee"
    if v is None or not suits or current().backend == "reference" or operands[0].device.type != "cuda":
        return None
    vjp = import_module(".cuda_row_vjp", __package__).vjp
    found: list[torch.Tensor | None] | None = vjp(task.text, task.numbers, operands, v, cotangent, wanted)
    return found


def _through_blocks(
    task: Task,
    operands: Tensors,
    v: torch.Tensor | None,
    result: torch.Tensor,
    cotangent: torch.Tensor,
    wanted: tuple[bool, ...],
) -> list[torch.Tensor | None]:
    """Return gradients by the tensors of the matrix, those that are wanted, added up over blocks."""
    own = task.apply
    tensors = operands if v is None else [*operands, v]
    geo, height, width = block_geometry(task, tensors)
    saved = _row_statistics(task, operands, result)
    if height >= geo.sizes[own.row] and width >= geo.sizes[own.column]:
        found = iter(recompute(partial(_block, task, wanted), *operands, cotangent, *(saved if v is None else (v,))))
        return [next(found) if chosen else None for chosen in wanted]
    sums = [
        _Sum({axis: (operand.axes.index(axis) - len(operand.axes), geo.sizes[axis]) for axis in own.inner.out
              if axis in operand.axes})
        for operand, chosen in zip(own.inner.tensors, wanted, strict=True) if chosen
    ]  # fmt: skip
    for rows in ranges(geo.sizes[own.row], height):
        for columns in ranges(geo.sizes[own.column], width):
            if v is None:
                along = (cotangent[..., rows], *(value[..., rows] for value in saved))
            else:
                along = (cotangent[..., rows, :], v[..., columns, :])
            part = (*cut(own, operands, rows, columns), *along)
            each = recompute(partial(_block, task, wanted), *part)
            for total, gradient in zip(sums, each, strict=True):
                total.add({own.row: rows, own.column: columns}, gradient)
    gradients = iter(sums)
    return [next(gradients).whole() if chosen else None for chosen in wanted]


class _Sum:
    """Parts of a tensor, added up by their ranges of some of its axes, each a dimension and an extent.

    Where no derivative is recorded and no transform watches they are written into one tensor that is allocated first:
    parts that stay among the blocks would hold the heap at the size of the whole matrix.
    """

    def __init__(self, axes: Mapping[str, tuple[int, int]]) -> None:
        self._axes = axes
        self._parts: dict[tuple[int, ...], torch.Tensor] = {}
        self._whole: torch.Tensor | None = None

    def add(self, where: Mapping[str, slice], part: torch.Tensor) -> None:
        """Add a part that covers these ranges of the axes."""
        if torch.is_grad_enabled() or not no_transform():
            key = tuple(where[axis].start for axis in self._axes)
            self._parts[key] = self._parts[key] + part if key in self._parts else part
            return
        target = self._whole
        if target is None:
            shape = list(part.shape)
            for dimension, extent in self._axes.values():
                shape[dimension] = extent
            target = self._whole = part.new_zeros(shape)
        for axis, (dimension, _) in self._axes.items():
            target = target.narrow(dimension, where[axis].start, where[axis].stop - where[axis].start)
        target.add_(part)

    def whole(self) -> torch.Tensor:
        """Return the tensor of all ranges."""
        if self._whole is not None:
            return self._whole
        parts = self._parts
        for dimension, _ in reversed(list(self._axes.values())):
            groups: dict[tuple[int, ...], list[torch.Tensor]] = {}
            for key, part in parts.items():
                groups.setdefault(key[:-1], []).append(part)
            parts = {key: torch.cat(group, dimension) for key, group in groups.items()}
        return parts[()]


def _block(task: Task, wanted: tuple[bool, ...], *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the gradients of what a block contributes; behind its operands is what the slope takes."""
    operands, along = tensors[: len(wanted)], tensors[len(wanted) :]
    found = program_vjp(
        task.apply.inner.text, entry_types(task.types), task.numbers, operands, wanted,
        lambda entries: _slope(task.apply, entries, *along),
    )  # fmt: skip
    return tuple(gradient for gradient in found if gradient is not None)


def _slope(own: Apply, entries: torch.Tensor, cotangent: torch.Tensor, *along: torch.Tensor) -> torch.Tensor:
    """Return the cotangent of a block's entries; ``along`` are v, or results and statistics of the rows."""
    if own.weighted:
        (v,) = along
        return product(cotangent, v.mT).sum_to_size(entries.shape)
    share = _of_rows(own.reduction.weight, entries, along)
    return cotangent.unsqueeze(-1) * share.expand(torch.broadcast_shapes(share.shape, entries.shape))


def _of_rows(pattern: str, entries: torch.Tensor, along: Tensors) -> torch.Tensor:
    """Return a pattern of a reduction's row, over entries and over the results and statistics of their rows."""
    names = {letter: value.unsqueeze(-1) for letter, value in zip("a" + STATISTICS, along, strict=False)}
    space = torch_namespace(entries.dtype, entries.device)
    return evaluate([read_pattern(pattern)], {"t": entries, **names}, space)[0]


def _row_statistics(task: Task, operands: Tensors, result: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return what the slope reads of every row: the result and statistics, as blocks of this shape give them.

    A result that entries are compared with is computed from the same blocks as these.
    """
    reduction = task.apply.reduction
    if task.apply.weighted or not (reduction.reads_accumulator or reduction.statistics):
        return ()
    with torch.no_grad():
        if reduction.reproducible:
            result = _reduced(task, operands, reduction, "t", ())
        statistics = [
            _reduced(task, operands, REDUCTIONS[name], pattern, (result,)) for name, pattern in reduction.statistics
        ]
    return result, *statistics


def _reduced(task: Task, operands: Tensors, reduction: Reduction, pattern: str, along: Tensors) -> torch.Tensor:
    """Return the reduction of a pattern over the entries of every row, block by block."""
    own = task.apply
    geo, height, width = block_geometry(task, operands)
    whole = _Sum({own.row: (-1, geo.sizes[own.row])})
    for rows in ranges(geo.sizes[own.row], height):
        total: torch.Tensor | None = None
        for columns in ranges(geo.sizes[own.column], width):
            entries = _entries(task, operands, rows, columns)
            found = reduce_rows(reduction, _of_rows(pattern, entries, [value[..., rows] for value in along]))
            total = found if total is None else join_rows(reduction, total, found)
        assert total is not None
        whole.add({own.row: rows}, total)
    return whole.whole()
