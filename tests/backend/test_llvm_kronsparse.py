"""Text of the kernels of Kronecker-sparse products on a CPU.

``python -m tests.backend.test_llvm_kronsparse`` rewrites the golden files.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kernmantle.backends.cpu import jit
from kernmantle.structured.mode_product import cpu_dot_emit, cpu_emit, cpu_vectors
from kernmantle.structured.mode_product.cpu_plan import LANES, PLAIN, ROWS, Tile, group_of, tile, whole_rows

GOLDEN = Path(__file__).parents[1] / "golden" / "llvm"
CASES = {
    "kronsparse": lambda: cpu_emit.emit(Tile("f32", 4, 2, 2, 2, False, False, LANES)),
    "kronsparse_dot": lambda: cpu_dot_emit.emit(Tile("f64", 4, 2, 2, 2, False, False, PLAIN)),
    "kronsparse_row": cpu_vectors.emit_row,
}
MACHINES = {"avx512": (64, 32), "avx2": (32, 16), "neon": (16, 32), "sse2": (16, 16)}


@pytest.mark.parametrize("name", CASES)
def test_golden_text(name):
    assert CASES[name]() == (GOLDEN / f"{name}.ll").read_text(encoding="utf-8")


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("bias", [PLAIN, LANES, ROWS])
@pytest.mark.parametrize(("lanes", "d", "spread"), [(1536, 2, 2), (300, 3, 3), (512, 64, 64), (40, 6, 6), (1, 1, 1)])
def test_tiles_fit_the_registers(lanes, d, spread, bias, machine):
    size, registers = MACHINES[machine]
    for dtype, width in (("f32", size // 4), ("f64", size // 8)):
        group = group_of(d, width)
        own = tile(dtype, size, registers, lanes, group, spread, bias)
        assert own.rows * own.vectors + own.vectors + 1 <= registers
        assert own.heights[-1] == 1 or own.rows == 1
        assert own.lanes % own.group == 0
        assert own.apart == (group == own.lanes and spread != group)
        assert own.scattered == (spread != group and not own.apart)
        assert not (own.scattered and own.bias == LANES)
        wide = whole_rows(own, lanes, registers)
        assert wide == own or (wide.rows == 1 and own.vectors < wide.vectors <= 3 * registers // 4)


@pytest.mark.parametrize(
    "own", [Tile("f32", 4, 4, 3, 1, False, True, PLAIN), Tile("f64", 2, 2, 1, 2, True, False, ROWS)]
)
def test_any_machine_can_be_compiled_for(own):
    host = replace(jit.host(), cpu="", features="")
    for source in (
        cpu_emit.emit(own),
        cpu_emit.emit_packing(own),
        cpu_dot_emit.emit(replace(own, vectors=4)),
    ):
        assert len(jit.compile_ir(source, host)) > 500


if __name__ == "__main__":
    for name, emit in CASES.items():
        (GOLDEN / f"{name}.ll").write_text(emit(), encoding="utf-8")
