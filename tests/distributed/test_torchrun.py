"""Programs that torchrun itself starts, with the commands of the pages."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from ..source import PACKAGE, ROOT

pytestmark = pytest.mark.distributed
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]


def run(*arguments, **variables):
    """What a command wrote; its processes share nothing but their environment."""
    environment = {
        **variables,
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(PACKAGE.parent), str(ROOT)]),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [*TORCHRUN, *map(str, arguments)], check=False, cwd=ROOT, env=environment, capture_output=True, text=True,
        timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_example_of_the_page(tmp_path):
    command = re.search(
        r"^torchrun (.* examples/many_processes.py.*)$", (ROOT / "docs" / "distributed.md").read_text(), re.MULTILINE
    )
    assert command is not None
    said = run(*command[1].replace("fit.pt", str(tmp_path / "fit.pt")).split())
    found = re.fullmatch(
        r"2 processes, 2000 rows: (\d+) iterations, residual (\S+), length of y - \(K \+ ridge I\) c (\S+)\n", said
    )
    assert found is not None, said
    assert int(found[1]) > 1
    assert float(found[2]) <= 1e-8
    assert float(found[3]) <= 1e-8 * 2000**0.5
    assert {file.name for file in tmp_path.iterdir()} == {f"fit.pt.{rank}.{file}" for rank in (0, 1) for file in (0, 1)}


def test_a_fit_goes_on_where_torchrun_starts_it_again(tmp_path):
    run(
        "--standalone", "--nproc-per-node", 2, "--max-restarts", 1, "-m", "tests.distributed.restarted", tmp_path,
        TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1",
    )  # fmt: skip
    assert {file.name for file in tmp_path.glob("said*")} == {"said-0-1.json", "said-1-1.json"}
    for rank in (0, 1):
        said = json.loads((tmp_path / f"said-{rank}-1.json").read_text())
        assert said["size"] == 2
        assert said["converged"]
        assert said["residual"] <= 1e-10
        assert said["first"] < 0.1
