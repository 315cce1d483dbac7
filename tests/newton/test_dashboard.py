"""The live view of a run: what a person sees in a terminal, and what a file gets."""

import io
import sys

import jax.numpy as jnp
import pytest
from rich.console import Console

import gnewt
from gnewt.newton.dashboard import Dashboard, clock, sparkline


def valley(x):
    return jnp.sum((x[1:] - x[:-1] ** 2) ** 2) + jnp.sum((1 - x) ** 2)


class _Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    "options,drawn", [({}, ("f", "|g|")), ({"bounds": (-2.0, 0.5)}, ("f", "violation", "dual", "barrier μ"))]
)
def test_a_terminal_gets_a_live_view(options, drawn, monkeypatch):
    monkeypatch.setattr(sys, "stderr", _Terminal())
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("GNEWT_PROGRESS", "0")
    res = gnewt.minimize(valley, jnp.zeros(4), verbose=True, **options)
    shown = sys.stderr.getvalue()
    assert res.success and "steps/s" in shown and "\x1b[" in shown
    assert all(name in shown for name in drawn) and any(bar in shown for bar in "▁█")


def test_a_file_gets_plain_lines(capsys):
    res = gnewt.minimize(valley, jnp.zeros(4), verbose=True)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == res.num_steps + 1 and lines[0].split()[:2] == ["step", "f"]


def test_views_fit_their_terminal(monkeypatch):
    monkeypatch.setenv("LINES", "16")
    monkeypatch.setenv("COLUMNS", "80")
    res = gnewt.minimize(valley, jnp.linspace(-1.0, 1.0, 8))
    view = Dashboard(("step",))
    for i in range(40):
        view.add(i, (f"{i}",), res.history[0])
    console = Console(file=io.StringIO(), width=80)
    console.print(view)
    lines = console.file.getvalue().splitlines()
    assert len(lines) <= 16 and lines[0].startswith("step 39") and lines[-1].strip() == "39"


def test_lines_of_bars():
    assert sparkline([1.0, 100.0, 1e8], True) == "▁▃█"
    assert sparkline([3.0, float("nan"), 1.0], False) == "█ ▁"
    assert sparkline([0.0, 0.0], True) == "" and sparkline([2.0, 2.0], False) == "▁▁"
    assert len(sparkline([float(i) for i in range(1000)], False)) == 48
    assert (clock(3.21), clock(75.0), clock(3700.0)) == ("3.2 s", "1:15 min", "1:01:40 h")
