"""Public docstrings say what they should, and every example in a docstring gives what it says."""

import ast
import doctest
import inspect
import re
from importlib import import_module

import pytest

import kernmantle as km
from kernmantle.ir.functions import FUNCTIONS
from kernmantle.pairwise import CONSTRUCTORS

from ..source import holding, parsed

PROMPT = re.compile(r"^\s*>>> ", re.MULTILINE)
SECTION = re.compile(r"^([A-Z][a-z]+)\n-{3,}$", re.MULTILINE)
INDENTED = re.compile(r"^Raises\n-{6}\n\w.*\n {4}\w", re.MULTILINE)
COST = re.compile(r"\b[Cc]osts?\b|memory|\bpass(es)?\b|operations|multiplications")
GRADIENT = re.compile(r"[Gg]radient|differentiable|derivatives")
SHAPE = re.compile(r"shape|\((…|\.\.\.|[a-z∏]+_?[a-z]*), ")
ROOMS = ("", "distributed", "estimators", "kron", "kronsparse", "linalg", "ot", "stats", "testing")
RESULTS = {
    "Estimate", "linalg.Posterior",
    "KronWorkspace",
    "distributed.Operator", "kronsparse.Chain", "kronsparse.Choice", "kronsparse.Projection", "kronsparse.Replaced",
    "kronsparse.Report", "linalg.CholeskyFactor", "linalg.Estimate", "linalg.Iterations", "linalg.KernelSolution",
    "linalg.CentreSolution", "linalg.LUFactor", "linalg.LowRank",
    "linalg.SVD", "linalg.Solution", "linalg.Spectrum", "linalg.Workspace",
    "ot.Plan", "ot.Transport", "stats.PermutationTest", "testing.Case",
}  # fmt: skip
PLAIN = {  # what computes nothing with arrays
    "estimate", "kron_workspace", "load_structured",
    "KSPattern", "Kernel.get_params", "Kernel.set_params",
    "choose_patterns", "clear_cache", "config", "get_config", "precompile", "set_config", "tune",
    "distributed.kron_columns", "kronsparse.block_diagonal", "kronsparse.butterfly", "kronsparse.dct",
    "kronsparse.dft", "kronsparse.hadamard",
    "kronsparse.low_rank_like", "kronsparse.monarch", "linalg.workspace", "testing.assert_close", "testing.tolerance",
}  # fmt: skip
CAREFREE = {
    "clear_cache",
    "get_config",
    "testing.tolerance",
    "LinearBatchLast",
    "LayerNormBatchLast",
    "Kernel.get_params",
    "Kernel.transposed",
}  # torch raises, or nobody
SOURCED = {
    "estimators.GaussianProcessRegressor", "estimators.KMeans", "estimators.KMedoids", "estimators.KernelKMeans",
    "estimators.KernelPCA", "estimators.KernelRidge", "estimators.SpectralClustering",
    "estimators.Nystroem", "estimators.RecursiveFeatureMachine",
    "kron_linear", "kron_matmul", "kron_sparse_matmul", "kronsparse.dct",
    "kronsparse.dft", "kronsparse.monarch", "kronsparse.project", "linalg.cg", "linalg.logdet", "linalg.nystrom",
    "ot.sinkhorn", "linalg.pivoted_cholesky", "linalg.trace", "nearest_kron", "stats.hsic", "stats.mmd",
    "SpectralMixture", "with_gradients", "Matern", "NTK", "Periodic", "RationalQuadratic", "SphereNTK", "Wendland",
    "attention", "kron.SumOfProducts", "linalg.falkon", "median_bandwidth",
}  # fmt: skip


def documented(name):
    """Whether a module has a docstring with an example."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    texts = (ast.get_docstring(node) for node in ast.walk(parsed(name)) if isinstance(node, kinds))
    return any(PROMPT.search(text) for text in texts if text)


NEEDS = {f"kernmantle.integrations.{name}": name for name in ("peft", "transformers")}
"""Modules of packages that the tests do not install, since they bring others of several hundred megabytes."""
WITH_EXAMPLES = [name for name in holding(">>> ") if documented(name)]


def public():
    """Everything public that is called, by its name; once where two rooms have it."""
    found = {}
    for room in ROOMS:
        module = import_module(f"kernmantle.{room}" if room else "kernmantle")
        for name in sorted(set(module.__all__) - {"__version__", "errors"}):
            thing = getattr(module, name)
            if callable(thing) and name not in FUNCTIONS and thing not in found.values():
                found[f"{room}.{name}" if room else name] = thing
    return found


KERNEL = km.Gaussian(1.0)
INTERNAL = {"made", "of_transformed", "prepared"}
METHODS = {
    f"Kernel.{name}": value
    for name, value in inspect.getmembers(KERNEL, inspect.ismethod)
    if name == "__call__" or not (name.startswith("_") or name in INTERNAL)
}
PUBLIC = public() | METHODS


def lacks(name, thing):
    """What the docstring of a public function or class should have and does not."""
    text = inspect.getdoc(thing) or ""
    there = set(SECTION.findall(text))
    head = SECTION.split(text)[0].split("\n\n")[0]
    missing = [] if head.endswith((".", ":")) else ["a sentence"]
    wanted = {"Parameters"} if inspect.signature(thing).parameters else set()
    if name in RESULTS:
        return missing + sorted({"Attributes"} - there)
    if not inspect.isclass(thing) and inspect.signature(thing).return_annotation not in (None, "None"):
        wanted.add("Returns")
    wanted |= {"Examples"} | ({"Raises"} if name not in CAREFREE else set())
    missing += sorted(wanted - there)
    if "Raises" in there and not INDENTED.search(text):
        missing.append("what is raised, indented")
    if name not in PLAIN:
        said = {"cost": COST, "gradients": GRADIENT, "shapes": SHAPE}
        missing += [what for what, pattern in said.items() if not pattern.search(text)]
    if name in SOURCED and "References" not in there and "Source" not in text:
        missing.append("source")
    return missing


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_docstring_has_all_its_parts(name):
    assert lacks(name, PUBLIC[name]) == []


def test_the_lists_name_what_is_there():
    assert set(PUBLIC) >= RESULTS | PLAIN | CAREFREE | SOURCED


def test_what_a_docstring_lacks_is_found():
    def short(x: int) -> int:
        """Without an end"""
        return x

    wanted = ["a sentence", "Examples", "Parameters", "Raises", "Returns", "cost", "gradients", "shapes", "source"]
    assert lacks("kron_matmul", short) == wanted
    assert lacks("linalg.Solution", short) == ["a sentence", "Attributes"]


def failures(tests):
    """What does not come out as it is written, and how many examples there were."""
    said, runner = [], doctest.DocTestRunner(verbose=False)
    for test in tests:
        runner.run(test, out=said.append)
    return "".join(said), runner.tries


@pytest.mark.parametrize("name", WITH_EXAMPLES)
@pytest.mark.usefixtures("without_stand_ins")
def test_examples_of_a_module(name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    said, tries = failures(doctest.DocTestFinder().find(import_module(name.removesuffix(".__init__"))))
    assert said == ""
    assert tries > 0


@pytest.mark.parametrize("name", CONSTRUCTORS)
def test_the_example_of_a_kernel(name):
    said, tries = failures(doctest.DocTestFinder().find(getattr(km, name), name))
    assert said == ""
    assert tries > 0


def test_a_wrong_example_is_found():
    parsed_example = doctest.DocTestParser().get_doctest(">>> 1 + 1\n3\n", {}, "wrong", "wrong", 0)
    said, tries = failures([parsed_example])
    assert "Expected:\n    3" in said
    assert tries == 1
