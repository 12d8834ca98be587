"""`config.json` of a Hugging Face model, in its old and new spellings, with the values checked as they are read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

from ..container.strict_json import shorten
from ..errors import FormatError

_MAX_COUNT = (1 << 32) - 1
_MAX_FLOAT = 3.4028234e38


class HfConfig:
    """The configuration of the text model: `text_config` where there is one, else the whole.

    Attributes:
        outer: The file's object.
        values: The text model's part; keys that it lacks are looked up in `outer`.
        path: For messages.
    """

    def __init__(self, outer: Mapping[str, Any], path: Path) -> None:
        self.path = path
        self.outer = outer
        inner = outer.get("text_config")
        self.is_wrapped = isinstance(inner, dict)
        self.values: dict[str, Any] = {**outer, **inner} if isinstance(inner, dict) else dict(outer)
        self.rope = self._rope()

    @property
    def model_type(self) -> str:
        """The text model's type, such as qwen3_moe; empty where nothing tells."""
        said = self.values.get("model_type")
        return said if isinstance(said, str) else ""

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the model's classes, such as LlamaForCausalLM."""
        said = self.values.get("architectures")
        return tuple(name for name in said if isinstance(name, str)) if isinstance(said, list) else ()

    def count(self, *names: str) -> int | None:
        """A number that counts something, under the first of these names that has one; None where none has.

        Raises:
            FormatError: `hf.config`: it is no count.
        """
        for name in names:
            value = self.values.get(name)
            if value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MAX_COUNT:
                raise self.fault(name, f"it is {shorten(value)}, no count")
            return value
        return None

    def need(self, *names: str) -> int:
        """As `count`, but positive and there.

        Raises:
            FormatError: `hf.config`.
        """
        value = self.count(*names)
        if not value:
            raise self.fault(names[0], "it is missing or 0, and the import needs it")
        return value

    def number(self, *names: str) -> float | None:
        """A finite number; None where there is none.

        Raises:
            FormatError: `hf.config`: it is no finite number.
        """
        for name in names:
            if self.values.get(name) is not None:
                return finite(self.values[name], name, self)
        return None

    def strings(self, name: str) -> list[str] | None:
        """A list of strings; None where there is none.

        Raises:
            FormatError: `hf.config`: it is something else.
        """
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.fault(name, f"it is {shorten(value)}, no list of strings")
        return value

    def fault(self, field: str, message: str) -> FormatError:
        """The error of a value."""
        return FormatError(message, code="hf.config", path=self.path, field=field)

    def _rope(self) -> dict[str, Any]:
        """The rotary embedding's parameters: `rope_parameters`, or the older `rope_scaling` and `rope_theta`."""
        found: dict[str, Any] = {}
        for name in ("rope_scaling", "rope_parameters"):
            value = self.values.get(name)
            if value is None:
                continue
            if not isinstance(value, dict):
                raise self.fault(name, f"it is {shorten(value)}, no object")
            # Models whose layers differ have one object for each type of layer.
            found |= value.get("full_attention", value)
        if "rope_type" not in found and "type" in found:
            found["rope_type"] = found["type"]
        for name in ("rope_theta", "partial_rotary_factor"):
            if found.get(name) is None and self.values.get(name) is not None:
                found[name] = self.values[name]
        return found

    def rope_number(self, name: str) -> float | None:
        """A finite number of the rotary embedding's parameters; None where there is none.

        Raises:
            FormatError: `hf.config`.
        """
        value = self.rope.get(name)
        return None if value is None else finite(value, f"rope_parameters.{name}", self)


def finite(value: Any, field: str, config: HfConfig) -> float:
    """The value, which is a number that a float32 can hold.

    Raises:
        FormatError: `hf.config`: it is none.
    """
    if not is_finite(value):
        raise config.fault(field, f"it is {shorten(value)}, no finite number")
    return float(value)


def is_finite(value: Any) -> TypeGuard[int | float]:
    """Whether a value is a number that a float32 can hold."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _MAX_FLOAT
