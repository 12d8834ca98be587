"""Text to ids and back on the bytes of a TokenizerBin (GBT1)."""

from __future__ import annotations

import os

from ..errors import FormatError, MissingError, UsageError
from ..generated.constants import GbtFlags, MetadataFlags, SectionKind
from ..sections.gbt import GbtView
from .decode import ByteLevelDecoder, TextStream, clean_spaces
from .settings import BYTE_LEVEL, NONE, Settings, scalar
from .specials import USER_DEFINED, Specials

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, Self

    from ..container.reader import Container
    from ..sections.values import Value
    from .bpe import BpeEncoder
    from .spm import SpmEncoder

_SCORES = "tokenizer.ggml.scores"


class GbtTokenizer:
    """A tokeniser on the bytes of a GBT1 section; `gpack.tokenizer.Tokenizer` is one that can open other files too.

    Opening reads the header and a few settings: the arrays stay where they are, mapped, and nothing is built.

    Attributes:
        view: TokenizerBin's arrays.
        settings: What the metadata says.
    """

    def __init__(
        self,
        data: memoryview | bytes,
        lookup: Callable[[str], Any],
        *,
        scores: Callable[[], Any] | None = None,
        container: Container | None = None,
    ) -> None:
        """Takes TokenizerBin's bytes; `open` and `from_metadata` are ways to make one.

        Args:
            data: The section.
            lookup: Gives the value of a metadata key that is no array, None where there is none.
            scores: Gives the scores of a SentencePiece-style vocabulary.
            container: A file to close with the tokeniser.

        Raises:
            FormatError: The section or a setting is damaged.
            UnsupportedError: The kind of tokeniser, or its pre-tokeniser, is not known.
        """
        view = GbtView(data)
        self.settings = Settings(lookup, len(view))
        needed = GbtFlags.SPECIAL_TOKENS
        if self.settings.model == BYTE_LEVEL:
            needed |= (
                GbtFlags.BYTE_TOKENS | GbtFlags.TOKEN_ORDER | (GbtFlags.MERGE_INDEX if view.header.n_merges else 0)
            )
        if view.header.flags & needed != needed:
            from .indexes import with_indexes

            view = GbtView(with_indexes(data, byte_level=self.settings.model == BYTE_LEVEL))
        self.view = view
        self._data = data
        self._scores = scores
        self._container = container
        self._specials = Specials(
            view,
            by_name=not self.settings.exact_types,
            user_defined=self.settings.user_defined,
            ways=self.settings.added_ways,
        )
        self._bpe: BpeEncoder | None = None
        self._spm: SpmEncoder | None = None
        self._decoder: ByteLevelDecoder | None = None
        self._pieces: dict[int, bytes] = {}

    # ------------------------------------------------------------ making one

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """The tokeniser of a pack.

        Raises:
            MissingError: The pack has no tokeniser.
            FormatError, UnsupportedError, PathError: As `gpack.open`, or as the constructor.
        """
        from ..container.reader import Container

        container = Container.open(path)
        try:
            return cls.of(container, owned=True)
        except BaseException:
            container.close()
            raise

    @classmethod
    def of(cls, container: Container, *, owned: bool = False) -> Self:
        """The tokeniser of an open pack.

        Args:
            owned: `close` closes the pack.
        """
        from ..sections.table import Table

        rows: Any = Table(SectionKind.METADATA_KV_BIN, container.view(SectionKind.METADATA_KV_BIN))

        def lookup(key: str) -> Any:
            index = rows.find(key.encode(), ref="key")
            row = None if index is None else rows.row(index)
            if row is None or row.flags & MetadataFlags.IN_TOKENIZER_BIN:
                return None
            return scalar(row.value_type, rows.bytes_of(row, "value"))

        def scores() -> Any:
            from ..sections.metadata import MetadataTable

            table = MetadataTable(container.view(SectionKind.METADATA_KV_BIN))
            row = table.find(_SCORES)
            return None if row is None else _floats(table.value(row))

        data = container.view(SectionKind.TOKENIZER_BIN)
        return cls(data, lookup, scores=scores, container=container if owned else None)

    @classmethod
    def from_metadata(cls, metadata: dict[str, Value], *, path: object = None) -> Self:
        """The tokeniser that GGUF metadata describe.

        Raises:
            MissingError: They name no tokens.
        """
        from ..sections.tokenizer import build_tokenizer

        built = build_tokenizer(metadata)
        if built is None:
            raise MissingError("there is no tokeniser", code="tokenizer.none", path=path)

        def lookup(key: str) -> Any:
            value = metadata.get(key)
            return None if value is None else scalar(value.value_type, value.raw)

        return cls(built.data, lookup, scores=lambda: _floats(metadata[_SCORES]) if _SCORES in metadata else None)

    # ------------------------------------------------------------ encoding

    def encode(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """The ids of a text.

        Args:
            text: Any text. Lone surrogates of the range that `surrogateescape` makes stand for bytes.
            add_special: Add the first and last token that the model asks for.
            parse_special: Control tokens that are written out in the text become those tokens. Never for text that
                a user typed. User-defined tokens are found in every text.

        Raises:
            UsageError: `tokenizer.text` where the text has other lone surrogates, which no bytes stand for.
            FormatError: The vocabulary is damaged where this text meets it.
        """
        return self._encode(text, add_special, parse_special, "auto") or []

    def encode_compiled(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> list[int] | None:
        """As `encode`, in compiled code whatever the length; None where there is none for this text.

        `encode` chooses by itself; this is for measuring and comparing.
        """
        return self._encode(text, add_special, parse_special, "compiled")

    def encode_plain(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """As `encode`, in plain Python whatever the length."""
        return self._encode(text, add_special, parse_special, "plain") or []

    def encode_marked(self, text: str, mask: bytes, *, add_special: bool = False) -> list[int]:
        """The ids of a text of mixed origin: control tokens count only where they are trusted.

        Args:
            text: The text, such as a chat template gives (`gpack.tokenizer.chat`).
            mask: One byte for each character: 1 where what is written out as a control token is meant as one.
            add_special: Add the first and last token that the model asks for.

        Raises:
            UsageError: `tokenizer.text` as `encode`, or where the mask is not as long as the text.
            FormatError: The vocabulary is damaged where this text meets it.
        """
        if len(mask) != len(text):
            raise UsageError(f"a mask of {len(mask)} for {len(text)} characters", code="tokenizer.text")
        return self._encode(text, add_special, True, "auto", mask) or []

    def _encode(
        self, text: str, add_special: bool, parse_special: bool, way: str, mask: bytes | None = None
    ) -> list[int] | None:
        settings = self.settings
        ids: list[int] = [settings.bos_id] if add_special and settings.add_bos else []
        after_special, is_first = True, True
        for part in self._specials.partition(text, parse_special=parse_special, mask=mask):
            if isinstance(part, int):
                ids.append(part)
                after_special = True
            else:
                prefixed = self._is_prefixed(part, is_first) if settings.metaspace else after_special
                found = self._encode_text(part, prefixed, way)
                if found is None:
                    return None
                ids += found
                after_special = False
            is_first = False
        if add_special and settings.add_eos:
            ids.append(settings.eos_id)
        return ids

    def _is_prefixed(self, text: str, is_first: bool) -> bool:
        """Whether a text gets a space in front, as `tokenizers` has it: only where it has none."""
        scheme = self.settings.metaspace
        return (scheme == "always" or (scheme == "first" and is_first)) and not text.startswith((" ", "\u2581"))

    def _encode_text(self, text: str, after_special: bool, way: str) -> list[int] | None:
        if self.settings.nfc and not text.isascii():
            from .normalize import nfc

            text = nfc(text)
        try:
            if self.settings.model == BYTE_LEVEL:
                if self._bpe is None:
                    from .bpe import BpeEncoder

                    self._bpe = BpeEncoder(self.view, self.settings.rules, ignore_merges=self.settings.ignore_merges)
                return self._bpe.encode(text, way)
            encoder = self._sentence_piece()
            if not self.settings.splits_spaces:
                return encoder.encode(text, at_start=after_special, way=way)
            ids: list[int] = []
            for number, word in enumerate(_words(text)):
                found = encoder.encode(word, at_start=after_special and not number, way=way)
                if found is None:
                    return None
                ids += found
            return ids
        except UnicodeEncodeError as error:
            raise UsageError(f"the text is no Unicode: {error}", code="tokenizer.text") from error

    def _sentence_piece(self) -> SpmEncoder:
        if self._spm is None:
            from ..sections.tokenizer import TokenizerTable
            from .spm import SpmEncoder

            scores = self._scores() if self._scores is not None else None
            if scores is None:
                raise FormatError("there are no scores", code="tokenizer.scores", section="metadata", field=_SCORES)
            settings = self.settings
            self._spm = SpmEncoder(
                TokenizerTable(self._data),
                scores,
                add_space_prefix=settings.add_space_prefix,
                unknown_id=None if settings.unknown_id == NONE else settings.unknown_id,
            )
        return self._spm

    def forget(self) -> None:
        """Forgets the words that it remembers from the texts before; only time changes by that."""
        if self._bpe is not None:
            self._bpe.forget()
        if self._spm is not None:
            self._spm.forget()

    # ------------------------------------------------------------ decoding

    def decode(self, ids: Iterable[int], *, skip_special: bool = False, clean: bool = False) -> str:
        """The text of ids; bytes that are not UTF-8 become U+FFFD.

        Args:
            skip_special: Leave control tokens and the unknown token out.
            clean: Drop spaces before some signs where llama.cpp's own output does (`settings.clean_spaces`).

        Raises:
            MissingError: `tokenizer.no_token` where there is no such token.
        """
        data = self.decode_bytes(ids, skip_special=skip_special)
        if clean and self.settings.clean_spaces:
            data = clean_spaces(data)
        return data.decode("utf-8", "replace")

    def decode_bytes(self, ids: Iterable[int], *, skip_special: bool = False) -> bytes:
        """The bytes of ids. A SentencePiece-style vocabulary's text loses the space that encoding put in front."""
        ids = list(ids)
        settings = self.settings
        # As in llama.cpp: where the first and last token are left out, they are by their place, and then the text
        # keeps its space.
        strip = settings.add_space_prefix
        if skip_special and settings.add_bos and ids[:1] == [settings.bos_id]:
            strip = False
            ids = ids[1:]
        pieces = [self.piece(token_id, skip_special=skip_special) for token_id in ids]
        if strip and pieces:
            pieces[0] = pieces[0].removeprefix(b" ")
        return b"".join(pieces)

    def stream(self, *, skip_special: bool = False) -> TextStream:
        """A stream that turns ids into text as they come; joined, its text is that of `decode`."""
        first = self.settings.add_space_prefix

        def bytes_of(token_id: int) -> bytes:
            nonlocal first
            piece = self.piece(token_id, skip_special=skip_special)
            if first:
                first = False
                bos = skip_special and self.settings.add_bos and token_id == self.settings.bos_id
                piece = piece if bos else piece.removeprefix(b" ")
            return piece

        return TextStream(bytes_of)

    def piece(self, token_id: int, *, skip_special: bool = False) -> bytes:
        """The bytes that one token stands for.

        Raises:
            MissingError: `tokenizer.no_token` where there is no such token.
        """
        if skip_special and 0 <= token_id < len(self.view) and self._specials.is_control(token_id):
            return b""
        known = self._pieces.get(token_id)
        if known is None:
            try:
                known = self._decode_token(token_id)
            except IndexError as error:
                raise MissingError(str(error), code="tokenizer.no_token") from error
            self._pieces[token_id] = known
        return known

    def _decode_token(self, token_id: int) -> bytes:
        if self.settings.model != BYTE_LEVEL:
            return self._sentence_piece().decode_token(token_id)
        if self._decoder is None:
            self._decoder = ByteLevelDecoder(self.view)
        return self._decoder.decode_token(token_id)

    # ------------------------------------------------------------ the vocabulary

    @property
    def vocab_size(self) -> int:
        """Number of tokens."""
        return len(self.view)

    def __len__(self) -> int:
        return len(self.view)

    @property
    def bos_id(self) -> int | None:
        """The first token of a text, or None."""
        return None if self.settings.bos_id == NONE else self.settings.bos_id

    @property
    def eos_id(self) -> int | None:
        """The end-of-text token, or None."""
        return None if self.settings.eos_id == NONE else self.settings.eos_id

    def token(self, token_id: int) -> bytes:
        """A token as the vocabulary spells it.

        Raises:
            MissingError: `tokenizer.no_token` where there is no such token.
        """
        try:
            return self.view.token(token_id)
        except IndexError as error:
            raise MissingError(str(error), code="tokenizer.no_token") from error

    def token_id(self, token: bytes | str) -> int | None:
        """The id of a token as the vocabulary spells it, or None."""
        found = self.view.find(token.encode() if isinstance(token, str) else token)
        return None if found < 0 else found

    def token_type(self, token_id: int) -> int:
        """GGUF's type of a token: 1 ordinary, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte."""
        self.token(token_id)
        return USER_DEFINED if token_id in self.settings.user_defined else self.view.token_types[token_id]

    @property
    def chat_template(self) -> str | None:
        """The model's chat template, or None."""
        return bytes(self.view.chat_template).decode("utf-8", "replace") or None

    # ------------------------------------------------------------ closing

    def close(self) -> None:
        """Lets go of the mapped bytes, and closes the file if it is the tokeniser's own."""
        self._bpe = self._spm = self._decoder = None
        self.view.release()
        if isinstance(self._data, memoryview):
            self._data.release()
        if self._container is not None:
            self._container.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _floats(value: Value) -> Any:
    """The scores, float32."""
    import numpy as np

    from ..generated.constants import MetadataType

    if value.value_type != MetadataType.ARRAY or value.element_type != MetadataType.FLOAT32:
        raise FormatError("it is no array of float32", code="tokenizer.scores", section="metadata", field=value.key)
    return np.frombuffer(value.raw, "<f4")


def _words(text: str) -> list[str]:
    """The words of a text, each with the space before it."""
    words: list[str] = []
    for char in text:
        if char in " \u2581" or not words:
            words.append(char)
        else:
            words[-1] += char
    return words
