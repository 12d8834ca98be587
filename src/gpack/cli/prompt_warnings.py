"""What a person should know of a prompt: what does not reach the model, and tokens that stand twice at its edges."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..model import GuildModel
    from ..tokenizer import Tokenizer


def lost_parts(model: GuildModel, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]) -> Iterator[str]:
    """Warnings of a system text and of variables of which nothing reaches the prompt, one sentence each.

    Args:
        messages: What the chat template gets.
        variables: What else it gets, by `--template-var`.

    Raises:
        GpackError: As `ChatTemplate.render`.
    """
    template = model.chat_template
    if template is None:
        return
    from ..tokenizer.chat import special_tokens

    tokens = special_tokens(model.tokenizer)
    text = template.render(messages, add_generation_prompt=True, special_tokens=tokens, **variables).text
    for message in messages:
        said = message.get("content")
        if message.get("role") != "system" or not isinstance(said, str) or not said.strip():
            continue
        if not any(line.strip() and line.strip() in text for line in said.splitlines()):
            yield "the chat template leaves the system text out: the model does not see it"
    for name in variables:
        if not re.search(rf"\b{re.escape(name)}\b", template.source):
            yield f"the chat template knows no {name}: --template-var {name}=... changes nothing"


def doubled_edges(tokenizer: Tokenizer, ids: Sequence[int]) -> Iterator[str]:
    """Warnings of a first or last token of texts that stands twice at the prompt's edge."""
    settings = tokenizer.settings
    for name, token, edge in (("first", settings.bos_id, ids[:2]), ("last", settings.eos_id, ids[-2:])):
        if token >= 0 and list(edge) == [token, token]:
            shown = tokenizer.token(token).decode("utf-8", "replace")
            yield f"the {name} token {shown} stands twice: the text or the template writes what is added anyway"
