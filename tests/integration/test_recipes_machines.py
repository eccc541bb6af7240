"""CONTRIBUTING.md's recipes of machines: a tile, a GPU generation and a backend, made up, in a copy of the library.

Only what the recipe names is written; wrong entries must make a test fail.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from ..copied import Copy, named_for

TILES, ARCH, BACKEND = (f"src/kernmantle/backends/{file}" for file in ("cuda/tiles.py", "cuda/arch.py", "madeup"))
COMPILED, OF_ROWS = (f"tests/backend/test_cuda_{name}.py" for name in ("compile", "apply"))
LAYERS, CONTRACT = "tests/unit/test_layers.py", "tests/integration/test_contract.py"
TILE = '    Tile("madeup", 16, 16, {cells}, 16, 1, 4, 2, 0.0),\n'
ROW_TILE = '    Tile("made-up rows", 16, 8, {cells}, 16, 1, 4, 3, 1.0),\n'
GENERATION = '    Arch("sm_999", "sm_90a", _HOPPER, 132, {block} << 10, 228 << 10, threads_per_sm=2048),\n'
ROW = '''"""A made-up machine: the nest as loops over the CPU's memory."""

from ...backend import Backend

BACKEND = Backend("madeup", "cpu", "backends.madeup.loops", automatic=False)
'''
LOOPS = '''"""Runs nests as Python's loops, one number after the other."""

import ctypes
from itertools import product

from ...compiler.nest import SIZES, size_slot, stride_slot
from ...ir.ops import evaluate
from ...runtime.launcher import Launcher

_TYPES = {"f32": ctypes.c_float, "f64": ctypes.c_double, "i32": ctypes.c_int32, "i64": ctypes.c_int64,
          "bool": ctypes.c_bool}


class MadeupTarget:
    name = "madeup"

    def parallel(self, device):
        return 1

    def takes_vjp(self, found, program, sizes, compute):
        return False

    def prepare(self, nest, integers, alignment, device):
        values = integers.tolist()
        return Launcher(lambda pointers, numbers: _run(nest, values, pointers, numbers), "loops")


def _run(nest, values, pointers, numbers):
    def entry(buffer, at):
        own = nest.buffers[buffer]
        roles = [role for role in at if role in "abc" or role in own.roles or (buffer >= inputs and role == "k")]
        offset = sum(at[role] * values[stride_slot(buffer, role)] for role in roles)
        kind = _TYPES[own.dtype]
        return kind.from_address(pointers[buffer] + offset * ctypes.sizeof(kind))

    def read(at):
        buffers = [buffer for buffer, own in enumerate(nest.operands) if set(own.roles) <= at.keys()]
        found = {nest.operands[buffer].name: entry(buffer, at).value for buffer in buffers}
        return {**found, **dict(zip(nest.numbers, numbers))}

    inputs = len(nest.operands)
    size = {role: values[size_slot(role)] for role in SIZES}
    cut = "l" if any("l" in buffer.roles for buffer in nest.operands) else "k"
    splits = size["splits"] if nest.partial else 1
    for *outer, part in product(*(range(size[role]) for role in "abcmn"), range(splits)):
        at = dict(zip("abcmn", outer))
        spans = {role: (0, size[role]) for role in "lk"}
        spans[cut] = part * size[cut] // splits, (part + 1) * size[cut] // splits
        registers = [list(reduction.init) for reduction in nest.reductions]
        for l, k in product(range(*spans["l"]), range(spans["k"][0] + START, spans["k"][1])):
            known = read({**at, "l": l, "k": k})
            for state, reduction, value in zip(registers, nest.reductions, evaluate(nest.map, known)):
                own = {f"s{i}": number for i, number in enumerate(state)}
                state[:] = evaluate(reduction.step, {**known, **own, "t": value, "index": l * size["k"] + k})
        if nest.partial:
            for buffer, value in enumerate((value for state in registers for value in state), inputs):
                entry(buffer, {**at, "k": part}).value = value
            continue
        finished = {}
        for i, (state, reduction) in enumerate(zip(registers, nest.reductions)):
            own = {f"s{i}": number for i, number in enumerate(state)}
            finished[f"s{i}"] = evaluate([reduction.finish], own)[0]
        for buffer, value in enumerate(evaluate(nest.outputs, {**read(at), **finished}), inputs):
            entry(buffer, at).value = value


