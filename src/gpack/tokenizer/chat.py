"""Chat templates: messages to a prompt, and the prompt to token ids in which only the template's text is control.

A model brings its template, a program in the Jinja language by somebody unknown. It is parsed by Jinja and then
evaluated here (package `template`) over plain values: there is no object in it to reach out from, it changes nothing
in place, and every loop, call and new string is charged to a budget, so that any template ends in bounded time and
memory, with text or with an error.

What a user types must not become a control token, what the template's author wrote must. So each character of the
rendered text knows its origin (`Prompt.mask`): strings in the template are trusted, strings in messages, tools,
documents and other variables are not, and whatever a template does to them (strip, split, slice, join, replace,
filters, macros) carries the origin along. Where an operation cannot tell, the result is untrusted. A control token is
one where all of its characters are trusted; the text between is encoded in one piece, so that an ordinary prompt has
the very ids that the whole text would have.

Trusted as well are the special tokens that the caller passes by name, and the roles of `ROLES`: templates write
`'<|' + message.role + '|>'`. Limits of the mechanism: what passes through `tojson`, `repr` and number formatting is
untrusted throughout, the template's own strings in it too. Tokens of the user-defined type (`<think>` in many
vocabularies) are ordinary vocabulary for every tokenizer, wherever they stand, in a user's text as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import FormatError, GpackError, UnsupportedError, UsageError, install
from .template import text
from .template.budget import Budget, ChatLimits, limit

if TYPE_CHECKING:
    from datetime import datetime

    from .tokenizer import GbtTokenizer

__all__ = ["RESERVED", "ROLES", "ChatLimits", "ChatTemplate", "Prompt", "encode_chat", "special_tokens"]

# Roles as templates know them. Any other role is a user's text like any other.
ROLES = frozenset(
    (
        "system",
        "developer",
        "user",
        "assistant",
        "tool",
        "function",
        "ipython",
        "model",
        "observation",
        "environment",
        "tool_response",
    )
)
# Names that are not a user's to set as variables of a template: the prompt gives them, or they say how it is made.
RESERVED = frozenset(
    (
        "messages",
        "tools",
        "add_generation_prompt",
        "special_tokens",
        "now",
        "add_special",
        "parse_special",
        "model",
        "prompt",
        "tokenizer",
        "template",
        "limits",
        "self",
    )
)
_MAX_INPUT = 1 << 28
_MAX_DEPTH = 48  # of messages, tools and other input


@dataclass(frozen=True)
class Prompt:
    """A rendered prompt.

    Attributes:
        text: The text.
        mask: One byte for each of its characters: 1 where the template's author wrote it.
    """

    text: str
    mask: bytes

    def runs(self) -> list[tuple[str, bool]]:
        """The text, cut where the origin changes: (part, whether it is the template's)."""
        return text.runs(text.Text(self.text, self.mask))


class ChatTemplate:
    """A model's chat template, parsed.

    Args:
        source: The template.
        limits: What one rendering may spend.

    Raises:
        FormatError: `chat.template` where it is not Jinja, `chat.unsupported` where it includes, imports or extends
            other templates, `chat.limit` where it is too long or nested too deeply.
        UnsupportedError: `chat.no_jinja` where Jinja is not installed.
    """

    def __init__(self, source: str | bytes | memoryview, *, limits: ChatLimits | None = None) -> None:
        try:
            from .template.functions import names
            from .template.parse import parse
        except ImportError as error:
            raise UnsupportedError(
                "chat templates need the package jinja2", code="chat.no_jinja", hint=install("chat")
            ) from error
        try:
            self.source = source if isinstance(source, str) else bytes(source).decode()
        except UnicodeDecodeError as error:
            raise _error(f"it is not UTF-8: {error}", "chat.template") from error
        self.limits = limits or ChatLimits()
        self._names = names
        self._body = parse(self.source)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        special_tokens: Mapping[str, str | Sequence[str]] | None = None,
        now: datetime | None = None,
        **variables: Any,
    ) -> Prompt:
        """The prompt.

        Args:
            messages: Dicts of what JSON knows, with `role` and mostly `content`.
            add_generation_prompt: Let the prompt end where the assistant begins.
            tools: JSON schemas of functions.
            documents: Documents to answer from.
            special_tokens: Texts of special tokens by the names that templates use: `bos_token`, `eos_token`, ...;
                lists of texts too (`additional_special_tokens`).
            now: What the template takes for the present; None: the clock.
            variables: Whatever else the template knows (`enable_thinking`, ...).

        Raises:
            UsageError: `chat.input` where a value is nothing that JSON knows, `chat.raised` where the template
                refuses the messages.
            FormatError: `chat.limit` where it takes too long or makes too much, `chat.unsafe` where it reaches for
                what is none of its business, `chat.render` for any other fault of the template.
        """
        given = _Input()
        context: dict[str, Any] = {name: given.value(value, name) for name, value in variables.items()}
        context |= {
            "messages": _with_roles(given.value(messages, "messages")),
            "tools": given.value(tools, "tools"),
            "documents": given.value(documents, "documents"),
            "add_generation_prompt": add_generation_prompt,
        }
        for name, token in (special_tokens or {}).items():
            context[name] = text.trusted(token) if isinstance(token, str) else [text.trusted(one) for one in token]
        budget = Budget(self.limits, given.size)
        try:
            return self._run(budget, context, now)
        except GpackError:
            raise
        except RecursionError as error:
            raise limit("the template's calls or values are nested too deeply") from error
        except MemoryError as error:
            raise limit("the template takes more memory than there is") from error
        except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError) as error:
            raise _error(f"{error}", "chat.render") from error

    def _run(self, budget: Budget, context: dict[str, Any], now: datetime | None) -> Prompt:
        from .template.frame import Frame, Run

        run = Run(budget, self._names(now))
        self._body(Frame(run, context))
        whole = text.concat(run.printed)
        return Prompt(text.plain(whole), text.mask_of(whole))


