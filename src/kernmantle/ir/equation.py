"""Equations like einsum's: ``"mk,nk,w:k->mn"``, an operand may carry a name before a colon.

Axes are letters, or words with spaces between them: ``"point feature, centre feature -> point centre"``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from ..errors import EquationError, ShapeError

_OUT_LETTERS = "mnopqrstuv"
_REDUCED_LETTERS = "klijhgfedcba"


@dataclass(frozen=True)
class Equation:
    """Axes of every operand and of the output, a letter each; batch axes are implicit on the left.

    ``words`` has the name of every letter that stands for a word of the text.
    """

    text: str
    names: tuple[str | None, ...]
    operands: tuple[str, ...]
    out: str
    words: tuple[tuple[str, str], ...] = ()

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

    def written(self, axes: str) -> str:
        """Return axes as the text of the equation writes them."""
        words = dict(self.words)
        return " ".join(words[axis] for axis in axes) if words else axes


def _fail(text: str, position: int, problem: str) -> EquationError:
    return EquationError(f"{problem}\n  {text}\n  {' ' * position}^")


def _axes(text: str, axes: str, start: int, what: str, words: bool) -> dict[str, int]:
    """Return the axes of an operand or of the output, which begins at ``start``, and where each is in the text."""
    found: dict[str, int] = {}
    for match in re.finditer(r"\S+" if words else ".", axes):
        name, position = match.group(), start + match.start()
        if not (name.isidentifier() if words else name.isalpha()):
            hint = "; batch axes are implicit, leave '...' out" if name.startswith(".") else ""
            kind = "identifiers" if words else "letters"
            raise _fail(text, position, f"axis names are {kind}, found {name!r} in {what}{hint}")
        if name in found:
            hint = "" if words or len(axes) < 4 else "; axes named by words have spaces between them"
            raise _fail(text, position, f"axis {name!r} appears twice in {what}{hint}")
        found[name] = position
    return found


def parse(equation: object) -> Equation:
    """Parse an equation, or raise EquationError that points at the place."""
    if not isinstance(equation, str):
        raise EquationError(f"the equation is a string such as 'mk,nk->mn' and comes first, got {equation!r}")
    parts = [part.split() for part in re.split(r"->|[,:]", equation)]
    words = any(len(part) > 1 and any(len(name) > 1 for name in part) for part in parts)
    return _parse(" ".join(equation.split()) if words else "".join(equation.split()), words)


@lru_cache(maxsize=1024)
def _parse(text: str, words: bool) -> Equation:
    left, arrow, out = text.partition("->")
    if not arrow:
        raise _fail(text, len(text), "an equation names its output after '->', for example 'mk,nk->mn'")
    names: list[str | None] = []
    operands: list[dict[str, int]] = []
    position = 0
    for entry in left.split(","):
        name, colon, axes = entry.rpartition(":")
        start, begin, name = position + len(name) + len(colon), position + len(name) - len(name.lstrip()), name.strip()
        if colon and not name.isidentifier():
            raise _fail(text, begin, f"an operand's name is an identifier, found {name!r}")
        if colon and name in names:
            raise _fail(text, begin, f"operand {name!r} is named twice")
        names.append(name if colon else None)
        operands.append(_axes(text, axes, start, f"operand {len(operands)}", words))
        position += len(entry) + 1
    results = _axes(text, out, len(left) + 2, "the output", words)
    every = list(dict.fromkeys(axis for axes in operands for axis in axes))
    for axis, begin in results.items():
        if axis not in every:
            hint = "; axes named by words have spaces between them" if words and len(results) == 1 else ""
            raise _fail(text, begin, f"output axis {axis!r} is in no operand{hint}")
    if len(results) > len(_OUT_LETTERS) or len(every) - len(results) > len(_REDUCED_LETTERS):
        raise _fail(text, 0, f"at most {len(_OUT_LETTERS)} axes in the output and {len(_REDUCED_LETTERS)} reduced")
    letter = (
        dict(zip(every, _OUT_LETTERS + _REDUCED_LETTERS, strict=False)) if words else {axis: axis for axis in every}
    )
    return Equation(
        text, tuple(names), tuple("".join(map(letter.__getitem__, axes)) for axes in operands),
        "".join(map(letter.__getitem__, results)), tuple((letter[axis], axis) for axis in every) if words else (),
    )  # fmt: skip


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
        for begin, size in enumerate(shape, rank - len(shape)):
            if size != 1:
                if result[begin] not in (1, size):
                    return None
                result[begin] = size
    return tuple(result)


def _listing(labels: Sequence[str], shapes: Sequence[tuple[int, ...]]) -> str:
    return ", ".join(f"{label}: {tuple(shape)}" for label, shape in zip(labels, shapes, strict=True))


def extents(
    labels: Sequence[str], operand_axes: Sequence[str], shapes: Sequence[tuple[int, ...]], equation: str
) -> Extents:
    """Return the sizes of all axes, or ShapeError that names the operands at odds."""
    sizes: dict[str, tuple[int, str]] = {}
    for label, axes, shape in zip(labels, operand_axes, shapes, strict=True):
        if len(shape) < len(axes):
            raise ShapeError(
                f"{label} has {len(shape)} axes, equation {equation!r} wants at least {len(axes)} "
                f"({parse(equation).written(axes)!r}); got {_listing(labels, shapes)}"
            )
        for axis, size in zip(axes, shape[len(shape) - len(axes) :], strict=True):
            extent, owner = sizes.setdefault(axis, (size, label))
            if extent != size:
                raise ShapeError(
                    f"axis {parse(equation).written(axis)!r} of {equation!r} has size {extent} in {owner} "
                    f"but {size} in {label}; got {_listing(labels, shapes)}"
                )
    leading = [shape[: len(shape) - len(axes)] for axes, shape in zip(operand_axes, shapes, strict=True)]
    batch = broadcast(leading)
    if batch is None:
        raise ShapeError(f"batch axes do not broadcast in {equation!r}; got {_listing(labels, shapes)}")
    return Extents({axis: size for axis, (size, _) in sizes.items()}, batch)
