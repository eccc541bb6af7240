"""Random contractions of scores and what they must give: torch in float64 on the whole matrix, no library code."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

import kernmantle as km
from kernmantle.testing import assert_close

from .random_programs import Torch, _Generator

INNER = (
    ("mk,nk->mn", "a, b"), ("mk,nk->mn", "a, b"), ("mk,nk,k->mn", "a, b, w"), ("km,kn->mn", "a, b"),
    ("nk,mk->mn", "a, b"), ("m,n->mn", "a, b"), ("mk,nk,m,n->mn", "a, b, c, d"), ("mjk,nkj->mn", "a, b"),
)  # fmt: skip
REDUCTIONS = (
    "sum", "sum", "product", "product", "softmax", "softmax", "logsumexp", "min", "max", "argmin", "argmax", "any",
    "all", "smallest", "largest", "ratio", "both", "none", "total",
)  # fmt: skip
_ULP = 2.0**-52
SMOOTH = ("sum", "product", "softmax", "logsumexp", "ratio", "none", "total")


@dataclass
class Nest:
    """A contraction of scores with its arguments: sources of the lambdas, tensors by axes, and what reduces rows."""

    inner: str
    names: str
    map: str
    finish: str
    outer: str
    leaves: str
    outer_map: str
    kind: str
    tensors: list[torch.Tensor]
    others: list[torch.Tensor]
    p: Any
    q: float
    count: int

    def __str__(self) -> str:
        shapes = [tuple(t.shape) for t in (*self.tensors, *self.others)]
        return f"{self.inner!r} {self.map} {self.finish}; {self.outer!r} {self.outer_map} {self.kind} {shapes} {self.p}"


def generate(seed: int) -> Nest:
    """Return the case of a seed."""
    make = _Generator(seed)
    pick = make.random
    dtype = torch.float32 if pick.random() < 0.25 else torch.float64
    inner, names = pick.choice(INNER)
    sizes = {"m": pick.choice((1, 2, 9, 17)), "n": pick.choice((1, 3, 8, 33)), "c": pick.choice((1, 2, 5))}
    sizes |= {"k": pick.choice((1, 2, 5)), "j": 2}
    batch = pick.choice(((), (), (2,), (3, 1)))
    leaves = names.split(", ")
    mapped = make.expression(leaves, 2, False, ["p"])
    finish = make.expression(["s", "s", "p"], 1, False, ["p"])
    kind = pick.choice(REDUCTIONS)
    row, column = pick.choice(("mn", "nm"))
    further = [axes for axes in ("m", "n", "mn") if pick.random() < 0.4]
    wide = column + ("c" if pick.random() < 0.7 else "")
    weighted = kind in ("product", "ratio", "softmax")
    entries = ["mn", *further, *([wide] if weighted else [])]
    out = {"none": "mn", "total": ""}.get(kind, row + wide[1:] * weighted)
    own = ["s", *(f"o{i}" for i in range(len(further)))]
    value = f"F.sin({make.expression([*own, 's'], 2, False, ['q'])} + 0 * s)"
    if kind in ("any", "all"):
        value = f"{value} > 0.3217"
    if weighted:
        own.append("v")
        pairs = {"product": f"({value}) * v", "ratio": f"(({value}) * v, 2 + ({value}))", "softmax": f"({value}, v)"}
        value = pairs[kind]
    if kind == "both":
        value = f"({value}, {value})"

    def tensor(axes: str, lead: tuple[int, ...]) -> torch.Tensor:
        return make.operand((*lead, *(sizes[axis] for axis in axes)), dtype)

    left = inner.partition("->")[0].split(",")
    tensors = [tensor(axes, batch if i == 0 else ()) for i, axes in enumerate(left)]
    others = [tensor(axes, batch[-1:] if pick.random() < 0.3 else ()) for axes in entries[1:]]
    p = torch.tensor(1.25, dtype=dtype) if pick.random() < 0.5 else 0.75
    count = pick.randint(1, sizes[column])
    return Nest(
        inner, names, mapped, finish, f"{','.join(entries)}->{out}", ", ".join(own), value, kind, tensors, others, p,
        1.5, count,
    )  # fmt: skip


def _reduce(case: Nest) -> Any:
    if case.kind in ("smallest", "largest"):
        return getattr(km, case.kind.capitalize())(case.count)
    names = {"product": "sum", "ratio": "sum", "both": ("max", "min"), "none": "sum", "total": "sum"}
    return names.get(case.kind, case.kind)


def call(case: Nest, tensors: list[torch.Tensor], others: list[torch.Tensor], p: Any) -> list[torch.Tensor]:
    """Return the results of the library."""
    contraction = km.Contraction(
        case.inner, eval(f"lambda {case.names}, p: {case.map}", {"F": km}),
        epilogue=eval(f"lambda s, p: {case.finish}", {"F": km}),
    )  # fmt: skip
    outer = eval(f"lambda {case.leaves}, q: {case.outer_map}", {"F": km})
    more = {"epilogue": lambda one, two: one / two} if case.kind == "ratio" else {}
    scores = contraction.lazy(*tensors, p=p)
    result = km.contract(case.outer, outer, scores, *others, reduce=_reduce(case), q=case.q, **more)
    return [*result] if isinstance(result, tuple) else [result]


def _spread(tensor: torch.Tensor, axes: str, used: str) -> torch.Tensor:
    """View of a tensor whose last axes are all that are used, of extent 1 where it lacks them."""
    lead = tensor.dim() - len(axes)
    view = tensor.permute([*range(lead), *(lead + axes.index(axis) for axis in used if axis in axes)])
    for place, axis in enumerate(used):
        if axis not in axes:
            view = view.unsqueeze(lead + place)
    return view


def brute_force(case: Nest, tensors: list[torch.Tensor], others: list[torch.Tensor], p: Any) -> list[torch.Tensor]:
    """Return the results by torch on the whole matrix, then the values that rows were reduced from."""
    left, _, out = case.inner.partition("->")
    summed = [axis for axis in "jk" if axis in left]
    used = out + "".join(summed)
    views = [_spread(t, axes, used) for t, axes in zip(tensors, left.split(","), strict=True)]
    p = p if torch.is_tensor(p) else torch.tensor(p, dtype=torch.float64)
    shape = torch.broadcast_shapes(*(view.shape for view in views))
    mapped = eval(f"lambda {case.names}, p: {case.map}", {"F": Torch})(*views, p)
    mapped = (mapped if torch.is_tensor(mapped) else torch.tensor(mapped, dtype=torch.float64)).expand(shape)
    total = mapped.sum([-1 - i for i in range(len(summed))]) if summed else mapped
    s = eval(f"lambda s, p: {case.finish}", {"F": Torch})(total, p)
    s = (s if torch.is_tensor(s) else torch.tensor(s, dtype=torch.float64)).expand(total.shape)
    entries, _, result = case.outer.partition("->")
    entries = entries.split(",")
    row, column = (result[:1] or "m"), next(axis for axis in "nm" if axis != (result[:1] or "m"))
    used = row + column + "c"
    views = [_spread(t, axes, used) for t, axes in zip([s, *others], [entries[0], *entries[1:]], strict=True)]
    found = eval(f"lambda {case.leaves}, q: {case.outer_map}", {"F": Torch})(*views, case.q)
    found = [value.expand(torch.broadcast_shapes(*(v.shape for v in views))) for value in
             (found if isinstance(found, tuple) else (found,))]  # fmt: skip
    c = "c" in result

    def shaped(value: torch.Tensor) -> torch.Tensor:
        return value if c else value[..., 0]

    first = found[0]
    if case.kind == "softmax":
        results = [shaped((torch.softmax(first, -2) * found[1]).sum(-2))]
    elif case.kind == "ratio":
        results = [shaped(first.sum(-2) / found[1].sum(-2))]
    elif case.kind == "both":
        results = [first.amax(-2)[..., 0], first.amin(-2)[..., 0]]
    elif case.kind in ("smallest", "largest"):
        chosen = first[..., 0].topk(case.count, -1, case.kind == "largest")
        results = [chosen.values, chosen.indices]
    elif case.kind == "none":
        results = [first[..., 0]]
    elif case.kind == "total":
        results = [first[..., 0].sum((-1, -2))]
    else:
        name = {"product": "sum", "min": "amin", "max": "amax"}.get(case.kind, case.kind)
        results = [shaped(getattr(torch, name)(first, -2))]
    return [*results, first[..., 0]]


def is_tracked(case: Nest) -> bool:
    """Return whether derivatives of a case are compared."""
    return case.kind in SMOOTH and case.tensors[0].dtype == torch.float64


def _tangent(function: Any, case: Nest, leaves: list[torch.Tensor]) -> torch.Tensor:
    """Return the tangent of the first result, by all leaves at once."""
    count = len(case.tensors)

    def of_leaves(*given: torch.Tensor) -> torch.Tensor:
        p = given[-1] if torch.is_tensor(case.p) else case.p
        return function(case, [*given[:count]], [*given[count : count + len(case.others)]], p)[0]

    # torch makes no dual number of an expanded tensor
    primals = tuple(leaf.detach().clone(memory_format=torch.contiguous_format) for leaf in leaves)
    along = [torch.sin(1 + torch.arange(t.numel(), dtype=t.dtype, device=t.device)).reshape(t.shape) for t in primals]
    return torch.func.jvp(of_leaves, primals, tuple(along))[1]


def _uncertain(right: Sequence[torch.Tensor], others: Sequence[Sequence[torch.Tensor]]) -> float:
    """Return how large terms are: as values, and by what roundings of the inputs, which give ``others``, move these."""
    sizes = [64.0, *(float(value.abs().max()) for value in right if value.numel())]
    for other in others:
        sizes += [float((one - two).abs().max()) / _ULP for one, two in zip(right, other, strict=True) if one.numel()]
    return max(sizes)


def _rounded(tensor: torch.Tensor, step: float) -> torch.Tensor:
    """Return a tensor whose entries are larger or smaller by one rounding."""
    signs = torch.cos(step * torch.arange(tensor.numel(), dtype=torch.float64)).reshape(tensor.shape)
    return (tensor.detach() * (1 + _ULP * signs)).requires_grad_()


def check(case: Nest, derivatives: int, device: str = "cpu") -> None:
    """Compare a contraction of scores with brute force: values, and so many orders of derivatives where they are.

    With derivatives the tangent of forward mode is compared too.
    """
    tracked = derivatives > 0 and is_tracked(case)
    tensors, others = (
        [t.detach().to(device).requires_grad_(tracked) for t in each] for each in (case.tensors, case.others)
    )
    exact = [[t.detach().double().requires_grad_(tracked) for t in each] for each in (case.tensors, case.others)]
    p = case.p.to(device, copy=True).requires_grad_(tracked) if torch.is_tensor(case.p) else case.p
    exact_p = case.p.double().clone().requires_grad_(tracked) if torch.is_tensor(case.p) else case.p
    found = [value.cpu() for value in call(case, tensors, others, p)]
    exact_leaves = [*exact[0], *exact[1], *([exact_p] if torch.is_tensor(exact_p) else [])]
    # all inputs a rounding larger, then every other one smaller
    moved = [[_rounded(t, step) for t in exact_leaves] for step in (0.0, math.pi)]

    def of_leaves(each: list[torch.Tensor]) -> list[torch.Tensor]:
        rest = each[len(tensors) :]
        return brute_force(case, each[: len(tensors)], rest[: len(others)], rest[-1] if torch.is_tensor(p) else p)

    *wanted, values = brute_force(case, *exact, exact_p)
    *others_of_wanted, others_of_values = zip(*map(of_leaves, moved), strict=True)
    depth = 4096
    for one, other, others_of_other in zip(found, wanted, others_of_wanted, strict=True):
        assert one.shape == other.shape, f"shape {tuple(one.shape)}, not {tuple(other.shape)}"
        if one.dtype == torch.bool:
            assert torch.equal(one, other)
            continue
        right, rest = other.detach(), others_of_other
        if one.dtype == torch.int64:  # of near ties the one or the other
            index = one[..., None] if case.kind.startswith("arg") else one
            best = other[..., None] if case.kind.startswith("arg") else other
            one, other = (values.detach().gather(-1, each) for each in (index, best))
            right, rest = values.detach(), others_of_values
        size = _uncertain([right], [[each.detach()] for each in rest])
        assert_close(one.detach(), other.detach(), dtype=tensors[0].dtype, depth=depth, magnitude=size)
    if not (tracked and found[0].requires_grad and wanted[0].requires_grad):
        return
    leaves = [*tensors, *others, *([p] if torch.is_tensor(p) else [])]
    tangent, *others_of_it = (_tangent(brute_force, case, each) for each in (exact_leaves, *moved))
    size = _uncertain([tangent], [[other] for other in others_of_it])
    assert_close(_tangent(call, case, leaves).cpu(), tangent, depth=depth * 64, magnitude=size)
    results = [(found[0], leaves), (wanted[0], exact_leaves)]
    results += [(of_leaves(each)[0], each) for each in moved]
    for order in range(derivatives):
        shape = results[0][0].shape
        weights = torch.cos(torch.arange(shape.numel(), dtype=torch.float64) + order).reshape(shape)
        slopes = [
            torch.autograd.grad((weights * result).sum(), inputs, create_graph=True, materialize_grads=True)
            for result, inputs in results
        ]
        mine, right, *others_of_right = ([g.detach() for g in each] for each in slopes)
        size = _uncertain(
            [*right, results[1][0].detach()], [[*each, results[1][0].detach()] for each in others_of_right]
        )
        for one, other in zip(mine, right, strict=True):
            assert_close(one.cpu(), other, depth=depth * 64, magnitude=size)
        results = [
            (sum(g.square().sum().cpu() for g in each), inputs)
            for each, (_, inputs) in zip(slopes, results, strict=True)
        ]
        if not all(result.requires_grad for result, _ in results):
            return
