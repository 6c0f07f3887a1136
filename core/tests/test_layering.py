"""Who may import whom, what core may not name, and how long a file may get."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CORE = ROOT / "core" / "src" / "plait"
PLUGINS = sorted(path for path in (ROOT / "plugins").glob("*/src/*") if path.is_dir() and path.name != "__pycache__")

MICROKERNEL = (
    *("adapter", "errors", "family", "hooks", "kernel", "options", "plugins", "recurrent", "settings", "spec", "step"),
    *("memory", "plan", "scheduler"),
)
UPPER = ("engine", "models", "server", "cli", "testing", "families")
LINES = 400
PLUGIN_LINES = 700


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Every module that a file imports, anywhere in it; a name imported from a package may be a module, too."""
    package: list[str] = []
    folder = path.parent
    while (folder / "__init__.py").is_file():
        package.insert(0, folder.name)
        folder = folder.parent
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join([*package[: len(package) - node.level + 1], *filter(None, [base])])
            yield node.lineno, base
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in ("import_module", "__import__"):
            name = node.args[0]
            yield node.lineno, name.value if isinstance(name, ast.Constant) else ast.unparse(name)


def within(module: str, *packages: str) -> bool:
    return any(module == package or module.startswith(package + ".") for package in packages)


def files(*names: str) -> list[Path]:
    found = [path for name in names for path in (CORE / f"{name}.py", *sorted((CORE / name).rglob("*.py")))]
    return [path for path in found if path.is_file()]


def test_the_parts_are_where_this_test_looks_for_them() -> None:
    for name in MICROKERNEL:
        assert (CORE / f"{name}.py").is_file() or (CORE / name / "__init__.py").is_file(), name
    here = {path.stem if path.is_file() else path.name for path in CORE.iterdir() if path.name != "__pycache__"}
    known = {*MICROKERNEL, *UPPER, "ops", "__init__", "blas", "selfcheck", "logs", "known_plugins", "py"}
    assert here <= known, f"new in core: {sorted(here - known)}; say here to which layer it belongs"
    assert len(PLUGINS) >= 1


def test_the_import_reader_sees_every_form(tmp_path: Path) -> None:
    path = tmp_path / "plait" / "memory" / "x.py"
    path.parent.mkdir(parents=True)
    for folder in (path.parent, path.parent.parent):
        (folder / "__init__.py").touch()
    path.write_text(
        "import a.b as c\nfrom d import e\nif TYPE_CHECKING:\n    from plait import engine\n"
        "def f():\n    from ..models.load import g\n    from . import h\n    importlib.import_module('plait.cli')\n"
    )
    assert {module for _, module in imports(path)} == {
        *("a.b", "d", "d.e", "plait", "plait.engine"),
        *("plait.models.load", "plait.models.load.g", "plait.memory", "plait.memory.h", "plait.cli"),
    }


@pytest.mark.parametrize("path", files(*MICROKERNEL), ids=lambda path: str(path.relative_to(CORE)))
def test_the_microkernel_imports_nothing_from_above(path: Path) -> None:
    above = [f"plait.{name}" for name in UPPER]
    wrong = [f"{path.name}:{line} imports {module}" for line, module in imports(path) if within(module, *above)]
    assert wrong == []
    assert not any(within(module, "mlx_lm", "transformers", "fastapi", "typer") for _, module in imports(path))


@pytest.mark.parametrize("path", files("families"), ids=lambda path: path.name)
def test_families_import_the_microkernel_and_ops_only(path: Path) -> None:
    allowed = [f"plait.{name}" for name in (*MICROKERNEL, "ops")]
    for line, module in imports(path):
        if within(module, "plait"):
            assert within(module, *allowed), f"{path.name}:{line} imports {module}"
        else:
            assert module.split(".")[0] in {*sys.stdlib_module_names, "attrs", "mlx"}, f"{path.name}:{line}: {module}"


@pytest.mark.parametrize("path", files("ops"), ids=lambda path: path.name)
def test_ops_know_mlx_only(path: Path) -> None:
    for line, module in imports(path):
        outside = not within(module, "plait.ops")
        if outside:
            assert module.split(".")[0] in {*sys.stdlib_module_names, "attrs", "mlx"}, f"{path.name}:{line}: {module}"


PURE = [*files("plan", "scheduler", "spec", "errors", "options", "settings"), CORE / "memory" / "allocator.py"]


@pytest.mark.parametrize("path", PURE, ids=lambda path: str(path.relative_to(CORE)))
def test_plan_and_scheduler_know_nothing_of_arrays(path: Path) -> None:
    assert not any(within(module, "mlx", "numpy") for _, module in imports(path))


def test_plan_and_scheduler_are_loaded_without_mlx() -> None:
    """Not by a detour either."""
    code = (
        "import sys, plait.plan, plait.scheduler.scheduler, plait.memory.allocator, plait.settings, plait.options\n"
        "print(sorted({name.split('.')[0] for name in sys.modules} & {'mlx', 'mlx_lm', 'transformers'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("package", PLUGINS, ids=lambda path: path.name)
def test_plugins_import_the_microkernel_ops_and_themselves(package: Path) -> None:
    allowed = [package.name, *(f"plait.{name}" for name in (*MICROKERNEL, "ops"))]
    strangers = [other.name for other in PLUGINS if other != package]
    for path in sorted(package.rglob("*.py")):
        for line, module in imports(path):
            where = f"{path.relative_to(ROOT)}:{line} imports {module}"
            assert not within(module, *strangers, "plait_metal", "mlx_lm"), where
            if module.split(".")[0].startswith("plait"):
                assert within(module, *allowed), where


@pytest.mark.parametrize("package", PLUGINS, ids=lambda path: path.name)
def test_a_family_is_small(package: Path) -> None:
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in package.rglob("*.py")}
    assert sum(lines.values()) < PLUGIN_LINES, lines


NAMES = re.compile(r"\b(gdn|mla|kda|mamba2?|deltanet)\b", re.IGNORECASE)
MODE = re.compile(r"mamba.cache.mode", re.IGNORECASE)


def named(text: str) -> bool:
    return bool(NAMES.search(text)) and not MODE.search(text)


def test_core_names_no_family() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sorted(CORE.rglob("*.py"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if named(line)
    ]
    assert found == [], "what an error needs in order to name a plugin belongs in known_plugins.toml"


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("import plait_gdn", False),  # one word; the import tests see it
        ("# the GDN layers", True),
        ('name = "mla"', True),
        ("Mamba layers", True),
        ("mamba2", True),
        ("mamba_cache_mode: str", False),
        ("--mamba-cache-mode of Mamba", False),
        ("gated delta rule", False),
        ("GatedDeltaNet", False),
        ("a Gated DeltaNet mixer", True),
        ("delta rule", False),
    ],
)
def test_the_name_reader(line: str, wrong: bool) -> None:
    assert named(line) is wrong


def test_files_of_core_are_short() -> None:
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in CORE.rglob("*.py")}
    long = {str(path.relative_to(ROOT)): length for path, length in lengths.items() if length > LINES}
    assert long == {}, "one noun per file: something in it wants a name of its own"
    assert len(lengths) > 40


def test_core_depends_on_no_plugin() -> None:
    for path in sorted(CORE.rglob("*.py")):
        for line, module in imports(path):
            top = module.split(".")[0]
            assert top == "plait" or not top.startswith("plait"), f"{path.relative_to(ROOT)}:{line} imports {module}"
