"""Random contractions and what they must give: torch in float64, every operand expanded to all axes, no library code.

A map and an epilogue are written as Python source, compiled once over ``km`` and once over torch.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch

import kernmantle as km
from kernmantle.testing import assert_close

FLOAT_UNARY = (
    "F.exp(-{0} * {0})", "F.tanh({0})", "F.sin({0})", "F.sqrt({0} * {0} + 1)", "F.log1p(abs({0}))", "abs({0})", "-{0}",
    "F.cos({0})", "F.sigmoid({0})", "(abs({0}) + 0.5) ** 1.5", "(abs({0}) + 0.5) ** {p}", "1 / ({0} * {0} + 1)",
    "({0}) ** 2", "({0}) ** 3", "F.erf({0})", "F.expm1(-abs({0}))",
)  # fmt: skip
FLOAT_BINARY = (
    "({0} + {1})", "({0} - {1})", "({0} * {1})", "{0} / ({1} * {1} + 1)", "F.maximum({0}, {1})",
    "F.minimum({0}, {1})", "F.where({0} < {1}, {0}, {1} * 0.5)", "abs({0} - {1})", "({0} - {1}) ** 2",
    "F.hypot({0}, {1} + 3.5)", "F.logaddexp({0}, {1})",
)  # fmt: skip
WHOLE_UNARY = ("-{0}", "abs({0})", "({0} * {0})", "F.sign({0})")
WHOLE_BINARY = (
    "({0} + {1})", "({0} - {1})", "({0} * {1})", "F.maximum({0}, {1})", "F.minimum({0}, {1})",
    "F.where({0} < {1}, {0}, {1})", "abs({0} - {1})",
)  # fmt: skip
COMPARISONS = ("{0} < {1}", "{0} >= {1}", "({0} < {1}) | ({0} - {1} > 1)", "~({0} <= {1})")
FLOATS = (torch.float64, torch.float64, torch.float64, torch.float32, torch.float32, torch.float16, torch.bfloat16)
WHOLES = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
BATCHES = ((), (), (), (1,), (2,), (3, 1), (3, 2), (2,))
MOST_ELEMENTS = 20_000


@dataclass
class Case:
    """One contraction with its arguments; ``parameters`` may be numbers or tensors."""

    equation: str
    map: str
    epilogue: str | None
    reduce: list[str]
    single: bool
    operands: list[torch.Tensor]
    parameters: dict[str, Any]
    options: dict[str, Any] = field(default_factory=dict)
    tracked: bool = False

    def __str__(self) -> str:
        shapes = [(tuple(t.shape), t.stride(), str(t.dtype)) for t in self.operands]
        given = {k: (tuple(v.shape), str(v.dtype)) if torch.is_tensor(v) else v for k, v in self.parameters.items()}
        return (
            f"{self.equation!r}, {self.map}, {self.epilogue}, {self.reduce}, {shapes}, {given}, "
            f"{self.options}, gradient {self.tracked}"
        )


class Torch:
    """Functions of the generated source over torch."""

    where, erf, tanh, sin, cos, exp, expm1 = (
        torch.where,
        torch.erf,
        torch.tanh,
        torch.sin,
        torch.cos,
        torch.exp,
        torch.expm1,
    )
    log1p, sqrt, sigmoid, sign = torch.log1p, torch.sqrt, torch.sigmoid, torch.sign
    maximum, minimum, hypot = torch.maximum, torch.minimum, torch.hypot

    @staticmethod
    def logaddexp(a: Any, b: Any) -> torch.Tensor:
        """Logarithm of a sum of exponentials; second derivatives of torch.logaddexp overflow where terms lie apart."""
        pair = torch.broadcast_tensors(torch.as_tensor(a), torch.as_tensor(b))
        return torch.logsumexp(torch.stack(pair), 0)


class _Generator:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.torch = torch.Generator().manual_seed(seed)

    def expression(self, leaves: list[str], depth: int, whole: bool, powers: list[str]) -> str:
        pick = self.random
        if depth == 0 or pick.random() < 0.15:
            if pick.random() < 0.2:
                return (
                    str(pick.choice((-2, 2, 3, 1, 0, -1))) if whole else repr(pick.choice((0.5, -1.25, 2.0, 3, 1, 0)))
                )
            return pick.choice(leaves)
        unary, binary = (WHOLE_UNARY, WHOLE_BINARY) if whole else (FLOAT_UNARY, FLOAT_BINARY)
        form = pick.choice(unary if pick.random() < 0.35 else binary)
        parts = [f"({self.expression(leaves, depth - 1, whole, powers)})" for _ in range(2)]
        # functions of literals alone are numbers, which torch's do not take: a leaf makes both sides traced
        if "F." in form or "abs" in form:
            parts = [
                f"({part} + 0 * {leaves[0]})" if not any(leaf in part for leaf in leaves) else part for part in parts
            ]
        return form.format(*parts, p=pick.choice(powers) if powers else "1.75")

    def operand(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Values in memory of any strides."""
        pick, wide = self.random, list(shape)
        kind = pick.choice(("plain", "plain", "transposed", "sliced", "expanded", "offset"))
        order = list(range(len(shape)))
        if kind == "transposed":
            pick.shuffle(order)
        if kind == "sliced":
            wide = [2 * size for size in shape]
        expanded = [kind == "expanded" and pick.random() < 0.5 for _ in shape]
        wide = [min(size, 1) if flat else size for size, flat in zip(wide, expanded, strict=True)]
        count = int(np.prod(wide, dtype=int)) + 1
        if dtype.is_floating_point:
            values = (torch.rand(count, generator=self.torch, dtype=torch.float64) * 4 - 2).to(dtype)
        else:
            low = 0 if dtype == torch.uint8 else -3
            values = torch.randint(low, 4, (count,), generator=self.torch).to(dtype)
        flat = values[1:] if kind == "offset" else values[:-1]
        base = flat.reshape([wide[place] for place in order])
        tensor = base.permute([order.index(place) for place in range(len(order))])
        if kind == "sliced":
            tensor = tensor[tuple(slice(None, None, 2) for _ in shape)]
        return tensor.expand(shape)


