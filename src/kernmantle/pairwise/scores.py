"""Matrices between rows that are never stored, given by name, lambda, kernel or contraction, and what follows them.

A cost of optimal transport and a score of attention are the same thing: one number for every row of x and row of y.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from ..arrays import Wrap, check_same_device, is_numpy_like, promoted
from ..errors import DtypeError, EquationError, ParameterError
from ..ir.autodiff import undifferentiable
from ..ir.definition import Definition, of_expressions
from ..ir.node import var
from ..ir.trace import trace
from ..torch_ops.autograd import Attributes, assumed_constant
from ..torch_ops.contract import Contraction, written
from ..torch_ops.derivation import no_gradient
from ..torch_ops.row_reduce_autograd import rowwise
from ..torch_ops.torch_private import is_recorded
from .constructors import CONSTRUCTORS
from .distance import of_names
from .inputs import HALVES, check_rows, find, floating, tensors_of
from .kernel import Kernel
from .kernel_form import gram
from .own_metric import check_names

_SCALE = "scale"


@dataclass(frozen=True)
class Scores:
    """A contraction that gives a matrix (..., m, n), and what it takes; ``is_transposed`` swaps its axes."""

    contraction: Contraction
    operands: tuple[torch.Tensor, ...]
    parameters: Mapping[str, Any]
    is_transposed: bool = False

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """Operands, then the parameters that are tensors."""
        return *self.operands, *(value for value in self.parameters.values() if isinstance(value, torch.Tensor))

    def with_tensors(self, tensors: tuple[torch.Tensor, ...]) -> Scores:
        """Return the same of other tensors, in the order of ``tensors``."""
        count = len(self.operands)
        rest = iter(tensors[count:])
        parameters = {
            name: next(rest) if isinstance(value, torch.Tensor) else value for name, value in self.parameters.items()
        }
        return replace(self, operands=tuple(tensors[:count]), parameters=parameters)

    @property
    def transposed(self) -> Scores:
        """The transposed matrix."""
        return replace(self, is_transposed=not self.is_transposed)

    def reduced(
        self, how: str, outer: Outer, scale: Any, *operands: torch.Tensor, v: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return a reduction of the rows of ``outer(score, scale, *operands)``, or its product with v.

        The operands are over the axes that ``outer`` names. Derivatives of every order are recorded where asked.
        """
        own, tensors, parameters = self.passed(outer, scale, *operands)
        return rowwise(own, how, tensors, parameters, v)

    def passed(
        self, outer: Outer, scale: Any, *operands: torch.Tensor
    ) -> tuple[Contraction, list[torch.Tensor], dict[str, Any]]:
        """Return the contraction of ``outer(score, scale, *operands)``, its operands and its parameters."""
        own: Contraction = getattr(_MADE_OF_SCORES, _outer(self.contraction.text, outer.key, self.is_transposed))
        values = {**self.parameters, _free_name(self.contraction.definition): scale}
        return own, [*self.operands, *operands], {each: values[each] for each in own.definition.parameters}


@dataclass(frozen=True)
class Outer:
    """A function of a score, of a scale and of operands over the axes "m", "n" or "mn" of the matrix, by name."""

    key: str
    function: Callable[..., Any]
    axes: tuple[str, ...]

    def __post_init__(self) -> None:
        _OUTER[self.key] = self


_OUTER: dict[str, Outer] = {}
_MADE_OF_SCORES = Attributes()


def _free_name(definition: Definition) -> str:
    """Return a name for the scale that no parameter of the scores has."""
    name = _SCALE
    while name in definition.parameters:
        name += "_"
    return name


@assumed_constant
def _outer(text: str, key: str, is_transposed: bool) -> str:
    """Return the attribute that holds the contraction of a function of the scores."""
    return _MADE_OF_SCORES.name_of((text, key, is_transposed), lambda: composed(text, _OUTER[key], is_transposed))


def composed(text: str, outer: Outer, is_transposed: bool) -> Contraction:
    """Return the contraction of a function of the scores of a canonical text."""
    own = Definition.parse(text)
    out = own.equation.out[::-1] if is_transposed else own.equation.out
    letters = dict(zip("mn", out, strict=True))
    first = len(own.equation.operands)
    operands = [var(f"x{first + index}") for index in range(len(outer.axes))]
    values = [own.outputs[0], var(_free_name(own)), *operands]
    outputs = trace(outer.function, values, what="function of the scores").roots
    axes = [*own.equation.operands, *("".join(map(letters.__getitem__, each)) for each in outer.axes)]
    return Contraction.of(of_expressions(f"{','.join(axes)}->{out}", own.map, own.reductions, outputs))


