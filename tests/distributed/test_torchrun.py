"""Programs that torchrun itself starts, with the commands of the pages."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from ..source import PACKAGE, ROOT
from .faults import permitted

pytestmark = [pytest.mark.distributed, pytest.mark.slow]
SAID = r"2 processes, 2000 rows: (\d+) iterations, residual (\S+), length of y - \(K \+ ridge I\) c (\S+)\n"
"""What the example of the page prints."""


def run(*arguments, module="torch.distributed.run", **variables):
    """What a command wrote; its processes share nothing but their environment."""
    environment = {
        **variables,
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(PACKAGE.parent), str(ROOT)]),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, "-m", module, *map(str, arguments)], check=False, cwd=ROOT, env=environment,
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_example_of_the_page(tmp_path):
    command = re.search(
        r"^torchrun (.* examples/many_processes.py.*)$", (ROOT / "docs" / "distributed.md").read_text(), re.MULTILINE
    )
    assert command is not None
    said = run(*command[1].replace("fit.pt", str(tmp_path / "fit.pt")).split())
    found = re.fullmatch(SAID, said)
    assert found is not None, said
    assert int(found[1]) > 1
    assert float(found[2]) <= 1e-8
    assert float(found[3]) <= 1e-8 * 2000**0.5
    assert {file.name for file in tmp_path.iterdir()} == {f"fit.pt.{rank}.{file}" for rank in (0, 1) for file in (0, 1)}


def test_the_example_of_the_page_on_two_nodes(tmp_path):
    """Twice: the second time it starts from the files that each node has on a disk of its own.

    The nodes are network namespaces joined by a wire, or processes of one network where namespaces are not permitted.
    """
    network = "wire" if permitted() else "loopback"
    page = (ROOT / "docs" / "distributed.md").read_text()
    assert "--nnodes 2 --rdzv-backend c10d --rdzv-endpoint" in page.replace("\n", " ")
    program = [ROOT / "examples" / "many_processes.py", "--checkpoint", "fit.pt"]
    iterations = []
    for _ in range(2):
        run(network, tmp_path, *program, module="tests.distributed.nodes")
        wrong = [(tmp_path / f"node-{rank}" / "errors").read_text() for rank in (0, 1)]
        assert [errors.splitlines()[0] for errors in wrong] == ["0", "0"], wrong
        said = "".join((tmp_path / f"node-{rank}" / "said").read_text() for rank in (0, 1))
        found = re.fullmatch(SAID, said)
        assert found is not None, said
        assert float(found[2]) <= 1e-8
        iterations.append(int(found[1]))
    assert iterations[1] < iterations[0]
    for rank in (0, 1):
        files = {file.name for file in (tmp_path / f"node-{rank}").glob("fit.pt*")}
        assert files == {f"fit.pt.{rank}.{number}" for number in (0, 1)}


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
