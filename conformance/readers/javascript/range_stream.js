"use strict";
// A KaitaiStream over something that is read piece by piece, because the runtime's own stream wants the whole file in
// one ArrayBuffer. A source is {size, read(offset, length) -> Uint8Array}: a file descriptor in Node, a File in a browser.

const KaitaiStream = require("kaitai-struct/KaitaiStream");

const WINDOW = 1 << 16;

// The runtime's errors drop the stream and the path in the grammar that generated code hands them.
for (const name of ["NotEqual", "LessThan", "GreaterThan", "NotAnyOf", "NotInEnum", "Expr"]) {
  const Plain = KaitaiStream[`Validation${name}Error`];
  KaitaiStream[`Validation${name}Error`] = class extends Plain {
    constructor(...given) {
      super(...given);
      Object.setPrototypeOf(this, new.target.prototype);
      this.srcPath = given.at(-1);
      this.io = given.at(-2);
      this.actual = given.at(-3);
      this.isValidation = true;
    }
  };
}

/** A DataView of the whole source that holds one window of it. */
class WindowView {
  constructor(source) {
    this.source = source;
    this.start = 0;
    this.view = new DataView(new ArrayBuffer(0));
  }

  load(start, length) {
    if (start < this.start || start + length > this.start + this.view.byteLength) {
      const data = this.source.read(start, Math.min(WINDOW, this.source.size - start));
      this.start = start;
      this.view = new DataView(data.buffer, data.byteOffset, data.byteLength);
    }
    return start - this.start;
  }
}
for (const [name, width] of [
  ["Int8", 1],
  ["Uint8", 1],
  ["Int16", 2],
  ["Uint16", 2],
  ["Int32", 4],
  ["Uint32", 4],
  ["Float32", 4],
  ["Float64", 8],
]) {
  WindowView.prototype[`get${name}`] = function (start, littleEndian) {
    const at = this.load(start, width);
    return this.view[`get${name}`](at, littleEndian);
  };
}

class RangeStream extends KaitaiStream {
  constructor(source) {
    super(new ArrayBuffer(0));
    this.source = source;
    this._dataView = new WindowView(source);
  }

  get size() {
    return this.source ? this.source.size : 0;
  }

  /** A copy of the next bytes: what is parsed keeps no window alive. */
  mapUint8Array(length) {
    if (!(length >= 0)) throw new RangeError(`requested invalid ${length} amount of bytes`);
    this.ensureBytesLeft(length);
    const at = this.pos;
    this.pos += length;
    if (length > WINDOW) return this.source.read(at, length);
    const { view } = this._dataView;
    const start = length ? this._dataView.load(at, length) : 0;
    const found = length ? this._dataView.view : view;
    return new Uint8Array(found.buffer.slice(found.byteOffset + start, found.byteOffset + start + length));
  }

  /** A number where it is exact, else a BigInt: comparisons with either are right. */
  readU8le() {
    return exact(this.readBytes(8), "getBigUint64");
  }

  readS8le() {
    return exact(this.readBytes(8), "getBigInt64");
  }

  readBytesTerm(terminator, include, consume, eosError) {
    const start = this.pos;
    let length = 0;
    while (start + length < this.size && this._dataView.getUint8(start + length) !== terminator) length += 1;
    const found = start + length < this.size;
    if (!found && eosError) throw new KaitaiStream.EOFError(length + 1, length);
    const data = this.mapUint8Array(length + (found && include ? 1 : 0));
    if (found && !include && consume) this.pos += 1;
    return data;
  }
}

function exact(bytes, method) {
  const value = new DataView(bytes.buffer, bytes.byteOffset)[method](0, true);
  return Number.isSafeInteger(Number(value)) ? Number(value) : value;
}

module.exports = { KaitaiStream, RangeStream };
