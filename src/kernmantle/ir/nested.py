"""Nested programs: a contraction of scores, which are a contraction themselves and are never stored.

``out[m, c] = ⊕_n f(s[m, n], row and column operands, table) · v[n, c]`` with ``s[m, n] = outputs(⊕_k map(x, y))``. What
the outer contraction maps is composed with the outputs of the inner one, so that each of its accumulators is one row
reduction of one program; what it makes of the accumulators is a program without a reduction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..errors import EquationError, ParameterError
from .definition import Definition
from .differentiate import differentiate
from .equation import parse
from .node import Node, const, substitute, var, variables
from .reductions import PRODUCT, REDUCTIONS, SELECTIONS, SOFTMAX, Reduction
from .rules import is_boolean
from .simplify import simplify

_TRUTHS = {"any": "max", "all": "min"}
_POSITIONS = {"argmin": ("smallest", float("-inf")), "argmax": ("largest", float("inf"))}
ROW_REDUCTIONS = (*(name for name, row in REDUCTIONS.items() if row.torch), *_TRUTHS, *_POSITIONS, SOFTMAX)
"""Names of the reductions of rows of scores; ``Smallest`` and ``Largest`` select entries."""
_JOINED = ("sum", "min", "max", "logsumexp", "any", "all")
"""Reductions that may go over rows and columns: the results of the rows are reduced again."""


@dataclass(frozen=True)
class Score:
    """Expressions of a matrix that is not stored, and their canonical text."""

    definition: Definition
    text: str = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", self.definition.text)


@dataclass(frozen=True)
class RowPass:
    """One row reduction: ``how`` of ``compiler.row_reduce``, over the inner operands and then the outer ``operands``.

    ``v`` is the outer operand that entries are multiplied by, None for none. In the last pass of a softmax the last
    operand of the score is the result of the pass before, over rows. ``result`` is "value", "truth" (above 0) or
    "index".
    """

    score: Score
    how: str
    operands: tuple[int, ...]
    v: int | None = None
    count: int = 0
    result: str = "value"


@dataclass(frozen=True)
class Nested:
    """Passes of every accumulator, the last of each being its value, and what is made of the values.

    Parameters
    ----------
    passes : tuple of tuple of RowPass
        Of every accumulator; none where nothing of a score is reduced, ``finish`` then reads the inner operands.
    row, column, values : str
        Axes of the outer equation: of the rows, the one that passes reduce, and those that columns of v are over.
    axes : tuple of str
        Of every outer operand.
    joined : tuple of Reduction
        How the rows of each accumulator are reduced in turn; empty where they are the result's.
    finish : Score, optional
        Of the accumulators and then the outer operands ``finish_operands``; None where the accumulators are the result.
    renamed : mapping
        New names of the outer parameters whose names the inner contraction has.
    unit : int, optional
        Inner operand that gets a last axis of extent 1, because the inner contraction reduces nothing.
    groups : tuple of tuple of int
        Numbers of the accumulators; in one group are sums with the same weights, which one product gives.
    """

    passes: tuple[tuple[RowPass, ...], ...]
    row: str
    column: str
    values: str
    axes: tuple[str, ...]
    joined: tuple[Reduction, ...]
    finish: Score | None
    finish_operands: tuple[int, ...]
    renamed: tuple[tuple[str, str], ...]
    unit: int | None
    groups: tuple[tuple[int, ...], ...]

    def values_of(self, i: int) -> str:
        """Return the axes of columns of v that an outer operand has, in the output's order."""
        return "".join(axis for axis in self.values if axis in self.axes[i])


