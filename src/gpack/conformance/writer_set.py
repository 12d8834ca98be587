"""The writer recipes: every section and mode, and their edges. Made from a few words each; the same every time."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from ..generated.constants import GgmlType
from .memory_model import Entry
from .recipes.bases import ASSETS, everything_source, small_source
from .recipes.material import EVERY_KIND, Tensor, tensor, tiny_tokenizer
from .writer_recipes import Model, Private, WriterRecipe, container_recipe, model_recipe

F32, F16, BF16 = GgmlType.F32, GgmlType.F16, GgmlType.BF16
Q4_0, Q8_0, Q4_K = GgmlType.Q4_0, GgmlType.Q8_0, GgmlType.Q4_K
_PRIVATE = 0x8000_0000
_NAMED: Entry = ("general.architecture", "str", "t")


@cache
def writer_recipes() -> tuple[WriterRecipe, ...]:
    """All recipes by id, those of the container's level first."""
    models = {name: (doc, model) for name, doc, model in _models()}
    made = [
        container_recipe(f"container/{name.removeprefix('model/')}", models[name][0], _pack(*models[name], name))
        for name in _CONTAINER
    ]
    made += [model_recipe(name, doc, model) for name, (doc, model) in models.items()]
    return tuple(sorted(made, key=lambda recipe: recipe.id))


# Models whose sections make a task for writers of the container's level too.
_CONTAINER = (
    "model/everything",
    "model/plain",
    "model/small",
    "model/tensors/no-bytes",
    "model/tokenizer/byte-level",
    "model/private/one",
    "model/private/empty",
    "model/private/page-aligned",
    "model/manifest/extensions",
    "model/manifest/numbers",
    "model/manifest/keys",
    "model/manifest/producer",
)


def _pack(doc: str, model: Model, name: str) -> bytes:
    recipe = model_recipe(name, doc, model)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "made.gpack"
        recipe.write(Path(folder), path)
        return path.read_bytes()


def _models() -> Iterator[tuple[str, str, Model]]:
    metadata, tensors = everything_source()
    yield "model/everything", "all fifteen kinds of sections", Model(metadata, tensors, ASSETS)
    metadata, tensors = small_source()
    yield "model/small", "all fifteen kinds of sections in few bytes", Model(metadata, tensors, {"a": b"x"})
    yield "model/plain", "nothing but the mandatory sections, and nothing in them", Model()
    yield from _metadata()
    yield from _tokenizers()
    yield from _tensors()
    yield from _placements()
    yield from _experts()
    yield from _rest()


def _metadata() -> Iterator[tuple[str, str, Model]]:
    yield "model/metadata/every-kind", "a value of every type, arrays and nested arrays", Model(list(EVERY_KIND))
    numbers: list[Entry] = [
        ("n.nan", "f32", float("nan")),
        ("n.infinity", "f64", float("inf")),
        ("n.minus", "f32", float("-inf")),
        ("n.zero", "f64", -0.0),
        ("n.tiny", "f32", 2.0**-149),
        ("n.array", "[f64]", [float("-inf"), 0.1]),
    ]
    yield "model/metadata/odd-floats", "NaN, infinities, a negative zero, the smallest float", Model(numbers)
    order: list[Entry] = [
        ("b", "u8", 1),
        ("a.b", "u8", 2),
        ("a", "u8", 3),
        ("é", "u8", 4),
        ("Z", "u8", 5),
        ("a_", "u8", 6),
        ("a" * 300, "u8", 7),
        ("\U0001f600", "u8", 8),
        ("\uffff", "u8", 9),
    ]
    yield "model/metadata/order", "keys whose order by bytes is neither the source's nor that of UTF-16", Model(order)
    texts: list[Entry] = [("s.bytes", "str", b"\xff\xfe\x00"), ("s.list", "[str]", [b"\x80", "", "\0" * 7, "ok"])]
    yield "model/metadata/no-text", "strings that are not UTF-8, or empty, or full of NULs", Model(texts)
    padded: list[Entry] = [(f"p{size}", "[u8]", list(range(size))) for size in (7, 8, 9, 0, 1)]
    yield "model/metadata/padding", "values whose lengths need each padding in the heap", Model(padded)


