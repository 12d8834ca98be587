"""`guild tokenize`: a text as the tokens of a model."""

from __future__ import annotations

import argparse
import json
from typing import Any

from .. import errors
from ..terminal.table import printable
from ..tokenizer import Tokenizer
from .vocabulary import as_text, open_tokenizer, read_input

DESCRIPTION = """\
Print the token ids of a text: of the argument, of a file, or of standard input, taken as it is with its last newline.
--chat and --messages put it through the model's chat template first; what looks like a control token in a message
stays text."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    parser.add_argument("file", help="a .gpack or .gguf file, or a directory with tokenizer.json")
    parser.add_argument("text", nargs="?", help="the text; without it and without -f: standard input")
    parser.add_argument("-f", "--text-file", metavar="FILE", help="read the text from a file; -: standard input")
    parser.add_argument("--pieces", action="store_true", help="print each token on a line: id and text")
    parser.add_argument("--no-special", action="store_true", help="do not add the model's first and last token")
    parser.add_argument(
        "--parse-special", action="store_true", help="control tokens written out in the text become those tokens"
    )
    chat = parser.add_mutually_exclusive_group()
    chat.add_argument("--chat", action="store_true", help="the text is what a user says: encode the whole prompt")
    chat.add_argument("--messages", action="store_true", help="the text is a JSON list of messages, for the template")
    parser.add_argument("--json", action="store_true", help="print ids, texts and bytes as JSON")


def run(args: argparse.Namespace) -> int:
    """Tokenizes."""
    if args.text is not None and args.text_file is not None:
        raise errors.UsageError("the text is given twice: as an argument and with -f", code="usage")
    if (args.chat or args.messages) and (args.parse_special or args.no_special):
        raise errors.UsageError("a chat template decides itself which special tokens there are", code="usage")
    with open_tokenizer(args.file) as tokenizer:
        if args.text is not None:
            text = as_text(args.text.encode("utf-8", "surrogateescape"), None)
        else:
            text = as_text(read_input(args.text_file), args.text_file)
        if args.chat or args.messages:
            ids = _chat(tokenizer, [{"role": "user", "content": text}] if args.chat else messages_of(text), args.file)
        else:
            ids = tokenizer.encode(text, add_special=not args.no_special, parse_special=args.parse_special)
        print(_shown(tokenizer, ids, args))
    return errors.EXIT_OK


def _shown(tokenizer: Tokenizer, ids: list[int], args: argparse.Namespace) -> str:
    if not args.json and not args.pieces:
        return " ".join(map(str, ids))
    pieces = [tokenizer.piece(token_id) for token_id in ids]
    texts = [piece.decode("utf-8", "backslashreplace") for piece in pieces]
    if args.json:
        info: dict[str, Any] = {"ok": True, "count": len(ids), "ids": ids, "pieces": texts}
        return json.dumps(info | {"bytes": [piece.hex() for piece in pieces]})
    return "\n".join(f"{token_id:>8}  {printable(text)}" for token_id, text in zip(ids, texts, strict=True))


def _chat(tokenizer: Tokenizer, messages: Any, path: str) -> list[int]:
    template = tokenizer.chat_template
    if template is None:
        raise errors.MissingError("there is no chat template", code="chat.no_template", path=path)
    from ..tokenizer.chat import ChatTemplate, encode_chat

    return encode_chat(tokenizer, ChatTemplate(template), messages, add_generation_prompt=True)


def messages_of(text: str) -> Any:
    """The messages of a JSON text.

    Raises:
        UsageError: `chat.input`: it is no JSON, or no list of objects.
    """
    try:
        messages = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise errors.UsageError(f"the messages are no JSON: {error}", code="chat.input") from error
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise errors.UsageError("the messages are no list of objects", code="chat.input")
    return messages
