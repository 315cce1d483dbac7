"""Files about the project agree with the project: Markdown, citation, hooks, workflow."""

import pathlib
import re
import tomllib

import pytest

from gnewt._version import __version__

_ROOT = pathlib.Path(__file__).parents[2]
_PAGES = [*_ROOT.glob("*.md"), *(_ROOT / "docs").rglob("*.md"), _ROOT / "benchmarks" / "README.md"]
# A full stop behind one capital letter (an initial) or "al." ends no sentence.
_TWO_SENTENCES = re.compile(r"(?<!\b[A-Z])(?<!\bal)[.!?][)*_\"]* (?=\S)")


def _read(name):
    return (_ROOT / name).read_text(encoding="utf-8")


def _prose(text):
    """Yield (number, line) of what is neither code, table, heading nor formula; code and formulas inside a line are blanked."""
    text = re.sub(r"(?ms)^```.*?^```|\$\$.*?\$\$", lambda block: "\n" * block[0].count("\n"), text)
    for number, line in enumerate(text.splitlines(), 1):
        if not line.startswith(("|", "#", "    ")):
            yield number, re.sub(r"`[^`]*`|\$[^$]*\$|^\s*\d+\. ", "·", line)


@pytest.mark.parametrize("page", _PAGES, ids=lambda page: page.name)
def test_one_sentence_per_line(page):
    prose = _prose(page.read_text(encoding="utf-8"))
    assert not [f"{page.name}:{number}: {line}" for number, line in prose if _TWO_SENTENCES.search(line)]


def test_citation_has_the_version():
    assert re.search(r"(?m)^version: (.+)$", _read("CITATION.cff"))[1] == __version__


def test_hooks_run_what_lint_runs():
    rule = re.search(r"(?m)^lint:.*\n((?:\t.*\n)+)", _read("Makefile"))[1]
    lint = set(re.findall(r"\$\(BIN\)/([\w-]+)", rule)) - {"python"}
    hooks = set(re.findall(r"entry: \.venv/bin/([\w-]+)", _read(".pre-commit-config.yaml")))
    assert lint == hooks


def test_workflow_begins_at_the_oldest_python():
    versions = (
        re.search(r"python: \[(.*)\]", _read(".github/workflows/ci.yml"))[1].replace('"', "").split(", ")
    )
    assert tomllib.loads(_read("pyproject.toml"))["project"]["requires-python"] == f">={versions[0]}"
    assert versions == sorted(set(versions), key=lambda version: int(version.split(".")[1]))
