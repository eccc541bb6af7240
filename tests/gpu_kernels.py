"""Kernels of structured products, interpreted: what a launch is told to do with memory, in float64.

An interpreter has the plan of a kernel, the blocks of a launch, and its arguments, addresses and numbers, alone. It
reads and writes memory through strided views, which must lie in the storage that an address belongs to and that is
still there, and rounds what it writes. What blocks share among them, one has here.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count as numbers
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional

from kernmantle.structured.kron import cuda_entry, factor_gradient_emit, gradient_emit, separation
from kernmantle.structured.mode_product import cuda_emit
from kernmantle.structured.mode_product.plan import Problem
from kernmantle.structured.mode_product.transpose_plan import padded
from kernmantle.torch_ops import cuda
from kernmantle.torch_ops.dtypes import DTYPES


class Memory:
    """The storages of the tensors whose addresses were asked for, and the launches that read and wrote them.

    ``images`` are weights in the order of a kernel, which memory has as their number.
    """

    def __init__(self) -> None:
        self.launches = Counter[str]()
        self._address_of = torch.Tensor.data_ptr
        self._storages = dict[int, StorageWeakRef]()
        self.images = list[torch.Tensor]()

    def address(self, tensor: torch.Tensor) -> int:
        """Return the address of a tensor, as ``data_ptr`` does."""
        address, storage = self._address_of(tensor), tensor.untyped_storage()
        self._storages[storage.data_ptr()] = StorageWeakRef(storage)
        return address

    def view(
        self, address: int, dtype: str, sizes: Sequence[int], strides: Sequence[int] | None = None
    ) -> torch.Tensor:
        """Return the numbers from an address on, in rows where no strides are given."""
        kind, steps = DTYPES[dtype], strides or [math.prod(sizes[axis + 1 :]) for axis in range(len(sizes))]
        if 0 in sizes:
            return torch.empty(*sizes, dtype=kind)
        reach = 1 + sum((extent - 1) * step for extent, step in zip(sizes, steps, strict=True))
        for begin, held in self._storages.items():
            storage = torch.UntypedStorage._new_with_weak_ptr(held.cdata)
            if storage is not None and begin <= address < begin + storage.nbytes():
                first, rest = divmod(address - begin, kind.itemsize)
                there = storage.nbytes() // kind.itemsize - first
                assert not rest, "an address lies within a number"
                assert reach <= there, f"{tuple(sizes)} by {tuple(steps)} reach {reach} numbers, there are {there}"
                return torch.empty(0, dtype=kind).set_(storage, first, tuple(sizes), tuple(steps))
        raise AssertionError("an address is that of no tensor")


def _aligned(count: int, dtype: str, address: int, *steps: int) -> None:
    """Check that accesses of so many numbers, of 16 bytes at most, may begin at an address and at steps from there."""
    size = DTYPES[dtype].itemsize
    width = min(16, count * size)
    assert not any(at % width for at in (address, *(step * size for step in steps))), (
        f"accesses of {width} bytes at {address % 16} of 16, by steps of {steps}"
    )


def _applied(value: torch.Tensor, matrices: Sequence[torch.Tensor | int]) -> torch.Tensor:
    """Return (…, run, right) with the Kronecker product of matrices (…, q, p) applied to the run; numbers are I."""
    *batch, run, right = value.shape
    before, behind = 1, run
    for own in matrices:
        rows, columns = (own, own) if isinstance(own, int) else own.shape[-2:]
        behind //= columns
        if not isinstance(own, int):
            value = value.reshape(*batch, before, columns, behind * right)
            value = torch.einsum("...lpr,...qp->...lqr", value, own)
        before *= rows
    return value.reshape(*batch, before, right)


def _kron_pass(memory: Memory, plan: Any, blocks: int, *arguments: Any) -> None:
    """Interpret a pass of a product."""
    shapes = list[Any]()
    for mode in plan.run.modes:
        if mode.factor is None:
            shapes.append(mode.rows)
        else:
            shapes += plan.members(mode.factor)[1] if hasattr(plan, "members") else [(mode.rows, mode.columns)]
    factors = [f"f{number}" for number in range(sum(isinstance(shape, tuple) for shape in shapes))]
    varies = getattr(plan.layout, "varies", False)
    integers = cuda_entry.parameters(len(factors), plan.layout.added, varies)
    given = dict(zip(["x", "y", "out", *factors, *integers, "alpha", "beta"], arguments, strict=True))
    batch, right = [given[f"size_{axis}"] for axis in "abc"], given["size_right"]
    assert given["size_run"] == plan.run.columns

    layout, size = plan.layout, DTYPES[plan.stored].itemsize
    of_x = layout.copy // size if hasattr(layout, "copy") else layout.in_width

    def view(name: str, run: int) -> torch.Tensor:
        strides, sizes = [given[f"{name}_{axis}"] for axis in cuda_entry.AXES], (*batch, run, right)
        outer = [step for step, extent in zip(strides, sizes[: 4 if right > 1 else 3], strict=False) if extent > 1]
        _aligned(of_x if name == "x" else layout.out_width, plan.stored, given[name], *outer)
        return memory.view(given[name], plan.stored, sizes, strides)

    def matrix(name: str, shape: tuple[int, int]) -> torch.Tensor:
        strides = [given.get(f"{name}_{axis}", 0) for axis in ("a", "b", "c", "row", "column")]
        around = [extent if step else 1 for extent, step in zip(batch, strides, strict=False)]
        return memory.view(given[name], plan.stored, (*around, *shape), strides).double()

    names = iter(factors)
    matrices = [matrix(next(names), shape) if isinstance(shape, tuple) else shape for shape in shapes]
    value = given["alpha"] * _applied(view("x", plan.run.columns).double(), matrices)
    if plan.layout.added:
        value += given["beta"] * view("y", plan.run.rows).double()
    view("out", plan.run.rows).copy_(value)
    if plan.run.saves:
        last = matrices[-len(plan.run.parts[-1]) :]
        saved = _applied(view("x", plan.run.columns).double(), [plan.run.modes[0].columns, *last])
        memory.view(given["y"], plan.stored, saved.shape).copy_(saved)


_Sizes = Sequence[tuple[int, int]]


def _whole(sizes: _Sizes) -> tuple[int, ...]:
    return tuple(math.prod(size[axis] for size in sizes) for axis in (0, 1))


def _matrices(memory: Memory, dtype: str, sizes: _Sizes, words: Sequence[int]) -> list[torch.Tensor]:
    """Return matrices whose address, row and column are three words each."""
    steps = range(0, len(words), 3)
    return [
        memory.view(words[at], dtype, size, words[at + 1 : at + 3]).double()
        for at, size in zip(steps, sizes, strict=True)
    ]


def _separated(joint: torch.Tensor, matrices: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the gradients of matrices, one behind the other, from that of their Kronecker product."""
    count = len(matrices)
    rows, columns = ([own.shape[axis] for own in matrices] for axis in (0, 1))
    whole, axes, found = joint.reshape(*rows, *columns), list(range(2 * count)), list[torch.Tensor]()
    for own in range(count):
        others = [operand for n in range(count) if n != own for operand in (matrices[n], [n, count + n])]
        found.append(torch.einsum(whole, axes, *others, [own, count + own]).flatten())
    return torch.cat(found)


