"""What is public stays: names, parameters, their order, kinds and defaults. New ones may come at any time.

``python -m tests.unit.test_api`` writes down what there is now; a line that changes is a change for users.
"""

import ast
import inspect
import json
import re
from importlib import import_module

import pytest

import kernmantle as km

from ..source import ROOT

GOLDEN = ROOT / "tests" / "golden" / "api.json"
ROOMS = (
    "", "distributed", "estimators", "kronsparse", "linalg", "ot", "plot", "stats", "testing", "integrations.gpytorch",
    "integrations.linear_operator", "integrations.sklearn", "compat.kermac", "compat.kermac.linalg",
    "compat.kernel_tools.kernels", "compat.kernel_tools.linalg", "compat.ksmm", "compat.mm_kermac", "compat.pyfastkron",
    "compat.pykeops.torch",
)  # fmt: skip


def described(thing):
    """Parameters of a function or class as name, kind and default; None for what is not called."""
    if not callable(thing):
        return None
    try:
        parameters = inspect.signature(thing).parameters.values()
    except ValueError:
        return None
    found = []
    for parameter in parameters:
        default = None if parameter.default is parameter.empty else re.sub(r" at 0x\w+", "", repr(parameter.default))
        found.append([parameter.name, parameter.kind.name, default])
    return found


def names_of(module):
    """Names that a module offers: of ``__all__``, else the classes and functions of its own folder."""
    if hasattr(module, "__all__"):
        return sorted(set(module.__all__) - {"__version__", "errors"})
    own = [name for name, value in vars(module).items() if getattr(value, "__module__", "").startswith(module.__name__)]
    return sorted(name for name in own if not name.startswith("_"))


def members(owner, others):
    """Methods and properties of a class that none of the other classes defines, nor torch or scikit-learn."""
    found = {}
    for name in dir(owner):
        origin = next((base for base in owner.__mro__ if name in vars(base)), None)
        if name.startswith("_") or origin is None or not origin.__module__.startswith("kernmantle"):
            continue
        if origin is owner or origin not in others:
            found[name] = described(getattr(owner, name))
    return found


def public():
    """Every public name with its parameters, and those of the methods of public classes."""
    things, found = {}, {}
    for room in ROOMS:
        module = import_module(f"kernmantle.{room}" if room else "kernmantle")
        things |= {f"{room}.{name}" if room else name: getattr(module, name) for name in names_of(module)}
    classes = {thing for thing in things.values() if isinstance(thing, type)}
    for name, thing in things.items():
        found[name] = described(thing)
        if isinstance(thing, type):
            found |= {f"{name}.{member}": own for member, own in members(thing, classes).items()}
    for name, value in vars(km.errors).items():
        if isinstance(value, type) and issubclass(value, (km.errors.KernmantleError, Warning)):
            found[f"errors.{name}"] = None
    return found


def breaks(before, after):
    """What a program written for ``before`` may trip over."""
    found = []
    for name, parameters in before.items():
        if name not in after:
            found.append(f"{name} is gone")
            continue
        if parameters is None:
            continue
        now = {one[0]: one for one in after[name] or []}
        for one in parameters:
            if one[0] not in now:
                found.append(f"{name}: parameter {one[0]} is gone")
            elif now[one[0]][1:] != one[1:]:
                found.append(f"{name}: parameter {one[0]} was {one[1:]}, is {now[one[0]][1:]}")
        positional = ["POSITIONAL_ONLY", "POSITIONAL_OR_KEYWORD"]
        order = [one[0] for one in parameters if one[1] in positional]
        if [one[0] for one in now.values() if one[1] in positional][: len(order)] != order:
            found.append(f"{name}: the order of its parameters changed")
        old = {one[0] for one in parameters}
        needed = [one[0] for one in now.values() if one[0] not in old and one[2] is None and "VAR" not in one[1]]
        found += [f"{name}: parameter {each} is new and has no default" for each in needed]
    return found


def test_what_was_public_still_is():
    assert breaks(json.loads(GOLDEN.read_text(encoding="utf-8")), public()) == []


@pytest.mark.parametrize(
    ("after", "message"),
    [
        ({}, "f is gone"),
        ({"f": [["a", "POSITIONAL_OR_KEYWORD", None]]}, "parameter b is gone"),
        ({"f": [["a", "POSITIONAL_OR_KEYWORD", None], ["b", "KEYWORD_ONLY", "2"]]}, "was ['KEYWORD_ONLY', '1']"),
        ({"f": [["c", "POSITIONAL_OR_KEYWORD", "0"], ["a", "POSITIONAL_OR_KEYWORD", None],
                ["b", "KEYWORD_ONLY", "1"]]}, "order"),
        ({"f": [["a", "POSITIONAL_OR_KEYWORD", None], ["b", "KEYWORD_ONLY", "1"], ["c", "KEYWORD_ONLY", None]]},
         "c is new and has no default"),
    ],
)  # fmt: skip
def test_a_break_is_found(after, message):
    before = {"f": [["a", "POSITIONAL_OR_KEYWORD", None], ["b", "KEYWORD_ONLY", "1"]]}
    assert any(message in line for line in breaks(before, after))


def test_type_checkers_see_every_name():
    """The lazy names, which ``__getattr__`` finds, are imported or assigned for type checkers too."""
    seen = set(km.ir.functions.FUNCTIONS)
    for node in ast.walk(ast.parse(inspect.getsource(km))):
        if isinstance(node, ast.ImportFrom):
            seen |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Assign):
            seen |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    missing = set(km.__all__) - seen
    assert not missing, f"{sorted(missing)} are missing under TYPE_CHECKING in src/kernmantle/__init__.py"


def test_methods_and_submodules_are_covered():
    found = public()
    for name in ("Kernel.matmul", "KSLinear.forward", "KroneckerProduct.solve",
                 "estimators.KernelRidge.fit", "compat.kermac.cdist", "compat.pyfastkron.gekmm"):  # fmt: skip
        assert name in found, name
    assert [one[0] for one in found["Kernel.matmul"]][:4] == ["self", "x", "y", "v"]
    assert "Gaussian.matmul" not in found


def test_additions_break_nothing():
    before = {"f": [["a", "POSITIONAL_OR_KEYWORD", None]], "g": None}
    after = {"f": [["a", "POSITIONAL_OR_KEYWORD", None], ["b", "POSITIONAL_OR_KEYWORD", "1"]], "g": None, "h": []}
    assert breaks(before, after) == []


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("RBF", "Gaussian"), ("gaussian", "Gaussian"), ("matern", "Matern"), ("cdists", "cdist"),
        ("KernelRidge", "estimators.KernelRidge"),
    ],
)  # fmt: skip
def test_a_name_that_is_nearly_right_is_told(name, meant):
    with pytest.raises(AttributeError, match=f"did you mean {meant!r}"):
        getattr(km, name)


def test_all_names_can_be_completed():
    assert {*km.__all__, "linalg", "estimators"} <= set(dir(km))
    assert not hasattr(km, "__wrapped__")


if __name__ == "__main__":
    lines = [f"{json.dumps(name)}: {json.dumps(parameters)}" for name, parameters in public().items()]
    GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
