"""What others rely on: the layout and the vectors as they were published, and what may still change in them.

`schema/published.json` is written by `python -m codegen.vectors` and grows. What is in it neither goes nor changes: an
id of a vector keeps its verdict, a field its place, a number its meaning. A layout that changes, even by growing, has
to say so in `format.version` once `released` is true.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from codegen.model import Schema
from gpack.conformance.vectors import Vector

FILE = Path("schema") / "published.json"


class PublishedError(Exception):
    """Something that was published is gone or has changed."""


def renewed(before: str | None, schema: Schema, vectors: Iterable[Vector]) -> str:
    """The text of `schema/published.json` after this schema and these vectors.

    Args:
        before: The text as it is; None for the first.

    Raises:
        PublishedError: A published id, rule or place is gone or changed, or the version does not announce a new layout.
    """
    held: dict[str, Any] = {"released": False, "version": 0, "layout": {}, "rules": [], "vectors": {}}
    if before is not None:
        held |= json.loads(before)
    layout, verdicts = layout_of(schema), {vector.id: vector.cls or vector.expect for vector in vectors}
    rules = [rule.id for rule in schema.rules]
    faults = [*_lost("the rule", dict.fromkeys(held["rules"]), dict.fromkeys(rules))]
    faults += _lost("the vector", held["vectors"], verdicts)
    if held["released"] and layout != held["layout"]:
        faults += _lost("the layout's", held["layout"], layout)
        if schema.version <= held["version"]:
            named = ", ".join(sorted(key for key in layout if layout[key] != held["layout"].get(key)))
            faults.append(f"the layout is another ({named}): raise format.version above {held['version']}")
    if faults:
        raise PublishedError(f"{FILE}: {'; '.join(faults)}")
    made = {"released": held["released"], "version": schema.version, "layout": layout}
    made |= {"rules": rules, "vectors": dict(sorted(verdicts.items()))}
    return json.dumps(made, indent=1) + "\n"


def layout_of(schema: Schema) -> dict[str, Any]:
    """What a reader built into its code: places, numbers and names, by a name for each."""
    made: dict[str, Any] = {}
    for struct in schema.structs:
        made[struct.name] = struct.size
        made |= {f"{struct.name}.{field.name}": [field.offset, str(field.type)] for field in struct.fields}
    for enum in schema.enums:
        made |= {f"{enum.name}.{value.name}": [value.value, *value.columns.values()] for value in enum.values}
    for flags in schema.flags:
        made |= {f"{flags.name}.{bit.name}": bit.bit for bit in flags.bits}
    for section in schema.sections:
        made[f"sections.{section.name}"] = [section.kind, section.alignment]
    for sequence in schema.sequences:
        for index, part in enumerate(sequence.parts):
            made[f"{sequence.name}.{part.name}"] = [index, str(part.type), part.count, part.when or ""]
    return made


def _lost(what: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    gone = [f"{what} {key} is gone" for key in before if key not in after]
    changed = (key for key in before if key in after and before[key] != after[key])
    return gone + [f"{what} {key} was {before[key]} and is {after[key]}" for key in changed]
