"""What a scheduler counts."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field


@dataclass
class Counters:
    """What happened so far; numbers only grow.

    Attributes:
        prompt_tokens: Of requests; `reused_tokens` of them were not computed.
        read_tokens: Rows of prompts that were computed.
        tokens: That were generated.
        steps: Of the engine; `step_seconds`: for them.
        drafted, accepted: Tokens.
        put_back: Texts that had to make room.
        first_token, between: Seconds to the first token, and between two, since they were last taken.
    """

    prompt_tokens: int = 0
    reused_tokens: int = 0
    read_tokens: int = 0
    tokens: int = 0
    steps: int = 0
    step_seconds: float = 0.0
    drafted: int = 0
    accepted: int = 0
    put_back: int = 0
    first_token: deque[float] = field(default_factory=lambda: deque(maxlen=4096))
    between: deque[float] = field(default_factory=lambda: deque(maxlen=4096))
