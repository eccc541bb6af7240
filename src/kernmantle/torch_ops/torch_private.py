"""The private API of torch in one module: who watches the tensors of a call, and derivatives of an operator.

A derivative may be recorded at any level of nested transforms of torch.func, where ``requires_grad`` of the tensor in
hand is False: a batch of ``vmap`` hides it. ``is_recorded`` asks whether any level may record; the ``Autograd`` kernel
of an operator is asked by torch once for each level, with the tensors of that level.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from importlib import import_module
from itertools import count
from typing import Any, TypeVar

import torch
from torch.autograd import forward_ad
from torch.fx import experimental

from ..config import in_block
from ..errors import BackendError, GradientError

Tensors = Sequence[torch.Tensor]
PLAIN = (torch.Tensor, torch.nn.Parameter)
_functorch: Any = getattr(torch._C, "_functorch")  # noqa: B009
is_batched = _functorch.is_legacy_batchedtensor
is_wrapped = _functorch.is_functorch_wrapped_tensor
has_global_hooks: Callable[[], Any] = getattr(torch.nn.modules.module, "_has_any_global_hook")  # noqa: B009
"""Whether hooks are called with every module."""


def underlying(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor of all values that the transforms of torch.func around a call have wrapped."""
    while not torch.compiler.is_compiling() and is_wrapped(tensor):
        tensor = _functorch.get_unwrapped(tensor)
    return tensor


def goes_forward() -> bool:
    """Return whether a forward derivative may be taken."""
    return forward_ad._current_level >= 0


def assumed_constant(function: Callable[..., Any]) -> Callable[..., Any]:
    """Evaluated while torch.compile traces instead of looked into."""
    # What torch.compiler.assume_constant_result sets; calling that imports torch._dynamo, 1 s at import.
    setattr(function, "_dynamo_marked_constant", True)  # noqa: B010
    return function


_GRAPHS = count()


@assumed_constant
def traced_graph() -> int:
    """Return a number of the piece of code that torch.compile traces, another one for each."""
    private: Any = torch
    context = private._guards.TracingContext.try_get()
    if not hasattr(context, "kernmantle_graph"):
        context.kernmantle_graph = next(_GRAPHS)
    return context.kernmantle_graph


def write_as_node(function: Callable[..., Any]) -> None:
    """Have torch.compile write calls of a function into its graph, without looking into it and guarding what is there.

    Called while it traces, before it comes to the function: asking for this earlier imports torch._dynamo.
    """
    torch.compiler.allow_in_graph(function)


@assumed_constant  # torch 2.11 cannot trace the call inside; graphs are guarded by the transforms around them
def is_transformed() -> bool:
    """Return whether a transform of torch.func is active, also while torch.compile traces one."""
    return _functorch.get_dynamic_layer_stack_depth() > 0


@assumed_constant  # while torch before 2.13 traces, it answers True to torch.compile too
def is_exported() -> bool:
    """Return whether torch.export traces, also while torch.compile looks into what asks for it."""
    return torch.compiler.is_exporting()


def is_traced() -> bool:
    """Return whether torch.jit.trace is active."""
    return torch._C._get_tracing_state() is not None


_experimental: Any = experimental  # in which torch.compile imports what follows; guards have each name on the way


def is_static(size: Any) -> bool:
    """Return whether a size is a number in the graph that torch.compile traces, not one that may change."""
    return _experimental.symbolic_shapes.has_static_value(size)


def is_written_down() -> bool:
    """Return whether calls are written into a graph, as torch.compile does with a forward and a backward pass."""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY) is not None


_innermost_transform = _functorch.peek_interpreter_stack  # every call asks for these: looking them up takes as long
count_modes = torch._C._len_torch_dispatch_stack
_trace = torch._C._get_tracing_state


def no_transform() -> bool:
    """Return whether no transform, mode, forward AD or trace sees what runs."""
    return _innermost_transform() is None and count_modes() == 0 and forward_ad._current_level < 0 and _trace() is None


current_gpu: Any = getattr(torch._C, "_cuda_getDevice", None)
_guards: Any = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
empty_on_gpu: Any = getattr(_guards, "_empty_strided_cuda", None)
"""Take memory of the current GPU: an uninitialised tensor of a shape, strides and a type, as code that torch.compile
writes does. On an H200 it takes the host 0.9 us, ``new_empty`` 1.7 and ``torch.empty`` 2.1 to 4."""


reinterpret: Callable[..., torch.Tensor] = getattr(_guards, "_reinterpret_tensor", torch.Tensor.as_strided)
"""Return a tensor of some extents, strides and first entry in the memory of another, as code that torch.compile writes
does: unlike a view it has a version of its own, and takes the host half as long."""
_TensorGuards: Any = getattr(_guards, "TensorGuards", None)


