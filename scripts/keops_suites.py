"""The test suites of libraries on KeOps, unchanged, on ``km.compat.install("pykeops")``; see docs/migration.md.

Each is run from a checkout of its sources: ``python scripts/keops_suites.py gpytorch=/path/to/gpytorch
geomloss=/path/to/geomloss TorchDR=/path/to/TorchDR``. What is left out, and why, is in ``SUITES``. GeomLoss' tests need
hypothesis and pytest-check.
"""
# ruff: noqa: T201

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PLUGIN = """
import kernmantle

kernmantle.compat.install("pykeops")
try:
    from hypothesis import settings
except ImportError:
    pass
else:  # how long an example may take is a matter of the machine
    settings.register_profile("without_deadline", deadline=None)
    settings.load_profile("without_deadline")
"""


@dataclass(frozen=True)
class Suite:
    """Folders of sources and of tests of a checkout, and for every test that is left out the reason."""

    sources: str
    tests: tuple[str, ...]
    left_out: dict[str, str]


_TORCHDR = ("affinity", "neighbor_embedding", "eval", "spectral", "utils", "dataloader")
"""The modules of TorchDR's tests that name KeOps."""
SUITES = {
    "gpytorch": Suite(
        "",
        ("test/kernels/keops", "test/examples/test_keops_gp_regression.py"),
        {"test/kernels/keops/test_periodic_kernel.py::test_prior_type": "a method that stands outside of its class"},
    ),
    "geomloss": Suite("src", ("tests",), {}),
    "TorchDR": Suite("", tuple(f"torchdr/tests/test_{name}.py" for name in _TORCHDR), {}),
}


def run(name: str, checkout: Path, options: list[str]) -> int:
    """Run the tests of a library; returns pytest's status."""
    suite = SUITES[name]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "installs_the_facade.py").write_text(PLUGIN, encoding="utf-8")
        paths = [folder, str(checkout / suite.sources), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
        left = [f"--deselect={test}" for test in suite.left_out]
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "installs_the_facade",
            "-q",
            "-o",
            "addopts=",
            *left,
            *suite.tests,
            *options,
        ]
        return subprocess.run(command, cwd=checkout, env=environment, check=False).returncode


def main(arguments: list[str]) -> int:
    """Run the suites that are named."""
    given = dict(text.split("=", 1) for text in arguments if "=" in text and not text.startswith("-"))
    options = [text for text in arguments if text.startswith("-")]
    unknown = set(given) - set(SUITES)
    if unknown or not given:
        print(f"name checkouts, NAME=PATH, of {', '.join(SUITES)}")
        return 2
    status = 0
    for name, checkout in given.items():
        print(f"== {name}", flush=True)
        status |= run(name, Path(checkout).resolve(), options)
        for test, reason in SUITES[name].left_out.items():
            print(f"left out: {test}: {reason}")
    return status


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
