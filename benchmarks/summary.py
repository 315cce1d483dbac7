"""Collect the figures of all results into results/summary.md.

python benchmarks/summary.py
"""

from __future__ import annotations

import json

from harness import RESULTS, table


def main() -> None:
    lines = ["# Figures", "", "Made by `make bench`; [how to read them](../README.md).", ""]
    for path in sorted(RESULTS.glob("*.json")):
        content = json.loads(path.read_text())
        if not isinstance(content, dict) or not content.get("figures"):
            continue
        where = content["environment"]
        lines += [
            f"## [{content['title']}]({path.stem}.md)",
            "",
            f"{where['date']}, {where['cpu']}, engine {where['isa']}, {where['clock']} clock, load {where['load']:.1f}",
            "",
            table(content["figures"]),
            "",
        ]
    text = "\n".join(lines).rstrip() + "\n"
    (RESULTS / "summary.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
