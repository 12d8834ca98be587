"""Lets somebody's writer write the recipes, and judges the files: rules, meaning, and, canonically, every byte."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Event

from ..errors import GpackError
from ..terminal.interrupts import held_interrupts
from ..terminal.units import plural
from .compare import differences
from .disk import changes, is_regular, snapshot
from .meaning import meaning_of_pack, meaning_of_recipe
from .outcomes import Result, Run, Subject, program_name
from .process import ChildFaultError, Limits, ended_badly
from .protocol import EXIT_SKIP
from .sandbox import Sandbox
from .workers import side_by_side
from .writer_recipes import OUTPUT_FILE, PROFILES, WRITER_LEVELS, WriterRecipe

EXIT_WRITTEN, EXIT_REFUSED = 0, 1
_CHUNK = 1 << 20
_SAID = 500  # characters of a refusal that are kept


@dataclass(frozen=True)
class WriterOptions:
    """How a writer is run.

    Attributes:
        level: The highest level of recipes that it is given.
        profile: `canonical`: the bytes must be those of gpack's own writer. `free`: rules and meaning suffice.
        jobs: Programs that run side by side.
        most_faults: After so many crashes and the like the rest is not tried.
    """

    level: str = WRITER_LEVELS[-1]
    profile: str = PROFILES[0]
    jobs: int = 1
    most_faults: int = 100
    limits: Limits = field(default_factory=Limits)


def given(recipes: Sequence[WriterRecipe], level: str) -> list[WriterRecipe]:
    """The recipes that a writer of a level is given."""
    return [recipe for recipe in recipes if WRITER_LEVELS.index(recipe.level) <= WRITER_LEVELS.index(level)]


def run_writer(
    command: Sequence[str],
    recipes: Sequence[WriterRecipe],
    options: WriterOptions,
    broken_rules: Callable[[Path], list[str]],
    *,
    progress: Callable[[Result], None] | None = None,
) -> Run:
    """Gives a writer all recipes of its level.

    Args:
        command: The program and its arguments; the recipe's path and the output's path are put after them.
        broken_rules: The rules that a file breaks, one line each.
        progress: Called with each result as it comes, in any order.

    Raises:
        PathError: The command cannot be started, or a folder cannot be made.
        KeyboardInterrupt: The user stopped it; the programs have ended and the folders are gone.
    """
    started = time.monotonic()
    run = Run(Subject("writer", program_name(command), "", "", options.level, list(command)))
    waiting: SimpleQueue[WriterRecipe] = SimpleQueue()
    for recipe in given(recipes, options.level):
        waiting.put(recipe)
    stop = Event()
    worker = _Writer(command, options, broken_rules, stop)

    def work() -> None:
        while not stop.is_set():
            try:
                result = worker.result_of(waiting.get_nowait())
            except Empty:
                return
            if stop.is_set():  # it was broken off, so its result tells nothing of the program
                return
            run.results.append(result)
            if progress:
                progress(result)

    with held_interrupts(stop):
        side_by_side(max(1, min(options.jobs, waiting.qsize())), work, stop)
    run.results.sort(key=lambda result: result.id)
    run.seconds = time.monotonic() - started
    return run


class _Writer:
    def __init__(
        self, command: Sequence[str], options: WriterOptions, broken_rules: Callable[[Path], list[str]], stop: Event
    ) -> None:
        self._command, self._options, self._broken_rules, self._stop = command, options, broken_rules, stop
        self._faults = 0

    def result_of(self, recipe: WriterRecipe) -> Result:
        """Lets the program write one recipe, and judges what it wrote."""
        wanted = "rules, meaning, bytes" if self._options.profile == PROFILES[0] else "rules, meaning"
        result = Result(recipe.id, recipe.level, recipe.required, wanted, "pass")
        if self._faults >= self._options.most_faults:
            result.outcome, result.message = "not-run", f"it failed {self._faults} times before"
            return result
        started = time.monotonic()
        with Sandbox() as sandbox:
            self._try(recipe, sandbox, result)
        result.seconds = time.monotonic() - started
        return result

    def _try(self, recipe: WriterRecipe, sandbox: Sandbox, result: Result) -> None:
        recipe_path = recipe.materialise(sandbox.work, profile=self._options.profile)
        output = sandbox.work / OUTPUT_FILE
        before = snapshot(sandbox.work)
        try:
            written = self._run(sandbox, recipe_path, output, result)
        except ChildFaultError as error:
            result.outcome, result.message = error.outcome, str(error)
            written = False
            self._faults += 1
        unexpected = [
            change for change in changes(before, snapshot(sandbox.work)) if change != f"{OUTPUT_FILE} was added"
        ]
        added = [change for change in unexpected if change.endswith(" was added")]
        changed = [*sandbox.touched(), *(change for change in unexpected if change not in added)]
        if changed:
            result.outcome, result.message = "touched", f"it changed what is not its own: {'; '.join(changed[:5])}"
        elif added and result.good:
            result.outcome, result.message = "leftovers", "; ".join(added[:5])
        elif written:
            self._judge(recipe, sandbox, output, result)
        result.notes += [note for note in sandbox.leftovers() if note.startswith("left files in its temporary")]

    def _run(self, sandbox: Sandbox, recipe_path: Path, output: Path, result: Result) -> bool:
        """Whether the program says that it wrote the file.

        Raises:
            ChildFaultError: It used too much, or ended in a way that means nothing.
        """
        limits = self._options.limits
        with sandbox.start([*self._command, str(recipe_path), str(output)], limits, self._stop) as child:
            child.end_input()
            try:
                said = child.rest(limits.timeout, "its end")
            finally:
                status = child.close()
                result.notes += child.notes
                result.stderr = child.stderr_tail if status != EXIT_WRITTEN else ""
        if status == EXIT_WRITTEN:
            return True
        words = said.decode("utf-8", "backslashreplace").strip()[:_SAID]
        if status == EXIT_SKIP:
            result.outcome, result.message = "skip", words
        elif status == EXIT_REFUSED and words:
            result.outcome, result.message = "refused", words
        else:  # an interpreter's status after an error that nobody caught is 1 too
            raise ended_badly(status, " and no reason on its standard output" if status == EXIT_REFUSED else "")
        return False

    def _judge(self, recipe: WriterRecipe, sandbox: Sandbox, output: Path, result: Result) -> None:
        if not is_regular(output):
            result.outcome = "missing"
            result.message = (
                "it ended well, but the output is no regular file"
                if output.is_symlink() or output.exists()
                else ("it ended well, but there is no output")
            )
            return
        try:
            broken = self._broken_rules(output)
        except GpackError as error:
            broken = [str(error)]
        if broken:
            result.outcome, result.message = "rules", f"the file breaks rules in {plural(len(broken), 'place')}"
            result.differ(broken)
            return
        try:
            found = list(differences(meaning_of_recipe(recipe), meaning_of_pack(output, recipe.level)))
        except GpackError as error:
            found = [str(error)]
        if found:
            result.outcome, result.message = (
                "meaning",
                f"the file says {plural(len(found), 'thing')} that the recipe does not",
            )
            result.differ(found)
        elif self._options.profile == PROFILES[0]:
            expected = sandbox.root / "expected.gpack"
            recipe.write(sandbox.work, expected)
            if difference := first_difference(expected, output):
                result.outcome, result.message = "bytes", difference


def first_difference(expected: Path, found: Path) -> str:
    """Where two files differ first, in words; nothing where they are equal."""
    sizes = expected.stat().st_size, found.stat().st_size
    with expected.open("rb") as one, found.open("rb") as other:
        at = 0
        while True:
            block, compared = one.read(_CHUNK), other.read(_CHUNK)
            if block != compared:
                at += next(
                    (i for i, (a, b) in enumerate(zip(block, compared, strict=False)) if a != b),
                    min(len(block), len(compared)),
                )
                sized = "" if sizes[0] == sizes[1] else f"; {sizes[1]} bytes, should be {sizes[0]}"
                return f"it differs from the canonical file from byte {at} on{sized}"
            if not block:
                return ""
            at += len(block)
