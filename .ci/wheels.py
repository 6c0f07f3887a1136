"""Installs this repository's distributions from wheels, which the first environment that asks builds, all at once.

usage: wheels.py FOLDER [NAME ...]    NAME: core, metal, gdn, ...; none: build only

The wheels lie in FOLDER, beside a hash of the sources that they were made from. Environments never see the source
folders.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NOT_PACKED = {"tests", "__pycache__", "build", "dist"}


def distributions() -> dict[str, Path]:
    """Return every distribution by the short name of its folder."""
    folders = [ROOT / "core", ROOT / "metal", *sorted((ROOT / "plugins").iterdir())]
    return {folder.name: folder for folder in folders if (folder / "pyproject.toml").exists()}


def sources_hash() -> str:
    """Return a hash of everything that goes into the wheels."""
    digest = hashlib.sha256()
    for folder in distributions().values():
        for path in sorted(folder.rglob("*")):
            if path.is_file() and not NOT_PACKED.intersection(path.relative_to(folder).parts):
                content = path.read_bytes()
                digest.update(f"{path.relative_to(ROOT)} {len(content)} ".encode() + content)
    return digest.hexdigest()


def build(folder: Path) -> None:
    """Build all wheels, unless those of these sources are there; several environments may ask at once."""
    folder.mkdir(parents=True, exist_ok=True)
    made_from, sources = folder / "sources", sources_hash()
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if made_from.exists() and made_from.read_text() == sources:
            return
        made_from.unlink(missing_ok=True)
        for wheel in folder.glob("*.whl"):
            wheel.unlink()
        with tempfile.TemporaryDirectory() as scratch:
            pip("wheel", "--no-deps", "--wheel-dir", scratch, *map(str, distributions().values()))
            for wheel in Path(scratch).glob("*.whl"):
                shutil.move(wheel, folder)
        made_from.write_text(sources)


def install(folder: Path, names: Sequence[str]) -> None:
    """Install the wheels of the named distributions, even over ones of the same version, and what they need."""
    wheels = []
    for name in names:
        [wheel] = folder.glob("plait-*.whl" if name == "core" else f"plait_{name}-*.whl")
        wheels.append(str(wheel))
    pip("install", "--no-compile", "--force-reinstall", "--no-deps", *wheels)
    # The second call brings what they depend on, and reinstalls nothing.
    pip("install", "--no-compile", *wheels)


def pip(command: str, *arguments: str) -> None:
    """Run pip of the Python that runs this; it says something only if it fails."""
    subprocess.run([sys.executable, "-I", "-m", "pip", command, "-qq", *arguments], check=True)


def main() -> None:
    """Build, then install what is named."""
    folder, *names = sys.argv[1:]
    build(Path(folder))
    if names:
        install(Path(folder), names)


if __name__ == "__main__":
    main()
