"""Export the kernels of a cache to one file, and import it on another machine, which needs no compiler.

An archive is a gzipped tar file with the three files of each entry. Reading one gives its machine code to this user's
processes, so the file is checked as the cache directory is: it must belong to the user and be writable by nobody else.
Its members are read into memory one by one, checked against the digests that they state, and stored as a compiled
kernel would be; nothing is unpacked by name.
"""

from __future__ import annotations

import io
import os
import re
import stat
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from ..errors import ParameterError
from .cache import Cache
from .directory import check_own
from .store import BINARY, META, SOURCE, Corrupt, parse, sha256

_FILES = (META, SOURCE, BINARY)
_MEMBER = re.compile(r"([0-9a-f]{64})/(" + "|".join(map(re.escape, _FILES)) + ")")
_LARGEST = 256 << 20
"""Bytes of one file of an entry. The largest kernels take a few hundred kilobytes."""


def export(cache: Cache, path: Path) -> int:
    """Write all intact entries of a cache to a file that only the user may write, and return their number.

    Raises
    ------
    ParameterError
        If the file cannot be written.
    """
    try:
        with open(path, "wb", opener=lambda name, flags: os.open(name, flags, 0o644)) as file:
            if os.name == "posix":
                os.fchmod(file.fileno(), 0o644)
            return _export(cache, file)
    except OSError as error:
        raise ParameterError(f"{path} is not written: {error.strerror or error}") from None


def _export(cache: Cache, file: BinaryIO) -> int:
    """Write all intact entries to an open file."""
    count = 0
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for entry in cache.entries():
            try:
                files = cache.files(entry.digest)
            except (OSError, Corrupt):
                continue
            for name in _FILES:
                member = tarfile.TarInfo(f"{entry.digest}/{name}")
                member.size, member.mtime, member.mode = len(files[name]), int(time.time()), 0o600
                archive.addfile(member, io.BytesIO(files[name]))
            count += 1
    return count


def import_(cache: Cache, path: Path) -> tuple[int, int]:
    """Store the entries of a file in a cache; entries that the cache already has are not replaced.

    Returns
    -------
    tuple of int
        Entries added, and entries that the cache already had.

    Raises
    ------
    ParameterError
        If the file does not exist, is a link or not a regular file, belongs to another user, is writable for others,
        or is not an archive of whole entries. Entries before a damaged one have been added by then.
    """
    before = {entry.digest for entry in cache.entries()}
    added = present = 0
    try:
        flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        with os.fdopen(os.open(path, flags), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise PermissionError(f"{path} is not a regular file")
            check_own(status, path)
            with tarfile.open(fileobj=file, mode="r:gz") as archive:
                for digest, files in _entries(archive):
                    present += digest in before
                    added += digest not in before
                    if digest not in before:
                        _store(cache, digest, files)
    except OSError as error:
        raise ParameterError(f"{path} is not imported: {error.strerror or error}") from None
    except (tarfile.TarError, Corrupt, EOFError) as error:
        raise ParameterError(f"{path} is not an intact archive of kernels: {error}") from None
    return added, present


def _entries(archive: tarfile.TarFile) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Yield the digest and files of each entry; raise Corrupt for a member of any other name, kind or size."""
    files: dict[str, bytes] = {}
    digest = ""
    for member in archive:
        name = _MEMBER.fullmatch(member.name)
        if name is None or not member.isreg() or member.size > _LARGEST:
            raise Corrupt(f"{member.name!r} is not a file of a kernel")
        if name[1] != digest and files:
            raise Corrupt(f"{digest} lacks a file")
        digest = name[1]
        contents = archive.extractfile(member)
        files[name[2]] = contents.read() if contents is not None else b""
        if len(files) == len(_FILES):
            yield digest, files
            files = {}
    if files:
        raise Corrupt(f"{digest} lacks a file")


def _store(cache: Cache, digest: str, files: dict[str, bytes]) -> None:
    meta = parse(digest, files[META])
    if sha256(files[BINARY]) != meta["sha256"]:
        raise Corrupt(f"the binary of {digest} is not the one that its {META} describes")
    cache.adopt(digest, files[SOURCE].decode(errors="replace"), files[BINARY], meta)
