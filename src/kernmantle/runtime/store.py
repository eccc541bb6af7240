"""The disk layer of the kernel cache: one directory per entry, whole or absent.

An entry is written under a temporary name, synced and renamed, so a reader never sees half of one. What is read
is checked against the digests in its ``meta.json``. Entries live in a directory of the user's own inside the
cache directory, so several users may share one without running each other's machine code. That directory and every
entry in it must belong to the user, be writable for nobody else and not be a link; nothing else is read or deleted.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import secrets
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .directory import Directory, opened

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

BINARY, SOURCE, META = "binary", "source", "meta.json"
_TEMPORARY = "tmp-"
_STALE_SECONDS = 3600.0  # age at which a temporary file is removed
_POLL_SECONDS = 0.02  # between attempts to take a lock
_DIGEST = re.compile(r"[0-9a-f]{64}")
_ATTEMPTS = 8  # renames, where other processes write the same entry
_OCCUPIED: set[int] = {errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR, *([errno.EACCES] * (os.name == "nt"))}


class Corrupt(Exception):
    """An entry whose contents are not those that were written."""


@dataclass(frozen=True)
class Entry:
    """One stored kernel; ``used`` is when it was last read, in seconds since the epoch."""

    digest: str
    name: str
    target: str
    compiler: str
    size: int
    used: float
    path: Path


def sha256(data: bytes) -> str:
    """Return the hexadecimal digest."""
    return hashlib.sha256(data).hexdigest()


def owned(name: str) -> str:
    """Return a name for the user alone."""
    return f"{name}-{os.getuid() if hasattr(os, 'getuid') else 'local'}"


class Store:
    """Entries of one schema and one user under a cache directory; every failure is an OSError or Corrupt."""

    def __init__(self, directory: Path, schema: int) -> None:
        self.root = directory / owned(f"kernels-{schema}")
        self._locks: set[int] = set()

    @contextmanager
    def _opened(self, make: bool = False) -> Generator[Directory]:
        """Open the user's own directory; raise FileNotFoundError if there is none."""
        if make:
            self.root.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        parent = opened(self.root.parent)
        try:
            if make:
                with suppress(FileExistsError):
                    parent.make(self.root.name)
            with parent.inside(self.root.name) as root:
                yield root
        finally:
            parent.close()

    def read(self, digest: str) -> tuple[bytes, dict[str, Any]] | None:
        """Return the binary and meta of an entry, None if there is none."""
        try:
            with self._opened() as root:
                return self._read(root, digest)
        except FileNotFoundError:
            return None

    def _read(self, root: Directory, digest: str) -> tuple[bytes, dict[str, Any]] | None:
        path = self.root / digest
        for attempt in (0, 1):
            try:
                with root.inside(digest) as entry:
                    meta = parse(digest, entry.read(META))
                    binary = entry.read(BINARY)
                    if sha256(binary) != meta["sha256"]:
                        raise Corrupt(f"{path} does not hold what its {META} says")
                    with suppress(OSError):
                        entry.touch(META)
                    return binary, meta
            except FileNotFoundError as error:
                try:
                    root.status(digest)
                except FileNotFoundError:
                    return None
                # Another process may be replacing this entry: read it again before calling it corrupt.
                if attempt:
                    raise Corrupt(f"{path} lacks {Path(error.filename).name}") from None
            except (PermissionError, NotADirectoryError) as error:
                raise Corrupt(f"{path} is not used: {error}") from None
            except Corrupt:
                if attempt:
                    raise
        return None

    def files(self, digest: str) -> dict[str, bytes]:
        """Return all files of an entry, checked; raise Corrupt or OSError if it is damaged or absent."""
        if self.read(digest) is None:
            raise FileNotFoundError(f"there is no kernel {digest}")
        with self._opened() as root, root.inside(digest) as entry:
            found = {name: entry.read(name) for name in (META, SOURCE, BINARY)}
        if sha256(found[BINARY]) != parse(digest, found[META])["sha256"]:
            raise Corrupt(f"{self.root / digest} changed while it was read")
        return found

    def write(self, digest: str, name: str, source: str, binary: bytes, meta: Mapping[str, Any]) -> None:
        """Add or replace an entry; if another process was first, its entry stays."""
        document = {**meta, "digest": digest, "name": name, "sha256": sha256(binary), "created": time.time()}
        files = {SOURCE: source.encode(), BINARY: binary, META: json.dumps(document, indent=1).encode()}
        with self._opened(make=True) as root:
            temporary = _fresh(root)
            try:
                with root.inside(temporary) as entry:
                    for file, data in files.items():
                        entry.write(file, data)
                self._install(root, temporary, digest)
            finally:
                root.delete(temporary)

    def _install(self, root: Directory, temporary: str, digest: str) -> None:
        for _ in range(_ATTEMPTS):
            try:
                root.rename(temporary, root, digest)
            except OSError as error:
                if error.errno not in _OCCUPIED:
                    raise
            else:
                root.sync()
                return
            if self._intact(root, digest):
                return
            _remove(root, digest)
        raise FileExistsError(f"{self.root / digest} cannot be replaced")

    def _intact(self, root: Directory, digest: str) -> bool:
        try:
            return self._read(root, digest) is not None
        except Corrupt:
            return False

    @contextmanager
    def locked(self, digest: str, seconds: float) -> Generator[None]:
        """Hold the lock of an entry among processes; go on without it after so many seconds, or if there are no locks.

        A lock ends with the process that holds it. No result depends on it: it only avoids duplicate work.
        """
        handle, name = -1, f"{_TEMPORARY}lock-{digest}"
        with suppress(OSError):
            handle = self._lock(name, time.monotonic() + seconds)
        try:
            yield
        finally:
            if handle >= 0:
                self._locks.discard(handle)
                with suppress(OSError), self._opened() as root:
                    root.delete(name)
                os.close(handle)

    def _lock(self, name: str, end: float) -> int:
        if fcntl is None:
            return -1
        with self._opened(make=True) as root:
            while True:
                with suppress(FileExistsError):
                    os.close(root.create(name))
                try:
                    handle = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=root.descriptor)
                except FileNotFoundError:  # its holder has just finished
                    continue
                self._locks.add(handle)
                try:
                    while not _flock(handle):
                        if time.monotonic() > end:
                            raise TimeoutError(f"another process holds {name}")
                        time.sleep(_POLL_SECONDS)
                    if _is_same(os.fstat(handle), root, name):
                        return handle
                except BaseException:
                    self._close_lock(handle)
                    raise
                self._close_lock(handle)

    def _close_lock(self, handle: int) -> None:
        self._locks.discard(handle)
        os.close(handle)

    def forget_locks(self) -> None:
        """Close the locks of the parent in a forked process; the parent still holds them."""
        for handle in self._locks:
            with suppress(OSError):
                os.close(handle)
        self._locks.clear()

    def remove(self, digest: str) -> None:
        """Remove an entry at once, whatever state it is in."""
        with suppress(FileNotFoundError), self._opened() as root:
            _remove(root, digest)

    def entries(self) -> list[Entry]:
        """Return every readable entry."""
        found: list[Entry] = []
        with suppress(FileNotFoundError, NotADirectoryError), self._opened() as root:
            for digest in filter(_DIGEST.fullmatch, root.names()):
                with suppress(OSError, Corrupt), root.inside(digest) as entry:
                    meta, used = parse(digest, entry.read(META)), entry.status(META).st_mtime
                    name, target, compiler = (str(meta.get(field, "")) for field in ("name", "target", "compiler"))
                    found.append(Entry(digest, name, target, compiler, _size(entry), used, entry.path))
        return found

    def size(self) -> int:
        """Return the bytes on disk, corrupt and half-written entries included."""
        total = 0
        with suppress(FileNotFoundError, NotADirectoryError), self._opened() as root:
            for name in filter(_is_own, root.names()):
                with suppress(OSError), root.inside(name) as entry:
                    total += _size(entry)
        return total

    def sweep(self) -> None:
        """Remove files that interrupted writers left; those of writers at work stay."""
        with suppress(FileNotFoundError, NotADirectoryError), self._opened() as root:
            _sweep(root)

    def clear(self) -> None:
        """Remove every entry of this store, and nothing else of the cache directory."""
        with suppress(FileNotFoundError, NotADirectoryError), self._opened() as root:
            _sweep(root)
            for digest in filter(_DIGEST.fullmatch, root.names()):
                _remove(root, digest)


