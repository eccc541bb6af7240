"""Groups of 2 and 4 processes with gloo; what is checked is in ``program.py``."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from ..source import PACKAGE, ROOT
from .program import CHECKS

pytestmark = [pytest.mark.distributed, pytest.mark.slow]
SIZES = (2, 4)


def run(folder, size):
    """Start a group; the states that its processes ended with."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(PACKAGE.parent), str(ROOT)]),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.distributed.program", str(folder), str(size)],
        check=False, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


@pytest.fixture(scope="module", params=SIZES)
def outcomes(request, tmp_path_factory):
    """What each process said about each check."""
    folder = tmp_path_factory.mktemp("group")
    states, said = run(folder, request.param)
    assert states == [0] * request.param, said
    return [json.loads((folder / f"said-{rank}").read_text()) for rank in range(request.param)]


@pytest.mark.parametrize("name", CHECKS)
def test_every_process_agrees(outcomes, name):
    assert [said[name] for said in outcomes] == [""] * len(outcomes)