def _sizes(make: _Generator, letters: str) -> dict[str, int]:
    pick = make.random
    sizes = {letter: pick.choice((1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 33, 70)) for letter in letters}
    while np.prod(list(sizes.values()), dtype=float) > MOST_ELEMENTS / 6:
        longest = max(sizes, key=lambda letter: sizes[letter])
        sizes[longest] = max(1, sizes[longest] // 2)
    if letters and pick.random() < 0.04:
        sizes[pick.choice(letters)] = 0
    return sizes


def _parameters(make: _Generator, dtype: torch.dtype) -> dict[str, Any]:
    pick, whole = make.random, not dtype.is_floating_point
    given: dict[str, Any] = {}
    length = pick.choice((1, 3, 2))
    for name in ("p", "q")[: pick.choice((0, 0, 1, 1, 2))]:
        kind = pick.choice(("number", "number", "scalar", "batched"))
        values = torch.rand(3, generator=make.torch, dtype=torch.float64) + 0.5
        if whole:
            values = (values * 2).long()
        if kind == "number":
            given[name] = pick.choice((1, 2, 3)) if whole else pick.choice((0.5, 1, 1.5, 2, 1.3, 0.7))
        else:
            tensor = values[0] if kind == "scalar" else values[:length]
            given[name] = tensor.to(torch.int32 if whole and dtype.itemsize < 8 else dtype)
    return given


def _fits(*shapes: tuple[int, ...]) -> bool:
    try:
        torch.broadcast_shapes(*shapes)
    except RuntimeError:
        return False
    return True


def generate(seed: int) -> Case:
    """The random contraction of a seed."""
    make = _Generator(seed)
    pick = make.random
    dtype = pick.choice(FLOATS) if pick.random() < 0.8 else pick.choice(WHOLES)
    whole = not dtype.is_floating_point
    letters = "abcd"[: pick.choice((1, 2, 2, 3, 3, 3, 4))]
    count = pick.choice((1, 2, 2, 2, 3))
    axes = [
        "".join(pick.sample(letters, pick.randint(0 if pick.random() < 0.3 else 1, len(letters)))) for _ in range(count)
    ]
    used = "".join(dict.fromkeys("".join(axes)))
    out = "".join(pick.sample(used, pick.randint(0, len(used))))
    reduced = [letter for letter in used if letter not in out]
    sizes = _sizes(make, used)
    length = int(np.prod([sizes[letter] for letter in reduced], dtype=int))
    given = _parameters(make, dtype)
    batches = [pick.choice(BATCHES) for _ in axes]
    shapes = [tuple(v.shape) for v in given.values() if torch.is_tensor(v)]
    if not _fits(*batches, *shapes):
        batches = [() for _ in axes]
    operands = [make.operand((*b, *(sizes[a] for a in own)), dtype) for b, own in zip(batches, axes, strict=True)]
    named = [pick.random() < 0.2 for _ in axes]
    names = [f"w{place}" if own else "xyz"[place] for place, own in enumerate(named)]
    entries = [f"{name}:{own}" if flag else own for name, own, flag in zip(names, axes, named, strict=True)]
    positional = [name for name, flag in zip(names, named, strict=True) if not flag]
    keywords = [*(name for name, flag in zip(names, named, strict=True) if flag), *given]
    powers = [] if whole else [*given]
    accumulators = pick.choice((1, 1, 1, 2, 3))
    kinds = ["sum", "sum", "max", "min"] + ([] if whole else ["logsumexp"]) + (["prod"] if length <= 8 else [])
    kinds += ["argmin", "argmax"] if len(reduced) == 1 and length else []
    kinds += ["any", "all"]
    if length == 0:
        kinds = ["sum", "prod", *([] if whole else ["max", "min", "logsumexp"])]
    reduce = [pick.choice(kinds) for _ in range(accumulators)]
    leaves, depth = [*names, *given], pick.choice((1, 2, 2, 3))
    maps: list[str] = []
    for kind in reduce:
        text = make.expression(leaves, depth, whole, powers)
        if kind in ("any", "all"):
            other = make.expression(leaves, 1, whole, powers)
            # Beside no value at which functions saturate: rounding would decide.
            level = "" if whole else " + 0.3217"
            text = pick.choice(COMPARISONS).format(f"({text} + 0 * {names[0]})", f"({other} + 0 * {names[0]}{level})")
        maps.append(text)
    epilogue: str | None = None
    values = [f"s{place}" for place, kind in enumerate(reduce) if kind not in ("any", "all", "argmin", "argmax")]
    if values and pick.random() < 0.45 and length:
        inside = [name for name, own, flag in zip(names, axes, named, strict=True) if flag and set(own) <= set(out)]
        reads = [*pick.sample(values, pick.randint(0 if pick.random() < 0.3 else 1, len(values))), *given, *inside]
        if reads:
            arguments = ", ".join(f"s{place}" for place in range(accumulators))
            tail = "".join(f", {name}" for name in (*inside, *given))
            epilogue = f"lambda {arguments}{tail}: {make.expression(reads, 2, whole, powers)}"
    head = ", ".join([*positional, *(["*"] if keywords else []), *keywords])
    body = f"({', '.join(maps)},)" if accumulators > 1 else maps[0]
    smooth = all(kind in ("sum", "prod", "max", "min", "logsumexp") for kind in reduce)
    return Case(
        f"{','.join(entries)}->{out}", f"lambda {head}: {body}", epilogue, reduce,
        accumulators == 1 or epilogue is not None, operands, given,
        {
            "once": pick.random() < 0.3, "out": pick.random() < 0.2, "params": pick.random() < 0.2,
            "twice": pick.random() < 0.3, "precision": pick.choice((None, None, "ieee")),
        },
        dtype == torch.float64 and smooth and length > 0 and pick.random() < 0.6,
    )  # fmt: skip


def _reduced(values: torch.Tensor, kind: str, dims: list[int]) -> torch.Tensor:
    if kind in ("argmin", "argmax"):
        index = getattr(np, kind)(values.detach().numpy(), axis=dims[0])
        return torch.as_tensor(index).unsqueeze(dims[0])
    if kind == "logsumexp":
        return torch.logsumexp(values, dims, keepdim=True) if dims else values
    for dim in dims:
        if kind in ("min", "max") and values.shape[dim] == 0:
            shape = [1 if place == dim else size for place, size in enumerate(values.shape)]
            values = torch.full(shape, np.inf if kind == "min" else -np.inf, dtype=values.dtype)
        else:
            name = {"min": "amin", "max": "amax"}.get(kind, kind)
            values = getattr(torch, name)(values, dim, keepdim=True)
    return values


def brute_force(
    case: Case, operands: list[torch.Tensor], parameters: dict[str, Any]
) -> tuple[list[torch.Tensor], Any, list[torch.Tensor]]:
    """Outputs by torch, the magnitude of what was reduced, and where one axis is reduced the mapped values along it."""
    left, out = case.equation.split("->")
    split = [entry.rpartition(":") for entry in left.split(",")]
    axes = [own for _, _, own in split]
    used = out + "".join(letter for letter in dict.fromkeys("".join(axes)) if letter not in out)
    shapes = [tuple(t.shape[: t.dim() - len(own)]) for t, own in zip(operands, axes, strict=True)]
    shapes += [tuple(v.shape) for v in parameters.values() if torch.is_tensor(v)]
    batch = torch.broadcast_shapes(*shapes)
    sizes = {
        a: s
        for t, own in zip(operands, axes, strict=True)
        for a, s in zip(own, t.shape[t.dim() - len(own) :], strict=True)
    }
    full = (*batch, *(sizes[letter] for letter in used))
    views: list[torch.Tensor] = []
    for tensor, own in zip(operands, axes, strict=True):
        lead = tensor.dim() - len(own)
        order = [lead + own.index(letter) for letter in used if letter in own]
        moved = tensor.permute([*range(lead), *order])
        lengths = [sizes[letter] if letter in own else 1 for letter in used]
        views.append(moved.reshape((*tensor.shape[:lead], *lengths)).expand(full))
    scalars = {k: v if torch.is_tensor(v) else torch.tensor(v, dtype=operands[0].dtype) for k, v in parameters.items()}
    spread = {
        name: value.reshape((*value.shape, *[1] * len(used))).expand(full)
        if torch.is_tensor(value)
        else scalars[name].expand(full)
        for name, value in parameters.items()
    }
    dims = [len(batch) + place for place in range(len(out), len(used))]
    named = {name: view for (name, _, _), view in zip(split, views, strict=True) if name}
    positional = [view for (name, _, _), view in zip(split, views, strict=True) if not name]
    mapped = eval(case.map, {"F": Torch})(*positional, **named, **spread)
    mapped = list(mapped) if isinstance(mapped, tuple) else [mapped]
    mapped = [
        (value if torch.is_tensor(value) else torch.tensor(value, dtype=operands[0].dtype)).expand(full)
        for value in mapped
    ]
    finished = [_reduced(value, kind, dims) for value, kind in zip(mapped, case.reduce, strict=True)]
    if case.epilogue is not None:
        inside = {name: view for name, view in named.items() if f", {name}" in case.epilogue.partition(":")[0]}
        first = [slice(0, 1) if place in dims else slice(None) for place in range(len(full))]
        shared: dict[str, Any] = {
            name: value[tuple(first)] if torch.is_tensor(value) else value for name, value in (inside | spread).items()
        }
        result = eval(case.epilogue, {"F": Torch})(*finished, **shared)
        finished = [result if torch.is_tensor(result) else torch.tensor(result, dtype=operands[0].dtype)]
    final = (*batch, *(sizes[letter] for letter in out))
    kept = (*full[: len(full) - len(dims)], *[1] * len(dims))
    outputs = [value.expand(kept).reshape(final) for value in finished]
    magnitude = 1.0
    for value, kind in zip(mapped, case.reduce, strict=True):
        if value.is_floating_point() and value.numel():
            size = value.detach().abs()
            total = size.sum(dims).max() if kind == "sum" and dims else size.max()
            magnitude = max(magnitude, float(total), float((1 + size).prod(-1).max()) if kind == "prod" else 0.0)
    along = [value.movedim(dims[0], -1) for value in mapped] if len(dims) == 1 else []
    return outputs, 16 * magnitude, along


def _exact(value: Any) -> Any:
    if not torch.is_tensor(value):
        return value
    return value.detach().double() if value.is_floating_point() else value.long()


def _call(case: Case, operands: list[torch.Tensor], parameters: dict[str, Any]) -> list[torch.Tensor]:
    entries = [entry.rpartition(":")[0] for entry in case.equation.split("->")[0].split(",")]
    named = {name: t for name, t in zip(entries, operands, strict=True) if name}
    positional = [t for name, t in zip(entries, operands, strict=True) if not name]
    mapped, epilogue = (None if text is None else eval(text, {"F": km}) for text in (case.map, case.epilogue))
    options: dict[str, Any] = {"precision": case.options["precision"]}
    reduce = case.reduce if len(case.reduce) > 1 else case.reduce[0]
    if case.options["once"]:
        contraction = partial(km.contract, case.equation, mapped, reduce=reduce, epilogue=epilogue)
    else:
        contraction = km.Contraction(case.equation, mapped, reduce=reduce, epilogue=epilogue)
    given = {"params": parameters} if case.options["params"] else parameters

    def call(**more: Any) -> list[torch.Tensor]:
        result = contraction(*positional, **named, **given, **options, **more)
        return [*result] if isinstance(result, tuple) else [result]

    found = call()
    if case.options["twice"] and not case.tracked:
        again = call()
        assert all(torch.equal(a, b) or bool((a != a).any()) for a, b in zip(found, again, strict=True)), "called again"
    if case.options["out"] and not case.tracked:
        outs = [torch.full((*value.shape, 2), 7, dtype=value.dtype)[..., 0] for value in found]
        call(out=outs[0] if case.single else tuple(outs))
        assert all(torch.equal(a, b) or bool((a != a).any()) for a, b in zip(found, outs, strict=True)), "out="
    return found


def check(case: Case) -> int:
    """Compare a contraction with brute force: values, gradients and second gradients; how many orders there were."""
    tracked = case.tracked
    operands = [t.detach().requires_grad_(tracked) for t in case.operands]
    parameters = {
        k: v.detach().requires_grad_(tracked) if torch.is_tensor(v) else v for k, v in case.parameters.items()
    }
    found = _call(case, operands, parameters)
    exact = [_exact(t).requires_grad_(tracked) for t in operands]
    exact_parameters = {
        k: _exact(v).requires_grad_(tracked) if torch.is_tensor(v) else v for k, v in parameters.items()
    }
    wanted, magnitude, along = brute_force(case, exact, exact_parameters)
    depth = max([1, *(t.numel() for t in case.operands)])
    for place, (one, other) in enumerate(zip(found, wanted, strict=True)):
        if case.epilogue is None and case.reduce[place].startswith("arg"):  # of near ties the one or the other
            chosen, best = (along[place].detach().gather(-1, index[..., None])[..., 0] for index in (one, other))
            assert_close(chosen, best, dtype=case.operands[0].dtype, depth=depth, magnitude=magnitude)
        elif one.is_floating_point():
            assert_close(one.detach(), other.detach(), depth=depth, magnitude=magnitude)
        else:
            assert_close(one, other.to(one.dtype))
    if not tracked or not any(value.requires_grad for value in wanted):
        return 0
    leaves = [*operands, *(v for v in parameters.values() if torch.is_tensor(v))]
    exact_leaves = [*exact, *(v for v in exact_parameters.values() if torch.is_tensor(v))]
    weights = [torch.cos(torch.arange(value.numel(), dtype=torch.float64)).reshape(value.shape) for value in wanted]

    def gradients(results: list[torch.Tensor], inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        total = sum((w * value).sum() for w, value in zip(weights, results, strict=True))
        if not total.requires_grad:
            return [torch.zeros_like(value) for value in inputs]
        return list(torch.autograd.grad(total, inputs, create_graph=True, materialize_grads=True))

    first, first_wanted = gradients(found, leaves), gradients(wanted, exact_leaves)
    scale = 16 * magnitude * max([1.0, *(float(g.detach().abs().max()) for g in first_wanted if g.numel())])
    for one, other in zip(first, first_wanted, strict=True):
        assert_close(one.detach(), other.detach(), depth=depth * 64, magnitude=scale)
    weights = [torch.sin(torch.arange(value.numel(), dtype=torch.float64) + 1).reshape(value.shape) for value in first]
    second, second_wanted = gradients(first, leaves), gradients(first_wanted, exact_leaves)
    scale *= max([1.0, *(float(g.detach().abs().max()) for g in second_wanted if g.numel())])
    for one, other in zip(second, second_wanted, strict=True):
        assert_close(one.detach(), other.detach(), depth=depth * 4096, magnitude=scale)
    return 2


def run_case(seed: int) -> int:
    """Check the program of a seed; how many orders of derivatives there were."""
    return check(generate(seed))
