"""Runs a contraction of scores: its row reductions, one for each pass, and the epilogue of their results."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from ..arrays import check_same_device, check_same_dtype, unwrap
from ..errors import DtypeError, EquationError, GradientError, ParameterError, ShapeError
from ..ir.autodiff import undifferentiable
from ..ir.definition import Definition, bind
from ..ir.equation import extents
from ..ir.nested import Nested, RowPass, nest
from ..ir.reductions import PRODUCT
from ..ir.simplify import POWER_CLASSES
from ..runtime.dispatch import PLANS, CallKey
from .autograd import Attributes, assumed_constant
from .call_key import is_recorded as is_recorded_key
from .call_key import key_and_plan
from .checks import Call, check_call, check_out, check_precision, check_terms, is_host_number
from .derivation import no_gradient
from .dtypes import NAMES
from .execute import Types
from .info import RunInfo
from .row_reduce import BoundApply, Defined, bind_apply, entries, task_of
from .row_reduce_autograd import rowwise
from .row_reduce_blocks import reduce_rows
from .row_select import nearest
from .scores import Scores
from .torch_private import autocasts, is_recorded, plain

Run = Callable[[RowPass, list[torch.Tensor], torch.Tensor | None], torch.Tensor]
_HALVES = (torch.float16, torch.bfloat16)
_NESTED = Attributes()


@assumed_constant
def _name(outer: str, inner: str, scores: tuple[int, ...]) -> str:
    make = partial(nest, Definition.parse(outer), Definition.parse(inner), scores)
    return _NESTED.name_of((outer, inner, scores), make)


@assumed_constant
def _without_gradient(outer: str, inner: str) -> str:
    """Return the name of a reduction that has no gradient, "" for none."""
    for text in (outer, inner):
        definition = Definition.parse(text)
        if not any(reduction.is_of_rows for reduction in definition.reductions):
            found = undifferentiable(bind(definition, frozenset()).program)
            if found is not None:
                return found.name
    return ""


@dataclass(frozen=True)
class _Arguments:
    """Tensors of a call: those of the scores, the outer operands by number, and the parameters of both by name."""

    scores: Sequence[torch.Tensor]
    others: Mapping[int, torch.Tensor]
    parameters: Mapping[str, Any]
    sizes: Mapping[str, int]
    batch: tuple[int, ...]
    precision: str | None


def checked_scores(contraction: Any, call: Call) -> Scores:
    """Return the scores of a contraction on the arguments of a call, or raise the error that says what does not fit."""
    definition: Definition = contraction.definition
    equation = definition.equation
    if len(equation.out) != 2 or len(definition.outputs) != 1:
        raise EquationError(
            f"scores have one value over two axes, as of 'mk,nk->mn'; {equation.text!r} has "
            f"{len(definition.outputs)} over {equation.written(equation.out)!r}"
        )
    tensors, _ = unwrap(*call.arrays, names=call.labels)
    checked = call.with_tensors(tensors)
    geometry = check_call(equation, checked)
    check_terms(definition, geometry.axes)
    if not checked.operands[0].is_floating_point():
        raise DtypeError(
            f"scores are of floating-point operands, these are {checked.operands[0].dtype}: convert them with "
            ".double() or .astype(float), or call the contraction on them"
        )
    shape = geometry.batch + tuple(geometry.axes[axis] for axis in equation.out)
    return Scores(contraction, call.arrays[0], checked.operands, {**call.numbers, **checked.parameters}, shape)


def run_nested(
    contraction: Defined, gather: Callable[[], Call], operands: Sequence[Any], named: Mapping[str, Any], out: Any,
    precision: str | None, info: RunInfo,
) -> Any:  # fmt: skip
    """Return the result of a contraction with scores among its operands; ``gather`` sorts and checks its arguments."""
    key, plan = _plan(contraction, operands, named, precision) if out is None else (None, None)
    if plan is not None:
        info.route = plan.route
        return plan(operands, named)
    call = gather()
    scores, numbers = _scores(call)
    definition, inner = contraction.definition, scores.contraction
    nested: Nested = getattr(_NESTED, _name(contraction.text, inner.text, numbers))
    check_precision(precision)
    args, tensors, wrap = _gathered(definition, nested, call, scores, numbers, precision)
    moving = [*scores.operands, *(v for v in scores.parameters.values() if isinstance(v, torch.Tensor)), *tensors]
    missing = _without_gradient(contraction.text, inner.text) if torch.is_grad_enabled() else ""
    if missing and any(value.requires_grad for value in moving):
        raise no_gradient(missing)
    dtype, autocast = scores.operands[0].dtype, autocasts(scores.device)
    is_rounded_once = len(nested.passes) == 1 and _is_one_pass(nested)
    if dtype in _HALVES and (autocast or not is_rounded_once or is_recorded(moving)):
        args = _widened(args)
    _check_counts(nested, args.sizes, definition)
    results = _results(nested, definition, args, info)
    if key is not None and not is_recorded_key(key) and _is_bindable(nested, args):
        PLANS[key] = BoundNested.of(definition, nested, args, info.route)
    target = torch.float32 if autocast and dtype in _HALVES else dtype
    results = [r.to(target) if r.is_floating_point() and r.dtype != target else r for r in results]
    single = definition.single and len(results) == 1
    if out is not None:
        return _written(out, results, moving, is_recorded(moving), single)
    return wrap(results[0] if single else tuple(results))


def _gathered(
    definition: Definition, nested: Nested, call: Call, scores: Scores, numbers: Sequence[int], precision: str | None
) -> tuple[_Arguments, list[torch.Tensor], Callable[[Any], Any]]:
    """Return the checked arguments of a call, its tensors besides those of the scores, and what wraps its results."""
    arrays = [array for array in call.arrays if array is not scores]
    labels = [label for array, label in zip(call.arrays, call.labels, strict=True) if array is not scores]
    (_, *tensors), wrap = unwrap(scores.first, *arrays, names=["the scores", *labels])
    sizes, batch = _checked(definition, call, scores, tensors, labels)
    others = dict(zip((i for i in range(call.count) if i not in numbers), tensors, strict=False))
    named = dict(zip(call.names, tensors[len(others) :], strict=True))
    parameters = _parameters(nested, scores, {**dict(definition.defaults), **call.numbers, **named})
    return _Arguments(_unit(scores.operands, nested.unit), others, parameters, sizes, batch, precision), tensors, wrap


def _plan(
    contraction: Defined, operands: Sequence[Any], named: Mapping[str, Any], precision: str | None
) -> tuple[CallKey | None, Any]:
    """Return the bound call, and on a miss its key; neither if the call has to go through all checks."""
    scores = next((value for value in operands if isinstance(value, Scores)), None)
    if torch.compiler.is_compiling() or scores is None or not isinstance(scores.first, torch.Tensor):
        return None, None
    if any(name is not None for name in contraction.definition.equation.names):
        return None, None
    options: list[Any] = [precision]
    tensors = [*scores.operands]
    for value in operands:
        options.append(value is scores)
        if value is not scores:
            tensors.append(value)
    for name, value in (*scores.parameters.items(), *named.items()):
        if type(value) is not float and type(value) is not int:
            return None, None
        options += name, value if value in POWER_CLASSES else None
    return key_and_plan(("nested", contraction.text, scores.contraction.text), tuple(options), tensors)


def _is_bindable(nested: Nested, args: _Arguments) -> bool:
    """Return whether a call is bound: one accumulator, which is the result, without batch axes or halves."""
    if len(nested.passes) != 1 or nested.finish is not None or nested.joined or args.batch or 0 in args.sizes.values():
        return False
    tensors = [*args.scores, *args.others.values()]
    return args.scores[0].dtype not in _HALVES and all(0 not in t.shape for t in tensors)


@dataclass(frozen=True, eq=False)
class BoundNested:
    """The bound call of a contraction of scores: the bound call of each pass, and the extents of the axes."""

    definition: Definition
    nested: Nested
    applies: tuple[BoundApply, ...]
    sizes: Mapping[str, int]
    route: str

    @staticmethod
    def of(definition: Definition, nested: Nested, args: _Arguments, route: str) -> BoundNested:
        """Return the bound call for such arguments."""
        applies: list[BoundApply] = []

        def run(row_pass: RowPass, operands: list[torch.Tensor], v: torch.Tensor | None) -> torch.Tensor:
            how, count = row_pass.how, row_pass.count
            applies.append(bind_apply(row_pass.score, how, operands, args.parameters, v, args.precision, count))
            program = applies[-1].program
            return torch.empty(program.shape, dtype=program.dtypes[-1], device=program.device)

        _reduced(nested, nested.passes[0], args, run)
        return BoundNested(definition, nested, tuple(applies), args.sizes, route)

    def __call__(self, operands: Sequence[Any], named: Mapping[str, Any], _: object = None) -> Any:
        """Return the result on operands in the equation's order, scores among them, and parameters by name."""
        nested, rest = self.nested, iter(self.applies)
        scores = next(value for value in operands if isinstance(value, Scores))
        others = {i: value for i, value in enumerate(operands) if value is not scores}
        parameters = _parameters(nested, scores, {**dict(self.definition.defaults), **named})
        args = _Arguments(_unit(scores.operands, nested.unit), others, parameters, self.sizes, (), None)
        if nested.passes[0][-1].count and nested.passes[0][-1].result == "value":
            return tuple(next(rest)(_operands(nested.passes[0][0], args, None), parameters))

        def run(_: RowPass, tensors: list[torch.Tensor], v: torch.Tensor | None) -> torch.Tensor:
            found = next(rest)(tensors if v is None else [*tensors, v], parameters)
            return found[-1]

        result = _reduced(nested, nested.passes[0], args, run)
        return _finished(nested, 0, result, args, self.definition.equation.out)


