"""The machine code of the representative kernels is no worse than recorded; ``cuda_code`` says by which rule.

``python -m tests.golden.cuda_code`` records what changed.
"""

from __future__ import annotations

import copy
import re
from functools import cache

import pytest

from kernmantle.backends.cuda.emit import headers
from kernmantle.backends.cuda.nvrtc import compile_source, inlined

from ..golden import compiled, cuda_code
from ..golden.cuda_code import COMMAND, cards, class_of, compiler, digest, disassembled, launch, measured, read, worse
from ..golden.cuda_kernels import CARDS, COMPARED, KERNELS

ROWS = [(name, card) for name, kernel in KERNELS.items() for card in kernel.cards]
COMPILED = [(name, card) for name, card in ROWS if card in COMPARED][::17]
record = cache(read)


def check(name: str, card: str, want: cuda_code.Record) -> None:
    """Compare a kernel with its row: by the text, else by what the compiler makes of it."""
    planned = KERNELS[name].make(card)
    if digest(planned.source, card) == want["text"]:
        assert launch(planned) == {key: want[key] for key in launch(planned)}
        return
    if compiler() != record(card)["compiler"]:
        pytest.skip(f"recorded with {record(card)['compiler']}, this is {compiler()}: only texts can be compared")
    change = worse(want, measured(name, card))
    assert not change, f"{name} on {card} got worse: {'; '.join(change)}. If that is meant, `{COMMAND}` records it"


@pytest.mark.parametrize(("name", "card"), ROWS)
def test_is_no_worse_than_recorded(name: str, card: str) -> None:
    check(name, card, record(card)["kernels"][name])


@pytest.mark.parametrize(("name", "card"), COMPILED)
def test_the_record_is_what_the_compiler_makes(name: str, card: str) -> None:
    want = record(card)["kernels"][name]
    if compiler() != record(card)["compiler"] or digest(KERNELS[name].make(card).source, card) != want["text"]:
        pytest.skip(f"recorded with {record(card)['compiler']} from another text")
    assert measured(name, card) == want


def test_every_row_is_recorded_and_no_other() -> None:
    for card in cards():
        assert set(record(card)["kernels"]) == {name for name, own in ROWS if own == card}
    assert set(COMPARED) <= set(cards()) <= set(CARDS)


@pytest.mark.parametrize(("name", "card"), ROWS)
def test_what_is_recorded_fits_the_card(name: str, card: str) -> None:
    row, limits = record(card)["kernels"][name], CARDS[card]
    most = max(row["entries"].values(), key=lambda facts: facts["registers"])
    assert 0 < most["registers"] <= 255
    assert most["registers"] * row["threads"] * row["resident"] <= limits.registers_per_sm
    assert row["shared"] <= limits.shared_per_block
    assert row["shared"] * row["resident"] <= limits.shared_per_sm
    assert all(
        facts["instructions"] > 0 and facts.get("other", 0) < 0.05 * facts["instructions"]
        for facts in row["entries"].values()
    )


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_asserts_the_shared_memory_of_its_launch(name: str) -> None:
    """The compiler itself compares the bytes that the template uses with those that the plan reserves."""
    planned = KERNELS[name].make(KERNELS[name].cards[0])
    checked = re.findall(r"static_assert\(.*[Ss](?:HARED|hared)_(?:BYTES|bytes).* (?:==|<=) (\d+), ", planned.source)
    assert checked or planned.shared == 0


def test_every_template_is_in_a_kernel() -> None:
    """A header without a row here could get worse unseen."""
    texts = [inlined(KERNELS[name].make(card).source, headers()) for name, card in ROWS if card in COMPARED]
    for name, text in headers().items():
        lines = [line for line in text.splitlines() if "(" in line and not line.startswith(("#", "//"))]
        assert any(lines[0] in text and lines[-1] in text for text in texts), name


MADE = {"registers": 40, "stack": 0, "spill_stores": 0, "spill_loads": 0, "static_shared": 0, "instructions": 1000,
        "fp32": 500, "shared load": 100, "integer": 300}  # fmt: skip
