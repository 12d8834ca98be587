"""`guild verify`: is this pack what it claims to be?"""

from __future__ import annotations

from .. import errors

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from typing import Any

    from ..sections.check_shards import ShardCheck
    from ..sections.verify import Verification
    from ..signatures import Trust

DESCRIPTION = """\
Check packs. By default every rule of the format and the SHA-256 of every section are checked, and all violations are
listed with rule, section, field and byte offset. --quick checks header, directory, footer and the manifest's SHA-256:
what every open does.

Of a pack with external experts the shards are checked too, beside the pack or in --expert-dir: size, SHA-256 of the
header and, where the pack records it (`guild convert --hash-shards`), of every byte. What no digest covers is said.

Of a pack with digests of chunks (`guild convert --chunk-digests`, `guild seal`) these are checked too, and tell to the
MiB what is damaged. --chunks checks every rule and the digests of the chunks, but not the SHA-256 of the sections: it
is faster, and --threads makes it faster still.

--against OTHER lists what is damaged, by its digests of chunks, or where there are none by comparing: no rules are
checked, and sections whose SHA-256 is right are not compared.

--signature checks who made the pack as well, by a bundle of `guild sign`, or of `model_signing sign` over manifest.json
(see `guild inspect --extract-manifest`) or over the whole file: --public-key, --certificate-chain or --identity say by
whom it must be.

Several files are checked one after the other, whatever becomes of those before; - reads their names from standard
input, one on each line. The exit code is that of the first that is not sound."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    from .trusting import add_trust_arguments

    parser.add_argument("files", nargs="+", metavar="FILE", help="a .gpack file; -: names from standard input")
    parser.add_argument(
        "--quick", action="store_true", help="only what a quick open checks (well under a millisecond of work)"
    )
    parser.add_argument(
        "--chunks",
        action="store_true",
        help="digests of chunks instead of the sections' SHA-256 (needs a pack with them)",
    )
    parser.add_argument(
        "--threads", type=int, default=1, metavar="N", help="with --chunks: so many threads (default: 1)"
    )
    parser.add_argument(
        "--against",
        metavar="OTHER",
        help="list the damaged ranges, by another copy of the pack, or the GGUF or safetensors that it was made from",
    )
    parser.add_argument("--expert-dir", metavar="DIR", help="where the shards of external experts are")
    add_trust_arguments(
        parser.add_argument_group("signature"), "--signature", "also check the signature of manifest or pack"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> int:
    """Verifies; exit code 0 where no rule is broken."""
    if args.quick and args.chunks:
        raise errors.UsageError("--quick reads no weights, --chunks all of them: choose one", code="usage")
    if args.threads < 1 or (args.threads > 1 and not args.chunks):
        raise errors.UsageError("--threads is a number from 1 on, and goes with --chunks", code="usage")
    from .trusting import trust_of

    trust = trust_of(args, "--signature")
    if args.against is not None and (args.quick or args.chunks or trust is not None):
        raise errors.UsageError("--against goes with none of --quick, --chunks and --signature", code="usage")
    if trust is not None and (args.quick or args.chunks):
        raise errors.UsageError(
            "--signature needs the SHA-256 of every section: it goes with neither --quick nor --chunks", code="usage"
        )
    files = _named(args.files)
    if len(files) == 1:
        status, found = _one(args, files[0], trust)
        if args.json:
            _print_object(found)
        return status
    return _several(args, files, trust)


def _named(words: Sequence[str]) -> list[str]:
    """The files; `-` stands for the lines of standard input."""
    import os
    import sys

    files = []
    for word in words:
        if word == "-":
            files += [os.fsdecode(line) for line in sys.stdin.buffer.read().splitlines() if line]
        else:
            files.append(word)
    if not files:
        raise errors.UsageError("no file is named", code="usage", hint="standard input has one name on each line")
    return files


def _several(args: argparse.Namespace, files: Sequence[str], trust: Trust | None) -> int:
    import sys

    from ..terminal.table import printable

    results, first = [], errors.EXIT_OK
    for path in files:
        try:
            status, found = _one(args, path, trust)
        except errors.GpackError as error:
            status, found = error.exit_code, {"ok": False, "file": path, "error": error.to_dict()}
            if not args.json:
                print(printable(f"guild: error: {error}"), file=sys.stderr, flush=True)
        results.append(found)
        first = first or status
    sound = sum(found["ok"] for found in results)
    if args.json:
        _print_object({"ok": sound == len(files), "files": results})
    else:
        print(f"{sound} of {len(files)} files are sound")
    return first


def _print_object(value: dict[str, Any]) -> None:
    import json

    print(json.dumps(value, indent=2))


def _one(args: argparse.Namespace, path: str, trust: Trust | None) -> tuple[int, dict[str, Any]]:
    """Checks a file; the exit code, and what --json prints.

    Raises:
        GpackError: It cannot be checked.
    """
    from ..container.reader import part_error

    if error := part_error(path):
        raise error
    if args.against is not None:
        return _against(args, path)
    return _quick(path, as_json=args.json) if args.quick else _full(args, path, trust)


def quick_file(arguments: Sequence[str]) -> str | None:
    """The file, where the arguments are just it and `--quick`: argparse alone takes several times the check's time."""
    files = [argument for argument in arguments if not argument.startswith("-")]
    return files[0] if len(files) == 1 and sorted(arguments) == sorted(["--quick", *files]) else None


def run_quick(path: str) -> int:
    """Checks what a quick open checks; exit code 0.

    Raises:
        GpackError: The first rule that the file breaks, or why it cannot be read.
    """
    return _quick(path, as_json=False)[0]


