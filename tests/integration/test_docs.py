"""The documentation is built from clean, every example of the gallery run, and no link or image in it is broken."""

import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from functools import partial
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import kernmantle
from kernmantle.pairwise import CONSTRUCTORS

from ..source import PACKAGE, ROOT

NEEDED = ("sphinx", "myst_parser", "furo", "sphinx_copybutton", "sphinx_gallery", "matplotlib", "sklearn")
HIDDEN = {"and", "or", "not"}  # words of Python: reached by getattr alone
GALLERY = sorted((ROOT / "examples" / "gallery").glob("plot_*.py"))


class Page(HTMLParser):
    """What a page refers to, and the places in it that can be referred to."""

    def __init__(self, text):
        super().__init__()
        self.links, self.places = [], set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.places.update(value for name in ("id", "name") if (value := given.get(name)))
        self.links += [value for name in ("href", "src") if (value := given.get(name))]


def broken(site):
    """References inside a site to what is not there, as page and reference."""
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            place = unquote(parts.fragment)
            if not target.is_file() or (place and target in pages and place not in pages[target].places):
                found.append((path.name, link))
    return found


def searched(site, word, browser, profile):
    """Pages that the site's own search finds, in a browser without a window."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *arguments):
            pass

    flags = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
    flags += " --disable-component-update --disable-sync --virtual-time-budget=8000 --dump-dom"
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/search.html?q={word}"
        command = [browser, *flags.split(), f"--user-data-dir={profile}", address]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
        server.shutdown()
    return re.findall(r'<li class="kind-\w+"><a href="([^"#]+)', done.stdout)


def check_reference(site):
    """Every public name has a page, or an entry on the page of functions."""
    names = {path.stem.removeprefix("kernmantle.") for path in (site / "api").glob("*.html")}
    functions = Page((site / "api" / "functions.html").read_text(encoding="utf-8")).places
    public = set(kernmantle.__all__) - {"__version__"}
    missing = {name for name in public - names if f"kernmantle.{name}" not in functions and name not in HIDDEN}
    assert not missing, "add them to docs/reference.md"
    assert set(CONSTRUCTORS) <= names
    if find_spec("gpytorch"):
        assert {"integrations.gpytorch.FusedKernel", "integrations.gpytorch.MaternKernel"} <= names


def check_search(index):
    """The page of a function is found by its name, before records of decisions."""
    assert "cdist" in index["alltitles"]
    found = index["terms"]["cdist"]
    pages = {index["docnames"][page] for page in ([found] if isinstance(found, int) else found)}
    assert "distances" in pages
    assert not [page for page in pages if page.startswith("decisions/")]


@pytest.mark.slow
def test_the_site_is_built_without_warnings_or_broken_links(tmp_path):
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        pytest.skip(f"the documentation needs {', '.join(missing)}: the extra docs")
    shutil.copytree(ROOT / "docs", tmp_path / "docs", ignore=shutil.ignore_patterns("_build", "gallery", "api"))
    for folder in ("examples/gallery", "benchmarks", "changelog.d"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "CHANGELOG.md"):
        shutil.copy(ROOT / file, tmp_path)
    path = os.pathsep.join([str(PACKAGE.parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    environment.pop("KERNMANTLE_INTERSPHINX", None)  # no build may need the network
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", "docs", "site"]
    done = subprocess.run(
        command, check=False, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-5000:]
    site = tmp_path / "site"
    assert broken(site) == []
    assert "<svg" in (site / "performance.html").read_text(encoding="utf-8")
    for path in GALLERY:
        page = Page((site / "gallery" / f"{path.stem}.html").read_text(encoding="utf-8"))
        assert any(f"sphx_glr_{path.stem}_001" in link for link in page.links), path.stem
    index = (site / "searchindex.js").read_text(encoding="utf-8")
    assert all(word in index for word in ("semiring", "cdist", "viterbi", "maze"))
    check_reference(site)
    check_search(json.loads(index.removeprefix("Search.setIndex(").removesuffix(")")))
    changes = (site / "changelog.html").read_text(encoding="utf-8")
    assert all(word in changes for word in ("Added", "Changed", "Fixed", kernmantle.__version__))
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser:
        found = searched(site, "viterbi", browser, tmp_path / "profile")
        assert {"semirings.html", "gallery/plot_viterbi.html"} <= set(found)
        assert searched(site, "cdist", browser, tmp_path / "profile")[0] == "api/kernmantle.cdist.html"
        check = [sys.executable, str(ROOT / "scripts" / "browser_check.py"), str(site)]
        wide = subprocess.run(check, check=False, capture_output=True, text=True, timeout=600)
        assert wide.returncode == 0, wide.stdout + wide.stderr


def test_a_broken_link_is_found(tmp_path):
    (tmp_path / "a.html").write_text(
        '<p id="here"><a href="b.html#there">b</a><a href="#here">a</a><img src="no.png"><a href="b.html#none">b</a>'
        '<a href="https://example.org/">far</a></p>'
    )
    Path(tmp_path / "b.html").write_text('<p id="there"></p>')
    assert broken(tmp_path) == [("a.html", "no.png"), ("a.html", "b.html#none")]


def test_the_gallery_has_what_it_should():
    names = {path.stem.removeprefix("plot_") for path in GALLERY}
    assert {
        "fractional_neighbours", "shortest_paths", "viterbi", "ridge_digits", "feature_learning", "grid_gp", "monarch",
        "spectrum", "gibbs_kernel",
    } <= names  # fmt: skip
    assert all("\nassert " in path.read_text() or "\n    assert " in path.read_text() for path in GALLERY)
