"""Test suites of other libraries on objects of this one, as the scripts run them.

Those of scikit-learn come with it; a list says which of them fail, and would be another list for another version. Those
of libraries on KeOps are in their sources: ``KEOPS_SUITES`` names a folder with checkouts gpytorch, geomloss,
TorchDR.
"""

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WRITTEN_FOR = "1.9.1"
LONG = [pytest.param(name, marks=pytest.mark.exhaustive) for name in ("neighbors", "hdbscan", "pairwise")]
FOLDER = Path(os.environ.get("KEOPS_SUITES", "/nonexistent"))


def run(script, argument):
    command = [sys.executable, str(ROOT / "scripts" / script), argument, "-pno:cacheprovider"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert " passed" in done.stdout


@pytest.mark.slow
@pytest.mark.skipif(version("scikit-learn") != WRITTEN_FOR, reason=f"the list is that of scikit-learn {WRITTEN_FOR}")
@pytest.mark.parametrize("suite", ["dbscan", "kernel_ridge", *LONG])
def test_those_of_scikit_learn(suite):
    run("sklearn_suites.py", suite)


@pytest.mark.slow
@pytest.mark.parametrize("library", ["gpytorch", "geomloss", "TorchDR"])
def test_those_on_keops(library):
    if not (FOLDER / library).is_dir():
        pytest.skip(f"KEOPS_SUITES has no {library}")
    run("keops_suites.py", f"{library}={FOLDER / library}")
