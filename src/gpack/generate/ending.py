"""Where a text ends: the model's own tokens for that, and the caller's stop strings."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ..errors import UsageError
from ..tokenizer import Tokenizer

# Metadata keys that name a token which ends a text, a turn or a message.
_KEYS = tuple(f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom"))
# Control tokens that end a turn by their name, whatever the metadata say of them.
_NAMES = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|return|>",
    "<|call|>",
    "<end_of_utterance>",
    "<EOT>",
    "[EOT]",
    "[EOS]",
    "<turn|>",
    "<｜end▁of▁sentence｜>",
)
# Ends a turn, except where other names do and it only ends one part of the turn.
_END, _RETURN = "<|end|>", "<|return|>"


def end_tokens(tokenizer: Tokenizer, lookup: Callable[[str], Any]) -> frozenset[int]:
    """The tokens that end a text.

    Args:
        tokenizer: Knows the control tokens by name.
        lookup: Gives the value of a metadata key, None where there is none.
    """
    ids = [tokenizer.eos_id, *(lookup(key) for key in _KEYS)]
    found = {token_id for token_id in ids if isinstance(token_id, int) and 0 <= token_id < len(tokenizer)}
    names = _NAMES if tokenizer.token_id(_RETURN) is not None else (*_NAMES, _END)
    named = (tokenizer.token_id(name) for name in names)
    # A control token shows nothing when special tokens are skipped; the same letters as ordinary text do.
    return frozenset(found | {i for i in named if i is not None and not tokenizer.piece(i, skip_special=True)})


class StopStrings:
    """Text that grows and ends before the first of some strings.

    What may be the beginning of such a string is held back until more text tells.

    Attributes:
        found: The string that ended the text; None so far.
        held: What is held back.
    """

    def __init__(self, strings: Iterable[str]) -> None:
        """Takes the strings.

        Raises:
            UsageError: `usage`: one of them is empty.
        """
        self._strings = tuple(dict.fromkeys([strings] if isinstance(strings, str) else strings))
        if "" in self._strings:
            raise UsageError("a stop string is empty", code="usage", field="stop")
        self.found: str | None = None
        self.held = ""

    def push(self, text: str) -> str:
        """Adds text; returns what is certain now. Nothing follows a stop string."""
        if self.found is not None or not text:
            return ""
        if not self._strings:
            return text
        text = self.held + text
        # The first in the text counts; of two that begin at one place the longer one, which says more.
        places = [(text.find(string), -len(string), string) for string in self._strings if string in text]
        if places:
            at, _, self.found = min(places)
            self.held = ""
            return text[:at]
        keep = max(_overlap(text, string) for string in self._strings)
        self.held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """What was held back: no more text comes."""
        rest, self.held = self.held, ""
        return rest


def _overlap(text: str, string: str) -> int:
    """How many characters at the end of the text are the beginning of the string."""
    most = min(len(text), len(string) - 1)
    return next((n for n in range(most, 0, -1) if text.endswith(string[:n])), 0)
