"""Runs row nests on a GPU with cuda.core alone, so that compute-sanitizer sees nothing but these kernels.

``python -m tests.cuda.row_harness [name ...]`` runs every case, or those whose name contains one of the words.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from kernmantle.backends.cuda.emit import headers
from kernmantle.backends.cuda.launch import Kernel
from kernmantle.backends.cuda.nvrtc import compile_source
from kernmantle.backends.cuda.row_reduce_emit import ENTRY, JOIN, SELECT, emit_rows
from kernmantle.backends.cuda.row_reduce_plan import JOINERS, minima_bytes, scan_bytes
from kernmantle.backends.cuda.select_plan import ROWS_A_BLOCK, SELECTORS
from kernmantle.compiler.nest import SIZES
from kernmantle.compiler.row_reduce import SELECTIONS
from kernmantle.testing import assert_close

from .harness import Machine, limits
from .report import report, selected
from .row_nests import HALVES, RowCase, cases


def run(machine: Machine, case: RowCase) -> list[np.ndarray[Any, Any]]:
    """Results of a case."""
    own = limits()
    chosen, rows, sizes = case.plan(own), case.rows, case.sizes()
    binary = compile_source(emit_rows(chosen), own.arch, headers(), case.name).binary
    main = Kernel(binary, ENTRY, chosen.threads, chosen.shared, case.name)
    scan = chosen.form == "scan"
    last = (SELECT, SELECTORS) if chosen.grouped or scan else (JOIN, JOINERS)
    second = Kernel(binary, *last, 0, case.name)
    buffers = [machine.upload(array.T if array.flags.f_contiguous else array) for array in case.arrays()]
    shapes = [(case.m, case.width) if "l" in buffer.roles else (case.m,) for buffer in rows.outs]
    dtypes = [np.int64 if buffer.dtype == "i64" else HALVES[buffer.dtype] for buffer in rows.outs]
    blank = [np.full(shape, 77, dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
    buffers += [machine.upload(array) for array in blank]
    blocks = min(chosen.blocks(sizes, own, case.width), case.blocks or own.sm_count * chosen.resident)
    room = case.m * minima_bytes(chosen, sizes) if chosen.grouped else chosen.work_bytes(blocks, case.width)
    room = scan_bytes(chosen, blocks, case.width) if scan else room
    work = machine.device.allocate(room, stream=machine.stream)
    values = [sizes[role] for role in SIZES]
    for strides in case.strides():
        values += strides
    numbers = case.numbers()
    given = (*(int(buffer.handle) for buffer in buffers), int(work.handle), *(values[slot] for slot in chosen.integers))
    given = (*given, *numbers, *chosen.matrix.trailing(tuple(numbers)))
    stream = int(machine.stream.handle)
    main(0, stream, blocks, given)
    tiles, columns = chosen.tiles(sizes)
    if chosen.grouped or scan:
        second(0, stream, case.m if scan else -(-case.m // ROWS_A_BLOCK), given)
    elif blocks > 1 and columns > 1:
        second(0, stream, blocks - 1, (*given, blocks, tiles, columns))
    return [machine.download(buffer, array) for buffer, array in zip(buffers[-len(blank) :], blank, strict=True)]


def check(case: RowCase, found: Sequence[np.ndarray[Any, Any]]) -> None:
    """Assert that results are right."""
    depth = case.k + (case.n if case.how not in (*SELECTIONS, "max", "min") else 0)
    assert_close(found[0], case.expected().reshape(found[0].shape), depth=depth)
    if case.how in SELECTIONS:
        places = found[1]
        assert all(len(set(row)) == case.width for row in places)
        assert_close(np.take_along_axis(case.entries(), places, 1), case.expected(), dtype=found[0].dtype, depth=depth)


def main(words: Sequence[str]) -> int:
    """Run and report; the number of cases that disagree."""
    machine = Machine()

    def verify(case: Any) -> str:
        check(case, run(machine, case))
        return f"{case.plan(limits()).form} "

    return report(selected(cases(), words), verify)


if __name__ == "__main__":
    sys.exit(min(1, main(sys.argv[1:])))
