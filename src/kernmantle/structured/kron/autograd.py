"""Kronecker products in torch: the operator ``kernmantle::kron``, and derivatives that are Kronecker products again.

The operator is autograd-free; the product's axes are given by their text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch.autograd import forward_ad

from ...errors import BackendError, GradientError
from ...torch_ops.execute import PlainLayout, allocate_as
from ...torch_ops.flops import counted
from ...torch_ops.info import RunInfo
from ...torch_ops.joined_launches import MOST_READY
from ...torch_ops.operator import LIBRARY, implement, mapped_first
from ...torch_ops.saved import addresses, are_ready, bound_pass, keep_pass
from ...torch_ops.torch_private import (
    applied_directly,
    check_untransformed,
    decomposed,
    empty_on_gpu,
    is_batched,
    is_capturing,
    is_tracked,
    is_transformed,
    plain,
    register_derivative,
    takes_memory_directly,
)
from .bound_gradients import UNBOUND, BoundGradients, Done, LaunchedStep, Maybe, Tensors, conjugate, launched_step
from .execute import BoundKron, Number, bind_operator, configured, execute, factor_sizes, out_shape
from .form import Form
from .gradient import bind_gradients, factor_numbers, gradients
from .gradient_op import gradients_by_operator
from .modes import cheapest, parse, products, text_of
from .torch_products import product as torch_product

_HEAD = 5  # arguments of the Function before its tensors


def _bind(
    x: torch.Tensor, factors: list[torch.Tensor], y: Maybe, alpha: Number, beta: Number, modes: str, options: str
) -> Any:
    return bind_operator(modes, configured(options), x, factors, y)


def _fake(
    x: torch.Tensor, factors: list[torch.Tensor], y: Maybe, alpha: Number, beta: Number, modes: str, options: str
) -> torch.Tensor:
    return x.new_empty(out_shape(modes, x, factors, y))


@decomposed("kron")
def _by_torch(
    x: torch.Tensor, factors: list[torch.Tensor], y: Maybe, alpha: Number, beta: Number, modes: str, options: str
) -> torch.Tensor:
    """Return the product by torch's operations, halves in float32."""
    wide = torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else x.dtype
    own = parse(modes, factor_sizes(factors))
    result = alpha * torch_product(x.to(wide), [factor.to(wide) for factor in factors], own)
    result = result if y is None else result + beta * y.to(wide)
    return result.to(x.dtype)


def _vmap(
    info: Any, in_dims: Any, x: torch.Tensor, factors: list[torch.Tensor], y: Maybe, alpha: Number, beta: Number,
    modes: str, options: str,
) -> tuple[torch.Tensor, int]:  # fmt: skip
    values: list[torch.Tensor] = [x, *factors] if y is None else [x, *factors, y]
    dims: Sequence[int | None] = [in_dims[0], *in_dims[1]] if y is None else [in_dims[0], *in_dims[1], in_dims[2]]
    moved = mapped_first(values, dims, [2] * len(values))
    last = None if y is None else moved.pop()
    return kron(moved[0], moved[1:], last, alpha, beta, modes, options), 0


kron = implement("kron", _bind, _fake, _vmap)


@counted("kron")
def _flops(
    x: Sequence[int], factors: Sequence[Sequence[int]], y: Sequence[int] | None, alpha: Number, beta: Number,
    text: str, options: str, out_shape: Sequence[int] = (),
) -> int:  # fmt: skip
    """Return the count a multiplication and an addition for each product, the factors taken in the order of fewest."""
    modes = parse(text, tuple((int(factor[-2]), int(factor[-1])) for factor in factors))
    return 2 * products(modes, cheapest(modes)) * math.prod(out_shape[:-2]) * x[-1]


