"""The kernel cache: what makes a key new and what does not, damage, unusable disks, races."""

import errno
import json
import multiprocessing
import os
import re
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from kernmantle.config import config
from kernmantle.errors import CacheWarning
from kernmantle.runtime import cache as cache_module
from kernmantle.runtime import store as store_module
from kernmantle.runtime.cache import Built, Cache, Key, current_cache, fingerprint

KEY = Key("cpu:avx2", "compiler 1.0", "source text", fingerprint({"a.h": "int a;"}), ("-O2", "-g"), name="gram")
BINARY = bytes(range(256)) * 8


def never() -> Built:
    raise AssertionError("compiled again")


class Compiler:
    """Counts how often it was asked."""

    def __init__(self, binary: bytes = BINARY) -> None:
        self.binary, self.calls = binary, 0

    def __call__(self) -> Built:
        self.calls += 1
        return Built(self.binary, {"registers": 40})


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    Cache(tmp_path).fetch(KEY, Compiler())
    return tmp_path


def entry_of(directory: Path, key: Key = KEY) -> Path:
    (found,) = [path for path in directory.glob("*/*") if path.name == key.digest]
    return found


def test_kept_in_memory_and_on_disk(tmp_path):
    cache, compiler = Cache(tmp_path), Compiler()
    assert cache.fetch(KEY, compiler) == cache.fetch(KEY, never) == BINARY
    assert compiler.calls == 1
    other = Cache(tmp_path)
    assert other.find(KEY) == Built(BINARY, {"registers": 40})
    assert other.fetch_built(KEY, never).info == {"registers": 40}
    assert sorted(path.name for path in entry_of(tmp_path).iterdir()) == ["binary", "meta.json", "source"]
    assert (entry_of(tmp_path) / "source").read_text() == KEY.source


def test_compiling_is_told_on_request(tmp_path, capsys):
    cache = Cache(tmp_path)
    with config(verbose=True):
        cache.fetch(KEY, Compiler())
        cache.fetch(KEY, never)
        Cache(tmp_path).fetch(KEY, never)
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 1
    assert re.fullmatch(r"kernmantle: compiled gram for cpu:avx2 in \d+ ms: 2048 bytes, registers 40", told[0])
    cache.fetch(replace(KEY, name="other", source="other"), Compiler())
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "changed",
    [
        {"target": "cpu:avx512"},
        {"compiler": "compiler 1.1"},
        {"source": "source text "},
        {"headers": fingerprint({"a.h": "int b;"})},
        {"headers": fingerprint({"b.h": "int a;"})},
        {"headers": fingerprint({"a.h": "int a;", "b.h": ""})},
        {"options": ("-g", "-O2")},
        {"options": ("-O2",)},
        {"options": ("-O2 -g",)},
        {"target": "cpu:avx2compiler", "compiler": " 1.0"},
    ],
    ids=str,
)
def test_invalidates(kept, changed):
    compiler = Compiler(b"new")
    assert Cache(kept).fetch(replace(KEY, **changed), compiler) == b"new"
    assert Cache(kept).fetch(KEY, never) == BINARY


def test_schema_invalidates(kept, monkeypatch):
    monkeypatch.setattr(cache_module, "SCHEMA", cache_module.SCHEMA + 1)
    compiler = Compiler(b"new")
    key = replace(KEY)
    assert key.digest != KEY.digest
    assert Cache(kept).fetch(key, compiler) == b"new"
    assert len(list(kept.iterdir())) == 2


@pytest.mark.parametrize(
    "same",
    [
        {"name": "another label"},
        {"headers": fingerprint({"a.h": b"int a;"})},
        {"source": "".join(["source", " ", "text"])},
    ],
    ids=str,
)
def test_does_not_invalidate(kept, same):
    assert Cache(kept).fetch(replace(KEY, **same), never) == BINARY


