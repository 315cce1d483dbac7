"""The benchmarks' gate: tracing and planning have not become worse, and the gate would notice if they had."""

import json
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]


def run_gate(*args):
    # A process of its own: the benchmarks hold theirs to one core.
    command = [sys.executable, ROOT / "benchmarks" / "gate.py", *args]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_structures_are_no_worse_than_the_baseline():
    done = run_gate("--structure")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_gate_notices_a_regression(tmp_path):
    baseline = json.loads((ROOT / "benchmarks" / "baseline.json").read_text())
    baseline["tree"]["width"] -= 1
    better = tmp_path / "baseline.json"
    better.write_text(json.dumps(baseline))
    done = run_gate("--structure", "--baseline", str(better))
    assert done.returncode == 1
    assert "worse" in done.stdout


@pytest.mark.slow
def test_steps_are_as_exact_as_the_baseline():
    done = run_gate()
    assert done.returncode == 0, done.stdout + done.stderr
