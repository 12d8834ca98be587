"""The hyperparameters of a model, each checked when it is read."""

from __future__ import annotations

import math
from typing import Any

from ..errors import FormatError, UnsupportedError

# Beyond these a file is damaged or hostile: no model comes near.
MOST_LAYERS, MOST_WIDTH, MOST_HEADS, MOST_EXPERTS, MOST_CONTEXT = 4096, 1 << 20, 1 << 14, 1 << 16, 1 << 30


class Keys:
    """The metadata keys of one architecture.

    Attributes:
        architecture: What `general.architecture` says: the prefix of the keys.
    """

    def __init__(self, metadata: Any, path: str) -> None:
        self._metadata, self._path = metadata, path
        self.architecture = str(self._need("general.architecture", str))

    def name(self, key: str) -> str:
        """The whole key."""
        return f"{self.architecture}.{key}"

    def __contains__(self, key: str) -> bool:
        return self.name(key) in self._metadata

    def integer(self, key: str, *, most: int, least: int = 1, default: int | None = None) -> int:
        """A whole number.

        Raises:
            FormatError: `engine.key`: the key is missing and there is no default, or it is out of range.
        """
        value = self._value(self.name(key), int, default)
        if isinstance(value, bool) or not least <= value <= most:
            raise self._wrong(key, f"is {value!r}, not between {least} and {most}")
        return int(value)

    def number(self, key: str, *, default: float | None = None, above: float = 0.0) -> float:
        """A finite number.

        Raises:
            FormatError: `engine.key`: the key is missing and there is no default, or it is not above `above`.
        """
        value = self._value(self.name(key), (int, float), default)
        if isinstance(value, bool) or not math.isfinite(value) or value <= above:
            raise self._wrong(key, f"is {value!r}, not a number above {above:g}")
        return float(value)

    def text(self, key: str, default: str) -> str:
        """A text."""
        return str(self._value(self.name(key), str, default))

    def value(self, key: str) -> Any:
        """Whatever the key holds; None where it is missing."""
        name = self.name(key)
        return self._metadata.get(name)

    def _need(self, name: str, kind: type) -> Any:
        return self._value(name, kind, None)

    def _value(self, name: str, kind: type | tuple[type, ...], default: Any) -> Any:
        if name not in self._metadata:
            if default is None:
                raise FormatError(
                    f"the metadata lacks {name}, which the model cannot run without",
                    code="engine.key",
                    path=self._path,
                    field=name,
                )
            return default
        value = self._metadata[name]
        if isinstance(value, list) and value and all(item == value[0] for item in value):
            value = value[0]  # one number for each layer, all the same
        if isinstance(value, list):
            raise UnsupportedError(
                f"{name} has a value for each layer, which is not supported yet",
                code="engine.key",
                path=self._path,
                field=name,
            )
        if not isinstance(value, kind):
            raise FormatError(
                f"{name} is {value!r}, which is of another type", code="engine.key", path=self._path, field=name
            )
        return value

    def _wrong(self, key: str, what: str) -> FormatError:
        name = self.name(key)
        return FormatError(f"{name} {what}", code="engine.key", path=self._path, field=name)

    def refuse(self, key: str, what: str) -> FormatError:
        """The error for a value that contradicts another."""
        return self._wrong(key, what)
