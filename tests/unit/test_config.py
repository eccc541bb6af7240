"""The configuration: blocks nest, threads and tasks do not see each other, nonsense is refused at once."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import FrozenInstanceError, fields
from pathlib import Path

import pytest

from kernmantle.config import _VARIABLES, Config, config, current, from_environment
from kernmantle.errors import ParameterError


def test_blocks_nest_and_end():
    before = current()
    with config(threads=3) as outer:
        assert (outer.threads, outer.backend) == (3, before.backend)
        with config(backend="reference"):
            assert (current().threads, current().backend) == (3, "reference")
        assert current() is outer
    assert current() is before


def test_a_block_ends_on_an_error():
    before = current()
    with pytest.raises(ZeroDivisionError), config(threads=3):
        _ = 1 / 0
    assert current() is before


def test_decorator():
    @config(threads=5)
    def inside():
        return current().threads

    assert [inside(), inside()] == [5, 5]
    assert current().threads is None


def test_frozen():
    with pytest.raises(FrozenInstanceError):
        current().threads = 4  # type: ignore[misc]


def test_threads_do_not_see_each_other():
    barrier = threading.Barrier(2, timeout=30)

    def run(threads):
        with config(threads=threads):
            barrier.wait()
            seen = current().threads
            barrier.wait()
        return seen

    with config(threads=99), ThreadPoolExecutor(2) as pool:
        assert list(pool.map(run, [1, 2])) == [1, 2]


def test_tasks_do_not_see_each_other():
    async def run(threads):
        with config(threads=threads):
            await asyncio.sleep(0)
            return current().threads

    async def both():
        return await asyncio.gather(run(1), run(2))

    assert asyncio.run(both()) == [1, 2]


def test_unknown_name_suggests_the_nearest():
    with pytest.raises(ParameterError, match="no 'bakend'; did you mean 'backend'"):
        config(bakend="llvm")
    with pytest.raises(ParameterError, match="no 'zzz'; it has backend, cache_dir"):
        config(zzz=1)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("backend", "gpu"),
        ("backend", None),
        ("precision", "tf16"),
        ("threads", 0),
        ("threads", True),
        ("threads", 1.5),
        ("chunk_bytes", None),
        ("chunk_bytes", -1),
        ("progress", 1),
        ("verbose", "yes"),
        ("debug", 1),
        ("cache_dir", 3),
    ],
)
def test_values_are_checked_before_the_block(name, value):
    with pytest.raises(ParameterError, match=name):
        config(**{name: value})


def test_paths_are_paths():
    with config(cache_dir="~/somewhere", dump_source=Path("there")) as settings:
        assert settings.cache_dir == Path.home() / "somewhere"
        assert settings.dump_source == Path("there")


def test_environment():
    variables = {
        "KERNMANTLE_BACKEND": "reference",
        "KERNMANTLE_CACHE_DIR": "somewhere",
        "KERNMANTLE_THREADS": "2",
        "KERNMANTLE_PROGRESS": "off",
        "KERNMANTLE_PRECISION": "ieee",
        "KERNMANTLE_VERBOSE": "1",
        "KERNMANTLE_DEBUG": "yes",
        "KERNMANTLE_DUMP_SOURCE": "",
        "OTHER_BACKEND": "llvm",
    }
    expected = Config("reference", Path("somewhere"), 2, False, "ieee", True, True)
    assert from_environment(variables) == expected
    assert from_environment({}) == Config()
    assert set(_VARIABLES) < {field.name for field in fields(Config)}


@pytest.mark.parametrize(
    ("variable", "value"), [("BACKEND", "gpu"), ("THREADS", "two"), ("THREADS", "0"), ("PROGRESS", "perhaps")]
)
def test_environment_errors_name_the_variable(variable, value):
    with pytest.raises(ParameterError, match=f"KERNMANTLE_{variable}='{value}'"):
        from_environment({f"KERNMANTLE_{variable}": value})
