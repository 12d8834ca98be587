"""A pack with other metadata, another chat template or other files beside the weights; the weights stay as they are."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..container.atomic import AtomicFile
from ..container.writer import BuildResult, GPackBuilder
from ..errors import FormatError, MissingError, UsageError
from ..generated.constants import MetadataType, SectionKind
from ..pack import Pack
from ..pack import open as open_pack
from ..sections.assets import build_assets
from ..sections.metadata import build_metadata, is_stub
from ..sections.placement import ARCHITECTURE, UNKNOWN
from ..sections.restore import restore_value
from ..sections.tokenizer import MODEL, TEMPLATE, build_tokenizer
from ..sections.values import DTYPES, Value
from ..sections.verify import verify
from ..sources.metadata_build import MetadataBuilder
from .export import refuse_overwriting
from .plan import NAME, PRE, model_facts, tokenizer_facts
from .seal import REBUILT, SEALS, add_seals, copy_sections, seals_of

_TOKENIZER = "tokenizer."


@dataclass(frozen=True)
class Changes:
    """What is to change.

    Attributes:
        values: New values by key, as text: of a key that there is in its type, else JSON, or else a string.
        removed: Keys that go.
        template: The chat template.
        assets: Files by name, which take the place of those of the same name.
        removed_assets: Names of files that go.
    """

    values: Mapping[str, str] = field(default_factory=dict)
    removed: Sequence[str] = ()
    template: bytes | None = None
    assets: Mapping[str, bytes] = field(default_factory=dict)
    removed_assets: Sequence[str] = ()

    @property
    def any(self) -> bool:
        """Whether there is something to do."""
        return bool(self.values or self.removed or self.assets or self.removed_assets or self.template is not None)


def edit(
    source: str | os.PathLike[str],
    output: str | os.PathLike[str],
    changes: Changes,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> BuildResult:
    """Writes a pack again with changes. The result keeps every rule, or nothing is written.

    Sections that stay are copied by the kernel and keep their digests; only where the pack has digests of chunks are
    they read, because these are made anew. It is a new file: a signature of the old one says nothing of it.

    Args:
        progress: Called with (bytes written since the last call, bytes in all).

    Raises:
        UsageError: Nothing is to change, a value does not fit its key, or the output is the input.
        MissingError: A key or a file that is to go is not there.
        FormatError: The pack is damaged, or would break a rule.
        PathError: A file cannot be read or written.
    """
    if not changes.any:
        raise UsageError("nothing is to change", code="usage")
    with open_pack(source) as pack:
        refuse_overwriting(output, [source])
        builder = _plan(pack, changes)
        total = builder.layout().total_file_size
        before = os.fstat(pack.container.descriptor)

        def unchanged() -> None:
            now = os.fstat(pack.container.descriptor)
            if (now.st_size, now.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
                raise FormatError(
                    "the file was changed while it was being read",
                    code="convert.source_changed",
                    path=source,
                    hint="edit it again when nothing writes to it",
                )

        return builder.build(
            output,
            progress=None if progress is None else lambda count: progress(count, total),
            before_commit=unchanged,
            check=_keeps_the_rules,
        )


def _keeps_the_rules(output: AtomicFile) -> None:
    """Every rule but the digests of what was copied."""
    report = verify(output.path, digests=False, opened=output.descriptor).report
    fault = report.first_error()
    if fault is not None:
        error = fault.error(output.destination)
        error.message = f"the result would break a rule: {error.message}"
        raise error


def _plan(pack: Pack, changes: Changes) -> GPackBuilder:
    container = pack.container
    values, stubs, touched = _values(pack, changes)
    manifest: dict[str, Any] = {key: value for key, value in container.manifest.items() if key not in REBUILT}
    builder = GPackBuilder(
        manifest,
        producer=container.manifest["producer"],
        format_version=container.header.format_version,
        min_reader_version=container.header.min_reader_version,
    )
    replaced = {SectionKind.METADATA_KV_BIN, *SEALS}
    get = _getter(values)
    if any(key.startswith(_TOKENIZER) for key in touched):
        replaced.add(SectionKind.TOKENIZER_BIN)
        tokenizer = build_tokenizer(values)
        manifest.pop("tokenizer", None)
        stubs = frozenset()
        if tokenizer is not None:
            stubs = tokenizer.stubs
            builder.add(SectionKind.TOKENIZER_BIN, tokenizer.data, tokenizer.header.vocab_size)
            manifest["tokenizer"] = tokenizer_facts(get(MODEL) or "", get(PRE) or "", tokenizer.header)
    table = pack.metadata.table
    section = build_metadata(
        values.values(), stubs=stubs, source_version=table.source_version, source_alignment=table.source_alignment
    )
    builder.add(SectionKind.METADATA_KV_BIN, section, len(values))
    _set_model(manifest["model"], get, pack, touched)
    if changes.assets or changes.removed_assets:
        replaced.add(SectionKind.TOKENIZER_ASSETS)
        assets = _assets(pack, changes)
        if assets:
            builder.add(SectionKind.TOKENIZER_ASSETS, build_assets(assets), len(assets))
    copy_sections(builder, container, tuple(replaced), unhashed=True)
    add_seals(builder, *seals_of(container))
    return builder


def _getter(values: Mapping[str, Value]) -> Callable[[str], Any]:
    def get(key: str) -> Any:
        found = values.get(key)
        return None if found is None else found.python()

    return get


def _set_model(model: dict[str, Any], get: Callable[[str], Any], pack: Pack, touched: set[str]) -> None:
    """What the manifest says of the model."""
    architecture = get(ARCHITECTURE) or UNKNOWN
    if NAME in touched:
        model["name"] = get(NAME) or architecture
    for key in ("layer_count", "context_length"):
        model.pop(key, None)
    model |= {"architecture": architecture, **model_facts(get, architecture, pack)}


def _assets(pack: Pack, changes: Changes) -> dict[str, bytes]:
    found = {name: bytes(pack.asset(name)) for name in pack.assets()}
    for name in changes.removed_assets:
        if name not in found:
            raise MissingError(f"there is no file {name!r}", code="pack.no_asset", path=pack.container.path)
        del found[name]
    return {**found, **changes.assets}


def _values(pack: Pack, changes: Changes) -> tuple[dict[str, Value], frozenset[str], set[str]]:
    """The metadata with its changes; which of the keys TokenizerBin holds; and which were touched."""
    table = pack.metadata.table
    values, stubs = {}, set()
    for row in table.rows():
        value = restore_value(table, row, lambda: pack.tokenizer_table)
        values[value.key] = value
        if is_stub(row):
            stubs.add(value.key)
    new = dict(changes.values)
    if changes.template is not None:
        try:
            new[TEMPLATE] = changes.template.decode("utf-8")
        except UnicodeDecodeError as error:
            raise UsageError("the chat template is not UTF-8", code="usage", field=TEMPLATE) from error
    for key in changes.removed:
        if values.pop(key, None) is None:
            raise MissingError(f"there is no key {key!r}", code="pack.no_key", path=pack.container.path)
    for key, text in new.items():
        values[key] = _value(key, text, values.get(key))
    return values, frozenset(stubs), {*new, *changes.removed}


def _value(key: str, text: str, before: Value | None) -> Value:
    """A value from text, of the type that its key has, or that the text says.

    Raises:
        UsageError: It does not fit.
    """
    made = MetadataBuilder()
    if not _is_text(key + text):
        raise UsageError("key and value are to be UTF-8", code="usage", field="set")
    if not key or (before is not None and before.element_type == MetadataType.ARRAY):
        raise UsageError("a list of lists cannot be set", code="usage", field=key or "set")
    if before is None:
        parsed = _json(text)
        kind, element = _kind(key, parsed)
    else:
        kind, element = before.value_type, before.element_type
        parsed = text if kind == MetadataType.STRING else _json(text)
    if kind == MetadataType.STRING:
        said = parsed if before is None and isinstance(parsed, str) else text
        if not _is_text(said):
            raise UsageError(f"{text} is no text that UTF-8 can hold", code="usage", field=key)
        made.text(key, said)
    elif kind == MetadataType.ARRAY:
        if not isinstance(parsed, list):
            raise UsageError(f"{text!r} is no JSON list, as the value of {key} is", code="usage", field=key)
        if element == MetadataType.STRING:
            if not all(isinstance(item, str) and _is_text(item) for item in parsed):
                raise UsageError(f"{key} is a list of strings", code="usage", field=key)
            made.texts(key, parsed)
        else:
            made.numbers(key, element, [_fitting(key, item, element) for item in parsed])
    else:
        made.scalar(key, kind, _fitting(key, parsed, kind))
    return made[key]


def _is_text(text: str) -> bool:
    """Whether UTF-8 can hold it: it has no half of a pair of surrogates."""
    return not any("\ud800" <= char <= "\udfff" for char in text)


def _json(text: str) -> Any:
    """What the text is as JSON; itself where it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _kind(key: str, parsed: Any) -> tuple[int, int]:
    """Value type and element type of a new key."""
    if isinstance(parsed, list):
        kinds = {_kind(key, item)[0] for item in parsed}
        if len(kinds) > 1 and kinds <= {MetadataType.UINT32, MetadataType.INT64}:
            kinds = {MetadataType.INT64}
        if len(kinds) != 1 or MetadataType.ARRAY in kinds:
            raise UsageError(f"the list for {key} is empty, or has values of several types", code="usage", field=key)
        return MetadataType.ARRAY, kinds.pop()
    if isinstance(parsed, bool):
        kind: int = MetadataType.BOOL
    elif isinstance(parsed, int):
        kind = MetadataType.UINT32 if 0 <= parsed < 1 << 32 else MetadataType.INT64
    else:
        kind = MetadataType.FLOAT32 if isinstance(parsed, float) else MetadataType.STRING
    return kind, kind


def _fitting(key: str, value: Any, kind: int) -> Any:
    """A number or a truth value, where the type has it."""
    dtype = DTYPES[kind]
    if dtype.kind == "b":
        fits = isinstance(value, bool)
    elif dtype.kind == "f":
        most = float(np.finfo(dtype).max)
        fits = isinstance(value, int | float) and not isinstance(value, bool) and -most <= value <= most
    else:
        limits = np.iinfo(dtype)
        fits = isinstance(value, int) and not isinstance(value, bool) and limits.min <= value <= limits.max
    if not fits:
        raise UsageError(
            f"{json.dumps(value)} does not fit {key}, which is of type {dtype.name}", code="usage", field=key
        )
    return value
