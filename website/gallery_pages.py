"""Pages of the gallery: for each example its text, picture, times, what explain says, and its program."""

from __future__ import annotations

import ast
import json
import pathlib

ROOT = pathlib.Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
GALLERY = ROOT / "docs" / "gallery"


def gallery_pages() -> dict[str, str]:
    """Text of a page for each example that `make gallery` has run, by its place in the site."""
    figures = json.loads((GALLERY / "figures.json").read_text(encoding="utf-8"))
    names = sorted(path.stem for path in EXAMPLES.glob("*.py") if path.stem in figures)
    return {f"gallery/{name}.md": _page(name, figures[name]) for name in names}


def _page(name, figures):
    source = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    text = ast.get_docstring(ast.parse(source))
    title, _, rest = text.partition("\n")
    title, _, more = title.partition(". ")
    parts = [f"# {title.rstrip('.')}", more, *_prose(rest)]
    picture = next((path for path in sorted(GALLERY.glob(f"{name}.*"))), None)
    if picture is not None:
        parts.append(f"![{title}]({picture.name})")
    parts += ["## Times", *_times(figures)]
    parts += ["## What explain says", "```text\n" + figures["explain"].rstrip() + "\n```"]
    parts += ["## What it prints", "```text\n" + figures["output"].rstrip() + "\n```"]
    parts += [
        "## Program",
        f"[`examples/{name}.py`](https://github.com/gnewt/gnewt/blob/main/examples/{name}.py)",
    ]
    parts.append("```python\n" + source.rstrip() + "\n```")
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
    for row in figures["times"]:
        faster = row["peer_ms"] / row["gnewt_ms"]
        told = f"{faster:.3g} × faster" if faster >= 1 else f"{1 / faster:.3g} × slower"
        mark = "" if row.get("peer_ended", True) else " (stopped there, unsolved)"
        rows.append(
            f"| {row['what']} | {_ms(row['gnewt_ms'])} | {row['peer']}: {_ms(row['peer_ms'])}{mark} | {told} |"
        )
    if len(rows) > 2:
        yield "\n".join(rows)
        yield f"Compilation apart, one thread, the least of several calls: {figures['machine']}."
    yield f"The whole script takes {figures['seconds']:.1f} s of processor time, imports and compiling included."


def _ms(value):
    return (
        f"{value / 1000:.3g} s"
        if value >= 1000
        else f"{value:.3g} ms"
        if value >= 0.1
        else f"{value * 1000:.3g} µs"
    )
