"""Failures of one process of two, as ``faults.py`` stages them: what the other is told, when, and what is on disk.

With gloo, and with NCCL where there are two GPUs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch

from ..source import PACKAGE, ROOT
from .faults import NAMESPACES, SCENARIOS, TIMEOUTS, collective

pytestmark = pytest.mark.distributed
SLACK = 4.0
"""Seconds of a busy machine, in addition to the timeout of the group."""
SAID = "said.txt"
"""What the processes of all scenarios printed."""
DISKS = {"fit.pt.0.0", "fit.pt.0.1"}, {"fit.pt.1.0", "fit.pt.1.1"}


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def device(request):
    if request.param == "cuda" and torch.cuda.device_count() < 2:
        pytest.skip("nobody is left of one GPU")
    return request.param


@pytest.fixture(scope="module")
def stage(tmp_path_factory, device):
    """Where every scenario left its files."""
    folder = tmp_path_factory.mktemp(f"faults-{device}")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(PACKAGE.parent), str(ROOT), *sys.path])}
    environment |= {"OMP_NUM_THREADS": "1", "TORCH_NCCL_DUMP_ON_TIMEOUT": "0"}
    with (folder / SAID).open("w") as said:
        subprocess.run(
            [sys.executable, "-m", "tests.distributed.faults", str(folder), device], check=True, cwd=ROOT, timeout=120,
            env=environment, stdout=said, stderr=said,
        )  # fmt: skip
    return folder


def report(folder, name="report.json"):
    if not (folder / name).exists():
        pytest.fail(f"{folder.name} left no {name}; all processes said\n{(folder.parent / SAID).read_text()}")
    return json.loads((folder / name).read_text())


@pytest.mark.parametrize("name", [name for name, function in SCENARIOS.items() if function is collective])
def test_the_other_process_gets_a_clear_error_in_time(stage, device, name):
    said = report(stage / name)
    assert "a process of the group died, failed or did not answer within the group's timeout" in said["error"]
    assert said["seconds"] < TIMEOUTS[device] + SLACK
    assert said["same"]
    if name.endswith("hung"):
        assert said["seconds"] > TIMEOUTS[device] / 2


@pytest.mark.parametrize("name", ["resume", "resume-writing"])
def test_a_fit_goes_on_from_its_checkpoint(stage, name):
    said = report(stage / name)
    assert said["converged"]
    assert said["residual"] <= 1e-10
    assert said["start"] < 0.1
    assert said["iterations"] < said["cold"]
    for disk, names in zip(("disk-0", "disk-1"), DISKS, strict=True):
        assert {file.name for file in (stage / name / disk).iterdir()} == names


def test_files_that_one_process_lost_are_an_error_in_all(stage):
    first, second = report(stage / "lost")["said"]
    assert "refused by process 1" in first[0]
    assert "is not a checkpoint" in second[0]
    for damaged_then_lost in (first, second):
        assert "processes [1] have none" in damaged_then_lost[1]


@pytest.mark.parametrize("device", ["cpu"], indirect=True)
@pytest.mark.parametrize("rank", [0, 1])
def test_machines_that_lose_each_other_both_get_an_error(stage, device, rank):
    if not (stage / NAMESPACES).exists():
        pytest.skip("network namespaces are not permitted here")
    said = report(stage / NAMESPACES, f"report-{rank}.json")
    assert "died, failed or did not answer" in said["error"]
    assert said["seconds"] < TIMEOUTS[device] + SLACK
