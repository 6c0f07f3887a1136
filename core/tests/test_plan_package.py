"""The planner is part of the microkernel: it may lean on very little."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import plait.plan

ALLOWED = ("attrs", "plait.errors", "plait.plan", "plait.spec")


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, path
            names.add(node.module or "")
    return names


def test_the_planner_imports_attrs_errors_and_specs_only() -> None:
    files = sorted(Path(plait.plan.__file__ or "").parent.glob("*.py"))
    assert len(files) > 10
    for path in files:
        for name in imported(path):
            inside = any(name == allowed or name.startswith(f"{allowed}.") for allowed in ALLOWED)
            assert inside or name.split(".")[0] in sys.stdlib_module_names, f"{path.name} imports {name}"


def test_everything_public_is_there() -> None:
    assert all(hasattr(plait.plan, name) for name in plait.plan.__all__)
    assert plait.plan.__all__ == sorted(plait.plan.__all__)