def test_moving_the_directory_does_not_invalidate(kept, tmp_path_factory):
    moved = tmp_path_factory.mktemp("elsewhere") / "cache"
    kept.rename(moved)
    assert Cache(moved).fetch(KEY, never) == BINARY


def test_time_and_configuration_do_not_invalidate(kept):
    for file in entry_of(kept).iterdir():
        os.utime(file, (0, 0))
    with config(threads=7, verbose=True, cache_dir=kept):
        assert Cache(kept).fetch(KEY, never) == BINARY


def test_the_order_of_headers_does_not_invalidate():
    assert fingerprint({"a": "1", "b": "2"}) == fingerprint({"b": "2", "a": "1"})
    assert fingerprint({"a": "1", "b": ""}) != fingerprint({"a": "", "b": "1"})


def test_the_digest_is_the_same_in_every_process_and_version_of_python():
    key = Key("t", "c", "s", "h", ("o",))
    assert key.digest == "8e152ebaad47f02eafc5a1daadf1fb19cc084733152b70c6ae2157113ce0f4ec"


def spoil_truncate(entry: Path) -> None:
    (entry / "binary").write_bytes(BINARY[:-1])


def spoil_tamper(entry: Path) -> None:
    (entry / "binary").write_bytes(BINARY[:-1] + b"x")


def spoil_empty_meta(entry: Path) -> None:
    (entry / "meta.json").write_bytes(b"")


def spoil_foreign_meta(entry: Path) -> None:
    meta = json.loads((entry / "meta.json").read_text())
    (entry / "meta.json").write_text(json.dumps({**meta, "digest": "0" * 64}))


def spoil_list_meta(entry: Path) -> None:
    (entry / "meta.json").write_text("[1]")


def spoil_nested_meta(entry: Path) -> None:
    (entry / "meta.json").write_text("[" * 200_000)


def spoil_no_binary(entry: Path) -> None:
    (entry / "binary").unlink()


def spoil_no_meta(entry: Path) -> None:
    (entry / "meta.json").unlink()


@pytest.mark.parametrize(
    "spoil",
    [
        spoil_truncate,
        spoil_tamper,
        spoil_empty_meta,
        spoil_foreign_meta,
        spoil_list_meta,
        spoil_nested_meta,
        spoil_no_binary,
        spoil_no_meta,
    ],
)
def test_a_damaged_entry_is_made_anew_with_a_warning(kept, spoil):
    spoil(entry_of(kept))
    compiler = Compiler()
    with pytest.warns(CacheWarning, match="damaged"):
        assert Cache(kept).fetch(KEY, compiler) == BINARY
    assert compiler.calls == 1
    assert Cache(kept).fetch(KEY, never) == BINARY


def test_an_interrupted_writer_leaves_nothing_to_read(kept):
    half = entry_of(kept).parent / "tmp-half"
    half.mkdir()
    (half / "binary").write_bytes(b"half")
    cache = Cache(kept)
    assert [entry.digest for entry in cache.entries()] == [KEY.digest]
    assert cache.prune(1 << 30) == []
    assert half.exists(), "it may still be at work"
    os.utime(half, (time.time() - 7200,) * 2)
    cache.prune(1 << 30)
    assert not half.exists()


def expect_one_warning(directory: Path, match: str) -> None:
    cache, compiler = Cache(directory), Compiler()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for key in (KEY, replace(KEY, source="another"), KEY):
            assert cache.fetch(key, compiler) == BINARY
    assert [(warning.category, match in str(warning.message)) for warning in caught] == [(CacheWarning, True)]
    assert compiler.calls == 2
    assert "cache" in Path(caught[0].filename).name


def test_a_directory_that_is_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    expect_one_warning(tmp_path / "file", "cannot be used")


