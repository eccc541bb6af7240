"""Layers for inference: snapshots of Kronecker-sparse layers, with weights in the order in which kernels read them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from ...arrays import has_strides, unwrap
from ...config import current
from ...errors import DtypeError, KernmantleError, ParameterError
from ...torch_ops.call_key import find, find_by_key
from ...torch_ops.dtypes import NAMES
from ...torch_ops.info import RunInfo
from ...torch_ops.torch_private import (
    assumed_constant,
    autocasts,
    is_autocast_on,
    is_exported,
    is_tracked,
    is_transformed,
)
from ..mode_product.pack import PackedChain
from ..mode_product.torch_op import Options
from .chain_autograd import bind_chain, chain, chain_key
from .chain_op import traced_step
from .matmul import check_activation, check_bias, check_features, check_types, dense_of
from .pattern import KSPattern, check_weights


def snapshot(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy of the current values in new memory; sharded tensors are gathered."""
    with torch.inference_mode(False), torch.no_grad():
        whole: Any = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor  # pyright: ignore
        return whole.detach().clone(memory_format=torch.contiguous_format)


def check_layer_input(x: Any) -> None:
    """Raise DtypeError unless the input is a strided tensor in memory."""
    if not isinstance(x, torch.Tensor):
        raise DtypeError(f"a layer takes torch tensors, not {type(x).__name__}; kron_sparse_matmul takes any array")
    if not has_strides(x):
        unwrap(x, names=("x",))  # says so


def cast(
    x: Any, weights: Sequence[torch.Tensor], bias: torch.Tensor | None, names: Sequence[str]
) -> tuple[torch.Tensor, Sequence[torch.Tensor], torch.Tensor | None]:
    """Return what a layer takes where autocast is on, of the type that autocast asks for on their device."""
    check_layer_input(x)
    return check_types(x, weights, bias, names) if autocasts(x.device) else (x, weights, bias)


