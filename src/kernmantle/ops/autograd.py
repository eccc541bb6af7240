"""Derivatives in torch: one autograd.Function whose backward and jvp are contractions again, to any order."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextvars import copy_context
from dataclasses import replace
from functools import lru_cache, wraps
from itertools import count
from typing import Any

import torch
from torch.autograd import forward_ad

from ..contraction import derivative
from ..contraction.program import Program
from ..errors import BackendError, GradientError
from ..runtime.lru import LRUCache
from .dtypes import NAMES
from .execute import Types, execute
from .operator import LIBRARY, contract, unpacked
from .torch_private import (
    apply_here,
    assumed_constant,
    goes_forward,
    is_batched,
    is_traced,
    is_tracked,
    one_level_down,
    plain,
    register_derivative,
    tangents_of_tangents,
)

Tensors = Sequence[torch.Tensor]
Values = Mapping[str, Any]
Rule = tuple[str, int, tuple[str, ...], tuple[str, ...]]


_BATCH_LETTERS = "ABCDEFGHIJ"


def constant(function: Callable[..., Any]) -> Callable[..., Any]:
    """Cached, and evaluated while torch.compile traces instead of looked into: texts in, texts out."""
    cached = lru_cache(maxsize=4096)(function)

    @wraps(function)
    def call(*args: Any) -> Any:
        return cached(*args)

    return assumed_constant(call)


class Attributes:
    """Objects as attributes, which torch.compile looks up when it traces, the least recently traced removed.

    A compiled graph guards what it looked up: where that was removed, it is traced anew.
    """

    def __init__(self, capacity: int = 4096) -> None:
        self._names: LRUCache[Hashable, str] = LRUCache(capacity, clearable=False, on_evict=self._remove)
        self._count = count()

    def name_of(self, key: Hashable, make: Callable[[], Any]) -> str:
        """Return the name of the attribute of a key, made if it is not there."""
        name = self._names.get(key)
        if name is None:
            name = f"attribute {next(self._count)}"
            setattr(self, name, make())
            self._names[key] = name
        return name

    def _remove(self, key: Hashable, name: str) -> None:
        delattr(self, name)


@constant
def saving(text: str, types_text: str) -> tuple[str, str]:
    """The program that also returns its raw accumulators, when derivatives need them and the outputs lack them."""
    program, types = Program.parse(text), Types.parse(types_text)
    rounded = any(name != types.compute for name in types.outs)
    if derivative.undifferentiable(program) or not derivative.reads_accumulators(program):
        return text, types_text
    if derivative.accumulator_is_output(program) and not rounded:
        return text, types_text
    outs = types.outs + (types.compute,) * len(program.reductions)
    return derivative.with_accumulators(program).text, replace(types, outs=outs).text


@constant
def _shape_of(text: str) -> tuple[int, int, tuple[str, ...], tuple[str, ...], bool]:
    """Numbers of outputs and accumulators, names of tensors and numbers, symmetry."""
    program = Program.parse(text)
    tensors, numbers = [op.name for op in program.tensors], [op.name for op in program.numbers]
    return len(program.outputs), len(program.reductions), tuple(tensors), tuple(numbers), program.symmetric


@constant
def _identity(text: str) -> bool:
    """Whether the outputs are the accumulators."""
    return derivative.accumulator_is_output(Program.parse(text))


@constant
def _saved(text: str) -> bool:
    """Whether derivatives read the accumulators."""
    program = Program.parse(text)
    return derivative.undifferentiable(program) is None and derivative.reads_accumulators(program)


@constant
def _missing(text: str) -> str:
    """Name of a reduction that has no gradient; "" if all have one."""
    reduction = derivative.undifferentiable(Program.parse(text))
    return "" if reduction is None else reduction.name


@constant
def _rule(kind: str, text: str, *args: Any) -> Rule | None:
    """A derived program and the values it takes; None if it is zero."""
    program = getattr(derivative, kind)(replace(Program.parse(text), symmetric=False), *args)
    if program is None:
        return None
    names = [[op.name for op in group] for group in (program.tensors, program.numbers)]
    return program.renamed().text, len(program.outputs), tuple(names[0]), tuple(names[1])


@constant
def _typed(types: str, outs: int | str) -> str:
    """Types of a derived program: so many outputs of the arithmetic's type, or one of the type named."""
    own = Types.parse(types)
    return replace(own, outs=(own.compute,) * outs if isinstance(outs, int) else (outs,)).text


def _call(rule: Rule, types: str, values: Values) -> list[torch.Tensor]:
    text, _, tensors, numbers = rule
    return apply(text, types, [values[name] for name in numbers], [values[name] for name in tensors])


def _values(text: str, tensors: Tensors, numbers: Sequence[float], accumulators: Tensors) -> dict[str, Any]:
    _, _, names, number_names, symmetric = _shape_of(text)
    values: dict[str, Any] = dict(zip(names, tensors, strict=True)) | dict(zip(number_names, numbers, strict=True))
    if symmetric:
        values["x1"] = values["x0"]
    return values | {f"a{i}": value for i, value in enumerate(accumulators)}