class Arrays(NamedTuple):
    """Tensors by name, of one floating-point type, and what makes results of the caller's kind of array."""

    tensors: dict[str, torch.Tensor]
    wrap: Wrap

    @property
    def dtype(self) -> torch.dtype:
        """The type of all tensors."""
        return next(iter(self.tensors.values())).dtype

    @property
    def wide(self) -> dict[str, torch.Tensor]:
        """The tensors in the type that is computed in: halves as float32."""
        return {name: t.float() if t.dtype in HALVES else t for name, t in self.tensors.items()}

    def finished(self, result: torch.Tensor) -> Any:
        """Return a result in the caller's type and kind of array."""
        return self.wrap(result.to(self.dtype))


def arrays_of(named: Mapping[str, Any], optional: str = "") -> Arrays:
    """Return arrays as tensors of the widest of their types; None, of an ``optional`` one, is left out."""
    missing = next((name for name, value in named.items() if value is None and name not in optional), None)
    if missing is not None:
        raise DtypeError(f"{missing} is None; pass an array")
    present = {name: value for name, value in named.items() if value is not None}
    tensors, wrap = tensors_of(present)
    check_same_device([*tensors.values()], [*tensors])
    host = is_numpy_like(next(iter(present.values())))
    return Arrays(promoted({name: floating(tensor, name, host) for name, tensor in tensors.items()}), wrap)


def is_inner_product(what: Any) -> bool:
    """Return whether scores are the metric by name that is large where rows are close."""
    return isinstance(what, str) and find(what).name == "inner_product"


def scores_of(what: Any, x: torch.Tensor, y: torch.Tensor, options: Mapping[str, Any], name: str) -> Scores:
    """Return the matrix between rows of x and y that the argument ``name`` says, once everything is checked.

    ``what`` is the name of a metric, a lambda of two numbers that is summed, a kernel, or a contraction of two
    operands; ``options`` are those of a metric.
    """
    if isinstance(what, str):
        found = _of_metric(what, x, y, options)
    elif options:
        raise ParameterError(f"{next(iter(options))}= is an option of metrics by name, which {name}= is not")
    elif isinstance(what, Kernel):
        found = _of_kernel(what, x, y)
    elif isinstance(what, Contraction):
        _check_equation(what, name)
        found = _of_contraction(what, x, y, name)
    elif any(what is each for each in CONSTRUCTORS.values()):
        raise ParameterError(f"{name}=km.{what.__name__} makes kernels: call it, as km.{what.__name__}()")
    elif callable(what):
        found = _of_contraction(written("mk,nk->mn", what, "sum", None), x, y, name)
    else:
        raise ParameterError(
            f"{name}= is the name of a metric, a lambda of two numbers, a km.Kernel or a km.Contraction, not "
            f"{type(what).__name__}"
        )
    if not torch.compiler.is_compiling() and is_recorded(found.tensors):
        missing = undifferentiable(found.contraction.program)
        if missing is not None:
            raise no_gradient(missing.name)
    return found


def _of_metric(name: str, x: torch.Tensor, y: torch.Tensor, options: Mapping[str, Any]) -> Scores:
    check_names(options)
    _, found = of_names(name, options, x, y)
    return Scores(found.contraction, found.operands, dict(found.parameters))


def _of_kernel(kernel: Kernel, x: torch.Tensor, y: torch.Tensor) -> Scores:
    call, _ = kernel.prepared(x, y)
    own = call.kernel_inputs(call.x, call.y, call.shared)
    return Scores(gram(call.form), tuple(own.operands), own.parameters)


def _of_contraction(own: Contraction, x: torch.Tensor, y: torch.Tensor, name: str) -> Scores:
    definition = own.definition
    count = len(definition.outputs)
    if count != 1:
        raise ParameterError(f"{name}= is one number of a pair of rows, its map returns {count}")
    defaults = dict(definition.defaults)
    missing = next((each for each in definition.parameters if each not in defaults), None)
    if missing is not None:
        raise ParameterError(
            f"{name}= has the parameter {missing!r} without a value: pass km.Kernel(lambda ..., {missing}=...)"
        )
    check_rows(x, y)
    return Scores(own, (x, y), defaults)


def _check_equation(own: Contraction, name: str) -> None:
    """Raise EquationError unless two operands of rows have one axis in common, which the matrix lacks."""
    equation, out = own.definition.equation, own.definition.equation.out
    reduced = [axis for axis in equation.letters if axis not in out]
    fits = len(out) == 2 and len(reduced) == 1 and len(equation.positional) == 2 and len(own.definition.outputs) == 1
    if not fits or equation.operands != tuple(axis + reduced[0] for axis in out):
        raise EquationError(
            f"{name}= is a contraction of two operands to their matrix, as 'mk,nk->mn' is, not {equation.text!r}"
        )
