"""Loop nests to run on a GPU, with their arrays, and what they must give: numpy in float64, written out plainly."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from kernmantle.compiler.nest import ROLES, SIZES, Buffer, Nest
from kernmantle.ir.node import Node, const, postorder, var
from kernmantle.ir.reductions import REDUCTIONS, Reduction, fold, semiring

X, Y, W, G, S0, T, P = map(var, ("x0", "x1", "w", "g", "s0", "t", "p"))
NUMPY = {
    "f16": np.float16, "f32": np.float32, "f64": np.float64, "i8": np.int8, "u8": np.uint8, "i16": np.int16,
    "i32": np.int32, "i64": np.int64, "bool": np.bool_,
}  # fmt: skip
_erf = np.vectorize(math.erf, otypes=[np.float64])
VALUES: dict[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "fmod": np.fmod, "pow": np.power,
    "neg": np.negative,
    "abs": np.abs, "sign": np.sign, "copysign": np.copysign, "min": np.minimum, "max": np.maximum, "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x), "rcp": lambda x: 1 / x, "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1,
    "log": np.log, "log2": np.log2, "log1p": np.log1p, "sin": np.sin, "cos": np.cos, "tan": np.tan,
    "acos": np.arccos, "tanh": np.tanh, "erf": _erf, "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "floor": np.floor,
    "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal,
    "ne": np.not_equal, "and": np.logical_and, "or": np.logical_or, "not": np.logical_not, "where": np.where,
}  # fmt: skip


def op(name: str, *args: Node | float) -> Node:
    """One operation, numbers as constants."""
    return Node(name, tuple(arg if isinstance(arg, Node) else const(arg) for arg in args))


@dataclass(frozen=True)
class Case:
    """A nest on sizes; ``layout`` gives the order of a buffer's axes in memory, innermost last, where not the usual."""

    name: str
    nest: Nest
    sizes: dict[str, int]
    numbers: tuple[float, ...] = ()
    layout: dict[str, str] = field(default_factory=dict)
    batched: dict[str, str] = field(default_factory=dict)
    integral: bool = False
    poison: float | None = None
    scale: float = 1.0
    tile: str | None = None

    def extents(self) -> dict[str, int]:
        """Extent of every role, 1 where the case says nothing."""
        return {role: self.sizes.get(role, 1) for role in SIZES}

    def roles(self, place: int) -> str:
        """Roles of a buffer in memory order."""
        buffer = self.nest.buffers[place]
        own = buffer.roles + ("k" if self.nest.partial and place >= len(self.nest.operands) else "")
        outer = self.batched.get(buffer.name, "abc")
        return self.layout.get(buffer.name, outer + "".join(sorted(own, key="mnlk".index)))

    def length(self, place: int, role: str) -> int:
        """Extent of a role in a buffer; ranges take the place of k in the outputs of a partial nest."""
        swapped = self.nest.partial and place >= len(self.nest.operands) and role == "k"
        return self.extents()["splits" if swapped else role]

    def strides(self, place: int) -> tuple[int, ...]:
        """Strides of a dense buffer, in elements."""
        steps, total = dict.fromkeys(ROLES, 0), 1
        for role in reversed(self.roles(place)):
            steps[role] = total
            total *= self.length(place, role)
        return tuple(steps[role] for role in ROLES)

    def count(self, place: int) -> int:
        """Elements of a buffer."""
        return math.prod(self.length(place, role) for role in self.roles(place))

    def arrays(self) -> list[np.ndarray[Any, Any]]:
        """Fresh operands in memory order, one dimension each."""
        rng = np.random.default_rng(sum(map(ord, self.name)))
        made: list[np.ndarray[Any, Any]] = []
        for place, buffer in enumerate(self.nest.operands):
            if self.nest.symmetric and buffer.name == "x1":
                made.append(made[0])
                continue
            values = self.scale * rng.standard_normal(self.count(place))
            if self.integral or buffer.dtype in ("i8", "u8", "i16", "i32", "i64"):
                values = np.abs(np.round(3 * values)) if buffer.dtype == "u8" else np.round(3 * values)
            if buffer.dtype == "bool":
                values = values > 0.3
            if buffer.dtype == "bf16":
                made.append((np.asarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16))
            else:
                made.append(np.asarray(values).astype(NUMPY[buffer.dtype]))
            if self.poison is not None and place == 0:
                made[-1][:: max(1, made[-1].size // 3)] = self.poison
        return made


def widened(flat: np.ndarray[Any, Any], dtype: str, compute: str) -> np.ndarray[Any, Any]:
    """Stored values as numbers to compute with: float64, integers or bools."""
    if dtype == "bf16":
        return (flat.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    if dtype in ("f16", "f32", "f64"):
        return flat.astype(np.float64)
    return flat.astype({"bool": np.bool_, "i32": np.int64, "i64": np.int64}.get(compute, np.float64))


def value(root: Node, env: dict[str, Any]) -> Any:
    """Value of an expression."""
    known: dict[int, Any] = {}
    for node in postorder([root]):
        if node.op == "var":
            known[id(node)] = env[node.name]
        elif node.number is not None:
            known[id(node)] = np.asarray(node.number)
        else:
            known[id(node)] = VALUES[node.op](*(known[id(arg)] for arg in node.args))
    return known[id(root)]


def _aligned(case: Case, place: int, flat: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    roles = case.roles(place)
    shaped = flat.reshape([case.length(place, role) for role in roles])
    order = [role for role in "abcmnlk" if role in roles]
    shaped = shaped.transpose([roles.index(role) for role in order])
    return shaped.reshape([case.length(place, role) if role in roles else 1 for role in "abcmnlk"])


def expected(case: Case, arrays: Sequence[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
    """What the outputs must hold, shaped (a, b, c, m, n, 1, splits)."""
    nest, sizes = case.nest, case.extents()
    outer = any("l" in buffer.roles for buffer in nest.buffers)
    length = sizes["l" if outer else "k"]
    share = -(-length // sizes["splits"])
    inputs = {
        buffer.name: _aligned(case, place, widened(arrays[place], buffer.dtype, nest.compute))
        for place, buffer in enumerate(nest.operands)
    }
    inputs |= {name: np.asarray(number) for name, number in zip(nest.numbers, case.numbers, strict=True)}
    kept = [sizes[role] for role in "abcmn"]
    pieces: list[list[np.ndarray[Any, Any]]] = []
    with np.errstate(all="ignore"):
        for split in range(sizes["splits"]):
            inside = range(split * share, min((split + 1) * share, length))
            ls, ks = (inside, range(sizes["k"])) if outer else (range(sizes["l"]), inside)
            states = _reduced(nest, inputs, itertools.product(ls, ks), kept, sizes["k"])
            pieces.append(_read(nest, inputs, states, kept))
    return [np.stack(parts, axis=-1)[..., None, :] for parts in zip(*pieces, strict=True)]


def _reduced(nest: Nest, inputs: dict[str, Any], positions: Any, kept: list[int], depth: int) -> list[list[Any]]:
    states = [[np.full(kept, init) for init in reduction.init] for reduction in nest.reductions]
    for l, k in positions:
        here = {
            name: array[..., min(l, array.shape[-2] - 1), min(k, array.shape[-1] - 1)] if array.ndim else array
            for name, array in inputs.items()
        } | {"index": np.asarray(l * depth + k)}
        for place, reduction in enumerate(nest.reductions):
            env = here | {f"s{i}": s for i, s in enumerate(states[place])}
            if not reduction.is_fold:
                env["t"] = value(nest.map[place], here)
            states[place] = [np.broadcast_to(value(node, env), kept) for node in reduction.step]
    return states


def _read(nest: Nest, inputs: dict[str, Any], states: list[list[Any]], kept: list[int]) -> list[np.ndarray[Any, Any]]:
    if nest.partial:
        return [np.broadcast_to(register, kept) for state in states for register in state]
    flat = {name: array for name, array in inputs.items() if array.ndim == 0 or array.shape[-2:] == (1, 1)}
    env = {name: array[..., 0, 0] if array.ndim else array for name, array in flat.items()}
    for place, reduction in enumerate(nest.reductions):
        registers = {f"s{i}": register for i, register in enumerate(states[place])}
        env[f"s{place}"] = value(reduction.finish, registers)
    return [np.broadcast_to(value(root, env), kept) for root in nest.outputs]


def gram(
    mapped: Node | Sequence[Node], reductions: str | Reduction | Sequence[str | Reduction] = "sum",
    outputs: Sequence[Node] | None = None, compute: str = "f32", dtype: str = "f32", out: str | None = None,
    **more: Any,
) -> Nest:  # fmt: skip
    """The usual nest: x0 over (m, k), x1 over (n, k), out over (m, n); ``more`` adds operands as name=roles."""
    maps = (mapped,) if isinstance(mapped, Node) else tuple(mapped)
    names = (reductions,) if isinstance(reductions, (str, Reduction)) else tuple(reductions)
    reduced = tuple(REDUCTIONS[name] if isinstance(name, str) else name for name in names)
    roots = tuple(outputs) if outputs is not None else tuple(var(f"s{i}") for i in range(len(reduced)))
    flags = {name: more.pop(name) for name in ("symmetric", "partial", "numbers") if name in more}
    buffers = [Buffer("x0", more.pop("x0", "mk"), dtype), Buffer("x1", more.pop("x1", "nk"), dtype)]
    buffers += [Buffer(name, roles, dtype) for name, roles in more.items()]
    kinds = [kind for reduction in reduced for kind in reduction.kinds]
    results = [{"value": compute, "bool": "bool", "index": "i64"}[kind] for kind in kinds]
    if not flags.get("partial"):
        results = [
            {"value": compute, "bool": "bool", "index": "i64"}[reduced[int(root.name[1:])].result]
            if root.op == "var"
            else compute
            for root in roots
        ]
    outs = tuple(Buffer(f"out{i}", "mn", out if out and kind == compute else kind) for i, kind in enumerate(results))
    return Nest(
        tuple(buffers), tuple(flags.get("numbers", ())), outs, maps, reduced, () if flags.get("partial") else roots,
        compute, flags.get("symmetric", False), flags.get("partial", False),
        reproducible=any(reduction.reproducible for reduction in reduced),
    )  # fmt: skip


L1, SQUARE, PRODUCT, PLUS = op("abs", op("sub", X, Y)), op("pow", op("sub", X, Y), 2), op("mul", X, Y), op("add", X, Y)
CANBERRA = op("where", op("eq", X, Y), 0, op("div", L1, op("add", op("abs", X), op("abs", Y))))
SMALL = {"m": 37, "n": 21, "k": 19}
EDGES = (
    {"m": 1, "n": 1, "k": 1},
    {"m": 65, "n": 63, "k": 17},
    {"m": 129, "n": 257, "k": 33},
    {"m": 128, "n": 128, "k": 0},
)


def _dtype_cases() -> list[Case]:
    cases = [Case(f"l1_{d}", gram(L1, dtype=d, out=d), SMALL) for d in ("f32", "f16", "bf16")]
    cases += [Case("l1_f64", gram(L1, compute="f64", dtype="f64"), SMALL)]
    cases += [Case(f"l1_{d}", gram(L1, dtype=d), SMALL) for d in ("i8", "u8", "i16", "bool")]
    cases += [Case(f"plus_{d}", gram(PLUS, "min", compute=d, dtype=d), SMALL) for d in ("i32", "i64")]
    cases += [Case("and_bool", gram(op("and", X, Y), "any", compute="bool", dtype="bool"), SMALL)]
    return [*cases, Case("or_bool", gram(op("or", X, Y), "all", compute="bool", dtype="bool"), SMALL)]


def _reduction_cases() -> list[Case]:
    names = ("sum", "prod", "min", "max", "logsumexp", "argmin", "argmax")
    cases = [
        Case(f"reduce_{name}", gram(op("sub", X, Y), name), SMALL, integral=name.startswith("arg")) for name in names
    ]
    cases += [Case(f"nan_{n}", gram(op("add", X, Y), n), SMALL, poison=math.nan, integral=True) for n in names]
    cases += [
        Case(f"infinite_{n}", gram(op("add", X, Y), n), SMALL, poison=-math.inf, integral=True)
        for n in ("min", "logsumexp", "argmin")
    ]
    cases += [Case(f"reduce_{name}", gram(op("lt", X, Y), name), SMALL) for name in ("any", "all")]
    hypot = semiring(op("sqrt", op("add", op("mul", S0, S0), op("mul", T, T))), 0)
    cases.append(Case("semiring", gram(op("sub", X, Y), hypot), SMALL))
    horner = fold(op("add", op("mul", S0, 0.5), op("mul", X, Y)), 0.25)
    cases.append(Case("fold", gram(const(0), horner), {"m": 300, "n": 5, "k": 40}))
    two = gram((L1, op("abs", op("add", X, Y))), ("sum", "sum"), (op("div", S0, var("s1")),))
    cases.append(Case("braycurtis", two, SMALL))
    both = gram((L1, SQUARE, X), ("max", "argmin", "sum"), (var("s1"), S0, var("s2")))
    return [*cases, Case("three_outputs", both, SMALL, integral=True)]


def _operand_cases() -> list[Case]:
    weighted = gram(op("mul", W, L1), w="k")
    table = gram(
        L1, outputs=(op("mul", op("add", S0, var("t0")), op("sub", var("r0"), var("c0"))),), t0="mn", r0="m", c0="n"
    )
    vjp = gram(op("mul", G, op("sign", op("sub", X, Y))), x0="mn", x1="nk", g="mk")
    cells = gram(op("mul", G, L1), g="mnk")
    outer = gram(op("mul", op("abs", op("sub", X, Y)), W), x0="ml", x1="nk", w="kl")
    power = gram(op("pow", L1, P), outputs=(op("pow", S0, op("div", 1, P)),), numbers=("p",))
    return [
        Case("weights", weighted, SMALL),
        Case("epilogue", table, SMALL),
        Case("vjp", vjp, SMALL),
        Case("cells", cells, SMALL),
        Case("outer", outer, {"m": 33, "n": 9, "k": 6, "l": 18}),
        Case("power", power, SMALL, (1.3,)),
        Case("canberra", gram(CANBERRA), SMALL),
        Case("remainders", gram(op("fmod", X, Y)), SMALL),
        Case("scalar_buffer", gram(op("mul", G, L1), g=""), SMALL),
    ]


def _shape_cases() -> list[Case]:
    cases = [Case(f"edge_{i}_{n}", gram(PLUS, n), s) for i, s in enumerate(EDGES) for n in ("min", "sum", "prod")]
    rows = replace(gram(L1, x0="mk", x1="k"), outs=(Buffer("out0", "m", "f32"),))
    none = replace(gram(L1, x0="k", x1="k"), outs=(Buffer("out0", "", "f32"),))
    columns = replace(gram(op("exp", X), x0="nk", x1="k"), outs=(Buffer("out0", "n", "f32"),))
    cases += [Case("rows", rows, {"m": 100, "k": 333}), Case("columns", columns, {"n": 100, "k": 333})]
    cases += [
        Case("all", none, {"k": 4097}),
        Case("elementwise", gram(op("exp", PLUS), x0="mn", x1="n"), {"m": 37, "n": 21}),
    ]
    cases.append(
        Case(
            "argmin_groups",
            gram(op("abs", op("floor", op("mul", X, Y))), "argmin"),
            {"m": 3, "n": 5, "k": 1000},
            integral=True,
        )
    )
    return cases


def _layout_cases() -> list[Case]:
    shape = {"m": 130, "n": 70, "k": 36}
    batch = {"a": 2, "b": 3, "m": 20, "n": 8, "k": 9}
    cases = [
        Case("transposed", gram(L1), shape, layout={"x0": "km", "x1": "kn"}),
        Case("mixed", gram(L1), shape, layout={"x0": "km", "x1": "nk", "out0": "nm"}),
        Case("batch", gram(L1), batch),
        Case("broadcast", gram(L1), batch, batched={"x0": "a", "x1": "b"}),
        Case("three_batch", gram(L1), batch | {"c": 4}, batched={"x0": "ac", "x1": "b"}),
        Case("half_transposed", gram(L1, dtype="f16", out="f16"), shape, layout={"x0": "km"}),
        Case("odd_pitch", gram(PLUS, "min"), {"m": 131, "n": 73, "k": 37}),
    ]
    splits = {"m": 7, "n": 5, "k": 100, "splits": 4}
    cases += [
        Case(f"partial_{n}", gram(op("sub", X, Y), n, partial=True), splits, integral=True)
        for n in ("sum", "logsumexp", "argmin")
    ]
    outer = gram(op("mul", X, Y), x0="ml", x1="nlk", partial=True)
    cases.append(Case("partial_outer", outer, {"m": 9, "n": 5, "k": 7, "l": 10, "splits": 4}))
    cases += [
        Case(f"symmetric_{m}", gram(op("mul", W, L1), w="k", symmetric=True), {"m": m, "n": m, "k": 12})
        for m in (5, 64, 130)
    ]
    return cases


def _turn_cases() -> list[Case]:
    """Sines in the inner loop: of moderate and of large arguments, a few of these among others, not finite."""
    shape = {"m": 70, "n": 66, "k": 45}
    difference = op("sub", X, Y)
    cases: list[Case] = []
    for name in ("sin", "cos"):
        plain = gram(op(name, difference))
        cases += [
            Case(f"{name}_turns", plain, shape, integral=True, scale=1e3),
            Case(f"{name}_large", plain, shape, integral=True, scale=2e5),
            Case(f"{name}_one_large", plain, shape, integral=True, poison=2.0**23),
            Case(f"{name}_nan", plain, shape, poison=math.nan),
            Case(f"{name}_infinite", plain, shape, poison=math.inf),
            Case(f"{name}_most", gram(op(name, difference), "max"), shape, integral=True, scale=1e2),
        ]
    both = op("add", op("mul", op("sin", X), op("cos", Y)), op("sin", op("mul", P, difference)))
    return [*cases, Case("turns_both", gram(both, numbers=("p",)), shape, (0.5,), integral=True, scale=1e2)]


def _position_cases() -> list[Case]:
    """Positions of extremes where eight values are reduced first: ties, tails, what is not finite, all layouts."""
    shape = {"m": 150, "n": 71, "k": 77}
    plus = op("add", X, Y)
    weighted = gram(op("add", op("mul", W, X), Y), "argmax", w="k", numbers=("p",), outputs=(op("mul", S0, P),))
    batch = {"a": 2, "b": 2, "m": 40, "n": 50, "k": 36}
    cases = [Case(f"positions_{n}_k{k}", gram(plus, n), shape | {"k": k}, integral=True) for n in ("argmin", "argmax")
             for k in (32, 33, 40, 64, 95)]  # fmt: skip
    cases += [
        Case(f"positions_{n}_{v:g}_k{k}", gram(plus, n), shape | {"k": k}, integral=True, poison=v)
        for n in ("argmin", "argmax") for v in (math.nan, math.inf, -math.inf) for k in (77, 300)
    ]  # fmt: skip
    cases += [
        Case(f"positions_{n}_{name}", gram(op(name, X, Y), n), shape | {"k": 300}, integral=True)
        for n in ("argmin", "argmax") for name in ("sub", "mul")
    ]  # fmt: skip
    cases += [
        Case("positions_l1", gram(L1, "argmin"), shape, integral=True),
        Case("positions_half", gram(plus, "argmin", dtype="f16", out="i64"), shape, integral=True),
        Case("positions_turned", gram(plus, "argmin"), shape, integral=True, layout={"x0": "km", "out0": "nm"}),
        Case("positions_batch", gram(plus, "argmax"), batch, integral=True, batched={"x0": "a"}),
        Case("positions_weighted", weighted, shape, (2.0,), integral=True),
    ]
    return [replace(case, tile="positions") for case in cases]


def _power_cases() -> list[Case]:
    """Powers of differences: each class, and what neither the table nor the special functions may get wrong."""
    shape = {"m": 70, "n": 66, "k": 45}
    free = gram(op("pow", L1, P), numbers=("p",))
    cases = [Case(f"power_{p}", free, shape, (p,)) for p in (0.0, 0.1, 0.5, 1.0, 1.3, 1.9, 2.0, 2.5, 3.7, 4.6, 7.0)]
    cases += [Case(f"power_literal_{p}", gram(op("pow", L1, p)), shape) for p in (0.5, 1.5, 2.5, 3, 4, 0.7)]
    cases += [Case("power_negative", gram(op("pow", L1, P), "min", numbers=("p",)), shape, (-0.5,))]
    cases += [
        Case(f"power_scaled_{s:g}", free, shape, (0.5,), scale=s) for s in (1e-41, 1e-38, 1e-33, 1e-30, 1e20, 1e37)
    ]
    cases += [Case(f"power_poison_{v:g}", free, shape, (1.3,), poison=v) for v in (math.inf, -math.inf, math.nan, 2e38)]
    cases.append(Case("power_equal", free, shape, (0.3,), integral=True))
    weighted = gram(op("mul", W, op("pow", L1, P)), w="k", numbers=("p",), symmetric=True)
    cases.append(Case("power_symmetric", weighted, {"m": 130, "n": 130, "k": 33}, (1.3,)))
    return [*(replace(case, tile="middle") for case in cases), Case("power_groups", free, shape, (1.3,))]


GAP = op("sub", X, Y)
ROOT = op("sqrt", L1)
VJP: dict[str, Any] = {"x0": "mn", "x1": "nk", "g": "mk"}


def slopes_of_powers(p: Node | float) -> Node:
    """Slope of |x0 - x1|^p, masked at 0 as derivatives are, times a cotangent."""
    slope = op("mul", op("mul", p, op("pow", L1, op("add", p, -1))), op("sign", GAP))
    return op("mul", G, op("where", op("and", op("eq", GAP, 0), op("lt", p, 1)), 0, slope))


def _root_cases() -> list[Case]:
    """Square roots of differences, alone and times the difference."""
    shape = {"m": 70, "n": 66, "k": 45}
    half, threehalves = gram(ROOT), gram(op("mul", L1, ROOT))
    cases = [Case("root", half, shape), Case("root_longer", threehalves, shape)]
    cases += [Case(f"root_scaled_{s:g}", half, shape, scale=s) for s in (1e-41, 1e-38, 1e-33, 1e37)]
    cases += [Case(f"root_poison_{v:g}", threehalves, shape, poison=v) for v in (math.inf, math.nan)]
    cases += [Case("root_equal", half, shape, integral=True), Case("root_max", gram(ROOT, "max"), shape)]
    rows = replace(gram(ROOT, x1="k"), outs=(Buffer("out0", "m", "f32"),))
    return [
        *cases,
        Case("root_rows", rows, {"m": 70, "k": 45}),
        Case("root_rows_wild", rows, {"m": 70, "k": 45}, scale=1e-39),
    ]


def _vjp_cases() -> list[Case]:
    """Gradients of distances: a cotangent over rows times a sign and a power of the difference, all layouts."""
    shape, large = {"m": 70, "n": 66, "k": 45}, {"m": 300, "n": 401, "k": 101}
    signs = gram(op("mul", G, op("sign", GAP)), **VJP)
    minus = gram(op("neg", op("mul", op("mul", G, op("sign", GAP)), W)), **VJP, w="k")
    weighted = gram(op("mul", op("mul", G, W), op("sign", GAP)), **VJP, w="n")
    linear = gram(op("mul", op("mul", G, GAP), 2), **VJP)
    free = gram(slopes_of_powers(P), **VJP, numbers=("p",))
    # the cotangent first, so that it is what is poisoned
    first = gram(op("mul", X, op("sign", op("sub", Y, W))), x0="mk", x1="mn", w="nk")
    root = gram(op("mul", op("mul", G, op("mul", op("sign", GAP), ROOT)), -1.5), **VJP)
    longer = gram(op("mul", op("mul", G, op("mul", op("mul", L1, ROOT), op("sign", GAP))), 2.5), **VJP)
    turned = {"x1": "kn", "g": "km"}
    cases = [Case("signs", signs, large), Case("signs_turned", signs, large, layout=turned)]
    cases += [
        Case("signs_held", signs, large, tile="large matrix operand"),
        Case("signs_wide", signs, shape, tile="wide"),
    ]
    cases += [Case("signs_equal", signs, large, integral=True, tile="large matrix operand")]
    cases += [
        Case(f"signs_scaled_{s:g}", signs, shape, scale=s, tile="large matrix operand")
        for s in (1e-41, 1e-33, 1e-30, 1e30)
    ]
    cases += [
        Case(f"signs_poison_{v:g}", signs, shape, poison=v, tile="large matrix operand") for v in (math.inf, math.nan)
    ]
    cases += [
        Case(f"signs_cotangent_{v:g}", first, shape, poison=v, tile="large matrix operand")
        for v in (-math.inf, math.nan)
    ]
    cases += [Case("signs_minus", minus, shape, tile="wide"), Case("signs_weighted", weighted, shape)]
    cases += [Case("signs_groups", signs, {"m": 9, "n": 5, "k": 700})]
    partial = gram(op("mul", G, op("sign", GAP)), **VJP, partial=True)
    cases += [Case("signs_partial", partial, {"m": 70, "n": 66, "k": 200, "splits": 3}, integral=True)]
    half = gram(op("mul", G, op("sign", GAP)), **VJP, dtype="f16")
    cases += [Case("signs_f16", half, shape), Case("linear", linear, large, tile="large matrix operand")]
    cases += [Case(f"vjp_{p}", free, shape, (p,), tile="table power") for p in (0.3, 0.7, 1.0, 1.3, 1.9, 2.0, 2.6, 4.2)]
    cases += [Case(f"vjp_equal_{p}", free, shape, (p,), integral=True, tile="table power") for p in (0.5, 1.0, 1.3)]
    cases += [Case(f"vjp_poison_{v:g}", free, shape, (1.3,), poison=v) for v in (math.inf, math.nan)]
    cases += [Case("vjp_transposed", free, large, (1.3,), layout=turned), Case("vjp_groups", free, SMALL, (1.3,))]
    cases += [Case(f"vjp_scaled_{s:g}", free, shape, (1.3,), scale=s) for s in (1e-41, 1e-30, 1e15)]
    cases += [Case("vjp_root", root, shape), Case("vjp_root_equal", root, shape, integral=True)]
    return [*cases, Case("vjp_longer", longer, shape, layout=turned)]


def _large_cases() -> list[Case]:
    """Enough tiles for the persistent kernels, with every way to read an operand."""
    shape = {"m": 1100, "n": 1300, "k": 71}
    aligned = shape | {"k": 100}
    half = {"f16": "f16", "bf16": "bf16"}
    cases = [Case(f"large_{n}", gram(PLUS, n), s) for n, s in (("min", shape), ("sum", aligned), ("max", aligned))]
    cases += [Case(f"large_{d}", gram(L1, dtype=d, out=o), aligned) for d, o in half.items()]
    cases += [
        Case("large_odd_f16", gram(L1, dtype="f16"), shape),
        Case("large_transposed", gram(PLUS, "min"), aligned, layout={"x0": "km", "x1": "kn"}),
        Case("large_weights", gram(op("mul", W, L1), w="k"), aligned),
        Case("large_symmetric", gram(op("mul", W, L1), w="k", symmetric=True), {"m": 1200, "n": 1200, "k": 38}),
        Case(
            "ring_symmetric", gram(op("mul", W, L1), w="k", symmetric=True), {"m": 700, "n": 700, "k": 38}, tile="ring"
        ),
        Case("ring_column", gram(L1, dtype="f16"), shape, layout={"x1": "kn"}, tile="ring"),
        Case("ring_little", gram(PLUS, "min"), {"m": 5, "n": 300, "k": 33}, tile="ring"),
        Case("large_tile", gram(SQUARE), {"m": 300, "n": 401, "k": 37}, tile="large"),
        Case("wide_tile", gram(SQUARE), {"m": 300, "n": 401, "k": 37}, layout={"x0": "km"}, tile="wide"),
        Case("deep_tile", gram(PLUS, "logsumexp"), {"m": 30, "n": 30, "k": 700}, tile="deep"),
        Case("pair_tile", gram(PLUS, "argmin"), {"m": 100, "n": 100, "k": 71}, tile="pair", integral=True),
        Case(
            "large_batch", gram(SQUARE), {"a": 3, "b": 2, "m": 300, "n": 260, "k": 64}, batched={"x0": "a", "x1": "b"}
        ),
        Case("large_epilogue", gram(L1, outputs=(op("mul", op("exp", op("neg", S0)), var("r0")), S0), r0="m"), aligned),
    ]
    for k in (1, 2, 3, 5, 8):
        cases.append(Case(f"thin_{k}", gram(PLUS, "min"), {"m": 1003, "n": 2093 + k, "k": k}))
    wide = {"m": 1003, "n": 2096, "k": 3}
    weighted = gram(op("mul", W, L1), w="k", dtype="f16", out="f16")
    cases.append(Case("thin_weights", weighted, wide, layout={"x1": "kn"}))
    cases.append(
        Case(
            "thin_batch", gram(L1, "argmin"), {"a": 2, "m": 1003, "n": 1100, "k": 4}, batched={"x1": "a"}, integral=True
        )
    )
    return cases


def _pair_cases() -> list[Case]:
    """Sums of |x - y| in pairs of float16, and the same asked for where they cannot be had."""
    plain = {dtype: replace(gram(L1, dtype=dtype, out="f32"), precision="half") for dtype in ("f16", "bf16")}
    mirrored = replace(gram(L1, dtype="f16", out="f16", symmetric=True), precision="half")
    shape = {"m": 200, "n": 130, "k": 208}
    cases = [Case(f"pairs_{dtype}", nest, shape, tile="half2") for dtype, nest in plain.items()]
    cases += [Case(f"pairs_{k}", plain["f16"], {"m": 129, "n": 65, "k": k}, tile="half2") for k in (32, 66, 74, 77)]
    cases += [
        Case("pairs_batch", plain["f16"], {"a": 2, "b": 3, "m": 20, "n": 9, "k": 72}, batched={"x0": "a"}, tile="half2")
    ]
    cases += [Case(f"pairs_poison_{v:g}", plain["f16"], shape, poison=v, tile="half2") for v in (math.inf, math.nan)]
    cases += [Case("pairs_turned", plain["f16"], shape, layout={"x0": "km"})]
    return [*cases, Case("pairs_symmetric", mirrored, {"m": 130, "n": 130, "k": 80}, tile="half2")]


def cases() -> list[Case]:
    """Every case."""
    return [
        *_dtype_cases(),
        *_reduction_cases(),
        *_operand_cases(),
        *_shape_cases(),
        *_layout_cases(),
        *_power_cases(),
        *_turn_cases(),
        *_position_cases(),
        *_root_cases(),
        *_vjp_cases(),
        *_pair_cases(),
        *_large_cases(),
    ]