def _quick(path: str, *, as_json: bool) -> tuple[int, dict[str, Any]]:
    from ..container.reader import Container

    with Container.open(path) as container:
        size, sections = container.file_size, len(container.entries)
        identity = container.footer.manifest_sha256.hex()
    if not as_json:
        from ..terminal.table import printable

        print(f"{printable(path)}: OK (quick: {sections} sections, {size} bytes, manifest sha256 {identity})")
    return errors.EXIT_OK, {
        "ok": True,
        "mode": "quick",
        "file": path,
        "size": size,
        "sections": sections,
        "manifest_sha256": identity,
    }


def _against(args: argparse.Namespace, path: str) -> tuple[int, dict[str, Any]]:
    from ..repair.mend import find_damage
    from .progress import Progress

    with Progress("compare", enabled=False if args.json else None) as bar:
        damages = find_damage(path, args.against, progress=bar.update)
    if not args.json:
        from ..terminal.table import printable
        from .repair import damage_lines

        for line in damage_lines(damages):
            print(line)
        judged = "nothing is damaged" if not damages else "`guild repair` mends it"
        print(f"{printable(path)}: {judged}")
    return errors.EXIT_INVALID if damages else errors.EXIT_OK, {
        "ok": not damages,
        "mode": "against",
        "file": path,
        "against": args.against,
        "damages": [damage.to_dict() for damage in damages],
    }


def _full(args: argparse.Namespace, path: str, trust: Trust | None) -> tuple[int, dict[str, Any]]:
    from contextlib import ExitStack

    from ..container.reader import Container

    signed = None
    with ExitStack() as stack:
        opened = None
        if trust is not None:
            from ..signatures import check_signature

            container = stack.enter_context(Container.open(path))
            signed, opened = check_signature(container, trust), container.descriptor
        result = _verify(args, path, opened)
    if not args.json:
        _print_text(result)
        if args.chunks:
            print("The digests of the chunks were checked, not the sections' SHA-256.")
        if signed is not None and result.ok:
            print(f"The signature of the {signed} holds.")
    status = errors.EXIT_OK if result.ok else _status(result)
    return status, _result(result, "chunks" if args.chunks else "full", signed)


def _verify(args: argparse.Namespace, path: str, opened: int | None) -> Verification:
    from ..sections.verify import verify
    from .progress import Progress

    with Progress("verify", enabled=False if args.json else None) as bar:
        return verify(
            path,
            shards=True,
            expert_dir=args.expert_dir,
            progress=bar.update,
            chunks=args.chunks,
            threads=args.threads,
            opened=opened,
        )


def _status(result: Verification) -> int:
    """A file that only a newer reader understands is no damaged file, nor is one whose shard is missing."""
    if result.report.ok:
        return next(shard.error.exit_code for shard in result.shards if shard.error is not None)
    newer = set(result.report.counts) == {"header.min_reader_version"}
    return errors.EXIT_UNSUPPORTED if newer else errors.EXIT_INVALID


def _result(result: Verification, mode: str, signed: str | None) -> dict[str, Any]:
    footer = result.structure.footer
    return {
        "ok": result.ok,
        "mode": mode,
        "file": result.path,
        "size": result.structure.file_size,
        "sections": len(result.structure.entries),
        "manifest_sha256": footer.manifest_sha256.hex() if footer else None,
        "bytes_hashed": result.bytes_hashed,
        "seconds": round(result.seconds, 6),
        "counts": result.report.counts,
        "violations": [violation.to_dict() for violation in result.report.violations],
        "signed": signed,
        "notes": list(result.notes),
        "shards": [shard.to_dict() for shard in result.shards],
    }


def _print_text(result: Verification) -> None:
    from ..terminal import units
    from ..terminal.table import printable

    report, footer = result.report, result.structure.footer
    for violation in report.violations:
        place = f"{violation.section}.{violation.field}".rstrip(".")
        at = "" if violation.offset is None else f" at byte {violation.offset}"
        print(printable(f"{violation.severity}: {violation.rule}: {place}{at}: {violation.message}"))
    for rule, count in report.counts.items():
        listed = sum(violation.rule == rule for violation in report.violations)
        if count > listed:
            print(f"{rule}: {count - listed} more like these")
    for shard in result.shards:
        print(printable(_shard_text(shard)))
    for note in result.notes:
        print(printable(f"note: {note}"))
    speed = f"{units.size(result.bytes_hashed)} hashed in {units.duration(result.seconds)}"
    total = sum(report.counts.values())
    if result.ok and footer:
        remarks = f", {units.plural(total, 'warning')}" if total else ""
        print(f"{printable(result.path)}: OK ({len(result.structure.entries)} sections, {speed}{remarks})")
        print(f"manifest sha256 {footer.manifest_sha256.hex()}")
    elif report.ok:
        faulty = sum(shard.error is not None for shard in result.shards)
        judged = f"the pack is OK, {faulty} of {len(result.shards)} shards are not, {speed}"
        print(f"{printable(result.path)}: INVALID ({judged})")
    else:
        broken = f"{units.plural(total, 'violation')} of {units.plural(len(report.counts), 'rule')}"
        print(f"{printable(result.path)}: INVALID ({broken}, {speed})")
        print(report.hint or "Fetch the file again, or tell its writer; spec/GPACK.md explains the rules.")


def _shard_text(shard: ShardCheck) -> str:
    from ..terminal import units

    if shard.error is not None:
        return f"error: shard {shard.name}: {shard.error}"
    if shard.covered:
        return f"shard {shard.name}: OK ({units.size(shard.size)}, every byte checked)"
    return (
        f"shard {shard.name}: size and header are right; {shard.uncovered_bytes} of its {shard.size} bytes "
        f"are covered by no digest"
    )
