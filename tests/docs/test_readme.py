"""Links of the documents lead somewhere, and the README says what people look for first."""

import re

from helpers.pages import DOCS, ROOT


def test_links_lead_somewhere():
    for page in (*ROOT.glob("*.md"), *DOCS.rglob("*.md")):
        for target in re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8")):
            assert "://" in target or (page.parent / target).exists(), f"{page.name} links to {target}"


def test_readme_is_one_page_and_says_how_to_test():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 90
    assert re.search(r"^make test\b", text, re.M) and re.search(r"^pip install \.", text, re.M)
