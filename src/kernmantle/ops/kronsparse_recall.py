"""The fast eager path: a chain that looks like an earlier one goes straight to its prepared kernels.

What it looks like is everything the checks and the plan depend on: shapes, strides, types and settings. Values of
numbers and addresses are not. What is here is for CPUs; GPUs have ``kronsparse_recall_gpu``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import copy_context
from functools import lru_cache
from importlib import import_module
from typing import Any, NamedTuple

import torch

from ..config import current
from ..contraction.kronsparse_cost import quickest, quickest_gradient
from ..runtime.lru import LRUCache
from . import kronsparse_run, kronsparse_steps
from .dtypes import NAMES
from .execute import allocate
from .info import RunInfo
from .kronsparse import Maybe, Way
from .kronsparse_chain import backward_of, canonical, shaped
from .kronsparse_pack import PackedChain, PackedWeights
from .kronsparse_torch import BLAS_FARTHEST
from .launcher import collecting
from .torch_private import PLAIN, is_batched, plain, unwatched

Look = tuple[Any, ...]
Call = Any  # of kronsparse_cpu, which is loaded with the first product
Order = tuple[tuple[int, bool], ...]
Launched = Callable[
    [torch.Tensor, Sequence[torch.Tensor], Maybe, Sequence[PackedWeights] | None], tuple[torch.Tensor, str]
]
Multiply = Callable[[torch.Tensor, torch.Tensor, Maybe, "PackedWeights | None"], torch.Tensor]
Sum = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
_KNOWN: LRUCache[Look, Known | None] = LRUCache(1024)


class Known(NamedTuple):
    """A call without its values: products of all factors, by their transposes, and gradients of their weights."""

    multiply: tuple[Multiply, ...]
    turned: tuple[Multiply, ...]
    summed: tuple[Sum, ...]
    shape: tuple[int, ...]
    activation: str
    way: Way
    packs: bool
    route: str
    sizes: tuple[int, ...] = ()  # features behind each factor
    ahead: Callable[..., None] | None = None  # all products in one call, and what of a backward pass is wanted
    back: Callable[..., None] | None = None
    wanted: tuple[bool, ...] = ()
    order: Order = ()
    fronts: tuple[int, ...] = ()  # features in front of each factor
    algorithms: tuple[str, ...] = ()  # of each product, where not all are by the kernel or the batch is last
    launched: Launched | None = None  # everything, on a GPU


@lru_cache(maxsize=1)
def _gpu() -> Any:
    """Loaded with the first chain on a GPU."""
    return import_module(".kronsparse_recall_gpu", __package__)


def look_of(
    x: torch.Tensor, weights: Sequence[torch.Tensor], bias: Maybe, activation: str | None, way: Way, packed: bool
) -> Look | None:
    """What a call looks like; None if somebody watches it or it is none for this path."""
    if x.is_cuda and current().backend in ("auto", "cuda"):
        return _gpu().look_of(x, weights, bias, activation, way, packed)
    if not x.is_cpu or torch.is_autocast_enabled("cpu") or not unwatched() or collecting():
        return None
    settings, recorded = current(), torch.is_grad_enabled()
    facts: list[Any] = [activation, way, packed, settings.backend, (settings.threads, torch.get_num_threads())]
    for value in (x, *weights) if bias is None else (x, *weights, bias):
        if type(value) not in PLAIN or not value.is_cpu or value.is_neg() or is_batched(value):
            return None
        facts += value.shape, value.stride(), value.dtype, recorded and value.requires_grad
    return tuple(facts)


def forget() -> None:
    """Let the next call of every chain go through all checks and be planned anew."""
    _KNOWN.clear()


def recalled(
    look: Look | None, x: torch.Tensor, weights: Sequence[torch.Tensor], bias: Maybe, packed: PackedChain | None
) -> tuple[torch.Tensor, str] | None:
    """Result of a call that is known and its route, else None."""
    known = None if look is None else _KNOWN.get(look)
    if known is None:
        return None
    if known.launched is not None:
        return known.launched(x, weights, bias, packed.parts if known.packs and packed is not None else None)
    if known.algorithms:
        info = RunInfo()
        return _by_algorithms(known, x, weights, bias, packed, info), info.route
    if known.summed:
        result = _apply(known, x, bias, *weights)
        if not known.activation:
            return result, known.route
        return kronsparse_run.ACTIVATIONS[known.activation](result), known.route  # pyright: ignore
    value = _forward(known, x, weights, bias, packed.parts if known.packs and packed is not None else None)[-1]
    if known.activation:
        kronsparse_run.IN_PLACE[known.activation](value)
    return value if len(known.shape) == 2 else value.view(known.shape), known.route


def _by_algorithms(
    known: Known, x: torch.Tensor, weights: Sequence[torch.Tensor], bias: Maybe, packed: PackedChain | None,
    info: RunInfo,
) -> torch.Tensor:  # fmt: skip
    """The chain, each product by its algorithm."""
    last, batch_last = len(weights) - 1, known.way.batch_last
    value = canonical(x, batch_last)
    for place, (weight, algorithm) in enumerate(zip(weights, known.algorithms, strict=True)):
        ends = (None if bias is None else bias[None], known.activation) if place == last else (None, "")
        part = packed.parts[place] if known.packs and packed is not None else None
        value = kronsparse_run.product(
            value, weight[None], *ends, batch_last, algorithm, known.way.precision, packed=part, info=info
        )  # fmt: skip
    return shaped(value, x, batch_last)


def _forward(
    known: Known, x: torch.Tensor, weights: Sequence[torch.Tensor], bias: Maybe, parts: Sequence[PackedWeights] | None
) -> list[torch.Tensor]:
    """What follows each factor, as (N, features); turned where the batch is last."""
    value = x if x.dim() == 2 else x.reshape(len(x), -1) if known.way.batch_last else x.reshape(-1, x.shape[-1])
    values: list[torch.Tensor] = []
    if known.ahead is not None:
        addresses: list[int] = []
        for weight, features in zip(weights, known.sizes, strict=True):
            out = allocate((value.shape[0], features), x.dtype, x.device)
            addresses += value.data_ptr(), weight.data_ptr(), out.data_ptr()
            values.append(out)
            value = out
        known.ahead(*addresses, *(() if bias is None else (bias.data_ptr(),)))
        return values
    last = len(weights) - 1
    for place, weight in enumerate(weights):
        part = None if parts is None else parts[place]
        value = known.multiply[place](value, weight, bias if place == last else None, part)
        values.append(value)
    return values


class _Recalled(torch.autograd.Function):
    """A known chain, one step of autograd; see ``kronsparse_chain.Chain``."""

    @staticmethod
    def forward(ctx: Any, known: Known, x: torch.Tensor, bias: Maybe, *weights: torch.Tensor) -> torch.Tensor:
        values = _forward(known, x, weights, bias, None)
        wanted = ctx.needs_input_grad[3:]
        # In the shapes in which Chain keeps them: checkpoints compare what is kept, and ``backward_of`` reads it.
        kept = [each[None] if needed else None for each, needed in zip(values, wanted[1:], strict=False)]
        ctx.known, ctx.way, ctx.context = known, known.way, copy_context()
        ctx.save_for_backward(x if any(wanted) else None, *weights, *kept)
        return values[-1] if x.dim() == 2 else values[-1].view(known.shape).detach()  # no view: may be changed in place

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Maybe, ...]:
        (grad,) = grads
        run = _backward if not torch.is_grad_enabled() and plain(grads) else backward_of
        return ctx.context.copy().run(run, ctx, grad)


# Function.apply looks for transforms, as ``look_of`` did.
_apply: Any = super(torch.autograd.Function, _Recalled).apply  # pyright: ignore[reportAttributeAccessIssue]


def _backward(ctx: Any, grad: torch.Tensor) -> tuple[Maybe, ...]:
    known: Known = ctx.known
    _, of_x, of_bias, *wanted = ctx.needs_input_grad
    x, *saved = ctx.saved_tensors
    weights, values = saved[: len(wanted)], [x, *saved[len(wanted) :]]
    moved, flat = grad.contiguous(), grad.dim() == 2
    if not flat:
        moved = moved.view(-1, grad.shape[-1])
        values[0] = None if x is None else x.reshape(-1, x.shape[-1])
    bias = moved.sum(0) if of_bias else None
    if known.back is not None and (of_x, *wanted) == known.wanted:
        moved, found = _back_at_once(known, moved, values, weights)
    else:
        moved, found = _back(known, moved, values, weights, _order(of_x, wanted))
    of_input = moved if flat else moved.view(*grad.shape[:-1], -1)
    return None, of_input if of_x else None, bias, *found


def _order(of_x: bool, wanted: Sequence[bool]) -> Order:
    """Places of a backward pass, and whether one is that of the gradient of a weight.

    It is summed after the product by the weight, which may be in the cache since it was multiplied by.
    """
    found: list[tuple[int, bool]] = []
    for place in reversed(range(len(wanted))):
        found += [(place, False)] * (of_x or any(wanted[:place])) + [(place, True)] * wanted[place]
    return tuple(found)


def _back(
    known: Known, moved: torch.Tensor, values: Sequence[Any], weights: Sequence[torch.Tensor], order: Order
) -> tuple[torch.Tensor, list[Maybe]]:
    """Gradient in front of the first factor, and those of the weights."""
    found: list[Maybe] = [None] * len(weights)
    behind = {len(weights) - 1: moved}
    for place, of_weight in order:
        if of_weight:
            found[place] = known.summed[place](values[place][0] if place else values[0], behind[place])
        else:
            moved = behind[place - 1] = known.turned[place](behind[place], weights[place], None, None)
    return moved, found


def _back_at_once(
    known: Known, moved: torch.Tensor, values: Sequence[Any], weights: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, list[Maybe]]:
    """The same in one call."""
    found: list[Maybe] = [None] * len(weights)
    rows, dtype, device = moved.shape[0], moved.dtype, moved.device
    behind, addresses = [moved] * len(weights), list[int]()
    for place, of_weight in known.order:
        after, weight = behind[place], weights[place]
        if of_weight:
            own = found[place] = allocate(weight.shape, dtype, device)
            addresses += after.data_ptr(), values[place].data_ptr(), own.data_ptr()
            continue
        moved = allocate((rows, known.fronts[place]), dtype, device)
        if place:
            behind[place - 1] = moved
        addresses += after.data_ptr(), weight.data_ptr(), moved.data_ptr()
    if known.back is not None:
        known.back(*addresses)
    return moved, found


def learn(
    look: Look | None,
    x: torch.Tensor,
    weights: Sequence[torch.Tensor],
    bias: Maybe,
    way: Way,
    packed: PackedChain | None,
) -> None:
    """Remember a call that went through all checks."""
    if look is None or look in _KNOWN:
        return
    direct = packed is not None and (packed.is_pending or packed.matrix_for(x) is not None)
    if direct and not way.precision and not any(look[8::4]):
        return  # the next such call goes through the matrix, or finds what is being packed now
    if x.is_cuda:
        launched = _gpu().launched(x, weights, bias, look[0] or "", way, look[2])
        _KNOWN[look] = None if launched is None else Known((), (), (), (), "", way, look[2], "", launched=launched)
        return
    _KNOWN[look] = _known(look, x.detach(), [weight.detach() for weight in weights], bias, way)


def _known(look: Look, x: torch.Tensor, weights: Sequence[torch.Tensor], bias: Maybe, way: Way) -> Known | None:
    tracked = any(look[8::4])
    tensors = [*weights] if bias is None else [*weights, bias]
    if way.algorithm not in ("auto", "kernel") or not x.numel() or any(own.dtype != x.dtype for own in tensors):
        return None
    packed, value = look[2] and not tracked, canonical(x, way.batch_last)
    if not tracked and kronsparse_steps.plan(value, weights, way.algorithm, packed) is not None:
        return None
    plain_rows = x.stride(-1) == 1 and (x.dim() == 2 or x.is_contiguous())
    if plain_rows and not way.batch_last and kronsparse_run.cpu().ready(x.dtype):
        found = _prepared(look, x, weights, bias, way) if all(own.is_contiguous() for own in tensors) else None
        if found is not None:
            return found
    if tracked:
        return None
    names = _names(look, value, weights, way)
    if way.batch_last and all(own.is_contiguous() for own in (x, *tensors)):
        found = _behind(look, x, weights, bias, way, names)
        if found is not None:
            return found
    packed = look[2] and not {*names} <= {"bmm", "lines"}
    return Known((), (), (), (), look[0] or "", way, packed, "", algorithms=names)


def _names(look: Look, value: torch.Tensor, weights: Sequence[torch.Tensor], way: Way) -> tuple[str, ...]:
    """The algorithm of each product of a call that records no gradient."""
    names: list[str] = []
    for weight in weights:
        a, b, c, d = weight.shape
        about = kronsparse_run.described(value)
        names.append(quickest((a, b, c, d), *about, None, look[2])[0] if way.algorithm == "auto" else way.algorithm)
        value = kronsparse_run.empty(value, a * b * d, way.batch_last)
    return tuple(names)


def _behind(
    look: Look, x: torch.Tensor, weights: Sequence[torch.Tensor], bias: Maybe, way: Way, names: Sequence[str]
) -> Known | None:
    """A call with the batch last whose products are by the kernel, or one of torch each."""
    value, multiply, packs, route = x.reshape(len(x), -1).T, list[Multiply](), False, ""
    for weight, name in zip(weights, names, strict=True):
        a, b, _, d = weight.shape
        if name == "kernel" and kronsparse_run.cpu().ready(x.dtype):
            biased = bias is not None and len(multiply) == len(weights) - 1
            call = kronsparse_run.cpu().last(tuple(weight.shape), value, weight, len(value), biased, look[2])
            packs, route = packs or (look[2] and d > 1), call.route
            multiply.append(_lasting(call, d > 1))
        elif name == "bmm" and d == 1 and len(value) <= BLAS_FARTHEST:
            multiply.append(_batched)
            route = "torch bmm"
        else:
            return None
        value = value.new_empty((a * b * d, len(value))).T
    shape = len(value.T), *x.shape[1:]
    return Known(tuple(multiply), (), (), shape, look[0] or "", way, packs, route)


def _lasting(call: Call, arranged: bool) -> Multiply:
    """A product by the kernel; where weights are packed, ``arranged`` as matrices."""
    start, blocks = call.start.run, kronsparse_run.cpu().blocks

    def run(x: torch.Tensor, weight: torch.Tensor, bias: Maybe, packed: PackedWeights | None) -> torch.Tensor:
        out = allocate((call.features, x.shape[1]), x.dtype, x.device)
        own = blocks(weight[None], packed) if arranged and packed is not None else weight
        start(own.data_ptr(), x.data_ptr(), out.data_ptr(), *(() if bias is None else (bias.data_ptr(),)))
        return out

    return run


def _batched(x: torch.Tensor, weight: torch.Tensor, bias: Maybe, _: PackedWeights | None) -> torch.Tensor:
    """Blocks of neighbours by blocks of rows."""
    a, b, c = weight.shape[:3]
    value = torch.bmm(weight.view(a, b, c), x.view(a, c, x.shape[1])).view(a * b, x.shape[1])
    return value if bias is None else value.add_(bias[:, None])


def _prepared(look: Look, x: torch.Tensor, weights: Sequence[torch.Tensor], bias: Maybe, way: Way) -> Known | None:
    activation, _, packed, *_ = look
    tracked = any(look[8::4])
    packed, rows = packed and not tracked, x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
    multiply, turned, summed = list[Call](), list[Call | None](), list[Call | None]()
    value = rows
    for place, weight in enumerate(weights):
        a, b, _, d = weight.shape
        own = _multiply(value, weight, bias is not None and place == len(weights) - 1, way, packed)
        if own is None:
            return None
        multiply.append(own)
        before, value = value, value.new_empty((len(rows), a * b * d))
        if tracked:
            turned.append(_multiply(value, weight.transpose(1, 2), False, way, False))
            summed.append(_summed(weight, before, value, way))
    sizes = tuple([weight.shape[0] * weight.shape[1] * weight.shape[3] for weight in weights])
    of_x, *wanted = [flag for place, flag in enumerate(look[8::4]) if place <= len(weights)]
    order = _order(of_x, wanted)
    chosen = [(summed if of_weight else turned)[place] for place, of_weight in order] if tracked else []
    fronts = tuple([weight.shape[0] * weight.shape[2] * weight.shape[3] for weight in weights])
    row = kronsparse_run.cpu().in_a_row
    return Known(
        tuple(map(_multiplying, multiply)),
        tuple([_general(way) if call is None else _multiplying(call) for call in turned]),
        tuple([_summing(call, tuple(own.shape), way) for call, own in zip(summed, weights, strict=tracked)]),
        (*x.shape[:-1], sizes[-1]), activation or "", way, any(packed and call.pack is not None for call in multiply),
        multiply[-1].route, sizes, row(multiply), row(chosen) if chosen and all(chosen) else None, (of_x, *wanted),
        order, fronts,
    )  # fmt: skip


def _multiply(x: torch.Tensor, weight: torch.Tensor, biased: bool, way: Way, packed: bool) -> Call | None:
    """The product by the kernel; None where another way is quicker."""
    a, b, c, d = weight.shape
    about = len(x), NAMES[x.dtype], "cpu", False
    if way.algorithm == "auto" and quickest((a, b, c, d), *about, None, packed)[0] != "kernel":
        return None
    return kronsparse_run.cpu().first((a, b, c, d), x, weight, a * b * d, biased, packed)


def _multiplying(call: Call) -> Multiply:
    """A product by the kernel."""
    start, operand = call.start.run, kronsparse_run.cpu().operand

    def run(x: torch.Tensor, weight: torch.Tensor, bias: Maybe, packed: PackedWeights | None) -> torch.Tensor:
        out = allocate((len(x), call.features), x.dtype, x.device)
        own = weight if call.pack is None else operand(call, weight, packed)
        if bias is None or call.adds_bias:
            start(x.data_ptr(), own.data_ptr(), out.data_ptr())
            return out if bias is None else out.add_(bias)
        start(x.data_ptr(), own.data_ptr(), out.data_ptr(), bias.data_ptr())
        return out

    return run


def _general(way: Way) -> Multiply:
    """The product by transposed weights, whichever way."""

    def run(x: torch.Tensor, weight: torch.Tensor, *_: Any) -> torch.Tensor:
        return kronsparse_run.product(x[None], weight.transpose(1, 2)[None], None, "", *way)[0].contiguous()

    return run


def _summed(weight: torch.Tensor, x: torch.Tensor, grad: torch.Tensor, way: Way) -> Call | None:
    """The gradient of weights by the kernel; None where another way is quicker."""
    a, b, c, d = weight.shape
    if way.algorithm == "auto" and quickest_gradient((a, b, c, d), len(x), NAMES[x.dtype], "cpu")[0] != "kernel":
        return None
    return kronsparse_run.cpu().summed((a, b, c, d), x, grad)


def _summing(call: Call | None, pattern: Any, way: Way) -> Sum:
    """The gradient of weights."""
    if call is None:
        return lambda x, grad: kronsparse_run.gradient(x[None], grad[None], pattern, way.algorithm, way.precision)[0]
    start = call.start.run

    def run(x: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
        out = allocate(pattern, x.dtype, x.device)
        start(grad.data_ptr(), x.data_ptr(), out.data_ptr())
        return out

    return run
