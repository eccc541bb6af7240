"""Kronecker-sparse products on a CPU: which tile, what is packed, and how the work is shared out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch

from ...backends.cpu import jit
from ...compiler.nest import BYTES
from ...config import current
from ...runtime.kernel_store import compile_only
from ...torch_ops.dtypes import NAMES
from .cpu_plan import (
    DOT_FIELDS,
    FIELDS,
    INPLACE_ROWS_LAST,
    LANES,
    PACK_FIELDS,
    PLAIN,
    ROWS,
    SIZES,
    SMALL_FIELDS,
    SMALL_ROWS,
    SmallTile,
    Tile,
    group_of,
    shared_group,
    small_tile,
    tile,
    whole_rows,
)
from .cpu_start import ALONE, Call, Start, starting
from .pack import PackedWeights
from .torch_products import block_matrices

Pattern = tuple[int, int, int, int]
Strides = tuple[int, ...]
_TILES = "structured.mode_product.cpu_emit:emit"
_PACKING = "structured.mode_product.cpu_emit:emit_packing"
_DOTS = "structured.mode_product.cpu_dot_emit:emit"
_SMALL_BLOCKS = "structured.mode_product.cpu_small_emit:emit"
_ITEMS = 16  # that many multiplications are cut into
# Rows and depth of a block, and bytes of x, of the result and of weights that the second cache is to hold.
_ROWS, _DEPTH, _CACHED = 256, 256, 1 << 20
_ROWS_AHEAD = 48  # where panels are packed beforehand; a multiple of 6 and 8
_BLOCK = 3 << 18  # bytes of x that go through all panels
# Bytes of a group, numbers of x and panels from which lines that lie apart are brought together.
_PIECE, _APART, _PANELS = 16, 96, 16
_DEPTH_OF_GRADIENTS, _DEPTH_OF_LAST_GRADIENTS = 128, 512
_WRITTEN = 8  # rows of x up to which gradients of weights take the time of their writes
_DOT2 = 64  # bytes of the vectors of pairs that are multiplied
_SETS = 2048  # bytes: lines a multiple of it apart meet in a few sets of the first cache
# With the batch together: columns for which weights are packed, rows of a block of them, and rows for which x is.
_MANY, _HIGH, _REUSED = 1024, 516, 96
# Rows, for each vector of words along what is summed and at most, up to which weights are read along that: where panels
# are packed on the way, and where they are packed (decision 0135).
_DOT_ROWS = {False: (2 / 3, 16), True: (1 / 6, 4)}
_ABSENT = ("b_ahead", "spread", "bias_outer", "bias_inner", "bias_p", "bias_panel")  # fields of what tiles may lack
_UNSQUARE_ROWS = 4  # where panels are packed number by number, as no square of words fits (decision 0135)


def _tile(dtype: str, lanes: int, group: int, spread: int, bias: str, wide: bool = False) -> Tile:
    own = jit.host()
    return tile(dtype, own.vector_bytes, own.vector_registers, lanes, group, spread, bias, wide, _has_dot2(dtype))


def _has_dot2(dtype: str) -> bool:
    """Return whether the machine adds products of pairs of numbers of this type to float32."""
    own = jit.host()
    return dtype == "bf16" and own.vector_bytes == _DOT2 and "+avx512bf16" in own.features.split(",")


def _is_half(dtype: str) -> bool:
    return BYTES[dtype] == 2


def _words(own: Tile, numbers: int) -> int:
    """Return how many words so many numbers of a sum are."""
    return -(-numbers // 2) if own.dot2 else numbers


def _lies_as_words(own: Tile, depth: int, along: int, *strides: int) -> bool:
    """Return whether all pairs are two neighbours in memory, numbers of a sum ``along`` apart."""
    return own.dot2 and own.multipliers == along == 1 and not any(each % 2 for each in (depth, *strides))


def _group(pattern: Pattern, batch: int, dtype: str, is_gradient: bool) -> int:
    return group_of(pattern, batch, _is_half(dtype), jit.host().vector_bytes // SIZES[dtype], is_gradient)


def _launch(own: Tile, values: dict[str, int], bytes_: int, threads: int) -> Start:
    """Return a kernel of tiles, its blocks small enough for several threads where there is much to do."""
    work = values["blocks"] * values["p"] * values["q"] * values["r"]
    panels = -(-values["q"] // own.width)
    items = values["blocks"] * -(-values["p"] // values["p_block"])
    # Each part packs the rows of its block for itself.
    parts = min(panels, -(-_ITEMS // items)) if work >= ALONE and threads > 1 else 1
    values |= {"q_block": -(-panels // parts)}
    items *= -(-panels // values["q_block"])
    values |= {"r_block": min(values["r"], values["r_block"])}
    values = dict.fromkeys(_ABSENT, 0) | values
    rows = -(-values["p_block"] // own.rows) * own.rows * own.multipliers if values["packs_a"] else 0
    workspace = (values["r_block"] * (own.width + rows) + 64) * bytes_
    return starting(_TILES, own, FIELDS, values, items, workspace, work, 4 if own.bias else 3)


def _rows(count: int, least: int) -> int:
    """Return a multiple of ``least`` rows, about so many."""
    return max(least, min(_ROWS, count // least * least))


@lru_cache(maxsize=4096)
def _first(
    threads: int, pattern: Pattern, batch: int, dtype: str, x: int, weight: Strides, out: int, biased: bool,
    packed: bool,
) -> Call:  # fmt: skip
    """Return the product with the features together, rows of x and of the result so far apart."""
    a, b, c, d = pattern
    group, size = _group(pattern, batch, dtype, False), SIZES[dtype]
    small = small_tile(dtype, jit.host().vector_bytes, pattern, 1, weight[:3], biased, False)
    if small is not None:
        return _small(small, a, batch, x, out)
    whole = group == d and weight[2] == d
    vectors = c * d * size // ((2 if d == 1 and _has_dot2(dtype) else 1) * jit.host().vector_bytes)
    each, most = _DOT_ROWS[packed]
    least = 0 if packed else 1 if vectors else _UNSQUARE_ROWS
    if whole and weight[1] > weight[2] and batch <= max(least, min(most, int(each * vectors) + (not packed))):
        return _dots(pattern, batch, dtype, x, weight, out, biased)
    own = _tile(dtype, b * group, group, d, LANES if biased else PLAIN)
    half, words = _is_half(dtype), _words(own, c)
    lies = not half and (own.apart or (group == d and weight[1] == d))
    inplace = lies and batch <= INPLACE_ROWS_LAST
    rows = _rows(_CACHED // (size * d * (b + c)), 64) if d > group else _ROWS
    if half:
        rows = min(rows, _rows(_CACHED // (2 * size * group * words), own.rows))
    ahead = not inplace and (packed or batch > rows)
    rows = _ROWS_AHEAD if ahead else rows
    inner = -(-d // group)
    panels, every, blocks = -(-b * group // own.width), own.width // group, a * inner
    # Lines of x that a block reads lie apart where it has some of the neighbours l alone.
    packs = ahead and d > group >= _PIECE // size and c >= _APART and panels >= _PANELS
    own = replace(own, packed=own.apart and not inplace)
    if half:
        packs = not _lies_as_words(own, c, d, x)
    b_fields = {
        "b_outer": weight[0], "b_inner": group, "b_r": weight[2], "b_q": weight[1],
        "b_v": weight[1] if own.apart else own.lanes, "b_panel": every * weight[1],
    }  # fmt: skip
    values = {
        "blocks": blocks, "inner": inner, "spread": d, "p": batch, "q": b * group, "r": c, "p_block": rows,
        "r_block": c if half else _DEPTH, "packs_a": int(packs or (own.tail and own.packed)),
        "packs_b": int(not inplace and not ahead),
        "a_outer": c * d, "a_inner": group, "a_p": x, "a_r": d,
        "c_outer": b * d, "c_inner": group, "c_p": out, "c_q": d, "c_panel": every * d,
        "bias_outer": b * d, "bias_inner": group, "bias_p": 0, "bias_panel": every * d,
    }  # fmt: skip
    if not ahead:
        start = _launch(own, values | b_fields, size, threads)
        return Call(start, f"llvm: {own}", a * b * d)
    panel, halves = words * own.width, size // BYTES[dtype]  # in words, which are so many numbers
    ahead_fields = {
        "b_outer": inner * panels * panel * halves, "b_inner": panels * panel * halves, "b_r": own.width, "b_q": group,
        "b_v": own.lanes, "b_panel": panel * halves, "b_ahead": -(-own.width * own.rows // rows),
        "r_block": c if half else max(_DEPTH, min(2 * _DEPTH, _BLOCK // (size * group * rows))),
    }  # fmt: skip
    start = _launch(own, values | ahead_fields, size, threads)
    fields = b_fields | {"inner": inner, "spread": d, "panels": panels, "q": b * group, "r": c}
    pack = starting(_PACKING, own, PACK_FIELDS, fields, blocks * panels, 0, blocks * panels * panel, 2)
    key = ("panels", group, own.lanes, own.vectors, dtype)
    return Call(start, f"llvm: {own}, packed", a * b * d, False, pack, blocks * panels * panel, key)


def _small(own: SmallTile, blocks: int, rows: int, x: int, out: int) -> Call:
    """Return the product of small blocks, of rows of x and of the result so far apart."""
    items, work = -(-blocks // own.blocks) * -(-rows // SMALL_ROWS), rows * blocks * own.b * own.c * own.neighbours
    values = {"blocks": blocks, "p": rows, "a_p": x, "c_p": out}
    start = starting(_SMALL_BLOCKS, own, SMALL_FIELDS, values, items, 0, work, 4 if own.bias else 3)
    return Call(start, f"llvm: {own}", blocks * own.b)


def _dots(pattern: Pattern, batch: int, dtype: str, x: int, weight: Strides, out: int, biased: bool) -> Call:
    """Return the product of a few rows by weights as they lie."""
    a, b, c, d = pattern
    deep = jit.host().vector_registers >= 32
    rows, columns = (
        (1, 8 if deep else 4) if batch == 1 else (2, 8 if deep else 4) if batch < 4 else (4, 4 if deep else 2)
    )
    lanes, dot2 = jit.host().vector_bytes // SIZES[dtype], d == 1 and _has_dot2(dtype)
    own = Tile(dtype, lanes, rows, columns, d, False, False, LANES if biased else "", dot2)
    work = batch * a * b * c * d
    parts = min(-(-b // columns), -(-_ITEMS // a)) if work >= ALONE else 1
    block = -(-b // (parts * columns)) * columns
    values = {
        "p": batch, "q": b, "r": c * d, "q_block": block, "a_outer": c * d, "a_p": x, "b_outer": weight[0],
        "b_q": weight[1], "c_outer": b * d, "c_p": out, "bias_outer": b * d,
    }  # fmt: skip
    start = starting(_DOTS, own, DOT_FIELDS, values, a * -(-b // block), 0, work, 4 if biased else 3)
    return Call(start, f"llvm: sums along lanes, {own}", a * b * d)


@lru_cache(maxsize=4096)
def _last(
    threads: int, pattern: Pattern, batch: int, dtype: str, x: int, weight: Strides, out: int, biased: bool
) -> Call:
    """Return the product with the batch together, features of x and of the result so far apart.

    ``weight`` has a last stride, too.
    """
    a, b, c, d = pattern
    if x == batch == out:
        small = small_tile(dtype, jit.host().vector_bytes, pattern, batch, weight[:3], biased, True)
        if small is not None:
            return _small(small, a, 1, 0, 0)
    own, size, half = _tile(dtype, batch, 1, 1, ROWS if biased else PLAIN, True), SIZES[dtype], _is_half(dtype)
    tiles, most = -(-b // own.rows), _HIGH
    packs_a = batch >= _MANY
    packs_b = batch > own.width and (b >= _REUSED or c > _DEPTH or d * x * size % _SETS == 0)
    if half:
        most = _rows(_CACHED // (2 * size * _words(own, c)), own.rows)
        packs_a, packs_b = not _lies_as_words(own, c, weight[2], weight[1]), True
    high = -(-tiles // -(-tiles // (most // own.rows)))
    values = {
        "blocks": a * d, "inner": d, "p": b, "q": batch, "r": c,
        "p_block": high * own.rows, "r_block": c if half else _DEPTH, "packs_a": int(packs_a), "packs_b": int(packs_b),
        "a_outer": weight[0], "a_inner": weight[3], "a_p": weight[1], "a_r": weight[2],
        "b_outer": c * d * x, "b_inner": x, "b_r": d * x, "b_q": 1, "b_v": own.lanes, "b_panel": own.width,
        "c_outer": b * d * out, "c_inner": out, "c_p": d * out, "c_q": 1, "c_panel": own.width,
        "bias_outer": b * d, "bias_inner": 1, "bias_p": d, "bias_panel": 0,
    }  # fmt: skip
    return Call(_launch(own, values, size, threads), f"llvm: {own}", a * b * d)


@lru_cache(maxsize=4096)
def _groups(threads: int, pattern: Pattern, batch: int, dtype: str, factor: Strides) -> Call:
    """Return the product of contiguous x (N, c, d) by one matrix of these strides, vectors along N and d."""
    (_, b, c, d), size = pattern, SIZES[dtype]
    group = shared_group(b, c, d, jit.host().vector_bytes // size)
    own = _tile(dtype, batch * group, group, 0, PLAIN)
    own, inner, every = replace(own, tail=d % group > 0, packed=True, shared=True), -(-d // group), own.width // group
    values = {
        "blocks": inner, "inner": inner, "spread": d, "p": b, "q": batch * group, "r": c,
        "p_block": _rows(_CACHED // (2 * size * _words(own, c)), own.rows), "r_block": c,
        "packs_a": int(_is_half(dtype) and not _lies_as_words(own, c, factor[1], factor[0])), "packs_b": 1,
        "a_outer": 0, "a_inner": 0, "a_p": factor[0], "a_r": factor[1],
        "b_outer": 0, "b_inner": group, "b_r": d, "b_q": c * d, "b_v": 0, "b_panel": every * c * d,
        "c_outer": 0, "c_inner": group, "c_p": d, "c_q": b * d, "c_panel": every * b * d,
    }  # fmt: skip
    return Call(_launch(own, values, size, threads), f"llvm: {own}", b * d)


@lru_cache(maxsize=4096)
def _gradient(threads: int, pattern: Pattern, batch: int, dtype: str, x: int, grad: int, wide: bool = False) -> Call:
    """Return the gradient of the weights with the features together, of halves ``wide`` or rounded."""
    a, b, c, d = pattern
    group = _group(pattern, batch, dtype, True)
    inner, own = -(-d // group), _tile(dtype, c * group, group, d, PLAIN)
    if batch <= _WRITTEN:
        own = whole_rows(own, c * group, jit.host().vector_registers)
    every, packs = own.width // group, batch > INPLACE_ROWS_LAST or _is_half(dtype)
    depth = min(batch, _DEPTH_OF_GRADIENTS * (4 if own.scattered else 1))
    own = replace(own, wide=_is_half(dtype) and (wide or batch > depth), packed=own.apart and packs)
    rows = _rows(_CACHED // 2 // (SIZES[dtype] * depth * group), own.rows)
    values = {
        "blocks": a * inner, "inner": inner, "spread": d, "p": b, "q": c * group, "r": batch, "p_block": rows,
        "r_block": depth, "packs_a": int(packs), "packs_b": int(packs or own.scattered),
        "a_outer": b * d, "a_inner": group, "a_p": d, "a_r": grad, "b_outer": c * d, "b_inner": group, "b_r": x,
        "b_q": d, "b_v": d if own.apart else own.lanes, "b_panel": every * d,
        "c_outer": b * c * d, "c_inner": group, "c_p": c * d, "c_q": d, "c_panel": every * d,
    }  # fmt: skip
    return Call(_launch(own, values, SIZES[dtype], threads), f"llvm: {own}", a * b * d, own.wide)


@lru_cache(maxsize=4096)
def _gradient_last(
    threads: int, pattern: Pattern, batch: int, dtype: str, x: int, grad: int, wide: bool = False
) -> Call:
    """Return the gradient of the weights with the batch together, features of x and of the gradient so far apart."""
    a, b, c, d = pattern
    own, size = _tile(dtype, c, 1, d, PLAIN), SIZES[dtype]
    depth = min(batch, _DEPTH_OF_LAST_GRADIENTS)
    own = replace(own, wide=_is_half(dtype) and (wide or batch > depth))
    values = {
        "blocks": a * d, "inner": d, "p": b, "q": c, "r": batch,
        "p_block": _rows(_CACHED // 2 // (size * depth), own.rows), "r_block": depth,
        "packs_a": int(not _lies_as_words(own, batch, 1, grad * d) and _is_half(dtype)), "packs_b": 1,
        "a_outer": b * d * grad, "a_inner": grad, "a_p": d * grad, "a_r": 1,
        "b_outer": c * d * x, "b_inner": x, "b_r": 1, "b_q": d * x, "b_v": 0, "b_panel": own.width * d * x,
        "c_outer": b * c * d, "c_inner": 1, "c_p": c * d, "c_q": d, "c_panel": own.width * d,
    }  # fmt: skip
    return Call(_launch(own, values, size, threads), f"llvm: {own}", a * b * d, own.wide)


def ready(dtype: torch.dtype) -> bool:
    """Return whether there are kernels for a type on the backend that is asked for."""
    return current().backend in ("auto", "llvm") and NAMES[dtype] in SIZES


def _call(plan: Callable[..., Call], *about: Any) -> Call:
    """Return a plan, which is not kept while kernels are only noted."""
    about = current().threads or torch.get_num_threads(), *about
    return plan.__wrapped__(*about) if compile_only() else plan(*about)  # pyright: ignore[reportFunctionMemberAccess]


def first(pattern: Pattern, x: torch.Tensor, weight: torch.Tensor, out: int, biased: bool, packed: bool) -> Call:
    """Return the product of rows x (..., N, a c d) by weights (..., a, b, c, d), to rows ``out`` apart."""
    strides, dtype = weight.stride()[-4:-1], NAMES[x.dtype]
    return _call(_first, pattern, x.shape[-2], dtype, x.stride(-2), strides, out, biased, packed)


def along(pattern: Pattern, batch: int, dtype: torch.dtype, factor: tuple[int, int], vectors: str) -> Call:
    """Return the product of contiguous x (N, c, d) by one matrix (b, c) of these strides.

    The pattern has a = 1. ``vectors`` go along "rows" of the matrix, where d is 1, along what is "right" of the axis,
    which is d, or in "groups" along N and d.
    """
    (_, b, c, d), stored = pattern, NAMES[dtype]
    if vectors == "groups":
        return _call(_groups, pattern, batch, stored, factor)
    if vectors == "right":
        return _call(_last, (batch, b, c, 1), d, stored, d, (0, *factor, 0), d, False)
    return _call(_first, pattern, batch, stored, c * d, (0, *factor), b * d, False, False)


def last(pattern: Pattern, x: torch.Tensor, weight: torch.Tensor, out: int, biased: bool, packed: bool) -> Call:
    """Return the product of x (..., N, a c d) with the batch together, to features ``out`` apart.

    Where weights are packed and neighbours interleave, it reads what :func:`blocks` gives.
    """
    (_, b, c, d), strides = pattern, (*weight.stride()[-4:-1], 1)
    if packed and d > 1:
        strides = b * c * d, c, 1, b * c
    return _call(_last, pattern, x.shape[-2], NAMES[x.dtype], x.stride(-1), strides, out, biased)


def summed(pattern: Pattern, x: torch.Tensor, grad: torch.Tensor) -> Call:
    """Return the gradient of the weights from x (..., N, a c d) and (..., N, a b d), features or the batch together."""
    about = pattern, x.shape[-2], NAMES[x.dtype]
    if x.stride(-1) == 1 == grad.stride(-1):
        return _call(_gradient, *about, x.stride(-2), grad.stride(-2))
    return _call(_gradient_last, *about, x.stride(-1), grad.stride(-1))


def summed_of(pattern: Pattern, batch: int, dtype: torch.dtype, last: bool) -> Call:
    """Return what sums gradients of weights of contiguous arrays, features or (``last``) the batch together."""
    a, b, c, d = pattern
    plan, sides = (_gradient_last, (batch, batch)) if last else (_gradient, (a * c * d, a * b * d))
    return _call(plan, pattern, batch, NAMES[dtype], *sides, True)


def product(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor, packed: PackedWeights | None
) -> str | None:
    """Write the product to ``out`` and say how; None where there is no kernel for it."""
    if not ready(x.dtype):
        return None
    groups, ran = x.shape[0], None
    if groups == 1:
        return _product(x, weight, bias, out, packed)
    for group in range(groups):
        part = slice(group, group + 1)
        own = weight if weight.shape[0] == 1 else weight[part]
        offset = bias if bias is None or bias.shape[0] == 1 else bias[part]
        ran = _product(x[part], own, offset, out[part], None)
        if ran is None:
            break
    return ran


def _product(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor, packed: PackedWeights | None
) -> str | None:
    _, a, b, c, d = weight.shape
    if d > 1 and weight.stride(4) != 1:
        weight = weight.contiguous()
    if bias is not None:
        bias = bias.contiguous()
    if not any(x.stride(axis) == 1 == out.stride(axis) for axis in (1, 2)):
        # Not contiguous(), which leaves any stride of an axis of one entry.
        if out.stride(2) == 1:
            x = x.new_empty(x.shape).copy_(x)
        elif out.stride(1) == 1:
            x = x.new_empty(x.mT.shape).copy_(x.mT).mT
    if x.stride(2) == 1 == out.stride(2):
        call = first((a, b, c, d), x, weight, out.stride(1), bias is not None, packed is not None)
        weight = operand(call, weight, packed)  # held until the kernel has run
        addresses = [x.data_ptr(), weight.data_ptr(), out.data_ptr()]
    elif x.stride(1) == 1 == out.stride(1):
        call = last((a, b, c, d), x, weight, out.stride(2), bias is not None, packed is not None)
        weight = blocks(weight, packed) if packed is not None and d > 1 else weight
        addresses = [weight.data_ptr(), x.data_ptr(), out.data_ptr()]
    else:
        return None
    if bias is not None:
        addresses.append(bias.data_ptr())
    call.start.run(*addresses)
    return call.route


def gradient(x: torch.Tensor, grad: torch.Tensor, pattern: Pattern) -> torch.Tensor | None:
    """Return the gradient (G, a, b, c, d) of the weights; None where there is no kernel for it."""
    if not ready(x.dtype) or not any(x.stride(axis) == 1 == grad.stride(axis) for axis in (1, 2)):
        return None
    call, groups = summed(pattern, x, grad), x.shape[0]
    out = torch.empty((groups, *pattern), dtype=torch.float32 if call.wide else x.dtype, device=x.device)
    for group in range(groups):
        call.start.run(grad[group].data_ptr(), x[group].data_ptr(), out[group].data_ptr())
    return out.to(x.dtype)


def operand(call: Call, weight: torch.Tensor, packed: PackedWeights | None) -> torch.Tensor:
    """Return the weights, or the packed ones in the order in which they are read."""
    if call.pack is None:
        return weight
    if packed is None:
        return _panels(call, weight)
    return packed.get_or_pack(call.key, lambda: _panels(call, weight), weight.device)


def blocks(weight: torch.Tensor, packed: PackedWeights) -> torch.Tensor:
    """Return weights (..., a, b, c, d) as matrices (..., a, d, b, c)."""
    return packed.get_or_pack(("bmm", weight.dtype), lambda: block_matrices(weight).contiguous(), weight.device)


def _panels(call: Call, weight: torch.Tensor) -> torch.Tensor:
    words = torch.float64 if weight.dtype == torch.float64 else torch.float32
    panels = torch.empty(call.panels, dtype=words, device=weight.device)
    if call.pack is not None:
        call.pack.run(weight.data_ptr(), panels.data_ptr())
    return panels
