"""`Tokenizer`: a tokeniser from any file that has one: a pack, a GGUF, a directory of Hugging Face files.

It stands above both `tokenizer`, which knows nothing of other people's files, and `sources`, which reads them.
"""

from __future__ import annotations

from .tokenizer.tokenizer import GbtTokenizer

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from typing import Self


class Tokenizer(GbtTokenizer):
    """A model's tokeniser. Use it as a context manager, or call `close`, where it holds a file open.

    `open` makes one of a pack, `from_gguf` of a GGUF, `from_dir` of a directory, `from_metadata` of what a GGUF's
    header says.
    """

    @classmethod
    def from_gguf(cls, path: str | os.PathLike[str]) -> Self:
        """The tokeniser of a GGUF model, one file or any of its shards.

        Raises:
            MissingError: The model has no tokeniser.
            FormatError, UnsupportedError, PathError: The file is damaged, missing, or of an unknown kind.
        """
        from .sources.gguf import GgufSource

        with GgufSource.open(path, allow_unknown_types=True) as source:
            return cls.from_metadata(source.metadata, path=path)

    @classmethod
    def from_dir(cls, path: str | os.PathLike[str], *, pre: str | None = None) -> Self:
        """The tokeniser of a directory.

        It is read from `tokenizer.json`, `tekken.json`, `tokenizer.model`, or `vocab.json` with `merges.txt`.

        Args:
            pre: Name of the pre-tokeniser, which `vocab.json` does not tell.

        Raises:
            PathError: A file is missing or unreadable.
            FormatError, UnsupportedError: A file is damaged, or asks for what is not known.
        """
        from .sources.hf_tokenizer_dir import read_tokenizer

        return cls.from_metadata(read_tokenizer(path, pre=pre), path=path)
