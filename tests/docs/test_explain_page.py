"""The program of docs/explain.md runs and blames the line that the text names."""

import pathlib
import re

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "explain.md"


def test_the_program_of_the_page():
    source, inside = [], False
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("```"):
            inside = line == "```python"
        source.append(line if inside and not line.startswith("```") else "")
    space = {"__name__": "explain_page"}
    exec(compile("\n".join(source), str(PAGE), "exec", dont_inherit=True), space)
    blamed = re.match(r".*explain\.md:(\d+):", space["report"].cheaper[0])
    assert source[int(blamed[1]) - 1].strip() == "x = x / jnp.sum(x**2)"
    assert f"the width is {space['report'].blamed[0].width} " in space["report"].cheaper[0]
