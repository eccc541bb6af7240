"""Equations like einsum's: ``"mk,nk,w:k->mn"``, an operand may carry a name before a colon."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from ..errors import EquationError, ShapeError

_OUT_LETTERS = "mnopqrstuv"
_REDUCED_LETTERS = "klijhgfedcba"


@dataclass(frozen=True)
class Equation:
    """Axes of every operand and of the output; batch axes are implicit on the left."""

    text: str
    names: tuple[str | None, ...]
    operands: tuple[str, ...]
    out: str

    @property
    def positional(self) -> tuple[str, ...]:
        """Axes of the operands without a name."""
        return tuple(axes for name, axes in zip(self.names, self.operands, strict=True) if name is None)

    @property
    def named(self) -> dict[str, str]:
        """Axes of the operands with a name."""
        return {name: axes for name, axes in zip(self.names, self.operands, strict=True) if name is not None}

    @property
    def letters(self) -> dict[str, str]:
        """Canonical letter of every axis: output axes m, n, o, ..., reduced ones k, l, i, ..."""
        every = dict.fromkeys("".join(self.operands))
        reduced = [axis for axis in every if axis not in self.out]
        canonical = dict(zip(self.out, _OUT_LETTERS, strict=False))
        return canonical | dict(zip(reduced, _REDUCED_LETTERS, strict=False))


def _fail(text: str, position: int, problem: str) -> EquationError:
    return EquationError(f"{problem}\n  {text}\n  {' ' * position}^")


def _axes(text: str, axes: str, start: int, what: str) -> str:
    for offset, letter in enumerate(axes):
        if letter == "." or not letter.isalpha():
            hint = "; batch axes are implicit, leave '...' out" if letter == "." else ""
            raise _fail(text, start + offset, f"axis names are letters, found {letter!r} in {what}{hint}")
        if letter in axes[:offset]:
            raise _fail(text, start + offset, f"axis {letter!r} appears twice in {what}")
    return axes


def parse(equation: object) -> Equation:
    """Parse an equation, or raise EquationError that points at the place."""
    if not isinstance(equation, str):
        raise EquationError(f"the equation is a string such as 'mk,nk->mn' and comes first, got {equation!r}")
    return _parse("".join(equation.split()))


@lru_cache(maxsize=1024)
def _parse(text: str) -> Equation:
    left, arrow, out = text.partition("->")
    if not arrow:
        raise _fail(text, len(text), "an equation names its output after '->', for example 'mk,nk->mn'")
    names: list[str | None] = []
    operands: list[str] = []
    position = 0
    for entry in left.split(","):
        name, colon, axes = entry.rpartition(":")
        if colon and not name.isidentifier():
            raise _fail(text, position, f"an operand's name is an identifier, found {name!r}")
        if colon and name in names:
            raise _fail(text, position, f"operand {name!r} is named twice")
        names.append(name if colon else None)
        operands.append(_axes(text, axes, position + len(name) + len(colon), f"operand {len(operands)}"))
        position += len(entry) + 1
    start = len(left) + 2
    _axes(text, out, start, "the output")
    for offset, letter in enumerate(out):
        if not any(letter in axes for axes in operands):
            raise _fail(text, start + offset, f"output axis {letter!r} is in no operand")
    result = Equation(text, tuple(names), tuple(operands), out)
    if len(result.letters) < len(set("".join(operands))):
        raise _fail(text, 0, f"at most {len(_OUT_LETTERS)} axes in the output and {len(_REDUCED_LETTERS)} reduced")
    return result


@dataclass(frozen=True)
class Extents:
    """Sizes of the named axes and of the broadcast batch axes."""

    axes: Mapping[str, int]
    batch: tuple[int, ...]


def broadcast(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...] | None:
    """Broadcast shape, or None if they do not broadcast."""
    rank = max([0, *map(len, shapes)])
    result = [1] * rank
    for shape in shapes:
        for place, size in enumerate(shape, rank - len(shape)):
            if size != 1:
                if result[place] not in (1, size):
                    return None
                result[place] = size
    return tuple(result)


def _listing(labels: Sequence[str], shapes: Sequence[tuple[int, ...]]) -> str:
    return ", ".join(f"{label}: {tuple(shape)}" for label, shape in zip(labels, shapes, strict=True))


def extents(
    labels: Sequence[str], operand_axes: Sequence[str], shapes: Sequence[tuple[int, ...]], equation: str
) -> Extents:
    """Sizes of all axes, or ShapeError that names the operands at odds."""
    sizes: dict[str, tuple[int, str]] = {}
    for label, axes, shape in zip(labels, operand_axes, shapes, strict=True):
        if len(shape) < len(axes):
            raise ShapeError(
                f"{label} has {len(shape)} axes, equation {equation!r} wants at least {len(axes)} ({axes!r}); "
                f"got {_listing(labels, shapes)}"
            )
        for axis, size in zip(axes, shape[len(shape) - len(axes) :], strict=True):
            known, owner = sizes.setdefault(axis, (size, label))
            if known != size:
                raise ShapeError(
                    f"axis {axis!r} of {equation!r} has size {known} in {owner} but {size} in {label}; "
                    f"got {_listing(labels, shapes)}"
                )
    leading = [shape[: len(shape) - len(axes)] for axes, shape in zip(operand_axes, shapes, strict=True)]
    batch = broadcast(leading)
    if batch is None:
        raise ShapeError(f"batch axes do not broadcast in {equation!r}; got {_listing(labels, shapes)}")
    return Extents({axis: size for axis, (size, _) in sizes.items()}, batch)
