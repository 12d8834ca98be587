"""Texts of a given form: JSON schemas, regular expressions and grammars, by the library llguidance."""

from __future__ import annotations

import json
import threading
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import UnsupportedError, UsageError, install
from ..tokenizer import Tokenizer
from ..tokenizer.decode import CONTROL, UNUSED

Floats = npt.NDArray[np.float32]
_MOST_BYTES = 1 << 18  # of a schema or a grammar


class Grammars:
    """Compiles what texts of one model must look like.

    The index of the vocabulary is made with the first grammar, which takes a second where vocabularies are large.
    """

    def __init__(self, tokenizer: Tokenizer, ends: frozenset[int], n_vocab: int) -> None:
        self._tokenizer, self._ends, self._n_vocab = tokenizer, ends, n_vocab
        self._lock = threading.Lock()
        self._made: Any = None

    def json(self, schema: Any, *, field: str) -> Grammar:
        """Texts that are JSON of a schema; True: any object.

        Raises:
            UsageError: `serve.grammar`: the schema cannot be compiled.
            UnsupportedError: `serve.extra`: llguidance is not installed.
        """
        llguidance = _library()
        wanted = {"type": "object"} if schema is True else schema
        try:
            text = _bounded(json.dumps(wanted), field)
            made = llguidance.LLMatcher.grammar_from_json_schema(text, defaults={"whitespace_flexible": False})
        except (ValueError, RecursionError) as error:
            raise _refused(error, field) from error
        return self._compile(made, field)

    def regex(self, pattern: str, *, field: str) -> Grammar:
        """Texts that match a regular expression as a whole; raises as `json`."""
        llguidance = _library()
        return self._compile(llguidance.LLMatcher.grammar_from_regex(_bounded(pattern, field)), field)

    def lark(self, grammar: str, *, field: str) -> Grammar:
        """Texts of a grammar in the form of Lark, or in llama.cpp's GBNF; raises as `json`."""
        llguidance = _library()
        text = _bounded(grammar, field)
        if "::=" in text:
            try:
                text = llguidance.gbnf_to_lark.any_to_lark(text)
            except (ValueError, AttributeError) as error:
                raise _refused(error, field) from error
        return self._compile(llguidance.LLMatcher.grammar_from_lark(text), field)

    def _compile(self, grammar: str, field: str) -> Grammar:
        llguidance = _library()
        with self._lock:
            if self._made is None:
                self._made = self._index(llguidance)
        error = llguidance.LLMatcher.validate_grammar(grammar, self._made)
        if error:
            raise _refused(error, field)
        matcher = llguidance.LLMatcher(self._made, grammar)
        if matcher.is_error():
            raise _refused(matcher.get_error(), field)
        return Grammar(matcher, self._n_vocab, self._ends)

    def _index(self, llguidance: Any) -> Any:
        tokenizer = self._tokenizer
        end = min(self._ends) if self._ends else tokenizer.eos_id or 0
        special = [token for token in range(len(tokenizer)) if tokenizer.token_type(token) in (CONTROL, UNUSED)]
        hidden = set(special)

        class Vocabulary:
            eos_token_id, bos_token_id = end, tokenizer.bos_id
            tokens = [
                b"\xff" + tokenizer.token(token) if token in hidden else tokenizer.piece(token)
                for token in range(len(tokenizer))
            ] + [b""] * max(0, self._n_vocab - len(tokenizer))
            special_token_ids = special

            def __call__(self, text: bytes | str) -> list[int]:
                spelled = text if isinstance(text, str) else text.decode("utf-8", "replace")
                return tokenizer.encode(spelled, add_special=False)

        wrapped = llguidance.TokenizerWrapper(Vocabulary())
        return llguidance.LLTokenizer(wrapped, eos_token=sorted(self._ends) or end)


class Grammar:
    """A grammar at work on one text: `generate.writing.Rules`."""

    def __init__(self, matcher: Any, n_vocab: int, ends: frozenset[int]) -> None:
        self._matcher, self._n_vocab = matcher, n_vocab
        self._ends = sorted(ends)

    def copy(self) -> Grammar:
        """The same from the beginning, for another text."""
        return Grammar(self._matcher.deep_copy(), self._n_vocab, frozenset(self._ends))

    def masked(self, logits: Floats) -> Floats:
        """The logits of tokens that may come next, all others -inf; where nothing may, the text's end."""
        if self._matcher.is_stopped():
            allowed = np.zeros(len(logits), np.bool_)
            allowed[self._ends] = True
        else:
            bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
            found = np.unpackbits(bits, bitorder="little")[: len(logits)]
            allowed = np.zeros(len(logits), np.bool_)
            allowed[: len(found)] = found
        scores: Floats = np.where(allowed, logits, np.float32(-np.inf))
        return scores

    def take(self, token: int) -> None:
        """Notes a token."""
        if not self._matcher.is_stopped():
            self._matcher.consume_token(token)


def _bounded(text: str, field: str) -> str:
    if len(text) > _MOST_BYTES:
        raise UsageError(
            f"it has {len(text)} characters, at most {_MOST_BYTES} are taken", code="serve.grammar", field=field
        )
    return text


def _refused(error: object, field: str) -> UsageError:
    return UsageError(f"it cannot be compiled: {str(error).splitlines()[0][:300]}", code="serve.grammar", field=field)


def _library() -> Any:
    try:
        import llguidance
    except ImportError as error:
        raise UnsupportedError(
            "texts of a given form need llguidance", code="serve.extra", hint=install("serve")
        ) from error
    return llguidance
