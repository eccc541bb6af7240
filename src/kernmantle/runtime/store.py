"""The disk layer of the kernel cache: one directory per entry, whole or absent.

An entry is written under a temporary name, synced and renamed, so a reader never sees half of one. What is read
is checked against the digests in its ``meta.json``. Entries live in a directory of the user's own inside the
cache directory, so several users may share one without running each other's machine code.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BINARY, SOURCE, META = "binary", "source", "meta.json"
_TEMPORARY = "tmp-"
_STALE_SECONDS = 3600.0
_ATTEMPTS = 8
_OCCUPIED = {errno.EEXIST, errno.ENOTEMPTY, errno.EACCES} if os.name == "nt" else {errno.EEXIST, errno.ENOTEMPTY}


class Corrupt(Exception):
    """An entry that is there but is not what was written."""


@dataclass(frozen=True)
class Entry:
    """What is known of one kept kernel; ``used`` is when it was last read, in seconds since the epoch."""

    digest: str
    name: str
    target: str
    compiler: str
    size: int
    used: float
    path: Path


def sha256(data: bytes) -> str:
    """Hexadecimal digest."""
    return hashlib.sha256(data).hexdigest()


class Store:
    """Entries of one schema and one user under a cache directory; every failure is an OSError or Corrupt."""

    def __init__(self, directory: Path, schema: int) -> None:
        owner = str(os.getuid()) if hasattr(os, "getuid") else "local"
        self.root = directory / f"kernels-{schema}-{owner}"

    def read(self, digest: str) -> tuple[bytes, dict[str, Any]] | None:
        """Binary and meta of an entry, None where there is none."""
        path = self.root / digest
        for attempt in (0, 1):
            try:
                self._check_owner()
                meta = _parse(digest, (path / META).read_bytes())
                binary = (path / BINARY).read_bytes()
                if sha256(binary) != meta["sha256"]:
                    raise Corrupt(f"{path} does not hold what its {META} says")
            except FileNotFoundError as error:
                if not path.is_dir():
                    return None
                # Another process may be swapping this very entry: look again before calling it broken.
                if attempt:
                    raise Corrupt(f"{path} lacks {Path(error.filename).name}") from None
            except Corrupt:
                if attempt:
                    raise
            else:
                with suppress(OSError):
                    os.utime(path / META)
                return binary, meta
        return None

    def write(self, digest: str, name: str, source: str, binary: bytes, meta: Mapping[str, Any]) -> None:
        """Add an entry, or replace it; when another process was first, its entry stays."""
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._check_owner()
        document = {**meta, "digest": digest, "name": name, "sha256": sha256(binary), "created": time.time()}
        files = {SOURCE: source.encode(), BINARY: binary, META: json.dumps(document, indent=1).encode()}
        temporary = Path(tempfile.mkdtemp(prefix=_TEMPORARY, dir=self.root))
        try:
            for file, data in files.items():
                with (temporary / file).open("wb") as stream:
                    stream.write(data)
                    stream.flush()
                    os.fsync(stream.fileno())
            self._install(temporary, digest)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def _install(self, temporary: Path, digest: str) -> None:
        final = self.root / digest
        for _ in range(_ATTEMPTS):
            try:
                temporary.rename(final)
            except OSError as error:
                if error.errno not in _OCCUPIED:
                    raise
            else:
                _sync(self.root)
                return
            if self._intact(digest):
                return
            self.remove(digest)
        raise FileExistsError(f"{final} cannot be replaced")

    def _intact(self, digest: str) -> bool:
        try:
            return self.read(digest) is not None
        except Corrupt:
            return False

    def remove(self, digest: str) -> None:
        """Take an entry away at once, under whatever state it is in."""
        trash = Path(tempfile.mkdtemp(prefix=_TEMPORARY, dir=self.root))
        with suppress(FileNotFoundError):
            (self.root / digest).rename(trash / digest)
        shutil.rmtree(trash, ignore_errors=True)

    def entries(self) -> Iterator[Entry]:
        """Every readable entry."""
        for path in self._directories():
            with suppress(OSError, Corrupt):
                if path.name.startswith(_TEMPORARY):
                    continue
                meta = _parse(path.name, (path / META).read_bytes())
                used = (path / META).stat().st_mtime
                name, target, compiler = (str(meta.get(field, "")) for field in ("name", "target", "compiler"))
                yield Entry(path.name, name, target, compiler, _size(path), used, path)

    def size(self) -> int:
        """Bytes taken, broken and half-written entries included."""
        return sum(map(_size, self._directories()))

    def sweep(self) -> None:
        """Remove what interrupted writers left behind; those still at work are let finish."""
        for path in self._directories():
            with suppress(OSError):
                if path.name.startswith(_TEMPORARY) and time.time() - path.stat().st_mtime > _STALE_SECONDS:
                    shutil.rmtree(path, ignore_errors=True)

    def clear(self) -> None:
        """Remove every entry of this store, and nothing else of the cache directory."""
        self.sweep()
        for path in self._directories():
            if not path.name.startswith(_TEMPORARY):
                self.remove(path.name)

    def _directories(self) -> list[Path]:
        try:
            return [path for path in self.root.iterdir() if path.is_dir()]
        except (FileNotFoundError, NotADirectoryError):
            return []

    def _check_owner(self) -> None:
        if hasattr(os, "getuid") and self.root.stat().st_uid != os.getuid():
            raise PermissionError(f"{self.root} belongs to another user")


def _parse(digest: str, data: bytes) -> dict[str, Any]:
    try:
        meta = json.loads(data)
    except ValueError:
        raise Corrupt(f"{META} of {digest} is not readable") from None
    if not isinstance(meta, dict) or meta.get("digest") != digest or "sha256" not in meta:  # pyright: ignore[reportUnknownMemberType]
        raise Corrupt(f"{META} of {digest} describes something else")
    return meta  # pyright: ignore[reportUnknownVariableType]


def _size(path: Path) -> int:
    total = 0
    with suppress(OSError):
        for file in path.iterdir():
            total += file.stat().st_size
    return total


def _sync(directory: Path) -> None:
    if os.name != "posix":
        return
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
