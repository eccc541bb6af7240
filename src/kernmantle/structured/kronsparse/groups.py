"""Layers of a module that share the launches of their training steps."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import nn

from ...config import current
from ...errors import ParameterError
from ...runtime.dispatch import PLANS, CallKey
from ...torch_ops.call_key import call_key, find, find_by_key
from ...torch_ops.dtypes import NAMES
from ...torch_ops.torch_private import has_global_hooks, is_autocast_on, is_capturing, is_static, traced_graph
from ..mode_product.execute import DENSE, is_on_gpu
from .chain_matrix import makes_matrix
from .chain_products import is_in_one_piece, splits_streams
from .chain_training import shares_matrix
from .group_op import apply_traced, count_of, traced_chains
from .linear import KSLinear
from .matmul import check_features
from .matrices import MADE, TRACED, BoundMatrices, apply_matrices, bind_matrices, product_by
from .pattern import KSPattern

M = TypeVar("M", bound=nn.Module)


def group(module: M) -> M:
    """Let the Kronecker-sparse layers of a module share the launches of their training steps.

    A layer that trains through its dense matrix makes that matrix with one launch and takes its gradient apart with
    another one. With this, each call of ``module`` makes the matrices of all such layers in it with one launch before
    it runs, and one launch takes their gradients apart; between them, such a layer runs as ``torch.nn.Linear`` does.
    That takes the GPU a few per cent less in compiled models of halves. Eager steps are quicker without it, as launches
    of a layer start as one then (rows "layers in a group" of ``python -m benchmarks layers``).

    Parameters
    ----------
    module : Module
        Any module with :class:`KSLinear` layers at any depth that it calls, best a whole model, which pays once for all
        of them. With activation checkpoints it is each piece that these run again, as layers have to find their
        matrices there too. Group a module after :func:`replace_linears`.

    Returns
    -------
    Module
        The same module, whose ``forward`` goes through the group; ``del module.forward`` ends that.

    Raises
    ------
    ParameterError
        For a module without such layers, or an argument that is not a module.

    Notes
    -----
    Values and gradients are those of a layer's step through its matrix, ``layer.info`` says "torch dense". The matrices
    are made anew at each call, so that changes of the weights between calls are seen; those within a call are not.
    Layers run by themselves where another kind of step should be quicker, without gradients, in CUDA graphs, under
    autocast and transforms, and where their weights are other tensors than contiguous ones of one type. Under
    ``torch.compile`` one operator makes all matrices and one takes their gradients apart.

    Memory: until the backward pass, as many numbers as the dense matrices of the layers have, and until its end as many
    again for their gradients; less at once if each block is a group.

    Examples
    --------
    >>> import torch, kernmantle as km
    >>> block = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 64))
    >>> report = km.replace_linears(block, lambda name, layer: km.kronsparse.monarch(layer, 4, 4))
    >>> km.kronsparse.group(block)(torch.randn(3, 64)).shape
    torch.Size([3, 64])
    """
    if not isinstance(module, nn.Module):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ParameterError(f"group takes a torch.nn.Module, as one block of a model, not {type(module).__name__}")
    layers = [layer for layer in module.modules() if isinstance(layer, KSLinear)]
    if not layers:
        raise ParameterError("the module has no KSLinear layers; replace_linears makes them of dense ones")
    module.forward = _Group(module, layers).forward
    return module


def apply_each(layers: Iterable[KSLinear], x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Apply several layers to the same rows, as attention does for queries, keys and values.

    In a training step of halves on a GPU in which each layer would multiply by its matrix, one launch makes all
    matrices, stacked, and one product multiplies by them. The gradient of x is one product as well, which sums over
    the layers. The results are then views of one tensor.

    Parameters
    ----------
    layers : iterable of KSLinear
        With as many ``in_features``, all with a bias or all without one. Other modules, and layers with hooks, are
        called one after the other.
    x : tensor (..., in_features)
        Rows.

    Returns
    -------
    tuple of tensors (..., out_features)
        ``layer(x)`` of each layer, with its gradients.

    Raises
    ------
    ShapeError
        For x without ``in_features`` of a layer as its last extent.
    ParameterError
        If the first argument is a tensor or a single layer.

    Notes
    -----
    Cost: N rows through the matrices take ``2 N in_features Σ out_features`` FLOP, and the matrices the products of
    their factors, which are fewer; layers that do not share a product take what each of them takes alone.

    Examples
    --------
    >>> import torch, kernmantle as km
    >>> query, key = (km.KSLinear(64, 64, km.kronsparse.monarch((64, 64), 4, 4)) for _ in range(2))
    >>> q, k = km.kronsparse.apply_each([query, key], torch.randn(3, 64))
    >>> q.shape, k.shape
    (torch.Size([3, 64]), torch.Size([3, 64]))
    """
    if isinstance(layers, (torch.Tensor, KSLinear, Mapping)) or not isinstance(layers, Iterable):
        raise ParameterError(f"the layers come first, as apply_each([query, key], x), not {type(layers).__name__}")
    layers = tuple(layers)
    for index, layer in enumerate(layers):
        if not callable(layer):
            raise ParameterError(f"layers[{index}] must be a layer, not {type(layer).__name__}")
    if torch.compiler.is_compiling():
        return tuple([layer(x) for layer in layers])
    found = _stacked(layers, x)
    if found is None:
        for layer in layers:  # before one of them runs
            if unwatched_factors(layer) is not None and isinstance(x, torch.Tensor):
                check_features(x, layer.patterns, layer.batch_last)
        return tuple([layer(x) for layer in layers])
    matrix, bias, sizes = found
    for layer in layers:
        layer._ran.route = DENSE
    return product_by(matrix, x, bias).split(sizes, -1)


