"""Reductions and linear systems of formulas given as text."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ...errors import ParameterError, ShapeError
from ...runtime.lru import LRUCache
from .calls import REDUCTIONS, Options, reduced
from .expression import Expression, Leaf, Number, Symbol, components, substituted
from .gradient import differential, gradient
from .operations import OPERATIONS, operation
from .reductions import Route
from .replay import Tape, is_watched
from .solve import UNKNOWN, System, solve_formula
from .variables import LETTERS, Alias, alias, argument, array_of

_BINARY: dict[type[ast.operator], str] = {
    ast.Add: "Add", ast.Sub: "Subtract", ast.Mult: "Mult", ast.Div: "Divide", ast.Pow: "Pow", ast.BitOr: "Scalprod",
}  # fmt: skip
_COMPARED: dict[type[ast.cmpop], tuple[str, bool]] = {
    ast.Lt: ("LessThan", False), ast.LtE: ("LessOrEqual", False), ast.Gt: ("LessThan", True),
    ast.GtE: ("LessOrEqual", True), ast.Eq: ("Equal", False), ast.NotEq: ("NotEqual", False),
}  # fmt: skip
_PLAIN = {"Pow": 1, "ClampInt": 3, "Elem": 1, "Extract": 1, "OneHot": 1, "Round": 1, "IntCst": 0, "IntInv": 0,
          "RatCst": 0, "Zero": 0, "Kron": 2, "TensorDot": 2}  # fmt: skip
_DERIVATIVES = {"Grad": gradient, "Diff": differential}


class Formula:
    """A parsed formula; ``aliases`` are its variables by position."""

    def __init__(self, text: str, aliases: Sequence[str]) -> None:
        self.text = text
        self.aliases: dict[int, Alias] = {}
        self._names: dict[str, Alias] = {}
        for position, entry in enumerate(aliases):
            own = self._declared(alias(entry, position))
            if own.name is not None:
                if own.name in OPERATIONS:
                    raise ParameterError(f"variable {own.name!r} has the name of an operation; rename it")
                self._names[own.name] = own

    def _declared(self, own: Alias) -> Alias:
        """Note a variable, of which each position has one."""
        declared = self.aliases.setdefault(own.position, own)
        if (declared.axis, declared.dim) != (own.axis, own.dim):
            raise ParameterError(f"{self.text!r} declares variable {own.position} as {declared} and as {own}")
        return own

    def parse(self, text: str) -> Expression:
        """Return the expression of a text over the declared variables, and over those that it declares as ``Var``."""
        try:
            tree = ast.parse(text.strip(), mode="eval").body
        except SyntaxError as error:
            raise ParameterError(f"formula {text!r} does not parse: {error.msg} at column {error.offset}") from None
        return self._visit(tree)

    def _visit(self, node: ast.expr) -> Expression:
        match node:
            case ast.BinOp(left, op, right) if type(op) in _BINARY:
                return operation(_BINARY[type(op)])(self._visit(left), self._visit(right))
            case ast.UnaryOp(ast.UAdd(), operand):
                return self._visit(operand)
            case ast.UnaryOp(ast.USub(), operand):
                value = self._visit(operand)
                return Number(-value.value) if isinstance(value, Number) else operation("Minus")(value)
            case ast.Compare(left, [op], [right]) if type(op) in _COMPARED:
                name, swapped = _COMPARED[type(op)]
                sides = [self._visit(left), self._visit(right)]
                return operation(name)(*(reversed(sides) if swapped else sides))
            case ast.Constant(int() | float() as value) if not isinstance(value, bool):
                return Number(value)
            case ast.Name(name):
                if name not in self._names:
                    raise ParameterError(f"formula {self.text!r}: {name!r} is not a declared variable")
                return _symbol(self._names[name])
            case ast.Call(ast.Name(name), arguments, []):
                return self._call(name, arguments)
            case _:
                raise ParameterError(f"formula {self.text!r}: {ast.unparse(node)!r} is not an operation of KeOps")

    def _call(self, name: str, args: Sequence[ast.expr]) -> Expression:
        if name == "Var":
            position, dim, axis = (_integer(arg, name) for arg in args)
            return _symbol(self._declared(Alias(None, axis, dim, position)))
        build, symbolic = _DERIVATIVES.get(name) or operation(name), _PLAIN.get(name, len(args))
        values = [self._visit(arg) for arg in args[:symbolic]]
        rest = [_literal(arg, name) for arg in args[symbolic:]]
        try:
            return build(*values, *rest)
        except TypeError:
            raise ParameterError(f"formula {self.text!r}: {name} does not take {len(args)} arguments") from None


def _symbol(own: Alias) -> Symbol:
    return Symbol(own.position, own.dim, LETTERS[own.axis])


def _literal(node: ast.expr, name: str) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise ParameterError(f"{name} takes integers there, not {ast.unparse(node)!r}") from None


def _integer(node: ast.expr, name: str) -> int:
    value = _literal(node, name)
    if not isinstance(value, int):
        raise ParameterError(f"{name} takes integers, not {value!r}")
    return value


def positions(aliases: Mapping[int, Alias]) -> list[Alias]:
    """Return the variables in the order of arguments, which has no gap."""
    if sorted(aliases) != list(range(len(aliases))):
        raise ParameterError(f"variables have positions {sorted(aliases)}; they are 0 to {len(aliases) - 1}, each once")
    return [aliases[position] for position in range(len(aliases))]


def instantiated(e: Expression, values: Mapping[int, Leaf | None]) -> Expression:
    """Return the expression with the variables of a call for its symbolic ones; None leaves one as the unknown."""

    def replace(part: Expression) -> Expression | None:
        if not isinstance(part, Symbol):
            return None
        whole = values[part.position]
        if whole is None:
            return Symbol(UNKNOWN, part.size, "".join(part.axes), part.chosen)
        if whole.dim != part.size:
            raise ShapeError(f"variable {part.position} has dimension {part.size}; got {whole.dim}")
        return whole if part.chosen is None else components(whole, part.chosen)

    return substituted(e, replace) if e.symbols else e


def bound(aliases: Sequence[Alias], args: Sequence[Any], name: str) -> dict[int, Leaf]:
    """Return the variables of a call by position."""
    if len(args) != len(aliases):
        raise ParameterError(f"{name} takes {len(aliases)} arrays; got {len(args)}")
    return {own.position: argument(values, own) for own, values in zip(aliases, args, strict=True)}


def _call_key(args: Sequence[Any]) -> tuple[Any, ...] | None:
    """Return what of tensors a call depends on besides their values, None where an argument is none."""
    first: dict[int, int] = {}
    found: list[Any] = [torch.is_grad_enabled()]
    for at, value in enumerate(args):
        if type(value) not in (torch.Tensor, torch.nn.Parameter):
            return None
        found.append((first.setdefault(id(value), at), value.shape, value.dtype, value.device, value.requires_grad))
    return tuple(found)


class Genred:
    """A reduction of a formula, called with its variables.

    Parameters
    ----------
    formula : str
        Of the operations in KeOps' list, for example ``"Exp(-SqDist(x, y)) * b"``.
    aliases : sequence of str
        What the variables are: ``"x = Vi(3)"``, ``"y = Vj(3)"``, ``"p = Pm(1)"``, in the order of arguments.
    reduction_op : str
        ``"Sum"``, ``"LogSumExp"``, ``"SumSoftMaxWeight"``, ``"Min"``, ``"Max"``, ``"ArgMin"``, ``"ArgMax"``,
        ``"Min_ArgMin"``, ``"Max_ArgMax"``, ``"KMin"``, ``"ArgKMin"`` or ``"KMin_ArgKMin"``.
    axis : int
        0 reduces over i, 1 over j.
    opt_arg : int, optional
        K of the reductions that have one.
    formula2 : str, optional
        Weights of ``"LogSumExp"`` and ``"SumSoftMaxWeight"``.
    **options
        ``use_double_acc``, ``dtype_acc`` and ``sum_scheme="kahan_scheme"`` compute float32 in float64; the others that
        KeOps has are checked and change nothing.

    Raises
    ------
    ParameterError
        For a formula that does not parse, and for operations that are left out, with what to do instead.

    Notes
    -----
    Calls take the variables, (..., M, D), (..., N, D) or (..., D) with batch dimensions that broadcast, ``ranges`` for
    block-sparse reductions and ``out``. They return (..., M, D) or (..., N, D) of the same kind. Gradients exist for
    sums, logsumexp, softmax, minima and maxima of every order, for K minima of scalar formulas too. ``info`` says what
    the last call ran as.

    Examples
    --------
    >>> import torch
    >>> from kernmantle.compat.pykeops.torch import Genred
    >>> count = Genred("Step(r - SqDist(x, y))", ["x = Vi(2)", "y = Vj(2)", "r = Pm(1)"], axis=1)
    >>> x = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    >>> count(x, x, torch.tensor([1.0]))
    tensor([[1.],
            [1.]])
    """

    _wrap: Callable[[Any], Any] = staticmethod(lambda result: result)

    def __init__(
        self,
        formula: str,
        aliases: Sequence[str],
        reduction_op: str = "Sum",
        axis: int = 0,
        dtype: Any = None,  # noqa: ARG002
        opt_arg: Any = None,
        formula2: str | None = None,
        **options: Any,
    ) -> None:
        if axis not in (0, 1):
            raise ParameterError(f"axis is 0 or 1; got {axis!r}")
        parser = Formula(formula, aliases)
        self.formula, self.reduction_op, self.axis, self.opt_arg = formula, reduction_op, axis, opt_arg
        self._expression = parser.parse(formula)
        self._weights = None if formula2 is None else parser.parse(formula2)
        self._aliases = positions(parser.aliases)
        Options.of(options)
        self._options = options
        self._steps: Sequence[Any] = ()
        self._tapes: LRUCache[Any, tuple[Tape, list[int]]] = LRUCache(64)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what earlier calls have cached."""
        return self.__dict__ | {"_tapes": None, "_steps": ()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._tapes = LRUCache(64)

    @property
    def info(self) -> str:
        """The row reductions and backends of the last call."""
        return str(Route(list(self._steps)))

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Return the reduction for these variables."""
        key = None if options or is_watched() else _call_key(args)
        entry = None if key is None else self._tapes.get(key)
        if entry is not None:
            tape, order = entry
            self._steps = tape.notes
            tensors = [args[at].unsqueeze(-2) if self._aliases[at].axis == 2 else args[at] for at in order]
            return self._wrap(REDUCTIONS[self.reduction_op].of(tape.replay(tensors)))
        values = bound(self._aliases, args, "this reduction")
        route = Route()
        result = reduced(
            instantiated(self._expression, values), self.reduction_op, self.axis,
            Options.of({**self._options, **options}), count=self.opt_arg, route=route,
            weights=None if self._weights is None else instantiated(self._weights, values),
            others=list(values.values()),
        )  # fmt: skip
        self._steps, again = route.steps, route.again
        if key is not None and again is not None and again.tape is not None:
            positions_of = {id(values[own.position]): at for at, own in enumerate(self._aliases)}
            if all(id(leaf) in positions_of for leaf in again.variables):
                self._tapes[key] = again.tape, [positions_of[id(leaf)] for leaf in again.variables]
        return self._wrap(result)

    def __repr__(self) -> str:
        ran = f", ran as {self.info}" if self.info else ""
        return f"{type(self).__name__}({self.formula!r}, {self.reduction_op}, axis={self.axis}{ran})"


class KernelSolve:
    """The solution of ``α b + Σ formula(b) = right-hand side`` for a formula linear in one variable.

    Parameters
    ----------
    formula, aliases
        As of :class:`Genred`.
    varinvalias : str
        Which variable is unknown.
    axis : int
        As of :class:`Genred`.

    Raises
    ------
    ParameterError
        For a formula that does not parse, or if no variable is unknown.

    Notes
    -----
    Calls take the variables, with the right-hand side as the unknown one, ``alpha=1e-10`` and ``eps=1e-6``: conjugate
    gradients stop where the root mean square of the residual is below eps. The operator must be symmetric and positive
    definite. Gradients exist of every order, each by another solve. The matrix of at most 16 384 rows is stored and
    factored, n³ / 3 operations, which leaves a few iterations; more rows take memory of the order of the rows alone.

    Examples
    --------
    >>> import torch
    >>> from kernmantle.compat.pykeops.torch import KernelSolve
    >>> solve = KernelSolve("Exp(-SqDist(x, y)) * b", ["x = Vi(1)", "y = Vj(1)", "b = Vj(1)"], "b", axis=1)
    >>> x = torch.tensor([[0.0], [9.0]], dtype=torch.float64)
    >>> solve(x, x, torch.ones_like(x), alpha=1.0)
    tensor([[0.5000],
            [0.5000]], dtype=torch.float64)
    """

    _wrap: Callable[[Any], Any] = staticmethod(lambda result: result)

    def __init__(self, formula: str, aliases: Sequence[str], varinvalias: str, axis: int = 0, **options: Any) -> None:
        parser = Formula(formula, aliases)
        self.formula, self.axis = formula, axis
        self._expression = parser.parse(formula)
        self._aliases = positions(parser.aliases)
        named = [own for own in self._aliases if own.name == varinvalias]
        if not named and varinvalias.startswith("Var("):
            at = alias(varinvalias, 0).position
            named = [own for own in self._aliases if own.position == at]
        if not named:
            raise ParameterError(f"varinvalias={varinvalias!r} is none of the variables of {formula!r}")
        self._unknown = named[0]
        if self._unknown.axis != axis:
            raise ParameterError(
                f"the unknown {varinvalias!r} is over the axis that is reduced: declare it {('Vi', 'Vj')[axis]}"
            )
        Options.of(options)
        self._options = options

    def __call__(self, *args: Any, alpha: float = 1e-10, eps: float = 1e-6, **options: Any) -> Any:
        """Return the solution for these variables."""
        values: dict[int, Leaf | None] = {**bound(self._aliases, args, "this system")}
        right = values[self._unknown.position]
        assert right is not None
        values[self._unknown.position] = None
        settings = Options.of({**self._options, **options})
        system = System(
            instantiated(self._expression, values), "ij"[self.axis],
            lambda e: reduced(e, "Sum", self.axis, settings, route=Route()), float(alpha), eps,
        )  # fmt: skip
        return self._wrap(solve_formula(system, right.tensor))


def generic(reduction_op: str, with_count: bool = False) -> Callable[[type[Genred]], Callable[..., Genred]]:
    """Return the maker of the reductions of a name whose axis, and K, are read off the declared output."""

    def of_class(kind: type[Genred]) -> Callable[..., Genred]:
        def make(formula: str, output: str, *aliases: str, **options: Any) -> Genred:
            own = alias(output, 0)
            if own.axis == 2:
                raise ParameterError(f"the output is over i or j: write 'a = Vi(1)' or 'a = Vj(1)', not {output!r}")
            count = own.dim if with_count else None
            return kind(formula, aliases, reduction_op=reduction_op, axis=1 - own.axis, opt_arg=count, **options)

        make.__doc__ = f"Return the ``{reduction_op}`` of a formula over the axis that ``output`` does not have."
        return make

    return of_class


NumpyGenred = type("Genred", (Genred,), {"_wrap": staticmethod(array_of), "__doc__": Genred.__doc__})
NumpyKernelSolve = type(
    "KernelSolve", (KernelSolve,), {"_wrap": staticmethod(array_of), "__doc__": KernelSolve.__doc__}
)
