"""Which device a name means: `cuda` is `cuda:0`."""

from __future__ import annotations

import re

from ....errors import UsageError
from .driver import Driver

_NAME = re.compile(r"cuda(?::([0-9]{1,3}))?")


def is_cuda(name: str) -> bool:
    """Whether a name means a device of NVIDIA's."""
    return name.partition(":")[0] == "cuda"


def number_of(name: str) -> int:
    """The number of a device.

    Raises:
        UsageError: The name is neither `cuda` nor `cuda:N`.
    """
    found = _NAME.fullmatch(name)
    if found is None:
        raise UsageError(f"there is no device {name!r}", code="usage", field="device", hint="cuda, or cuda:0")
    return int(found[1] or 0)


def open_driver(number: int) -> Driver:
    """A device by its number.

    Raises:
        UnsupportedError: `cuda.extra`, `cuda.driver`, `cuda.device`: it cannot be used.
        UsageError: `cuda.device`: there is no such device.
    """
    from .nvidia import Nvidia

    return Nvidia(number)
