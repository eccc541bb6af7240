"""Threads that take shares of a kernel's items, without the interpreter while there is work.

A worker that has finished looks for more for a while and then sleeps. The caller works too, and at the end waits for
those who took something, never for one that did not come: on a busy machine it does all itself.
"""

from __future__ import annotations

import ctypes
import os
import threading
from struct import Struct
from typing import Any

import numpy as np

# Looks at the slot before a worker sleeps, of some 40 ns each: calls within 80 us of each other find all awake. Waking
# one costs the caller 5 us, and it comes 30 to 60 us later.
_SPIN_CHECKS = 2000
_PATIENCE = 4096  # turns of a spinning thread before it gives its core away
_PARTS_PER_THREAD = 2  # parts of a job for each thread, so that none waits long for the last
_ALIGNMENT = 64  # bytes of a cache line
Arguments = tuple[bytes, bytes, bytes]
_JOB = Struct("10Q")
_JOB_AT = 128  # offset of the job in the slot, in bytes
_SLOT_BYTES = 512  # of the slot, and of the arguments

# The slot, in words of 8 bytes: 0 how many may still join, and in its low half how many are at work; 8 the number of
# the job; 16 the job: kernel, its three arguments, scratch and the bytes of it for each, items, fewest items of a
# share, shares that the rest is cut into, what yields the processor; 32 the first item that nobody has.
_TEXT = """
define internal void @work(ptr %slot, i64 %place) noinline {
  %job = getelementptr i64, ptr %slot, i64 16
  %next = getelementptr i64, ptr %slot, i64 32
  %kernel = load ptr, ptr %job, align 8
  %pointers.at = getelementptr i64, ptr %job, i64 1
  %pointers = load ptr, ptr %pointers.at, align 8
  %integers.at = getelementptr i64, ptr %job, i64 2
  %integers = load ptr, ptr %integers.at, align 8
  %numbers.at = getelementptr i64, ptr %job, i64 3
  %numbers = load ptr, ptr %numbers.at, align 8
  %scratch.at = getelementptr i64, ptr %job, i64 4
  %scratch.all = load ptr, ptr %scratch.at, align 8
  %each.at = getelementptr i64, ptr %job, i64 5
  %each = load i64, ptr %each.at, align 8
  %items.at = getelementptr i64, ptr %job, i64 6
  %items = load i64, ptr %items.at, align 8
  %least.at = getelementptr i64, ptr %job, i64 7
  %least = load i64, ptr %least.at, align 8
  %parts.at = getelementptr i64, ptr %job, i64 8
  %parts = load i64, ptr %parts.at, align 8
  %offset = mul i64 %each, %place
  %scratch = getelementptr i8, ptr %scratch.all, i64 %offset
  br label %look
look:
  %first = load atomic i64, ptr %next monotonic, align 8
  br label %take
take:
  %begin = phi i64 [ %first, %look ], [ %seen, %claim ]
  %left = sub i64 %items, %begin
  %more = icmp sgt i64 %left, 0
  br i1 %more, label %claim, label %done
claim:
  %part = udiv i64 %left, %parts
  %small = icmp ult i64 %part, %least
  %share = select i1 %small, i64 %least, i64 %part
  %large = icmp ugt i64 %share, %left
  %count = select i1 %large, i64 %left, i64 %share
  %end = add i64 %begin, %count
  %swap = cmpxchg ptr %next, i64 %begin, i64 %end monotonic monotonic
  %seen = extractvalue { i64, i1 } %swap, 0
  %won = extractvalue { i64, i1 } %swap, 1
  br i1 %won, label %run, label %take
run:
  call void %kernel(ptr %pointers, ptr %integers, ptr %numbers, i64 %begin, i64 %end, ptr %scratch)
  br label %look
done:
  ret void
}

define void @lead(ptr %slot, i64 %workers, i64 %begin) {
  %next = getelementptr i64, ptr %slot, i64 32
  store atomic i64 %begin, ptr %next monotonic, align 8
  %open = shl i64 %workers, 32
  store atomic i64 %open, ptr %slot release, align 8
  %number = getelementptr i64, ptr %slot, i64 8
  %before = atomicrmw add ptr %number, i64 1 seq_cst
  call void @work(ptr %slot, i64 0)
  %closed = atomicrmw and ptr %slot, i64 4294967295 acq_rel
  %yield.at = getelementptr i64, ptr %slot, i64 25
  %yield = load ptr, ptr %yield.at, align 8
  br label %wait
wait:
  %turn = phi i64 [ 0, %0 ], [ %later, %pause ], [ %later, %patience ], [ %later, %give ]
  %busy = load atomic i64, ptr %slot acquire, align 8
  %later = add i64 %turn, 1
  %free = icmp eq i64 %busy, 0
  br i1 %free, label %done, label %pause
pause:
  call void @PAUSE
  %long = icmp ugt i64 %turn, PATIENCE
  br i1 %long, label %patience, label %wait
patience:
  %can = icmp ne ptr %yield, null
  br i1 %can, label %give, label %wait
give:
  %given = call i32 %yield()
  br label %wait
done:
  ret void
}

define i64 @join(ptr %slot, i64 %known, i64 %looks) {
  %number = getelementptr i64, ptr %slot, i64 8
  br label %head
head:
  %last = phi i64 [ %known, %0 ], [ %last, %idle ], [ %now, %try ], [ %now, %worked ]
  %left = phi i64 [ %looks, %0 ], [ %fewer, %idle ], [ %left, %try ], [ %looks, %worked ]
  %now = load atomic i64, ptr %number acquire, align 8
  %new = icmp ne i64 %now, %last
  br i1 %new, label %try, label %idle
idle:
  call void @PAUSE
  %fewer = sub i64 %left, 1
  %tired = icmp sle i64 %fewer, 0
  br i1 %tired, label %done, label %head
try:
  %state = load atomic i64, ptr %slot acquire, align 8
  %room = lshr i64 %state, 32
  %open = icmp ne i64 %room, 0
  br i1 %open, label %claim, label %head
claim:
  %entered = sub i64 %state, 4294967295
  %swap = cmpxchg ptr %slot, i64 %state, i64 %entered acq_rel acquire
  %won = extractvalue { i64, i1 } %swap, 1
  br i1 %won, label %worked, label %try
worked:
  call void @work(ptr %slot, i64 %room)
  %gone = atomicrmw sub ptr %slot, i64 1 release
  br label %head
done:
  ret i64 %last
}
"""


