"""The key-value metadata of a GGUF file, read by key with the type that the caller needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

import attrs

from plait.errors import CheckpointError

Value = bool | int | float | str | list[Any]


@attrs.frozen
class Metadata:
    """Metadata of one file; every getter raises `CheckpointError` naming the file, the key and what was found.

    A getter with a default returns it when the key is absent; without one the key is required.
    """

    path: Path
    values: dict[str, Value]

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def integer(self, key: str, default: int | None = None, *, least: int = 0) -> int:
        """A whole number of at least `least`."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            self._refuse(key, value, "a whole number")
        if value < least:
            self._refuse(key, value, f"a whole number of at least {least}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A positive finite number."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
            self._refuse(key, value, "a positive number")
        return float(value)

    def flag(self, key: str, default: bool | None = None) -> bool:
        """True or false."""
        value = self._get(key, default)
        if not isinstance(value, bool):
            self._refuse(key, value, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """A string."""
        value = self._get(key, default)
        if not isinstance(value, str):
            self._refuse(key, value, "a string")
        return value

    def texts(self, key: str) -> list[str]:
        """A list of strings."""
        value = self._get(key, None)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            self._refuse(key, value, "a list of strings")
        return value

    def integers(self, key: str) -> list[int]:
        """A list of whole numbers."""
        value = self._get(key, None)
        if not isinstance(value, list) or not all(type(item) is int for item in value):
            self._refuse(key, value, "a list of whole numbers")
        return value

    def _get(self, key: str, default: Value | None) -> Value:
        value = self.values.get(key, default)
        if value is None:
            raise CheckpointError(
                f"{self.path}: the GGUF metadata has no {key!r}, which Plait needs; convert the model again "
                "with a current converter"
            )
        return value

    def _refuse(self, key: str, value: Value, wanted: str) -> NoReturn:
        shown = f"a list of {len(value)}" if isinstance(value, list) else repr(value)
        raise CheckpointError(f"{self.path}: the GGUF metadata's {key!r} is {shown[:80]}, but must be {wanted}")
