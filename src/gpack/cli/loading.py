"""How commands that run models load them: arguments and all that can be wrong with a file."""

from __future__ import annotations

import argparse
import logging
import os
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .. import errors
from ..container.mapped import IO_MODES
from .trusting import add_trust_arguments, trust_of
from .vocabulary import gguf_kind, is_gguf

if TYPE_CHECKING:
    from ..generate.guild_model import GuildModel
    from ..model import ModelPaths

LOG = logging.getLogger("gpack")
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def add_loading(group: Any) -> None:
    """Declares how files are read and checked."""
    group.add_argument(
        "--io",
        choices=(*IO_MODES, "direct"),
        default="auto",
        help="how weights come: mapped; read; experts read past the page cache (default: mapped where that works)",
    )
    group.add_argument(
        "--verify",
        action="store_const",
        const="full",
        help="first check every rule and the digest of every byte, as `guild verify` does, and run nothing else",
    )
    group.add_argument(
        "--verify=lazy",
        dest="verify",
        action="store_const",
        const="lazy",
        help="check the chunks of a tensor before its first use (needs a pack with digests of chunks)",
    )
    add_trust_arguments(
        group, "--require-signature", "run nothing but what is signed, and verify it; the bundle's path"
    )
    group.add_argument("--gguf", metavar="FILE", help="load this where the pack is missing or invalid")
    group.add_argument("--expert-dir", metavar="DIR", help="where the shards of external experts are")
    group.add_argument(
        "--expert-budget", type=number_of_bytes, metavar="BYTES", help="keep so much of the experts in memory: 4G"
    )
    group.add_argument("--pack-dir", metavar="DIR", help="pack directory that goes with a GGUF")
    group.add_argument("--mtp-dir", metavar="DIR", help="draft layers that go with a GGUF")


def load(args: argparse.Namespace, path: str) -> GuildModel:
    """A model that can be run, from a pack or a GGUF.

    Raises:
        GpackError: As `GuildModel.load`; the file is none, is not what it was signed as, or cannot be run.
    """
    from ..model import GuildModel, ModelPaths

    if os.path.isdir(path) or path.endswith(".safetensors"):
        raise errors.UsageError(
            "only packs and GGUFs can be run",
            code="usage",
            path=path,
            hint="safetensors become a pack: guild convert FOLDER -o model.gpack",
        )
    # A pack that is missing or unreadable is for `load` to judge, which knows what to do then.
    if args.gguf is None and is_gguf(path):
        if kind := gguf_kind(path):
            raise errors.UnsupportedError(f"the file cannot be run: {kind}", code="engine.obstacle", path=path)
        paths = ModelPaths(None, path, args.expert_dir, args.pack_dir, args.mtp_dir)
    else:
        paths = ModelPaths(path, args.gguf, args.expert_dir, args.pack_dir, args.mtp_dir)
    trust = trust_of(args, "--require-signature")
    if args.verify == "full" and trust is None:
        paths, identity = _verified(paths)
    if args.verify == "lazy" and paths.gpack_path is None:
        raise errors.UsageError("--verify=lazy needs a pack: a GGUF has no digests", code="usage")
    model = GuildModel.load(
        paths,
        io=args.io,
        expert_budget_bytes=args.expert_budget,
        verify_all_hashes="lazy" if args.verify == "lazy" else False,
        require_signature=trust,
    )
    if (
        args.verify == "full"
        and trust is None
        and model.pack is not None
        and model.pack.container.footer.manifest_sha256 != identity
    ):
        model.close()
        raise errors.DigestError(
            "the file is another one than was checked just before",
            code="pack.changed",
            path=path,
            hint="do not change a file while it is used",
        )
    if obstacles := model.obstacles:
        model.close()
        raise errors.UnsupportedError(
            f"the model cannot be run: {'; '.join(obstacles)}",
            code="engine.obstacle",
            path=path,
            hint="the pack says so since it was imported; its tensors can be read",
        )
    return model


def _verified(paths: ModelPaths) -> tuple[ModelPaths, bytes | None]:
    """The paths without the pack where it is unsound and there is a GGUF; and the manifest's digest.

    Raises:
        GpackError: The first rule that is broken, or the first shard that is at fault, where there is no GGUF.
    """
    from ..sections.verify import verify
    from .progress import Progress

    if paths.gpack_path is None:
        raise errors.UsageError("--verify needs a pack: a GGUF has no digests", code="usage")
    try:
        with Progress("verify") as bar:
            found = verify(paths.gpack_path, shards=True, expert_dir=paths.expert_dir, progress=bar.update)
        violation = found.report.first_error()
        if violation is not None:
            raise violation.error(paths.gpack_path, found.report.hint)
        for shard in found.shards:
            if shard.error is not None:
                raise shard.error
    except errors.GpackError as error:
        if paths.primary_model_path is None:
            raise
        LOG.warning("%s; loading %s instead", error, paths.primary_model_path)
        return replace(paths, gpack_path=None), None
    footer = found.structure.footer
    return paths, None if footer is None else footer.manifest_sha256


def number_of_bytes(text: str) -> int:
    """A number of bytes, such as 4G or 512M."""
    found = re.fullmatch(r"(\d{1,15})\s*([kmgt]?)(?:i?b)?", text.strip().lower())
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of bytes, such as 4G or 512M")
    return int(found[1]) * _UNITS[found[2]]
