"""What is in the wheels, and what they say of themselves."""

from __future__ import annotations

import configparser
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]

PLUGINS = {
    "plait": {"attention": "plait.families.attention", "demo": "plait.models.demo"},
    "plait-metal": {"metal": "plait_metal.plugin"},
    "plait-gdn": {"gdn": "plait_gdn.plugin"},
}


def requirements(wheel: Any) -> list[Requirement]:
    """What a wheel depends on."""
    return [Requirement(text) for text in wheel.metadata.get_all("Requires-Dist", [])]


def lower_bound(requirement: Requirement) -> Version | None:
    """The version of a requirement's `>=`."""
    bounds = [Version(clause.version) for clause in requirement.specifier if clause.operator == ">="]
    return bounds[0] if len(bounds) == 1 else None


def test_every_distribution_of_the_repository_is_known(wheels: dict[str, Any]) -> None:
    folders = {path.parent for path in ROOT.glob("*/pyproject.toml")} | {
        p.parent for p in ROOT.glob("plugins/*/*.toml")
    }
    assert folders == {wheel.source for wheel in wheels.values()}
    assert {path.name for path in (ROOT / "plugins").iterdir() if not path.is_dir()} == set(), "pip install ./plugins/*"


def test_all_of_the_package_is_in_and_nothing_else(wheel: Any) -> None:
    source = wheel.source / "src"
    wanted = {str(path.relative_to(source)) for path in source.rglob("*") if path.is_file()}
    wanted = {name for name in wanted if "__pycache__" not in name}
    packed = {name for name in wheel.files if ".dist-info/" not in name}
    assert packed == wanted and all(name.startswith(f"{wheel.package}/") for name in packed)
    assert f"{wheel.package}/py.typed" in packed
    assert not [name for name in packed if re.search(r"(^|/)(tests?/|test_|conftest)", name)]


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("plait", r"plait/known_plugins\.toml"),
        ("plait-metal", r"plait_metal/kernels/\w+\.metal"),
        ("plait-metal", r"plait_metal/cuda/prelude\.h"),
        ("plait-metal", r"plait_metal/emulator/include/metal_stdlib"),
        ("plait-metal", r"plait_metal/emulator/include/msl/\w+\.h"),
        ("plait-metal", r"plait_metal/emulator/runtime/\w+\.cpp"),
    ],
)
def test_what_is_no_python_is_in(name: str, pattern: str, wheels: dict[str, Any]) -> None:
    assert [file for file in wheels[name].files if re.fullmatch(pattern, file)]


def test_the_licence_is_in_and_named(wheel: Any) -> None:
    assert wheel.metadata["License-Expression"] == "Apache-2.0" and wheel.metadata["License-File"] == "LICENSE"
    assert [name for name in wheel.files if name.endswith(".dist-info/licenses/LICENSE")]
    assert (wheel.source / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()


def test_name_version_and_python(wheel: Any) -> None:
    assert wheel.metadata["Name"] == wheel.name
    version = Version(wheel.metadata["Version"])
    assert not version.is_prerelease and version.local is None, "pip leaves a pre-release out, and all its plugins"
    assert wheel.metadata["Summary"] and wheel.metadata.get_payload()
    assert SpecifierSet(wheel.metadata["Requires-Python"]) == SpecifierSet(">=3.11")


def test_plugins_want_the_core_that_is_here(wheels: dict[str, Any]) -> None:
    here = wheels["plait"].metadata["Version"]
    for name in wheels.keys() - {"plait"}:
        [core] = [requirement for requirement in requirements(wheels[name]) if requirement.name == "plait"]
        assert lower_bound(core) is not None and here in core.specifier, "a plugin that refuses its own repository"
        assert f"{Version(here).major + 1}.0" not in core.specifier, "no upper bound: the next hook API would break it"
        assert not [r for r in requirements(wheels[name]) if r.name in wheels.keys() - {"plait"}], "plugins stand alone"


def test_entry_points(wheel: Any) -> None:
    parser = configparser.ConfigParser()
    parser.read_string(wheel.entry_points)
    found = {group: dict(parser[group]) for group in parser.sections()}
    scripts = {"console_scripts": {"plait": "plait.cli:main"}} if wheel.name == "plait" else {}
    assert found == {"plait.v1": PLUGINS[wheel.name], **scripts}


def test_mlx_comes_with_a_back_end_on_linux(wheels: dict[str, Any]) -> None:
    mlx = [requirement for requirement in requirements(wheels["plait"]) if requirement.name == "mlx"]

    def on(platform: str) -> list[set[str]]:
        return [r.extras for r in mlx if r.marker is None or r.marker.evaluate({"sys_platform": platform})]

    assert on("linux") == [{"cpu"}] and on("darwin") == [set()]


def test_lower_bounds_are_the_ones_tested(wheels: dict[str, Any]) -> None:
    lines = (ROOT / ".ci" / "oldest.txt").read_text().splitlines()
    tested = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    declared: dict[str, Version] = {}
    for wheel in wheels.values():
        for requirement in requirements(wheel):
            if requirement.name not in wheels:
                bound = lower_bound(requirement)
                assert bound is not None, f"{wheel.name}: {requirement} has no lower bound"
                assert declared.setdefault(requirement.name, bound) == bound, f"two bounds of {requirement.name}"
    assert {name: Version(version) for name, version in tested.items()} == declared
    assert list(tested) == sorted(tested)


def test_the_environments_name_the_same_bounds(wheels: dict[str, Any]) -> None:
    """What lint installs in order to read types is what the core depends on."""
    declared = {requirement.name: str(requirement.specifier) for requirement in requirements(wheels["plait"])}
    lint = (ROOT / "tox.ini").read_text().partition("[testenv:lint]")[2]
    named = dict(re.findall(r"^    ([\w-]+)(>=[\d.]+)$", lint, re.MULTILINE))
    assert named and named == {name: declared[name] for name in named}


def test_the_workspace_is_no_distribution() -> None:
    assert "project" not in tomllib.loads((ROOT / "pyproject.toml").read_text())
