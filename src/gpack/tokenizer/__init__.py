"""Tokenisers: text to ids and back, on the mapped GBT1 section.

```python
from gpack.tokenizer import Tokenizer

with Tokenizer.open("model.gpack") as tokenizer:
    ids = tokenizer.encode("Hello", add_special=True, parse_special=False)
    text = tokenizer.decode(ids)
```

Importing it and encoding a first word need the standard library alone. What reads a GGUF or a directory lies above
this package, in `gpack.tokenizer_files`: the name `Tokenizer` is handed on from there when it is first used.
"""

from __future__ import annotations

from .decode import TextStream

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..tokenizer_files import Tokenizer

__all__ = ["TextStream", "Tokenizer"]


def __getattr__(name: str) -> object:
    if name != "Tokenizer":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ..tokenizer_files import Tokenizer

    globals()[name] = Tokenizer
    return Tokenizer
