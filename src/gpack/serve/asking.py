"""What all protocols ask of a model: sampling, form and tools, made of their fields."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import GpackError
from ..generate.request import Request
from ..generate.sampling import Sampling
from ..generate.writing import Rules
from ..tokenizer.chat import RESERVED
from .answer import Answer
from .failures import Failure, bad
from .grammar import Grammar
from .markup import CALL_END, Reader, call_grammar
from .served import Prompt, Served

Floats = npt.NDArray[np.float32]
MOST_ANSWERS = 64  # that one request may ask for
_MOST_STOPS = 16
_SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repeat_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
)


def sampling_of(asked: Any) -> Sampling:
    """How tokens are chosen: the request's fields, and for the rest the defaults of `guild run`.

    Raises:
        Failure: A value makes no sense.
    """
    given = {name: value for name in _SAMPLING if (value := getattr(asked, name, None)) is not None}
    if "seed" in given:
        given["seed"] &= (1 << 64) - 1  # clients send negative ones too
    try:
        return Sampling(**given)
    except GpackError as error:
        raise Failure.of(error, error.field) from error


def stops_of(stop: str | Sequence[str] | None, param: str = "stop") -> tuple[str, ...]:
    """Stop strings.

    Raises:
        Failure: One is empty, or there are too many.
    """
    found = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if "" in found or len(found) > _MOST_STOPS:
        raise bad(f"{param} has an empty text, or more than {_MOST_STOPS}", param)
    return found


def within(value: int | None, least: int, most: int, param: str) -> int | None:
    """A number in its bounds.

    Raises:
        Failure: It is beyond them.
    """
    if value is not None and not least <= value <= most:
        raise bad(f"{param} is {value}, not from {least} to {most}", param)
    return value


def variables_of(given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Variables of the chat template.

    Raises:
        Failure: One is not a client's to set: what is trusted in a prompt would follow from it.
    """
    for name in given or ():
        if name in RESERVED or not name.isidentifier():
            raise bad(f"{name!r} is not a variable that can be set", f"chat_template_kwargs.{name}")
    return dict(given or {})


class Biased:
    """Adds to the logits of some tokens: `generate.writing.Rules`, before those of a grammar."""

    def __init__(self, bias: Mapping[int, float], rules: Rules | None) -> None:
        self._ids, self._values, self._rules = list(bias), np.array(list(bias.values()), np.float32), rules

    def masked(self, logits: Floats) -> Floats:
        """The logits, changed."""
        made = logits.copy()
        made[self._ids] += self._values
        return made if self._rules is None else self._rules.masked(made)

    def take(self, token: int) -> None:
        """Notes a token."""
        if self._rules is not None:
            self._rules.take(token)


def bias_of(given: Mapping[str, float] | None, n_vocab: int) -> dict[int, float]:
    """What is added to logits, by token.

    Raises:
        Failure: A key is no token, or a value not from -100 to 100.
    """
    found = {}
    for key, value in (given or {}).items():
        if not re.fullmatch(r"\d{1,9}", key) or int(key) >= n_vocab:
            raise bad(f"logit_bias has {key!r}, which is no token of the model", "logit_bias")
        if not -100 <= value <= 100:
            raise bad(f"logit_bias has {value} for {key}, not from -100 to 100", "logit_bias")
        found[int(key)] = float("-inf") if value == -100 else value
    return found


@dataclass
class Ask:
    """A conversation that is to be gone on with.

    Attributes:
        messages: As chat templates take them.
        tools: In OpenAI's form; `choice`: `auto`, `none`, `required`, or the name of one.
        form: `response_format` of OpenAI: a JSON schema, any JSON object, a regular expression, a grammar.
        variables: For the chat template.
        one_call: The answer ends with its first call of a tool.
    """

    messages: list[dict[str, Any]]
    sampling: Sampling
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    n: int = 1
    logprobs: int | None = None
    tools: list[dict[str, Any]] = field(default_factory=list)
    choice: str = "auto"
    form: dict[str, Any] | None = None
    bias: Mapping[str, float] | None = None
    variables: dict[str, Any] = field(default_factory=dict)
    ignore_end: bool = False
    one_call: bool = False


