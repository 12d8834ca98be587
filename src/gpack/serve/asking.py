"""What all protocols ask of a model: sampling, form and tools, made of their fields."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import GpackError, UsageError
from ..generate.request import Request
from ..generate.sampling import Sampling
from ..generate.writing import Rules
from ..tokenizer.chat import RESERVED
from .answer import Answer
from .failures import Failure, bad
from .fields import only
from .grammar import Grammar
from .markup import CALL_END, Reader, call_grammar, either_grammar
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
        made = made if self._rules is None else self._rules.masked(made)
        if np.isneginf(made).all():
            raise UsageError("logit_bias leaves no token that may come next", code="serve.bias", field="logit_bias")
        return made

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
        form: `response_format` of OpenAI: a JSON schema, any JSON object, a regular expression, a grammar;
            `form_field`: where it stands.
        variables: For the chat template.
        one_call: The answer ends with its first call of a tool.
        strict: Names of tools whose calls must be as their parameters say, even where none is demanded.
        effort: How much the model should reason, as clients say it; `effort_field`: where they did.
        thinks: Whether it should reason at all.
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
    form_field: str = "response_format"
    bias: Mapping[str, float] | None = None
    variables: dict[str, Any] = field(default_factory=dict)
    ignore_end: bool = False
    one_call: bool = False
    strict: frozenset[str] = frozenset()
    effort: str | None = None
    effort_field: str = "reasoning_effort"
    thinks: bool | None = None


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
        prompt = served.chat(ask.messages, tools or None, template_variables(served, ask))
        grammar = _grammar(served, ask, tools)
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


def template_variables(served: Served, ask: Ask) -> dict[str, Any]:
    """The variables for the chat template, with what was said of reasoning.

    Raises:
        Failure: The template knows nothing of what is asked for.
    """
    made = dict(ask.variables)
    for name, value in ask.variables.items():
        if not served.mentions(name) and not (name == "enable_thinking" and value is False):
            raise bad(
                f"the model's chat template knows no variable {name!r}",
                f"chat_template_kwargs.{name}",
                "unknown_parameter",
            )
    thinks, effort = ask.thinks, ask.effort
    if effort is not None and served.mentions("reasoning_effort"):
        made.setdefault("reasoning_effort", effort)
    elif effort is not None:
        thinks = effort != "none" if served.style.thinks or effort not in ("none", "minimal") else False
    if thinks is not None:
        if served.mentions("enable_thinking"):
            made.setdefault("enable_thinking", thinks)
        elif thinks != served.style.thinks:
            what = "does not reason" if thinks else "always reasons"
            raise bad(f"the model {what}: its chat template knows no such choice", ask.effort_field)
    return made


def _grammar(served: Served, ask: Ask, tools: list[dict[str, Any]]) -> Grammar | None:
    """What the answer must look like: that of its tools, of `response_format`, or either."""
    form, field = ask.form, ask.form_field
    kind = None if form is None else form.get("type")
    if form is not None and kind == "text":
        only(form, ("type",), field)
        form = None
    if tools and ask.choice != "auto":
        return served.grammars.lark(call_grammar(served.style, tools), field="tool_choice")
    if tools and (form is not None or ask.strict):
        if kind in ("regex", "grammar"):
            raise bad(f"tools are not offered together with a {field} of type {kind!r}", field)
        schema = None if form is None else _schema(form, field)[0]
        return served.grammars.lark(either_grammar(served.style, tools, ask.strict, schema), field="tools")
    if form is None:
        return None
    for name, compile_ in (("regex", served.grammars.regex), ("grammar", served.grammars.lark)):
        written = form.get(name, form.get("value"))
        if kind == name and isinstance(written, str):
            only(form, ("type", name, "value"), field)
            return compile_(written, field=field)
    schema, place = _schema(form, field)
    return served.grammars.json(schema, field=place)


def _schema(form: dict[str, Any], field: str) -> tuple[Any, str]:
    """The JSON schema of `response_format`, and where it stands."""
    if form.get("type") == "json_object":
        only(form, ("type",), field)
        return {"type": "object"}, field
    if form.get("type") != "json_schema":
        what = "there are text, json_object, json_schema, regex and grammar"
        raise bad(f"{field} is of type {form.get('type')!r}; {what}", f"{field}.type")
    wrapped, place = form, field
    if "json_schema" in form:
        only(form, ("type", "json_schema"), field)
        wrapped, place = form["json_schema"], f"{field}.json_schema"
    schema = wrapped.get("schema") if isinstance(wrapped, dict) else None
    if not isinstance(schema, dict | bool):
        raise bad(f"{field} has no schema", f"{place}.schema")
    only(wrapped, ("type", "name", "description", "schema", "strict"), place)
    return schema, f"{place}.schema"


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
