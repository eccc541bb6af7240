"""Distributed functions on NCCL, with as many processes as there are GPUs; one is a group, too."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys

import pytest
import torch

import kernmantle as km
from kernmantle.testing import assert_close

from ..source import PACKAGE, ROOT

pytestmark = [pytest.mark.cuda, pytest.mark.distributed]
pytest.importorskip("nvmath.bindings.cusolverMp", reason="needs nvmath-python and nvidia-cusolvermp")
CHECKS = ("products", "iterations", "cholesky", "kernel_system", "lu", "eigh", "kron", "workspaces")


ENDED = 180
"""Seconds until a process has ended: torch's watchdog may take a minute where a GPU waits for another."""


def group(folder, *what):
    """The processes of a group, ended, and what they printed."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(PACKAGE.parent), str(ROOT), *sys.path])}
    environment["TORCH_NCCL_DUMP_ON_TIMEOUT"] = "0"  # torch's watchdog takes half a minute for it
    count = torch.cuda.device_count()
    members = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.cuda.group", str(folder), str(rank), str(count), *what], cwd=ROOT,
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank in range(count)
    ]  # fmt: skip
    try:
        spoken = [member.communicate(timeout=ENDED)[0] for member in members]
    finally:
        for member in members:
            member.kill()
    return members, spoken


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """What each process said about each check."""
    folder, count = tmp_path_factory.mktemp("group"), torch.cuda.device_count()
    members, spoken = group(folder)
    assert [member.returncode for member in members] == [0] * count, "\n".join(spoken)[-4000:]
    return [json.loads((folder / f"said-{rank}").read_text()) for rank in range(count)]


@pytest.mark.parametrize("name", CHECKS)
def test_every_process_agrees(said, name):
    assert [each[name] for each in said] == [""] * len(said)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="nobody is left")
def test_a_dead_process_ends_the_others_with_an_error(tmp_path):
    members, spoken = group(tmp_path, "dies")
    assert members[-1].returncode == -signal.SIGKILL
    for member, words in zip(members[:-1], spoken[:-1], strict=True):
        assert member.returncode not in (0, -signal.SIGKILL)
        assert re.search("died, failed or did not answer|Watchdog caught collective operation timeout", words), words[
            -2000:
        ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_call_over_all_gpus(dtype):
    root = torch.randn(700, 700, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    a = (root + root.mT).to(dtype)
    before = a.clone()
    w, v = km.linalg.eigh_multi_gpu(a, max_devices=torch.cuda.device_count(), timeout=120)
    assert torch.equal(a, before)
    assert_close(w, torch.linalg.eigvalsh(root + root.mT), dtype=dtype, depth=700**2)
    assert_close(v.mT.double() @ v.double(), torch.eye(700).double(), dtype=dtype, depth=700**2, magnitude=1)
