"""Broken tensor directories, dense tables, experts and draft layers."""

from __future__ import annotations

from collections.abc import Callable

from ...generated.structs import ExpertLayoutHeaderV1, ExpertLayoutRowV1, ExpertShardRowV1, GPackSingleTensorHeaderV1
from ..parts import Parts
from .bases import external, small, vocabulary
from .case import ARENA, BLOBS, DENSE, HEAD_BLOB, INDEX, LAYOUT, MTP, NATIVE, PACK, PLE_BLOB, Change, case, steps
from .edits import add, append, at_row, cut, edit_entry, poke, set_header, set_row

PLE, ROPE, CONV = "per_layer_token_embd.weight", "rope_freqs.weight", "blk.0.conv.weight"
EMBED = "token_embd.weight"  # the last name
QUERY, NORM, PROJ = "blk.0.attn_q.weight", "blk.3.attn_norm.weight", "blk.3.nextn.eh_proj.weight"
GATE = "blk.1.ffn_gate_exps.weight"
F16 = 1

no_shards: Change = lambda pack: pack.manifest["experts"].pop("shards", None)  # noqa: E731


def tensor(name: str, field: str, value: object) -> tuple[str, str, Change]:
    """Section, path and change of a field in the tensor index."""
    return "TensorIndexBin", at_row(INDEX, name, field), set_row(INDEX, name, **{field: value})


def totals(parameters: int = 0, octets: int = 0) -> Change:
    """Makes totals and manifest agree with a changed row."""

    def change(pack: Parts) -> None:
        header = pack.get(INDEX)
        if parameters:
            pack.set(INDEX, parameter_count=header.parameter_count + parameters)
            pack.manifest["model"]["parameter_count"] += parameters
        if octets:
            pack.set(INDEX, tensor_bytes=header.tensor_bytes + octets)

    return change


def by_type(name: str, octets: int) -> Change:
    """Makes the manifest agree with changed bytes of a type."""

    def change(pack: Parts) -> None:
        pack.manifest["model"]["bytes_by_type"][name] += octets

    return change


def elsewhere(name: str) -> Change:
    """Says that a tensor lies 64 bytes further, or before."""
    return lambda pack: pack.set_row(INDEX, name, offset=pack.rows(INDEX)[pack.find(INDEX, name)].offset ^ 64)


def moved(kind: int, name: str, amount: int) -> Change:
    """Adds to the offset of a row."""
    return lambda pack: pack.set_row(kind, name, offset=pack.rows(kind)[pack.find(kind, name)].offset + amount)


# ---------------------------------------------------------------- tensor index

FIRST = "blk.0.attn_k.weight"  # the first name of both tables
for new in (b"", b"b" * 65536):
    case(
        "tensor.name",
        "TensorIndexBin",
        "rows[0].name_length",
        steps(edit_entry(INDEX, FIRST, new=new), edit_entry(DENSE, FIRST, new=new)),
        placed=False,
        published=not new,
    )
case("tensor.type", *tensor(PLE, "ggml_type", 43), variant="43")
case("tensor.type", *tensor(ROPE, "ggml_type", 0xFFFFFFFF), variant="largest")
case("tensor.rank", *tensor(PLE, "n_dims", 9))
case(
    "tensor.dims",
    "TensorIndexBin",
    at_row(INDEX, PLE, "dims"),
    steps(set_row(INDEX, PLE, dims=(64, 5, 2, 1, 1, 1, 1, 1)), totals(320)),
)
case(
    "tensor.byte_size",
    "TensorIndexBin",
    at_row(INDEX, PLE, "byte_size"),
    steps(set_row(INDEX, PLE, byte_size=339), totals(octets=-1), by_type("Q8_0", -1)),
    variant="byte-less",
)
case(
    "tensor.byte_size",
    "TensorIndexBin",
    at_row(INDEX, PLE, "byte_size"),
    steps(set_row(INDEX, PLE, dims=(63, 5, 1, 1, 1, 1, 1, 1)), totals(-5)),
    placed=False,
    variant="half-a-block",
)
case("tensor.home", *tensor(FIRST, "home", 2), variant="table")
case("tensor.home", *tensor(PLE, "home", 99), variant="unknown")
case("tensor.role", *tensor(ROPE, "role", 5), variant="unknown")
case("tensor.role", *tensor(ROPE, "role", 1), variant="dense")
case("tensor.role", *tensor(GATE, "role", 0), variant="none")
case("tensor.external", *tensor(ROPE, "flags", 1))
case("tensor.code_planes", *tensor(PLE, "flags", 2))
case(
    "tensor.home_present",
    "TensorIndexBin",
    at_row(INDEX, "output.weight", "home"),
    lambda p: p.remove(HEAD_BLOB),
    placed=False,
)
case(
    "tensor.home_rule",
    "TensorIndexBin",
    "",
    steps(
        edit_entry(INDEX, "blk.2.ffn_gate_inp.weight", new=b"blk.3.ffn_gate_inp.weight"),
        edit_entry(DENSE, "blk.2.ffn_gate_inp.weight", new=b"blk.3.ffn_gate_inp.weight"),
    ),
    placed=False,
)
for name in (ROPE, QUERY, PLE, NORM, GATE):
    case("tensor.home_row", *tensor(name, "home_row", 77), variant=name)
