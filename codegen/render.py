"""Jinja2, set up once for all emitters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jinja2

_ENVIRONMENT = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).with_name("templates")),
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
    undefined=jinja2.StrictUndefined,
    autoescape=False,  # noqa: S701 - the output is source code, not HTML
)


def render(template: str, **context: Any) -> str:
    """The text of `templates/<template>` with these names filled in."""
    return _ENVIRONMENT.get_template(template).render(**context)
