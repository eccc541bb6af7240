"""The configuration: blocks nest, threads and tasks do not see each other, nonsense is refused at once."""

import asyncio
import contextvars
import gc
import subprocess
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import FrozenInstanceError, fields
from pathlib import Path

import pytest

from kernmantle.config import _VARIABLES, Config, config, current, from_environment, get_config, set_config
from kernmantle.errors import KernmantleWarning, ParameterError


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


def test_a_call_alone_warns_that_it_changed_nothing():
    with pytest.warns(KernmantleWarning, match=r"config\(threads=1\).*changed nothing.*set_config\(threads=1\)"):
        config(threads=1)
    assert current().threads is None


def test_what_is_entered_or_decorates_does_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with config(threads=1):
            pass
        decorated = config(threads=1)(lambda: current().threads)
        gc.collect()
        assert decorated() == 1
        with pytest.raises(ParameterError):
            config(threads=0)
        gc.collect()


@pytest.fixture
def default():
    """The default of the process, put back afterwards."""
    before = get_config()
    yield before
    set_config(threads=before.threads, precision=before.precision)


def test_the_default_of_the_process(default):
    with config(threads=5):
        set_config(threads=2, precision="ieee")
        assert (current().threads, current().precision) == (5, "ieee")
    assert (current().threads, current().precision) == (2, "ieee")
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(current).result() == get_config() == current()
    with pytest.raises(ParameterError, match="threads"):
        set_config(precision=None, threads=0)
    assert current().precision == "ieee"


def test_what_a_thread_and_a_task_start_with(default):
    async def inside():
        task = asyncio.create_task(asyncio.to_thread(current))
        return (await asyncio.create_task(wait())).threads, (await task).threads

    async def wait():
        return current()

    set_config(threads=4)
    with config(precision="ieee", threads=7), ThreadPoolExecutor(1) as pool:
        started = pool.submit(current).result()
        passed = pool.submit(contextvars.copy_context().run, current).result()
        assert asyncio.run(inside()) == (7, 7)
    assert (started.threads, started.precision) == (4, None)
    assert (passed.threads, passed.precision) == (7, "ieee")


def test_a_child_process_reads_the_environment(default):
    set_config(threads=4)
    program = "import kernmantle as km; print(km.get_config().threads)"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert found.stdout.strip() == "None"


def test_one_object_in_many_threads():
    shared, finished, right = config(threads=6), [], []

    @config(threads=7)
    def decorated():
        barrier.wait()
        return current().threads

    def run():
        try:
            for _ in range(20):
                assert decorated() == 7
                with shared:
                    barrier.wait()
                    with shared:
                        assert current().threads == 6
            right.append(True)
        finally:
            finished.append(current().threads)

    barrier = threading.Barrier(4, timeout=30)
    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert finished == [None] * 4
    assert len(right) == 4


def test_one_object_in_many_tasks():
    shared = config(threads=6)

    @config(threads=7)
    async def decorated(turns):
        for _ in range(turns):
            await asyncio.sleep(0)
            assert current().threads == 7
        return True

    async def run(turns):
        with shared:
            for _ in range(turns):
                await asyncio.sleep(0)
            assert current().threads == 6
            assert await decorated(turns)
        return current().threads

    async def all_of_them():
        return await asyncio.gather(*(run(turns) for turns in (5, 1, 3)))

    assert asyncio.run(all_of_them()) == [None, None, None]


def test_a_generator_function_is_refused_and_an_abandoned_one_leaves_nothing():
    def values():
        with config(threads=3):
            yield current().threads
            yield current().threads

    with pytest.raises(ParameterError, match=r"values is a generator function.*inside it"):
        config(threads=3)(values)
    generator = values()
    next(generator)
    with config(precision="ieee"):
        generator.close()
        assert (current().threads, current().precision) == (None, "ieee")
    assert current() == Config(cache_dir=current().cache_dir)


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
    ("variable", "value", "wanted"),
    [
        ("BACKEND", "gpu", "backend must be one of"), ("THREADS", "two", "must be an integer"),
        ("THREADS", "0", "positive"), ("PROGRESS", "perhaps", "one of 1, true"),
    ],
)  # fmt: skip
def test_environment_errors_name_the_variable_and_what_it_takes(variable, value, wanted):
    with pytest.raises(ParameterError, match=f"KERNMANTLE_{variable}='{value}' does not fit: .*{wanted}"):
        from_environment({f"KERNMANTLE_{variable}": value})
