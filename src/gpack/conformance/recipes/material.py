"""What the recipes are made of: a small vocabulary, metadata of every kind, tensors whose bytes follow from names."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import shake_128

from ...container.payload import Block
from ..memory_model import Entry, MemoryTensor, size_of

# A tensor is (name, type, extents with the contiguous one first, data).
Tensor = tuple[str, int, tuple[int, ...], bytes]


def tensor(name: str, ggml_type: int, *dims: int) -> Tensor:
    """A tensor of bytes that depend on its name only; the last is never zero, so that no padding looks like it."""
    data = shake_128(name.encode()).digest(size_of(ggml_type, dims))
    return name, ggml_type, dims, data[:-1] + b"\x7f" if data else b""


def in_memory(tensors: Sequence[Tensor]) -> list[MemoryTensor]:
    """Tensors as a model in memory has them."""
    return [
        MemoryTensor(name, kind, dims, Block(data), index) for index, (name, kind, dims, data) in enumerate(tensors)
    ]


def byte_alphabet() -> list[str]:
    """GPT-2's 256 characters, one for each byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {byte: chr(byte) for byte in printable}
    letters |= {byte: chr(256 + index) for index, byte in enumerate(others)}
    return [letters[byte] for byte in range(256)]


TINY_MERGES = ["t h", "h e", "Ġ t", "Ġt he", "i n", "e r", "a n", "Ġ a", "o n", "r e", "Ġ w", "l l", "o r"]
TINY_SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TINY_CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TINY_TOKENS = [*byte_alphabet(), *(merge.replace(" ", "") for merge in TINY_MERGES), *TINY_SPECIALS]


def tiny_tokenizer() -> list[Entry]:
    """A byte-level BPE vocabulary of 272 tokens: 256 bytes, 13 merges, 3 control tokens."""
    normal = len(TINY_TOKENS) - len(TINY_SPECIALS)
    return [
        ("tokenizer.ggml.model", "str", "gpt2"),
        ("tokenizer.ggml.pre", "str", "qwen2"),
        ("tokenizer.ggml.tokens", "[str]", TINY_TOKENS),
        ("tokenizer.ggml.token_type", "[i32]", [1] * normal + [3] * len(TINY_SPECIALS)),
        ("tokenizer.ggml.merges", "[str]", TINY_MERGES),
        ("tokenizer.ggml.bos_token_id", "u32", normal),
        ("tokenizer.ggml.eos_token_id", "u32", normal + 2),
        ("tokenizer.ggml.padding_token_id", "u32", normal),
        ("tokenizer.ggml.add_bos_token", "bool", False),
        ("tokenizer.chat_template", "str", TINY_CHAT_TEMPLATE),
    ]


EVERY_KIND: list[Entry] = [
    ("a.u8", "u8", 255),
    ("a.i8", "i8", -128),
    ("a.u16", "u16", 65535),
    ("a.i16", "i16", -32768),
    ("a.u32", "u32", 4294967295),
    ("a.i32", "i32", -2147483648),
    ("a.f32", "f32", 0.5),
    ("a.true", "bool", True),
    ("a.false", "bool", False),
    ("a.str", "str", "Ġé\0"),
    ("a.empty", "str", ""),
    ("a.u64", "u64", 2**64 - 1),
    ("a.i64", "i64", -(2**63)),
    ("a.f64", "f64", 1e300),
    ("b.u8", "[u8]", [1, 2, 255]),
    ("b.i16", "[i16]", [-1, 1]),
    ("b.i32", "[i32]", []),
    ("b.f32", "[f32]", [0.25, -2.0]),
    ("b.bool", "[bool]", [True, False, True]),
    ("b.str", "[str]", ["", "a", "Ġ" * 200, "\0" * 9]),
    ("b.nostr", "[str]", []),
    ("b.u64", "[u64]", [2**63]),
    ("c.nested", "[[i32]]", [[1, 2], [], [3]]),
    ("c.strings", "[[str]]", [["a", ""], [], ["Ġ"]]),
    ("c.deep", "[[[bool]]]", [[[True], []], []]),
]
