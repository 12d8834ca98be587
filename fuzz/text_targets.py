"""Targets: the tokeniser under texts and under vocabularies, chat templates, signatures."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

from gguf_maker import make_gguf, tiny_tokenizer
from tokenizer.vocabularies import changed

from gpack.container.reader import Container
from gpack.errors import GpackError
from gpack.generated.constants import SectionKind
from gpack.sections.values import Value
from gpack.sources.gguf import GgufSource
from gpack.tokenizer.chat import ChatLimits, ChatTemplate
from gpack.tokenizer.tokenizer import GbtTokenizer
from gpack.tokenizer_files import Tokenizer

from . import jinja, mutate
from .corpus import small_packs
from .pack_targets import section_target
from .target import FindingError, Scratch, Target

_PRES = ("qwen2", "llama-bpe", "gpt-2", "deepseek-v3", "gpt-4o", "smollm", "tekken")
_TEXTS = ("hello world", "<|im_start|>user\n", "a" * 300, "\u0663 a  b\r\n", "\U0001f642\ufe0f", "\0\x7f")
_WORDS = (
    *("the", " there", "2024", "\n\n", "   ", "\r\n", "don't", "\u4f60\u597d", "\U0001f642", "\u0301", "\u200d"),
    *("<|im_start|>", "<|im_end|>", "<0x0A>", "\u2581", "\u0130", "\u1e9e", "\0", "\u00a0", "\ufffd", "aaaaaaaa"),
)


def targets() -> list[Target]:
    """All of them."""
    made = [_tokeniser(), _vocabulary(), _template()]
    try:
        import model_signing.signing  # noqa: F401 - whether it is there
    except ImportError:
        return made
    return [*made, _signature()]


def _metadata(scratch: Scratch, entries: Any) -> dict[str, Value]:
    with GgufSource.open(scratch.write("t.gguf", make_gguf(entries))) as source:
        return dict(source.metadata)


# ---------------------------------------------------------------- tokeniser


def _tokeniser() -> Target:
    scratch = Scratch()
    tokenizers = [Tokenizer.from_metadata(_metadata(scratch, changed(tiny_tokenizer(), pre=pre))) for pre in _PRES]

    def run(data: bytes) -> bool:
        tokenizer = tokenizers[data[0] % len(tokenizers)] if data else tokenizers[0]
        text = data[1:].decode("utf-8", "replace")
        ids = tokenizer.encode(text)
        if tokenizer.encode_plain(text) != ids:
            raise FindingError("the compiled code and the plain one disagree")
        if tokenizer.decode(ids) != text:
            raise FindingError(f"{tokenizer.decode(ids)!r} came back for {text!r}")
        special = tokenizer.encode(text, parse_special=True)
        if tokenizer.decode(special) != text:
            raise FindingError("with special tokens another text came back")
        tokenizer.encode_marked(text, bytes(at & 1 for at in range(len(text))))
        stream = tokenizer.stream()
        if "".join(map(stream.push, ids)) + stream.flush() != text:
            raise FindingError("the stream gives another text")
        return True

    def header(data: bytes) -> bool:
        try:
            return bool(data[1:].decode("utf-8"))
        except UnicodeDecodeError:
            return False

    seeds = [bytes([number]) + text.encode() for number in range(len(_PRES)) for text in (*_TEXTS, " ".join(_WORDS))]
    return Target("tokeniser", lambda: seeds, run, header, mutate.pieces_of(_WORDS), 512)


def _vocabulary() -> Target:
    """TokenizerBin that is used without being verified: encoding and decoding end, with ids of it or an error."""
    kind = SectionKind.TOKENIZER_BIN
    section = section_target(kind)
    said: Mapping[str, Any] = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "qwen2"}

    def run(data: bytes) -> bool:
        refused = False
        tokenizer = GbtTokenizer(data, said.get)
        for text in _TEXTS:
            try:
                ids = tokenizer.encode(text, parse_special=True)
                if any(not 0 <= token < tokenizer.vocab_size for token in ids):
                    raise FindingError("an id that is not in the vocabulary")
                tokenizer.decode(ids)
            except GpackError as error:
                if error.exit_code == _INTERNAL_EXIT:
                    raise
                refused = True
        tokenizer.close()
        return not refused

    return Target("vocabulary", section.seeds, run, section.header, section.mutate, section.limit)


_INTERNAL_EXIT = 70


# ---------------------------------------------------------------- templates

_JINJA = mutate.words("""
{% for m in messages %} ¦ {% endfor %} ¦ {{ m.content }} ¦ {% if x is defined %} ¦ {% else %} ¦ {% endif %} ¦
{% set a = namespace(b=1) %} ¦ {% macro f(x) %} ¦ {% endmacro %} ¦ {{ f(1) }} ¦ |tojson ¦ |trim ¦ |join(',') ¦
|map(attribute='role') ¦ |selectattr('role','equalto','user') ¦ |list ¦ |length ¦ [::-1] ¦ [1:] ¦ ['role'] ¦
loop.index0 ¦ loop.last ¦ range(10**9) ¦ 'a' * 10**9 ¦ 9**9**9 ¦ raise_exception('x') ¦ strftime_now('%Y') ¦
{%-  ¦  -%} ¦ {{-  ¦  -}} ¦ {# #} ¦ {% raw %} ¦ {% endraw %} ¦ ~ ¦ + ¦ in ¦ not ¦ is none ¦ '' ¦ ( ¦ ) ¦
{% generation %} ¦ {% endgeneration %} ¦ {% break %} ¦ {% continue %} ¦ __class__ ¦ |attr('x') ¦ |items ¦
{% for k, v in m.items() recursive %} ¦ {{ loop(messages) }} ¦ |replace('a','b') ¦ .split('<') ¦ %s
""")
_TEMPLATES = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    "{{ bos_token }}{%- for m in messages if m.role != 'system' -%}[{{ loop.index0 }}] {{ m.content | trim }}"
    "{%- if not loop.last %}, {% endif -%}{%- endfor -%}",
    "{% macro f(x, y=2) %}{{ x|tojson }}{{ y }}{% endmacro %}{% set ns = namespace(a=[]) %}"
    "{% for m in messages %}{% set ns.a = ns.a + [m.role] %}{% endfor %}{{ f(ns.a|join(',')) }}",
    "{% if tools is defined and tools %}{% for t in tools %}{{ t | tojson(indent=2) }}{% endfor %}{% endif %}"
    "{% set x = messages[-1].content.split('</think>')[-1].lstrip('\n') %}{{ x[:3] }}{{ 7 // 2 }}{{ x is string }}",
    "{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | list | length }}"
    "{% for k, v in messages[0].items() %}{{ k ~ ':' ~ v|upper }}{% endfor %}",
)
_LIMITS = ChatLimits(steps=20_000, characters=200_000, output=50_000, depth=16, seconds=5.0)
_MESSAGES = (
    {"role": "system", "content": "be brief <|im_end|>"},
    {"role": "user", "content": "h\u00e9llo\n</think>a,b", "more": [1, 2.5, None, True]},
    {"role": "assistant", "content": "", "tool_calls": [{"name": "f", "arguments": {"a": 1}}]},
)
_TOOLS = ({"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}},)


def _template() -> Target:
    def run(data: bytes) -> bool:
        template = ChatTemplate(data, limits=_LIMITS)
        prompt = template.render(
            _MESSAGES,
            add_generation_prompt=True,
            tools=_TOOLS,
            special_tokens={"bos_token": "<s>", "eos_token": "</s>"},
        )
        if len(prompt.mask) != len(prompt.text):
            raise FindingError("the mask is not as long as the text")
        if "be brief" in prompt.text and not _untrusted(prompt.text, prompt.mask, "be brief", data):
            raise FindingError("a user's text is trusted")
        return True

    def header(data: bytes) -> bool:
        try:
            ChatTemplate(data, limits=_LIMITS)
        except GpackError:
            return False
        return True

    seeds = [template.encode() for template in _TEMPLATES]
    return Target("template", lambda: seeds, run, header, jinja.template(mutate.pieces_of(_JINJA)), 2048)


def _untrusted(text: str, mask: bytes, words: str, template: bytes) -> bool:
    """Whether words of a message are all untrusted; what the template itself says may be trusted."""
    if words[:2].encode() in template:
        return True
    at = text.find(words)
    return not any(mask[at : at + len(words)])


# ---------------------------------------------------------------- signatures


def _signature() -> Target:
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    from gpack.signatures import Key, Trust, check_signature, sign

    scratch = Scratch()
    key = ec.generate_private_key(ec.SECP256R1())
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    public = key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    pack = scratch.write("m.gpack", small_packs()["valid/plain"])
    key_file, trust = scratch.write("k.pem", private), Trust(scratch.write("k.pub", public))
    bundle = Path(sign(pack, Key(key_file)))
    good = bundle.read_bytes()
    digests = _digests(_payload_of(json.loads(good)))

    def run(data: bytes) -> bool:
        bundle.write_bytes(data)
        with Container.open(pack) as container:
            check_signature(container, trust)
        if not digests <= _digests(_payload_of(json.loads(data))):
            raise FindingError("a bundle over other bytes was accepted")
        return True

    def sealed(data: bytes, rng: Random, anyhow: mutate.Anyhow) -> bytes:
        """Changes the bundle, or what is signed in it, which mostly is signed again by the right key."""
        try:
            value = json.loads(data)
            payload = _payload_of(value)
            if not rng.randrange(3):
                return mutate.document(data, rng, anyhow)
            changed_payload = mutate.document(payload, rng, anyhow)
            kind = value["dsseEnvelope"]["payloadType"]
            value["dsseEnvelope"]["payload"] = base64.b64encode(changed_payload).decode()
            if rng.randrange(4):
                signed = b"DSSEv1 %d %s %d %s" % (len(kind), kind.encode(), len(changed_payload), changed_payload)
                signature = key.sign(signed, ec.ECDSA(hashes.SHA256()))
                value["dsseEnvelope"]["signatures"][0]["sig"] = base64.b64encode(signature).decode()
            return json.dumps(value).encode()
        except Exception:  # it is no bundle any more
            return anyhow(data)

    def header(data: bytes) -> bool:
        try:
            return bool(json.loads(_payload_of(json.loads(data))))
        except Exception:
            return False

    return Target("signature", lambda: [good], run, header, sealed, 1 << 13)


def _payload_of(bundle: Any) -> bytes:
    return base64.b64decode(bundle["dsseEnvelope"]["payload"])


def _digests(payload: bytes) -> set[str]:
    return {str(resource["digest"]) for resource in json.loads(payload)["predicate"]["resources"]}
