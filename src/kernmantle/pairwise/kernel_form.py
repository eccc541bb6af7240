"""The expressions of a kernel, apart from its values: what is summed, and what is made of the sums.

Two forms combine into one that sums both in the same pass; sums that are equal are kept once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, wraps
from itertools import count
from typing import Any, NamedTuple, TypeVar
from weakref import WeakValueDictionary

import torch

from ..errors import ParameterError
from ..ir.definition import Definition, define, of_expressions
from ..ir.node import Node, Number, const, postorder, substitute, var, variables
from ..ir.reductions import Reduction
from ..ir.simplify import simplify
from ..torch_ops.autograd import Attributes, assumed_constant, constant
from ..torch_ops.contract import Contraction, written

Result = TypeVar("Result")
ROWS = ("x0", "x1")
WEIGHT = "x2"


@dataclass(frozen=True)
class Squares:
    """Operand that is computed: the squared lengths of the rows of the first ("m") or second ("n") array."""

    role: str
    weight: str


@dataclass(frozen=True)
class Table:
    """Operand that is given: a term of every pair of rows."""


TABLE = Table()
Operand = str | Squares | Table


class _Identity:
    """The key of equal forms; it lives as long as one of them."""

    def __init__(self, parts: tuple[Any, ...]) -> None:
        self.parts, self.key = parts, f"form {next(_COUNT)}"
        _IDENTITIES[self.key] = self


_COUNT = count()
_IDENTITIES: WeakValueDictionary[str, _Identity] = WeakValueDictionary()
_OF_PARTS: WeakValueDictionary[tuple[Any, ...], _Identity] = WeakValueDictionary()


@dataclass(frozen=True)
class Form:
    """``output(reduce(maps(x0, x1)))`` with further operands x2, x3, ... and parameters by name.

    An operand is a weight per column, known to the form by its own name, or ``Squares``, or last a ``Table``.
    ``weights`` are the names of the weights; ``reads_squares`` and ``has_table`` say what else there is. These follow
    from the operands and are attributes because torch.compile cannot trace properties of a frozen dataclass.
    """

    maps: tuple[Node, ...]
    reductions: tuple[Reduction, ...]
    output: Node
    parameters: tuple[str, ...] = ()
    operands: tuple[Operand, ...] = ()
    weights: tuple[str, ...] = field(init=False, repr=False, compare=False)
    reads_squares: bool = field(init=False, repr=False, compare=False)
    has_table: bool = field(init=False, repr=False, compare=False)
    identity: _Identity = field(init=False, repr=False, compare=False)
    key: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        identity = _OF_PARTS.get(self._parts)
        if identity is None:
            identity = _OF_PARTS[self._parts] = _Identity(self._parts)
        object.__setattr__(self, "identity", identity)
        object.__setattr__(self, "key", identity.key)
        object.__setattr__(self, "weights", tuple(operand for operand in self.operands if isinstance(operand, str)))
        object.__setattr__(self, "reads_squares", any(isinstance(operand, Squares) for operand in self.operands))
        object.__setattr__(self, "has_table", TABLE in self.operands)

    def __reduce__(self) -> tuple[Any, ...]:
        """Return its parts: another process has keys of its own."""
        return Form, self._parts

    @property
    def _parts(self) -> tuple[Any, ...]:
        return self.maps, self.reductions, self.output, self.parameters, self.operands

    def axes(self, rows: str = "mk", others: str = "nk") -> list[str]:
        """Return the axes of every operand, those of the rows as given."""
        of_role = {"m": rows.replace("k", ""), "n": others.replace("k", "")}

        def of(operand: Operand) -> str:
            if isinstance(operand, Table):
                return of_role["m"] + of_role["n"]
            return "k" if isinstance(operand, str) else of_role[operand.role]

        return [rows, others, *map(of, self.operands)]


class OwnForm(NamedTuple):
    """The form of lambdas, the names of their parameters and the defaults of these."""

    form: Form
    parameters: tuple[str, ...]
    defaults: tuple[tuple[str, Number], ...]


def own_form(map: Callable[..., Any], reduce: Any, epilogue: Callable[..., Any] | None) -> OwnForm:
    """Return the form of lambdas; torch.compile takes those that it comes upon as a contraction's."""
    if torch.compiler.is_compiling():
        return _of_text(written("mk,nk->mn", map, reduce, epilogue).text)
    return _of_definition(define("mk,nk->mn", map, reduce, epilogue))


