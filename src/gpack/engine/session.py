"""A session: one text's cache of keys and values, and the program that carries it on token by token."""

from __future__ import annotations

import logging
import operator
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

import numpy as np
import numpy.typing as npt

from ..errors import FormatError, UsageError
from ..machine import usable_cores
from .backends.cpu.buffers import aligned
from .backends.cpu.cache import KeyValueCache
from .backends.cpu.matmul import Compute, Workspace
from .backends.cpu.team import MOST_THREADS, Program, Team
from .backends.cpu.variants import choose
from .graph import Graph, Value
from .prepared import kernels_of, prepare

if TYPE_CHECKING:
    from ..model.load import GuildModel

LOG = logging.getLogger("gpack")
Floats = npt.NDArray[np.float32]

DEFAULT_CONTEXT = 4096  # positions, where the model was trained on more and nothing else is asked for
DEFAULT_BATCH = 512
_LOGIT_BYTES = 32 << 20  # most bytes of logits that are worked out together
_MOST = 1 << 48  # tokens; memory ends long before that
_N_TOKENS, _FIRST = 0, 1  # words of a state block


class Session:
    """A model at work on one text. Use it as a context manager, or call `close`; one thread at a time.

    Attributes:
        n_vocab: Tokens of the vocabulary, and logits of a position.
        n_ctx: Most tokens that the cache holds.
        n_embd: Width of the hidden state.
        position: Tokens in the cache.
    """

    _team: Team | None = None

    def __init__(
        self,
        model: GuildModel,
        *,
        n_ctx: int | None = None,
        cache_type: str = "F16",
        threads: int | None = None,
        compute: Compute = "int8",
        batch: int = DEFAULT_BATCH,
        cpu: str | None = None,
        check_weights: bool | None = None,
    ) -> None:
        """Checks metadata and tensors, traces the program and starts the threads.

        Args:
            n_ctx: Most tokens of the text; default what the model was trained on, but not more than 4096.
            cache_type: How keys and values are kept: F32, F16 or Q8_0.
            threads: Default: as many as the process may use cores, by its affinity and its CPU quota.
            compute: `int8`: activations are rounded to 8 bits where they meet quantised weights, which is fast.
                `f32`: never.
            batch: Tokens of a prompt that are worked on together.
            cpu: The variant of kernels; default what `GPACK_CPU` says, else the best that this CPU can run.
            check_weights: Look for weights that are no finite numbers. Default: where all matrices fit into half of
                the free memory, and experts into 1 GiB, once for all sessions of a model. True: all, which reads the
                whole file. False: none but norms and biases.

        Raises:
            FormatError: `engine.key`, `engine.tensor`, `engine.shape`: a key or tensor is missing or contradicts
                another; `engine.nan`: a weight is no finite number.
            UnsupportedError: `engine.architecture`, `engine.key`: the model is of a kind that cannot be run;
                `engine.numba`: numba is not installed.
            UsageError: An argument makes no sense; `io.memory`: there is not enough memory for such a context.
        """
        self._prepared = prepare(model)
        self.n_ctx = _count(n_ctx, "n_ctx", min(self._prepared.h.n_context, DEFAULT_CONTEXT), _MOST)
        if self.n_ctx > self._prepared.h.n_context:
            LOG.warning("a context of %d: the model was trained on %d", self.n_ctx, self._prepared.h.n_context)
        self.n_vocab, self.n_embd = self._prepared.n_vocab, self._prepared.h.n_embd
        self.batch = min(_count(batch, "batch", DEFAULT_BATCH, _MOST), self.n_ctx)
        self.position = 0
        self._cache = KeyValueCache(cache_type, self.n_ctx)
        kernels = kernels_of(choose(cpu).name)
        self._team = Team(kernels, _count(threads, "threads", usable_cores(), MOST_THREADS))
        # Threads end with the session where nobody closed it; when Python ends, they stop without being waited for.
        weakref.finalize(self, self._team.close).atexit = False
        try:
            self._trace(compute)
            if check_weights is not False:
                self._prepared.w.look_through(self._team, everything=bool(check_weights))
        except MemoryError as error:
            self.close()
            raise UsageError(
                f"there is not enough memory for a context of {self.n_ctx} tokens",
                code="io.memory",
                field="n_ctx",
                hint="a smaller n_ctx, batch or cache_type",
            ) from error
        except BaseException:
            self.close()
            raise

    def _trace(self, compute: Compute) -> None:
        """The program of a batch, and that of the logits of some of its rows."""
        team, prepared = self._open(), self._prepared
        kernels, model = kernels_of(team.kernels.variant.name), prepared.model()
        self._state, self._head_state = aligned((16,), np.int64), aligned((16,), np.int64)
        self._tokens = aligned((self.batch,), np.int32)
        self._head_batch = max(1, min(self.batch, _LOGIT_BYTES // (4 * self.n_vocab)))
        work = Workspace(kernels, self._state, max_batch=self.batch, threads=team.threads, compute=compute)
        head_work = Workspace(
            kernels, self._head_state, max_batch=self._head_batch, threads=team.threads, compute=compute
        )
        self._program, self._head_program = Program(kernels), Program(kernels)
        body = Graph(self._program, work, self._cache, self._tokens, team.threads)
        hidden = body.keep(prepared.architecture.trace(body, model))
        body.finish()
        self._ropes = list(body.ropes.values())
        self._hidden = hidden.memory().array
        outputs = []
        for program in (self._program, self._head_program):
            head = Graph(program, head_work, self._cache, self._tokens, team.threads)
            outputs.append(head.keep(prepared.architecture.logits(head, model, head.pick(hidden))))
            head.finish()
        prepared.refuse_unread()
        self._last_logits, self._head_logits = (_rows(value) for value in outputs)

    # ------------------------------------------------------------ use

    def decode(self, ids: Sequence[int], *, all_logits: bool = False) -> Floats:
        """Appends tokens to the text.

        Args:
            ids: One token or more.
            all_logits: The logits after each token, not only after the last.

        Returns:
            float32 [n_vocab], or [len(ids), n_vocab]; the caller's own.

        Raises:
            UsageError: `engine.context`: they do not fit into the context; `engine.token`: there is no such token.
            FormatError: `engine.nan`: the logits are no numbers.
        """
        tokens = self._check(ids)
        made = np.empty((len(tokens) if all_logits else 1, self.n_vocab), np.float32)
        start = self.position
        for first in range(0, len(tokens), self.batch):
            part = tokens[first : first + self.batch]
            is_last = first + len(part) == len(tokens)
            self._run(part, start + first, wants_logits=is_last and not all_logits)
            if all_logits:
                self._all_logits(made[first : first + len(part)])
        if not all_logits:
            made[0] = self._last_logits[0]
        if not _is_finite(made):
            raise self._explain_nan(start)
        self.position = start + len(tokens)
        return made if all_logits else made[0]

    def hidden(self, ids: Sequence[int]) -> Floats:
        """Appends tokens; gives the hidden state of each behind the last norm: float32 [len(ids), n_embd].

        Raises:
            UsageError: As `decode`.
        """
        tokens = self._check(ids)
        made = np.empty((len(tokens), self.n_embd), np.float32)
        start = self.position
        for first in range(0, len(tokens), self.batch):
            part = tokens[first : first + self.batch]
            self._run(part, start + first, wants_logits=False)
            made[first : first + len(part)] = self._hidden[: len(part)]
        if not _is_finite(made):
            raise self._explain_nan(start)
        self.position = start + len(tokens)
        return made

    def rewind(self, position: int) -> None:
        """Forgets all tokens from a position on; 0 begins a new text.

        Raises:
            UsageError: The text is not that long.
        """
        try:
            position = operator.index(position)
        except TypeError as error:
            raise UsageError(f"{position!r} is no position", code="usage", field="position") from error
        if not 0 <= position <= self.position:
            raise UsageError(
                f"there is no position {position} in a text of {self.position} tokens", code="usage", field="position"
            )
        self.position = position

    @property
    def cache_bytes(self) -> int:
        """Bytes of the cache once the context is full."""
        return self._cache.nbytes

    def close(self) -> None:
        """Ends the threads; a second call does nothing."""
        team, self._team = self._team, None
        if team is not None:
            team.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------ parts

    def _open(self) -> Team:
        if self._team is None:
            raise UsageError("the session is closed", code="usage")
        return self._team

    def _check(self, ids: Sequence[int]) -> npt.NDArray[np.int32]:
        self._open()
        try:
            numbers = [operator.index(number) for number in ids]
        except TypeError as error:
            raise UsageError(f"tokens are whole numbers: {error}", code="usage", field="ids") from error
        if not numbers:
            raise UsageError("there are no tokens", code="usage", field="ids")
        for number in (min(numbers), max(numbers)):
            if not 0 <= number < self.n_vocab:
                raise UsageError(
                    f"there is no token {number} in a vocabulary of {self.n_vocab}", code="engine.token", field="ids"
                )
        if self.position + len(numbers) > self.n_ctx:
            raise UsageError(
                f"{len(numbers)} more tokens do not fit: {self.position} of the context's {self.n_ctx} are taken",
                code="engine.context",
                field="n_ctx",
                hint="a larger n_ctx, a shorter text, or rewind",
            )
        return np.array(numbers, np.int32)

    def _run(self, tokens: npt.NDArray[np.int32], first: int, *, wants_logits: bool) -> None:
        self._tokens[: len(tokens)] = tokens
        self._state[_N_TOKENS], self._state[_FIRST] = len(tokens), first
        self._head_state[_N_TOKENS], self._head_state[_FIRST] = int(wants_logits), len(tokens) - 1
        for table in self._ropes:
            table.reach(first + len(tokens))
        self._open().run(self._program)

    def _all_logits(self, made: Floats) -> None:
        for first in range(0, len(made), self._head_batch):
            n = min(self._head_batch, len(made) - first)
            self._head_state[_N_TOKENS], self._head_state[_FIRST] = n, first
            self._open().run(self._head_program)
            made[first : first + n] = self._head_logits[:n]

    def _explain_nan(self, start: int) -> FormatError:
        path = self._prepared.path
        try:
            self._prepared.w.look_through(self._open(), everything=True)
        except FormatError as error:
            return error
        return FormatError(
            f"what comes behind position {start} is no finite number, though all weights are: values overflowed",
            code="engine.nan",
            path=path,
        )


def _is_finite(values: Floats) -> bool:
    """Whether all are; a sum shows it at once where none of them is huge."""
    with np.errstate(all="ignore"):
        return bool(np.isfinite(values.sum()) or np.isfinite(values).all())


def _rows(value: Value) -> Floats:
    return value.memory().array


def _count(value: int | None, field: str, default: int, most: int) -> int:
    """An argument that counts something.

    Raises:
        UsageError: It is no whole number, or not from 1 to `most`.
    """
    if value is None:
        return default
    try:
        chosen = operator.index(value)
    except TypeError as error:
        raise UsageError(f"{field} is {value!r}, no whole number", code="usage", field=field) from error
    if not 1 <= chosen <= most:
        raise UsageError(f"{field} is {chosen}, not between 1 and {most}", code="usage", field=field)
    return chosen
