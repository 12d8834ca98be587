"""Sums of products of codes, four at a time in each lane: what differs most between processors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .lanes import I8, I16, Lanes
from llvmlite import ir

_MOST = 127  # activations are -127 to 127
Codes = Callable[[int], Any]


def sum_of_products(lanes: Lanes, weights: Codes, values: Codes, count: int, top: int, *, signed: bool) -> Any:
    """Sums of `count` x 4 products in each lane, as int32, exact.

    Args:
        weights: The weights' codes, four in each lane: unsigned bytes up to `top`, or signed ones.
        values: The activations' codes, signed bytes without -128.
    """
    if lanes.variant.name == "portable":
        return _portable(lanes, weights, values, count)
    if lanes.variant.name == "vnni":
        return _vnni(lanes, weights, values, count)
    if signed:
        return _avx2_signed(lanes, weights, values, count)
    return _avx2(lanes, weights, values, count, top)


def _vnni(lanes: Lanes, weights: Codes, values: Codes, count: int) -> Any:
    name = f"llvm.x86.avx512.vpdpbusd.{32 * lanes.count}"
    sums = [lanes.dword(0)] * 2
    for number in range(count):
        sums[number % 2] = lanes.call(name, lanes.dwords, sums[number % 2], weights(number), values(number))
    return lanes.builder.add(*sums)


def _pairs(lanes: Lanes, unsigned: Any, signed: Any) -> Any:
    """Sums of two products each, u8 x s8, as int16."""
    builder = lanes.builder
    unsigned, signed = builder.bitcast(unsigned, lanes.bytes), builder.bitcast(signed, lanes.bytes)
    return lanes.call("llvm.x86.avx2.pmadd.ub.sw", lanes.shorts, unsigned, signed)


def _widen_pairs(lanes: Lanes, pairs: Any) -> Any:
    return lanes.call("llvm.x86.avx2.pmadd.wd", lanes.dwords, pairs, lanes.fill(lanes.shorts, 1))


def _avx2(lanes: Lanes, weights: Codes, values: Codes, count: int, top: int) -> Any:
    builder = lanes.builder
    room = max(1, 32767 // (2 * top * _MOST))  # sums of pairs that 16 bits hold
    total = pairs = None
    for number in range(count):
        made = _pairs(lanes, weights(number), values(number))
        pairs = made if pairs is None else builder.add(pairs, made)
        if number % room == room - 1 or number == count - 1:
            wide = _widen_pairs(lanes, pairs)
            total, pairs = wide if total is None else builder.add(total, wide), None
    return total


def _avx2_signed(lanes: Lanes, weights: Codes, values: Codes, count: int) -> Any:
    """|w| times x with w's sign; |w| is at most 128, so that two products fit into 16 bits."""
    builder = lanes.builder
    total = lanes.dword(0)
    for number in range(count):
        weight = builder.bitcast(weights(number), lanes.bytes)
        size = lanes.call("llvm.x86.avx2.psign.b", lanes.bytes, weight, weight)
        value = builder.bitcast(values(number), lanes.bytes)
        value = lanes.call("llvm.x86.avx2.psign.b", lanes.bytes, value, weight)
        total = builder.add(total, _widen_pairs(lanes, _pairs(lanes, size, value)))
    return total


def _portable(lanes: Lanes, weights: Codes, values: Codes, count: int) -> Any:
    builder = lanes.builder
    total = lanes.dword(0)
    for number in range(count):
        weight, value = weights(number), values(number)
        for place in range(4):
            left = lanes.and_(lanes.right(weight, 8 * place), 0xFF)
            right = builder.ashr(lanes.left(value, 24 - 8 * place), lanes.dword(24))
            total = builder.add(total, builder.mul(left, right))
    return total


_ = (I8, I16, ir)
