"""The prompt cache in a file: the same bytes after a restart, fewer rows, and never from what is not this model's."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3
from gguf_maker import tiny_llama, write_gguf

from gpack.engine.state.saved import read_states, write_states
from gpack.errors import GpackError
from gpack.generate.prefixes import PrefixStore
from gpack.generate.sampling import GREEDY, Sampling
from gpack.generated.prompt_cache.structs import PromptCacheBlock, PromptCacheHeader, PromptCacheState
from gpack.model import GuildModel, ModelPaths

pytest.importorskip("starlette", reason="the extra `serve` is not installed")

from gpack.serve.kept import KeptPrompts, model_digest

from .serving import Bed, open_model

PROMPTS = [list(range(3, 163)), [*range(3, 83), *range(9, 49)], list(range(100, 195))]
MODEL, OPTIONS = b"m" * 32, b"o" * 32


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuildModel]:
    with open_model(tmp_path_factory.mktemp("served")) as opened:
        yield opened


def kept(folder: Path, bed: Bed) -> KeptPrompts:
    return KeptPrompts(str(folder), bed.model, bed.engine, compute="int8", cache_type="F16")


def texts(bed: Bed) -> list[list[int]]:
    told = [bed.ask(prompt, sampling=GREEDY if n else Sampling(seed=4)) for n, prompt in enumerate(PROMPTS)]
    return [one.result().ids for one in told]


def fill(folder: Path, model: GuildModel) -> tuple[Path, list[list[int]], int]:
    """A file that a server left: its path, the texts, and the rows that their prompts took."""
    with Bed(model) as bed:
        file = kept(folder, bed)
        expected = texts(bed)
        rows = bed.scheduler.counters.read_tokens
        bed.scheduler.close(file.save)
    return file.path, expected, rows


def test_a_restart_gives_the_same_bytes_and_computes_less(model: GuildModel, tmp_path: Path) -> None:
    path, expected, rows = fill(tmp_path, model)
    assert rows > 250
    assert os.stat(path).st_mode & 0o777 == 0o600
    with Bed(model) as bed:
        assert kept(tmp_path, bed).load(bed.scheduler.prefixes) >= len(PROMPTS)
        assert texts(bed) == expected
        assert bed.scheduler.counters.read_tokens == len(PROMPTS)  # one row of each, to choose from
        followed = bed.ask([*PROMPTS[0], 7, 8, 9]).result()  # a text goes on from a state without changing it
        assert followed.timings.cached_tokens >= len(PROMPTS[0])
        assert texts(bed) == expected


def test_what_was_used_last_is_kept_where_memory_ends(model: GuildModel, tmp_path: Path) -> None:
    fill(tmp_path, model)
    with Bed(model) as bed:
        file = kept(tmp_path, bed)
        everything = PrefixStore(1 << 30)
        file.load(everything)
        states = everything.states()
        last = sum(states[-1].parts().values())
        few = PrefixStore(last)
        assert file.load(few) == 1
        assert few.states()[0].tokens == states[-1].tokens
        assert bed.engine.pool.used >= last


def test_other_models_and_options_have_other_files(model: GuildModel, tmp_path: Path) -> None:
    path, _, _ = fill(tmp_path, model)
    other = write_gguf(tmp_path / "other.gguf", *tiny_llama(seed=9))
    with GuildModel.load(ModelPaths(primary_model_path=other)) as loaded, Bed(loaded) as bed:
        assert model_digest(loaded) != model_digest(model)
        assert kept(tmp_path, bed).path != path
        assert kept(tmp_path, bed).load(bed.scheduler.prefixes) == 0
    with Bed(model) as bed:
        narrow = KeptPrompts(str(tmp_path), model, bed.engine, compute="f32", cache_type="F16")
        assert narrow.path != path
        os.replace(path, narrow.path)  # even under its name
        assert narrow.load(bed.scheduler.prefixes) == 0


class Case:
    """A file of two states, and how reading it ends."""

    def __init__(self, model: GuildModel, folder: Path) -> None:
        self.path = folder / "x.prompts"
        self.bed = Bed(model)
        texts(self.bed)
        states: Any = self.bed.scheduler.prefixes.states()
        write_states(self.path, states, model=MODEL, options=OPTIONS)
        self.data = self.path.read_bytes()
        self.layouts = states[0].state.layouts

    def read(self, model: bytes = MODEL, options: bytes = OPTIONS) -> str | int:
        pool = self.bed.engine.pool
        used = {"n_vocab": 272, "model": model, "options": options, "most_bytes": 1 << 30}
        try:
            return len(read_states(self.path, self.layouts, pool, **used))  # type: ignore[arg-type]
        except GpackError as error:
            return error.code


@pytest.fixture(scope="module")
def case(model: GuildModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    made = Case(model, tmp_path_factory.mktemp("kept"))
    with made.bed:
        yield made


def test_what_belongs_to_others_is_told(case: Case) -> None:
    case.path.write_bytes(case.data)
    assert isinstance(case.read(), int)
    assert case.read(model=b"n" * 32) == "cache.foreign"
    assert case.read(options=b"n" * 32) == "cache.foreign"
    case.path.unlink()
    assert case.read() == "io.not_found"


def test_no_changed_byte_is_used(case: Case) -> None:
    """A bit of every field, of every table and of every block, and every length that is not the file's."""
    head = PromptCacheHeader.decode(case.data)
    places = [*range(0, head.blocks_offset, 13), *range(head.blocks_offset, len(case.data), 4001)]
    for at in [*places, len(case.data) - 100]:
        changed = bytearray(case.data)
        changed[at] ^= 0x10
        case.path.write_bytes(changed)
        found = case.read()
        assert found in ("cache.damaged", "cache.foreign"), (at, found)
    for length in (0, 10, PromptCacheHeader.SIZE, head.blocks_offset, len(case.data) - 1):
        case.path.write_bytes(case.data[:length])
        assert case.read() in ("cache.damaged", "cache.foreign")
    case.path.write_bytes(case.data + b"x")
    assert case.read() == "cache.damaged"


