"""Canonical text of plans: one text for one plan, another for any other."""

import json
import os
import subprocess
import sys
from dataclasses import fields, is_dataclass, replace

import numpy as np
import pytest

from kernmantle.backends.cpu.gram_plan import CpuPlan, plan
from kernmantle.compiler.canonical import canonical
from kernmantle.compiler.nest import Buffer, Nest
from kernmantle.ir.node import Node, var
from kernmantle.ir.reductions import REDUCTIONS

MAKE = """
from kernmantle.compiler.canonical import canonical
from tests.unit.test_canonical import planned
print(canonical(planned()))
"""


def planned() -> CpuPlan:
    gap = Node("sub", (var("x0"), var("x1")))
    buffers = Buffer("x0", "mk", "f32"), Buffer("x1", "nk", "f32")
    power = Node("pow", (Node("abs", (gap,)), var("p")))
    nest = Nest(
        buffers, ("p",), (Buffer("out0", "mn", "f32"),), (power,), (REDUCTIONS["max"],), (var("s0"),), "f32", True
    )
    return plan(nest, 32, 16)


def another(value):
    """Something of the kind of a value that is not equal to it."""
    if isinstance(value, Node):
        return Node("neg", (value,))
    if isinstance(value, tuple):
        return (*value, value[0] if value else "new")
    return not value if isinstance(value, bool) else value + 1 if isinstance(value, int) else f"{value}_"


def changes(value, path=""):
    """The value with one field changed, at any depth, and which."""
    if is_dataclass(value):
        for field in fields(value):
            own = getattr(value, field.name)
            yield from (
                (place, replace(value, **{field.name: new})) for place, new in changes(own, f"{path}.{field.name}")
            )
    elif isinstance(value, tuple):
        yield path, another(value)
        for place, entry in enumerate(value):
            for where, new in changes(entry, f"{path}[{place}]"):
                yield where, (*value[:place], new, *value[place + 1 :])
    elif value is not None:
        yield path, another(value)


def test_every_field_at_every_depth_counts():
    texts = {place: canonical(changed) for place, changed in changes(planned())}
    assert {".nest.reductions[0].init[0]", ".nest.operands[1].dtype", ".nest.map[0]", ".lanes"} <= set(texts)
    assert len({canonical(planned()), *texts.values()}) == len(texts) + 1


def test_the_same_in_every_process():
    texts = set()
    for seed in "12":
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run([sys.executable, "-c", MAKE], check=True, capture_output=True, text=True, env=environment)
        texts.add(done.stdout.strip())
    assert texts == {canonical(planned())}


def test_long_expressions_are_not_shortened():
    def chain(last: str) -> Node:
        node = var(last)
        for place in range(300):
            node = Node("add", (node, Node("exp", (var(f"a{place}"),))))
        return node

    assert canonical(chain("x")) != canonical(chain("y"))


@pytest.mark.parametrize(
    ("one", "other"), [(1, True), (0, False), (1, 1.0), (("ab",), ("a", "b")), ((), None), ("1", 1)]
)
def test_kinds_differ(one, other):
    assert canonical((one,)) != canonical((other,))


@pytest.mark.parametrize(
    "value", [[1], {"a": 1}, {1}, np.ones(2), object(), np.float32(1)], ids=lambda v: type(v).__name__
)
def test_what_has_no_canonical_text(value):
    with pytest.raises(TypeError, match=type(value).__name__):
        canonical((value,))


def test_it_is_json():
    assert json.loads(canonical(("a", 1, None))) == ["tuple", "a", 1, None]