def _is_own(name: str) -> bool:
    return name.startswith(_TEMPORARY) or _DIGEST.fullmatch(name) is not None


def _fresh(root: Directory) -> str:
    """Make a directory of a new name."""
    name = f"{_TEMPORARY}{secrets.token_hex(8)}"
    root.make(name)
    return name


def _remove(root: Directory, digest: str) -> None:
    trash = _fresh(root)
    try:
        with root.inside(trash) as bin_, suppress(FileNotFoundError):
            root.rename(digest, bin_, digest)
    finally:
        root.delete(trash)


def _sweep(root: Directory) -> None:
    for name in root.names():
        with suppress(OSError):
            if name.startswith(_TEMPORARY) and time.time() - root.status(name).st_mtime > _STALE_SECONDS:
                root.delete(name)


def _flock(handle: int) -> bool:
    assert fcntl is not None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_same(status: os.stat_result, root: Directory, name: str) -> bool:
    """Return whether a name is still that of an open file."""
    try:
        return os.path.samestat(status, root.status(name))
    except FileNotFoundError:
        return False


def parse(digest: str, data: bytes) -> dict[str, Any]:
    """Return the contents of the meta file of an entry; raise Corrupt if they are not those of its digest."""
    try:
        meta = json.loads(data)
    except (ValueError, RecursionError):
        raise Corrupt(f"{META} of {digest} is not readable") from None
    if not isinstance(meta, dict) or meta.get("digest") != digest or "sha256" not in meta:  # pyright: ignore[reportUnknownMemberType]
        raise Corrupt(f"{META} of {digest} describes something else")
    return meta  # pyright: ignore[reportUnknownVariableType]


def _size(entry: Directory) -> int:
    total = 0
    with suppress(OSError):
        for name in entry.names():
            total += entry.status(name).st_size
    return total
