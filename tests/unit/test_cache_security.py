"""What another user may plant in a shared cache directory is neither run nor followed nor deleted."""

import os
import shutil
import stat
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import pytest

from kernmantle.errors import CacheWarning
from kernmantle.runtime.cache import SCHEMA, Built, Cache, Key
from kernmantle.runtime.directory import Directory, opened

pytestmark = pytest.mark.skipif(os.name != "posix", reason="owners and modes are those of POSIX")
KEY = Key("cpu", "compiler 1.0", "source text", name="gram")
OWN, FOREIGN = b"compiled here", b"planted"
ROOT = f"kernels-{SCHEMA}-{os.getuid() if hasattr(os, 'getuid') else 'local'}"


def store(directory: Path, binary: bytes) -> Path:
    """A cache with one kernel; its directory."""
    assert Cache(directory).fetch(KEY, lambda: Built(binary)) == binary
    return directory / ROOT


def fetched(directory: Path, count: int = 1) -> bytes:
    """What the victim runs, with so many warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        cache = Cache(directory)
        found = cache.fetch(KEY, lambda: Built(OWN))
        assert cache.fetch(replace(KEY, source="another"), lambda: Built(b"more")) == b"more"
    assert [warning.category for warning in caught] == [CacheWarning] * count, [str(one.message) for one in caught]
    return found


@pytest.fixture
def planted(tmp_path):
    """A foreign kernel under the very name that the victim asks for."""
    return store(tmp_path / "mallory", FOREIGN)


def test_a_link_in_place_of_the_users_directory(tmp_path, planted):
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / ROOT).symlink_to(planted)
    assert fetched(shared) == OWN
    assert len(list(planted.iterdir())) == 1


def test_a_link_to_a_home_is_not_cleared(tmp_path):
    shared, home = tmp_path / "shared", tmp_path / "home"
    shared.mkdir()
    for name in ("thesis", ".ssh", "0" * 64, "tmp-mine"):
        (home / name).mkdir(parents=True)
    (shared / ROOT).symlink_to(home)
    with pytest.warns(CacheWarning, match="link"):
        assert Cache(shared).clear() == 0
    assert len(list(home.iterdir())) == 4


def test_only_names_of_entries_are_cleared(tmp_path):
    root = store(tmp_path, OWN)
    (root / "thesis").mkdir()
    (root / "thesis" / "chapter").write_text("mine")
    cache = Cache(tmp_path)
    assert cache.clear() > 0
    assert cache.prune(0) == []
    assert (root / "thesis" / "chapter").read_text() == "mine"


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777, 0o1777])
def test_a_directory_that_others_write_to(tmp_path, planted, mode):
    shared = tmp_path / "shared"
    shutil.copytree(planted.parent, shared)
    (shared / ROOT).chmod(mode)
    assert fetched(shared) == OWN


def test_an_entry_that_others_write_to(tmp_path, planted):
    (planted / KEY.digest).chmod(0o777)
    assert fetched(planted.parent) == OWN


def test_a_cache_directory_in_which_everybody_may_replace(tmp_path, planted):
    planted.parent.chmod(0o777)
    assert fetched(planted.parent) == OWN
    planted.parent.chmod(0o1777)
    assert fetched(planted.parent, 0) == FOREIGN  # of the victim's own, as a sticky directory keeps it


def test_a_directory_above_in_which_everybody_may_replace(tmp_path):
    above = tmp_path / "above"
    store(above / "cache", FOREIGN)
    above.chmod(0o777)
    assert fetched(above / "cache") == OWN


def test_a_linked_entry(tmp_path, planted):
    shared = tmp_path / "shared"
    (shared / ROOT).mkdir(parents=True, mode=0o700)
    (shared / ROOT / KEY.digest).symlink_to(planted / KEY.digest)
    assert fetched(shared) == OWN
    assert (planted / KEY.digest / "binary").read_bytes() == FOREIGN


@pytest.mark.parametrize("file", ["binary", "meta.json"])
@pytest.mark.parametrize("kind", ["link", "hard link", "pipe", "directory"])
def test_a_file_that_is_none(tmp_path, planted, file, kind):
    entry = planted / KEY.digest
    (entry / file).rename(tmp_path / "aside")
    if kind == "link":
        (entry / file).symlink_to(tmp_path / "aside")
    elif kind == "hard link":
        os.link(tmp_path / "aside", entry / file)
    elif kind == "pipe":
        os.mkfifo(entry / file)
    else:
        (entry / file).mkdir()
    assert fetched(planted.parent) == OWN
    assert (tmp_path / "aside").exists()
    assert Cache(planted.parent).fetch(KEY, lambda: Built(b"never")) == OWN, "the entry was made anew"


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="needs another user's files")
@pytest.mark.parametrize("place", [".", KEY.digest, f"{KEY.digest}/binary", f"{KEY.digest}/meta.json"])
def test_another_users_files(planted, place):
    os.chown(planted / place, 12345, 12345)
    assert fetched(planted.parent) == OWN


def test_a_directory_that_is_swapped_after_the_check(tmp_path, planted, monkeypatch):
    own = store(tmp_path / "shared", OWN)
    plain = Directory.read

    def swapped(self, name):
        if own.exists() and not own.is_symlink():
            own.rename(own.with_name("aside"))
            own.symlink_to(planted)
        return plain(self, name)

    monkeypatch.setattr(Directory, "read", swapped)
    assert Cache(tmp_path / "shared").fetch(KEY, lambda: Built(b"never")) == OWN


def test_deletion_does_not_follow(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    (home / "thesis").write_text("mine")
    root = store(tmp_path / "shared", OWN)
    (root / KEY.digest / "linked").symlink_to(home)
    (root / ("1" * 64)).symlink_to(home)
    (root / "tmp-old").symlink_to(home)
    os.utime(root / "tmp-old", (0, 0), follow_symlinks=False)
    Cache(tmp_path / "shared").clear()
    assert [path.name for path in root.iterdir()] == []
    assert (home / "thesis").read_text() == "mine"


def test_what_is_written_is_the_users_alone(tmp_path):
    before = os.umask(0)
    try:
        root = store(tmp_path / "new", OWN)
    finally:
        os.umask(before)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in [root, *root.rglob("*")]}
    assert modes == {0o700, 0o600}


def test_a_chosen_directory_may_be_reached_through_a_link(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    store(tmp_path / "link", OWN)
    assert fetched(tmp_path / "real", 0) == OWN


def test_paths_serve_where_descriptors_do_not(tmp_path):
    code = """
import sys, kernmantle.runtime.directory as directory
directory._BY_DESCRIPTOR = False
from pathlib import Path
from kernmantle.runtime.cache import Built, Cache, Key
key, where = Key("cpu", "compiler 1.0", "source text"), Path(sys.argv[1])
import kernmantle.runtime.store as store
store.fcntl = None
Cache(where).fetch(key, lambda: Built(b"made"))
again = Cache(where)
print(again.fetch(key, None), len(again.entries()), again.clear() > 0, again.size())
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, str(tmp_path)], check=False, capture_output=True, text=True,
        timeout=120, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert (done.stdout.strip(), done.stderr) == ("b'made' 1 True 0", "")


def test_a_directory_is_closed_when_it_is_refused(tmp_path):
    before = len(list(Path("/proc/self/fd").iterdir())) if Path("/proc/self/fd").exists() else 0
    tmp_path.chmod(0o777)
    for _ in range(5):
        with pytest.raises(PermissionError):
            opened(tmp_path)
    assert not before or len(list(Path("/proc/self/fd").iterdir())) == before
