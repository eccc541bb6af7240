"""cuSOLVER through nvmath-python's bindings: in place, in stream order, with what went wrong left on the device.

Matrices are column-major views (..., n, n). The items of a batch are spread over side streams, which the current
stream waits for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from itertools import product
from threading import Lock, RLock
from time import monotonic
from typing import Any

import torch

from ..errors import LaunchError
from .arguments import items

LANES = 8  # streams on which matrices of a batch run side by side
HANDLES = 128
"""Handles at most, one a stream, with a few MiB each; beyond them the least recently used is taken over."""
RETRY = 60.0
"""Seconds after which a library that was not found is looked for again."""
_BATCHED_ELEMENTS = 2**31 - 1  # entries
_BATCHED_ITEMS = 65_535
"""Matrices of one call of XsyevBatched, which fails for 100 000 of order 3 (cuSOLVER 12)."""
_TYPES = {torch.float32: 0, torch.float64: 1}
_ALL, _BY_INDEX, _BY_VALUE = 1001, 1002, 1003


@dataclass
class Handle:
    """A cuSOLVER handle, used by one thread at a time and always on the same stream."""

    solver: int
    parameters: int
    lock: RLock = field(default_factory=RLock)
    host: torch.Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.uint8))
    outgrown: list[torch.Tensor] = field(default_factory=list[torch.Tensor])
    users: int = 0
    """Calls that have it, or wait for its lock."""

    def host_space(self, size: int) -> int:
        """Address of host memory that lives as long as the handle; work under way may still use earlier ones."""
        if self.host.numel() < size:
            self.outgrown.append(self.host)
            self.host = torch.empty(2 * size, dtype=torch.uint8)
        return self.host.data_ptr() if size else 0


class CudaStreams:
    """Where work is put: the current stream, or side streams that begin and end with it."""

    def __init__(self) -> None:
        self._sides: dict[torch.device, list[torch.cuda.Stream]] = {}

    def on(self, device: torch.device) -> AbstractContextManager[Any]:
        """Make a device the current one."""
        return torch.cuda.device(device)

    @contextmanager
    def unrecorded(self) -> Iterator[None]:
        """Where memory may be allocated though a graph is being captured: the calls are no part of it."""
        if not torch.cuda.is_current_stream_capturing():
            yield
            return
        runtime: Any = import_module("cuda.bindings.runtime")
        relaxed = runtime.cudaStreamCaptureMode.cudaStreamCaptureModeRelaxed
        _, before = runtime.cudaThreadExchangeStreamCaptureMode(relaxed)
        try:
            yield
        finally:
            runtime.cudaThreadExchangeStreamCaptureMode(before)

    def finish(self, device: torch.device) -> bool:
        """Wait for all work of a device; not while a CUDA graph is captured, where that cannot be."""
        if torch.cuda.is_current_stream_capturing():
            return False
        torch.cuda.synchronize(device)
        return True

    @contextmanager
    def fork(self, device: torch.device, count: int) -> Iterator[list[int]]:
        """Addresses of ``count`` streams: the current one if that is all."""
        current = torch.cuda.current_stream(device)
        if count == 1:
            yield [current.cuda_stream]
            return
        sides = self._sides.setdefault(device, [])
        with self.unrecorded():
            sides += [torch.cuda.Stream(device) for _ in range(count - len(sides))]
        for side in sides[:count]:
            side.wait_stream(current)
        try:
            yield [side.cuda_stream for side in sides[:count]]
        finally:
            for side in sides[:count]:
                current.wait_stream(side)


def addresses(tensor: torch.Tensor, axes: int = 2) -> list[int]:
    """Return the addresses of the items of a batch of matrices."""
    batch = tensor.dim() - axes
    shape, strides = tensor.shape[:batch], tensor.stride()[:batch]
    size, first = tensor.element_size(), tensor.data_ptr()
    indices = product(*map(range, shape))
    return [first + size * sum(i * s for i, s in zip(index, strides, strict=True)) for index in indices]


Body = Callable[[Handle, int, int, int], None]


class Library:
    """The routines; ``bindings`` has the functions of ``nvmath.bindings.cusolverDn``."""

    def __init__(self, bindings: Any, streams: Any) -> None:
        self._bindings, self._streams = bindings, streams
        self._handles: dict[tuple[torch.device, int], Handle] = {}
        self._lock = Lock()

    def _handle(self, device: torch.device, stream: int) -> Handle:
        with self._lock:
            found = self._handles.pop((device, stream), None)
            if found is None:
                with self._streams.unrecorded():
                    found = self._spare(device) or Handle(self._bindings.create(), self._bindings.create_params())
                    self._bindings.set_stream(found.solver, stream)
            self._handles[device, stream] = found
            found.users += 1
        return found

    def _release(self, handles: Sequence[Handle]) -> None:
        with self._lock:
            for handle in handles:
                handle.users -= 1

    def _spare(self, device: torch.device) -> Handle | None:
        """Take the handle of the stream that was used least recently, if there are enough, when its work is done."""
        if len(self._handles) < HANDLES or not self._streams.finish(device):
            return None
        for key, handle in self._handles.items():
            if key[0] == device and not handle.users:
                handle.outgrown.clear()
                return self._handles.pop(key)
        return None

    def _each(self, like: torch.Tensor, count: int, sizes: tuple[int, int], body: Body, name: str) -> None:
        """Call ``body(handle, item, device memory, host memory)`` for each item, on as many streams as there are."""
        lanes = max(1, min(LANES, count))
        device_bytes, host_bytes = sizes
        space = torch.empty(lanes, device_bytes, dtype=torch.uint8, device=like.device)
        with self._streams.on(like.device), self._streams.fork(like.device, lanes) as streams:
            handles = [self._handle(like.device, stream) for stream in streams]
            with ExitStack() as locks:
                locks.callback(self._release, handles)
                for handle in handles:
                    locks.enter_context(handle.lock)
                for item in range(count):
                    handle = handles[item % lanes]
                    try:
                        body(handle, item, space[item % lanes].data_ptr(), handle.host_space(host_bytes))
                    except Exception as error:
                        raise LaunchError(f"cuSOLVER's {name} for {tuple(like.shape)}: {error}") from error

    def _sizes(self, device: torch.device, ask: Callable[[Handle], tuple[int, int]]) -> tuple[int, int]:
        with self._streams.on(device), self._streams.fork(device, 1) as streams:
            handle = self._handle(device, streams[0])
            try:
                with handle.lock:
                    device_bytes, host_bytes = ask(handle)
            finally:
                self._release([handle])
        return int(device_bytes), int(host_bytes)

    def potrf_sizes(self, device: torch.device, n: int, dtype: torch.dtype, lda: int = 0) -> tuple[int, int]:
        """Return the bytes on device and host."""
        kind, lead = _TYPES[dtype], max(1, n, lda)
        call = self._bindings.xpotrf_buffer_size
        return self._sizes(device, lambda h: call(h.solver, h.parameters, 0, n, kind, 0, lead, kind))

    def potrf(self, a: torch.Tensor, upper: bool) -> torch.Tensor:
        """Return Cholesky factors in place of one triangle; the other is left as it is. Returns the infos."""
        n, lead, kind = a.shape[-1], a.stride(-1), _TYPES[a.dtype]
        info = torch.zeros(a.shape[:-2], dtype=torch.int32, device=a.device)
        sizes = self.potrf_sizes(a.device, n, a.dtype, lead)
        matrices, infos = addresses(a), addresses(info, 0)

        def body(h: Handle, i: int, space: int, host: int) -> None:
            self._bindings.xpotrf(
                h.solver, h.parameters, int(upper), n, kind, matrices[i], lead, kind, space, sizes[0], host, sizes[1],
                infos[i],
            )  # fmt: skip

        self._each(a, len(matrices), sizes, body, "Xpotrf")
        return info

    def potrs(self, a: torch.Tensor, b: torch.Tensor, upper: bool) -> None:
        """Solve in place of b with factors, which may be expanded to its batch."""
        n, columns, kind = a.shape[-1], b.shape[-1], _TYPES[a.dtype]
        info = torch.zeros(b.shape[:-2], dtype=torch.int32, device=a.device)
        matrices, targets, infos = addresses(a), addresses(b), addresses(info, 0)

        def body(h: Handle, i: int, *_: int) -> None:
            self._bindings.xpotrs(
                h.solver, h.parameters, int(upper), n, columns, kind, matrices[i], a.stride(-1), kind, targets[i],
                max(n, b.stride(-1)), infos[i],
            )  # fmt: skip

        self._each(b, len(targets), (0, 0), body, "Xpotrs")

    def getrf_sizes(self, device: torch.device, n: int, dtype: torch.dtype, lda: int = 0) -> tuple[int, int]:
        """Return the bytes on device and host."""
        kind, lead = _TYPES[dtype], max(1, n, lda)
        call = self._bindings.xgetrf_buffer_size
        return self._sizes(device, lambda h: call(h.solver, h.parameters, n, n, kind, 0, lead, kind))

    def getrf(self, a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return LU factors in place; pivots and infos."""
        n, lead, kind = a.shape[-1], a.stride(-1), _TYPES[a.dtype]
        info = torch.zeros(a.shape[:-2], dtype=torch.int32, device=a.device)
        pivots = torch.empty(a.shape[:-1], dtype=torch.int64, device=a.device)
        sizes = self.getrf_sizes(a.device, n, a.dtype, lead)
        matrices, infos, orders = addresses(a), addresses(info, 0), addresses(pivots, 1)

        def body(h: Handle, i: int, space: int, host: int) -> None:
            self._bindings.xgetrf(
                h.solver, h.parameters, n, n, kind, matrices[i], lead, orders[i], kind, space, sizes[0], host, sizes[1],
                infos[i],
            )  # fmt: skip

        self._each(a, len(matrices), sizes, body, "Xgetrf")
        return pivots, info

    def getrs(self, a: torch.Tensor, pivots: torch.Tensor, b: torch.Tensor, transpose: bool) -> None:
        """Solve in place of b with factors and pivots, which may be expanded to its batch."""
        n, columns, kind = a.shape[-1], b.shape[-1], _TYPES[a.dtype]
        info = torch.zeros(b.shape[:-2], dtype=torch.int32, device=a.device)
        matrices, orders, targets, infos = addresses(a), addresses(pivots, 1), addresses(b), addresses(info, 0)

        def body(h: Handle, i: int, *_: int) -> None:
            self._bindings.xgetrs(
                h.solver, h.parameters, int(transpose), n, columns, kind, matrices[i], a.stride(-1), orders[i], kind,
                targets[i], max(n, b.stride(-1)), infos[i],
            )  # fmt: skip

        self._each(b, len(targets), (0, 0), body, "Xgetrs")

    def syevd_sizes(self, device: torch.device, n: int, dtype: torch.dtype, vectors: bool) -> tuple[int, int]:
        """Return the bytes on device and host."""
        kind, call = _TYPES[dtype], self._bindings.xsyevd_buffer_size
        return self._sizes(
            device, lambda h: call(h.solver, h.parameters, int(vectors), 0, n, kind, 0, max(1, n), kind, 0, kind)
        )

    def syevd(self, a: torch.Tensor, upper: bool, vectors: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """Return all eigenvalues and, as columns in place of the matrix, vectors. Returns eigenvalues and infos."""
        n, lead, kind = a.shape[-1], a.stride(-1), _TYPES[a.dtype]
        values = torch.empty(a.shape[:-1], dtype=a.dtype, device=a.device)
        info = torch.zeros(a.shape[:-2], dtype=torch.int32, device=a.device)
        matrices, results, infos = addresses(a), addresses(values, 1), addresses(info, 0)
        sizes = self.syevd_sizes(a.device, n, a.dtype, vectors)

        def body(h: Handle, i: int, space: int, host: int) -> None:
            self._bindings.xsyevd(
                h.solver, h.parameters, int(vectors), int(upper), n, kind, matrices[i], lead, kind, results[i], kind,
                space, sizes[0], host, sizes[1], infos[i],
            )  # fmt: skip

        self._each(a, len(matrices), sizes, body, "Xsyevd")
        return values, info

    def syevdx_sizes(
        self, device: torch.device, n: int, dtype: torch.dtype, vectors: bool, index: tuple[int, int]
    ) -> tuple[int, int]:
        """Return the bytes on device and host for a range of indices, the last included."""
        kind, count = _TYPES[dtype], torch.zeros(1, dtype=torch.int64)
        call, bound = self._bindings.xsyevdx_buffer_size, torch.zeros(1, dtype=dtype)
        return self._sizes(
            device,
            lambda h: call(
                h.solver, h.parameters, int(vectors), _BY_INDEX, 0, n, kind, 0, max(1, n), bound.data_ptr(),
                bound.data_ptr(), index[0] + 1, index[1] + 1, count.data_ptr(), kind, 0, kind,
            ),
        )  # fmt: skip

    def syevdx(
        self, a: torch.Tensor, upper: bool, vectors: bool, index: tuple[int, int] | None,
        value: tuple[float, float] | None,
    ) -> tuple[torch.Tensor, torch.Tensor, int]:  # fmt: skip
        """Return some eigenvalues of one matrix, by index or in (low, high]; the vectors are its first columns.

        Returns eigenvalues, of which the first are meant, the info, and how many they are.
        """
        n, lead, kind = a.shape[-1], a.stride(-1), _TYPES[a.dtype]
        values = torch.empty(n, dtype=a.dtype, device=a.device)
        info = torch.zeros((), dtype=torch.int32, device=a.device)
        bounds = torch.tensor(value or (0.0, 0.0), dtype=a.dtype)
        count = torch.zeros(1, dtype=torch.int64)
        low, high = bounds.data_ptr(), bounds.data_ptr() + bounds.element_size()
        first, last = index or (0, 0)
        choice = (_BY_VALUE if index is None else _BY_INDEX, int(upper), n, kind, a.data_ptr(), lead, low, high)
        ask = self._bindings.xsyevdx_buffer_size
        sizes = self._sizes(
            a.device,
            lambda h: ask(
                h.solver, h.parameters, int(vectors), *choice, first + 1, last + 1, count.data_ptr(), kind,
                values.data_ptr(), kind,
            ),
        )  # fmt: skip
        found: list[int] = []

        def body(h: Handle, _: int, space: int, host: int) -> None:
            found.append(
                self._bindings.xsyevdx(
                    h.solver, h.parameters, int(vectors), *choice, first + 1, last + 1, kind, values.data_ptr(), kind,
                    space, sizes[0], host, sizes[1], info.data_ptr(),
                )
            )  # fmt: skip

        self._each(a, 1, sizes, body, "Xsyevdx")
        return values, info, int(found[0])

    def syev_batched_sizes(
        self, device: torch.device, n: int, dtype: torch.dtype, vectors: bool, count: int
    ) -> tuple[int, int]:
        """Return the bytes on device and host for a batch, of which as much runs at a time as the routine takes."""
        kind, call = _TYPES[dtype], self._bindings.xsyev_batched_buffer_size
        count = max(1, min(count, _BATCHED_ITEMS, _BATCHED_ELEMENTS // max(1, n * n)))
        return self._sizes(
            device, lambda h: call(h.solver, h.parameters, int(vectors), 0, n, kind, 0, max(1, n), kind, 0, kind, count)
        )

    def syev_batched(
        self, a: torch.Tensor, upper: bool, vectors: bool, limit: int = _BATCHED_ELEMENTS
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Do as :meth:`syevd` for a contiguous batch (count, n, n) of small matrices, in one call or a few."""
        n, kind = a.shape[-1], _TYPES[a.dtype]
        values = torch.empty(a.shape[:-1], dtype=a.dtype, device=a.device)
        info = torch.zeros(a.shape[0], dtype=torch.int32, device=a.device)
        step = min(_BATCHED_ITEMS, max(1, limit // max(1, n * n)))
        for start in range(0, a.shape[0], step):
            part = a[start : start + step]
            count = part.shape[0]
            sizes = self.syev_batched_sizes(a.device, n, a.dtype, vectors, count)
            pointer, result = part.data_ptr(), values[start : start + step].data_ptr()
            state = info[start : start + step].data_ptr()

            def body(
                h: Handle, _: int, space: int, host: int, pointer: int = pointer, result: int = result,
                count: int = count, state: int = state, sizes: Sequence[int] = sizes,
            ) -> None:  # fmt: skip
                self._bindings.xsyev_batched(
                    h.solver, h.parameters, int(vectors), int(upper), n, kind, pointer, n, kind, result, kind, space,
                    sizes[0], host, sizes[1], state, count,
                )  # fmt: skip

            self._each(part, 1, sizes, body, "XsyevBatched")
        return values, info


class _Loader:
    """The library once it is loaded, or why it was not, with the time when that is tried again."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._found: Library | str = ""
        self._again = 0.0

    def load(self) -> Library | str:
        """Return the library, or the reason; a missing package is final, a library that was not found is not."""
        if isinstance(self._found, Library) or monotonic() < self._again:
            return self._found
        with self._lock:
            if not isinstance(self._found, Library) and monotonic() >= self._again:
                self._found = self._loaded()
        return self._found

    def _loaded(self) -> Library | str:
        try:
            bindings = import_module("nvmath.bindings.cusolverDn")
            import_module("nvmath.bindings.cusolver").get_property(0)
        except ModuleNotFoundError as error:
            self._again = float("inf")
            return f"nvmath-python is not installed ({error})"
        except (ImportError, OSError, RuntimeError) as error:
            # RuntimeError is what nvmath-python raises for a library, or a function of it, that it does not find.
            self._again = monotonic() + RETRY
            return f"nvmath-python finds no cuSOLVER ({type(error).__name__}: {error})"
        return Library(bindings, CudaStreams())


load = _Loader().load


def library(tensor: torch.Tensor) -> Library | None:
    """Return the library for a tensor, None where torch's own routines are to be used."""
    if not tensor.is_cuda:
        return None
    found = load()
    return found if isinstance(found, Library) else None


def capturing(tensor: torch.Tensor) -> bool:
    """Return whether work on it goes into a CUDA graph."""
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


def instead(tensor: torch.Tensor, routine: str) -> str:
    """Return what ran, with the reason if it is a substitute."""
    if not tensor.is_cuda:
        return routine
    found = load()
    return f"{routine}, as {found}" if isinstance(found, str) else routine


def is_one(a: torch.Tensor) -> bool:
    """Return whether it is one matrix outside of a CUDA graph.

    torch's own call then factors a copy at least as fast: Cholesky factors of orders 600, 1000, 2000 and 10 000 in
    float32 took Xpotrf and its copies 0.40, 0.61, 1.02 and 14.4 ms on an H200, and torch 0.24, 0.37, 0.75 and 13.3 ms
    (`benchmarks/results/linalg/h200-cholesky.jsonl`).
    """
    return items(a.shape[:-2]) == 1 and not capturing(a)


def is_small(shape: Sequence[int], limit: int) -> bool:
    """Return whether a batch (..., n) is better off in one batched call than on several streams."""
    return items(shape[:-1]) > 1 and shape[-1] <= limit
