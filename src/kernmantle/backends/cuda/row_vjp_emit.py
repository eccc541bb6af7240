"""CUDA C++ of derivatives by points of few numbers: an instantiation of ``vjp_rows.cuh``, with its plan."""

from __future__ import annotations

from dataclasses import dataclass

from ...compiler.hoist import Folded, fold
from ...compiler.row_vjp import RowVjp
from ...ir.node import Node
from .row_reduce_emit import ApproximateEmitter
from .spelling import ExpressionEmitter, Typed, cast, literal

ENTRY, THREADS = "kernmantle_kernel", 256
MOST_NUMBERS, MOST_COLUMNS = 64, 4  # numbers of a point and columns of v that a thread has registers for
LARGEST = 3.4028234663852886e38
"""The largest float32, within which numbers are that a kernel reads; NaN stays."""
_TWO_BLOCKS = 32
"""Most numbers a point of which two blocks of a multiprocessor have the registers."""
_POINTERS = (
    "const float* own",
    "const float* other",
    "const float* g",
    "const float* v",
    "float* out",
    "const int* gate",
)
_SIZES = ("rows", "columns", "parts")
_LEAST_PART, _MOST_PARTS, _ROUNDS, _BYTES = 1024, 256, 6, 256 << 20
"""Fewest columns of a part, most parts, waves of blocks, bytes of the parts."""


@dataclass(frozen=True)
class RowVjpPlan:
    """A kernel for points of ``depth`` numbers and ``columns`` columns of v."""

    vjp: RowVjp
    depth: int
    columns: int
    arch: str

    @property
    def resident(self) -> int:
        """Blocks of a multiprocessor."""
        return 2 if self.depth <= _TWO_BLOCKS else 1

    def parts(self, rows: int, columns: int, multiprocessors: int) -> int:
        """Return the parts of the columns, so that all blocks together fill the device some times."""
        wanted = -(-_ROUNDS * self.resident * multiprocessors // -(-rows // THREADS))
        limit = _BYTES // (4 * rows * self.depth)
        return max(1, min(wanted, columns // _LEAST_PART, _MOST_PARTS, limit))

    def __str__(self) -> str:
        return f"vjp of rows {self.arch}, {self.depth} numbers a point, {self.columns} columns of v, f32"


def emit(plan: RowVjpPlan) -> str:
    """Return the source of the kernel ``ENTRY``."""
    vjp = plan.vjp
    made = fold([vjp.slope], [*vjp.numbers, *vjp.scalars], letter="h")
    members = [*vjp.numbers, *vjp.scalars, *made.names]
    numbers: dict[str, Typed] = {name: (f"number.v{i}", "value") for i, name in enumerate(members)}
    ends: dict[str, Typed] = {vjp.own: ("a", "value"), vjp.other: ("b", "value")}

    def function(head: str, node: Node, names: dict[str, Typed]) -> list[str]:
        emitter = ApproximateEmitter(names, True, approximate=True)
        (value,) = emitter.expressions([node])
        body = [f"        {text}" for text in (*emitter.code, f"return {cast(value, 'value')};")]
        return [f"    static __device__ __forceinline__ C {head} {{", *body, "    }"]

    count, scalars = len(vjp.numbers), len(vjp.scalars)
    parameters = [*_POINTERS, *(f"const float* scalar{i}" for i in range(scalars))]
    parameters += [*(f"km::i64 {name}" for name in _SIZES), *(f"double v{i}" for i in range(count))]
    operands = "C a, C b, const Numbers& number"
    arguments = ", ".join(["own", "other", "g", "v", "out", "gate", *_SIZES, "number"])
    values = ", ".join([*(f"float(v{i})" for i in range(count)), *(f"*scalar{i}" for i in range(scalars))])
    return "\n".join(
        [
            f"// {plan}",
            '#include "vjp_rows.cuh"',
            "",
            "struct Body {",
            "    typedef float C;",
            "    struct Numbers {",
            *(f"        C v{i};  // {name}" for i, name in enumerate(members)),
            "    };",
            *function(f"map({operands})", vjp.map, numbers | ends),
            *function(f"partial({operands})", vjp.partial, numbers | ends),
            *function("slope(C s, const Numbers& number)", made.outputs[0], numbers | {"s0": ("s", "value")}),
            "};",
            "",
            f'extern "C" __global__ void __launch_bounds__({THREADS}, {plan.resident}) {ENTRY}(',
            f"    {', '.join(parameters)}) {{",
            *_made(made, numbers, values),
            f"    km::vjp_rows<Body, {plan.depth}, {plan.columns}>({arguments});",
            "}",
            "",
        ]
    )


def _made(made: Folded, numbers: dict[str, Typed], values: str) -> list[str]:
    """Return the statements of the numbers that the functions read; some are made of tensors, within float32."""
    if not made.names:
        return [f"    const Body::Numbers number = {{{values}}};"]
    emitter = ExpressionEmitter(numbers, True)
    found = [cast(value, "value") for value in emitter.expressions(made.values)]
    largest = literal(LARGEST, "value")
    code = [f"Body::Numbers number = {{{values}}};", "typedef Body::C C;", *emitter.code]
    for name, value in zip(made.names, found, strict=True):
        within = f"{value} > {largest} ? {largest} : {value} < -{largest} ? -{largest} : {value}"
        code.append(f"{numbers[name][0]} = {within};")
    return [f"    {text}" for text in code]
