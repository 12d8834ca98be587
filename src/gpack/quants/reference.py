"""Block formats by the numpy dequantisers of the PyPI `gguf` package, whose results equal the C code's bit for bit."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gpack.errors import UnsupportedError
from gpack.generated.constants import GgmlType
from gpack.quants.decoder import Decoder

if TYPE_CHECKING:
    from gguf import GGMLQuantizationType


def decoder(ggml_type: int) -> Decoder:
    """The package's decoder for a type of `GgmlType`.

    Raises:
        UnsupportedError: `quants.no_codec` where the installed version does not know the type. It is looked up by
            name, since the package's own enumeration raises on numbers newer than itself.
    """
    from gguf import GGMLQuantizationType

    name = GgmlType.NAMES[ggml_type]
    member = GGMLQuantizationType.__members__.get(name)
    if member is None or int(member) != ggml_type:
        raise _no_codec(name)
    return partial(_decode, member)


def _decode(member: GGMLQuantizationType, rows: NDArray[np.uint8]) -> NDArray[np.float32]:
    from gguf.quants import dequantize

    try:
        values: NDArray[np.float32] = dequantize(rows, member)
    except NotImplementedError as error:
        raise _no_codec(member.name) from error
    return values


def _no_codec(name: str) -> UnsupportedError:
    return UnsupportedError(f"there is no dequantiser for tensor type {name}", code="quants.no_codec")
