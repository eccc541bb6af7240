"""Put the built documentation of a release beside those of other releases, in a folder that a web server serves.

``python scripts/publish_docs.py FOLDER [--site docs/_build/html] [--version 1.2.0]`` copies the site to
``FOLDER/1.2.0``, adds the version to ``FOLDER/versions.json``, which the list of versions on every page reads, and lets
``FOLDER/index.html`` and ``FOLDER/stable/`` lead to the newest release. A version that is there already is replaced;
others are left as they are. Versions such as 1.3.0.dev0 and 1.3.0rc1 are listed and are not led to while there is a
release.
"""
# ruff: noqa: T201

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from pathlib import Path

from packaging.version import InvalidVersion, Version

ROOT = Path(__file__).resolve().parents[1]
LEAD = '<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url={0}"><a href="{0}">{0}</a>\n'


def published(folder: Path) -> list[str]:
    """Return the versions in a folder, newest first."""
    found = [path.name for path in folder.iterdir() if (path / "index.html").is_file() and _is_version(path.name)]
    return sorted(found, key=Version, reverse=True)


def _is_version(name: str) -> bool:
    try:
        Version(name)
    except InvalidVersion:
        return False
    return True


def publish(site: Path, folder: Path, version: str) -> list[str]:
    """Copy a site to the folder of its version; returns all versions, newest first."""
    if not _is_version(version):
        raise ValueError(f"{version!r} is not a version; pass one such as 1.2.0")
    if not (site / "index.html").is_file():
        raise FileNotFoundError(f"{site} has no index.html: run make docs first")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".new-") as parent:
        fresh, old, target = Path(parent) / "site", Path(parent) / "old", folder / version
        shutil.copytree(site, fresh, ignore=shutil.ignore_patterns(".doctrees", ".buildinfo"))
        if target.exists():
            target.rename(old)
        fresh.rename(target)
    versions = published(folder)
    newest = next((name for name in versions if not Version(name).is_prerelease), versions[0])
    (folder / "stable").mkdir(exist_ok=True)
    for page, lead in (("index.html", f"{newest}/index.html"), ("stable/index.html", f"../{newest}/index.html")):
        (folder / page).write_text(LEAD.format(lead), encoding="utf-8")
    (folder / "versions.json").write_text(json.dumps(versions) + "\n", encoding="utf-8")
    return versions


def main(arguments: list[str] | None = None) -> int:
    """Publish what the command line names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--site", type=Path, default=ROOT / "docs" / "_build" / "html")
    parser.add_argument("--version", help="by default that of the source")
    given = parser.parse_args(arguments)
    version = given.version
    if version is None:
        source: dict[str, str] = {}
        exec((ROOT / "src" / "kernmantle" / "_version.py").read_text(encoding="utf-8"), source)  # noqa: S102
        version = source["__version__"]
    print("versions:", ", ".join(publish(given.site, given.folder, version)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