def _back_pass(memory: Memory, plan: Any, blocks: int, v: int, x: int, out: int, parts: int, *rest: Any) -> None:
    """Interpret a pass that applies the transposes of factors and sums their gradients, here all in one block."""
    count = len(plan.sizes)
    pointers, (*strides, items, width, _, slope) = rest[:count], rest[count:]
    words = [word for n in range(count) for word in (pointers[n], *strides[2 * n : 2 * n + 2])]
    matrices, (q, p) = _matrices(memory, plan.stored, plan.sizes, words), _whole(plan.sizes)
    for at in (v, x, out):
        _aligned(plan.vector, plan.stored, at)
    one, other = (memory.view(at, plan.stored, (items, e, width)).double() for at, e in ((v, q), (x, p)))
    memory.view(out, plan.stored, other.shape).copy_(slope * _applied(one, [own.mT for own in matrices]))
    shares = memory.view(parts, "f32", (blocks, plan.parts)).zero_()
    shares[-1] = _separated(torch.einsum("nqr,npr->qp", one, other), matrices)


def _gram(memory: Memory, plan: Any, blocks: int, v: int, u: int, out: int, count: int, right: int, *rest: Any) -> None:
    """Interpret the gradient of a factor, here all in one share, and what is applied on the way."""
    sizes = (v, plan.rows), (u, plan.columns)
    one, other = (memory.view(at, plan.stored, (count, extent, right)).double() for at, extent in sizes)
    for at, width in ((v, plan.vec_v), (u, plan.vec_u)):
        _aligned(width, plan.stored, at, right if plan.order == "along" else 0)
    shares = blocks // plan.tiles
    parts = memory.view(out, plan.stored if shares == 1 else "f32", (shares, plan.rows, plan.columns)).zero_()
    parts[-1] = torch.einsum("lqr,lpr->qp", one, other)
    if plan.factors:
        applied, slope, *words = rest
        transposes = [own.mT for own in _matrices(memory, plan.stored, plan.factors, words)]
        memory.view(applied, plan.stored, other.shape).copy_(slope * _applied(one, transposes))


