"""The tokenizer files of a Hugging Face folder as the `tokenizer.*` metadata that a GGUF of the model has.

`tokenizer.json` holds vocabulary, merges and added tokens; `tokenizer_config.json` names the special ones. Where there
is none, `tekken.json`, a SentencePiece model, or `vocab.json` with `merges.txt` tell the same. Two kinds
of BPE occur: over bytes (GGUF's model `gpt2`), and over characters with byte tokens for what is rare (`llama`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..container.strict_json import shorten
from ..errors import FormatError
from ..generated.constants import MetadataType
from ..sections.tokenizer import MERGES, TOKENS, TYPES
from ..tokenizer.pretokenizers import ADD_BOS
from ..tokenizer.settings import ADDED_TOKENS, EXACT_TYPES, IGNORE_MERGES, METASPACE, NORMALIZER, USER_DEFINED_IDS, WAYS
from . import hf_files
from .hf_config import HfConfig
from .hf_files import HfFiles
from .hf_pretokenizer import add_prefix_space, detect_pre, is_character_bpe, metaspace, normalizers
from .hf_sentencepiece import sentencepiece_faults, sentencepiece_metadata
from .hf_special import add_named_tokens, add_special_ids, add_templates
from .hf_tekken import added_tokens, listed_tokenizer, tekken_tokenizer
from .metadata_build import MetadataBuilder
from .sentencepiece import read_sentencepiece

# GGUF's types of tokens.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
MAX_TOKENS = 1 << 24
MAX_PADDING = 1 << 20  # ids that nothing names
_SPECIAL_LOOKS = (("<|", "|>"), ("<\uff5c", "\uff5c>"), ("<unused", ">"))
_WAYS = ("lstrip", "rstrip", "single_word")  # in which an added token is found, for which GGUF has no keys
# The files that hold a tokenizer; the first that is there counts.
_OTHER_PIECES = ("spiece.model", "sentencepiece.bpe.model")
_SOURCES = (hf_files.TOKENIZER, hf_files.TEKKEN, hf_files.SENTENCE_PIECE, *_OTHER_PIECES, hf_files.VOCABULARY)
_TEKKEN_NAMES = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
_SPECIAL_TEXTS = ("<pad>", "<mask>", "<2mass>", "[@BOS@]")


@dataclass
class TokenizerImport:
    """What the tokenizer files say.

    Attributes:
        metadata: `tokenizer.*` entries, in GGUF's usual order; none where there is no tokenizer.
        faults: Why the model's own text cannot be tokenized with it, one sentence each.
        places: The part of `tokenizer.json` that each fault is about.
        notes: What is left aside, though the model can be run without it.
    """

    metadata: MetadataBuilder = field(default_factory=MetadataBuilder)
    faults: list[str] = field(default_factory=list)
    places: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def fault(self, place: str, message: str) -> None:
        """Notes a fault."""
        self.faults.append(message)
        self.places.append(place)


def read_directory(path: str | os.PathLike[str]) -> TokenizerImport:
    """The tokenizer of a folder.

    Raises:
        FormatError: `hf.tokenizer` or `hf.config`: the files are damaged or contradict one another.
        PathError: A file cannot be read.
    """
    files = HfFiles(Path(path))
    try:
        config = HfConfig(files.json(hf_files.CONFIG), files.folder / hf_files.CONFIG)
        return import_tokenizer(files, config.count("vocab_size"), config)
    finally:
        files.close()


def import_tokenizer(files: HfFiles, vocab_size: int | None, config: HfConfig) -> TokenizerImport:
    """The tokenizer of a model.

    Args:
        vocab_size: Number of tokens that the model knows; those that the tokenizer lacks are padding.

    Raises:
        FormatError: `hf.tokenizer`: the files are damaged or contradict one another.
    """
    name = next((name for name in _SOURCES if name in files), None)
    if name is None:
        return no_tokenizer(files, "there is no tokenizer.json")
    if name in (hf_files.SENTENCE_PIECE, *_OTHER_PIECES):
        return _import_sentencepiece(files, name, vocab_size, config)
    tokenizer = _document(files, name)
    if tokenizer is None:
        return no_tokenizer(files, "vocab.json and merges.txt do not tell how texts are split")
    return _import_document(files, name, tokenizer, vocab_size, config)


def _document(files: HfFiles, name: str) -> dict[str, Any] | None:
    """The tokenizer as a `tokenizer.json` says it; None where the files do not tell enough."""
    said = files.json(name, code="hf.tokenizer")
    if name == hf_files.TEKKEN:
        return tekken_tokenizer(said, files.folder / name)
    if name == hf_files.VOCABULARY:
        settings = files.json(hf_files.TOKENIZER_CONFIG, code="hf.tokenizer")
        added = files.json(hf_files.ADDED_TOKENS, code="hf.tokenizer")
        return listed_tokenizer(said, files.text(hf_files.MERGES) or "", settings, added)
    return said


def _import_sentencepiece(files: HfFiles, name: str, vocab_size: int | None, config: HfConfig) -> TokenizerImport:
    path = files.folder / name
    model = read_sentencepiece(files[name], path)
    if faults := list(sentencepiece_faults(model)):
        return no_tokenizer(files, "; ".join(faults))
    settings = files.json(hf_files.TOKENIZER_CONFIG, code="hf.tokenizer")
    ids = {text: number for number, (text, _, _) in reversed(list(enumerate(model.pieces)))}
    added = added_tokens(settings, files.json(hf_files.ADDED_TOKENS, code="hf.tokenizer"), ids)
    made = TokenizerImport(sentencepiece_metadata(model, added, vocab_size, path))
    count = made.metadata[TOKENS].count
    own = {"unk": model.unk_id, "bos": model.bos_id, "eos": model.eos_id, "pad": model.pad_id}
    names = {f"{kind}_token": model.pieces[n][0] for kind, n in own.items() if 0 <= n < len(model.pieces)}
    named = [*added, *({"content": text, "id": number} for text, number in ids.items())]
    add_special_ids(made.metadata, {"added_tokens": named}, files, config, count, names)
    _add_templates(made, files)
    made.metadata.flag(EXACT_TYPES, True)
    add_named_tokens(made.metadata, settings)
    return made


def _import_document(
    files: HfFiles, name: str, tokenizer: dict[str, Any], vocab_size: int | None, config: HfConfig
) -> TokenizerImport:
    """The tokenizer that a `tokenizer.json` describes, or a file that says the same."""
    made = TokenizerImport()
    reader = _Reader(tokenizer, files.folder / name, vocab_size)
    if reader.kind != "BPE":
        return no_tokenizer(files, f"the tokenizer's model is {shorten(reader.kind)}, not BPE", "model.type")
    for part in ("continuing_subword_prefix", "end_of_word_suffix"):
        if reader.model.get(part):
            made.fault(f"model.{part}", f"the tokenizer has a {part}, which has no translation")
    if is_character_bpe(tokenizer):
        _add_character_bpe(made, reader)
    else:
        _add_byte_bpe(made, reader, detect_pre(tokenizer))
    names = _TEKKEN_NAMES if name == hf_files.TEKKEN else None
    strange = add_special_ids(made.metadata, tokenizer, files, config, len(reader.tokens), names)
    if strange:
        made.fault("post_processor", f"the tokenizer adds {strange}, which has no translation")
    _add_templates(made, files)
    _add_own(made, reader)
    add_named_tokens(made.metadata, files.json(hf_files.TOKENIZER_CONFIG, code="hf.tokenizer"))
    _add_ways(made, tokenizer)
    return made


def _add_ways(made: TokenizerImport, tokenizer: dict[str, Any]) -> None:
    """Adds the ways in which added tokens are found, for which GGUF has no keys; what has no key of ours is noted."""
    entries = [entry for entry in tokenizer.get("added_tokens") or [] if any(map(entry.get, _WAYS))]
    letters = dict(zip(_WAYS, WAYS, strict=True))
    said = (f"{entry['id']}:{''.join(letters[way] for way in _WAYS if entry.get(way))}" for entry in entries)
    if text := " ".join(said):
        made.metadata.text(ADDED_TOKENS, text)
        made.notes.append(
            f"{len(entries)} added tokens ask for {', '.join(_WAYS[:-1])} or {_WAYS[-1]}, the first is "
            f"{shorten(entries[0]['content'])}: a GGUF of the pack says it in a key of GPACK's own, which others do "
            "not read"
        )
    changes = tokenizer.get("normalizer") is not None and normalizers(tokenizer) != ["NFC"]
    normalised = [e["content"] for e in tokenizer.get("added_tokens") or [] if e.get("normalized") is True]
    if changes and normalised:
        made.notes.append(
            f"{len(normalised)} added tokens are looked for in normalised text, the first is {shorten(normalised[0])}: "
            "here they are found wherever they stand"
        )


def import_lists(files: HfFiles, model: dict[str, Any], path: Path, config: HfConfig, pre: str) -> TokenizerImport:
    """The byte-level BPE of a folder without a `tokenizer.json`: nothing but what GGUF has keys for.

    Args:
        model: Vocabulary and merges, as `tokenizer.json` has them.

    Raises:
        FormatError: `hf.tokenizer`: the files are damaged or contradict one another.
    """
    made = TokenizerImport()
    reader = _Reader({"model": model}, path, None)
    _add_byte_bpe(made, reader, pre)
    named = [{"content": token, "id": number} for number, token in enumerate(reader.tokens)]
    add_special_ids(made.metadata, {"added_tokens": named}, files, config, len(named))
    _add_templates(made, files)
    return made


def no_tokenizer(files: HfFiles, reason: str, place: str = "") -> TokenizerImport:
    """What is left of a model's text side where the tokenizer cannot be translated: the chat templates.

    Args:
        reason: Why it cannot be.
        place: The part of `tokenizer.json` that speaks against it.
    """
    made = TokenizerImport()
    made.fault(place, reason)
    _add_templates(made, files)
    return made


def _add_templates(made: TokenizerImport, files: HfFiles) -> None:
    try:
        add_templates(made.metadata, files)
    except FormatError as error:
        name = Path(error.path or "").name
        made.notes.append(f"{name}: {error.message}: the chat template is left aside")


def _add_byte_bpe(made: TokenizerImport, reader: _Reader, pre: str | None) -> None:
    metadata = made.metadata
    metadata.text("tokenizer.ggml.model", "gpt2")
    if pre is None:
        made.fault("pre_tokenizer", "the rule that splits text before BPE is none that is known")
    metadata.text("tokenizer.ggml.pre", pre or "default")
    metadata.texts(TOKENS, reader.tokens)
    metadata.numbers(TYPES, MetadataType.INT32, reader.types())
    metadata.texts(MERGES, [" ".join(pair) for pair in reader.merges()])


def _add_own(made: TokenizerImport, reader: _Reader) -> None:
    """Adds what GGUF has no keys for, or what it has defaults for that this tokenizer does not share."""
    metadata, by_characters = made.metadata, is_character_bpe(reader.tokenizer)
    if by_characters or detect_pre(reader.tokenizer) in ADD_BOS:
        key = "tokenizer.ggml.add_bos_token"
        if key not in metadata:
            metadata.flag(key, False)
    if not by_characters:
        kinds = normalizers(reader.tokenizer)
        if kinds == ["NFC"]:
            metadata.text(NORMALIZER, "nfc")
        elif kinds:
            made.fault("normalizer", f"text is normalised by {shorten(', '.join(kinds))}, which has no translation")
    metadata.flag(EXACT_TYPES, True)
    if user_defined := reader.hidden():
        metadata.text(USER_DEFINED_IDS, " ".join(map(str, user_defined)))
    if not by_characters:
        metadata.flag(IGNORE_MERGES, reader.model.get("ignore_merges") is True)


def _add_character_bpe(made: TokenizerImport, reader: _Reader) -> None:
    """As GGUF has it, without merges: the pair whose token has the highest score merges first."""
    metadata = made.metadata
    metadata.text("tokenizer.ggml.model", "llama")
    metadata.text("tokenizer.ggml.pre", "default")
    metadata.texts(TOKENS, reader.tokens)
    merges = reader.merges()
    ranks: dict[str, int] = {}
    for rank, (left, right) in enumerate(merges):
        ranks.setdefault(left + right, rank)
    scores = [-float(ranks.get(token, len(merges))) for token in reader.tokens]
    metadata.numbers("tokenizer.ggml.scores", MetadataType.FLOAT32, scores)
    metadata.numbers(TYPES, MetadataType.INT32, reader.types())
    metadata.flag("tokenizer.ggml.add_space_prefix", add_prefix_space(reader.tokenizer))
    if said := metaspace(reader.tokenizer):
        metadata.text(METASPACE, said)
        if said != "always":
            made.notes.append(
                f"spaces are written by the rule {said!r}: a GGUF of the pack says it in a key of GPACK's own, which "
                "others do not read"
            )


class _Reader:
    """`tokenizer.json`, checked.

    Attributes:
        kind: `BPE`, `Unigram`, `WordPiece`, `WordLevel`, or what else the file says.
        tokens: Token texts by id; those that nothing names are `[PAD<id>]`.
        added: Ids of the added tokens and whether they are special.
    """

    def __init__(self, tokenizer: Mapping[str, Any], path: Path, vocab_size: int | None) -> None:
        self.tokenizer, self.path = tokenizer, path
        model = tokenizer.get("model")
        if not isinstance(model, dict):
            raise self.fault("model", f"it is {shorten(model)}, no object")
        self.model: dict[str, Any] = model
        self.kind = _kind(model)
        self.added: dict[int, bool] = {}
        self._known: set[int] = set()
        self.tokens = self._read_tokens(vocab_size) if self.kind == "BPE" else []

    def fault(self, where: str, message: str) -> FormatError:
        return FormatError(message, code="hf.tokenizer", path=self.path, field=where)

    def _read_tokens(self, vocab_size: int | None) -> list[str]:
        vocabulary = self.model.get("vocab")
        if not isinstance(vocabulary, dict) or not vocabulary:
            raise self.fault("model.vocab", "it is no object of tokens and ids, or empty")
        by_id: dict[int, str] = {}
        for token, number in vocabulary.items():
            self._take(by_id, number, token, "model.vocab")
        added = self.tokenizer.get("added_tokens")
        if added is not None and not isinstance(added, list):
            raise self.fault("added_tokens", f"it is {shorten(added)}, no list")
        for index, entry in enumerate(added or []):
            place = f"added_tokens[{index}]"
            if not isinstance(entry, dict) or not isinstance(entry.get("content"), str):
                raise self.fault(place, "it is no object with an id and a content")
            self._take(by_id, entry.get("id"), entry["content"], place)
            self.added[entry["id"]] = entry.get("special") is True
        self._known = set(by_id)
        size = max(by_id) + 1
        if vocab_size is not None:
            if size > vocab_size:
                raise self.fault("model.vocab", f"it has the id {size - 1}, the model knows {vocab_size} tokens")
            size = vocab_size
        if size - len(by_id) > MAX_PADDING:
            raise self.fault("model.vocab", f"{size - len(by_id)} of {size} ids belong to no token")
        return [by_id.get(number, f"[PAD{number}]") for number in range(size)]

    def _take(self, by_id: dict[int, str], number: Any, token: str, place: str) -> None:
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < MAX_TOKENS:
            raise self.fault(place, f"the token {shorten(token)} has the id {shorten(number)}")
        if any("\ud800" <= char <= "\udfff" for char in token):
            raise self.fault(place, f"the token {number} is no text")
        if by_id.setdefault(number, token) != token:
            raise self.fault(place, f"the id {number} belongs to {shorten(by_id[number])} and {shorten(token)}")

    def types(self) -> list[int]:
        """GGUF's type of each token."""
        unknown = self.model.get("unk_token")
        has_bytes = self.model.get("byte_fallback") is True
        types = []
        for number, token in enumerate(self.tokens):
            if number not in self._known:
                types.append(UNUSED)
            elif has_bytes and token == unknown:
                types.append(UNKNOWN)
            elif number in self.added:
                types.append(CONTROL if self.added[number] or _looks_special(token) else USER_DEFINED)
            else:
                types.append(BYTE if has_bytes and _is_byte(token) else NORMAL)
        return types

    def hidden(self) -> list[int]:
        """Tokens that are found in every text, and that the GGUF converter makes control tokens all the same."""
        return sorted(n for n, special in self.added.items() if not special and _looks_special(self.tokens[n]))

    def merges(self) -> list[tuple[str, str]]:
        """The merges by rank; from `"a b"` strings or pairs."""
        merges = self.model.get("merges")
        if not isinstance(merges, list) or not merges:
            raise self.fault("model.merges", "a BPE has no merges")
        vocabulary = {*self.model["vocab"], *(self.tokens[number] for number in self.added)}
        said = self.model.get("continuing_subword_prefix")
        prefix = said if isinstance(said, str) else ""  # stands before what is no word's beginning, once
        made = []
        for rank, entry in enumerate(merges):
            pair = entry.split(" ") if isinstance(entry, str) else entry
            if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(part, str) and part for part in pair):
                raise self.fault(f"model.merges[{rank}]", f"it is {shorten(entry)}, no pair of tokens")
            joined = pair[0] + pair[1].removeprefix(prefix)
            unknown = next((part for part in (*pair, joined) if part not in vocabulary), None)
            if unknown is not None:
                raise self.fault(f"model.merges[{rank}]", f"{shorten(unknown)} is no token of the vocabulary")
            # GGUF joins the pair with a space, so one inside is written as byte-level BPE writes it.
            left, right = (part.replace(" ", "Ġ") for part in pair)
            made.append((left, right))
        return made


def _kind(model: Mapping[str, Any]) -> Any:
    """The kind of a tokenizer's model; where older files do not say it, what it holds tells it."""
    if model.get("type") is not None:
        return model["type"]
    if "merges" in model:
        return "BPE"
    if isinstance(model.get("vocab"), list):
        return "Unigram"
    return "WordPiece" if "continuing_subword_prefix" in model else "WordLevel"


def _looks_special(token: str) -> bool:
    """Tokens that are control tokens whatever the file says, as the GGUF converter has it."""
    return token in _SPECIAL_TEXTS or any(token.startswith(a) and token.endswith(b) for a, b in _SPECIAL_LOOKS)


def _is_byte(token: str) -> bool:
    return len(token) == 6 and token.startswith("<0x") and token.endswith(">")
