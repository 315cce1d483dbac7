"""docs/engine_guide.md runs, and names what is there."""

import re

import pytest

from gnewt.kkt.engines.native import packing
from gnewt.kkt.engines.native.engine import available
from helpers.pages import DOCS, ROOT, run

PAGE = DOCS / "engine_guide.md"
TEXT = PAGE.read_text(encoding="utf-8")
ENGINE = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "cpp" / "engine").iterdir()}


@pytest.mark.skipif(not available(), reason="the native library is not built")
def test_the_program_of_the_page_runs():
    namespace = run(PAGE)
    assert namespace["solved"].num_delayed == 1


def test_files_are_there():
    named = set(re.findall(r"\b(?:cpp|src|tests|docs|kkt|plan)/[\w/]+\.(?:hpp|cpp|inc|py|txt|md)", TEXT))
    assert len(named) > 30
    to_be_made = {"cpp/engine/isa_avx10.cpp"}
    missing = {
        name
        for name in named - to_be_made
        if not any((ROOT / at / name).exists() for at in ("", "src/gnewt"))
    }
    assert not missing
    listed = {
        name
        for name in ENGINE
        if re.search(rf"(?<![\w/]){re.escape(name)}|cpp/engine/{re.escape(name)}", TEXT)
    }
    assert {name for name in ENGINE if name.endswith(".hpp")} <= listed


def test_constants_have_the_values_of_the_page():
    rows = re.findall(r"^\| `(k\w+)` \| ([\d.e-]+)[ ,|]*.*?\| `(\w+\.hpp)`", TEXT, re.MULTILINE)
    assert {name for name, _, _ in rows} >= {
        "kThreshold",
        "kNoise",
        "kCancelled",
        "kDoubtful",
        "kWide",
        "kMany",
    }
    for name, value, file in rows:
        found = re.search(rf"\b{name}(?:<T>)? =\s*(?:sizeof\(T\) == 8 \? T\()?([\d.e-]+)", ENGINE[file])
        assert found, name
        assert float(found[1]) == float(value), name
    assert re.search(rf"\| `SLACK` \| {packing.SLACK} \|", TEXT)


def test_names_are_those_of_the_sources():
    """Every function of the engine that the page names exists."""
    code = "\n".join(ENGINE.values())
    for owner, name in set(re.findall(r"`(\w+)::(\w+)`", TEXT)):
        assert re.search(rf"\b(?:class|struct) {owner}\b", code), owner
        assert re.search(rf"\b{name}\b", code), name
    for names, file in re.findall(r"((?:`\w+`(?:, )?)+) in `(\w+\.hpp)`", TEXT):
        for name in re.findall(r"\w+", names):
            assert re.search(rf"\b{name}\b", ENGINE[file]), (name, file)
    for name in set(re.findall(r"`(k[A-Z]\w+)`", TEXT)):
        assert re.search(rf"\b{name}\b", code + (ROOT / "cpp" / "plan_format.hpp").read_text()), name
