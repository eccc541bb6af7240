"""Every example runs by itself, and what it computes agrees with a plain formula."""

import doctest
import importlib.util
import io
import math
import os
import re
import subprocess
import sys

import numpy as np
import pytest
import scipy.special
import torch

import kernmantle as km
from kernmantle.testing import assert_close

from ..source import PACKAGE, ROOT

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
LARGE = "large_ridge_regression"  # is run with as many rows as show what it does not take


def load(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


FORKS = """
import json, os, runpy, sys, traceback
import kernmantle, torch
for path in sys.argv[1:]:
    child = os.fork()
    if not child:
        status = 1
        try:
            for number, stream in enumerate(("said", "errors"), 1):
                os.dup2(os.open(os.path.basename(path) + "." + stream, os.O_WRONLY | os.O_CREAT), number)
            sys.argv, sys.path[0] = [path], os.path.dirname(path)
            runpy.run_path(path, run_name="__main__")
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
"""Each example is a process of its own; they share the imports of torch and of the library, which take longer."""


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """What became of the examples, each run by itself: its status, what it printed and its errors."""
    folder = tmp_path_factory.mktemp("examples")
    paths = [path for path in EXAMPLES if path.stem != LARGE]
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", FORKS, *map(str, paths)],
        check=True, cwd=folder, env=environment, capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    files = {path: [(folder / f"{path.name}.{stream}").read_text() for stream in ("said", "errors")] for path in paths}
    return {path: (status, *files[path]) for path, status in zip(paths, done.stdout.split(), strict=True)}


@pytest.mark.slow
@pytest.mark.parametrize("path", [path for path in EXAMPLES if path.stem != LARGE], ids=lambda path: path.stem)
def test_runs_by_itself(path, alone):
    status, said, errors = alone[path]
    assert status == "0", errors
    assert said


def test_there_is_an_example_of_each_kind():
    names = {path.stem for path in EXAMPLES}
    assert {"shortest_paths", "log_sum_exp", "own_kernel", "nearest_neighbours", "many_bandwidths"} <= names


def test_closure_is_floyd_warshall():
    example = load("shortest_paths")
    roads = example.network(37, seed=3)
    wanted = [[math.inf if i != j else 0.0 for j in range(37)] for i in range(37)]
    for i in range(37):
        for j in range(37):
            wanted[i][j] = min(wanted[i][j], float(roads[i, j]))
    for via in range(37):
        for i in range(37):
            for j in range(37):
                wanted[i][j] = min(wanted[i][j], wanted[i][via] + wanted[via][j])
    assert_close(example.closure(roads), np.array(wanted), depth=37)


def test_likelihood_is_that_of_scaled_probabilities():
    example = load("log_sum_exp")
    start, moves, emits = example.model(7, 5)
    seen = torch.randint(5, (4, 30), generator=torch.Generator().manual_seed(2))
    wanted = []
    for sequence in seen.tolist():
        belief = np.exp(start.numpy()) * np.exp(emits.numpy())[:, sequence[0]]
        total = 0.0
        for symbol in sequence[1:]:
            total += np.log(belief.sum())
            belief = (belief / belief.sum()) @ np.exp(moves.numpy()) * np.exp(emits.numpy())[:, symbol]
        wanted.append(total + np.log(belief.sum()))
    assert_close(example.log_likelihood(start, moves, emits, seen), np.array(wanted), depth=30 * 7)
    one = scipy.special.logsumexp(start.numpy() + emits.numpy()[:, 3])
    assert_close(example.log_likelihood(start, moves, emits, torch.tensor([[3]])), np.array([one]), depth=7)


def test_own_kernel_is_its_formula():
    example = load("own_kernel")
    x, _ = example.data(20)
    weight, shape = torch.tensor([0.5, 2.0, 0.1], dtype=x.dtype), 1.7
    squares = (((x[:, None] - x[None]) ** 2) * weight).sum(-1)
    found = example.kernel(x, x, weight=weight, shape=shape)
    assert_close(found, ((1 + squares / (2 * shape)) ** -shape).numpy(), depth=3)


def test_the_nearest_by_an_own_distance_vote():
    example = load("nearest_neighbours")
    random = np.random.default_rng(0)
    queries, points = random.normal(size=(50, 6)), random.normal(size=(80, 6))
    gaps = np.abs(queries[:, None] - points)
    wanted = (gaps / (1 + np.abs(queries[:, None]) + np.abs(points))).sum(-1).argsort(1)[:, :3]
    found = km.argkmin(queries, points, 3, metric=example.relative)
    assert (found == wanted).all()
    assert example.vote(np.array([7, 4, 4, 9]), np.array([[0, 1, 2], [3, 3, 0]])).tolist() == [4, 9]


PAGES = sorted((ROOT / "docs").glob("*.md"))


def parsed(text, name="page"):
    """The examples of a page."""
    return doctest.DocTestParser().get_doctest(text.replace("```", ""), {}, name, name, 0)


def outcome(text, name="page"):
    """What the examples of a page print that fail."""
    said = io.StringIO()
    page = parsed(text, name)
    assert doctest.DocTestRunner(verbose=False).run(page, out=said.write).attempted == len(page.examples)
    return said.getvalue()


def programs(text):
    """Blocks of Python without prompts; those of several processes run in ``tests/distributed/program.py``."""
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    return [block for block in blocks if ">>>" not in block and "torchrun" not in block]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
@pytest.mark.usefixtures("without_stand_ins")
def test_examples_of_a_page(path, monkeypatch):
    text = path.read_text(encoding="utf-8")
    assert outcome(text, path.name) == ""
    monkeypatch.chdir(ROOT)
    names = {}
    for program in programs(text):
        exec(program, names)  # noqa: S102


def test_pages_have_examples_and_a_wrong_one_is_found():
    tried = {path.stem: len(parsed(path.read_text(encoding="utf-8")).examples) for path in PAGES}
    assert all(tried[name] >= 3 for name in ("index", "equations", "maps", "reductions", "numerics"))
    assert "Expected" in outcome("```python\n>>> 1 + 1\n3\n\n```\n")
    assert sum(len(programs(path.read_text(encoding="utf-8"))) for path in PAGES) >= 6


def test_the_programs_of_the_readme_run(tmp_path, monkeypatch):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    programs = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    assert len(programs) == 3
    monkeypatch.chdir(tmp_path)
    names = {}
    for program in programs:
        exec(program, names)  # noqa: S102
    assert names["x"].shape == (200, 8)
    assert names["k"](names["x"]).shape == (200, 200)
    assert names["layer"].nnz * 16 == 1024**2
    assert 4 * sum(layer.nnz for layer in names["model"][::2]) <= 2 * 96 * 384


def test_every_page_is_linked():
    pages = {path.stem: path.read_text(encoding="utf-8") for path in PAGES}
    linked = set(re.findall(r"\]\((\w+)\.md\)", pages["index"]))
    assert linked == set(pages) - {"index"}
    contents = set(re.findall(r"^(\w+)$", pages["index"].partition("{toctree}")[2], re.MULTILINE))
    assert {name for name in linked - contents if not name.startswith("k")} == set()  # k* is one entry


@pytest.mark.slow
def test_the_matrix_of_a_large_system_is_never_formed():
    """Of 17 000 rows it would take 1.16 GB."""
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    command = [sys.executable, "-W", "error::UserWarning", str(ROOT / "examples" / f"{LARGE}.py"), "17000"]
    said = subprocess.run(command, check=True, env=environment, capture_output=True, text=True, timeout=300).stdout
    assert float(re.search(r"would take ([\d.]+) GB", said)[1]) > 1.1
    assert float(re.search(r"the process took ([\d.]+) GB", said)[1]) < 0.8
    assert float(re.search(r"residual ([\d.e-]+)", said)[1]) <= 1e-4
    assert float(re.search(r"direct solution's by at most ([\d.e-]+)", said)[1]) < 1e-3
