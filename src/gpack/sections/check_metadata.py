"""Checks of MetadataKvBin, TokenizerBin and TokenizerAssets."""

from __future__ import annotations

import codecs

import numpy as np

from ..container.pieces import Pieces, part_of
from ..generated.constants import CACHE_LINE, GEXC_MAGIC, MAX_LAYERS, MAX_NUMBER, MetadataType, SectionKind
from ..generated.dtypes import GBT_V1_PARTS
from ..generated.gguf.constants import GGUF_DEFAULT_ALIGNMENT, GGUF_MAX_ALIGNMENT
from ..generated.rules import align_up, check_gbt_header_v1
from ..generated.structs import GbtHeaderV1, gbt_v1_layout, gbt_v1_size
from . import assets, metadata, tokenizer
from .assets import is_file_name
from .check_gbt_index import IndexChecker
from .check_merges import JoinedTokens
from .check_table import CheckedTable, check_table
from .check_values import ValueFaultError, check_value
from .check_vocabulary import check_vocabulary
from .context import Context
from .lanes import Blob, Lane
from .pieced import PiecedTokenizer
from .placement import ARCHITECTURE, UNKNOWN, is_count
from .values import Value

_BATCH = 1 << 16  # tokens or merges that are compared at a time
_PIECE = 1 << 20  # bytes of a template that are decoded at a time
_INTEGERS = tokenizer.TYPE_STUBS


def check_tokenizer(context: Context) -> None:
    """TokenizerBin: arrays fill the section, offsets rise, ids lie in the vocabulary, merges fit together."""
    loaded = context.load(SectionKind.TOKENIZER_BIN)
    if loaded is None:
        return
    data, base = loaded
    report, section = context.report, tokenizer.SECTION
    report.check("tokenizer.header")
    if len(data) < GbtHeaderV1.SIZE:
        message = f"It has {len(data)} bytes, the header {GbtHeaderV1.SIZE}."
        report.add("tokenizer.header", section, "", base, message)
        return
    header = GbtHeaderV1.decode(data[: GbtHeaderV1.SIZE])
    report.check_record(GbtHeaderV1)
    broken = check_gbt_header_v1(header, section_size=len(data))
    report.add_broken(broken, header, section, base=base, section_size=len(data))
    if header.magic != GbtHeaderV1.MAGIC or gbt_v1_size(header) != len(data):
        return
    context.check_items(SectionKind.TOKENIZER_BIN, header.vocab_size)
    places = gbt_v1_layout(header)
    report.check("tokenizer.padding", "tokenizer.template", "tokenizer.offsets")
    _check_padding(context, data, base, places)
    _check_template(context, part_of(data, *places["chat_template"]), base + places["chat_template"][0])
    offsets = Lane(part_of(data, *places["offsets"]), GBT_V1_PARTS["offsets"])
    if _check_offsets(context, offsets, header.vocab_blob_bytes, base + places["offsets"][0]):
        table = PiecedTokenizer(data) if isinstance(data, Pieces) else tokenizer.TokenizerTable(data)
        blob = Blob(table.vocab_blob)
        _check_triples(context, table, blob, base + places["triples"][0])
        if context.thorough:
            checker = IndexChecker(context, table, data, base, blob)
            checker.check()
            context.doubled = checker.doubled
        context.tokenizer = table


def _check_padding(context: Context, data: memoryview | Pieces, base: int, places: dict[str, tuple[int, int]]) -> None:
    end = GbtHeaderV1.SIZE
    for name, (start, length) in places.items():
        if any(data[end:start]):
            context.report.add("tokenizer.padding", tokenizer.SECTION, name, base + end, f"Before {name}.")
        end = start + length


