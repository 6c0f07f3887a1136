"""Installs this repository's distributions from wheels, building all of them at most once per state of the sources.

usage: wheels.py FOLDER [NAME ...]    NAME: core, metal, gdn, ...; none: build only

The wheels lie in FOLDER/<hash of the sources>. Environments never see the source folders.
"""

from __future__ import annotations

import fcntl
import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def distributions() -> dict[str, Path]:
    """Return every distribution by the short name of its folder."""
    folders = [ROOT / "core", ROOT / "metal", *sorted((ROOT / "plugins").iterdir())]
    return {folder.name: folder for folder in folders if (folder / "pyproject.toml").exists()}


def sources_hash() -> str:
    """Return a hash of everything that goes into the wheels."""
    digest = hashlib.sha256()
    for folder in distributions().values():
        for path in sorted(folder.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts and "tests" not in path.relative_to(folder).parts:
                digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def build(folder: Path) -> Path:
    """Build the wheels, unless they are there; several environments may ask at once."""
    target = folder / sources_hash()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                wheels = Path(scratch) / "wheels"
                command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(wheels)]
                subprocess.run([*command, *map(str, distributions().values())], check=True)
                wheels.rename(target)
    return target


def main() -> None:
    """Build, then install what is named."""
    wheels = build(Path(sys.argv[1]))
    chosen = []
    for name in sys.argv[2:]:
        prefix = "plait" if name == "core" else f"plait_{name}"
        chosen += [str(path) for path in wheels.glob(f"{prefix}-*.whl")]
    if chosen:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--force-reinstall", "--no-deps"]
        subprocess.run([*command, *chosen], check=True)
        # The second call brings what they depend on, and reinstalls nothing.
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", *chosen], check=True)


if __name__ == "__main__":
    main()
