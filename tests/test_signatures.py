"""Signatures: what gpack signs model-signing verifies, what that signs gpack verifies, and nothing else is let in."""

from __future__ import annotations

import base64
import datetime
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from sealed_packs import DATA, flip, place_of, sealed

from gpack import errors
from gpack.cli import main
from gpack.conformance.recipes import bases
from gpack.container.reader import Container
from gpack.generated.constants import SectionKind
from gpack.model import GuildModel, ModelPaths
from gpack.signatures import Key, Trust, check_signature, sign

pytest.importorskip("model_signing.signing")
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from model_signing import signing, verifying

PEM = serialization.Encoding.PEM
SIGNING: Any = signing.Config  # the library leaves them without types
VERIFYING: Any = verifying.Config


def _private(folder: Path, name: str, *, password: bytes | None = None) -> ec.EllipticCurvePrivateKey:
    """A key and its public half, as PEM files."""
    key = ec.generate_private_key(ec.SECP256R1())
    hidden: Any = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    (folder / f"{name}.pem").write_bytes(key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, hidden))
    public = key.public_key().public_bytes(PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    (folder / f"{name}.pub").write_bytes(public)
    return key


def _certificate(
    folder: Path, name: str, key: ec.EllipticCurvePrivateKey, issuer: str, by: ec.EllipticCurvePrivateKey, *, ca: bool
) -> None:
    names = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)]) for text in (name, issuer)]
    start = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    others = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only")
    usage = dict.fromkeys((*others, "decipher_only"), False)
    made = (
        x509.CertificateBuilder()
        .subject_name(names[0])
        .issuer_name(names[1])
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + datetime.timedelta(days=3650))
        .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        .add_extension(x509.KeyUsage(digital_signature=True, key_cert_sign=ca, crl_sign=ca, **usage), critical=True)
        .sign(by, hashes.SHA256())
    )
    (folder / f"{name}.crt").write_bytes(made.public_bytes(PEM))


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Keys `a` and `b`, `c` with a password, and two roots of which the first vouches for the certificate `leaf`."""
    folder = tmp_path_factory.mktemp("keys")
    _private(folder, "a")
    _private(folder, "b")
    _private(folder, "c", password=b"open sesame")
    roots = [_private(folder, name) for name in ("root", "other")]
    for name, root in zip(("root", "other"), roots, strict=True):
        _certificate(folder, name, root, name, root, ca=True)
    _certificate(folder, "leaf", _private(folder, "leaf"), "root", roots[0], ca=False)
    return folder


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    return sealed(tmp_path / "m.gpack", algorithm=None)


def check(pack: Path, trust: Trust) -> str:
    with Container.open(pack) as container:
        return check_signature(container, trust)


def manifest_of(pack: Path) -> Path:
    """The manifest, written out by the command."""
    made = pack.with_name("manifest.json")
    assert main(["inspect", str(pack), "--extract-manifest", str(made)]) == 0
    return made


def test_the_manifest_is_written_out_byte_for_byte(pack: Path) -> None:
    with Container.open(pack) as container:
        assert manifest_of(pack).read_bytes() == container.read(SectionKind.MANIFEST_JSON)
        assert sha256(manifest_of(pack).read_bytes()).digest() == container.footer.manifest_sha256


def test_model_signing_verifies_what_we_sign(pack: Path, keys: Path) -> None:
    bundle = sign(pack, Key(keys / "a.pem"))
    assert bundle == f"{pack}.sig"
    VERIFYING().use_elliptic_key_verifier(public_key=keys / "a.pub").verify(manifest_of(pack), Path(bundle))
    command = [sys.executable, "-m", "model_signing", "verify", "key", str(manifest_of(pack)), "--signature", bundle]
    done = subprocess.run([*command, "--public_key", str(keys / "a.pub")], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def _made_by_library(target: Path, key: Path, bundle: Path) -> None:
    SIGNING().use_elliptic_key_signer(private_key=key).sign(target, bundle)


def test_we_verify_what_model_signing_signs(pack: Path, keys: Path) -> None:
    trust, bundle = Trust(keys / "a.pub"), Path(f"{pack}.sig")
    _made_by_library(manifest_of(pack), keys / "a.pem", bundle)
    assert check(pack, trust) == "manifest"
    folder = pack.parent / "folder"
    folder.mkdir()
    manifest_of(pack).rename(folder / "manifest.json")
    _made_by_library(folder, keys / "a.pem", bundle)
    assert check(pack, trust) == "manifest"
    _made_by_library(pack, keys / "a.pem", bundle)
    assert check(pack, trust) == "pack"


def test_certificates_in_both_directions(pack: Path, keys: Path) -> None:
    bundle = Path(f"{pack}.sig")
    sign(pack, Key(keys / "leaf.pem", certificate=keys / "leaf.crt"))
    library = VERIFYING().use_certificate_verifier(certificate_chain=[keys / "root.crt"])
    library.verify(manifest_of(pack), bundle)
    assert check(pack, Trust(certificate_chain=(keys / "root.crt",))) == "manifest"
    made = SIGNING().use_certificate_signer(
        private_key=keys / "leaf.pem", signing_certificate=keys / "leaf.crt", certificate_chain=[keys / "root.crt"]
    )
    made.sign(manifest_of(pack), bundle)
    assert check(pack, Trust(certificate_chain=(keys / "root.crt",))) == "manifest"
    with pytest.raises(errors.DigestError):
        check(pack, Trust(certificate_chain=(keys / "other.crt",)))
    with pytest.raises(errors.DigestError):
        check(pack, Trust(keys / "leaf.pub"))  # a certificate is no bare key


def test_a_key_with_a_password(pack: Path, keys: Path) -> None:
    with pytest.raises(errors.UsageError) as caught:
        sign(pack, Key(keys / "c.pem"))
    assert caught.value.code == "signature.key"
    sign(pack, Key(keys / "c.pem", password="open sesame"))
    assert check(pack, Trust(keys / "c.pub")) == "manifest"


def _other_key(bundle: Path, pack: Path, keys: Path) -> None:
    _made_by_library(manifest_of(pack), keys / "b.pem", bundle)


def _other_pack(bundle: Path, pack: Path, keys: Path) -> None:
    other = pack.with_name("other.gpack")
    other.write_bytes(bases.small())
    sign(other, Key(keys / "a.pem"), signature=bundle)


def _other_digest(bundle: Path, pack: Path, keys: Path) -> None:
    """The digest in the payload is changed: the signature over the payload no longer holds."""
    sign(pack, Key(keys / "a.pem"), signature=bundle)
    said = json.loads(bundle.read_text())
    payload = json.loads(base64.b64decode(said["dsseEnvelope"]["payload"]))
    payload["predicate"]["resources"][0]["digest"] = "0" * 64
    said["dsseEnvelope"]["payload"] = base64.b64encode(json.dumps(payload).encode()).decode()
    bundle.write_text(json.dumps(said))


def _no_signature(bundle: Path, pack: Path, keys: Path) -> None:
    sign(pack, Key(keys / "a.pem"), signature=bundle)
    said = json.loads(bundle.read_text())
    said["dsseEnvelope"]["signatures"] = []
    bundle.write_text(json.dumps(said))


def _bytes(data: bytes) -> Callable[[Path, Path, Path], None]:
    def write(bundle: Path, _pack: Path, _keys: Path) -> None:
        bundle.write_bytes(data)

    return write


FORGED = {
    "other-key": _other_key,
    "other-pack": _other_pack,
    "other-digest": _other_digest,
    "no-signature": _no_signature,
    "empty": _bytes(b""),
    "no-json": _bytes(b"\xff\xfe"),
    "no-object": _bytes(b"[]"),
    "no-payload": _bytes(b'{"dsseEnvelope": {"payload": 1}}'),
    "deep": _bytes(b"[" * 100_000),
    "no-resources": _bytes(
        json.dumps(
            {"dsseEnvelope": {"payload": base64.b64encode(b'{"predicate": {"resources": []}}').decode()}}
        ).encode()
    ),
}


@pytest.mark.parametrize("how", FORGED)
def test_nobody_else_is_let_in(pack: Path, keys: Path, how: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Forged bundles are refused by the function, the command and the model, by name and without a traceback."""
    bundle = Path(f"{pack}.sig")
    FORGED[how](bundle, pack, keys)
    trust = Trust(keys / "a.pub")
    with pytest.raises(errors.DigestError) as caught:
        check(pack, trust)
    assert caught.value.code == "signature.invalid"
    capsys.readouterr()
    assert main(["verify", str(pack), "--signature", "--public-key", str(keys / "a.pub"), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "signature.invalid"
    with pytest.raises(errors.DigestError):
        GuildModel.load(pack, require_signature=trust)


def test_a_missing_signature(pack: Path, keys: Path) -> None:
    with pytest.raises(errors.PathError) as caught:
        check(pack, Trust(keys / "a.pub"))
    assert caught.value.code == "io.not_found"


def test_a_signature_over_the_manifest_does_not_hide_a_changed_weight(pack: Path, keys: Path) -> None:
    """The manifest is as it was signed, and a weight is not: the signature alone holds, verify and load do not."""
    sign(pack, Key(keys / "a.pem"))
    flip(pack, place_of(pack, "Data") + len(DATA) // 2)
    trust = Trust(keys / "a.pub")
    assert check(pack, trust) == "manifest"
    assert main(["verify", str(pack), "--signature", "--public-key", str(keys / "a.pub")]) == 1
    with pytest.raises(errors.DigestError) as caught:
        GuildModel.load(pack, require_signature=trust)
    assert caught.value.code == "section.sha256"


def test_a_signed_model_loads(tmp_path: Path, keys: Path) -> None:
    path = tmp_path / "small.gpack"
    path.write_bytes(bases.small())
    sign(path, Key(keys / "a.pem"), signature=tmp_path / "elsewhere")
    trust = Trust(keys / "a.pub", signature=tmp_path / "elsewhere")
    with GuildModel.load(path, require_signature=trust) as model:
        assert "a.weight" in model.tensors


def test_no_falling_back_to_what_is_not_signed(pack: Path, keys: Path) -> None:
    trust = Trust(keys / "a.pub")
    for paths in (ModelPaths(pack, "m.gguf"), ModelPaths(None, "m.gguf")):
        with pytest.raises(errors.UsageError):
            GuildModel.load(paths, require_signature=trust)
    arguments = ["run", str(pack), "-p", "x", "--require-signature", "--public-key", str(keys / "a.pub")]
    assert main([*arguments, "--gguf", "m.gguf"]) == 2
    assert main(arguments) == 3  # there is no signature


def test_experts_that_no_digest_covers_are_not_signed(tmp_path: Path, keys: Path) -> None:
    """The pack of the kit records whole digests of its shards; without, a signature says nothing of the experts."""
    from gpack.conformance import vectors

    known = {vector.id: vector for vector in vectors.load()}
    trust = Trust(keys / "a.pub")
    for name, code in (("external", None), ("expert.uncovered/ExpertLayoutBin.shards.sha256", "signature.uncovered")):
        folder = tmp_path / name.partition("/")[0]
        folder.mkdir()
        path = known[f"valid/{name}"].write(folder)
        for shard, data in bases.shard_bytes().items():
            (path.parent / shard).write_bytes(data)
        sign(path, Key(keys / "a.pem"))
        if code is None:
            with GuildModel.load(path, require_signature=trust):
                continue
        with pytest.raises(errors.DigestError) as caught:
            GuildModel.load(path, require_signature=trust)
        assert caught.value.code == code


def test_commands(pack: Path, keys: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = pack.with_name("b.sig")
    assert main(["sign", str(pack), "--private-key", str(keys / "a.pem"), "-o", str(bundle), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"ok": True, "file": str(pack), "signature": str(bundle)}
    by = ["--public-key", str(keys / "a.pub")]
    assert main(["verify", str(pack), "--signature", str(bundle), *by, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["signed"] == "manifest"
    assert main(["verify", str(pack), "--signature", str(bundle), *by]) == 0
    assert "The signature of the manifest holds." in capsys.readouterr().out
    (keys / "password").write_text("open sesame\n")
    arguments = ["sign", str(pack), "--private-key", str(keys / "c.pem"), "--password-file", str(keys / "password")]
    assert main(arguments) == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["verify", "m", "--signature"],
        ["verify", "m", "--public-key", "k"],
        ["verify", "m", "--signature", "--public-key", "k", "--certificate-chain", "c"],
        ["verify", "m", "--signature", "--identity", "a@b.c"],
        ["verify", "m", "--signature", "--public-key", "k", "--trust-config", "t"],
        ["verify", "m", "--signature", "--public-key", "k", "--quick"],
        ["verify", "m", "--signature", "--public-key", "k", "--chunks"],
        ["sign", "m"],
        ["sign", "m", "--identity-token", "t", "--certificate", "c"],
        ["inspect", "m", "--extract", "a", "--extract-manifest", "b"],
    ],
)
def test_wrong_usage(arguments: list[str]) -> None:
    assert main(arguments) == 2


@pytest.mark.parametrize("what", ["missing", "no-pem", "wrong-curve"])
def test_keys_that_cannot_be_used(pack: Path, keys: Path, what: str) -> None:
    (keys / "no-pem").write_bytes(b"no key")
    odd = ec.generate_private_key(ec.SECP256K1())
    (keys / "wrong-curve").write_bytes(
        odd.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    with pytest.raises(errors.GpackError) as caught:
        sign(pack, Key(keys / what))
    assert caught.value.code == ("io.not_found" if what == "missing" else "signature.key")
    sign(pack, Key(keys / "a.pem"))
    with pytest.raises(errors.GpackError) as caught:
        check(pack, Trust(keys / what))
    assert caught.value.code == ("io.not_found" if what == "missing" else "signature.key")


def test_the_signature_does_not_take_the_packs_place(pack: Path, keys: Path) -> None:
    before = pack.read_bytes()
    with pytest.raises(errors.UsageError):
        sign(pack, Key(keys / "a.pem"), signature=pack)
    assert pack.read_bytes() == before


def test_without_the_library(pack: Path, keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path(f"{pack}.sig").write_bytes(b"{}")
    monkeypatch.setitem(sys.modules, "model_signing.signing", None)
    with pytest.raises(errors.UnsupportedError) as caught:
        sign(pack, Key(keys / "a.pem"))
    assert caught.value.code == "signature.library"
    with pytest.raises(errors.UnsupportedError):
        check(pack, Trust(keys / "a.pub"))


def test_trust_names_one_way() -> None:
    good = Trust("k")
    good.check()
    for wrong in (Trust(), replace(good, identity="a", issuer="b"), replace(good, issuer="b")):
        with pytest.raises(errors.UsageError):
            wrong.check()


@pytest.mark.parametrize("of", ["manifest", "pack"])
def test_sharded_bundles_are_refused(pack: Path, keys: Path, of: str) -> None:
    """Version 1.1.1 of the library writes such bundles and does not verify them itself; nobody passes over that."""
    from model_signing import hashing

    bundle, target = Path(f"{pack}.sig"), manifest_of(pack) if of == "manifest" else pack
    shards: Any = hashing.Config
    SIGNING().use_elliptic_key_signer(private_key=keys / "a.pem").set_hashing_config(
        shards().use_shard_serialization()
    ).sign(target, bundle)
    with pytest.raises(errors.DigestError) as caught:
        check(pack, Trust(keys / "a.pub"))
    assert caught.value.code == "signature.invalid"


def test_signing_and_checking_read_the_manifest_alone(pack: Path, keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the pack's size: of its megabytes fewer than 64 KiB are read."""
    read = 0
    inode = pack.stat().st_ino

    def counted(name: str) -> None:
        real = getattr(os, name)

        def call(descriptor: int, *rest: Any) -> Any:
            nonlocal read
            done = real(descriptor, *rest)
            if os.fstat(descriptor).st_ino == inode:
                read += done if isinstance(done, int) else len(done)
            return done

        monkeypatch.setattr(os, name, call)

    for name in ("pread", "preadv", "read"):
        counted(name)
    sign(pack, Key(keys / "a.pem"))
    assert check(pack, Trust(keys / "a.pub")) == "manifest"
    assert 0 < read < 1 << 16
    assert pack.stat().st_size > 3 << 20
