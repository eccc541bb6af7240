"""The LLVM text of CPU kernels, recorded as digest and counts for fixed machines, whatever machine this is.

``python -m tests.golden.llvm_texts`` records all; with a name it prints that text.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from kernmantle.backends.cpu.emit import emit
from kernmantle.backends.cpu.gram_plan import CpuPlan, plan
from kernmantle.backends.cpu.row_reduce_emit import emit_rows
from kernmantle.backends.cpu.row_reduce_plan import plan_rows
from kernmantle.backends.cpu.threads import text
from kernmantle.compiler.nest import Nest
from kernmantle.compiler.row_reduce import PRODUCT
from kernmantle.ir.node import var
from kernmantle.structured.kron import cpu_emit as kron_llvm
from kernmantle.structured.mode_product import cpu_dot_emit, cpu_small_emit, cpu_vectors
from kernmantle.structured.mode_product import cpu_emit as kronsparse_llvm
from kernmantle.structured.mode_product.cpu_plan import LANES, PLAIN, ROWS, SmallTile, Tile

from ..backend.test_cuda_compile import HEADLINE
from ..backend.test_llvm_apply import rows_of
from ..cuda.nests import L1, SQUARE, op
from ..cuda.nests import gram as nest_of
from ..cuda.vjp_nests import SLOPES
from ..cuda.vjp_nests import nest_of as vjp_of

FILE = Path(__file__).parent / "llvm" / "texts.json"
COMMAND = "python -m tests.golden.llvm_texts"
MACHINES = {"avx512": (64, 32), "avx2": (32, 16), "neon": (16, 32)}  # bytes of a vector, number of registers
BIG = {"m": 4096, "n": 4096, "k": 256, "l": 1}
SMALL = {"m": 1, "n": 1, "k": 10_000, "l": 1}
_OPCODE = re.compile(r"^\s+(?:%\S+ = )?(?:tail )?([a-z]+)", re.MULTILINE)


def _planned(nest: Nest, machine: str, sizes: dict[str, int]) -> CpuPlan:
    return plan(nest, *MACHINES[machine], dict.fromkeys("abc", 1) | sizes | {"splits": 1})


def _gram(nest: Nest, machine: str, sizes: dict[str, int]) -> str:
    return emit(_planned(nest, machine, sizes))


def _rows(form: str, count: int, compute: str, machine: str) -> str:
    return emit_rows(plan_rows(rows_of(form, count, compute, compute, compute), *MACHINES[machine], {"l": 4}))


def _grams() -> dict[str, Nest]:
    pair = nest_of((L1, SQUARE), ("sum", "max"), (op("div", var("s0"), var("s1")),))
    return {
        **{name: case.nest for name, case in HEADLINE.items() if name not in ("l1_thin", "l1_little", "l1_pairs")},
        "squares": nest_of(SQUARE), "argmax_double": nest_of(L1, "argmax", compute="f64", dtype="f64"),
        "integer_min": nest_of(L1, "min", compute="i32", dtype="i32"), "bfloat16": nest_of(L1, dtype="bf16"),
        "any": nest_of(op("lt", var("x0"), var("x1")), "any"), "prod": nest_of(L1, "prod"), "two": pair,
        "partial": nest_of(L1, "logsumexp", partial=True), "weighted": nest_of(op("mul", var("w"), L1), w="k"),
        "table": nest_of(L1, outputs=(op("exp", op("sub", var("t"), var("s0"))),), t="mn"),
        "functions": nest_of(op("add", op("erf", var("x0")), op("mul", op("sin", var("x1")), op("log1p", L1)))),
    }  # fmt: skip


def _texts() -> dict[str, Callable[[], str]]:
    found: dict[str, Callable[[], str]] = {}
    for name, nest in _grams().items():
        found[f"gram {name} avx2"] = partial(_gram, nest, "avx2", BIG)
    for name, machine in (
        ("l1", "avx512"),
        ("l1", "neon"),
        ("minplus", "neon"),
        ("power", "avx512"),
        ("l1_symmetric", "neon"),
    ):
        found[f"gram {name} {machine}"] = partial(_gram, HEADLINE[name].nest, machine, BIG)
    for name in ("l1", "power", "minplus", "logsumexp", "l1_double"):
        found[f"horizontal {name} avx2"] = partial(_gram, HEADLINE[name].nest, "avx2", SMALL)
    found["horizontal l1 avx512"] = partial(_gram, HEADLINE["l1"].nest, "avx512", SMALL)
    for kind in SLOPES:
        for machine, outputs in (("avx2", 16), ("avx512", 3)):
            own: Any = BIG | {"l": outputs}
            found[f"vjp {kind} {machine} {outputs} outputs"] = partial(_gram, vjp_of(kind), machine, own)
    found["vjp signs double"] = partial(_gram, replace(vjp_of("signs"), compute="f64"), "avx2", BIG | {"l": 16})
    for form, count in (
        (PRODUCT, 0), ("sum", 0), ("min", 0), ("logsumexp", 0), ("smallest", 5), ("largest", 20),
    ):  # fmt: skip
        found[f"row_reduce {form} avx2"] = partial(_rows, form, count, "f32", "avx2")
    found["row_reduce product avx512 double"] = partial(_rows, PRODUCT, 0, "f64", "avx512")
    for stored, compute, machine in (
        ("f32", "f32", "avx2"), ("f64", "f64", "avx2"), ("f16", "f32", "avx2"), ("bf16", "f32", "avx512"),
        ("f32", "f32", "neon"),
    ):  # fmt: skip
        found[f"kron {stored} {machine}"] = partial(kron_llvm.emit, stored, compute, *MACHINES[machine])
    for own in (
        Tile("f32", 8, 4, 3, 1, True, False, PLAIN), Tile("f32", 4, 2, 2, 2, False, True, PLAIN),
        Tile("f64", 8, 4, 2, 1, True, False, ROWS), Tile("f32", 16, 8, 2, 4, False, False, LANES),
        Tile("bf16", 16, 6, 4, 1, False, False, LANES, dot2=True), Tile("f16", 8, 4, 2, 1, False, True, PLAIN),
        Tile("bf16", 16, 8, 3, 16, True, False, LANES, dot2=True, tail=True, packed=True),
        Tile("f64", 8, 4, 2, 8, True, False, PLAIN, tail=True),
        Tile("bf16", 16, 8, 3, 4, False, True, PLAIN, dot2=True, tail=True, packed=True, shared=True),
    ):  # fmt: skip
        apart = f"{' dot2' * own.dot2}{' apart' * own.apart}{' scattered' * own.scattered}"
        apart += own.bias and f" bias {own.bias}"
        found[f"kronsparse {own}{apart}"] = partial(kronsparse_llvm.emit, own)
        found[f"kronsparse packing {own}{apart}"] = partial(kronsparse_llvm.emit_packing, own)
    for dtype in ("f32", "f64", "bf16"):
        found[f"kronsparse dot {dtype}"] = partial(cpu_dot_emit.emit, Tile(dtype, 4, 2, 4, 2, False, False, PLAIN))
    small = SmallTile("f32", 8, 2, 2, 2, True, True, True)
    found["kronsparse small"] = partial(cpu_small_emit.emit, small)
    found["kronsparse row"] = cpu_vectors.emit_row
    for machine in ("x86_64", "aarch64"):
        found[f"threads {machine}"] = partial(text, machine)
    return found


TEXTS = _texts()


def row(source: str) -> dict[str, Any]:
    """Return what is recorded of a text: its digest, and how often each instruction stands in it."""
    counts = Counter(_OPCODE.findall(source))
    digest = hashlib.sha256(source.encode()).hexdigest()[:16]
    return {"text": digest, "lines": source.count("\n"), **dict(sorted(counts.items()))}


def change(want: dict[str, Any], got: dict[str, Any]) -> str:
    """Return what differs between two rows, in words."""
    keys = sorted((want.keys() | got.keys()) - {"text"})
    found = [f"{key} {want.get(key, 0)} -> {got.get(key, 0)}" for key in keys if want.get(key, 0) != got.get(key, 0)]
    return ", ".join(found) or "as many of every instruction"


def main() -> None:
    """Record, or print a text."""
    if len(sys.argv) > 1:
        sys.stdout.write(TEXTS[" ".join(sys.argv[1:])]())
        return
    lines = [f" {json.dumps(name)}: {json.dumps(row(emit()))}" for name, emit in TEXTS.items()]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