def _total(memory: Memory, plan: Any, blocks: int, parts: int, out: int, shares: int, size: int) -> None:
    """Interpret the sum of shares."""
    _, stored, _, transposed = plan
    value = memory.view(parts, "f32", (shares, size)).double().sum(0)
    if transposed:
        each = value.split([rows * columns for rows, columns in transposed])
        value = torch.cat([own.view(shape).mT.flatten() for own, shape in zip(each, transposed, strict=True)])
    memory.view(out, stored, (size,)).copy_(value)


def _gram_or_total(memory: Memory, plan: Any, *arguments: Any) -> None:
    (_total if isinstance(plan, tuple) else _gram)(memory, plan, *arguments)


def _separate(memory: Memory, plan: Any, blocks: int, joint: int, out: int, *words: int) -> None:
    """Interpret what finds the gradients of matrices from that of their product."""
    matrices = _matrices(memory, plan.stored, plan.sizes, words)
    value = _separated(memory.view(joint, plan.joint, _whole(plan.sizes)).double(), matrices)
    memory.view(out, plan.stored, value.shape).copy_(value)


_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "": lambda value: value, "relu": functional.relu, "gelu": functional.gelu, "silu": functional.silu,
}  # fmt: skip
_BITS = {2: "i16", 4: "i32"}
_Pattern = Sequence[int]


def _features(
    memory: Memory, at: int, plan: Any, extents: Sequence[int], steps: Sequence[int], pattern: _Pattern, feature: int
) -> torch.Tensor:
    """Return an array over axes, and behind them its features (a, k, d), which are so far apart."""
    _, k, d = pattern
    return memory.view(at, plan.dtype, (*extents, *pattern), (*steps, k * d * feature, d * feature, feature))


def _prepare(
    memory: Memory, plan: Any, blocks: int, weight: int, packed: int, scale: int, groups: int, *rest: int
) -> None:
    """Interpret what brings weights into the order of a tile."""
    pattern, strides = rest[:4], rest[4:9]
    problem = Problem(tuple(pattern), groups, 1, plan.dtype, plan.x_first, plan.y_first, 16, 1)  # pyright: ignore
    memory.view(packed, "u8", (plan.image_bytes(problem),)).zero_()
    memory.view(scale, "f32", (plan.scales(problem),)).zero_()
    memory.view(packed, "i64", (1,)).fill_(len(memory.images))
    memory.images.append(memory.view(weight, plan.dtype, (groups, *pattern), strides).double())


