"""The wheels that this run of tox built, and what is installed from them."""

from __future__ import annotations

import os
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import attrs
import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = {"plait": ROOT / "core", "plait-metal": ROOT / "metal", "plait-gdn": ROOT / "plugins" / "gdn"}
"""Every distribution of this repository, and its source folder."""


@attrs.frozen
class Wheel:
    """A wheel, opened.

    Attributes:
        name: of the distribution.
        source: folder that it was built from.
        files: names of its files.
        metadata: the fields of its METADATA.
        entry_points: the text of its entry_points.txt.
    """

    name: str
    source: Path
    files: frozenset[str]
    metadata: Message
    entry_points: str

    @property
    def package(self) -> str:
        """Name of its one import package."""
        return self.name.replace("-", "_")


def read_wheel(name: str) -> Wheel:
    """Open the wheel of a distribution."""
    stem = name.replace("-", "_")
    [path] = Path(os.environ["PLAIT_WHEELS"]).glob(f"{stem}-*.whl")
    with zipfile.ZipFile(path) as archive:
        files = frozenset(archive.namelist())
        [info] = {file.partition("/")[0] for file in files if ".dist-info/" in file}
        metadata = Parser().parsestr(archive.read(f"{info}/METADATA").decode())
        entry_points = archive.read(f"{info}/entry_points.txt").decode()
    return Wheel(name, FOLDERS[name], files, metadata, entry_points)


@pytest.fixture(scope="session")
def wheels() -> dict[str, Wheel]:
    """Every wheel by the name of its distribution."""
    if "PLAIT_WHEELS" not in os.environ:
        pytest.skip("needs the wheels that tox builds: tox -e packaging")
    return {name: read_wheel(name) for name in FOLDERS}


@pytest.fixture(params=FOLDERS)
def wheel(request: pytest.FixtureRequest, wheels: dict[str, Wheel]) -> Wheel:
    """Each wheel."""
    return wheels[request.param]
