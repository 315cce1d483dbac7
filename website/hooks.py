"""What mkdocs asks while it builds the site: pages made of other files, links between them, and formulas without scripts."""

from __future__ import annotations

import html
import os
import pathlib
import re
import sys

import latex2mathml.converter
from errors import message_tables, status_table
from gallery_pages import gallery_wall
from mkdocs.structure.files import File
from sources import BENCHMARKS, GALLERY, extra_pages, extra_pictures, resolve
from tables import MARKS

_MARKS = MARKS | {
    "<!-- gallery -->": gallery_wall,
    "<!-- every status -->": status_table,
    "<!-- every message -->": message_tables,
}
_LINK = re.compile(r"(\]\()([^)\s#]*)(#[^)\s]*)?(\))")
_CODE = re.compile(r"(?ms)^```.*?^```|`[^`\n]*`")
_FORMULA = re.compile(
    r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL
)  # as pymdownx.arithmatex writes them


def on_startup(command, dirty):
    """Let mkdocstrings find the formatter of signatures, which is installed beside Python."""
    os.environ["PATH"] = os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ["PATH"]])


def on_config(config):
    """Put the pages that are made at build time into the navigation."""
    for section in config.nav:
        if "Benchmarks" in section:
            section["Benchmarks"] = list(BENCHMARKS)
        elif "Gallery" in section:
            section["Gallery"] = ["examples.md", *GALLERY]
    return config


def on_files(files, config):
    """Add them to the files."""
    for at, text in extra_pages().items():
        files.append(File.generated(config, at, content=text))
    for at, path in extra_pictures().items():
        files.append(File.generated(config, at, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown, page, config, files):
    """Turn links into the repository into links into the site, where it has the page, or to the repository on the web."""
    at = page.file.src_uri
    for mark, make in _MARKS.items():
        if mark in markdown:
            markdown = markdown.replace(mark, make())
    parts, last = [], 0
    for code in _CODE.finditer(markdown):
        parts += [_relink(markdown[last : code.start()], at, files), code[0]]
        last = code.end()
    return "".join([*parts, _relink(markdown[last:], at, files)])


def _relink(text, at, files):
    def one(match):
        target = match[2]
        if not target or "://" in target or target.startswith("mailto:"):
            return match[0]
        return match[1] + resolve(target, at, files) + (match[3] or "") + match[4]

    return _LINK.sub(one, text)


def on_page_content(text, page, config, files):
    """Write formulas as MathML, which browsers show by themselves."""

    def one(match):
        display = "block" if match[2] == "[" else "inline"
        return latex2mathml.converter.convert(html.unescape(match[3]), display=display)

    return _FORMULA.sub(one, text)
