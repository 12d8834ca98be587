"""Valid packs of models: every type, every home, shapes, experts, tokenizers, metadata, and a sparse giant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...generated.constants import MAX_NUMBER, MAX_RANK, DenseKind, GbtFlags, GgmlType, SectionKind
from ...generated.structs import gbt_v1_layout, gbt_v1_size
from ...sections.dense import CodePlanes, DenseColumns
from ..memory_model import Entry, MemoryModel, pack_of
from ..parts import Parts
from ..recipe import Recipe
from . import bases
from .bases import F16, F32, Q4_0
from .case import Base, Case, Change
from .material import EVERY_KIND, Tensor, in_memory, tensor, tiny_tokenizer
from .valid import VALID, Valid, valid, variant

K = SectionKind
ARCHITECTURE: Entry = ("general.architecture", "str", "t")


def model(*tensors: Tensor, metadata: Sequence[Entry] = (ARCHITECTURE,), **options: Any) -> Base:
    """The pack of a model."""
    return lambda: bases.convert(metadata, tensors, **options)


def vocabulary(*entries: Entry) -> Base:
    """The pack of a tokenizer."""
    return model(metadata=(ARCHITECTURE, *entries))


# ---------------------------------------------------------------- types and shapes

for number, name in GgmlType.NAMES.items():
    valid(
        f"type-{name}",
        f"A matrix of two rows of one block of {name}.",
        model(tensor("w.weight", number, GgmlType.BLOCK[number], 2)),
    )
valid(
    "ranks",
    "Tensors of rank 0 to 8; a vector and a matrix of one row.",
    model(
        *(tensor(f"rank{rank}", F32, *([2] * rank)) for rank in range(MAX_RANK + 1)),
        tensor("column", F16, 4, 1),
        tensor("vector", F16, 4),
    ),
)
valid(
    "zero-elements",
    "Tensors without elements, in every place of a shape.",
    model(
        tensor("a", F32, 0),
        tensor("b", F16, 4, 0),
        tensor("c", F32, 0, 3),
        tensor("d", Q4_0, 32, 0),
        tensor("e", Q4_0, 0, 5),
    ),
)
valid(
    "largest-extents",
    "Extents of 2^53 - 1 in a tensor without elements.",
    model(tensor("a", F32, 0, MAX_NUMBER, MAX_NUMBER)),
)
valid(
    "names",
    "Names that are not ASCII, of one byte, of 300 bytes, and one that is the start of another.",
    model(
        tensor("\u0120\u00e9\U0001f600", F32, 2), tensor("a", F32, 2), tensor("a.b", F32, 2), tensor("n" * 300, F32, 2)
    ),
)
valid(
    "order",
    "Names whose order by bytes is not that of the source.",
    model(*(tensor(name, F32, 3) for name in ("b", "B", "a.10", "a.9", "a"))),
)

# ---------------------------------------------------------------- homes

valid("tied", "An embedding and no head: the manifest says `tied`.", model(tensor("token_embd.weight", F16, 4, 3)))
valid("head-alone", "A head and no embedding.", model(tensor("output.weight", F16, 4, 3)))
valid("ple-alone", "A table of per-layer embeddings alone.", model(tensor("per_layer_token_embd.weight", F16, 4, 3)))
valid(
    "embedding-of-rank-3",
    "An embedding that is no matrix lies in DensePackBlob.",
    model(tensor("token_embd.weight", F16, 4, 3, 2)),
)
valid(
    "dense-alone",
    "Dense tensors without a native arena; half precision is widened in the pool.",
    model(tensor("a", F16, 5), tensor("b", GgmlType.BF16, 3), tensor("c", GgmlType.I32, 1)),
)
valid(
    "native-alone",
    "A native arena; DensePackBlob has no bytes.",
    model(tensor("a", Q4_0, 32, 3), tensor("b", GgmlType.Q6_K, 256, 1)),
)
valid("quantised-vector", "A quantised tensor that is no matrix lies in DensePackBlob.", model(tensor("a", Q4_0, 64)))
PLANES = CodePlanes(
    pool_bytes=32 + 32,
    code_bits=4,
    code_bias=8,
    group_elems=8,
    codebook=3,
    codes_bytes=32,
    scales_bytes=16,
    offset_bytes=0,
    scales_fp16=True,
)
OFFSETS = CodePlanes(
    pool_bytes=64 + 16 + 16,
    code_bits=8,
    code_bias=-128,
    group_elems=16,
    codebook=0,
    codes_bytes=64,
    scales_bytes=16,
    offset_bytes=16,
    scales_fp16=False,
)


def planes() -> bytes:
    """Two tensors of a pack directory, stored as planes of codes; 64 values each."""
    columns = {
        "a": DenseColumns(DenseKind.VERBATIM, F32, 7, PLANES),
        "b": DenseColumns(DenseKind.VERBATIM, F32, 0xFFFFFFFF, OFFSETS),
    }
    stored = [("a", F32, (64,), bytes(range(1, 49))), ("b", F32, (64,), bytes(range(1, 97)))]
    return pack_of(MemoryModel((ARCHITECTURE,), in_memory(stored)), dense_columns=columns)


valid("code-planes", "Planes of codes with scales, half precision or not, with and without offsets.", planes)

# ---------------------------------------------------------------- experts


def experts(layer: int, count: int, *, gate: bool = True) -> list[Tensor]:
    """The experts of a layer, four rows of 32 each."""
    first = [tensor(f"blk.{layer}.ffn_gate_exps.weight", Q4_0, 32, 4, count)] if gate else []
    return [
        *first,
        tensor(f"blk.{layer}.ffn_up_exps.weight", GgmlType.Q8_0, 32, 4, count),
        tensor(f"blk.{layer}.ffn_down_exps.weight", F16, 4, 32, count),
    ]


valid("experts-one", "One expert.", model(*experts(0, 1)))
valid("experts-no-gate", "Experts without a gate.", model(*experts(3, 2, gate=False)))
valid(
    "experts-layers",
    "Layers 7, 2 and 100000, in this order.",
    model(*experts(7, 2), *experts(2, 1), *experts(100000, 3)),
)
valid(
    "experts-full-page",
    "An expert that fills its pages exactly: no padding.",
    model(tensor("blk.0.ffn_up_exps.weight", F32, 32, 16, 2), tensor("blk.0.ffn_down_exps.weight", F32, 16, 32, 2)),
)
valid("experts-incomplete", "Half a set of experts is dense.", model(tensor("blk.0.ffn_up_exps.weight", F16, 2, 2, 2)))
DRAFTS = (ARCHITECTURE, ("t.block_count", "u32", 3), ("t.nextn_predict_layers", "u32", 2))
valid(
    "drafts",
    "Two draft layers, one of them with experts.",
    model(
        tensor("blk.0.norm.weight", F32, 3),
        tensor("blk.1.norm.weight", F32, 3),
        tensor("blk.2.a.weight", Q4_0, 32, 2),
        *experts(2, 2),
        metadata=DRAFTS,
    ),
)
valid("drafts-alone", "Draft layers, and nothing dense.", model(tensor("blk.1.norm.weight", F32, 3), metadata=DRAFTS))

# ---------------------------------------------------------------- tokenizers

TOKENS, MERGES = "tokenizer.ggml.tokens", "tokenizer.ggml.merges"
valid(
    "tokens-bytes",
    "Tokens that are not UTF-8, empty, equal, or begin with another.",
    vocabulary((TOKENS, "[str]", [b"\xff\xfe", b"\xed\xa0\x80", b"", b"", b"a", b"a\0", b"ab", b"a"])),
)
valid("tokens-none", "A vocabulary of no tokens.", vocabulary((TOKENS, "[str]", [])))
valid(
    "tokens-types",
    "Every type of token.",
    vocabulary(
        (TOKENS, "[str]", ["n", "unk", "ctl", "usr", "unused", "byte", "", "x"]),
        ("tokenizer.ggml.token_type", "[i32]", [1, 2, 3, 4, 5, 6, 3, 0]),
    ),
)
valid(
    "tokens-odd-types",
    "Types that do not fit a byte stay in the metadata.",
    vocabulary((TOKENS, "[str]", ["a", "b"]), ("tokenizer.ggml.token_type", "[i32]", [-1, 256])),
)
valid(
    "tokens-spm",
    "A SentencePiece vocabulary with scores.",
    vocabulary(
        ("tokenizer.ggml.model", "str", "llama"),
        (TOKENS, "[str]", ["<unk>", "<s>", "\u2581a", "<0x0A>"]),
        ("tokenizer.ggml.scores", "[f32]", [0.0, 0.0, -1.5, -2.0]),
        ("tokenizer.ggml.token_type", "[i32]", [2, 3, 1, 6]),
        ("tokenizer.ggml.eos_token_id", "u32", 1),
    ),
)
valid(
    "merges-unknown",
    "A merge of tokens that the vocabulary lacks is -1, -1, -1; its string stays in the metadata.",
    vocabulary((TOKENS, "[str]", ["a", "b", "ab"]), (MERGES, "[str]", ["a b", "x y", "a b"])),
)
valid(
    "template-alone",
    "A chat template that is not ASCII, and no merges.",
    vocabulary((TOKENS, "[str]", ["a"]), ("tokenizer.chat_template", "str", "{{ '\u00e9\U0001f600' }}")),
)
valid(
    "end-token-zero",
    "Token 0 ends a text.",
    vocabulary((TOKENS, "[str]", ["a"]), ("tokenizer.ggml.eos_token_id", "u32", 0)),
)


def only_arrays(flags: int) -> Change:
    """Keeps of the precomputed arrays those that `flags` announce."""

    def change(pack: Parts) -> None:
        section, old = pack.section(K.TOKENIZER_BIN), pack.get(K.TOKENIZER_BIN)
        new = pack.get(K.TOKENIZER_BIN)
        new.flags = flags
        new.n_special = old.n_special if flags & GbtFlags.SPECIAL_TOKENS else 0
        made = bytearray(gbt_v1_size(new))
        made[: new.SIZE] = new.encode()
        for name, (start, length) in gbt_v1_layout(new).items():
            source = gbt_v1_layout(old)[name][0]
            made[start : start + length] = section.data[source : source + length]
        section.data[:] = made

    return change


variant("arrays-none", "A tokenizer without precomputed arrays.", bases.vocabulary, only_arrays(0))
for mask, name in GbtFlags.NAMES.items():
    variant(f"arrays-{name.lower()}", f"Of the precomputed arrays only {name}.", bases.vocabulary, only_arrays(mask))

# ---------------------------------------------------------------- metadata


def deep(depth: int) -> tuple[str, Any]:
    """Arrays in arrays: their kind, and a value with one byte inside."""
    kind = "u8"
    value: Any = [7]
    for _ in range(depth - 1):
        kind, value = f"[{kind}]", [value]
    return f"[{kind}]", value


valid("metadata", "Every type of value, and arrays of every kind.", model(metadata=EVERY_KIND))
valid(
    "metadata-largest",
    "The largest and the smallest numbers of every type, and floats that are not finite.",
    model(
        metadata=[
            ("u8", "u8", 255),
            ("i8", "i8", -128),
            ("u16", "u16", 65535),
            ("i16", "i16", -32768),
            ("u32", "u32", 2**32 - 1),
            ("i32", "i32", -(2**31)),
            ("u64", "u64", 2**64 - 1),
            ("i64", "i64", -(2**63)),
            ("f32.nan", "f32", float("nan")),
            ("f32.inf", "f32", float("-inf")),
            ("f32.small", "f32", 1e-45),
            ("f64.zero", "f64", -0.0),
            ("f64.nan", "f64", float("nan")),
            ("f64.small", "f64", 5e-324),
            ("all.u64", "[u64]", [0, 2**64 - 1]),
            ("all.i8", "[i8]", [-128, 127]),
        ]
    ),
)
valid(
    "metadata-keys",
    "Keys that are not ASCII, of one byte, and with blanks.",
    model(metadata=[("\u0120\u00e9", "u8", 1), (" ", "u8", 2), ("k" * 300, "u8", 3), ("gexec", "u8", 4)]),
)
valid(
    "metadata-bytes",
    "Strings that are not UTF-8.",
    model(metadata=[("s", "str", b"\xff\0\xfe"), ("t", "[str]", [b"\xed\xa0\x80", b""])]),
)
valid("metadata-deep", "Arrays nested as deep as they may be.", model(metadata=[("d", *deep(8))]))
valid(
    "metadata-empty",
    "Empty strings and arrays of every kind; they take no bytes of the heap.",
    model(metadata=[("s", "str", ""), *((f"a.{kind}", f"[{kind}]", []) for kind in ("u8", "f64", "str", "[i32]"))]),
)
valid(
    "no-gguf",
    "The source was no GGUF: version and alignment are 0.",
    lambda: pack_of(MemoryModel((ARCHITECTURE,), version=0, alignment=0)),
)
valid(
    "source-numbers",
    "The largest version and alignment of a source.",
    lambda: pack_of(
        MemoryModel((ARCHITECTURE, ("general.alignment", "u32", 2**20)), version=2**32 - 1, alignment=2**20)
    ),
)
valid(
    "model-facts",
    "Layers, context length and tied embeddings, as the metadata says them.",
    model(
        tensor("token_embd.weight", F16, 2, 2),
        tensor("output.weight", F16, 2, 2),
        metadata=[
            ARCHITECTURE,
            ("t.block_count", "u32", 0),
            ("t.context_length", "u64", MAX_NUMBER),
            ("t.tie_word_embeddings", "bool", True),
            *tiny_tokenizer(),
        ],
    ),
)

# ---------------------------------------------------------------- a giant

GIANT = 20 << 30
ZEROS_SHA256 = bytes.fromhex("6cb118a8f8b3c19385874297e291dcbcdf3a9837ba1ca7b00ace2491adbff551")  # of GIANT zeros


def giant() -> Recipe:
    """A tensor of 20 GiB, all zeros: a sparse file."""
    pack = Parts.parse(model(tensor("a", F32, 0))())
    blob, row = pack.section(K.DENSE_PACK_BLOB), {"dims": (GIANT // 4, *[1] * (MAX_RANK - 1)), "byte_size": GIANT}
    blob.zeros, blob.digest = GIANT, ZEROS_SHA256
    pack.set_row(K.TENSOR_INDEX_BIN, 0, **row)
    pack.set_row(K.DENSE_INDEX_BIN, 0, **row, pool_bytes=GIANT)
    pack.set(K.TENSOR_INDEX_BIN, parameter_count=GIANT // 4, tensor_bytes=GIANT)
    pack.set(K.DENSE_INDEX_BIN, dense_pool_bytes=GIANT, dense_compacted_pool_bytes=GIANT)
    pack.manifest["model"] |= {"parameter_count": GIANT // 4, "bytes_by_type": {"F32": GIANT}}
    size, runs = pack.seal_runs()
    return Recipe.sparse(size, runs)


def cut_giant() -> Recipe:
    """The same without its last byte."""
    whole = giant()
    start, footer = whole.runs[-1]
    return Recipe.sparse(whole.size - 1, (*whole.runs[:-1], (start, footer[:-1])))


CUT = Case("header.total_file_size", "header", "total_file_size", lambda pack: None, bases.plain, placed=False)
VALID.append(Valid("giant", "A tensor of 20 GiB, all zeros: a sparse file that no reader holds in memory.", giant))
TABLE = tuple(VALID)  # all valid packs, those of the other module first
