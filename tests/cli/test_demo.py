"""`gnewt demo`: the gallery runs, converges, and writes its pictures."""

import json

import pytest
from typer.testing import CliRunner

from gnewt._demo.gallery import GALLERY
from gnewt.cli import app


@pytest.mark.slow
def test_cartpole(tmp_path):
    picture = tmp_path / "demo.png"
    result = CliRunner().invoke(app, ["demo", "--horizon", "40", "--output", str(picture)])
    assert result.exit_code == 0, result.output
    assert "converged" in result.output
    assert picture.stat().st_size > 10_000


def test_a_missing_folder_is_refused(tmp_path):
    result = CliRunner().invoke(app, ["demo", "--output", str(tmp_path / "nowhere" / "demo.png")])
    assert result.exit_code == 2
    assert not (tmp_path / "nowhere").exists()


def test_demos_are_listed():
    named = json.loads(CliRunner().invoke(app, ["demo", "--list", "--json"]).stdout)
    assert list(named) == ["cartpole", *GALLERY]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name,size", [("tree", 3), ("smoothing", 60), ("obstacles", 40), ("parking", 40), ("training", 4)]
)
def test_demos_of_the_gallery(name, size, tmp_path):
    picture = tmp_path / "demo.png"
    line = ["demo", name, "--size", str(size), "--output", str(picture), "--json"]
    result = CliRunner().invoke(app, line)
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    assert data["success"] and data["width"] < data["inputs"] and data["picture"] == str(picture)
    assert picture.stat().st_size > 20_000


def test_every_demo_is_run():
    named = {"tree", "smoothing", "obstacles", "parking", "training"}
    assert set(GALLERY) == named
