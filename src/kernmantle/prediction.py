"""``km.estimate``: time and memory of a call on a card that is not there.

The call runs on tensors of the device "meta", which have shapes and no memory. What it asks of torch is recorded: for
operators of this library by the plans that a GPU would run and their models, for torch's own by bytes and products.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.flop_counter import flop_registry

from .backends.cuda.cards import PREDICTED, Card, card_of
from .backends.cuda.kernel_cost import START, Launch, vendor_product
from .errors import DeviceError, ParameterError
from .structured.kron import predict as _kron_predict  # noqa: F401
from .structured.mode_product import predict as _sparse_predict  # noqa: F401
from .torch_ops.card_target import PREDICTIONS
from .torch_ops.dtypes import NAMES

_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))
_SIZES = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
_PRODUCTS = {"mm": (0, 1), "bmm": (0, 1), "addmm": (1, 2), "baddbmm": (1, 2), "mv": (0, 1), "addmv": (1, 2)}
_FREE = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "detach", "alias", "resize_"}
_MOVING = {
    "copy_", "clone", "_to_copy", "cat", "stack", "fill_", "zero_", "zeros_like", "ones_like", "full_like", "zeros",
    "ones", "full", "arange", "sum", "mean", "amax", "amin", "max", "min", "argmax", "argmin", "any", "all", "prod",
    "logsumexp", "gather", "index", "index_select", "index_add_", "index_put_", "scatter", "scatter_", "scatter_add_",
    "select_scatter", "diagonal_copy", "linalg_vector_norm", "cumsum", "softmax", "_softmax", "_log_softmax", "topk",
    "sort", "repeat", "constant_pad_nd", "masked_fill_", "native_layer_norm", "tril", "triu", "eye", "flip", "roll",
}  # fmt: skip
_ARITHMETIC = 1.0e13  # operations a second of torch's elementwise operations, as many as their bytes ever allow


@dataclass(frozen=True)
class Estimate:
    """Time and memory of a call on a card, as :func:`kernmantle.estimate` predicts them.

    Attributes
    ----------
    seconds : float
        Time on the GPU, of kernels and of starting them.
    bytes : int
        Most memory at a time besides the arguments and the result.
    result_bytes : int
        Memory of the result.
    flops : int
        Operations, as torch's ``FlopCounterMode`` counts them.
    bound : str
        What takes most of the time: "bytes", "arithmetic" or "launch".
    fits : bool
        Whether arguments, result and that memory fit into the card's.
    card : str
        Name of the card.
    launches : tuple of (str, float)
        What runs, in order, and the seconds of each.
    """

    seconds: float
    bytes: int
    result_bytes: int
    flops: int
    bound: str
    fits: bool
    card: str
    launches: tuple[tuple[str, float], ...]

    def __repr__(self) -> str:
        flops = f"{self.flops:.3g} flops"
        parts = [_seconds(self.seconds), f"{_bytes(self.bytes)} extra", flops, self.bound, self.card]
        return f"Estimate({', '.join(parts)}{'' if self.fits else ', does not fit into its memory'})"


def _seconds(value: float) -> str:
    unit, name = next((each for each in _UNITS if value >= each[0]), _UNITS[-1])
    return f"{value / unit:.3g} {name}"


def _bytes(value: int) -> str:
    unit, name = next((each for each in _SIZES if value >= each[0]), (1, "B"))
    return f"{value / unit:.3g} {name}"


def estimate(call: Callable[..., Any], *args: Any, card: str | None = None, **kwargs: Any) -> Estimate:
    """Predict time and memory of a call on a GPU, which need not be there.

    ``seconds = Σ (start + max(memory, arithmetic) + 0.15 min(memory, arithmetic))`` over the kernels of the plans that
    the card would run. Nothing is computed or compiled.

    Parameters
    ----------
    call : callable
        What to predict: a function, a kernel's method, a :class:`torch.nn.Module`.
    *args, **kwargs
        Its arguments. Of tensors and arrays, also in lists, dicts and modules, only shape, strides and type are read;
        those of ``torch.empty(..., device="meta")`` take no memory. Tensors that ``call`` has captured must be of
        "meta".
    card : str, optional
        "h100" or "h200", or the name of the card as torch writes it. The GPU of this machine if omitted.

    Returns
    -------
    Estimate
        ``seconds`` on the GPU, ``bytes`` (the most memory at a time besides arguments and result), ``result_bytes``,
        ``flops``, ``bound`` ("bytes", "arithmetic" or "launch"), ``fits``, ``card`` and ``launches``.

    Raises
    ------
    DeviceError
        For a card without measured rates, or without one where no GPU is.
    ParameterError
        For an object that is no function, and a call that reads values, records gradients, or runs an operation that
        has no model.

    Notes
    -----
    Contractions, distances, kernels, their products and neighbours, Kronecker and Kronecker-sparse products are
    modelled; torch's elementwise operations, reductions and matrix products by their bytes and multiplications. Time
    of the host is not part of it: calls of a few microseconds wait for Python. The models know shapes, not values:
    squared distances take up to seven times as long where most points nearly coincide. Attention is predicted in two
    passes, chains of Kronecker-sparse factors one by one; both may run in fewer. How far predictions are from
    measurements, row by row: ``python -m benchmarks estimates``.

    Examples
    --------
    >>> import torch, kernmantle as km
    >>> x, y = (torch.empty(30000, 1024, device="meta") for _ in range(2))
    >>> found = km.estimate(km.cdist, x, y, p=1, card="h200")
    >>> found
    Estimate(64.1 ms, 0 B extra, 2.76e+12 flops, arithmetic, h200)
    >>> km.estimate(lambda: km.Gaussian(32.0).matmul(x, y, y[:, :1]), card="h100").bound
    'arithmetic'
    """
    if not callable(call):
        raise ParameterError(
            f"call must be a function, as km.estimate(km.cdist, x, y) or km.estimate(lambda: km.cdist(x, y)), not "
            f"{type(call).__name__}, its result"
        )
    chosen = _card(card)
    if isinstance(call, torch.nn.Module) and next(call.parameters(), None) is not None:
        call, args = partial(_called, call), ({**dict(call.named_parameters()), **dict(call.named_buffers())}, *args)
    call, inputs, named = _meta((call, args, kwargs))
    recorder = _Recorder(chosen)
    with torch.no_grad(), recorder:
        try:
            result = call(*inputs, **named)
        except (RuntimeError, DeviceError) as error:
            raise _explained(error) from error
    return recorder.estimate(result)


def _card(name: str | None) -> Card:
    if name is not None:
        return card_of(name)
    if not torch.cuda.is_available():
        raise DeviceError(f"there is no GPU here: name one that is elsewhere, card={' or '.join(map(repr, PREDICTED))}")
    return card_of(torch.cuda.get_device_name())


def _called(module: torch.nn.Module, tensors: Any, *args: Any, **kwargs: Any) -> Any:
    return torch.func.functional_call(module, tensors, args, kwargs)


def _meta(values: Any) -> Any:
    """Return the values with tensors and arrays of the same layout and without memory; what is one array stays one."""
    found: dict[int, Any] = {}

    def moved(value: Any) -> Any:
        if id(value) in found:
            return found[id(value)][1]
        if isinstance(value, torch.Tensor):
            own = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
        elif isinstance(value, np.ndarray) and value.dtype != object:
            own = torch.empty(value.shape, dtype=torch.from_numpy(np.empty(0, value.dtype)).dtype, device="meta")
        elif isinstance(value, torch.nn.Module):
            tensors = {id(each): moved(each) for each in (*value.parameters(), *value.buffers())}
            own = copy.deepcopy(value, tensors).to("meta")
        else:
            return value
        found[id(value)] = value, own
        return own

    return tree_map(moved, values)


def _explained(error: Exception) -> Exception:
    text = str(error)
    if isinstance(error, DeviceError) and "on meta but" in text:
        own = text.partition(";")[0]
        return DeviceError(f"{own}: km.estimate was not given it; pass it, or the layer that has it, as an argument")
    if isinstance(error, ParameterError):
        return error
    if "does not require grad" in text or "grad can be implicitly created" in text:
        return ParameterError(
            "km.estimate predicts forward calls: a backward pass takes other kernels on a GPU than its operators show"
        )
    if "meta tensor" in text or "Cannot copy out" in text or "on meta" in text:
        return ParameterError(f"the call reads values, which tensors on 'meta' do not have: {text.splitlines()[0]}")
    return error


class _Recorder(TorchDispatchMode):
    """Takes note of every operator: its launches on a card, its operations, and the memory that is in use."""

    def __init__(self, card: Card) -> None:
        super().__init__()
        self._card = card
        self._launches: list[Launch] = []
        self._flops = self._peak = 0
        self._live: dict[int, tuple[StorageWeakRef, int]] = {}
        self._inputs: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        inputs = _tensors((args, kwargs))
        _check_inputs(inputs, func)
        before = {id(tensor) for tensor in inputs}
        for tensor in inputs:
            self._enter(tensor, self._inputs)
        result = func(*args, **kwargs)
        packet = func.overloadpacket
        launches = self._predicted(func, inputs, _tensors(result), args, kwargs)
        if packet in flop_registry:
            self._flops += flop_registry[packet](*args, **kwargs, out_val=result)
        self._launches += launches
        scratch = max((launch.scratch for launch in launches), default=0)
        for tensor in _tensors(result):
            if id(tensor) not in before and not func.is_view:
                self._enter(tensor, self._live)
        self._peak = max(self._peak, scratch + self._in_use())
        return result

    def _predicted(self, func: Any, inputs: Any, results: Any, args: Any, kwargs: Any) -> list[Launch]:
        name = func.overloadpacket.__name__
        if func.namespace == "kernmantle":
            if name not in PREDICTIONS:
                raise ParameterError(f"km.estimate has no model of the operator {func.name()}")
            return PREDICTIONS[name](self._card, *args, **kwargs)
        if func.is_view or name in _FREE or func.namespace == "prim":
            return []
        if name in _PRODUCTS:
            left, right = (args[index] for index in _PRODUCTS[name])
            return [_product(left, right, self._card)]
        if torch.Tag.pointwise not in func.tags and name not in _MOVING:
            raise ParameterError(f"km.estimate has no model of torch's operation {func.name()}")
        moved = sum(tensor.nbytes for tensor in inputs) + sum(tensor.nbytes for tensor in results)
        entries = sum(tensor.numel() for tensor in results)
        return [Launch(func.name(), START, moved / self._card.memory_rate, entries / _ARITHMETIC)]

    def _enter(self, tensor: torch.Tensor, where: dict[int, tuple[StorageWeakRef, int]]) -> None:
        storage = tensor.untyped_storage()
        reference = StorageWeakRef(storage)
        if reference.cdata not in self._live:
            where.setdefault(reference.cdata, (reference, storage.nbytes()))

    def _in_use(self) -> int:
        self._live = {key: value for key, value in self._live.items() if not value[0].expired()}
        return sum(size for _, size in self._live.values())

    def estimate(self, result: Any) -> Estimate:
        """Return everything that was recorded; ``result`` is what the call returned."""
        of_result = {StorageWeakRef(tensor.untyped_storage()).cdata for tensor in _tensors(result)}
        own = sum(size for key, (_, size) in self._live.items() if key in of_result)
        parts = {
            "launch": sum(launch.start for launch in self._launches),
            "bytes": sum(launch.memory for launch in self._launches),
            "arithmetic": sum(launch.work for launch in self._launches),
        }
        seconds = math.fsum(launch.seconds for launch in self._launches)
        launches = tuple((launch.name, launch.seconds) for launch in self._launches)
        bound = max(parts, key=lambda name: parts[name])
        fits = self._peak + sum(size for _, size in self._inputs.values()) <= self._card.memory
        return Estimate(seconds, max(0, self._peak - own), own, self._flops, bound, fits, self._card.name, launches)


def _tensors(values: Any) -> list[torch.Tensor]:
    return [value for value in tree_flatten(values)[0] if isinstance(value, torch.Tensor)]


def _check_inputs(inputs: Sequence[torch.Tensor], func: Any) -> None:
    """Raise ParameterError for a tensor with memory, but for single numbers on the host."""
    for tensor in inputs:
        if tensor.device.type != "meta" and (tensor.dim() or tensor.device.type != "cpu"):
            raise ParameterError(
                f"the call reads a tensor of shape {tuple(tensor.shape)} on {tensor.device} that km.estimate was not "
                f'given ({func.name()}): pass it as an argument, or make it with device="meta"'
            )


def _product(left: torch.Tensor, right: torch.Tensor, card: Card) -> Launch:
    """Return a product of the vendor's."""
    count = left.shape[0] if left.dim() == 3 else 1
    columns = right.shape[-1] if right.dim() > 1 else 1
    return vendor_product(left.shape[-2], columns, left.shape[-1], count, NAMES[left.dtype], card)
