"""The messages between the runner and a reader or writer: made, read with suspicion, with what is wrong with them.

Their published form is spec/conformance/*.schema.json; spec/conformance.md tells it in words.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from ..container.strict_json import parse_object, shorten

PROTOCOL = 1
# What a reader can know, and so which vectors it is asked about; each level includes those before it.
LEVELS = ("structure", "digest", "semantic")
# Why a file is rejected.
CLASSES = ("structure", "digest", "semantic", "unsupported")
# What a reader tells of a file that it accepts: the fixed records alone, or the rows of the tables too.
DEPTHS = ("container", "tables")
# Exit statuses of programs that are started once for each file.
EXIT_ACCEPT, EXIT_REJECT, EXIT_SKIP = 0, 1, 77

_MAX_BYTES = 64 << 20
_MAX_DEPTH = 24
_MAX_TEXT = 2000  # characters of a message that are kept

Verdict: TypeAlias = Literal["accept", "reject", "skip"]
VERDICTS: tuple[Verdict, ...] = ("accept", "reject", "skip")


class ProtocolError(ValueError):
    """A message that is not of the protocol."""


@dataclass(frozen=True)
class Start:
    """The first line of a reader.

    Attributes:
        name, language, version: Who it is, in its own words.
        level: The highest level that it knows.
        depth: How much its dumps hold; one of `DEPTHS`.
    """

    name: str
    language: str
    version: str
    level: str
    depth: str


@dataclass(frozen=True)
class Answer:
    """What a reader says of a file.

    Attributes:
        dump: Of a file that it accepts.
        reject_class: Why it rejects it, one of `CLASSES`.
        message: Why it rejects or skips it, in words.
    """

    verdict: Verdict
    dump: dict[str, Any] | None = None
    reject_class: str = ""
    message: str = ""


def run_line(seq: int, vector_id: str, path: str) -> bytes:
    """The request to read a file."""
    return _line({"type": "run", "seq": seq, "id": vector_id, "path": path})


def stop_line() -> bytes:
    """The request to end."""
    return _line({"type": "stop"})


def parse_start(line: bytes) -> Start:
    """The first line of a reader.

    Raises:
        ProtocolError: It is none.
    """
    message = _object(line)
    _expect(message, "type", "start")
    if message.get("protocol") != PROTOCOL or isinstance(message.get("protocol"), bool):
        raise ProtocolError(f"$.protocol is {shorten(message.get('protocol'))}, this runner speaks {PROTOCOL}")
    level = _one_of(message, "level", LEVELS)
    depth = _one_of(message, "depth", DEPTHS) if "depth" in message else DEPTHS[-1]
    return Start(_text(message, "name"), _text(message, "language"), _text(message, "version"), level, depth)


def parse_result(line: bytes, seq: int) -> Answer:
    """The answer to the request of that number.

    Raises:
        ProtocolError: It is none.
    """
    message = _object(line)
    _expect(message, "type", "result")
    if message.get("seq") != seq or isinstance(message.get("seq"), bool):
        raise ProtocolError(f"$.seq is {shorten(message.get('seq'))}, the request had {seq}")
    verdict: Verdict = _one_of(message, "verdict", VERDICTS)  # type: ignore[assignment]  # one of them, as was checked
    return _answer(message, verdict)


def parse_output(output: bytes, status: int) -> Answer:
    """What a program said that is started for each file, and its exit status.

    Raises:
        ProtocolError: The status is none that means something, or the output is not what belongs to it.
    """
    if status == EXIT_SKIP:
        return Answer("skip", message=output.decode("utf-8", "backslashreplace").strip()[:_MAX_TEXT])
    if status == EXIT_ACCEPT:
        return Answer("accept", dump=_object(output))
    return _answer(_object(output), "reject")


def _answer(message: dict[str, Any], verdict: Verdict) -> Answer:
    if verdict == "accept":
        if not isinstance(message.get("dump"), dict):
            raise ProtocolError(f"$.dump is {shorten(message.get('dump'))}, no object")
        return Answer("accept", dump=message["dump"])
    if verdict == "skip":
        return Answer("skip", message=_text(message, "reason"))
    return Answer("reject", reject_class=_one_of(message, "class", CLASSES), message=_text(message, "message"))


def _object(data: bytes) -> dict[str, Any]:
    try:
        return parse_object(data, max_bytes=_MAX_BYTES, max_depth=_MAX_DEPTH, plain=True)
    except (ValueError, RecursionError) as error:
        start = shorten(data[:60].decode("utf-8", "backslashreplace"))
        raise ProtocolError(f"{start} is no JSON object: {error}") from error


def _expect(message: dict[str, Any], key: str, value: str) -> None:
    if message.get(key) != value:
        raise ProtocolError(f"$.{key} is {shorten(message.get(key))}, not {value!r}")


def _one_of(message: dict[str, Any], key: str, values: tuple[str, ...]) -> str:
    value = message.get(key)
    if not isinstance(value, str) or value not in values:
        raise ProtocolError(f"$.{key} is {shorten(value)}, none of {', '.join(values)}")
    return value


def _text(message: dict[str, Any], key: str) -> str:
    value = message.get(key)
    if not isinstance(value, str):
        raise ProtocolError(f"$.{key} is {shorten(value)}, no text")
    return value[:_MAX_TEXT]


def _line(message: dict[str, Any]) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode("ascii") + b"\n"
