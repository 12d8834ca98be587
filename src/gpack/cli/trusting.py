"""The arguments that say whom a signature must be from."""

from __future__ import annotations

import argparse
from typing import Any

from .. import errors
from ..signatures import Trust


def add_trust_arguments(group: Any, flag: str, text: str) -> None:
    """Declares the arguments.

    Args:
        flag: The option that asks for a signature; its value is the bundle.
        text: What it does.
    """
    group.add_argument(flag, dest="signature", nargs="?", const="", metavar="BUNDLE", help=f"{text} (FILE.sig)")
    group.add_argument("--public-key", metavar="FILE", help="the signature must be by the key to this one (PEM)")
    group.add_argument(
        "--certificate-chain",
        metavar="FILE",
        action="append",
        default=[],
        help="the signature must be by a certificate that these vouch for (PEM); may be repeated",
    )
    group.add_argument("--identity", metavar="NAME", help="the signature must be by whom sigstore knows as this")
    group.add_argument("--issuer", metavar="URL", help="with --identity: who vouched for the identity")
    group.add_argument(
        "--trust-config",
        metavar="FILE",
        help="with --identity: the sigstore instance (default: the public one, fetched)",
    )


def trust_of(args: argparse.Namespace, flag: str) -> Trust | None:
    """Whom the signature must be from; None where none is asked for.

    Raises:
        UsageError: That is not said, or said without asking for a signature.
    """
    trust = Trust(
        args.public_key,
        tuple(args.certificate_chain),
        args.identity,
        args.issuer,
        args.trust_config,
        args.signature or None,
    )
    if args.signature is None:
        if trust != Trust():
            raise errors.UsageError(f"it is said whom a signature must be from: {flag} asks for one", code="usage")
        return None
    trust.check()
    return trust
