"""What is shipped: the wheel's contents and requirements, and the commands that README and CI promise."""

import email
import json
import os
import re
import subprocess
import sys
import zipfile

import pytest
from packaging.metadata import Metadata

import kernmantle

from ..source import PACKAGE, ROOT

SMALL_CUDA = {"cuda-core", "cuda-bindings", "nvidia-cuda-nvdisasm", "nvidia-cuda-nvrtc", "nvidia-cuda-runtime"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    directory = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=120)
    (path,) = directory.iterdir()
    return path


@pytest.fixture(scope="module")
def contents(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name).decode() for name in archive.namelist()}


@pytest.fixture(scope="module")
def metadata(contents):
    return email.message_from_string(next(text for name, text in contents.items() if name.endswith("/METADATA")))


def requirements(metadata, extra=None):
    """Names that a plain install (or one extra) asks for."""
    found = set()
    for line in metadata.get_all("Requires-Dist"):
        of = re.search(r"extra == ['\"](\w+)['\"]", line)
        if (of[1] if of else None) == extra:
            found.add(re.match(r"[\w.-]+", line)[0])
    return found


def test_the_wheel_is_pure_and_versioned_once(wheel):
    assert wheel.name == f"kernmantle-{kernmantle.__version__}-py3-none-any.whl"


def test_the_wheel_holds_the_whole_package_and_nothing_else(contents):
    shipped = {name for name in contents if ".dist-info/" not in name}
    wanted = {".py", ".cuh", ".typed"}
    source = {str(path.relative_to(PACKAGE.parent)) for path in PACKAGE.rglob("*") if path.suffix in wanted}
    assert shipped == source
    assert "kernmantle/py.typed" in shipped
    assert not [name for name in shipped if "benchmarks" in name or "bench" in name.split("/")]
    assert any(name.endswith(".cuh") for name in shipped)


def test_the_console_script_is_the_module(contents):
    script = next(text for name, text in contents.items() if name.endswith("/entry_points.txt"))
    assert "kernmantle = kernmantle.cli:main" in script


def test_a_plain_install_brings_nothing_of_cuda(metadata):
    assert requirements(metadata) == {"torch", "numpy", "scipy", "llvmlite", "platformdirs", "tqdm", "rich"}
    assert metadata["Requires-Python"] == ">=3.10"
    assert metadata["License-Expression"] == "MIT"


def test_the_metadata_is_what_an_index_takes(contents):
    text = next(text for name, text in contents.items() if name.endswith("/METADATA"))
    found = Metadata.from_email(text, validate=True)
    assert found.description_content_type == "text/markdown"
    assert found.description.startswith("# kernmantle\n")
    assert found.license_expression == "MIT"


def test_links_are_those_of_the_release(tmp_path):
    command = [sys.executable, "-m", "hatchling", "metadata", "urls"]
    environment = {**os.environ, "KERNMANTLE_URL": "https://example.org/kernmantle/"}
    done = subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, text=True, timeout=60)
    links = json.loads(done.stdout)
    assert links["Source"] == "https://example.org/kernmantle"
    assert {"Documentation", "Changelog", "Issues"} <= set(links)
    assert all(link.startswith("https://example.org/kernmantle") for link in links.values())


def test_every_change_has_a_kind_that_the_changelog_has():
    text = (ROOT / "pyproject.toml").read_text().partition("[tool.towncrier]")[2]
    kinds = set(re.findall(r'^directory = "(\w+)"$', text, re.MULTILINE)) - {"changelog"}
    assert len(kinds) == 4
    for path in (ROOT / "changelog.d").glob("*.md"):
        assert re.fullmatch(r"(\d+|\+)[\w+-]*\.(\w+)\.md", path.name), path.name
        assert path.name.split(".")[-2] in kinds, path.name


def test_the_tests_bring_only_the_compiler_its_headers_and_the_disassembler_of_cuda(metadata):
    wanted = requirements(metadata, "test")
    assert {name for name in wanted if name.startswith(("cuda", "nvidia", "nvmath", "torch"))} == SMALL_CUDA
    assert not [name for name in requirements(metadata, "demo") if name.startswith(("cuda", "nvidia", "nvmath"))]


def test_every_extra_is_there(metadata):
    extras = {"cuda12", "cuda13", "distributed", "sklearn", "gpytorch", "docs", "test", "demo", "all"}
    assert set(metadata.get_all("Provides-Extra")) == extras
    assert all(requirements(metadata, extra) for extra in extras)


def test_every_supported_python_is_named(metadata):
    named = {line.rpartition(" ")[2] for line in metadata.get_all("Classifier") if "Python :: 3." in line}
    assert named == {"3.10", "3.11", "3.12", "3.13", "3.14"}


def test_the_citation_has_the_version():
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {kernmantle.__version__}\n" in citation


def test_without_a_gpu_torch_has_no_cuda():
    constraints = (ROOT / "constraints-cpu.txt").read_text()
    assert re.search(r"^torch==[\d.]+\+cpu", constraints, re.MULTILINE)


def test_ci_runs_the_test_command_of_the_readme():
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    promised = re.findall(r"^make (\w+)", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert promised == ["demo", "test"]
    assert {*promised, "lint", "bench"} <= set(targets)
    assert (ROOT / ".ci" / "run").read_text().rstrip().endswith("exec make test")
