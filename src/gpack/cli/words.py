"""The words of a command line: the parser, and what was probably meant where a word is unknown."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any, NoReturn

from .. import errors

# What other programs call our commands.
ALIASES = {
    "ask": "run",
    "chat": "run",
    "check": "verify",
    "compare": "diff",
    "decode": "detokenize",
    "encode": "tokenize",
    "info": "inspect",
    "pack": "convert",
    "quantize": "convert --quantize",
    "server": "serve",
    "show": "inspect",
    "unpack": "export",
}
_UNKNOWN = re.compile(r"unrecognized arguments: (-\S*)")


class Parser(argparse.ArgumentParser):
    """Complaints become errors of ours, so that they come as JSON too and share one way out."""

    def error(self, message: str) -> NoReturn:
        """Raises `usage`, with the option that was probably meant."""
        hint = f"`{self.prog} --help` shows the arguments"
        if found := _UNKNOWN.match(message):
            options = [option for action in self._actions for option in action.option_strings]
            if near := closest(found[1].partition("=")[0], options):
                hint = f"did you mean {near}? {hint}"
        raise errors.UsageError(message, code="usage", hint=hint)

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Options may stand between positional arguments; after `--` everything is positional."""
        words = list(arguments)
        return self.parse_args(words) if "--" in words else self.parse_intermixed_args(words)


def closest(word: str, known: Iterable[str]) -> str | None:
    """The known word that is most like another; None where none is."""
    found = get_close_matches(word, list(known), n=1, cutoff=0.6)
    return found[0] if found else None


def meant(command: str, known: Iterable[str]) -> str | None:
    """The command that was probably meant."""
    return ALIASES.get(command) or closest(command, known)


def output_file(suffix: str) -> Any:
    """The type of an argument that names a file to write, of a format with a suffix.

    A file is shown when it has been checked, so that it cannot go to standard output. A name that ends like a file of
    another format is refused: nothing that opens it by its name would find what it looks for.
    """

    def check(text: str) -> str:
        if text == "-":
            raise argparse.ArgumentTypeError("the output is a file, which is checked before it is shown: name one")
        ending = os.path.splitext(text)[1].lower()
        if ending in {".gpack", ".gguf", ".safetensors"} - {suffix}:
            raise argparse.ArgumentTypeError(f"{text!r} ends in {ending}, and what is written is a {suffix} file")
        return text

    return check