def _fresh(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    return name


class _Composer:
    """An outer and an inner definition while they are composed; ``scores`` are the outer operands that are scores."""

    def __init__(self, outer: Definition, inner: Definition, scores: Sequence[int]) -> None:
        self.outer, self.inner, self.scores = outer, inner, scores
        self.text = outer.equation.text
        axes = self._axes()
        self.others = [i for i in range(len(outer.equation.operands)) if i not in scores]
        self.reduced = [axis for axis in axes if axis not in outer.equation.out]
        self.values = "".join(axis for axis in outer.equation.out if axis not in axes)
        self.letters = dict(zip(axes, "mn", strict=True))
        self._check_axes(axes)
        wide = [i for i in self.others if not self._fits(i)]
        own = [outer.equation.operands[i] for i in wide]
        only_first = any(axes[1] not in each and axes[0] in each for each in own)
        column = self.reduced[0] if len(self.reduced) == 1 else axes[0] if only_first else axes[1]
        self.row, self.column = (axes[1], axes[0]) if column == axes[0] else (axes[0], axes[1])
        taken = {*inner.parameters, *outer.parameters}
        self.renamed = {name: _fresh(f"{name}_", taken) for name in outer.parameters if name in inner.parameters}
        letters = inner.equation.letters
        self.inner_axes = ["".join(letters[axis] for axis in own) for own in inner.equation.operands]
        self.unit = None
        if not any(set(own) - set("mn") for own in self.inner_axes):
            self.unit = next((i for i, own in enumerate(self.inner_axes) if own in ("m", "n")), None)
            if self.unit is not None:
                self.inner_axes[self.unit] += "k"
        self.maps = [self._composed(value) for value in outer.map]

    def _axes(self) -> str:
        equation = self.outer.equation
        if len(self.inner.outputs) != 1:
            raise ParameterError(
                f"scores have one value, those of {self.inner.equation.text!r} have {len(self.inner.outputs)}: give "
                "their contraction an epilogue that makes one of them"
            )
        axes = {equation.operands[i] for i in self.scores}
        if len(axes) > 1 or len(min(axes)) != 2:
            written = ", ".join(repr(equation.written(each)) for each in sorted(axes))
            raise EquationError(
                f"scores stand over two axes, as 'mn', and are one operand's; {self.text!r} has them over {written} "
                "(batch axes are implicit)"
            )
        return min(axes)

    def _check_axes(self, axes: str) -> None:
        equation = self.outer.equation
        stray = [axis for axis in equation.letters if axis not in equation.out and axis not in axes]
        if stray:
            raise EquationError(
                f"{self.text!r} reduces axis {equation.written(stray[0])!r}, which the scores lack: reduce that "
                "operand first, or evaluate the scores: scores.evaluate()"
            )

    def _fits(self, i: int) -> bool:
        return set(self.outer.equation.operands[i]) <= set(self.letters)

    def _composed(self, value: Node) -> Node:
        """Return the outer expression over the operands #{i} that are no scores, and those of the inner definition."""
        names = {f"x{i}": self.inner.outputs[0] for i in self.scores}
        names |= {f"x{i}": var(f"#{i}") for i in self.others}
        names |= {name: var(new) for name, new in self.renamed.items()}
        return simplify(substitute([value], names))[0]

    def score(self, value: Node, statistic: bool = False) -> tuple[Score, tuple[int, ...]]:
        """Return the score of an expression, and the outer operands that follow those of the inner definition."""
        return self._score([value], self.letters[self.row] + self.letters[self.column], statistic)

    def _score(self, values: Sequence[Node], out: str, statistic: bool = False) -> tuple[Score, tuple[int, ...]]:
        read = set(variables(values))
        operands = [i for i in self.others if f"#{i}" in read]
        axes = ["".join(self.letters[axis] for axis in self.outer.equation.operands[i]) for i in operands]
        axes = [*self.inner_axes, *axes, *([self.letters[self.row]] if statistic else [])]
        count = len(self.inner_axes)
        names = {f"#{i}": var(f"x{count + at}") for at, i in enumerate(operands)}
        names["#statistic"] = var(f"x{len(axes) - 1}")
        outputs = simplify(substitute(values, names))
        steps = [node for reduction in self.inner.reductions if reduction.is_fold for node in reduction.step]
        read |= set(variables([*self.inner.map, *steps]))
        parameters = [*self.inner.parameters, *(self.renamed.get(name, name) for name in self.outer.parameters)]
        definition = Definition(
            parse(f"{','.join(axes)}->{out}"), self.inner.map, self.inner.reductions, outputs, len(outputs) == 1,
            tuple(name for name in parameters if name in read), (),
        )  # fmt: skip
        return Score(definition), tuple(operands)

    def _factored(self, value: Node) -> tuple[Node, int | None]:
        """Return an expression as weights of an operand over columns, and that operand; None where there is none."""
        read = set(variables([value]))
        wide = [i for i in self.others if f"#{i}" in read and not self._fits(i)]
        own = self.outer.equation.operands
        if len(wide) > 1:
            raise self.refusal(f"operands {wide[0]} and {wide[1]} both have axes that the scores lack")
        if wide and self.row in own[wide[0]]:
            raise self.refusal(f"operand {wide[0]} is over the rows of the result and over axes that the scores lack")
        narrow = [] if wide else [i for i in reversed(self.others) if f"#{i}" in read and own[i] == self.column]
        for i in wide or narrow:
            (weight,) = differentiate(value, [f"#{i}"])
            (rest,) = simplify(substitute([value], {f"#{i}": const(0)}), finite=True)
            if f"#{i}" not in variables([weight]) and rest.number == 0:
                return weight, i
        if wide:
            raise self.refusal(f"the map is not a factor times operand {wide[0]}")
        return value, None

    def refusal(self, problem: str) -> EquationError:
        return EquationError(
            f"{self.text!r} is not a row reduction of its scores: {problem}. A sum over an axis of the scores takes "
            "one operand with further axes, as a factor of the map; for anything else evaluate the scores first: "
            "scores.evaluate()"
        )

    def row_passes(self, i: int, reduction: Reduction) -> tuple[RowPass, ...]:
        """Return the passes of accumulator i."""
        value, name = self.maps[i], reduction.name
        if name == "sum":
            weight, v = self._factored(value)
            score, operands = self.score(weight)
            return (RowPass(score, "sum" if v is None else PRODUCT, operands, v),)
        wide = [at for at in self.others if f"#{at}" in variables([value]) and not self._fits(at)]
        if wide:
            raise self.refusal(f"a reduction by {name} takes no operand with axes that the scores lack")
        if name in _TRUTHS:
            truth = value if is_boolean(value) else Node("ne", (value, const(0)))
            (value,) = simplify([Node("where", (truth, const(1), const(0)))])
            score, operands = self.score(value)
            return (RowPass(score, _TRUTHS[name], operands, result="truth"),)
        if name in _POSITIONS:
            how, first = _POSITIONS[name]  # NaN comes before everything, as in every reduction
            score, operands = self.score(Node("where", (Node("eq", (value, value)), value, const(first))))
            return (RowPass(score, how, operands, count=1, result="index"),)
        score, operands = self.score(value)
        if name in SELECTIONS:
            return (RowPass(score, name, operands, count=int(reduction.init[0])),)
        if name not in REDUCTIONS or not REDUCTIONS[name].torch:
            raise ParameterError(
                f"rows of scores are not reduced by {name}: reduce them by one of {', '.join(ROW_REDUCTIONS)}, or "
                "evaluate the scores first: scores.evaluate()"
            )
        return (RowPass(score, name, operands),)

    def softmax_passes(self) -> tuple[RowPass, ...]:
        """Return the passes of a softmax: the log of the sum of its weights, then the product with them."""
        logit, value = self.maps
        if any(f"#{i}" in variables([logit]) and not self._fits(i) for i in self.others):
            raise self.refusal("the logits of a softmax take no operand with axes that the scores lack")
        weight = Node("exp", (Node("sub", (logit, var("#statistic"))),))
        factor, v = self._factored(value)
        score, operands = self.score(simplify([Node("mul", (weight, factor))])[0], statistic=True)
        first, first_operands = self.score(logit)
        last = RowPass(score, "sum" if v is None else PRODUCT, operands, v)
        return RowPass(first, "logsumexp", first_operands), last

    def finish(self) -> tuple[Score | None, tuple[int, ...]]:
        """Return what is made of the accumulators."""
        outer, out = self.outer, self.outer.equation.out
        count = 1 if outer.reductions[0].name == SOFTMAX else len(outer.map)
        if list(outer.outputs) == [var(f"s{i}") for i in range(count)]:
            return None, ()
        read = set(variables(outer.outputs))
        operands = [i for i in self.others if f"x{i}" in read]
        names = {f"s{i}": var(f"x{i}") for i in range(count)}
        names |= {f"x{i}": var(f"x{count + at}") for at, i in enumerate(operands)}
        names |= {name: var(new) for name, new in self.renamed.items()}
        maps = simplify(substitute(outer.outputs, names))
        axes = [out] * count + [outer.equation.operands[i] for i in operands]
        parameters = tuple(self.renamed.get(name, name) for name in outer.parameters if name in read)
        definition = Definition(
            parse(f"{','.join(axes)}->{out}"), maps, (REDUCTIONS["sum"],) * len(maps),
            tuple(var(f"s{i}") for i in range(len(maps))), len(maps) == 1, parameters, (),
        )  # fmt: skip
        return Score(definition), tuple(operands)

    def nested(
        self, passes: tuple[tuple[RowPass, ...], ...], joined: tuple[Reduction, ...], finish: Score | None,
        operands: tuple[int, ...],
    ) -> Nested:  # fmt: skip
        """Return the nested program of these parts."""
        renamed = tuple(self.renamed.items())
        axes = self.outer.equation.operands
        groups: dict[object, list[int]] = {}
        for i, each in enumerate(passes):
            sums = len(each) == 1 and each[0].how in ("sum", PRODUCT)
            groups.setdefault((each[0].score, each[0].operands) if sums else i, []).append(i)
        return Nested(
            passes, self.row, self.column, self.values, axes, joined, finish, operands, renamed, self.unit,
            tuple(map(tuple, groups.values())),
        )  # fmt: skip

    def entries(self) -> Nested:
        """Return the one program of entries that nothing reduces."""
        for reduction in self.outer.reductions:
            if reduction.name not in ("sum", "prod", "min", "max", "logsumexp"):
                raise self.refusal(f"no axis of them is reduced by {reduction.name}")
        if self.values:
            raise self.refusal("the result is over both axes of the scores and further ones")
        names = {f"s{i}": value for i, value in enumerate(self.maps)} | {f"x{i}": var(f"#{i}") for i in self.others}
        names |= {name: var(new) for name, new in self.renamed.items()}
        outputs = substitute(self.outer.outputs, names)
        out = "".join(self.letters[axis] for axis in self.outer.equation.out)
        score, operands = self._score(outputs, out)
        return self.nested((), (), score, operands)


def nest(outer: Definition, inner: Definition, scores: Sequence[int]) -> Nested:
    """Compose a contraction with the scores among its operands, those of the numbers ``scores``.

    EquationError or ParameterError if it is not a row reduction; the message says what to do instead.
    """
    composer = _Composer(outer, inner, scores)
    if not composer.reduced:
        return composer.entries()
    joined: tuple[Reduction, ...] = ()
    if len(composer.reduced) == 2:
        for reduction in outer.reductions:
            if reduction.name not in _JOINED:
                raise composer.refusal(f"{reduction.name} goes over one axis of them, not over both")
        joined = tuple(REDUCTIONS[_TRUTHS.get(reduction.name, reduction.name)] for reduction in outer.reductions)
    if outer.reductions[0].name == SOFTMAX:
        passes = (composer.softmax_passes(),)
    else:
        passes = tuple(composer.row_passes(i, reduction) for i, reduction in enumerate(outer.reductions))
    finish, operands = composer.finish()
    if finish is not None and any(each[-1].result == "index" for each in passes):
        raise composer.refusal("positions of the smallest or largest have no epilogue")
    return composer.nested(passes, joined, finish, operands)
