"""The table of torch's operators, and the first of them, whose argument is the canonical text of a program.

Its derivatives are registered where they are made, in ``autograd``. Every operator is defined here, before the module
that runs it is loaded, so that a counter of operations made earlier has its formula.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..ir.program import Program
from .call_site import BINDS, Bind, lower
from .dtypes import DTYPES
from .execute import Types, execute
from .flops import count_by_formula, counted, program_flops
from .layout import geometry
from .torch_private import in_callers_context

LIBRARY = torch.library.Library("kernmantle", "DEF")
NUMBERS = "float[] numbers, Tensor[]? values"
"""Numbers of a program in the schema of an operator: one of the two holds them all, see ``packed``.

Without tensors ``values`` is None, since AOTInductor passes an empty list of tensors as None.
"""
_SPARSE = "str activation, bool batch_last, str algorithm, str precision"
SCHEMAS = {
    "contract": f"(Tensor[] tensors, {NUMBERS}, str program, str types) -> Tensor[]",
    "contract_backward": f"(Tensor[] saved, Tensor[] cotangents, {NUMBERS}, str program, str types, bool[] needed, "
    "bool[] present) -> Tensor[]",
    "apply": f"(Tensor[] tensors, {NUMBERS}, str apply, str types) -> Tensor[]",
    "apply_backward": f"(Tensor[] tensors, Tensor result, Tensor cotangent, {NUMBERS}, str apply, str types, "
    "bool[] needed) -> Tensor[]",
    "kron": "(Tensor x, Tensor[] factors, Tensor? y, Scalar alpha, Scalar beta, str modes, str options) -> Tensor",
    "kron_backward": "(Tensor x, Tensor[] factors, Tensor grad, Scalar alpha, str modes, str options, bool[] needed) "
    "-> Tensor[]",
    "kron_sparse": f"(Tensor x, Tensor weight, Tensor? bias, {_SPARSE}) -> Tensor",
    "kron_sparse_weight": "(Tensor x, Tensor grad, SymInt a, SymInt b, SymInt c, SymInt d, str algorithm, "
    "str precision) -> Tensor",
    "kron_sparse_chain": "(Tensor x, Tensor[] weights, Tensor? bias, str step) -> Tensor[]",
    "kron_sparse_chain_backward": "(Tensor? x, Tensor[] weights, Tensor[] saved, Tensor grad, str step) -> Tensor[]",
    "kron_sparse_matrices": "(Tensor[] weights) -> Tensor[]",
    "kron_sparse_matrices_backward": "(Tensor[] weights, Tensor[] grads) -> Tensor[]",
}
for _name, _schema in SCHEMAS.items():
    LIBRARY.define(_name + _schema)
    count_by_formula(_name)


def implement(name: str, bind: Bind, fake: Callable[..., Any], vmap: Any = None) -> Any:
    """Register what binds an operator of ``SCHEMAS``, its fake and its vmap rule; return the callable operator.

    Every operator is registered here. ``bind`` of its arguments returns what gives the results of any that are laid out
    alike, which code of torch.compile finds again, see ``call_site``. ``fake`` is not passed to ``register_fake``,
    which takes 6 ms to find the line of its caller. ``register_derivative`` adds an ``Autograd`` kernel, which takes as
    long as a launch: an operator that only backward passes in a graph call has none.
    """
    BINDS[name] = bind

    def run(*args: Any) -> Any:
        return bind(*args)(*args)

    def traced(*args: Any) -> Any:
        lower(operator)  # what Inductor lowers has its fakes run before, by whoever traces for it
        return fake(*args)

    for key, function in (("CPU", run), ("CUDA", in_callers_context(run)), ("Meta", traced)):
        LIBRARY.impl(name, function, key)
    if vmap is not None:
        torch.library.register_vmap(f"kernmantle::{name}", vmap, lib=LIBRARY)
    operator = getattr(torch.ops.kernmantle, name).default
    return operator


def by_key(run: Callable[..., Any]) -> Bind:
    """Return the bind of an operator whose function finds by a key what it runs."""
    return lambda *_: run


def packed(numbers: Sequence[float | torch.Tensor]) -> tuple[list[float], list[torch.Tensor] | None]:
    """Return the numbers as an operator takes them: all as floats, or each as a 0-d tensor.

    Under torch.compile they travel in tensors on the host, made by additions: then they may change without compiling
    anew, while a Python number that meets an operator is compiled in. Of tensors without axes alone may lie on the
    host beside others on a GPU.
    """
    values: Any = list(numbers)
    if any(isinstance(number, torch.Tensor) for number in values):
        return [], values
    if not values or not torch.compiler.is_compiling():
        return values, None
    zero = torch.zeros((), dtype=torch.float64)
    return [], [zero + number for number in values]


def unpacked(numbers: Sequence[float], values: Sequence[torch.Tensor] | None) -> Sequence[Any]:
    """Return the numbers of ``packed``: the floats or the 0-d tensors."""
    return values or numbers


def read(numbers: Sequence[float], values: Sequence[torch.Tensor] | None) -> Sequence[float]:
    """Return Python numbers from the result of ``packed``."""
    return [value.item() for value in values or ()] or numbers


def _run(tensors: list[torch.Tensor], *numbers_and_texts: Any) -> list[torch.Tensor]:
    *numbers, program, types = numbers_and_texts
    return execute(program, types, tensors, read(*numbers))


def _fake(tensors: list[torch.Tensor], *numbers_and_texts: Any) -> list[torch.Tensor]:
    program, types = numbers_and_texts[-2:]
    parsed = Program.parse(program)
    shape = geometry(parsed, [tuple(t.shape) for t in tensors]).out_shape(parsed.out)
    return [tensors[0].new_empty(shape, dtype=DTYPES[name]) for name in Types.parse(types).outs]


@counted("contract")
def _flops(shapes: Any, *numbers_and_texts: Any, **_: Any) -> int:
    program = Program.parse(numbers_and_texts[-2])
    return program_flops(program, geometry(program, [tuple(shape) for shape in shapes]))


def mapped_first(
    tensors: Sequence[torch.Tensor], dims: Sequence[int | None], axes: Sequence[int]
) -> list[torch.Tensor]:
    """Return tensors with their mapped axis first, and 1-axes behind it so that all batch axes align.

    ``dims`` are the mapped axes, None of tensors without one, ``axes`` how many axes of each are no batch axes.
    """
    each = list(zip(tensors, dims, axes, strict=True))
    rank = max(tensor.dim() - own - (dim is not None) for tensor, dim, own in each)

    def moved(tensor: torch.Tensor, dim: int, own: int) -> torch.Tensor:
        ones = (1,) * (rank - (tensor.dim() - 1 - own))
        first = tensor.movedim(dim, 0)
        return first.reshape(first.shape[0], *ones, *first.shape[1:])

    return [tensor if dim is None else moved(tensor, dim, own) for tensor, dim, own in each]


def _vmap(info: Any, in_dims: Any, tensors: Any, *numbers_and_texts: Any) -> tuple[Any, Any]:
    axes = [len(operand.axes) for operand in Program.parse(numbers_and_texts[-2]).tensors]
    results = _operator(mapped_first(tensors, in_dims[0], axes), *numbers_and_texts)
    return results, [0] * len(results)


_operator = implement("contract", by_key(_run), _fake, _vmap)


def contract(
    tensors: Sequence[torch.Tensor], numbers: Sequence[float | torch.Tensor], program: str, types: str
) -> list[torch.Tensor]:
    """Return the outputs of a program, with derivatives by the tensors at every level that records one."""
    return _operator(list(tensors), *packed(numbers), program, types)
