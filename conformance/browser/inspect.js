"use strict";
// All that the page shows of a file, and what is wrong with it. The source is read in small pieces, whatever its size.

const { Gpack } = require("./Gpack");
const { Grammar } = require("./grammar");
const { Dumper } = require("./dump");
const { RangeStream, Rejected, checkBounds, guarded } = require("./parse");
const { Records, number, text } = require("./records");
const checks = require("./checks");
const schema = require("./schema");
const values = require("./values");

const grammar = new Grammar(require("./ksy"));
const MAX_ROWS = 20000; // shown and checked, of one table
const MAX_VALUE = 4096; // bytes that are read of one value
const MAX_PROBLEMS = 500;
const CHECKED = new Set([
  ...checks.SPANNING,
  ...Object.values(schema.records).flatMap((record) => record.checks.map(([rule]) => rule)),
]);
const HEADER_RULES = {
  TokenizerBin: "tokenizer.header",
  ChunkDigests: "chunks.header",
  Parity: "parity.header",
};
const UNSORTED = new Set(["ExpertLayoutBin", "MtpBlob"]); // layers stand by number
const MAGIC = schema.records[grammar.parts.header].magic;
const MAGICS = { 0x46554747: "It begins like a GGUF: `guild convert` makes a pack of it." };

/** Everything about the file: see `report` for the parts. */
function inspect(source) {
  const problems = [];
  const seen = new Set();
  const add = (rule, path, offset, length, message) => {
    seen.add(rule);
    if (problems.length < MAX_PROBLEMS) problems.push({ rule, path, offset, length, message, ...schema.rules[rule] });
  };
  const records = new Records(grammar, source);
  const found = {
    source,
    records,
    header: null,
    footer: null,
    entries: [],
    gaps: [],
    sections: [],
    manifest: null,
    complete: true,
  };
  const judge = (record, path, given) => judgeRecord(records, record, path, given, add);
  if (container(found, judge, add)) {
    for (const [index, entry] of found.entries.entries()) found.sections.push(section(found, entry, index, judge, add));
    checks.container(found, add);
    checks.manifest(found, add);
  }
  const kaitai = readWithKaitai(source, found);
  return { found, problems, kaitai, broken: seen };
}

function judgeRecord(records, record, path, given, add) {
  if (!record.values) return;
  for (const { rule, field } of records.broken(record, given)) {
    const item = record.fields.find((one) => one.name === field);
    item.broken = [...(item.broken || []), rule];
    add(
      rule,
      `${path}.${field}`,
      item.offset,
      item.width,
      `Found ${Array.isArray(item.value) ? `[${item.value}]` : item.value}.`,
    );
  }
}

/** Header, footer and directory; false where there is nothing more to be read. */
function container(found, judge, add) {
  const { records, source } = found;
  const given = { file_size: source.size };
  const { parts } = grammar;
  const smallest = schema.records[parts.header].size + schema.records[parts.footer].size;
  found.header = records.at(parts.header, 0);
  if (source.size < smallest && (!found.header.values || found.header.values.magic === MAGIC)) {
    add(
      "header.complete",
      "$.header",
      0,
      source.size,
      `The file has ${source.size} bytes; the smallest pack has ${smallest}.`,
    );
    return false;
  }
  const header = found.header.values;
  const magic = records.broken(found.header, given).find(({ rule }) => rule === "header.magic");
  if (magic) {
    found.header.fields.find((item) => item.name === "magic").broken = ["header.magic"];
    const begins = text(records.bytes(0, 4)).text;
    add(
      "header.magic",
      "$.header.magic",
      0,
      4,
      `Found "${begins}". ${MAGICS[header.magic] ?? "This is no GPACK file."}`,
    );
    return false;
  }
  judge(found.header, "$.header", given);
  if (header.total_file_size > source.size) {
    const lost = header.total_file_size - source.size;
    add(
      "footer.magic",
      "$.footer",
      source.size,
      0,
      `The last ${lost} bytes are missing, and the footer with them: the file was cut off.`,
    );
  } else if (header.total_file_size >= smallest) {
    found.footer = records.at(parts.footer, header.total_file_size - schema.records[parts.footer].size);
    judge(found.footer, "$.footer", {});
  }
  directory(found, judge, given);
  return true;
}

