"""Bound products with one factor of a Kronecker-sparse chain, and bound gradients of its weights, for one layout.

``x`` and gradients are (1, N, features), weights (a, b, c, d), a bias (features,).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import lru_cache, partial
from importlib import import_module
from typing import Any, NamedTuple

import torch

from ...runtime.dispatch import BoundCall
from ...torch_ops.blas_handles import HANDLES
from ...torch_ops.dtypes import NAMES
from ...torch_ops.execute import allocate_as
from ...torch_ops.info import RunInfo
from ...torch_ops.tuned_tiles import session
from ..mode_product import execute
from ..mode_product.cost import quickest, quickest_gradient
from ..mode_product.execute import is_on_gpu, uncast
from ..mode_product.grouped_plan import DTYPES
from ..mode_product.operands import Operands, empty
from ..mode_product.pack import PackedWeights
from ..mode_product.torch_op import Maybe, Options
from ..mode_product.torch_products import BoundBatch, bind_batch, lies_ready

Weights = Sequence[torch.Tensor]
Saved = Sequence[Maybe]
Gradients = tuple[Maybe, Maybe, list[Maybe]]
"""Gradients of x, of the bias and of the weights."""
Backward = Callable[[Maybe, Weights, Saved, torch.Tensor], Gradients]
"""Gradients from x, the weights, what the forward pass saved, and the gradient of the result."""
Multiply = Callable[
    [torch.Tensor, torch.Tensor, Maybe, "PackedWeights | None", "torch.Tensor | None", RunInfo], torch.Tensor
]
"""A product of x, a weight, bias and packed weights into a result, or into a new one."""
Sum = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""The gradient (1, a, b, c, d) of weights from x and the gradient of the result."""
Both = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor, "Callable[[], Any]", "list[torch.Tensor]"],
    tuple[torch.Tensor, torch.Tensor],
]
"""The gradients of x and of weights (1, a, b, c, d) from x, the gradient of the result and the weights.

Those of weights are summed in a context, which what is put into the list is to outlive.
"""

_VECTOR = 16  # bytes to which rows must be aligned for the vendor's quickest kernels
# Rows of halves from which the vendor's product with ones, which reads lines whole, sums quicker.
_LEAST_ONES = 2048


def in_one_piece(weights: Weights, dtype: torch.dtype) -> list[torch.Tensor]:
    """Return contiguous weights of a type."""
    return [weight.to(dtype).contiguous() for weight in weights]


def is_in_one_piece(weights: Weights, dtype: torch.dtype) -> bool:
    """Return whether weights are contiguous and of that type."""
    return all(weight.dtype == dtype and weight.is_contiguous() for weight in weights)


def memory_shape(features: int, x: torch.Tensor, batch_last: bool) -> tuple[int, ...]:
    """Return the shape of a result in memory."""
    return (features, *x.shape[1:]) if batch_last else (*x.shape[:-1], features)


def canonical(x: torch.Tensor, batch_last: bool) -> torch.Tensor:
    """Return ``x`` as (1, N, features)."""
    if batch_last:
        return x.reshape(1, x.shape[0], math.prod(x.shape[1:])).mT
    return x[None] if x.dim() == 2 else x.reshape(1, math.prod(x.shape[:-1]), x.shape[-1])


def shaped(value: torch.Tensor, x: torch.Tensor, batch_last: bool) -> torch.Tensor:
    """Return a result (1, N, features) with the batch axes of x."""
    if batch_last:
        return value[0].mT.reshape(value.shape[2], *x.shape[1:])
    return value[0] if x.dim() == 2 else value.reshape(*x.shape[:-1], value.shape[2])


def bind_product(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: Maybe,
    activation: str,
    options: Options,
    out: torch.Tensor,
    packed: bool,
) -> Multiply:
    """Return the product with one factor by the algorithm that should be quickest, ``out`` being like its results."""
    batch_last, _, precision = options
    own, offset = weight.to(x.dtype)[None], None if bias is None else bias[None]
    algorithm = choose_algorithm(x, own, offset, activation, options, out, packed)
    if out.numel() and is_on_gpu(x) and algorithm.startswith("kernel"):
        found = execute.gpu().bound(x, own, offset, activation, precision, out, not packed, algorithm)
        if found is not None and found.run is not None:
            shape = tuple((out[0].mT if batch_last else out[0]).shape)
            return partial(_launched, found.run, found.route, shape, options)
    if algorithm == "auto" or not out.numel():
        return partial(_multiplied, activation, options)
    if algorithm == "bmm" and x.is_cuda and not packed and weight.dtype == x.dtype and lies_ready(x, own, out):
        copied = _multiplies_slowly(x, weight)
        batch = bind_batch(x, own[0].contiguous() if copied else own[0], out, execute.block_matrices)
        if batch is not None:
            shape = tuple((out[0].mT if batch_last else out[0]).shape)
            found = partial(_batched, batch, shape, activation, options)
            return partial(_copied, found) if copied else found
    return partial(_multiplied_by, algorithm, activation, options)


