"""The errors of the package: one class per kind of failure, each with a stable code and a place.

A code is a dotted name. Codes of the format's own rules (`header.magic`, `section.bounds`, ...) are the rule
ids of `schema/gpack.yaml`; all others are listed in `CODES` below. Codes never change their meaning.

This module imports nothing: it is on the path that opens a file within a millisecond.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Exit codes of the command line; documented in README.md.
EXIT_OK = 0
EXIT_INVALID = 1  # the input breaks a rule: damaged, hostile, or not what it claims to be
EXIT_USAGE = 2  # the command line itself is wrong
EXIT_IO = 3  # a file is missing, unreadable, unwritable, or the disk is full
EXIT_UNSUPPORTED = 4  # well-formed, but newer or other than this version can handle
EXIT_INTERNAL = 70  # a fault of ours (EX_SOFTWARE)
EXIT_INTERRUPTED = 130  # stopped by the user (128 + SIGINT)

DISTRIBUTION = "guild-gpack"  # the name that pip knows


def install(extra: str) -> str:
    """The command that installs what an extra brings; hints of errors are made of it."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"


# Every code that is not a rule of the schema, with its meaning.
CODES = {
    "io.not_found": "the file does not exist",
    "io.not_a_file": "the path names a directory or a device, not a regular file",
    "io.read": "the file could not be read",
    "io.short_read": "the file ended while it was being read: it was truncated after it was opened",
    "io.write": "the output could not be written",
    "io.not_durable": "the output is in place, and the system could not confirm that it will survive a power loss",
    "io.no_space": "the disk has not enough free space for the output",
    "io.memory": "not enough memory",
    "file.foreign": "the file is no model, but something else that is named",
    "io.mmap": "the file system refuses to map the file",
    "usage": "the command line or the arguments are wrong",
    "serve.address": "the server cannot listen on that address",
    "serve.busy": "too many requests wait already",
    "serve.closing": "the server is shutting down",
    "serve.extra": "serving needs packages that are not installed",
    "serve.bias": "the biases of a request leave no token that may come next",
    "serve.grammar": "what an answer is to look like cannot be compiled",
    "serve.timeout": "an answer took longer than requests may take",
    "conformance.recipe": "a recipe of a vector is damaged, or asks for what it cannot give",
    "conformance.command": "the program that is to be tested cannot be started, or does not introduce itself",
    "conformance.known_failures": "a list of known failures is damaged",
    "conformance.result": "a file is no result of a conformance run",
    "conformance.vectors": "the vectors are not where they should be, or their index is damaged",
    "split.missing": "a part of a file that was cut is missing",
    "split.part": "the file is one part of a pack that was cut",
    "split.size": "the parts of a file have sizes that do not go together",
    "convert.dtype": "an array has a type that packs lack",
    "torch.library": "torch is not installed",
    "cache.damaged": "a file of kept prompts is damaged",
    "cache.foreign": "a file of kept prompts is of another model, other options or another version",
    "cache.device": "the states of a device cannot be written to a file",
    "chunks.library": "digests of chunks by BLAKE3 need the package blake3, which is not installed",
    "chunks.none": "the pack has no digests of chunks",
    "parity.library": "making parity needs the package pyeclib, which is not installed",
    "repair.place": "something is damaged, and without digests of chunks or another copy nothing shows where",
    "repair.donor": "the other copy does not have the bytes that the pack records",
    "repair.parity": "parity does not suffice to mend the damage, or is damaged itself",
    "repair.failed": "the mended pack is not sound",
    "repair.journal": "the journal of a repair is damaged, or of another file",
    "signature.invalid": "a signature is damaged, of another pack, or of somebody else",
    "signature.key": "a key, a certificate or an identity cannot be used",
    "signature.library": "signatures need the package model-signing, which is not installed",
    "signature.uncovered": "a signature says nothing of weights that lie outside of the pack without a digest",
    "pack.closed": "the pack was closed",
    "pack.changed": "the file at the path of a pickled pack is another one by now",
    "pack.no_tensor": "the pack holds no tensor of that name",
    "pack.no_section": "the pack holds no section of that name",
    "pack.no_asset": "the pack holds no file of that name",
    "pack.no_key": "the metadata holds no such key",
    "shard.missing": "an external shard is not in the folder where it is looked for",
    "shard.size": "an external shard has another size than the pack records",
    "shard.header": "an external shard has another header than the pack records: it is another file",
    "shard.sha256": "an external shard's bytes have not the digest that the pack records",
    "experts.missing": "the pack holds no such expert",
    "ple.missing": "the pack holds no table of per-layer embeddings",
    "ple.bounds": "the table of per-layer embeddings does not lie inside the file",
    "ple.shape": "a row of the table is not made of whole blocks of a known type",
    "ple.row": "the table has no row of that number",
    "ple.hash": "the constants of the n-gram hash do not fit each other, or are missing",
    "quants.no_codec": "the tensor's type has no dequantiser",
    "quants.partial_row": "the array is not made of whole rows of blocks",
    "gguf.magic": "not a GGUF file",
    "gguf.big_endian": "a big-endian GGUF file",
    "gguf.version": "a GGUF version that is not 2 or 3",
    "gguf.truncated": "a count, length or offset points beyond the end of the file",
    "gguf.alignment": "general.alignment is not a power of two that makes sense",
    "gguf.value_type": "a metadata value type that GGUF does not define",
    "gguf.key": "a metadata key that is doubled, empty, too long or not UTF-8",
    "gguf.value": "a metadata value that is not what its type or its meaning asks for",
    "gguf.nesting": "arrays of arrays nested too deeply",
    "gguf.tensor_name": "a tensor name that is doubled, empty, too long or not UTF-8",
    "gguf.tensor_type": "a tensor type that is not known",
    "gguf.tensor_dims": "a tensor's dimensions are too many, too large or no multiple of its block",
    "gguf.tensor_bounds": "a tensor's bytes do not lie inside the file, are misaligned or overlap another's",
    "gguf.split": "the shards of a split model are missing, doubled, foreign or contradict one another",
    "safetensors.header_length": "a safetensors header's length points beyond the file or the format's limit",
    "safetensors.json": "a safetensors header is no JSON object of its kind",
    "safetensors.tensor_name": "a tensor name that is doubled, empty, too long or no text",
    "safetensors.dtype": "a tensor type that is not known",
    "safetensors.shape": "a tensor's shape is no list of sizes, or has too many axes",
    "safetensors.offsets": "a tensor's data_offsets are no pair, or begin after their end",
    "safetensors.bounds": "a tensor's bytes do not lie inside the file",
    "safetensors.size": "a tensor's type and shape take another number of bytes than its data_offsets span",
    "safetensors.overlap": "a tensor's bytes lie upon another's",
    "safetensors.hole": "bytes of the file belong to no tensor",
    "safetensors.index": "the index of a model in shards is damaged or contradicts them",
    "safetensors.index_path": "an index names a file outside its folder",
    "safetensors.shards": "shards of a model are missing",
    "hf.config": "a configuration file is damaged, or a value that the import needs is missing or impossible",
    "hf.tensor": "a tensor that the architecture needs is missing, doubled, or of another shape",
    "hf.tokenizer": "the tokenizer files are damaged or contradict one another",
    "quantize.type": "the tensors cannot be stored as that type",
    "quantize.value": "a tensor holds NaN, infinite or too large values, which the type loses",
    "quantize.library": "the type needs an extra that is not installed",
    "packdir.table": "a table of a pack directory contradicts itself, its files or the GGUF",
    "mtp.layers": "the draft layers do not continue the layers of the model",
    "convert.source": "the source is of no kind that can be converted",
    "convert.source_changed": "the source changed while it was being read",
    "convert.same_file": "the output is one of the inputs",
    "convert.metadata": "the source's metadata cannot be stored",
    "convert.external": "the experts cannot stay outside of the pack",
    "export.incomplete": "the pack does not hold what the export promises",
    "tokenizer.pre": "the pre-tokeniser is none that is known",
    "tokenizer.model": "the kind of tokeniser is none that is known",
    "tokenizer.setting": "a setting of the tokeniser is of another type, or names a token that does not exist",
    "tokenizer.none": "there is no tokeniser",
    "tokenizer.no_token": "there is no token of that id",
    "tokenizer.text": "the text has lone surrogates that no bytes stand for",
    "tokenizer.json": "a file of a Hugging Face tokeniser asks for what is not supported",
    "tokenizer.scores": "a SentencePiece-style vocabulary has no scores, or not one for each token",
    "tokenizer.no_byte": "the vocabulary has no token for a byte of the text",
    "tokenizer.utf8": "the text to be encoded is not UTF-8",
    "chat.no_jinja": "chat templates need the package jinja2, which is not installed",
    "chat.no_template": "the model has no chat template",
    "chat.template": "the chat template is not Jinja",
    "chat.unsupported": "the chat template does what no chat template may: include, import or extend others",
    "chat.unsafe": "the chat template reaches for what is none of its business",
    "chat.limit": "the chat template takes too many steps, characters, levels or seconds",
    "chat.render": "the chat template fails on these messages",
    "chat.raised": "the chat template refuses these messages in its own words",
    "chat.input": "the messages, tools or variables are nothing that JSON knows, or too large",
    "engine.cpu": "the processor lacks what the chosen kernels need, or there are no kernels of that name",
    "engine.numba": "running a model needs the package numba, which is not installed",
    "cuda.extra": "a device of NVIDIA's needs a package that is not installed",
    "cuda.driver": "there is no driver of NVIDIA's, it is too old, or it does not start",
    "cuda.device": "there is no device of that number, or it is too old",
    "cuda.memory": "device memory does not suffice; needed and free bytes are told",
    "cuda.copy": "a copy or a kernel failed on the device",
    "cuda.kernel": "the package has no kernel of that name, or its file is damaged",
    "engine.shape": "a tensor has another shape or type than the metadata or its use asks for",
    "engine.architecture": "the model's architecture is none that can be run",
    "engine.obstacle": "the pack says that its model cannot be run, and why",
    "engine.key": "a hyperparameter is missing, out of range or contradicts another",
    "engine.tensor": "the model lacks a tensor that it cannot run without",
    "engine.nan": "weights, hidden states or logits are not finite",
    "engine.context": "the text does not fit into the context",
    "engine.operation": "the device has no way to compute an operation of the model",
    "engine.batch": "a step has no rows, or more than the engine's batch",
    "engine.budget": "the states of all texts do not fit into the memory that they may take",
    "engine.position": "a chunk does not begin where its text ends, or a text cannot go back to a position",
    "engine.open": "a chunk that is to be accepted is no longer open",
    "engine.sequence": "the text is closed, belongs to another engine, or is in the step already",
    "engine.token": "the vocabulary has no token of that number",
    "engine.prompt": "the prompt is empty, or neither text nor token ids nor messages",
    "engine.sampling": "an option of sampling makes no sense",
    "interrupted": "the user stopped the command",
    "internal": "a fault of this program",
}


