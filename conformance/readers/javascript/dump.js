"use strict";
// Turns parsed objects into the protocol's dump.

const { camel } = require("./grammar");

function hex(bytes) {
  let text = "";
  for (const byte of bytes) text += (byte < 16 ? "0" : "") + byte.toString(16);
  return text;
}

class Dumper {
  /** `showRef(offset, length)` makes what stands in place of a heap reference. */
  constructor(grammar, showRef) {
    this.grammar = grammar;
    this.showRef = showRef;
  }

  /** All fields of a record but reserved ones; what lies in the heap stands in place of its reference. */
  record(object, type) {
    const refs = this.grammar.refs(type);
    const lengths = new Set([...refs.keys()].map((id) => id.replace(/_offset$/, "_length")));
    const made = {};
    for (const item of this.grammar.fields(type)) {
      const value = object[camel(item.id)];
      if (refs.has(item.id)) {
        const length = object[camel(item.id.replace(/_offset$/, "_length"))];
        made[refs.get(item.id)] = this.showRef(object.ofsHeap + value, length);
      } else if (!lengths.has(item.id) && !item["-reserved"]) {
        made[item.id] = this.value(value, item);
      }
    }
    return made;
  }

  /** A field's value as JSON: 64-bit numbers as text, flags as a number, bytes as hex. */
  value(value, item) {
    if (value instanceof Uint8Array) return hex(value);
    if (Array.isArray(value)) return value.map((element) => this.value(element, item));
    if (item.type === "u8" || item.type === "s8") return String(value);
    return typeof value === "object" ? value.asInt : value;
  }

  /** An entry of the directory with its section's header and rows, where the grammar knows them. */
  section(entry) {
    const made = { entry: this.record(entry, this.grammar.parts.sections) };
    const { body } = entry;
    const type = this.grammar.bodies.get(entry.kind);
    const header = type && this.grammar.header(type);
    if (!header) return made;
    made.header = this.record(header === type ? body : body.header, header);
    for (const [table, row] of this.grammar.tables(type)) {
      made[table] = body[camel(table)].map((value) => this.record(value, row));
    }
    return made;
  }
}

module.exports = { Dumper, hex };
