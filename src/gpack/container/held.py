"""Objects that hold the number of an open file, which means another file in another process, or after it is closed.

Standard library only, and light: a quick open uses it.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn, SupportsIndex


class HoldsFile:
    """Refuses to be pickled or copied, which would copy the number of the open file and not the file."""

    __slots__ = ()

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__} holds an open file and can be neither pickled nor copied; "
            "a gpack.Pack or gpack.Container can be both"
        )
