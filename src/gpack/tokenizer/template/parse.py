"""Templates parsed by Jinja itself, set up as Hugging Face sets it up, and turned into a function."""

from __future__ import annotations

from functools import lru_cache

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser

from ...errors import FormatError
from .budget import limit
from .statements import Statement, body

_MAX_SOURCE = 1 << 18  # characters; the longest templates in use have some 30,000


class _GenerationTag(Extension):
    """`{% generation %}`: marks what an assistant wrote, for training; here it is a block like any other."""

    tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

    def parse(self, parser: Parser) -> nodes.Node:
        """Parses the block."""
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


@lru_cache(1)
def _environment() -> jinja2.Environment:
    # Nothing is rendered with it, so its autoescape has no effect.
    return jinja2.Environment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationTag])  # noqa: S701


def parse(source: str) -> Statement:
    """The function that runs a template.

    Raises:
        FormatError: `chat.template` where it is not Jinja, `chat.unsupported` where it does what no chat template
            may do, `chat.limit` where it is too long or too deeply nested.
    """
    if len(source) > _MAX_SOURCE:
        raise limit(f"the template has {len(source)} characters, more than {_MAX_SOURCE}")
    try:
        return body(_environment().parse(source).body)
    except jinja2.TemplateSyntaxError as error:
        raise FormatError(
            f"line {error.lineno}: {error.message}", code="chat.template", section="chat template"
        ) from error
    except FormatError:
        raise
    except RecursionError as error:
        raise limit("the template is nested too deeply") from error
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        raise FormatError(f"it cannot be parsed: {error}", code="chat.template", section="chat template") from error