function directory(found, judge, given) {
  const { section_table_offset: start, section_count: count } = found.header.values;
  const size = schema.records[grammar.parts.sections].size;
  if (count > schema.constants.MAX_SECTIONS || start + count * size > found.source.size) return;
  for (let index = 0; index < count; index += 1) {
    const entry = found.records.at(grammar.parts.sections, start + index * size);
    judge(entry, `$.sections[${index}]`, given);
    found.entries.push(entry);
  }
}

/** Header and rows of one section. */
function section(found, entry, index, judge, add) {
  const { kind, offset, size } = entry.values;
  const known = checks.KINDS.get(kind);
  const path = known ? `$.${known.name}` : `$.sections[${index}]`;
  const made = {
    index,
    entry,
    path,
    known,
    header: null,
    tables: {},
    sorted: known !== undefined && !UNSORTED.has(known.name),
  };
  const body = grammar.bodies.get(kind);
  if (!body || offset + size > found.source.size) return made;
  const type = grammar.header(body);
  if (!type) return made;
  const rule = { table: "index.header", single: "single.header" }[known.shape] ?? HEADER_RULES[known.name];
  if (size < schema.records[type].size) {
    add(rule, path, offset, size, `The section has ${size} bytes, its header ${schema.records[type].size}.`);
    return made;
  }
  made.header = found.records.at(type, offset);
  judge(made.header, path, { section_size: size, file_size: found.source.size });
  for (const [table, row] of grammar.tables(body)) rows(found, made, table, row, judge, add);
  return made;
}

/** The rows of a table, as many as are shown. */
function rows(found, made, table, type, judge, add) {
  const instance = grammar.types[grammar.bodies.get(made.entry.values.kind)].instances[table];
  const named = (expression) => made.header.values[/header\.(\w+)/.exec(expression)[1]];
  const [start, stride, count] = [named(instance.pos), named(instance.size), named(instance["repeat-expr"])];
  const { offset, size } = made.entry.values;
  const list = { type, count, rows: [] };
  made.tables[table] = list;
  if (stride < schema.records[type].size || start + count * stride > size) return; // a broken rule says so
  const shown = Math.min(count, MAX_ROWS);
  if (shown < count) found.complete = false;
  for (let index = 0; index < shown; index += 1) {
    const base = offset + start + index * stride;
    const row = found.records.at(type, base);
    row.width = schema.records[type].size;
    row.heap = heap(found, made, row);
    judge(row, `${made.path}.${table}[${index}]`, { section_size: size });
    list.rows.push(row);
  }
  checks.table(made, list.rows, add);
  if (made.known.name === "TensorIndexBin") checks.tensors(found, made, list.rows, shown === count, add);
}

/** What a row's references point at; of long values the beginning. */
function heap(found, made, row) {
  const found_ = {};
  const start = made.entry.values.offset + (made.header.values.ofs_heap ?? 0);
  for (const [field, name] of grammar.refs(row.type)) {
    const [offset, length] = [row.values[field], row.values[field.replace(/_offset$/, "_length")]];
    const bytes = found.records.bytes(start + offset, Math.min(length, MAX_VALUE));
    const isText = grammar.types[row.type].instances[name].type === "str";
    found_[name] = { offset, length, bytes, isText, at: start + offset, ...(isText ? text(bytes) : {}) };
  }
  return found_;
}

