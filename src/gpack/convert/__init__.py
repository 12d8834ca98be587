"""Converting models into packs and back: first a plan of what goes where, then one streaming pass.

`gpack.convert` names a function and this package. Python puts the package in the function's place when a module in
here is imported, so the package can be called, too.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _CallablePackage(ModuleType):
    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """As `gpack.convert.anything.convert`."""
        from .anything import convert

        return convert(*arguments, **options)


sys.modules[__name__].__class__ = _CallablePackage