def _scores(call: Call) -> tuple[Scores, tuple[int, ...]]:
    """Return the scores of a call, and the numbers of the operands that are these."""
    numbers = tuple(i for i, array in enumerate(call.arrays) if isinstance(array, Scores))
    for i in numbers:
        if i >= call.count:
            raise ParameterError(f"{call.labels[i]} is scores; name them in the equation, as in 'mn,s:mn->m'")
        if call.arrays[i] is not call.arrays[numbers[0]]:
            raise ParameterError(
                f"{call.labels[numbers[0]]} and {call.labels[i]} are two scores; a contraction takes one: evaluate the "
                "other, scores.evaluate(), or make one contraction of both, whose map returns a tuple"
            )
    return call.arrays[numbers[0]], numbers


def _checked(
    definition: Definition, call: Call, scores: Scores, tensors: Sequence[torch.Tensor], labels: Sequence[str]
) -> tuple[dict[str, int], tuple[int, ...]]:
    """Return the sizes of the outer axes and the batch axes, or raise what does not fit."""
    rest = iter(tensors)
    every = [scores if isinstance(array, Scores) else next(rest) for array in call.arrays]
    first = scores.operands[0]
    own = [f"{label} (scores)" if value is scores else label for value, label in zip(every, call.labels, strict=True)]
    check_same_device([first, *tensors], ["the scores", *labels])
    count = call.count - (len(every) - len(tensors))
    numbers = [i for i in range(count) if tensors[i].dtype != torch.bool]  # truths may be masks
    check_same_dtype([first, *(tensors[i] for i in numbers)], ["the scores", *(labels[i] for i in numbers)])
    for label, value in zip(labels[count:], tensors[count:], strict=True):
        if value.is_complex() or value.dtype == torch.bool:
            raise ParameterError(f"{label} has dtype {value.dtype}; pass real numbers")
    equation = definition.equation
    axes = [*equation.operands, *("" for _ in call.names)]
    found = extents(own, axes, [tuple(value.shape) for value in every], equation.text)
    return dict(found.axes), found.batch


