"""Where arrays lie: strides by axis and role, batch axes merged, launches when there are too many."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernmantle.compiler.lower import lower
from kernmantle.compiler.nest import ROLES, size_slot, stride_slot
from kernmantle.ir.definition import bind, define
from kernmantle.torch_ops.layout import aligned, arguments, geometry, merged, strided


def program(equation="mk,nk->mn", function=lambda a, b: a * b, symmetric=False):
    return bind(define(equation, function), frozenset(), (), symmetric).program


def test_geometry():
    found = geometry(program(), [(4, 1, 2, 3), (5, 7, 3)])
    assert (dict(found.sizes), found.batch) == ({"m": 2, "k": 3, "n": 7}, (4, 5))
    assert found.out_shape("nm") == (4, 5, 7, 2)


def test_geometry_of_one_array_for_both():
    found = geometry(program(symmetric=True), [(4, 2, 3)])
    assert (dict(found.sizes), found.batch) == ({"m": 2, "k": 3, "n": 2}, (4,))


def test_strides():
    x = torch.empty(4, 1, 6, 5).permute(0, 1, 3, 2)
    found = strided("mk", x.shape, x.stride(), 3)
    assert found.axes == {"m": 1, "k": 5}
    assert found.batch == (0, 30, 0)
    shared = torch.empty(6, 5).expand(4, 3, 6, 5)
    assert strided("mk", shared.shape, shared.stride(), 2).batch == (0, 0)


DIMS = st.lists(st.tuples(st.integers(1, 3), st.tuples(st.integers(0, 12), st.integers(0, 12))), max_size=4)


def addresses(dims):
    """Offsets of every launch order of nested loops, outermost first."""
    spaces = [range(extent) for extent, _ in dims]
    return [
        tuple(sum(i * strides[buffer] for i, (_, strides) in zip(index, dims, strict=True)) for buffer in range(2))
        for index in itertools.product(*spaces)
    ]


@given(DIMS)
def test_merging_batch_axes_visits_the_same_elements_in_the_same_order(dims):
    found = merged(dims)
    assert addresses(found) == addresses(dims)
    assert all(extent > 1 for extent, _ in found)


def test_contiguous_batch_axes_become_one():
    assert merged([(2, (60, 12)), (3, (20, 4)), (1, (5, 5)), (5, (4, 0))]) == [(6, (20, 4)), (5, (4, 0))]


@pytest.mark.parametrize("batch", [(), (2,), (2, 3), (2, 3, 2), (2, 3, 2, 2), (2, 3, 2, 2, 3)])
def test_integers_and_offsets_reach_every_element(batch):
    """With every batch axis strided on its own, the addresses of all cells are those of the array."""
    own = program("mk,nk->mn")
    x = torch.arange(4096 * 2)[: 2 * int(np.prod(batch)) * 6 * 2].as_strided(
        (*batch, 2, 3), (*[6 * 2 ** (len(batch) - i) for i in range(len(batch))], 3, 1)
    )
    y = torch.empty(4, 3)
    geo = geometry(own, [tuple(x.shape), tuple(y.shape)])
    lowering = lower(own, geo.sizes, ["i64", "i64"], ["i64"], "i64")
    out_strides = np.cumprod([1, *reversed((*geo.batch, 2, 4)[1:])])[::-1]
    buffers = [
        strided("mk", x.shape, x.stride(), len(batch)),
        strided("nk", y.shape, y.stride(), len(batch)),
        strided("mn", (*geo.batch, 2, 4), [int(s) for s in out_strides], len(batch)),
    ]
    calls = arguments(lowering, geo, buffers, [0])
    integers = calls.integers
    sizes = {role: int(integers[size_slot(role)]) for role in ROLES}
    assert sizes["m"] * sizes["n"] * sizes["k"] == 2 * 4 * 3
    seen: dict[int, list[int]] = {0: [], 2: []}
    for offsets in calls.offsets:
        for place in itertools.product(*(range(sizes[role]) for role in "abcmn")):
            for buffer in seen:  # noqa: PLC0206
                strides = [int(integers[stride_slot(buffer, role)]) for role in "abcmn"]
                seen[buffer].append(offsets[buffer] + sum(i * s for i, s in zip(place, strides, strict=True)))
    assert sorted(seen[2]) == list(range(int(np.prod(batch)) * 8))
    assert seen[2] == sorted(seen[2])
    rows = [int(at) for at in x[..., 0].flatten()]
    assert seen[0][::4] == rows


def test_more_batch_axes_than_roles_take_several_launches():
    own = program()
    shape = (2, 3, 2, 3, 2, 2, 3)
    x = torch.empty(shape).transpose(0, 4).contiguous().transpose(0, 4).transpose(1, 3)
    geo = geometry(own, [tuple(x.shape), (4, 3)])
    lowering = lower(own, geo.sizes, ["f32", "f32"], ["f32"], "f32")
    buffers = [strided("mk", x.shape, x.stride(), 5), strided("nk", (4, 3), (3, 1), 5)]
    out = torch.empty(geo.out_shape("mn"))
    calls = arguments(lowering, geo, [*buffers, strided("mn", out.shape, out.stride(), 5)], [0])
    launched = len(calls.offsets) * np.prod([calls.integers[size_slot(role)] for role in "abc"])
    assert launched == np.prod(geo.batch)
    assert len(calls.offsets) > 1


def test_aligned_views():
    x = torch.arange(24).reshape(2, 3, 4)
    assert aligned(x, "mk", "kom").shape == (2, 4, 1, 3)
    assert torch.equal(aligned(x, "mk", "km"), x.mT)
    assert torch.equal(aligned(x, "mk", "mk"), x)
    assert aligned(torch.tensor(3), "", "mn").shape == (1, 1)
