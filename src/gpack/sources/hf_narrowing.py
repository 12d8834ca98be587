"""Values that an import would make infinite: their tensors are kept as they are, which is a reason not to run them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import prod

import numpy as np

from ..container.payload import Joined, read_part
from ..container.strict_json import shorten
from ..generated.constants import GgmlType
from ..quants import dequantize
from .hf_tensor import HfTensor, minus_exp

_CHUNK = 1 << 20  # elements


def keep_wide(tensors: Iterable[HfTensor]) -> tuple[list[HfTensor], list[str]]:
    """The tensors, but those that would turn a finite value into an infinite one keep the source's type.

    Only F64 and exponentials can: all else is stored in a type that holds it. Their values are read for that.

    Returns:
        The tensors, and for each that was changed a reason that names tensor and index.
    """
    made, reasons = [], []
    for tensor in tensors:
        narrows = tensor.stored_type == GgmlType.F64 and tensor.ggml_type != GgmlType.F64
        found = _first_lost(tensor) if narrows or tensor.value is minus_exp else None
        if found is None:
            made.append(tensor)
            continue
        flat, value = found
        index = [int(axis) for axis in np.unravel_index(flat, tuple(reversed(tensor.dims)) or (1,))]
        name = shorten(tensor.sources[0].name)[1:-1]
        reasons.append(f"{name}{index} is {value:g}, which F32 cannot hold once it is translated: it is kept as it is")
        made.append(_kept(tensor))
    return made, reasons


def _kept(tensor: HfTensor) -> HfTensor:
    if tensor.value is None:
        return replace(tensor, ggml_type=tensor.stored_type)
    # What is to be computed stays the source's, under the source's name.
    return HfTensor(
        tensor.sources[0].name, tensor.stored_type, tensor.dims, tensor.parts, tensor.stored_type, tensor.sources
    )


def _first_lost(tensor: HfTensor) -> tuple[int, float] | None:
    """The first finite value that becomes infinite, by its place in the source's order."""
    joined, size = Joined(tensor.parts), GgmlType.BYTES[tensor.stored_type]
    total = prod(tensor.dims)
    for start in range(0, total, _CHUNK):
        data = np.frombuffer(read_part(joined, start * size, min(_CHUNK, total - start) * size), np.uint8)
        wide = tensor.stored_type == GgmlType.F64
        values = data.view("<f8") if wide else dequantize(data, tensor.stored_type).astype(np.float64)
        with np.errstate(all="ignore"):
            narrow = values.astype(np.float32)
            result = narrow if tensor.value is None else tensor.value(narrow)
        lost = np.flatnonzero(np.isfinite(values) & ~np.isfinite(result))
        if len(lost):
            return start + int(lost[0]), float(values[lost[0]])
    return None
