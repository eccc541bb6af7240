"""cuSOLVER's routines on host memory by LAPACK: the same arguments, column-major addresses, workspaces and infos."""

from __future__ import annotations

import contextlib
import ctypes

import numpy as np
from scipy.linalg import lapack

TYPES = {0: ctypes.c_float, 1: ctypes.c_double}
DEVICE_BYTES, HOST_BYTES = 96, 40


def columns(address, n, width, lead, kind):
    """Fortran-ordered view of a matrix at an address."""
    assert lead >= max(1, n)
    flat = np.ctypeslib.as_array((TYPES[kind] * (lead * width)).from_address(address))
    return flat.reshape(width, lead).T[:n]


def numbers(address, count, ctype):
    return np.ctypeslib.as_array((ctype * count).from_address(address))


def routine(name, kind):
    return getattr(lapack, "sd"[kind] + name)


class Streams:
    """Streams that are numbers; remembers how many were asked for."""

    def __init__(self):
        self.widths = []
        self.finished = 0

    def finish(self, device):
        self.finished += 1
        return True

    def unrecorded(self):
        return contextlib.nullcontext()

    def on(self, device):
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def fork(self, device, count):
        self.widths.append(count)
        yield list(range(1, count + 1))


class Bindings:
    """Functions of ``nvmath.bindings.cusolverDn``; ``calls`` are the routines that ran, with their handles."""

    def __init__(self):
        self.calls = []
        self.handles = 0
        self.streams = {}

    def create(self):
        self.handles += 1
        return self.handles

    def create_params(self):
        return -1

    def set_stream(self, handle, stream):
        self.streams[handle] = stream

    def _ran(self, name, handle, spaces=(), sizes=()):
        assert handle in self.streams, "a handle without a stream"
        assert all(space or not size for space, size in zip(spaces, sizes, strict=True)), "a workspace is missing"
        self.calls.append((name, handle))

    def xpotrf_buffer_size(self, handle, params, uplo, n, kind, a, lead, compute):
        return DEVICE_BYTES, HOST_BYTES

    xgetrf_buffer_size = xsyevd_buffer_size = xsyev_batched_buffer_size = xsyevdx_buffer_size = lambda self, *_: (
        DEVICE_BYTES,
        HOST_BYTES,
    )

    def xpotrf(self, handle, params, uplo, n, kind, a, lead, compute, space, size, host, host_size, info):
        self._ran("xpotrf", handle, (space, host), (size, host_size))
        matrix = columns(a, n, n, lead, kind)
        factor, state = routine("potrf", kind)(matrix.copy(order="F"), lower=uplo == 0, clean=False)
        matrix[:] = factor
        numbers(info, 1, ctypes.c_int32)[0] = state

    def xpotrs(self, handle, params, uplo, n, width, kind, a, lead, kind_b, b, lead_b, info):
        self._ran("xpotrs", handle)
        target = columns(b, n, width, lead_b, kind)
        target[:], numbers(info, 1, ctypes.c_int32)[0] = routine("potrs", kind)(
            columns(a, n, n, lead, kind).copy(order="F"), target.copy(order="F"), lower=uplo == 0
        )

    def xgetrf(self, handle, params, m, n, kind, a, lead, pivots, compute, space, size, host, host_size, info):
        self._ran("xgetrf", handle, (space, host), (size, host_size))
        matrix = columns(a, n, n, lead, kind)
        matrix[:], order, state = routine("getrf", kind)(matrix.copy(order="F"))
        numbers(pivots, n, ctypes.c_int64)[:] = order + 1
        numbers(info, 1, ctypes.c_int32)[0] = state

    def xgetrs(self, handle, params, trans, n, width, kind, a, lead, pivots, kind_b, b, lead_b, info):
        self._ran("xgetrs", handle)
        target = columns(b, n, width, lead_b, kind)
        order = numbers(pivots, n, ctypes.c_int64).astype(np.int32) - 1
        target[:], _ = routine("getrs", kind)(
            columns(a, n, n, lead, kind).copy(order="F"), order, target.copy(order="F"), trans=trans
        )

    def _pairs(self, vectors, uplo, n, kind, a, lead, w, info, **subset):
        matrix = columns(a, n, n, lead, kind)
        values, found, count, _, state = routine("syevr", kind)(
            matrix.copy(order="F"), compute_v=vectors, lower=uplo == 0, **subset
        )
        numbers(w, n, TYPES[kind])[:count] = values[:count]
        matrix[:] = np.nan
        if vectors:
            matrix[:, :count] = found[:, :count]
        numbers(info, 1, ctypes.c_int32)[0] = state
        return count

    def xsyevd(
        self, handle, params, vectors, uplo, n, kind, a, lead, kind_w, w, compute, space, size, host, host_size, info
    ):  # fmt: skip
        self._ran("xsyevd", handle, (space, host), (size, host_size))
        self._pairs(vectors, uplo, n, kind, a, lead, w, info)

    def xsyevdx(
        self, handle, params, vectors, choice, uplo, n, kind, a, lead, low, high, first, last, kind_w, w, compute,
        space, size, host, host_size, info,
    ):  # fmt: skip
        self._ran("xsyevdx", handle, (space, host), (size, host_size))
        ends = [numbers(place, 1, TYPES[kind])[0] for place in (low, high)]
        subset = {1001: {}, 1002: {"range": "I", "il": first, "iu": last}, 1003: {"range": "V"}}[choice]
        if choice == 1003:
            subset |= {"vl": ends[0], "vu": ends[1]}
        return self._pairs(vectors, uplo, n, kind, a, lead, w, info, **subset)

    def xsyev_batched(
        self, handle, params, vectors, uplo, n, kind, a, lead, kind_w, w, compute, space, size, host, host_size, info,
        count,
    ):  # fmt: skip
        self._ran("xsyev_batched", handle, (space, host), (size, host_size))
        width = ctypes.sizeof(TYPES[kind])
        for i in range(count):
            self._pairs(vectors, uplo, n, kind, a + i * n * n * width, lead, w + i * n * width, info + 4 * i)
