"""The front door of fused contractions: ``contract`` once, ``Contraction`` for reuse."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from ..arrays import unwrap
from ..errors import EquationError, GradientError, ParameterError, ShapeError
from ..ir.definition import Definition, bind, define, symmetric
from ..ir.node import Number
from ..ir.program import Program
from ..ir.reducers import Fold, Largest, Reduce, Semiring, Smallest
from ..ir.simplify import POWER_CLASSES, power_classes
from ..runtime.dispatch import PLANS, CallKey
from ..runtime.lru import LRUCache
from .autograd import Attributes, apply, assumed_constant, constant, record
from .bound import Bound, BoundContraction, bind_program
from .call_key import is_recorded, key_and_plan
from .checks import Call, check_call, check_out, check_precision, check_terms, number_of, reach
from .derivation import no_gradient
from .dtypes import NAMES, check_integer, check_numbers, check_truths, name_of
from .execute import execute, prepare, result_types
from .info import RunInfo
from .lambda_keys import fingerprint, unseen
from .nested import checked_scores, run_nested
from .scores import Scores
from .torch_private import PLAIN, plain

_types = constant(result_types)
_arithmetic, _logic = constant(check_integer), constant(check_truths)


def _parsed(text: str) -> Contraction:
    return Contraction.of(Definition.parse(text))


def _merged(params: Mapping[str, Any], named: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the parameters of a call by name."""
    if not isinstance(params, Mapping):
        raise ParameterError(f"params must be a dictionary of names and values, not {params!r}")
    twice = [name for name in named if name in params]
    if twice:
        raise ParameterError(f"parameter {twice[0]!r} is given by name and in params=; give it once")
    return {**params, **named}


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
        ``"sum" "prod" "min" "max" "logsumexp" "any" "all" "argmin" "argmax"``, or your own.
    epilogue : callable, optional
        Lambda of the accumulators, named operands without a reduced axis, and parameters.

    Raises
    ------
    EquationError, TraceError, ParameterError
        If the definition is invalid; nothing is compiled before that is checked.

    Notes
    -----
    Calls take ``(*operands, params=None, out=None, precision=None, **parameters)``. Operands are tensors, numpy
    or DLPack arrays of one dtype and device, of shape (..., axes of the equation); the result is of the same
    kind. float16 and bfloat16 are computed in float32, integers in int32 or int64. Parameters are numbers or
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
        if torch.compiler.is_dynamo_compiling():  # which is False while it evaluates constants
            self._share(written(equation, map, reduce, epilogue))
        else:
            self._set(define(equation, map, reduce, epilogue))

    @classmethod
    def of(cls, definition: Definition) -> Contraction:
        """Return the contraction of a definition, whose expressions are there already."""
        self = cls.__new__(cls)
        self._set(definition)
        return self

    def _set(self, definition: Definition) -> None:
        self.definition = definition
        self.text = definition.text
        self.is_symmetric = symmetric(definition)
        self._of_rows = next((row.name for row in definition.reductions if row.is_of_rows), "")
        self.info = RunInfo()
        self._operation, self._single = ("contraction", self.text), definition.single
        self._exponents = definition.exponents
        self._names = definition.equation.names
        self._operand_names = frozenset(definition.operand_names)
        self._positional = len(self._names) - len(self._operand_names)

    def _share(self, other: Contraction) -> None:
        """Take everything from another contraction of the same text, one by one, as torch.compile can trace."""
        self.definition, self.text, self.is_symmetric = other.definition, other.text, other.is_symmetric
        self._of_rows, self.info = other._of_rows, other.info
        self._operation, self._single, self._exponents = other._operation, other._single, other._exponents
        self._names, self._operand_names, self._positional = other._names, other._operand_names, other._positional

    def __reduce__(self) -> tuple[Any, ...]:
        return _parsed, (self.text,)

    def __repr__(self) -> str:
        return self.described(self.info)

    def described(self, info: RunInfo) -> str:
        """Return the expressions, and the route of ``info``."""
        names = {new: name for name, new in self.definition.operand_names.items()}
        text = bind(self.definition, frozenset()).described(names)
        return f"Contraction({self.definition.equation.text!r}: {text.partition(': ')[2]}{info.suffix})"

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
        merged = named if params is None else _merged(params, named)
        return self.run(operands, merged, out, precision, self.info)

    def lazy(self, *operands: Any, params: Mapping[str, Any] | None = None, **named: Any) -> Scores:
        """Bind operands and parameters to the contraction without evaluating it.

        Parameters
        ----------
        *operands, params, **named
            As of a call; they are checked now.

        Returns
        -------
        Scores
            An operand of :func:`contract` and of contractions, whose rows are reduced without storing them.

        Raises
        ------
        KernmantleError
            As a call, and EquationError unless the output has two axes.

        Examples
        --------
        >>> import kernmantle as km, numpy as np
        >>> squares = km.Contraction("mk,nk->mn", lambda a, b: (a - b) ** 2)
        >>> scores = squares.lazy(np.zeros((2, 3)), np.ones((4, 3)))
        >>> km.contract("mn,n->m", lambda s, w: km.exp(-s / 3) * w, scores, np.ones(4))
        array([1.47151776, 1.47151776])
        """
        values = named if params is None else _merged(params, named)
        described = self._described(operands, values, None, None)
        key, shape = (None, None) if described is None else key_and_plan(("lazy", self.text), *described)
        if shape is not None:
            numbers = {name: value for name, value in values.items() if name not in self._operand_names}
            return Scores(self, operands[0] if operands else None, self._in_order(operands, values), numbers, shape)
        call = self._gather(operands, values)
        scores = checked_scores(self, call)
        if key is not None and self._names[0] is None and not any(torch.is_tensor(values.get(n)) for n in call.numbers):
            PLANS[key] = scores.shape
        return scores

    def run(
        self, operands: Sequence[Any], named: Mapping[str, Any], out: Any, precision: str | None, info: RunInfo
    ) -> Any:
        """Return the result of a call; ``info`` takes its route."""
        described = self._described(operands, named, out, precision)
        key, plan = (None, None) if described is None else key_and_plan(self._operation, *described)
        if plan is not None:
            info.route = plan.route
            return plan(self._in_order(operands, named) if self._operand_names else operands, named, out)
        return self._checked(key, operands, named, out, precision, info)

    def warm(
        self, operands: Sequence[Any], named: Mapping[str, Any], out: Any, precision: str | None
    ) -> tuple[bool, Any]:
        """Return whether the plan of a call is bound, which then needs no check, and its result."""
        described = self._described(operands, named, out, precision)
        plan = None if described is None else key_and_plan(self._operation, *described)[1]
        if plan is None:
            return False, None
        self.info.route = plan.route
        return True, plan(self._in_order(operands, named) if self._operand_names else operands, named, out)

    def _in_order(self, operands: Sequence[Any], named: Mapping[str, Any]) -> Sequence[Any]:
        """Return the operands in the equation's order, named ones among them, None for one that is missing."""
        rest = iter(operands)
        return [next(rest) if name is None else named.get(name) for name in self._names]

    def _described(
        self, operands: Sequence[Any], named: Mapping[str, Any], out: Any, precision: str | None
    ) -> tuple[tuple[Any, ...], Sequence[Any]] | None:
        """Return the options and tensors that checks and plan depend on; None for what has to go through all checks."""
        if torch.compiler.is_compiling() or len(operands) != self._positional:
            return None
        if precision is not None and type(precision) is not str:
            return None
        values = self._in_order(operands, named) if self._operand_names else operands
        alias = len(values) > 1 and values[0] is values[1]
        options: list[Any] = [precision, alias]
        others: list[Any] = []
        for name, value in named.items():
            kind = type(value)
            if kind is float or kind is int:
                options += name, value if name in self._exponents and value in POWER_CLASSES else None
            elif name not in self._operand_names:
                options.append(name)
                others.append(value)
        if out is not None:
            outs = (out,) if self._single else out
            if type(outs) not in (tuple, list):
                return None
            for target in outs:
                if type(target) not in PLAIN or target.requires_grad:
                    return None
            options.append("out")
            others += outs
        return tuple(options), [*(values[1:] if alias else values), *others]

    def _checked(
        self, key: CallKey | None, operands: Sequence[Any], named: Mapping[str, Any], out: Any, precision: str | None,
        info: RunInfo,
    ) -> Any:  # fmt: skip
        """Return the result of a call after all checks, and store its bound call where it has a key."""
        if any(isinstance(value, Scores) for value in (*operands, *named.values())):
            gather = partial(self._gather, operands, named)
            return run_nested(self, gather, operands, named, out, precision, info)
        call = self._gather(operands, named)
        if self._of_rows:
            raise ParameterError(
                f"reduce={self._of_rows!r} is for the rows of scores that are not stored: pass scores, made by "
                'km.Contraction("mk,nk->mn", ...).lazy(x, y), or take torch.softmax or torch.topk of the array'
            )
        tensors, wrap = unwrap(*call.arrays, names=call.labels)
        call = call.with_tensors(tensors)
        geometry = check_call(self.definition.equation, call)
        check_terms(self.definition, geometry.axes)
        check_precision(precision)
        inputs, values, exact = self._bind(call)
        stored = tuple(name_of(tensor.dtype, label) for tensor, label in zip(call.tensors, call.labels, strict=True))
        _logic(inputs.text, tuple(NAMES[value.dtype] for value in values))
        if not tensors[0].is_floating_point():
            check_numbers(exact, _arithmetic(inputs.text, stored))
        numbers = [float(number) for number in exact]
        types = _types(inputs.text, stored[: call.count], precision or "default")
        shape = geometry.batch + tuple(geometry.axes[axis] for axis in self.definition.equation.out)
        tracked = torch.is_grad_enabled() and any(value.requires_grad for value in values)
        if tracked and inputs.without_gradient:
            raise no_gradient(inputs.without_gradient)
        if out is None:
            results = apply(inputs.text, types, numbers, values, info)
            targets = None
        else:
            targets = check_out(out, shape, types, values, tracked, self.definition.single)
            if not plain([*values, *targets]):
                raise GradientError("out= cannot be combined with a transform of torch.func; drop out=")
            results = execute(inputs.text, types, values, numbers, targets, info)
            torch.autograd.graph.increment_version([target for target in targets if not target.is_inference()])
        if key is not None and self._is_repeatable(call, inputs, named):
            PLANS[key] = self._bound_call(key, inputs, types, values, targets)
        if out is not None:
            return out
        return wrap(results[0] if self.definition.single else tuple(results))

    def _is_repeatable(self, call: Call, inputs: Bound, named: Mapping[str, Any]) -> bool:
        """Return whether equal keys have equal plans: not if values of numbers are checked or tensors are read."""
        if inputs.numbers and not call.tensors[0].is_floating_point():
            return False
        return not any(isinstance(named.get(name), torch.Tensor) for name in call.numbers)

    def _bound_call(
        self, key: CallKey, inputs: Bound, types: str, values: Sequence[torch.Tensor], outs: Any
    ) -> BoundContraction:
        defaults = dict(self.definition.defaults)
        numbers = [
            (entry, defaults.get(entry)) if isinstance(entry, str) else ("", float(entry)) for entry in inputs.numbers
        ]
        program = record(inputs.text, types, values) if is_recorded(key) else prepare(inputs.text, types, values, outs)
        as_they_are = not inputs.alias and not inputs.tensor_parameters
        single = self.definition.single
        spans = tuple(map(reach, (*outs, *values))) if single and outs is not None else ()
        return BoundContraction(program, inputs, as_they_are, tuple(numbers), single, program.route, spans)

    def _gather(self, operands: Sequence[Any], named: Mapping[str, Any]) -> Call:
        definition = self.definition
        wanted = len(definition.equation.positional)
        if len(operands) != wanted:
            raise ShapeError(f"equation {definition.equation.text!r} takes {wanted} operands, got {len(operands)}")
        names = {*definition.parameters, *definition.operand_names}
        unknown = [name for name in named if name not in names]
        if unknown:
            listing = ", ".join(sorted(names)) or "none"
            raise ParameterError(f"unknown parameter {unknown[0]!r}; this contraction has {listing}")
        values = {**dict(definition.defaults), **named}
        missing = [name for name in names if name not in values]
        if missing:
            raise ParameterError(f"parameter {sorted(missing)[0]!r} is missing: pass it by name or in params=")
        return Call.of(definition, operands, values)

    def _bind(self, call: Call) -> tuple[Bound, list[torch.Tensor], list[Number]]:
        values = {name: number_of(value, name) for name, value in call.numbers.items()}
        alias = self.is_symmetric and call.operands[0] is call.operands[1]
        exponents = {name: value for name, value in values.items() if name in self._exponents}
        literals = [(name, power) for name, value in exponents.items() for power in power_classes() if value == power]
        bound = bind_program(self.text, call.names, tuple(literals), alias)
        operands = [tensor for index, tensor in enumerate(call.operands) if not (alias and index == 1)]
        tensors = operands + [call.parameters[name] for name in bound.tensor_parameters]
        return bound, tensors, [values[entry] if isinstance(entry, str) else entry for entry in bound.numbers]


