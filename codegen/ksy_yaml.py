"""The grammar's YAML, as Kaitai's format gallery writes it."""

from __future__ import annotations

import textwrap
from typing import Any

import yaml

DOC_WIDTH = 96
Node = dict[str, Any]


class Hex(int):
    """A number that YAML shows in hexadecimal."""


class Block(str):
    """A text that YAML shows as a literal block."""


class Dumper(yaml.SafeDumper):
    """YAML as Kaitai's format gallery writes it: block style, lists indented."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        """Indents lists inside mappings."""
        super().increase_indent(flow, False)


Dumper.add_representer(Hex, lambda dumper, item: dumper.represent_scalar("tag:yaml.org,2002:int", f"0x{item:x}"))
Dumper.add_representer(Block, lambda dumper, item: dumper.represent_scalar("tag:yaml.org,2002:str", item, style="|"))


def dump(node: Node) -> str:
    """The node as YAML, with a blank line between top-level keys and between types."""
    parts = []
    for key, value in node.items():
        if key in ("types", "enums"):
            items = (textwrap.indent(_yaml({name: item}), "  ") for name, item in value.items())
            parts.append(f"{key}:\n" + "\n".join(items))
        else:
            parts.append(_yaml({key: value}))
    return "\n".join(parts)


def _yaml(node: Node) -> str:
    return yaml.dump(node, Dumper=Dumper, sort_keys=False, width=10_000, allow_unicode=True)


def doc_text(text: str) -> str:
    """A doc text: short ones on one line, others as a wrapped block."""
    paragraphs = [textwrap.fill(part, DOC_WIDTH) for part in text.split("\n\n")]
    joined = "\n\n".join(paragraphs)
    return Block(joined + "\n") if "\n" in joined else joined
