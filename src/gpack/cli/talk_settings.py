"""What `/set` changes in a conversation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from .. import errors
from ..generate.sampling import Sampling

_FLOATS = {"temp": "temperature", "top-p": "top_p", "min-p": "min_p", "repeat-penalty": "repeat_penalty"}
_COUNTS = {"top-k": "top_k", "seed": "seed"}
NAMES = (*_FLOATS, *_COUNTS, "max-tokens")


@dataclass(frozen=True)
class Settings:
    """How the model answers.

    Attributes:
        max_tokens: Most tokens of an answer; None: until the context is full.
    """

    sampling: Sampling
    max_tokens: int | None

    def described(self) -> dict[str, str]:
        """Names and values, in words."""
        said = {name: getattr(self.sampling, field) for name, field in {**_FLOATS, **_COUNTS}.items()}
        said["max-tokens"] = self.max_tokens
        return {name: "(none)" if value is None else str(value) for name, value in said.items()}


def changed(settings: Settings, defaults: Settings, name: str, value: str) -> Settings:
    """The settings with another value of one of them; `default` is the value at the start.

    Raises:
        UsageError: There is no such setting, or it cannot have that value.
    """
    if name not in NAMES or not value:
        raise errors.UsageError("/set takes a name and a value", code="usage", hint=f"names: {', '.join(NAMES)}")
    field = {**_FLOATS, **_COUNTS}.get(name)
    if value == "default":
        if field is None:
            return replace(settings, max_tokens=defaults.max_tokens)
        return replace(settings, sampling=replace(settings.sampling, **{field: getattr(defaults.sampling, field)}))
    try:
        number: Any = float(value) if name in _FLOATS else int(value)
    except ValueError:
        raise errors.UsageError(f"{value!r} is no number", code="usage", field=name) from None
    if field is None:
        if number < 0:
            raise errors.UsageError(f"{name} is {value}", code="usage", field=name)
        return replace(settings, max_tokens=int(number))
    return replace(settings, sampling=replace(settings.sampling, **{field: number}))