class _Described(NamedTuple):
    """Shape, type and place of a tensor, which the checks of a layer ask for."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    layout: torch.layout
    requires_grad: bool

    def dim(self) -> int:
        """Return the number of axes."""
        return len(self.shape)


@assumed_constant
def step_of_layer(
    form: str, names: list[str], activation: str | None, has_bias: bool, described: list[tuple[Any, ...]]
) -> str:
    """Return the step of a layer in a graph that is compiled, whose tensors fit and are recorded by autograd alone.

    What torch.compile looks into is guarded at every call: each function, each of Python's own and each constant. So
    one function that it does not look into checks what it is told of the tensors and chooses the step. "" where the
    checks have something to say. ``form`` is the text of the options and the patterns, ``names`` those of the weights.
    """
    last, algorithm, patterns_text = form.split(" ", 2)
    if names != [str(number) for number in range(len(names))]:  # weights that hooks make of other parameters
        return ""
    batch_last, precision = last == "1", ""
    tensors: list[Any] = [_Described(*each) for each in described]
    x, *weights = tensors
    bias = weights.pop() if has_bias else None
    if not is_tracked(tensors) or is_autocast_on() or is_transformed() or is_exported():
        return ""
    if (
        x.layout is not torch.strided
        or x.device.type not in ("cpu", "cuda")
        or any(t.dtype != x.dtype for t in tensors)
    ):
        return ""
    patterns = tuple([tuple(weight.shape) for weight in weights])
    if any(len(own) != 4 for own in patterns) or str(chain := tuple(map(KSPattern._make, patterns))) != patterns_text:
        return ""
    try:
        check_types(x, weights, bias, [""] * len(tensors))
        check_features(x, chain, batch_last)
        check_bias(bias, chain[-1])
        check_activation(activation)
    except KernmantleError:  # whoever traces the checks says so
        return ""
    rows = math.prod(x.shape[1:] if batch_last else x.shape[:-1])
    ends = str(x.device), activation or ""
    return traced_step(patterns, rows, NAMES[x.dtype], batch_last, algorithm, precision, *ends)  # pyright: ignore


class ChainModule(nn.Module):
    """Shared by trainable and packed layers: patterns, options and the route of the last call."""

    patterns: tuple[KSPattern, ...]
    _options: Options
    _ran: RunInfo
    _factors: Callable[[], Sequence[torch.Tensor]]
    _names: list[str]

    def _checked(
        self, x: Any, weights: Sequence[torch.Tensor], bias: torch.Tensor | None
    ) -> tuple[torch.Tensor, Sequence[torch.Tensor], torch.Tensor | None]:
        """Return the tensors of a call in one type; raise the error that says what does not fit."""
        check_layer_input(x)
        check_weights(self.patterns, weights)
        own, checked, offset = check_types(x, weights, bias, self._names)
        check_features(own, self.patterns, self._options.batch_last)
        check_bias(offset, self.patterns[-1])
        return own, checked, offset

    def to_dense(self) -> torch.Tensor:
        """Return the matrix (out_features, in_features), differentiable where the weights are."""
        return dense_of(self._factors())

    @property
    def weight(self) -> torch.Tensor:
        """:meth:`to_dense`, for models that read the weight of a linear layer.

        It is made at each access: what is written into it changes nothing; ``weights`` are the parameters.
        """
        return self.to_dense()

    @property
    def batch_last(self) -> bool:
        """Return whether the batch axes follow the features."""
        return self._options.batch_last

    @property
    def algorithm(self) -> str:
        """The algorithm of the products."""
        return self._options.algorithm

    @property
    def nnz(self) -> int:
        """Number of weights, the bias not counted."""
        return sum(pattern.nnz for pattern in self.patterns)

    @property
    def info(self) -> str:
        """The backend and plan of the last call; empty before the first."""
        return self._ran.route

    def _said(self, parts: list[str]) -> str:
        """Return the parts of a repr, with the options that differ from the default and the route."""
        if self.batch_last:
            parts.append("batch_last=True")
        if self.algorithm != "auto":
            parts.append(f"algorithm={self.algorithm!r}")
        if self.info:
            parts.append(f"ran as {self.info}")
        return ", ".join(parts)


class PackedKSLinear(ChainModule):
    """Immutable snapshot of a :class:`KSLinear` for inference, made by :meth:`KSLinear.pack`.

    It holds copies of the weights and the bias, and packed weights for each kind of kernel, made by the first call that
    takes it. It has no parameters and no buffers: changes of the layer, of its parameters or of all tensors of a model
    (``dist.broadcast``, ``.data``, numpy views, another thread) do not change its results.

    Parameters
    ----------
    patterns : sequence of KSPattern
        Of the layer, the one that is applied first in front.
    weights : sequence of tensors (a, b, c, d)
        One for each pattern; copied.
    bias : tensor (out_features,) or None
        Copied.
    options : Options
        Memory order of results and algorithm, as the layer has them.

    Attributes
    ----------
    patterns : tuple of KSPattern
    in_features, out_features : int
    batch_last : bool
    algorithm : str
        As of the layer; not to be set.

    Raises
    ------
    DtypeError
        By a call, unless ``x`` is a floating-point tensor of the type of the weights.
    ShapeError
        By a call, for ``x`` without ``in_features`` features.
    ParameterError
        By ``load_state_dict``, and by a call with an unknown activation.

    Notes
    -----
    ``x`` of shape (..., in_features) gives (..., out_features); with ``batch_last``, (in_features, ...) gives
    (out_features, ...). A call costs ``2 a b c d`` operations a row for each factor.

    Gradients of ``x`` are recorded, the weights have none. ``to``, ``half`` and the like convert the copies, which are
    then packed again. ``state_dict`` has copies under the names of the layer; loading one raises an error: load it into
    the layer and call ``pack`` again. Copies and pickles are packed again. CUDA graphs may be captured: packed weights
    live as long as this object, unless it is converted.

    Examples
    --------
    >>> import torch, kernmantle as km
    >>> layer = km.KSLinear(16, 16, [(4, 4, 4, 1), (1, 4, 4, 4)])
    >>> packed, x = layer.pack(), torch.ones(2, 16)
    >>> before = packed(x)
    >>> _ = layer.weights[0].data.mul_(2)
    >>> torch.equal(packed(x), before)
    True
    """

    def __init__(
        self,
        patterns: Sequence[KSPattern],
        weights: Sequence[torch.Tensor],
        bias: torch.Tensor | None,
        options: Options,
    ) -> None:
        super().__init__()
        self.patterns = tuple(patterns)
        self.in_features, self.out_features = self.patterns[0].in_features, self.patterns[-1].out_features
        self._options = options._replace(precision="")
        self._names = ["x", *(f"weights.{index}" for index in range(len(self.patterns))), "bias"]
        self._ran = RunInfo()
        self._weights, self._bias = tuple(map(snapshot, weights)), None if bias is None else snapshot(bias)
        self._packed = PackedChain(len(self.patterns))

    def forward(self, x: torch.Tensor, activation: str | None = None) -> torch.Tensor:
        """Apply the layer; an activation ("relu", "gelu", "silu") is applied in the same pass."""
        weights, bias, options, packed = self._weights, self._bias, self._options, self._packed
        if torch.compiler.is_compiling():
            own, weights, bias = self._checked(x, weights, bias)
            return chain(own, weights, bias, check_activation(activation), options)
        if is_autocast_on():
            x, weights, bias = cast(x, weights, bias, self._names)
        tensors = (x,) if bias is None else (x, bias)
        call = packed.identity, activation, options
        found = find(call, tensors)
        if found is None:
            key = chain_key(x, weights, bias, activation, options, packed, is_cast=True)
            found = find_by_key(key, call, tensors)
            if found is None:
                x, weights, bias = self._checked(x, weights, bias)
                options = options._replace(precision=current().precision or "")
                found = bind_chain(key, x, weights, bias, check_activation(activation), options, True)
        return found((x, weights, bias, packed.parts), self._ran, None)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> PackedKSLinear:
        super()._apply(fn, recurse)
        with torch.inference_mode(False), torch.no_grad():
            weights = tuple(fn(weight) for weight in self._weights)
            bias = None if self._bias is None else fn(self._bias)
        if bias is not self._bias or any(new is not old for new, old in zip(weights, self._weights, strict=True)):
            self._weights, self._bias = weights, bias
            self._packed = PackedChain(len(weights))
        return self

    def _save_to_state_dict(self, destination: Any, prefix: str, *_: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        for index, weight in enumerate(self._weights):
            destination[f"{prefix}weights.{index}"] = weight.clone()
        if self._bias is not None:
            destination[f"{prefix}bias"] = self._bias.clone()

    def _load_from_state_dict(self, *arguments: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        prefix: str = arguments[1]
        raise ParameterError(
            f"{prefix.rstrip('.') or 'the module'} is a packed layer, which never changes: load the state into the "
            "KSLinear that it was packed from, then call pack() again"
        )

    def _factors(self) -> tuple[torch.Tensor, ...]:
        return self._weights

    @property
    def bias(self) -> torch.Tensor | None:
        """A copy of the bias (out_features,), or None."""
        return None if self._bias is None else self._bias.clone()

    def extra_repr(self) -> str:
        """Describe the layer for repr."""
        chain_text = " -> ".join(map(str, self.patterns))
        weight = self._weights[0]
        parts = [f"in_features={self.in_features}, out_features={self.out_features}, patterns={chain_text}"]
        parts.append(f"bias={self._bias is not None}, dtype={weight.dtype}, device={weight.device}")
        return self._said(parts)
