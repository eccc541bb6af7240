"""Launches as one native call, whose driver's functions are Python here."""

from __future__ import annotations

import ctypes
import gc
import operator
import struct
import threading
from contextlib import nullcontext
from operator import itemgetter
from types import SimpleNamespace

import pytest
import torch

import kernmantle as km
from kernmantle.backends.cpu.jit import compile_ir, host, load
from kernmantle.backends.cuda import launch, launch_graph
from kernmantle.backends.cuda.launch import BoundLaunch, Queue
from kernmantle.backends.cuda.launch_graph import LaunchGraph
from kernmantle.backends.cuda.launch_program import MOST, LaunchProgram, Record
from kernmantle.torch_ops import cuda_launches, torch_private
from kernmantle.torch_ops.blas_handles import BlasHandles
from kernmantle.torch_ops.cuda_launches import runner
from kernmantle.torch_ops.launch_sequence import LaunchSequence

WORD = ctypes.c_int64


def native(words, function):
    """The address of a function of so many words, and what has to live as long."""
    made = ctypes.CFUNCTYPE(ctypes.c_int32, *[WORD] * words)(function)
    return ctypes.cast(made, ctypes.c_void_p).value, made


@pytest.fixture
def called():
    return []


def test_records_are_called_in_their_order_on_addresses_of_a_table(called) -> None:
    few, one = native(4, lambda *words: called.append(words) or 0)
    many, two = native(16, lambda *words: called.append(words) or 0)
    words = (WORD * 16)(*range(16))
    at = ctypes.addressof(words)
    records = [
        Record(few, (1, -2, 3, 1 << 50), []),
        Record(many, words, [(at + 8 * 3, 1), (at + 8 * 15, 2), (at, 0)], few, (9, 8, 7, 6)),
    ]
    program = LaunchProgram(runner(), records)
    for first, last in ((111, 222), (1 << 47, -1)):
        called.clear()
        assert program.launch([0, first, last]) == 0
        assert called == [(1, -2, 3, 1 << 50), (9, 8, 7, 6), (0, 1, 2, first, *range(4, 15), last)]
    assert one
    assert two


@pytest.mark.parametrize("failing", ["call", "setter"])
def test_the_first_call_that_fails_is_the_last_one(failing, called) -> None:
    good, one = native(4, lambda *words: called.append(words) or 0)
    bad, two = native(4, lambda *words: called.append(words) or -7)
    setter = (bad, (5,) * 4) if failing == "setter" else (0, ())
    records = [Record(good, (1,) * 4, []), Record(bad if failing == "call" else good, (2,) * 4, [], *setter)]
    program = LaunchProgram(runner(), [*records, Record(good, (3,) * 4, [])])
    assert program.launch([0]) == -7
    assert called == [(1,) * 4, (2,) * 4 if failing == "call" else (5,) * 4]
    assert one
    assert two


def test_a_call_outlives_its_program(called) -> None:
    function, own = native(4, lambda *words: called.append(words) or 0)
    words = (WORD * 4)()
    launch = LaunchProgram(
        runner(), [Record(function, words, [(ctypes.addressof(words), 1)], owned=(words, own))]
    ).launch
    del words, own
    gc.collect()
    assert launch([0, 7]) == 0
    assert called == [(7, 0, 0, 0)]


def test_what_is_no_list_of_numbers_is_an_error(called) -> None:
    function, own = native(4, lambda *words: called.append(words) or 0)
    program = LaunchProgram(runner(), [Record(function, (1,) * 4, [])])
    for wrong, error in (((0, 1), SystemError), ([0, "1"], TypeError), ([0, 1 << 64], OverflowError), (7, SystemError)):
        with pytest.raises(error):
            program.launch(wrong)  # pyright: ignore
    with pytest.raises(SystemError):
        program.launch([0] * (MOST + 1))
    assert called == []
    assert program.launch([0] * MOST) == 0
    assert program.launch([-1, 1]) == 0
    assert len(called) == 2
    assert own


class Configuration:
    @staticmethod
    def getPtr():
        return 4242


class Nothing:
    """A kernel that a launch prepares and does not start."""

    title, threads, handle = "nothing", 128, 77

    def packing(self, arguments):
        return struct.Struct("=" + "".join("d" if isinstance(value, float) else "q" for value in arguments))

    def configure(self, *_):
        return Configuration()

    def launch(self, *_):
        return (0,)


