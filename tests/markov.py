"""Models made up for tests: what comes next is a rule with known probabilities, no weights at all."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf_maker import TINY_TOKENS, tiny_tokenizer

from gpack.tokenizer import Tokenizer
from gpack.tokenizer.chat import ChatTemplate

END = TINY_TOKENS.index("<|im_end|>")
Rule = Callable[[Sequence[int]], Mapping[int, float]]


def chain(rows: Mapping[int, Mapping[int, float]]) -> Rule:
    """A Markov chain: the probabilities of the next token by the last one."""
    return lambda tokens: rows[tokens[-1]]


def script(*texts: Sequence[int]) -> Rule:
    """Says the ids of the first text, then the end token; where these stand already, those of the next."""

    def following(tokens: Sequence[int]) -> Mapping[int, float]:
        tokens = list(tokens)
        for said in texts:
            for count in range(min(len(said), len(tokens)), 0, -1):
                if tokens[-count:] == list(said[:count]):
                    return {said[count] if count < len(said) else END: 1.0}
        done = sum(_holds(tokens, said) for said in texts)
        return {texts[min(done, len(texts) - 1)][0]: 1.0}

    return following


def _holds(tokens: list[int], said: Sequence[int]) -> bool:
    return any(tokens[at : at + len(said)] == list(said) for at in range(len(tokens)))


@dataclass
class Kept:
    """The state of a session of a rule."""

    tokens: array[int]
    kind: object = None
    can_reach_any: bool = True

    @property
    def position(self) -> int:
        return len(self.tokens)

    def can_reach(self, position: int) -> bool:
        return self.can_reach_any

    def parts(self) -> dict[int, int]:
        return {id(self): 4 * len(self.tokens)}


class Session:
    """A session of a rule: it remembers tokens, and what was asked of it."""

    def __init__(self, rule: Rule, n_vocab: int, n_ctx: int) -> None:
        self.rule, self.n_vocab, self.n_ctx = rule, n_vocab, n_ctx
        self.tokens: list[int] = []
        self.decoded: list[list[int]] = []  # of each call
        self.proposed: list[list[int]] = []  # of each call
        self.accepted: list[int] = []
        self.closed = 0
        self.before: Callable[[], object] = lambda: None  # happens at the start of each call

    @property
    def position(self) -> int:
        return len(self.tokens)

    def decode(self, ids: Sequence[int]) -> npt.NDArray[np.float32]:
        assert self.closed == 0
        assert 0 < len(ids) <= self.n_ctx - self.position
        self.before()
        self.tokens += ids
        self.decoded.append(list(ids))
        return self._logits(self.tokens)

    def _logits(self, tokens: Sequence[int]) -> npt.NDArray[np.float32]:
        logits = np.full(self.n_vocab, -np.inf, np.float32)
        for token, probability in self.rule(tokens).items():
            logits[token] = math.log(probability)
        return logits

    def propose(self, ids: Sequence[int]) -> npt.NDArray[np.float32]:
        assert self.closed == 0
        assert 0 < len(ids) <= self.n_ctx - self.position
        self.before()
        self.proposed.append(list(ids))
        return np.stack([self._logits([*self.tokens, *ids[: count + 1]]) for count in range(len(ids))])

    def accept(self, count: int) -> None:
        assert 0 < count <= len(self.proposed[-1])
        self.accepted.append(count)
        self.tokens += self.proposed[-1][:count]

    def rewind(self, position: int) -> int:
        assert 0 <= position <= self.position
        del self.tokens[position:]
        return position

    is_trimmable, kind, state_budget = True, None, 1 << 20

    def relieve(self, forget: Callable[[], bool]) -> None:
        pass

    def checkpoint(self) -> Kept:
        return Kept(array("i", self.tokens))

    def reachable(self, position: int) -> int:
        return position

    def resume(self, checkpoint: Kept, position: int) -> None:
        self.tokens = checkpoint.tokens[:position].tolist()

    def close(self) -> None:
        self.closed += 1


class Model:
    """A loaded model that is only a rule and a vocabulary."""

    def __init__(self, rule: Rule, *, template: bool = True, n_ctx: int = 512) -> None:
        self.path, self.fallback = "made-up.gpack", None
        self.obstacles: list[str] = []
        self.rule, self.n_ctx = rule, n_ctx
        self.metadata = {key: value for key, _, value in tiny_tokenizer()}
        self.tokenizer = tiny()
        source = self.tokenizer.chat_template
        self.chat_template = ChatTemplate(source) if template and source else None
        self.sessions: list[Session] = []
        self.options: list[dict[str, Any]] = []

    def session(self, *, n_ctx: int | None = None, **options: Any) -> Session:
        self.options.append({"n_ctx": n_ctx, **options})
        self.sessions.append(Session(self.rule, len(self.tokenizer), n_ctx or self.n_ctx))
        return self.sessions[-1]

    def close(self) -> None:
        pass

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def tiny() -> Tokenizer:
    """The tokeniser of the small test models: bytes and a few merges."""
    from gguf_maker import pack_value, type_id

    from gpack.sections.values import Value

    values = {}
    for key, kind, value in tiny_tokenizer():
        raw = pack_value(kind, value)
        if kind.startswith("["):
            values[key] = Value(key, type_id(kind), type_id(kind[1:-1]), len(value), raw[12:])
        else:
            values[key] = Value(key, type_id(kind), type_id(kind), 1, raw[8:] if kind == "str" else raw)
    return Tokenizer.from_metadata(values)


def ids_of(text: str) -> list[int]:
    """The ids of a text in that vocabulary, without special tokens."""
    with tiny() as tokenizer:
        return tokenizer.encode(text, add_special=False)