TARGET = MadeupTarget
'''
PROGRAM = """
import torch, kernmantle as km
from kernmantle.cli.info import backend_state
x, y, v = (torch.randn(n, d, dtype=torch.float64) for n, d in ((6, 4), (5, 4), (5, 2)))
factors = [torch.randn(2, 2, dtype=torch.float64)] * 2
def found(backend):
    with km.config(backend=backend):
        power, root = lambda a, b, p: abs(a - b) ** p, lambda s, p: s ** (1 / p)
        scaled = km.contract("mk,nk->mn", power, x, y, p=1.3, epilogue=root)
        nearest = km.contract("mk,nk->mn", lambda a, b: a + b, x, y, reduce="argmin")
        step = x.clone().requires_grad_()
        km.cdist(step, y).sum().backward()
        return scaled, nearest, km.Gaussian(2.0).matmul(x, y, v), km.kron_matmul(x, factors), step.grad
for got, want in zip(found("madeup"), found("reference"), strict=True):
    km.testing.assert_close(got, want, depth=20)
print(backend_state("madeup"))
"""


def edits(right: bool) -> list[tuple[str, str, str]]:
    """Rows of the tables."""
    return [
        (TILES, '    Tile("least"', TILE.format(cells="4, 8" if right else "16, 16")),
        (TILES, '    Tile("apply small"', ROW_TILE.format(cells="2, 4" if right else "16, 16")),
        (ARCH, '    Arch("sm_120"', GENERATION.format(block=227 if right else 300)),
    ]


def folder(right: bool) -> dict[str, str]:
    """Files of the backend; the wrong one leaves out the first of what is reduced."""
    loops = LOOPS.replace("START", "0" if right else "1")
    return {f"{BACKEND}/__init__.py": ROW, f"{BACKEND}/loops.py": loops}


class Machines(Copy):
    """The copy with all of them, the wrong ones or the right ones."""

    def __init__(self, root: Path, right: bool) -> None:
        super().__init__(root, edits(right), folder(right))
        self.names = "madeup or made-up or cards" + " or sm_999" * right

    @cache  # noqa: B019
    def outcomes(self) -> str:
        """What the tests of the new rows and of the new folder came to, a line each."""
        files = [COMPILED, OF_ROWS, "tests/unit/test_arch.py", LAYERS, f"{CONTRACT}::test_an_equation"]
        return self.tests("-k", self.names, *files)

    def of(self, part: str, *files: str) -> set[str]:
        """Outcomes of the tests of some files, or of all, with a part of a name."""
        found = re.findall(rf"^(PASSED|FAILED|ERROR) (\S+?)::\S*{re.escape(part)}", self.outcomes(), re.MULTILINE)
        return {result for result, file in found if not files or file in files}


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> Machines:
    return Machines(tmp_path_factory.mktemp("right"), True)


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> Machines:
    return Machines(tmp_path_factory.mktemp("wrong"), False)


@pytest.mark.slow
def test_a_tile_is_a_row(right, wrong):
    assert right.of("[madeup]", COMPILED) == {"PASSED"}, right.outcomes()[-4000:]
    assert wrong.of("[madeup]", COMPILED) == {"FAILED"}
    assert right.of("[made-up rows]", OF_ROWS) == {"PASSED"}, right.outcomes()[-4000:]
    assert wrong.of("[made-up rows]", OF_ROWS) == {"FAILED"}


@pytest.mark.slow
def test_a_generation_is_a_row(right, wrong):
    assert right.of("[sm_999]") == right.of("rows_with_multiprocessors") == {"PASSED"}, right.outcomes()[-4000:]
    assert wrong.of("rows_with_multiprocessors") == {"FAILED"}
    assert "sm_999" in right.run("-m", "kernmantle", "inspect", "--help")


@pytest.mark.slow
def test_a_backend_is_a_folder(right, wrong):
    assert right.run("-c", PROGRAM).strip() == "works"
    said = wrong.run("-c", f"from kernmantle.cli.info import backend_state as state; print(state('madeup'))\n{PROGRAM}")
    assert "no: its results are wrong" in said
    assert "AssertionError" in said
    assert "FAILED" not in right.of("madeup"), right.outcomes()[-3000:]
    assert right.of("madeup.loops]", LAYERS) == right.of("[madeup-", CONTRACT) == {"PASSED"}
    assert "FAILED" in wrong.of("[madeup-", CONTRACT)


def test_the_page_of_recipes_names_every_file_that_is_touched():
    assert TILES in named_for("a tile")
    assert ARCH in named_for("a GPU generation")
    assert {"src/kernmantle/backends/", "src/kernmantle/__init__.py"} <= named_for("a backend")
    assert {Path(file).parent.as_posix() for file in folder(right=True)} == {BACKEND}
    assert {file for file, *_ in edits(right=True)} == {TILES, ARCH}