def _stacked(
    layers: tuple[KSLinear, ...], x: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor | None, list[int]] | None:
    """Return the matrices of layers below one another, their biases and features; None where each goes its own way."""
    if type(x) is not torch.Tensor or not x.dim() or not trains(x) or not layers:
        return None
    if any(layer in MADE.matrices for layer in layers):
        return None
    weights = list[torch.Tensor]()
    for layer in layers:
        own = unwatched_factors(layer)
        if own is None:
            return None
        weights += own
    biases: list[torch.Tensor] = [layer.bias for layer in layers if layer.bias is not None]
    if x.shape[-1] != layers[0].in_features or len(biases) not in (0, len(layers)):
        return None
    key, found = key_and_plan("stack", layers, x, [*weights, *biases])
    if found is None:
        if key is None:
            return None
        shared = len(layers) > 1 and all(
            layer.in_features == x.shape[-1] and shares(layer, layer._factors(), x, x.dtype) for layer in layers
        )
        fits = shared and all(
            (bias.dtype, bias.device, bias.shape) == (x.dtype, x.device, (layer.out_features,))
            for bias, layer in zip(biases, layers, strict=False)
        )
        found = PLANS[key] = _Chosen((), (), bind_matrices(weights, True) if fits else None)
    if found.matrices is None:
        return None
    (matrix,) = apply_matrices(found.matrices, *weights)
    return matrix, torch.cat(biases) if biases else None, [layer.out_features for layer in layers]


def trains(x: torch.Tensor) -> bool:
    """Return whether an eager training step with x may be more than its layers one after the other."""
    return is_on_gpu(x) and torch.is_grad_enabled() and not is_autocast_on()


def unwatched_factors(layer: Any) -> tuple[torch.Tensor, ...] | None:
    """Return the weights of a layer; None where more than the ``forward`` of :class:`KSLinear` runs in its calls."""
    if not isinstance(layer, KSLinear) or type(layer).forward is not KSLinear.forward:
        return None
    own = layer.__dict__
    hooks = own["_forward_hooks"] or own["_forward_pre_hooks"] or own["_backward_hooks"] or own["_backward_pre_hooks"]
    if hooks or "forward" in own or has_global_hooks():
        return None
    weights = own["_modules"]["weights"]._parameters
    return tuple(weights.values()) if tuple(weights) == layer._keys else layer._factors()


def key_and_plan(
    kind: Hashable, layers: Sequence[KSLinear], x: torch.Tensor, tensors: Sequence[Any]
) -> tuple[CallKey | None, Any]:
    """Return what is bound for layers, their parameters and so many rows, and on a miss its key if it has one.

    ``kind`` says which tensors there are.
    """
    call = kind, splits_streams(x.device), *[layer._traced_form for layer in layers]
    own = [x, *[each for each in tensors if each is not None and each is not x]]
    found = find(call, own)
    if found is not None:
        return None, found
    forms = tuple([(layer._form, layer._options) for layer in layers])
    options = x.dtype, x.device, count_of(x.shape, x.dtype), splits_streams(x.device)
    key = call_key(("kron_sparse layers", kind, forms), options, tensors)
    return key, find_by_key(key, call, own)