def encode_chat(
    tokenizer: GbtTokenizer,
    template: ChatTemplate,
    messages: Sequence[Mapping[str, Any]],
    *,
    add_special: bool = False,
    **options: Any,
) -> list[int]:
    """The ids of the prompt that a template makes of messages.

    Control tokens come from trusted text alone; typed ones are encoded as the characters that they are.

    Args:
        tokenizer: The tokeniser; the template knows its special tokens by name.
        template: The template, mostly `ChatTemplate(tokenizer.chat_template)`.
        messages: As `ChatTemplate.render` takes them, like the options.
        add_special: Add the tokeniser's own first and last token; most templates write them themselves.

    Raises:
        GpackError: As `ChatTemplate.render` and `Tokenizer.encode_marked` do.
    """
    options.setdefault("special_tokens", special_tokens(tokenizer))
    prompt = template.render(messages, **options)
    return tokenizer.encode_marked(prompt.text, prompt.mask, add_special=add_special)


def special_tokens(tokenizer: GbtTokenizer) -> dict[str, str | list[str]]:
    """The tokeniser's special tokens by the names that templates use, as `transformers` binds them."""
    settings = tokenizer.settings
    ids = {"bos_token": settings.bos_id, "eos_token": settings.eos_id, "unk_token": settings.unknown_id}
    found: dict[str, str | list[str]] = dict(settings.named_texts)
    for name, token_id in (settings.named_ids | ids).items():
        if token_id >= 0:
            found[name] = tokenizer.token(token_id).decode("utf-8", "replace")
    return found


class _Input:
    """Takes over what the caller passes, as plain values of the template, and counts it."""

    def __init__(self) -> None:
        self.size = 0

    def value(self, given: object, place: str, depth: int = 0) -> Any:
        """The value.

        Raises:
            UsageError: `chat.input`.
        """
        self.size += 1
        if self.size > _MAX_INPUT:
            raise UsageError(f"the input has more than {_MAX_INPUT} values and characters", code="chat.input")
        if isinstance(given, int) and given.bit_length() > 1024:
            raise UsageError(f"{place} is an integer of {given.bit_length()} bits", code="chat.input")
        if given is None or isinstance(given, (bool, int, float)):
            return given
        if isinstance(given, str):
            self.size += len(given)
            return text.plain(given)
        if depth >= _MAX_DEPTH:
            raise UsageError(f"{place} is nested more than {_MAX_DEPTH} deep", code="chat.input")
        if isinstance(given, Mapping):
            return {self._key(key, place): self.value(item, f"{place}.{key}", depth + 1) for key, item in given.items()}
        if isinstance(given, (list, tuple)):
            return [self.value(item, f"{place}[{at}]", depth + 1) for at, item in enumerate(given)]
        raise UsageError(f"{place} is a {type(given).__name__}, which JSON does not know", code="chat.input")

    def _key(self, key: object, place: str) -> str:
        if not isinstance(key, str):
            raise UsageError(f"{place} has a key that is no string: {key!r}", code="chat.input")
        self.size += len(key)
        return text.plain(key)


def _with_roles(messages: Any) -> Any:
    """The messages, with the roles that templates know as trusted text."""
    if not isinstance(messages, list):
        return messages
    for message in messages:
        if isinstance(message, dict) and message.get("role") in ROLES:
            message["role"] = text.trusted(message["role"])
    return messages


def _error(message: str, code: str) -> FormatError:
    return FormatError(message, code=code, section="chat template")
