"""Broken manifests."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

from ..parts import MANIFEST, Parts
from .bases import everything, external, plain, small
from .case import case
from .changes import footer, instead, manifest, raw, replaced, without


def _unsorted(data: bytes) -> bytes:
    return json.dumps(dict(reversed(json.loads(data).items())), separators=(",", ":")).encode()


case("manifest.sha256", "ManifestJson", "sha256", footer("manifest_sha256", bytes(32)), placed=False)
for name, text in {
    "empty": b"",
    "array": b"[]",
    "null": b"null",
    "no-end": b"{",
    "comma": b'{"a":1,}',
    "not-utf8": b"\xff",
    "byte-order-mark": b"\xef\xbb\xbf{}",
    "nan": b'{"a":NaN}',
    "infinity": b'{"a":-Infinity}',
    "more": b'{"a":1}x',
    "doubled-key": b'{"a":1,"a":1}',
    "doubled-inner-key": b'{"b":{"a":1,"a":1}}',
    "deep": b'{"a":' + b"[" * 17 + b"]" * 17 + b"}",
    "endless-depth": b'{"a":' + b"[" * 99_999,
    "endless-number": b'{"a":' + b"9" * 5000 + b"}",
    "long-number": b'{"a":0.' + b"1" * 63 + b"}",
    "large-number": b'{"a":1e309}',
    "line-feed-in-text": b'{"a":"\n"}',
    "single-quotes": b"{'a':1}",
    "leading-zero": b'{"a":01}',
}.items():
    case("manifest.json", "ManifestJson", "$", raw(instead(text)), published=len(text) < 10_000, variant=name)
for name, old, new in (
    ("blank", b",", b", "),
    ("blank-after-colon", b'"flags":', b'"flags": '),
    ("escaped-letter", b'"schema"', b'"\\u0073chema"'),
    ("beyond-2-53", b"{", b'{"extensions":{"n":9007199254740993},'),
    ("exponent-of-integer", b"{", b'{"extensions":{"n":1e2},'),
    ("surrogate", b"{", b'{"extensions":{"n":"\\ud800"},'),
    ("escaped-slash", b"{", b'{"extensions":{"a/b":"\\/"},'),
    ("escape-in-capitals", b"{", b'{"extensions":{"n":"\\u000A"},'),
    (
        "keys-by-code-point",
        b"{",
        b'{"extensions":{"\xef\xac\xb3":1,"\xf0\x9f\x98\x80":2},',
    ),  # code points rise, code units do not
    ("fraction-of-integer", b"{", b'{"extensions":{"n":1.0},'),
    ("trailing-zero", b"{", b'{"extensions":{"n":0.10},'),
    ("tiny-without-exponent", b"{", b'{"extensions":{"n":0.0000001},'),
    ("millionth-with-exponent", b"{", b'{"extensions":{"n":1e-6},'),
    ("1e20-with-exponent", b"{", b'{"extensions":{"n":1e20},'),
    ("1e21-without-exponent", b"{", b'{"extensions":{"n":1000000000000000000000},'),
    ("capital-exponent", b"{", b'{"extensions":{"n":1E+21},'),
    ("needless-digits", b"{", b'{"extensions":{"n":0.1000000000000000055},'),
    ("minus-zero", b"{", b'{"extensions":{"n":-0},'),
    ("blank-in-front", b"{", b" {"),
):
    case("manifest.canonical", "ManifestJson", "$", raw(replaced(old, new)), variant=name)
case("manifest.canonical", "ManifestJson", "$", raw(lambda data: data + b"\n"), variant="line-feed")
case("manifest.canonical", "ManifestJson", "$", raw(_unsorted), variant="order")
for field, edit in {
    "producer": lambda m: m.update(producer=""),
    "model": lambda m: m.pop("model"),
    "model.name": lambda m: m["model"].update(name=7),
    "model.parameter_count": lambda m: m["model"].update(parameter_count=True),
    "model.bytes_by_type.F32": lambda m: m["model"]["bytes_by_type"].update(F32="12"),
    "tokenizer.vocab_size": lambda m: m["tokenizer"].pop("vocab_size"),
    "experts.mode": lambda m: m["experts"].update(mode="both"),
    "schema": lambda m: m.update(schema="guild.gpack.v2"),
    "extensions": lambda m: m.update(extensions=[]),
}.items():
    case("manifest.schema", "ManifestJson", f"$.{field}", manifest(edit), placed=False)
for field, edit in {
    "flags": lambda m: m.update(flags=1),
    "format_version": lambda m: m.update(format_version=3),
    "min_reader_version": lambda m: m.update(min_reader_version=3),
    "sections": lambda m: m["sections"].pop(),
    "sections[2].sha256": lambda m: m["sections"][2].update(sha256="0" * 64),
    "sections[3].kind": lambda m: m["sections"][3].update(kind=99),
    "sections[4].name": lambda m: m["sections"][4].update(name="x"),
    "sections[5].size": lambda m: m["sections"][5].update(size=0),
    "sections[6].offset": lambda m: m["sections"][6].update(offset=0),
    "sections[7].flags": lambda m: m["sections"][7].update(flags=1),
    "sections[8].alignment": lambda m: m["sections"][8].update(alignment=64),
    "sections[9].item_count": lambda m: m["sections"][9].update(item_count=0),
}.items():
    case("manifest.binding", "ManifestJson", f"$.{field}", manifest(edit), placed=False)


def _add_to(part: str, name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def edit(said: dict[str, Any]) -> None:
        before = copy.copy(said[part].get(name))
        said[part][name] = before + value if type(value) is int and before is not None else value
        assert said[part][name] != before

    return edit


for part, name, value in (
    ("model", "parameter_count", 1),
    ("model", "tensor_count", 1),
    ("model", "layer_count", 1),
    ("model", "context_length", 1),
    ("model", "architecture", "other"),
    ("model", "tied_embeddings", True),
    ("model", "bytes_by_type", {"F32": 1}),
    ("tokenizer", "vocab_size", 1),
    ("tokenizer", "merge_count", 1),
    ("tokenizer", "eos_token_id", 1),
    ("tokenizer", "has_chat_template", False),
    ("tokenizer", "model", "llama"),
    ("tokenizer", "pre", "gpt-4o"),
    ("experts", "mode", "external"),
    ("experts", "layer_count", 1),
    ("experts", "blob_count", 1),
    ("experts", "bytes", 1),
    ("experts", "shards", [{"name": "x", "size": 1, "header_sha256": "0" * 64}]),
    ("mtp", "tensor_count", 1),
    ("mtp", "bytes", 1),
):
    case(
        "manifest.summary",
        "ManifestJson",
        f"$.{part}.{name}",
        manifest(_add_to(part, name, value)),
        placed=False,
        variant="other",
    )
for part in ("tokenizer", "experts", "mtp"):
    case("manifest.summary", "ManifestJson", f"$.{part}", manifest(without(part)), placed=False, variant="missing")

    def _add_part(said: dict[str, Any], part: str = part) -> None:
        said[part] = json.loads(Parts.parse(everything()).section(MANIFEST).data)[part]

    case(
        "manifest.summary",
        "ManifestJson",
        f"$.{part}",
        manifest(_add_part),
        base=plain,
        placed=False,
        variant="without-section",
    )
for name, value in (("layer_count", 1), ("context_length", 1)):
    case(
        "manifest.summary",
        "ManifestJson",
        f"$.model.{name}",
        manifest(_add_to("model", name, value)),
        base=plain,
        placed=False,
        variant="not-in-metadata",
    )
case(
    "manifest.summary",
    "ManifestJson",
    "$.tokenizer.pre",
    manifest(_add_to("tokenizer", "pre", "gpt2")),
    base=small,
    placed=False,
    variant="not-in-metadata",
)
case(
    "manifest.summary",
    "ManifestJson",
    "$.experts.shards",
    manifest(lambda m: m["experts"]["shards"][1].update(sha256="0" * 64)),
    base=external,
    placed=False,
    variant="digest",
)