def test_a_bound_launch_hands_the_driver_what_its_own_call_does(monkeypatch, called) -> None:
    def start(configuration, function, parameters, extra):
        begin, pointer, buffer, size, end = (ctypes.c_void_p * 5).from_address(extra)
        count = ctypes.c_size_t.from_address(size).value
        called.append((configuration, function, parameters, begin, buffer, end, ctypes.string_at(pointer, count)))
        return 0

    address, own = native(4, start)
    monkeypatch.setattr(launch, "launch_function", lambda: address)
    queue = Queue(int, operator.index, nullcontext, lambda: None)
    one = BoundLaunch(Nothing(), [0, 5, 0, 2.5, 6, 0], [0, 2, 5], 0, 64, queue)
    other = BoundLaunch(Nothing(), [0, 5, 0], [0], 0, 64, queue, lambda device, stream: 990 + stream)
    program = LaunchProgram(
        runner(), [one.record(3, (1, 0, 2, 9)), other.record(3, (2, 9)), other.record(3, (2, 9), 8)]
    )
    for first, second in ((111, 1 << 46), (5, 6)):
        called.clear()
        assert program.launch([0, first, second]) == 0
        packed = [struct.pack("=qqqdqq", first, 5, 0, 2.5, 6, second)]
        packed += [struct.pack("=qqq", second, 5, counter) for counter in (993, 998)]
        assert called == [(4242, 77, 0, 1, 2, None, own) for own in packed]
    assert own


class Launched:
    """A launch whose call and record do the same, on a device."""

    def __init__(self, called, device=1, workspace_bytes=0):
        self.called, self.device, self.workspace_bytes = called, device, workspace_bytes

    def __call__(self, addresses):
        self.called.append(("called", *addresses))

    def record(self, stream, operands, home):
        function, own = native(4, lambda *words: self.called.append(("native", stream, *words)) or 0)
        words = (WORD * 4)()
        at = ctypes.addressof(words)
        picked = operands if self.workspace_bytes else operands[:-1]
        return Record(function, words, [(at + 8 * place, each) for place, each in enumerate(picked)], owned=(own,))


