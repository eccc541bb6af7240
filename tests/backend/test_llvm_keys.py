"""Keys of compiled kernels: all that emitted text follows from, without emitting it."""

import shutil
import subprocess
import sys
from dataclasses import replace

import pytest

from kernmantle.backends.cpu import gram_plan
from kernmantle.config import config
from kernmantle.runtime import sources as sources_module
from kernmantle.runtime.cache import current_cache
from kernmantle.runtime.sources import import_closure, sources
from kernmantle.torch_ops import cpu

from ..source import FILES, MODULES, PACKAGE, parsed
from ..unit.test_canonical import planned
from ..unit.test_layers import imports

EMITTERS = [
    "backends.cpu.emit", "backends.cpu.row_reduce_emit", "structured.kron.cpu_emit", "structured.mode_product.cpu_emit",
    "structured.mode_product.cpu_dot_emit",
]  # fmt: skip
CALL = """
import sys, torch, kernmantle as km
x = torch.ones(3, 2)
with km.config(cache_dir={directory!r}):
    print(km.contract("mk,nk->mn", lambda a, b: abs(a - b), x, 2 * x).sum().item())
print([name for name in sys.modules if name.startswith("kernmantle.backends.cpu.emit")])
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
            waiting += [".".join(target), ".".join(target[:-1]), ".".join([*target[:-1], "__init__"])]
    return found


@pytest.mark.parametrize("emitter", EMITTERS)
def test_text_follows_from_the_plan_and_the_sources_alone(emitter):
    covered = {f"kernmantle.{name.removesuffix('.py').replace('/', '.')}" for name in sources(emitter)}
    packages = {name.rpartition(".")[0] for name in covered}
    outside = {name for name in closure(f"kernmantle.{emitter}") if FILES[name].name != "__init__.py"} - covered
    assert not outside - packages


@pytest.mark.parametrize("emitter", EMITTERS)
def test_sources_are_those_on_disk_and_no_others(emitter):
    found = sources(emitter)
    assert found == {name: (PACKAGE / name).read_bytes() for name in found}
    names = [name.removesuffix(".py").replace("/", ".") for name in found if not name.endswith("__init__.py")]
    modules = {f"kernmantle.{name}" for name in names}
    assert modules <= closure(f"kernmantle.{emitter}")


@pytest.fixture
def copied(tmp_path, monkeypatch):
    """The package in a folder of its own, where files can be changed; what gives the keys reads it."""
    package = tmp_path / "kernmantle"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("*.pyc", "__pycache__"))
    monkeypatch.setattr(sources_module, "PACKAGE", package)

    def keys():
        sources.cache_clear()
        cpu._digest.cache_clear()
        emitters = [
            "backends.cpu.emit:emit",
            "backends.cpu.row_reduce_emit:emit_rows",
            "structured.kron.cpu_emit:emit",
            "structured.mode_product.cpu_emit:emit",
            "structured.mode_product.cpu_dot_emit:emit",
        ]
        return {emitter: cpu.job_for(emitter, (1,), "").key.digest for emitter in emitters}

    yield package, keys
    sources.cache_clear()
    cpu._digest.cache_clear()


def test_a_changed_file_of_the_gpu_leaves_every_key(copied):
    package, keys = copied
    before = keys()
    used = {name for emitter in EMITTERS for name in sources(emitter)}
    rooms = [path for room in ("backends", "compiler", "structured") for path in (package / room).rglob("*")]
    for path in rooms:
        if path.is_file() and path.relative_to(package).as_posix() not in used:
            path.write_bytes(path.read_bytes() + b"\n")
    left = {
        "structured/mode_product/grouped_plan.py",
        "structured/kron/mma_emit.py",
        "backends/cuda/system_plan.py",
        "backends/cuda/kernels/mma.cuh",
    }
    assert not left & used
    assert keys() == before


@pytest.mark.parametrize(
    ("name", "of_grams", "of_kron"),
    [
        ("backends/cpu/libm.py", True, False),
        ("ir/reductions.py", True, False),
        ("backends/cpu/builder.py", True, True),
        ("structured/kron/cpu_emit.py", False, True),
    ],
)
def test_a_changed_generator_makes_new_keys_of_what_imports_it(copied, name, of_grams, of_kron):
    package, keys = copied
    before = keys()
    (package / name).write_bytes((package / name).read_bytes() + b"\n")
    after = keys()
    assert (after["backends.cpu.emit:emit"] != before["backends.cpu.emit:emit"]) == of_grams
    assert (after["structured.kron.cpu_emit:emit"] != before["structured.kron.cpu_emit:emit"]) == of_kron


def test_imports_of_every_form_are_followed(tmp_path):
    (tmp_path / "room").mkdir()
    (tmp_path / "room" / "__init__.py").write_text("")
    (tmp_path / "room" / "first.py").write_text(
        "from . import second as other, VALUE\nfrom .deep.third import (  # why\n    one,\n)\n\n"
        "def late():\n    from ..fourth import x\n    return x\n"
    )
    (tmp_path / "room" / "deep").mkdir()
    for name in ("room/second", "room/deep/__init__", "room/deep/third", "fourth", "unused"):
        (tmp_path / f"{name}.py").write_text("import os\n")
    found = import_closure(tmp_path, "room/first.py")
    assert set(found) == {
        "room/__init__.py",
        *(f"{n}.py" for n in ("room/first", "room/second", "room/deep/third", "fourth")),
    }


@pytest.mark.parametrize(("field", "value"), [("unroll", 7), ("lanes", 3), ("optimistic", False)])
def test_a_changed_plan_makes_a_new_key(field, value):
    assert cpu.job(replace(planned(), **{field: value})).key.digest != cpu.job(planned()).key.digest


def test_another_emitter_makes_a_new_key():
    one, other = (cpu.job_for(f"backends.cpu.{name}:emit", (1,), "") for name in ("emit", "row_reduce_emit"))
    assert one.key.digest != other.key.digest


def test_extents_do_not_matter_but_where_they_change_the_plan():
    nest = planned().nest
    one, other = (gram_plan.plan(nest, 32, 16, dict.fromkeys("abcmnkl", size)) for size in (64, 4096))
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

    assert "kernmantle.backends.cpu.emit" in loaded()
    assert loaded() == "[]"
