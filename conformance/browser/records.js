"use strict";
// Reads records by the grammar without refusing any, so that damaged ones can be shown; the schema's rules judge them.

const { hex } = require("./dump");
const schema = require("./schema");

const strict = new TextDecoder("utf-8", { fatal: true });

/** Bytes as text; what is not UTF-8 is shown as escapes, and `broken` says so. */
function text(bytes) {
  try {
    return { text: strict.decode(bytes), broken: false };
  } catch {
    return {
      text: Array.from(bytes, (b) => (b > 31 && b < 127 ? String.fromCharCode(b) : `\\x${hex([b])}`)).join(""),
      broken: true,
    };
  }
}

/** One number of the grammar's types; beyond 2^53 the nearest double. */
function number(view, at, type) {
  const [, sign, width] = /^([us])([1248])$/.exec(type);
  const big = width === "8" ? "Big" : "";
  return Number(view[`get${big}${sign === "u" ? "Uint" : "Int"}${8 * width}`](at, true));
}

class Records {
  constructor(grammar, source) {
    this.grammar = grammar;
    this.source = source;
  }

  /** Bytes of a range, cut where the file ends. */
  bytes(offset, length) {
    const start = Math.min(offset, this.source.size);
    return this.source.read(start, Math.max(0, Math.min(length, this.source.size - start)));
  }

  /**
   * The record of that type in `data`, whose first byte is at `base` of the file: {type, base, values, fields}.
   * `values` are for rules (flags are numbers, texts are bytes), `fields` for people.
   */
  decode(type, data, base) {
    const view = new DataView(data.buffer, data.byteOffset, data.byteLength);
    const values = {};
    const fields = [];
    let at = 0;
    for (const item of this.grammar.fields(type)) {
      const width = this.grammar.width(item);
      if (at + width > data.length) return { type, base, values: null, fields, missing: at + width - data.length };
      values[item.id] = this.value(view, data, at, item, width);
      const shown = values[item.id] instanceof Uint8Array ? this.shownBytes(values[item.id], item) : values[item.id];
      fields.push({ name: item.id, offset: base + at, width, doc: item.doc, value: shown });
      at += width;
    }
    return { type, base, values, fields };
  }

  value(view, data, at, item, width) {
    if (item.repeat) {
      const step = width / item["repeat-expr"];
      return Array.from({ length: item["repeat-expr"] }, (_, index) => number(view, at + index * step, item.type));
    }
    if (/^[us][1248]$/.test(item.type || "")) return number(view, at, item.type);
    if (item.type && item.type !== "strz") return number(view, at, `u${width}`); // flags
    return data.slice(at, at + width);
  }

  shownBytes(bytes, item) {
    if (item.type !== "strz") return hex(bytes);
    const end = bytes.indexOf(0);
    return text(end < 0 ? bytes : bytes.subarray(0, end)).text;
  }

  /** The record at that place of the file. */
  at(type, offset) {
    return this.decode(type, this.bytes(offset, this.grammar.size(type)), offset);
  }

  /** The rules that the record breaks on its own: [{rule, field}]. */
  broken(record, given) {
    const facts = schema.records[record.type];
    const { values } = record;
    const found = [];
    for (const [rule, field, holds] of facts.checks) if (!holds(values, given)) found.push({ rule, field });
    for (const field of facts.wide) {
      const numbers = [].concat(values[field]);
      if (numbers.some((value) => value > schema.constants.MAX_NUMBER)) found.push({ rule: "field.range", field });
    }
    for (const field of facts.reserved) {
      const value = values[field];
      if (typeof value === "number" ? value : value.some(Boolean)) found.push({ rule: "field.reserved", field });
    }
    for (const [field, mask] of Object.entries(facts.flags)) {
      if ((values[field] & ~mask) >>> 0) found.push({ rule: "field.flags", field });
    }
    return found;
  }
}

module.exports = { Records, number, text };
