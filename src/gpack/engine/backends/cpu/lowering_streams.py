"""Lowering of operations on several streams, of n-gram rows and of block-sparse attention."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ....errors import UnsupportedError
from ...graph import operations as op
from .attention import HeadOptions, RowsAt, float_bits
from .buffers import Activations
from .lowering import Lowering
from .ngrams import NgramReader, RowThread
from .sparse import Blocks, DenseRows, attend, indexer


@dataclass
class StreamLowering(Lowering):
    """Lowers a graph that may have these operations too.

    Attributes:
        reading: The thread that reads n-gram rows.
    """

    methods: ClassVar[dict[type[op.Operation], Callable[[Any, Any], None]]] = {}
    reading: RowThread | None = None
    _dense: dict[int, DenseRows] = field(default_factory=dict)

    def _activate(self, o: op.Activate) -> None:
        if o.activation not in ("silu", "sigmoid"):
            raise UnsupportedError(f"the CPU has no kernel for {o}", code="engine.operation")
        out = self._over(o.x, o.output)
        factors = float_bits(o.factor), float_bits(o.scale)
        self._kernel(f"activate_{o.activation}", out.address, 4 * out.width, out.width, *factors, writes=out)

    def _piece_norm(self, o: op.PieceNorm) -> None:
        x, out = self._read(o.x), self._out(o.output)
        sizes = x.width // o.count, o.count, float_bits(o.epsilon)
        self._kernel("piece_norm", *_rows(x), self._vector(o.weight), *_rows(out), *sizes, writes=out)

    def _mean_pieces(self, o: op.MeanPieces) -> None:
        x, out = self._read(o.x), self._out(o.output)
        self._kernel("mean_pieces", *_rows(x), *_rows(out), out.width, o.count, writes=out)

    def _add_to_pieces(self, o: op.AddToPieces) -> None:
        y, weights = self._read(o.y), self._read(o.weights)
        out = self._over(o.x, o.output)
        self._kernel("add_to_pieces", *_rows(out), *_rows(y), *_rows(weights), y.width, o.weights.width, writes=out)

    def _piece_gate(self, o: op.PieceGate) -> None:
        k, q, v, out = self._read(o.k), self._read(o.q), self._read(o.v), self._out(o.output)
        places = [word for buffer in (k, q, v, out) for word in _rows(buffer)]
        self._kernel("piece_gate", *places, v.width, o.count, float_bits(o.scale), writes=out)

    def _ngram_rows(self, o: op.NgramRows) -> None:
        out = self._out(o.output)
        if self.reading is None:
            raise UnsupportedError("there is no thread to read n-gram rows", code="engine.operation")
        reader = NgramReader(o.table, out.array, self.reading)
        self.before.append(reader.begin)
        self.program.host(reader.finish)
        out.changed()

    def _sparse_attention(self, o: op.SparseAttention) -> None:
        group, layer, _ = self.places.find(o.state)
        layouts, blocks = self.places.layouts[group], Blocks(o.block, o.n_blocks)
        if blocks.limit not in self._dense:
            rows = self._dense[blocks.limit] = self.program.keep(DenseRows(self.step, blocks.limit))
            self.before.append(lambda _step: rows.fill())
        norms = self._vector(o.index_q_norm), self._vector(o.index_k_norm)
        rope = self.program.keep(self.shared.rope(o.rope)).cell.ctypes.data
        indexer(
            self.program,
            self.step,
            self.work,
            self._place(o.index_q, owned=True),
            self._place(o.index_k, owned=False),
            n_head=o.n_index_head,
            layouts=layouts,
            layer=layer,
            group=group,
            blocks=blocks,
            heads=HeadOptions(o.rope.n_rotated, o.rope.interleaved, rope, *norms, o.epsilon),
        )
        q, out = self._attention(o, rows=self._dense[blocks.limit].address)
        attend(
            self.program,
            self.step,
            self.work,
            q,
            out,
            n_head=o.n_head,
            layouts=layouts,
            layer=layer,
            group=group,
            blocks=blocks,
            scale=o.scale,
        )


def _rows(buffer: Activations) -> RowsAt:
    """A buffer's rows, as kernels take them."""
    return RowsAt(buffer.address, 4 * buffer.width)


StreamLowering.methods.update(
    {
        op.Activate: StreamLowering._activate,
        op.PieceNorm: StreamLowering._piece_norm,
        op.MeanPieces: StreamLowering._mean_pieces,
        op.AddToPieces: StreamLowering._add_to_pieces,
        op.PieceGate: StreamLowering._piece_gate,
        op.NgramRows: StreamLowering._ngram_rows,
        op.SparseAttention: StreamLowering._sparse_attention,
    }
)
