"""The command: `python -m codegen --schema FORMAT.yaml --out DIR [--check]`."""

from __future__ import annotations

import argparse
import difflib
import importlib
import sys
from collections.abc import Callable
from pathlib import Path

from codegen import emit_json, emit_python
from codegen.loader import load
from codegen.model import Schema, SchemaError

# Targets of a single file: key of `outputs`, the emitter's module, and the ending of the default name.
SINGLE = {
    "ksy": ("emit_ksy", ".ksy"),
    "c": ("emit_c", ".h"),
    "imhex": ("emit_imhex", ".hexpat"),
    "markdown": ("emit_markdown", ".md"),
}
# Targets of a folder of files.
FOLDERS: dict[str, tuple[Callable[[Schema], dict[str, str]], str]] = {
    "python": (emit_python.emit, "python"),
    "json_schema": (emit_json.emit_schemas, "."),
    "vectors": (emit_json.emit_vectors, "vectors"),
}


def generate(schema: Schema) -> dict[Path, str]:
    """Every file that the schema asks for, by its path below `--out`."""
    wanted = schema.outputs or dict.fromkeys((*SINGLE, *FOLDERS))
    root = root_of(schema)
    files: dict[Path, str] = {}
    for target, (emit, folder) in FOLDERS.items():
        if target in wanted:
            made = emit(schema)
            files.update({root / (wanted[target] or folder) / name: text for name, text in made.items()})
    for target, (module, ending) in SINGLE.items():
        if target in wanted:
            emitter = importlib.import_module(f"codegen.{module}")
            files[root / (wanted[target] or schema.id + ending)] = emitter.emit(schema)
    return files


def root_of(schema: Schema) -> Path:
    """Folder of all outputs: here where the schema names their places, else one of the format's name."""
    return Path() if schema.outputs else Path(schema.id)


def check(files: dict[Path, str], out: Path, stale: set[Path]) -> int:
    """Compares with what lies on disk, prints the differences, and returns how many files differ."""
    differing = 0
    for path, text in files.items():
        old = (out / path).read_text() if (out / path).exists() else None
        if old != text:
            differing += 1
            diff = difflib.unified_diff(
                (old or "").splitlines(), text.splitlines(), f"{path} (on disk)", f"{path} (generated)", lineterm=""
            )
            print("\n".join(list(diff)[:40]))
    for path in sorted(stale):
        print(f"{path} is no longer generated: delete it, or run `make codegen`")
    return differing + len(stale)


def stale_files(files: dict[Path, str], schema: Schema, out: Path) -> set[Path]:
    """Files of the generated folders that this run would not write."""
    wanted = schema.outputs or {"python": FOLDERS["python"][1], "vectors": FOLDERS["vectors"][1]}
    folders = {root_of(schema) / wanted[name] for name in ("python", "vectors") if name in wanted}
    found = {
        path.relative_to(out)
        for folder in folders
        for path in (out / folder).rglob("*")
        if path.is_file() and path.suffix in (".py", ".json") and "__pycache__" not in path.parts
    }
    nested = {path for path in found if path.parent not in {file.parent for file in files}}
    return found - set(files) - nested


def main(argv: list[str] | None = None) -> int:
    """Runs the command; returns the exit code: 0 done, 1 drift found by `--check`, 2 the schema is wrong."""
    parser = argparse.ArgumentParser(prog="python -m codegen", description=__doc__)
    parser.add_argument(
        "--schema", type=Path, action="append", required=True, help="a format's YAML; may stand several times"
    )
    parser.add_argument("--out", type=Path, default=Path(), help="folder below which all files go (default: here)")
    parser.add_argument("--check", action="store_true", help="write nothing; fail where the files differ")
    args = parser.parse_args(argv)
    differing = 0
    for path in args.schema:
        try:
            schema = load(path)
        except (SchemaError, OSError) as error:
            print(f"{path}: {error}", file=sys.stderr)
            return 2
        files = generate(schema)
        stale = stale_files(files, schema, args.out)
        if args.check:
            differing += check(files, args.out, stale)
            continue
        for relative, text in files.items():
            target = args.out / relative
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.exists() or target.read_text() != text:
                target.write_text(text)
                print(f"wrote {relative}")
        for relative in stale:
            (args.out / relative).unlink()
            print(f"removed {relative}")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
