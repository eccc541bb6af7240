"""The kernel cache: a kernel that was compiled once is not compiled again, by this process or any other.

It stores binaries under a digest of everything that they depend on, and is independent of the compilers.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
import threading
import time
import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from weakref import WeakSet

import platformdirs

from ..config import current
from ..errors import CacheWarning
from .store import Corrupt, Entry, Store, owned, sha256

SCHEMA = 1  # version of the layout on disk
_MEMORY_BYTES = 64 << 20  # bytes of binaries that a process has in memory
_LOCK_SECONDS = 20.0
"""How long a process waits for another one that compiles the same kernel. A compilation takes up to about 10 s."""
Fact = str | int | float | bool
_CACHES: WeakSet[Cache] = WeakSet()


@dataclass(frozen=True)
class Key:
    """Everything that a binary depends on.

    ``source`` is the text that is compiled or, if a generator writes that, all arguments of the generator. ``headers``
    is the ``fingerprint`` of the files that the source includes, or of those that generate it. ``options`` are the
    final arguments of the compiler, in their order. ``name`` is for display and not part of the digest.
    """

    target: str
    compiler: str
    source: str
    headers: str = ""
    options: tuple[str, ...] = ()
    name: str = field(default="kernel", compare=False)

    @cached_property
    def digest(self) -> str:
        """Name of the entry, the same in every process and on every machine."""
        parts = [SCHEMA, self.target, self.compiler, self.source, self.headers, self.options]
        return sha256(json.dumps(parts).encode())


@dataclass(frozen=True)
class Built:
    """A binary, its resources (registers, spills, seconds), and its source.

    ``source`` is stored for display; it may be left out if it is that of the key.
    """

    binary: bytes
    info: Mapping[str, Fact] = field(default_factory=dict[str, Fact])
    source: str = ""


def fingerprint(headers: Mapping[str, str | bytes]) -> str:
    """Return the digest of header files, contents by name; their order does not matter."""
    total = hashlib.sha256()
    for name in sorted(headers):
        contents = headers[name]
        data = contents.encode() if isinstance(contents, str) else contents
        total.update(f"{name}\0{len(data)}\0".encode() + data)
    return total.hexdigest()


class Cache:
    """Compiled kernels in memory and, if the directory is usable, on disk.

    A damaged entry counts as absent, with a ``CacheWarning``. If the directory cannot be read or written, one warning
    says so and kernels stay in memory. Threads or processes that need the same kernel build it once; a process waits
    no longer than ``_LOCK_SECONDS`` for another.
    """

    def __init__(self, directory: Path | str | None = None) -> None:
        self.directory = Path(directory) if directory is not None else _of_user()
        self._store = Store(self.directory, SCHEMA)
        self._memory: OrderedDict[str, Built] = OrderedDict()
        self._memory_bytes = 0
        self._lock = threading.Lock()
        self._building: dict[str, threading.Lock] = {}
        self._left: set[str] = set()  # what the parent of a forked process was building
        self._warned = False
        _CACHES.add(self)

    def renew_locks(self) -> None:
        """Replace all locks in a forked process, where the threads of the parent that hold them do not exist."""
        self._lock = threading.Lock()
        self._left = {*self._left, *self._building}
        self._building.clear()
        self._store.forget_locks()

    def fetch(self, key: Key, build: Callable[[], Built]) -> bytes:
        """Return the binary of a key; build and store it on a miss."""
        return self.fetch_built(key, build).binary

    def fetch_built(self, key: Key, build: Callable[[], Built]) -> Built:
        """Return the same binary with the resources that are stored beside it."""
        found = self._from_memory(key.digest)
        if found is not None:
            return found
        with self._lock:
            lock = self._building.setdefault(key.digest, threading.Lock())
        try:
            with lock:
                found = self.find(key)
                if found is None:
                    found = self._build(key, build)
                return found
        finally:
            with self._lock:
                self._building.pop(key.digest, None)

    def _build(self, key: Key, build: Callable[[], Built]) -> Built:
        """Build a kernel, or wait for another process that is building it."""
        with self._store.locked(key.digest, 0.0 if self._warned or key.digest in self._left else _LOCK_SECONDS):
            found = self._made_meanwhile(key)
            if found is None:
                begun = time.perf_counter()
                built = build()
                if current().verbose:
                    _tell(key, built, time.perf_counter() - begun)
                found = Built(built.binary, built.info)
                self._remember(key.digest, found)
                self._save(key, built)
        return found

    def find(self, key: Key) -> Built | None:
        """Return the entry of a key, None on a miss."""
        found = self._from_memory(key.digest)
        if found is not None:
            return found
        try:
            return self._read(key)
        except Corrupt as error:
            warnings.warn(f"a damaged entry of the kernel cache is made anew: {error}", CacheWarning, stacklevel=3)
        except OSError as error:
            self._without_disk(error)
        return None

    def _made_meanwhile(self, key: Key) -> Built | None:
        """Return an entry that another process stored while this one waited; damage was reported before."""
        with suppress(OSError, Corrupt):
            return self._read(key)
        return None

    def _read(self, key: Key) -> Built | None:
        """Return the entry that the disk has for a key, and put it into memory; None on a miss."""
        stored = self._store.read(key.digest)
        if stored is None:
            return None
        found = Built(stored[0], stored[1].get("info", {}))
        self._remember(key.digest, found)
        return found

    def put(self, key: Key, built: Built) -> None:
        """Store an entry in place of the one that the key has."""
        with self._lock:
            gone = self._memory.pop(key.digest, None)
            self._memory_bytes -= len(gone.binary) if gone is not None else 0
        self._remember(key.digest, Built(built.binary, built.info))
        with suppress(OSError):
            self._store.remove(key.digest)
        self._save(key, built)

    def files(self, digest: str) -> dict[str, bytes]:
        """Return the files of a stored kernel; raise OSError or Corrupt if it is absent or damaged."""
        return self._store.files(digest)

    def adopt(self, digest: str, source: str, binary: bytes, meta: Mapping[str, object]) -> None:
        """Write an entry of another cache to disk under its digest; raise OSError if that fails."""
        self._store.write(digest, str(meta.get("name", "")), source, binary, meta)

    def entries(self) -> list[Entry]:
        """Return the stored kernels, the most recently used first."""
        try:
            return sorted(self._store.entries(), key=lambda entry: -entry.used)
        except OSError as error:
            self._without_disk(error)
            return []

    def size(self) -> int:
        """Return the bytes on disk."""
        try:
            return self._store.size()
        except OSError as error:
            self._without_disk(error)
            return 0

    def clear(self) -> int:
        """Remove every entry, and return the bytes freed on disk."""
        with self._lock:
            self._memory.clear()
            self._memory_bytes = 0
        before = self.size()
        try:
            self._store.clear()
        except OSError as error:
            self._without_disk(error)
        return before - self.size()

    def prune(self, max_bytes: int) -> list[Entry]:
        """Remove the least recently used kernels until the rest fits, and return the removed ones."""
        with suppress(OSError):
            self._store.sweep()
        gone: list[Entry] = []
        total = 0
        for entry in self.entries():
            total += entry.size
            if total > max_bytes:
                self._store.remove(entry.digest)
                gone.append(entry)
        return gone

    def _save(self, key: Key, built: Built) -> None:
        meta = {
            "schema": SCHEMA,
            "target": key.target,
            "compiler": key.compiler,
            "headers": key.headers,
            "options": key.options,
            "info": dict(built.info),
        }
        try:
            self._store.write(key.digest, key.name, built.source or key.source, built.binary, meta)
        except OSError as error:
            self._without_disk(error)

    def _from_memory(self, digest: str) -> Built | None:
        with self._lock:
            found = self._memory.get(digest)
            if found is not None:
                self._memory.move_to_end(digest)
            return found

    def _remember(self, digest: str, built: Built) -> None:
        with self._lock:
            if digest not in self._memory:
                self._memory_bytes += len(built.binary)
            self._memory[digest] = built
            while self._memory_bytes > _MEMORY_BYTES and len(self._memory) > 1:
                self._memory_bytes -= len(self._memory.popitem(last=False)[1].binary)

    def _without_disk(self, error: OSError) -> None:
        with self._lock:
            first, self._warned = not self._warned, True
        if first:
            message = f"the kernel cache in {self.directory} cannot be used, kernels stay in memory: {error}"
            warnings.warn(message, CacheWarning, stacklevel=4)


def _of_user() -> Path:
    """Return the user's cache directory; one for temporary files if the user has no home, as in some containers."""
    try:
        found = platformdirs.user_cache_path("kernmantle", False)
    except RuntimeError:
        found = Path("~")  # what older versions of platformdirs leave as it is
    if found.is_absolute():
        return found
    try:
        return Path(tempfile.gettempdir(), owned("kernmantle"))
    except FileNotFoundError:
        return Path(os.sep, owned("kernmantle"))  # nothing can be written anywhere: kernels stay in memory


def _tell(key: Key, built: Built, seconds: float) -> None:
    """Write one line to stderr for a kernel that was compiled."""
    figures = "".join(f", {name} {value}" for name, value in built.info.items())
    what = f"{key.name or key.digest} for {key.target} in {1e3 * seconds:.0f} ms"
    sys.stderr.write(f"kernmantle: compiled {what}: {len(built.binary)} bytes{figures}\n")


def _in_child() -> None:
    for cache in list(_CACHES):
        cache.renew_locks()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


@lru_cache(maxsize=8)
def _at(directory: Path | None) -> Cache:
    return Cache(directory)


def current_cache() -> Cache:
    """Return the cache of the configuration in force: one object per directory and process."""
    return _at(current().cache_dir)