class Kron(torch.autograd.Function):
    """``alpha`` times the product, plus ``beta`` y; values are x, the factors, and y where it is added."""

    generate_vmap_rule = True

    @staticmethod
    def forward(text: str, options: str, alpha: Number, beta: Number, added: bool, *values: Any) -> torch.Tensor:
        last = values[-1] if added else None
        return kron(values[0], list(values[1 : len(values) - added]), last, alpha, beta, text, options)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        ctx.text, ctx.options, ctx.alpha, ctx.beta, ctx.added, *values = inputs
        ctx.save_for_backward(*values[: len(values) - ctx.added])
        ctx.y_shape = values[-1].shape if ctx.added else None

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        (grad,) = grads
        x, *factors = ctx.saved_tensors
        needed = ctx.needs_input_grad[_HEAD : _HEAD + 1 + len(factors)]
        compiled = torch.compiler.is_compiling() and not is_transformed() and not x.is_complex()
        found = gradients_by_operator if compiled else _recorded_gradients
        through, parts = found(ctx.text, ctx.options, ctx.alpha, x, factors, grad, needed)
        results: list[Maybe] = [None if through is None else through.sum_to_size(x.shape), *parts]
        if ctx.added:
            wanted = ctx.needs_input_grad[-1]
            results.append((grad * conjugate(ctx.beta)).sum_to_size(ctx.y_shape) if wanted else None)
        return (None,) * _HEAD + tuple(results)


