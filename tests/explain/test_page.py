"""The page of a report: self-contained, and alive in a browser."""

import json
import re

import jax.numpy as jnp
import numpy as np
import pytest

import gnewt
from gnewt.explain.condensed_tree import MOST_NODES, condense_tree
from helpers.browser import needs_browser, visit
from helpers.program_table import control
from helpers.trace_programs import PROGRAMS

_PAGES = {
    "T = 3": lambda: (control, jnp.zeros((3, 1))),
    "T = 300": lambda: (control, jnp.zeros((300, 1))),
    "grid": lambda: (PROGRAMS["grid"]()[0], PROGRAMS["grid"]()[1][0]),
    "opaque": lambda: (PROGRAMS["opaque_outside_loops"]()[0], PROGRAMS["opaque_outside_loops"]()[1][0]),
}

_KEYS = """
const canvas = document.getElementById("tree"), said = () => document.getElementById("front").textContent;
const before = said();
for (const key of ["Home", "ArrowRight", "ArrowLeft"]) canvas.dispatchEvent(new KeyboardEvent("keydown", {key}));
const byKey = said();
const box = canvas.getBoundingClientRect();
let byMouse = "";
canvas.dispatchEvent(new KeyboardEvent("keydown", {key: "End"}));
for (let x = 2; x < box.width; x += 4) for (let y = 2; y < box.height; y += 8)
  canvas.dispatchEvent(new PointerEvent("pointermove", {clientX: box.left + x, clientY: box.top + y}));
byMouse = said();
canvas.dispatchEvent(new KeyboardEvent("keydown", {key: "+"}));
return JSON.stringify([before, byKey, byMouse]);
"""


def _data(page):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)[1])


@pytest.mark.parametrize("name", _PAGES)
@needs_browser
def test_pages_open_and_answer(name, tmp_path):
    page = gnewt.explain(*_PAGES[name]()).to_html()
    assert visit(page, tmp_path) == ("yes", [])
    answer, said = visit(page, tmp_path, _KEYS)
    assert not said
    before, by_key, by_mouse = json.loads(answer)
    assert before == "No front chosen."
    for text in (by_key, by_mouse):
        assert "variables: " in text and "programs.py:" in text.replace("program_table.py", "programs.py")


@needs_browser
def test_narrow_screens_need_no_scrolling_aside(tmp_path):
    page = gnewt.explain(*_PAGES["T = 300"]()).to_html()
    asked = (
        "return [innerWidth, document.documentElement.scrollWidth, "
        "getComputedStyle(document.querySelector('main')).gridTemplateColumns.split(' ').length].join()"
    )
    answer, said = visit(page, tmp_path, asked, size=(500, 900))
    inner, needed, columns = map(int, answer.split(","))
    assert not said and needed <= inner and columns == 1


@pytest.mark.slow
@needs_browser
def test_a_hundred_thousand_stages(tmp_path):
    page = gnewt.explain(control, np.zeros((100_000, 1))).to_html()
    assert len(page) < 2e6
    asked = "return Math.round(performance.now())"
    answer, said = visit(page, tmp_path, asked)
    assert not said and int(answer) < 3000


def test_a_page_loads_nothing_and_keeps_what_it_says(tmp_path):
    def shown(x):
        return jnp.sum(x**2) ** 2

    report = gnewt.explain(shown, np.ones(5))
    page = report.to_html(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == page
    assert not re.search(r"(src|href)=[\"'](?!data:)", page) and "import " not in page.replace(
        "important", ""
    )
    data = _data(page)
    assert data["facts"]["inputs N"] == 5 and data["facts"]["structure"] == str(report.shape)
    assert sum(front["c"] for front in data["tree"]) == report.num_fronts
    assert [cost["method"] for cost in data["costs"]] == ["tree", "dense Hessian", "sparse Hessian", "CG"]
    assert "<iframe" in report._repr_html_()


def test_names_cannot_break_out_of_the_page():
    g = gnewt.Graph()
    x = g.input((2,), name="</script><b>")

    def quartic(x):
        return jnp.sum(x**4)

    quartic.__name__ = "</script><i>"
    g.loss(quartic, x)
    page = gnewt.explain(g, [np.ones(2)]).to_html()
    assert page.count("</script>") == 2
    assert any("</script><i>" in family["name"] for family in _data(page)["families"]["nodes"])


@pytest.mark.parametrize("name", ["grid", "binary_reduction", "shared_parameters", "rosenbrock"])
def test_drawn_trees_hold_all_fronts(name):
    f, args = PROGRAMS[name]()[:2]
    args = [a[:500] for a in args] if name == "rosenbrock" else args
    report = gnewt.explain(f, *args)
    plan = report.system.plan
    drawn = condense_tree(plan, report.names.key)
    assert sum(own.count for own in drawn) == plan.num_fronts
    assert len(drawn) <= min(MOST_NODES, plan.num_fronts)
    assert all(own.parent < len(drawn) and own.parent != i for i, own in enumerate(drawn))
    widths = np.diff(plan.elim_ptr) + np.diff(plan.sep_ptr)
    assert max(widths[own.front] for own in drawn) == widths.max()


def test_pictures(tmp_path):
    pytest.importorskip("matplotlib")
    for make in _PAGES.values():
        gnewt.explain(*make()).plot().savefig(tmp_path / "report.png")
    assert (tmp_path / "report.png").stat().st_size > 5_000
