"use strict";
// Parses a source with the compiled grammar; every fault of structure becomes a Rejected with class and place.

const { KaitaiStream, RangeStream } = require("./range_stream");
const { camel } = require("./grammar");

class Rejected extends Error {
  constructor(kind, message, offset) {
    super(message);
    this.kind = kind;
    this.offset = offset;
  }
}

/** Runs `work` on a stream; what the parser throws is told with its place in the file. */
function guarded(grammar, stream, work) {
  try {
    return work();
  } catch (error) {
    if (error.isValidation) throw invalid(grammar, stream, error);
    if (error instanceof KaitaiStream.EOFError) {
      throw new Rejected("structure", `the file ends early: ${error.message}`, stream.pos);
    }
    if (error instanceof RangeError || (error instanceof TypeError && /encoded data/.test(error.message))) {
      throw new Rejected("structure", error.message, stream.pos);
    }
    throw error;
  }
}

/** What a failed `valid:` means: a version that is not known is no damage, all else is. */
function invalid(grammar, stream, error) {
  const { type, item } = grammar.field(error.srcPath);
  const base = error.io === stream ? 0 : stream.pos - error.io.size; // a row has a stream of its own
  const newer = (item.id === "min_reader_version" || item.id === "version") && error.actual > 1;
  const offset = base + error.io.pos - (grammar.width({ ...item, repeat: undefined }) || 0);
  const reason = error.message.replace(/^[^:]*: /, "");
  const rejected = new Rejected(newer ? "unsupported" : "structure", `${type}.${item.id}: ${reason}`, offset);
  return Object.assign(rejected, { field: item, type, actual: error.actual });
}

/** Whether the file has the size that its header states, and the sections lie inside it. */
function checkBounds(root, size) {
  const stated = root.header.totalFileSize;
  if (stated !== size) throw new Rejected("structure", `the header says ${stated} bytes, the file has ${size}`, size);
  for (const entry of root.sections) {
    if (entry.offset + entry.size > size) {
      const end = entry.offset + entry.size;
      throw new Rejected("structure", `${entry.name} ends at ${end}, the file at ${size}`, entry.offset);
    }
  }
}

module.exports = { Rejected, RangeStream, camel, checkBounds, guarded };