class KronWithJvp(Kron):
    """With forward mode, which torch.compile does not accept in a Function."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        Kron.setup_context(ctx, inputs, output)
        if forward_ad._current_level >= 0:  # not otherwise: it would hold on to tensors that nothing asks for
            ctx.save_for_forward(*inputs[_HEAD : len(inputs) - inputs[4]])
        ctx.shape = output.shape
        ctx.context = copy_context()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        # In the configuration of the forward call: torch may run this in a thread of its own.
        return ctx.context.copy().run(Kron.backward, ctx, *grads)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Maybe:
        x, *factors = ctx.saved_tensors
        moves = tangents[_HEAD:]
        terms: list[torch.Tensor] = []
        if moves[0] is not None:
            terms.append(product(ctx.text, ctx.options, (ctx.alpha, 0), moves[0], factors))
        for position, number in enumerate(factor_numbers(ctx.text, factor_sizes(factors))):
            if number is not None and moves[1 + number] is not None:
                entries = ctx.text.split(" ")
                entries[position] = str(len(factors))
                terms.append(product(text_of(entries), ctx.options, (ctx.alpha, 0), x, [*factors, moves[1 + number]]))
        if ctx.added and moves[-1] is not None:
            terms.append(moves[-1] * ctx.beta)
        total = terms[0]
        for term in terms[1:]:
            total = total + term
        return total.expand(ctx.shape)


def _recorded_gradients(
    text: str, options: str, alpha: Number, x: Maybe, factors: Tensors, grad: torch.Tensor, needed: Sequence[bool]
) -> tuple[Maybe, list[Maybe]]:
    """Return gradients with whatever derivative of them is being recorded."""

    def multiply(own: str, numbers: tuple[Number, Number], value: torch.Tensor, matrices: Tensors) -> torch.Tensor:
        return product(own, options, numbers, value, matrices)

    return gradients(text, alpha, x, factors, grad, needed, multiply)


@dataclass(frozen=True, eq=False)
class KronCall:
    """A product of arrays of equal specs, as its caller gives them: what passed all checks, bound to its kernels.

    ``shape`` is that of the result, ``layout`` that shape and its strides, ``added`` whether y is added, ``identities``
    whether there are factors that are none; ``product`` is None where arrays are to be bound at each call. ``sizes``
    are the bytes from the first entry of x and of each factor to after the last one, of y, and of the result.
    ``pays`` says whether gradients read what is saved, by which are needed and the positions that are applied to it;
    ``backward`` has what finds them, by the same, for a gradient in one piece, ``both`` the passes that are launches
    alone, by which are needed. ``is_recorded`` says that derivatives are recorded.
    """

    text: str
    options: str
    form: Form
    shape: tuple[int, ...]
    added: bool
    identities: bool = False
    product: BoundKron | None = None
    sizes: tuple[tuple[int, ...], int, int] = ((), 0, 0)
    keeps: bool = False
    layout: PlainLayout = ((), ())
    is_recorded: bool = False
    pays: dict[tuple[tuple[bool, ...], Done], bool] = field(default_factory=dict)
    backward: dict[tuple[Any, ...], Any] = field(default_factory=dict)
    both: dict[tuple[bool, ...], LaunchedStep] = field(default_factory=dict)

    def to_save(self, needed: tuple[bool, ...]) -> Done:
        """Return the positions that are applied to each result between the passes that a call now may save."""
        done = self.product.done_now() if self.keeps and self.product is not None else ()
        return done if self.pays.get((needed, done), True) else ()

    def is_worth_saving(
        self, x: torch.Tensor, factors: Tensors, grad: torch.Tensor, needed: tuple[bool, ...], done: Done,
        saved: Tensors,
    ) -> bool:  # fmt: skip
        """Return whether gradients read what lies between the passes, found once for those that are wanted."""
        found = self.pays.get((needed, done))
        if found is None:
            form = self.form
            launch = bind_gradients(
                self.text, self.options, form.x(x), factors, form.x(grad), needed, form.transposed, done, saved
            )
            found = self.pays[needed, done] = launch.reads_saved
        return found

    @property
    def route(self) -> str:
        """Backend, passes and arithmetic."""
        return "" if self.product is None else self.product.route

    def overlaps(self, x: torch.Tensor, factors: Tensors, y: Maybe, out: torch.Tensor) -> bool:
        """Return whether ``out`` overlaps another array, y being itself ``out`` apart."""
        others, of_y, size = self.sizes
        begin = out.data_ptr()
        end = begin + size
        for tensor, own in zip((x, *factors), others, strict=True):
            if begin - own < tensor.data_ptr() < end:
                return True
        return y is not None and y is not out and begin - of_y < y.data_ptr() < end

    def __call__(
        self, tensors: tuple[torch.Tensor, Tensors, Maybe], numbers: tuple[Number, Number], outs: Maybe,
        info: RunInfo | None = None, saved: list[torch.Tensor] | None = None,
    ) -> torch.Tensor:  # fmt: skip
        """Return the product of x and the factors, plus y, in ``outs`` where that is given; nothing is recorded.

        ``saved`` takes what lies between its passes.
        """
        x, factors, y = tensors
        if outs is not None and not outs.is_inference():
            torch.autograd.graph.increment_version([outs])
        if self.product is None:
            form, into = self.form, None if outs is None else self.form.x(outs)
            own = [form.factor(factor) for factor in factors]
            return form.result(execute(self.text, self.options, numbers, form.x(x), own, form.y(y), into, info))
        out = self._memory(x) if outs is None else outs
        shares = float(numbers[0]), float(numbers[1])  # pyright: ignore
        if saved is None:
            self.product.launch(x, factors, y, out, shares)
        else:
            self.product.launch(x, factors, y, out, shares, saved)
        if info is not None:
            info.route = self.product.route
        return out

    def _memory(self, x: torch.Tensor) -> torch.Tensor:
        """Return memory for the result, on a GPU by one call of torch's where nothing has to see it."""
        try:
            if x.is_cuda and takes_memory_directly(x.get_device()):
                return empty_on_gpu(*self.layout, x.dtype)
            return x.new_empty(*self.shape)
        except RuntimeError:
            return allocate_as(x, self.shape)  # which says how much was wanted

    def recorded(
        self, x: torch.Tensor, factors: Tensors, y: Maybe, numbers: tuple[Number, Number], info: RunInfo | None
    ) -> torch.Tensor:
        """Return the product, with its gradients recorded."""
        return _apply(self, numbers, info, x, y, *factors)