def _tokenizers() -> Iterator[tuple[str, str, Model]]:
    yield (
        "model/tokenizer/byte-level",
        "a byte-level vocabulary with merges and a chat template",
        Model([_NAMED, *tiny_tokenizer()]),
    )
    bare: list[Entry] = [_NAMED, ("tokenizer.ggml.tokens", "[str]", ["a", "b"])]
    yield "model/tokenizer/tokens-only", "tokens without merges, types, template or end", Model(bare)
    octets: list[Entry] = [
        _NAMED,
        ("tokenizer.ggml.tokens", "[str]", [b"\xff", b"", b"\xc3", "\u00e9", b"\0"]),
        ("tokenizer.ggml.token_type", "[i32]", [1, 2, 3, 4, 255]),
        ("tokenizer.ggml.eos_token_id", "u32", 4),
    ]
    yield "model/tokenizer/no-text", "tokens that are not UTF-8, or empty", Model(octets)
    merges: list[Entry] = [
        _NAMED,
        ("tokenizer.ggml.tokens", "[str]", ["a", "b", "ab", "aba"]),
        ("tokenizer.ggml.merges", "[str]", ["a b", "ab a"]),
    ]
    yield "model/tokenizer/merges", "merges whose parts are merges", Model(merges)
    unmade: list[Entry] = [
        _NAMED,
        ("tokenizer.ggml.tokens", "[str]", ["a", "b", "ab"]),
        ("tokenizer.ggml.merges", "[str]", ["a b", "b zz"]),
        ("tokenizer.ggml.token_type", "[i32]", [1, -1, 300]),
    ]
    yield (
        "model/tokenizer/kept-raw",
        "merges that name no tokens and types that are no bytes stay metadata",
        Model(unmade),
    )
    template: list[Entry] = [
        _NAMED,
        ("tokenizer.ggml.tokens", "[str]", ["a"]),
        ("tokenizer.chat_template", "str", "{{ '\u00e9\U0001f600' }}\n"),
        ("tokenizer.chat_template.tool_use", "str", "{{ tools }}"),
    ]
    yield "model/tokenizer/templates", "a chat template, and a second one by name", Model(template)


def _tensors() -> Iterator[tuple[str, str, Model]]:
    blocks = sorted(kind for kind, block in GgmlType.BLOCK.items() if block > 1)
    plain = sorted(kind for kind, block in GgmlType.BLOCK.items() if block == 1)
    yield (
        "model/tensors/native",
        "a matrix of every type that comes in blocks",
        Model([_NAMED], [tensor(f"{GgmlType.NAMES[kind]}.weight", kind, GgmlType.BLOCK[kind], 3) for kind in blocks]),
    )
    yield (
        "model/tensors/dense",
        "a matrix of every type without blocks",
        Model([_NAMED], [tensor(f"{GgmlType.NAMES[kind]}.weight", kind, 5, 3) for kind in plain]),
    )
    yield (
        "model/tensors/ranks",
        "every rank from 0 to 8",
        Model([_NAMED], [tensor(f"r{rank}", F32, *range(2, 2 + rank)) for rank in (3, 0, 8, 1, 5, 2, 7, 4, 6)]),
    )
    yield (
        "model/tensors/no-elements",
        "tensors with an axis of length zero",
        Model([_NAMED], [tensor("b", F32, 0), tensor("a", F16, 4, 0, 2), tensor("q", Q4_0, 0, 3), tensor("c", F32, 1)]),
    )
    yield (
        "model/tensors/no-bytes",
        "dense tensors, but not a single byte of them",
        Model([_NAMED], [tensor("a", F32, 0)]),
    )
    yield (
        "model/tensors/order",
        "names whose order by bytes is not the source's",
        Model(
            [_NAMED],
            [
                tensor(name, F32, 1)
                for name in ("blk.10.x", "blk.2.x", "\u00e9", "Z", "a", "\U0001f600", "\uffff", "blk", "n" * 63)
            ],
        ),
    )
    yield (
        "model/tensors/padding",
        "sizes that need padding in the pack and in the arena",
        Model(
            [_NAMED],
            [tensor(f"d{size}", F16, size) for size in (1, 31, 32, 33)]
            + [tensor(f"q{rows}", Q8_0, 32, rows) for rows in (1, 7, 8, 128)],
        ),
    )


def _placements() -> Iterator[tuple[str, str, Model]]:
    embedding, head = tensor("token_embd.weight", Q8_0, 32, 6), tensor("output.weight", F16, 32, 6)
    yield "model/homes/tied", "an embedding and no head", Model([_NAMED], [embedding])
    yield "model/homes/untied", "an embedding and a head", Model([_NAMED], [head, embedding])
    yield "model/homes/head-only", "a head without an embedding", Model([_NAMED], [head])
    yield (
        "model/homes/ple",
        "a table of per-layer embeddings",
        Model([_NAMED], [embedding, tensor("per_layer_token_embd.weight", Q8_0, 64, 9)]),
    )
    yield (
        "model/homes/no-matrix",
        "an embedding that is no matrix is dense",
        Model([_NAMED], [tensor("token_embd.weight", F32, 4), tensor("output.weight", F32, 2, 3, 4)]),
    )
    yield "model/homes/native-only", "no dense tensor beside the arena", Model([_NAMED], [tensor("w", Q4_K, 256, 2)])
    drafts: list[Entry] = [_NAMED, ("t.block_count", "u32", 3), ("t.nextn_predict_layers", "u32", 2)]
    yield (
        "model/homes/drafts",
        "two draft layers, one with experts",
        Model(
            drafts,
            [
                tensor("blk.0.attn_norm.weight", F32, 8),
                tensor("blk.1.attn_norm.weight", F32, 8),
                tensor("blk.1.nextn.eh_proj.weight", Q8_0, 32, 2),
                *_layer(2, count=2),
                tensor("blk.2.nextn.enorm.weight", F32, 8),
            ],
        ),
    )


