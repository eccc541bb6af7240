"""Products of matrices by cuBLASLt, bound to their layout: what remains of a call are addresses and a launch.

An operation of torch takes the host 8 us, and 23 to 43 in the thread in which autograd runs backward passes; a product
whose descriptors and algorithm are found once takes what a launch takes. The library is the one that torch has loaded.
Matrices are column-major, as the library has them.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple
from weakref import finalize

from ...errors import LaunchError
from .launch_program import Record

_NAMES = ("libcublasLt.so.13", "libcublasLt.so.12")
_TYPES = {"f32": 0, "f16": 2, "bf16": 14}  # cudaDataType_t
_IN_FLOAT32 = 68  # CUBLAS_COMPUTE_32F
_TRANSPOSE_A, _TRANSPOSE_B, _EPILOGUE, _BIAS = 3, 4, 7, 8  # cublasLtMatmulDescAttributes_t
_NOTHING, _ADD_BIAS, _SUM_B = 1, 4, 512  # cublasLtEpilogue_t
_BATCH_COUNT, _BATCH_STRIDE = 5, 6  # cublasLtMatrixLayoutAttribute_t
_MOST_WORKSPACE, _LEAST_ALIGNMENT = 1, (5, 6, 7, 8)  # cublasLtMatmulPreferenceAttributes_t
WORKSPACE = 32 << 20  # bytes, as torch has them on sm_90
# Of batches: with a workspace the library takes kernels that share out tiles as they go, behind a launch that clears
# their counters, which costs short products more than they gain.
BATCH_WORKSPACE = 0
_DESCRIPTION, _A, _B, _C, _D, _MEMORY, _STREAM = 1, 3, 5, 8, 10, 13, 15  # arguments of cublasLtMatmul
ALIGNED = 16
"""Bytes by which all matrices must be aligned."""


class Side(NamedTuple):
    """A matrix of a product: rows and columns in memory, the step between columns, that between matrices of a batch.

    ``transposed`` says that the product takes its transpose.
    """

    rows: int
    columns: int
    step: int
    apart: int = 0
    transposed: bool = False


class MatmulForm(NamedTuple):
    """``D = op(A) op(B)`` of a type, for each of a batch, accumulated in float32.

    ``biased`` adds a vector along the rows of D, ``summed`` also gives the sums of op(B) over what is contracted,
    ``added`` adds a matrix that lies as D does.
    """

    dtype: str
    batch: int
    a: Side
    b: Side
    d: Side
    biased: bool = False
    summed: bool = False
    added: bool = False


class _Heuristic(ctypes.Structure):
    """An algorithm (cublasLtMatmulHeuristicResult_t)."""

    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8), ("workspace", ctypes.c_size_t), ("state", ctypes.c_int),
        ("waves", ctypes.c_float), ("reserved", ctypes.c_int * 4),
    )  # fmt: skip


@lru_cache(maxsize=1)
def library() -> Any:
    """Return cuBLASLt, with which the interpreter's lock is held over a call; None where torch has not loaded it."""
    for name in _NAMES:
        try:
            return ctypes.PyDLL(name, mode=getattr(os, "RTLD_NOLOAD", 0))
        except OSError:
            continue
    return None


_HANDLES: dict[int, ctypes.c_void_p] = {}
_CREATING = threading.Lock()


def _check(status: int, what: str) -> None:
    if status:
        raise LaunchError(f"cuBLASLt: {what} gave status {status}")


def _handle(device: int) -> ctypes.c_void_p:
    """Return the handle of a device, the current one; it stays as long as the process."""
    with _CREATING:
        if device not in _HANDLES:
            made = ctypes.c_void_p()
            _check(library().cublasLtCreate(ctypes.byref(made)), "cublasLtCreate")
            _HANDLES[device] = made
        return _HANDLES[device]


def _destroy(owned: list[tuple[Callable[..., int], ctypes.c_void_p]]) -> None:
    for destroy, made in owned:
        destroy(made)


def _set(setter: Any, target: ctypes.c_void_p, attribute: int, value: Any) -> None:
    _check(setter(target, attribute, ctypes.byref(value), ctypes.c_size_t(ctypes.sizeof(value))), "an attribute")