def prepare(served: Served, ask: Ask, timeout: float) -> list[Answer]:
    """The answers of a request, submitted: prompt, tokens and grammar are made in the caller's thread.

    Raises:
        Failure: The request makes no sense, or there is no room for it.
    """
    try:
        tools = [] if ask.choice == "none" else ask.tools
        if tools and served.style.calls == "none":
            raise bad("the model's chat template knows no tools that this server can read back", "tools")
        if tools and ask.choice not in ("auto", "required"):
            tools = [tool for tool in tools if tool["function"]["name"] == ask.choice]
            if not tools:
                raise bad(f"tool_choice names {ask.choice!r}, which is not among the tools", "tool_choice")
        prompt = served.chat(ask.messages, tools or None, ask.variables)
        forced = call_grammar(served.style, tools) if tools and ask.choice != "auto" else None
        grammar = served.grammars.lark(forced, field="tool_choice") if forced else _form(served, ask.form)
        if tools and ask.one_call and served.style.calls == "marked":
            ask = replace(ask, stop=(*ask.stop, CALL_END))
        return start(served, prompt, ask, grammar, timeout, has_tools=bool(tools))
    except GpackError as error:
        raise context_failure(error, served) from error


def start(
    served: Served,
    prompt: Prompt,
    ask: Ask,
    grammar: Grammar | None,
    timeout: float,
    *,
    has_tools: bool = False,
    is_text: bool = False,
) -> list[Answer]:
    """Submits the answers to a prompt; `is_text`: they go on with it, and no mark means anything.

    Raises:
        GpackError: As `Scheduler.submit`.
    """
    answers: list[Answer] = []
    bias = bias_of(ask.bias, served.engine.n_vocab)
    for number in range(ask.n):
        sampling = ask.sampling
        if number and sampling.seed is not None:
            sampling = Sampling(**{**vars(sampling), "seed": (sampling.seed + number) & ((1 << 64) - 1)})
        request = Request(
            ids=prompt.ids,
            max_tokens=ask.max_tokens,
            sampling=sampling,
            stop=ask.stop,
            logprobs=ask.logprobs,
            ignore_end=ask.ignore_end,
            continues=is_text,
            keep_at=prompt.keep_at,
        )
        reader = None if is_text else Reader(served.style, is_thinking=prompt.is_thinking, has_tools=has_tools)
        rules: Rules | None = None if grammar is None else grammar.copy() if number else grammar
        answer = Answer(served, request, reader=reader, timeout=timeout)
        answer.prepare(Biased(bias, rules) if bias else rules, answers[0] if answers else None)
        answers.append(answer)
    served.scheduler.submit(*[answer.job for answer in answers if answer.job is not None])
    return answers


def _form(served: Served, form: dict[str, Any] | None) -> Grammar | None:
    """The grammar of `response_format`."""
    kind = None if form is None else form.get("type")
    if form is None or kind == "text":
        return None
    if kind == "json_object":
        return served.grammars.json(True, field="response_format")
    if kind == "json_schema":
        wrapped = form.get("json_schema", form)
        schema = wrapped.get("schema") if isinstance(wrapped, dict) else None
        if not isinstance(schema, dict | bool):
            raise bad("response_format has no schema", "response_format.json_schema.schema")
        return served.grammars.json(schema, field="response_format.json_schema.schema")
    for name, compile_ in (("regex", served.grammars.regex), ("grammar", served.grammars.lark)):
        written = form.get(name, form.get("value"))
        if kind == name and isinstance(written, str):
            return compile_(written, field="response_format")
    raise bad(
        f"response_format is of type {kind!r}; there are text, json_object, json_schema, regex and grammar",
        "response_format.type",
    )


def context_failure(error: GpackError, served: Served) -> Failure:
    """An error as clients know it; of a prompt that is too long both numbers, in the words that they look for."""
    if error.code != "engine.context":
        return Failure.of(error)
    found = re.search(r"the prompt has (\d+) tokens", error.message)
    length = found[1] if found else "more"
    return Failure(
        400,
        f"This model's maximum context length is {served.n_ctx} tokens. However, your messages resulted in {length}"
        " tokens. Please reduce the length of the messages.",
        "context_length_exceeded",
        "messages",
    )


def arguments_of(text: Any) -> Any:
    """The arguments of a call as templates take them: an object, where the text is one."""
    if not isinstance(text, str):
        return text
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return found if isinstance(found, dict) else text
