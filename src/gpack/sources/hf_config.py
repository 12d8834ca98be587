"""`config.json` of a Hugging Face model, in its old and new spellings, with the values checked as they are read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

from ..container.strict_json import shorten
from ..errors import FormatError
from .hf_defaults import DEFAULTS

_MAX_COUNT = (1 << 32) - 1
_MAX_FLOAT = 3.4028234e38


class HfConfig:
    """The configuration of the text model: `text_config` where there is one, else the whole.

    Attributes:
        outer: The file's object.
        values: The text model's part; keys that it lacks are looked up in `outer`, then among its class's defaults.
        path: For messages.
        problems: Values that turned out to be of another kind than was asked for, one sentence each.
    """

    def __init__(self, outer: Mapping[str, Any], path: Path, *, strict: bool = False) -> None:
        """Sorts the values; nothing is checked before it is asked for.

        Args:
            strict: A value of another kind than is asked for is an error; else it becomes a problem, and is as if it
                were not there.

        Raises:
            FormatError: `hf.config`: strict, and the rotary embedding's parameters are none.
        """
        self.path = path
        self.outer = outer
        self.problems: list[str] = []
        self._strict = strict
        inner = outer.get("text_config")
        self.is_wrapped = isinstance(inner, dict)
        said: dict[str, Any] = {**outer, **inner} if isinstance(inner, dict) else dict(outer)
        self.model_type = said["model_type"] if isinstance(said.get("model_type"), str) else ""
        self.values: dict[str, Any] = {**DEFAULTS.get(self.model_type, {}), **said}
        self.rope = self._rope()

    def strict(self) -> HfConfig:
        """The same configuration, whose odd values are errors.

        Raises:
            FormatError: `hf.config`: the rotary embedding's parameters are none.
        """
        return HfConfig(self.outer, self.path, strict=True)

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the model's classes, such as LlamaForCausalLM."""
        said = self.values.get("architectures")
        return tuple(name for name in said if isinstance(name, str)) if isinstance(said, list) else ()

    def count(self, *names: str) -> int | None:
        """A number that counts something, under the first of these names that has one; None where none has.

        Of a list that says the same for each layer, the number that it repeats; 2816.0 is 2816.

        Raises:
            FormatError: `hf.config`: it is no count.
        """
        for name in names:
            value = self.values.get(name)
            if value is None:
                continue
            if isinstance(value, list) and value and all(type(item) is int and item == value[0] for item in value):
                value = value[0]
            if (found := _whole(value)) is not None:
                return found
            self.refuse(name, f"it is {_listed(value)}, no count")
            return None
        return None

    def count_or_list(self, *names: str) -> int | list[int] | None:
        """As `count`, or one number for each layer.

        Raises:
            FormatError: `hf.config`: it is neither.
        """
        value = next((self.values[name] for name in names if self.values.get(name) is not None), None)
        if isinstance(value, list) and value and len(set(map(repr, value))) > 1:
            counts = [_whole(item) for item in value]
            if None not in counts:
                return [count for count in counts if count is not None]
        return self.count(*names)

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
            FormatError: `hf.config`: it is not a finite number.
        """
        for name in names:
            if self.values.get(name) is not None:
                return self._finite(self.values[name], name)
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
            self.refuse(name, f"it is {shorten(value)}, no list of strings")
            return None
        return value

    def fault(self, field: str, message: str) -> FormatError:
        """The error of a value."""
        return FormatError(message, code="hf.config", path=self.path, field=field)

    def refuse(self, field: str, message: str) -> None:
        """Notes what is wrong with a value that is then left out; in a strict configuration that is an error.

        Raises:
            FormatError: `hf.config`.
        """
        if self._strict:
            raise self.fault(field, message)
        self.problems.append(f"{field} of {self.path.name}: {message}")

    def _rope(self) -> dict[str, Any]:
        """The rotary embedding's parameters: `rope_parameters`, or the older `rope_scaling` and `rope_theta`.

        Raises:
            FormatError: `hf.config`: there is something else than an object.
        """
        found: dict[str, Any] = {}
        for name in ("rope_scaling", "rope_parameters"):
            value = self.values.get(name)
            if value is None:
                continue
            if not isinstance(value, dict):
                self.refuse(name, f"it is {shorten(value)}, no object")
                continue
            # Models whose layers differ have one object for each type of layer.
            part = value.get("full_attention")
            if part is not None and not isinstance(part, dict):
                self.refuse(f"{name}.full_attention", f"it is {shorten(part)}, no object")
                continue
            plain = {key: item for key, item in value.items() if not key.endswith("_attention")}
            found |= plain if part is None else part
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
        return None if value is None else self._finite(value, f"rope_parameters.{name}")

    def _finite(self, value: Any, field: str) -> float | None:
        if is_finite(value):
            return float(value)
        self.refuse(field, f"it is {shorten(value)}, not a finite number")
        return None


def is_finite(value: Any) -> TypeGuard[int | float]:
    """Whether a value is a number that a float32 can hold."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _MAX_FLOAT


def _whole(value: Any) -> int | None:
    """The value as a count; None where it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MAX_COUNT:
        return None
    return int(value) if value == int(value) else None


def _listed(value: Any) -> str:
    """A value for a message; a short list with what is in it."""
    if isinstance(value, list) and len(value) <= 8:
        return f"the list [{', '.join(map(shorten, value))}]"
    return shorten(value)
