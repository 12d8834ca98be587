"""Unicode normalisation form C as Hugging Face's `tokenizers` does it, in time linear in the text but for a logarithm.

`tokenizers` normalises by the tables of Unicode 9.0: a mark that came later neither moves nor combines. Normalisation
of older characters never changes, so taking such characters as walls gives the same text on every version of Python.
"""

from __future__ import annotations

from unicodedata import combining, is_normalized, normalize

TYPE_CHECKING = False
if TYPE_CHECKING:
    import re

_RUN = 32  # combining marks in a row from which they are sorted here
# Characters that have a combining class or a decomposition in Unicode 17 and had none in 9.0, as the inside of a class
# of `re`; where single ones are far apart, the blocks around them, which are newer than 9.0 as a whole.
_LATE = (
    "\u07fd\u0897-\u089f\u08ca-\u08d3\u09fe\u0c3c\u0d3b-\u0d3c\u0eba\u1715\u1abf-\u1af0\u1df6-\u1dfa\ua82c"
    "\U000105c0-\U000105ff\U00010d24-\U00010d27\U00010d69-\U00010d6d\U00010eab-\U00010eac\U00010ecb-\U00010ecf"
    "\U00010ef0-\U00010eff\U00010f46-\U00010f50\U00010f82-\U00010f85\U00011070\U0001133b\U00011380-\U000113ff"
    "\U0001145e\U00011839-\U0001183a\U00011930-\U00011943\U000119e0\U00011a34\U00011a47\U00011a99\U00011d42"
    "\U00011d44-\U00011d45\U00011d97\U00011f41-\U00011f42\U00016100-\U0001613f\U00016d40-\U00016d7f"
    "\U00016ff0-\U00016ff1\U0001e08f\U0001e130-\U0001e136\U0001e2ae\U0001e2ec-\U0001e2ef\U0001e4ec-\U0001e4ef"
    "\U0001e5ee-\U0001e5ef\U0001e6e3\U0001e6e6\U0001e6ee-\U0001e6ef\U0001e6f5"
)
_walls: re.Pattern[str] | None = None


def nfc(text: str) -> str:
    """The text in normalisation form C of Unicode 9.0.

    `unicodedata` orders a run of combining marks in quadratic time, so long runs are ordered before.
    """
    global _walls  # noqa: PLW0603 - compiled once per process
    if is_normalized("NFC", text):
        return text  # then so are its parts between the walls
    if _walls is None:
        import re

        _walls = re.compile(f"([{_LATE}])")
    return "".join([normalize("NFC", _ordered(part)) for part in _walls.split(text)])


def _ordered(text: str) -> str:
    """With every long run of combining marks sorted by class, which changes nothing else."""
    if len(text) <= _RUN:
        return text
    made: list[str] = []
    start = kept = 0
    for at, character in enumerate(text):
        if character >= "\u0300" and combining(character):
            continue
        if at - start > _RUN:
            made += [text[kept:start], *sorted(text[start:at], key=combining)]
            kept = at
        start = at + 1
    if len(text) - start > _RUN:
        made += [text[kept:start], *sorted(text[start:], key=combining)]
        kept = len(text)
    return "".join([*made, text[kept:]]) if made else text
