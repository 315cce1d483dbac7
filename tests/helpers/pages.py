"""Pages of the documentation as programs: their Python blocks, which run one after the other in one namespace."""

import importlib.util
import pathlib
import re

ROOT = pathlib.Path(__file__).parents[2]
DOCS = ROOT / "docs"
PEERS = ("scipy", "optimistix", "casadi", "trajax", "crocoddyl", "gtsam", "lineax", "blackjax", "optax")
"""Titles of blocks that need a library of this name; they are left out where it is not installed."""
_FENCE = re.compile(r'^```python(?: title="([^"]*)")?$')


def pages() -> list[pathlib.Path]:
    """Every page with Python blocks."""
    found = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
    return [page for page in found if "```python" in page.read_text(encoding="utf-8")]


def name_of(page: pathlib.Path) -> str:
    """The page as `README` or `coming_from/scipy`."""
    return page.stem if page.parent == ROOT else page.relative_to(DOCS).with_suffix("").as_posix()


def program(page: pathlib.Path) -> tuple[list[str], set[str]]:
    """Lines of the page in which all but the blocks that can run is blank (so that a traceback points into the page), and
    the libraries that its other blocks need."""
    lines, missing, inside = [], set(), False
    for line in page.read_text(encoding="utf-8").splitlines():
        fence = _FENCE.match(line)
        if line.startswith("```"):
            assert fence or not line.startswith("```python"), (
                f"{page}: {line} is no fence that the tests know"
            )
            peer = fence[1] if fence and fence[1] in PEERS else None
            absent = peer is not None and importlib.util.find_spec(peer) is None
            missing |= {peer} if absent else set()
            inside = bool(fence) and not absent and not inside
        lines.append(line if inside and not line.startswith("```") else "")
    return lines, missing


def run(page: pathlib.Path) -> dict:
    """Run the page; its namespace."""
    lines, _ = program(page)
    space = {"__name__": page.stem}
    exec(compile("\n".join(lines), str(page), "exec", dont_inherit=True), space)
    return space
