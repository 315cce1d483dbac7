"""Every message with which gnewt refuses something, read from its sources: what happened, and what to do."""

from __future__ import annotations

import ast
import pathlib
from dataclasses import dataclass

PACKAGE = pathlib.Path(__file__).parents[1] / "src" / "gnewt"
STAGES = {
    "trace": "Reading a function",
    "graph": "Building a graph",
    "plan": "Orders and trees",
    "newton": "Steps and minimising",
    "newton/constrained": "Bounds and constraints",
    "control": "Optimal control",
    "qp": "Quadratic programs",
    "kkt": "Engines",
    "explain": "Explaining",
    "interop": "Other libraries",
    "jaxprs": "Programs of JAX",
}
"""Folder of the package: heading of its messages."""
_INNER = {"Opaque", "NotLanes", "NeedRegion", "NotScalar", "OverLimit", "Untraceable", "TypeError", "_LiftInside"}
"""Exceptions that gnewt catches itself."""
_MAKERS = {"bad", "_bad", "explain_error"}
"""Functions that make an error of (what, where, remedy) or (what, remedy)."""


@dataclass(frozen=True)
class Message:
    """One message: `…` stands for values."""

    stage: str
    kind: str
    what: str
    remedy: str


def messages() -> list[Message]:
    """All messages, in the order of the sources, each once."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        folder = path.relative_to(PACKAGE).parent.as_posix()
        stage = folder if folder in STAGES else folder.split("/")[0]
        if stage not in STAGES:
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            for message in _of_call(node, stage):
                found.setdefault(message.what, message)
    return list(found.values())


def _of_call(node, stage):
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
        return
    name = node.func.id
    if not (name.endswith("Error") or name in _MAKERS) or name in _INNER or not node.args:
        return
    what = _text(node.args[0])
    if what is None or " " not in what.strip("… "):
        return
    remedies = [keyword.value for keyword in node.keywords if keyword.arg == "remedy"]
    if not remedies:
        remedies = node.args[1:2] if name in ("bad", "_bad") else node.args[2:3]
    remedy = _text(remedies[0]) if remedies else None
    yield Message(stage, name if name.endswith("Error") else "", what, remedy or "")


def _text(node):
    """The text of a string in the sources; values that are written into it are `…`."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return (_text(node.left) or "…") + (_text(node.right) or "…")
    return None


def error_tables() -> str:
    """One table for each stage."""
    lines = []
    found = messages()
    for stage, heading in STAGES.items():
        rows = [message for message in found if message.stage == stage]
        if rows:
            lines += [f"### {heading}", "", "| message | what to do |", "|---|---|"]
            lines += [f"| {_cell(row.what)} | {_cell(row.remedy)} |" for row in rows]
            lines.append("")
    return "\n".join(lines)


def _cell(text):
    for sign in "\\|*_<>`[]":
        text = text.replace(sign, f"&#{ord(sign)};")
    return " ".join(text.split())
