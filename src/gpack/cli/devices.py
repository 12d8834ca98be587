"""`--device`: where a model runs."""

from __future__ import annotations

import logging
from typing import Any

from .. import errors

LOG = logging.getLogger("gpack")


def add_device(group: Any) -> None:
    """Declares it."""
    group.add_argument(
        "--device",
        default="cpu",
        metavar="NAME",
        help="cpu (default), cuda, cuda:N, or auto: a device of NVIDIA's, else the CPU, saying why",
    )


def chosen_device(name: str) -> str:
    """The device that a name means; `auto` is settled now.

    Raises:
        UsageError: There is no such name.
    """
    from ..engine.backends.cuda.devices import is_cuda, number_of

    if name == "auto":
        return _first_device()
    if is_cuda(name):
        number_of(name)
    elif name not in ("cpu", "reference"):
        raise errors.UsageError(
            f"there is no device {name!r}", code="usage", field="device", hint="cpu, cuda, cuda:N or auto"
        )
    return name


def _first_device() -> str:
    from ..engine.backends.cuda.nvidia import devices

    try:
        if devices():
            return "cuda:0"
        why = "the driver of NVIDIA's finds no device"
    except errors.GpackError as error:
        why = error.message
    LOG.warning("running on the CPU: %s", why)
    return "cpu"
