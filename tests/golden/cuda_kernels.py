"""The kernels whose machine code is compared with a record: each family of CUDA templates, tile and arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kernmantle.backends.cuda import row_vjp_emit
from kernmantle.backends.cuda.eigen_plan import EigenPlan
from kernmantle.backends.cuda.eigen_plan import emit as emit_eigen
from kernmantle.backends.cuda.emit import emit
from kernmantle.backends.cuda.gram_plan import CudaPlan
from kernmantle.backends.cuda.row_reduce_emit import emit_rows
from kernmantle.backends.cuda.softmax_emit import emit_softmax
from kernmantle.backends.cuda.system_plan import SystemPlan
from kernmantle.backends.cuda.system_plan import emit as emit_system
from kernmantle.backends.cuda.vjp_emit import emit as emit_vjp
from kernmantle.compiler.row_reduce import PRODUCT, Apply
from kernmantle.compiler.row_vjp import row_vjp
from kernmantle.compiler.softmax import DUALS, GRADIENTS
from kernmantle.ir.program import Program
from kernmantle.ir.reductions import SOFTMAX
from kernmantle.structured.kron import (
    factor_gradient_emit,
    gradient_emit,
    separation,
    tensor_emit,
)
from kernmantle.structured.kron.back_axis_plan import back_axis
from kernmantle.structured.kron.back_registers_plan import back_registers
from kernmantle.structured.kron.back_wgmma_plan import back_wgmma
from kernmantle.structured.kron.chain_gradient_plan import chain
from kernmantle.structured.kron.factor_gradient_plan import gram
from kernmantle.structured.mode_product import cuda_emit, grouped_plan, sum_emit, tiles
from kernmantle.structured.mode_product.activation_plan import ActivationPlan
from kernmantle.structured.mode_product.block_sum_plan import block_sum_plan
from kernmantle.structured.mode_product.cluster_plan import apart_plans, cluster_plan
from kernmantle.structured.mode_product.column_sum_plan import column_sum_choice
from kernmantle.structured.mode_product.dense_plan import dense_plan
from kernmantle.structured.mode_product.factor_matrix_plan import THREADS as MATRIX_THREADS
from kernmantle.structured.mode_product.factor_matrix_plan import matrix_gradient_plan, matrix_plan
from kernmantle.structured.mode_product.fma_plan import THREADS as FMA_THREADS
from kernmantle.structured.mode_product.fma_plan import FmaPlan
from kernmantle.structured.mode_product.fma_plan import candidates as fma_candidates
from kernmantle.structured.mode_product.fma_sum_plan import fma_sum_choice
from kernmantle.structured.mode_product.narrow_plan import narrow_plan
from kernmantle.structured.mode_product.row_sum_plan import row_sum_choice
from kernmantle.structured.mode_product.stream_mma_plan import stream_mma_plan
from kernmantle.structured.mode_product.stream_plan import stream_plan
from kernmantle.structured.mode_product.transpose_plan import transpose_plan, transpose_sums_plan
from kernmantle.structured.mode_product.weight_gradient_plan import parts_plan
from kernmantle.structured.mode_product.wide_sum_plan import tile as wide_tile

from ..backend import test_cuda_apply as rows
from ..backend import test_cuda_compile as grams
from ..backend import test_cuda_kernels as kernels
from ..backend import test_cuda_kron as kron
from ..backend import test_cuda_row_forms as forms
from ..backend import test_cuda_softmax as softmax
from ..backend import test_cuda_squares as squares
from ..backend import test_kron_axis as kron_axis
from ..backend import test_kron_two_axis as kron_two_axis
from ..backend import test_kron_wide as kron_wide
from ..backend import test_kronsparse_compile as kronsparse
from ..backend import test_kronsparse_grouped as grouped
from ..cuda.row_nests import LAPLACE, SQUARES
from ..cuda.vjp_nests import cases as vjp_cases

CARDS = grams.CARDS
COMPARED = ("sm_80", "sm_90", "sm_100")
HOPPER = ("sm_90",)


@dataclass(frozen=True)
class Planned:
    """The source of a module, and what its plan promises: threads, dynamic shared bytes, blocks a multiprocessor."""

    source: str
    plan: str
    threads: int
    shared: int
    resident: int = 1


@dataclass(frozen=True)
class Kernel:
    """A row of the record: what plans and emits it for a card, and the cards whose machine code is recorded."""

    make: Callable[[str], Planned]
    cards: tuple[str, ...] = COMPARED


@dataclass
class _Table:
    rows: dict[str, Kernel] = field(default_factory=dict[str, Kernel])

    def add(self, name: str, make: Callable[[str], Planned], cards: tuple[str, ...] = COMPARED) -> None:
        assert name not in self.rows
        self.rows[name] = Kernel(make, cards)


def of(make: Callable[..., Planned], *arguments: Any, **options: Any) -> Callable[[str], Planned]:
    """Return what makes a row for a card of these arguments."""
    return lambda card: make(card, *arguments, **options)


def _gram(card: str, name: str) -> Planned:
    return _planned_gram(grams.planned(grams.HEADLINE[name], card))


def _planned_gram(plan: CudaPlan) -> Planned:
    return Planned(emit(plan), f"{plan.schema} {plan.tile.name}", plan.threads, plan.shared, plan.resident)


def _squares(card: str, name: str, step: str) -> Planned:
    plan = squares.steps(name, card)[step]
    return Planned(emit(plan), f"{plan.schema} {plan.tile.name}", plan.threads, plan.shared)


def _rows(card: str, name: str) -> Planned:
    plan = rows.HEADLINE[name].plan(CARDS[card])
    return Planned(emit_rows(plan), plan.form, plan.threads, plan.shared, plan.resident)


def _form(card: str, name: str, gated: bool = False) -> Planned:
    plan = forms.planned(forms.CASES[name], card)
    if gated:
        assert plan.fallback is not None
        plan = plan.fallback
    schema = f"{plan.form} {plan.tile.name}" if plan.form in ("columns", "deep") else plan.form
    return Planned(emit_rows(plan), schema, plan.threads, plan.shared, plan.resident)


def _row_vjp(card: str, program: Program, by_columns: bool, depth: int, columns: int) -> Planned:
    vjp = row_vjp(Apply(program, PRODUCT).text, by_columns)
    assert vjp is not None
    plan = row_vjp_emit.RowVjpPlan(vjp, depth, columns, card)
    return Planned(row_vjp_emit.emit(plan), str(plan), row_vjp_emit.THREADS, 0, plan.resident)


def _softmax(card: str, name: str, dtype: str, how: str, width: int) -> Planned:
    plan = softmax.planned(softmax.nest(name, dtype, how=how), card, k=width, l=width)
    assert plan is not None
    return Planned(emit_softmax(plan), plan.form, plan.threads, plan.shared)


def _vjp(card: str, name: str) -> Planned:
    (case,) = [case for case in vjp_cases() if case.name == name]
    plan = case.plan(CARDS[card])
    assert plan is not None
    shared = plan.tile.shared(plan.slope.kind)
    resident = min(plan.tile.resident, CARDS[card].shared_per_sm // shared)
    return Planned(emit_vjp(plan), plan.tile.name, plan.tile.threads, shared, resident)


def _system(plan: Callable[[str], SystemPlan]) -> Callable[[str], Planned]:
    return lambda card: Planned(emit_system(plan(card)), str(plan(card)).replace(card, "card"), 128, 0)


def _eigen(card: str, width: int, compute: str) -> Planned:
    plan = EigenPlan(compute, width, True, card)
    return Planned(emit_eigen(plan), str(plan), plan.threads, 0)


def _kron(card: str, name: str) -> Planned:
    plan = kron.first_pass(name, card)
    return Planned(kron.emit(plan), str(plan), plan.threads, plan.shared)


def _kron_wgmma(_card: str, name: str) -> Planned:
    plan = kron.by_wgmma(name)
    return Planned(tensor_emit.emit_wgmma(plan), str(plan), plan.threads, plan.shared)


def _kron_cluster(_card: str, name: str) -> Planned:
    plan = kron.by_clusters(name)
    return Planned(tensor_emit.emit_clusters(plan), str(plan), plan.threads, plan.shared)


def _kron_axis(_card: str, name: str) -> Planned:
    plan = kron_axis.by_axis(name)
    return Planned(tensor_emit.emit_axis(plan), str(plan), plan.threads, plan.shared)


def _kron_two_axis(_card: str, name: str, saves: bool) -> Planned:
    plan = kron_two_axis.candidates(*kron_two_axis.PASSES[name], saves=saves)[0]
    return Planned(tensor_emit.emit_two_axes(plan), str(plan), plan.threads, plan.shared)


def _kron_wide(_card: str, name: str) -> Planned:
    plan = kron_wide.by_wide(name)
    return Planned(tensor_emit.emit_wide(plan), str(plan), plan.threads, plan.shared)


def _kron_gram(
    card: str, rows: int, columns: int, right: int, dtype: str, factors: tuple[tuple[int, int], ...] = ()
) -> Planned:
    plan = gram(rows, columns, right, dtype, True, card, factors)
    assert plan is not None
    source = factor_gradient_emit.emit(plan)
    return Planned(source, f"gram {rows}x{columns}", plan.threads, plan.shared, plan.blocks)


def _kron_tiles(card: str, sizes: tuple[int, ...], before: int, dtype: str) -> Planned:
    plan = back_wgmma(tuple((size, size) for size in sizes), before, dtype, CARDS[card])
    assert plan is not None
    return Planned(gradient_emit.emit(plan), f"tiles {sizes}", plan.threads, plan.shared, plan.blocks)


def _kron_back_axis(card: str, size: int, width: int) -> Planned:
    plan = back_axis(((size, size),), width, "f32", CARDS[card])
    assert plan is not None
    return Planned(gradient_emit.emit(plan), f"axis {size}", plan.threads, plan.shared, plan.blocks)


def _kron_back_registers(card: str, sizes: tuple[int, ...], before: int, width: int, dtype: str) -> Planned:
    plan = back_registers(tuple((size, size) for size in sizes), (1024, before, width), dtype, CARDS[card])
    assert plan is not None
    return Planned(gradient_emit.emit(plan), f"registers {sizes}", plan.threads, plan.shared, plan.blocks)


def _kron_chain(card: str, sizes: tuple[int, ...], right: int, dtype: str) -> Planned:
    plan = chain(tuple((size, size) for size in sizes), 1024, right, dtype, CARDS[card])
    assert plan is not None
    return Planned(gradient_emit.emit(plan), f"chain {sizes}", plan.threads, plan.shared, plan.blocks)


def _kron_separate(card: str, sizes: tuple[tuple[int, int], ...], dtype: str) -> Planned:
    plan = separation.SeparationPlan(sizes, dtype, "f32", card)
    return Planned(separation.emit(plan), str(plan), separation.THREADS, 0)


def _kronsparse(card: str, pattern: tuple[int, ...], dtype: str, first: bool) -> Planned:
    given = kronsparse.problem(pattern, dtype=dtype, first=first)
    plan = tiles.plan(given, CARDS[card])
    assert plan is not None
    shared, resident = plan.shared(given), plan.blocks_each(given, CARDS[card])
    return Planned(cuda_emit.emit(plan), plan.tile.name, plan.threads, shared, resident)


def _narrow(card: str, pattern: tuple[int, ...], dtype: str) -> Planned:
    plan = narrow_plan(kronsparse.problem(pattern, dtype=dtype), CARDS[card])
    assert plan is not None
    return Planned(cuda_emit.emit_narrow(plan), str(plan), plan.threads, 0)


def _fma(card: str, pattern: tuple[int, int, int, int], dtype: str, first: bool) -> Planned:
    given = kronsparse.problem(pattern, 1000, dtype, first)
    (plan,) = fma_candidates(given, CARDS[card])
    resident = plan.each if isinstance(plan, FmaPlan) else 1
    return Planned(cuda_emit.emit_fma(plan), str(plan), FMA_THREADS, 0, resident)


def _stream(card: str, pattern: tuple[int, int, int, int], batch: int, dtype: str) -> Planned:
    plan = stream_plan(kronsparse.problem(pattern, batch, dtype), True, CARDS[card])
    assert plan is not None
    return Planned(cuda_emit.emit_stream(plan), str(plan), plan.threads, 0)


def _stream_mma(card: str, pattern: tuple[int, int, int, int], batch: int, dtype: str, along: bool) -> Planned:
    plan = stream_mma_plan(kronsparse.problem(pattern, batch, dtype, False), along, CARDS[card])
    assert plan is not None
    resident = plan.each(CARDS[card])
    return Planned(cuda_emit.emit_stream_mma(plan), str(plan), plan.threads, plan.shared, resident)


def _fma_sum(card: str, pattern: tuple[int, int, int, int], batch: int, dtype: str, first: bool) -> Planned:
    plan = fma_sum_choice(pattern, batch, dtype, first, 16, CARDS[card])[1]
    assert plan is not None
    return Planned(sum_emit.emit_fma_sum(plan), str(plan), plan.threads, plan.shared, plan.each)


def _row_sum(card: str, pattern: tuple[int, int, int, int], dtype: str) -> Planned:
    plan = row_sum_choice(pattern, 25088, dtype, 16, 16, 3, CARDS[card])[1]
    return Planned(sum_emit.emit_row_sum(plan), str(plan), plan.threads, plan.shared)


def _block_sum(card: str, pattern: tuple[int, int, int, int], batch: int, dtype: str) -> Planned:
    plan = block_sum_plan(pattern, batch, dtype, CARDS[card])
    assert plan is not None
    resident = plan.blocks_each(CARDS[card])
    return Planned(sum_emit.emit_tile_sum(plan), str(plan), plan.threads, plan.shared, resident)


def _column_sum(card: str, pattern: tuple[int, int, int, int], dtype: str) -> Planned:
    plan = column_sum_choice(pattern, 25088, dtype, 16, 16, 3, CARDS[card])[1]
    return Planned(sum_emit.emit_column_sum(plan), str(plan), plan.threads, plan.shared)


def _wide_sum(card: str, dtype: str, first: bool, shifted: bool, groups: int, positions: int, products: int) -> Planned:
    plan = wide_tile(dtype, first, shifted, groups, positions, products, CARDS[card])
    return Planned(sum_emit.emit_tile_sum(plan), str(plan), plan.threads, plan.shared, plan.each)


def _parts(card: str, slots: int, dtype: str) -> Planned:
    plan = parts_plan(card, dtype, slots)
    return Planned(sum_emit.emit_parts(plan), str(plan), plan.threads, 0)


def _cluster(card: str, rows: int, dtype: str) -> Planned:
    plan = cluster_plan((32, 128, 128, 1), (1, 128, 128, 32), rows, dtype, True, "gelu", CARDS[card])
    assert plan is not None
    return Planned(cuda_emit.emit_cluster(plan), str(plan), plan.threads, plan.shared)


def _apart(card: str, part: int) -> Planned:
    plans = apart_plans((32, 128, 128, 1), (1, 128, 128, 32), 64, "bf16", True, "gelu", CARDS[card])
    assert plans is not None
    plan = plans[part]
    return Planned(cuda_emit.emit_cluster(plan), str(plan), plan.threads, plan.shared)


def _factor_matrix(card: str, kind: str) -> Planned:
    chain = (6, 64, 64, 1), (1, 768, 192, 2)
    own = CARDS[card]
    if kind == "matrix":
        plan, emitted = matrix_plan(*chain, "bf16", own), cuda_emit.emit_matrix
        resident = 1
    else:
        plan, emitted = matrix_gradient_plan(*chain, "f16", (True, True), True, own), cuda_emit.emit_matrix_gradient
        resident = 1 if plan is None else plan.each
    assert plan is not None
    return Planned(emitted(plan), str(plan), MATRIX_THREADS, plan.shared, resident)


def _activation(card: str, name: str, slope: bool) -> Planned:
    plan = ActivationPlan(card, "bf16", name, slope)
    return Planned(cuda_emit.emit_activation(plan), str(plan), plan.threads, 0)


def _dense(card: str, size: int) -> Planned:
    plan = dense_plan(card, (16, 11, 65, 2), size)
    return Planned(cuda_emit.emit_dense(plan), str(plan), plan.threads, 0)


def _transpose_sums(card: str, dtype: str) -> Planned:
    plan = transpose_sums_plan(card, dtype, 1, 128, 32)
    return Planned(cuda_emit.emit_transpose_sums(plan), str(plan), plan.threads, plan.shared)


def _transpose(card: str, size: int, pads: bool) -> Planned:
    plan = transpose_plan(card, size, 60, 7, pads, True)
    return Planned(cuda_emit.emit_transpose(plan), str(plan), plan.threads, plan.shared)


def _grouped(card: str, pattern: tuple[int, ...], rows: int, step: int, dtype: str) -> Planned:
    products = grouped.launches(pattern, rows, rows == 5)[step]
    plan = grouped_plan.plan_grouped(CARDS[card], dtype, products, "relu")
    return Planned(cuda_emit.emit_grouped(plan), f"{len(products)} products", plan.threads, plan.shared)


def _joined(card: str, rows: int, dtype: str, backward: bool) -> Planned:
    plan = grouped.joined(grouped.MONARCH, rows, dtype, CARDS[card], backward)[2]
    assert plan is not None
    return Planned(cuda_emit.emit_grouped(plan), f"{len(plan.tiles)} products", plan.threads, plan.shared)


def _table() -> dict[str, Kernel]:
    table = _Table()
    for name in grams.HEADLINE:
        table.add(f"gram {name}", of(_gram, name), tuple(CARDS))
    table.add("gram composition", lambda _: _planned_gram(kernels.composition()), HOPPER)
    for step in squares.STEPS:
        table.add(f"squares {step}", of(_squares, "squares", step), tuple(CARDS))
    table.add("squares symmetric main", of(_squares, "squares_symmetric", "main"), HOPPER)
    for name in rows.HEADLINE:
        table.add(f"row_reduce {name.removeprefix('rows_')}", of(_rows, name), tuple(CARDS))
    for form, names in {
        "score": ("gauss_20", "weights_40", "logsumexp_64", "costs_64"),
        "select": ("nearest_64", "weighted_50", "nearest_256", "nearest_784"), "wide": ("gauss_3_64",),
        "columns": tuple(case.name for own in ("columns", "deep") for case in forms.HEADLINE[own]),
    }.items():  # fmt: skip
        for name in names:
            table.add(f"row_reduce {form} {name}", of(_form, name), HOPPER)
    for dtype in ("bf16", "f32"):
        for how in softmax.HOW:
            name = f"softmax product {dtype}{how.removeprefix(SOFTMAX)}"
            table.add(name, of(_softmax, "product", dtype, how, 64), HOPPER)
        table.add(f"softmax product {dtype} gradients of 128", of(_softmax, "product", dtype, GRADIENTS, 128), HOPPER)
    table.add("softmax product bf16 dual numbers", of(_softmax, "product", "bf16", DUALS, 64), HOPPER)
    for how in softmax.HOW:
        table.add(f"softmax squares f32{how.removeprefix(SOFTMAX)}", of(_softmax, "squares", "f32", how, 64), HOPPER)
    table.add("vjp of rows squares 20", of(_row_vjp, SQUARES, False, 20, 1))
    table.add("vjp of rows by columns L1 3, 4 columns", of(_row_vjp, LAPLACE, True, 3, 4), HOPPER)
    table.add("row_reduce behind a gate", of(_form, "gauss_20", gated=True), HOPPER)
    for name, cards in {
        "one_signs_1": tuple(CARDS), "sixteen_signs_1": tuple(CARDS), "four_powers_1": COMPARED,
        "eight_plain_1": ("sm_80", "sm_90"), "eight_async_powers_1": HOPPER, "wide_async_signs_1": HOPPER,
    }.items():  # fmt: skip
        table.add(f"vjp {name}", of(_vjp, name), cards)
    for name, dtype, steps in (
        ("cholesky", "f64", (False, False, True, True)), ("lu", "f32", (True, False, True, True)),
        ("transposed solve", "f64", (True, True, False, True)),
    ):  # fmt: skip
        table.add(f"system {name}", _system(lambda card, t=dtype, s=steps: SystemPlan(t, 32, *s, card)))
    for width, compute in ((3, "f32"), (32, "f32"), (32, "f64"), (48, "f32"), (64, "f64")):
        table.add(f"eigen {width} {compute}", of(_eigen, width, compute))
    for name in kron.CASES:
        table.add(f"kron {name}", of(_kron, name), tuple(CARDS) if name in kron.PORTABLE else HOPPER)
    for name in kron.WGMMA:
        table.add(f"kron {name}", of(_kron_wgmma, name), HOPPER)
    for name in kron.CLUSTERS:
        table.add(f"kron {name}", of(_kron_cluster, name), HOPPER)
    for name in kron_axis.AXES:
        table.add(f"kron axis {name}", of(_kron_axis, name), HOPPER)
    for name in kron_two_axis.PASSES:
        table.add(f"kron two axes {name}", of(_kron_two_axis, name, False), HOPPER)
    for name in ("84 69 bf16", "45 27 f32"):
        table.add(f"kron two axes {name} saving", of(_kron_two_axis, name, True), HOPPER)
    for name in kron_wide.WIDE:
        table.add(f"kron wide {name}", of(_kron_wide, name), HOPPER)
    table.add("kron gram 64x64 f32", of(_kron_gram, 64, 64, 64, "f32"))
    table.add("kron gram 8x8 f32", of(_kron_gram, 8, 8, 64, "f32"), HOPPER)
    table.add("kron gram 31x63 f32", of(_kron_gram, 31, 63, 7, "f32"), HOPPER)
    table.add("kron gram 128x128 f16", of(_kron_gram, 128, 128, 1, "f16"), HOPPER)
    table.add("kron gram 60x60 f16", of(_kron_gram, 60, 60, 3, "f16"), HOPPER)
    table.add("kron gram 8x8 applied f32", of(_kron_gram, 8, 8, 64, "f32", ((8, 8),)), HOPPER)
    table.add("kron gram 32x32 applied f32", of(_kron_gram, 32, 32, 64, "f32", ((32, 32),)), HOPPER)
    table.add("kron gram 64x64 applied bf16", of(_kron_gram, 64, 64, 64, "bf16", ((8, 8), (8, 8))), HOPPER)
    table.add("kron tiles 8^4 f32", of(_kron_tiles, (8,) * 4, 8, "f32"), HOPPER)
    table.add("kron tiles 10x10 f32", of(_kron_tiles, (10, 10), 100, "f32"), HOPPER)
    table.add("kron tiles 64x64 bf16", of(_kron_tiles, (64, 64), 1, "bf16"), HOPPER)
    table.add("kron back axis 64 f32", of(_kron_back_axis, 64, 4096), HOPPER)
    table.add("kron back axis 24 f32", of(_kron_back_axis, 24, 576), HOPPER)
    table.add("kron back registers 16x16 f32", of(_kron_back_registers, (16, 16), 256, 1, "f32"), ("sm_80", "sm_90"))
    table.add("kron back registers 10x10 bf16", of(_kron_back_registers, (10, 10), 100, 1, "bf16"), HOPPER)
    table.add("kron back registers 2x6 f32", of(_kron_back_registers, (2, 6), 20, 1, "f32"), HOPPER)
    table.add("kron back registers 16x16 over 256 f32", of(_kron_back_registers, (16, 16), 1, 256, "f32"), HOPPER)
    table.add("kron back registers 5x5 over 40 bf16", of(_kron_back_registers, (5, 5), 1, 40, "bf16"), HOPPER)
    table.add("kron back registers 12x12 over 144 f16", of(_kron_back_registers, (12, 12), 1, 144, "f16"), HOPPER)
    table.add("kron chain 8^4 f32", of(_kron_chain, (8,) * 4, 1, "f32"), HOPPER)
    table.add("kron chain 12x9 f32", of(_kron_chain, (12, 9), 40, "f32"), HOPPER)
    table.add("kron chain 31x6x11 bf16", of(_kron_chain, (31, 6, 11), 1, "bf16"), HOPPER)
    table.add("kron separate 12x46 5x205 f32", of(_kron_separate, ((12, 46), (5, 205)), "f32"))
    table.add("kron separate 7x7 20x20 9x9 bf16", of(_kron_separate, ((7, 7), (20, 20), (9, 9)), "bf16"), HOPPER)
    for pattern, dtype, first, cards in (
        ((6, 64, 64, 1), "f32", True, COMPARED), ((6, 64, 64, 1), "bf16", False, COMPARED),
        ((1, 768, 192, 2), "f16", True, HOPPER), ((1, 128, 128, 3), "f32", True, HOPPER),
        ((1, 64, 64, 128), "f16", True, HOPPER), ((1, 64, 64, 128), "f32", False, COMPARED),
        ((3, 37, 45, 5), "f32", True, ("sm_80", "sm_90")), ((1, 128, 128, 16), "f16", True, HOPPER),
    ):  # fmt: skip
        order = "first" if first else "last"
        table.add(f"kronsparse main {pattern} {dtype} batch {order}", of(_kronsparse, pattern, dtype, first), cards)
    table.add("kronsparse grouped forward f32", of(_grouped, (6, 64, 64, 1), 200, 0, "f32"))
    table.add("kronsparse grouped backward bf16", of(_grouped, (1, 1024, 64, 4), 5, 1, "bf16"), HOPPER)
    table.add("kronsparse grouped backward f32", of(_grouped, (6, 64, 64, 1), 200, 1, "f32"), HOPPER)
    table.add("kronsparse joined forward f32", of(_joined, 256, "f32", False), HOPPER)
    table.add("kronsparse joined backward bf16", of(_joined, 256, "bf16", True))
    table.add("kronsparse sum over rows (3,80,112,5) f32", of(_row_sum, (3, 80, 112, 5), "f32"))
    table.add("kronsparse sum over rows (16,16,16,16) bf16", of(_row_sum, (16, 16, 16, 16), "bf16"), HOPPER)
    table.add("kronsparse sum over columns (3,80,112,5) f32", of(_column_sum, (3, 80, 112, 5), "f32"))
    table.add("kronsparse sum over columns (16,16,16,16) bf16", of(_column_sum, (16, 16, 16, 16), "bf16"), HOPPER)
    table.add("kronsparse sum of blocks (6,302,390,42) bf16", of(_block_sum, (6, 302, 390, 42), 16, "bf16"), HOPPER)
    table.add("kronsparse sum of blocks (9,52,427,29) f16", of(_block_sum, (9, 52, 427, 29), 85, "f16"), HOPPER)
    for dtype, first, shifted, tile in (
        ("f32", True, False, (2, 128, 3)), ("f32", False, False, (3, 64, 3)), ("bf16", False, False, (2, 128, 1)),
        ("f16", True, True, (1, 64, 1)),
    ):  # fmt: skip
        order, anywhere = "first" if first else "last", " anywhere" if shifted else ""
        name = f"kronsparse sum of wide blocks {dtype} {order}{anywhere}"
        table.add(name, of(_wide_sum, dtype, first, shifted, *tile), HOPPER)
    table.add("kronsparse parts of sums bf16", of(_parts, 40, "bf16"), HOPPER)
    table.add("kronsparse narrow (2,4,4,8) f32", of(_narrow, (2, 4, 4, 8), "f32"))
    table.add("kronsparse FMA (86,3,31,87) bf16", of(_fma, (86, 3, 31, 87), "bf16", True))
    table.add("kronsparse FMA (22,230,2,15) f16", of(_fma, (22, 230, 2, 15), "f16", True))
    table.add("kronsparse FMA (17,185,5,35) f32 last", of(_fma, (17, 185, 5, 35), "f32", False))
    table.add("kronsparse streamed (6,302,390,42) bf16", of(_stream, (6, 302, 390, 42), 16, "bf16"), HOPPER)
    table.add("kronsparse streamed (4,182,342,31) f32", of(_stream, (4, 182, 342, 31), 1, "f32"))
    table.add(
        "kronsparse streamed by mma (82,129,173,17) f16", of(_stream_mma, (82, 129, 173, 17), 18, "f16", True), HOPPER
    )
    table.add(
        "kronsparse streamed by mma (6,302,390,42) bf16", of(_stream_mma, (6, 390, 302, 42), 16, "bf16", False), HOPPER
    )
    table.add("kronsparse sum by fma (6,302,390,42) bf16", of(_fma_sum, (6, 302, 390, 42), 16, "bf16", True))
    table.add(
        "kronsparse sum by fma (9,144,4,11) bf16 last", of(_fma_sum, (9, 144, 4, 11), 12086, "bf16", False), HOPPER
    )
    table.add("kronsparse sum by fma (36,12,25,41) f32", of(_fma_sum, (36, 12, 25, 41), 4915, "f32", True), HOPPER)
    table.add("kronsparse dense matrix 2 bytes", of(_dense, 2))
    table.add("kronsparse slope of gelu bf16", of(_activation, "gelu", True))
    table.add("kronsparse transpose 4 bytes, padded", of(_transpose, 4, True))
    table.add("kronsparse transpose 2 bytes, back", of(_transpose, 2, False), HOPPER)
    table.add("kronsparse transpose with sums, bf16", of(_transpose_sums, "bf16"), HOPPER)
    table.add("kronsparse chain in clusters, 1 row bf16", of(_cluster, 1, "bf16"), HOPPER)
    table.add("kronsparse chain in clusters, 16 rows f32", of(_cluster, 16, "f32"), HOPPER)
    table.add("kronsparse chain in two launches, the first bf16", of(_apart, 0), HOPPER)
    table.add("kronsparse chain in two launches, the second bf16", of(_apart, 1), HOPPER)
    table.add("kronsparse matrix bf16", of(_factor_matrix, "matrix"))
    table.add("kronsparse matrix gradient apart f16", of(_factor_matrix, "gradient"), ("sm_90", "sm_100"))
    return table.rows


KERNELS = _table()
