"use strict";
// SHA-256 (FIPS 180-4) in pieces: WebCrypto takes only whole messages, and a section may be larger than memory.

/** The first 32 bits behind the point of the n-th roots of the first primes: FIPS 180-4, 4.2.2 and 5.3.3. */
function fractions(count, root) {
  const found = [];
  for (let number = 2; found.length < count; number += 1) {
    let prime = true;
    for (let divisor = 2; divisor * divisor <= number; divisor += 1) if (number % divisor === 0) prime = false;
    if (prime) found.push(((root(number) % 1) * 0x100000000) | 0);
  }
  return found;
}

const K = new Int32Array(fractions(64, Math.cbrt));
const START = fractions(8, Math.sqrt);

class Sha256 {
  constructor() {
    this.state = new Int32Array(START);
    this.schedule = new Int32Array(64);
    this.block = new Uint8Array(64);
    this.filled = 0;
    this.length = 0;
  }

  update(data) {
    this.length += data.length;
    let at = 0;
    if (this.filled) {
      at = Math.min(64 - this.filled, data.length);
      this.block.set(data.subarray(0, at), this.filled);
      this.filled += at;
      if (this.filled < 64) return this;
      this.compress(this.block, 0, 64);
      this.filled = 0;
    }
    const whole = at + Math.floor((data.length - at) / 64) * 64;
    this.compress(data, at, whole);
    this.block.set(data.subarray(whole));
    this.filled = data.length - whole;
    return this;
  }

  /** The digest as 32 bytes; the object is used up. */
  digest() {
    const bits = this.length * 8; // exact below 2^50 bytes
    const padding = new Uint8Array((this.filled < 56 ? 64 : 128) - this.filled);
    padding[0] = 0x80;
    const view = new DataView(padding.buffer);
    view.setUint32(padding.length - 8, Math.floor(bits / 0x100000000));
    view.setUint32(padding.length - 4, bits >>> 0);
    this.update(padding);
    const made = new DataView(new ArrayBuffer(32));
    this.state.forEach((word, index) => made.setInt32(4 * index, word));
    return new Uint8Array(made.buffer);
  }

  /** The compression function over the blocks of data[start..end]; two rounds a turn, so that fewer words move. */
  compress(data, start, end) {
    const { state, schedule: w } = this;
    let [h0, h1, h2, h3, h4, h5, h6, h7] = state;
    for (let at = start; at < end; at += 64) {
      for (let i = 0, p = at; i < 16; i += 1, p += 4) {
        w[i] = (data[p] << 24) | (data[p + 1] << 16) | (data[p + 2] << 8) | data[p + 3];
      }
      for (let i = 16; i < 64; i += 1) {
        const x = w[i - 15];
        const y = w[i - 2];
        const s0 = ((x >>> 7) | (x << 25)) ^ ((x >>> 18) | (x << 14)) ^ (x >>> 3);
        const s1 = ((y >>> 17) | (y << 15)) ^ ((y >>> 19) | (y << 13)) ^ (y >>> 10);
        w[i] = (w[i - 16] + s0 + w[i - 7] + s1) | 0;
      }
      let a = h0, b = h1, c = h2, d = h3, e = h4, f = h5, g = h6, h = h7;
      for (let i = 0; i < 64; i += 1) {
        const s1 = ((e >>> 6) | (e << 26)) ^ ((e >>> 11) | (e << 21)) ^ ((e >>> 25) | (e << 7));
        const t1 = (h + s1 + (g ^ (e & (f ^ g))) + K[i] + w[i]) | 0;
        const s0 = ((a >>> 2) | (a << 30)) ^ ((a >>> 13) | (a << 19)) ^ ((a >>> 22) | (a << 10));
        const t2 = (s0 + ((a & b) | (c & (a | b)))) | 0;
        h = g;
        g = f;
        f = e;
        e = (d + t1) | 0;
        d = c;
        c = b;
        b = a;
        a = (t1 + t2) | 0;
      }
      h0 = (h0 + a) | 0;
      h1 = (h1 + b) | 0;
      h2 = (h2 + c) | 0;
      h3 = (h3 + d) | 0;
      h4 = (h4 + e) | 0;
      h5 = (h5 + f) | 0;
      h6 = (h6 + g) | 0;
      h7 = (h7 + h) | 0;
    }
    state.set([h0, h1, h2, h3, h4, h5, h6, h7]);
  }
}

module.exports = { Sha256 };