def _parameters(nested: Nested, scores: Scores, outer: Mapping[str, Any]) -> dict[str, Any]:
    renamed = dict(nested.renamed)
    own = {
        renamed.get(name, name): value.item() if is_host_number(value, scores.device) else value
        for name, value in outer.items()
    }
    return {**dict(scores.contraction.definition.defaults), **scores.parameters, **own}


def _unit(operands: Sequence[torch.Tensor], unit: int | None) -> list[torch.Tensor]:
    return [operand.unsqueeze(-1) if i == unit else operand for i, operand in enumerate(operands)]


def _widened(args: _Arguments) -> _Arguments:
    def wide(value: Any) -> Any:
        return value.float() if isinstance(value, torch.Tensor) and value.dtype in _HALVES else value

    return _Arguments(
        [wide(value) for value in args.scores], {i: wide(value) for i, value in args.others.items()},
        {name: wide(value) for name, value in args.parameters.items()}, args.sizes, args.batch, args.precision,
    )  # fmt: skip


def _is_one_pass(nested: Nested) -> bool:
    """Return whether a result is that of one pass, rounded once."""
    return nested.finish is None and not nested.joined and len(nested.passes[0]) == 1


def _check_counts(nested: Nested, sizes: Mapping[str, int], definition: Definition) -> None:
    """Refuse to select more entries than a row has, and the position of the best of none."""
    for row_pass in (each for passes in nested.passes for each in passes if each.count):
        column = next(
            axis for axis in definition.equation.letters if axis not in definition.equation.out and axis in sizes
        )
        if row_pass.count > sizes[column]:
            raise ShapeError(
                f"{row_pass.how} needs {row_pass.count} entries along axis {definition.equation.written(column)!r} of "
                f"{definition.equation.text!r}, which has size {sizes[column]}"
            )