for name in (ROPE, QUERY, PLE, NORM, GATE):
    case("tensor.home_row", "TensorIndexBin", at_row(INDEX, name, "offset"), elsewhere(name), variant=name)
case("tensor.bounds", *tensor(PLE, "offset", 1 << 40))
case(
    "tensor.position",
    "TensorIndexBin",
    at_row(INDEX, EMBED, "position"),
    lambda p: p.set_row(INDEX, EMBED, position=p.rows(INDEX)[0].position),
    variant="doubled",
)
case("tensor.position", *tensor(ROPE, "position", 1 << 20), variant="beyond")
case("tensor.totals", "TensorIndexBin", "parameter_count", add(INDEX, "parameter_count", 1), variant="elements")
case("tensor.totals", "TensorIndexBin", "parameter_count", add(INDEX, "tensor_bytes", 1), placed=False, variant="bytes")
case(
    "field.range",
    "ExpertLayoutBin",
    "shards[0].file_size",
    steps(lambda p: p.set_row(LAYOUT, 0, ExpertShardRowV1, file_size=1 << 53), no_shards),
    base=external,
)

# ---------------------------------------------------------------- single tensors


def single(pack: Parts, **fields: int) -> None:
    """Adds a PLE table that no tensor of the index owns."""
    header = GPackSingleTensorHeaderV1(ggml_type=F16, ne0=1, ne1=1, byte_size=2)
    header.data_offset = header.SIZE
    for name, value in fields.items():
        setattr(header, name, value)
    pack.add(PLE_BLOB, header.encode() + b"\0\1", 1)


case("single.header", "PleBlob", "", lambda p: p.add(PLE_BLOB, bytes(63), 1), base=vocabulary, placed=False)
case("single.type", "PleBlob", "ggml_type", set_header(PLE_BLOB, ggml_type=43))
case("single.byte_size", "PleBlob", "byte_size", set_header(PLE_BLOB, ne1=6), placed=False, variant="rows")
case("single.byte_size", "PleBlob", "byte_size", set_header(PLE_BLOB, ne0=63), placed=False, variant="half-a-block")
case("single.data_offset", "PleBlob", "data_offset", set_header(PLE_BLOB, data_offset=128))
case("single.bounds", "PleBlob", "byte_size", append(PLE_BLOB, b"x"), placed=False)
case("single.orphan", "PleBlob", "", single, base=vocabulary, placed=False)

# ---------------------------------------------------------------- dense tables


def dense(name: str, **fields: int) -> tuple[str, Change]:
    """Path and change of a row of the dense index."""
    return at_row(DENSE, name, next(iter(fields))), set_row(DENSE, name, **fields)


