"""Texts of a given form: JSON schemas, regular expressions and grammars, by the library llguidance."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import UnsupportedError, UsageError, install
from ..tokenizer import Tokenizer
from ..tokenizer.decode import CONTROL, UNUSED

Floats = npt.NDArray[np.float32]
_MOST_BYTES = 1 << 18  # of a schema or a grammar
_COMPILE_SECONDS = 5.0  # llguidance has limits of its own, so that what is abandoned ends too
_MASK_SECONDS = 0.5  # for which tokens may come next; all texts wait for that
# As many are compiled at a time; whoever comes when all are busy waits, which counts. Other threads run meanwhile.
_COMPILERS = ThreadPoolExecutor(2, "gpack-grammar")


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
            text = json.dumps(wanted)
        except (ValueError, RecursionError) as error:
            raise _refused(error, field) from error
        text = _bounded(text, field)

        def make() -> str:
            defaults = {"whitespace_flexible": False}
            return str(llguidance.LLMatcher.grammar_from_json_schema(text, defaults=defaults))

        found = self._compile(make, field)
        if found.is_accepting:  # no text at all is no JSON
            raise _refused("no JSON can be as it says", field)
        return found

    def regex(self, pattern: str, *, field: str) -> Grammar:
        """Texts that match a regular expression as a whole; raises as `json`."""
        llguidance = _library()
        bounded = _bounded(pattern, field)
        return self._compile(lambda: llguidance.LLMatcher.grammar_from_regex(bounded), field)

    def lark(self, grammar: str, *, field: str) -> Grammar:
        """Texts of a grammar in the form of Lark, or in llama.cpp's GBNF; raises as `json`."""
        llguidance = _library()
        text = _bounded(grammar, field)

        def make() -> str:
            lark = llguidance.gbnf_to_lark.any_to_lark(text) if "::=" in text else text
            return str(llguidance.LLMatcher.grammar_from_lark(lark))

        return self._compile(make, field)

    def _compile(self, make: Callable[[], str], field: str) -> Grammar:
        llguidance = _library()
        with self._lock:
            if self._made is None:
                self._made = self._index(llguidance)
        index = self._made

        def compiled() -> Any:
            matcher = llguidance.LLMatcher(index, make(), log_level=0)
            if not matcher.is_error():
                started = time.thread_time()
                matcher.compute_bitmask()  # what is too intricate shows here
                if time.thread_time() - started > _MASK_SECONDS:
                    raise ValueError("it is too intricate: it takes too long to find which tokens may come first")
            if matcher.is_error():
                error = str(matcher.get_error())
                raise ValueError("nothing but the empty text is as it says" if "NoExtension" in error else error)
            return matcher

        future = _COMPILERS.submit(compiled)
        try:
            matcher = future.result(_COMPILE_SECONDS)
        except TimeoutError as error:
            future.cancel()
            raise _refused(f"it takes more than {_COMPILE_SECONDS:g} seconds", field) from error
        except (ValueError, AttributeError, IndexError, RecursionError) as error:
            raise _refused(error, field) from error
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

    @property
    def is_accepting(self) -> bool:
        """Whether the text may end here."""
        return bool(self._matcher.is_accepting())

    def masked(self, logits: Floats) -> Floats:
        """The logits of tokens that may come next, all others -inf; where nothing may, the text's end.

        Raises:
            UsageError: `serve.grammar`: what it has come to is too intricate.
        """
        started = time.thread_time()
        if self._matcher.is_stopped() and not self._matcher.is_error():
            allowed = np.zeros(len(logits), np.bool_)
            allowed[self._ends] = True
        else:
            bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
            found = np.unpackbits(bits, bitorder="little")[: len(logits)]
            allowed = np.zeros(len(logits), np.bool_)
            allowed[: len(found)] = found
        if self._matcher.is_error() or not allowed.any() or time.thread_time() - started > _MASK_SECONDS:
            raise UsageError(
                "the form of the answer is too intricate: it cannot be said which tokens may come next",
                code="serve.grammar",
            )
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
    first = (str(error).splitlines() or [""])[0][:300]
    return UsageError(f"it cannot be compiled: {first}", code="serve.grammar", field=field)


def _library() -> Any:
    try:
        import llguidance
    except ImportError as error:
        raise UnsupportedError(
            "texts of a given form need llguidance", code="serve.extra", hint=install("serve")
        ) from error
    return llguidance
