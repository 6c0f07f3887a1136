"""Options that plugins add."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from plait.errors import FamilyContractError, PlanError
from plait.options import Option, Options


def options() -> Options:
    found = Options()
    found.add("wave-height", type=float, default=1.5, help="How high.")
    found.add("wave-on", type=bool, default=False, help="Whether.")
    found.add("wave-name", help="What.")
    found.add("wave-count", type=int, help="How many.")
    return found


def test_what_was_added_is_there_in_order() -> None:
    assert list(options().entries.values()) == [
        Option("wave-height", float, 1.5, "How high."),
        Option("wave-on", bool, False, "Whether."),
        Option("wave-name", str, None, "What."),
        Option("wave-count", int, None, "How many."),
    ]
    assert Options().entries == {} and options().entries is not options().entries


def test_a_name_that_is_taken() -> None:
    found = options()
    with pytest.raises(FamilyContractError) as caught:
        found.add("wave-on", type=int, help="Again.")
    assert str(caught.value) == "option --wave-on is added twice; rename one, best by its plugin's name."
    assert found.entries["wave-on"].type is bool


@pytest.mark.parametrize("kind", [list, dict, None, "int", object, bytes])
def test_a_type_that_no_command_line_has(kind: Any) -> None:
    with pytest.raises(FamilyContractError) as caught:
        options().add("wave-list", type=kind, help="No.")
    assert str(caught.value) == f"option --wave-list has type {kind!r}; wanted str, int, float or bool."


def test_values_are_as_given_or_the_defaults() -> None:
    assert options().values({}) == {"wave-height": 1.5, "wave-on": False, "wave-name": None, "wave-count": None}
    given = {"wave-count": 3, "wave-on": True}
    assert options().values(given) == {"wave-height": 1.5, "wave-on": True, "wave-name": None, "wave-count": 3}


def test_values_for_options_that_nobody_added() -> None:
    with pytest.raises(PlanError) as caught:
        options().values({"wave-on": True, "tide": 1, "surf": 2})
    assert str(caught.value) == (
        "options surf, tide: no installed plugin has them; there are wave-height, wave-on, wave-name, wave-count."
    )
    with pytest.raises(PlanError, match=r"options x: no installed plugin has them; there are none\."):
        Options().values({"x": 1})


def test_an_option_does_not_change() -> None:
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        options().entries["wave-on"].default = True  # type: ignore[misc]
