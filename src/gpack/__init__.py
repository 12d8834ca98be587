"""GPACK: a portable, page-aligned, mmap-ready container for large language models.

```python
import gpack

with gpack.open("model.gpack") as pack:
    weights = pack["blk.0.attn_q.weight"]      # zero-copy numpy array over the mapped file
    values = weights.dequantize()              # float32
    pack.metadata["general.architecture"]
```

Names are imported when they are first used: `import gpack` and `gpack.open` need the standard library alone.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .arrays import save_file
    from .compare import diff
    from .container.reader import Container
    from .container.writer import GPackBuilder
    from .convert.anything import convert
    from .convert.embed import pack_experts
    from .convert.export import export_gguf
    from .convert.gguf import convert_gguf
    from .errors import GpackError
    from .pack import Pack, open  # noqa: A004 - gpack.open
    from .safe import safe_open
    from .sections.verify import verify
    from .tensor import Tensor

__version__ = "0.9.0"
__all__ = [
    "Container",
    "GPackBuilder",
    "GpackError",
    "Pack",
    "Tensor",
    "convert",
    "convert_gguf",
    "diff",
    "export_gguf",
    "open",
    "pack_experts",
    "safe_open",
    "save_file",
    "verify",
]

_HOMES = {
    "Container": "container.reader",
    "GPackBuilder": "container.writer",
    "GpackError": "errors",
    "Pack": "pack",
    "Tensor": "tensor",
    "convert": "convert.anything",
    "convert_gguf": "convert.gguf",
    "diff": "compare",
    "export_gguf": "convert.export",
    "open": "pack",
    "pack_experts": "convert.embed",
    "safe_open": "safe",
    "save_file": "arrays",
    "verify": "sections.verify",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'gpack' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