D = "DenseIndexBin"
case("dense.totals", D, "dense_pool_bytes", add(DENSE, "dense_pool_bytes", 1), variant="whole")
case(
    "dense.totals",
    D,
    "dense_pool_bytes",
    set_header(DENSE, dense_compacted_pool_bytes=1 << 30),
    placed=False,
    variant="compacted",
)
case("dense.type", D, at_row(DENSE, ROPE, "ggml_type"), set_row(DENSE, ROPE, pool_type=99), placed=False)
case("dense.kind", D, *dense(ROPE, kind=1), variant="not-bf16")
case("dense.kind", D, *dense(ROPE, kind=99), variant="unknown")
case("dense.pool_bytes", D, *dense(ROPE, pool_bytes=16))
case("dense.pool_alignment", D, *dense(ROPE, pool_offset=64))
case(
    "dense.skip", D, at_row(DENSE, QUERY, "byte_size"), set_row(DENSE, QUERY, offset=64), placed=False, variant="offset"
)
case("dense.skip", D, *dense(QUERY, byte_size=1), variant="bytes")
for column in ("code_bits", "code_bias", "group_elems", "codebook", "codes_bytes", "scales_bytes", "offset_bytes"):
    case(
        "dense.code_planes",
        D,
        at_row(DENSE, ROPE, "code_bits"),
        set_row(DENSE, ROPE, **{column: 4}),
        placed=column == "code_bits",
        variant=column,
    )
# The three values of 12 bytes as codes of 8 bits and scales: 3 bytes and 9; 4 and 9 are too many.
planes = {"flags": 2, "code_bits": 8, "group_elems": 1, "scales_bytes": 9}
case(
    "dense.planes",
    D,
    at_row(DENSE, ROPE, "codes_bytes"),
    steps(set_row(INDEX, ROPE, flags=2), set_row(DENSE, ROPE, **planes, codes_bytes=4)),
)
case("dense.rows", D, at_row(DENSE, ROPE, "flags"), set_row(DENSE, ROPE, **planes, codes_bytes=3), placed=False)
case("dense.rows", D, at_row(DENSE, QUERY, "dims"), set_row(DENSE, QUERY, n_dims=3), placed=False)
case(
    "dense.rows",
    D,
    at_row(DENSE, "blk.0.ffn_up.weight", "name_offset"),
    edit_entry(DENSE, "blk.0.ffn_up.weight", new=b"blk.0.ffn_uq.weight"),
    placed=False,
)
case("dense.placement", "DensePackBlob", "", append(PACK, b"\0"), placed=False)
case(
    "dense.placement",
    D,
    at_row(DENSE, ROPE, "offset"),
    steps(moved(DENSE, ROPE, 64), moved(INDEX, ROPE, 64), append(PACK, bytes(64))),
)
case("dense.pool_layout", D, "dense_pool_bytes", add(DENSE, "dense_pool_bytes", 256))
case("dense.pool_layout", D, at_row(DENSE, ROPE, "compacted_offset"), set_row(DENSE, ROPE, compacted_offset=0))

N = "NativeDenseIndexBin"
case("native.total", N, "native_dense_arena_bytes", add(NATIVE, "native_dense_arena_bytes", 1))
case("native.type", N, "rows[0].ggml_type", set_row(NATIVE, 0, ggml_type=4))
case("native.alignment", N, "rows[0].offset", steps(set_row(NATIVE, 0, offset=64), set_row(INDEX, QUERY, offset=64)))
case("native.byte_size", N, "rows[0].byte_size", set_row(NATIVE, 0, ne1=33), placed=False)
case(
    "native.placement",
    N,
    "native_dense_arena_bytes",
    steps(add(NATIVE, "native_dense_arena_bytes", 256), append(ARENA, bytes(256))),
    variant="both",
)
case("native.placement", N, "native_dense_arena_bytes", append(ARENA, bytes(256)), placed=False, variant="blob")
case("blob.padding", "DensePackBlob", "padding", poke(PACK, 761, b"\1"))
case("blob.padding", "NativeDenseBlob", "padding", lambda p: p.poke(ARENA, len(p.section(ARENA).data) - 1, b"\1"))
case("blob.padding", "MtpBlob", "padding", lambda p: p.poke(MTP, p.get(MTP).ofs_data - 1, b"\1"), variant="before-data")
case(
    "blob.padding",
    "MtpBlob",
    "padding",
    lambda p: p.poke(MTP, p.get(MTP).ofs_data + 62, b"\1"),
    variant="between-tensors",
)
case(
    "blob.padding",
    "MtpBlob",
    "padding",
    lambda p: p.poke(MTP, len(p.section(MTP).data) - 1, b"\1"),
    variant="after-experts",
)

