"""Documentation of several releases in one folder: the list of versions, where links lead, the list in a browser."""

import http.server
import json
import sys
import threading
from functools import partial
from pathlib import Path

import pytest

from kernmantle import __version__

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

import browser_check
import publish_docs

ROOT = Path(__file__).parents[2]


def site(folder, text, *pages):
    for page in ("index.html", *pages):
        path = folder / page
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / ".doctrees").mkdir()
    return folder


def test_releases_are_published_beside_each_other(tmp_path):
    web = tmp_path / "web"
    for version in ("0.9.0", "0.10.0", "1.0.0rc1"):
        made = site(tmp_path / version, f"of {version}", "api/a.html")
        assert publish_docs.main([str(web), "--site", str(made), "--version", version]) == 0
    (web / "notes").mkdir()
    assert json.loads((web / "versions.json").read_text()) == ["1.0.0rc1", "0.10.0", "0.9.0"]
    assert (web / "0.9.0/api/a.html").read_text() == "of 0.9.0"
    assert not (web / "0.9.0/.doctrees").exists()
    assert "url=0.10.0/index.html" in (web / "index.html").read_text()
    assert "url=../0.10.0/index.html" in (web / "stable/index.html").read_text()
    again = site(tmp_path / "again", "of 0.10.0, again")
    assert publish_docs.publish(again, web, "0.10.0") == ["1.0.0rc1", "0.10.0", "0.9.0"]
    assert (web / "0.10.0/index.html").read_text() == "of 0.10.0, again"
    assert not (web / "0.10.0/api").exists()
    assert sorted(path.name for path in web.iterdir()) == [
        "0.10.0", "0.9.0", "1.0.0rc1", "index.html", "notes", "stable", "versions.json",
    ]  # fmt: skip


def test_the_version_is_that_of_the_source(tmp_path, capsys):
    made = site(tmp_path / "site", "x")
    publish_docs.main([str(tmp_path / "web"), "--site", str(made)])
    assert capsys.readouterr().out == f"versions: {__version__}\n"
    with pytest.raises(FileNotFoundError, match="run make docs first"):
        publish_docs.publish(tmp_path, tmp_path / "web", "1.0")
    with pytest.raises(ValueError, match="is not a version"):
        publish_docs.publish(made, tmp_path / "web", "latest")
    assert json.loads((tmp_path / "web/versions.json").read_text()) == [__version__]


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


PAGE = """<!doctype html><html><body>
<select id="versions" data-root="{root}" data-page="{page}" data-current="{current}" disabled>
<option selected>{current}</option></select><p id="outdated" hidden>newer: <a href="#"></a></p>
<script>{script}</script></body></html>"""


@pytest.mark.skipif(browser_check.browser() is None, reason="no chromium is installed")
def test_the_list_of_versions_in_a_browser(tmp_path):
    script = (ROOT / "docs/_static/versions.js").read_text()
    web = tmp_path / "web"
    for version in ("0.1.0", "0.2.0"):
        made = site(tmp_path / version, "", "api/a.html")
        for page, root in (("index.html", "./"), ("api/a.html", "../")):
            (made / page).write_text(PAGE.format(root=root, page=page, current=version, script=script))
        publish_docs.publish(made, web, version)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(web)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        address = f"http://127.0.0.1:{server.server_port}"
        old, new = (browser_check.shown(f"{address}/{version}/api/a.html") for version in ("0.1.0", "0.2.0"))
    finally:
        server.shutdown()
    for text in (old, new):
        assert text.index('value="0.2.0"') < text.index('value="0.1.0"')
        assert "disabled" not in text.split("</select>")[0].split("<select")[1].split(">")[0]
    assert f'href="{address}/0.2.0/index.html">0.2.0</a>' in old
    assert '<p id="outdated" hidden' not in old
    assert '<p id="outdated" hidden' in new
    alone = tmp_path / "alone.html"
    alone.write_text(PAGE.format(root="", page="alone.html", current="0.1.0", script=script))
    assert "disabled" in browser_check.shown(alone.as_uri())
