"""Tokenisers: text to ids and back, on the mapped GBT1 section.

```python
from gpack.tokenizer import Tokenizer

with Tokenizer.open("model.gpack") as tokenizer:
    ids = tokenizer.encode("Hello", add_special=True, parse_special=False)
    text = tokenizer.decode(ids)
```

Importing it and encoding a first word need the standard library alone.
"""

from __future__ import annotations

from .decode import TextStream
from .tokenizer import Tokenizer

__all__ = ["TextStream", "Tokenizer"]
