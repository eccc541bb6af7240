"""The device library: instructions without a name in CUDA C++ are written once, in the headers of PTX."""

import re

import pytest

from kernmantle.backends.cuda.emit import headers

PTX = (
    "ptx.cuh", "ptx_wgmma.cuh", "ptx_wgmma_along.cuh", "ptx_cluster.cuh", "ptx_grid.cuh", "ptx_transpose.cuh",
)  # fmt: skip
OTHERS = sorted(set(headers()) - set(PTX))


def inline_assembly(text: str) -> list[str]:
    code = re.sub(r"//[^\n]*", "", text)
    return re.findall(r"\basm\b[^;]*", code)


@pytest.mark.parametrize("name", OTHERS)
def test_a_template_holds_no_assembly(name):
    assert inline_assembly(headers()[name]) == []


def test_assembly_is_found():
    assert inline_assembly('  asm volatile("bar.sync 1;");') != []
    assert all(inline_assembly(headers()[name]) for name in PTX)


def test_an_instruction_is_written_once():
    instructions = re.findall(r"\b((?:mma|ldmatrix|cp|mbarrier|cvt|redux|ex2|lg2)\.[\w.:]+)", headers()["ptx.cuh"])
    assert len(instructions) > 20
    # cp.async and cvt to float16 stand in two functions each: with and without padding, alone and unpacked in pairs.
    twice = {name for name in instructions if instructions.count(name) > 1}
    assert twice <= {
        "cp.async.cg.shared.global", "cp.async.ca.shared.global", "cvt.f32.f16",
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32",
    }  # fmt: skip


# What is written once: a piece of its text, and the headers that hold it.
HOMES = {
    "0x3ffff": {"ptx_wgmma.cuh"},  # the address in a descriptor of wgmma
    "cp_async_wait_group<": {"pipeline.cuh"},
    "PipelineBarriers {": {"pipeline.cuh"},
    "(267 - ": set[str](),  # a second convention of scales
}


@pytest.mark.parametrize("text", HOMES)
def test_what_kernels_share_is_written_once(text):
    assert {name for name in headers() if text in headers()[name]} == HOMES[text]


@pytest.mark.parametrize("name", sorted(headers()))
def test_a_header_includes_what_exists(name):
    included = re.findall(r'#include "([^"]+)"', headers()[name])
    assert set(included) <= set(headers())
