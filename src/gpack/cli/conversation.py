"""The conversation of `guild run`: a person at a terminal, a model, and what was said so far."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .. import errors
from ..terminal.table import printable
from .line_editing import edited_lines
from .speaking import Output, remark
from .talk_settings import Settings, changed
from .words import closest

if TYPE_CHECKING:
    from types import FrameType

    from .speaking import Speaker

_HELP = """\
/regen          answer the last message again
/reset          forget the conversation
/compact        forget the oldest half of it
/show           what the model, the settings and the conversation are
/set NAME VALUE change a setting: temp, top-k, top-p, min-p, seed, repeat-penalty, max-tokens; VALUE default: as it was
/system TEXT    what a system says first, from now on in a new conversation; without TEXT: nothing
/save FILE      write the conversation as a JSON list of messages, for `guild run --messages -f FILE`
/bye            end; /exit, Ctrl-D and a second Ctrl-C at the prompt do too
Ctrl-C stops an answer. A message over several lines stands between lines of three quotes (\"\"\"), or is pasted.
A message that begins with a slash is written with two."""
_PROMPT, _MORE, _QUOTES = ">>> ", "... ", '"""'


def converse(speaker: Speaker) -> int:
    """Talks until the person ends it; the exit code."""
    _end_on_termination()
    with edited_lines():
        return Conversation(speaker).run()


class Conversation:
    """What was said, and what the person wants next.

    Attributes:
        messages: Roles and contents, as chat templates take them; without a template nothing is remembered.
    """

    def __init__(self, speaker: Speaker) -> None:
        self._speaker = speaker
        self._system: str | None = speaker.args.system
        self._defaults = Settings(speaker.sampling, speaker.args.max_tokens)
        self._output = Output()
        self.messages: list[dict[str, Any]] = []
        self._reset()

    def run(self) -> int:
        """Reads and answers until the end; the exit code."""
        kind = "" if self._speaker.chats else "; no chat template: each text is gone on with, nothing is remembered"
        remark(f"{self._speaker.model.path}: /help for help, Ctrl-D to end{kind}")
        interrupted = False
        while True:
            try:
                text = _read()
                interrupted = False
                if text is None:
                    print()
                    return errors.EXIT_OK
                if text.strip() and not self._take(text):
                    return errors.EXIT_OK
            except KeyboardInterrupt:
                print()
                if interrupted:
                    return errors.EXIT_OK
                interrupted = True
                remark("Ctrl-C once more ends the conversation")

    def _take(self, text: str) -> bool:
        """Does what a line says; False where it is to end. Errors are reported, and the conversation goes on."""
        try:
            if text.startswith("/") and not text.startswith("//"):
                return self._command(*_split(text))
            self._answer(text.removeprefix("/") if text.startswith("//") else text)
        except errors.GpackError as error:
            remark(self._full() if error.code == "engine.context" else f"guild: error: {error}")
        return True

    def _full(self) -> str:
        """That no more fits, and what to do."""
        size = self._speaker.generator.session.n_ctx
        return (
            f"The conversation is full: the model sees {size} tokens at a time, and this does not fit in. /reset "
            "begins a new one, /save FILE keeps this one, and --ctx N at the start makes room for more."
        )

    def _answer(self, text: str) -> None:
        speaker = self._speaker
        kept = len(self.messages)
        self.messages.append({"role": "user", "content": text})
        try:
            request = speaker.request(self.messages if speaker.chats else text)
            try:
                done = speaker.say(request, self._output.write)
            except KeyboardInterrupt:
                if speaker.generator.last is None or not speaker.generator.last.ids:
                    raise
                done = speaker.generator.last  # what was said stays said
        except BaseException:
            del self.messages[kept:]
            self._output.end()
            raise
        self._output.end()
        if speaker.chats:
            self.messages.append({"role": "assistant", "content": done.text})
        else:
            self.messages.clear()
        if done.finish_reason == "interrupted":
            remark("(stopped)")
        elif done.finish_reason == "context":
            remark(self._full())
        speaker.tell(done)

    # ------------------------------------------------------------ commands

    def _command(self, name: str, rest: str) -> bool:
        commands: dict[str, Callable[[str], None]] = {
            "/help": lambda _: remark_lines(_HELP),
            "/regen": lambda _: self._regenerate(),
            "/reset": lambda _: self._reset(),
            "/compact": lambda _: self._compact(),
            "/show": lambda _: remark_lines(self._shown()),
            "/set": self._set,
            "/system": self._set_system,
            "/save": self._save,
        }
        if name in ("/exit", "/quit", "/bye"):
            return False
        if name not in commands:
            near = closest(name, [*commands, "/exit", "/bye"])
            hint = "/help shows what there is; // for a message that begins so"
            raise errors.UsageError(
                f"there is no {name}", code="usage", hint=f"did you mean {near}? {hint}" if near else hint
            )
        commands[name](rest)
        return True

    def _reset(self) -> None:
        self.messages.clear()
        if self._system is not None:
            self.messages.append({"role": "system", "content": self._system})

    def _regenerate(self) -> None:
        said = [number for number, message in enumerate(self.messages) if message["role"] == "user"]
        if not said:
            raise errors.UsageError("nothing was said that could be answered again", code="usage")
        kept, question = self.messages[: said[-1]], self.messages[said[-1]]["content"]
        before, self.messages[:] = [*self.messages], kept
        try:
            self._answer(question)
        except BaseException:
            self.messages[:] = before
            raise

    def _compact(self) -> None:
        """Forgets the oldest turns: half of them, and at least one."""
        turns = [number for number, message in enumerate(self.messages) if message["role"] == "user"]
        if not turns:
            raise errors.UsageError("nothing was said that could be forgotten", code="usage")
        count = -(-len(turns) // 2)
        end = turns[count] if count < len(turns) else len(self.messages)
        del self.messages[turns[0] : end]
        remark(f"{count} of {len(turns)} turns are forgotten")

    def _set(self, rest: str) -> None:
        name, _, value = rest.partition(" ")
        speaker = self._speaker
        new = changed(Settings(speaker.sampling, speaker.args.max_tokens), self._defaults, name, value.strip())
        speaker.sampling, speaker.args.max_tokens = new.sampling, new.max_tokens

    def _shown(self) -> str:
        speaker, session = self._speaker, self._speaker.generator.session
        settings = Settings(speaker.sampling, speaker.args.max_tokens).described()
        turns = sum(message["role"] == "user" for message in self.messages)
        lines = [
            f"model     {speaker.model.path}",
            f"system    {self._system or '(none)'}",
            f"context   {session.position} of {session.n_ctx} tokens, {turns} turns",
            *(f"{name:10}{value}" for name, value in settings.items()),
        ]
        return "\n".join(map(printable, lines))

    def _set_system(self, text: str) -> None:
        if not self._speaker.chats:
            raise errors.MissingError("/system needs a chat template", code="chat.no_template")
        self._system = text or None
        self._reset()

    def _save(self, path: str) -> None:
        from .convert import write_json

        if not path:
            raise errors.UsageError("/save needs the name of a file", code="usage")
        write_json(path, self.messages)
        remark(f"{path}: {len(self.messages)} messages")


def remark_lines(text: str) -> None:
    """Lines of our own on standard error."""
    print(text, file=sys.stderr, flush=True)


def _split(text: str) -> tuple[str, str]:
    name, _, rest = text.strip().partition(" ")
    return name, rest.strip()


def _read() -> str | None:
    """A message: a line, a block of lines between quotes, or what was pasted; None at the end of the input."""
    line = _line(_PROMPT)
    if line is None:
        return None
    if line.startswith(_QUOTES):
        return _block(line.removeprefix(_QUOTES))
    return line


def _block(first: str) -> str | None:
    lines, line = [], first
    while not line.endswith(_QUOTES):
        lines.append(line)
        more = _line(_MORE)
        if more is None:
            return None
        line = more
    lines.append(line.removesuffix(_QUOTES))
    return "\n".join(lines).strip("\n")


def _line(prompt: str) -> str | None:
    """A line of the person's; bytes that are no UTF-8 become U+FFFD."""
    try:
        return input(prompt).encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    except EOFError:
        return None
    except UnicodeDecodeError:
        return "\ufffd"


def _end_on_termination() -> None:
    """SIGTERM and a closed terminal end the conversation: they are no Ctrl-C, which only stops an answer."""

    def end(_number: int, _frame: FrameType | None) -> None:
        raise SystemExit(errors.EXIT_INTERRUPTED)

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, end)
