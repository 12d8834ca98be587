"""What attention does with the cache of one type: products with keys and values as they lie there, and unpacking them.

How they lie there is described in heads.py.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from numba import njit

from ..layout import PRODUCT_ROWS
from ..variants import Variant
from .arithmetic import half_at, has_half
from .tiles import LINE, tile_product, vectors_of
from .vectors import LANES, load_codes16, load_halves16, mul16, prefetch, splat16, store16


class CacheCode(NamedTuple):
    """Compiled code's functions for a variant and a type of cache, and what it knows of the type.

    Attributes:
        multiply: C (+)= A B of one to four rows (see `code_for`); `multiply_row`: of one.
        ask: Asks for so many bytes at an address, which are needed soon.
        unpack_keys, unpack_value: A tile of 16 keys as float32 [padded, 16]; a value row as float32 [padded].
        is_read_direct: Whether products read the cache as it is.
        item: Bytes of a number where they do.
        tile_bytes, value_bytes, scale_bytes: For each of `padded` numbers: bytes of a tile and of a value row, and what
            scales add to a tile; a value row has a sixteenth of that.
    """

    multiply: Any
    multiply_row: Any
    ask: Any
    unpack_keys: Any
    unpack_value: Any
    is_read_direct: bool
    item: int
    tile_bytes: int
    value_bytes: int
    scale_bytes: int


def code_for(variant: Variant, kind: str) -> CacheCode:
    """The code for a cache of a type: F32, F16 or Q8_0.

    The arguments of `multiply`, all int64: rows of A and C; A and the bytes between its rows; B, the bytes between its
    rows and between its vectors; C and the bytes between its rows; rows of B; vectors of a row of C; whether C is added
    to; whether B is as the cache holds it; and then where the B that is needed next begins.
    """
    many, lanes = vectors_of(variant), LANES
    half, halves = half_at(variant), load_halves16(variant)
    is_f32, is_f16, is_native = kind == "F32", kind == "F16", has_half(variant)
    is_read_direct = is_f32 or (is_f16 and is_native)
    item = 4 if is_f32 else 2
    plain = njit(error_model="numpy", fastmath=False)

    def multiply_of(n_rows: int) -> Any:
        """Compiled code's function for C[n_rows, 16 n_vectors] (+)= A[n_rows, n] B[n, 16 n_vectors]."""
        product, product_one = (tile_product(variant, n_rows, count, half=False) for count in (many, 1))
        stored, stored_one = (
            tile_product(variant, n_rows, count, half=is_f16 and is_native, ahead=True) for count in (many, 1)
        )
        step = many * lanes * item

        @plain
        def multiply(
            a: Any,
            a_row: Any,
            b: Any,
            b_row: Any,
            b_vector: Any,
            c: Any,
            c_row: Any,
            n: Any,
            n_vectors: Any,
            add: Any,
            is_stored: Any,
            needed: Any,
        ) -> None:
            """`is_stored`: B is as the cache holds it; `needed`: then, where the next such B begins."""
            done = 0
            while done + many <= n_vectors:
                if is_read_direct and is_stored:
                    stored(a, a_row, b + done * b_vector, b_row, b_vector, c + done * 64, c_row, n, add, needed)
                    needed += n * step // 2
                else:
                    product(a, a_row, b + done * b_vector, b_row, b_vector, c + done * 64, c_row, n, add, 0)
                done += many
            while done < n_vectors:
                if is_read_direct and is_stored:
                    stored_one(a, a_row, b + done * b_vector, b_row, b_vector, c + done * 64, c_row, n, add, needed)
                    needed += n * lanes * item // 2
                else:
                    product_one(a, a_row, b + done * b_vector, b_row, b_vector, c + done * 64, c_row, n, add, 0)
                done += 1

        return multiply

    multiply_row, multiply_two, multiply_three, multiply_four = (multiply_of(n) for n in range(1, PRODUCT_ROWS + 1))

    @plain
    def multiply(
        n_rows: Any,
        a: Any,
        a_row: Any,
        b: Any,
        b_row: Any,
        b_vector: Any,
        c: Any,
        c_row: Any,
        n: Any,
        n_vectors: Any,
        add: Any,
        is_stored: Any,
        needed: Any,
    ) -> None:
        """As `multiply_of`, for as many rows as there are, of four at most."""
        if n_rows == 4:
            multiply_four(a, a_row, b, b_row, b_vector, c, c_row, n, n_vectors, add, is_stored, needed)
        elif n_rows == 3:
            multiply_three(a, a_row, b, b_row, b_vector, c, c_row, n, n_vectors, add, is_stored, needed)
        elif n_rows == 2:
            multiply_two(a, a_row, b, b_row, b_vector, c, c_row, n, n_vectors, add, is_stored, needed)
        else:
            multiply_row(a, a_row, b, b_row, b_vector, c, c_row, n, n_vectors, add, is_stored, needed)

    @plain
    def ask(needed: Any, nbytes: Any) -> None:
        for line in range(0, nbytes, LINE):
            prefetch(needed + line)

    @plain
    def unpack_keys(tile: Any, to: Any, padded: Any) -> None:
        """A tile of 16 keys as float32 [padded, 16]."""
        if is_f16:
            for i in range(0, padded * lanes, lanes):
                store16(to + i * 4, halves(tile + i * 2))
        else:
            for part in range(padded // 32):
                scales = halves(tile + padded * lanes + part * lanes * 2)
                for i in range(part * 32 * lanes, (part + 1) * 32 * lanes, lanes):
                    store16(to + i * 4, mul16(load_codes16(tile + i), scales))

    @plain
    def unpack_value(row: Any, to: Any, padded: Any) -> None:
        """A value row as float32."""
        if is_f16:
            for i in range(0, padded, lanes):
                store16(to + i * 4, halves(row + i * 2))
        else:
            for part in range(padded // 32):
                scale = splat16(half(row + padded + 2 * part))
                store16(to + part * 128, mul16(load_codes16(row + part * 32), scale))
                store16(to + part * 128 + 64, mul16(load_codes16(row + part * 32 + 16), scale))

    sizes = {"F32": (64, 4, 0), "F16": (32, 2, 0), "Q8_0": (16, 1, 1)}[kind]
    return CacheCode(multiply, multiply_row, ask, unpack_keys, unpack_value, is_read_direct, item, *sizes)
