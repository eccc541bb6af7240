"""The torch operator ``kernmantle::contract``: autograd-free, its argument the canonical text of a program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..contraction.program import Program
from .dtypes import DTYPES
from .execute import Types, execute
from .layout import geometry

_LIBRARY = torch.library.Library("kernmantle", "DEF")
_LIBRARY.define("contract(Tensor[] tensors, Scalar[] numbers, Tensor[] values, str program, str types) -> Tensor[]")
# One tensor without axes for each number: of these alone may lie on the host beside others on a GPU.
Values = list[torch.Tensor]


def _run(
    tensors: list[torch.Tensor], numbers: list[float], values: Values, program: str, types: str
) -> list[torch.Tensor]:
    return execute(program, types, tensors, [value.item() for value in values] or numbers)


def _fake(
    tensors: list[torch.Tensor], numbers: list[float], values: Values, program: str, types: str
) -> list[torch.Tensor]:
    parsed = Program.parse(program)
    shape = geometry(parsed, [tuple(t.shape) for t in tensors]).out_shape(parsed.out)
    return [tensors[0].new_empty(shape, dtype=DTYPES[name]) for name in Types.parse(types).outs]


# Not register_fake, which spends 6 ms on finding the line that it is called from.
for _key, _function in (("CPU", _run), ("CUDA", _run), ("Meta", _fake)):
    _LIBRARY.impl("contract", _function, _key)


def front(tensor: torch.Tensor, axes: int, batch_rank: int) -> torch.Tensor:
    """A tensor whose mapped axis is first, with 1-axes behind it so that all batch axes align."""
    lead = tensor.dim() - 1 - axes
    return tensor.reshape(tensor.shape[0], *(1,) * (batch_rank - lead), *tensor.shape[1:])


def _vmap(
    info: Any, in_dims: Any, tensors: Any, numbers: list[float], values: Values, program: str, types: str
) -> tuple[Any, Any]:
    operands = Program.parse(program).tensors
    dims: Sequence[int | None] = in_dims[0]
    ranks = [
        tensor.dim() - len(operand.axes) - (dim is not None)
        for operand, tensor, dim in zip(operands, tensors, dims, strict=True)
    ]
    moved = [
        tensor if dim is None else front(tensor.movedim(dim, 0), len(operand.axes), max(ranks))
        for operand, tensor, dim in zip(operands, tensors, dims, strict=True)
    ]
    results = _operator(moved, numbers, values, program, types)
    return results, [0] * len(results)


torch.library.register_vmap("kernmantle::contract", _vmap, lib=_LIBRARY)

_operator = torch.ops.kernmantle.contract.default


def contract(tensors: Sequence[torch.Tensor], numbers: Sequence[float], program: str, types: str) -> list[torch.Tensor]:
    """Outputs of a program, without derivatives.

    Under torch.compile the numbers travel in tensors on the host, made by additions: then they may change without
    compiling anew, while a Python number that meets an operator is compiled in.
    """
    if not numbers or not torch.compiler.is_compiling():
        return _operator(list(tensors), list(numbers), [], program, types)
    zero = torch.zeros((), dtype=torch.float64)
    return _operator(list(tensors), [], [zero + number for number in numbers], program, types)
