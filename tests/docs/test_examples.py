"""The examples run as a user would run them."""

import pathlib
import runpy
import sys

import pytest

_EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"
_CONVERGED = "the gradient is below the tolerance"

_KKT = "the error of the first-order conditions is below"

# Small forms: arguments, and what the output must say.
_QUICK = {
    "scenario_tree": (["--depth", "2"], _CONVERGED),
    "identification": (["--horizon", "60"], _CONVERGED),
    "mixture": (["--samples", "100"], _KKT),
    "power_flow": ([], _KKT),
}
_SLOW = {
    "pose_graph": ([], _CONVERGED),
    "acrobot": (["--horizon", "80"], _CONVERGED),
    "cartpole": (["--horizon", "60"], _CONVERGED),
    "minimum_time": (["--horizon", "30"], _CONVERGED),
    "cartpole_limits": (["--horizon", "60"], _KKT),
    "no_go_zone": (["--horizon", "30"], _KKT),
    "obstacles": (["--horizon", "40"], _KKT),
    "portfolio": (["--assets", "10"], _KKT),
    "two_robots": (["--horizon", "30"], _KKT),
    "mpc": ([], "at the end 0.0"),
    "many_mpc": (["--count", "32"], "plans a second"),
    "bundle_adjustment": (["--points", "20"], _CONVERGED),
    "heat_source": (["--cells", "10"], _KKT),
    "narrow_network": (["--layers", "10", "--samples", "3"], "Newton takes"),
    "batches": (["--side", "3"], "9 of 9 converged"),
    "parking": (["--horizon", "40", "--delay", "2"], _CONVERGED),
    "quadrotor": (["--horizon", "40"], _CONVERGED),
    "two_arms": (["--horizon", "20"], _CONVERGED),
    "bands": (["--horizon", "60"], _CONVERGED),
    "learned_cost": (["--horizon", "20"], _KKT),
    "process_noise": (["--horizon", "80"], _CONVERGED),
    "sensitivity": (["--horizon", "30"], _KKT),
    "stochastic_volatility": (["--days", "300"], _CONVERGED),
}


def _run(name, args, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [name, *args])
    runpy.run_path(str(_EXAMPLES / f"{name}.py"), run_name="__main__")
    return capsys.readouterr().out


@pytest.mark.parametrize("name", [*_QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in _SLOW)])
def test_example(name, tmp_path, monkeypatch, capsys):
    args, expected = (_QUICK | _SLOW)[name]
    picture = tmp_path / f"{name}.png"
    assert expected in _run(name, [*args, "--out", str(picture)], monkeypatch, capsys)
    assert picture.stat().st_size > 5_000


@pytest.mark.slow
def test_shared_parameter(monkeypatch, capsys):
    assert _CONVERGED in _run("shared_parameter", [], monkeypatch, capsys)


def test_every_example_is_run():
    assert {p.stem for p in _EXAMPLES.glob("*.py")} == {*_QUICK, *_SLOW, "shared_parameter"}
