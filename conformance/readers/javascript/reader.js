"use strict";
// Reads GPACK with the parser that the Kaitai compiler makes of schema/gpack.ksy, and speaks the reader protocol.
//
//     node reader.js BUILD [--level structure]
//
// BUILD holds Gpack.js (the compiled grammar) and grammar.json, and node_modules the runtime. Level: digest;
// `--level structure` leaves the digests out.

const crypto = require("node:crypto");
const fs = require("node:fs");
const path = require("node:path");
const readline = require("node:readline");
const { Dumper } = require("./dump");
const { Grammar } = require("./grammar");
const { RangeStream, Rejected, checkBounds, guarded } = require("./parse");

const CHUNK = 1 << 20;

class FileSource {
  constructor(file) {
    this.fd = fs.openSync(file, "r");
    this.size = fs.fstatSync(this.fd).size;
  }

  read(offset, length) {
    const data = new Uint8Array(length);
    this.fill(data, offset);
    return data;
  }

  fill(data, offset) {
    for (let done = 0; done < data.length;) {
      const count = fs.readSync(this.fd, data, done, data.length - done, offset + done);
      if (!count) throw new Rejected("structure", "the file ends early", offset + done);
      done += count;
    }
  }

  close() {
    fs.closeSync(this.fd);
  }
}

function sha256(source, start, length) {
  const digest = crypto.createHash("sha256");
  const buffer = new Uint8Array(Math.min(length, CHUNK));
  for (let done = 0; done < length;) {
    const piece = buffer.subarray(0, Math.min(CHUNK, length - done));
    source.fill(piece, start + done);
    digest.update(piece);
    done += piece.length;
  }
  return digest.digest();
}

function checkDigests(root, source) {
  for (const entry of root.sections) {
    if (sha256(source, entry.offset, entry.size).compare(entry.sha256)) {
      throw new Rejected("digest", `${entry.name}: the SHA-256 is not that of the directory`, entry.offset);
    }
  }
  const { manifestOffset, manifestSize } = root.header;
  if (sha256(source, manifestOffset, manifestSize).compare(root.footer.manifestSha256)) {
    throw new Rejected("digest", "the manifest's SHA-256 is not that of the footer", manifestOffset);
  }
}

class Reader {
  constructor(build, level) {
    this.level = level;
    this.grammar = new Grammar(JSON.parse(fs.readFileSync(path.join(build, "grammar.json"), "utf8")));
    this.Gpack = require(path.resolve(build, "Gpack.js")).Gpack;
  }

  /** The dump of a valid file; throws Rejected. */
  read(file) {
    const source = new FileSource(file);
    try {
      const stream = new RangeStream(source);
      const root = new this.Gpack(stream);
      const dump = guarded(this.grammar, stream, () => this.parse(root, stream));
      if (this.level === "digest") checkDigests(root, source);
      return dump;
    } finally {
      source.close();
    }
  }

  parse(root, stream) {
    const dumper = new Dumper(this.grammar, (offset, length) => {
      stream.seek(offset);
      return { hex: Buffer.from(stream.readBytes(length)).toString("hex") };
    });
    const header = dumper.record(root.header, this.grammar.parts.header);
    const footer = dumper.record(root.footer, this.grammar.parts.footer);
    checkBounds(root, stream.size);
    return { header, footer, sections: root.sections.map((entry) => dumper.section(entry)) };
  }
}

/** The protocol: one start, then a result to every run, until stop. */
async function main([build, ...options]) {
  const level = options.join(" ") === "--level structure" ? "structure" : "digest";
  const reader = new Reader(build, level);
  const say = (answer) => process.stdout.write(`${JSON.stringify(answer)}\n`); // synchronous on pipes
  const { version } = require("kaitai-struct/package.json");
  say({ type: "start", protocol: 1, name: "gpack-kaitai-javascript", language: "javascript", version, level });
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const order = JSON.parse(line);
    if (order.type === "stop") break;
    say({ type: "result", seq: order.seq, ...answer(reader, order.path) });
  }
  process.stdin.destroy(); // an open pipe would keep the process
}

function answer(reader, file) {
  try {
    return { verdict: "accept", dump: reader.read(file) };
  } catch (error) {
    if (!(error instanceof Rejected)) throw error;
    return { verdict: "reject", class: error.kind, message: error.message, offset: error.offset };
  }
}

main(process.argv.slice(2));