def guard_of(tensors: Tensors) -> Callable[..., bool] | None:
    """Return torch's check whether as many tensors are like these, as code that torch.compile writes makes it.

    It compares types, extents, strides, dtypes, devices, whether gradients are required, and which transforms and modes
    see them, in 0.4 us for four. It ends the process at nested tensors of ``torch.strided``: callers look for these
    before. It knows neither addresses nor whether gradients are recorded, nor forward mode. None where it is False of
    the tensors themselves, as if one is there twice, and where torch does not have it.
    """
    if _TensorGuards is None:
        return None
    check = _TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check
    return check if check(*tensors) else None


is_capturing: Callable[[], bool] = torch._C._cuda_isCurrentStreamCapturing if torch._C._has_cuda else bool
"""Return whether a graph is captured on the current stream, as ``torch.cuda.is_current_stream_capturing`` does."""


def takes_memory_directly(index: int) -> bool:
    """Return whether ``empty_on_gpu`` is there, and takes memory of that GPU which no mode has to see."""
    return empty_on_gpu is not None and current_gpu() == index and count_modes() == 0


_NO_MEMORY = ("allocate memory", "out of memory", "not enough memory", "size calculation overflowed")


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory ran out: torch has a class for GPUs, for CPUs only the texts.

    Behind a failed kernel, or while a graph is captured, taking memory raises other errors.
    """
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or any(text in str(error) for text in _NO_MEMORY)


def fused_attention_kind(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, is_causal: bool) -> int:
    """Return which of its kernels torch takes for attention, as ``torch.nn.attention.SDPBackend`` numbers them."""
    private: Any = torch
    return private._fused_sdp_choice(queries, keys, values, None, 0.0, is_causal)


is_autocast_on = torch._C._is_any_autocast_enabled
"""Return whether autocast is on for some kind of device."""


def autocasts(device: torch.device) -> bool:
    """Return whether autocast is on there."""
    if not is_autocast_on():
        return False
    return device.type in ("cpu", "cuda") and torch.is_autocast_enabled(device.type)


def plain(tensors: Tensors) -> bool:
    """Return whether nothing is watching: no transform, no mode, no forward AD, no trace, no subclass, no lazy values.

    These are views whose sign is still to be changed, and zeros without memory, which forward AD has.
    """
    if not no_transform():
        return False
    for tensor in tensors:  # a wrapper may outlive its transform
        if type(tensor) not in PLAIN or tensor.is_neg() or tensor._is_zerotensor():
            return False
        if is_batched(tensor) or is_wrapped(tensor):
            return False
    return True


def only_moves(tensors: Tensors) -> bool:
    """Return whether one level of forward mode is all that watches tensors that are plain underneath."""
    depth = _functorch.get_dynamic_layer_stack_depth()
    if not goes_forward() or depth > 1 or is_traced() or torch._C._len_torch_dispatch_stack() > 0:
        return False
    if depth and _functorch.peek_interpreter_stack().key() != _functorch.TransformType.Jvp:
        return False
    inner = [underlying(tensor) for tensor in tensors if not is_batched(tensor)]
    if len(inner) < len(tensors) or is_tracked(inner):
        return False
    return all(type(tensor) in PLAIN and not (tensor.is_neg() or tensor._is_zerotensor()) for tensor in inner)


def primal(tensor: torch.Tensor) -> torch.Tensor:
    """Return the values of a tensor that moves, underneath the transforms around a call."""
    return underlying(forward_ad.unpack_dual(tensor).primal)


@contextmanager
def beneath_transforms() -> Iterator[None]:
    """Inside, no transform sees what runs, and no derivative is taken."""
    private = import_module("torch._functorch.pyfunctorch")
    with private.temporarily_clear_interpreter_stack(), torch.no_grad(), forward_ad._set_fwd_grad_enabled(False):
        yield


def is_tracked(tensors: Tensors) -> bool:
    """Return whether a gradient by any of the tensors is recorded at the innermost level."""
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def is_untracked(tensors: Tensors) -> bool:
    """Return whether nothing is watching and no gradient is recorded."""
    return plain(tensors) and not is_tracked(tensors)


def is_recorded(tensors: Tensors) -> bool:
    """Return whether a derivative by any of the tensors may be recorded, at any level."""
    return is_tracked(tensors) or goes_forward() or is_transformed()


def takes_functions() -> bool:
    """Return whether a Function without a jvp can be applied: not in forward mode, nor compiled transforms."""
    return not goes_forward() and not (torch.compiler.is_compiling() and is_transformed())


def has_tangent(tensors: Tensors) -> bool:
    """Return whether any of the tensors moves in forward mode, at the innermost level."""
    if forward_ad._current_level < 0 or not torch._C._is_fwd_grad_enabled():
        return False
    return any(forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors)


_F = TypeVar("_F", bound=type[torch.autograd.Function])


def applied_directly(function: _F) -> _F:
    """Have torch call the backward pass of a Function itself, not what asks it first which of its passes it has."""
    private: Any = function
    private._backward_cls.apply = private.backward
    return function


def apply_here(function: type[torch.autograd.Function], *args: Any) -> Any:
    """Return what a Function gives, recorded at the innermost level alone."""
    before = _functorch.get_single_level_autograd_function_allowed()
    _functorch.set_single_level_autograd_function_allowed(True)
    try:
        return super(torch.autograd.Function, function).apply(*args)  # pyright: ignore
    finally:
        _functorch.set_single_level_autograd_function_allowed(before)


@contextmanager
def one_level_down() -> Iterator[None]:
    """Inside, operators are recorded by the levels around the innermost one, and not by that."""
    with torch._C._AutoDispatchBelowAutograd(), torch.enable_grad(), forward_ad._set_fwd_grad_enabled(True):
        yield


@contextmanager
def tangents_of_tangents() -> Iterator[None]:
    """Inside, the levels around a jvp take their forward derivatives, which torch switches off for it."""
    with forward_ad._set_fwd_grad_enabled(True):
        yield


def in_callers_context(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return an operator's function that takes the configuration of the thread that called ``backward``.

    Torch runs the operators of a compiled backward pass on a GPU in a thread of its own, where no block is in force,
    and hands that thread the caller's context.
    """

    @wraps(function)
    def run(*args: Any) -> Any:
        if in_block() or torch._C._current_graph_task_id() == -1 or not torch._C._is_key_in_tls("context"):
            return function(*args)
        context = torch._C._get_obj_in_tls("context")
        return function(*args) if context is None else context.copy().run(function, *args)

    return run


