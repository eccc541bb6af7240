"""The rooms of the library and who may import whom. A room listed here may also import all that those import."""

import ast
import re
import subprocess
import sys
from functools import cache

import pytest

from ..source import MODULES, PACKAGE, ROOT, parsed

LEAVES = {"errors", "checks", "config", "_version", "backend"}
"""What any room may import; these import each other and the standard library."""
MAY_IMPORT = {
    "errors": set(), "checks": set(), "_version": set(), "config": set(), "arrays": set(),
    "ir": set(), "compiler": {"ir"}, "runtime": set(),
    "backend": set(), "backends": set(), "backends.reference": {"compiler"}, "torch_ops": {"arrays"},
    "pairwise": {"torch_ops"}, "linalg": {"pairwise"}, "ot": {"linalg"},
    "structured": set(), "structured.mode_product": {"pairwise"}, "structured.kron": {"structured.mode_product"},
    "structured.kronsparse": {"structured.mode_product"},
    "prediction": {"structured.kron", "structured.kronsparse"},
    "kron": {"structured.kron"}, "kronsparse": {"structured.kronsparse"},
    "distributed": {"structured.kron", "structured.kronsparse", "linalg"},
    "stats": {"pairwise"}, "estimators": {"distributed"}, "integrations": {"distributed"}, "compat": {"distributed"},
    "testing": {"distributed"}, "plot": {"distributed"},
    "cli": {"testing", "stats", "estimators", "integrations", "compat"},
    "__main__": {"cli"},
}  # fmt: skip
FLOORS = {"backends", "structured"}  # folders of rooms
BACKENDS = {
    f"backends.{folder.name}" for folder in (PACKAGE / "backends").iterdir() if (folder / "__init__.py").exists()
}
for backend in BACKENDS:
    MAY_IMPORT.setdefault(backend, {"compiler", "runtime"})
MAY_IMPORT["torch_ops"] |= BACKENDS
THIRD_PARTY = {
    "ir": set(), "compiler": set(), "config": set(), "errors": set(), "checks": set(),
    "backend": set(), "backends.reference": {"numpy"},
    "backends.cpu": {"numpy", "llvmlite"}, "backends.cuda": {"numpy", "cuda"},
    "runtime": {"numpy", "platformdirs", "tqdm"},
}  # fmt: skip
OPTIONAL = {"cuda", "nvmath", "cupy", "jax", "sklearn", "scipy", "gpytorch", "linear_operator", "matplotlib", "pykeops"}
OPTIONAL |= {"peft", "safetensors", "transformers"}
LAZY = [
    "pairwise", "structured", "kron", "kronsparse", "linalg", "compat", "estimators", "integrations", "distributed",
    "cli", "ot", "plot", "prediction", "stats", "testing",
]  # fmt: skip


@cache
def reach(room: str) -> frozenset[str]:
    below = MAY_IMPORT[room]
    return frozenset({room, *below, *LEAVES}.union(*map(reach, below)))


def room_of(name: list[str]) -> str:
    """Room of a dotted name of the library."""
    return ".".join(name[1:3]) if name[1] in FLOORS and name[2:3] not in ([], ["__init__"]) else name[1]


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
    room = room_of(name.split("."))
    found = []
    for node, target in imports(tree, package):
        place = f"{name}:{node.lineno} imports {'.'.join(target)}"
        if target[0] == PACKAGE.name:
            if room != "__init__" and room_of(target) not in reach(room):
                found.append(f"{place}: {room} may not import {room_of(target)}")
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
        ("kernmantle.ir.trace", "from ..compiler import lower"),
        ("kernmantle.ir.trace", "import numpy"),
        ("kernmantle.compiler.lower", "import numpy"),
        ("kernmantle.runtime.cache", "from ..backends.cpu.emit import emit"),
        ("kernmantle.runtime.cache", "from ..backends import cpu"),
        ("kernmantle.runtime.cache", "import torch"),
        ("kernmantle.backends.cpu.jit", "import torch"),
        ("kernmantle.backends.cpu.emit", "from ..cuda.tiles import TILES"),
        ("kernmantle.backends.reference.evaluate", "import torch.nn"),
        ("kernmantle.torch_ops.contract", "import kernmantle.pairwise"),
        ("kernmantle.torch_ops.tune", "from ..structured.kron.execute import forget"),
        ("kernmantle.linalg.eigh", "from ..structured.kron import product"),
        ("kernmantle.structured.mode_product.plan", "from ..kronsparse import pattern"),
        ("kernmantle.structured.kron.product", "from ..kronsparse.pattern import KSPattern"),
        ("kernmantle.pairwise", "def f():\n    import torch"),
        ("kernmantle.pairwise", "def f():\n    from .errors import ShapeError"),
    ],
)
def test_a_forbidden_import_is_found(name, line):
    assert len(faults(name, ast.parse(line))) >= 1


def test_allowed_imports_pass():
    assert (
        faults("kernmantle.cli.info", ast.parse("import torch\nfrom ..ir.node import Node\nfrom .. import linalg"))
        == []
    )
    assert faults("kernmantle.backends.cuda.nvrtc", ast.parse("def f():\n    from cuda.core import Program")) == []


def imported(name: str, tree: ast.AST) -> set[str]:
    """Modules of the library that a module imports, those that it imports by a text too."""
    *package, _ = name.split(".")
    found = [target for _, target in imports(tree, package)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            text = node.args[0].value if isinstance(node.args[0], ast.Constant) else ""
            deep = len(text) - len(text.lstrip("."))
            if deep:
                found.append([*package[: len(package) - deep + 1], *text.strip(".").split(".")])
    targets = {".".join(target[:stop]) for target in found for stop in (len(target), len(target) - 1)}
    return (targets & set(MODULES)) - {name}


def circles(edges: dict[str, set[str]]) -> list[str]:
    """Return the modules that come back to themselves."""

    def reached(first: str) -> set[str]:
        seen, rest = set(), [*edges[first]]
        while rest:
            name = rest.pop()
            if name not in seen:
                seen.add(name)
                rest += edges[name]
        return seen

    return sorted(name for name in edges if name in reached(name))


def test_no_module_imports_itself_through_others():
    assert circles({name: imported(name, parsed(name)) for name in MODULES}) == []
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == ["b", "c"]
    own = "from . import execute\nfrom .layout import aligned\nimport_module('..config', __package__)"
    modules = {"kernmantle.torch_ops.execute", "kernmantle.torch_ops.layout", "kernmantle.config"}
    assert imported("kernmantle.torch_ops.targets", ast.parse(own)) == modules


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


@pytest.mark.parametrize(
    ("title", "plans", "headers", "left_out"),
    [
        ("Contractions on a GPU", "backends/cuda", "backends/cuda/kernels", set()),
        (
            "Structured products on a GPU", "structured", "structured",
            {"tensor_plan.py", "chain_plan.py", "weight_gradient_plan.py"},  # parts that other plans share
        ),
    ],
)  # fmt: skip
def test_the_page_of_internals_names_every_plan_and_header(title, plans, headers, left_out):
    text = (
        (ROOT / "docs" / "internals.md").read_text(encoding="utf-8").partition(f"## {title}")[2].partition("\n## ")[0]
    )
    named = set(re.findall(r"`(?:\w+/)*(\w+\.(?:cuh|py))`", text))
    there = {path.name for path in (PACKAGE / headers).rglob("*.cuh")}
    there |= {path.name for path in (PACKAGE / plans).rglob("*_plan.py")}
    assert not there - named - left_out, f"docs/internals.md lists plans and headers of {title.lower()}"
    assert named <= {path.name for path in PACKAGE.rglob("*")}
