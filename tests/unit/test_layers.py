"""The rooms of the library and who may import whom. A room listed here may also import all that those import."""

import ast
import subprocess
import sys
from functools import cache

import pytest

from ..source import MODULES, PACKAGE, parsed

LEAVES = {"errors", "config", "_version"}
MAY_IMPORT = {
    "errors": set(), "_version": set(), "config": {"errors"}, "arrays": set(),
    "expr": set(), "contraction": {"expr"}, "codegen": {"contraction"}, "runtime": set(),
    "ops": {"codegen", "runtime", "arrays"}, "distances": {"ops"}, "kernels": {"distances"},
    "kron": {"kernels"}, "kronsparse": {"kernels"}, "linalg": {"kernels"},
    "distributed": {"kron", "kronsparse", "linalg"},
    "estimators": {"distributed"}, "integrations": {"distributed"}, "compat": {"distributed"},
    "testing": {"distributed"},
    "bench": {"distributed", "testing", "estimators", "compat"},
    "cli": {"bench", "estimators", "integrations", "compat"},
    "__main__": {"cli"},
}  # fmt: skip
THIRD_PARTY = {
    "expr": set(), "contraction": set(), "codegen": {"numpy", "llvmlite"}, "config": set(), "errors": set(),
    "runtime": {"numpy", "llvmlite", "platformdirs", "tqdm", "cuda"},
}  # fmt: skip
OPTIONAL = {"cuda", "nvmath", "cupy", "jax", "sklearn", "scipy", "gpytorch", "linear_operator", "matplotlib", "pykeops"}
LAZY = [
    "distances", "kernels", "linalg", "compat", "estimators", "integrations", "distributed", "bench", "cli", "testing"
]  # fmt: skip


@cache
def reach(room: str) -> frozenset[str]:
    below = MAY_IMPORT[room]
    return frozenset({room, *below, *LEAVES}.union(*map(reach, below)))


def imports(tree: ast.AST, package: list[str]) -> list[tuple[ast.stmt, list[str]]]:
    """Every import as the dotted name it brings in, absolute."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(node, alias.name.split(".")) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            base = base + (node.module.split(".") if node.module else [])
            found += [(node, [*base, alias.name]) for alias in node.names]
    return found


def faults(name: str, tree: ast.AST) -> list[str]:
    *package, _ = name.split(".")
    room = name.split(".")[1]
    found = []
    for node, target in imports(tree, package):
        place = f"{name}:{node.lineno} imports {'.'.join(target)}"
        if target[0] == PACKAGE.name:
            if room != "__init__" and target[1] not in reach(room):
                found.append(f"{place}: {room} may not import {target[1]}")
        elif room in THIRD_PARTY and target[0] not in sys.stdlib_module_names | THIRD_PARTY[room]:
            found.append(f"{place}: {room} may only import {sorted(THIRD_PARTY[room])} from outside")
    for function in (node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))):
        for node, target in imports(function, package):
            if target[0] not in OPTIONAL:
                found.append(f"{name}:{node.lineno} imports {'.'.join(target)} inside {function.name}")
    return found


@pytest.mark.parametrize("name", MODULES)
def test_a_module_keeps_to_its_room(name):
    assert faults(name, parsed(name)) == []


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("kernmantle.expr.trace", "from ..contraction import program"),
        ("kernmantle.expr.trace", "import numpy"),
        ("kernmantle.runtime.llvm", "from ..codegen.llvm import render"),
        ("kernmantle.runtime.llvm", "import torch"),
        ("kernmantle.codegen.llvm", "from .. import runtime"),
        ("kernmantle.codegen.reference", "import torch.nn"),
        ("kernmantle.ops.contract", "import kernmantle.distances"),
        ("kernmantle.linalg.eigh", "from ..kron import product"),
        ("kernmantle.distances", "def f():\n    import torch"),
        ("kernmantle.distances", "def f():\n    from .errors import ShapeError"),
    ],
)
def test_a_forbidden_import_is_found(name, line):
    assert len(faults(name, ast.parse(line))) >= 1


def test_allowed_imports_pass():
    assert (
        faults("kernmantle.cli.info", ast.parse("import torch\nfrom ..expr.node import Node\nfrom .. import linalg"))
        == []
    )
    assert faults("kernmantle.runtime.nvrtc", ast.parse("def f():\n    from cuda.core import Program")) == []


def test_importing_the_library_loads_nothing_heavy():
    heavy = [*(f"kernmantle.{room}" for room in LAZY), *sorted(OPTIONAL), "torch._dynamo", "torch._inductor", "rich"]
    code = f"""
import sys, torch
before = set(sys.modules)
import kernmantle
print([name for name in {heavy} if name in sys.modules and name not in before])
"""
    result = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=120)
    assert result.stdout.strip() == "[]", result.stdout + result.stderr
