"""Files of the kinds that brought other readers down, by the number or the thread under which they became known.

None of these readers shares code with GPACK; what is kept is the kind of file. Each is small, and every way in refuses
it with an error of its own, in little memory.
"""

from __future__ import annotations

import json
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gguf_maker import Entry, make_gguf, pack_string, tiny_llama, tiny_tokenizer, vector

from gpack.container.manifest import parse_manifest
from gpack.convert.anything import convert
from gpack.errors import GpackError, InternalError
from gpack.model import GuildModel, ModelPaths
from gpack.sources.gguf import GgufSource
from gpack.tokenizer.chat import ChatTemplate
from gpack.tokenizer_files import Tokenizer

MIB = 1 << 20
MOST = 32 * MIB


def wide(*dims: int) -> tuple[str, int, tuple[int, ...], bytes]:
    """A tensor that says it is larger than its 32 bytes."""
    return "a", 0, dims, bytes(32)


def array(element_type: int, count: int, data: bytes = b"") -> bytes:
    """A metadata entry `x` that is an array."""
    return pack_string("x") + struct.pack("<IIQ", 9, element_type, count) + data


def nested(depth: int) -> bytes:
    return pack_string("x") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * depth + struct.pack("<IQI", 4, 1, 7)


def alignment(kind: str, value: int) -> bytes:
    return make_gguf([("general.alignment", kind, value)], [vector("a"), vector("b")])


# Name: the file, and the code of the error that reading its header ends with.
GGUF: dict[str, tuple[Callable[[], bytes], str]] = {
    "CVE-2024-39720 nothing after the magic": (lambda: b"GGUF", "gguf.truncated"),
    "CVE-2024-21836 count of tensors": (lambda: make_gguf([], [], tensor_count=2**61 + 1), "gguf.truncated"),
    "CVE-2024-23605 count of entries": (lambda: make_gguf([], [], kv_count=2**61 + 1), "gguf.truncated"),
    "CVE-2024-23496 length of a string": (
        lambda: make_gguf(raw_metadata=struct.pack("<Q", 2**64 - 1), raw_entries=1),
        "gguf.truncated",
    ),
    "CVE-2024-21825 bytes of an array": (
        lambda: make_gguf(raw_metadata=array(10, 2**61 + 1, bytes(8)), raw_entries=1),
        "gguf.truncated",
    ),
    "ggml 1516 an array of a billion strings": (
        lambda: make_gguf(raw_metadata=array(8, 2**30, bytes(64)), raw_entries=1),
        "gguf.truncated",
    ),
    "CVE-2024-21802 number of extents": (lambda: make_gguf([], [vector("a")], n_dims={"a": 2**31}), "gguf.tensor_dims"),
    "CVE-2025-53630 sum of sizes": (lambda: make_gguf([], [wide(2**62), ("b", 0, (2**62,), b"")]), "gguf.tensor_dims"),
    "CVE-2026-27940 product of extents": (lambda: make_gguf([], [wide(2**32, 2**32)]), "gguf.tensor_dims"),
    "llama.cpp 18674 product with the stride": (lambda: make_gguf([], [wide(1152, 2**42 + 1)]), "gguf.tensor_bounds"),
    "CVE-2026-7482 a tensor beyond the end": (lambda: make_gguf([], [wide(64, 64)]), "gguf.tensor_bounds"),
    "CVE-2026-7482 an offset beyond the end": (
        lambda: make_gguf([], [vector("a")], offsets={"a": 2**40}),
        "gguf.tensor_bounds",
    ),
    "ggml a negative type of a tensor": (
        lambda: make_gguf([], [("a", 2**32 - 1, (8,), bytes(32))]),
        "gguf.tensor_type",
    ),
    "CVE-2025-0317 alignment 0": (lambda: alignment("u32", 0), "gguf.alignment"),
    "llama.cpp 24997 alignment 2^31": (lambda: alignment("u32", 2**31), "gguf.alignment"),
    "ggml 1516 alignment 2^30": (lambda: alignment("u32", 2**30), "gguf.alignment"),
    "alignment no power of two": (lambda: alignment("u32", 48), "gguf.alignment"),
    "llama.cpp 26318 alignment of another type": (lambda: alignment("i32", 32), "gguf.alignment"),
    "gguf-py nested arrays": (lambda: make_gguf(raw_metadata=nested(2000), raw_entries=1), "gguf.nesting"),
    "a key twice": (lambda: make_gguf([("a", "u8", 1), ("a", "u8", 2)]), "gguf.key"),
    "a tensor twice": (lambda: make_gguf([], [vector("a"), vector("a")]), "gguf.tensor_name"),
}


