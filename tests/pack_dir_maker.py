"""Makes small pack directories and MTP directories for tests, from the tensors of a GGUF."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from gguf_maker import Tensor

COLUMNS = (
    "name",
    "file",
    "kind",
    "src_off",
    "src_bytes",
    "dst_off",
    "dst_bytes",
    "ne0",
    "ne1",
    "code_bits",
    "code_bias",
    "group_elems",
    "codebook",
    "has_offset",
    "codes_bytes",
    "scales_bytes",
    "offset_bytes",
    "scales_fp16",
    "act_kind",
)


def up(value: int) -> int:
    """The next multiple of 256."""
    return (value + 255) // 256 * 256


@dataclass
class PackDir:
    """The tables and blobs of a directory, to be changed before they are written.

    Attributes:
        rows: Lines of `index.txt`, by tensor.
        act_kind: Write the 19th column.
    """

    rows: dict[str, dict[str, int | str]] = field(default_factory=dict)
    dense: bytearray = field(default_factory=bytearray)
    pool: int = 0
    act_kind: bool = True
    files: dict[str, bytes] = field(default_factory=dict)
    comment: str | None = None

    def add(self, name: str, kind: int, data: bytes, ne0: int, ne1: int, dst: int, **columns: int) -> None:
        """A tensor with bytes in dense.bin."""
        row: dict[str, int | str] = dict.fromkeys(COLUMNS, 0)
        row |= {"name": name, "kind": kind, "src_off": len(self.dense), "src_bytes": len(data), "dst_off": self.pool}
        row |= {"dst_bytes": dst, "ne0": ne0, "ne1": ne1, **columns}
        self.rows[name] = row
        self.dense += data
        self.pool = up(self.pool + dst)

    def skip(self, name: str, ne0: int, ne1: int, **columns: int) -> None:
        """A tensor that the GGUF's own bytes serve."""
        self.add(name, 0, b"", ne0, ne1, 0, code_bits=8, **columns)
        self.rows[name]["src_off"] = 0

    def index(self) -> str:
        """`index.txt`."""
        count = len(COLUMNS) - (not self.act_kind)
        pool = up(max(int(row["dst_off"]) + int(row["dst_bytes"]) for row in self.rows.values()))
        head = self.comment or f"# a pack directory\n# align 256 pool {pool} tensors {len(self.rows)}"
        lines = [" ".join(str(row[column]) for column in COLUMNS[:count]) for row in self.rows.values()]
        return "\n".join([head, *lines, ""])

    def write(self, folder: Path, *, table: str = "index.txt") -> Path:
        """Writes the directory."""
        folder.mkdir(exist_ok=True)
        (folder / table).write_text(self.index())
        (folder / "dense.bin").write_bytes(self.dense)
        for name, data in self.files.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(data)
        return folder


def bf16_of(values: bytes) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    """F32 values cut to what BF16 holds, as 32-bit words."""
    return np.frombuffer(values, "<u4") & np.uint32(0xFFFF0000)


def blobs(tensors: Mapping[str, Tensor], layers: Sequence[int], n_expert: int = 4) -> tuple[bytes, list[str]]:
    """`experts.bin` and the lines of `native_experts.txt`: [gate | up | down] to an expert."""
    data, lines = bytearray(), []
    for layer in layers:
        parts = [tensors[f"blk.{layer}.ffn_{role}_exps.weight"] for role in ("gate", "up", "down")]
        sizes = [len(part[3]) // n_expert for part in parts]
        places = f"0 {sizes[0]} {sizes[0] + sizes[1]}"
        lines.append(f"{layer} {parts[0][1]} {parts[2][1]} {len(data)} {sum(sizes)} {places}")
        for expert in range(n_expert):
            for part, size in zip(parts, sizes, strict=True):
                data += part[3][expert * size : (expert + 1) * size]
    return bytes(data), lines
