"""`guild inspect`: what does this file hold?"""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any

from .. import errors
from ..terminal import units
from ..terminal.table import printable, render
from .describe import ALL, describe_gguf, describe_pack, describe_section
from .imported import import_lines
from .vocabulary import is_gguf

DESCRIPTION = """\
Show what a pack or a GGUF holds: the model, the sections with sizes, offsets and digests, tensors by type, experts and
tokenizer. --tensors lists every tensor, --metadata every key, --section one section down to its rows.
--extract NAME gives a file back that lay beside the weights, on standard output or in the file that -o names."""


# The order of a summary's facts; the manifest has them sorted by name.
_ORDER = (
    " model pre vocab_size merge_count eos_token_id has_chat_template mode layer_count blob_count tensor_count bytes "
)
_SHOWN = 50  # elements of an array that the text may show


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    parser.add_argument("file", help="a .gpack or .gguf file")
    parser.add_argument("--tensors", action="store_true", help="list every tensor: type, shape, size, place")
    parser.add_argument("--metadata", action="store_true", help="list every metadata key with its value")
    parser.add_argument("--section", metavar="NAME", help="show one section of a pack: header and rows")
    parser.add_argument("--extract", metavar="NAME", help="write out a file that lay beside the weights")
    parser.add_argument(
        "--extract-manifest", metavar="FILE", help="write the manifest's exact bytes, which are what `guild sign` signs"
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="where --extract writes it (default: standard output)")
    parser.add_argument("--json", action="store_true", help="print everything asked for as JSON")


def run(args: argparse.Namespace) -> int:
    """Inspects."""
    if args.output and not args.extract:
        raise errors.UsageError("-o is for --extract", code="usage")
    if args.extract and args.extract_manifest:
        raise errors.UsageError("--extract and --extract-manifest are two things", code="usage")
    if args.extract:
        return _extract(args)
    if args.extract_manifest:
        return _extract_manifest(args)
    if args.section:
        if is_gguf(args.file):
            raise errors.UsageError("a GGUF has no sections", code="usage", path=args.file, hint="give a .gpack file")
        info = describe_section(args.file, args.section)
        print(json.dumps({"ok": True, **info}, indent=2) if args.json else _section_text(info))
        return errors.EXIT_OK
    describe = describe_gguf if is_gguf(args.file) else describe_pack
    elements = ALL if args.json else _SHOWN
    info = describe(args.file, tensors=args.tensors, metadata=args.metadata, elements=elements)
    if args.json:
        print(json.dumps({"ok": True, **info}, indent=2))
    else:
        print("\n\n".join(_blocks(info)))
    return errors.EXIT_OK


def _extract(args: argparse.Namespace) -> int:
    """Writes an asset's bytes to a file, or to standard output."""
    from ..pack import open as open_pack

    if args.json and not args.output:
        raise errors.UsageError("--json and the file would share standard output", code="usage", hint="add -o FILE")
    with open_pack(args.file) as pack:
        data = bytes(pack.asset(args.extract))
    if not args.output:
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        return errors.EXIT_OK
    if os.path.exists(args.output) and os.path.samefile(args.output, args.file):
        raise errors.UsageError("the output is the pack itself", code="convert.same_file", path=args.output)
    from ..container.atomic import AtomicFile

    with AtomicFile(args.output, len(data)) as target:
        target.write_at(data, 0)
        target.sync()
        target.commit()
    if args.json:
        print(json.dumps({"ok": True, "name": args.extract, "output": args.output, "size": len(data)}, indent=2))
    else:
        print(printable(f"{args.output}: {len(data)} bytes"))
    return errors.EXIT_OK


def _extract_manifest(args: argparse.Namespace) -> int:
    from ..container.atomic import AtomicFile
    from ..container.reader import Container
    from ..convert.export import refuse_overwriting
    from ..generated.constants import SectionKind

    with Container.open(args.file) as container:
        data = container.read(SectionKind.MANIFEST_JSON)
        digest = container.footer.manifest_sha256.hex()
    refuse_overwriting(args.extract_manifest, [args.file])
    with AtomicFile(args.extract_manifest, len(data)) as file:
        file.write_at(data, 0)
        file.sync()
        file.commit()
    if args.json:
        result = {"ok": True, "output": args.extract_manifest, "size": len(data), "manifest_sha256": digest}
        print(json.dumps(result, indent=2))
    else:
        print(printable(f"{args.extract_manifest}: {len(data)} bytes, sha256 {digest}"))
    return errors.EXIT_OK


