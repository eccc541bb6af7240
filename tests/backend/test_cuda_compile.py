"""Every kind of kernel compiles for every generation; what some are written as is recorded by ``golden.cuda_code``."""

import itertools
import re
from dataclasses import replace

import pytest

from kernmantle import config
from kernmantle.backends.cuda import nvrtc, tiles
from kernmantle.backends.cuda.arch import ARCHS
from kernmantle.backends.cuda.emit import emit, headers
from kernmantle.backends.cuda.gram_plan import CudaPlan, DeviceLimits, candidates, plan
from kernmantle.backends.cuda.nvrtc import inlined, options, resources
from kernmantle.backends.cuda.spelling import ExpressionEmitter
from kernmantle.compiler.nest import Layout
from kernmantle.errors import CompileError
from kernmantle.ir.ops import OPS
from kernmantle.torch_ops import cuda

from ..cuda.nests import GAP, L1, PLUS, ROOT, VJP, Case, G, cases, gram, op, slopes_of_powers, var
from ..golden.compiled import compile_source

CARDS = {**tiles.CARDS, "sm_86": DeviceLimits("sm_86", 84)}
POWER = gram(op("pow", L1, var("p")), outputs=(op("pow", var("s0"), op("div", 1, var("p"))),), numbers=("p",))
CUBE = gram(op("mul", L1, op("mul", GAP, GAP)), outputs=(op("pow", var("s0"), var("r")),), numbers=("r",))
BIG, LONG = {"m": 30000, "n": 30000, "k": 1024}, {"m": 8192, "n": 512, "k": 8192}
HEADLINE = {
    "l1": Case("l1", gram(L1), BIG),
    "l1_symmetric": Case("l1_symmetric", gram(L1, symmetric=True), BIG),
    "minplus": Case("minplus", gram(PLUS, "min"), BIG),
    "power": Case("power", POWER, BIG, (1.3,)),
    "cube": Case("cube", CUBE, BIG, (1 / 3,)),
    "l1_half": Case("l1_half", gram(L1, dtype="f16"), BIG),
    "l1_pairs": Case("l1_pairs", replace(gram(L1, dtype="f16"), precision="half"), BIG),
    "l1_double": Case("l1_double", gram(L1, compute="f64", dtype="f64"), BIG),
    "l1_thin": Case("l1_thin", gram(L1), {"m": 30000, "n": 30000, "k": 3}),
    "l1_little": Case("l1_little", gram(L1), {"m": 512, "n": 512, "k": 64}),
    "roots": Case("roots", gram(op("mul", L1, ROOT)), BIG),
    "signs": Case("signs", gram(op("mul", G, op("sign", GAP)), **VJP), LONG),
    "linear": Case("linear", gram(op("mul", op("mul", G, GAP), 2), **VJP), LONG),
    "vjp": Case("vjp", gram(slopes_of_powers(var("p")), **VJP, numbers=("p",)), LONG, (1.3,)),
    "argmin": Case("argmin", gram(L1, "argmin"), BIG),
    "logsumexp": Case("logsumexp", gram(PLUS, "logsumexp"), BIG),
}
SPILL_FREE = 64


def planned(case: Case, card: str) -> CudaPlan:
    buffers = range(len(case.nest.buffers))
    facts = Layout(tuple(case.strides(i) for i in buffers), (16,) * len(buffers))
    names = [tile.name for tile in candidates(case.nest, case.extents(), CARDS[card])]
    return plan(case.nest, case.extents(), CARDS[card], facts, case.tile if case.tile in names else None)


@pytest.mark.parametrize(
    ("case", "card"), list(zip(cases()[::6], itertools.cycle(CARDS))), ids=lambda value: getattr(value, "name", value)
)
def test_every_kind_of_nest_compiles(case: Case, card: str) -> None:
    chosen = planned(case, card)
    assert chosen.shared <= CARDS[card].shared_per_block
    cubin = compile_source(emit(chosen), card, headers(), case.name)
    assert cubin.binary[:4] == b"\x7fELF"
    assert cubin.resources.registers > 0


@pytest.mark.parametrize("name", OPS)
def test_every_operation_compiles(name: str) -> None:
    """Compile what is put in place and what is called, where an operation of the cost "long" is, in both types."""
    bodies = []
    for prefix, apart in (("a", False), ("b", True)):
        emitter = ExpressionEmitter({"x": ("x[0]", "value")}, True, prefix, apart=apart)
        ((text, _),) = emitter.expressions([op(name, *(var("x"),) * OPS[name].arity)])
        bodies += [*emitter.code, f"x[1] += C({text});"]
    source = (
        f'#include "scalar.cuh"\ntemplate <class C> __device__ void apply(C* x) {{ {" ".join(bodies)} }}\n'
        'extern "C" __global__ void each(float* x, double* y) { apply(x); apply(y); }\n'
    )
    assert nvrtc.compile_source(source, "sm_90", headers(), name).binary[:4] == b"\x7fELF"


