"""Signatures by OpenSSF's model-signing: who made a pack.

What is signed is a file `manifest.json` with the exact bytes of ManifestJson, which holds the digest of every section:
`model_signing verify` accepts such a bundle over that file, and bundles that it made over it are accepted here. So are
bundles over the whole pack, at the cost of reading it. A signature over the manifest alone says nothing of the weights
until a full verify has compared their digests.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path as FilePath
from typing import Any

from .container.atomic import AtomicFile
from .container.reader import Container
from .container.structure import open_file, path_error
from .errors import DigestError, FormatError, GpackError, PathError, UnsupportedError, UsageError, install
from .generated.constants import SectionKind

Path = str | os.PathLike[str]
MANIFEST_NAME = "manifest.json"
SUFFIX = ".sig"  # of the bundle beside a pack
_MAX_BUNDLE = 16 << 20  # bytes
_OVER_MANIFEST, _OVER_PACK = "manifest", "pack"


@dataclass(frozen=True)
class Key:
    """What a pack is signed with: a private key, a key with its certificate, or an identity of sigstore.

    Attributes:
        private_key: PEM file of a key on P-256, P-384 or P-521.
        password: Of the key, where it is encrypted.
        certificate: PEM file of the key's certificate.
        certificate_chain: PEM files of the certificates between it and the root.
        identity_token: Of sigstore; with `trust_config`, or the public instance.
        trust_config: JSON file of a sigstore instance.
    """

    private_key: Path | None = None
    password: str | None = None
    certificate: Path | None = None
    certificate_chain: tuple[Path, ...] = ()
    identity_token: str | None = None
    trust_config: Path | None = None


@dataclass(frozen=True)
class Trust:
    """Whom a signature must be from: one of a public key, certificates that are trusted, and an identity of sigstore.

    Attributes:
        public_key: PEM file.
        certificate_chain: PEM files of the roots, and of what lies between where the bundle does not hold it.
        identity, issuer: Whom sigstore must have certified, and who knew them.
        trust_config: JSON file of the sigstore instance, so that nothing is fetched.
        signature: The bundle; default the pack's path with `.sig`.
    """

    public_key: Path | None = None
    certificate_chain: tuple[Path, ...] = ()
    identity: str | None = None
    issuer: str | None = None
    trust_config: Path | None = None
    signature: Path | None = None

    def check(self) -> None:
        """Refuses what names nobody, or more than one.

        Raises:
            UsageError: That.
        """
        ways = [self.public_key is not None, bool(self.certificate_chain), self.identity is not None]
        if sum(ways) != 1:
            raise UsageError(
                "it must be said in one way whom to trust: by a public key, a certificate chain, or an identity",
                code="usage",
                hint="--public-key FILE, --certificate-chain FILE, or --identity NAME --issuer URL",
            )
        if (self.identity is None) != (self.issuer is None):
            raise UsageError("an identity needs its issuer, and an issuer an identity", code="usage")
        if self.trust_config is not None and self.identity is None:
            raise UsageError("a trust configuration goes with an identity", code="usage")


def sign(path: Path, key: Key, *, signature: Path | None = None) -> str:
    """Signs a pack's manifest; returns where the bundle was written.

    Only the manifest is read, whatever the pack's size: verify what you sign.

    Args:
        signature: The bundle; default the pack's path with `.sig`.

    Raises:
        FormatError: The pack does not pass a quick open.
        PathError: A file cannot be read or written.
        UnsupportedError: `signature.library`: the extra is not installed.
        UsageError: `signature.key`: the key cannot be used.
    """
    _library()
    signer = _guarded("signature.key", "the key cannot be used", lambda: _signer(key))
    target = os.fspath(path) + SUFFIX if signature is None else os.fspath(signature)
    with Container.open(path) as container, _as_file(container) as file:
        made = file.parent / "bundle"
        _guarded("signature.key", "signing failed", lambda: signer.sign(file, made))
        data = made.read_bytes()
    if os.path.exists(target) and os.path.samefile(target, path):
        raise UsageError("the signature would overwrite the pack", code="convert.same_file", path=target)
    with AtomicFile(target, len(data)) as output:
        output.write_at(data, 0)
        output.sync()
        output.commit()
    return target


def check_signature(container: Container, trust: Trust) -> str:
    """Checks that a pack's manifest, or the whole pack, was signed by whom it should; returns which.

    Args:
        container: The open pack; the manifest is read from this very file.

    Raises:
        PathError: There is no signature, or it cannot be read.
        DigestError: `signature.invalid`: it is damaged, of another pack, or of somebody else.
        UnsupportedError: `signature.library`: the extra is not installed.
        UsageError: `signature.key`: the key or the certificates cannot be used; or it is not said whom to trust.
    """
    trust.check()
    place = container.path + SUFFIX if trust.signature is None else os.fspath(trust.signature)
    data = _read_bundle(place)
    _library()
    verifier = _guarded("signature.key", "the key or certificate cannot be used", lambda: _verifier(trust))
    names = _signed_names(data, place)
    before = os.fstat(container.descriptor)
    with _as_file(container) as file:
        bundle = file.parent / "bundle"
        bundle.write_bytes(data)
        fault: Exception | None = None
        for signed, over in _candidates(names, file, container):
            try:
                with contextlib.redirect_stdout(sys.stderr):  # the library warns there
                    verifier().verify(signed, bundle)
            except (MemoryError, GpackError):
                raise
            except Exception as error:  # it is no list of classes that the library tells
                fault = error
                continue
            if over == _OVER_PACK:
                _check_same(container, before)
            return over
    reason = "it is over other files" if fault is None else f"{type(fault).__name__}: {fault}".rstrip(": ")
    raise DigestError(
        f"the signature does not hold: {reason}",
        code="signature.invalid",
        path=place,
        hint="it is of another pack, of somebody else, or damaged; a pack that was sealed or mended is signed again",
    ) from fault


def _candidates(names: list[str], file: FilePath, container: Container) -> Iterator[tuple[FilePath, str]]:
    """What a bundle may be over, by the names in it, the manifest first: it costs nothing."""
    if all(name == "." or name.startswith(".:") for name in names):
        yield file, _OVER_MANIFEST
        yield FilePath(os.path.realpath(container.path)), _OVER_PACK
    elif all(name.partition(":")[0] == MANIFEST_NAME for name in names):
        (file.parent / "folder").mkdir()
        inside = file.parent / "folder" / MANIFEST_NAME
        inside.write_bytes(file.read_bytes())
        yield inside.parent, _OVER_MANIFEST


def _check_same(container: Container, before: os.stat_result) -> None:
    """The file at the pack's path, which the library read, is the one that is open, and nobody wrote to it meanwhile.

    Raises:
        DigestError: `pack.changed`.
    """
    for status in (os.stat(container.path), os.fstat(container.descriptor)):
        if not os.path.samestat(before, status) or (before.st_size, before.st_mtime_ns) != (
            status.st_size,
            status.st_mtime_ns,
        ):
            raise DigestError(
                "the file was changed while its signature was checked",
                code="pack.changed",
                path=container.path,
                hint="do not change a file while it is used",
            )


def _signed_names(data: bytes, place: str) -> list[str]:
    """The names of files that a bundle speaks of; nothing of it is believed yet.

    Raises:
        DigestError: `signature.invalid`: it is no bundle.
    """
    try:
        said = json.loads(base64.b64decode(json.loads(data)["dsseEnvelope"]["payload"]))
        return [str(resource["name"]) for resource in said["predicate"]["resources"]]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DigestError(
            f"the file is no signature of model-signing: {type(error).__name__}: {error}",
            code="signature.invalid",
            path=place,
        ) from error


def _read_bundle(place: str) -> bytes:
    descriptor, size = open_file(place)
    with open(descriptor, "rb") as file:
        if size > _MAX_BUNDLE:
            raise DigestError(f"it has {size} bytes: it is no signature", code="signature.invalid", path=place)
        try:
            return file.read()
        except OSError as error:
            raise path_error(error, place) from error


@contextlib.contextmanager
def _as_file(container: Container) -> Iterator[FilePath]:
    """The manifest as a file of that name, in a folder of its own that goes."""
    data = container.read(SectionKind.MANIFEST_JSON)
    if sha256(data).digest() != container.footer.manifest_sha256:
        raise FormatError("the manifest changed", code="manifest.sha256", path=container.path, section="ManifestJson")
    try:
        folder = tempfile.TemporaryDirectory(prefix="gpack-", ignore_cleanup_errors=True)
    except OSError as error:
        raise PathError(f"no temporary folder: {error.strerror}", code="io.write") from error
    with folder as name:
        file = FilePath(name) / MANIFEST_NAME
        try:
            file.write_bytes(data)
            yield file
        except PathError:
            raise
        except OSError as error:  # of what lies in the folder
            place = error.filename or file
            raise PathError(f"cannot be written: {error.strerror}", code="io.write", path=place) from error


# ---------------------------------------------------------------- the library


def _library() -> None:
    try:
        import model_signing.signing  # noqa: F401 - whether it is there
    except ImportError as error:
        raise UnsupportedError(
            f"signatures need the package model-signing: {error}", code="signature.library", hint=install("sign")
        ) from error


def _signer(key: Key) -> Any:
    from model_signing.signing import Config

    config: Any = Config()  # type: ignore[no-untyped-call]
    if key.private_key is None:
        if key.identity_token is None:
            raise ValueError("there is neither a private key nor an identity token")
        trust = None if key.trust_config is None else FilePath(key.trust_config)
        return config.use_sigstore_signer(identity_token=key.identity_token, trust_config=trust)
    if key.certificate is None:
        return config.use_elliptic_key_signer(private_key=key.private_key, password=_encoded(key.password))
    return config.use_certificate_signer(
        private_key=key.private_key,
        signing_certificate=key.certificate,
        certificate_chain=list(key.certificate_chain or (key.certificate,)),
    )


def _encoded(password: str | None) -> Any:
    """The library says text, and hands it on to what wants bytes."""
    return None if password is None else password.encode()


def _verifier(trust: Trust) -> Callable[[], Any]:
    """Makes a configuration for each attempt: it remembers how the last one hashed."""
    from model_signing.verifying import Config

    def begin() -> Any:
        config: Any = Config()  # type: ignore[no-untyped-call]
        if trust.identity is not None:
            where = None if trust.trust_config is None else FilePath(trust.trust_config)
            return config.use_sigstore_verifier(identity=trust.identity, oidc_issuer=trust.issuer, trust_config=where)
        if trust.public_key is not None:
            return config.use_elliptic_key_verifier(public_key=trust.public_key)
        return config.use_certificate_verifier(certificate_chain=[FilePath(path) for path in trust.certificate_chain])

    begin()  # a key that cannot be read is reported as such, and not as a wrong signature
    return begin


def _guarded(code: str, message: str, call: Callable[[], Any]) -> Any:
    """Calls the library; whatever it raises is an error of ours.

    Raises:
        UsageError: With that code.
        PathError: A file of the user's cannot be read.
    """
    try:
        with contextlib.redirect_stdout(sys.stderr):
            return call()
    except (MemoryError, GpackError):
        raise
    except OSError as error:
        raise path_error(error, error.filename) from error
    except Exception as error:
        raise UsageError(f"{message}: {type(error).__name__}: {error}".rstrip(": "), code=code) from error