def _blocks(info: dict[str, Any]) -> list[str]:
    """The text, one block for each part that the file has."""
    blocks = [_head(info)]
    rows: list[tuple[object, ...]]
    if "sections" in info:
        rows = [
            (s["kind"], s["name"], s["offset"], units.size(s["size"]), s["item_count"], s["items"], s["sha256"])
            for s in info["sections"]
        ]
        blocks.append(render(rows, ["kind", "section", "offset", "size", "count", "of", "sha256"], "rlrrrll"))
    if "shards" in info:
        rows = [(s["file"], units.size(s["size"]), s["tensors"], s["version"], s["alignment"]) for s in info["shards"]]
        blocks.append(render(rows, ["file", "size", "tensors", "version", "alignment"], "lrrrr"))
    if info["types"]:
        rows = [(t["type"], t["tensors"], units.count(t["parameters"]), units.size(t["bytes"])) for t in info["types"]]
        blocks.append(render(rows, ["type", "tensors", "parameters", "size"], "lrrr"))
    blocks += [_pairs(part, info[part]) for part in ("experts", "tokenizer", "mtp") if info.get(part)]
    if lines := list(import_lines(info.get("import"))):
        blocks.append("\n".join(lines))
    if shards := (info.get("experts") or {}).get("shards"):
        rows = [
            (shard["name"], shard["size"], "every byte" if "sha256" in shard else "header", shard["header_sha256"])
            for shard in shards
        ]
        blocks.append(render(rows, ["shard", "bytes", "digest of", "sha256 of the header"], "lrll"))
    if info.get("assets"):
        rows = [(asset["name"], asset["bytes"]) for asset in info["assets"]]
        blocks.append(render(rows, ["file beside the weights", "bytes"], "lr"))
    if "tensors" in info:
        columns = ["name", "type", "shape", "bytes", "place", "offset"]
        rows = [(t["name"], t["type"], _shape(t["dims"]), t["bytes"], t["place"], t["offset"]) for t in info["tensors"]]
        blocks.append(render(rows, columns, "lllrlr"))
    if "metadata" in info:
        rows = [(key, item["type"], _short(item)) for key, item in info["metadata"].items()]
        blocks.append(render(rows, ["key", "type", "value"], "lll"))
    return blocks


def _head(info: dict[str, Any]) -> str:
    model = info["model"]
    facts = [
        model["architecture"],
        f"{units.count(model['parameter_count'])} parameters",
        f"{model['tensor_count']} tensors",
    ]
    if "layer_count" in model:
        facts.append(f"{model['layer_count']} layers")
    if "context_length" in model:
        facts.append(f"context {model['context_length']}")
    if model["tied_embeddings"]:
        facts.append("tied embeddings")
    lines = [f"{printable(model['name'])}: {', '.join(map(printable, facts))}", _file_line(info)]
    if "manifest_sha256" in info:
        lines.append(f"manifest sha256 {info['manifest_sha256']}")
        lines.append(f"flags {' '.join(info['flags'])}")
    if "problem" in info:
        lines.append(printable(f"cannot be converted: {info['problem']['message']} [{info['problem']['code']}]"))
    return "\n".join(lines)


def _file_line(info: dict[str, Any]) -> str:
    producer = f", by {info['producer']}" if "producer" in info else ""
    return printable(f"{info['file']}: {info['format']}, {units.size(info['size'])}{producer}")


def _pairs(title: str, values: dict[str, Any]) -> str:
    plain = {key: value for key, value in values.items() if not isinstance(value, list)}
    shown = {key: plain[key] for key in sorted(plain, key=lambda key: (_ORDER.find(f" {key} "), key))}
    return f"{title}: " + printable(
        ", ".join(f"{key.replace('_', ' ')} {_plain(value)}" for key, value in shown.items())
    )


def _plain(value: object) -> str:
    return {True: "yes", False: "no"}.get(value, str(value)) if isinstance(value, bool) else str(value)


def _shape(dims: list[int]) -> str:
    return " x ".join(map(str, dims)) or "scalar"


def _short(item: dict[str, Any]) -> str:
    """A value on one line; long ones are shown by their size, and --json has them whole."""
    value = item["value"]
    text = json.dumps(value, ensure_ascii=False) if not isinstance(value, str) else value
    if len(text) <= 100:
        return text
    return (
        f"{text[:80]}... ({item['count']} elements)"
        if isinstance(value, list)
        else f"{text[:80]}... ({len(text)} characters)"
    )


def _section_text(info: dict[str, Any]) -> str:
    entry = info["section"]
    head = (
        f"{entry['name']} (kind {entry['kind']}): {entry['size']} bytes at {entry['offset']}, "
        f"alignment {entry['alignment']}, {entry['item_count']} {entry['items']}\nsha256 {entry['sha256']}"
    )
    blocks = [head]
    if "header" in info:
        blocks.append(render([(key, _cell(value)) for key, value in info["header"].items()], ["header", "value"], "ll"))
    for title in ("rows", "shards"):
        if info.get(title):
            columns = list(info[title][0])
            blocks.append(render([[_cell(row[key]) for key in columns] for row in info[title]], columns))
    if "text" in info:
        blocks.append(info["text"])
    if "bytes" in info:
        blocks.append(info["bytes"])
    return "\n\n".join(blocks)


def _cell(value: object) -> object:
    if isinstance(value, list):
        return " x ".join(map(str, value))
    return value