class BoundPass(NamedTuple):
    """The bound backward pass of a call; where it ``reads_addresses``, x and gradients go in and out as they are."""

    launch: BoundGradients
    reads_addresses: bool


@applied_directly
class _Recorded(torch.autograd.Function):
    """A product that nothing but autograd sees: forward and backward launch what is bound."""

    @staticmethod
    def forward(
        ctx: Any, call: KronCall, numbers: tuple[Number, Number], info: RunInfo | None, x: torch.Tensor, y: Maybe,
        *factors: torch.Tensor,
    ) -> torch.Tensor:  # fmt: skip
        asked = ctx.needs_input_grad[3:]
        both, shapes = call.both.get(asked), (x.shape, None if y is None else y.shape)
        if both is not None and both.numbers == numbers and not is_capturing():
            read = x, *factors
            out, before, saved, memory = both.passes.run(read, (y,))
            ctx.made = call, numbers, shapes, before, both.done, copy_context()
            ctx.ready = asked, both, memory
            ctx.to_save = (*read, *saved)
            if info is not None:
                info.route = call.route
            return out
        saved, needed = list[torch.Tensor](), (asked[0], *asked[2:])
        done = call.to_save(needed) if numbers[0] == 1 and any(needed[1:]) else ()
        out = call((x, factors, y), numbers, None, info, saved if done else None)
        if done and not call.is_worth_saving(x, factors, out, needed, done, saved):
            saved, done = [], ()
        read = (x if any(needed[1:]) else None, *factors, *saved)
        ctx.made = call, numbers, shapes, addresses(read), done, copy_context()
        ctx.save_for_backward(*read)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        read = ctx.saved_tensors  # read once: a checkpoint gives each of them one time
        (call, numbers, (_, y_shape), before, done, context), asked = ctx.made, ctx.needs_input_grad[3:]
        launch = bound_pass(call.backward, (asked, done), before, read, grads)
        # Of threads that go back at once one has what is ready, and a graph that is kept has it for its first pass.
        ready = ctx.__dict__.pop("ready", None)
        if launch is None and ready is not None and _is_copied(grads[0]):
            grads = (grads[0].contiguous(),)
            launch = bound_pass(call.backward, (asked, done), before, read, grads)
        if launch is None:
            # In the configuration of the forward call: torch may run this in a thread of its own.
            return context.copy().run(_backward, ctx, read, grads[0])
        if ready is None or ready[0] != asked or is_capturing():
            return _backward(ctx, read, grads[0], launch)
        _, both, memory = ready
        of_y = _of_y(grads[0], numbers[1], y_shape) if asked[1] else None
        through, *parts = both.backward(before, grads[0], memory)
        return None, None, None, through, of_y, *parts


# Function.apply looks for transforms, of which there is none: callers saw to that.
_apply: Any = super(torch.autograd.Function, _Recorded).apply  # pyright: ignore[reportAttributeAccessIssue]


def _is_copied(grad: torch.Tensor) -> bool:
    """Return whether a gradient, as that of a sum is, takes less to be copied than the host takes for other steps."""
    return not torch.is_grad_enabled() and not grad.is_contiguous() and grad.nbytes <= MOST_READY


def _of_y(grad: torch.Tensor, beta: Number, shape: tuple[int, ...]) -> torch.Tensor:
    """Return the gradient of what is added ``beta`` times."""
    beta = conjugate(beta)
    return (grad if beta == 1 else grad * beta).sum_to_size(shape)


def _backward(ctx: Any, read: Tensors, grad: torch.Tensor, found: BoundPass | None = None) -> tuple[Any, ...]:
    (call, (alpha, beta), (x_shape, y_shape), *_), (of_x, of_y, *wanted) = ctx.made, ctx.needs_input_grad[3:]
    count = 1 + len(wanted)
    x, factors, saved = read[0], [*read[1:count]], read[count:]
    through, parts = None, [None] * len(factors)
    if found is not None and found.reads_addresses:
        through, parts = found.launch((x, factors, grad, saved), conjugate(alpha), x_shape)
    elif of_x or any(wanted):
        through, parts = _gradients(ctx, x, factors, saved, grad, found)
    if through is not None and through.shape != x_shape:
        through = call.form.result(through).sum_to_size(x_shape)
    return None, None, None, through if of_x else None, _of_y(grad, beta, y_shape) if of_y else None, *parts