def _results(nested: Nested, definition: Definition, args: _Arguments, info: RunInfo) -> list[torch.Tensor]:
    out = definition.equation.out
    infos: list[RunInfo] = []

    def step() -> RunInfo:
        infos.append(RunInfo())
        return infos[-1]

    if not nested.passes:
        assert nested.finish is not None
        operands = [*args.scores, *(args.others[i] for i in nested.finish_operands)]
        results = entries(nested.finish, operands, args.parameters, args.precision, step())
        results = [_whole(result, args, out) for result in results]
    elif nested.passes[0][-1].count and nested.passes[0][-1].result == "value":
        results = [
            value.expand(*args.batch, *value.shape[-2:]) for value in _selected(nested.passes[0][0], args, step())
        ]
    else:
        results = _accumulators(nested, args, out, step)
        if nested.finish is not None:
            operands = [*results, *(args.others[i] for i in nested.finish_operands)]
            results = entries(nested.finish, operands, args.parameters, args.precision, step())
    routes = [each.route for each in infos if each.route]
    info.route = routes[0] if len(routes) == 1 else f"{len(routes)} passes: {'; '.join(routes)}" if routes else ""
    return results


def _operands(row_pass: RowPass, args: _Arguments, statistic: torch.Tensor | None) -> list[torch.Tensor]:
    others = [args.others[i] for i in row_pass.operands]
    return [*args.scores, *others, *([] if statistic is None else [statistic])]


def _selected(row_pass: RowPass, args: _Arguments, info: RunInfo) -> tuple[torch.Tensor, torch.Tensor]:
    """Return values and indices of a selection."""
    operands, largest = _operands(row_pass, args, None), row_pass.how == "largest"
    return nearest(row_pass.score, operands, args.parameters, row_pass.count, largest, args.precision, info)


def _accumulators(nested: Nested, args: _Arguments, out: str, step: Callable[[], RunInfo]) -> list[torch.Tensor]:
    """Return every accumulator over the axes of the output."""
    found: dict[int, torch.Tensor] = {}
    for group in nested.groups:
        if len(group) == 1:
            found[group[0]] = _reduced(nested, nested.passes[group[0]], args, partial(_row_pass, args, step))
        else:
            found |= _summed(nested, group, args, step())
    return [_finished(nested, i, found[i], args, out) for i in range(len(nested.passes))]


def _row_pass(
    args: _Arguments, step: Callable[[], RunInfo], row_pass: RowPass, operands: list[torch.Tensor],
    v: torch.Tensor | None,
) -> torch.Tensor:  # fmt: skip
    """Return the result of one pass, with whatever derivative is recorded."""
    score, how = row_pass.score, row_pass.how
    if row_pass.result != "index":
        return rowwise(score, how, operands, args.parameters, v, args.precision, step())
    task, tensors = task_of(score, how, operands, args.parameters, count=1, precision=args.precision, info=step())
    return task.evaluate(tensors)[1]


