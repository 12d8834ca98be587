"""`guild sign`: a signature of who made a pack."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from .. import errors
from ..container.structure import path_error
from ..signatures import Key, sign
from ..terminal.table import printable

DESCRIPTION = """\
Sign a pack by OpenSSF's model-signing (pip install 'guild-gpack[sign]'). What is signed is the manifest, which holds
the digest of every section, as a file named manifest.json: `guild inspect --extract-manifest manifest.json` writes it,
and `model_signing verify` accepts the bundle over it. Nothing else is read: verify what you sign.

--private-key FILE alone, with --certificate FILE (and --certificate-chain FILE), or --identity-token TOKEN of sigstore.
`guild verify --signature` checks the bundle and the pack."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    parser.add_argument("file", help="the .gpack file")
    parser.add_argument("-o", "--output", metavar="BUNDLE", help="the bundle to write (default: FILE.sig)")
    parser.add_argument("--private-key", metavar="FILE", help="a key on P-256, P-384 or P-521 (PEM)")
    parser.add_argument("--password-file", metavar="FILE", help="holds the password of an encrypted key")
    parser.add_argument("--certificate", metavar="FILE", help="the key's certificate (PEM)")
    parser.add_argument(
        "--certificate-chain",
        metavar="FILE",
        action="append",
        default=[],
        help="certificates between that and the root (PEM); may be repeated",
    )
    parser.add_argument("--identity-token", metavar="TOKEN", help="sign as this identity of sigstore")
    parser.add_argument("--trust-config", metavar="FILE", help="with --identity-token: the sigstore instance")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> int:
    """Signs."""
    if (args.private_key is None) == (args.identity_token is None):
        raise errors.UsageError("give either --private-key or --identity-token", code="usage")
    if args.private_key is None and (args.certificate or args.certificate_chain or args.password_file):
        raise errors.UsageError("certificates and passwords go with --private-key", code="usage")
    key = Key(
        args.private_key,
        _password(args.password_file),
        args.certificate,
        tuple(args.certificate_chain),
        args.identity_token,
        args.trust_config,
    )
    written = sign(args.file, key, signature=args.output)
    if args.json:
        print(json.dumps({"ok": True, "file": args.file, "signature": written}, indent=2))
    else:
        print(printable(f"{written}: the signature of {args.file}"))
    return errors.EXIT_OK


def _password(path: str | None) -> str | None:
    if path is None:
        return None
    try:
        return Path(path).read_text(encoding="utf-8").removesuffix("\n")
    except OSError as error:
        raise path_error(error, path) from error
    except UnicodeDecodeError as error:
        raise errors.UsageError(f"the password is no UTF-8: {error}", code="signature.key", path=path) from error