def _check_template(context: Context, template: memoryview | Pieces, at: int) -> None:
    """The template is UTF-8; decoded piece by piece, for a hostile one has 4 GiB."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    for start in range(0, len(template), _PIECE):
        pending = len(decoder.getstate()[0])
        try:
            decoder.decode(template[start : start + _PIECE], final=start + _PIECE >= len(template))
        except UnicodeDecodeError as error:
            place = at + start - pending + error.start
            context.report.add("tokenizer.template", tokenizer.SECTION, "chat_template", place, f"{error.reason}.")
            return
        if 0 in template[start : start + _PIECE]:
            context.report.add("tokenizer.template", tokenizer.SECTION, "chat_template", at, "It holds a NUL.")
            return


def _check_offsets(context: Context, offsets: Lane, size: int, at: int) -> bool:
    last = len(offsets) - 1
    sound = True

    def fault(index: int, message: str) -> None:
        nonlocal sound
        sound = False
        place = at + index * offsets.stride
        context.report.add("tokenizer.offsets", tokenizer.SECTION, f"offsets[{index}]", place, message)

    begin, end = int(offsets[:1][0]), int(offsets[last:][0])
    if begin != 0:
        fault(0, f"It begins with {begin}.")
    for first in range(0, last, _BATCH):
        batch = offsets[first : first + _BATCH + 1]
        for index in np.flatnonzero(batch[1:] < batch[:-1]):
            fault(first + int(index) + 1, f"{batch[index + 1]} follows {batch[index]}.")
    if end != size:
        fault(last, f"It ends with {end}, not {size}.")
    return sound


def _check_triples(context: Context, table: tokenizer.TokenizerTable, blob: Blob, at: int) -> None:
    size = table.header.vocab_size
    joined = JoinedTokens(table.offsets, blob)
    if len(table.triples):
        context.report.check("tokenizer.triples", "tokenizer.merge_bytes")
    for first in range(0, len(table.triples), _BATCH):
        batch = table.triples[first : first + _BATCH].astype(np.int64)
        absent = (batch == tokenizer.NO_ID).all(axis=1)
        inside = ((batch >= 0) & (batch < size)).all(axis=1)
        wrong = np.flatnonzero(~(absent | inside))
        compared = context.thorough and inside.any()
        unequal = np.flatnonzero(inside)[~joined.same(batch[inside])] if compared else wrong[:0]
        for rule, rows in (("tokenizer.triples", wrong), ("tokenizer.merge_bytes", unequal)):
            for row in rows:
                index = first + int(row)
                place = at + index * GBT_V1_PARTS["triples"].itemsize
                message = f"Found {batch[row].tolist()} in a vocabulary of {size}."
                context.report.add(rule, tokenizer.SECTION, f"triples[{index}]", place, message)


def check_metadata(context: Context) -> None:
    """MetadataKvBin; `check_tokenizer` comes first, for stubs point there."""
    loaded = context.load(SectionKind.METADATA_KV_BIN)
    if loaded is None:
        return
    data, base = loaded
    checked = check_table(SectionKind.METADATA_KV_BIN, data, base=base, report=context.report)
    if not checked.sound:
        return
    context.tables[SectionKind.METADATA_KV_BIN] = checked
    context.check_items(SectionKind.METADATA_KV_BIN, len(checked.rows))
    check_positions(checked, "metadata.position")
    _check_source_alignment(checked)
    for index, row in enumerate(checked.rows):
        key = checked.label(index)
        context.report.check("metadata.forbidden")
        if key.startswith(metadata.FORBIDDEN_PREFIX):
            checked.fault("metadata.forbidden", index, "key_offset", f"Found {key!r}.")
        if key == ARCHITECTURE and index not in checked.broken:
            _check_architecture(context, checked, index)
        if metadata.is_stub(row):
            _check_stub(context, checked, index, key)
        else:
            _check_entry(context, checked, index, key)
    _check_limits(context, checked)
    if context.thorough:
        check_vocabulary(context, checked)


def _check_architecture(context: Context, checked: CheckedTable, index: int) -> None:
    row = checked.rows[index]
    context.report.check("metadata.architecture")
    if row.value_type != MetadataType.STRING:
        checked.fault("metadata.architecture", index, "value_type", f"It is of type {row.value_type}, not a string.")
        return
    try:
        checked.bytes_of(row, "value").decode("utf-8")
    except UnicodeDecodeError as error:
        message = f"It is not UTF-8 at its byte {error.start}."
        checked.fault("metadata.architecture", index, "value_offset", message)


def _check_limits(context: Context, checked: CheckedTable) -> None:
    """The metadata says no absurd number of layers, and no context that the manifest could not hold."""
    architecture = context.metadata.get(ARCHITECTURE) or UNKNOWN
    limits = {f"{architecture}.block_count": MAX_LAYERS, f"{architecture}.context_length": MAX_NUMBER}
    for index in range(len(checked.rows)):
        key = checked.label(index)
        value = context.metadata.get(key)
        if key not in limits or not isinstance(value, int) or not is_count(value):
            continue
        context.report.check("metadata.limit")
        if value > limits[key]:
            checked.fault("metadata.limit", index, "value_offset", f"{key} is {value}, over {limits[key]}.")


def _check_source_alignment(checked: CheckedTable) -> None:
    """The alignment is one that a GGUF can have, and the one that the keys say: else no GGUF could be exported."""
    checked.report.check("metadata.source_alignment")
    found = checked.header.source_alignment
    aligned = found or GGUF_DEFAULT_ALIGNMENT
    said: int | None = GGUF_DEFAULT_ALIGNMENT
    for index, row in enumerate(checked.rows):
        if checked.names[index] == metadata.ALIGNMENT_KEY and index not in checked.broken:
            number = row.value_type == MetadataType.UINT32 and not metadata.is_stub(row)
            said = int.from_bytes(checked.bytes_of(row, "value"), "little") if number else None
    if aligned > GGUF_MAX_ALIGNMENT or aligned & (aligned - 1) or aligned != said:
        wanted = "no UINT32" if said is None else said
        message = f"Found {found}, and the keys say {wanted}."
        checked.header_fault("metadata.source_alignment", "source_alignment", message)


def _check_entry(context: Context, checked: CheckedTable, index: int, key: str) -> None:
    row = checked.rows[index]
    heap = checked.header.len_heap
    if index in checked.broken or row.value_offset > heap or row.value_length > heap - row.value_offset:
        return
    raw = checked.part_of(row, "value")
    context.report.check("metadata.value")
    try:
        check_value(row.value_type, row.element_type, row.count, raw)
    except ValueFaultError as error:
        checked.fault("metadata.value", index, "value_offset", f"{key}: {error}.")
        return
    if row.value_type != MetadataType.ARRAY and len(raw) <= 1 << 16:
        context.metadata[key] = Value(key, row.value_type, row.element_type, row.count, bytes(raw[:])).python()


def _check_stub(context: Context, checked: CheckedTable, index: int, key: str) -> None:
    row, held = checked.rows[index], context.tokenizer
    array, string = MetadataType.ARRAY, MetadataType.STRING
    context.report.check("metadata.stub")
    if held is None:
        if context.entry(SectionKind.TOKENIZER_BIN) is None:
            checked.fault("metadata.stub", index, "flags", f"{key} is a stub, and there is no TokenizerBin.")
        return
    expected = {
        tokenizer.TOKENS: (array, (string,), held.header.vocab_size),
        tokenizer.TYPES: (array, _INTEGERS, held.header.vocab_size),
        tokenizer.MERGES: (array, (string,), held.header.n_merges),
        tokenizer.TEMPLATE: (string, (string,), 1),
    }.get(key)
    if expected is None:
        checked.fault("metadata.stub", index, "flags", f"{key} is none of the keys that TokenizerBin holds.")
        return
    value_type, element_types, count = expected
    if row.value_type != value_type or row.element_type not in element_types or row.count != count:
        message = f"{key} has type {row.value_type} of {row.element_type} and {row.count} elements, not {count}."
        checked.fault("metadata.stub", index, "count", message)
    elif key == tokenizer.MERGES and (size := held.merges_size()) > held.merges_limit:
        message = f"The merges would take {size} bytes, of a section that allows {held.merges_limit}."
        checked.fault("metadata.stub", index, "count", message)


def check_positions(checked: CheckedTable, rule: str) -> None:
    """Positions are 0, 1, 2, ... in some order."""
    seen: set[int] = set()
    if checked.rows:
        checked.report.check(rule)
    for index, row in enumerate(checked.rows):
        if row.position >= len(checked.rows) or row.position in seen:
            checked.fault(rule, index, "position", f"Found {row.position} among {len(checked.rows)} rows.")
        seen.add(row.position)


def check_assets(context: Context) -> None:
    """TokenizerAssets: names are plain, files lie where they should, none is a hardware-specific cache."""
    loaded = context.load(SectionKind.TOKENIZER_ASSETS)
    if loaded is None:
        return
    data, base = loaded
    checked = check_table(SectionKind.TOKENIZER_ASSETS, data, base=base, report=context.report)
    header = checked.header
    if not checked.sound or header.ofs_data + header.len_data > len(data):
        return
    context.check_items(SectionKind.TOKENIZER_ASSETS, len(checked.rows))
    heap_end = header.ofs_heap + header.len_heap
    context.report.check("assets.placement", *(("assets.path", "assets.gexec") if checked.rows else ()))
    context.check_zero("assets.placement", assets.SECTION, base + heap_end, base + header.ofs_data)
    end = 0
    for index, row in enumerate(checked.rows):
        name = checked.label(index)
        if not is_file_name(name):
            checked.fault("assets.path", index, "name_offset", f"Found {name!r}.")
        start = align_up(end, CACHE_LINE)
        if row.offset != start or row.byte_size > header.len_data - start:
            checked.fault("assets.placement", index, "offset", f"Found {row.offset}, expected {start}.")
            return
        at = header.ofs_data + start
        context.check_zero("assets.placement", assets.SECTION, base + header.ofs_data + end, base + at)
        if bytes(data[at : at + 4]) == GEXC_MAGIC.to_bytes(4, "little") and row.byte_size >= 4:
            checked.fault("assets.gexec", index, "offset", f"Found one in {name!r}.")
        end = start + row.byte_size
    if end != header.len_data:
        checked.header_fault("assets.placement", "len_data", f"The last file ends at {end} of {header.len_data}.")
