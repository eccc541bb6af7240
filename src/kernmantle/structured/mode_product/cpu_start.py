"""Kernels of Kronecker-sparse products on a CPU with all but the addresses of their buffers, and several in a row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from struct import Struct
from typing import NamedTuple

import numpy as np
import torch

from ...backends.cpu import jit
from ...backends.cpu.threads import SCRATCH
from ...config import current
from ...runtime.kernel_store import loaded
from ...torch_ops.cpu import job_for
from .cpu_plan import SmallTile, Tile

_ROW = "structured.mode_product.cpu_vectors:emit_row"
_GRAIN, ALONE = 1 << 19, 1 << 23  # multiplications: least work of a thread, most work of one thread alone


@dataclass(frozen=True)
class Start:
    """A kernel with all but the addresses of its buffers, which ``run`` takes; nothing where it was only noted."""

    run: Callable[..., None]
    kernel: jit.LoadedKernel | None
    integers: bytes
    items: int
    workspace: int
    buffers: int
    alone: bool


class Call(NamedTuple):
    """A product that needs addresses alone; ``pack`` writes ``panels`` numbers of its weights first.

    ``wide``: what is computed of halves is float32.
    """

    start: Start
    route: str
    features: int
    wide: bool = False
    pack: Start | None = None
    panels: int = 0
    key: tuple[object, ...] = ()


def _kernel(emitter: str, own: Tile | SmallTile) -> jit.LoadedKernel | None:
    """Return the kernel, None if it was only collected."""
    return loaded((emitter, own), lambda: [job_for(emitter, (own,), f"Kronecker-sparse {own}")], jit.load)


def starting(
    emitter: str, own: Tile | SmallTile, fields: Sequence[str], values: dict[str, int], items: int, workspace: int,
    work: int, buffers: int,
) -> Start:  # fmt: skip
    """Return a function that runs a kernel over its items, given the addresses of its buffers."""
    integers = np.array([values[name] for name in fields], dtype=np.int64).tobytes()
    kernel, alone = _kernel(emitter, own), work < ALONE or items == 1
    if kernel is None:
        return Start(_nothing, kernel, integers, items, workspace, buffers, alone)
    entry, packed, none = kernel.entry, Struct(f"{buffers}Q").pack, b""
    grain = max(1, _GRAIN * items // max(work, 1))

    def run_alone(*pointers: int, _: object = kernel) -> None:  # machine code lives as long as what holds it
        entry(packed(*pointers), integers, none, 0, items, SCRATCH.take(workspace))

    def run(*pointers: int) -> None:
        jit.run(kernel, items, workspace, pointers, integers, (), current().threads or torch.get_num_threads(), grain)

    return Start(run_alone if alone else run, kernel, integers, items, workspace, buffers, alone)


def _nothing(*pointers: int) -> None:
    """Launch nothing: a kernel that is only collected for precompilation."""


def in_a_row(calls: Sequence[Call]) -> Callable[..., None] | None:
    """Return a function that runs small calls one after the other, given the addresses of all their buffers.

    Between two that are started from Python the processor forgets much of the interpreter.
    """
    starts = [call.start for call in calls]
    single = (current().threads or torch.get_num_threads()) == 1
    if any(call.pack is not None or call.wide for call in calls) or not all(own.alone or single for own in starts):
        return None
    row = loaded(_ROW, lambda: [job_for(_ROW, (), "Kronecker-sparse kernels in a row")], jit.load)
    if row is None or any(own.kernel is None for own in starts):
        return None
    integers = [np.frombuffer(own.integers, dtype=np.int64) for own in starts]
    first_buffers = [0, *accumulate(own.buffers for own in starts)]
    records = np.array(
        [
            (own.kernel.address if own.kernel else 0, index, packed_integers.ctypes.data, own.items)
            for own, index, packed_integers in zip(starts, first_buffers, integers, strict=False)
        ],
        dtype=np.int64,
    ).tobytes()
    entry, count, workspace = row.entry, len(starts), max(own.workspace for own in starts)
    packed, alive = Struct(f"{first_buffers[-1]}Q").pack, (integers, starts, row)

    def run(*pointers: int, _: object = alive) -> None:
        entry(packed(*pointers), records, b"", 0, count, SCRATCH.take(workspace))

    return run