def _reduced(nested: Nested, passes: Sequence[RowPass], args: _Arguments, run: Run) -> torch.Tensor:
    """Return the result of the last pass of an accumulator: over rows, and the columns of v."""
    result: torch.Tensor | None = None
    statistic: torch.Tensor | None = None
    for row_pass in passes:
        if result is not None:  # rows without weight: zeros, not NaN
            statistic = torch.where(result == -math.inf, 0, result)
        v = None if row_pass.v is None else _columns(nested, row_pass.v, args)
        result = run(row_pass, _operands(row_pass, args, statistic), v)
    assert result is not None
    return result[..., 0] if passes[-1].result == "index" else result


def _summed(nested: Nested, group: Sequence[int], args: _Arguments, info: RunInfo) -> dict[int, torch.Tensor]:
    """Return the sums of a group, whose weights are the same: one product with the columns of all."""
    passes = [nested.passes[i][0] for i in group]
    ones = args.scores[0].new_ones(args.sizes[nested.column], 1)
    columns = [ones if each.v is None else _columns(nested, each.v, args) for each in passes]
    lead = torch.broadcast_shapes(*(each.shape[:-2] for each in columns))
    v = torch.cat([each.expand(*lead, *each.shape[-2:]) for each in columns], -1)
    operands = _operands(passes[0], args, None)
    result = rowwise(passes[0].score, PRODUCT, operands, args.parameters, v, args.precision, info)
    parts = result.split([each.shape[-1] for each in columns], -1)
    return {i: part[..., 0] if each.v is None else part for i, each, part in zip(group, passes, parts, strict=True)}


def _finished(nested: Nested, i: int, result: torch.Tensor, args: _Arguments, out: str) -> torch.Tensor:
    """Return the result of the passes of accumulator i over the axes of the output."""
    last, axes = nested.passes[i][-1], nested.row
    if last.v is not None:
        values = nested.values_of(last.v)
        result = result.unflatten(-1, tuple(args.sizes[axis] for axis in values)) if values else result[..., 0]
        axes += values
    if nested.joined:
        moved = result.movedim(result.dim() - len(axes), -1)
        result, axes = reduce_rows(nested.joined[i], moved), axes[1:]
    if last.result == "truth":
        result = result > 0
    return _whole(_ordered(result, axes, out), args, out)


def _columns(nested: Nested, i: int, args: _Arguments) -> torch.Tensor:
    """Return an operand as v: columns of the score, then the axes that the score lacks as one."""
    operand, axes, values = args.others[i], nested.axes[i], nested.values_of(i)
    if operand.dtype == torch.bool:
        operand = operand.to(args.scores[0].dtype)
    lead = operand.dim() - len(axes)
    view = operand.permute(
        [*range(lead), *(lead + axes.index(axis) for axis in nested.column + values if axis in axes)]
    )
    if nested.column not in axes:
        view = view.unsqueeze(lead).expand(*view.shape[:lead], args.sizes[nested.column], *view.shape[lead:])
    return view.flatten(lead + 1) if values else view.unsqueeze(-1)


def _ordered(result: torch.Tensor, axes: str, out: str) -> torch.Tensor:
    """Return a result over some axes with those of the output, in its order; axes that it lacks have extent 1."""
    if axes == out:
        return result
    lead = result.dim() - len(axes)
    view = result.permute([*range(lead), *(lead + axes.index(axis) for axis in out if axis in axes)])
    for at, axis in enumerate(out):
        if axis not in axes:
            view = view.unsqueeze(lead + at)
    return view


def _whole(result: torch.Tensor, args: _Arguments, out: str) -> torch.Tensor:
    """Return a result expanded to all batch axes and all of the output's."""
    shape = (*args.batch, *(args.sizes[axis] for axis in out))
    return result if result.shape == shape else result.expand(shape)


def _written(
    out: Any, results: Sequence[torch.Tensor], moving: Sequence[torch.Tensor], tracked: bool, single: bool
) -> Any:
    """Return ``out`` after the results are written to it."""
    if not plain(moving):
        raise GradientError("out= cannot be combined with a transform of torch.func; drop out=")
    types = Types("f64", tuple(NAMES[result.dtype] for result in results)).text
    targets = check_out(out, results[0].shape, types, moving, tracked, single)
    for target, result in zip(targets, results, strict=True):
        target.copy_(result)
    return out