@pytest.fixture
def machine(monkeypatch):
    """What a GPU says of itself."""
    found = {"stream": 7, "captured": False, "device": 1, "entered": []}
    for name, value in {
        "_cuda_getCurrentRawStream": lambda _: found["stream"], "_cuda_getDevice": lambda: found["device"],
    }.items():  # fmt: skip
        monkeypatch.setattr(torch._C, name, value, raising=False)
    monkeypatch.setattr(torch_private, "is_capturing", lambda: found["captured"])
    memory = {}

    def workspace_of(index, stream):
        return memory.setdefault((index, stream), torch.empty(64, dtype=torch.uint8))

    monkeypatch.setattr(cuda_launches, "workspace_of", workspace_of)
    monkeypatch.setattr(cuda_launches, "enter_thread", lambda: found["entered"].append("context"))
    monkeypatch.setattr(cuda_launches, "_THREAD", cuda_launches._Thread())
    monkeypatch.setattr(torch.cuda, "device", lambda index: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_blas_handle", lambda: found["entered"].append("handle"))
    monkeypatch.setattr(cuda_launches, "HANDLES", BlasHandles())
    return found


def test_a_sequence_is_one_native_call_where_all_launches_are_bound(machine, called) -> None:
    sequence = LaunchSequence([(Launched(called), itemgetter(1, 2)), (Launched(called), itemgetter(2, 0, 3))])
    for stream in (7, 9, 7):
        machine["stream"] = stream
        called.clear()
        sequence([0, 11, 22, 33])
        assert called == [("native", stream, 11, 22, 0, 0), ("native", stream, 22, 0, 33, 0)]
    assert machine["entered"] == ["context", "handle"]
    apart = [("called", 11, 22), ("called", 22, 0, 33)]
    for name, value in (("captured", True), ("device", 0)):
        before = machine[name]
        machine[name] = value
        called.clear()
        sequence([0, 11, 22, 33])
        assert called == apart
        machine[name] = before


@pytest.mark.parametrize("is_whole", [True, False], ids=["captured", "refused"])
def test_launches_on_the_same_table_become_a_graph(is_whole, machine, called, monkeypatch) -> None:
    class Graph:
        def __init__(self, start):
            self.is_whole = is_whole
            assert start(99) == 0

        def record(self, stream):
            function, own = native(4, lambda *words: called.append(("graph", *words)) or 0)
            return Record(function, (5, stream, 0, 0), (), owned=(own, self))

    monkeypatch.setattr(cuda_launches, "LaunchGraph", Graph)
    monkeypatch.setattr(cuda_launches, "_BEFORE", 2)
    sequence = LaunchSequence([(Launched(called), itemgetter(1, 2)), (Launched(called), itemgetter(2, 1))])

    def on(stream, one, other):
        called.clear()
        machine["stream"] = stream
        sequence([0, one, other])
        return called.copy()

    def apart(stream, one, other):
        return [("native", stream, one, other, 0, 0), ("native", stream, other, one, 0, 0)]

    for stream in (7, 9):
        assert on(stream, 11, 22) == on(stream, 11, 22) == apart(stream, 11, 22)
    assert on(7, 33, 22) == apart(7, 33, 22)
    again = [("graph", 5, 7, 0, 0)] if is_whole else apart(7, 11, 22)
    assert on(7, 11, 22) == apart(99, 11, 22) + again
    assert on(7, 11, 22) == on(7, 11, 22) == again
    assert on(9, 11, 22)[:2] == apart(99, 11, 22)
    assert on(7, 33, 22) == apart(7, 33, 22)
    alone = LaunchSequence([(Launched(called), itemgetter(1, 2))])
    called.clear()
    for _ in range(4):
        alone([0, 11, 22])
    assert called == apart(7, 11, 22)[:1] * 4


@pytest.mark.parametrize("fails", ["", "create", "begin", "start", "end", "make"])
def test_a_graph_is_what_was_captured_or_nothing(fails, monkeypatch) -> None:
    """Whatever the driver refuses, nothing of it stays, and the launches are made one by one."""
    made = []

    def answers(name, *found):
        def call(*_):
            made.append(name)
            return (int(fails == name), *(None if fails == name else each for each in found))

        return call

    driver = SimpleNamespace(
        CUstream_flags=SimpleNamespace(CU_STREAM_NON_BLOCKING=1), CUstreamCaptureMode=SimpleNamespace(
            CU_STREAM_CAPTURE_MODE_RELAXED=2
        ), cuStreamCreate=answers("create", 3), cuStreamBeginCapture=answers("begin"),
        cuStreamEndCapture=answers("end", 4), cuGraphInstantiate=answers("make", 5),
        cuGraphDestroy=answers("end graph"), cuStreamDestroy=answers("end stream"),
        cuGraphExecDestroy=lambda own: made.append(("end", own)),
    )  # fmt: skip
    monkeypatch.setattr(launch_graph, "_driver", lambda: driver)
    monkeypatch.setattr(launch_graph, "_launch_function", lambda: 77)
    monkeypatch.setattr(launch_graph, "relaxed_capture", nullcontext)
    graph = LaunchGraph(lambda stream: made.append(stream) or int(fails == "start"))
    steps = ["create", "begin", 3, "end", "make", "end graph", "end stream"]
    wanted = {
        "create": steps[:1], "begin": [*steps[:2], *steps[-1:]], "start": [*steps[:4], *steps[5:]],
        "end": [*steps[:4], *steps[6:]],
    }.get(fails, steps)  # fmt: skip
    assert made == wanted
    assert graph.is_whole == (fails == "")
    if graph.is_whole:
        record = graph.record(9)
        assert (record.function, record.arguments, record.owned) == (77, (5, 9, 0, 0), (graph,))
        del record, graph
        gc.collect()
        assert made == [*steps, ("end", 5)]


def test_a_thread_is_made_ready_with_its_first_launch(machine, called) -> None:
    sequence = LaunchSequence([(Launched(called), itemgetter(1, 2))])
    sequence([0, 11, 22])
    other = threading.Thread(target=sequence, args=([0, 33, 44],))
    other.start()
    other.join()
    sequence([0, 55, 66])
    assert machine["entered"] == ["context", "handle"] * 2
    assert [words[2:4] for words in called] == [(11, 22), (33, 44), (55, 66)]


def test_launches_of_other_kinds_are_called_one_by_one(machine, called) -> None:
    sequence = LaunchSequence([(called.append, itemgetter(1, 2)), (Launched(called), itemgetter(2, 0))])
    sequence([0, 11, 22])
    assert called == [(11, 22), ("called", 22, 0)]


def test_a_workspace_is_the_last_address_of_a_table(machine, called) -> None:
    sequence = LaunchSequence([(Launched(called, 1, 64), itemgetter(1, 2)), (Launched(called), itemgetter(1, 2))])
    other = LaunchSequence([(Launched(called, 1, 32), itemgetter(2, 1))])
    for stream in (7, 9, 7):
        machine["stream"] = stream
        sequence([0, 11, 22])
        other([0, 11, 22])
    assert all(words[:4] == ("native", stream, 11, 22) for words, stream in zip(called[::3], (7, 9, 7), strict=True))
    assert all(words[4] == 0 for words in called[1::3])
    one, two, again = (words[4] for words in called[::3])
    assert one == again != two
    assert [words[4] for words in called[2::3]] == [one, two, one]  # one for all sequences of a stream
    assert 0 not in (one, two)


def test_a_launch_that_fails_raises(machine) -> None:
    class Failing(Launched):
        def record(self, stream, operands, home):
            function, own = native(4, lambda *_: 3)
            return Record(function, (0,) * 4, [], owned=(own,))

    with pytest.raises(km.errors.LaunchError, match="status 3"):
        LaunchSequence([(Failing([]), itemgetter(1, 2))])([0, 1, 2])


def test_tables_of_many_layers_are_launched_one_by_one(monkeypatch):
    """A group of 210 layers has 1051 addresses, more than the memory of a thread for a native call."""

    class Bound:
        """What could be part of a native call."""

        record = None

        def __init__(self):
            self.calls = []

        def __call__(self, operands):
            self.calls.append(operands)

    monkeypatch.setattr("kernmantle.torch_ops.launch_sequence._cuda", lambda: pytest.fail("a native call"))
    bound, table = Bound(), list(range(1 + 5 * 210))
    LaunchSequence([(bound, itemgetter(1, 1050))], True)(table)
    assert bound.calls == [(1, 1050)]


CHECK = """
define i32 @km(ptr %counts, i64 %own, i64 %address, i64 %unused) {
  %expected = load i64, ptr %counts
  %same = icmp eq i64 %own, %expected
  %at = select i1 %same, i64 1, i64 2
  %count = getelementptr i64, ptr %counts, i64 %at
  %old = atomicrmw add ptr %count, i64 1 monotonic
  ret i32 0
}
"""


def test_threads_that_run_a_program_at_once_have_their_own_addresses() -> None:
    """Without the interpreter's lock, as in a free-threaded Python: each call counts in its table's memory."""
    kernel = load(compile_ir(CHECK, host()))
    words, calls, threads = (WORD * 4)(), 5_000_000, 4
    at = ctypes.addressof(words)
    program = LaunchProgram(runner(), [Record(kernel.address, words, [(at, 1), (at + 8, 2)])])
    # A function of C that calls a program many times, so that no thread waits for another one's Python.
    many = load(compile_ir(MANY, host()))
    loop = ctypes.CFUNCTYPE(None, WORD, WORD, WORD, WORD, WORD)(many.address)
    counts = [(WORD * 3)(number + 1) for number in range(threads)]
    tables = [(WORD * 3)(0, ctypes.addressof(own), own[0]) for own in counts]
    run = [
        threading.Thread(target=loop, args=(runner().address, program.address, 1, ctypes.addressof(table), calls))
        for table in tables
    ]
    for thread in run:
        thread.start()
    for thread in run:
        thread.join()
    assert [list(own) for own in counts] == [[number + 1, calls, 0] for number in range(threads)]


MANY = """
define void @km(ptr %run, ptr %program, i64 %count, ptr %table, i64 %calls) {
entry:
  br label %loop
loop:
  %number = phi i64 [ 0, %entry ], [ %next, %loop ]
  %status = call i64 %run(ptr %program, i64 %count, ptr %table)
  %next = add i64 %number, 1
  %more = icmp slt i64 %next, %calls
  br i1 %more, label %loop, label %end
end:
  ret void
}
"""
