"""Keys of compiled kernels: all that emitted text follows from, without emitting it."""

import subprocess
import sys
from dataclasses import replace

import pytest

from kernmantle.codegen.sources import sources
from kernmantle.config import config
from kernmantle.contraction import cpu_plan
from kernmantle.ops import cpu
from kernmantle.runtime.cache import current_cache

from ..source import MODULES, PACKAGE, parsed
from ..unit.test_canonical import planned
from ..unit.test_layers import imports

EMITTERS = [name for name in MODULES if name.startswith("kernmantle.codegen.") and "llvm" in name]
CALL = """
import sys, torch, kernmantle as km
x = torch.ones(3, 2)
with km.config(cache_dir={directory!r}):
    print(km.contract("mk,nk->mn", lambda a, b: abs(a - b), x, 2 * x).sum().item())
print([name for name in sys.modules if name.startswith("kernmantle.codegen.llvm")])
"""


def closure(name: str) -> set[str]:
    """Modules that a module loads, at any distance."""
    found, waiting = set(), [name]
    while waiting:
        module = waiting.pop()
        if module in found or module not in MODULES:
            continue
        found.add(module)
        for _, target in imports(parsed(module), module.split(".")[:-1]):
            waiting += [".".join(target), ".".join(target[:-1])]
    return found


@pytest.mark.parametrize("emitter", EMITTERS)
def test_text_follows_from_the_plan_and_the_sources_alone(emitter):
    covered = {name.removesuffix(".py").replace("/", ".") for name in sources()}
    outside = {name.removeprefix("kernmantle.") for name in closure(emitter)} - covered
    assert outside <= {"kernmantle", "errors", "expr", "contraction", "codegen"}


def test_the_sources_are_those_on_disk_but_for_other_targets():
    on_disk = [path for room in ("codegen", "contraction", "expr") for path in (PACKAGE / room).rglob("*.py")]
    found = {f"{path.parent.name}/{path.name}": path.read_bytes() for path in on_disk}
    left = {name for name in found if name not in sources()}
    assert sources() == {name: found[name] for name in found.keys() - left}
    assert all("cuda" in name or name == "codegen/reference.py" for name in left)


@pytest.mark.parametrize("name", ["codegen/llvm_math.py", "contraction/semirings.py", "expr/ops.py"])
def test_a_changed_generator_makes_a_new_key(monkeypatch, name):
    before = cpu.job(planned()).key
    monkeypatch.setattr(cpu, "sources", lambda: {**sources(), name: sources()[name] + b"\n"})
    cpu._emitters.cache_clear()
    try:
        assert cpu.job(planned()).key.digest != before.digest
    finally:
        cpu._emitters.cache_clear()


@pytest.mark.parametrize(("field", "value"), [("unroll", 7), ("lanes", 3), ("optimistic", False)])
def test_a_changed_plan_makes_a_new_key(field, value):
    assert cpu.job(replace(planned(), **{field: value})).key.digest != cpu.job(planned()).key.digest


def test_another_emitter_makes_a_new_key():
    assert cpu.job_for("llvm:emit", (1,), "").key.digest != cpu.job_for("llvm_apply:emit", (1,), "").key.digest


def test_extents_do_not_matter_but_where_they_change_the_plan():
    nest = planned().nest
    one, other = (cpu_plan.plan(nest, 32, 16, dict.fromkeys("abcmnkl", size)) for size in (64, 4096))
    assert cpu.job(one).key == cpu.job(other).key


def test_the_source_is_kept_for_people(tmp_path):
    with config(cache_dir=tmp_path):
        job = cpu.job(planned())
        current_cache().fetch(job.key, job.build)
    (kept,) = tmp_path.glob("*/*/source")
    assert kept.read_text() == cpu.emitted(job.arguments[0], job.arguments[1])
    assert "define void @km(" in kept.read_text()


def test_sources_of_cached_kernels_are_written_where_asked(tmp_path):
    with config(dump_source=tmp_path):
        cpu.job(planned())
    (written,) = tmp_path.glob("*.ll")
    assert "define void @km(" in written.read_text()


def test_a_kernel_in_the_cache_needs_no_emitter(tmp_path):
    def loaded() -> str:
        code = CALL.format(directory=str(tmp_path))
        done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
        total, modules = done.stdout.splitlines()
        assert total == "18.0"
        return modules

    assert "kernmantle.codegen.llvm" in loaded()
    assert loaded() == "[]"
