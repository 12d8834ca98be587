"""`guild convert`: a model of another format becomes a pack."""

from __future__ import annotations

import argparse
import json
import os
from typing import Any

from .. import errors
from ..convert.anything import convert
from ..convert.conversion import Conversion, describe, report
from ..quants.encode import TYPES
from ..sections.chunks import ALGORITHMS, DEFAULT_ALGORITHM
from ..terminal import units
from ..terminal.table import printable, render
from .imported import import_lines
from .progress import Progress
from .words import output_file

DESCRIPTION = """\
Convert a model into one pack: a GGUF, or safetensors with the configuration and tokenizer files beside them. Of a split
model any shard will do. The output is written beside its destination, checked, and renamed into place: whatever
happens, a partial pack never stands there.

safetensors: a folder, one file, any shard, or model.safetensors.index.json. Models of the architectures in
spec/import.md (llama, mistral3, granite, smollm3, olmo2, phi3, glm4, qwen2, qwen3, qwen3moe, qwen35, qwen35moe,
qwen4exp) get the names, shapes, values and metadata of a GGUF of the model. Any other is packed as it is, and the pack
says that it cannot be run. Code in the folder is never run. Vision and other towers are packed too, under
their own names, unless --text-only leaves them out.

--quantize TYPE turns matrices and experts whose rows are whole blocks; norms, biases, vectors, the router and other
small tensors keep their values. Q4_K and Q6_K need the extra: pip install 'guild-gpack[quantize]'.

--pack-dir DIR: a GGUF's dense tensors are stored as the text-indexed pack there says, and its tokenizer files are kept.
--mtp-dir DIR: draft layers come from there. What contradicts the GGUF is refused with file, line and column.

With --chunk-digests damage is found to the MiB and parts can be checked alone; with --parity it can be mended.

With --external-experts the routed experts stay in the model's files, which must then lie beside the pack, or in the
folder that --expert-dir names, whenever it is used. Their bytes are not read: the size of the experts costs no time.
Of safetensors that works where a file has a layer's experts fused, or at equal distances; else an error says why not.
`guild pack-experts` makes a pack with everything inside of it later."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    parser.add_argument("source", help="a .gguf file or shard; a folder, file, shard or index of safetensors")
    parser.add_argument(
        "-o",
        "--output",
        required=True,
        type=output_file(".gpack"),
        metavar="FILE",
        help="the .gpack file to write; an existing one is replaced",
    )
    parser.add_argument("--name", help="name of the model (default: general.name, else the architecture)")
    parser.add_argument(
        "--pack-dir", metavar="DIR", help="pack directory of a GGUF: index.txt, dense.bin, experts, tokenizer files"
    )
    parser.add_argument(
        "--mtp-dir", metavar="DIR", help="draft layers of a GGUF: a directory with dense.txt, or an mtp-*.gguf"
    )
    parser.add_argument(
        "--external-experts", action="store_true", help="leave the routed experts in the model's files, unread"
    )
    parser.add_argument(
        "--hash-shards",
        action="store_true",
        help="with --external-experts: record a digest of every byte of those files (reads them)",
    )
    parser.add_argument(
        "--quantize", metavar="TYPE", type=str.upper, choices=tuple(TYPES), help=f"store matrices as {', '.join(TYPES)}"
    )
    add_seal_arguments(parser)
    parser.add_argument("--text-only", action="store_true", help="leave out vision and other towers of safetensors")
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="only plan: sections, size, expected time; exit code 3 where it does not fit",
    )
    parser.add_argument(
        "--report",
        nargs="?",
        const="",
        metavar="FILE",
        help="also write a JSON file that tells sources and the place of every tensor (default: OUTPUT.report.json)",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def add_seal_arguments(parser: argparse.ArgumentParser, default: str | None = None) -> None:
    """Declares the arguments of digests of chunks and of parity."""
    parser.add_argument(
        "--chunk-digests",
        nargs="?",
        const=DEFAULT_ALGORITHM,
        default=default,
        choices=tuple(ALGORITHMS),
        help=f"also digest every chunk of 1 MiB, by {' or '.join(ALGORITHMS)} (default: {DEFAULT_ALGORITHM})",
    )
    parser.add_argument(
        "--parity",
        metavar="PERCENT",
        type=int,
        help="also write parity of at least so many percent of the data (1 to 100), from which `guild repair` mends "
        "damage; it brings chunk digests, and needs the extra: pip install 'guild-gpack[parity]'",
    )


def run(args: argparse.Namespace) -> int:
    """Converts."""
    if args.hash_shards and not args.external_experts:
        raise errors.UsageError("--hash-shards needs --external-experts", code="usage")
    if args.name == "":
        raise errors.UsageError("the name is empty", code="usage", hint="leave --name out for the model's own")
    target = f"{args.output}.report.json" if args.report == "" else args.report
    _check_report(target, args.source, args.output)
    with Progress("convert", enabled=False if args.json else None) as bar:
        done = convert(
            args.source,
            args.output,
            name=args.name,
            quantize=args.quantize,
            text_only=args.text_only,
            pack_dir=args.pack_dir,
            mtp_dir=args.mtp_dir,
            external_experts=args.external_experts,
            hash_shards=args.hash_shards,
            chunk_digests=args.chunk_digests,
            parity=args.parity,
            report=target,
            dry_run=args.dry_run,
            progress=bar.update,
        )
    if target is not None:
        write_json(target, report(done))
    info = describe(done)
    if args.json:
        print(json.dumps({"ok": True, "dry_run": args.dry_run, **info}, indent=2))
    else:
        _print(done, info)
    return errors.EXIT_OK if info.get("fits", True) else errors.EXIT_IO


def _check_report(target: str | None, source: str, output: str) -> None:
    """Refuses a report that cannot be written or would take the place of the model, before any work.

    Raises:
        PathError: Its folder does not exist.
        UsageError: `convert.same_file`.
    """
    if target is None:
        return
    if not os.path.isdir(os.path.dirname(target) or "."):
        raise errors.PathError("the report's folder does not exist", code="io.not_found", path=target)
    same = os.path.exists(target) and os.path.samefile(target, source)
    if same or os.path.realpath(target) == os.path.realpath(output):
        raise errors.UsageError("the report would overwrite the model", code="convert.same_file", path=target)


def write_json(path: str, value: Any) -> None:
    """Writes a report, whole or not at all.

    Raises:
        PathError: The file cannot be written.
    """
    from ..container.atomic import AtomicFile

    data = (json.dumps(value, indent=2) + "\n").encode()
    with AtomicFile(path, len(data)) as file:
        file.write_at(data, 0)
        file.sync()
        file.commit()


def _print(done: Conversion, info: dict[str, Any]) -> None:
    model = info["model"]
    rows = [
        (section["name"], section["offset"], section["size"], units.size(section["size"]), section["item_count"])
        for section in info["sections"]
    ]
    print(render(rows, ["section", "offset", "bytes", "size", "items"], "lrrrr"))
    parameters = units.count(model["parameter_count"])
    facts = f"{model['architecture']}, {parameters} parameters, {model['tensor_count']} tensors"
    print(f"\n{printable(model['name'])}: {printable(facts)}")
    for line in import_lines(info.get("import")):
        print(line)
    for note in info.get("notes", ()):
        print(printable(f"note: {note}"))
    _print_shards(done, info)
    if done.result is None:
        fits = "fits" if info["fits"] else "DOES NOT FIT"
        print(f"dry run: {units.size(info['size'])}, {fits} ({units.size(info['free_bytes'])} free", end="")
        print(f", replaces {units.size(info['replaces_bytes'])})" if info["replaces_bytes"] else ")")
        print(f"expected time: {units.duration(info['expected_seconds'])} and what the disk needs")
        return
    seconds = done.seconds
    print(
        f"{printable(done.output)}: {units.size(info['size'])} in {units.duration(seconds['plan'] + seconds['write'])}"
        f" ({units.rate(info['size'], seconds['write'])}), {units.duration(seconds['sync'])} until it was on the disk"
    )
    print(f"manifest sha256 {info['manifest_sha256']}")


def _print_shards(done: Conversion, info: dict[str, Any]) -> None:
    """Where external experts stay, and what that asks of the user."""
    shards = info.get("experts", {}).get("shards", [])
    if not shards:
        if done.plan.external is not None:
            print("there are no routed experts: nothing stays outside of the pack")
        return
    names = ", ".join(shard["name"] for shard in shards)
    print(printable(f"{units.size(info['experts']['bytes'])} of experts stay in {names}"))
    folder = os.path.dirname(os.path.abspath(done.plan.source.files[0].path))
    if not os.path.samefile(folder, os.path.dirname(os.path.abspath(done.output))):
        print(printable(f"the pack lies elsewhere: use it with --expert-dir {folder}, or put those files beside it"))
