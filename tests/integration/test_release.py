"""A release as its users get it: the sdist builds the wheel, the wheel installs alone, and type checkers read it."""

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

import kernmantle

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tests" / "typing" / "program.py"
pytestmark = pytest.mark.slow
MYPY = """
[mypy]
follow_imports = silent
[mypy-torch.*,scipy.*,sklearn.*,sympy.*]
follow_imports = skip
"""
"""mypy reads this library; of torch, which takes it four times as long as all else, it takes everything for right."""


def outcome(*command, where=None):
    """Status and output of a command, in an environment without this checkout."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "KERNMANTLE"))}
    given = list(map(str, command))
    done = subprocess.run(given, cwd=where, env=clean, capture_output=True, text=True, timeout=300, check=False)
    return done.returncode, done.stdout, done.stderr


def run(*command, where=None):
    """What a command prints that succeeds."""
    status, said, errors = outcome(*command, where=where)
    assert status == 0, said + errors
    return said


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The sdist of the checkout, and the wheel that is built from the unpacked sdist."""
    folder = tmp_path_factory.mktemp("release")
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", folder, where=ROOT)
    (sdist,) = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    (source,) = (folder / "unpacked").iterdir()
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, where=source)
    (wheel,) = folder.glob("*.whl")
    return sdist, wheel


def contents(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_the_sdist_holds_what_the_wheel_and_its_tests_need(built, tmp_path):
    sdist, wheel = built
    with tarfile.open(sdist) as archive:
        shipped = {Path(name).parts[1] for name in archive.getnames()}
    assert {"src", "tests", "docs", "examples", "benchmarks", "scripts", "CITATION.cff", "SECURITY.md"} <= shipped
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path, where=ROOT)
    (direct,) = tmp_path.glob("*.whl")
    assert contents(direct) == contents(wheel)


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    """The interpreter of an environment with the wheel, which borrows the dependencies of this one."""
    folder = tmp_path_factory.mktemp("clean") / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", "--no-compile", built[1])
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    borrowed = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    (site / "borrowed.pth").write_text("\n".join(borrowed) + "\n", encoding="utf-8")
    return python, site


def test_the_wheel_of_the_sdist_works_alone(installed, tmp_path):
    python, site = installed
    code = (
        "import kernmantle as km, numpy as np\n"
        "print(km.__file__, km.__version__, float(km.cdist([[0.0, 0.0]], [[3.0, 4.0]])[0, 0]))\n"
        "try:\n    import benchmarks\n    print('benchmarks are shipped')\nexcept ImportError:\n    pass\n"
    )
    found = run(python, "-c", code, where=tmp_path)
    assert found.split() == [str(site / "kernmantle" / "__init__.py"), kernmantle.__version__, "5.0"]
    command = python.with_name("kernmantle" + python.suffix)
    assert kernmantle.__version__ in run(command, "info", where=tmp_path)
    assert run(command, "--version", where=tmp_path).split() == ["kernmantle", kernmantle.__version__]


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_type_checkers_read_the_installed_package(checker, installed, tmp_path):
    if find_spec(checker) is None:
        pytest.skip(f"{checker} is not installed")
    python, site = installed
    assert (site / "kernmantle" / "py.typed").is_file()
    settings = tmp_path / "mypy.ini"
    settings.write_text(MYPY, encoding="utf-8")
    options = {
        "mypy": ["--python-executable", python, "--config-file", settings, "--cache-dir", tmp_path / "cache"],
        "pyright": ["--pythonpath", python],
    }[checker]
    right, wrong = tmp_path / "right.py", tmp_path / "wrong.py"
    right.write_text(PROGRAM.read_text(encoding="utf-8"), encoding="utf-8")
    wrong.write_text("import kernmantle as km\nkm.no_such_name(1)\nkm.cdist()\n", encoding="utf-8")
    status, said, errors = outcome(sys.executable, "-m", checker, *options, right, wrong, where=tmp_path)
    assert status == 1, said + errors
    assert re.search(r"(?i)wrong\.py:3\b.*argument", said), said
    assert "right.py" not in said, said


def test_the_index_would_take_both(built):
    if find_spec("twine") is None:
        pytest.skip("twine is not installed")
    assert "PASSED" in run(sys.executable, "-m", "twine", "check", "--strict", *built)
