"""`safe_open`: a pack with the methods that safetensors has."""

from __future__ import annotations

import json
import os
from typing import Any

import numpy as np

from .arrays import rows_of
from .errors import UsageError
from .generated.constants import GgmlType
from .pack import open as open_pack
from .sources.hf_import import HEADER_METADATA
from .tensor import NUMPY_TYPES, Tensor

FRAMEWORKS = {"np": "np", "numpy": "np", "pt": "pt", "torch": "pt", "pytorch": "pt"}


class safe_open:  # noqa: N801 - safetensors' name
    """A pack with the methods of `safetensors.safe_open`; a context manager.

    ```python
    with gpack.safe_open("model.gpack", framework="pt") as f:
        for name in f.keys():
            tensor = f.get_tensor(name)
    ```
    """

    def __init__(self, filename: str | os.PathLike[str], framework: str = "np", device: str | int = "cpu") -> None:
        """Opens.

        Args:
            filename: The pack.
            framework: `np` or `pt`; also `numpy`, `torch`, `pytorch`.
            device: Of torch; where tensors go.

        Raises:
            UsageError: There is no such framework, or numpy is to use a device.
            UnsupportedError: `torch.library`: torch is not installed.
            GpackError: As `gpack.open`.
        """
        if framework not in FRAMEWORKS:
            raise UsageError(f"there is no framework {framework!r}", code="usage", hint=", ".join(FRAMEWORKS))
        self._framework, self._device = FRAMEWORKS[framework], device
        if self._framework == "np" and device != "cpu":
            raise UsageError("numpy's arrays are in the CPU's memory", code="usage", field="device")
        self._arrays: Any = None
        if self._framework == "pt":
            from .torch import Tensors  # before anything is open: torch may be missing

            self._pack = open_pack(filename)
            self._arrays = Tensors(self._pack, device)
        else:
            self._pack = open_pack(filename)

    def keys(self) -> list[str]:
        """Names of all tensors, sorted by their bytes."""
        return list(self._pack)

    def offset_keys(self) -> list[str]:
        """The same in the order in which the bytes lie in the file."""
        return sorted(self._pack, key=lambda name: self._pack.place(name).offset)

    def metadata(self) -> dict[str, str] | None:
        """What safetensors keep under `__metadata__`; None where the pack was made without.

        Of a model in several files it is what any of them says, and of a key that several have what the first one says.
        """
        if HEADER_METADATA not in self._pack.assets():
            return None
        said = json.loads(bytes(self._pack.asset(HEADER_METADATA)))
        made: dict[str, str] = {}
        for part in said if isinstance(said, list) else [said]:
            made = {**part, **made} if isinstance(part, dict) else made
        return made

    def get_tensor(self, name: str) -> Any:
        """A tensor: nothing is copied where the framework knows its type; blocks become float32.

        Raises:
            GpackError: As `Pack[]`; the type has no values (`quants.no_codec`).
        """
        if self._arrays is not None:
            return self._arrays.get(name)
        tensor = self._pack[name]
        return tensor if tensor.ggml_type in NUMPY_TYPES else tensor.dequantize()

    def get_slice(self, name: str) -> Slice:
        """A tensor of which a part is asked for, and only that is made."""
        return Slice(self, self._pack[name])

    def __enter__(self) -> safe_open:
        return self

    def __exit__(self, *_: object) -> None:
        self._pack.close()


class Slice:
    """A tensor of which parts are made when they are asked for."""

    def __init__(self, opened: safe_open, tensor: Tensor) -> None:
        self._opened, self._tensor = opened, tensor

    def get_shape(self) -> list[int]:
        """Extents, the slowest axis first."""
        return list(reversed(self._tensor.dims))

    def get_dtype(self) -> str:
        """The type's name; of blocks that of their values, F32."""
        name = self._tensor.type_name
        return name if GgmlType.BLOCK[self._tensor.ggml_type or 0] == 1 else "F32"

    def __getitem__(self, key: Any) -> Any:
        """A part: of the first axis alone only these rows are made, else of the others too."""
        first, rest = (key[0], key[1:]) if isinstance(key, tuple) and key else (key, ())
        if self._opened._arrays is not None:
            return self._opened._arrays.part(self._tensor, first, rest)
        tensor = self._tensor
        if tensor.ggml_type in NUMPY_TYPES:
            return tensor[key].view(np.ndarray)
        rows = rows_of(tensor, first).dequantize()
        return rows[(slice(None), *rest)] if isinstance(first, slice) else rows[0][rest]
