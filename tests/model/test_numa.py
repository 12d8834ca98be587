"""Interleaving: the system calls for made-up machines, and what a machine of one node says."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import pytest
from gguf_maker import tiny_moe, write_gguf

from gpack.convert.gguf import convert_gguf
from gpack.model.experts import FileExpertSource
from gpack.model.numa import Interleaver, memory_nodes, node_mask, parse_list

Call = tuple[int, int, int, list[int], int, int]


class Recorder:
    """Stands for mbind."""

    def __init__(self, answer: int = 0) -> None:
        self.calls: list[Call] = []
        self.answer = answer

    def __call__(self, address: int, length: int, mode: int, mask: Sequence[int], bits: int, flags: int) -> int:
        self.calls.append((address, length, mode, list(mask), bits, flags))
        return self.answer


@pytest.mark.parametrize(
    ("text", "nodes"), [("0\n", [0]), ("0-3\n", [0, 1, 2, 3]), ("0,2-3,8\n", [0, 2, 3, 8]), ("\n", [])]
)
def test_kernel_lists(text: str, nodes: list[int]) -> None:
    assert parse_list(text) == nodes


def test_the_topology_is_the_system_s(tmp_path: Path) -> None:
    assert memory_nodes(tmp_path) == []
    (tmp_path / "online").write_text("0-1\n")
    assert memory_nodes(tmp_path) == [0, 1]
    (tmp_path / "has_memory").write_text("1\n")  # node 0 has processors alone
    assert memory_nodes(tmp_path) == [1]
    (tmp_path / "has_memory").write_text("what?\n")
    assert memory_nodes(tmp_path) == [0, 1]


def test_masks_are_words_of_64_bits() -> None:
    assert node_mask([0, 1]) == [3]
    assert node_mask([0, 2, 3]) == [0b1101]
    assert node_mask([1, 64, 130]) == [2, 1, 4]


def test_the_call_says_interleave_and_names_the_nodes() -> None:
    record = Recorder()
    interleaver = Interleaver([0, 1, 3], mbind=record)
    assert interleaver.spread(0x7F0000000000, 8192)
    # MPOL_INTERLEAVE is 3; the kernel takes one off the number of bits.
    assert record.calls == [(0x7F0000000000, 8192, 3, [0b1011], 65, 0)]


def test_every_buffer_of_the_cache_is_spread_before_it_is_filled(tmp_path: Path) -> None:
    source = write_gguf(tmp_path / "m.gguf", *tiny_moe())
    convert_gguf(source, tmp_path / "e.gpack")
    record = Recorder()
    interleave = Interleaver([0, 1], mbind=record)
    with FileExpertSource.open_gpack(tmp_path / "e.gpack", interleave=interleave) as experts:
        for layer in experts.layers:
            for number in range(4):
                experts.get(layer, number)
                experts.get(layer, number)
    assert len(record.calls) == 8
    assert {call[1:] for call in ((c[0], c[1], c[2], tuple(c[3]), c[4], c[5]) for c in record.calls)} == {
        (8192, 3, (3,), 65, 0)
    }
    assert all(call[0] % 4096 == 0 for call in record.calls)


def test_one_node_is_refused_politely(caplog: pytest.LogCaptureFixture) -> None:
    record = Recorder()
    with caplog.at_level(logging.INFO, logger="gpack"):
        assert not Interleaver([0], mbind=record).spread(4096, 4096)
        assert not caplog.records
        assert not Interleaver([0], mbind=record, asked=True).spread(4096, 4096)
    assert [entry.message for entry in caplog.records] == ["memory is not interleaved: this machine has 1 NUMA node(s)"]
    assert not record.calls


def test_a_kernel_that_refuses_is_asked_once(caplog: pytest.LogCaptureFixture) -> None:
    record = Recorder(answer=1)
    interleaver = Interleaver([0, 1], mbind=record)
    assert not interleaver.spread(4096, 4096)
    assert not interleaver.spread(8192, 4096)
    assert len(record.calls) == 1
    assert "mbind is refused (Operation not permitted)" in caplog.text


def test_the_system_call_itself() -> None:
    """A machine of one node takes the policy as well: the numbers and types of the call are right."""
    import ctypes
    import mmap

    from gpack.model.numa import system_mbind

    buffer = mmap.mmap(-1, 8192, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    anchor = ctypes.c_char.from_buffer(buffer)
    address = ctypes.addressof(anchor)
    nodes = memory_nodes()
    if not nodes:
        pytest.skip("this system tells nothing of its nodes")
    mask = node_mask(nodes)
    answer = system_mbind(address, 8192, 3, mask, len(mask) * 64 + 1, 0)
    if answer in (1, 38):
        pytest.skip("this system does not let programs place memory")
    assert answer == 0
    assert system_mbind(address + 1, 8192, 3, mask, 65, 0) == 22  # EINVAL: no page
    del anchor
