"""Arguments of CUDA kernels stand in one order; what a plan does not list is a constant."""

from __future__ import annotations

import pytest

from kernmantle.backends.cuda.abi import Arguments, register_split
from kernmantle.compiler.nest import ROLES, SIZES, Buffer, integer_slots, size_slot, stride_slot

BUFFERS = (Buffer("x0", "mk", "f32"), Buffer("x1", "nk", "f32"), Buffer("out0", "mn", "f32"))
EXTENTS = dict.fromkeys("abc", 1) | {"m": 5, "n": 7, "k": 3, "l": 1, "splits": 4}


def test_extents_come_before_strides_and_single_batches_are_left_out():
    slots = integer_slots(BUFFERS, EXTENTS | {"b": 2}, "mnk")
    extents, strides = [size_slot(role) for role in "bmnk"], [(0, "bmk"), (1, "bnk"), (2, "bmn")]
    assert slots == (*extents, *(stride_slot(buffer, role) for buffer, roles in strides for role in roles))
    assert integer_slots(BUFFERS, EXTENTS, "mnk", splits=True)[:4] == tuple(
        map(size_slot, ("m", "n", "k", "splits"))
    )  # fmt: skip
    assert all(slot < stride_slot(1, ROLES[0]) or slot >= stride_slot(2, ROLES[0])
               for slot in integer_slots([BUFFERS[0], None, BUFFERS[2]], EXTENTS))  # fmt: skip


def test_what_is_not_listed_is_a_constant():
    own = Arguments(2, (size_slot("m"), stride_slot(1, "k")), 1)
    assert own.integer_parameters == [f"km::i64 i{size_slot('m')}", f"km::i64 i{stride_slot(1, 'k')}"]
    assert own.sizes.split(", ") == [f"i{size_slot('m')}" if role == "m" else "1" for role in SIZES]
    assert own.strides == "{0, 0, 0, 0, 0, 0, 0}, {0, 0, 0, 0, 0, " + f"i{stride_slot(1, 'k')}, 0}}"
    assert (own.number_parameters, own.values("float")) == (["double v0"], ["float(v0)"])


def test_a_buffer_without_an_array_has_no_pointer():
    own = Arguments(3, (), 0, absent=1)
    assert (own.pointer_parameters, own.pointers) == (["void* p0", "void* p2"], "p0, 0, p2")


def test_pairs_are_counted_along_k():
    slots = (size_slot("k"), *(stride_slot(buffer, role) for buffer in (0, 2) for role in "mk"))
    own = Arguments(3, slots, 0, paired=2)
    assert own.sizes.split(", ")[SIZES.index("k")] == f"i{size_slot('k')} / 2"
    first, _, last = own.strides.split("}, ")
    assert first == f"{{0, 0, 0, i{stride_slot(0, 'm')} / 2, 0, 1, 0"
    assert "/" not in last


@pytest.mark.parametrize(
    ("threads", "resident", "split"),
    [(256, 2, (56, 200)), (384, 1, (56, 224)), (384, 2, (56, 88)), (256, 1, (56, 240))],
)
def test_consumers_share_what_producers_leave(threads, resident, split):
    found = register_split("sm_90", threads, resident, 56)
    assert found == split
    assert resident * (128 * found[0] + (threads - 128) * found[1]) <= 1 << 16
