"use strict";
// Metadata values for people: scalars, strings, and the beginning of arrays.

const schema = require("./schema");
const { text } = require("./records");

const TYPES = schema.columns.MetadataType;
const SHOWN = 12; // elements of an array
const typeOf = Object.fromEntries(Object.entries(TYPES).map(([value, item]) => [item.name, Number(value)]));

const READ = {
  UINT8: (v, at) => v.getUint8(at),
  INT8: (v, at) => v.getInt8(at),
  UINT16: (v, at) => v.getUint16(at, true),
  INT16: (v, at) => v.getInt16(at, true),
  UINT32: (v, at) => v.getUint32(at, true),
  INT32: (v, at) => v.getInt32(at, true),
  FLOAT32: (v, at) => Number(v.getFloat32(at, true).toPrecision(9)),
  BOOL: (v, at) => Boolean(v.getUint8(at)),
  UINT64: (v, at) => v.getBigUint64(at, true),
  INT64: (v, at) => v.getBigInt64(at, true),
  FLOAT64: (v, at) => v.getFloat64(at, true),
};

/** A type's name, lower case; arrays with that of their elements. */
function typeName(row) {
  const name = (type) => (TYPES[type]?.name ?? `type ${type}`).toLowerCase();
  return row.value_type === typeOf.ARRAY ? `${name(row.element_type)}[${row.count}]` : name(row.value_type);
}

/** The value in words; `bytes` may be only its beginning. */
function show(row, bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  if (row.flags & schema.flags.MetadataFlags.IN_TOKENIZER_BIN) return "(in TokenizerBin)";
  try {
    if (row.value_type === typeOf.STRING) return text(bytes).text;
    if (row.value_type !== typeOf.ARRAY) return String(READ[TYPES[row.value_type].name](view, 0));
    const items = elements(view, bytes, row.element_type, Math.min(row.count, SHOWN));
    return `[${items.join(", ")}${row.count > items.length ? ", …" : ""}]`;
  } catch {
    return `${bytes.length} bytes that are no ${typeName(row)}`;
  }
}

function elements(view, bytes, type, count) {
  const made = [];
  const width = TYPES[type].bytes;
  for (let at = 0; made.length < count;) {
    if (type === typeOf.ARRAY) return [...made, "…"];
    if (type === typeOf.STRING) {
      const length = Number(view.getBigUint64(at, true));
      if (at + 8 + length > bytes.length) return [...made, "…"];
      made.push(JSON.stringify(text(bytes.subarray(at + 8, at + 8 + length)).text));
      at += 8 + length;
    } else {
      if (at + width > bytes.length) return [...made, "…"];
      made.push(String(READ[TYPES[type].name](view, at)));
      at += width;
    }
  }
  return made;
}

module.exports = { show, typeName };
