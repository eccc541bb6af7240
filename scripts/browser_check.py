"""Pages of the built documentation in a real browser: nothing is wider than the window, at four widths.

``python scripts/browser_check.py docs/_build/html`` needs chromium. Wide tables scroll in boxes of their own; what
makes the whole page scroll sideways is reported with its tag, class and right edge.
"""
# ruff: noqa: T201

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from html import unescape
from pathlib import Path

WIDTHS = (390, 1024, 1366, 1440)
PAGES = (
    "*.html",
    "gallery/index.html",
    "api/functions.html",
    "api/kernmantle.cdist.html",
    "api/kernmantle.Gaussian.html",
)
TOGETHER = 8
"""Pages that one browser shows at a time."""
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
SCRIPT = """
<script>
function scrolls(e) {
  for (let p = e.parentElement; p && p !== document.body; p = p.parentElement) {
    const o = getComputedStyle(p).overflowX;
    if (o === "auto" || o === "scroll" || o === "hidden" || getComputedStyle(p).position === "fixed") return true;
  }
  return false;
}
function measure(width) {
  const frame = document.getElementById("page"), doc = frame.contentDocument, wide = [];
  for (const e of doc.body.querySelectorAll("*")) {
    const r = e.getBoundingClientRect();
    if (r.right > width + 1 && r.width > 0 && r.left < width && !(e.closest(".sidebar-drawer, .toc-drawer"))) {
      let inside = false;
      for (let p = e.parentElement; p && p !== doc.body; p = p.parentElement) {
        const s = doc.defaultView.getComputedStyle(p);
        if (["auto", "scroll", "hidden"].includes(s.overflowX)) { inside = true; break; }
      }
      if (!inside) wide.push([e.tagName.toLowerCase(), String(e.className).slice(0, 40), Math.round(r.right)]);
    }
  }
  return {scroll: doc.documentElement.scrollWidth, wide: wide.slice(0, 3)};
}
</script>
"""


def browser() -> str | None:
    """Return the path of a browser, None without one."""
    return next((path for name in BROWSERS if (path := shutil.which(name))), None)


def shown(address: str, program: str | None = None) -> str:
    """Return the text of a page after its scripts have run."""
    with tempfile.TemporaryDirectory() as profile:
        command = [
            program or browser() or BROWSERS[0], "--headless", "--no-sandbox", "--disable-gpu",
            "--allow-file-access-from-files", "--disable-web-security", f"--user-data-dir={profile}",
            "--virtual-time-budget=20000", "--dump-dom", address,
        ]  # fmt: skip
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout


def measure(site: Path, pages: Sequence[str], program: str) -> list[dict[str, dict[str, object]]]:
    """Return of every page by width how wide it scrolls and what sticks out."""
    frames = "".join(
        f'<iframe id="{at}-{width}" width="{width}" height="900" src="{(site / page).resolve().as_uri()}"></iframe>'
        for at, page in enumerate(pages)
        for width in WIDTHS
    )
    run = """<script>window.onload = () => setTimeout(() => { const found = {};
      for (const f of document.querySelectorAll("iframe")) { const own = f.id; f.id = "page";
        found[own] = measure(+own.split("-")[1]); f.id = own; }
      document.title = "done"; document.body.innerHTML = "<pre id=found>" + JSON.stringify(found)
        .replace(/&/g, "&amp;").replace(/</g, "&lt;") + "</pre>"; }, 1500)</script>"""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "frames.html"
        file.write_text(
            f"<!doctype html><html><head>{SCRIPT}</head><body>{frames}{run}</body></html>", encoding="utf-8"
        )
        text = shown(file.as_uri(), program)
    found = re.search(r'<pre id="found">(.*?)</pre>', text, re.DOTALL)
    if found is None:
        raise RuntimeError(f"the browser did not measure {', '.join(pages)}")
    every = json.loads(unescape(found[1]))
    return [{str(width): every[f"{at}-{width}"] for width in WIDTHS} for at in range(len(pages))]


def faults(site: Path, patterns: Sequence[str] = PAGES) -> list[str]:
    """Return a line for every page and width that scrolls sideways; pages that are absent are left out."""
    program = browser()
    if program is None:
        raise FileNotFoundError(f"none of {', '.join(BROWSERS)} is installed")
    pages = [str(path.relative_to(site)) for pattern in patterns for path in sorted(site.glob(pattern))]
    lines: list[str] = []
    for start in range(0, len(pages), TOGETHER):
        some = pages[start : start + TOGETHER]
        for page, found in zip(some, measure(site, some, program), strict=True):
            lines += [
                f"{page} at {width}: {one['scroll']} wide, {one['wide']}"
                for width, one in found.items()
                if int(str(one["scroll"])) > int(width) + 1
            ]
    return lines


if __name__ == "__main__":
    wrong = faults(Path(sys.argv[1]), sys.argv[2:] or PAGES)
    print("\n".join(wrong) or "no page is wider than its window")
    raise SystemExit(bool(wrong))