def _with_statistics(text: str, i: int, values: dict[str, Any], types: str) -> None:
    """Add what the slope of accumulator i needs beyond the accumulator itself."""
    extra = _rule("statistics", text, i)
    if extra:
        results = _call(extra, _typed(types, extra[1]), values)
        values |= {f"{letter}{i}": value for letter, value in zip(derivative.STATISTICS, results, strict=False)}


def _cotangents(
    text: str, types: str, values: dict[str, Any], grads: Sequence[torch.Tensor | None]
) -> tuple[bool, ...]:
    """Put h_i into ``values``; says which exist."""
    outputs, accumulators, _, _, _ = _shape_of(text)
    present = tuple(grad is not None for grad in grads[:outputs])
    values |= {f"g{o}": grad for o, grad in enumerate(grads[:outputs]) if grad is not None}
    found: list[bool] = []
    for i in range(accumulators):
        through = [grads[outputs + i]] if len(grads) > outputs else []
        if _identity(text):
            through.append(grads[i])
        else:
            rule = _rule("cotangent", text, i, present)
            through += _call(rule, _typed(types, 1), values) if rule else []
        parts = [part for part in through if part is not None]
        found.append(len(parts) > 0)
        if parts:
            total = parts[0] if len(parts) == 1 else parts[0] + parts[1]
            values[f"h{i}"] = total
            _with_statistics(text, i, values, types)
    return tuple(found)


def _gradient(
    text: str, types: str, name: str, values: dict[str, Any], present: Sequence[tuple[bool, ...]]
) -> torch.Tensor:
    """Gradient of one operand, through the accumulators and through the outputs; zeros where it is zero everywhere."""
    operand = values[name]
    if name == "x0" and _shape_of(text)[4]:
        both = {f"h{i}": values[f"h{i}"] for i, given in enumerate(present[0]) if given}
        values = values | {h: value + value.mT for h, value in both.items()}
    own = _typed(types, NAMES[operand.dtype])
    total: torch.Tensor | None = None
    for kind, given in (("pullback", present[0]), ("direct", present[1])):
        rule = _rule(kind, text, name, given)
        if rule:
            part = _summed(rule, own, values, operand.shape[: operand.dim() - len(_axes_of(text, name))])
            total = part if total is None else total + part
    return torch.zeros_like(operand) if total is None else total.sum_to_size(operand.shape)


@constant
def _axes_of(text: str, name: str) -> str:
    return Program.parse(text).operand(name).axes


@constant
def _batched(rule: Rule, batch: tuple[str, ...], out: str) -> str:
    """Text of a rule whose tensors have these batch letters, of which only ``out`` stay."""
    program = Program.parse(rule[0])
    return program.with_batch({op.name: own for op, own in zip(program.tensors, batch, strict=True)}, out).text


def _summed(rule: Rule, types: str, values: Values, batch_shape: Sequence[int]) -> torch.Tensor:
    """Result of a rule, the batch axes that ``batch_shape`` lacks summed in the kernel and not after it."""
    rank = len(batch_shape)
    text, _, tensors, numbers = rule
    arrays = [values[name] for name in tensors]
    ranks = [array.dim() - len(_axes_of(text, f"x{i}")) for i, array in enumerate(arrays)]
    beside = max(ranks) < rank or (max(ranks) == rank and 1 not in batch_shape)
    if beside or torch.compiler.is_compiling():
        return _call(rule, types, values)[0]
    letters = _BATCH_LETTERS[: max(ranks)]
    kept = letters[max(ranks) - rank :] if rank else ""
    views: list[torch.Tensor] = []
    batch: list[str] = []
    for array, own in zip(arrays, ranks, strict=True):
        there = [place for place in range(own) if array.shape[place] != 1]
        named = "".join(letters[max(ranks) - own + place] for place in there)
        views.append(array.squeeze([place for place in range(own) if place not in there]) if own else array)
        batch.append(named)
    wide = [letter for letter, size in zip(kept, batch_shape, strict=True) if size != 1]
    present = "".join(letter for letter in wide if any(letter in own for own in batch))
    (result,) = apply(_batched(rule, tuple(batch), present), types, [values[name] for name in numbers], views)
    for place, letter in enumerate(kept):
        if letter not in present:
            result = result.unsqueeze(place)
    return result


def _split(text: str, values: Sequence[Any]) -> tuple[Sequence[float], Tensors]:
    count = len(_shape_of(text)[3])
    return values[:count], values[count:]