class _Group:
    """A module and its layers, whose calls go through this."""

    def __init__(self, module: nn.Module, layers: Iterable[KSLinear]) -> None:
        self.module, self.layers, self.inner = module, tuple(layers), module.__dict__.get("forward")

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module with the matrices of its layers made."""
        if torch.compiler.is_compiling():
            return self._traced(args, kwargs)
        around = MADE.matrices
        MADE.matrices = self._made(around, args, kwargs) if torch.is_grad_enabled() else around
        try:
            return self._call(args, kwargs)
        finally:
            MADE.matrices = around

    def _call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if self.inner is not None:
            return self.inner(*args, **kwargs)
        return type(self.module).forward(self.module, *args, **kwargs)

    def _traced(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call the module in a graph that is being compiled."""
        around, of_graph, graph = TRACED.matrices, TRACED.graph, traced_graph()
        own = around if of_graph == graph else {}
        x = _rows(args, kwargs)
        if x is not None:
            layers = [layer for layer in self.layers if layer not in own]
            TRACED.matrices, TRACED.graph = {**own, **_traced(layers, x)}, graph
        try:
            return self._call(args, kwargs)
        finally:
            TRACED.matrices, TRACED.graph = around, of_graph

    def _made(
        self, around: Mapping[Hashable, torch.Tensor], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Mapping[Hashable, torch.Tensor]:
        """Return the matrices of a call, besides those that are made already."""
        x = args[0] if args and type(args[0]) is torch.Tensor and args[0].dim() else _rows(args, kwargs)
        if x is None or not trains(x) or is_capturing():
            return around
        layers = [layer for layer in self.layers if layer not in around] if around else self.layers
        weights = [weight for layer in layers for weight in layer._factors()]
        found = find(("group", False, *[layer._traced_form for layer in layers]), [x, *weights])
        if found is None:
            key, found = key_and_plan("group", layers, x, weights)
            if found is None:
                if key is None:
                    return around
                found = PLANS[key] = _bind(layers, x)
        if found.matrices is None:
            return around
        if len(found.layers) < len(layers):
            layers, weights = [layers[at] for at in found.layers], [weights[at] for at in found.weights]
        made = dict[Hashable, torch.Tensor](zip(layers, apply_matrices(found.matrices, *weights), strict=True))
        return {**around, **made} if around else made


def _rows(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> torch.Tensor | None:
    """Return the first tensor with axes of a call in which gradients are recorded."""
    if not torch.is_grad_enabled():
        return None
    return next((each for each in (*args, *kwargs.values()) if isinstance(each, torch.Tensor) and each.dim()), None)


def _traced(layers: Sequence[KSLinear], x: torch.Tensor) -> dict[KSLinear, torch.Tensor]:
    """Return the matrices of layers in a graph that is being compiled, for rows whose number is known."""
    for size in x.shape:
        if not is_static(size):
            return {}
    weights = [layer._factors() for layer in layers]
    forms = [(layer._form, *layer._options, len(own)) for layer, own in zip(layers, weights, strict=True)]
    tensors = [x, *[weight for own in weights for weight in own]]
    described = [(own.shape, own.dtype, own.device, own.requires_grad, own.is_contiguous()) for own in tensors]
    chosen = traced_chains(forms, described)
    if not chosen:
        return {}
    made = apply_traced([weight for at in chosen for weight in weights[at]])
    return dict(zip([layers[at] for at in chosen], made, strict=True))


class _Chosen(NamedTuple):
    """The layers that go through their matrix, their weights among those of all layers, and what makes the matrices."""

    layers: tuple[int, ...]
    weights: tuple[int, ...]
    matrices: BoundMatrices | None


def _bind(layers: Sequence[KSLinear], x: torch.Tensor) -> _Chosen:
    """Return the layers that should be quickest through their matrix, for as many rows as x has."""
    chosen, positions, found, begin = list[int](), list[int](), list[torch.Tensor](), 0
    dtype = x.dtype if x.is_floating_point() else layers[0]._factors()[0].dtype
    for index, layer in enumerate(layers):
        weights = layer._factors()
        if shares(layer, weights, x, dtype):
            chosen.append(index)
            positions += range(begin, begin + len(weights))
            found += weights
        begin += len(weights)
    return _Chosen(tuple(chosen), tuple(positions), bind_matrices(found) if found else None)


def shares(layer: KSLinear, weights: tuple[torch.Tensor, ...], x: torch.Tensor, dtype: torch.dtype) -> bool:
    """Return whether a layer should be quickest through a matrix that is made with others, for rows of ``dtype``."""
    if layer.batch_last or layer.algorithm != "auto" or current().precision or dtype not in NAMES:
        return False
    if len(weights) != 2 or not any(weight.requires_grad for weight in weights):
        return False
    if not all(weight.device == x.device and weight.data_ptr() % 16 == 0 for weight in weights):
        return False
    patterns = tuple([KSPattern(*weight.shape) for weight in weights if weight.dim() == 4])
    if str(patterns) != layer._form or not is_in_one_piece(weights, dtype) or not makes_matrix(weights, dtype):
        return False
    return shares_matrix(patterns, count_of(x.shape, x.dtype), NAMES[dtype], x.device)