class GpackError(Exception):
    """Base of every error that this package raises on purpose.

    Args:
        message: What is wrong, in one sentence, with the values that show it.
        code: Stable code: a rule id of the schema or a key of `CODES`.
        path: The file concerned.
        section: Name of the section (`TensorIndexBin`) or of the part of a source file (`tensor info`).
        field: Path of the field (`rows[3].offset`).
        offset: Absolute byte offset in the file.
        hint: What the user can do about it.
    """

    exit_code = EXIT_INVALID

    def __init__(
        self,
        message: str,
        *,
        code: str,
        path: object = None,
        section: str | None = None,
        field: str | None = None,
        offset: int | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.path = None if path is None else str(path)
        self.section = section
        self.field = field
        self.offset = offset
        self.hint = hint

    def where(self) -> str:
        """The place as one phrase: file, section, field and offset, as far as they are known."""
        spot = ".".join(part for part in (self.section, self.field) if part)
        if self.offset is not None:
            spot = f"{spot} at byte {self.offset}" if spot else f"byte {self.offset}"
        return ": ".join(part for part in (self.path, spot) if part)

    def __str__(self) -> str:
        where = self.where()
        text = f"{where}: {self.message}" if where else self.message
        if self.hint:
            text = f"{text} ({self.hint})"
        return f"{text} [{self.code}]"

    def to_dict(self) -> dict[str, Any]:
        """The error as JSON-ready values; absent parts are left out."""
        items = {
            "code": self.code,
            "message": self.message,
            "path": self.path,
            "section": self.section,
            "field": self.field,
            "offset": self.offset,
            "hint": self.hint,
        }
        return {key: value for key, value in items.items() if value is not None}


class FormatError(GpackError, ValueError):
    """The bytes break a rule of their format."""


class BoundsError(FormatError):
    """An offset, length or count points outside the file or the section."""


class DigestError(FormatError):
    """Bytes do not have the SHA-256 that the file records for them."""


class UnsupportedError(GpackError, NotImplementedError):
    """Well-formed, but newer or other than this version can handle."""

    exit_code = EXIT_UNSUPPORTED


class PathError(GpackError, OSError):
    """A file is missing, unreadable, unwritable, or the disk is full."""

    exit_code = EXIT_IO

    def __str__(self) -> str:
        return GpackError.__str__(self)


class UsageError(GpackError, ValueError):
    """The caller asked for something that makes no sense."""

    exit_code = EXIT_USAGE


class InternalError(GpackError, RuntimeError):
    """A fault of this program."""

    exit_code = EXIT_INTERNAL


class InterruptedRunError(GpackError):
    """The user stopped the command."""

    exit_code = EXIT_INTERRUPTED


class MissingError(GpackError, KeyError):
    """A tensor, section or key that the pack does not hold."""

    exit_code = EXIT_USAGE

    def __str__(self) -> str:
        return GpackError.__str__(self)


class ClosedError(GpackError, ValueError):
    """The pack was closed before this call."""
