"""What is read of a module that a function loads is there: type checkers see nothing of ``import_module``."""

import ast
from importlib import import_module

import pytest

from kernmantle import pairwise

from ..source import FILES, holding, parsed


def _loaders(tree):
    """Functions that return ``import_module`` of a literal name: their name and the module's."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            for one in ast.walk(node):
                call = one.value if isinstance(one, ast.Return) else None
                if (
                    isinstance(call, ast.Call)
                    and getattr(call.func, "id", "") == "import_module"
                    and len(call.args) == 2
                ):
                    (name, _) = call.args
                    if isinstance(name, ast.Constant) and name.value.startswith("."):
                        yield node.name, name.value


def read_of(tree):
    """Pairs of a relative module and an attribute that is read of what its loader returns."""
    loaders = dict(_loaders(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Call) and not node.value.args:
            name = getattr(node.value.func, "id", None)
            if name in loaders:
                yield loaders[name], node.attr


CASES = sorted({(name, *pair) for name in holding("import_module(") for pair in read_of(parsed(name))})


def test_there_are_such_modules():
    assert len(CASES) > 20
    tree = ast.parse("def gpu():\n    return import_module('.cuda', __package__)\ngpu().missing(1)\n")
    assert list(read_of(tree)) == [(".cuda", "missing")]


@pytest.mark.parametrize(("module", "loaded", "attribute"), CASES, ids=lambda value: value)
def test_an_attribute_of_a_loaded_module_exists(module, loaded, attribute):
    package = module if FILES[module].stem == "__init__" else module.rpartition(".")[0]
    assert hasattr(import_module(loaded, package), attribute)


def test_what_fails_while_a_name_is_loaded_is_said(monkeypatch):
    def fails(name, package):
        raise AttributeError("module 'metric_forms' has no attribute 'MADE_UP'")

    monkeypatch.setattr(pairwise, "_import_module", fails)
    for name in ("cdist", "Gaussian"):
        with pytest.raises(ImportError, match="MADE_UP"):
            pairwise.__getattr__(name)
