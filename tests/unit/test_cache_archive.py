"""Kernels carried to another machine as one file: all arrive, and nothing that others may have planted is taken."""

import io
import json
import os
import re
import tarfile

import pytest

from kernmantle.cli import main
from kernmantle.errors import ParameterError
from kernmantle.runtime import archive
from kernmantle.runtime.cache import Built, Cache, Key
from kernmantle.runtime.store import BINARY, META, SOURCE

KEYS = [Key("cpu:avx2", "compiler 1", source, name=f"gram {source}") for source in ("one", "two")]


@pytest.fixture
def exported(tmp_path):
    cache = Cache(tmp_path / "from")
    for number, key in enumerate(KEYS):
        cache.fetch(key, lambda number=number: Built(bytes([number]) * 300, {"registers": number}))
    path = tmp_path / "kernels.tar.gz"
    assert archive.export(cache, path) == 2
    return path


def packed(path, members):
    """Write an archive of names and contents, or of whole members."""
    with tarfile.open(path, "w:gz") as file:
        for name, contents in members:
            member = name if isinstance(name, tarfile.TarInfo) else tarfile.TarInfo(name)
            member.size = len(contents)
            file.addfile(member, io.BytesIO(contents))
    path.chmod(0o600)


def unpacked(path):
    with tarfile.open(path) as file:
        return [(member.name, file.extractfile(member).read()) for member in file]


def never():
    pytest.fail("compiled")


def test_kernels_arrive_whole(exported, tmp_path):
    cache = Cache(tmp_path / "to")
    assert archive.import_(cache, exported) == (2, 0)
    for number, key in enumerate(KEYS):
        found = cache.fetch_built(key, never)
        assert (found.binary, found.info) == (bytes([number]) * 300, {"registers": number})
    assert [entry.name for entry in sorted(cache.entries(), key=lambda entry: entry.name)] == ["gram one", "gram two"]
    assert archive.import_(cache, exported) == (0, 2)


def test_what_is_there_stays(exported, tmp_path):
    cache = Cache(tmp_path / "to")
    cache.fetch(KEYS[0], lambda: Built(b"mine"))
    assert archive.import_(cache, exported) == (1, 1)
    assert Cache(tmp_path / "to").fetch(KEYS[0], never) == b"mine"


def test_damaged_kernels_are_not_exported(exported, tmp_path):
    binary = next((tmp_path / "from").rglob(BINARY))
    binary.write_bytes(b"other")
    assert archive.export(Cache(tmp_path / "from"), exported) == 1


def test_a_changed_binary_is_refused(exported, tmp_path):
    members = [(name, contents + b"x" * name.endswith(BINARY)) for name, contents in unpacked(exported)]
    packed(tmp_path / "bad", members)
    with pytest.raises(ParameterError, match="not the one that its"):
        archive.import_(Cache(tmp_path / "to"), tmp_path / "bad")
    assert Cache(tmp_path / "to").entries() == []


def test_members_of_other_names_or_kinds_are_refused(exported, tmp_path):
    digest = unpacked(exported)[0][0].partition("/")[0]
    link = tarfile.TarInfo(f"{digest}/{BINARY}")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    for member in ("../evil", "/evil", f"{digest}/evil", f"{digest}/../{BINARY}", link):
        packed(tmp_path / "bad", [(member, b"")])
        with pytest.raises(ParameterError, match="not a file of a kernel"):
            archive.import_(Cache(tmp_path / "to"), tmp_path / "bad")
    meta = json.dumps({"digest": "0" * 64, "sha256": ""}).encode()
    packed(tmp_path / "bad", [(f"{digest}/{META}", meta), (f"{digest}/{SOURCE}", b""), (f"{digest}/{BINARY}", b"")])
    with pytest.raises(ParameterError, match="describes something else"):
        archive.import_(Cache(tmp_path / "to"), tmp_path / "bad")
    packed(tmp_path / "bad", unpacked(exported)[:2])
    with pytest.raises(ParameterError, match="lacks a file"):
        archive.import_(Cache(tmp_path / "to"), tmp_path / "bad")
    assert not list(tmp_path.rglob("evil"))


def test_files_that_are_no_archives_are_refused(tmp_path):
    cache = Cache(tmp_path / "to")
    for contents in (b"", b"not a tar file", b"\x1f\x8b broken"):
        path = tmp_path / "bad"
        path.write_bytes(contents)
        path.chmod(0o600)
        with pytest.raises(ParameterError, match="bad"):
            archive.import_(cache, path)
    with pytest.raises(ParameterError, match="absent"):
        archive.import_(cache, tmp_path / "absent")


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    for path in (tmp_path / "absent" / "kernels.tar.gz", tmp_path):
        with pytest.raises(ParameterError, match=f"{re.escape(str(path))} is not written: [A-Z]"):
            archive.export(Cache(tmp_path / "from"), path)


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
def test_files_that_others_may_have_written_are_refused(exported, tmp_path, monkeypatch):
    cache = Cache(tmp_path / "to")
    assert exported.stat().st_mode & 0o022 == 0
    exported.chmod(0o666)
    with pytest.raises(ParameterError, match="others may write"):
        archive.import_(cache, exported)
    exported.chmod(0o600)
    (tmp_path / "link").symlink_to(exported)
    with pytest.raises(ParameterError, match="link"):
        archive.import_(cache, tmp_path / "link")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ParameterError, match="regular"):
        archive.import_(cache, tmp_path / "pipe")
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(ParameterError, match="another user"):
        archive.import_(cache, exported)


def test_by_command(exported, tmp_path, capsys):
    at = ["cache", "--directory", str(tmp_path / "to")]
    assert main([*at, "import", str(exported)]) == 0
    assert "added 2 kernels" in capsys.readouterr().out
    assert main([*at, "export", str(tmp_path / "again")]) == 0
    assert "wrote 2 kernels" in capsys.readouterr().out
    assert main([*at, "import", str(tmp_path / "absent")]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1
