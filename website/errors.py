"""Every message with which gnewt refuses, warns or ends a run, read from its sources: what happened, and what to do."""

from __future__ import annotations

import ast
import pathlib
from collections.abc import Iterator
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
"""Folder of the package: heading of its messages. A folder without an entry belongs to the one around it."""
_MAKERS = {"bad": "GraphError", "unknown_engine": "PlanError"}
"""Functions that make an error of (what, remedy): its class."""
_INVARIANTS = {
    "graph": "a part of a graph that was put together by hand does not fit: make graphs with gnewt.Graph",
    "plan": "a tree that was put together by hand is none: make trees with gnewt.plan.decompose",
}
"""What to do where a message does not say it."""
_CAUGHT = {"TypeError", "ValueError", "RuntimeError", "OverflowError", "AttributeError", "MemoryError"}
"""Classes that gnewt catches itself, or that Python raises as well."""


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
        stage = _stage(path.relative_to(PACKAGE).parent.as_posix())
        if stage is None:
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        constants = _strings(tree.body)
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        for function in functions:
            names = constants | _strings(ast.walk(function))
            for message in _of(function, stage, names):
                found.setdefault(message.what, message)
    return list(found.values())


def _stage(folder: str) -> str | None:
    while folder not in STAGES:
        if "/" not in folder:
            return None
        folder = folder.rpartition("/")[0]
    return folder


def _strings(nodes) -> dict[str, list[str]]:
    """Texts that are assigned to names, once or in several branches."""
    found: dict[str, list[str]] = {}
    for node in nodes:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    found.setdefault(target.id, []).extend(_texts(node.value, found))
    return found


def _of(function: ast.FunctionDef, stage: str, names: dict[str, list[str]]) -> Iterator[Message]:
    for node in ast.walk(function):
        if not isinstance(node, ast.Call):
            continue
        called = node.func.id if isinstance(node.func, ast.Name) else ast.unparse(node.func)
        kind = _MAKERS.get(called, called)
        if called == "warnings.warn" and len(node.args) > 1:
            kind = ast.unparse(node.args[1])
        elif not kind.endswith("Error") or kind in _CAUGHT:
            continue
        inner = node.args[0] if node.args else None
        if isinstance(inner, ast.Call) and ast.unparse(inner.func) == "explain_error":
            node, called = inner, "explain_error"
        what = _texts(node.args[0], names) if node.args else []
        remedy = _texts(_remedy(node, called), names)
        for one in what:
            if " " in one.strip("… "):
                yield Message(stage, kind, one, " / ".join(remedy))


def _remedy(node: ast.Call, called: str) -> ast.expr | None:
    named = [keyword.value for keyword in node.keywords if keyword.arg == "remedy"]
    place = 1 if called in _MAKERS else 2
    unnamed = [] if called == "warnings.warn" else node.args[place : place + 1]
    return next(iter([*named, *unnamed]), None)


def _texts(node: ast.expr | None, names: dict[str, list[str]]) -> list[str]:
    """What a string of the sources may say; values that are written into it are `…`."""
    if isinstance(node, ast.Constant):
        return [node.value] if isinstance(node.value, str) else []
    if isinstance(node, ast.JoinedStr):
        return ["".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values)]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = (_texts(side, names) or ["…"] for side in (node.left, node.right))
        return [a + b for a in left for b in right]
    if isinstance(node, ast.IfExp):
        return _texts(node.body, names) + _texts(node.orelse, names)
    return names.get(node.id, []) if isinstance(node, ast.Name) else []


def message_tables() -> str:
    """One table for each stage."""
    lines = []
    found = messages()
    for stage, heading in STAGES.items():
        rows = [message for message in found if message.stage == stage]
        if rows:
            lines += [f"### {heading}", "", "| message | what to do | raised as |", "|---|---|---|"]
            lines += [
                f"| {_cell(row.what)} | {_cell(row.remedy or _INVARIANTS.get(stage, ''))} | {row.kind} |"
                for row in rows
            ]
            lines.append("")
    return "\n".join(lines)


def status_table() -> str:
    """The messages of `Result.message`, without and with constraints."""
    tree = ast.parse((PACKAGE / "newton" / "result.py").read_text(encoding="utf-8"))
    tables = {
        node.targets[0].id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict)
    }
    plain, constrained = (_by_status(tables[name]) for name in ("MESSAGES", "_CONSTRAINED"))
    lines = ["| status | message | message under constraints, where it is another |", "|---|---|---|"]
    lines += [
        f"| {name} | {_cell(text)} | {_cell(constrained.get(name, ''))} |" for name, text in plain.items()
    ]
    return "\n".join(lines)


def _by_status(table: ast.Dict) -> dict[str, str]:
    pairs = zip(table.keys, table.values, strict=True)
    return {
        f"`{key.attr.lower()}`": ast.literal_eval(value)
        for key, value in pairs
        if isinstance(key, ast.Attribute)
    }


def _cell(text: str) -> str:
    for sign in "&\\|*_<>`[]{}~":
        text = text.replace(sign, f"&#{ord(sign)};")
    return " ".join(text.split())