_TRACED = Attributes()


@assumed_constant
def _traced(equation: str, map: Callable[..., Any] | None, reduce: Any, epilogue: Any) -> str:
    """Return the name under which the contraction of lambdas in a compiled function is stored; made while tracing."""
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


def written(equation: str, map: Callable[..., Any] | None, reduce: Reduce, epilogue: Any) -> Contraction:
    """Return the contraction of lambdas of a ``contract`` call, the earlier one if they compute the same."""
    if torch.compiler.is_compiling():
        if isinstance(reduce, (Semiring, Fold, Smallest, Largest)):
            kind = type(reduce).__name__
            raise ParameterError(f"torch.compile does not see what a {kind} is: make the Contraction beforehand")
        return getattr(_TRACED, _traced(equation, map, reduce, epilogue))
    if not isinstance(equation, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise EquationError(f"the equation must be a string, as 'mk,nk->mn', not {equation!r}")
    named = isinstance(reduce, (str, Smallest, Largest))
    marks = (fingerprint(map), fingerprint(epilogue)) if named else (None,)
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
    """Return one fused contraction, ``Contraction(equation, map, ...)(*operands, ...)``.

    In a function for torch.compile the lambdas are traced once, while it is compiled: pass numbers that change as
    parameters. A lambda that reads a global number, a helper, an attribute or an item raises an error there, and so
    does a Semiring or Fold: make a :class:`Contraction` outside the function for these.

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
        Before anything is launched; the message has the equation, the shapes of the operands, and what to do.

    Notes
    -----
    Cost, types and gradients are those of :class:`Contraction`. A lambda that uses its arguments, numbers, helper
    functions and functions of kernmantle, torch, numpy and math is found in a cache by its code and captured values,
    in a few microseconds. Any other lambda (one that imports, or reads attributes of objects or items of dictionaries)
    is traced at each call, in a fraction of a millisecond; a :class:`Contraction` avoids that.

    Examples
    --------
    >>> import kernmantle as km, numpy as np
    >>> x, y = np.array([[0.0, 3.0]]), np.array([[1.0, 1.0]])
    >>> km.contract("mk,nk->mn", lambda a, b: a + b, x, y, reduce="min")
    array([[1.]])
    >>> km.contract("mk,nk->mn", lambda a, b, p: abs(a - b) ** p, x, y, p=2, epilogue=lambda s, p: s ** (1 / p))
    array([[2.23606798]])
    """
    contraction = written(equation, map, reduce, epilogue)
    merged = named if params is None else _merged(params, named)
    return contraction.run(operands, merged, out, precision, contraction.info)
