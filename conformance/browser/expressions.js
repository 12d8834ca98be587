"use strict";
// The functions that `check:` expressions call; codegen/expressions.py says what they mean.

module.exports = {
  align_up: (value, alignment) => Math.ceil(value / alignment) * alignment,
  is_c_string: (bytes) => {
    const end = bytes.indexOf(0);
    return (
      end > 0 && bytes.subarray(0, end).every((byte) => byte > 32 && byte < 127) && bytes.subarray(end).every((b) => !b)
    );
  },
  ones_after: (dims, rank) => dims.slice(rank).every((extent) => extent === 1),
  product: (numbers) => numbers.reduce((product, number) => product * number, 1),
  zero: (bytes) => bytes.every((byte) => byte === 0),
};
