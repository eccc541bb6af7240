"""The front of applies: a contraction whose matrix is multiplied or reduced without being stored.

``kernmantle::apply`` is the torch operator, whose derivatives are taken around it; its arguments are the canonical text
of the apply and, for a product, v behind the tensors of the program.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..contraction.apply import Apply
from ..contraction.definition import Definition, bind
from ..expr.node import Number
from ..expr.simplify import POWER_CLASSES
from .autograd import constant
from .checks import Call, number_of
from .contract import Contraction
from .dtypes import DTYPES, compute_type, name_of
from .execute import Types
from .operator import NUMBERS, front, packed, read
from .rows import run, shapes, whole_geometry
from .torch_private import plain, refuse_derivative

_LIBRARY = torch.library.Library("kernmantle", "FRAGMENT")
_LIBRARY.define(f"apply(Tensor[] tensors, {NUMBERS}, str apply, str types) -> Tensor[]")


def _run(tensors: list[torch.Tensor], *numbers_and_texts: Any) -> list[torch.Tensor]:
    *numbers, text, types = numbers_and_texts
    return run(text, types, tensors, read(*numbers))[0]


def _fake(tensors: list[torch.Tensor], *numbers_and_texts: Any) -> list[torch.Tensor]:
    text, types = numbers_and_texts[-2:]
    parsed = Apply.parse(text)
    shape = shapes(parsed, whole_geometry(parsed, [tuple(t.shape) for t in tensors]))
    return [tensors[0].new_empty(shape, dtype=DTYPES[name]) for name in Types.parse(types).outs]


for _key, _function in (("CPU", _run), ("CUDA", _run), ("Meta", _fake)):
    _LIBRARY.impl("apply", _function, _key)
refuse_derivative(
    _LIBRARY, "apply", lambda tensors, *_: tensors,
    "call the matmul, sum, max, min, logsumexp or argkmin of a kernel, or detach the tensors",
)  # fmt: skip
_operator = torch.ops.kernmantle.apply.default


def _vmap(info: Any, in_dims: Any, tensors: Any, *numbers_and_texts: Any) -> tuple[Any, Any]:
    parsed = Apply.parse(numbers_and_texts[-2])
    axes = [len(operand.axes) for operand in parsed.inner.tensors] + [2] * parsed.weighted
    dims: Sequence[int | None] = in_dims[0]
    ranks = [t.dim() - own - (dim is not None) for t, own, dim in zip(tensors, axes, dims, strict=True)]
    moved = [
        tensor if dim is None else front(tensor.movedim(dim, 0), own, max(ranks))
        for tensor, own, dim in zip(tensors, axes, dims, strict=True)
    ]
    results = _operator(moved, *numbers_and_texts)
    return results, [0] * len(results)


torch.library.register_vmap("kernmantle::apply", _vmap, lib=_LIBRARY)


@constant
def _bound(
    text: str, tensors: tuple[str, ...], literals: tuple[tuple[str, Number], ...], how: str, count: int
) -> tuple[str, tuple[str, ...], tuple[str | Number, ...]]:
    """Text of the apply, names of the parameters that are tensors, and where its numbers come from."""
    binding = bind(Definition.parse(text), frozenset(tensors), literals)
    return Apply(binding.program, how, count).text, binding.tensor_parameters, binding.numbers


@constant
def _types(stored: tuple[str, ...], selects: bool, precision: str) -> str:
    return Types(compute_type(stored), (stored[0], *(["i64"] * selects)), precision).text


@constant
def _exponents(text: str) -> frozenset[str]:
    return Definition.parse(text).exponents


def apply(
    contraction: Contraction,
    how: str,
    operands: Sequence[torch.Tensor],
    parameters: Mapping[str, Any],
    v: torch.Tensor | None = None,
    count: int = 0,
    precision: str | None = None,
) -> tuple[torch.Tensor, ...]:
    """Results of an apply, without derivatives.

    Parameters
    ----------
    contraction : Contraction
        Of the matrix: one output over two axes.
    how : str
        One of ``contraction.apply.HOW``.
    operands, parameters
        As the contraction takes them, already checked.
    v : tensor, optional
        Of shape (..., n, c), for a product.
    count : int
        How many entries are wanted, for a selection.
    precision : str, optional
        As of a contraction.
    """
    call = Call.of(contraction.definition, operands, parameters)
    call = call.with_tensors([torch.as_tensor(array) for array in call.arrays])
    values = {name: number_of(value, name) for name, value in call.numbers.items()}
    powers = _exponents(contraction.text)
    literals = [(name, known) for name in values if name in powers for known in POWER_CLASSES if values[name] == known]
    text, names, entries = _bound(contraction.text, call.names, tuple(literals), how, count)
    tensors = [*call.operands, *(call.parameters[name] for name in names), *([v] if v is not None else [])]
    numbers = [float(values[entry]) if isinstance(entry, str) else float(entry) for entry in entries]
    stored = tuple(name_of(t.dtype, "an operand") for t in (*call.operands, *([v] if v is not None else [])))
    types = _types(stored, count > 0, precision or "default")
    if plain(tensors) and not torch.compiler.is_compiling():
        results, contraction.routes[how] = run(text, types, tensors, numbers)
        return tuple(results)
    return tuple(_operator(tensors, *packed(numbers), text, types))