FORGED = [
    ("states", "first_token", 1 << 40),
    ("states", "position", 0xFFFFFFFF),
    ("states", "position", 1),
    ("states", "recurrent", 0),
    ("blocks", "offset", 1 << 60),
    ("blocks", "length", 1),
    ("blocks", "group", 5),
    ("blocks", "group", 0xFFFFFFFF),
    ("head", "state_count", 1 << 60),
    ("head", "token_count", 1 << 60),
    ("head", "block_count", 0),
    ("head", "blocks_offset", 8),
]


@pytest.mark.parametrize(("where", "field", "value"), FORGED)
def test_numbers_out_of_bounds_are_refused_with_right_digests_too(
    case: Case, where: str, field: str, value: int
) -> None:
    """As somebody would write them who means harm: no state may point at memory that is not its own."""
    data = bytearray(case.data)
    head = PromptCacheHeader.decode(data)
    middle = head.blocks_offset - -(-head.blocks_offset // 64) * 64
    assert middle == 0
    blocks_at = _blocks_at(head)
    if where == "head":
        setattr(head, field, value)
    else:
        kind: Any = PromptCacheState if where == "states" else PromptCacheBlock
        at = PromptCacheHeader.SIZE if where == "states" else blocks_at
        row = kind.decode(data, at)
        setattr(row, field, value)
        data[at : at + kind.SIZE] = row.encode()
    if where != "head" or field != "blocks_offset":
        head.tables_digest = blake3(bytes(data[PromptCacheHeader.SIZE : head.blocks_offset])).digest()
    raw = head.encode()
    head.digest = blake3(raw[: PromptCacheHeader.OFFSETS["digest"]]).digest()
    case.path.write_bytes(head.encode() + bytes(data[PromptCacheHeader.SIZE :]))
    assert case.read() == "cache.damaged"


def _blocks_at(head: PromptCacheHeader) -> int:
    from gpack.generated.prompt_cache.structs import PromptCacheReference, PromptCacheTable, PromptCacheToken

    return (
        PromptCacheHeader.SIZE
        + head.state_count * PromptCacheState.SIZE
        + head.state_count * head.group_count * PromptCacheTable.SIZE
        + head.reference_count * PromptCacheReference.SIZE
        + head.token_count * PromptCacheToken.SIZE
    )


def test_what_cannot_be_used_is_a_line_of_the_log(
    model: GuildModel, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, expected, _ = fill(tmp_path, model)
    path.write_bytes(path.read_bytes()[:-5])
    with Bed(model) as bed, caplog.at_level(logging.WARNING, "gpack.serve"):
        assert kept(tmp_path, bed).load(bed.scheduler.prefixes) == 0
        assert texts(bed) == expected
    assert "is not used" in caplog.text
    with Bed(model) as bed:
        texts(bed)
        file = kept(tmp_path, bed)
        file.path = tmp_path / "nowhere" / "x.prompts"
        bed.scheduler.close(file.save)  # a server ends all the same
    assert "were not kept" in caplog.text