def _product(memory: Memory, plan: Any, blocks: int, *arguments: int) -> None:
    """Interpret a product, whose weights are packed or lie as they do."""
    x, weight, packed, bias, _, y, count, a, b, c, d, _, _, *steps = arguments
    xg, xn, xf, yg, yn, yf, *strides, bg = steps
    if packed:
        own = memory.images[int(memory.view(packed, "i64", (1,)))]
    else:
        problem = Problem((a, b, c, d), 1, count, plan.dtype, True, True, 16, 1)

        def launched(groups: int) -> int:
            each = replace(problem, groups=groups)
            return plan.blocks(each) if hasattr(plan, "blocks") else plan.grid(each, cuda.limits(0))[0]

        groups = next(groups for groups in numbers(1) if launched(groups) >= blocks)
        own = memory.view(weight, plan.dtype, (groups, a, b, c, d), strides).double()
    rows, vector = (len(own), count), getattr(plan, "vector", 1)
    reads_one = type(plan).__name__ in ("FmaPlan", "OutputsPlan") and plan.first
    of_x = plan.x_bytes // DTYPES[plan.dtype].itemsize if hasattr(plan, "x_bytes") else 1 if reads_one else vector
    of_y = getattr(plan, "y_run", 1 if getattr(plan, "last", False) else vector)
    for width, at, group, row, feature in ((of_x, x, xg, xn, xf), (of_y, y, yg, yn, yf)):
        outer = group if len(own) > 1 else 0, (row if feature == 1 else feature) if count > 1 else 0
        _aligned(width, plan.dtype, at, *outer)
    value = torch.einsum("gnikl,gijkl->gnijl", _features(memory, x, plan, rows, (xg, xn), (a, c, d), xf).double(), own)
    if plan.bias:
        value += _features(memory, bias, plan, rows, (bg, 0), (a, b, d), 1).double()
    _features(memory, y, plan, rows, (yg, yn), (a, b, d), yf).copy_(_ACTIVATIONS[plan.activation](value))


