"""Compiling for a GPU that need not be there: what is compiled is what a call would run."""

from __future__ import annotations

import json

import pytest

from benchmarks import compiling

COUNTS = {
    "p=2": 3,
    "gaussian": 3,
    "backward p=1": 2,
    "gradient p=1": 2,
    "gradient p=1, 32 outputs": 2,
    "gradient p=1.3": 2,
}


@pytest.mark.parametrize("name", compiling.FORMS)
def test_a_form_has_the_kernels_of_a_call(name):
    call, shapes = compiling.FORMS[name]()
    texts = compiling.sources(call.program, shapes)
    assert len(texts) == COUNTS.get(name, 1)
    assert all("sm_90" in text and 'extern "C"' in text for text in texts)


def test_the_command_prints_seconds(capsys):
    compiling.main(["min-plus"])
    first, second = json.loads(capsys.readouterr().out)
    assert min(first, second) > 0