def _layer(layer: int, *, count: int, fused: bool = False, gate: bool = True, first: int = Q4_0) -> list[Tensor]:
    if fused:
        made = [tensor(f"blk.{layer}.ffn_gate_up_exps.weight", first, 32, 8, count)]
    else:
        names = ("gate", "up") if gate else ("up",)
        made = [tensor(f"blk.{layer}.ffn_{name}_exps.weight", first, 32, 4, count) for name in names]
    return [*made, tensor(f"blk.{layer}.ffn_down_exps.weight", F16, 4, 32, count)]


def _experts() -> Iterator[tuple[str, str, Model]]:
    shapes = {
        "separate": ("gate, up and down", _layer(0, count=4)),
        "fused": ("gate and up in one tensor", _layer(0, count=4, fused=True)),
        "no-gate": ("up and down alone", _layer(0, count=4, gate=False)),
        "one": ("a single expert", _layer(0, count=1)),
        "layers": (
            "layers of different shapes, types and numbers of experts, in no order",
            [
                *_layer(11, count=2),
                *_layer(2, count=3, fused=True, first=Q8_0),
                *_layer(0, count=1, gate=False, first=BF16),
            ],
        ),
        "incomplete": ("a gate without the others is an ordinary tensor", _layer(0, count=2)[:1]),
    }
    for name, (doc, tensors) in shapes.items():
        yield f"model/experts/{name}", doc, Model([_NAMED], tensors)
        if name != "incomplete":
            model = Model([_NAMED], [*tensors, tensor("norm", F32, 3)], external=True)
            yield f"model/external/{name}", f"{doc}, left in their file", model


def _rest() -> Iterator[tuple[str, str, Model]]:
    yield "model/assets/three", "raw tokenizer files, one of them empty", Model([_NAMED], assets=ASSETS)
    yield (
        "model/assets/order",
        "files whose names are to be sorted by bytes",
        Model([_NAMED], assets={"b": b"1", "a": b"", "B": b"2" * 65, "\u00e9": b"3"}),
    )
    one = Private(_PRIVATE, "Private", b"anything")
    yield "model/private/one", "a section of a private kind", Model([_NAMED], private=(one,))
    yield (
        "model/private/empty",
        "an empty section of a private kind",
        Model([_NAMED], private=(Private(_PRIVATE + 7, "Empty", b"", item_count=0),)),
    )
    yield (
        "model/private/page-aligned",
        "private sections of both alignments, the longest name, the largest kind",
        Model([_NAMED], private=(Private(0xFFFF_FFFF, "N" * 23, b"z" * 100, 4096, 2**40), one)),
    )
    yield (
        "model/manifest/name",
        "a name that is not the metadata's",
        Model([_NAMED], name="Gr\u00fc\u00dfe \u65e5\u672c"),
    )
    yield "model/manifest/producer", "a producer of one's own", Model([_NAMED], producer="somebody's writer")
    yield (
        "model/manifest/extensions",
        "extensions, whose keys and texts need care in canonical JSON",
        Model(
            [_NAMED],
            extensions={
                "b": [1, True, None, {"z": '\u00e9\u2028"\\\n\x1f/', "a": 2**53 - 1}],
                "a": {},
                "B": [],
                "_": -5,
            },
        ),
    )
    yield (
        "model/manifest/numbers",
        "extensions with fractions and exponents, which canonical JSON writes as ECMAScript does",
        Model([_NAMED], extensions={"n": [0.5, -0.0, 1e20, 1e21, 1e-6, 1e-7, 5e-324, 1.7976931348623157e308, 2.0**53]}),
    )
    yield (
        "model/manifest/keys",
        "extensions whose keys are not ASCII, to be sorted by UTF-16 code units",
        Model([_NAMED], extensions={"\ufb33": 1, "\U0001f600": 2, "\u20ac": 3, "\xf6": 4, "\r": 5, "1": 6}),
    )
    counted: list[Entry] = [
        _NAMED,
        ("general.name", "str", "Named"),
        ("t.block_count", "u64", 3),
        ("t.context_length", "u32", 4096),
        ("t.tie_word_embeddings", "bool", True),
    ]
    yield (
        "model/manifest/counts",
        "layers, context and ties as the metadata has them",
        Model(counted, [tensor("blk.0.norm", F32, 2), tensor("output.weight", F16, 2, 2)]),
    )