def _cluster(memory: Memory, plan: Any, blocks: int, *arguments: int) -> None:
    """Interpret two factors for a few rows, or one of them, beside which rows are (i, l / 8, k, row, l % 8)."""
    x, first, second, bias, y, count, xn, yn, _ = arguments
    (a, _, c, d), (i, j, k, l) = plan.first, plan.second
    between = (i, l // 8, k, count, 8)
    if plan.part == "second":
        value = memory.view(x, plan.dtype, between).double().permute(3, 0, 2, 1, 4).reshape(count, i, k, l)
    else:
        own = memory.view(first, plan.dtype, plan.first).double()
        value = torch.einsum("nikl,ijkl->nijl", _features(memory, x, plan, (count,), (xn,), (a, c, d), 1).double(), own)
        value = value.reshape(count, i, k, l)
    if plan.part == "first":
        memory.view(y, plan.dtype, between).copy_(value.reshape(count, i, k, l // 8, 8).permute(1, 3, 2, 0, 4))
        return
    value = torch.einsum("nikl,ijkl->nijl", value, memory.view(second, plan.dtype, plan.second).double())
    if plan.bias:
        value += memory.view(bias, plan.dtype, (i, j, l)).double()
    _features(memory, y, plan, (count,), (yn,), (i, j, l), 1).copy_(_ACTIVATIONS[plan.activation](value))


def _grouped(memory: Memory, plan: Any, blocks: int, *arguments: int) -> None:
    """Interpret products of matrices one after the other, or sums of rows."""
    for index, tile in enumerate(plan.tiles):
        left, right, out, bias, *words = arguments[42 * index : 42 * index + 42]
        steps, (p, q, r, _, *sizes) = [words[:6], words[6:12], words[12:18], [*words[18:23], 0]], words[23:31]
        extents, l = (*sizes, tile.l), int(tile.l > 1)

        def view(at: int, own: int, *shape: int) -> torch.Tensor:
            return memory.view(at, plan.dtype, (*extents, *shape), (*steps[own][:4], l, *steps[own][4:]))  # noqa: B023

        def outer(own: int) -> list[int]:
            return [step for step, extent in zip(steps[own], sizes, strict=False) if extent > 1]  # noqa: B023

        sides = (left, 0, tile.left, 2 * tile.m), (right, 1, tile.right, tile.n)
        for at, own, read, several in () if tile.alone else sides:
            first, second = steps[own][4:]
            fixed = {"ALONG": (4, first), "ACROSS": (several, second), "ADJACENT": (1, first, second)}
            if read in fixed:
                width, *others = fixed[read]
                _aligned(width * tile.l, plan.dtype, at, *outer(own), *others)
        if tile.packed and not tile.alone:
            _aligned(2 * tile.n * tile.l, plan.dtype, out, *outer(2), steps[2][4])
        if tile.alone:
            value = view(left, 0, p, r).double().sum(-1, keepdim=True)
        else:
            value = view(left, 0, p, r).double() @ view(right, 1, q, r).double().mT
        if tile.bias:
            value += view(bias, 3, q, 1).double().mT
        activation = plan.activation if index == len(plan.tiles) - 1 else ""
        view(out, 2, p, q).copy_(_ACTIVATIONS[activation](value))


def _matrix(memory: Memory, plan: Any, blocks: int, first: int, second: int, matrix: int) -> None:
    """Interpret the matrix of two factors."""
    own = plan.matrix
    one = memory.view(first, plan.dtype, (own.blocks, own.rank, own.l, own.depth)).double()
    other = memory.view(second, plan.dtype, (own.b, own.blocks, own.rank, own.l)).double()
    made = memory.view(matrix, plan.dtype, (own.b, own.l, own.blocks, own.depth))
    made.copy_(torch.einsum("jorl,orlc->jloc", other, one))


def _matrix_gradient(memory: Memory, plan: Any, blocks: int, *arguments: int) -> None:
    """Interpret the gradients of two factors from that of their matrix, and sums of rows of another one."""
    first, second, matrix, of_first, of_second, summed, sums, count, apart = arguments
    own = plan.matrix
    sizes = (own.blocks, own.rank, own.l, own.depth), (own.b, own.blocks, own.rank, own.l)
    grad = memory.view(matrix, plan.dtype, (own.b, own.l, own.blocks, own.depth)).double()
    if plan.first:
        other = memory.view(second, plan.dtype, sizes[1]).double()
        memory.view(of_first, plan.dtype, sizes[0]).copy_(torch.einsum("jorl,jloc->orlc", other, grad))
    if plan.second:
        one = memory.view(first, plan.dtype, sizes[0]).double()
        memory.view(of_second, plan.dtype, sizes[1]).copy_(torch.einsum("orlc,jloc->jorl", one, grad))
    if plan.sums:
        rows = memory.view(summed, plan.dtype, (count, own.features), (apart, 1))
        memory.view(sums, plan.dtype, (own.features,)).copy_(rows.double().sum(0))


def _dense(memory: Memory, plan: Any, blocks: int, weight: int, out: int, *words: int) -> None:
    """Interpret the dense matrix of weights."""
    (a, b, c, d), kind = words[:4], _BITS[plan.size]
    made = memory.view(out, kind, (a, b, d, a, c, d)).zero_()
    weights = memory.view(weight, kind, (a, b, c, d), words[4:])
    made.diagonal(dim1=0, dim2=3).diagonal(dim1=1, dim2=3).copy_(weights.permute(1, 2, 0, 3))


def _activation(memory: Memory, plan: Any, blocks: int, value: int, *rest: int) -> None:
    """Interpret an activation, or a gradient times its slope."""
    *grad, out, vectors = rest
    for at in (value, *grad, out):
        _aligned(16, plan.dtype, at)
    size = (16 * vectors // DTYPES[plan.dtype].itemsize,)
    own = memory.view(value, plan.dtype, size).double()
    if plan.slope:
        with torch.enable_grad():
            leaf = own.requires_grad_()
            (found,) = torch.autograd.grad(
                _ACTIVATIONS[plan.activation](leaf), leaf, memory.view(grad[0], plan.dtype, size).double()
            )
    else:
        found = _ACTIVATIONS[plan.activation](own)
    memory.view(out, plan.dtype, size).copy_(found)


def _transpose(memory: Memory, plan: Any, blocks: int, x: int, y: int, *words: int) -> None:
    """Interpret a pass that transposes the matrices in rows, or brings these back and adds a bias."""
    count, a, high, pitch, xn, yn, *bias = words
    kind, is_square = plan.bias or _BITS[plan.size], plan.lanes > 0
    rows, columns = (high, pitch) if is_square else (high, plan.l) if plan.pads else (plan.l, high)
    from_step, to_step = (columns, rows) if is_square else (columns, pitch) if plan.pads else (pitch, rows)
    for at, step in ((x, xn), (y, yn)) if is_square else ((y, yn),) if plan.pads else ((x, xn),):
        _aligned(16, kind, at, step)
    before = memory.view(x, kind, (count, a, rows, columns), (xn, rows * from_step, from_step, 1))
    after = memory.view(y, kind, (count, a, columns, to_step), (yn, columns * to_step, to_step, 1))
    after[..., rows:] = 0
    added = memory.view(bias[0], kind, (a, columns, rows)).double() if bias else 0
    after[..., :rows].copy_(before.mT + added)


def _transpose_sums(memory: Memory, plan: Any, blocks: int, x: int, y: int, sums: int, *words: int) -> None:
    """Interpret a pass that transposes the matrices in rows and sums these."""
    count, a, high, pitch, xn, yn = words
    size = high * pitch
    rows = memory.view(x, plan.dtype, (count, a, high, pitch), (xn, size, pitch, 1))
    memory.view(y, plan.dtype, (count, a, pitch, high), (yn, size, high, 1)).copy_(rows.mT)
    parts = memory.view(sums, "f32", (blocks // plan.sets(a, high, pitch), a, high, pitch)).zero_()
    parts[-1] = rows.double().sum(0)


def _sums(memory: Memory, plan: Any, blocks: int, x: int, grad: int, out: int, count: int, *words: int) -> None:
    """Interpret the gradient of weights."""
    name, kind = type(plan).__name__, plan.dtype if plan.whole else "f32"
    if name == "FmaSumPlan":
        (groups, slots), (a, b, c, d) = words[:2], plan.pattern
    else:
        groups, a, b, c, d, slots = words[:6]
    xg, xs, yg, ys = words[-4:]
    is_first = {"RowSumPlan": True, "ColumnSumPlan": False}.get(name, getattr(plan, "first", True))

    def side(at: int, extent: int, group: int, step: int) -> torch.Tensor:
        if name == "BlockSumPlan":
            found = memory.view(at, plan.dtype, (groups, a, d, count, extent), (0, d * group, group, step, 1))
            return found.permute(0, 3, 1, 4, 2).double()
        row, feature = (step, 1) if is_first else (1, step)
        return _features(memory, at, plan, (groups, count), (group, row), (a, extent, d), feature).double()

    of_x, of_y = (getattr(plan, name, 1) for name in ("x_bytes", "y_bytes"))
    if not getattr(plan, "shifted", False):
        for width, at, step in ((of_x, x, xs), (of_y, grad, ys)):
            _aligned(max(1, width // DTYPES[plan.dtype].itemsize), plan.dtype, at, step)
    value = torch.einsum("gnijl,gnikl->gijkl", side(grad, b, yg, ys), side(x, c, xg, xs))
    if name == "WideSumPlan" and d > 1:
        pitch = padded(b * c, DTYPES[plan.dtype].itemsize)
        parts = memory.view(out, kind, (slots, groups, a, d, pitch))[..., : b * c].zero_()
        parts[-1] = value.permute(0, 1, 4, 2, 3).flatten(-2)
    else:
        parts = memory.view(out, kind, (slots, groups, a, b, c, d)).zero_()
        parts[-1] = value


def _parts(memory: Memory, plan: Any, blocks: int, parts: int, out: int, slots: int, count: int) -> None:
    """Interpret the sum of parts."""
    memory.view(out, plan.dtype, (count,)).copy_(memory.view(parts, "f32", (slots, count)).double().sum(0))


_SPARSE: dict[str, Callable[..., None]] = {
    "MatrixPlan": _matrix, "MatrixGradientPlan": _matrix_gradient, "ClusterPlan": _cluster, "GroupedPlan": _grouped,
    "DensePlan": _dense, "ActivationPlan": _activation, "TransposePlan": _transpose,
    "TransposeSumsPlan": _transpose_sums, "PartsPlan": _parts,
    **dict.fromkeys(("RowSumPlan", "ColumnSumPlan", "BlockSumPlan", "WideSumPlan", "FmaSumPlan"), _sums),
}  # fmt: skip


def _by_plan(memory: Memory, plan: Any, *arguments: Any) -> None:
    """Interpret a kernel of a Kronecker-sparse product, which all have one name."""
    _SPARSE.get(type(plan).__name__, _product)(memory, plan, *arguments)


INTERPRETERS: dict[str, Callable[..., None]] = {
    cuda_entry.ENTRY: _kron_pass, gradient_emit.ENTRY: _back_pass, factor_gradient_emit.ENTRY: _gram_or_total,
    separation.ENTRY: _separate, cuda_emit.ENTRY: _by_plan, cuda_emit.PREPARE: _prepare,
    cuda_emit.PREPARE_NEIGHBOURS: _prepare,
}  # fmt: skip
