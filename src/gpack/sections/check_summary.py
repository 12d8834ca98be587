"""What the manifest says of the model, its tokenizer, experts and draft layers, against the sections."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from math import prod
from typing import Any

from ..container.strict_json import shorten
from ..generated.constants import ExpertFlags, GgmlType, SectionKind, ShardFlags
from .check_table import CheckedTable
from .context import Context
from .metadata import SECTION as METADATA
from .placement import ARCHITECTURE, EMBEDDING, HEAD, UNKNOWN, draft_start, is_count

_ABSENT = object()


def check_summary(context: Context, manifest: dict[str, Any]) -> None:
    """Compares the manifest's numbers with what the sections hold, as far as those could be read."""
    context.report.check("manifest.summary")
    for field, message in _faults(context, manifest):
        context.report.add("manifest.summary", "ManifestJson", field, None, f"It {message}.")


def _faults(context: Context, manifest: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for field, expected in _expected(context).items():
        part, _, name = field.partition(".")
        holder = manifest.get(part)
        if not name:
            if holder is not None:
                yield f"$.{part}", "is there, and the section is not"
        elif not isinstance(holder, dict):
            yield f"$.{part}", "is missing"
        elif expected is _ABSENT:
            if name in holder:
                yield f"$.{field}", f"is {shorten(holder[name])}, and the sections say nothing of it"
        elif holder.get(name) != expected:
            yield f"$.{field}", f"is {shorten(holder.get(name))}, the sections have {shorten(expected)}"
    said = manifest.get("experts", {}).get("shards")
    layout = context.tables.get(SectionKind.EXPERT_LAYOUT_BIN)
    if said is not None and layout is not None and said != _shards(layout):
        yield "$.experts.shards", "is not the table of shards"


def _expected(context: Context) -> dict[str, Any]:
    """What the manifest should say; a part without a field should be absent."""
    return _model(context) | _tokenizer(context) | _experts(context) | _drafts(context)


def _model(context: Context) -> dict[str, Any]:
    expected: dict[str, Any] = {}
    if SectionKind.TENSOR_INDEX_BIN in context.tables:
        rows = context.tables[SectionKind.TENSOR_INDEX_BIN].rows
        by_type: dict[str, int] = defaultdict(int)
        for row in rows:
            by_type[GgmlType.NAMES.get(row.ggml_type, "")] += row.byte_size
        expected |= {"model.parameter_count": sum(prod(row.dims) for row in rows), "model.tensor_count": len(rows)}
        if "" not in by_type:
            expected["model.bytes_by_type"] = dict(by_type)
    if not _metadata_is_clean(context):
        return expected
    get = context.metadata.get
    architecture = get(ARCHITECTURE) or UNKNOWN
    layers, length = get(f"{architecture}.block_count"), get(f"{architecture}.context_length")
    first_draft = draft_start(get)
    expected["model.architecture"] = architecture
    expected["model.layer_count"] = (layers if first_draft is None else first_draft) if is_count(layers) else _ABSENT
    expected["model.context_length"] = length if is_count(length) else _ABSENT
    tied = get(f"{architecture}.tie_word_embeddings")
    if isinstance(tied, bool):
        expected["model.tied_embeddings"] = tied
    elif SectionKind.TENSOR_INDEX_BIN in context.tables:
        expected["model.tied_embeddings"] = EMBEDDING in context.tensors and HEAD not in context.tensors
    return expected


def _metadata_is_clean(context: Context) -> bool:
    """Whether a key that was not found is really not there."""
    found = SectionKind.METADATA_KV_BIN in context.tables
    return found and all(violation.section != METADATA for violation in context.report.violations)


def _tokenizer(context: Context) -> dict[str, Any]:
    if context.structure.find(SectionKind.TOKENIZER_BIN) is None:
        return {"tokenizer": None}
    if context.tokenizer is None:
        return {}
    held = context.tokenizer.header
    expected: dict[str, Any] = {
        "tokenizer.vocab_size": held.vocab_size,
        "tokenizer.merge_count": held.n_merges,
        "tokenizer.has_chat_template": held.chat_template_bytes > 0,
        "tokenizer.eos_token_id": held.eos_token_id if held.eos_token_id >= 0 else _ABSENT,
    }
    if _metadata_is_clean(context):
        expected["tokenizer.model"] = context.metadata.get("tokenizer.ggml.model") or UNKNOWN
        expected["tokenizer.pre"] = context.metadata.get("tokenizer.ggml.pre") or _ABSENT
    return expected


def _experts(context: Context) -> dict[str, Any]:
    layout = context.tables.get(SectionKind.EXPERT_LAYOUT_BIN)
    if layout is None:
        return {"experts": None} if context.structure.find(SectionKind.EXPERT_LAYOUT_BIN) is None else {}
    external = any(row.flags & ExpertFlags.EXTERNAL for row in layout.rows)
    return {
        "experts.mode": "external" if external else "embedded",
        "experts.layer_count": len(layout.rows),
        "experts.blob_count": sum(row.n_expert for row in layout.rows),
        "experts.bytes": layout.header.expert_bytes,
    }


def _shards(layout: CheckedTable) -> list[dict[str, Any]]:
    """The table of shards as the manifest repeats it."""
    made = []
    for shard in layout.shards:
        name = layout.bytes_of(shard, "name").decode("utf-8", "backslashreplace")
        record = {"name": name, "size": shard.file_size, "header_sha256": shard.header_sha256.hex()}
        if shard.flags & ShardFlags.HAS_SHA256:
            record["sha256"] = shard.sha256.hex()
        made.append(record)
    return made


def _drafts(context: Context) -> dict[str, Any]:
    drafts = context.tables.get(SectionKind.MTP_BLOB)
    if drafts is None:
        return {"mtp": None} if context.structure.find(SectionKind.MTP_BLOB) is None else {}
    return {"mtp.tensor_count": len(drafts.rows), "mtp.bytes": sum(row.byte_size for row in drafts.rows)}