def text(machine: str) -> str:
    """Return the LLVM module of ``lead`` and ``join`` for a kind of processor."""
    arm = machine.lower() in ("arm64", "aarch64")
    pause, kind = ("llvm.aarch64.hint(i32 1)", "i32") if arm else ("llvm.x86.sse2.pause()", "")
    filled = _TEXT.replace("PAUSE", pause).replace("PATIENCE", str(_PATIENCE))
    return f"declare void @{pause.partition('(')[0]}({kind})\n{filled}"


class Scratch(threading.local):
    """Memory of a thread that grows and stays."""

    def __init__(self) -> None:
        self.memory: np.ndarray[Any, np.dtype[np.uint8]] | None = None
        self.address = 0

    def take(self, size: int) -> int:
        """Return the address of so many bytes."""
        if self.memory is None or self.memory.nbytes < size:
            self.memory = None
            self.memory = np.empty(size + _ALIGNMENT, np.uint8)
            self.address = self.memory.ctypes.data
        return self.address


SCRATCH = Scratch()


class ThreadPool:
    """The workers of a process, for one caller at a time."""

    def __init__(self, lead: int, join: int, keep: object) -> None:
        self._lead = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(lead)
        self.join = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(join)
        self._keep = keep
        self._memory = ctypes.create_string_buffer(_SLOT_BYTES + _ALIGNMENT)
        self._start = -ctypes.addressof(self._memory) % _ALIGNMENT
        self.slot = ctypes.addressof(self._memory) + self._start
        self._arguments = ctypes.create_string_buffer(_SLOT_BYTES)
        self._yield = ctypes.cast(ctypes.CDLL(None).sched_yield, ctypes.c_void_p).value if os.name == "posix" else 0
        self._taken = threading.Lock()
        self._workers: list[_Worker] = []

    def run(
        self, kernel: int, arguments: Arguments, scratch_bytes: int, items: range, grain: int, threads: int
    ) -> bool:
        """Run some items on so many threads, the caller's among them; False where another caller has the pool."""
        if not self._taken.acquire(blocking=False):
            return False
        try:
            while len(self._workers) < threads - 1:
                self._workers.append(_Worker(self))
            each = (scratch_bytes // _ALIGNMENT + 2) * _ALIGNMENT
            scratch, parts = SCRATCH.take(each * threads), _PARTS_PER_THREAD * threads
            job = kernel, *self._handed(arguments), scratch, each, items.stop, grain, parts, self._yield
            _JOB.pack_into(self._memory, self._start + _JOB_AT, *job)
            for worker in self._workers[: threads - 1]:
                worker.wake()
            self._lead(self.slot, threads - 1, items.start)
        finally:
            self._taken.release()
        return True

    def _handed(self, arguments: Arguments) -> tuple[int, int, int]:
        """Return the addresses of arguments, copied to where they stay."""
        together = b"".join(arguments)
        if len(together) > len(self._arguments):
            self._arguments = ctypes.create_string_buffer(2 * len(together))
        self._arguments[: len(together)] = together  # pyright: ignore[reportArgumentType]
        base = ctypes.addressof(self._arguments)
        return base, base + len(arguments[0]), base + len(arguments[0]) + len(arguments[1])


class _Worker:
    """A thread that joins every job it sees."""

    def __init__(self, pool: ThreadPool) -> None:
        self._pool, self._asleep, self._wake = pool, False, threading.Lock()
        self._wake.acquire()
        threading.Thread(target=self._serve, name="kernmantle", daemon=True).start()

    def wake(self) -> None:
        """Let it look again if it sleeps."""
        if self._asleep:
            self._asleep = False
            self._wake.release()

    def _serve(self) -> None:
        seen = 0
        while True:
            seen = self._pool.join(self._pool.slot, seen, _SPIN_CHECKS)
            self._asleep = True
            self._wake.acquire()
