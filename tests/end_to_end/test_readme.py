"""The README does what it says: its Python runs, its commands exist, its request is answered."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from plait.models.demo import SMOLLM2

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    """The README's code blocks in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)


def command_lines() -> list[list[str]]:
    """Every command in the README's shell blocks, in words; comments are left out."""
    lines = "".join(blocks("sh")).replace("\n  '", " '").splitlines()
    commands = [part for line in lines for part in line.split(" && ") if "curl" not in line and "{" not in line]
    return [words for words in (shlex.split(part, comments=True) for part in commands) if words]


def demo_is_here() -> bool:
    return (SMOLLM2.folder() / Path(SMOLLM2.member).name).is_file()


def test_the_python_example_runs(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    [source] = blocks("python")
    assert '"demo"' in source
    if not demo_is_here():
        source = source.replace('"demo"', repr(str(checkpoints["llama"])))
    (tmp_path / "example.py").write_text(source)
    done = subprocess.run(
        [sys.executable, "example.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        env=no_plugins_chosen(),
    )
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    said = done.stdout.partition("\n")[2]  # below the progress bar
    assert "Paris" in said if demo_is_here() else said.strip()


def test_the_request_is_answered(serve: Any, checkpoints: dict[str, Path]) -> None:
    [block] = [block for block in blocks("sh") if "curl" in block]
    _, url, flag, header, data, body = shlex.split(block)
    assert (flag, header.partition(":")[0], data) == ("-H", "content-type", "-d")
    path = url.removeprefix("localhost:8000")
    assert path != url and json.loads(body)["model"] == "demo"
    with serve(checkpoints["llama"], "--served-model-name", "demo", "--max-model-len", "256") as served:
        with served.http() as http:
            answer = http.post(path, content=body, headers={"content-type": header.partition(": ")[2]})
        assert answer.status_code == 200 and answer.json()["choices"][0]["message"]["content"]


def test_the_commands_exist() -> None:
    commands = [words[1:] for words in command_lines() if words[0] == "plait"]
    assert {words[0] for words in commands} == {"serve", "generate", "plan", "doctor", "families"}
    for name, *arguments in commands:
        shown = subprocess.run(
            [sys.executable, "-m", "plait.cli", name, "--help"],
            capture_output=True,
            text=True,
            timeout=120,
            env=no_plugins_chosen() | {"COLUMNS": "200"},
        )
        assert shown.returncode == 0, shown.stderr
        for flag in (argument for argument in arguments if argument.startswith("-")):
            assert re.search(rf"(?<![\w-]){re.escape(flag)}(?![\w-])", shown.stdout), f"plait {name} has no {flag}"


def test_what_it_tells_to_install_is_here() -> None:
    installs = [words[2:] for words in command_lines() if words[:2] == ["pip", "install"]]
    assert ["./core", "./metal", "./plugins/*"] in installs
    prose = re.findall(r"`pip install (\./[^`]*)`", README)
    for argument in [argument for words in [*installs, *map(str.split, prose)] for argument in words]:
        if argument.startswith("./"):
            folders = list(ROOT.glob(argument.removeprefix("./")))
            assert folders and all((folder / "pyproject.toml").is_file() for folder in folders), argument


def test_its_test_command_is_what_continuous_integration_runs() -> None:
    assert "pip install tox && tox" in [line for block in blocks("sh") for line in block.splitlines()]
    assert "pip install tox && tox" in (ROOT / ".ci" / "run").read_text().splitlines()


@pytest.mark.parametrize("folder", ["core", "metal", "plugins/gdn", "tests", "benchmarks"])
def test_the_layout_names_every_folder(folder: str) -> None:
    assert f"| `{folder}/` |" in README and (ROOT / folder).is_dir()


def no_plugins_chosen() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PLAIT_PLUGINS"}
