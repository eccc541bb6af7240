"""The product of an array with a Kronecker-sparse matrix, or with a chain of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...arrays import Wrap, check_same_device, dtype_name, unwrap
from ...config import current
from ...errors import DtypeError, GradientError, ParameterError, ShapeError
from ...runtime.dispatch import CallKey
from ...torch_ops.call_key import find, find_by_key
from ...torch_ops.checks import autocasts, check_out, check_precision, overlap
from ...torch_ops.dtypes import NAMES
from ...torch_ops.execute import Types
from ...torch_ops.info import RunInfo
from ...torch_ops.torch_private import is_tracked, plain
from ..mode_product.execute import ACTIVATIONS
from ..mode_product.pack import PackedChain
from ..mode_product.torch_op import Options
from ..mode_product.torch_products import ALGORITHMS
from .chain_autograd import bind_chain, chain, chain_key
from .pattern import KSPattern, check_chain, check_weights

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
STORED = tuple(
    getattr(torch, name) for name in ("float8_e4m3fn", "float8_e5m2") if hasattr(torch, name)
)  # kept so, computed in the type of x
CHOICES = ("auto", "kernel", *ALGORITHMS)


def kron_sparse_matmul(
    x: Any,
    weight: Any,
    pattern: Any = None,
    *,
    bias: Any = None,
    activation: str | None = None,
    batch_last: bool = False,
    out: Any = None,
    precision: str | None = None,
    algorithm: str = "auto",
) -> Any:
    r"""Return the product of an array with a Kronecker-sparse matrix ``K`` of support ``I_a ⊗ 1_{b x c} ⊗ I_d``.

    .. math:: y_{n,(i,j,l)} = f\Big(\sum_k w_{ijkl}\, x_{n,(i,k,l)} + \beta_{(i,j,l)}\Big)

    Parameters
    ----------
    x : array (..., a c d), or (a c d, ...) with ``batch_last``
        float64, float32, float16 or bfloat16, any batch, any strides.
    weight : array (a, b, c, d), or a sequence of these
        Of the type of x, or stored in float8 (``float8_e4m3fn``, ``float8_e5m2``) and computed in the type of x. A
        sequence is a chain, applied from the first to the last.
    pattern : KSPattern or four numbers, or a sequence of these, optional
        What the weights are checked against; by default their shape.
    bias : array (a b d), optional
        Added to the result.
    activation : {None, "relu", "gelu", "silu"}
        The function f, applied in the same pass where no gradient is recorded.
    batch_last : bool
        Whether the batch axes follow the features, ``K @ x``, or precede them, ``x @ K.T``.
    out : array, optional
        Written in place.
    precision : {None, "ieee", "tf32"}
        Arithmetic of float32 products, see :func:`kernmantle.config`.
    algorithm : {"auto", "kernel", "bmm", "einsum", "dense", "sparse", "bsr"}
        Algorithm of the product; "auto" takes the fastest by a cost model. "sparse" is torch's
        product of compressed sparse rows, whose sums on a GPU (cuSPARSE) are not the same in every call, bit for bit.

    Returns
    -------
    array (..., a b d), or (a b d, ...) with ``batch_last``
        Of the type of x. float16 and bfloat16 are accumulated in float32.

    Raises
    ------
    ShapeError
        For features or weights that do not fit, or patterns that do not chain.
    DtypeError, DeviceError, ParameterError, OutputError, GradientError
        For other invalid arguments. All errors are raised before anything is launched.

    Notes
    -----
    ``2 N a b c d`` operations on ``N (a c d + a b d) + a b c d`` numbers for N batch entries, without permuted copies.
    Gradients of every order exist for x, weight and bias; forward and reverse mode, vmap, and first order under
    torch.compile. Patterns are those of [1]_.

    References
    ----------
    .. [1] Gonon, Zheng, Carrivain, Le: Fast inference with Kronecker-sparse matrices, arXiv:2405.15013.

    Examples
    --------
    >>> import torch, kernmantle as km
    >>> x, weight = torch.ones(2, 6), torch.ones(1, 2, 3, 2)
    >>> km.kron_sparse_matmul(x, weight)
    tensor([[3., 3., 3., 3.],
            [3., 3., 3., 3.]])
    >>> km.kron_sparse_matmul(x.T, weight, batch_last=True).shape
    torch.Size([4, 2])
    """
    options = check_options(batch_last, algorithm, precision)
    return multiply(x, weight, pattern, bias, activation, out, options)


def multiply(
    x: Any, weight: Any, pattern: Any, bias: Any, activation: str | None, out: Any, options: Options,
    packed: PackedChain | None = None, info: RunInfo | None = None,
) -> Any:  # fmt: skip
    """Return the product; ``packed`` are packed copies of immutable weights, ``info`` receives the route."""
    is_chain = isinstance(weight, (list, tuple, torch.nn.ParameterList))
    weights: Sequence[Any] = weight if is_chain else (weight,)  # pyright: ignore[reportAssignmentType]
    parts = None if packed is None else packed.parts
    key = found = None
    if (pattern is None or _has_hash(pattern)) and not torch.compiler.is_compiling():
        tensors = [each for each in (x, *weights, bias, out) if each is not None]
        identity = None if packed is None else packed.identity
        call = "kron_sparse_matmul", is_chain, pattern, activation, options, bias is None, out is None, identity
        found = find(call, tensors, by_shape=True)
        if found is None:
            key = chain_key(x, weights, bias, activation, options, packed, out, (is_chain, pattern))
            found = find_by_key(key, call, tensors, by_shape=True)
    if found is not None and (out is None or not any(overlap(out, each) for each in _operands(x, weights, bias))):
        result = found((x, weights, bias, parts), info, out)
        return result if out is None else _written(out, out)
    own, weights, offset, wrap = _checked(x, weight, pattern, bias, options.batch_last)
    if out is not None:
        return _into(key, out, own, weights, offset, activation, options, info)
    final = check_activation(activation)
    if torch.compiler.is_compiling():
        return wrap(chain(own, weights, offset, final, options))
    found = bind_chain(key, own, weights, offset, final, options, packed is not None)
    return wrap(found((own, weights, offset, parts), info, None))


def _has_hash(pattern: Any) -> bool:
    """Return whether a pattern is hashable, as part of a key: lists are not."""
    if isinstance(pattern, tuple):
        return all(isinstance(each, int) or (isinstance(each, tuple) and _has_hash(each)) for each in pattern)
    return False


def _operands(x: Any, weights: Sequence[Any], bias: Any) -> list[Any]:
    return [x, *weights] if bias is None else [x, *weights, bias]


def _checked(
    x: Any, weight: Any, pattern: Any, bias: Any, batch_last: bool
) -> tuple[torch.Tensor, list[torch.Tensor], torch.Tensor | None, Wrap]:
    is_chain = isinstance(weight, (list, tuple, torch.nn.ParameterList))
    parts: list[Any] = list(weight) if is_chain else [weight]
    biases = [] if bias is None else [bias]
    names = ["x", *(f"weight {index}" if is_chain else "weight" for index in range(len(parts))), "bias"]
    (own, *rest), wrap = unwrap(x, *parts, *biases, names=names)
    weights, offset = rest[: len(parts)], rest[len(parts)] if biases else None
    patterns = _patterns(weights, pattern, is_chain, names)
    if pattern is not None:
        check_weights(patterns, weights)
    own, weights, offset = check_types(own, weights, offset, names)
    check_features(own, patterns, batch_last)
    check_bias(offset, patterns[-1])
    return own, weights, offset, wrap


def _patterns(
    weights: Sequence[torch.Tensor], pattern: Any, is_chain: bool, names: Sequence[str]
) -> tuple[KSPattern, ...]:
    for weight, name in zip(weights, names[1:], strict=False):
        if weight.dim() != 4:
            raise ShapeError(f"{name} has shape {tuple(weight.shape)}; it must have four axes (a, b, c, d)")
    if pattern is None:
        return check_chain(weight.shape for weight in weights)
    return check_chain(pattern if is_chain else [pattern])


def check_types(
    x: torch.Tensor, weights: Sequence[torch.Tensor], bias: torch.Tensor | None, names: Sequence[str]
) -> tuple[torch.Tensor, list[torch.Tensor], torch.Tensor | None]:
    """Return the tensors of one floating type on one device, cast where autocast asks for it."""
    tensors = [x, *weights, *([] if bias is None else [bias])]
    check_same_device(tensors, names[: len(tensors)])
    if autocasts(x.device) and x.dtype != torch.float64:
        kind = torch.get_autocast_dtype(x.device.type)
        tensors = [tensor if tensor.dtype in STORED else tensor.to(kind) for tensor in tensors]
    own = tensors[0].dtype
    if own not in FLOATS:
        raise DtypeError(f"x is {dtype_name(own)}; supported are {', '.join(map(dtype_name, FLOATS))}")
    for tensor, name in zip(tensors[1:], names[1:], strict=False):
        if tensor.dtype in STORED and name != "bias":
            if tensor.requires_grad:
                raise GradientError(f"{name} is {dtype_name(tensor.dtype)}, which is for storage; detach it")
        elif tensor.dtype != own:
            if name != "bias" and dtype_name(tensor.dtype).startswith("float8"):
                allowed = " or ".join(map(dtype_name, STORED))
                raise DtypeError(f"{name} is {dtype_name(tensor.dtype)}; weights in float8 are stored as {allowed}")
            raise DtypeError(f"x is {dtype_name(own)} but {name} is {dtype_name(tensor.dtype)}; convert one of them")
    return tensors[0], tensors[1 : len(weights) + 1], None if bias is None else tensors[-1]


def check_features(x: torch.Tensor, patterns: Sequence[KSPattern], batch_last: bool) -> None:
    """Raise ShapeError unless x has the features that the first pattern takes."""
    if x.dim() == 0:
        raise ShapeError("x is a single number; it needs an axis of features")
    found, wanted = x.shape[0 if batch_last else -1], patterns[0].in_features
    if found != wanted:
        position = "first" if batch_last else "last"
        raise ShapeError(
            f"x has shape {tuple(x.shape)}: {found} features on the {position} axis, the pattern {patterns[0]} takes "
            f"a c d = {wanted}"
        )


def check_bias(bias: torch.Tensor | None, last: KSPattern) -> None:
    """Raise ShapeError unless the bias has one entry a feature."""
    if bias is not None and tuple(bias.shape) != (last.out_features,):
        raise ShapeError(f"bias has shape {tuple(bias.shape)}, the pattern {last} gives a b d = {last.out_features}")


def check_options(batch_last: bool, algorithm: str, precision: str | None) -> Options:
    """Return the settings of a call, or ParameterError."""
    if algorithm not in CHOICES:
        raise ParameterError(f"algorithm must be one of {', '.join(map(repr, CHOICES))}, not {algorithm!r}")
    check_precision(precision, ())
    if precision is None and not torch.compiler.is_compiling():
        precision = current().precision
    return Options(bool(batch_last), algorithm, precision or "")


def check_activation(activation: str | None, is_optional: bool = True) -> str:
    """Return the name of an activation, or ParameterError."""
    is_named = isinstance(activation, str) and activation in ACTIVATIONS
    if not (activation or is_optional) or not (is_named or activation is None):
        allowed = ", ".join(repr(name) for name in ACTIVATIONS if name)
        raise ParameterError(f"activation must be {'None or ' * is_optional}one of {allowed}, not {activation!r}")
    return activation or ""


def dense_of(weights: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the matrix of a chain, of its weights' type; torch's default type for float8."""
    columns = KSPattern(*weights[0].shape).in_features
    kind = torch.get_default_dtype() if weights[0].dtype in STORED else weights[0].dtype
    unit = torch.eye(columns, dtype=kind, device=weights[0].device)
    return chain(unit, weights, None, "", Options(False, "auto", "ieee")).mT


def _into(
    key: CallKey | None, out: Any, x: torch.Tensor, weights: Sequence[torch.Tensor], bias: torch.Tensor | None,
    activation: str | None, options: Options, info: RunInfo | None,
) -> Any:  # fmt: skip
    """Write the product to ``out``."""
    operands = _operands(x, weights, bias)
    features = KSPattern(*weights[-1].shape).out_features
    shape = (features, *x.shape[1:]) if options.batch_last else (*x.shape[:-1], features)
    name = NAMES[x.dtype]
    (target,) = check_out(out, shape, Types(name, (name,)).text, operands, is_tracked(operands), True)
    if not plain([*operands, target]):
        raise GradientError("out= cannot be combined with a transform of torch.func; drop out=")
    found = bind_chain(key, x, weights, bias, check_activation(activation), options, False, target)
    found((x, weights, bias, None), info, target)
    return _written(out, target)


def _written(out: Any, target: torch.Tensor) -> Any:
    """Return ``out`` after its memory was written."""
    if not target.is_inference():
        torch.autograd.graph.increment_version([target])
    return out
