"""The examples and the command line run as a user would run them."""

import pathlib
import runpy

import pytest
from typer.testing import CliRunner

from gnewt._version import __version__
from gnewt.cli import app

_EXAMPLES = sorted((pathlib.Path(__file__).parents[2] / "examples").glob("*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("path", _EXAMPLES, ids=lambda p: p.stem)
def test_example(path, capsys):
    runpy.run_path(str(path), run_name="__main__")
    assert "gradient is below the tolerance" in capsys.readouterr().out


def test_version():
    result = CliRunner().invoke(app, ["--version"])
    assert result.exit_code == 0
    assert result.output.strip() == f"gnewt {__version__}"


@pytest.mark.slow
def test_demo(tmp_path):
    picture = tmp_path / "demo.png"
    result = CliRunner().invoke(app, ["demo", "--horizon", "40", "--output", str(picture)])
    assert result.exit_code == 0, result.output
    assert "converged" in result.output
    assert picture.stat().st_size > 10_000


def test_demo_refuses_a_missing_folder(tmp_path):
    result = CliRunner().invoke(app, ["demo", "--output", str(tmp_path / "nowhere" / "demo.png")])
    assert result.exit_code == 2
    assert not (tmp_path / "nowhere").exists()
