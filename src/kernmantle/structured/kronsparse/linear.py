"""A trainable linear layer whose matrix is a product of Kronecker-sparse ones."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling
from torch.nn import functional

from ...arrays import dtype_name, unwrap
from ...checks import integer
from ...config import current
from ...errors import DtypeError, ParameterError, ShapeError
from ...torch_ops.call_key import find, find_by_key
from ...torch_ops.info import RunInfo
from ...torch_ops.torch_private import is_autocast_on, is_static, traced_graph
from ..mode_product.execute import ACTIVATIONS, DENSE
from .chain_autograd import bind_chain, chain, chain_key
from .chain_op import apply_chain
from .dense import carry_hooks, dense
from .matmul import FLOATS, STORED, check_activation, check_bias, check_options
from .matrices import MADE, TRACED, made_for, product_by_made
from .packed import ChainModule, PackedKSLinear, cast, step_of_layer
from .pattern import KSPattern, check_chain, check_weights
from .picture import html
from .projection import project


class KSLinear(ChainModule):
    """Linear layer ``x W^T + bias`` with ``W = K_L … K_1``, each factor Kronecker-sparse.

    Parameters
    ----------
    in_features, out_features : int
        Sizes, checked against the patterns.
    patterns : sequence of KSPattern or of four numbers
        ``patterns[0]`` is applied first. Required; :func:`kernmantle.kronsparse.monarch` makes a common chain.
    bias : bool
        Whether a bias is added.
    weights : sequence of arrays (a, b, c, d), optional
        Initial values of the factors; by default uniform with variance ``1 / c``, so that each factor preserves the
        variance of its input. Weights stored in float8 have no gradient.
    batch_last : bool
        Whether the batch axes follow the features: ``(in_features, ...)`` gives ``(out_features, ...)``.
    algorithm : {"auto", "kernel", "bmm", "einsum", "dense", "sparse", "bsr"}
        Algorithm of the products; "auto" takes the fastest by a cost model.
    device, dtype
        Of the parameters.

    Attributes
    ----------
    patterns : tuple of KSPattern
    weights : ParameterList
        One parameter (a, b, c, d) for each pattern: ``weights.0`` and so on in the state_dict.
    bias : Parameter (out_features) or None
    projection_error : float or None
        Relative error in the Frobenius norm of the matrix that :meth:`from_linear` approximated.

    Raises
    ------
    ShapeError
        For patterns that do not chain, or do not fit the sizes or the weights.
    DtypeError
        For parameters that are not floating-point numbers.

    Notes
    -----
    ``x`` of shape (..., in_features) gives (..., out_features). Gradients are those of :func:`kron_sparse_matmul`.
    ``layer.info`` names the kernels of the last call; :meth:`pack` returns the layer for inference.

    Cost: ``2 a b c d`` operations a row for each factor, and memory for its result. Patterns are those of [1]_.

    References
    ----------
    .. [1] Gonon, Zheng, Carrivain, Le: Fast inference with Kronecker-sparse matrices, arXiv:2405.15013.

    Examples
    --------
    >>> import torch, kernmantle as km
    >>> layer = km.KSLinear(784, 1000, patterns=[(7, 28, 112, 1), (1, 1000, 196, 1)])
    >>> layer(torch.randn(5, 784)).shape
    torch.Size([5, 1000])
    >>> sum(weight.numel() for weight in layer.weights) / (784 * 1000)
    0.278
    """

    _chosen = False  # by replace_linears, to keep a share of the weights: other patterns will do

    def __init__(
        self,
        in_features: int,
        out_features: int,
        patterns: Sequence[Any] | None = None,
        bias: bool = True,
        weights: Sequence[torch.Tensor] | None = None,
        batch_last: bool = False,
        algorithm: str = "auto",
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if isinstance(bias, torch.Tensor):
            raise ParameterError("bias must be True or False, not a tensor; copy its values into the bias of the layer")
        self.patterns = check_chain(patterns)  # pyright: ignore[reportArgumentType]: None raises, with what to write
        self.in_features = integer(in_features, "in_features")
        self.out_features = integer(out_features, "out_features")
        found = ends(self.patterns)
        if found != (in_features, out_features):
            raise ShapeError(
                f"the patterns map {found[0]} features to {found[1]}, the layer {in_features} to {out_features}"
            )
        self._options = check_options(batch_last, algorithm, None)._replace(precision="")
        self.projection_error: float | None = None
        self._name_parts()
        self._ran = RunInfo()
        self.weights = nn.ParameterList(_parameters(self.patterns, weights, device, dtype))
        options: dict[str, Any] = {"device": self.weights[0].device, "dtype": _computed(self.weights)}
        self.bias = nn.Parameter(torch.empty(out_features, **options)) if bias else None
        if weights is None:
            self.reset_parameters()
        elif self.bias is not None:
            self._reset_bias(self.bias)

    def _load_from_state_dict(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, state: Mapping[str, Any], prefix: str, local: Any, strict: bool, missing: Any, unexpected: Any,
        errors: list[str],
    ) -> None:  # fmt: skip
        saved = saved_patterns(state, prefix)
        replaceable = saved != self.patterns and self._chosen and _is_plain(self.weights)
        if saved is not None and ends(saved) == ends(self.patterns) and replaceable:
            take_patterns(self, saved)
        if said := _obstacle(self.patterns, saved, strict and state.get(f"{prefix}weight") is not None):
            errors.append(f"{prefix.removesuffix('.') or 'the layer'}: {said}")
        super()._load_from_state_dict(state, prefix, local, strict, missing, unexpected, errors)

    def _name_parts(self) -> None:
        """Set what keys and errors call the patterns and weights."""
        self._form = str(self.patterns)  # whose hash is cached, as part of keys
        self._traced_form = f"{self._options.batch_last:d} {self._options.algorithm} {self._form}"
        self._keys = tuple(map(str, range(len(self.patterns))))
        self._names = ["x", *(f"weights.{key}" for key in self._keys), "bias"]

    def reset_parameters(self) -> None:
        """Draw all parameters anew, so that each factor preserves the variance of its input."""
        for weight, pattern in zip(self.weights, self.patterns, strict=True):
            bound = math.sqrt(3 / pattern.c)
            if weight.dtype in STORED:
                drawn = torch.empty(pattern, device=weight.device).uniform_(-bound, bound)
                with torch.no_grad():
                    weight.copy_(drawn)
            else:
                nn.init.uniform_(weight, -bound, bound)
        if self.bias is not None:
            self._reset_bias(self.bias)

    def _reset_bias(self, bias: nn.Parameter) -> None:
        nn.init.uniform_(bias, -1 / math.sqrt(self.in_features), 1 / math.sqrt(self.in_features))

    def forward(self, x: torch.Tensor, activation: str | None = None) -> torch.Tensor:
        """Apply the layer; an activation ("relu", "gelu", "silu") is applied in the same pass."""
        own = self._parameters
        bias = own["bias"] if "bias" in own else self.bias  # noqa: SIM401 - the default would be looked up each time
        if is_compiling():
            return self._traced(x, bias, activation)
        if MADE.matrices and (value := product_by_made(self, x, bias, MADE.matrices)) is not None:
            self._ran.route = DENSE
            return value if activation is None else ACTIVATIONS[check_activation(activation)](value)
        parameters: Any = self._modules["weights"]._parameters  # pyright: ignore[reportOptionalMemberAccess]
        weights = tuple(parameters.values()) if tuple(parameters) == self._keys else self._factors()
        if is_autocast_on():
            x, weights, bias = cast(x, weights, bias, self._names)
        tensors = (x, *weights) if bias is None else (x, *weights, bias)
        call = self._traced_form, activation, bias is None
        found = find(call, tensors)
        if found is None:
            options = self._options
            key = chain_key(x, weights, bias, activation, options, None, None, self._form, True)
            found = find_by_key(key, call, tensors)
            if found is None:
                x, weights, bias = self._checked(x, weights, bias)
                options = options._replace(precision=current().precision or "")
                found = bind_chain(key, x, weights, bias, check_activation(activation), options, False)
        return found((x, weights, bias, None), self._ran, None)

    def _traced(self, x: torch.Tensor, bias: torch.Tensor | None, activation: str | None) -> torch.Tensor:
        """Return the result in a graph that is being compiled."""
        is_made = TRACED.matrices and TRACED.graph == traced_graph()
        if is_made and (matrix := made_for(self, x, TRACED.matrices)) is not None:
            return ACTIVATIONS[check_activation(activation)](functional.linear(x, matrix, bias))
        if not isinstance(x, Tensor):
            return self._traced_by_factors(x, bias, activation)
        for size in x.shape:
            if not is_static(size):
                return self._traced_by_factors(x, bias, activation)
        own: Any = self._modules["weights"]._parameters  # pyright: ignore[reportOptionalMemberAccess]
        weights = [*own.values()]
        tensors = [x, *weights] if bias is None else [x, *weights, bias]
        described = [(each.shape, each.dtype, each.device, each.layout, each.requires_grad) for each in tensors]
        step = step_of_layer(self._traced_form, [*own], activation, bias is not None, described)
        if not step:
            return self._traced_by_factors(x, bias, activation)
        return apply_chain(step, x, bias, weights)

    def _traced_by_factors(self, x: Any, bias: torch.Tensor | None, activation: str | None) -> torch.Tensor:
        """Return the result by factors, where a check fails, which then raises, or the batch is not known."""
        own, weights, offset = self._checked(x, self._factors(), bias)
        return chain(own, weights, offset, check_activation(activation), self._options)

    def _factors(self) -> tuple[torch.Tensor, ...]:
        # A ParameterList takes 10 us to iterate over, an attribute of a module 0.4 us to find.
        parameters: Any = self._modules["weights"]._parameters  # pyright: ignore[reportOptionalMemberAccess]
        if tuple(parameters) == self._keys:
            return tuple(parameters.values())
        for hook in self.weights._forward_pre_hooks.values():  # by which pruning and norms make weights of parameters
            hook(self.weights, ())
        return tuple(self.weights)

    def pack(self) -> PackedKSLinear:
        """Return an immutable snapshot of the layer for inference.

        The weights are copied now. The first call of each kind rearranges them, or makes the dense matrix of a factor
        or of the whole layer if "auto" finds that faster; later calls read the result. The snapshot does not see later
        changes of the layer's parameters: call ``pack`` again after them. Memory: the copies, at most as much again of
        float32 weights for each kind of tile, dense matrices, and for halves on a CPU copies in float32, whose tiles
        these are. Hooks of the layer are carried over.

        Returns
        -------
        PackedKSLinear
            A module without parameters, in the mode (``training``) of the layer.

        Raises
        ------
        ShapeError
            For weights that are no longer of their pattern.

        Examples
        --------
        >>> import torch, kernmantle as km
        >>> packed = km.KSLinear(16, 16, [(4, 4, 4, 1), (1, 4, 4, 4)]).pack()
        >>> packed(torch.ones(2, 16)).shape
        torch.Size([2, 16])
        >>> len(list(packed.parameters()))
        0
        """
        factors = self._factors()
        check_weights(self.patterns, factors)
        if self.bias is not None:
            check_bias(self.bias, self.patterns[-1])
        packed = PackedKSLinear(self.patterns, factors, self.bias, self._options)
        carry_hooks(self, packed)
        return packed.train(self.training)

    @classmethod
    def from_linear(
        cls, linear: nn.Linear, patterns: Sequence[Any], batch_last: bool = False, algorithm: str = "auto"
    ) -> KSLinear:
        """Return a layer that approximates the matrix of a dense layer and has its bias.

        Parameters
        ----------
        linear : Linear or Conv1D of transformers
            Any module with a ``weight`` (out_features, in_features) and a ``bias``.
        patterns : sequence of patterns
            Chainable ones, see :func:`kernmantle.kronsparse.project`.
        batch_last, algorithm
            See the class.

        Returns
        -------
        KSLinear
            Its ``projection_error`` is the relative error in the Frobenius norm.

        Raises
        ------
        ParameterError, ShapeError, DeviceError
            For modules that are not linear layers, weights on meta or not finite, or patterns that do not fit them.

        Examples
        --------
        >>> import torch, kernmantle as km
        >>> layer = km.KSLinear.from_linear(torch.nn.Linear(16, 16), [(4, 4, 4, 1), (1, 4, 4, 4)])
        >>> 0 < layer.projection_error < 1
        True
        """
        weight, bias = dense(linear)
        found = project(weight, patterns)
        rows, columns = weight.shape
        layer = cls(
            columns, rows, found.patterns, bias is not None, found.weights, batch_last, algorithm, weight.device,
            weight.dtype,
        )  # fmt: skip
        if layer.bias is not None and bias is not None:
            layer.bias.data.copy_(bias)
        layer.projection_error = found.error
        return layer

    @ChainModule.batch_last.setter
    def batch_last(self, value: bool) -> None:
        """Set whether the batch is after the features."""
        self._set_options(value, self.algorithm)

    @ChainModule.algorithm.setter
    def algorithm(self, value: str) -> None:
        """Set the algorithm of the products."""
        self._set_options(self.batch_last, value)

    def _set_options(self, batch_last: bool, algorithm: str) -> None:
        self._options = check_options(batch_last, algorithm, None)._replace(precision="")
        self._name_parts()

    def extra_repr(self) -> str:
        """For repr."""
        chain = " -> ".join(map(str, self.patterns))
        parts = [f"in_features={self.in_features}, out_features={self.out_features}, patterns={chain}"]
        parts.append(f"bias={self.bias is not None}, density={self.nnz / (self.in_features * self.out_features):.3g}")
        return self._said(parts)

    def _repr_html_(self) -> str:
        return html(self.patterns, f"KSLinear({self.in_features}, {self.out_features}): {self.nnz} weights")


def ends(chain: Sequence[KSPattern]) -> tuple[int, int]:
    """Return the input and output features of a chain."""
    return chain[0].in_features, chain[-1].out_features


def saved_patterns(state: Mapping[str, Any], prefix: str) -> tuple[KSPattern, ...] | None:
    """Return the patterns of a layer in a state_dict, the shapes of its weights; None if it has no weights there."""
    names = itertools.takewhile(state.__contains__, (f"{prefix}weights.{index}" for index in itertools.count()))
    shapes = [tuple(getattr(state[name], "shape", ())) for name in names]
    if not shapes or any(len(shape) != 4 or 0 in shape for shape in shapes):
        return None
    chain = [KSPattern(*map(int, shape)) for shape in shapes]  # pyright: ignore[reportCallIssue]
    joined = all(first.out_features == second.in_features for first, second in itertools.pairwise(chain))
    return tuple(chain) if joined else None


def take_patterns(layer: KSLinear, patterns: Sequence[KSPattern]) -> None:
    """Give a layer other patterns between the same features, with uninitialised weights."""
    first, rest = layer.weights[0], len(patterns) - len(layer.weights)
    own = [*layer.weights][: len(patterns)]
    added = [nn.Parameter(torch.empty_like(first), first.requires_grad) for _ in range(rest)]
    for weight, pattern in zip([*own, *added], patterns, strict=True):
        weight.data, weight.grad = torch.empty(pattern, dtype=weight.dtype, device=weight.device), None
    layer.weights = nn.ParameterList([*own, *added])
    layer.patterns, layer.projection_error = tuple(patterns), None
    layer._name_parts()


def _is_plain(weights: nn.ParameterList) -> bool:
    """Return whether the weights are parameters of their own memory, neither made by hooks nor sharded."""
    return all(type(weight) is nn.Parameter for weight in weights._parameters.values())


def _obstacle(own: Sequence[KSPattern], saved: Sequence[KSPattern] | None, dense: bool) -> str:
    """Return why a state cannot be loaded into a layer, or "" if it can or if torch reports its keys."""
    if saved is not None and tuple(saved) != tuple(own):
        theirs, ours = (" -> ".join(map(str, chain)) for chain in (saved, own))
        return f"the state has the patterns {theirs}, the layer {ours}; km.load_structured(model, state) makes it anew"
    if saved is None and dense:
        return "the state has a dense weight; load it before replace_linears, or use KSLinear.from_linear"
    return ""


def _parameters(
    patterns: Sequence[KSPattern], weights: Sequence[Any] | None, device: Any, dtype: torch.dtype | None
) -> list[nn.Parameter]:
    """Return one parameter for each pattern, with the given values if there are any."""
    if weights is None:
        found = [torch.empty(pattern, device=device, dtype=_floating(dtype)) for pattern in patterns]
    else:
        listed = list(weights)
        tensors, _ = unwrap(*listed, names=[f"weight {index}" for index in range(len(listed))])
        check_weights(patterns, tensors)
        found = [
            weight.detach().clone().to(device=device, dtype=_floating(dtype or weight.dtype)) for weight in tensors
        ]
    return [nn.Parameter(weight, weight.dtype not in STORED) for weight in found]


def _computed(weights: Iterable[Any]) -> torch.dtype:
    """Return the common type of all weights that are not in float8, or torch's default type."""
    kinds = [weight.dtype for weight in weights if weight.dtype not in STORED] or [torch.get_default_dtype()]
    if len(set(kinds)) > 1:
        raise DtypeError(f"the weights are {' and '.join(map(dtype_name, dict.fromkeys(kinds)))}; pass dtype=")
    return kinds[0]


def _floating(dtype: torch.dtype | None) -> torch.dtype | None:
    if dtype is None or dtype in FLOATS or dtype in STORED:
        return dtype
    raise DtypeError(f"parameters are floating-point numbers, not {dtype}; pass dtype=")
