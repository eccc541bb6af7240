"""The model of many GPUs: what it says of measured products, and of its limits."""

from __future__ import annotations

import importlib.util
import sys

import pytest

from ..source import ROOT

PATH = ROOT / "scripts" / "weak_scaling.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("weak_scaling", PATH)
    module = importlib.util.module_from_spec(spec)
    sys.modules["weak_scaling"] = module
    spec.loader.exec_module(module)
    return module


def test_products_that_were_measured_are_predicted(script):
    cases = script.checked()
    assert [case.split(", ")[1] for case, *_ in cases] == ["2 GPUs", "4 GPUs"]
    for _, predicted, measured in cases:
        assert 0.95 * measured < predicted < 1.02 * measured


def test_a_ring_is_as_slow_as_what_limits_it(script):
    model = script.Model(1e-12, 20, 1)
    assert model.iteration(1e5, 1) == pytest.approx(1e10 * 1e-12)
    assert model.product(4e5, 16) == pytest.approx(16 * 2.5e4**2 * 1e-12)
    host = script.ASSUMED["host, s a step"]
    assert model.product(1e3, 64) == pytest.approx(64 * host)
    assert script.Model(1e-16, 20_000, 1).product(1e6, 16) > 15 * 1e6 / 16 * 20_000 * 4 / 40e9