DECOMPOSITIONS: dict[str, Callable[..., Any]] = {}
"""Operators in torch's own operations, entered by the modules that define them."""


def decomposed(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Enter the decomposition of an operator."""

    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        DECOMPOSITIONS[name] = function
        return function

    return enter


def decomposition_of(name: str) -> Callable[..., Any]:
    """Return the decomposition of an operator; BackendError if it has none."""
    if name not in DECOMPOSITIONS:
        raise BackendError(f"the operator kernmantle::{name} has no decomposition into torch's operations")
    return DECOMPOSITIONS[name]


def is_for_onnx() -> bool:
    """Return whether torch.onnx.export runs, which has no functions for operators of ours."""
    exporter = sys.modules.get("torch.onnx")
    return exporter is not None and exporter.is_in_onnx_export()


def register_derivative(
    library: torch.library.Library, name: str, moving: Callable[..., Tensors], record: Callable[..., Any]
) -> None:
    """Give an operator the ``Autograd`` kernel that it needs: nothing that is recorded is ever dropped in silence.

    ``moving`` picks the tensors of the operator's arguments; ``record`` takes these arguments where a derivative by
    one of them is recorded at the level in hand, and computes with that derivative or raises.
    """
    operator = getattr(torch.ops.kernmantle, name).default

    def kernel(keys: Any, *args: Any) -> Any:
        if is_for_onnx():
            return decomposition_of(name)(*args)
        tensors = moving(*args)
        if is_tracked(tensors) or has_tangent(tensors):
            return record(*args)
        with torch._C._AutoDispatchBelowAutograd():
            return operator.redispatch(keys & torch._C._after_autograd_keyset, *args)

    library.impl(name, kernel, "Autograd", with_keyset=True)


def check_untransformed(name: str) -> None:
    """GradientError where an operator in a compiled graph is under a transform, of which its Function is not told."""
    if is_transformed() or goes_forward():
        raise GradientError(
            f"the operator kernmantle::{name} has no derivative of its own: take gradients of what is compiled by "
            "backward, not by torch.func inside it"
        )


def refuse_derivative(library: torch.library.Library, name: str, moving: Callable[..., Tensors], instead: str) -> None:
    """Give an operator whose derivatives are taken around it an ``Autograd`` kernel that says so."""

    def record(*_: Any) -> Any:
        raise GradientError(f"the operator kernmantle::{name} has no derivative of its own: {instead}")

    register_derivative(library, name, moving, record)
