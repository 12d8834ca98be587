// node range_stream_test.cjs BUILD: the stream that reads a source range by range; prints the name of each part that held.
"use strict";
const assert = require("node:assert/strict");
const path = require("node:path");
const { KaitaiStream, RangeStream } = require(path.resolve(process.argv[2], "range_stream.js"));

/** A source of `size` bytes, byte i being i % 251, that counts what is read. */
function counting(size, patch = {}) {
  return {
    size,
    bytes: 0,
    longest: 0,
    read(offset, length) {
      assert.ok(offset >= 0 && offset + length <= size, `read ${offset} + ${length} of ${size}`);
      this.bytes += length;
      this.longest = Math.max(this.longest, length);
      return Uint8Array.from({ length }, (_, i) => patch[offset + i] ?? (offset + i) % 251);
    },
  };
}

const tests = {
  windows() {
    const source = counting(5 << 20);
    const stream = new RangeStream(source);
    for (const at of [0, 65534, 65535, 65536, (5 << 20) - 4]) {
      stream.seek(at);
      const wanted = [0, 1, 2, 3].map((i) => (at + i) % 251);
      assert.equal(stream.readU4le(), wanted[0] + wanted[1] * 2 ** 8 + wanted[2] * 2 ** 16 + wanted[3] * 2 ** 24);
      assert.equal(stream.pos, at + 4);
    }
    stream.seek(7);
    assert.deepEqual([...stream.readBytes(3)], [7, 8, 9]);
    assert.equal(stream.readU1(), 10);
    assert.ok(source.longest <= 65536, "no more than a window at once");
    stream.seek(0);
    assert.equal(stream.readBytes(100_000).length, 100_000);
  },
  end() {
    const stream = new RangeStream(counting(10));
    stream.seek(8);
    assert.throws(() => stream.readU4le(), KaitaiStream.EOFError);
    assert.throws(() => stream.readBytes(3), KaitaiStream.EOFError);
    assert.throws(() => stream.readBytes(-1), RangeError);
    assert.throws(() => stream.readBytes(2 ** 33), KaitaiStream.EOFError); // not cut to 32 bits
    assert.equal(stream.readBytes(2).length, 2);
    assert.ok(stream.isEof());
    assert.equal(stream.readBytes(0).length, 0);
  },
  wide() {
    const stream = new RangeStream(
      counting(
        40,
        Object.fromEntries([
          ...[255, 255, 255, 255, 255, 255, 31, 0].map((byte, i) => [i, byte]), // 2^53 - 1
          ...[1, 0, 0, 0, 0, 0, 32, 0].map((byte, i) => [8 + i, byte]), // 2^53 + 1
          ...[255, 255, 255, 255, 255, 255, 255, 255].map((byte, i) => [16 + i, byte]),
        ]),
      ),
    );
    assert.equal(stream.readU8le(), Number.MAX_SAFE_INTEGER);
    assert.equal(stream.readU8le(), 9007199254740993n);
    assert.equal(stream.readU8le(), 18446744073709551615n);
    stream.seek(16);
    assert.equal(stream.readS8le(), -1);
  },
  terminated() {
    const stream = new RangeStream(counting(600, { 300: 0, 0: 9, 251: 9 }));
    assert.equal(stream.readBytesTerm(0, false, true, true).length, 300);
    assert.equal(stream.pos, 301);
    assert.equal(stream.readBytesTerm(0, true, true, true).at(-1), 0);
    assert.equal(stream.readBytesTerm(255, false, true, false).length, 600 - 503);
    assert.throws(() => stream.readBytesTerm(255, false, true, true), KaitaiStream.EOFError);
  },
  substreams() {
    const source = counting(1 << 20);
    const stream = new RangeStream(source);
    const row = stream.readBytes(8);
    assert.equal(row.buffer.byteLength, 8, "a row keeps no window alive");
    assert.equal(new KaitaiStream(row).readU2le(), 0x0100);
  },
};

for (const [name, test] of Object.entries(tests)) {
  test();
  process.stdout.write(`${name}\n`);
}
