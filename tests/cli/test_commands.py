"""The command line, as a user runs it: outcomes, exit codes, and one sentence for what is wrong."""

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

import gnewt
from gnewt.cli import app

_SOURCE = """
import jax.numpy as jnp
import numpy as np
import gnewt
from gnewt import control


def cost(x):
    return jnp.sum((x[1:] - x[:-1] ** 2) ** 2) + jnp.sum((1 - x) ** 2)


def weighed(x, weight):
    return weight * jnp.sum(x**4) - jnp.sum(x)


def vector(x):
    return x**2


def logs(x):
    return jnp.sum(jnp.log(x - 5))


def saddle(x):
    return jnp.sum(x[:2] ** 3)


def typo(x):
    return jnp.sum(y)


def two(x, other):
    return jnp.sum(x * other)


def start():
    return jnp.full(5, 0.5)


def raising():
    raise RuntimeError("no such thing")


x0 = jnp.full(5, 0.5)
holes = x0.at[3].set(jnp.nan)
words = ["a", "b"]
rest = (2.0,)
limits = (0.6, 0.8)
number = 3
problem = control.Problem(
    lambda x, u: x + 0.1 * jnp.stack([x[1], u[0]]),
    lambda x, u: jnp.sum(u**2) + jnp.sum(x**2),
    lambda x: jnp.sum(x**2),
    jnp.ones(2),
    4,
)
us = jnp.zeros((4, 1))
graph = gnewt.Graph()
_x = graph.input((2,), name="x")
graph.loss(lambda x: jnp.sum((x - 1) ** 2), _x)
values = [np.zeros(2)]
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    (tmp_path / "cost.py").write_text(_SOURCE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)

    def call(line, code):
        done = CliRunner().invoke(app, line.split())
        assert done.exit_code == code, done.output
        return done

    return call


def test_version(run):
    assert run("--version", 0).stdout.strip() == f"gnewt {gnewt.__version__}"


def test_explain_prints_the_report_and_its_json(run, tmp_path):
    printed = run("explain cost.py:cost --at x0 --html page.html", 0).stdout
    assert printed.startswith("chain: 5 inputs") and "written: page.html" in printed
    assert "<html" in (tmp_path / "page.html").read_text(encoding="utf-8")
    data = json.loads(run("explain cost.py:cost --at cost.py:start --json", 0).stdout)
    assert data["structure"] == "chain" and data["inputs"] == 5
    assert data["costs"]["tree"]["flops"] > 0
    assert [family["where"].split(":")[0] for family in data["families"]].count("cost.py") > 0


def test_solve_prints_the_outcome_and_writes_the_solution(run, tmp_path):
    done = run("solve cost.py:weighed --at x0 --args rest --out found.npz --json", 0)
    data = json.loads(done.stdout)
    assert data["status"] == "converged" and data["inertia"] == [5, 0, 0]
    np.testing.assert_allclose(data["solution"]["x"], 0.5)  # 8x³ = 1
    np.testing.assert_array_equal(np.load(tmp_path / "found.npz")["x"], data["solution"]["x"])


def test_solve_takes_bounds_graphs_and_control_problems(run):
    data = json.loads(run("solve cost.py:weighed --at x0 --args rest --bounds limits --json", 0).stdout)
    np.testing.assert_allclose(data["solution"]["x"], 0.6, rtol=1e-6)
    assert run("solve cost.py:graph --at values", 0).stdout.lstrip().startswith("status: converged")
    found = json.loads(run("solve cost.py:problem --at us --method newton --json", 0).stdout)
    assert np.shape(found["solution"]["xs"]) == (5, 2) and found["success"]


def test_a_run_that_does_not_converge_ends_with_1(run):
    done = run("solve cost.py:cost --at x0 --max-steps 0", 1)
    assert "max_steps" in done.stdout and not done.stderr


@pytest.mark.parametrize(
    "line,sentence",
    [
        ("solve nowhere.py:cost --at x0", "the file nowhere.py does not exist"),
        ("explain cost.py:costs --at x0", "cost.py has no 'costs': did you mean cost?"),
        ("explain cost.py --at x0", "names nothing in a module"),
        ("explain cost.py:number --at x0", "is of type int, not a function"),
        ("explain no_such_module:f --at no_such_module:x", "there is no module 'no_such_module'"),
        ("solve cost.py:vector --at x0", "not a real scalar, at"),
        ("solve cost.py:cost --at holes", "holes[3] is nan: give finite numbers"),
        ("solve cost.py:cost --at words", "words[0] is 'a', not a number"),
        ("solve cost.py:cost --at missing.npy", "the file missing.npy does not exist"),
        ("solve cost.py:cost --at raising", "raising() fails: RuntimeError: no such thing (cost.py:"),
        ("solve cost.py:logs --at x0", "not finite at the start"),
        ("explain cost.py:typo --at x0", "NameError: name 'y' is not defined (cost.py:"),
        ("explain cost.py:two --at x0", "missing 1 required positional argument: 'other'"),
        ("explain cost.py:cost --at x0 --args number", "number is of type int, not a tuple"),
        ("explain cost.py:cost --at x0 --order sideways", "unknown order 'sideways'"),
        ("explain cost.py:cost --at x0 --html nowhere/page.html", "there is no folder nowhere"),
        ("explain cost.py:cost --at x0 --html .", ". is a folder"),
        ("solve cost.py:problem --at us --bounds limits", "has its own limits"),
        ("bench cost.py:cost", "give both"),
        ("demo nothing", "there is no demo 'nothing'"),
    ],
)
def test_input_that_makes_no_sense_is_one_sentence(run, line, sentence):
    done = run(line, 2)
    assert not done.stdout
    assert done.stderr.startswith("gnewt error: ") and sentence in done.stderr
    assert done.stderr.count("\n") == 1 and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "command", ["explain cost.py:cost --at x0 --html", "doctor --out", "solve cost.py:cost --at x0 --out"]
)
def test_places_that_cannot_be_written_are_refused_before_anything_runs(run, command, tmp_path):
    locked = tmp_path / "locked"
    locked.mkdir()
    locked.chmod(0o500)
    path = locked / "page.html"
    if os.access(locked, os.W_OK):  # root may write everywhere but here
        path = pathlib.Path("/sys/page.html")
        if not path.parent.is_dir():
            pytest.skip("no folder that is closed to this user")
    done = run(f"{command} {path}", 2)
    assert f"{path} cannot be written: permission denied" in done.stderr and not done.stdout


def test_the_traceback_comes_with_debug(run):
    done = run("explain cost.py:typo --at x0 --debug", 2)
    assert "NameError: name 'y' is not defined" in done.stderr


def test_an_error_that_nobody_expected_is_a_failure(run, monkeypatch):
    def broken(*_, **__):
        raise KeyError("lost")

    monkeypatch.setattr("gnewt.cli.run.explain_objective", broken)
    done = run("explain cost.py:cost --at x0", 1)
    assert "KeyError: 'lost' (run again with --debug" in done.stderr


def test_what_is_loaded_twice_is_run_once(run, tmp_path):
    source = tmp_path / "cost.py"
    source.write_text(source.read_text() + "\nprint('loaded')\n", encoding="utf-8")
    assert run("explain cost.py:cost --at cost.py:x0", 0).stdout.count("loaded") == 1


def test_numbers_may_come_from_a_file(run, tmp_path):
    np.save(tmp_path / "start.npy", np.ones(5))
    assert run("explain cost.py:cost --at start.npy", 0).stdout.startswith("chain")


def test_doctor_looks_at_everything(run, tmp_path, monkeypatch):
    data = json.loads(run("doctor --json --out found.txt", 0).stdout)
    assert data["works"] and data["facts"]["gnewt"] == gnewt.__version__
    assert data["facts"]["a step"].startswith("exact")
    text = (tmp_path / "found.txt").read_text(encoding="utf-8")
    for fact in ("jaxlib", "instruction set", "threads", "devices", "GPU"):
        assert fact in data["facts"] and fact in text
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "pip install 'gnewt[viz]'" in run("doctor", 0).stdout


@pytest.mark.slow
def test_a_setting_that_means_nothing_is_bad_input(tmp_path):
    command = [sys.executable, "-m", "gnewt", "doctor"]
    env = os.environ | {"GNEWT_ISA": "sideways"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=300, env=env)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert done.stderr.startswith("gnewt error: GNEWT_ISA is 'sideways'")


@pytest.mark.slow
def test_bench_measures_an_objective_of_the_user(run):
    row = json.loads(run("bench cost.py:cost --at x0 --json", 0).stdout)[0]
    assert row["structure"] == "chain" and row["inputs"] == 5
    assert min(row["step_ms"], row["gradient_ms"], row["dense_ms"]) > 0 and row["residual"] < 1e-12


def test_the_module_runs_as_a_program(tmp_path):
    def call(*line):
        command = [sys.executable, "-m", "gnewt", *line]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=300)

    done = call("solve", "nowhere.py:cost", "--at", "x0")
    assert done.returncode == 2 and not done.stdout
    assert done.stderr.strip() == "gnewt error: the file nowhere.py does not exist"
