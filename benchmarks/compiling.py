"""Compiling for an H200, on any machine: ``python -m benchmarks.compiling NAME`` prints seconds of NVRTC.

The first number is what a new process pays, the second is without loading the compiler.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from kernmantle.backends.cuda import emit, vjp_emit
from kernmantle.backends.cuda.gram_plan import plan
from kernmantle.backends.cuda.nvrtc import compile_source
from kernmantle.backends.cuda.squares_plan import squares_plan
from kernmantle.backends.cuda.tiles import CARDS
from kernmantle.backends.cuda.vjp_plan import plan_vjp, takes_vjp
from kernmantle.compiler.gradient_patterns import recognised_vjp
from kernmantle.compiler.lower import lower
from kernmantle.compiler.nest import Layout, sizes_of, strides_of
from kernmantle.ir.functions import FUNCTIONS
from kernmantle.ir.program import Program
from kernmantle.torch_ops.contract import Contraction
from kernmantle.torch_ops.layout import arguments, geometry, strided

from .case import Probe, Suite, Target

LIMITS = CARDS["sm_90"]
WIDE, DEEP = 30000, 1024
_GRAM, _ARRAYS = "mk,nk->mn", ((WIDE, DEEP), (WIDE, DEEP))
_GRADIENT = "md,nd,mn,no->omd"


def _slopes(outputs: int) -> tuple[tuple[int, ...], ...]:
    return (10000, 768), (10000, 768), (10000, 10000), (10000, outputs)


def _exp(s: Any, w: Any) -> Any:
    return FUNCTIONS["exp"](-s * w)


Form = tuple[Contraction, tuple[tuple[int, ...], ...]]
FORMS: dict[str, Callable[[], Form]] = {
    "p=1": lambda: (Contraction(_GRAM, lambda a, b: abs(a - b)), _ARRAYS),
    "p=1.3": lambda: (Contraction(_GRAM, lambda a, b, p: abs(a - b) ** p, epilogue=lambda s, p: s ** (1 / p)), _ARRAYS),
    "p=2": lambda: (Contraction(_GRAM, lambda a, b: (a - b) ** 2, epilogue=FUNCTIONS["sqrt"]), _ARRAYS),
    "gaussian": lambda: (Contraction(_GRAM, lambda a, b: (a - b) ** 2, epilogue=_exp), _ARRAYS),
    "laplace": lambda: (Contraction(_GRAM, lambda a, b: abs(a - b), epilogue=_exp), _ARRAYS),
    "min-plus": lambda: (Contraction(_GRAM, lambda a, b: a + b, reduce="min"), _ARRAYS),
    "backward p=1": lambda: (
        Contraction("mk,nk,mn->mk", lambda a, b, g: g * FUNCTIONS["sign"](a - b)), (*_ARRAYS, (WIDE, WIDE))
    ),
    "gradient p=1": lambda: (
        Contraction(_GRADIENT, lambda z, x, w, c: c * w * FUNCTIONS["sign"](z - x)), _slopes(1)
    ),
    "gradient p=1, 32 outputs": lambda: (
        Contraction(_GRADIENT, lambda z, x, w, c: c * w * FUNCTIONS["sign"](z - x)), _slopes(32)
    ),
    "gradient p=1.3": lambda: (
        Contraction(_GRADIENT, lambda z, x, w, c, q: c * w * FUNCTIONS["sign"](z - x) * abs(z - x) ** q), _slopes(1)
    ),
}  # fmt: skip


def sources(program: Program, shapes: Sequence[tuple[int, ...]]) -> list[str]:
    """The sources of dense float32 arrays of these shapes on an H200, as a call would compile them side by side."""
    geo, found = geometry(program, shapes), recognised_vjp(program)
    found = found if found and takes_vjp(found, program, geo.sizes, "f32") else None
    lowering = lower(program, geo.sizes, ["f32"] * len(shapes), ["f32"], "f32", LIMITS.sm_count, found)
    named = [operand for operand in program.operands if not operand.number]
    outer = geo.out_shape(program.out)
    buffers = [strided(op.axes, shape, _dense(shape), 0) for op, shape in zip(named, shapes, strict=True)]
    buffers.append(strided(program.out, outer, _dense(outer), 0))
    values = arguments(lowering, geo, buffers, [0]).integers.tolist()
    sizes, facts = sizes_of(values), Layout(strides_of(values), (16,) * len(buffers))
    nest = replace(lowering.nest, precision="default")
    vjp = plan_vjp(nest, sizes, LIMITS, facts)
    if vjp is not None:
        main, *others = vjp.kernels
        return [vjp_emit.emit(vjp, names) for names in ([main], others)]
    squares = squares_plan(nest, sizes, LIMITS, facts)
    if squares is not None:
        return [emit.emit(each) for each in (squares.split, squares.main, squares.direct)]
    return [emit.emit(plan(nest, sizes, LIMITS, facts))]


def _dense(shape: Sequence[int]) -> tuple[int, ...]:
    steps = [1]
    for extent in reversed(shape[1:]):
        steps.append(steps[-1] * extent)
    return tuple(reversed(steps))


def seconds(name: str) -> float:
    """Writing and compiling a form."""
    begin = time.perf_counter()
    call, shapes = FORMS[name]()
    texts = sources(call.program, shapes)
    with ThreadPoolExecutor(len(texts)) as pool:
        for _ in pool.map(lambda text: compile_source(text, LIMITS.arch, emit.headers(), name), texts):
            pass
    return time.perf_counter() - begin


SUITE = Suite(
    "compile",
    "cpu",
    tuple(Probe(name, f"kernels of {name}, for an H200", f"cuda {name}", (Target("seconds", 1),)) for name in FORMS),
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Compile one form twice in this process."""
    parser = argparse.ArgumentParser("benchmarks.compiling", description=__doc__)
    parser.add_argument("name", choices=list(FORMS))
    name = parser.parse_args(arguments).name
    print(json.dumps([seconds(name), seconds(name)]))


if __name__ == "__main__":
    main()
