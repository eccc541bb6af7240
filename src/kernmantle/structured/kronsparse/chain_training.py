"""Training steps of chains of Kronecker-sparse products: the choice of the fastest kind, and its autograd.Function."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import lru_cache, partial
from importlib import import_module
from typing import Any

import torch

from ...backends.cuda.tiles import DeviceLimits
from ...config import current
from ...runtime.dispatch import bound
from ...torch_ops.call_key import program_key
from ...torch_ops.info import RunInfo
from ...torch_ops.joined_launches import BothPasses
from ...torch_ops.saved import Guard, addresses, bound_pass, keep_pass
from ...torch_ops.torch_private import applied_directly, is_capturing, plain
from ...torch_ops.tuned_tiles import session
from ..mode_product.chain_plan import Pattern
from ..mode_product.cluster_plan import ClusterPlan, plans_seconds
from ..mode_product.cost import (
    dense_seconds,
    joining_seconds,
    matrix_step_seconds,
    quickest,
    quickest_gradient,
)
from ..mode_product.execute import ACTIVATIONS, described, gpu
from ..mode_product.factor_matrix_plan import DTYPES as HALVES
from ..mode_product.factor_matrix_plan import made_seconds
from ..mode_product.grouped_plan import DTYPES, forward_seconds, grouped_seconds, joined_seconds
from ..mode_product.torch_op import Maybe, Options, product, weight_gradient
from ..mode_product.vendor_cost import MOST_DENSE
from .chain_batched import batched_seconds, is_batched
from .chain_blocks import blocks_seconds
from .chain_launches import LaunchedBackward, LaunchedForward, passes_of_step
from .chain_matrix import has_matrix
from .chain_products import Backward, ChainByCapture, Saved, canonical, shaped
from .chain_step import BATCHED, BLOCKS, FACTORS, GROUPED, MATRIX, Step, bind_step

_BETWEEN = 5e-7  # seconds that a product takes longer among others in a step (H200)
# Seconds that a step in a graph takes less than its launches for each factor, through a matrix in all, as gradients
# begin together: steps of one factor of less than 45 us took 0.77 to 0.84 of their models in the median, by grouped
# launches 1.08 (H200, decision 0078). Grouped launches where l interleave took up to 2.3 times their model (0142).
_WITH_OTHERS = {FACTORS: 3.5e-6, BLOCKS: 3.5e-6, BATCHED: 3.5e-6, MATRIX: 4e-6, GROUPED: 0.0}
_SURELY_GROUPED = {False: 1.05, True: 1.2}  # by whether values of l interleave
# Times its model that a step of float32 through the matrix takes in a graph: 1.29 in the median of 20 random chains,
# and 62 us for 53 of 256 rows of a vision transformer's layer, for which grouped launches take 45 (H200, 0142).
_SURELY_MATRIX = {"f32": 1.25}
# Seconds of the host on an H200 (decision 0039): for each factor of a product a launch with its result, or the
# algorithm that is quickest on the GPU, which makes images or views of its weights; of a step through the matrix by
# torch's operations; for each factor of a step two products, a sum and what they allocate. An eager call takes these or
# the GPU's, whichever is longer, a graph that is replayed the GPU's alone.
_HOST_LAUNCH, _HOST_FACTOR = 1.8e-5, 6e-5
_HOST_MATRIX, _HOST_FACTORS = 4e-4, 5e-4
# Of a step whose passes are launches alone, and of each of these: so many a factor, or in all. Eager ones are graphs
# where tables of addresses come again, which leaves nothing of a launch (decision 0132); one that is none takes 4 to
# 15 us. In a compiled graph, of two calls.
_HOST_STEP, _HOST_START = 2e-4, 1e-6
_HOST_CALLS, _HOST_EACH = 2e-5, 5e-6
_LAUNCHES = {FACTORS: 3, GROUPED: 2, MATRIX: 5, BATCHED: 11}
# Of a step through a matrix that is made together with those of other layers: eager, and in a compiled graph, where
# two operators are shared by all of them.
_HOST_SHARED, _HOST_SHARED_COMPILED = 2e-4, 1e-4
_FREE = Options(False, "auto", "")
# Up to so many seconds the model of grouped launches was right; of what is longer so much more is expected. On an H200
# 51 of 55 random products with packed weights that it chose were quicker, one of 3.4 ms took 3 times as long.
_SURE, _UNSURE = 2e-5, 0.4
_SURELY = 1.05  # times the model of batched products, so that they are chosen where they are quicker for sure
# Rows and columns of blocks from which steps may save them: 125 blocks of 114 x 5 took 240 us so, not 175 (H200, 0102).
_LEAST_BLOCK = 8


def kind_of(
    x: torch.Tensor, weights: Sequence[torch.Tensor], options: Options, is_captured: bool = False, **how: Any
) -> str:
    """Return how a step should be quickest: "factors", one product after the other, "grouped", "matrix" or "batched".

    ``is_captured`` says that it is part of a CUDA graph, where nothing waits for the host.
    """
    batch, dtype, _, last = described(x)
    patterns = tuple([weight.shape for weight in weights])
    return kind_for(patterns, batch, dtype, last, options, x.device, is_captured, **how)  # pyright: ignore


def kind_for(
    patterns: tuple[Pattern, ...], batch: int, dtype: str, last: bool, options: Options, device: torch.device,
    is_captured: bool = False, is_compiled: bool = False, saves_between: bool = False,
) -> str:  # fmt: skip
    """Return the same of rows that are described; ``is_compiled``: of a step in a compiled graph.

    ``saves_between``: of those that save what lies between the factors.
    """
    if not _has_kernels(batch, dtype, options, device):
        return FACTORS
    found, count = expected(patterns, batch, dtype, last, device), len(patterns)
    if saves_between:
        found = {name: found[name] for name in (FACTORS, GROUPED)}
    if is_captured:
        interleaved = any(pattern[3] > 1 for pattern in patterns)
        surely = {GROUPED: _SURELY_GROUPED[interleaved], MATRIX: _SURELY_MATRIX.get(dtype, 1.0)}
        times = {name: 1 if name == MATRIX else count for name in found}
        return min(found, key=lambda name: found[name] * surely.get(name, 1.0) - _WITH_OTHERS[name] * times[name])
    host = {FACTORS: _HOST_FACTORS * count, MATRIX: _HOST_MATRIX, BLOCKS: _HOST_FACTORS}
    through_matrix = count == 2 and dtype in HALVES and not last and has_matrix(patterns)
    alone = [GROUPED, BATCHED, *([MATRIX] if is_compiled or through_matrix else [])]
    if all(_is_launched(pattern, batch, dtype, last, device) for pattern in patterns):
        alone.append(FACTORS)
    host |= {name: _launched_host(name, count, is_compiled) for name in alone}
    return min(found, key=lambda name: (max(found[name], host[name]), found[name]))


def _launched_host(name: str, count: int, is_compiled: bool) -> float:
    """Return what the host takes for a step of so many factors that is launches alone."""
    calls, each = (_HOST_CALLS, _HOST_EACH) if is_compiled else (_HOST_STEP, _HOST_START)
    return calls + each * _LAUNCHES[name] * (count if name in (FACTORS, GROUPED) else 1)


@lru_cache(maxsize=1024)
def shares_matrix(
    patterns: tuple[Pattern, ...], batch: int, dtype: str, device: torch.device, is_compiled: bool = False
) -> bool:
    """Return whether a step of two factors should be quickest through a matrix that is made together with others."""
    if len(patterns) != 2 or not has_matrix(patterns) or not _has_kernels(batch, dtype, _FREE, device):
        return False
    found = expected(patterns, batch, dtype, False, device)
    host = {
        MATRIX: _HOST_SHARED_COMPILED if is_compiled else _HOST_SHARED,
        GROUPED: _launched_host(GROUPED, 2, is_compiled),
        FACTORS: 2 * _HOST_FACTORS,
        BATCHED: _launched_host(BATCHED, 2, is_compiled),
    }
    return min(found, key=lambda name: (max(found[name], host[name]), found[name])) == MATRIX


def is_quicker_by_factors(x: torch.Tensor, weights: Sequence[torch.Tensor]) -> bool:
    """Return whether a GPU should take longer for a launch a factor than for single products."""
    batch, dtype, _, last = described(x)
    found = expected(tuple([weight.shape for weight in weights]), batch, dtype, last, x.device)  # pyright: ignore
    return found[FACTORS] < found[GROUPED]


def _has_kernels(batch: int, dtype: str, options: Options, device: torch.device) -> bool:
    """Return whether kernels that take several products in a launch may be chosen."""
    free = options.algorithm == "auto" and not options.precision and current().backend in ("auto", "cuda")
    return free and device.type == "cuda" and dtype in DTYPES and batch > 0 and session() is None


@lru_cache(maxsize=1024)
def expected(
    patterns: tuple[Pattern, ...], batch: int, dtype: str, last: bool, device: torch.device
) -> dict[str, float]:
    """Return the seconds that each kind of step should take a GPU."""

    def multiplied(pattern: Pattern) -> float:
        kernel = gpu().expected(pattern, batch, dtype, not last, device, False)
        return quickest(pattern, batch, dtype, "cuda", last, kernel)[1]

    def factor(pattern: Pattern) -> float:
        back = gpu().gradients_seconds(pattern, batch, dtype, not last, device)[0]
        return multiplied(pattern) + back + 3 * _BETWEEN

    own = gpu().limits(gpu().index_of(device))
    found = {FACTORS: sum(map(factor, patterns)), GROUPED: grouped_seconds(patterns, batch, dtype, last, own)}
    if is_batched(patterns, batch, dtype, last):
        found[BATCHED] = batched_seconds(patterns, batch, dtype)
    first, final = patterns[0], patterns[-1]
    if len(patterns) == 1 and first[3] > 1 and min(first[1:3]) >= _LEAST_BLOCK:
        found[BLOCKS] = 3 * _BETWEEN + _SURELY * blocks_seconds(first, batch, dtype, last)
    blocks, shape = first[0] * first[3], (final[0] * final[1] * final[3], first[0] * first[2] * first[3])
    if math.prod(shape) > MOST_DENSE:
        return found
    if len(patterns) > 1:
        found[MATRIX] = 3 * (_BETWEEN + dense_seconds(shape, batch, dtype, "cuda")) + _made(patterns, dtype, own)
    elif blocks > 1:
        found[MATRIX] = 3 * _BETWEEN + matrix_step_seconds(first, batch, dtype, last)
    return found


@lru_cache(maxsize=1024)
def _is_launched(pattern: Pattern, batch: int, dtype: str, last: bool, device: torch.device) -> bool:
    """Return whether a factor of an eager step takes launches of our kernels alone, on addresses (decision 0126)."""
    a, b, c, d = pattern
    names = [quickest_gradient(pattern, batch, dtype, "cuda", last)[0]]
    for own, transposed in ((pattern, False), ((a, c, b, d), True)):
        kernel = gpu().expected(own, batch, dtype, not last, device, transposed)
        names.append(quickest(own, batch, dtype, "cuda", last, kernel)[0])
    return set(names) == {"kernel"} and not last and not gpu().gradients_seconds(pattern, batch, dtype, True, device)[1]


def _made(patterns: tuple[Pattern, ...], dtype: str, own: DeviceLimits) -> float:
    """Return what it should take to make the matrix of a chain, and to take its gradient apart."""
    if not has_matrix(patterns):
        return joining_seconds(patterns, dtype)
    found = made_seconds(*patterns, dtype, own) if len(patterns) == 2 else None
    return joined_seconds(patterns, dtype, own) if found is None else found


def forward_kind(
    x: torch.Tensor, weights: Sequence[torch.Tensor], bias: Maybe, activation: str, options: Options,
    packed: bool = False, is_captured: bool = False,
) -> str:  # fmt: skip
    """Return how a product without gradients should be quickest: "factors" or "grouped".

    ``packed``: factors have images of their weights, made once. ``is_captured``: see :func:`kind_of`.
    """
    batch, dtype, _, last = described(x)
    if not _has_kernels(batch, dtype, options, x.device) or (packed and any(own.dtype != x.dtype for own in weights)):
        return FACTORS
    patterns = tuple([weight.shape for weight in weights])
    ends = bias is not None, activation != ""
    return _forward_kind(patterns, batch, dtype, last, x.device, *ends, packed, is_captured)  # pyright: ignore


def cluster_for(
    x: torch.Tensor, weights: Sequence[torch.Tensor], bias: Maybe, activation: str, options: Options, packed: bool
) -> tuple[tuple[ClusterPlan, ...], ...] | None:
    """Return the plan of two factors in one launch, or of two that fit together, for x (1, N, features).

    That of CUDA graphs, and of eager calls, where a launch more may take the host longer than the GPU. None where
    others should be quicker.
    """
    batch, dtype, _, last = described(x)
    if last or not _has_kernels(batch, dtype, options, x.device) or (bias is not None and not bias.is_contiguous()):
        return None
    plan_of: Any = clusters().plan_of
    found, eager = (plan_of(x, weights, bias, activation, options.precision, x, host) for host in (0.0, _HOST_LAUNCH))
    if found is None:
        return None
    patterns = tuple([weight.shape for weight in weights])
    others = _forward_seconds(patterns, batch, dtype, last, x.device, bias is not None, activation != "", packed)  # pyright: ignore
    return (found, eager) if plans_seconds(found, batch) <= min(others) else None


@lru_cache(maxsize=1)
def clusters() -> Any:
    """Return what is loaded with the first chain of a few rows on a GPU."""
    return import_module("..mode_product.cluster", __package__)


def _forward_kind(
    patterns: tuple[Pattern, ...], batch: int, dtype: str, last: bool, device: torch.device, bias: bool,
    activation: bool, packed: bool = False, is_captured: bool = False,
) -> str:  # fmt: skip
    by_factors, by_launches = _forward_seconds(patterns, batch, dtype, last, device, bias, activation, packed)
    if not packed and not is_captured:
        count = len(patterns)
        by_launches, by_factors = max(by_launches, count * _HOST_LAUNCH), max(by_factors, count * _HOST_FACTOR)
    return GROUPED if by_launches <= by_factors else FACTORS


@lru_cache(maxsize=1024)
def _forward_seconds(
    patterns: tuple[Pattern, ...], batch: int, dtype: str, last: bool, device: torch.device, bias: bool,
    activation: bool, packed: bool,
) -> tuple[float, float]:  # fmt: skip
    """Return what a product should take factor by factor, and by a launch for each factor."""
    by_factors, transposed = 0.0, None if packed else False
    for number, pattern in enumerate(patterns):
        after = (bias, activation) if number == len(patterns) - 1 else (False, False)
        kernel = gpu().expected(pattern, batch, dtype, not last, device, transposed)
        by_factors += quickest(pattern, batch, dtype, "cuda", last, kernel, packed, *after)[1]
    own = gpu().limits(gpu().index_of(device))
    by_launches = sum(forward_seconds(pattern, batch, dtype, last, own) for pattern in patterns)
    by_launches += _UNSURE * max(0.0, by_launches - _SURE)
    return by_factors, by_launches


@dataclass(eq=False)
class RecordedChain:
    """A chain whose gradients are recorded: its step is bound, and what the backward pass binds has it in its key.

    ``wanted`` says of x, the bias and each weight whether its gradient is recorded, ``on_addresses`` is the step's.
    ``backward`` has the passes that were bound for tensors in one piece, by which gradients are needed. ``both`` are
    passes of which the forward one takes the memory, where it saves what gradients of all weights read.
    """

    step: Step
    activation: str
    options: Options
    settings: tuple[Hashable, ...]
    wanted: tuple[bool, ...]
    on_addresses: bool
    backward: dict[tuple[bool, ...], tuple[Backward, Guard]] = field(default_factory=dict[Any, Any])
    both: BothPasses | None = None

    @property
    def route(self) -> str:
        """The text of ``info``."""
        return self.step.route

    def __call__(self, tensors: tuple[Any, ...], numbers: RunInfo | None, _outs: None) -> torch.Tensor:
        """Return the product; ``numbers`` takes the route."""
        x, weights, bias, _ = tensors
        result = _apply(self, RunInfo() if numbers is None else numbers, x, bias, *weights)
        return ACTIVATIONS[self.activation](result) if self.activation else result

    def keep_both(self, needed: tuple[bool, ...], launch: Backward, itemsize: int) -> None:
        """Store the passes of which a forward pass takes the memory, where they are launches on addresses."""
        if needed == self.wanted:
            forward: LaunchedForward | None = getattr(self.step, "launched", None)
            backward: LaunchedBackward | None = getattr(launch, "launched", None)
            self.both = None
            if forward is not None and backward is not None and all(needed[2:]):
                self.both = passes_of_step(forward, backward, len(needed) - 2, itemsize)

    def read_by_gradients(self, x: torch.Tensor, weights: Sequence[torch.Tensor], saved: Saved) -> tuple[Maybe, ...]:
        """Return the weights, x and what the step saves, None for what no gradient reads."""
        wanted = self.wanted[2:]
        source = x if any(wanted) else None
        if self.step.saves_between:  # what precedes a factor is read by the gradient of its weights
            saved = [each if needs else None for each, needs in zip(saved, wanted[1:], strict=True)]
        return *weights, source, *saved


def bind_recorded(
    x: torch.Tensor, weights: Sequence[torch.Tensor], bias: Maybe, activation: str, options: Options
) -> Any:
    """Return the step that should be quickest for tensors like these, another one while a graph is captured."""
    value = canonical(x.detach(), options.batch_last)
    eager, captured = (kind_of(value, weights, options, within) for within in (False, True))
    found = _bind_kind(eager, x, weights, bias, activation, options)
    if eager == captured:
        return found
    return ChainByCapture(found, partial(_bind_kind, captured, activation=activation, options=options))


def _bind_kind(
    kind: str, x: torch.Tensor, weights: Sequence[torch.Tensor], bias: Maybe, activation: str, options: Options
) -> RecordedChain:
    own, wanted = current(), tuple([each is not None and each.requires_grad for each in (x, bias, *weights)])
    step = bind_step(kind, x, weights, bias, options, x.requires_grad)
    return RecordedChain(step, activation, options, (own.backend, own.precision), wanted, step.on_addresses)


@applied_directly
class _Recorded(torch.autograd.Function):
    """``x``, ``bias`` and weights to their product, for calls that nothing but autograd sees.

    Forward mode, transforms and torch.compile go factor by factor.
    """

    @staticmethod
    def forward(
        ctx: Any, own: RecordedChain, info: RunInfo, x: torch.Tensor, bias: Maybe, *weights: torch.Tensor
    ) -> torch.Tensor:
        both = own.both
        ctx.made = own, copy_context()
        if both is not None and not is_capturing():
            info.route, inputs = own.step.route, (*weights, x)
            value, ctx.read, saved, memory = both.run(inputs, (bias, None))
            ctx.ready = both, memory
            ctx.to_save = (*inputs, *saved)
            return value
        value, saved = own.step.forward(x, weights, bias, info)
        read = own.read_by_gradients(x, weights, saved) if False in own.wanted else (*weights, x, *saved)
        ctx.read = addresses(read)
        ctx.save_for_backward(*read)
        return value

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Maybe, ...]:
        (own, recorded_in), before = ctx.made, ctx.read
        needed, tensors = ctx.needs_input_grad[2:], ctx.saved_tensors
        launch = bound_pass(own.backward, needed, before, tensors, grads)
        if launch is None and own.on_addresses and not grads[0].is_contiguous() and not torch.is_grad_enabled():
            grads = (grads[0].contiguous(),)
            launch = bound_pass(own.backward, needed, before, tensors, grads)
        # Of threads that go back at once, one has what is ready; gradients are taken over where nothing else has them,
        # and a graph that is kept has it for its first pass.
        ready = ctx.__dict__.pop("ready", None)
        if ready is not None and launch is not None and needed == own.wanted and ready[0] is own.both:
            both, memory = ready
            return None, None, *both.run_backward(before, grads[0], memory)
        grad, end = grads[0], len(needed) - 2
        weights, x, saved = tensors[:end], tensors[end], tensors[end + 1 :]
        if launch is None:
            # What is bound or recorded, is so in the configuration of the forward call: torch may run this in a
            # thread of its own.
            context = recorded_in.copy()
            if torch.is_grad_enabled() or not plain(grads):
                of_x, bias, found = context.run(gradients, own.options, x, weights, grad, needed)
                return None, None, of_x, bias, *found
            key = program_key(("kron_sparse backward", own), needed, (*tensors, grad), own.settings)
            launch = context.run(bound, key, partial(own.step.bind_backward, x, weights, saved, grad, needed))
            if keep_pass(own.backward, needed, before, tensors, grads, launch):
                own.keep_both(needed, launch, grad.element_size())
        of_x, bias, found = launch(x, weights, saved, grad)
        return None, None, of_x, bias, *found


# Function.apply looks for transforms, of which there is none: a call under one goes factor by factor.
_apply: Any = super(torch.autograd.Function, _Recorded).apply  # pyright: ignore[reportAttributeAccessIssue]


def gradients(
    options: Options, x: Maybe, weights: Sequence[torch.Tensor], grad: torch.Tensor, needed: Sequence[bool]
) -> tuple[Maybe, Maybe, list[Maybe]]:
    """Return gradients of x, the bias and the weights with whatever derivative of them is being recorded."""
    of_x, of_bias, *of_weights = needed
    values: list[Maybe] = [None] * len(weights)
    if x is not None:
        values[0] = canonical(x, options.batch_last)
        for index, weight in enumerate(weights[:-1]):
            values[index + 1] = product(values[index], weight[None], None, options)  # pyright: ignore
    moved = canonical(grad, options.batch_last)
    bias = moved.sum(1)[0] if of_bias else None
    found: list[Maybe] = [None] * len(weights)
    for index in reversed(range(len(weights))):
        weight, value = weights[index], values[index]
        if of_weights[index] and value is not None:
            found[index] = weight_gradient(value, moved, weight.shape, options)[0].to(weight.dtype)
        if of_x or any(of_weights[:index]):
            moved = product(moved, weight.transpose(1, 2)[None], None, options)
    return shaped(moved, grad, options.batch_last) if of_x else None, bias, found
