"""Arrays of any library in, the same kind out: torch, numpy, CuPy and whatever speaks DLPack.

Memory is shared both ways, never copied, except for numpy views that torch cannot describe (negative strides). Nested
lists and data frames are taken as the numpy arrays that they convert to.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from typing import Any

import numpy as np
import torch

from .errors import DeviceError, DtypeError, GradientError, OutputError

Wrap = Callable[[Any], Any]
_NUMPY_KINDS = "biufc"
_IMMUTABLE = {"jax", "jaxlib"}


def unwrap(*inputs: object, names: Sequence[str] = ()) -> tuple[list[torch.Tensor], Wrap]:
    """Return the inputs as tensors on the same memory, and a function that turns results into the kind of the first.

    Parameters
    ----------
    *inputs : array
        torch tensors, numpy arrays, nested lists, data frames with ``to_numpy()``, or arrays with ``__dlpack__`` or
        ``__cuda_array_interface__``.
    names : sequence of str
        What to call them in errors; by default "argument 1" and so on.

    Returns
    -------
    list of torch.Tensor, callable
        The callable takes a tensor, None, or a tuple or list of these.

    Raises
    ------
    DtypeError
        If it is not an array, or an array torch cannot hold; names the argument.
    """
    if all(isinstance(t, torch.Tensor) and t.layout is torch.strided and not t.is_nested for t in inputs):
        return list(inputs), _identity  # pyright: ignore[reportReturnType]
    labels = [names[i] if i < len(names) else f"argument {i + 1}" for i in range(len(inputs))]
    tensors = [to_tensor(value, label) for value, label in zip(inputs, labels, strict=True)]
    first = inputs[0]
    if isinstance(first, torch.Tensor):
        return tensors, _identity
    for tensor, label in zip(tensors, labels, strict=True):
        if tensor.requires_grad:
            kind = type(first).__name__
            raise GradientError(
                f"{labels[0]} is a {kind}, so the result would be one and lose the gradient of {label}; "
                f"pass {labels[0]} as a tensor or {label}.detach()"
            )
    return tensors, partial(_nested, _exporter(first, labels[0]))  # results that hold it can be pickled


def has_strides(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is one array with strides: neither sparse nor nested."""
    return tensor.layout is torch.strided and not tensor.is_nested


def unwrap_out(out: object, name: str = "out") -> torch.Tensor:
    """Return the tensor on the memory of ``out``, to be written in place; raises OutputError where that cannot be."""
    if isinstance(out, torch.Tensor):
        if not has_strides(out):
            kind = "a nested tensor" if out.is_nested else f"a tensor of layout {out.layout}"
            raise OutputError(f"{name} is {kind}; only strided tensors are written to")
        return out
    if isinstance(out, np.ndarray):
        if not out.flags.writeable:
            raise OutputError(f"{name} is a read-only numpy array; pass one that may be written to")
        if out.dtype.hasobject:
            raise OutputError(f"{name} is a numpy array of {out.dtype}; pass one of numbers, which can be written to")
        if any(stride < 0 or stride % out.itemsize for stride in out.strides):
            raise OutputError(
                f"{name} is a numpy view with strides {out.strides} bytes, which torch cannot write to; pass an array "
                "without negative strides and copy it"
            )
        return to_tensor(out, name)
    if _root(out) in _IMMUTABLE:
        raise OutputError(f"{name} is a {_described(out)}, which cannot be written to")
    if getattr(out, "__cuda_array_interface__", {"data": (0, True)})["data"][1]:
        raise OutputError(f"{name} must be a writable torch tensor, numpy array or CUDA array, not {_described(out)}")
    return to_tensor(out, name)


def check_same_device(tensors: Sequence[torch.Tensor], names: Sequence[str]) -> torch.device:
    """Return their one device; DeviceError naming the first two that differ."""
    device = tensors[0].device
    for tensor, name in zip(tensors, names, strict=True):
        if tensor.device != device:
            raise DeviceError(f"{names[0]} is on {device} but {name} is on {tensor.device}; move one with .to()")
    return device


