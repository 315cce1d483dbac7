"""Pages of the site that are made of files outside docs/: documents of the repository, results of benchmarks, the gallery."""

from __future__ import annotations

import pathlib
import posixpath
import re

from gallery_pages import gallery_pages

ROOT = pathlib.Path(__file__).parents[1]
WEB = "https://github.com/gnewt/gnewt/blob/main/"
_DOCUMENTS = ("ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
_RESULTS = ROOT / "benchmarks" / "results"
_TABLES = ("summary.md", *sorted(path.name for path in _RESULTS.glob("*.md") if path.name != "summary.md"))
BENCHMARKS = ("benchmarks/README.md", *(f"benchmarks/results/{name}" for name in _TABLES))
GALLERY = tuple(gallery_pages())


def extra_pages() -> dict[str, str]:
    """Text by the place in the site."""
    pages = {name: (ROOT / name).read_text(encoding="utf-8") for name in _DOCUMENTS[:3]}
    pages |= {at: (ROOT / at).read_text(encoding="utf-8") for at in BENCHMARKS}
    pages["decisions.md"] = _decisions(pages["ARCHITECTURE.md"])
    return pages | gallery_pages()


def extra_pictures() -> dict[str, pathlib.Path]:
    """Files by the place in the site."""
    return {f"benchmarks/results/{path.name}": path for path in _RESULTS.glob("*.png")}


def _decisions(architecture):
    """The chapter of the architecture as a page: one heading for each decision."""
    chapter = re.search(r"(?ms)^## Decisions\n(.*?)(?=^`website/`|\Z)", architecture)[1]
    chapter = re.sub(r"(?m)^- \*(.+?)\*(.*)$", lambda m: f"\n## {m[1]}\n\n{m[1]}{m[2]}", chapter)
    return "# Decisions\n" + re.sub(r"(?m)^  (?=\S)", "", chapter)


def resolve(target: str, at: str, files) -> str:
    """Where a link of a page leads.

    Args:
        target: as it is written, relative to the page's place in the repository.
        at: the page's place in the site.
        files: all files of the site.
    """
    inside = files.get_file_from_path(posixpath.normpath(posixpath.join(posixpath.dirname(at), target)))
    if inside is not None and not _is_of_repository(at):
        return target
    home = at if _is_of_repository(at) else f"docs/{at}"
    place = posixpath.normpath(posixpath.join(posixpath.dirname(home), target))
    place = _site_place(place)
    if files.get_file_from_path(place) is not None:
        return posixpath.relpath(place, posixpath.dirname(at) or ".")
    return WEB + place if (ROOT / place).exists() else target


def _is_of_repository(at):
    return at in _DOCUMENTS or at in BENCHMARKS or at == "decisions.md"


def _site_place(place):
    if place.startswith("docs/"):
        return place.removeprefix("docs/")
    if re.fullmatch(r"examples/\w+\.py", place):
        page = f"gallery/{pathlib.PurePath(place).stem}.md"
        return page if page in GALLERY else place
    return "index.md" if place == "README.md" else place