/** What the reader says that the Kaitai compiler made of the grammar. */
function readWithKaitai(source, found) {
  const total = found.sections.flatMap((item) => Object.values(item.tables)).reduce((sum, list) => sum + list.count, 0);
  if (total > 2 * MAX_ROWS) return { verdict: "skip", message: `${total} rows are more than a page should hold.` };
  const stream = new RangeStream(source);
  const dumper = new Dumper(grammar, (offset, length) => {
    if (offset + length > source.size)
      throw new Rejected("structure", "the file ends early: a reference leaves it", offset);
    return null;
  });
  try {
    guarded(grammar, stream, () => {
      const root = new Gpack(stream);
      dumper.record(root.header, grammar.parts.header);
      dumper.record(root.footer, grammar.parts.footer);
      checkBounds(root, stream.size);
      root.sections.forEach((entry) => dumper.section(entry));
    });
    return { verdict: "accept" };
  } catch (error) {
    if (!(error instanceof Rejected)) throw error;
    return { verdict: "reject", kind: error.kind, message: error.message, offset: error.offset };
  }
}

// ---------------------------------------------------------------- the report, for people

const find = (found, name) => found.sections.find((item) => item.known?.name === name);
const ggml = (type) => schema.columns.GgmlType[type]?.name ?? `type ${type}`;
const shape = (dims, rank) => (rank ? dims.slice(0, rank).join(" × ") : "scalar");
const enumName = (space, value) => schema.columns[space][value]?.name.toLowerCase() ?? String(value);
const bits = (space, value) =>
  Object.entries(schema.flags[space])
    .filter(([, mask]) => value & mask)
    .map(([name]) => name);
const plain = (record) =>
  record && { type: record.type, base: record.base, fields: record.fields, missing: record.missing };

/** Everything that the page draws, as plain data. */
function report({ found, problems, kaitai, broken }) {
  const rowsOf = (name, table = "rows") => find(found, name)?.tables[table]?.rows ?? [];
  return {
    size: found.source.size,
    problems,
    kaitai,
    complete: found.complete,
    rules: Object.entries(schema.rules).map(([id, rule]) => ({
      id,
      ...rule,
      broken: broken.has(id),
      checked: CHECKED.has(id),
    })),
    header: plain(found.header),
    footer: plain(found.footer),
    flags: found.header?.values ? bits("GPackFlags", found.header.values.flags) : [],
    sections: found.sections.map(sectionReport),
    metadata: rowsOf("MetadataKvBin").map((row) => ({
      key: row.heap.key.text,
      type: values.typeName(row.values),
      value: values.show(row.values, row.heap.value.bytes),
      length: row.heap.value.length,
      at: row.heap.value.at,
    })),
    tensors: rowsOf("TensorIndexBin").map((row) => tensor(found, row)),
    experts: rowsOf("ExpertLayoutBin").map((row) => ({ ...row.values, ...expertTypes(row.values) })),
    shards: rowsOf("ExpertLayoutBin", "shards").map((row) => ({
      name: row.heap.name.text,
      size: row.values.file_size,
      full: Boolean(row.values.flags & schema.flags.ShardFlags.HAS_SHA256),
    })),
    tokenizer: tokenizer(find(found, "TokenizerBin")),
    assets: rowsOf("TokenizerAssets").map((row) => asset(find(found, "TokenizerAssets"), row)),
    manifest: found.manifest,
  };
}

function sectionReport(item) {
  const { values: v, fields } = item.entry;
  const name = fields.find((field) => field.name === "name").value;
  return {
    index: item.index, kind: v.kind, name, doc: item.known?.doc ?? "A kind that version 1 does not know; readers skip it.",
    offset: v.offset, size: v.size, alignment: v.alignment, items: v.item_count, unit: item.known?.items ?? "items",
    sha256: fields.find((field) => field.name === "sha256").value,
    entry: plain(item.entry), header: plain(item.header),
    tables: Object.fromEntries(Object.entries(item.tables).map(([id, list]) => [id, tableReport(list)])),
  }; // prettier-ignore
}

