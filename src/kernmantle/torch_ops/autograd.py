"""Derivatives in torch: one autograd.Function whose backward and jvp are contractions again, to any order."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import lru_cache, wraps
from itertools import count
from typing import Any

import torch
from torch.autograd import forward_ad

from ..errors import BackendError, GradientError
from ..runtime.dispatch import PLANS
from ..runtime.kernel_store import compile_only
from ..runtime.lru import LRUCache
from . import decompositions  # noqa: F401 - enters those of the operators
from .call_key import program_key
from .derivation import BoundBackward, Derivation, Differentiable, Run, Tensors, differentiable, gradients, tangents
from .execute import BoundProgram, execute, prepare
from .flops import counted, flops_of, on_meta
from .info import RunInfo
from .operator import LIBRARY, by_key, contract, implement, packed, read, unpacked
from .saved import addresses, bound_pass, keep_pass
from .torch_private import (
    apply_here,
    assumed_constant,
    goes_forward,
    is_batched,
    is_traced,
    is_tracked,
    is_transformed,
    is_written_down,
    one_level_down,
    plain,
    register_derivative,
    tangents_of_tangents,
)


def constant(function: Callable[..., Any]) -> Callable[..., Any]:
    """Cache a function of texts, which torch.compile evaluates while it traces instead of tracing into it."""
    cached = lru_cache(maxsize=4096)(function)

    @wraps(function)
    def call(*args: Any) -> Any:
        return cached(*args)

    return assumed_constant(call)


class Attributes:
    """Objects as attributes, which torch.compile looks up when it traces; the least recently traced are removed.

    A compiled graph guards the attributes that it looked up: it is traced anew after one was removed.
    """

    def __init__(self, capacity: int = 4096) -> None:
        self._names: LRUCache[Hashable, str] = LRUCache(capacity, clearable=False, on_evict=self._remove)
        self._count = count()

    def name_of(self, key: Hashable, make: Callable[[], Any]) -> str:
        """Return the name of the attribute of a key; create it on a miss."""
        name = self._names.get(key)
        if name is None:
            name = f"attribute {next(self._count)}"
            setattr(self, name, make())
            self._names[key] = name
        return name

    def _remove(self, key: Hashable, name: str) -> None:
        delattr(self, name)


@dataclass(frozen=True, eq=False)
class Recorded:
    """A program whose derivative is recorded; ``forward`` is its bound call, None for tensors of a transform.

    ``backward`` has the backward passes that were bound for saved tensors of its layout and cotangents in one piece, by
    which gradients are needed and which outputs have a cotangent.
    """

    program: Differentiable
    forward: BoundProgram | None
    backward: dict[tuple[Any, ...], BoundBackward] = field(default_factory=dict[Any, Any])

    @property
    def route(self) -> str:
        """Backend, schedule and arithmetic."""
        return "" if self.forward is None else self.forward.route

    def results(self, tensors: Tensors, numbers: Sequence[Any]) -> list[torch.Tensor]:
        """Return the outputs, recorded at the innermost level alone."""
        return list(apply_here(Contract, self, *numbers, *tensors)[: self.program.outputs])


def record(text: str, types: str, tensors: Tensors) -> Recorded:
    """Return a program with its derivative on such tensors."""
    program = differentiable(text, types)
    return Recorded(program, prepare(program.full, program.full_types, tensors) if plain(tensors) else None)


class Contract(torch.autograd.Function):
    """Outputs of a program, then its accumulators if they are not the outputs."""

    @staticmethod
    def forward(recorded: Recorded, *values: Any) -> tuple[torch.Tensor, ...]:
        numbers, tensors = recorded.program.split(values)
        if recorded.forward is not None:
            return tuple(recorded.forward.results(tensors, numbers))
        with one_level_down():
            return tuple(contract(tensors, numbers, recorded.program.full, recorded.program.full_types))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
        ctx.recorded, program = inputs[0], inputs[0].program
        ctx.numbers, tensors = program.split(inputs[1:])
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*[out for out in output if not out.is_floating_point()])
        saved = output[len(output) - program.accumulators :] if program.saves else ()
        ctx.save_for_backward(*tensors, *saved)
        ctx.addresses = [] if ctx.recorded.forward is None else addresses((*tensors, *saved))
        if goes_forward():  # not otherwise: it holds the outputs, which hold this context
            ctx.save_for_forward(*tensors, *saved)
            ctx.like = [(out.shape, out.dtype) for out in output]
        ctx.context = copy_context()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[Any, ...]:
        first, present = 1 + len(ctx.numbers), [grad for grad in grads if grad is not None]
        saved = ctx.saved_tensors  # read once: under a checkpoint each may be unpacked only once
        plan = bound_pass(ctx.recorded.backward, _layout(ctx, grads), ctx.addresses, saved, present)
        if plan is not None:
            return *(None,) * first, *plan([*saved, *present], ctx.numbers)
        if is_written_down() and not is_transformed() and not torch.is_grad_enabled():
            return *(None,) * first, *_by_operator(ctx, saved, grads)
        # In the configuration of the forward call: torch may run this in a thread of its own.
        return ctx.context.copy().run(_backward, ctx, saved, grads)

    @staticmethod
    def jvp(ctx: Any, *moves: Any) -> tuple[torch.Tensor | None, ...]:
        with tangents_of_tangents():
            program = ctx.recorded.program
            primals = [forward_ad.unpack_dual(saved).primal for saved in ctx.saved_tensors]
            values = program.named(primals, ctx.numbers)
            if len(primals) == len(program.tensors):  # the axes of a tangent of the outputs alone are known from these
                shape, dtype = ctx.like[0]
                none = values["x0"].new_zeros((), dtype=dtype).expand(shape)
                values |= {f"a{i}": none for i in range(program.accumulators)}
            results = tangents(program, values, moves[1 + len(ctx.numbers) :], _recorded)
            return tuple(
                _shaped(value, values["x0"], *like) if like[1].is_floating_point else None
                for value, like in zip(results, ctx.like, strict=False)
            )


def _layout(ctx: Any, grads: Sequence[torch.Tensor | None]) -> tuple[Any, ...]:
    """Return which gradients are needed, and which outputs have a cotangent."""
    return ctx.needs_input_grad[1 + len(ctx.numbers) :], tuple([grad is not None for grad in grads])


def _backward(ctx: Any, saved: Tensors, grads: Sequence[torch.Tensor | None]) -> tuple[Any, ...]:
    recorded = ctx.recorded
    needed, _ = layout = _layout(ctx, grads)
    own = recorded.program, saved, ctx.numbers, grads, needed
    present = [grad for grad in grads if grad is not None]
    first = 1 + len(ctx.numbers)
    if recorded.forward is None or _is_watched([*saved, *present]):
        return *(None,) * first, *_gradients(*own)
    found, plan = bound_gradients(*own)
    if not compile_only():
        keep_pass(recorded.backward, layout, ctx.addresses, saved, present, plan)
    return *(None,) * first, *found


def _by_operator(ctx: Any, saved: Tensors, grads: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
    """Return the gradients by one operator, in a graph that torch.compile or torch.export writes."""
    program, (needed, present) = ctx.recorded.program, _layout(ctx, grads)
    cotangents = [grad for grad in grads if grad is not None]
    own = _backward_operator(saved, cotangents, *packed(ctx.numbers), program.text, program.types, needed, present)
    found = iter(own)
    return [next(found) if wanted else None for wanted in needed]


def _run_backward(saved: Tensors, cotangents: Tensors, *numbers_and_texts: Any) -> Tensors:
    """Return the gradients that are needed, each in memory of its own."""
    *numbers, text, types, needed, present = numbers_and_texts
    remaining = iter(cotangents)
    grads = [next(remaining) if there else None for there in present]
    found, _ = bound_gradients(differentiable(text, types), saved, read(*numbers), grads, tuple(needed))
    return in_own_memory(found, [*saved, *cotangents])


def in_own_memory(found: Sequence[torch.Tensor | None], inputs: Tensors) -> list[torch.Tensor]:
    """Return the tensors that are present, each contiguous; copy those that begin at the address of an input."""
    taken, own = set(addresses(inputs)), list[torch.Tensor]()
    for each in found:
        if each is not None:
            each = each.clone(memory_format=_PIECE) if each.data_ptr() in taken else each.contiguous()
            taken.add(each.data_ptr())
            own.append(each)
    return own


_PIECE = torch.contiguous_format


def _fake_backward(saved: Tensors, *others: Any) -> Tensors:
    """Return gradients like the tensors, which are saved first."""
    return [each.new_empty(each.shape) for each, wanted in zip(saved, others[-2], strict=False) if wanted]


_backward_operator = implement("contract_backward", by_key(_run_backward), _fake_backward)


@counted("contract_backward")
def _flops(shapes: Any, cotangents: Any, *others: Any, **_: Any) -> int:
    text, types, needed, present = others[-4:]
    program, remaining = differentiable(text, types), iter(on_meta(cotangents))
    grads = [next(remaining) if there else None for there in present]
    numbers = [1.0] * len(program.numbers)
    return flops_of(lambda: _gradients(program, on_meta(shapes), numbers, grads, tuple(needed)))


def _is_watched(tensors: Tensors) -> bool:
    return torch.is_grad_enabled() or torch.compiler.is_compiling() or not plain(tensors)


def _gradients(
    program: Differentiable, saved: Tensors, numbers: Sequence[Any], grads: Sequence[torch.Tensor | None],
    needed: tuple[bool, ...],
) -> list[torch.Tensor | None]:  # fmt: skip
    """Return the gradient of every tensor that is needed, None for the others.

    ``saved`` are the tensors of the program, then its accumulators where derivatives read them.
    """
    if _is_watched([*saved, *[grad for grad in grads if grad is not None]]):
        present = tuple([grad is not None for grad in grads])
        own = Derivation(program.named(saved, numbers, grads), _recorded)
        return [*map(own.at, gradients(own, program, needed, present))]
    return bound_gradients(program, saved, numbers, grads, needed)[0]


def bound_gradients(
    program: Differentiable, saved: Tensors, numbers: Sequence[Any], grads: Sequence[torch.Tensor | None],
    needed: tuple[bool, ...],
) -> tuple[list[torch.Tensor | None], BoundBackward]:  # fmt: skip
    """Return the gradients of a call that no transform sees, and the bound call that computes them."""
    arrays, present = [*saved, *[grad for grad in grads if grad is not None]], tuple([g is not None for g in grads])
    key = program_key(("backward", program.text), (program.types, needed, present), arrays)
    plan: BoundBackward | None = None if compile_only() else PLANS.get(key)
    if plan is not None:
        return plan(arrays, numbers), plan
    own = Derivation(program.named(saved, numbers, grads), _bound)
    slots = gradients(own, program, needed, present)
    plan = BoundBackward(tuple(own.steps), slots)
    if not compile_only():
        PLANS[key] = plan
    return [*map(own.at, slots)], plan


def program_vjp(
    text: str, types: str, numbers: Sequence[Any], tensors: Tensors, needed: Sequence[bool],
    cotangent: Callable[[torch.Tensor], torch.Tensor],
) -> list[torch.Tensor | None]:  # fmt: skip
    """Return the gradients of a program of one output, whose cotangent is made of the output.

    The output is computed for the cotangent alone; derivatives of the gradients are recorded if those of the tensors
    are.
    """
    program = differentiable(text, types)
    results = apply(program.full, program.full_types, numbers, tensors)
    accumulators = results[len(results) - program.accumulators :] if program.saves else ()
    return _gradients(program, [*tensors, *accumulators], numbers, [cotangent(results[0])], tuple(needed))


def _recorded(text: str, types: str, tensors: Tensors) -> Run:
    """Return what runs a program with whatever derivative is being recorded."""

    def run(arrays: Tensors, numbers: Sequence[float]) -> list[torch.Tensor]:
        return apply(text, types, numbers, arrays)

    return run


def _bound(text: str, types: str, tensors: Tensors) -> Run:
    """Return what runs a program on such tensors, without a derivative."""
    return prepare(text, types, tensors).results


def _shaped(value: torch.Tensor | None, like: torch.Tensor, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
    """Return the tangent of an output in that shape and type; zero if no input has a tangent."""
    return like.new_zeros(shape, dtype=dtype) if value is None else value.to(dtype).expand(shape)


def apply(
    text: str, types: str, numbers: Sequence[float], tensors: Tensors, info: RunInfo | None = None
) -> list[torch.Tensor]:
    """Return the outputs of a program, with whatever derivative is being recorded; ``info`` takes the route."""
    info = RunInfo() if info is None else info
    if not torch.compiler.is_compiling():
        if plain(tensors):
            if not is_tracked(tensors):
                return execute(text, types, tensors, numbers, info=info)
            recorded = record(text, types, tensors)
            info.route = recorded.route
            return recorded.results(tensors, numbers)
        if is_traced():
            raise BackendError(
                "torch.jit.trace cannot record a contraction; use torch.compile, torch.export or "
                "torch.onnx.export(..., dynamo=True)"
            )
        if any(map(is_batched, tensors)):
            raise GradientError("is_grads_batched and vectorize=True are not supported; use torch.func.vmap or jacrev")
        info.route = ""  # the operator's, which is called at another level
    return contract(tensors, numbers, text, types)


def _of_operator(tensors: Tensors, *numbers_and_texts: Any) -> list[torch.Tensor]:
    *numbers, program, types = numbers_and_texts
    return record(program, types, tensors).results(tensors, unpacked(*numbers))


register_derivative(LIBRARY, "contract", lambda tensors, *_: tensors, _of_operator)
