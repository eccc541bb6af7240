"""Contractions and row reductions in torch's own operations, for runtimes without our kernels, such as ONNX.

Except in matrix products, every element over all axes is stored in between.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..backends.reference.evaluate import Namespace, evaluate, initial, merge_axis
from ..compiler.row_reduce import Apply
from ..errors import BackendError
from ..ir.node import Node
from ..ir.program import Program
from ..ir.reductions import Reduction
from .dtypes import DTYPES
from .execute import Types, computed_arrays, is_matmul
from .layout import aligned
from .namespaces import torch_namespace
from .operator import unpacked
from .row_reduce_blocks import reduce_rows
from .torch_private import decomposed

Tensors = Sequence[torch.Tensor]
_OWN = {"prod": torch.prod, "any": torch.any, "all": torch.all, "argmin": torch.argmin, "argmax": torch.argmax}


@decomposed("contract")
def contraction(tensors: Tensors, numbers: Any, values: Any, text: str, types: str) -> list[torch.Tensor]:
    """Return the outputs of a program."""
    program, own = Program.parse(text), Types.parse(types)
    if any(operand.inner is not None for operand in program.operands):
        raise BackendError(f"a program nested in {program.equation!r} has no decomposition into torch's operations")
    compute, count = DTYPES[own.compute], len(program.reduced)
    space = torch_namespace(compute, tensors[0].device)
    named = computed_arrays(program, tensors, compute)
    arrays = {name: aligned(tensor, program.operand(name).axes, program.axes) for name, tensor in named.items()}
    for operand, number in zip(program.numbers, unpacked(numbers, values), strict=True):
        arrays[operand.name] = torch.as_tensor(number).to(dtype=compute, device=tensors[0].device)
    whole = torch.broadcast_shapes(*(array.shape for array in arrays.values()))
    product = is_matmul(program, own)
    if product is not None:
        left, right = (f"...{program.operand(name).axes}" for name in (product.left, product.right))
        total = torch.einsum(f"{left},{right}->...{program.out}", named[product.left], named[product.right])
        finished = {"s0": total.unsqueeze(-1)}
    else:
        rows = enumerate(zip(program.reductions, program.map, strict=True))
        finished = {f"s{i}": _reduced(row, mapped, arrays, whole, count, space) for i, (row, mapped) in rows}
    shape = whole[: len(whole) - count]
    return [
        torch.broadcast_to(result, (*shape, *(1,) * count)).reshape(shape).to(DTYPES[name]).contiguous()
        for result, name in zip(evaluate(program.outputs, arrays | finished, space), own.outs, strict=True)
    ]


def _reduced(
    reduction: Reduction, mapped: Node, arrays: Mapping[str, torch.Tensor], whole: torch.Size, count: int,
    space: Namespace,
) -> torch.Tensor:  # fmt: skip
    """Return the reduction of a map over the last ``count`` axes, which are kept with length 1."""
    if reduction.is_fold:
        raise BackendError(
            "a Fold has no decomposition into torch's operations; give a Semiring where the order is free"
        )
    (value,) = evaluate([mapped], arrays, space)
    value = torch.broadcast_to(value, whole)
    if not count:
        return value
    own = _OWN.get(reduction.name)
    if (reduction.torch or own is not None) and (count == 1 or not reduction.name.startswith("arg")):
        flat = value.flatten(-count)
        found = reduce_rows(reduction, flat) if own is None else own(flat, -1)
        return found.reshape((*whole[: len(whole) - count], *(1,) * count))
    start = {f"s{i}": register for i, register in enumerate(initial(reduction, (), space))}
    index = torch.arange(whole[-1], device=value.device)
    state = evaluate(reduction.step, {**start, "t": value, "index": index}, space)
    state = [
        torch.broadcast_to(space.cast(each, kind), whole) for each, kind in zip(state, reduction.kinds, strict=True)
    ]
    for axis in range(-count, 0):
        state = merge_axis(reduction, state, axis, space)
    return evaluate([reduction.finish], {f"s{i}": register for i, register in enumerate(state)}, space)[0]


@decomposed("apply")
def row_reduction(tensors: Tensors, numbers: Any, values: Any, text: str, types: str) -> list[torch.Tensor]:
    """Return the products with a matrix or the reductions of its rows; the matrix is stored."""
    apply, own = Apply.parse(text), Types.parse(types)
    count = len(apply.inner.tensors)
    written = Types(own.compute, (own.compute,), own.precision).text
    (entries,) = contraction(tensors[:count], numbers, values, apply.inner.text, written)
    if apply.weighted:
        found = [entries @ tensors[count].to(entries.dtype)]
    elif apply.selects:
        found = list(entries.topk(apply.count, -1, apply.how == "largest", True))
    else:
        found = [reduce_rows(apply.reduction, entries)]
    return [value.to(DTYPES[name]) for value, name in zip(found, own.outs, strict=True)]