def test_a_missing_directory_is_made(tmp_path):
    Cache(tmp_path / "a" / "b").fetch(KEY, Compiler())
    assert Cache(tmp_path / "a" / "b").fetch(KEY, never) == BINARY


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT])
def test_a_disk_that_takes_no_more(tmp_path, monkeypatch, code):
    def fail(handle):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(store_module.os, "fsync", fail)
    expect_one_warning(tmp_path, os.strerror(code))
    assert list(tmp_path.glob("*/*")) == []


def test_a_directory_of_another_user_is_not_trusted(kept, monkeypatch):
    mallory = os.getuid() + 1
    root = entry_of(kept).parent
    root.rename(root.with_name(f"kernels-{cache_module.SCHEMA}-{mallory}"))
    monkeypatch.setattr(store_module.os, "getuid", lambda: mallory)
    expect_one_warning(kept, "belongs to another user")


def test_users_do_not_share_entries(kept, monkeypatch):
    real = os.getuid()
    monkeypatch.setattr(store_module.os, "getuid", lambda: real + 1)
    assert Cache(kept).find(KEY) is None


def test_a_read_only_directory_is_still_read(kept, monkeypatch):
    def fail(*arguments, **options):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(store_module.os, "mkdir", fail)
    monkeypatch.setattr(store_module.os, "utime", fail)
    cache = Cache(kept)
    assert cache.fetch(KEY, never) == BINARY
    with pytest.warns(CacheWarning, match="cannot be used"):
        cache.fetch(replace(KEY, source="another"), Compiler())


def test_a_failed_build_is_not_kept(tmp_path):
    cache = Cache(tmp_path)
    with pytest.raises(AssertionError, match="compiled again"):
        cache.fetch(KEY, never)
    assert cache.fetch(KEY, Compiler()) == BINARY


def test_threads_build_one_kernel_once_and_different_ones_at_once(tmp_path):
    cache, together = Cache(tmp_path), threading.Barrier(2, timeout=30)
    calls = []

    def build(source):
        calls.append(source)
        together.wait()
        return Built(source.encode())

    with ThreadPoolExecutor(8) as pool:
        sources = ["one", "two"] * 4
        found = list(pool.map(lambda source: cache.fetch(replace(KEY, source=source), lambda: build(source)), sources))
    assert found == [source.encode() for source in sources]
    assert sorted(calls) == ["one", "two"]


def race(directory, start, results):
    cache = Cache(directory)
    start.wait(60)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for number in range(20):
            key = replace(KEY, source=f"kernel {number}")
            results.put(cache.fetch(key, lambda number=number: Built(f"binary {number}".encode() * 1000)))


def race_with_clearing(directory, start, results):
    start.wait(60)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for number in range(100):
            cache, kernel = Cache(directory), number % 3
            if number % 10 == 5:
                cache.clear()
            if number % 10 == 9:
                cache.prune(5000)
            key = replace(KEY, source=f"kernel {kernel}")
            found = cache.fetch(key, lambda kernel=kernel: Built(f"binary {kernel}".encode() * 100))
            assert found == f"binary {kernel}".encode() * 100
    results.put(True)


def run_processes(count, work, directory, results_each):
    """Start all at once; returns what they put, after all ended well."""
    context = multiprocessing.get_context("fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn")
    start, results = context.Barrier(count), context.Queue()
    workers = [context.Process(target=work, args=(directory, start, results)) for _ in range(count)]
    for worker in workers:
        worker.start()
    found = [results.get(timeout=60) for _ in range(count * results_each)]
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0] * count
    return found


def test_eight_processes_on_a_cold_cache(tmp_path):
    found = run_processes(8, race, tmp_path, 20)
    assert sorted(found) == sorted([f"binary {number}".encode() * 1000 for number in range(20)] * 8)
    cache = Cache(tmp_path)
    assert len(cache.entries()) == len(list(tmp_path.glob("*/*"))) == 20
    for number in range(20):
        assert cache.fetch(replace(KEY, source=f"kernel {number}"), never) == f"binary {number}".encode() * 1000