def _gradients(
    ctx: Any, x: Maybe, factors: list[torch.Tensor], saved: Tensors, grad: torch.Tensor, found: BoundPass | None
) -> tuple[Maybe, Sequence[Maybe]]:
    """Return the gradients of x, as a column, and of the factors; bound if need be, or recorded."""
    call, numbers, (x_shape, _), before, done, _ = ctx.made
    form, alpha, asked = call.form, numbers[0], ctx.needs_input_grad[3:]
    needed = asked[0], *asked[2:]
    own, moved = None if x is None else form.x(x), form.x(grad)
    if found is None and not torch.is_grad_enabled() and plain((grad,)):
        launch = bind_gradients(call.text, call.options, own, factors, moved, needed, form.transposed, done, saved)
        as_they_are = launch is not UNBOUND and launch.gives(math.prod(x_shape))
        found = BoundPass(launch, as_they_are)
        if call.product is not None:
            call.product.leave_handle(grad.get_device())
            is_stored = keep_pass(call.backward, (asked, done), before, (x, *factors, *saved), (grad,), found)
            is_eager = done in ((), call.product.done) and not is_capturing()
            if is_stored and as_they_are and is_eager and x is not None and are_ready((x, *saved)):
                step = launched_step(call, numbers, launch, done, x, len(factors))
                if step is not None:
                    call.both[asked] = step
    if found is not None and found.launch is not UNBOUND:
        return found.launch((own, factors, moved, saved), conjugate(alpha), None)
    matrices = [form.factor(factor) for factor in factors]
    through, parts = _recorded_gradients(call.text, call.options, alpha, own, matrices, moved, needed)
    return through, [form.of_factor(part) for part in parts]


def product(
    text: str, options: str, numbers: tuple[Number, Number], x: torch.Tensor, factors: Tensors, y: Maybe = None,
    info: RunInfo | None = None,
) -> torch.Tensor:  # fmt: skip
    """Return the product of canonical arrays with whatever derivative is being recorded; ``info`` takes the route."""
    values = [x, *factors] if y is None else [x, *factors, y]
    compiling = torch.compiler.is_compiling()
    tracked = is_tracked(values)
    if not compiling and plain(values):
        if not tracked:
            return execute(text, options, numbers, x, factors, y, None, info)
        return KronCall(text, options, Form(), (), y is not None).recorded(x, factors, y, numbers, info)
    if info is not None:
        info.route = "under a transform"
    if not (x.is_floating_point() or x.is_complex()) or (compiling and not tracked):
        return kron(x, list(factors), y, *numbers, text, options)
    if not compiling and torch._C._get_tracing_state() is not None:
        raise BackendError(
            "torch.jit.trace cannot record a Kronecker product; use torch.compile, torch.export or "
            "torch.onnx.export(..., dynamo=True)"
        )
    if not compiling and any(map(is_batched, values)):
        raise GradientError("is_grads_batched and vectorize=True are not supported; use torch.func.vmap or jacrev")
    function = Kron if compiling else KronWithJvp
    return function.apply(text, options, *numbers, y is not None, *values)


def _record(
    x: torch.Tensor, factors: list[torch.Tensor], y: Maybe, alpha: Number, beta: Number, modes: str, options: str
) -> torch.Tensor:
    """Record the derivatives of an operator in a graph that torch.export wrote, whose factors are trained."""
    check_untransformed("kron")
    return product(modes, options, (alpha, beta), x, factors, y)


register_derivative(
    LIBRARY, "kron", lambda x, factors, y, *_: [x, *factors] if y is None else [x, *factors, y], _record
)