def check_same_dtype(tensors: Sequence[torch.Tensor], names: Sequence[str]) -> torch.dtype:
    """Return their one dtype; DtypeError naming the first two that differ."""
    dtype = tensors[0].dtype
    for tensor, name in zip(tensors, names, strict=True):
        if tensor.dtype != dtype:
            raise DtypeError(
                f"{names[0]} is {dtype_name(dtype)} but {name} is {dtype_name(tensor.dtype)}; convert one of them"
            )
    return dtype


def common_shape(*shapes: Sequence[int]) -> tuple[int, ...]:
    """Return what torch.broadcast_shapes does, which imports SymPy for 0.4 s and takes 10 µs for equal shapes."""
    if shapes and shapes.count(shapes[0]) == len(shapes):
        return tuple(shapes[0])
    own = [tuple(shape) for shape in shapes if len(shape)]
    if all(shape == own[0] for shape in own):
        return own[0] if own else ()
    return tuple(torch.broadcast_shapes(*own))


def promoted(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the tensors in the dtype that torch promotes all of theirs to, which for floating ones is the widest."""
    dtypes = {tensor.dtype for tensor in tensors.values()}
    if len(dtypes) < 2:
        return dict(tensors)
    try:
        common = reduce(torch.promote_types, dtypes)
    except RuntimeError as error:  # types of 8 bits have no common one with others
        listed = ", ".join(f"{name} is {dtype_name(tensor.dtype)}" for name, tensor in tensors.items())
        raise DtypeError(f"{listed}: torch has no common type of these; convert them to one") from error
    return {name: tensor.to(common) for name, tensor in tensors.items()}


def is_numpy_like(value: object) -> bool:
    """Tell whether numpy arrays come back for ``value``: a numpy array itself, a nested list or a data frame."""
    return isinstance(value, (np.ndarray, np.generic)) or _is_converted(value)


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name without the library: "float32"."""
    return str(dtype).removeprefix("torch.")


def _identity(result: Any) -> Any:
    return result


def _nested(one: Callable[[torch.Tensor], object], result: Any) -> Any:
    if isinstance(result, (tuple, list)):
        return type(result)(_nested(one, each) for each in result)
    return None if result is None else one(result)


def to_tensor(value: object, name: str) -> torch.Tensor:
    """Return an array as a tensor, on its memory where torch takes its strides; raise DtypeError for what is none."""
    if isinstance(value, torch.Tensor):
        if value.is_nested:
            raise DtypeError(
                f"{name} is a nested tensor; pass its parts one by one, of .unbind(), or pad it with "
                "torch.nested.to_padded_tensor"
            )
        if value.layout is not torch.strided:
            raise DtypeError(f"{name} has layout {value.layout}; only strided tensors are taken: call .to_dense()")
        return value
    if isinstance(value, (np.ndarray, np.generic)):
        return _from_numpy(value, name)
    if _is_converted(value):
        return _from_numpy(_converted(value, name), name)
    for protocol, take in (("__dlpack__", torch.from_dlpack), ("__cuda_array_interface__", _from_cuda_interface)):
        if hasattr(value, protocol):
            try:
                return take(value)
            except (TypeError, ValueError, BufferError, RuntimeError) as error:
                raise DtypeError(f"{name} is a {_described(value)} that torch cannot share: {error}") from error
    if hasattr(value, "toarray"):
        raise DtypeError(f"{name} is sparse, {_described(value)}; call .toarray()")
    raise DtypeError(
        f"{name} must be a torch tensor, a numpy array, a nested list, a data frame or another array with __dlpack__, "
        f"not {_described(value)}"
    )


def _is_converted(value: object) -> bool:
    return isinstance(value, (list, tuple)) or hasattr(value, "to_numpy")


def _converted(value: Any, name: str) -> np.ndarray[Any, Any]:
    """Return the numpy array of a nested list or a data frame."""
    if not isinstance(value, (list, tuple)):
        return np.asarray(value.to_numpy())
    if any(isinstance(entry, torch.Tensor) and entry.dim() for entry in value):
        raise DtypeError(f"{name} is a {_described(value)} of tensors; join them with torch.stack(...)")
    try:
        return np.asarray(value)
    except ValueError as error:
        raise DtypeError(f"{name} is a {_described(value)} that cannot be converted to an array: {error}") from error


def _of_objects(array: np.ndarray[Any, Any], name: str) -> np.ndarray[Any, Any]:
    """Return an array of Python's numbers, as data frames with whole numbers and gaps have them, in float64."""
    for index, entry in np.ndenumerate(array):
        if not isinstance(entry, (int, float, np.integer, np.floating, np.bool_)):
            raise DtypeError(
                f"{name} is a numpy array of object with {entry!r} at {list(index)}; numbers or booleans are needed: "
                "fill gaps, encode text (as sklearn.preprocessing.OneHotEncoder does), or leave the column out"
            )
    return array.astype(np.float64)


def _from_cuda_interface(value: Any) -> torch.Tensor:
    return torch.as_tensor(value, device="cuda")


class _Exposed:
    """The memory of a read-only numpy array, offered without the flag; keeps the array alive.

    torch warns about every read-only array, and the inputs of a kernel are never written.
    """

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        interface = dict(array.__array_interface__)
        interface["data"] = (interface["data"][0], False)
        self.__array_interface__ = interface
        self.array = array


def _from_numpy(value: np.ndarray[Any, Any] | np.generic, name: str) -> torch.Tensor:
    if isinstance(value, np.ma.MaskedArray):
        raise DtypeError(f"{name} is a masked array and its mask would be lost; call .filled(...)")
    array = np.asarray(value)
    if array.dtype.kind == "O":
        array = _of_objects(array, name)
    if array.dtype.kind not in _NUMPY_KINDS:
        raise DtypeError(f"{name} is a numpy array of {array.dtype}; numbers or booleans are needed")
    if not array.dtype.isnative:
        raise DtypeError(
            f"{name} is a numpy array in foreign byte order ({array.dtype.str}); "
            f'convert it with x.astype(x.dtype.newbyteorder("="))'
        )
    if any(stride < 0 or stride % array.itemsize for stride in array.strides):
        array = array.copy()
    if not array.flags.writeable:
        array = np.asarray(_Exposed(array))
    try:
        return torch.from_numpy(array)
    except TypeError:
        raise DtypeError(f"{name} is a numpy array of {array.dtype}, which torch does not have") from None


def _numpy_of(name: str, kind: str, tensor: torch.Tensor) -> object:
    if tensor.requires_grad:  # of a hyperparameter: those of arguments are refused before anything runs
        raise GradientError(
            f"{name} is a {kind}, so the result would be one and lose the gradient of a hyperparameter; pass {name} as "
            "a tensor, or call within torch.no_grad()"
        )
    return tensor.cpu().numpy()


def _exporter(first: object, name: str) -> Callable[[torch.Tensor], object]:
    if is_numpy_like(first):
        return partial(_numpy_of, name, type(first).__name__)
    library: Any = sys.modules.get(_root(first))
    if hasattr(first, "__array_namespace__"):
        library = first.__array_namespace__()  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    if hasattr(library, "from_dlpack"):
        return library.from_dlpack
    if hasattr(first, "__cuda_array_interface__"):
        # A tensor offers this interface as well.
        return _identity
    raise DtypeError(f"{name} is a {_described(first)}, whose library cannot take a result back (no from_dlpack)")


def _root(value: object) -> str:
    return type(value).__module__.partition(".")[0]


def _described(value: object) -> str:
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
