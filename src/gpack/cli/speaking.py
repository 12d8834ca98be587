"""What `guild run` says: a loaded model that answers, its text on a terminal or in a pipe, and remarks beside it."""

from __future__ import annotations

import logging
import sys
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any

from ..terminal import units
from ..terminal.table import printable
from ..terminal.wrap import Wrapper
from .prompt_warnings import doubled_edges, lost_parts

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from ..generate.drafting import DraftStats
    from ..generate.sampling import Sampling
    from ..generate.text import Generation, Request, TextGenerator
    from ..model import GuildModel

# Control characters command a terminal, and these of direction make text read other than it is. Line feeds and tabs
# are text; a carriage return would let a line be written over, and belongs to a line feed at best.
_DIRECTIONS = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_HARMLESS = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))}
_HARMLESS |= {code: f"\\u{code:04x}" for code in (*_DIRECTIONS, 0x2028, 0x2029)}
del _HARMLESS[0x0A], _HARMLESS[0x09]
_HARMLESS[0x0D] = ""


def harmless(text: str) -> str:
    """The text with what would command a terminal written out as escapes."""
    return text.translate(_HARMLESS)


class Output:
    """Writes a model's text as it comes: as it is into files and pipes, made harmless on a terminal."""

    def __init__(self) -> None:
        self._terminal = sys.stdout.isatty()
        self._at_start = True
        self._wrapper = self._new_wrapper()

    def write(self, text: str) -> None:
        """Writes a part of a text at once."""
        if text:
            sys.stdout.write(self._wrapper.feed(harmless(text)) if self._terminal else text)
            sys.stdout.flush()
            self._at_start = text.endswith("\n")

    def end(self) -> None:
        """Ends the line, where something stands on it."""
        if not self._at_start:
            self.write("\n")
        self._wrapper = self._new_wrapper()  # the terminal may have another size by now

    def _new_wrapper(self) -> Wrapper:
        return Wrapper(get_terminal_size().columns)


def remark(text: str) -> None:
    """A line on standard error."""
    print(printable(text), file=sys.stderr, flush=True)


class Remarks(logging.Handler):
    """Shows the log: each warning, and once that kernels are being compiled."""

    def __init__(self) -> None:
        super().__init__()
        self._compiling = False

    def emit(self, record: logging.LogRecord) -> None:
        """Shows one record."""
        if record.levelno >= logging.WARNING:
            remark(f"guild: warning: {record.getMessage()}")
        elif not self._compiling:
            self._compiling = True
            remark("guild: compiling kernels for this machine, once; the next start takes no time for that")

    def __enter__(self) -> Remarks:
        logging.getLogger("gpack").addHandler(self)
        compiling = logging.getLogger("gpack.compiling")
        self._before = compiling.level
        compiling.setLevel(logging.INFO)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("gpack.compiling").setLevel(self._before)
        logging.getLogger("gpack").removeHandler(self)


class Speaker:
    """A loaded model that answers with the options of the command line.

    Attributes:
        model, generator: What answers.
        args: The command line.
        chats: Prompts go through the model's chat template.
        load_seconds: Until it could begin.
    """

    def __init__(
        self, model: GuildModel, generator: TextGenerator, args: argparse.Namespace, sampling: Sampling, seconds: float
    ) -> None:
        self.model, self.generator, self.args, self.sampling = model, generator, args, sampling
        self.load_seconds = seconds
        self._warned: set[str] = set()
        self.chats = not args.raw and (args.messages or model.tokenizer.chat_template is not None)

    def request(self, prompt: str | list[dict[str, Any]]) -> Request:
        """What is asked of the engine.

        Raises:
            GpackError: The prompt is empty, or the chat template refuses it.
        """
        from ..generate.text import Request, encode, turn_end

        args = self.args
        variables = dict(args.template_var)
        ids = encode(self.model, prompt, parse_special=args.raw, **variables)
        self._warn(prompt, ids, variables)
        # Where nothing but a kept state brings a text back to the end of a turn.
        chat = None if isinstance(prompt, str) or self.generator.session.is_trimmable else prompt
        return Request(
            ids=ids,
            keep_at=() if chat is None else (turn_end(self.model, chat, ids, **variables),),
            max_tokens=args.max_tokens,
            sampling=self.sampling,
            stop=args.stop,
            logprobs=args.logprobs,
            ignore_end=args.ignore_eos,
            continues=isinstance(prompt, str),
        )

    def _warn(self, prompt: str | list[dict[str, Any]], ids: list[int], variables: dict[str, Any]) -> None:
        """Warns of what does not reach the model, each thing once."""
        lost = () if isinstance(prompt, str) else lost_parts(self.model, prompt, variables)
        for warning in (*lost, *doubled_edges(self.model.tokenizer, ids)):
            if warning not in self._warned:
                self._warned.add(warning)
                remark(f"guild: warning: {warning}")

    def say(self, request: Request, write: Callable[[str], None]) -> Generation:
        """Generates, and writes the text as it comes.

        Raises:
            KeyboardInterrupt: The user stopped it; `generator.last` holds what was said.
        """
        done = None
        for piece in self.generator.stream(request):
            write(piece.text)
            done = piece.generation
        assert done is not None  # the last piece holds it
        return done

    def tell(self, done: Generation) -> None:
        """The line of `--stats`."""
        if self.args.stats:
            remark(statistics_line(done, self.load_seconds))


def statistics(done: Generation, load_seconds: float) -> dict[str, Any]:
    """What `--stats` and `--json` tell of the time and memory, JSON-ready; seconds, bytes, tokens per second."""
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10  # with the pages of the file that were touched
    return {"load_seconds": load_seconds, **done.timings.to_dict(), "peak_memory_bytes": peak}


def statistics_line(done: Generation, load_seconds: float) -> str:
    """The same for people."""
    stats, times = statistics(done, load_seconds), done.timings
    cached = f" and {times.cached_tokens} known" if times.cached_tokens else ""
    parts = [
        f"load {units.duration(load_seconds)}",
        f"prompt {units.plural(times.prompt_tokens, 'token')}{cached}, {_rate(times.prompt_rate)}",
    ]
    if times.first_token_seconds is not None:
        parts.append(f"first token after {units.duration(times.first_token_seconds)}")
    parts.append(f"answer {units.plural(len(done.ids), 'token')}, {_rate(times.decode_rate)}")
    if times.drafts is not None and (times.drafts.windows or times.drafts.off):
        parts.append(_drafts(times.drafts))
    parts += [f"peak memory {units.size(stats['peak_memory_bytes'])}", f"ended by {done.finish_reason}"]
    if done.seed is not None:
        parts.append(f"seed {done.seed}")
    return " · ".join(parts)


def _drafts(stats: DraftStats) -> str:
    """What became of drafts: how many of those that were looked at were right, place by place."""
    rates = (f"{100 * right // tried}%" for right, tried in zip(stats.accepted, stats.tried, strict=True))
    said = f"drafts ({stats.by}) in {units.plural(stats.windows, 'step')}"
    if stats.tried:
        said += f", right by place {' '.join(rates)}"
    if stats.left_out is not None:
        said += f", without a draft layer: {stats.left_out}"
    return said if stats.off is None else f"{said}, off: {stats.off}"


def _rate(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:.1f} tokens/s"
