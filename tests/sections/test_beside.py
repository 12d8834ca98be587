"""Tables that are checked while bytes are hashed: the same findings, whoever is first; merges that spell themselves."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from exhaustive import amount, grows
from gguf_maker import tiny_moe, write_gguf
from hypothesis import given, settings
from hypothesis import strategies as st

from gpack.conformance import vectors
from gpack.container.workers import start
from gpack.convert.gguf import convert_gguf
from gpack.sections import verify as module
from gpack.sections.lanes import Blob
from gpack.sections.merges import resolve_merges, spell_themselves
from gpack.sections.strings import StringTable
from gpack.sections.verify import verify


@grows
@pytest.mark.parametrize("how", [{}, {"chunks": True, "threads": 1}])
def test_findings_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: dict[str, int]) -> None:
    """Vectors of the kit, with the tables checked beside and after the bytes; every fifth by default."""
    compared = 0
    for vector in list(vectors.load())[:: amount(5, 1)]:
        folder = tmp_path / vector.id.replace("/", "-").replace(":", "-")
        folder.mkdir()
        path = vector.write(folder)
        found = []
        for size in (1 << 40, 0):
            monkeypatch.setattr(module, "BESIDE", size)
            try:
                done = verify(path, **how)  # type: ignore[arg-type]
            except Exception as error:  # where there are no digests of chunks
                found.append([str(error)])
                continue
            kept = [str(violation.to_dict()) for violation in done.report.violations]
            found.append([*kept, str(done.report.counts), str(sorted(done.report.checked)), str(done.bytes_hashed)])
        assert found[0] == found[1], vector.id
        compared += 1
    assert compared > 50


def test_an_interrupt_leaves_no_file_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BESIDE", 0)
    metadata, tensors = tiny_moe(layers=1)
    convert_gguf(write_gguf(tmp_path / "m.gguf", metadata, tensors), tmp_path / "m.gpack")
    before = len(os.listdir("/proc/self/fd"))

    def interrupt(_count: int, _total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        verify(tmp_path / "m.gpack", progress=interrupt)
    for _ in range(1000):
        if len(os.listdir("/proc/self/fd")) == before:
            return
        time.sleep(0.01)
    pytest.fail("a file stayed open")


def test_what_a_job_raises_comes_to_who_waits() -> None:
    def fails() -> int:
        raise ValueError("the reason")

    assert start(lambda: 7)() == 7
    with pytest.raises(ValueError, match="the reason"):
        start(fails)()


# ---------------------------------------------------------------- merges


def lying(tokens: list[bytes]) -> tuple[npt.NDArray[np.uint32], Blob]:
    """Offsets and bytes, as a section has them."""
    return np.cumsum([0, *map(len, tokens)]).astype(np.uint32), Blob(memoryview(b"".join(tokens)))


def table(strings: list[bytes]) -> StringTable:
    lengths = np.array([len(text) for text in strings], np.int64)
    return StringTable(memoryview(b"".join(strings)), np.cumsum(lengths) - lengths, lengths)


@pytest.mark.parametrize(
    ("tokens", "triples", "sure"),
    [
        ([b"a", b"b", b"ab"], [[0, 1, 2]], True),
        ([b" ", b"b", b" b"], [[0, 1, 2]], True),  # a space as first byte splits nothing
        ([b"a", b"b", b"ab", b"a"], [[0, 1, 2]], False),  # the text means the last `a`
        ([b"a ", b"b", b"a b"], [[0, 1, 2]], False),  # the text is split after `a`
        ([b"", b"b", b"b!"], [[0, 1, 1]], False),
        ([b"a", b"b", b"ab"], [[0, 1, 2], [-1, -1, -1]], False),
        ([b"a", b"b", b"ab"], [[0, 1, 3]], False),
        ([b"a"], [], False),
    ],
)
def test_merges_that_spell_themselves(tokens: list[bytes], triples: list[list[int]], sure: bool) -> None:
    for doubled in (None, len(set(tokens)) < len(tokens)):
        assert spell_themselves(*lying(tokens), np.array(triples, np.int32).reshape(-1, 3), doubled) is sure


@settings(max_examples=300, deadline=None)
@given(st.lists(st.text("ab ", max_size=4).map(str.encode), min_size=1, max_size=12), st.data())
def test_what_spells_itself_resolves_to_itself(tokens: list[bytes], data: st.DataObject) -> None:
    """Against the resolver itself, over vocabularies with duplicates, empty tokens and spaces everywhere."""
    pairs = [
        (left, right, tokens.index(tokens[left] + tokens[right]))
        for left in range(len(tokens))
        for right in range(len(tokens))
        if tokens[left] + tokens[right] in tokens
    ]
    if not pairs:
        return
    chosen = data.draw(st.lists(st.sampled_from(pairs), min_size=1, max_size=5))
    triples = np.array(chosen, np.int32)
    if spell_themselves(*lying(tokens), triples):
        texts = table([tokens[left] + b" " + tokens[right] for left, right, _ in chosen])
        found, exact = resolve_merges(table(tokens), texts)
        assert exact
        assert found.tolist() == triples.tolist()
