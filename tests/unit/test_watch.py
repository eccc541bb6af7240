"""Processes that watch each other's signs of life."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

import kernmantle as km
from kernmantle.distributed import exchange, watch
from kernmantle.errors import WorkerError

SECONDS = 0.6


def gone(found):
    return lambda what, rank, seconds: found.append((what, rank, seconds))


def test_those_that_live_are_left_alone():
    store, found = dist.HashStore(), []
    with watch.Watch("a", store, 0, 2, SECONDS, gone(found)), watch.Watch("b", store, 1, 2, SECONDS, gone(found)):
        time.sleep(3 * SECONDS)
    time.sleep(2 * SECONDS)
    assert found == []


@pytest.mark.parametrize("ever", [True, False])
def test_one_that_is_gone_is_named_once(ever):
    store, found = dist.HashStore(), []

    def wait():
        with watch.Watch("a wait", store, 0, 2, SECONDS, gone(found)):
            if ever:
                with watch.Watch("b", store, 1, 2, SECONDS, gone(found)):
                    time.sleep(2 * SECONDS)
                assert found == []
            begin = time.monotonic()
            while not found and time.monotonic() - begin < 20:
                time.sleep(0.01)
            assert time.monotonic() - begin > SECONDS / 2
            time.sleep(2 * SECONDS)

    with pytest.raises(WorkerError, match="process 1 of the group died"):
        wait()
    assert found == [("a wait", 1, SECONDS)]


def test_a_store_that_is_gone_is_no_sign_of_life():
    class Lost:
        def add(self, *_):
            raise RuntimeError("connection reset by peer")

    found = []
    with pytest.raises(WorkerError, match="process 0"), watch.Watch("a", Lost(), 1, 3, SECONDS, gone(found)):
        time.sleep(3 * SECONDS)
    assert [rank for _, rank, _ in found] == [0]


def test_one_process_watches_nobody():
    with watch.Watch("a", None, 0, 1, SECONDS):
        time.sleep(SECONDS)


def test_the_timeout_is_that_of_the_group(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        made = watch.watch("a", torch.device("cpu"))
        assert made._seconds == dist.distributed_c10d.default_pg_timeout.total_seconds()
        assert made._count(0, 1) == 1
        assert made._count(0, 1) == 2
    finally:
        dist.destroy_process_group()


def test_a_process_that_lost_another_goes_on_with_an_error(monkeypatch):
    aborted = []
    monkeypatch.setattr(dist.distributed_c10d, "_abort_process_group", lambda: aborted.append(1))

    def wait():
        begin = time.monotonic()
        with watch.Watch("a factor", dist.HashStore(), 0, 2, SECONDS):
            while not aborted and time.monotonic() - begin < 20:
                time.sleep(0.01)
            raise RuntimeError("what NCCL says then")

    with pytest.raises(WorkerError, match="a factor: process 1 of the group died, failed or did not answer"):
        wait()
    assert aborted == [1]


def ended(lines):
    """What became of a process that waits for another one, which is gone, and what it wrote."""
    code = "import time, torch.distributed as dist; from kernmantle.distributed import watch\n" + lines
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=120,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    return done.returncode, done.stderr


def test_a_process_ends_and_says_why_where_that_is_asked_for():
    status, words = ended(
        "from kernmantle.config import set_config; set_config(exit_on_lost_process=True)\n"
        "with watch.Watch('a factor', dist.HashStore(), 0, 2, 0.2): time.sleep(60)"
    )
    assert status == 1
    assert "a factor: process 1 of the group died, failed or did not answer for 0.2 s" in words


@pytest.mark.parametrize("stuck", ["the wait", "the end of the group"])
def test_a_process_whose_gpu_is_not_released_ends_and_says_why(stuck):
    seconds = 0 if stuck == "the wait" else 60
    status, words = ended(
        "watch.RELEASE = 0.3\n"
        f"dist.distributed_c10d._abort_process_group = lambda: time.sleep({seconds})\n"
        "with watch.Watch('a factor', dist.HashStore(), 0, 2, 0.2): time.sleep(60)"
    )
    assert status == 1
    assert "a factor: process 1 of the group died" in words
    assert "its GPU was not released in 0.3 s" in words


class Wire:
    """Messages to a GPU that arrive after so many looks at them, and what was asked of the device."""

    def __init__(self, monkeypatch, looks):
        self.looks, self.calls = looks, []
        record = self.calls.append
        for name, value in {
            "Event": lambda: self, "Stream": lambda _: "another stream", "stream": lambda _: nullcontext(),
            "current_stream": lambda _: SimpleNamespace(wait_event=lambda event: record("the stream waits")),
        }.items():  # fmt: skip
            monkeypatch.setattr(torch.cuda, name, value)
        monkeypatch.setattr(exchange, "timeout_of", lambda *_: SECONDS)
        monkeypatch.setattr(dist.distributed_c10d, "_abort_process_group", lambda: record("aborted"))

    def record(self, stream):
        self.calls.append(f"recorded on {stream}")

    def query(self):
        self.looks -= 1
        return self.looks < 0

    def wait(self):
        self.calls.append("waited")


def finish(wire):
    with exchange.answering("a sum"):
        exchange._arrive([wire, wire], torch.device("cuda"), None, time.monotonic())


@pytest.mark.parametrize("looks", [0, 5])
def test_messages_to_a_gpu_are_waited_for_on_the_host(monkeypatch, looks):
    wire = Wire(monkeypatch, looks)
    finish(wire)
    assert wire.calls == ["waited", "waited", "recorded on another stream", "the stream waits"]


def test_messages_that_never_arrive_are_an_error_before_the_timeout_of_the_group(monkeypatch):
    wire, begin = Wire(monkeypatch, 10**9), time.monotonic()
    with pytest.raises(WorkerError, match=r"a sum: a process of the group died.*no message from the other processes"):
        finish(wire)
    assert wire.calls[-1] == "aborted"
    assert time.monotonic() - begin >= exchange.SHARE * SECONDS
    assert exchange.SHARE < 1


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"),
        torch.OutOfMemoryError("CUDA out of memory"),
    ],
    ids=["cpu", "cuda"],
)
def test_memory_that_ran_out_is_not_blamed_on_another_process(error):
    with pytest.raises(RuntimeError) as found, exchange.answering("a sum"):
        raise error
    assert found.value is error


@pytest.mark.parametrize(
    ("device", "asked", "waits"), [("cuda", True, True), ("cuda", False, False), ("cpu", True, False)]
)
def test_the_host_waits_for_messages_to_gpus_where_that_is_asked_for(monkeypatch, device, asked, waits):
    wire, sent = Wire(monkeypatch, 3), []

    def send(**options):
        sent.append(options)
        return wire

    with km.config(wait_on_host=asked):
        exchange._exchange(send, torch.device(device), "a group")
    assert sent == [{"group": "a group", "async_op": True} if waits else {"group": "a group"}]
    assert ("recorded on another stream" in wire.calls) == waits


def test_a_process_ends_though_its_store_answers_late():
    """Its thread would come back from the store while modules are cleared, which takes a second here."""
    status, words = ended("""
import datetime, sys, types
from contextlib import suppress
class Late:
    store = dist.HashStore()
    def add(self, *_):
        with suppress(RuntimeError, dist.DistError):
            self.store.wait(["never"], datetime.timedelta(seconds=0.5))
        return 1
class Slow:
    sleep = time.sleep
    def __del__(self):
        Slow.sleep(1)
with watch.Watch("a", Late(), 0, 2, 2):
    time.sleep(0.7)
sys.modules["slow"] = types.ModuleType("slow")
sys.modules["slow"].one = Slow()
""")
    assert (status, words) == (0, "")