# ---------------------------------------------------------------- experts

E = "ExpertLayoutBin"
# Where the second shard's name begins: header, two layers, two shards, and the 25 bytes of the first name.
SECOND_NAME = ExpertLayoutHeaderV1.SIZE + 2 * ExpertLayoutRowV1.SIZE + 2 * ExpertShardRowV1.SIZE + 25


def shard(index: int, **fields: object) -> Change:
    """Sets fields of a shard's row."""
    return lambda pack: pack.set_row(LAYOUT, index, ExpertShardRowV1, **fields)


def no_experts(pack: Parts) -> None:
    """A further layer, well placed, of no expert."""
    data = pack.section(LAYOUT).data
    row = ExpertLayoutRowV1.decode(data, ExpertLayoutHeaderV1.SIZE)
    row.layer, row.n_expert, row.offset = 7, 0, len(pack.section(BLOBS).data)
    data += row.encode()
    end = ExpertLayoutHeaderV1.SIZE + 2 * ExpertLayoutRowV1.SIZE
    pack.set(LAYOUT, num_rows=2, ofs_heap=end, ofs_shards=end)
    pack.section(LAYOUT).entry.item_count = 2
    pack.manifest["experts"]["layer_count"] = 2


case("expert.shard_table", E, "ofs_shards", set_header(LAYOUT, shard_row_size=88), placed=False, variant="short-rows")
case("expert.shard_table", E, "ofs_shards", set_header(LAYOUT, num_shards=0xFFFFFFFF), placed=False, variant="endless")
case("expert.shard_table", E, "ofs_shards", set_header(LAYOUT, ofs_shards=64), variant="elsewhere")
case("expert.count", E, "rows[1].n_expert", no_experts, base=small, placed=False)
case("expert.type", E, "rows[0].gate_type", set_row(LAYOUT, 0, up_type=4), placed=False)
case("expert.slice_bytes", E, "rows[0].gate_bytes", set_row(LAYOUT, 0, down_ne1=33), placed=False)
case("expert.no_gate", E, "rows[0].flags", set_row(LAYOUT, 0, gate_ne0=1), base=small, placed=False)
case(
    "expert.placement",
    E,
    "rows[0].offset",
    set_row(LAYOUT, 0, down_offset=4096),
    placed=False,
    variant="embedded-with-shard",
)
case(
    "expert.placement",
    E,
    "rows[0].offset",
    set_row(LAYOUT, 0, stride=4096),
    base=external,
    placed=False,
    variant="external-with-stride",
)
case(
    "expert.placement",
    E,
    "rows[0].offset",
    set_row(LAYOUT, 0, gate_stride=1),
    base=external,
    placed=False,
    variant="overlap",
)
case("expert.mode", E, "rows[0].flags", lambda p: p.add(BLOBS, b"", 6), base=external, placed=False)
case("expert.blob_layout", "ExpertBlobs", "", append(BLOBS, bytes(4096)), placed=False)
case(
    "expert.blob_layout",
    E,
    "rows[1].offset",
    steps(
        set_row(LAYOUT, 1, offset=4096 * 4),
        moved(INDEX, "blk.2.ffn_gate_up_exps.weight", 4096),
        moved(INDEX, "blk.2.ffn_down_exps.weight", 4096),
    ),
)
case("expert.rows", E, "rows[1].up_type", set_row(LAYOUT, 1, up_type=20))
case("expert.rows", E, "rows[1].up_offset", lambda p: p.set_row(LAYOUT, 1, up_offset=1 << 16), base=external)
case("expert.rows", E, "rows[1].layer", set_row(LAYOUT, 1, layer=9))
case(
    "expert.padding",
    "ExpertBlobs",
    "padding",
    lambda p: p.poke(BLOBS, len(p.section(BLOBS).data) - 1, b"\1"),
    variant="last",
)
case("expert.padding", "ExpertBlobs", "padding", poke(BLOBS, 4095, b"\1"), variant="first")
case(
    "expert.total",
    E,
    "expert_bytes",
    lambda p: (add(LAYOUT, "expert_bytes", 1)(p), p.manifest["experts"].update(bytes=p.get(LAYOUT).expert_bytes)),
)
case("expert.shard_ref", E, "rows[0].gate_shard", set_row(LAYOUT, 0, gate_shard=2), base=external)
case("expert.shard_ref", E, "rows[0].gate_offset", set_row(LAYOUT, 0, gate_stride=1 << 30), base=external, placed=False)
case("expert.shard_ref", E, "rows[0].down_offset", shard(1, header_size=5000), base=external, placed=False)
case(
    "expert.shard_name",
    E,
    "shards[1].name_length",
    steps(shard(1, name_offset=0, name_length=0), cut(LAYOUT, SECOND_NAME), set_header(LAYOUT, len_heap=25), no_shards),
    base=external,
)
for what, at, octets in (("root", 0, b"/"), ("backslash", 3, b"\\"), ("drive", 1, b":"), ("line-feed", 24, b"\n")):
    case(
        "expert.shard_path",
        E,
        "shards[1].name_offset",
        steps(poke(LAYOUT, SECOND_NAME + at, octets), no_shards),
        base=external,
        placed=False,
        variant=what,
    )
