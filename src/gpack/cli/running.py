"""The options of an engine that commands share which run a model without talking to anybody."""

from __future__ import annotations

import argparse
from typing import Any

from .. import errors


def add_engine_arguments(group: Any) -> None:
    """Declares them."""
    group.add_argument(
        "-t", "--threads", type=int, metavar="N", help="threads (default: the cores that affinity and CPU quota allow)"
    )
    group.add_argument(
        "--cache-type",
        choices=("F32", "F16", "Q8_0"),
        type=str.upper,
        default="F16",
        help="type of keys and values (default F16)",
    )
    group.add_argument(
        "--compute",
        choices=("int8", "f32"),
        default="int8",
        help="what activations become beside quantised weights (default int8)",
    )
    group.add_argument("--cpu", metavar="NAME", help="kernels: vnni, avx2, portable (default: the best)")


def engine_options(args: argparse.Namespace) -> dict[str, Any]:
    """As a session takes them.

    Raises:
        UsageError: There are no such threads.
    """
    if args.threads is not None and args.threads < 1:
        raise errors.UsageError(f"--threads is {args.threads}", code="usage", field="threads")
    return {name: getattr(args, name) for name in ("threads", "cache_type", "compute", "cpu")}
