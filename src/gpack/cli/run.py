"""`guild run`: the model answers."""

from __future__ import annotations

import argparse
import json
import logging
import math
import sys
import time
from typing import TYPE_CHECKING, Any

from .. import errors
from .devices import add_device, chosen_device
from .loading import add_loading, load
from .speaking import Output, Remarks, Speaker, remark, statistics
from .vocabulary import as_text, read_input

if TYPE_CHECKING:
    from ..generate.drafting import Draft
    from ..generate.sampling import Sampling
    from ..generate.text import Generation, TextGenerator
    from ..model import GuildModel

LOG = logging.getLogger("gpack")
DESCRIPTION = """\
Run a model: it answers a prompt, which stands after the model's name or -p, in a file, or on standard input. Without a
prompt, at a terminal, it is a conversation (/help there says more). Where the model has a chat template, the prompt is
what a user says; with --raw, or without a template, it is text that the model continues.

FILE is a pack or a GGUF. With --gguf, that GGUF is loaded where the pack is missing or invalid, after one warning.

The text goes to standard output as it comes; on a terminal, control characters in it are written out as escapes.
--json prints one object when all is done. Ctrl-C stops the answer; what there is of it is kept, the exit code is 130.

The same seed gives the same text on the same machine with the same options. --temp 0 takes the most probable token."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    parser.add_argument("words", nargs="*", metavar="FILE [PROMPT]", help="a .gpack or .gguf file; and the prompt")
    parser.add_argument(
        "-m", "--model", metavar="FILE", help="the .gpack or .gguf file, where it is not the first word"
    )
    prompt = parser.add_argument_group("prompt")
    prompt.add_argument("-p", "--prompt", metavar="TEXT", help="the prompt")
    prompt.add_argument(
        "-f", "--file", dest="prompt_file", metavar="FILE", help="read it from a file; -: standard input"
    )
    prompt.add_argument("--messages", action="store_true", help="the prompt is a JSON list of messages")
    prompt.add_argument("--system", "--system-prompt", "-sys", metavar="TEXT", help="what a system says first")
    prompt.add_argument("--raw", action="store_true", help="no chat template: go on with the text")
    prompt.add_argument(
        "--template-var",
        action="append",
        type=_variable,
        default=[],
        metavar="NAME=VALUE",
        help="what the chat template knows besides, as JSON: enable_thinking=false; may be repeated",
    )
    _add_sampling(parser.add_argument_group("sampling"))
    end = parser.add_argument_group("end of the text")
    end.add_argument(
        "-n",
        "--max-tokens",
        "--n-predict",
        "--predict",
        type=int,
        metavar="N",
        help="most tokens (default: until the context is full)",
    )
    end.add_argument("--stop", action="append", default=[], metavar="TEXT", help="end before this; may be repeated")
    end.add_argument("--ignore-eos", action="store_true", help="go on after the model's own end")
    _add_engine(parser.add_argument_group("engine"))
    output = parser.add_argument_group("output")
    output.add_argument("--stats", action="store_true", help="tell times, speed and memory on standard error")
    output.add_argument(
        "--logprobs", type=int, metavar="N", help="with --json: log-probabilities, and of the N best tokens"
    )
    output.add_argument("--json", action="store_true", help="print the whole result as JSON when it is done")


def _add_sampling(group: Any) -> None:
    group.add_argument(
        "--temp", "--temperature", type=float, default=0.8, metavar="T", help="temperature (default 0.8); 0: greedy"
    )
    group.add_argument("--top-k", type=int, default=40, metavar="K", help="of the K best (default 40); 0: all")
    group.add_argument("--top-p", type=float, default=0.95, metavar="P", help="of the best that reach P (default 0.95)")
    group.add_argument(
        "--min-p", type=float, default=0.05, metavar="P", help="of those with P of the best (default 0.05)"
    )
    group.add_argument(
        "--repeat-penalty",
        type=float,
        default=1.0,
        metavar="X",
        help="divide repeated tokens' logits (default 1: no effect)",
    )
    group.add_argument(
        "--repeat-window", type=int, default=64, metavar="N", help="last N tokens count (default 64); -1: all"
    )
    group.add_argument(
        "--presence-penalty", type=float, default=0.0, metavar="X", help="subtract for repeated tokens (default 0)"
    )
    group.add_argument(
        "--frequency-penalty", type=float, default=0.0, metavar="X", help="subtract for each repetition (default 0)"
    )
    group.add_argument("-s", "--seed", type=int, metavar="N", help="of the draws (default: another one each time)")


def _add_engine(group: Any) -> None:
    group.add_argument(
        "-t", "--threads", type=int, metavar="N", help="threads (default: the cores that affinity and CPU quota allow)"
    )
    group.add_argument(
        "-c",
        "--ctx",
        "--ctx-size",
        type=int,
        metavar="N",
        help="most tokens of prompt and text (default: the model's, at most 4096)",
    )
    group.add_argument(
        "--cache-type",
        choices=("F32", "F16", "Q8_0"),
        type=str.upper,
        default="F16",
        help="type of keys and values (default F16)",
    )
    group.add_argument(
        "--compute",
        choices=("int8", "f32"),
        default="int8",
        help="what activations become beside quantised weights (default int8)",
    )
    group.add_argument(
        "--draft",
        type=draft_argument,
        default="auto",
        metavar="N",
        help="guess N tokens and compute them in one step; auto (default): as many as is fastest; off: none. The text"
        " is the same",
    )
    group.add_argument("--cpu", metavar="NAME", help="kernels: vnni, avx2, portable (default: the best)")
    group.add_argument(
        "--check-weights",
        action=argparse.BooleanOptionalAction,
        help="look for weights that are not finite first: all, or none (default: all of a model that is no"
        " larger than half of the free memory, experts up to 1 GiB)",
    )
    group.add_argument(
        "-ngl",
        "--n-gpu-layers",
        type=int,
        metavar="N",
        help="accepted, without effect: --device says where a model runs, which is all of it",
    )
    add_device(group)
    add_loading(group)


def run(args: argparse.Namespace) -> int:
    """Runs the model."""
    sampling = _sampling(args)
    _take_words(args)
    _check(args)
    prompt = _prompt(args)
    if prompt is None and args.json:
        raise errors.UsageError("--json needs a prompt", code="usage", hint="-p, -f or standard input")
    if prompt == "" and not args.raw:
        raise errors.UsageError("the prompt is empty", code="engine.prompt", hint="with --raw the model begins a text")
    started = time.perf_counter()
    with Remarks(), load(args, args.model) as model, _generator(model, args) as generator:
        speaker = Speaker(model, generator, args, sampling, time.perf_counter() - started)
        if not speaker.chats and (args.system is not None or args.template_var):
            needs = "--system" if args.system is not None else "--template-var"
            raise errors.MissingError(f"{needs} needs a chat template", code="chat.no_template", path=model.path)
        if prompt is None:
            from .conversation import converse

            generator.keep_prefixes()
            return converse(speaker)
        return _answer(speaker, prompt)


def _answer(speaker: Speaker, text: str) -> int:
    """One prompt, one answer."""
    args = speaker.args
    prompt: str | list[dict[str, Any]] = text
    if args.messages:
        from .tokenize import messages_of

        prompt = _system(args) + messages_of(text)
    elif speaker.chats:
        prompt = [*_system(args), {"role": "user", "content": text}]
    request = speaker.request(prompt)
    output = None if args.json else Output()
    write = (lambda _: None) if output is None else output.write
    try:
        done, stopped = speaker.say(request, write), False
    except KeyboardInterrupt:
        if speaker.generator.last is None:
            raise
        done, stopped = speaker.generator.last, True
    if output is None:
        print(json.dumps(_info(speaker, done), indent=2), flush=True)
    else:
        output.end()
        if done.finish_reason == "context":
            remark(f"(the context of {speaker.generator.session.n_ctx} tokens is full; --ctx makes it larger)")
    speaker.tell(done)
    if stopped and output is not None:
        raise errors.InterruptedRunError("the answer was stopped", code="interrupted")
    return errors.EXIT_INTERRUPTED if stopped else errors.EXIT_OK


def _info(speaker: Speaker, done: Generation) -> dict[str, Any]:
    from ..generate.text import INTERRUPTED

    model = speaker.model
    info: dict[str, Any] = {
        "ok": done.finish_reason != INTERRUPTED,
        "model": model.path,
        "fallback": None if model.fallback is None else model.fallback.to_dict(),
        "text": done.text,
        "ids": done.ids,
        "finish_reason": done.finish_reason,
        "ended_by": done.ended_by,
        "prompt_tokens": done.prompt_tokens,
        "seed": done.seed,
        "statistics": statistics(done, speaker.load_seconds),
    }
    if done.logprobs is not None:
        piece = speaker.model.tokenizer.piece
        info["logprobs"] = [
            {
                "token": found.token,
                "text": piece(found.token).decode("utf-8", "replace"),
                "logprob": found.logprob,
                # Infinite values are no JSON, and impossible tokens not worth telling.
                "top": [{"token": i, "logprob": value} for i, value in found.top if math.isfinite(value)],
            }
            for found in done.logprobs
        ]
    return info


# ---------------------------------------------------------------- the command line's values


def _take_words(args: argparse.Namespace) -> None:
    """The model is -m or the first word, the prompt -p or the last.

    Raises:
        UsageError: There is no model, or a word too many.
    """
    words = list(args.words)
    if args.model is None:
        if not words:
            raise errors.UsageError("no model is named", code="usage", hint="guild run model.gpack, or -m model.gpack")
        args.model = words.pop(0)
    if words and args.prompt is None:
        args.prompt = words.pop(0)
    if words:
        raise errors.UsageError(
            f"the words {' '.join(words)!r} are too many", code="usage", hint="a prompt of several words needs quotes"
        )
    if args.n_gpu_layers:
        remark("guild: note: -ngl has no effect: --device says where the model runs")


def _check(args: argparse.Namespace) -> None:
    """Refuses options that contradict each other, before anything is loaded."""
    if args.prompt is not None and args.prompt_file is not None:
        raise errors.UsageError("the prompt is given twice: in the command line and with -f", code="usage")
    if args.raw and (args.system is not None or args.messages or args.template_var):
        raise errors.UsageError(
            "--raw is text without a chat template: no --system, no --messages, no --template-var", code="usage"
        )
    if args.logprobs is not None and not args.json:
        raise errors.UsageError("--logprobs needs --json", code="usage")
    for name in ("threads", "ctx"):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            raise errors.UsageError(f"--{name} is {getattr(args, name)}", code="usage", field=name)
    for name in ("max_tokens", "logprobs"):
        if getattr(args, name) is not None and getattr(args, name) < 0:
            raise errors.UsageError(f"--{name.replace('_', '-')} is {getattr(args, name)}", code="usage", field=name)


def _prompt(args: argparse.Namespace) -> str | None:
    """The prompt; None where a person is to be asked for it."""
    if args.prompt is not None:
        return as_text(args.prompt.encode("utf-8", "surrogateescape"), None)
    if args.prompt_file is None and not args.messages and sys.stdin is not None and sys.stdin.isatty():
        return None
    text = as_text(read_input(args.prompt_file), args.prompt_file)
    # The line feed at a file's end is no part of what a user says.
    return text if args.raw else text.removesuffix("\n")


def _sampling(args: argparse.Namespace) -> Sampling:
    from ..generate.sampling import Sampling

    return Sampling(
        temperature=args.temp,
        top_k=args.top_k,
        top_p=args.top_p,
        min_p=args.min_p,
        seed=args.seed,
        repeat_penalty=args.repeat_penalty,
        repeat_window=args.repeat_window,
        presence_penalty=args.presence_penalty,
        frequency_penalty=args.frequency_penalty,
    )


def _system(args: argparse.Namespace) -> list[dict[str, Any]]:
    return [] if args.system is None else [{"role": "system", "content": args.system}]


def _generator(model: GuildModel, args: argparse.Namespace) -> TextGenerator:
    from ..generate.text import TextGenerator

    return TextGenerator.of(
        model,
        draft=args.draft,
        n_ctx=args.ctx,
        cache_type=args.cache_type,
        threads=args.threads,
        compute=args.compute,
        cpu=args.cpu,
        device=chosen_device(args.device),
        check_weights=args.check_weights,
    )


def draft_argument(text: str) -> Draft:
    """`auto`, `off` or a number."""
    from ..generate.drafting import draft_option

    try:
        return draft_option(int(text) if text.isdecimal() else text)
    except errors.UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _variable(text: str) -> tuple[str, Any]:
    """A variable of the chat template, such as enable_thinking=false."""
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE, such as enable_thinking=false")
    from ..tokenizer.chat import RESERVED

    # The command line gives no tools otherwise.
    if name in RESERVED - {"tools"}:
        raise argparse.ArgumentTypeError(f"{name} is not for the command line to set")
    try:
        return name, json.loads(value)
    except (ValueError, RecursionError):
        raise argparse.ArgumentTypeError(f"{value!r} is no JSON; a text stands between quotes: '\"text\"'") from None
