"""Row nests for the GPU with what they must give, by numpy; each form of the kernel has its cases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from kernmantle.backends.cuda.gram_plan import DeviceLimits
from kernmantle.backends.cuda.row_reduce_plan import CudaRowPlan, plan_rows
from kernmantle.compiler.nest import ROLES, SIZES, Layout
from kernmantle.compiler.row_reduce import HOW, PRODUCT, SELECTIONS, Apply, RowNest, lower_rows
from kernmantle.ir.definition import bind, define
from kernmantle.ir.functions import FUNCTIONS
from kernmantle.ir.ops import evaluate
from kernmantle.ir.program import Program

exp, sqrt = FUNCTIONS["exp"], FUNCTIONS["sqrt"]
BANDWIDTH = 7.0
Array = np.ndarray[Any, Any]


def _program(mapped: Any, epilogue: Any, equation: str = "mk,nk->mn") -> Program:
    return bind(define(equation, mapped, "sum", epilogue), frozenset()).program


LAPLACE = _program(lambda a, b: abs(a - b), lambda s, h: exp(-s / h))
SQUARES = _program(lambda a, b: (a - b) ** 2, lambda s, h: exp(-s / (h * h)))
NEAREST = _program(lambda a, b: (a - b) ** 2, lambda s: s)
ROOTS = _program(lambda a, b: (a - b) ** 2, sqrt)
SUM = _program(lambda a, b: (abs(a - b), (a - b) ** 2), lambda s, t, h: exp(-s / h) + exp(-t / (h * h)))
ENDS = bind(
    define("mk,nk,u:m,v:n,w:k->mn", lambda a, b, w: w * a * b, "sum", lambda s, u, v, h: s / (h + u + v)), frozenset()
).program
PRODUCTS = _program(lambda a, b: a * b, lambda s, h: exp(s / (h * h)))
WEIGHTED = bind(
    define("mk,nk,w:k->mn", lambda a, b, w: w * (a - b) ** 2, "sum", lambda s, h: exp(-s / (h * h))), frozenset()
).program
COSTS = bind(define("mk,nk,v:n->mn", lambda a, b: (a - b) ** 2, "sum", lambda s, v, h: v - s / h), frozenset()).program
TABLED = bind(
    define("mk,nk,t:mn->mn", lambda a, b: abs(a - b), "sum", lambda s, t, h: exp(-(s + t) / h)), frozenset()
).program
HALVES = {"f16": np.float16, "f32": np.float32, "f64": np.float64}


@dataclass(frozen=True)
class RowCase:
    """An apply on sizes; ``order`` gives the memory order of the arrays' two axes, "C" or "F", for x, y, v.

    With ``blocks`` no more are launched, so that each of them takes several tiles. Points are normal, times ``spread``,
    about ``middle``; row ``outlier`` of the second array is a thousand times as large.
    """

    name: str
    program: Program
    how: str
    m: int
    n: int
    k: int
    width: int = 1
    dtype: str = "f32"
    order: str = "CCC"
    poison: bool = False
    blocks: int = 0
    spread: float = 1.0
    middle: float = 0.0
    outlier: int | None = None

    @property
    def rows(self) -> RowNest:
        """The nest."""
        count = self.width if self.how in SELECTIONS else 0
        compute = "f64" if self.dtype == "f64" else "f32"
        outs = [self.dtype, *(["i64"] * (count > 0))]
        arrays = sum(not operand.number for operand in self.program.operands)
        apply = Apply(self.program, self.how, count)
        return lower_rows(apply, [self.dtype] * arrays, self.dtype, outs, compute, compute == "f32").rows

    def sizes(self) -> dict[str, int]:
        """Extent of every role."""
        return dict.fromkeys(map(str, SIZES), 1) | {"m": self.m, "n": self.n, "k": self.k, "l": self.width}

    def arrays(self) -> list[Array]:
        """Operands, and v behind them where there is one."""
        random = np.random.default_rng(len(self.name))
        sizes, made = self.sizes(), []
        buffers = [*self.rows.matrix.operands, *([self.rows.v] if self.rows.v is not None else [])]
        for place, buffer in enumerate(buffers):
            values = random.normal(size=[sizes[role] for role in buffer.roles])
            if "k" in buffer.roles and len(buffer.roles) == 2:
                values = self.spread * values + self.middle
            if place == 1 and self.outlier is not None:
                values[self.outlier] *= 1000
            values = values.astype(HALVES[self.dtype])
            if len(buffer.roles) < 2:
                values = np.abs(values)
            if self.poison and place == 0:
                values[3] = np.nan
            letter = "v" if buffer.name == "v" else buffer.name
            turned = letter in ("x0", "x1", "v") and self.order[("x0", "x1", "v").index(letter)] == "F"
            made.append(np.asfortranarray(values) if turned else values)
        return made

    def strides(self) -> list[tuple[int, ...]]:
        """Strides of every buffer for ROLES, in elements."""
        rows, sizes, found = self.rows, self.sizes(), []
        arrays = iter(self.arrays())
        for buffer in rows.buffers:
            if buffer is rows.matrix.outs[0]:
                steps: dict[str, int] = {}
            elif buffer in rows.outs:
                steps = {"m": sizes["l"], "l": 1} if "l" in buffer.roles else {"m": 1}
            else:
                array = next(arrays)
                steps = dict(zip(buffer.roles, (s // array.itemsize for s in array.strides), strict=True))
            found.append(tuple(steps.get(role, 0) for role in ROLES))
        return found

    def plan(self, limits: DeviceLimits) -> CudaRowPlan:
        """How the GPU runs it, all arrays well aligned."""
        strides = tuple(self.strides())
        return plan_rows(self.rows, self.sizes(), limits, Layout(strides, (16,) * len(strides)))

    def numbers(self) -> list[float]:
        """The program's numbers, then those folded from them."""
        own = [BANDWIDTH] * len(self.program.numbers)
        names = [operand.name for operand in self.program.numbers]
        return own + [float(v) for v in evaluate(self.rows.folded, dict(zip(names, own, strict=True)))]

    def entries(self) -> Array:
        """The matrix in float64."""
        given = [array.astype(np.float64) for array in self.arrays()[: len(self.rows.matrix.operands)]]
        x, y = given[0][:, None], given[1][None]
        s, t = np.abs(x - y).sum(-1), ((x - y) ** 2).sum(-1)
        with np.errstate(all="ignore"):
            if self.program is LAPLACE:
                return np.exp(-s / BANDWIDTH)
            if self.program is TABLED:
                return np.exp(-(s + given[2]) / BANDWIDTH)
            if self.program is NEAREST:
                return t
            if self.program is SQUARES:
                return np.exp(-t / BANDWIDTH**2)
            if self.program is SUM:
                return np.exp(-s / BANDWIDTH) + np.exp(-t / BANDWIDTH**2)
            u, v, w = given[2][:, None], given[3][None], given[4]
            return (w * x * y).sum(-1) / (BANDWIDTH + u + v)

    def expected(self) -> Array:
        """Values of the result, in float64."""
        w = self.entries()
        if self.how == PRODUCT:
            return w @ self.arrays()[-1].astype(np.float64)
        if self.how in SELECTIONS:
            keys = w if self.how == "smallest" else -w
            return np.take_along_axis(w, np.argsort(keys, 1, kind="stable")[:, : self.width], 1)
        reduced = {"sum": np.sum, "max": np.max, "min": np.min}
        return reduced[self.how](w, 1) if self.how in reduced else np.log(np.exp(w).sum(1))