class Contract(torch.autograd.Function):
    """Outputs of a program, then its accumulators if they are not the outputs."""

    @staticmethod
    def forward(text: str, full: str, types: str, *values: Any) -> tuple[torch.Tensor, ...]:
        numbers, tensors = _split(text, values)
        if plain(tensors):
            return tuple(execute(full, types, tensors, numbers))
        with one_level_down():
            return tuple(contract(tensors, numbers, full, types))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
        text, _, ctx.types, *values = inputs
        ctx.text = text
        ctx.numbers, tensors = _split(text, values)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*[out for out in output if not out.is_floating_point()])
        saved = output[len(output) - _shape_of(text)[1] :] if _saved(text) else ()
        ctx.save_for_backward(*tensors, *saved)
        if goes_forward():  # not otherwise: it holds the outputs, which hold this context
            ctx.save_for_forward(*tensors, *saved)
        ctx.count = len(tensors)
        ctx.like = [(out.shape, out.dtype) for out in output]
        ctx.context = copy_context()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[Any, ...]:
        # In the configuration of the forward call: torch may run this in a thread of its own.
        return ctx.context.copy().run(_backward, ctx, grads)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[torch.Tensor | None, ...]:
        with tangents_of_tangents():
            primals = [forward_ad.unpack_dual(saved).primal for saved in ctx.saved_tensors]
            tensors, accumulators = primals[: ctx.count], primals[ctx.count :]
            values = _values(ctx.text, tensors, ctx.numbers, accumulators)
            if not accumulators:  # where an operand of the outputs alone moves, their axes are known from these
                shape, dtype = ctx.like[0]
                none = values["x0"].new_zeros((), dtype=dtype).expand(shape)
                values |= {f"a{i}": none for i in range(_shape_of(ctx.text)[1])}
            results = _tangents(ctx.text, ctx.types, values, tangents[3 + len(ctx.numbers) :])
            return tuple(
                _shaped(value, values["x0"], *like) if like[1].is_floating_point else None
                for value, like in zip(results, ctx.like, strict=False)
            )


def _backward(ctx: Any, grads: Sequence[torch.Tensor | None]) -> tuple[Any, ...]:
    tensors, accumulators = ctx.saved_tensors[: ctx.count], ctx.saved_tensors[ctx.count :]
    values = _values(ctx.text, tensors, ctx.numbers, accumulators)
    through = _cotangents(ctx.text, ctx.types, values, grads)
    present = (through, tuple(grad is not None for grad in grads[: _shape_of(ctx.text)[0]]))
    results: list[torch.Tensor | None] = []
    for name, needed in zip(_shape_of(ctx.text)[2], ctx.needs_input_grad[3 + len(ctx.numbers) :], strict=True):
        results.append(_gradient(ctx.text, ctx.types, name, values, present) if needed else None)
    return *(None,) * (3 + len(ctx.numbers)), *results


def _shaped(value: torch.Tensor | None, near: torch.Tensor, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
    """Tangent of an output of that shape and type; zero where nothing moves it."""
    return near.new_zeros(shape, dtype=dtype) if value is None else value.to(dtype).expand(shape)


def no_gradient(name: str) -> GradientError:
    """Error for a derivative through a reduction that has none."""
    return GradientError(
        f"a reduction by {name} has no gradient; detach the operands, use torch.no_grad(), "
        "or one of sum, prod, min, max, logsumexp"
    )


def _tangents(
    text: str, types: str, values: dict[str, Any], tangents: Sequence[torch.Tensor | None]
) -> tuple[torch.Tensor | None, ...]:
    """Tangents of the outputs, then of the accumulators."""
    outputs, count, names, _, symmetric = _shape_of(text)
    moving = {name: tangent for name, tangent in zip(names, tangents, strict=True) if tangent is not None}
    if symmetric and "x0" in moving:
        moving["x1"] = moving["x0"]
    values |= {f"t_{name}": tangent for name, tangent in moving.items()}
    inner: list[torch.Tensor | None] = []
    for i in range(count):
        _with_statistics(text, i, values, types)
        rule = _rule("tangent", text, i, tuple(moving))
        inner.append(_call(rule, _typed(types, 1), values)[0] if rule else None)
    values |= {f"u{i}": value for i, value in enumerate(inner) if value is not None}
    if _identity(text):
        return *inner, *inner
    rule = _rule("output_tangent", text, tuple(moving), tuple(value is not None for value in inner))
    return (*_call(rule, _typed(types, outputs), values), *inner)


def apply(text: str, types: str, numbers: Sequence[float], tensors: Tensors) -> list[torch.Tensor]:
    """Outputs of a program, with whatever derivative is being recorded."""
    if not torch.compiler.is_compiling():
        if plain(tensors):
            return (_recorded if is_tracked(tensors) else execute)(text, types, tensors, numbers)
        if is_traced():
            raise BackendError("torch.jit.trace cannot record a contraction; use torch.compile or torch.export")
        if any(map(is_batched, tensors)):
            raise GradientError("is_grads_batched and vectorize=True are not supported; use torch.func.vmap or jacrev")
    return contract(tensors, numbers, text, types)


def _recorded(text: str, types: str, tensors: Tensors, numbers: Sequence[Any]) -> list[torch.Tensor]:
    """Outputs of a program, with the derivative that is recorded at the level in hand."""
    full, extended = saving(text, types)
    missing = _missing(text)
    if missing:
        raise no_gradient(missing)
    return list(apply_here(Contract, text, full, extended, *numbers, *tensors)[: _shape_of(text)[0]])


def _of_operator(tensors: Tensors, *numbers_and_texts: Any) -> list[torch.Tensor]:
    *numbers, program, types = numbers_and_texts
    return _recorded(program, types, tensors, unpacked(*numbers))


register_derivative(LIBRARY, "contract", lambda tensors, *_: tensors, _of_operator)
