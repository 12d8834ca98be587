"""Broken digests of chunks, and parity."""

from __future__ import annotations

from ...generated.constants import ParityCode
from ...generated.structs import ChunkDigestsHeaderV1, ParityHeaderV1
from ..parts import Parts
from .bases import digest_chunks, sealed
from .case import PACK, Change, K, case, steps
from .edits import set_header

DIGESTS, PARITY = K.CHUNK_DIGESTS, K.PARITY


def _digest(**fields: int) -> Change:
    return set_header(DIGESTS, **fields)


def _parity(**fields: int) -> Change:
    return steps(set_header(PARITY, **fields), digest_chunks)


def _cut(kind: int, length: int) -> Change:
    def change(pack: Parts) -> None:
        del pack.section(kind).data[length:]
        if kind == PARITY:
            digest_chunks(pack)

    return change


def _one_digest_less(pack: Parts) -> None:
    section = pack.section(DIGESTS)
    count = pack.get(DIGESTS).num_digests - 1
    del section.data[-32:]
    section.entry.item_count = count
    pack.set(DIGESTS, num_digests=count)


def _other_weight(pack: Parts) -> None:
    data = pack.section(PACK).data
    pack.poke(PACK, 0, bytes([data[0] ^ 1]))


def _other_digest(pack: Parts) -> None:
    data = pack.section(DIGESTS).data
    at = ChunkDigestsHeaderV1.SIZE
    pack.poke(DIGESTS, at, bytes([data[at] ^ 0x80]))


case("parity.chunks", "Parity", "", lambda pack: pack.remove(DIGESTS), base=sealed, placed=False, variant="alone")
case("chunks.header", "ChunkDigests", "", _cut(DIGESTS, 63), base=sealed, placed=False)
case("chunks.magic", "ChunkDigests", "magic", _digest(magic=0x44435048), base=sealed)
case("chunks.algorithm", "ChunkDigests", "algorithm", _digest(algorithm=0), base=sealed, variant="zero")
case("chunks.algorithm", "ChunkDigests", "algorithm", _digest(algorithm=3), base=sealed, variant="later")
case("chunks.chunk_size", "ChunkDigests", "chunk_log2", _digest(chunk_log2=19), base=sealed, variant="too-small")
case("chunks.chunk_size", "ChunkDigests", "chunk_log2", _digest(chunk_log2=33), base=sealed, variant="too-large")
case("chunks.chunk_size", "ChunkDigests", "chunk_log2", _digest(chunk_log2=0xFFFFFFFF), base=sealed, variant="absurd")
case("chunks.layout", "ChunkDigests", "num_digests", _digest(num_digests=0xFFFFFFFF), base=sealed, variant="endless")
case("chunks.layout", "ChunkDigests", "num_digests", _cut(DIGESTS, 65), base=sealed, placed=False, variant="cut")
case("chunks.count", "ChunkDigests", "num_digests", _one_digest_less, base=sealed)
case("chunks.digest", "DensePackBlob", "", _other_weight, base=sealed, variant="other-bytes")
case("chunks.digest", "MetadataKvBin", "", _other_digest, base=sealed, placed=False, variant="other-digest")
case("parity.header", "Parity", "", _cut(PARITY, 63), base=sealed, placed=False)
case("parity.magic", "Parity", "magic", _parity(magic=0x52505048), base=sealed)
case("parity.code", "Parity", "code", _parity(code=ParityCode.CAUCHY + 1), base=sealed)
case("parity.stripes", "Parity", "num_data", _parity(num_data=256), base=sealed, placed=False, variant="too-long")
case("parity.stripes", "Parity", "num_data", _parity(num_data=1), base=sealed, variant="too-short")
case("parity.bytes", "Parity", "parity_bytes", _parity(num_stripes=0xFFFFFFFF), base=sealed, placed=False)
case("parity.layout", "Parity", "parity_bytes", _cut(PARITY, ParityHeaderV1.SIZE + 1), base=sealed, placed=False)
case("parity.chunks", "Parity", "num_chunks", _parity(num_chunks=1), base=sealed)
