// node browser_modules.cjs MODULES VECTORS: the page's modules without a browser, over every vector; prints JSON.
// {checked: rules that the page says it checks, found: {id: [rules]}, hashed: lengths whose SHA-256 was right}
"use strict";
const crypto = require("node:crypto");
const fs = require("node:fs");
const path = require("node:path");

const [folder, vectors] = process.argv.slice(2);
const load = (name) => require(path.resolve(folder, `${name}.js`));
const { inspect, report } = load("inspect");
const checks = load("checks");
const { Sha256 } = load("sha256");

class Source {
  constructor(file) {
    this.fd = fs.openSync(file);
    this.size = fs.fstatSync(this.fd).size;
    this.longest = 0;
  }

  read(offset, length) {
    this.longest = Math.max(this.longest, length);
    const data = new Uint8Array(length);
    if (fs.readSync(this.fd, data, 0, length, offset) !== length)
      throw new Error(`read beyond the end: ${offset} + ${length}`);
    return data;
  }
}

const sha256 = (data) => crypto.createHash("sha256").update(data).digest("hex");

function rulesOf(file) {
  const source = new Source(file);
  const inspection = inspect(source);
  const told = report(inspection);
  const { problems, found } = inspection;
  const known = new Map();
  found.entries.forEach(({ values }, index) => {
    const { offset, size } = values;
    if (offset + size <= source.size && size < 1 << 30) known.set(index, sha256(source.read(offset, size)));
  });
  checks.digests(found, known, (rule, at, offset, length, message) =>
    problems.push({ rule, path: at, offset, length, message }),
  );
  for (const problem of problems) {
    if (!problem.message || !(problem.offset >= 0))
      throw new Error(`${file}: ${JSON.stringify(problem)} has no place or message`);
  }
  fs.closeSync(source.fd);
  return {
    rules: [...new Set(problems.filter((p) => p.severity !== "warning").map((p) => p.rule))],
    kaitai: told.kaitai.verdict,
    problems,
  };
}

/** Messages of every length around a block's edges, in pieces of every size, against Node's own. */
function hashed() {
  const data = crypto.randomBytes(1 << 18);
  const right = [];
  for (const length of [...Array(260).keys(), 1 << 18]) {
    const digest = new Sha256();
    const step = 1 + (length % 97);
    for (let at = 0; at < length; at += step) digest.update(data.subarray(at, Math.min(at + step, length)));
    if (Buffer.from(digest.digest()).toString("hex") === sha256(data.subarray(0, length))) right.push(length);
  }
  return right.length;
}

const index = JSON.parse(fs.readFileSync(path.join(vectors, "index.json"), "utf8")).vectors;
const found = Object.fromEntries(index.map(({ id }) => [id, rulesOf(path.join(vectors, `${id}.gpack`))]));
const known = report(inspect(new Source(path.join(vectors, "valid/plain.gpack")))).rules;
const checked = known.filter((rule) => rule.checked).map((rule) => rule.id);
process.stdout.write(JSON.stringify({ checked, found, hashed: hashed() }));
