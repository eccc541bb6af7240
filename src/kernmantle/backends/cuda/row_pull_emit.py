"""CUDA C++ of derivatives by points of few numbers: an instantiation of ``pull_rows.cuh``, with its plan."""

from __future__ import annotations

from dataclasses import dataclass

from ...compiler.row_pull import RowPull
from ...ir.node import Node
from .row_reduce_emit import ApproximateEmitter
from .spelling import Typed, cast

ENTRY, THREADS = "kernmantle_kernel", 256
MOST_NUMBERS, MOST_COLUMNS = 64, 4
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


@dataclass(frozen=True)
class RowPullPlan:
    """A kernel for points of ``depth`` numbers and ``columns`` columns of v."""

    pull: RowPull
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
        return f"pull of rows {self.arch}, {self.depth} numbers a point, {self.columns} columns of v, f32"


def emit(plan: RowPullPlan) -> str:
    """Return the source of the kernel ``ENTRY``."""
    numbers: dict[str, Typed] = {name: (f"number.v{i}", "value") for i, name in enumerate(plan.pull.numbers)}
    ends: dict[str, Typed] = {plan.pull.own: ("a", "value"), plan.pull.other: ("b", "value")}

    def function(head: str, node: Node, names: dict[str, Typed]) -> list[str]:
        writer = ApproximateEmitter(names, True, approximate=True)
        (value,) = writer.expressions([node])
        body = [f"        {text}" for text in (*writer.code, f"return {cast(value, 'value')};")]
        return [f"    static __device__ __forceinline__ C {head} {{", *body, "    }"]

    count = len(plan.pull.numbers)
    parameters = [*_POINTERS, *(f"km::i64 {name}" for name in _SIZES), *(f"double v{i}" for i in range(count))]
    operands = "C a, C b, const Numbers& number"
    arguments = ", ".join(["own", "other", "g", "v", "out", "gate", *_SIZES, "number"])
    return "\n".join(
        [
            f"// {plan}",
            '#include "pull_rows.cuh"',
            "",
            "struct Body {",
            "    typedef float C;",
            "    struct Numbers {",
            *(f"        C v{i};  // {name}" for i, name in enumerate(plan.pull.numbers)),
            "    };",
            *function(f"map({operands})", plan.pull.map, numbers | ends),
            *function(f"partial({operands})", plan.pull.partial, numbers | ends),
            *function("slope(C s, const Numbers& number)", plan.pull.slope, numbers | {"s0": ("s", "value")}),
            "};",
            "",
            f'extern "C" __global__ void __launch_bounds__({THREADS}, {plan.resident}) {ENTRY}(',
            f"    {', '.join(parameters)}) {{",
            f"    const Body::Numbers number = {{{', '.join(f'float(v{i})' for i in range(count))}}};",
            f"    km::pull_rows<Body, {plan.depth}, {plan.columns}>({arguments});",
            "}",
            "",
        ]
    )
