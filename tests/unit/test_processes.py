"""Teams of processes: how they end, and that none is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import kernmantle as km
from kernmantle.linalg import multi_gpu
from kernmantle.linalg.processes import Team
from kernmantle.testing import assert_close

SLEEP = "import time; time.sleep(100)"
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(100)"


def python(text):
    return [sys.executable, "-c", text]


def gone(pids):
    for _ in range(500):
        if not any(alive(pid) for pid in pids):
            return True
        time.sleep(0.02)
    return False


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").split(") ")[1][0] != "Z"
    except OSError:
        return False


def test_all_finish():
    with Team([python("pass")] * 3) as team:
        team.wait(60)
    assert all(worker.returncode == 0 for worker in team.workers)


@pytest.mark.parametrize(("text", "words"), [
    ("raise ValueError('too hot')", "ended with status 1"), ("import os; os.kill(os.getpid(), 9)", "SIGKILL"),
    ("import sys; sys.exit(7)", "status 7"),
])  # fmt: skip
def test_the_first_failure_ends_the_others(text, words):
    with Team([python(SLEEP), python(text), python(SLEEP)]) as team, pytest.raises(km.errors.WorkerError) as caught:
        team.wait(60)
    assert "worker 1 of 3" in str(caught.value)
    assert words in str(caught.value)
    assert "raise" not in text or "too hot" in str(caught.value)
    assert gone([worker.pid for worker in team.workers])


def test_time_runs_out():
    with Team([python("pass"), python(SLEEP)]) as team, pytest.raises(km.errors.WorkerError, match=r"\[1\] did not"):
        team.wait(0.5)
    assert gone([worker.pid for worker in team.workers])


def test_those_that_do_not_listen_are_killed(monkeypatch):
    monkeypatch.setattr("kernmantle.linalg.processes.GRACE", 0.3)
    with Team([python(DEAF)]) as team:
        time.sleep(0.5)
    assert team.workers[0].returncode == -signal.SIGKILL


def test_an_interruption_leaves_none_behind():
    pids = []

    def interrupted():
        with Team([python(SLEEP)] * 2) as team:
            pids.extend(worker.pid for worker in team.workers)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert gone(pids)


def test_a_command_that_does_not_start_ends_the_others():
    with pytest.raises(FileNotFoundError):
        Team([python(SLEEP), ["no-such-program-here"]])


OWNER = """
import sys, time
from kernmantle.linalg.processes import Team
child = "from kernmantle.linalg.processes import end_with_owner; end_with_owner(); import time; time.sleep(100)"
with Team([[sys.executable, "-c", child]]) as team:
    print(team.workers[0].pid, flush=True)
    time.sleep(100)
"""


@pytest.mark.distributed
def test_workers_end_with_an_owner_that_is_killed():
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    owner = subprocess.Popen(python(OWNER), stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert owner.stdout is not None
        child = int(owner.stdout.readline())
        assert alive(child)
    finally:
        owner.kill()
        owner.wait()
        owner.stdout.close()
    for _ in range(1500):
        if not alive(child):
            return
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    raise AssertionError("the worker outlived its owner")


@pytest.mark.distributed
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_matrix_goes_through_workers(dtype):
    a = torch.randn(60, 60, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)
    a = a + a.mT
    before = a.clone()
    w, v, info = multi_gpu.over_workers(a, 2, "gloo", True, 120.0)
    assert torch.equal(a, before)
    assert info == 0
    assert_close(w, torch.linalg.eigvalsh(a.double()), dtype=dtype, depth=60**2)
    assert_close(a @ v, (v * w).double(), dtype=dtype, depth=60**2, magnitude=w.abs().max())


@pytest.mark.distributed
def test_a_worker_that_fails_leaves_the_matrix_and_no_files(tmp_path, monkeypatch):
    monkeypatch.setattr(multi_gpu, "_shared_folder", lambda size: tmp_path)
    a = torch.eye(5)
    with pytest.raises(km.errors.WorkerError, match="no_such"):
        multi_gpu.over_workers(a, 2, "gloo", True, 60.0, worker="kernmantle.no_such")
    assert list(tmp_path.iterdir()) == []
    assert torch.equal(a, torch.eye(5))


def test_room_is_looked_for_first():
    with pytest.raises(km.errors.OutOfMemoryError, match="bytes are needed"):
        multi_gpu._shared_folder(1 << 60)


BAD = [
    (lambda: km.linalg.eigh_multi_gpu(torch.zeros(2, 3, 3)), km.errors.ShapeError, "loop"),
    (lambda: km.linalg.eigh_multi_gpu(torch.eye(3).half()), km.errors.DtypeError, "float16"),
    (lambda: km.linalg.eigh_multi_gpu(torch.eye(3), max_devices=0), km.errors.ParameterError, "max_devices"),
    (lambda: km.linalg.eigh_multi_gpu(torch.eye(3) / 0, check=True), km.errors.ParameterError, "infinite"),
]


def test_one_gpu_takes_small_matrices_unless_more_are_asked_for(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(multi_gpu, "available", lambda _: 10**12)
    edge = multi_gpu.QUICKER["syevd"]
    small, large = (torch.zeros(1).expand(n, n) for n in (edge, edge + 1))
    assert [multi_gpu._devices(most, small) for most in (None, 1, 3, 9)] == [1, 1, 3, 4]
    assert [multi_gpu._devices(most, large) for most in (None, 2)] == [4, 2]
    monkeypatch.setattr(multi_gpu, "available", lambda _: 4 * small.nbytes - 1)
    assert multi_gpu._devices(None, small) == 4


@pytest.mark.parametrize("case", range(len(BAD)))
def test_bad_input(case):
    call, kind, words = BAD[case]
    with pytest.raises(kind, match=words):
        call()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu():
    with pytest.raises(km.errors.DeviceError, match=r"km\.linalg\.eigh"):
        km.linalg.eigh_multi_gpu(torch.eye(3))
