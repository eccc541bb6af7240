"""The front door of fused contractions: ``contract`` once, ``Contraction`` for reuse."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import torch

from ..arrays import unwrap
from ..contraction.definition import Definition, Fold, Reduce, Semiring, bind, define, symmetric
from ..contraction.derivative import undifferentiable
from ..contraction.lower import result_kind
from ..contraction.program import Program
from ..errors import GradientError, ParameterError, ShapeError
from ..expr.node import Number
from ..expr.simplify import POWER_CLASSES
from ..runtime.lru import LRUCache
from .autograd import Attributes, apply, assumed_constant, constant, no_gradient
from .checks import Call, check_call, check_out, check_precision, check_terms, number_of
from .dtypes import NAMES, check_integer, check_numbers, check_truths, compute_type, name_of, stored_type
from .execute import Types, execute
from .oneshot import fingerprint, unseen
from .recall import Bound, Recall
from .torch_private import plain


@constant
def _bound(text: str, tensors: tuple[str, ...], literals: tuple[tuple[str, Number], ...], twin: bool) -> Bound:
    definition = Definition.parse(text)
    binding = bind(definition, frozenset(tensors), literals, twin)
    reduction = undifferentiable(binding.program)
    missing = "" if reduction is None else reduction.name
    return Bound(binding.program.text, binding.tensor_parameters, binding.numbers, missing)


@constant
def _types(text: str, stored: tuple[str, ...], precision: str) -> str:
    program, compute = Program.parse(text), compute_type(stored)
    outs = tuple(stored_type(result_kind(output, program), stored[0]) for output in program.outputs)
    return Types(compute, outs, precision).text


_arithmetic, _logic = constant(check_integer), constant(check_truths)


def _parsed(text: str) -> Contraction:
    return Contraction.of(Definition.parse(text))


class Contraction:
    """A fused contraction ``out[...] = epilogue(reduce(map(operands)))``, traced once and called many times.

    The equation names the axes of every operand and of the output; axes missing from the output are reduced;
    batch axes are implicit on the left and broadcast. An operand may be named (``"mk,nk,w:k->mn"``), it is then
    passed by keyword and reaches map and epilogue by that name.

    Parameters
    ----------
    equation : str
        For example ``"mk,nk->mn"``.
    map : callable or None
        Lambda of the operands in the equation's order and of named parameters; may return a tuple, one entry
        per accumulator. None with a :class:`Fold`.
    reduce : str, Semiring, Fold or sequence of these
        ``"sum" "prod" "min" "max" "logsumexp" "any" "all" "argmin" "argmax"``, or one's own.
    epilogue : callable, optional
        Lambda of the accumulators, named operands without a reduced axis, and parameters.

    Raises
    ------
    EquationError, TraceError, ParameterError
        When the definition does not make sense; nothing is compiled before.

    Notes
    -----
    Calls take ``(*operands, params=None, out=None, precision=None, **parameters)``. Operands are tensors, numpy
    or DLPack arrays of one dtype and device, of shape (..., axes of the equation); the result is of the same
    kind. float16 and bfloat16 are computed in float32, integers in their own type. Parameters are numbers or
    (batched) tensors and never compile anew. Gradients of every order exist for operands and parameters under
    sum, min, max and logsumexp, and up to the third under prod; beyond, a GradientError says so. One evaluation of
    the map per element of all axes, memory of inputs and output only.

    Examples
    --------
    >>> import kernmantle as km, numpy as np
    >>> closest = km.Contraction("mk,nk->mn", lambda a, b: abs(a - b), reduce="max")
    >>> closest(np.array([[0.0, 1.0]]), np.array([[2.0, 4.0], [0.0, 1.0]]))
    array([[3., 0.]])
    """

    def __init__(
        self,
        equation: str,
        map: Callable[..., Any] | None,
        *,
        reduce: Reduce = "sum",
        epilogue: Callable[..., Any] | None = None,
    ) -> None:
        self._set(define(equation, map, reduce, epilogue))

    @classmethod
    def of(cls, definition: Definition) -> Contraction:
        """Contraction of a definition, whose expressions are there already."""
        self = cls.__new__(cls)
        self._set(definition)
        return self

    def _set(self, definition: Definition) -> None:
        self.definition = definition
        self.text = definition.text
        self.is_symmetric = symmetric(definition)
        self._exponents = definition.exponents
        self.recall = Recall(definition)
        self.routes: dict[str, str] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return _parsed, (self.text,)

    def __repr__(self) -> str:
        names = {new: name for name, new in self.definition.operand_names.items()}
        text = bind(self.definition, frozenset()).described(names)
        ran = f", ran as {self.recall.route}" if self.recall.route else ""
        return f"Contraction({self.definition.equation.text!r}: {text.partition(': ')[2]}{ran})"

    @property
    def program(self) -> Program:
        """The program with every parameter passed by value."""
        return bind(self.definition, frozenset()).program

    def __call__(
        self,
        *operands: Any,
        params: Mapping[str, Any] | None = None,
        out: Any = None,
        precision: str | None = None,
        **named: Any,
    ) -> Any:
        """Evaluate on operands, see the class."""
        if params is not None:
            twice = [name for name in named if name in params]
            if twice:
                raise ParameterError(f"parameter {twice[0]!r} is given by name and in params=; give it once")
            named = {**params, **named}
        known = self.recall(operands, precision, named, out)
        if known is not None:
            return known
        call = self._gather(operands, named)
        tensors, wrap = unwrap(*call.arrays, names=call.labels)
        call = call.with_tensors(tensors)
        geometry = check_call(self.definition.equation, call)
        check_terms(self.definition, geometry.axes)
        check_precision(precision)
        bound, values, exact = self._bind(call)
        stored = tuple(name_of(tensor.dtype, label) for tensor, label in zip(call.tensors, call.labels, strict=True))
        _logic(bound.text, tuple(NAMES[value.dtype] for value in values))
        if not tensors[0].is_floating_point():
            check_numbers(exact, _arithmetic(bound.text, stored))
        numbers = [float(number) for number in exact]
        types = _types(bound.text, stored[: call.count], precision or "default")
        shape = geometry.batch + tuple(geometry.axes[axis] for axis in self.definition.equation.out)
        tracked = torch.is_grad_enabled() and any(value.requires_grad for value in values)
        if tracked and bound.without_gradient:
            raise no_gradient(bound.without_gradient)
        if out is None:
            results = apply(bound.text, types, numbers, values)
        else:
            targets = check_out(out, shape, types, values, tracked, self.definition.single)
            if not plain([*values, *targets]):
                raise GradientError("out= cannot be combined with a transform of torch.func; drop out=")
            results = execute(bound.text, types, values, numbers, targets)
            torch.autograd.graph.increment_version([target for target in targets if not target.is_inference()])
        if not torch.compiler.is_compiling():
            self.recall.learn(operands, precision, named, out, bound, types)
        if out is not None:
            return out
        return wrap(results[0] if self.definition.single else tuple(results))

    def _gather(self, operands: Sequence[Any], named: Mapping[str, Any]) -> Call:
        definition = self.definition
        wanted = len(definition.equation.positional)
        if len(operands) != wanted:
            raise ShapeError(f"equation {definition.equation.text!r} takes {wanted} operands, got {len(operands)}")
        known = {*definition.parameters, *definition.operand_names}
        unknown = [name for name in named if name not in known]
        if unknown:
            listing = ", ".join(sorted(known)) or "none"
            raise ParameterError(f"unknown parameter {unknown[0]!r}; this contraction has {listing}")
        given = {**dict(definition.defaults), **named}
        missing = [name for name in known if name not in given]
        if missing:
            raise ParameterError(f"parameter {sorted(missing)[0]!r} is missing: pass it by name or in params=")
        return Call.of(definition, operands, given)

    def _bind(self, call: Call) -> tuple[Bound, list[torch.Tensor], list[Number]]:
        values = {name: number_of(value, name) for name, value in call.numbers.items()}
        twin = self.is_symmetric and call.operands[0] is call.operands[1]
        exponents = {name: value for name, value in values.items() if name in self._exponents}
        literals = [(name, known) for name, value in exponents.items() for known in POWER_CLASSES if value == known]
        bound = _bound(self.text, call.names, tuple(literals), twin)
        operands = [tensor for place, tensor in enumerate(call.operands) if not (twin and place == 1)]
        tensors = operands + [call.parameters[name] for name in bound.tensor_parameters]
        return bound, tensors, [values[entry] if isinstance(entry, str) else entry for entry in bound.numbers]


_TRACED = Attributes()


@assumed_constant
def _traced(equation: str, map: Callable[..., Any] | None, reduce: Any, epilogue: Any) -> str:
    """Where the contraction of lambdas is kept that torch.compile comes upon; made while it traces."""
    for function in (map, epilogue):
        reason = unseen(function)
        if reason:
            raise ParameterError(
                f"a lambda {reason}, whose changes torch.compile would not see; "
                "pass numbers as parameters, or make the Contraction beforehand"
            )
    key = (equation, map, reduce, epilogue)
    return _TRACED.name_of(key, lambda: Contraction(equation, map, reduce=reduce, epilogue=epilogue))


_WRITTEN: LRUCache[Hashable, Contraction] = LRUCache(256)


def _written(equation: str, map: Callable[..., Any] | None, reduce: Reduce, epilogue: Any) -> Contraction:
    """Contraction of lambdas written on the spot, the earlier one if they compute the same."""
    if torch.compiler.is_compiling():
        if isinstance(reduce, (Semiring, Fold)):
            raise ParameterError(
                "torch.compile does not see what a Semiring or Fold is: make the Contraction beforehand"
            )
        return getattr(_TRACED, _traced(equation, map, reduce, epilogue))
    marks = (fingerprint(map), fingerprint(epilogue)) if isinstance(reduce, str) else (None,)
    if None in marks:
        definition = define(equation, map, reduce, epilogue)
        return _WRITTEN.get(definition.text) or _WRITTEN.setdefault(definition.text, Contraction.of(definition))
    key = (equation, reduce, *marks)
    found = _WRITTEN.get(key)
    if found is None:
        found = _WRITTEN.setdefault(key, Contraction(equation, map, reduce=reduce, epilogue=epilogue))
    return found


def contract(
    equation: str,
    map: Callable[..., Any] | None,
    *operands: Any,
    reduce: Reduce = "sum",
    epilogue: Callable[..., Any] | None = None,
    params: Mapping[str, Any] | None = None,
    out: Any = None,
    precision: str | None = None,
    **named: Any,
) -> Any:
    """One fused contraction, ``Contraction(equation, map, ...)(*operands, ...)``.

    In a function for torch.compile the lambdas are traced once, while it traces: numbers that change go in as
    parameters. A lambda that reads a global number, a helper, an attribute or an item is refused there, and so is a
    Semiring or Fold: these need a :class:`Contraction` made beforehand.

    Parameters
    ----------
    equation, map, reduce, epilogue
        See :class:`Contraction`.
    *operands : array
        The unnamed operands, in the equation's order.
    params, **named
        Parameters (numbers, 0-d or batched tensors) and named operands.
    out : array, optional
        Written in place; of the result's shape and dtype, not overlapping an operand, and without a gradient.
    precision : {None, "ieee", "tf32", "half"}
        Arithmetic of recognised matrix products and squared differences; "half" also lets a GPU take sums of
        ``abs(a - b)`` of float16 operands in float16, 16 terms at a time: see ``docs/numerics.md``.

    Returns
    -------
    array or tuple of arrays
        One per output expression.

    Raises
    ------
    KernmantleError
        Before anything is launched; with the equation, the shapes that were given, and what to do.

    Notes
    -----
    Cost, types and gradients are those of :class:`Contraction`. A lambda of its arguments, numbers, helper functions
    and functions of kernmantle, torch, numpy and math is found again by its code and what it captures, in some
    microseconds. Any other (one that imports, reads attributes of objects or items of dictionaries) is traced at each
    call, in a fraction of a millisecond; a :class:`Contraction` made once saves that.

    Examples
    --------
    >>> import kernmantle as km, numpy as np
    >>> x, y = np.array([[0.0, 3.0]]), np.array([[1.0, 1.0]])
    >>> km.contract("mk,nk->mn", lambda a, b: a + b, x, y, reduce="min")
    array([[1.]])
    >>> km.contract("mk,nk->mn", lambda a, b, p: abs(a - b) ** p, x, y, p=2, epilogue=lambda s, p: s ** (1 / p))
    array([[2.23606798]])
    """
    contraction = _written(equation, map, reduce, epilogue)
    return contraction(*operands, params=params, out=out, precision=precision, **named)
