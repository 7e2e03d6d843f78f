"""The floor plan: imports run one way, down."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BELOW = {
    "configs": set(),
    "features": {"configs"},
    "pool": {"features", "configs"},
    "recall": {"pool", "features", "configs"},
    "ranking": {"pool", "features", "configs"},
    "serving": {"recall", "ranking", "pool", "features", "configs"},
    "deployments": {"serving", "recall", "ranking", "pool", "features", "configs"},
    "benchmarks": {"deployments", "serving", "recall", "ranking", "pool", "features", "configs"},
}
"""What each package may import besides itself."""
RAY_ALLOWED = ("deployments/", "pool/runtime/", "benchmarks/")
PURE_FORBIDDEN = {"ray", "time", "random", "socket", "subprocess", "asyncio", "threading", "datetime"}
LONGEST_MODULE = 350
LONGEST_FUNCTION = 60


def modules() -> list[Path]:
    return sorted(path for package in BELOW for path in (ROOT / package).rglob("*.py"))


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and dotted name of everything a module imports, at any depth of its code."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: write imports in full"
            yield node.lineno, node.module or ""


def violations(path: Path) -> list[str]:
    inside = path.relative_to(ROOT).as_posix()
    package = inside.split("/")[0]
    found = []
    for line, name in imports(path):
        top = name.split(".")[0]
        if top in BELOW and top != package and top not in BELOW[package]:
            found.append(f"{inside}:{line}: {package} may not import {name}")
        if top == "ray" and not inside.startswith(RAY_ALLOWED):
            found.append(f"{inside}:{line}: Ray belongs into deployments/ and pool/runtime/")
        if inside.startswith("pool/policy/") and top in PURE_FORBIDDEN:
            found.append(f"{inside}:{line}: a policy is pure and may not import {name}")
    return found


def test_imports_run_one_way():
    found = [line for path in modules() for line in violations(path)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("features/x.py", "from serving.types import Slate"),
        ("recall/x.py", "import ranking.fine"),
        ("ranking/x.py", "from recall import merge"),
        ("serving/x.py", "def f():\n    import deployments.app"),
        ("serving/x.py", "import ray"),
        ("pool/policy/x.py", "import time"),
        ("deployments/x.py", "import benchmarks.quality"),
    ],
)
def test_an_import_against_the_plan_is_found(module, source, tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    path = tmp_path / module
    path.parent.mkdir(parents=True)
    path.write_text(source)
    assert violations(path)


def test_no_module_imports_the_tests():
    found = [f"{p}:{line}" for p in modules() for line, name in imports(p) if name.split(".")[0] == "tests"]
    assert not found


def test_modules_stay_short():
    lengths = {str(p.relative_to(ROOT)): len(p.read_text(encoding="utf-8").splitlines()) for p in modules()}
    assert not {name: n for name, n in lengths.items() if n > LONGEST_MODULE}


def test_functions_stay_short():
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.name}"
        for path in modules()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or node.lineno) - node.lineno + 1 > LONGEST_FUNCTION
    ]
    assert not found, found
