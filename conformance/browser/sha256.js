"use strict";
// SHA-256 (FIPS 180-4) in pieces: WebCrypto takes only whole messages, and a section may be larger than memory.

/** The first 32 bits after the point of the n-th roots of the first primes: FIPS 180-4, 4.2.2 and 5.3.3. */
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

const big0 = (x) => ((x >>> 2) | (x << 30)) ^ ((x >>> 13) | (x << 19)) ^ ((x >>> 22) | (x << 10));
const big1 = (x) => ((x >>> 6) | (x << 26)) ^ ((x >>> 11) | (x << 21)) ^ ((x >>> 25) | (x << 7));

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

  /** The compression function over the blocks of data[start..end]; eight rounds a turn, so that names move and not words. */
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
      let a = h0,
        b = h1,
        c = h2,
        d = h3,
        e = h4,
        f = h5,
        g = h6,
        h = h7;
      for (let i = 0; i < 64; i += 8) {
        let t = (h + big1(e) + (g ^ (e & (f ^ g))) + K[i] + w[i]) | 0;
        d = (d + t) | 0;
        h = (t + big0(a) + ((a & b) | (c & (a | b)))) | 0;
        t = (g + big1(d) + (f ^ (d & (e ^ f))) + K[i + 1] + w[i + 1]) | 0;
        c = (c + t) | 0;
        g = (t + big0(h) + ((h & a) | (b & (h | a)))) | 0;
        t = (f + big1(c) + (e ^ (c & (d ^ e))) + K[i + 2] + w[i + 2]) | 0;
        b = (b + t) | 0;
        f = (t + big0(g) + ((g & h) | (a & (g | h)))) | 0;
        t = (e + big1(b) + (d ^ (b & (c ^ d))) + K[i + 3] + w[i + 3]) | 0;
        a = (a + t) | 0;
        e = (t + big0(f) + ((f & g) | (h & (f | g)))) | 0;
        t = (d + big1(a) + (c ^ (a & (b ^ c))) + K[i + 4] + w[i + 4]) | 0;
        h = (h + t) | 0;
        d = (t + big0(e) + ((e & f) | (g & (e | f)))) | 0;
        t = (c + big1(h) + (b ^ (h & (a ^ b))) + K[i + 5] + w[i + 5]) | 0;
        g = (g + t) | 0;
        c = (t + big0(d) + ((d & e) | (f & (d | e)))) | 0;
        t = (b + big1(g) + (a ^ (g & (h ^ a))) + K[i + 6] + w[i + 6]) | 0;
        f = (f + t) | 0;
        b = (t + big0(c) + ((c & d) | (e & (c | d)))) | 0;
        t = (a + big1(f) + (h ^ (f & (g ^ h))) + K[i + 7] + w[i + 7]) | 0;
        e = (e + t) | 0;
        a = (t + big0(b) + ((b & c) | (d & (b | c)))) | 0;
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