function tableReport(list) {
  const refs = grammar.refs(list.type);
  const hidden = new Set([...refs.keys()].flatMap((field) => [field, field.replace(/_offset$/, "_length")]));
  const columns = grammar
    .fields(list.type)
    .filter((item) => !hidden.has(item.id) && !item["-reserved"])
    .map((item) => item.id);
  const names = [...refs.values()].filter((name) => grammar.types[list.type].instances[name].type === "str");
  const cell = (row, id) => {
    const field = row.fields.find((item) => item.name === id);
    return { value: Array.isArray(field.value) ? field.value.join(", ") : field.value, broken: field.broken };
  };
  return {
    count: list.count,
    columns: [...names, ...columns],
    rows: list.rows.map((row) => [
      ...names.map((name) => ({ value: row.heap[name].text })),
      ...columns.map((id) => cell(row, id)),
    ]),
  };
}

function tensor(found, row) {
  const v = row.values;
  const home = found.sections.find((item) => item.entry.values.kind === v.home);
  const notes = [...bits("TensorFlags", v.flags), ...(v.role ? [enumName("ExpertRole", v.role)] : [])];
  return {
    name: row.heap.name.text,
    type: ggml(v.ggml_type),
    shape: shape(v.dims, v.n_dims),
    elements: v.dims.reduce((product, extent) => product * extent, 1),
    bytes: v.byte_size,
    home: checks.named({ kind: v.home }),
    at: home && !(v.flags & schema.flags.TensorFlags.EXTERNAL) ? home.entry.values.offset + v.offset : null,
    notes: notes.join(", ").toLowerCase(),
  };
}

function expertTypes(v) {
  const matrix = (role) => `${ggml(v[`${role}_type`])} ${v[`${role}_ne0`]} × ${v[`${role}_ne1`]}`;
  return {
    gate: v.gate_ne0 ? matrix("gate") : "none",
    up: matrix("up"),
    down: matrix("down"),
    notes: bits("ExpertFlags", v.flags).join(", ").toLowerCase(),
  };
}

function tokenizer(item) {
  if (!item?.header?.values) return null;
  const v = item.header.values;
  return {
    vocabulary: v.vocab_size,
    merges: v.n_merges,
    eos: v.eos_token_id,
    template: v.chat_template_bytes,
    special: v.n_special,
    arrays: bits("GbtFlags", v.flags),
  };
}

function asset(item, row) {
  const base = item.entry.values.offset + item.header.values.ofs_data;
  return { name: row.heap.name.text, size: row.values.byte_size, at: base + row.values.offset };
}

/** The vocabulary and the template, read when they are asked for: {tokens: [{id, text, type}], template}. */
function vocabulary(source, found) {
  const item = find(found, "TokenizerBin");
  const stream = new RangeStream(source);
  const root = new Gpack(stream);
  return guarded(grammar, stream, () => {
    const { body } = root.sections[item.index];
    if (body.header.vocabBlobBytes > 1 << 28)
      throw new Rejected("structure", "the vocabulary is too large for a page", 0);
    const at = (name) => body.ofsSection + body[name];
    const offsets = source.read(at("ofsOffsets"), 4 * (body.header.vocabSize + 1));
    const view = new DataView(offsets.buffer, offsets.byteOffset, offsets.byteLength);
    const blob = source.read(at("ofsVocabBlob"), body.header.vocabBlobBytes);
    const types = source.read(at("ofsTokenTypes"), body.header.vocabSize);
    const tokens = Array.from(types, (type, id) => {
      return { id, type, text: text(blob.subarray(number(view, 4 * id, "u4"), number(view, 4 * id + 4, "u4"))).text };
    });
    return { tokens, template: text(source.read(at("ofsChatTemplate"), body.header.chatTemplateBytes)).text };
  });
}

module.exports = { inspect, report, vocabulary };