def refused(call: Callable[[], object]) -> GpackError:
    """The error, which took little memory."""
    tracemalloc.start()
    try:
        with pytest.raises(GpackError) as caught:
            call()
        assert tracemalloc.get_traced_memory()[1] < MOST
    finally:
        tracemalloc.stop()
    assert not isinstance(caught.value, InternalError)
    return caught.value


@pytest.mark.parametrize("name", GGUF)
def test_headers(name: str, tmp_path: Path) -> None:
    make, code = GGUF[name]
    path = tmp_path / "m.gguf"
    path.write_bytes(make())
    assert refused(lambda: GgufSource.open(path)).code == code
    assert refused(lambda: convert(path, tmp_path / "m.gpack")).code == code
    assert refused(lambda: GuildModel.load(ModelPaths(primary_model_path=path))).code == code
    assert not (tmp_path / "m.gpack").exists()


def tokenizer(tmp_path: Path, entries: list[Entry]) -> Tokenizer:
    path = tmp_path / "t.gguf"
    path.write_bytes(make_gguf(entries))
    return Tokenizer.from_gguf(path)


SPELLED = [("<unk>", 2), ("<s>", 3), *((f"<0x{byte:02X}>", 6) for byte in range(256))]


def pieces(*more: tuple[str, int]) -> list[Entry]:
    """A vocabulary of SentencePiece with all bytes, but for those that `more` takes the place of."""
    found = [*SPELLED[: len(SPELLED) - len(more)], *more]
    return [
        ("tokenizer.ggml.model", "str", "llama"),
        ("tokenizer.ggml.tokens", "[str]", [token for token, _ in found]),
        ("tokenizer.ggml.token_type", "[i32]", [kind for _, kind in found]),
        ("tokenizer.ggml.scores", "[f32]", [0.0] * len(found)),
        ("tokenizer.ggml.bos_token_id", "u32", 1),
        ("tokenizer.ggml.unknown_token_id", "u32", 0),
        ("tokenizer.ggml.add_space_prefix", "bool", False),
    ]


@pytest.mark.parametrize(
    "token", ["<0x-1>", "<0x-F>", "<0xZZ>", "<0x 1>", "<0x+1>", "<0x\u0661\u0661>", "<0x1>", "<0x>"]
)
def test_llama_cpp_27226_byte_tokens_that_are_no_byte(token: str, tmp_path: Path) -> None:
    """They are tokens with this text, whatever type they claim: no byte is written before a table, none is lost."""
    with tokenizer(tmp_path, pieces((token, 6))) as made:
        ids = made.encode("a", add_special=False)
        assert made.decode(ids) == "a"
        assert made.decode_bytes([made.vocab_size - 1]) == token.encode()


@pytest.mark.parametrize(
    ("key", "kind", "value"),
    [
        ("scores", "[u8]", [0] * 258),  # llama.cpp 26690: elements narrower than they are read
        ("scores", "[f32]", [0.0]),  # llama.cpp 20735: fewer than there are tokens
        ("token_type", "[u8]", [1] * 258),
        ("token_type", "[i32]", [1]),
    ],
)
def test_llama_cpp_26690_and_20735_arrays_beside_the_tokens(key: str, kind: str, value: Any, tmp_path: Path) -> None:
    entries = [
        (name, kind, value) if name == f"tokenizer.ggml.{key}" else (name, old, held) for name, old, held in pieces()
    ]
    try:
        with tokenizer(tmp_path, entries) as made:
            made.encode("a b")
    except GpackError as error:
        assert error.code in {"gguf.value", "tokenizer.scores"}  # noqa: PT017 - either answer is right


