"""A first call that takes long says so, where somebody can see it."""

import time

import jax.numpy as jnp
import pytest

import gnewt
from gnewt import _waiting as module


@pytest.mark.parametrize(("asked", "told"), [("1", True), ("0", False), (None, False)])
def test_who_is_told(asked, told, monkeypatch, capsys):
    monkeypatch.delenv("GNEWT_PROGRESS", raising=False)
    if asked is not None:
        monkeypatch.setenv("GNEWT_PROGRESS", asked)
    monkeypatch.setattr(module, "PATIENCE", 0.02)
    with module.waiting("counting"):
        time.sleep(0.2)
    shown = capsys.readouterr().err
    assert shown.startswith("gnewt: counting ...\ngnewt: counting: 0.") == told
    assert bool(shown) == told


def test_what_is_quick_is_not_told(monkeypatch, capsys):
    monkeypatch.setenv("GNEWT_PROGRESS", "1")
    with module.waiting("counting"):
        pass
    assert capsys.readouterr().err == ""


def test_the_first_step_of_a_function_is_told_and_no_other(monkeypatch, capsys):
    monkeypatch.setenv("GNEWT_PROGRESS", "1")
    monkeypatch.setattr(module, "PATIENCE", 0.0)
    step = gnewt.newton_step(lambda x: jnp.sum(jnp.cosh(x) * jnp.arange(1.0, 8.0)))
    step(jnp.linspace(0.1, 0.7, 7))
    shown = capsys.readouterr().err
    stages = (
        "finding the structure of <lambda> (",
        "planning the elimination of 7 inputs",
        "compiling the step (7 inputs",
    )
    assert [stage in shown for stage in stages] == [True] * 3
    step(jnp.linspace(0.2, 0.8, 7))
    assert capsys.readouterr().err == ""