def _multiplies_slowly(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Return whether cuBLAS takes much longer to multiply rows of x by blocks where they lie than by a copy of them.

    (4, 665, 651, 1) with 35 rows of float16 takes 39 us by transposed blocks whose rows are no whole vectors, 14 by a
    copy and 12 by blocks that are not transposed (H200, decision 0068).
    """
    _, b, c, d = weight.shape
    odd = x.dtype.itemsize == 2 and (b * 2 % _VECTOR or c * 2 % _VECTOR)
    return bool(odd and d == 1 and x.stride(2) == 1 and weight.stride(1) < weight.stride(2))


def choose_algorithm(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: Maybe,
    activation: str,
    options: Options,
    out: torch.Tensor,
    packed: bool,
) -> str:
    """Return the algorithm that should be quickest; "auto" of empty arrays, while tuning and on other devices."""
    _, algorithm, precision = options
    if algorithm != "auto" or not out.numel() or session() is not None or x.device.type not in ("cpu", "cuda"):
        return algorithm
    if is_on_gpu(x):
        return execute.gpu().choose_algorithm(x, weight, bias, activation, precision, out, packed)
    return quickest(tuple(weight.shape[1:]), *execute.described(x), None, packed)[0]  # pyright: ignore


def is_batched(multiply: Multiply | None) -> bool:
    """Return whether a product is one of torch's batched products, which reads and writes where its arrays lie."""
    return isinstance(multiply, partial) and multiply.func is _batched


def _launched(
    start: Callable[..., None], route: str, shape: tuple[int, ...], options: Options, x: torch.Tensor,
    weight: torch.Tensor, bias: Maybe, packed: PackedWeights | None, out: Maybe, info: RunInfo,
) -> torch.Tensor:  # fmt: skip
    """Launch a kernel of a GPU on the addresses of its arrays."""
    info.route = route
    if weight.dtype != x.dtype:
        weight = weight.to(x.dtype)
    if out is None:
        memory = allocate_as(x, shape)
        out = (memory.mT if options.batch_last else memory)[None]
    start(x, weight, None if bias is None else bias.contiguous(), out, packed)
    return out


def reads_address(multiply: Multiply | None) -> bool:
    """Return whether a product takes of its weight the address alone, which a transposed one shares."""
    return isinstance(multiply, partial) and multiply.func is _launched


def _multiplied(
    activation: str, options: Options, x: torch.Tensor, weight: torch.Tensor, bias: Maybe, packed: PackedWeights | None,
    out: Maybe, info: RunInfo,
) -> torch.Tensor:  # fmt: skip
    batch_last, algorithm, precision = options
    offset = None if bias is None else bias[None]
    own = Operands(x, weight[None], offset, activation, batch_last, precision, packed)
    return execute.product(own, algorithm, out, info)


def _batched(
    batch: BoundBatch, shape: tuple[int, ...], activation: str, options: Options, x: torch.Tensor, weight: torch.Tensor,
    bias: Maybe, packed: PackedWeights | None, out: Maybe, info: RunInfo,
) -> torch.Tensor:  # fmt: skip
    """Multiply by one of torch's batched products."""
    if torch.is_autocast_enabled(x.device.type):
        return _multiplied_by("bmm", activation, options, x, weight, bias, packed, out, info)
    info.route = "torch bmm"
    if out is None:
        memory = allocate_as(x, shape)
        out = (memory.mT if options.batch_last else memory)[None]
    batch(x, weight, out)
    if bias is not None:
        out.add_(bias)
    return execute.INPLACE[activation](out) if activation else out


def _copied(
    multiply: Multiply, x: torch.Tensor, weight: torch.Tensor, bias: Maybe, packed: PackedWeights | None, out: Maybe,
    info: RunInfo,
) -> torch.Tensor:  # fmt: skip
    """Multiply by a copy of a weight in one piece."""
    return multiply(x, weight.contiguous(), bias, packed, out, info)


def _multiplied_by(
    algorithm: str, activation: str, options: Options, x: torch.Tensor, weight: torch.Tensor, bias: Maybe,
    packed: PackedWeights | None, out: Maybe, info: RunInfo,
) -> torch.Tensor:  # fmt: skip
    """Multiply by an algorithm that was chosen before."""
    weight, offset = weight if weight.dtype == x.dtype else weight.to(x.dtype), None if bias is None else bias[None]
    own = Operands(x, weight[None], offset, activation, options.batch_last, options.precision, packed)
    return execute.product_by(algorithm, own, out, info)


def bind_gradient(x: torch.Tensor, grad: torch.Tensor, pattern: Sequence[int], options: Options) -> Sum:
    """Return the gradient of weights of a pattern by the algorithm that should be quickest."""
    a, b, c, d = pattern
    algorithm = options.algorithm
    if algorithm == "auto" and x.numel() and x.device.type in ("cpu", "cuda"):
        algorithm = quickest_gradient((a, b, c, d), *execute.described(x))[0]
    if algorithm == "kernel" and x.numel() and is_on_gpu(x):
        found = execute.sums().bind_gradient(x, grad, (a, b, c, d), options.precision)
        if found is not None:
            return found
    return partial(execute.gradient, pattern=(a, b, c, d), algorithm=algorithm, precision=options.precision)


def bind_gradients(x: torch.Tensor, grad: torch.Tensor, weight: torch.Tensor, options: Options) -> Both | None:
    """Return what takes both gradients over the same transposed rows; None where each alone should be quicker."""
    free = options.algorithm == "auto" and not options.precision and session() is None
    first = x.stride(2) == 1 == grad.stride(2) and not options.batch_last
    if not (free and first and x.numel() and is_on_gpu(x) and NAMES.get(x.dtype) in DTYPES):
        return None
    pattern, batch = tuple(weight.shape), x.shape[1]
    shares = execute.gpu().gradients_seconds(pattern, batch, NAMES[x.dtype], True, x.device)[1]
    return partial(_both, options) if shares else None


def _both(
    options: Options, x: torch.Tensor, grad: torch.Tensor, weight: torch.Tensor, apart: Callable[[], Any],
    alive: list[torch.Tensor],
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    out = empty(x, x.shape[2], False)
    return out, execute.gradients(x, grad, weight.to(x.dtype)[None], options.precision, out, apart, alive)


def bind_bias(grad: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the function that sums a gradient (1, N, features) over its rows."""
    if grad.is_cuda and grad.dtype.itemsize == 2 and grad.shape[1] >= _LEAST_ONES:
        return _by_ones
    ours = is_on_gpu(grad) and NAMES.get(grad.dtype) in DTYPES
    if not ours or not grad.numel():
        return lambda own: own.sum(1)[0]
    return partial(_summed, grouped().bind_sums(grad))


def _by_ones(grad: torch.Tensor) -> torch.Tensor:
    if not splits_streams(grad.device):  # an eager call waits for its host, which has one operation less
        if (index := grad.get_device()) not in HANDLES.devices:
            HANDLES.take(index)
        return grad.sum(1)[0]
    return uncast("cuda", torch.mv, execute.within_blas_strides(grad)[0].mT, grad.new_ones(grad.shape[1]))


def _summed(launch: Any, grad: torch.Tensor) -> torch.Tensor:
    out = allocate_as(grad, (grad.shape[2],))
    launch.run((grad, None, out, None))
    return out


_SIDES: dict[torch.device, torch.cuda.Stream] = {}


def splits_streams(device: torch.device) -> bool:
    """Return whether work is put on two streams: where that costs the host nothing later."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def side_stream(device: torch.device) -> Any:
    """Return what is done here runs beside what follows, until :func:`join_side_stream`."""
    side = _SIDES.get(device) or _SIDES.setdefault(device, torch.cuda.Stream(device))
    side.wait_stream(torch.cuda.current_stream(device))
    return torch.cuda.stream(side)


def maybe_side_stream(device: torch.device, splits: bool) -> Callable[[], AbstractContextManager[Any]]:
    """Return what makes the contexts of :func:`side_stream` where a pass ``splits`` its work, else of nothing."""
    return partial(side_stream, device) if splits else nullcontext


def join_side_stream(device: torch.device) -> None:
    """Make the current stream wait for the side stream."""
    if device in _SIDES:
        torch.cuda.current_stream(device).wait_stream(_SIDES[device])


@dataclass(frozen=True, eq=False)
class ChainByCapture:
    """A chain that runs as one plan eagerly and as another one in a CUDA graph, which leaves the host nothing to do.

    ``bind`` makes the other one from x, weights and bias, with the first call while a graph is captured.
    """

    eager: BoundCall
    bind: Callable[[torch.Tensor, Weights, Maybe], BoundCall]
    captured: list[BoundCall] = field(default_factory=list[Any])

    @property
    def route(self) -> str:
        """The text of ``info`` for eager calls."""
        return self.eager.route

    def __call__(self, tensors: Any, numbers: RunInfo | None, outs: Maybe) -> torch.Tensor:
        """Return the product; ``numbers`` takes the route."""
        if not torch.cuda.is_current_stream_capturing():
            if (index := tensors[0].get_device()) not in HANDLES.devices:
                HANDLES.take(index)
            return self.eager(tensors, numbers, outs)
        if not self.captured:
            self.captured.append(self.bind(*tensors[:3]))
        return self.captured[0](tensors, numbers, outs)


@lru_cache(maxsize=1)
def grouped() -> Any:
    """Return what is loaded with the first training step on a GPU."""
    return import_module("..mode_product.grouped", __package__)


def bind_matmul(
    left: torch.Tensor, right: torch.Tensor, out: torch.Tensor, bias: Maybe = None, sums: Maybe = None,
    added: Maybe = None,
) -> Callable[[Sequence[int]], None] | None:  # fmt: skip
    """Return a product of matrices, or of a batch of them, on addresses; None where torch's operation takes it.

    So it does while a graph is captured, which runs it, and in which the choice of an algorithm may not load kernels.
    """
    return None if splits_streams(out.device) else matmul().bind_matmul(left, right, out, bias, sums, added)


@lru_cache(maxsize=1)
def matmul() -> Any:
    """Return the module of bound products of matrices, loaded with the first one on a GPU."""
    return import_module("...torch_ops.cuda_matmul", __package__)


class FactorLevel(NamedTuple):
    """The product by the transpose of a factor, and the gradient of its weights, or ``both`` in one.

    ``transposes``: the product takes the transposed factor, not only its address. ``of_saved``: it takes what the
    forward pass saved in its place.
    """

    position: int
    multiply: Multiply | None
    transposes: bool
    sums: Sum | None
    both: Both | None
    of_saved: bool = False


@dataclass(frozen=True, eq=False)
class FactorBackward:
    """Gradients of one factor after the other; while a graph is captured, sums lie ``apart`` on a second stream.

    ``launched`` is what an eager call takes where all is launched on addresses.
    """

    levels: tuple[FactorLevel, ...]
    bias: Callable[[torch.Tensor], torch.Tensor] | None
    of_x: bool
    apart: bool
    batch_last: bool
    launched: Any = None
    route: str = "factor by factor"

    def __call__(self, x: Maybe, weights: Weights, saved: Saved, grad: torch.Tensor) -> Gradients:
        """Return the gradients."""
        if self.launched is not None and not splits_streams(grad.device):
            return self.launched(x, weights, saved, grad)
        moved, info = canonical(grad, self.batch_last), RunInfo()
        found: list[Maybe] = [None] * len(weights)
        alive = [moved]  # what another stream reads stays
        splits = self.apart and splits_streams(grad.device)
        apart = maybe_side_stream(grad.device, splits)
        with apart():
            of_bias = None if self.bias is None else self.bias(moved)
        for index, multiply, transposes, sums, both, of_saved in self.levels:
            value, weight = (saved[index - 1] if index else x), weights[index]
            if both is not None and value is not None:
                value = value if index else canonical(value, self.batch_last)
                moved, of_weight = both(value, moved, weight, apart, alive)
                found[index] = of_weight[0]
                alive.append(moved)
                continue
            if sums is not None and value is not None:
                value = value if index else canonical(value, self.batch_last)
                with apart():
                    found[index] = sums(value, moved)[0]
            if multiply is not None:
                other = saved[0] if of_saved else weight.transpose(1, 2) if transposes else weight
                assert other is not None
                moved = multiply(moved, other, None, None, None, info)
                alive.append(moved)
        if splits:
            join_side_stream(grad.device)
        return shaped(moved, grad, self.batch_last) if self.of_x else None, of_bias, found
