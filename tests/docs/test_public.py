"""What is public: names that user docs cite, and types of everything that users call or read."""

import importlib
import inspect
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

_ROOT = pathlib.Path(__file__).parents[2]
_MODULES = ("gnewt", "gnewt.control", "gnewt.interop", "gnewt.newton", "gnewt.plan", "gnewt.qp")
_PUBLIC = {
    f"{module}.{name}": getattr(importlib.import_module(module), name)
    for module in _MODULES
    for name in importlib.import_module(module).__all__
}
_DOCS = [
    page for page in _ROOT.glob("docs/**/*.md") if page.name != "engine_guide.md"
]  # a guide to the inside
_PAGES = [_ROOT / "README.md", *_DOCS, *_ROOT.glob("examples/*.py")]


@pytest.mark.parametrize("page", _PAGES, ids=lambda page: page.name)
def test_user_docs_cite_public_names_only(page):
    text = page.read_text(encoding="utf-8")
    cited = set(re.findall(r"(?<![\w/.-])gnewt(?:\.[A-Za-z_]\w*)+", text))
    for module, names in re.findall(r"^from (gnewt[\w.]*) import (.+)$", text, re.M):
        cited |= {f"{module}.{name.strip()}" for name in names.split(",")}
    for name in cited:
        parts = name.split(".")
        owner = max((n for n in range(1, len(parts) + 1) if _is_public(parts[:n])), default=0)
        assert owner == len(parts) or hasattr(_object(parts[:owner]), parts[owner]), f"no {name}"
        assert _is_public(parts[: owner or 1]), f"{name} is not public"
        assert owner == len(parts) or not inspect.ismodule(_object(parts[:owner])), f"{name} is not public"


def test_public_annotations_hide_nothing():
    """No `Any`, and no callable that may return anything unsaid, in signatures and fields."""
    hidden = [
        f"{owner}({where}: {text})"
        for owner, where, text in _annotations()
        if re.search(r"\bAny\b|\bCallable\b(?!\[)", text)
    ]
    assert not hidden, "\n".join(hidden)


def test_pyright_knows_all_public_types():
    pytest.importorskip("pyright")
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--verifytypes", "gnewt"]
    run = subprocess.run(
        [*command, "--ignoreexternal", "--outputjson"],
        cwd=_ROOT,
        env=os.environ | {"PYTHONPATH": str(_ROOT / "src")},  # pyright does not follow an editable install
        capture_output=True,
    )
    symbols = json.loads(run.stdout)["typeCompleteness"]["symbols"]
    values = [value for value in _PUBLIC.values() if hasattr(value, "__qualname__")]
    public = {f"{value.__module__}.{value.__qualname__}" for value in values}
    unknown = [
        symbol["name"]
        for symbol in symbols
        if (not symbol["isTypeKnown"] or symbol["isTypeAmbiguous"]) and not _inherits_unknown(symbol)
        if any(symbol["name"] == name or symbol["name"].startswith(name + ".") for name in public)
    ]
    assert len(symbols) > len(public) and not unknown, "\n".join(unknown)


def _inherits_unknown(symbol):
    """Whether all that is unknown is the base class, which belongs to another library."""
    said = [d["message"] for d in symbol.get("diagnostics", [])]
    return bool(said) and all("base class" in text or "metaclass" in text for text in said)


def _is_public(parts):
    name = ".".join(parts)
    return name in _MODULES or name in _PUBLIC


def _object(parts):
    name = ".".join(parts)
    return _PUBLIC[name] if name in _PUBLIC else importlib.import_module(name)


def _annotations():
    """(owner, parameter or field, annotation as it is written) of everything public."""
    for name, value in _PUBLIC.items():
        if inspect.isclass(value) and value.__module__.startswith("gnewt"):
            yield from ((name, field, str(text)) for field, text in inspect.get_annotations(value).items())
            for method, member in vars(value).items():
                member = getattr(member, "fget", None) or getattr(member, "func", member)
                member = getattr(member, "__func__", member)
                if inspect.isfunction(member) and (
                    not method.startswith("_") or method in ("__init__", "__call__")
                ):
                    texts = inspect.get_annotations(inspect.unwrap(member))
                    yield from ((f"{name}.{method}", where, str(text)) for where, text in texts.items())
        elif inspect.isfunction(value):
            texts = inspect.get_annotations(inspect.unwrap(value))
            yield from ((name, where, str(text)) for where, text in texts.items())
