"""Directories by descriptor: entries of a directory are opened, moved and deleted without following links.

A name is looked up in the directory that was opened and checked, even if its path leads elsewhere by now. On systems
without such calls (Windows), paths are used instead.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

_BY_DESCRIPTOR = {os.open, os.mkdir, os.rename, os.stat, os.unlink, os.rmdir} <= os.supports_dir_fd
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_LIST = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0)
_READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)  # a pipe must not hold the reader up
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class Directory:
    """One directory that was opened; names in it are plain names, never paths."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path, self.descriptor = path, descriptor

    def close(self) -> None:
        """Release the descriptor."""
        if self.descriptor >= 0:
            os.close(self.descriptor)

    def _at(self, name: str) -> tuple[str, dict[str, Any]]:
        return (name, {"dir_fd": self.descriptor}) if _BY_DESCRIPTOR else (str(self.path / name), {})

    def names(self) -> list[str]:
        """Return the names in it."""
        return os.listdir(self.descriptor if _BY_DESCRIPTOR else self.path)  # noqa: PTH208

    def status(self, name: str) -> os.stat_result:
        """Return the status of an entry; of a link, that of the link itself."""
        path, options = self._at(name)
        return os.stat(path, follow_symlinks=False, **options)  # noqa: PTH116

    @contextmanager
    def inside(self, name: str) -> Generator[Directory]:
        """Open a subdirectory that belongs to the user and that nobody else may write to; refuse a link."""
        path, options = self._at(name)
        where = self.path / name
        if stat.S_ISLNK(self.status(name).st_mode):
            raise PermissionError(f"{where} is a link, which another user may have planted")
        descriptor = os.open(path, _LIST | _NO_FOLLOW, **options) if _BY_DESCRIPTOR else -1
        found = Directory(where, descriptor)
        try:
            check_own(os.fstat(descriptor) if _BY_DESCRIPTOR else where.stat(), where)
            yield found
        finally:
            found.close()

    def make(self, name: str) -> None:
        """Make a subdirectory for the user alone."""
        path, options = self._at(name)
        os.mkdir(path, 0o700, **options)  # noqa: PTH102

    def read(self, name: str) -> bytes:
        """Return the bytes of a regular file that belongs to the user and has no second name."""
        path, options = self._at(name)
        where = self.path / name
        if not stat.S_ISREG(self.status(name).st_mode):
            raise PermissionError(f"{where} is not a regular file")
        with os.fdopen(os.open(path, _READ | _NO_FOLLOW, **options), "rb") as stream:
            status = os.fstat(stream.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise PermissionError(f"{where} is not a regular file")
            if status.st_nlink > 1:
                raise PermissionError(f"{where} is a hard link, which another user may have planted")
            check_owner(status, where)
            return stream.read()

    def create(self, name: str) -> int:
        """Return the descriptor of a new file to write to."""
        path, options = self._at(name)
        return os.open(path, _CREATE | _NO_FOLLOW, 0o600, **options)

    def write(self, name: str, data: bytes) -> None:
        """Write a new file and wait until it is on disk."""
        with os.fdopen(self.create(name), "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())

    def rename(self, name: str, into: Directory, new: str) -> None:
        """Move an entry into a directory, under a name."""
        if _BY_DESCRIPTOR:
            os.rename(name, new, src_dir_fd=self.descriptor, dst_dir_fd=into.descriptor)
        else:
            (self.path / name).rename(into.path / new)

    def touch(self, name: str) -> None:
        """Set the time of a file to now."""
        path, options = self._at(name)
        os.utime(path, **options)

    def sync(self) -> None:
        """Wait until its names are on disk."""
        if self.descriptor >= 0:
            os.fsync(self.descriptor)

    def delete(self, name: str) -> None:
        """Remove a file, a link (not its target) or a directory with its contents, as far as possible."""
        path, options = self._at(name)
        with suppress(OSError):
            if not stat.S_ISDIR(self.status(name).st_mode):
                os.unlink(path, **options)
                return
            with self.inside(name) as inner:
                for each in inner.names():
                    inner.delete(each)
            os.rmdir(path, **options)


def opened(path: Path) -> Directory:
    """Open the directory of a path that the user chose; links in the path are followed."""
    found = Directory(path, os.open(path, _LIST | getattr(os, "O_CLOEXEC", 0)) if _BY_DESCRIPTOR else -1)
    try:
        for each in (path.resolve(), *path.resolve().parents):
            mode = each.stat().st_mode
            if os.name == "posix" and mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
                raise PermissionError(f"everybody may replace what is in {each} (it has no sticky bit)")
        if not path.is_dir():
            raise NotADirectoryError(f"{path} is not a directory")
    except BaseException:
        found.close()
        raise
    return found


def check_owner(status: os.stat_result, where: Path) -> None:
    """Raise PermissionError if an entry belongs to another user."""
    if hasattr(os, "getuid") and status.st_uid != os.getuid():
        raise PermissionError(f"{where} belongs to another user")


def check_own(status: os.stat_result, where: Path) -> None:
    """Raise PermissionError if an entry belongs to another user, or others may write to it."""
    check_owner(status, where)
    if os.name == "posix" and status.st_mode & _OTHERS:
        raise PermissionError(f"others may write to {where}")
