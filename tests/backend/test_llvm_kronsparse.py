"""Text of the kernels of Kronecker-sparse products on a CPU; ``python -m tests.golden.llvm_texts`` records it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kernmantle.backends.cpu import jit
from kernmantle.structured.mode_product import cpu, cpu_dot_emit, cpu_emit, cpu_small_emit
from kernmantle.structured.mode_product.cost import quickest
from kernmantle.structured.mode_product.cpu_plan import (
    LANES,
    PLAIN,
    ROWS,
    SmallTile,
    Tile,
    group_of,
    small_tile,
    tile,
    whole_rows,
)
from kernmantle.structured.mode_product.pack import PackedWeights
from kernmantle.testing import assert_close

MACHINES = {"avx512": (64, 32), "avx2": (32, 16), "neon": (16, 32), "sse2": (16, 16)}


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("bias", [PLAIN, LANES, ROWS])
@pytest.mark.parametrize(("lanes", "d", "spread"), [(1536, 2, 2), (300, 3, 3), (512, 64, 64), (40, 6, 6), (1, 1, 1)])
def test_tiles_fit_the_registers(lanes, d, spread, bias, machine):
    size, registers = MACHINES[machine]
    for dtype, width in (("f32", size // 4), ("f64", size // 8)):
        group = min(d & -d, width)
        own = tile(dtype, size, registers, lanes, group, spread, bias)
        assert own.rows * own.vectors + own.vectors + 1 <= registers
        assert own.heights[-1] == 1 or own.rows == 1
        assert own.lanes % own.group == 0
        assert own.apart == (group == own.lanes and spread != group)
        assert own.scattered == (spread != group and not own.apart)
        wide = whole_rows(own, lanes, registers)
        assert wide == own or (wide.rows == 1 and own.vectors < wide.vectors <= 3 * registers // 4)


@pytest.mark.parametrize(
    "own",
    [
        Tile("f32", 4, 4, 3, 1, False, True, PLAIN),
        Tile("f64", 2, 2, 1, 2, True, False, ROWS),
        Tile("bf16", 4, 4, 2, 1, False, True, LANES, wide=True),
        Tile("bf16", 4, 4, 2, 4, True, False, LANES, tail=True, packed=True),
    ],
)
def test_any_machine_can_be_compiled_for(own):
    host = replace(jit.host(), cpu="", features="")
    for source in (
        cpu_emit.emit(own),
        cpu_emit.emit_packing(own),
        cpu_dot_emit.emit(replace(own, vectors=4)),
        cpu_small_emit.emit(SmallTile("f64", 8, 4, 3, 1, False, False, False)),
    ):
        assert len(jit.compile_ir(source, host)) > 500


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(("b", "c"), [(2, 2), (4, 4), (4, 3), (1, 2)])
@pytest.mark.parametrize("neighbours", [1, 2, 4])
def test_small_blocks_take_one_multiplication_for_each_k_of_a_vector(b, c, neighbours, machine):
    """Of a window each number is loaded once: the work is that of blocks which fill the lanes."""
    own = small_tile("f32", MACHINES[machine][0], (512, b, c, 1), neighbours, (b * c, c, 1), False, neighbours > 1)
    if own is None:
        assert b * neighbours > MACHINES[machine][0] // 4
        return
    assert own.blocks * b * neighbours == own.lanes
    text = cpu_small_emit.emit(own)
    window = text[text.index("icmp slt") :]
    assert window.count("@llvm.fma") == c
    assert window.count("shufflevector") == 2 * c
    assert window.count("load <") == 2
    assert window.count("store <") == 1


def test_what_is_no_small_block_is_left_to_others():
    for pattern, neighbours, weight in (
        ((512, 2, 2, 2), 1, (8, 4, 2)), ((512, 5, 2, 1), 1, (10, 2, 1)), ((512, 2, 5, 1), 1, (10, 5, 1)),
        ((512, 3, 2, 1), 1, (6, 2, 1)), ((512, 2, 2, 1), 3, (4, 2, 1)), ((512, 2, 2, 1), 16, (4, 2, 1)),
        ((4, 2, 2, 1), 1, (4, 2, 1)), ((512, 2, 2, 1), 1, (5, 2, 1)),
    ):  # fmt: skip
        assert small_tile("f32", 64, pattern, neighbours, weight, False, neighbours > 1) is None


@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("pattern", [(512, 2, 2, 1), (512, 4, 4, 1), (1, 2, 2, 512), (256, 2, 2, 2)], ids=str)
def test_few_rows_of_small_blocks_go_by_the_kernel(pattern, last):
    for batch in (1, 2, 4, 8, 16):
        assert quickest(pattern, batch, "f32", "cpu", last)[0] == "kernel"


@pytest.mark.parametrize("is_gradient", [False, True])
def test_neighbours_fill_vectors_where_that_takes_fewer_instructions(is_gradient):
    def group(pattern, half, lanes=16):
        return group_of(pattern, 64, half, lanes, is_gradient)

    assert group((7, 64, 64, 9), True) == group((7, 64, 64, 59), False) == group((7, 2, 76, 3), True) == 16
    assert group((7, 64, 64, 3), False) == 1
    assert group((7, 64, 64, 6), False) == 2
    assert group((1, 8, 8, 32), False) == 16
    assert group((1, 8, 8, 4), False, 4) == 4


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
@pytest.mark.parametrize(
    "pattern", [(2, 3, 40, 9), (1, 2, 5, 15), (2, 5, 3, 47), (1, 1, 7, 20), (3, 33, 2, 7)], ids=str
)
@pytest.mark.parametrize("rows", [1, 7, 50])
def test_the_last_neighbours_of_vectors_may_be_missing(pattern, rows, dtype):
    (a, b, c, d), kind = pattern, getattr(torch, dtype)
    x, weight = torch.randn(1, rows, a * c * d).to(kind), torch.randn(1, a, b, c, d + 7).to(kind)[..., :d]
    grad, bias = torch.randn(1, rows, a * b * d).to(kind), torch.randn(1, a * b * d).to(kind)
    around = torch.full((1, rows, a * b * d + 20), 3.0, dtype=kind)
    out = around[..., : a * b * d]
    wide, slope = (each.double().unflatten(-1, (a, -1, d)) for each in (x, grad))
    product = torch.einsum("nikl,ijkl->nijl", wide[0], weight[0].double()).flatten(1) + bias.double()
    for packed in (None, PackedWeights()):
        route = cpu.product(x, weight, bias, out, packed)
        assert route is not None
        assert_close(out[0], product, depth=c)
        assert (around[..., a * b * d :] == 3).all()
    assert_close(cpu.gradient(x, grad, pattern)[0], torch.einsum("nijl,nikl->ijkl", slope[0], wide[0]), depth=rows)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
@pytest.mark.parametrize(
    "sizes", [(33, 19, 41, 3), (1, 40, 7, 5), (70, 9, 2, 4), (7, 130, 20, 19), (20, 3, 5, 28), (9, 7, 8, 1)]
)
def test_one_matrix_along_an_axis_by_any_vectors(sizes, dtype):
    (count, b, c, d), kind = sizes, getattr(torch, dtype)
    x = torch.randn(count, c, d).to(kind)
    for factor in (torch.randn(b, c).to(kind), torch.randn(c, b).to(kind).mT):
        wanted = torch.einsum("jk,nkl->njl", factor.double(), x.double())
        for vectors in ("groups", "right") if d > 1 else ("rows",):
            out = torch.full((count * b * d + 20,), 3.0, dtype=kind)
            call = cpu.along((1, b, c, d), count, kind, factor.stride(), vectors)
            packed = cpu.operand(call, factor, None)
            sides = (x, packed) if vectors == "rows" else (packed, x)
            call.start.run(*(side.data_ptr() for side in sides), out.data_ptr())
            assert_close(out[: count * b * d].view(count, b, d), wanted, depth=c)
            assert (out[count * b * d :] == 3).all()
