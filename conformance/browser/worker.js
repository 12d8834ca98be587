"use strict";
// Runs beside the page: reads ranges of the file, parses, checks and hashes. Only here may a File be read synchronously.

const checks = require("./checks");
const { inspect, report, vocabulary } = require("./inspect");
const { Sha256 } = require("./sha256");
const schema = require("./schema");

const CHUNK = 4 << 20;
const WHOLE = 64 << 20; // the longest range that is handed to WebCrypto, which wants all of it at once

class FileSource {
  constructor(file) {
    this.file = file;
    this.size = file.size;
    this.reader = new FileReaderSync();
  }

  read(offset, length) {
    return new Uint8Array(this.reader.readAsArrayBuffer(this.file.slice(offset, offset + length)));
  }
}

let source = null;
let inspection = null;

const hex = (bytes) => Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");

/** The SHA-256 of a range; `progress(bytes)` is told as it goes. */
async function hash(offset, size, progress) {
  if (size <= WHOLE && self.crypto?.subtle) {
    const digest = await self.crypto.subtle.digest("SHA-256", source.read(offset, size));
    progress(size);
    return hex(new Uint8Array(digest));
  }
  const digest = new Sha256();
  for (let done = 0; done < size; done += CHUNK) {
    const piece = source.read(offset + done, Math.min(CHUNK, size - done));
    digest.update(piece);
    progress(piece.length);
  }
  return hex(digest.digest());
}

const orders = {
  open({ file }) {
    source = new FileSource(file);
    inspection = inspect(source);
    return { type: "report", report: report(inspection) };
  },
  async hash({ file, index, offset, size }) {
    source ??= new FileSource(file);
    const digest = await hash(offset, size, (bytes) => postMessage({ type: "progress", index, bytes }));
    return { type: "hashed", index, digest };
  },
  digests({ known }) {
    const problems = [];
    const add = (rule, path, offset, length, message) =>
      problems.push({ rule, path, offset, length, message, ...schema.rules[rule] });
    checks.digests(inspection.found, new Map(known), add);
    return { type: "digests", problems };
  },
  vocabulary: () => ({ type: "vocabulary", ...vocabulary(source, inspection.found) }),
};

self.onmessage = async ({ data }) => {
  try {
    postMessage(await orders[data.type](data));
  } catch (error) {
    postMessage({ type: "failed", of: data.type, message: error.message });
  }
};