case("expert.shard_header", E, "shards[0].header_size", shard(0, header_size=0), base=external, variant="zero")
case(
    "expert.shard_header",
    E,
    "shards[0].header_size",
    shard(0, header_size=(1 << 20) + 1),
    base=external,
    variant="beyond",
)
case("expert.shard_digest", E, "shards[0].sha256", steps(shard(0, flags=0), no_shards), base=external, placed=False)
case(
    "expert.uncovered",
    E,
    "shards[0].sha256",
    steps(shard(0, flags=0, sha256=bytes(32)), no_shards),
    base=external,
    placed=False,
)
case(
    "tensor.home_row",
    "TensorIndexBin",
    at_row(INDEX, GATE, "home_row", external),
    steps(lambda p: p.remove(LAYOUT), lambda p: p.manifest.pop("experts")),
    base=external,
    placed=False,
    variant="no-layout",
)

# ---------------------------------------------------------------- draft layers

M = "MtpBlob"


def draft(name: str, **fields: object) -> tuple[str, Callable[[Parts], None]]:
    """Path and change of a row of the draft table."""
    return at_row(MTP, name, next(iter(fields))), lambda pack: pack.set_row(MTP, name, **fields)


case("mtp.data", M, "ofs_data", add(MTP, "len_data", 1), placed=False, variant="len_data")
case("mtp.data", M, "ofs_data", append(MTP, b"x"), placed=False, variant="byte-more")
case("mtp.type", M, *draft(NORM, ggml_type=4))
case("mtp.role", M, *draft(NORM, role=9))
case("mtp.shape", M, at_row(MTP, NORM, "byte_size"), set_row(MTP, NORM, n_dims=9), placed=False, variant="rank-9")
case(
    "mtp.shape",
    M,
    at_row(MTP, NORM, "byte_size"),
    set_row(MTP, NORM, dims=(30, *[1] * 7)),
    placed=False,
    variant="half-a-block",
)
case("mtp.placement", M, at_row(MTP, NORM, "offset"), set_row(MTP, NORM, stride=4096), placed=False)
case("mtp.bounds", M, *draft(PROJ, offset=1 << 30))
case("mtp.layout", M, "len_data", steps(append(MTP, bytes(64)), add(MTP, "len_data", 64)))
case(
    "mtp.layout",
    M,
    at_row(MTP, "blk.3.ffn_up_exps.weight", "stride"),
    steps(append(MTP, bytes(8192)), add(MTP, "len_data", 8192), set_row(MTP, "blk.3.ffn_up_exps.weight", stride=8192)),
)
case(
    "mtp.rows",
    M,
    at_row(MTP, NORM, "name_offset"),
    lambda p: p.poke(MTP, p.get(MTP).ofs_heap + p.rows(MTP)[p.find(MTP, NORM)].name_offset + 6, b"b"),
    placed=False,
)
