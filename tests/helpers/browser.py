"""A page in a real browser: Chromium without a window, where there is one."""

import html
import pathlib
import re
import shutil
import subprocess

import pytest

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None
)
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
_FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr")


def visit(page: str, folder: pathlib.Path, script: str = "", size=(1200, 900)) -> tuple[str, list[str]]:
    """Open a page, run a script in it that returns text, and return the text and what the console said."""
    probe = f"""<script>
addEventListener("load", () => {{
  const out = document.createElement("pre");
  out.id = "probe";
  try {{ out.textContent = String((() => {{ {script or "return document.documentElement.dataset.ready"} }})()); }}
  catch (error) {{ out.textContent = "raised " + error; }}
  document.body.append(out);
}});
</script></body>"""
    path = folder / "visited.html"
    path.write_text(page.replace("</body>", probe), encoding="utf-8")
    ask = (f"--window-size={size[0]},{size[1]}", "--virtual-time-budget=4000", "--dump-dom", path.as_uri())
    home = f"--user-data-dir={folder / 'profile'}"
    done = subprocess.run([BROWSER, *_FLAGS, home, *ask], capture_output=True, text=True, timeout=120)
    said = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    found = re.search(r'<pre id="probe">(.*?)</pre>', done.stdout, re.S)
    assert found, done.stderr[-2000:]
    return html.unescape(found[1]), said
