"""Run every example: store its picture, what it prints, what explain says, and times beside a peer's (docs/gallery).

Run: python website/gallery.py [--only NAME ...] [--part pictures explain times]
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile

from PIL import Image

ROOT = pathlib.Path(__file__).parents[1]
GALLERY = ROOT / "docs" / "gallery"
_PARTS = ("pictures", "explain", "times")
FILMS = {"mpc"}
"""Examples whose picture moves."""
WIDTH, COLOURS, MOST_BYTES = 900, (256, 128, 64, 32), 60_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--part", choices=_PARTS, nargs="*", default=_PARTS)
    chosen = parser.parse_args()
    names = chosen.only or sorted(path.stem for path in (ROOT / "examples").glob("*.py"))
    for name in names:
        found = {}
        if "pictures" in chosen.part:
            found |= _run(name)
        for part in ("explain", "times"):
            if part in chosen.part:
                command = [sys.executable, "website/gallery_times.py", f"examples/{name}.py", part]
                found |= json.loads(_output(command).splitlines()[-1])
        figures = GALLERY / f"{name}.json"
        known = json.loads(figures.read_text(encoding="utf-8")) if figures.exists() else {}
        text = json.dumps(dict(sorted((known | found).items())), indent=1, ensure_ascii=False)
        figures.write_text(text + "\n", encoding="utf-8")
        print(name, *found, flush=True)


def _run(name):
    """Run the example as its reader would."""
    with tempfile.TemporaryDirectory() as folder:
        picture = pathlib.Path(folder) / f"{name}{'.gif' if name in FILMS else '.png'}"
        before = _seconds()
        source = (ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8")
        out = ["--out", str(picture)] if "--out" in source else []
        printed = _output([sys.executable, f"examples/{name}.py", *out])
        seconds = _seconds() - before
        if picture.exists():
            _store(picture, GALLERY / picture.name)
    return {"output": printed, "seconds": round(seconds, 1)}


def _seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _output(command):
    paths = os.pathsep.join(
        filter(None, [str(ROOT / "src"), str(ROOT / "benchmarks"), os.environ.get("PYTHONPATH")])
    )
    settings = os.environ | {"PYTHONPATH": paths, "MPLBACKEND": "Agg", "GNEWT_PROGRESS": "0"}
    return subprocess.run(
        command, cwd=ROOT, env=settings, check=True, stdout=subprocess.PIPE, text=True
    ).stdout


def _store(picture, at):
    """Shrink a picture until it is small."""
    if picture.suffix == ".gif":
        at.write_bytes(picture.read_bytes())
        return
    with Image.open(picture) as found:
        image = found.convert("RGB")
    if image.width > WIDTH:
        image = image.resize((WIDTH, round(image.height * WIDTH / image.width)), Image.Resampling.LANCZOS)
    for colours in COLOURS:
        image.quantize(colours, dither=Image.Dither.NONE).save(at, optimize=True)
        if at.stat().st_size <= MOST_BYTES:
            return
    raise SystemExit(f"{at} is larger than {MOST_BYTES} bytes: draw it simpler")


if __name__ == "__main__":
    main()
