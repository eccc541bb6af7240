"""What is read of a module that a function loads is there: type checkers see nothing of ``import_module``."""

import ast
from importlib import import_module
from importlib.util import resolve_name

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


def _package(module):
    return module if FILES[module].stem == "__init__" else module.rpartition(".")[0]


LOADERS = {
    module: {name: resolve_name(target, _package(module)) for name, target in _loaders(parsed(module))}
    for module in holding("import_module(")
}


def read_of(tree, package, own):
    """Pairs of a module and an attribute that is read of what a loader returns, ``own`` or imported."""
    loaders = dict(own)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            source = resolve_name("." * node.level + (node.module or ""), package)
            for alias in node.names:
                name, of_module = alias.asname or alias.name, LOADERS.get(f"{source}.{alias.name}", {})
                loaders |= {f"{name}.{function}": target for function, target in of_module.items()}
                if alias.name in LOADERS.get(source, {}):
                    loaders[name] = LOADERS[source][alias.name]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Call) and not node.value.args:
            name = ast.unparse(node.value.func)
            if name in loaders:
                yield loaders[name], node.attr


CASES = sorted({
    (module, *pair)
    for module in FILES
    for pair in read_of(parsed(module), _package(module), LOADERS.get(module, {}))
})  # fmt: skip


def test_there_are_such_modules():
    assert len(CASES) > 40
    tree = ast.parse("def gpu():\n    return import_module('.cuda', __package__)\ngpu().missing(1)\n")
    assert list(read_of(tree, "a", {"gpu": "a.cuda"})) == [("a.cuda", "missing")]
    assert any(module not in LOADERS for module, *_ in CASES)


@pytest.mark.parametrize(("module", "loaded", "attribute"), CASES, ids=lambda value: value)
def test_an_attribute_of_a_loaded_module_exists(module, loaded, attribute):
    assert hasattr(import_module(loaded), attribute)


def test_what_fails_while_a_name_is_loaded_is_said(monkeypatch):
    def fails(name, package):
        raise AttributeError("module 'metric_forms' has no attribute 'MADE_UP'")

    monkeypatch.setattr(pairwise, "_import_module", fails)
    for name in ("cdist", "Gaussian"):
        with pytest.raises(ImportError, match="MADE_UP"):
            pairwise.__getattr__(name)