@constant
def _of_text(text: str) -> OwnForm:
    return _of_definition(Definition.parse(text))


def _of_definition(definition: Definition) -> OwnForm:
    """Return the form of a definition, with the parameters that its expressions read."""
    if len(definition.outputs) != 1:
        raise ParameterError(f"a kernel has one value, this one has {len(definition.outputs)}: give it an epilogue")
    used = set(variables([*definition.map, *definition.outputs]))
    parameters = tuple(name for name in definition.parameters if name in used)
    form = Form(definition.map, definition.reductions, definition.outputs[0], parameters)
    return OwnForm(form, definition.parameters, definition.defaults)


def contraction_of(axes: Sequence[str], out: str, maps: Sequence[Node], reductions: Sequence[Reduction],
                   outputs: Sequence[Node]) -> Contraction:  # fmt: skip
    """Return the contraction of expressions over operands x0, x1, ... of these axes; other variables are parameters."""
    return Contraction.of(of_expressions(f"{','.join(axes)}->{out}", maps, reductions, outputs))


_MADE = Attributes()
_MAKERS: dict[str, Callable[..., Any]] = {}


def from_forms(make: Callable[..., Result]) -> Callable[..., Result]:
    """Return a function of forms, then texts and numbers, that torch.compile evaluates and does not look into."""
    name = f"{make.__name__} {len(_MAKERS)}"
    _MAKERS[name] = make

    @wraps(make)
    def call(*parts: Any) -> Result:
        if not torch.compiler.is_compiling():
            return make(*parts)
        keys = tuple([part.key for part in parts if isinstance(part, Form)])
        return getattr(_MADE, _attribute(name, keys, *[part for part in parts if not isinstance(part, Form)]))

    return call


@assumed_constant
def _attribute(name: str, keys: tuple[str, ...], *rest: Any) -> str:
    """Return the attribute that holds what is made of forms."""
    forms = (Form(*_IDENTITIES[key].parts) for key in keys)
    return _MADE.name_of((name, keys, rest), lambda: _MAKERS[name](*forms, *rest))


def of_form(make: Callable[[Form], Result]) -> Callable[[Form], Result]:
    """Return a function of a form that is evaluated once."""
    return from_forms(lru_cache(maxsize=1024)(make))


@of_form
def gram(form: Form) -> Contraction:
    """Return all pairs of rows."""
    return contraction_of(form.axes(), "mn", form.maps, form.reductions, [form.output])


@of_form
def divided(form: Form) -> Contraction:
    """Return the same of lengths in place of weights: what columns are divided by, in one pass with the rest."""
    own = {f"x{index}": operand for index, operand in enumerate(form.operands, len(ROWS)) if isinstance(operand, str)}
    *maps, output = substitute([*form.maps, form.output], {name: Node("rcp", (var(name),)) for name in own})
    return contraction_of(form.axes(), "mn", maps, form.reductions, [output])


@of_form
def diagonal(form: Form) -> Contraction:
    """Return every row with the row of the same index."""
    return contraction_of(form.axes("mk", "mk"), "m", form.maps, form.reductions, [form.output])


@of_form
def is_symmetric(form: Form) -> bool:
    """Return whether the rules prove that k(x, y) = k(y, x)."""
    swap = {ROWS[0]: var(ROWS[1]), ROWS[1]: var(ROWS[0])}
    squares = {
        (op.weight, op.role): f"x{i + len(ROWS)}" for i, op in enumerate(form.operands) if isinstance(op, Squares)
    }
    for (weight, role), name in squares.items():
        other = squares.get((weight, "n" if role == "m" else "m"))
        if other is None:
            return False
        swap[name] = var(other)
    maps = simplify(substitute(form.maps, swap))
    if any(swapped not in form.maps for swapped in maps):
        return False
    swap = swap | {f"s{i}": var(f"s{form.maps.index(swapped)}") for i, swapped in enumerate(maps)}
    return simplify(substitute([form.output], swap)) == simplify([form.output])


def of_difference(value: Node) -> bool:
    """Return whether an expression has x0 and x1 in their difference alone."""
    rows = {var(name) for name in ROWS}
    users = [node for node in postorder([value]) if rows & set(node.args)]
    return value not in rows and all(node.op == "sub" and set(node.args) == rows for node in users)


