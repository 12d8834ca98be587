"""Why a rule was not put to the test: the words for `not applicable`."""

from __future__ import annotations

from collections.abc import Iterable

from ..container.report import Report
from ..container.structure import Structure
from ..generated.constants import SECTION_NAMES, SectionKind
from ..generated.layout import COLUMNS, RECORD_RULES
from ..generated.sections import SECTIONS

# Sections that the rules which no single record can break speak of, by the first word of their ids.
_SECTIONS = {
    "metadata": (SectionKind.METADATA_KV_BIN,),
    "tensor": (SectionKind.TENSOR_INDEX_BIN,),
    "dense": (SectionKind.DENSE_INDEX_BIN,),
    "native": (SectionKind.NATIVE_DENSE_INDEX_BIN,),
    "single": (SectionKind.EMBED_BLOB, SectionKind.HEAD_BLOB, SectionKind.PLE_BLOB),
    "expert": (SectionKind.EXPERT_LAYOUT_BIN,),
    "tokenizer": (SectionKind.TOKENIZER_BIN,),
    "assets": (SectionKind.TOKENIZER_ASSETS,),
    "mtp": (SectionKind.MTP_BLOB,),
    "chunks": (SectionKind.CHUNK_DIGESTS,),
    "parity": (SectionKind.PARITY,),
    "manifest": (SectionKind.MANIFEST_JSON,),
    "index": tuple(kind for kind, body in SECTIONS.items() if body.tables),
    "blob": (SectionKind.DENSE_PACK_BLOB, SectionKind.NATIVE_DENSE_BLOB, SectionKind.MTP_BLOB),
}
# What must be there besides the section.
_SPECIAL = {
    "section.pair": "no section needs another",
    "chunks.digest": "the digests could not be read",
    "chunks.count": "the digests could not be read",
    "parity.chunks": "ChunkDigests could not be read",
    "tokenizer.merge_index": "the tokenizer has no index of its merges",
    "tokenizer.token_order": "the tokenizer has no order of its tokens",
    "tokenizer.byte_tokens": "the tokenizer has no table of bytes",
    "tokenizer.special_tokens": "the tokenizer has no list of special tokens",
    "tokenizer.triples": "there are no merges",
    "tokenizer.merge_bytes": "there are no merges",
    "metadata.stub": "no value is kept in TokenizerBin",
    "metadata.value": "no value lies in the table",
    "tensor.home_rule": "no tensor's home could be worked out",
    "tensor.bounds": "no tensor lies in the file",
    "expert.shard_ref": "no experts are external",
    "expert.blob_layout": "there is no ExpertBlobs",
    "expert.padding": "there is no ExpertBlobs whose layout is right",
    "expert.rows": "there are no layers, or TensorIndexBin could not be read",
    "single.orphan": "TensorIndexBin could not be read",
    "blob.padding": "it could not be worked out what lies in the blobs",
    "manifest.sha256": "the manifest lies outside the file",
    "manifest.summary": "the manifest could not be read",
}
_SHARDS = ("expert.shard_name", "expert.shard_path", "expert.shard_header", "expert.shard_digest", "expert.uncovered")
# Rules that are checked before or after the sections.
_OUTSIDE = ("header", "footer", "section", "manifest", "field")


def why_not(rule: str, structure: Structure, report: Report) -> str:
    """The reason why a rule was not checked."""
    group = rule.partition(".")[0]
    stopped = next(iter(report.counts), None)
    if structure.header is None or "GPackHeaderV1" not in report.records:
        return f"the header could not be read ({stopped})"
    if not structure.entries or structure.footer is None:
        return f"the section directory or the footer could not be read ({stopped})"
    if group not in _OUTSIDE and "section.duplicate" in report.counts:
        return "a kind of section stands twice (section.duplicate), and neither is to be believed"
    kinds = _kinds(rule)
    present = [kind for kind in kinds if structure.find(kind) is not None]
    if kinds and not present:
        return f"there is no {_either(SECTION_NAMES[kind] for kind in kinds)}"
    if rule in _SHARDS and "ExpertLayoutRowV1" in report.records:
        return "there are no shards"
    for violation in report.errors():
        if violation.section in {SECTION_NAMES[kind] for kind in present} and group != "manifest":
            return f"what it speaks of could not be read: {violation.section} breaks {violation.rule}"
    if rule in _SPECIAL:
        return _SPECIAL[rule]
    if kinds:
        return f"{_either(SECTION_NAMES[kind] for kind in present)} has no rows"
    return f"what it needs could not be read ({stopped})" if stopped else "nothing in the file asks for it"


def _kinds(rule: str) -> tuple[int, ...]:
    """The kinds of sections that a rule speaks of."""
    owners = tuple(
        kind
        for kind, body in SECTIONS.items()
        for record in (body.header, *(table.record for table in body.tables))
        if record is not None and record.__name__ in COLUMNS and rule in RECORD_RULES[record.__name__]
    )
    return tuple(dict.fromkeys(owners)) or _SECTIONS.get(rule.partition(".")[0], ())


def _either(names: Iterable[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last
