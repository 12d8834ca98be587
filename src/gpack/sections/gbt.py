"""TokenizerBin (GBT1) as views of the mapped bytes: the standard library alone, and nothing is built or parsed.

What is opened is checked as far as that costs no pass over the arrays; what a search meets later is checked when it
is met. So a damaged section gives a typed error in bounded time, never a wrong index into memory.
"""

from __future__ import annotations

from bisect import bisect_left

from ..errors import BoundsError, FormatError
from ..generated.constants import GbtFlags
from ..generated.structs import GbtHeaderV1, gbt_v1_layout, gbt_v1_size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

SECTION = "TokenizerBin"
ABSENT = -1


def byte_alphabet() -> list[str]:
    """The character that stands for each byte in byte-level vocabularies (GPT-2's alphabet).

    Printable bytes of Latin-1 stand for themselves, the others for the characters from U+0100 on, in order.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


class GbtView:
    """The section's arrays.

    Attributes:
        header: Its header.
        offsets: u32 [vocab_size + 1], bytes.
        token_types: u8 [vocab_size], GGUF's token types.
        vocab_blob: The tokens' bytes.
        triples: i32 [3 * n_merges]: left, right and merged token, by rank.
        chat_template: UTF-8 bytes.
        merge_keys, merge_ranks: u64 and u32 [n_merges]; empty where the section has no such index.
        token_order: u32 [vocab_size], or empty.
        byte_tokens: i32 [256], or empty.
        special_tokens: u32 [n_special]; None where the section does not list them.
    """

    def __init__(self, data: memoryview | bytes) -> None:
        """Finds the arrays.

        Raises:
            FormatError: The section is no GBT1, its arrays do not fill it, or its offsets do not span the blob.
        """
        view = memoryview(data)
        if len(view) < GbtHeaderV1.SIZE:
            raise BoundsError("the section is shorter than its header", code="tokenizer.header", section=SECTION)
        self.header = GbtHeaderV1.decode(view)
        if self.header.magic != GbtHeaderV1.MAGIC:
            raise FormatError("the magic is not GBT1", code="tokenizer.magic", section=SECTION)
        if gbt_v1_size(self.header) != len(view):
            raise BoundsError("the arrays do not fill the section", code="tokenizer.layout", section=SECTION)
        flags = self.header.flags
        if self.header.n_special > (self.header.vocab_size if flags & GbtFlags.SPECIAL_TOKENS else 0):
            raise FormatError(
                f"there are {self.header.n_special} special tokens", code="tokenizer.special_count", section=SECTION
            )
        parts = {name: view[at : at + length] for name, (at, length) in gbt_v1_layout(self.header).items()}
        self.offsets = parts["offsets"].cast("I")
        self.token_types = parts["token_types"]
        self.vocab_blob = parts["vocab_blob"]
        self.triples = parts["triples"].cast("i")
        self.chat_template = parts["chat_template"]
        self.merge_keys = parts["merge_keys"].cast("Q")
        self.merge_ranks = parts["merge_ranks"].cast("I")
        self.token_order = parts["token_order"].cast("I")
        self.byte_tokens = parts["byte_tokens"].cast("i")
        self.special_tokens = parts["special_tokens"].cast("I") if flags & GbtFlags.SPECIAL_TOKENS else None
        if self.offsets[0] != 0 or self.offsets[-1] != len(self.vocab_blob):
            raise FormatError(
                f"offsets span {self.offsets[0]} to {self.offsets[-1]} of {len(self.vocab_blob)} bytes",
                code="tokenizer.offsets",
                section=SECTION,
            )

    def __len__(self) -> int:
        return self.header.vocab_size

    def token(self, token_id: int) -> bytes:
        """The bytes of a token, as the vocabulary spells them.

        Raises:
            IndexError: There is no such token.
            FormatError: `tokenizer.offsets` where the token's offsets fall or leave the blob.
        """
        if not 0 <= token_id < self.header.vocab_size:
            raise IndexError(f"there are {len(self)} tokens, there is no token {token_id}")
        start, end = self.offsets[token_id], self.offsets[token_id + 1]
        if not start <= end <= len(self.vocab_blob):
            raise FormatError(
                f"token {token_id} spans {start} to {end}",
                code="tokenizer.offsets",
                section=SECTION,
                field=f"offsets[{token_id}]",
            )
        return bytes(self.vocab_blob[start:end])

    def tokens(self, ids: Collection[int]) -> Iterator[tuple[bytes, int]]:
        """Bytes and id of different tokens.

        Raises:
            FormatError: `tokenizer.offsets` where they have more bytes than the blob, because offsets run back: no
                more than the blob is ever copied.
        """
        left = len(self.vocab_blob)
        for token_id in ids:
            token = self.token(token_id)
            left -= len(token)
            if left < 0:
                raise FormatError(
                    f"tokens have more bytes together than the {len(self.vocab_blob)} of the blob",
                    code="tokenizer.offsets",
                    section=SECTION,
                    field="offsets",
                )
            yield token, token_id

    def find(self, token: bytes) -> int:
        """The id of a token with these bytes, the last of equal ones; -1 where there is none. Needs `token_order`."""
        order = self.token_order
        low, high = 0, len(order)
        while low < high:
            middle = (low + high) // 2
            if self.token(self.checked(order[middle], "token_order")) <= token:
                low = middle + 1
            else:
                high = middle
        if low and self.token(order[low - 1]) == token:
            return order[low - 1]
        return ABSENT

    def merge(self, left: int, right: int) -> tuple[int, int] | None:
        """Rank and merged token of a pair of tokens; None where nothing merges them. Needs `merge_keys`."""
        keys = self.merge_keys
        key = left << 32 | right
        place = bisect_left(keys, key)
        if place >= len(keys) or keys[place] != key:
            return None
        rank = self.merge_ranks[place]
        if rank >= self.header.n_merges:
            raise FormatError(
                f"rank {rank} of {self.header.n_merges}",
                code="tokenizer.merge_index",
                section=SECTION,
                field=f"merge_ranks[{place}]",
            )
        return rank, self.result(rank)

    def result(self, rank: int) -> int:
        """The merged token of a rank.

        Raises:
            FormatError: `tokenizer.triples` where it is not in the vocabulary.
        """
        merged = self.triples[3 * rank + 2]
        return self.checked(merged, "triples", code="tokenizer.triples")

    def checked(self, token_id: int, field: str = "byte_tokens", *, code: str | None = None) -> int:
        """The id itself.

        Raises:
            FormatError: It is not in the vocabulary.
        """
        if not 0 <= token_id < self.header.vocab_size:
            raise FormatError(
                f"found token {token_id} in a vocabulary of {len(self)}",
                code=code or f"tokenizer.{field}",
                section=SECTION,
                field=field,
            )
        return token_id

    def release(self) -> None:
        """Lets go of the views, so that the file can be unmapped."""
        for view in (
            self.offsets,
            self.token_types,
            self.vocab_blob,
            self.triples,
            self.chat_template,
            self.merge_keys,
            self.merge_ranks,
            self.token_order,
            self.byte_tokens,
            self.special_tokens,
        ):
            if view is not None:
                view.release()