class Matmul:
    """A product of one form on a device, the current one: descriptors, and the algorithm that should be quickest.

    ``workspace`` are the bytes of memory that a launch needs besides its operands. LaunchError where the library has no
    algorithm for the form.
    """

    def __init__(self, form: MatmulForm, device: int) -> None:
        own, kind = library(), _TYPES[form.dtype]
        self._lock, self._start = threading.Lock(), own.cublasLtMatmul
        self._owned: list[tuple[Callable[..., int], ctypes.c_void_p]] = []
        finalize(self, _destroy, self._owned).atexit = False
        self._set = own.cublasLtMatmulDescSetAttribute
        self._form, self._vector, self._size = form, ctypes.c_void_p(ALIGNED), ctypes.c_size_t(8)
        self._description = self._described()
        layouts = [self._layout(side, form.batch, kind) for side in (form.a, form.b, form.d)]
        found = self._algorithm(_handle(device), *layouts)
        self.workspace = int(found.workspace)
        one, scale = ctypes.c_float(1), ctypes.c_float(form.added)
        self._keep = found, one, scale
        alpha, beta, algorithm = (ctypes.c_void_p(ctypes.addressof(each)) for each in (one, scale, found))
        self._a, self._b, self._d, self._memory, self._stream = (ctypes.c_void_p() for _ in range(5))
        self._c = ctypes.c_void_p() if form.added else self._d
        a, b, d = layouts
        self._arguments = (
            _handle(device), self._description, alpha, self._a, a, self._b, b, beta, self._c, d, self._d, d, algorithm,
            self._memory, ctypes.c_size_t(self.workspace), self._stream,
        )  # fmt: skip
        self._at = ctypes.c_void_p(ctypes.addressof(self._vector))

    def _made(self, kind: str, *arguments: Any) -> ctypes.c_void_p:
        """Return a new object of the library, which is destroyed with this product."""
        own, made = library(), ctypes.c_void_p()
        _check(getattr(own, f"cublasLt{kind}Create")(ctypes.byref(made), *arguments), f"cublasLt{kind}Create")
        self._owned.append((getattr(own, f"cublasLt{kind}Destroy"), made))
        return made

    def _described(self) -> ctypes.c_void_p:
        """Return a new description of the product, which has the address of its vector."""
        form, made = self._form, self._made("MatmulDesc", _IN_FLOAT32, 0)
        for attribute, side in ((_TRANSPOSE_A, form.a), (_TRANSPOSE_B, form.b)):
            _set(self._set, made, attribute, ctypes.c_int32(side.transposed))
        if form.biased or form.summed:
            _set(self._set, made, _EPILOGUE, ctypes.c_int32(_ADD_BIAS if form.biased else _SUM_B))
            _set(self._set, made, _BIAS, self._vector)
        return made

    def _layout(self, side: Side, batch: int, kind: int) -> ctypes.c_void_p:
        own, sizes = library(), (ctypes.c_uint64(side.rows), ctypes.c_uint64(side.columns), ctypes.c_int64(side.step))
        made = self._made("MatrixLayout", kind, *sizes)
        if batch > 1:
            _set(own.cublasLtMatrixLayoutSetAttribute, made, _BATCH_COUNT, ctypes.c_int32(batch))
            _set(own.cublasLtMatrixLayoutSetAttribute, made, _BATCH_STRIDE, ctypes.c_int64(side.apart))
        return made

    def _algorithm(self, handle: ctypes.c_void_p, a: Any, b: Any, d: Any) -> _Heuristic:
        own, found, count = library(), _Heuristic(), ctypes.c_int(0)
        preference = self._made("MatmulPreference")
        setter = own.cublasLtMatmulPreferenceSetAttribute
        most = BATCH_WORKSPACE if self._form.batch > 1 else WORKSPACE
        _set(setter, preference, _MOST_WORKSPACE, ctypes.c_size_t(most))
        for attribute in _LEAST_ALIGNMENT:
            _set(setter, preference, attribute, ctypes.c_uint32(ALIGNED))
        _check(
            own.cublasLtMatmulAlgoGetHeuristic(
                handle, self._description, a, b, d, d, preference, 1, ctypes.byref(found), ctypes.byref(count)
            ),
            "the choice of an algorithm",
        )
        if not count.value:
            raise LaunchError("cuBLASLt has no algorithm for this product")
        return found

    def record(self, stream: int, a: int, b: int, d: int, vector: int, memory: int, added: int) -> Record:
        """Return a launch on a stream whose addresses are at positions of a table; 0 is none."""
        words: Any = (ctypes.c_int64 * len(self._arguments))(*[int(each.value or 0) for each in self._arguments])
        words[_STREAM] = stream
        targets = ((_A, a), (_B, b), (_C, added or d), (_D, d), (_MEMORY, memory))
        patches = [(ctypes.addressof(words) + 8 * word, at) for word, at in targets if at]
        setter, values, vectors = 0, (), ctypes.c_void_p(0)
        if vector:
            # Programs of other streams, and calls, set other vectors.
            description = int(self._described().value or 0)
            setter = ctypes.cast(self._set, ctypes.c_void_p).value or 0
            patches.append((ctypes.addressof(vectors), vector))
            words[_DESCRIPTION], values = description, (description, _BIAS, ctypes.addressof(vectors), 8)
        function = ctypes.cast(self._start, ctypes.c_void_p).value or 0
        return Record(function, words, patches, setter, values, (vectors, self))

    def __call__(self, a: int, b: int, d: int, vector: int, memory: int, stream: int, added: int = 0) -> None:
        """Launch on addresses, of a bias or of sums too, with ``workspace`` bytes of memory, on a stream.

        ``added`` is the address of the matrix that is added.
        """
        with self._lock:
            if added:
                self._c.value = added
            self._a.value, self._b.value, self._d.value = a, b, d
            self._memory.value, self._stream.value = memory, stream
            if vector:
                self._vector.value = vector
                self._set(self._description, _BIAS, self._at, self._size)
            status = self._start(*self._arguments)
        if status:
            _check(status, "cublasLtMatmul")