def cases() -> list[RowCase]:
    """All cases: thin, tile and ring are K = 3, 20 and 40 of a Laplace kernel."""
    made = [
        RowCase(f"{how}_{k}", LAPLACE, how, 150, 300, k, 3 if how in (PRODUCT, *SELECTIONS) else 1)
        for how in HOW
        for k in (3, 20, 40)
    ]
    made += [RowCase(f"width_{c}_{k}", LAPLACE, PRODUCT, 70, 90, k, c) for c in (1, 2, 5, 17) for k in (3, 20, 40)]
    edges = [(1, 1, 0), (1, 1, 1), (129, 1, 16), (127, 257, 17), (128, 128, 32), (16, 5000, 33), (1100, 40, 2)]
    made += [RowCase(f"edge_{m}_{n}_{k}", LAPLACE, PRODUCT, m, n, k) for m, n, k in edges]
    made += [RowCase(f"{d}_{k}", LAPLACE, PRODUCT, 65, 200, k, 2, d) for d in ("f16", "f64") for k in (3, 20, 40)]
    made += [
        RowCase(f"order_{o}_{k}", LAPLACE, PRODUCT, 65, 130, k, 4, order=o) for o in ("FCC", "CFF") for k in (3, 20, 40)
    ]
    made += [RowCase(f"two_sums_{k}", SUM, PRODUCT, 65, 130, k, 2) for k in (3, 40)]
    made += [RowCase(f"ends_{k}", ENDS, PRODUCT, 65, 300, k, 2) for k in (3, 20, 40)]
    made += [
        RowCase(f"tabled_{how}_{k}", TABLED, how, 150, 131, k, 2) for how in (PRODUCT, "smallest") for k in (3, 40)
    ]
    made += [RowCase(f"tabled_{d}", TABLED, PRODUCT, 65, 200, 20, 5, d) for d in ("f16", "f64")]
    made += [
        RowCase(f"nan_{how}_{k}", LAPLACE, how, 40, 300, k, poison=True) for how in ("max", "smallest") for k in (3, 20)
    ]
    made += [RowCase(f"runs_{c}_{k}", LAPLACE, PRODUCT, 300, 700, k, c, blocks=4) for c in (1, 16) for k in (20, 70)]
    made += [RowCase(f"groups_{how}_{k}", LAPLACE, how, 260, 2051, k, 10) for how in SELECTIONS for k in (20, 40, 67)]
    made += [
        RowCase("groups_one", LAPLACE, "smallest", 257, 2048, 40, 1),
        RowCase("groups_most", LAPLACE, "largest", 256, 2060, 40, 32, blocks=7),
        RowCase("groups_table", TABLED, "smallest", 256, 2060, 18, 5),
        RowCase("groups_ends", ENDS, "largest", 256, 2060, 33, 7),
        RowCase("groups_half", LAPLACE, "smallest", 256, 2060, 40, 3, "f16"),
        RowCase("groups_turned", LAPLACE, "smallest", 256, 2060, 33, 3, order="FFC"),
        RowCase("groups_nan", LAPLACE, "smallest", 256, 2060, 40, 3, poison=True),
    ]
    made += [
        RowCase("scant_one", NEAREST, "smallest", 1, 70001, 64, 10),
        RowCase("scant_two", LAPLACE, "largest", 2, 65537, 70, 32, blocks=9),
        RowCase("scant_two_of_halves", NEAREST, "smallest", 2, 65600, 100, 9, "f16", blocks=7),
        RowCase("scant_short", LAPLACE, "smallest", 1, 66000, 3, 1, blocks=3),
        RowCase("scant_table", TABLED, "smallest", 2, 65536, 9, 5),
        RowCase("scant_ends", ENDS, "smallest", 2, 65540, 33, 7),
        RowCase("scant_half", NEAREST, "smallest", 1, 66001, 64, 4, "f16"),
        RowCase("scant_turned", NEAREST, "smallest", 1, 66001, 20, 4, order="CFC"),
    ]
    made += [RowCase(f"norms_{k}_{c}", SQUARES, PRODUCT, 300, 1100, k, c) for k in (1, 2, 3, 10, 15) for c in (1, 3)]
    made += [
        RowCase("norms_sum", SQUARES, "sum", 130, 70, 4),
        RowCase("norms_few_columns", SQUARES, PRODUCT, 130, 1, 3),
        RowCase("norms_half", SQUARES, PRODUCT, 300, 700, 3, dtype="f16"),
        RowCase("norms_turned", SQUARES, PRODUCT, 300, 700, 5, 2, order="FFC"),
        RowCase("norms_runs", SQUARES, PRODUCT, 3000, 1100, 3, blocks=4, spread=5.0),
        RowCase("norms_nan", SQUARES, PRODUCT, 300, 700, 3, poison=True),
        RowCase("norms_outlier", SQUARES, PRODUCT, 3000, 1100, 3, outlier=700, blocks=3),
        RowCase("norms_outlier_first", SQUARES, PRODUCT, 300, 700, 3, outlier=0),
        RowCase("norms_wide", SQUARES, PRODUCT, 300, 700, 3, spread=40.0),
        RowCase("norms_at_the_limit", SQUARES, PRODUCT, 300, 700, 3, spread=15.0),
        RowCase("norms_offset", SQUARES, PRODUCT, 300, 700, 3, middle=1000.0),
    ]
    return [
        *made,
        RowCase("many_rows", LAPLACE, PRODUCT, 9000, 1100, 3),
        RowCase("many_kept", LAPLACE, "largest", 40, 600, 5, 32),
        RowCase("few_rows", LAPLACE, "sum", 3, 70000, 20),
    ]
