"""All targets in Python, by name."""

from __future__ import annotations

from .target import Target


def targets() -> dict[str, Target]:
    """All of them, in the order in which they run."""
    from . import pack_targets, source_targets, text_targets

    made = [*pack_targets.targets(), *source_targets.targets(), *text_targets.targets()]
    return {target.name: target for target in made}
