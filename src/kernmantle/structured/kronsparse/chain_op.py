"""The operators of a training step of a chain in a compiled graph.

``kernmantle::kron_sparse_chain`` and ``…_backward`` each run a pass that is bound as that of an eager call is, so that
a compiled step has two operators however many factors there are, also through the matrix of the chain. Eager calls do
not come here, nor what torch.export writes. They have no ``Autograd`` kernel, which would take as long as a launch:
only ``CompiledChain`` calls them, below autograd.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch

from ...config import current
from ...runtime.dispatch import bound
from ...torch_ops.call_key import program_key
from ...torch_ops.dtypes import NAMES
from ...torch_ops.flops import counted
from ...torch_ops.info import RunInfo
from ...torch_ops.operator import implement
from ...torch_ops.torch_private import assumed_constant, is_capturing, is_static, write_as_node
from ..mode_product.chain_plan import Pattern, composes, fused
from ..mode_product.execute import ACTIVATIONS
from ..mode_product.torch_op import Maybe, Options
from ..mode_product.transpose_plan import padded
from . import chain_cpu, chain_training
from .chain_launches import LaunchedForward
from .chain_products import Weights, canonical, memory_shape, shaped, splits_streams
from .chain_step import BATCHED, BLOCKS, FACTORS, GROUPED, MATRIX, Step, bind_step

ROWS = "rows"  # the kind of a step whose rows are not known while it is traced: it is chosen by them


class _Form(NamedTuple):
    """Kind of a step in a graph, the gradients that are wanted (forward that of x), and the options."""

    kind: str
    wanted: tuple[bool, ...]
    options: Options

    @property
    def text(self) -> str:
        """One argument of an operator, as torch takes a microsecond to hand each of them over."""
        batch_last, algorithm, precision = self.options
        wanted = "".join(str(int(each)) for each in self.wanted)
        return f"{self.kind} {wanted} {batch_last:d} {algorithm} {precision}"


@lru_cache(maxsize=1024)
def _form(text: str) -> _Form:
    """Return the form of a text."""
    kind, wanted, batch_last, algorithm, precision = text.split(" ")
    return _Form(kind, tuple([each == "1" for each in wanted]), Options(batch_last == "1", algorithm, precision))


def _kind_in_force(form: _Form, x: torch.Tensor, weights: Weights) -> str:
    """Return the kind of step for rows like x: single products may stand in for launches, as both save the same.

    They do so for float32 arithmetic, which may be asked for after tracing, and where they should be quicker in a CUDA
    graph that is being captured, or for rows that were not known while the step was traced.
    """
    kind, _, (batch_last, _, precision) = form
    if kind not in (GROUPED, ROWS):
        return kind
    single = (precision or current().precision) == "ieee"
    if not single and splits_streams(x.device):
        single = chain_training.is_quicker_by_factors(canonical(x, batch_last), weights)
    elif not single and kind == ROWS:
        value = canonical(x, batch_last)
        return chain_training.kind_of(value, weights, form.options, is_compiled=True, saves_between=True)
    return FACTORS if single else GROUPED


def _in_force(options: Options) -> Options:
    """Return the options with the precision in force where a traced call, which cannot read it, left that open."""
    return options if options.precision else options._replace(precision=current().precision or "")


def _bind(
    kind: str, x: torch.Tensor, weights: Weights, bias: Maybe, options: Options, wanted: tuple[bool, ...]
) -> Step:
    """Return the step of a kind; on a CPU that of its kernels, where it has them for all products."""
    found = chain_cpu.bind_step(x, weights, bias, options, wanted) if kind == FACTORS else None
    return bind_step(kind, x, weights, bias, options, wanted[0]) if found is None else found


def _bind_forward(x: torch.Tensor, weights: list[torch.Tensor], bias: Maybe, step: str) -> Any:
    """Return what gives the product, and what the backward pass reads beside x and the weights."""
    form = _form(step)
    kind = _kind_in_force(form, x, weights)
    key = program_key(("kron_sparse chain", step), (kind,), (x, *weights, bias))
    wanted = *form.wanted, *(True for _ in weights)
    found: Any = bound(key, lambda: _bind(kind, x, weights, bias, _in_force(form.options), wanted))  # pyright: ignore
    reshapes, batch_last = form.kind in (GROUPED, ROWS) and kind == FACTORS, form.options.batch_last

    launched: LaunchedForward | None = None if reshapes or is_capturing() else getattr(found, "launched", None)
    if launched is not None:
        return partial(_launch, launched)

    def forward(x: torch.Tensor, weights: list[torch.Tensor], bias: Maybe, _: str) -> list[torch.Tensor]:
        value, saved = found.forward(x, weights, bias, RunInfo())
        if reshapes:
            saved = [each if each is None else shaped(each, x, batch_last) for each in saved]
        return [value, *[each for each in saved if each is not None]]

    return forward


def _launch(
    launched: LaunchedForward, x: torch.Tensor, weights: list[torch.Tensor], bias: Maybe, _: str
) -> list[torch.Tensor]:
    results = launched.run(x, weights, bias)
    return [results.pop(), *results[: launched.saves]]


def _bind_backward(
    x: Maybe, weights: list[torch.Tensor], saved: list[torch.Tensor], grad: torch.Tensor, step: str
) -> Any:
    """Return what gives the gradients wanted, of x, the bias and the weights."""
    form = _form(step)
    kind = _kind_in_force(form, grad, weights)
    reshapes, batch_last = form.kind in (GROUPED, ROWS) and kind == FACTORS, form.options.batch_last
    if reshapes:
        saved = [canonical(each, batch_last) for each in saved]
    key = program_key(("kron_sparse chain backward", step), (kind,), (x, *weights, *saved, grad))
    launch: Any = bound(key, lambda: _bind_gradients(kind, form, x, weights, saved, grad))
    if not reshapes and not is_capturing():
        launch = getattr(launch, "launched", None) or launch

    def backward(
        x: Maybe, weights: list[torch.Tensor], saved: list[torch.Tensor], grad: torch.Tensor, _: str
    ) -> list[torch.Tensor]:
        if reshapes:
            saved = [canonical(each, batch_last) for each in saved]
        of_x, bias, found = launch(x, weights, saved or (None,), grad)
        return [each for each in (of_x, bias, *found) if each is not None]

    return backward


def _bind_gradients(
    kind: str, form: _Form, x: Maybe, weights: Weights, saved: Sequence[torch.Tensor], grad: torch.Tensor
) -> Any:
    size, options = weights[0].shape[0] * weights[0].shape[2] * weights[0].shape[3], _in_force(form.options)
    sample = grad.new_empty(memory_shape(size, grad, options.batch_last)) if x is None else x
    of_x, _, *of_weights = form.wanted
    step = _bind(kind, sample, weights, None, options, (of_x, *of_weights))
    return step.bind_backward(x, weights, saved or (None,), grad, form.wanted)


def _fake(x: torch.Tensor, weights: list[torch.Tensor], bias: Maybe, step: str) -> list[torch.Tensor]:
    kind, _, (batch_last, _, _) = _form(step)
    patterns = [tuple(weight.shape) for weight in weights]
    found = [x.new_empty(memory_shape(a * b * d, x, batch_last)) for a, b, _, d in patterns]
    if kind == FACTORS:
        rows = math.prod(x.shape[1:] if batch_last else x.shape[:-1])
        found[:-1] = [_empty(x, a * b * d, rows, batch_last) for a, b, _, d in patterns[:-1]]
    if kind == MATRIX:
        (a, _, c, d), (of_x, *_) = patterns[0], _form(step).wanted
        return [found[-1], x.new_empty((found[-1].shape[0 if batch_last else -1], a * c * d))] if of_x else found[-1:]
    if kind == BATCHED:
        (a, b, _, _), (_, e, f, d) = patterns
        blocks = f, d, padded(e, x.element_size())
        return [found[-1], x.new_empty((a * b, math.prod(x.shape[:-1]))), x.new_empty(blocks)]
    return [found[-1], *found[:-1]]


def _empty(x: torch.Tensor, features: int, rows: int, batch_last: bool) -> torch.Tensor:
    return x.new_empty((1, features, rows)).mT if batch_last else x.new_empty((1, rows, features))


def _fake_backward(
    x: Maybe, weights: list[torch.Tensor], saved: list[torch.Tensor], grad: torch.Tensor, step: str
) -> list[torch.Tensor]:
    _, (of_x, of_bias, *of_weights), (batch_last, _, _) = _form(step)
    (a, _, c, d), (i, j, _, k) = weights[0].shape, weights[-1].shape
    found = [grad.new_empty(memory_shape(a * c * d, grad, batch_last))] if of_x else []
    found += [grad.new_empty((i * j * k,))] if of_bias else []
    each = zip(weights, of_weights, strict=True)
    return [*found, *(grad.new_empty(weight.shape) for weight, needs in each if needs)]


@counted("kron_sparse_chain")
def _flops(x: Any, weights: Any, bias: Any, step: str, *, out_shape: Any) -> int:
    """Count a multiplication and an addition for each weight, or entry of the matrix, and row."""
    form = _form(step)
    made, sizes = _sizes(form.kind, weights)
    return made + 2 * _rows(x, form.options.batch_last) * sum(sizes)


@counted("kron_sparse_chain_backward")
def _flops_backward(x: Any, weights: Any, saved: Any, grad: Any, step: str, *, out_shape: Any) -> int:
    kind, (of_x, _, *of_weights), (batch_last, _, _) = _form(step)
    made, sizes = _sizes(kind, weights)
    of_sizes = [any(of_weights)] if kind == MATRIX else of_weights
    through = sum(sizes if of_x else sizes[1:])
    found = 2 * _rows(grad, batch_last) * (through + sum(n for n, own in zip(sizes, of_sizes, strict=True) if own))
    return found + 2 * made * any(of_weights)


def _sizes(kind: str, weights: Sequence[Pattern]) -> tuple[int, list[int]]:
    """Return the operations that make a matrix, and the numbers of all that a row is multiplied with."""
    if kind != MATRIX:
        return 0, [math.prod(weight) for weight in weights]
    (a, _, c, d), (i, j, _, k) = weights[0], weights[-1]
    return flops_of_matrix(weights), [a * c * d * i * j * k]


def _rows(shape: Sequence[int], batch_last: bool) -> int:
    return math.prod(shape[1:] if batch_last else shape[:-1])


def flops_of_matrix(weights: Sequence[Pattern]) -> int:
    """Count a multiplication and an addition for each weight and entry in a row of what precedes it."""
    (a, b, c, d), total = weights[0], 0
    for i, j, k, l in weights[1:]:
        total += 2 * i * j * k * l * c
        own, other = (a, b, c, d), (i, j, k, l)
        a, b, c, d = fused(own, other) if composes(own, other) else (1, i * j * l, a * c * d, 1)
    return total


_forward = implement("kron_sparse_chain", _bind_forward, _fake)
_backward = implement("kron_sparse_chain_backward", _bind_backward, _fake_backward)


class CompiledChain(torch.autograd.Function):
    """``x``, ``bias`` and weights to their product, in a graph that is compiled."""

    @staticmethod
    def forward(form: _Form, x: torch.Tensor, bias: Maybe, *weights: torch.Tensor) -> Any:
        return tuple(_forward(x, list(weights), bias, form.text))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
        ctx.form, x, _, *weights = inputs
        ctx.count = len(weights)
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(x, *weights, *output[1:])

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Maybe, ...]:
        x, *saved = ctx.saved_tensors
        needed, weights, rest = ctx.needs_input_grad[1:], saved[: ctx.count], saved[ctx.count :]
        found = iter(_backward(x, weights, rest, grads[0], ctx.form._replace(wanted=needed).text))
        return None, *(next(found) if needs else None for needs in needed)


def apply_chain(step: str, x: torch.Tensor, bias: Maybe, weights: Weights) -> torch.Tensor:
    """Return the product by the operators of a step: one node of a graph, into which nothing is looked.

    ``step`` is what :func:`traced_step` gives.
    """
    kind, last, algorithm, precision, activation = step.split(" ")
    form = _Form(kind, (x.requires_grad,), Options(last == "1", algorithm, precision))
    result: Any = CompiledChain.apply(form, x, bias, *weights)
    return ACTIVATIONS[activation](result[0])


def compiled_chain(
    x: torch.Tensor, weights: Weights, bias: Maybe, activation: str, options: Options
) -> torch.Tensor | None:
    """Return the product in a graph that is being compiled; None where one factor has to follow the other.

    The kind of step is part of the graph, where the batch is known while it is traced.
    """
    batch_last, algorithm, precision = options
    if x.device.type not in ("cpu", "cuda"):
        return None
    patterns, rows = (), 0  # as long as they are not known
    if all(is_static(size) for size in x.shape):
        rows = math.prod(x.shape[1:] if batch_last else x.shape[:-1])
        patterns = tuple([(int(a), int(b), int(c), int(d)) for a, b, c, d in (weight.shape for weight in weights)])
    ends = str(x.device), activation
    return apply_chain(
        traced_step(patterns, rows, NAMES[x.dtype], batch_last, algorithm, precision, *ends), x, bias, weights
    )


@assumed_constant
def traced_step(
    patterns: tuple[Pattern, ...], rows: int, dtype: str, batch_last: bool, algorithm: str, precision: str, device: str,
    activation: str,
) -> str:  # fmt: skip
    """Return the step that should be quickest, looked up while a graph is traced, into which its text is written.

    The text has the kind of step, the options and the activation.
    """
    write_as_node(apply_chain)
    options = Options(batch_last, algorithm, precision)
    kind = ROWS
    if patterns:
        own = torch.device(device)
        kind = chain_training.kind_for(patterns, rows, dtype, batch_last, options, own, is_compiled=True)
        kind = FACTORS if kind == BLOCKS else kind  # whose blocks lie apart as the weights need it
    return f"{kind} {batch_last:d} {algorithm} {precision} {activation}"
