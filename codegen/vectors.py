"""`spec/vectors`: index and recipes, from the recipes of `gpack.conformance.recipes` and the schema's rules.

The command is `python -m codegen.vectors [--check]`, a step of `make codegen`. It is a program of its own because it
uses the package whose code the other steps generate.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from codegen import kaitai_rules
from codegen.loader import load
from codegen.model import SchemaError
from codegen.published import FILE, PublishedError, renewed
from gpack.conformance.checking import PASSED, check
from gpack.conformance.places import path_of, range_of, record_of
from gpack.conformance.recipe import Recipe
from gpack.conformance.recipes import valid, valid_models
from gpack.conformance.recipes.broken import CASES, Case
from gpack.conformance.vectors import SHARDS, Vector, VectorFolder, index_text, recipe_path
from gpack.container.report import Violation
from gpack.generated.rules import RULES
from gpack.sections.verify import Verification, verify

SCHEMA = Path(__file__).parents[1] / "schema" / "gpack.yaml"
FOLDER = Path("spec") / "vectors"
SINCE = "1.0"
# What every reader sees for itself, because the bytes that it asks for are not there.
UNREADABLE = {"header.complete", "header.total_file_size", "header.section_table_bounds"}
# What these find is reported in the words of Python's own decoders, which change from version to version.
FOREIGN_WORDS = {"manifest.json", "index.utf8", "tokenizer.template"}
_HOW = (
    "A rule is held where a file of gpack.conformance.recipes.valid_models passes its check (of gpack.sections, or "
    "`check:` in the schema), and broken by a `case` of gpack.conformance.recipes.broken_*."
)


class VectorsError(Exception):
    """The recipes do not show what they claim to show."""


@dataclass(frozen=True)
class Made:
    """Everything below `spec/vectors`.

    Attributes:
        vectors: The entries.
        files: Text by path below the folder.
    """

    vectors: list[Vector]
    files: dict[Path, str]


def make() -> Made:
    """All vectors.

    Raises:
        VectorsError: A recipe is judged otherwise than it should be, or a rule lacks a vector.
    """
    holder = VectorFolder(FOLDER, {})
    vectors = [*_accepted(holder), *_rejected(holder)]
    files = {Path("index.json"): index_text(vectors)}
    files |= {Path(recipe_path(vector.id)): recipe_text(vector.recipe) for vector in vectors}
    for name, data in valid.shards().items():
        files[Path(SHARDS) / f"{name}.json"] = recipe_text(Recipe.of(data))
    check_coverage(vectors)
    return Made(vectors, files)


def recipe_text(recipe: Recipe) -> str:
    """A recipe as JSON, a run to a line."""
    said = recipe.to_dict()
    runs = ",\n".join(json.dumps(run) for run in said.pop("runs"))
    head = json.dumps(said)[:-1]
    return f'{head}, "runs": [\n{runs}\n]}}\n' if runs else f'{head}, "runs": []}}\n'


# ---------------------------------------------------------------- accepted


def _accepted(holder: VectorFolder) -> Iterator[Vector]:
    shown: set[str] = set()
    for item in valid_models.TABLE:
        recipe = item.make()
        vector = Vector(
            id=f"valid/{item.name}",
            doc=item.doc,
            level="structure",
            required=not recipe.large,
            expect="accept",
            cls=None,
            rules=(),
            path=None,
            range=None,
            since=SINCE,
            shards=item.shards,
            recipe=recipe,
            folder=holder,
        )
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "valid.gpack"
            vector.recipe.write(path, holder.data)
            report = check(path, level="structure" if vector.large else "semantic")
        if report.failed:
            raise VectorsError(f"{vector.id} breaks {', '.join(result.rule for result in report.failed)}")
        passed = [result.rule for result in report.results if result.status == PASSED]
        if not vector.large:
            holder.known[vector.id] = vector.data()
        yield replace(vector, rules=tuple(rule for rule in passed if rule not in shown))
        shown = shown or set(passed)  # of the first, the plainest


# ---------------------------------------------------------------- rejected


def _rejected(holder: VectorFolder) -> Iterator[Vector]:
    for case in CASES:
        if case.published:
            # A file that is only warned of is valid.
            kind = "invalid" if RULES[case.rule].severity == "error" else "valid"
            yield _broken(case, f"{kind}/{case.id}", holder)
    yield _broken_giant(holder)


def _broken(case: Case, vector_id: str, holder: VectorFolder) -> Vector:
    data, _ = case.sealed()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "broken.gpack"
        path.write_bytes(data)
        result = verify(path)
    recipe = Recipe.of(data, base=valid.name_of(case.base), below=case.base())
    return _described(case, vector_id, recipe, result, holder)


def _broken_giant(holder: VectorFolder) -> Vector:
    """The sparse giant without its last byte: its reading must not depend on its size."""
    case, recipe = valid_models.CUT, valid_models.cut_giant()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "broken.gpack"
        recipe.write(path, holder.data)
        result = verify(path, digests=False)
    return replace(_described(case, "invalid/giant-cut", recipe, result, holder), required=False)


def _described(case: Case, vector_id: str, recipe: Recipe, result: Verification, holder: VectorFolder) -> Vector:
    """The entry of a broken file that was judged."""
    found = [violation for violation in result.report.violations if violation.rule == case.rule]
    if not found:
        raise VectorsError(f"{vector_id}: its rule is not broken")
    named = [v for v in found if v.field == case.field and v.section == case.section]
    shown = (named or found)[0]
    level = level_of(result)
    accepted = RULES[case.rule].severity == "warning"
    rules = (case.rule, *sorted(result.report.counts.keys() - {case.rule}))
    foreign = case.rule in FOREIGN_WORDS
    return Vector(
        id=vector_id,
        doc=f"Must hold: {RULES[case.rule].doc}" if foreign else shown.message,
        level="structure" if accepted else level,
        required=accepted or not RULES[case.rule].recommended,
        expect="accept" if accepted else "reject",
        cls=None if accepted else class_of(case.rule, level),
        rules=rules,
        path=path_of(shown),
        range=range_of(shown, result.structure),
        since=SINCE,
        shards=(),
        recipe=recipe,
        folder=holder,
    )


def level_of(result: Verification) -> str:
    """What a reader must know to see that a file is wrong."""
    violations = list(result.report.errors())
    if any(v.rule in UNREADABLE or v.rule in visible().get(_record(v), ()) for v in violations):
        return "structure"
    digests = (RULES[v.rule] for v in violations if RULES[v.rule].error == "DigestError")
    return "digest" if any(rule.level == "digest" for rule in digests) else "semantic"


def class_of(rule: str, level: str) -> str:
    """How a reader that sees the broken rule says what is wrong."""
    if RULES[rule].error == "UnsupportedError":
        return "unsupported"
    if RULES[rule].error == "DigestError":
        return "digest"
    return "structure" if level == "structure" or RULES[rule].level == "structure" else "semantic"


def _record(violation: Violation) -> str:
    known = record_of(violation.section, violation.field)
    return "" if known is None else known[0].__name__


@cache
def visible() -> Mapping[str, set[str]]:
    """The rules of each record that its Kaitai grammar checks whole."""
    schema = load(SCHEMA)
    made = {}
    for item in schema.structs:
        checks = kaitai_rules.checks_of(schema, item)
        ids = {rule.id for rule in schema.rules_of(item.name)} - set(checks.unchecked)
        made[item.name] = ids | {rule.id for rule in schema.rules if rule.sweep == "u64"}
    return made


# ---------------------------------------------------------------- coverage


def check_coverage(vectors: list[Vector]) -> None:
    """Ids are unique, and every rule of the schema is shown held and broken.

    Raises:
        VectorsError: They are not.
    """
    counts = Counter(vector.id for vector in vectors)
    if doubled := [vector_id for vector_id, count in counts.items() if count > 1]:
        raise VectorsError(f"ids stand twice: {', '.join(doubled)}")
    held = {rule for vector in vectors if vector.expect == "accept" for rule in vector.rules}
    broken = {vector.rules[0] for vector in vectors if vector.expect == "reject"}
    # A rule that only warns is broken by files that are accepted; such a vector is called after it.
    broken |= {vector.id.split("/")[1] for vector in vectors if vector.expect == "accept"}
    lacks = [
        f"rules without {word} vector: {', '.join(missing)}"
        for word, shown in (("an accepting", held), ("a rejecting", broken))
        if (missing := [rule for rule in RULES if rule not in shown])
    ]
    if lacks:
        raise VectorsError(f"{'; '.join(lacks)}. {_HOW}")


# ---------------------------------------------------------------- the command


def main(argv: list[str] | None = None) -> int:
    """Runs the command; returns the exit code: 0 done, 1 drift found by `--check`, 2 the recipes are wrong."""
    parser = argparse.ArgumentParser(prog="python -m codegen.vectors", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail where the files differ")
    parser.add_argument("--out", type=Path, default=Path(), help="folder below which all files go (default: here)")
    args = parser.parse_args(argv)
    try:
        made = make()
        published = renewed(_read(published_file := args.out / FILE), load(SCHEMA), made.vectors)
    except (VectorsError, PublishedError, SchemaError, OSError) as error:
        print(f"vectors: {error}", file=sys.stderr)
        return 2
    root = args.out / FOLDER
    # A rule is called `manifest.json`, and so is the folder of its recipes.
    there = (path for path in (root / "recipes").rglob("*.json") if path.is_file())
    stale = {path for path in there if path.relative_to(root) not in made.files}
    changed = [path for path, text in made.files.items() if _read(root / path) != text]
    if args.check:
        for path in (*changed, *(path.relative_to(root) for path in stale)):
            print(f"{FOLDER / path} differs from its recipe: run `make codegen`")
        if _read(published_file) != published:
            print(f"{FILE} lacks what is new: run `make codegen`")
        return 1 if changed or stale or _read(published_file) != published else 0
    published_file.parent.mkdir(parents=True, exist_ok=True)
    published_file.write_text(published)
    for path in changed:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(made.files[path])
    for path in stale:
        path.unlink()
    if changed or stale:
        print(f"wrote {len(changed)} and removed {len(stale)} files of {FOLDER}")
    return 0


def _read(path: Path) -> str | None:
    return path.read_text() if path.exists() else None


if __name__ == "__main__":
    sys.exit(main())
