"""The site builds without warnings, needs no network, has no broken link, and its search finds messages, from disk, too."""

import html
import html.parser
import importlib.util
import json
import os
import re
import subprocess
import sys
import urllib.parse

import pytest

from helpers.browser import BROWSER, needs_browser
from helpers.pages import DOCS, ROOT

pytestmark = pytest.mark.slow
_NEEDS = ("mkdocs", "material", "mkdocstrings", "latex2mathml")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    missing = [name for name in _NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"the extra 'docs' is not installed: {', '.join(missing)}")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return folder


class _Page(html.parser.HTMLParser):
    """Where a page leads, what can be led to, and what it loads."""

    def __init__(self, path):
        super().__init__()
        self.links, self.names, self.loads = [], set(), []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.names |= {given[key] for key in ("id", "name") if given.get(key)}
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        if tag in ("script", "img", "iframe") and given.get("src"):
            self.loads.append(given["src"])
        if tag == "link" and given.get("rel") in ("stylesheet", "icon", "preconnect"):
            self.loads.append(given["href"])


def test_links_and_what_pages_load(site):
    pages = {path: _Page(path) for path in site.rglob("*.html")}
    assert len(pages) > 50
    broken = []
    for path, page in pages.items():
        broken += [f"{path.name} loads {at} from elsewhere" for at in page.loads if "//" in at]
        for link in page.links:
            parts = urllib.parse.urlsplit(link)
            if parts.scheme or path.name == "404.html":
                continue
            target = (path.parent / urllib.parse.unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            anchor = urllib.parse.unquote(parts.fragment)
            known = target.suffix != ".html" or (
                target in pages and (not anchor or anchor in pages[target].names)
            )
            if not target.exists() or not known:
                broken.append(f"{path.relative_to(site)} leads to {link}")
    assert not broken, "\n".join(broken[:40])
    fonts = [
        path
        for path in site.rglob("*.css")
        if re.search(r"url\(\s*[\"']?https?:", path.read_text(encoding="utf-8"))
    ]
    assert not fonts


def test_search_knows_every_message(site):
    sys.path.insert(0, str(ROOT / "website"))
    try:
        from errors import messages
    finally:
        sys.path.remove(str(ROOT / "website"))
    entries = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))["docs"]
    text = _words(" ".join(entry["text"] for entry in entries if entry["location"].startswith("errors.html")))
    found = messages()
    assert len(found) > 200
    assert not [message.what for message in found if _words(message.what) not in text]


def _words(text):
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", html.unescape(text)))


@needs_browser
def test_search_works_from_disk(site, tmp_path):
    address = (site / "index.html").as_uri() + "?q=running+intersection"
    flags = ("--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr")
    ask = (f"--user-data-dir={tmp_path}", "--virtual-time-budget=9000", "--dump-dom", address)
    done = subprocess.run([BROWSER, *flags, *ask], capture_output=True, text=True, timeout=120)
    assert re.search(r'md-search-result__meta">\s*\d+ matching', done.stdout)
    assert "errors.html" in done.stdout
    assert not [line for line in done.stderr.splitlines() if "CONSOLE" in line and "rror" in line]


def test_pages_of_the_gallery_belong_to_examples():
    pages = {path.stem for path in (DOCS / "gallery").glob("*.json")}
    examples = {path.stem for path in (ROOT / "examples").glob("*.py")}
    assert pages <= examples and len(pages) >= 16
    for path in (DOCS / "gallery").glob("*.png"):
        assert path.stat().st_size <= 60_000
