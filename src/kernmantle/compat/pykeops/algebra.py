"""Sums of products: which factors of a formula are scalars, and which are vectors over one axis alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce

from .expression import Expression, Fold, Leaf, Map, Number, Symbol, folded, substituted

_MOST_TERMS = 8  # terms that a sum is split into


@dataclass(frozen=True)
class Term:
    """A product of scalars and of vectors."""

    scalars: tuple[Expression, ...] = ()
    vectors: tuple[Expression, ...] = ()


def times(factors: Sequence[Expression]) -> Expression:
    """Return the product of some factors, 1 of none."""
    return reduce(lambda a, b: Map("mul", a, b), factors) if factors else Number(1)


def terms(e: Expression, is_atom: Callable[[Expression], bool]) -> list[Term] | None:
    """Return terms whose sum is the expression, with atoms as vectors; None where there are none, or too many."""
    if e.dim == 1:
        return [Term(scalars=(e,))]
    if is_atom(e):
        return [Term(vectors=(e,))]
    if not isinstance(e, Map) or e.op not in ("add", "sub", "neg", "mul", "div"):
        return None
    if e.op == "div":
        if e.args[1].dim > 1 and not is_atom(e.args[1]):
            return None
        return terms(Map("mul", e.args[0], Map("rcp", e.args[1])), is_atom)
    parts = [terms(arg, is_atom) for arg in e.args]
    if any(part is None for part in parts):
        return None
    first, *rest = (part for part in parts if part is not None)
    if e.op == "neg":
        return [_negative(term) for term in first]
    (second,) = rest
    if e.op == "mul":
        found = [Term(a.scalars + b.scalars, a.vectors + b.vectors) for a in first for b in second]
    else:
        found = [*first, *(map(_negative, second) if e.op == "sub" else second)]
    return found if len(found) <= _MOST_TERMS else None


def _negative(term: Term) -> Term:
    return Term((*term.scalars, Number(-1)), term.vectors)


def factors(e: Expression) -> list[Expression]:
    """Return scalars whose product is a scalar expression."""
    if isinstance(e, Map) and e.op == "mul":
        return [factor for arg in e.args for factor in factors(arg)]
    return [e]


def linear_in(e: Expression, position: int) -> Expression | None:
    """Return the scalar whose product with a symbolic variable is the expression, None where it is none."""

    def is_unknown(part: Expression) -> bool:
        return isinstance(part, Symbol) and part.position == position and part.chosen is None

    if e.dim == 1:
        every = factors(e)
        own, scalars = [part for part in every if is_unknown(part)], [times([p for p in every if not is_unknown(p)])]
    else:
        found = terms(e, is_unknown) or []
        own, scalars = [vector for term in found for vector in term.vectors], [times(term.scalars) for term in found]
    if len(own) != len(scalars) or any(scalar.symbols for scalar in scalars):
        return None
    return reduce(lambda a, b: Map("add", a, b), scalars)


def flattened(e: Expression) -> Expression:
    """Return the expression without sums of components inside others, where scalars can be taken out of the sum."""

    def replace(part: Expression) -> Expression | None:
        if not isinstance(part, Fold) or not part.arg.folds:
            return None
        arg = flattened(part.arg)
        found = terms(arg, lambda own: not own.folds) if part.op == "sum" and part.dim == 1 else None
        if found is None:
            return Fold(part.op, arg, part.dim)
        sums = [
            times([*term.scalars, folded("sum", times(term.vectors)) if term.vectors else Number(arg.dim)])
            for term in found
        ]
        return reduce(lambda a, b: Map("add", a, b), sums)

    return substituted(e, replace)


def centred(e: Expression) -> Expression:
    """Return the expression with sums and differences of a vector over i and one over j as such of values near zero.

    Their terms are added up apart: far from the origin they would cancel.
    """

    def replace(part: Expression) -> Expression | None:
        if isinstance(part, Fold):
            return part
        if not isinstance(part, Map) or part.op not in ("add", "sub") or part.dim == 1:
            return None
        one, other = part.args
        if not (isinstance(one, Leaf) and isinstance(other, Leaf) and one.axes | other.axes == {"i", "j"}):
            return None
        if not one.axes or not other.axes or one.dim != other.dim:
            return None
        middle = other.tensor.detach().mean(-2, keepdim=True)
        first = one.tensor - middle if part.op == "sub" else one.tensor + middle
        return Map(part.op, Leaf(first, "".join(one.axes)), Leaf(other.tensor - middle, "".join(other.axes)))

    return substituted(e, replace)