@pytest.mark.parametrize("tile", tiles.TILES, ids=lambda tile: tile.name)
def test_every_tile_compiles_and_keeps_its_accumulators(tile: tiles.Tile) -> None:
    having = [name for name, limits in CARDS.items() if limits.has(tile.requires)]
    card = "sm_90" if "sm_90" in having else having[0]
    ranks = {}
    for name, case in HEADLINE.items():
        names = [each.name for each in candidates(case.nest, case.extents(), CARDS[card])]
        if tile.name in names:
            ranks[name] = names.index(tile.name)
    assert ranks, "no kind of nest takes this tile: what it requires, or its shared memory, leaves none"
    chosen = planned(replace(HEADLINE[min(ranks, key=ranks.__getitem__)], tile=tile.name), card)
    assert chosen.tile.name == tile.name
    cubin = compile_source(emit(chosen), card, headers(), tile.name)
    assert cubin.resources.spill_stores <= 4 * tile.rows * tile.columns, "more is spilled than there are accumulators"


@pytest.mark.parametrize("card", CARDS)
def test_every_card_has_a_kernel_of_every_kind(card: str) -> None:
    chosen = planned(HEADLINE["l1"], card)
    assert chosen.shared <= CARDS[card].shared_per_block
    assert CARDS[card].has(chosen.tile.requires)
    assert compile_source(emit(chosen), card, headers(), card).resources.spill_stores <= SPILL_FREE


def test_sizes_reach_the_source_only_through_the_tile() -> None:
    case = HEADLINE["l1"]
    larger = replace(case, sizes={"m": 31000, "n": 29992, "k": 1032})
    assert emit(planned(case, "sm_90")) == emit(planned(larger, "sm_90"))
    assert emit(planned(case, "sm_90")) != emit(planned(HEADLINE["l1_thin"], "sm_90"))


def test_a_number_is_an_argument_not_text() -> None:
    case = HEADLINE["power"]
    source = emit(planned(case, "sm_90"))
    assert source == emit(planned(replace(case, numbers=(2.7,)), "sm_90"))
    assert "double v0" in source
    assert "1.3" not in source


def test_a_compiler_error_is_one_clear_error() -> None:
    with pytest.raises(CompileError, match=r"kernel 'broken' did not compile for sm_90a: "):
        nvrtc.compile_source("__global__ void broken() { nonsense }", "sm_90", {}, "broken")


def test_a_target_that_the_compiler_does_not_know_is_said(monkeypatch) -> None:
    monkeypatch.setitem(ARCHS, "sm_999", replace(ARCHS["sm_90"], name="sm_999", target="sm_999a"))
    with pytest.raises(CompileError, match=r"for sm_999a: nvrtc \d+\.\d+ compiles for .*sm_90.*: install a newer CUDA"):
        nvrtc.compile_source("__global__ void empty() {}", "sm_999", {}, "empty")


def test_lines_of_source_are_in_a_binary_on_request() -> None:
    source = "__global__ void lined(float* x) { x[threadIdx.x] *= 2; }"
    plain, lined = (nvrtc.compile_source(source, "sm_90", {}, "lined", debug=debug) for debug in (False, True))
    assert b".debug_line" in lined.binary
    assert b".debug_line" not in plain.binary
    assert options("sm_90", debug=True) != options("sm_90")
    keys = []
    for debug in (False, True):
        with config(debug=debug):
            keys.append(cuda.job_for(source, "sm_90", "lined"))
    assert keys[0].key.digest != keys[1].key.digest
    assert keys[1].build().binary == lined.binary


def test_the_report_is_read_from_the_log() -> None:
    log = "8 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads\nUsed 40 registers, 512 bytes smem"
    found = resources(log)
    assert (found.registers, found.spill_stores, found.spill_loads, found.stack, found.shared) == (40, 12, 16, 8, 512)


def test_headers_are_put_in_place_once() -> None:
    text = inlined(
        '#include "a.cuh"\n#include "b.cuh"\nend\n', {"a.cuh": "#pragma once\nA\n", "b.cuh": '#include "a.cuh"\nB\n'}
    )
    assert re.findall(r"\w+", text) == ["A", "B", "end"]


def test_no_header_mentions_a_toolkit_file() -> None:
    for text in headers().values():
        assert "#include <" not in text
