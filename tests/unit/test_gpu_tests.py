"""Tests that need a GPU name things of modules that exist, which is seen where there is no GPU to run them."""

from __future__ import annotations

import ast
import pkgutil
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from ..cuda.report import report, selected, within
from ..source import ROOT

FILES = sorted((ROOT / "tests" / "cuda").glob("*.py"))


def imported(tree: ast.Module) -> dict[str, ModuleType]:
    """Modules of the library by the names that a file gives them."""
    found = dict[str, ModuleType]()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").startswith("kernmantle"):
            for each in node.names:
                value: Any = pkgutil.resolve_name(f"{node.module}.{each.name}")
                if isinstance(value, ModuleType):
                    found[each.asname or each.name] = value
    return found


def named(tree: ast.Module, modules: dict[str, ModuleType]) -> list[tuple[str, str]]:
    """What is read of modules, and what is set of them for the time of a test."""
    found = list[tuple[str, str]]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            found.append((node.value.id, node.attr))
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "monkeypatch.setattr":
            match node.args:
                case [ast.Name(id=module), ast.Constant(value=str(name)), *_] if module in modules:
                    found.append((module, name))
                case _:
                    pass
    return found


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_names_of_modules_exist(file) -> None:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    modules = imported(tree)
    missing = {f"{module}.{name}" for module, name in named(tree, modules) if not hasattr(modules[module], name)}
    assert not missing


def test_a_name_that_is_gone_is_found() -> None:
    tree = ast.parse(
        "from kernmantle.structured.kron import cuda\ncuda.gone()\nmonkeypatch.setattr(cuda, 'lost', 1)\ncuda.plan"
    )
    modules = imported(tree)
    missing = {name for module, name in named(tree, modules) if not hasattr(modules[module], name)}
    assert missing == {"gone", "lost"}


def test_a_report_names_what_disagrees(capsys):
    cases = [
        SimpleNamespace(name="l1 half", off=0.5),
        SimpleNamespace(name="l1", off=2),
        SimpleNamespace(name="l2", off=1),
    ]
    assert report(selected(cases, ["l1"]), lambda case: within(case.off)) == 1
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines == [["l1", "half", "0.5", "ok"], ["l1", "BAD", "2"], ["1", "wrong"]]
    assert report(selected(cases, []), lambda _: within(float("nan"))) == 3
    assert report(cases, lambda _: None) == 0
