"""Counts where `gpack.tokenizer` and Hugging Face's `tokenizers` differ, on generated strings.

`python -m bench.tokenizer_parity [--count N] DIRECTORY...`: each directory holds a `tokenizer.json`. Vocabularies are
other people's, so none are kept here; spec/tokenizer.md tells where to get those that were compared.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from bench.tokenizer_texts import random_texts
from gpack.tokenizer import Tokenizer


def compare(folder: Path, count: int, *, seed: int = 1, shown: int = 3) -> tuple[int, int, int]:
    """Strings compared, differences from `tokenizers`, and differences between plain Python and compiled code."""
    import tokenizers

    theirs = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    ours = Tokenizer.from_dir(folder)
    specials = tuple(token.content for token in theirs.get_added_tokens_decoder().values())
    compared = different = unlike = 0
    for text in random_texts(count, seed, specials[:50]):
        expected = theirs.encode(text, add_special_tokens=False).ids
        found = ours.encode(text, add_special=False, parse_special=True)
        compared += 1
        if found != expected:
            different += 1
            if different <= shown:
                print(f"  {folder.name}: {text!r}\n    ours   {found}\n    theirs {expected}")
        if ours.encode_compiled(text, add_special=False, parse_special=True) not in (None, found):
            unlike += 1
    return compared, different, unlike


def main(arguments: list[str] | None = None) -> int:
    """Prints a line for each directory; the exit code says whether all are equal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    try:
        import tokenizers
    except ImportError:
        print("skipped: `tokenizers` is not installed")
        return 0
    if not options.folders:
        print("skipped: no directory with a tokenizer.json was named")
    worst = 0
    for folder in options.folders:
        if not (folder / "tokenizer.json").is_file():
            print(f"{folder.name:32} skipped: no tokenizer.json")
            continue
        started = time.perf_counter()
        compared, different, unlike = compare(folder, options.count, seed=options.seed)
        seconds = time.perf_counter() - started
        print(
            f"{folder.name:32} {compared:8} strings, {different} differ from tokenizers {tokenizers.__version__}, "
            f"{unlike} between plain and compiled ({seconds:.0f} s)",
            flush=True,
        )
        worst |= bool(different or unlike)
    return worst


if __name__ == "__main__":
    sys.exit(main())
