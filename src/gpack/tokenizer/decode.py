"""From tokens to text: the bytes of a token, text that grows token by token, llama.cpp's spaces."""

from __future__ import annotations

from codecs import getincrementaldecoder
from itertools import pairwise

from ..sections.gbt import byte_alphabet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..sections.gbt import GbtView

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


class ByteLevelDecoder:
    """Bytes of the tokens of a byte-level vocabulary."""

    def __init__(self, view: GbtView) -> None:
        self._view = view
        self._bytes = {character: byte for byte, character in enumerate(byte_alphabet())}

    def decode_token(self, token_id: int) -> bytes:
        """The bytes that a token stands for.

        An ordinary token is spelled in the byte alphabet; a character outside it stands for its own UTF-8, and a
        token that is no UTF-8 for its bytes. Special and user-defined tokens are literal. Unused tokens stand for
        nothing, as in llama.cpp.

        Raises:
            IndexError: There is no such token.
        """
        token = self._view.token(token_id)
        kind = self._view.token_types[token_id]
        if kind == BYTE and len(token) == 6 and token[:3] == b"<0x":
            try:
                return bytes([int(token[3:5], 16)])
            except ValueError:
                return token
        if kind in (UNKNOWN, CONTROL, USER_DEFINED):
            return token
        if kind != NORMAL:
            return b""
        try:
            text = token.decode()
        except UnicodeDecodeError:
            return token
        alphabet = self._bytes
        try:
            return bytes([alphabet[character] for character in text])
        except KeyError:
            return b"".join(
                bytes([alphabet[character]]) if character in alphabet else character.encode() for character in text
            )


class TextStream:
    """Text that grows token by token: a character whose bytes are spread over tokens appears whole, or not yet.

    What `push` and `flush` return, joined, is what `decode` gives for all the tokens at once.
    """

    def __init__(self, bytes_of: Callable[[int], bytes]) -> None:
        self._bytes_of = bytes_of
        self._decoder = getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """The text that this token completes; often empty where a character is not whole yet.

        Raises:
            MissingError: There is no such token.
        """
        return self._decoder.decode(self._bytes_of(token_id))

    def flush(self) -> str:
        """The rest: U+FFFD where a character was not completed. The stream can be used again."""
        rest = self._decoder.decode(b"", True)
        self._decoder.reset()
        return rest


def clean_spaces(data: bytes) -> bytes:
    """Without the spaces that llama.cpp drops.

    Those before `?`, `!`, `.` and `,`, around a lone apostrophe, and before `'s`, `'m`, `'re` and `'ve`.
    """
    kept = bytearray(data[:1])
    for before, byte in pairwise(data):
        if before == 0x20 and byte in b"?!.,":
            kept.pop()
        kept.append(byte)
    return _contracted(_apostrophes(bytes(kept)))


def _apostrophes(data: bytes) -> bytes:
    """The second pass: `' '` with a space on either side loses both; what follows is kept as llama.cpp keeps it."""
    text, kept, at = bytearray(data), bytearray(data[:1]), 1
    while at < len(text):
        byte = text[at]
        if byte == 0x27 and at + 1 < len(text) and text[at - 1] == 0x20 and text[at + 1] == 0x20:
            kept.pop()
            text[at + 1] = 0
            at += 1
        kept.append(byte)
        at += 1
    return bytes(kept)


def _contracted(data: bytes) -> bytes:
    kept = bytearray(data[:1])
    for at in range(1, len(data)):
        if data[at - 1] == 0x20 and data[at] == 0x27:
            rest = data[at + 1 : at + 3]
            if rest[:1] in (b"s", b"m") or rest in (b"re", b"ve"):
                kept.pop()
        kept.append(data[at])
    return bytes(kept)
