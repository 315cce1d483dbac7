"""Pages of the gallery: for each example its text, picture, times, what explain says, and its program."""

from __future__ import annotations

import ast
import json
import pathlib
import re

ROOT = pathlib.Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
GALLERY = ROOT / "docs" / "gallery"


def gallery_pages() -> dict[str, str]:
    """Text of a page for each example that `make gallery` has run, by its place in the site."""
    found = {
        path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(GALLERY.glob("*.json"))
    }
    return {f"gallery/{name}.md": _page(name, figures) for name, figures in found.items()}


def gallery_wall() -> str:
    """All pictures in small, each a link to its page."""
    pictures = (path for path in sorted(GALLERY.glob("*.*")) if path.suffix in (".png", ".gif"))
    cells = [
        f'<a href="gallery/{path.stem}.html"><img src="gallery/{path.name}" alt="{path.stem}" width="240" loading="lazy"></a>'
        for path in pictures
    ]
    return "\n".join(["<p>", *cells, "</p>"])


def _page(name, figures):
    source = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    text = ast.get_docstring(ast.parse(source))
    title, _, rest = text.partition("\n")
    title, _, more = title.partition(". ")
    parts = [
        f"---\ntitle: {name.replace('_', ' ').capitalize()}\n---",
        f"# {title.rstrip('.')}",
        more,
        *_prose(rest),
    ]
    pictures = (path for path in sorted(GALLERY.glob(f"{name}.*")) if path.suffix != ".json")
    parts += [f"![{title}]({picture.name})" for picture in pictures]
    parts += ["## Times", *_times(figures)]
    for heading, key in (("What explain says", "explain"), ("What it prints", "output")):
        if key in figures:
            parts += [f"## {heading}", "```text\n" + figures[key].rstrip() + "\n```"]
    web = f"https://github.com/gnewt/gnewt/blob/main/examples/{name}.py"
    parts += ["## Program", f"[`examples/{name}.py`]({web})", "```python\n" + source.rstrip() + "\n```"]
    return "\n\n".join(part for part in parts if part) + "\n"


def _prose(text):
    """Paragraphs; the line that says how to run the example becomes code."""
    for paragraph in text.strip().split("\n\n"):
        before, run, command = " ".join(paragraph.split()).partition("Run: ")
        yield before
        if run:
            yield f"```sh\n{command}\n```"


def _times(figures):
    rows = ["| | gnewt | peer | |", "|---|---|---|---|"]
    for row in figures.get("times", []):
        faster = row["peer_ms"] / row["gnewt_ms"]
        told = f"{faster:.3g} × faster" if faster >= 1 else f"{1 / faster:.3g} × slower"
        mark = "" if row.get("peer_ended", True) else " (stopped there, unsolved)"
        ours, theirs = (_reached(row[key]) for key in ("what", "peer"))
        if None not in (ours, theirs) and abs(ours - theirs) > 1e-2 * (1e-3 + abs(ours)):
            told = "not comparable: another point"
        rows.append(
            f"| {row['what']} | {_ms(row['gnewt_ms'])} | {row['peer']}: {_ms(row['peer_ms'])}{mark} | {told} |"
        )
    if len(rows) > 2:
        yield "\n".join(rows)
        yield f"Compilation apart, one thread, the least of several calls: {figures['machine']}."
    if "seconds" in figures:
        yield f"The whole script takes {figures['seconds']:.1f} s of processor time, imports and compiling included."


def _reached(text):
    """The value that a run ended at."""
    found = re.search(r", to (\S+)$", text)
    return float(found[1]) if found else None


def _ms(value):
    return (
        f"{value / 1000:.3g} s"
        if value >= 1000
        else f"{value:.3g} ms"
        if value >= 0.1
        else f"{value * 1000:.3g} µs"
    )
