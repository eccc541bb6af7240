"""kermac's functions: distances and kernels of described arithmetic, and the contractions of their gradients.

Results have a batch axis unless ``out`` has none. Unlike there, CPU tensors, float64 and int powers are taken,
nothing is kept between calls, and a call waits for no device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import lru_cache, partial
from typing import Any

import torch

from ...ir.functions import FUNCTIONS
from ...pairwise.weighted_differences import differences
from ...runtime.precompile import precompile
from ...torch_ops.contract import Contraction
from ...torch_ops.torch_private import is_untracked
from ..batches import batch_of_pairs, batch_size, check_tensors, deliver, hyper_sizes
from ..timer import CudaTimer as CudaTimer
from .linalg import FillMode as FillMode

exp, maximum, sign, sqrt, where = (FUNCTIONS[name] for name in ("exp", "maximum", "sign", "sqrt", "where"))
EPSILON, GRADIENT_EPSILON = 1e-5, 1e-8  # distances, and differences in slopes, that count as 0 below
_MANY, _WIDE = 2048, 128  # rows and columns of the arrays that kernels are compiled for beforehand


class InnerOperator(Enum):
    """The map of two entries."""

    DIFF = auto()
    DOT = auto()


class PowerType(Enum):
    """The function of each term, and that of their sum."""

    NOOP = auto()
    ABS = auto()
    SQUARE = auto()
    SQRT = auto()
    POW = auto()


class KernelType(Enum):
    """The function of the distance."""

    NONE = auto()
    LAPLACE = auto()
    GAUSSIAN = auto()


class Symmetry(Enum):
    """Whether both arrays are the same."""

    NonSymmetric = auto()
    Symmetric = auto()


@dataclass(frozen=True)
class KernelDescriptor:
    """The arithmetic of a kernel: ``kernel_type(outer_power(Σ inner_power(inner_operator(a, b))))``."""

    inner_operator: InnerOperator
    inner_power: PowerType
    outer_power: PowerType
    kernel_type: KernelType


_DIFF = InnerOperator.DIFF
kernel_descriptor_laplace_l1 = KernelDescriptor(_DIFF, PowerType.ABS, PowerType.NOOP, KernelType.LAPLACE)
kernel_descriptor_laplace_l2 = KernelDescriptor(_DIFF, PowerType.SQUARE, PowerType.SQRT, KernelType.LAPLACE)
kernel_descriptor_p_norm = KernelDescriptor(_DIFF, PowerType.POW, PowerType.POW, KernelType.NONE)
kernel_descriptor_l1_norm = KernelDescriptor(_DIFF, PowerType.ABS, PowerType.NOOP, KernelType.NONE)
kernel_descriptor_l2_norm = KernelDescriptor(_DIFF, PowerType.SQUARE, PowerType.SQRT, KernelType.NONE)
kernel_descriptor_mma = KernelDescriptor(InnerOperator.DOT, PowerType.NOOP, PowerType.NOOP, KernelType.NONE)

_POWERS: dict[PowerType, Callable[..., Any]] = {
    PowerType.NOOP: lambda t, _: t,
    PowerType.ABS: lambda t, _: abs(t),
    PowerType.SQUARE: lambda t, _: t * t,
    PowerType.SQRT: lambda t, _: sqrt(t),
    PowerType.POW: lambda t, p: abs(t) ** p,
}


@lru_cache(maxsize=256)
def _contraction(descriptor: KernelDescriptor) -> Contraction:
    inner, outer = _POWERS[descriptor.inner_power], _POWERS[descriptor.outer_power]

    def mapped(a: Any, b: Any, inner_p: Any) -> Any:
        return inner(b - a if descriptor.inner_operator is _DIFF else a * b, inner_p)

    def finish(s: Any, outer_p: Any, bandwidth: Any, epsilon: Any) -> Any:
        t = outer(s, outer_p)
        if descriptor.kernel_type is KernelType.NONE:
            return t
        t = where(t < epsilon, 0, t)
        return exp(-(t / (bandwidth if descriptor.kernel_type is KernelType.LAPLACE else 2 * bandwidth * bandwidth)))

    return Contraction("mk,nk->mn", mapped, epilogue=finish)


def _check_numbers(descriptor: KernelDescriptor, numbers: dict[str, Any]) -> None:
    for side in ("inner", "outer"):
        own, wanted = numbers[f"{side}_p"], getattr(descriptor, f"{side}_power") is PowerType.POW
        if wanted and own is None and numbers["p"] is None:
            raise ValueError(f"the {side} power is POW: pass p or {side}_p")
        if not wanted and own is not None:
            raise ValueError(f"{side}_p is given, but the {side} power is {getattr(descriptor, f'{side}_power').name}")
        if own is not None and numbers["p"] is not None:
            raise ValueError(f"both p and {side}_p are given")
    if numbers["p"] is not None and PowerType.POW not in (descriptor.inner_power, descriptor.outer_power):
        raise ValueError("p is given, but neither power is POW")
    smooth = descriptor.kernel_type is not KernelType.NONE
    if smooth and numbers["bandwidth"] is None:
        raise ValueError(f"the kernel type is {descriptor.kernel_type.name}: pass bandwidth")
    extra = next((name for name in ("bandwidth", "epsilon", "regularization") if numbers[name] is not None), None)
    if not smooth and extra:
        raise ValueError(f"{extra} is given, but the kernel type is NONE")


def run_kernel(
    kernel_descriptor: KernelDescriptor,
    a: torch.Tensor,
    b: torch.Tensor,
    out: torch.Tensor | None = None,
    p: Any = None,
    inner_p: Any = None,
    outer_p: Any = None,
    bandwidth: Any = None,
    epsilon: float | None = None,
    regularization: Any = None,
    regularization_offset_x: int = 0,
    regularization_offset_y: int = 0,
    try_to_align: bool = False,  # noqa: ARG001
    debug: bool = False,  # noqa: ARG001
) -> torch.Tensor:
    """Return the kernel matrix (L, M, N) of a (..., M, K) and b (..., N, K); with p the outer power is 1 / p.

    Where ``regularization`` is not 0, entries of equal global indices become 1 + regularization.
    ``try_to_align`` and ``debug`` have no effect.
    """
    numbers = {"p": p, "inner_p": inner_p, "outer_p": outer_p, "bandwidth": bandwidth, "epsilon": epsilon}
    numbers["regularization"] = regularization
    _check_numbers(kernel_descriptor, numbers)
    batch = batch_of_pairs(a, b, hyper_sizes(numbers), out)
    inner = inner_p if p is None else p
    outer = outer_p if p is None else 1 / p
    # What a descriptor does not read is a number that does not matter.
    parameters = {
        name: 1.0 if value is None else value
        for name, value in {"inner_p": inner, "outer_p": outer, "bandwidth": bandwidth}.items()
    }
    parameters["epsilon"] = EPSILON if epsilon is None else epsilon
    result = deliver(_contraction(kernel_descriptor), [a, b], 2, batch, out, parameters)
    if regularization is not None:
        _regularize(result, regularization, regularization_offset_x - regularization_offset_y)
    return result


def _regularize(matrix: torch.Tensor, regularization: Any, offset: int) -> None:
    entries = matrix.diagonal(offset, -2, -1)
    if not isinstance(regularization, torch.Tensor):
        if regularization != 0:
            entries.fill_(1 + regularization)
        return
    wide = regularization.to(matrix.dtype).unsqueeze(-1) if regularization.dim() else regularization.to(matrix.dtype)
    entries.copy_(torch.where(wide != 0, 1 + wide, entries))


def cdist(
    a: torch.Tensor,
    b: torch.Tensor,
    out: torch.Tensor | None = None,
    p: Any = 2.0,
    skip_epilogue: bool = False,
    try_to_align: bool = False,  # noqa: ARG001
    debug: bool = False,  # noqa: ARG001
) -> torch.Tensor:
    """Distances (L, M, N) between rows of a (..., M, K) and b (..., N, K); sums of powers with ``skip_epilogue``."""
    if isinstance(p, torch.Tensor) or p not in (1, 2):
        if not skip_epilogue:
            return run_kernel(kernel_descriptor_p_norm, a, b, out, p=p)
        sums = KernelDescriptor(_DIFF, PowerType.POW, PowerType.NOOP, KernelType.NONE)
        return run_kernel(sums, a, b, out, p=p)
    descriptor = kernel_descriptor_l1_norm if p == 1 else kernel_descriptor_l2_norm
    if skip_epilogue:
        descriptor = KernelDescriptor(_DIFF, descriptor.inner_power, PowerType.NOOP, KernelType.NONE)
    return run_kernel(descriptor, a, b, out)


def _slope(gap: Any, p: Any, eps: Any) -> Any:
    return sign(gap) * maximum(abs(gap), eps) ** (p - 1)


_GRADIENT = "km,nk,ok,nm->onm"
_GRADIENTS = {
    1: Contraction(_GRADIENT, lambda a, b, c, d: c * a * sign(d - b)),
    2: Contraction(_GRADIENT, lambda a, b, c, d: c * a * (d - b)),
    0: Contraction(_GRADIENT, lambda a, b, c, d, p: c * a * sign(d - b) * abs(d - b) ** (p - 1)),
}
_CLAMPED = Contraction(_GRADIENT, lambda a, b, c, d, p, eps: c * a * _slope(d - b, p, eps))


def _gradient_batch(tensors: dict[str, torch.Tensor], hyper: dict[str, Any], out: torch.Tensor | None) -> int:
    check_tensors(tensors, out)
    sizes = {name: (tensor, 2) for name, tensor in tensors.items()} | hyper_sizes(hyper)
    batch = batch_size(sizes if out is None else {**sizes, "out": (out, 3)})
    a, b, c, d = (tensors[name] for name in "abcd")
    (k, m), (n, o) = a.shape[-2:], (b.shape[-2], c.shape[-2])
    for name, tensor, shape in (("b", b, (n, k)), ("c", c, (o, k)), ("d", d, (n, m)), ("out", out, (o, n, m))):
        if tensor is not None and tuple(tensor.shape[-len(shape) :]) != shape:
            raise ValueError(f"{name} must have shape {shape} beside a {(k, m)}, it has {tuple(tensor.shape)}")
    if out is not None and out.dim() == 3 and batch > 1:
        raise ValueError(f"out must have shape {(batch, o, n, m)}, it has {tuple(out.shape)}")
    return batch


def cdist_grad(
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    d: torch.Tensor,
    out: torch.Tensor | None = None,
    p: Any = 2.0,
    eps: float = GRADIENT_EPSILON,
    debug: bool = False,  # noqa: ARG001
) -> torch.Tensor:
    """``out[o,n,m] = Σ_k c[o,k] a[k,m] sgn(d[n,m] - b[n,k]) |d[n,m] - b[n,k]|^(p-1)`` with a batch axis.

    a (..., K, M), b (..., N, K), c (..., O, K), d (..., N, M). Differences are at least ``eps`` under the power, for
    p above 1 only where ``eps`` is above its default. p = 2 is two matrix products.
    """
    batch = _gradient_batch({"a": a, "b": b, "c": c, "d": d}, {"p": p}, out)
    if isinstance(p, torch.Tensor):
        return deliver(_CLAMPED, [a, b, c, d], 3, batch, out, {"p": p, "eps": eps})
    if p == 2 and a.dtype in (torch.float32, torch.float64) and is_untracked([a, b, c, d]):
        shape = (c.shape[-2], b.shape[-2], a.shape[-1])
        result = a.new_empty(batch, shape[0], shape[2], shape[1]).mT if out is None else out
        alone = [tensor.squeeze(0) if tensor.dim() > 2 else tensor for tensor in (a, c, d, b)]
        target = result.squeeze(0) if result.dim() > 3 else result
        differences(*(tensor.mT for tensor in (*alone, target)))
        return result
    if p in (1, 2):
        return deliver(_GRADIENTS[int(p)], [a, b, c, d], 3, batch, out, {})
    if p > 1 and eps <= GRADIENT_EPSILON:
        return deliver(_GRADIENTS[0], [a, b, c, d], 3, batch, out, {"p": p})
    return deliver(_CLAMPED, [a, b, c, d], 3, batch, out, {"p": p, "eps": eps})


_SUMS = Contraction("mk,nk->mn", lambda a, b, p, scale: exp(scale * abs(a - b) ** p))


def _expadd_gradient(a: Any, b: Any, c: Any, d: Any, s: Any, p: Any, q: Any, c0: Any, scale: Any, eps: Any) -> Any:
    gap = d - b
    size = maximum(abs(gap), eps)
    inner = exp(scale * abs(gap) ** p) * p * scale * sign(gap) * size ** (p - 1)
    return c * a * q * (c0 + s) ** (q - 1) * inner


_SUMS_GRADIENT = Contraction("km,nk,ok,nm,km->onm", _expadd_gradient)


def _scale(p: Any, lengthscale: Any, scale: Any) -> Any:
    if (lengthscale is None) == (scale is None):
        raise ValueError("pass either lengthscale or scale")
    return scale if lengthscale is None else 1 / lengthscale**p


def cdist_expadd(
    a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor | None = None, p: Any = 2.0, lengthscale: Any = None,
    scale: Any = None,
) -> torch.Tensor:  # fmt: skip
    """``Σ_k exp(scale |a[m,k] - b[n,k]|^p)`` with a batch axis; scale is by default 1 / lengthscale^p."""
    scale = _scale(p, lengthscale, scale)
    check_tensors({"a": a, "b": b}, out)
    sizes = {"a": (a, 2), "b": (b, 2), **hyper_sizes({"p": p, "scale": scale})}
    batch = batch_size(sizes if out is None else {**sizes, "out": (out, 2)})
    return deliver(_SUMS, [a, b], 2, batch, out, {"p": p, "scale": scale})


def cdist_grad_expadd(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor, *, out: torch.Tensor | None = None,
    p: Any = 2.0, q: Any = 1.0, c0: Any = 0.0, lengthscale: Any = None, scale: Any = None,
    eps: float = GRADIENT_EPSILON, s_km: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """Return the gradient of ``Σ_k c[o,k] a[k,m] (c0 + S[k,m])^q`` by d, S the sums of :func:`cdist_expadd` over n."""
    scale = _scale(p, lengthscale, scale)
    hyper = {"p": p, "q": q, "c0": c0, "scale": scale}
    batch = _gradient_batch({"a": a, "b": b, "c": c, "d": d}, hyper, out)
    if s_km is None:
        s_km = cdist_expadd(b.mT, d.mT, p=p, scale=scale)
    return deliver(_SUMS_GRADIENT, [a, b, c, d, s_km], 3, batch, out, {**hyper, "eps": eps})


def pre_compile_descriptors(
    device: torch.device | str,
    descriptors: Sequence[KernelDescriptor],
    try_to_align: bool = False,  # noqa: ARG001
    debug: bool = False,  # noqa: ARG001
) -> None:
    """Compile what :func:`run_kernel` takes for float32 rows in one piece, and keep it on disk.

    Powers are arguments of one kernel, but for those such as 1 and 2 that have their own. On GPUs the kernels are
    those of large arrays. What is not there compiles at first use; ``km.precompile`` takes the calls themselves.
    """
    a, b = (torch.empty(_MANY, _WIDE, device=device) for _ in range(2))
    precompile([partial(run_kernel, descriptor, a, b, **_example(descriptor)) for descriptor in descriptors], workers=1)


def _example(descriptor: KernelDescriptor) -> dict[str, float]:
    """Return the parameters that a descriptor reads."""
    numbers = {f"{side}_p": 1.3 for side in ("inner", "outer") if getattr(descriptor, f"{side}_power") is PowerType.POW}
    return numbers if descriptor.kernel_type is KernelType.NONE else {**numbers, "bandwidth": 10.0}
