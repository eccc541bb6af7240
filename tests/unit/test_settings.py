"""The settings of the test run itself: what must not be skipped, and the hermetic environment."""

import os
import subprocess
import sys
from pathlib import Path

import hypothesis
import pytest

from ..source import ROOT

CASES = {
    "marked": "import pytest\n@pytest.mark.cuda\n@pytest.mark.parametrize('x', [1, 2])\ndef test_it(x): pass\n",
    "inside": "import pytest\n@pytest.mark.cuda\ndef test_it(): pytest.importorskip('no_such_module')\n",
    "module": "import pytest\npytest.importorskip('no_such_module')\npytestmark = pytest.mark.cuda\n",
    "other": "import pytest\npytest.importorskip('no_such_module')\n",
    "plain": "import pytest\ndef test_it(): pytest.importorskip('no_such_module')\n",
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """Exit status of each case, without and with --require=cuda, where there is no GPU."""
    root = tmp_path_factory.mktemp("suite")
    (root / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    (root / "pytest.ini").write_text("[pytest]\nmarkers = cuda\n")
    (root / "test_first.py").write_text("def test_one(): pass\n")
    for name, text in CASES.items():
        (root / f"test_{name}.py").write_text(text)
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    found = {}
    for required in ([], ["--require=cuda"]):
        command = [sys.executable, "-m", "pytest", "-q", "-rfE", "--continue-on-collection-errors", *required]
        result = subprocess.run(
            command, check=False, cwd=root, env=environment, capture_output=True, text=True, timeout=120
        )
        found[bool(required)] = result
    return found


def test_without_requirement_nothing_fails(outcomes):
    assert outcomes[False].returncode == 0, outcomes[False].stdout
    assert "1 passed, 5 skipped, 1 deselected" in outcomes[False].stdout


def test_a_required_test_that_is_skipped_fails(outcomes):
    out = outcomes[True].stdout
    assert outcomes[True].returncode != 0
    failed = {name for name in CASES if f"FAILED test_{name}" in out or f"ERROR test_{name}" in out}
    assert failed == {"marked", "inside", "module"}, out
    assert "test_marked.py::test_it[2]" in out
    assert "it is skipped: needs an NVIDIA GPU" in out


def test_the_run_has_a_cache_of_its_own():
    directory = Path(os.environ["KERNMANTLE_CACHE_DIR"])
    assert directory.name.startswith("kernmantle-tests-")
    assert [name for name in os.environ if name.startswith("KERNMANTLE_")] == ["KERNMANTLE_CACHE_DIR"]


def test_random_cases_are_the_same_every_time():
    assert hypothesis.settings.get_profile("fixed").derandomize