@pytest.mark.parametrize("name", ["bos_token_id", "eos_token_id", "unknown_token_id", "padding_token_id"])
@pytest.mark.parametrize("number", [258, 2**31, 2**32 - 1])
def test_llama_cpp_25475_special_ids_beyond_the_vocabulary(name: str, number: int, tmp_path: Path) -> None:
    entries = [entry for entry in pieces() if entry[0] != f"tokenizer.ggml.{name}"]
    try:
        with tokenizer(tmp_path, [*entries, (f"tokenizer.ggml.{name}", "u32", number)]) as made:
            ids = made.encode("a b")
            assert all(0 <= token < made.vocab_size for token in ids)
            made.decode(ids)
    except GpackError as error:
        assert error.exit_code in {1, 4}  # noqa: PT017 - either answer is right


@pytest.mark.parametrize("layers", [513, 2**20, 2**31, 2**32 - 1])
def test_llama_cpp_25821_more_layers_than_there_are(layers: int, tmp_path: Path) -> None:
    metadata, tensors = tiny_llama(layers=1)
    entries = [(key, kind, layers if key.endswith("block_count") else value) for key, kind, value in metadata]
    path = tmp_path / "m.gguf"
    path.write_bytes(make_gguf(entries, tensors))

    def run() -> None:
        with GuildModel.load(ModelPaths(primary_model_path=path)) as model, model.session() as session:
            session.decode([1])

    assert refused(run).exit_code in {1, 4}


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{% for c in [].__class__.__base__.__subclasses__() %}{{ c }}{% endfor %}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ (messages|attr('__class__'))|attr('__mro__') }}",
        "{{ self._TemplateReference__context }}",
    ],
)
def test_cve_2024_34359_templates_that_reach_out(template: str, tmp_path: Path) -> None:
    entries = [entry for entry in tiny_tokenizer() if entry[0] != "tokenizer.chat_template"]
    with tokenizer(tmp_path, [*entries, ("tokenizer.chat_template", "str", template)]) as made:
        source = made.chat_template
    assert source == template
    error = refused(lambda: ChatTemplate(template).render([{"role": "user", "content": "x"}]))
    assert error.code in {"chat.unsafe", "chat.render"}


def stored(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    head = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(head) if length is None else length) + head + data


SAFETENSORS: dict[str, bytes] = {
    "length of the header": stored({}, length=2**64 - 1),
    "a header of gigabytes": stored({}, length=2**32),
    "nested header": stored(b'{"a":' * 50_000 + b"1" + b"}" * 50_000),
    "a tensor beyond the end": stored({"a": {"dtype": "F32", "shape": [8], "data_offsets": [0, 32]}}, bytes(16)),
    "product of extents": stored({"a": {"dtype": "F32", "shape": [2**32, 2**32], "data_offsets": [0, 0]}}),
    "negative extent": stored({"a": {"dtype": "F32", "shape": [-1, -8], "data_offsets": [0, 32]}}, bytes(32)),
    "end before start": stored({"a": {"dtype": "F32", "shape": [8], "data_offsets": [32, 0]}}, bytes(32)),
    "two in one place": stored(
        {name: {"dtype": "F32", "shape": [8], "data_offsets": [0, 32]} for name in "ab"}, bytes(32)
    ),
    "a hole": stored({"a": {"dtype": "F32", "shape": [4], "data_offsets": [16, 32]}}, bytes(32)),
}


@pytest.mark.parametrize("name", SAFETENSORS)
def test_safetensors(name: str, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(SAFETENSORS[name])
    assert refused(lambda: convert(path, tmp_path / "m.gpack")).exit_code == 1


def test_a_nested_manifest() -> None:
    assert refused(lambda: parse_manifest(b'{"a":' * 100_000 + b"1" + b"}" * 100_000)).code.startswith("manifest.")