ROW = {"threads": 256, "shared": 1024, "resident": 2, "entries": {"main": MADE}}


@pytest.mark.parametrize(
    ("key", "value", "bad"),
    [
        ("registers", 41, True), ("registers", 39, False), ("spill_stores", 4, True), ("spill_loads", 4, True),
        ("stack", 8, True), ("static_shared", 16, True), ("fp32", 510, False), ("fp32", 511, True),
        ("shared load", 103, True), ("shared load", 102, False), ("tensor", 3, True), ("integer", 400, False),
        ("instructions", 1050, False), ("instructions", 1051, True),
    ],
)  # fmt: skip
def test_the_rule(key: str, value: int, bad: bool) -> None:
    other = copy.deepcopy(ROW)
    other["entries"]["main"][key] = value
    change = worse(ROW, other)
    assert bool(change) == bad
    assert all(key in line for line in change)


@pytest.mark.parametrize(("key", "value"), [("threads", 128), ("shared", 512), ("resident", 1), ("entries", {})])
def test_another_launch_is_no_equal(key: str, value: object) -> None:
    assert worse(ROW, {**ROW, key: value})


def test_a_kernel_that_got_worse_is_seen() -> None:
    name, card = "system cholesky", "sm_90"
    want = copy.deepcopy(record(card)["kernels"][name])
    want["text"] = "another"
    check(name, card, want)
    want["entries"]["km_system"]["registers"] -= 1
    with pytest.raises(AssertionError, match=r"got worse: km_system: registers \d+ -> \d+\. If that is meant"):
        check(name, card, want)


def test_instructions_are_counted() -> None:
    source = """extern "C" __global__ void k(float* x, double* y) {
        __shared__ float s[32];
        s[threadIdx.x] = x[threadIdx.x]; __syncthreads();
        x[threadIdx.x] = s[31 - threadIdx.x] * s[3] + s[4]; atomicAdd(y, y[1] * y[2]); }"""
    counts = disassembled(compile_source(source, "sm_90", {}, "k").binary)["k"]
    classes = {class_of(opcode) for opcode in counts}
    assert {
        "fp32",
        "fp64",
        "global load",
        "global store",
        "shared load",
        "shared store",
        "atomic",
        "barrier",
    } <= classes
    assert class_of("NEWOP") == "other"


def test_comments_and_spaces_are_no_text() -> None:
    one = "__global__ void k() { }"
    assert digest(one, "sm_90") == digest("// says something\n__global__  void k() {\n /* more */ }", "sm_90")
    assert digest(one, "sm_90") != digest(one, "sm_80") != digest(one.replace("k()", "l()"), "sm_80")


EMPTY = 'extern "C" __global__ void empty() {}'


def test_what_is_recorded_is_not_compiled_again(monkeypatch) -> None:
    """But one kernel in twelve, which is compared; a text that is new is compiled."""
    assert compiled.compile_source(EMPTY, "sm_90", {}).binary != compiled.MAGIC
    texts = [EMPTY.replace("empty", f"empty{number}") for number in range(60)]
    checked = [text for text in texts if int(compiled.key(text, "sm_90"), 16) % compiled.CHECKED == 0]
    others = [text for text in texts if text not in checked]
    wrong = {compiled.key(text, "sm_90"): "Used 7 registers" for text in (checked[0], others[0])}
    monkeypatch.setattr(compiled, "record", lambda: wrong)
    found = compiled.compile_source(others[0], "sm_90", {})
    assert (found.binary, found.resources.registers) == (compiled.MAGIC, 7)
    with pytest.raises(AssertionError, match="recorded with another log"):
        compiled.compile_source(checked[0], "sm_90", {})


def test_a_log_is_recorded_for_a_text_its_target_and_settings() -> None:
    keys = [compiled.key(EMPTY, "sm_90"), compiled.key(EMPTY, "sm_80"), compiled.key(EMPTY, "sm_90", False)]
    assert len(set(keys)) == 3
    assert compiled.key(f"// a comment\n{EMPTY}  ", "sm_90") == keys[0]
    assert compiled.key(EMPTY.replace("empty", "other"), "sm_90") != keys[0]