@of_form
def is_stationary(form: Form) -> bool:
    """Return whether every map has the rows in their difference alone."""
    return not form.reads_squares and all(map(of_difference, form.maps))


def swapped(form: Form) -> Form:
    """Return the form of k(y, x)."""
    swap = {ROWS[0]: var(ROWS[1]), ROWS[1]: var(ROWS[0])}
    operands = [
        Squares("n" if operand.role == "m" else "m", operand.weight) if isinstance(operand, Squares) else operand
        for operand in form.operands
    ]
    maps = simplify(substitute(form.maps, swap))
    return Form(maps, form.reductions, form.output, form.parameters, tuple(operands))


def _fresh(name: str, taken: set[str]) -> str:
    number = 2
    while f"{name}_{number}" in taken:
        number += 1
    return f"{name}_{number}"


def _parameter_names(left: Form, right: Form, same: Mapping[str, str]) -> dict[str, str]:
    """Return the new names of the right form's parameters, those of the left one for equal ones in maps of both."""
    in_left, in_right = set(variables(left.maps)), set(variables(right.maps))
    names: dict[str, str] = {}
    taken = set(left.parameters)
    for name in right.parameters:
        alias = same.get(name)
        if alias in in_left and name in in_right:
            names[name] = alias
        else:
            names[name] = name if name not in taken else _fresh(name, taken | set(right.parameters))
            taken.add(names[name])
    return names


def _joined_operands(left: Form, right: Form, same: Mapping[str, str]) -> tuple[list[Operand], dict[str, str]]:
    """Return the operands of both forms, equal ones once, and the new names of the right one's."""
    operands, names = list(left.operands), dict[str, str]()
    for i, operand in enumerate(right.operands):
        old = f"x{i + len(ROWS)}"
        if isinstance(operand, Squares):
            operand = Squares(operand.role, names.get(operand.weight, ""))
        same_operand = same.get(operand) if isinstance(operand, str) else operand
        if same_operand is not None and same_operand in operands:
            names[old] = f"x{operands.index(same_operand) + len(ROWS)}"
            continue
        names[old] = f"x{len(operands) + len(ROWS)}"
        operands.append(names[old] if isinstance(operand, str) else operand)
    return operands, names


@from_forms
def combine(
    left: Form, right: Form, op: str, equal: tuple[tuple[str, str], ...]
) -> tuple[Form, tuple[tuple[str, str], ...]]:
    """Return one form of two, their outputs joined by an operation, and the new names of the right one's parameters.

    ``equal`` has parameters and weights of the right form, each with that of the left one that has the same value;
    parameters are shared where they stand in a map, so that equal maps are summed once.
    """
    same = dict(equal)
    names = _parameter_names(left, right, same)
    operands, operand_names = _joined_operands(left, right, same)
    renaming = {old: var(new) for old, new in (names | operand_names).items()}
    reduced = list(zip(left.maps, left.reductions, strict=True))
    sums: dict[str, Node] = {}
    for i, pair in enumerate(zip(simplify(substitute(right.maps, renaming)), right.reductions, strict=True)):
        if pair not in reduced:
            reduced.append(pair)
        sums[f"s{i}"] = var(f"s{reduced.index(pair)}")
    (output,) = substitute([right.output], renaming | sums)
    (output,) = simplify([Node(op, (left.output, output))])
    maps, reductions = (tuple(each) for each in zip(*reduced, strict=True))
    parameters = tuple(dict.fromkeys((*left.parameters, *names.values())))
    names |= {old: new for old, new in operand_names.items() if old in right.weights}
    return Form(maps, reductions, output, parameters, tuple(operands)), tuple(names.items())


@from_forms
def changed(form: Form, op: str, name: str, first: bool = False) -> tuple[Form, str]:
    """Return the form with its output joined to a further parameter by an operation, and that parameter's name."""
    name = name if name not in form.parameters else _fresh(name, set(form.parameters))
    args = (var(name), form.output) if first else (form.output, var(name))
    (output,) = simplify([Node(op, args)])
    return Form(form.maps, form.reductions, output, (*form.parameters, name), form.operands), name


@from_forms
def raised(form: Form, exponent: int | float) -> Form:
    """Return the form with its output raised to a power that is part of the expression."""
    (output,) = simplify([Node("pow", (form.output, const(exponent)))])
    return Form(form.maps, form.reductions, output, form.parameters, form.operands)
