"""Every example in a docstring gives what it says."""

import doctest
import re
from importlib import import_module

import pytest

from ..source import FILES

PROMPT = re.compile(r"^\s*>>> ", re.MULTILINE)
WITH_EXAMPLES = [name for name, path in FILES.items() if PROMPT.search(path.read_text(encoding="utf-8"))]


@pytest.mark.parametrize("name", WITH_EXAMPLES)
@pytest.mark.usefixtures("without_stand_ins")
def test_examples_of_a_module(name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    module = import_module(name.removesuffix(".__init__"))
    said = []
    runner = doctest.DocTestRunner(verbose=False)
    for test in doctest.DocTestFinder().find(module):
        runner.run(test, out=said.append)
    assert "".join(said) == ""
    assert runner.tries > 0


def test_a_wrong_example_is_found():
    runner = doctest.DocTestRunner(verbose=False)
    parsed = doctest.DocTestParser().get_doctest(">>> 1 + 1\n3\n", {}, "wrong", "wrong", 0)
    assert runner.run(parsed, out=lambda text: None).failed == 1