def test_processes_that_clear_do_not_disturb_those_that_write(tmp_path):
    assert run_processes(4, race_with_clearing, tmp_path, 1) == [True] * 4
    assert list(tmp_path.glob("*/tmp-*")) == []


def test_entries_size_and_clear_touch_only_their_own(kept):
    (kept / "thesis.tex").write_text("mine")
    cache = Cache(kept)
    (entry,) = cache.entries()
    assert (entry.name, entry.target, entry.compiler) == ("gram", "cpu:avx2", "compiler 1.0")
    files = sum(file.stat().st_size for file in entry.path.iterdir())
    assert entry.size == cache.size() == files > len(BINARY)
    assert cache.fetch(KEY, never) == BINARY
    assert cache.clear() == files
    assert (cache.entries(), cache.size()) == ([], 0)
    assert (kept / "thesis.tex").read_text() == "mine"
    compiler = Compiler()
    cache.fetch(KEY, compiler)
    assert compiler.calls == 1, "memory was cleared as well"


def test_prune_removes_the_least_recently_used(tmp_path):
    keys = [replace(KEY, source=str(number), name=str(number)) for number in range(4)]
    for age, key in zip((40, 30, 20, 10), keys, strict=True):
        Cache(tmp_path).fetch(key, Compiler())
        os.utime(entry_of(tmp_path, key) / "meta.json", (time.time() - age,) * 2)
    Cache(tmp_path).fetch(keys[0], never)
    cache = Cache(tmp_path)
    assert [entry.name for entry in cache.entries()] == ["0", "3", "2", "1"]
    newest = sum(entry.size for entry in cache.entries()[:2])
    assert [entry.name for entry in cache.prune(newest)] == ["2", "1"]
    assert [entry.name for entry in cache.entries()] == ["0", "3"]


def test_memory_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(cache_module, "_MEMORY_BYTES", 3 * len(BINARY))
    cache = Cache(tmp_path)
    for number in range(10):
        cache.fetch(replace(KEY, source=str(number)), Compiler())
    assert len(cache._memory) == 3
    assert cache.fetch(replace(KEY, source="0"), never) == BINARY


@pytest.mark.parametrize("old", [True, False])
def test_a_user_without_a_home_has_a_directory_of_temporary_files(old, tmp_path, monkeypatch):
    def homeless(*_):
        if old:
            return Path("~/.cache/kernmantle")
        raise RuntimeError("could not determine the home directory for '~/.cache'")

    monkeypatch.setattr(cache_module.platformdirs, "user_cache_path", homeless)
    monkeypatch.setattr(cache_module.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.chdir(tmp_path)
    cache, compiler = Cache(), Compiler()
    assert cache.fetch(KEY, compiler) == Cache().fetch(KEY, never) == BINARY
    assert [path.name for path in tmp_path.iterdir()] == [f"kernmantle-{os.getuid()}"]

    def nowhere():
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    def refused(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(cache_module.tempfile, "gettempdir", nowhere)
    monkeypatch.setattr(store_module, "opened", refused)
    monkeypatch.setattr(Path, "mkdir", refused)
    with pytest.warns(CacheWarning, match="kernels stay in memory"):
        assert Cache().fetch(KEY, compiler) == BINARY


def test_the_configured_directory(tmp_path):
    with config(cache_dir=tmp_path):
        assert current_cache() is current_cache()
        assert current_cache().directory == tmp_path
    with config(cache_dir=None):
        assert current_cache().directory.name == "kernmantle"


def test_a_hit_on_disk_takes_less_than_five_milliseconds(tmp_path):
    key = replace(KEY, source="x" * 100_000)
    Cache(tmp_path).fetch(key, Compiler(bytes(200_000)))
    seconds = []
    for _ in range(10):
        cache = Cache(tmp_path)
        start = time.perf_counter()
        cache.fetch(replace(key), never)
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 0.005
