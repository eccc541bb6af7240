"""The kernel cache: what was compiled once is not compiled again, by this process or any other.

It keeps bytes under a digest of everything they follow from and knows nothing of any compiler.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
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
from .store import Corrupt, Entry, Store, sha256

SCHEMA = 1  # version of the layout on disk
_MEMORY_BYTES = 64 << 20  # of binaries that a process keeps
_LOCK_SECONDS = 20.0
"""How long a process waits for another that compiles the same kernel, which takes up to some ten seconds."""
Fact = str | int | float | bool
_CACHES: WeakSet[Cache] = WeakSet()


@dataclass(frozen=True)
class Key:
    """Everything the binary follows from.

    ``source`` is what is compiled or, where that is generated, all that the generator is given. ``headers`` is the
    ``fingerprint`` of the files that the source includes, or of those that generate it. ``options`` are the final
    arguments of the compiler, in their order. ``name`` is for people only and no part of the digest.
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

    ``source`` is for people, and needless where it is that of the key.
    """

    binary: bytes
    info: Mapping[str, Fact] = field(default_factory=dict[str, Fact])
    source: str = ""


def fingerprint(headers: Mapping[str, str | bytes]) -> str:
    """Return the digest of header files given as name -> contents, in whatever order."""
    total = hashlib.sha256()
    for name in sorted(headers):
        contents = headers[name]
        data = contents.encode() if isinstance(contents, str) else contents
        total.update(f"{name}\0{len(data)}\0".encode() + data)
    return total.hexdigest()


class Cache:
    """Compiled kernels in memory and, where it can be had, on disk.

    A damaged entry counts as absent, with a ``CacheWarning``. A directory that cannot be written or read is
    reported once and done without. Threads that want one kernel build it once, and so do processes, but none waits
    longer than ``_LOCK_SECONDS`` for another.
    """

    def __init__(self, directory: Path | str | None = None) -> None:
        self.directory = Path(directory) if directory is not None else platformdirs.user_cache_path("kernmantle", False)
        self._store = Store(self.directory, SCHEMA)
        self._memory: OrderedDict[str, Built] = OrderedDict()
        self._memory_bytes = 0
        self._lock = threading.Lock()
        self._building: dict[str, threading.Lock] = {}
        self._left: set[str] = set()  # what the parent of a forked process was building
        self._warned = False
        _CACHES.add(self)

    def renew_locks(self) -> None:
        """In a forked process: forget the threads of the parent, which release nothing here."""
        self._lock = threading.Lock()
        self._left = {*self._left, *self._building}
        self._building.clear()
        self._store.forget_locks()

    def fetch(self, key: Key, build: Callable[[], Built]) -> bytes:
        """Return the binary of a key, built and kept where it is not there yet."""
        return self.fetch_built(key, build).binary

    def fetch_built(self, key: Key, build: Callable[[], Built]) -> Built:
        """Return what ``fetch`` does, with the resources that are stored with the binary."""
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
        """Build a kernel, unless another process does so at this moment."""
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
        """Return what is kept under a key, None where nothing is."""
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
        """Return what another process stored while this one waited for its lock; damage was reported before."""
        with suppress(OSError, Corrupt):
            return self._read(key)
        return None

    def _read(self, key: Key) -> Built | None:
        """Return what is on disk under a key, from now on in memory too, None where nothing is."""
        stored = self._store.read(key.digest)
        if stored is None:
            return None
        found = Built(stored[0], stored[1].get("info", {}))
        self._remember(key.digest, found)
        return found

    def put(self, key: Key, built: Built) -> None:
        """Keep something under a key in place of what is there."""
        with self._lock:
            gone = self._memory.pop(key.digest, None)
            self._memory_bytes -= len(gone.binary) if gone is not None else 0
        self._remember(key.digest, Built(built.binary, built.info))
        with suppress(OSError):
            self._store.remove(key.digest)
        self._save(key, built)

    def files(self, digest: str) -> dict[str, bytes]:
        """Return the files of a kept kernel; an OSError or Corrupt where it is absent or damaged."""
        return self._store.files(digest)

    def adopt(self, digest: str, source: str, binary: bytes, meta: Mapping[str, object]) -> None:
        """Keep on disk what another cache had under a digest; an OSError where that cannot be."""
        self._store.write(digest, str(meta.get("name", "")), source, binary, meta)

    def entries(self) -> list[Entry]:
        """Return the kept kernels, the most recently used first."""
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
        """Forget everything; returns the bytes freed on disk."""
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
        """Remove the least recently used kernels until the rest fits; returns what went."""
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


def _tell(key: Key, built: Built, seconds: float) -> None:
    """One line on stderr for a kernel that was compiled."""
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
