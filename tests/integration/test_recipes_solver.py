"""The recipe of CONTRIBUTING.md for a solver, followed with a made-up one: a file and its export reach the tests.

They are written into a copy of the library and of its tests. The same is done with a solver that forgets a gradient and
says nothing of its errors, which must fail.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ..copied import Copy, named_for

EXPORTS = "src/kernmantle/linalg/__init__.py"
TRANSFORMS = "tests/integration/test_every_transform.py"
DOCSTRINGS = "tests/integration/test_docstrings.py"
SOLVER = '''"""Square systems by the inverse."""

import torch


def madeup(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Solve ``a x = b``.

    Parameters
    ----------
    a : tensor, shape (n, n)
    b : tensor, shape (n, c)

    Returns
    -------
    tensor, shape (n, c)
{raises}
    Notes
    -----
    Gradients of every order exist. Cost: n³ multiplications.

    Examples
    --------
    >>> import torch, kernmantle as km
    >>> km.linalg.madeup(2 * torch.eye(2), torch.ones(2, 1))[:, 0]
    tensor([{value}, {value}])
    """
    return torch.linalg.inv({a}) @ b
'''
RAISES = """
    Raises
    ------
    LinearAlgebraError
        For a singular matrix.
"""
ROW = '    "madeup": Row(lambda a, b: km.linalg.madeup(spd(a), b), ((2, 2), (2, 1))),\n'


def solver(right: bool) -> dict[str, str]:
    """The file of the solver; the wrong one has no gradient by a, names no errors, errs in its example."""
    text = SOLVER.format(raises=RAISES, value="0.5000", a="a")
    if not right:
        text = SOLVER.format(raises="", value="0.2500", a="a.detach()")
        text += "\n\ndef unlisted(a: torch.Tensor) -> torch.Tensor:\n    return a\n"
    return {"src/kernmantle/linalg/madeup.py": text}


def edits(*names: str) -> list[tuple[str, str, str]]:
    """The exports, and what is expected of the first."""
    return [
        (EXPORTS, "from .masked import", "".join(f"from .madeup import {name}\n" for name in names)),
        (EXPORTS, '    "nystrom",\n', "".join(f'    "{name}",\n' for name in names)),
        (TRANSFORMS, '    "solve_lu": Row(', ROW),
    ]


def outcomes(said: str) -> dict[str, str]:
    """What the tests of the solver came to, by their names."""
    found = re.findall(r"^(PASSED|FAILED|ERROR) \S+::(\S+)", said, re.MULTILINE)
    assert found, said[-4000:]
    return {name: result for result, name in found}


def ran(copy: Copy) -> str:
    """What those tests print."""
    return copy.tests("-k", "madeup or public_function_has_a_row", TRANSFORMS, DOCSTRINGS)


@pytest.mark.slow
def test_a_solver_is_a_file_and_its_export(tmp_path):
    found = outcomes(ran(Copy(tmp_path, edits("madeup"), solver(right=True))))
    assert set(found.values()) == {"PASSED"}, found
    tests = {name.partition("[")[0] for name in found}
    assert {
        "test_plain_gradients_agree_with_differences", "test_a_transform_gives_the_gradient_or_says_that_it_cannot",
        "test_a_public_docstring_has_all_its_parts", "test_every_public_function_has_a_row",
    } <= tests  # fmt: skip
    assert any("kernmantle.linalg.madeup" in name for name in found)


@pytest.mark.slow
def test_a_wrong_solver_and_one_without_a_row_of_transforms_are_found(tmp_path):
    said = ran(Copy(tmp_path, edits("madeup", "unlisted"), solver(right=False)))
    found = outcomes(said)
    failed = {name.partition("[")[0] for name, result in found.items() if result == "FAILED"}
    assert {"test_plain_gradients_agree_with_differences", "test_a_public_docstring_has_all_its_parts"} <= failed
    assert any("kernmantle.linalg.madeup" in name and result == "FAILED" for name, result in found.items())
    assert "test_every_public_function_has_a_row" in failed
    assert re.search(r"^E .*'unlisted'", said, re.MULTILINE)


def test_the_page_of_recipes_names_every_file_that_is_touched():
    assert {file for file, *_ in edits("madeup")} <= named_for("a solver")
    assert {Path(file).parent.as_posix() + "/" for file in solver(right=True)} <= named_for("a solver")
