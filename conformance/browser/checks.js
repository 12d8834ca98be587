"use strict";
// Rules that span several records, over what inspect.js has read. Each fault names a rule of the schema.

const schema = require("./schema");
const { hex } = require("./dump");

const KINDS = new Map(schema.sections.map((section) => [section.kind, section]));
const { CACHE_LINE } = schema.constants;
const MANIFEST = schema.sections.find((section) => section.shape === "json").kind;
const FLAGS = schema.flags.GPackFlags;

/** Rules that span records and that this module, inspect.js or worker.js checks; the others need a full check. */
const SPANNING = [
  "header.complete",
  "header.manifest",
  "header.flags_match",
  "footer.manifest_offset",
  "footer.section_table_offset",
  "footer.total_payload_bytes",
  "section.name",
  "section.kind_alignment",
  "section.duplicate",
  "section.mandatory",
  "section.pair",
  "section.order",
  "section.overlap",
  "section.gap",
  "section.gap_zero",
  "section.sha256",
  "manifest.sha256",
  "manifest.json",
  "manifest.canonical",
  "manifest.binding",
  "index.header",
  "single.header",
  "tokenizer.header",
  "chunks.header",
  "parity.header",
  "index.heap_ref",
  "index.sorted",
  "index.utf8",
  "tensor.home_present",
  "tensor.bounds",
  "tensor.position",
  "tensor.totals",
  "field.range",
  "field.reserved",
  "field.flags",
];

const up = (value, alignment) => Math.ceil(value / alignment) * alignment;
const named = (entry) => KINDS.get(entry.kind)?.name ?? `kind ${entry.kind}`;

/** Faults of header, directory and footer against each other. `add(rule, path, offset, length, message)` notes one. */
function container(found, add) {
  const { header, footer, entries } = found;
  const place = (record, name) => record.fields.find((field) => field.name === name);
  const at = (record, path, name, rule, message) => {
    const field = place(record, name);
    add(rule, `${path}.${name}`, field.offset, field.width, message);
  };
  const values = entries.map((entry) => entry.values);
  if (footer?.values) {
    for (const name of ["manifest_offset", "section_table_offset"]) {
      const [there, here] = [footer.values[name], header.values[name]];
      if (there !== here) at(footer, "$.footer", name, `footer.${name}`, `${there} here, ${here} in the header.`);
    }
    const total = values.reduce((sum, entry) => sum + entry.size, 0);
    if (footer.values.total_payload_bytes !== total && entries.length) {
      const message = `${footer.values.total_payload_bytes} here; the sections add up to ${total}.`;
      at(footer, "$.footer", "total_payload_bytes", "footer.total_payload_bytes", message);
    }
  }
  if (!entries.length) return;
  const fault = (index, name, rule, message) => at(entries[index], `$.sections[${index}]`, name, rule, message);
  kinds(values, fault, (rule, message) => at(header, "$.header", "section_count", rule, message));
  flags(header, values, (message) => at(header, "$.header", "flags", "header.flags_match", message));
  places(found, values, fault, add);
  const manifest = values.find((entry) => entry.kind === MANIFEST);
  for (const [name, field] of manifest
    ? [
        ["manifest_offset", "offset"],
        ["manifest_size", "size"],
      ]
    : []) {
    const [here, there] = [header.values[name], manifest[field]];
    if (here !== there) at(header, "$.header", name, "header.manifest", `${here} here, ${there} in the directory.`);
  }
}

function kinds(values, fault, missing) {
  const seen = new Set();
  values.forEach((entry, index) => {
    const known = KINDS.get(entry.kind);
    const end = entry.name.indexOf(0);
    const name = String.fromCharCode(...entry.name.subarray(0, end < 0 ? entry.name.length : end));
    if (known && known.name !== name)
      fault(index, "name", "section.name", `"${name}" here; kind ${entry.kind} is "${known.name}".`);
    if (known && known.alignment !== entry.alignment) {
      fault(
        index,
        "alignment",
        "section.kind_alignment",
        `${entry.alignment} here; ${known.name} has ${known.alignment}.`,
      );
    }
    if (seen.has(entry.kind)) fault(index, "kind", "section.duplicate", `${named(entry)} stands twice.`);
    seen.add(entry.kind);
    const order = (one) => (one.kind === MANIFEST ? Infinity : one.kind);
    if (index && order(values[index - 1]) > order(entry)) {
      fault(index, "kind", "section.order", `${named(entry)} stands after ${named(values[index - 1])}.`);
    }
  });
  for (const section of schema.sections) {
    if (section.mandatory && !seen.has(section.kind)) missing("section.mandatory", `${section.name} is missing.`);
    const lacks = section.needs.filter((kind) => seen.has(section.kind) && !seen.has(kind));
    for (const kind of lacks) {
      const index = values.findIndex((entry) => entry.kind === section.kind);
      fault(index, "kind", "section.pair", `${section.name} needs ${KINDS.get(kind).name}, which is missing.`);
    }
  }
}

function flags(header, values, fault) {
  const has = (kind) => values.some((entry) => entry.kind === kind);
  const byName = (name) => schema.sections.find((section) => section.name === name).kind;
  const wanted = new Map();
  for (const section of schema.sections) if (section.flag) wanted.set(section.flag, has(section.kind));
  wanted.set(FLAGS.EXTERNAL_EXPERTS, has(byName("ExpertLayoutBin")) && !has(byName("ExpertBlobs")));
  for (const [name, bit] of Object.entries(FLAGS)) {
    if (!wanted.has(bit) || Boolean(header.values.flags & bit) === wanted.get(bit)) continue;
    fault(
      `${name} is ${wanted.get(bit) ? "not set, although its section is there" : "set, although its section is not there"}.`,
    );
  }
}

/** Order in the file: overlaps, and gaps larger than the alignment asks for. Fills found.gaps. */
function places({ header, source, gaps }, values, fault, add) {
  const table = header.values.section_table_offset;
  const entrySize = schema.records.gpack_section_entry_v1.size;
  const tableEnd = table + header.values.section_count * entrySize;
  const footer = header.values.total_file_size - schema.records.gpack_footer_v1.size;
  const ranges = values.map((entry, index) => ({
    index,
    start: entry.offset,
    end: entry.offset + entry.size,
    alignment: entry.alignment,
  }));
  ranges.push(
    { start: table, end: tableEnd, alignment: CACHE_LINE },
    { start: footer, end: header.values.total_file_size, alignment: CACHE_LINE },
  );
  ranges.sort((a, b) => a.start - b.start || a.end - b.end);
  let end = schema.records.gpack_header_v1.size;
  for (const range of ranges) {
    if (range.start < end && range.index !== undefined) {
      fault(
        range.index,
        "offset",
        "section.overlap",
        `It begins ${end - range.start} bytes before what lies in front of it ends.`,
      );
    } else if (range.start < end && range.start === table) {
      add("section.overlap", "$.sections", table, tableEnd - table, "A section reaches into the directory.");
    } else if (range.start > end) {
      const least = range.alignment > 0 ? up(end, range.alignment) : end;
      if (range.index !== undefined && range.start > least) {
        fault(range.index, "offset", "section.gap", `It could begin at ${least}.`);
      } else if (range.start === table && range.start > least) {
        const field = header.fields.find((item) => item.name === "section_table_offset");
        add(
          "section.gap",
          "$.header.section_table_offset",
          field.offset,
          field.width,
          `The directory could begin at ${least}.`,
        );
      }
      if (range.start <= source.size) gaps.push([end, range.start - end]);
    }
    end = Math.max(end, range.end);
  }
}

/** The manifest: JSON, and the same as the directory and the header. */
function manifest(found, add) {
  const entry = found.entries.find((item) => item.values.kind === MANIFEST);
  if (!entry || entry.values.offset + entry.values.size > found.source.size) return;
  const { offset, size } = entry.values;
  const fault = (rule, path, message) => add(rule, path, offset, size, message);
  if (size > schema.constants.MAX_MANIFEST) return void fault("manifest.json", "$.ManifestJson", `It has ${size} bytes.`);
  let value;
  try {
    const text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(found.source.read(offset, size));
    found.manifest = { text };
    value = JSON.parse(text, (_, item) => {
      if (item === Infinity || item === -Infinity) throw new Error("A number is too large");
      return item;
    });
    strict(text);
  } catch (error) {
    return void fault("manifest.json", "$.ManifestJson", `${error.message}.`);
  }
  if (!value || typeof value !== "object" || Array.isArray(value))
    return void fault("manifest.json", "$.ManifestJson", "It is no object.");
  found.manifest.value = value;
  if (canonical(value) !== found.manifest.text)
    fault("manifest.canonical", "$.ManifestJson", "Its bytes are not those of the canonical form.");
  const header = found.header.values;
  for (const name of ["format_version", "min_reader_version", "flags"]) {
    if (value[name] !== header[name])
      fault("manifest.binding", `$.ManifestJson.${name}`, `${value[name]} here, ${header[name]} in the header.`);
  }
  const listed = Array.isArray(value.sections) ? value.sections : [];
  const others = found.entries.filter((item) => item !== entry);
  if (listed.length !== others.length) {
    fault(
      "manifest.binding",
      "$.ManifestJson.sections",
      `It lists ${listed.length} sections; the directory has ${others.length} beside it.`,
    );
  }
  others.forEach((other, index) => {
    for (const field of other.fields.filter((item) => listed[index] && item.name in listed[index])) {
      const said = listed[index][field.name];
      if (said !== field.value) {
        fault(
          "manifest.binding",
          `$.ManifestJson.sections[${index}].${field.name}`,
          `${said} here, ${field.value} in the directory.`,
        );
      }
    }
  });
}

/** What JSON.parse lets pass and the format does not: long numbers, doubled keys of an object, and deep nesting. */
function strict(text) {
  const open = [];
  const longest = schema.constants.MAX_NUMBER_LENGTH;
  for (const [token] of text.matchAll(/"(?:[^"\\]|\\.)*"|[-+.\deE]+/g)) {
    if (token[0] !== '"' && token.length > longest) throw new Error(`A number has more than ${longest} characters`);
  }
  for (const [token, colon] of text.matchAll(/"(?:[^"\\]|\\.)*"(\s*:)?|[[\]{}]/g)) {
    if (token === "{" || token === "[") {
      open.push(new Set());
      if (open.length > schema.constants.MAX_MANIFEST_DEPTH)
        throw new Error(`It is nested deeper than ${open.length - 1}`);
    } else if (token === "}" || token === "]") open.pop();
    else if (colon) {
      const key = JSON.parse(token.replace(/\s*:$/, ""));
      if (open.at(-1).has(key)) throw new Error(`The key "${key}" stands twice in one object`);
      open.at(-1).add(key);
    }
  }
}

/** RFC 8785: it takes numbers, escapes and the order of keys from ECMAScript. */
function canonical(value) {
  if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`;
  if (!value || typeof value !== "object") return JSON.stringify(value);
  return `{${Object.keys(value)
    .sort()
    .map((key) => `${JSON.stringify(key)}:${canonical(value[key])}`)
    .join(",")}}`;
}

/** Heap references, order of rows, and names of one table. */
function table(section, rows, add) {
  const { header, entry } = section;
  if (!header?.values || !("ofs_heap" in header.values)) return;
  const heap = header.values.len_heap;
  let before = null;
  rows.forEach((row, index) => {
    for (const [name, ref] of Object.entries(row.heap || {})) {
      const path = `${section.path}.rows[${index}].${name}_offset`;
      if (ref.offset + ref.length > heap) {
        add(
          "index.heap_ref",
          path,
          row.base,
          row.width,
          `It points at ${ref.offset} + ${ref.length}; the heap has ${heap} bytes.`,
        );
      } else if (ref.isText && ref.broken) {
        add(
          "index.utf8",
          path,
          entry.values.offset + header.values.ofs_heap + ref.offset,
          ref.length,
          "It is not UTF-8.",
        );
      }
    }
    const field = row.heap?.key ? "key" : "name";
    const name = row.heap?.[field];
    if (section.sorted && name && before && compare(before, name.bytes) >= 0) {
      add(
        "index.sorted",
        `${section.path}.rows[${index}].${field}_offset`,
        row.base,
        row.width,
        `"${name.text}" stands after a name that is not before it.`,
      );
    }
    before = name?.bytes ?? null;
  });
}

function compare(a, b) {
  for (let i = 0; i < Math.min(a.length, b.length); i += 1) if (a[i] !== b[i]) return a[i] - b[i];
  return a.length - b.length;
}

/** Tensors against their homes and the totals of their table. */
function tensors(found, section, rows, complete, add) {
  const sizes = new Map(found.entries.map((entry) => [entry.values.kind, entry.values.size]));
  const { EXTERNAL } = schema.flags.TensorFlags;
  let elements = 0;
  let bytes = 0;
  const positions = new Set();
  rows.forEach((row, index) => {
    const v = row.values;
    const path = `${section.path}.rows[${index}]`;
    elements += v.dims.reduce((product, extent) => product * extent, 1);
    bytes += v.byte_size;
    positions.add(v.position);
    if (v.flags & EXTERNAL) return;
    const size = sizes.get(v.home);
    if (size === undefined)
      add("tensor.home_present", `${path}.home`, row.base, row.width, `${named({ kind: v.home })} is not in the file.`);
    else if (v.offset + (v.role ? 0 : v.byte_size) > size) {
      add(
        "tensor.bounds",
        `${path}.offset`,
        row.base,
        row.width,
        `It ends at ${v.offset + v.byte_size} of ${size} bytes.`,
      );
    }
  });
  if (!complete) return;
  for (const [name, sum] of [
    ["parameter_count", elements],
    ["tensor_bytes", bytes],
  ]) {
    const field = section.header.fields.find((item) => item.name === name);
    if (field && field.value !== sum) {
      add(
        "tensor.totals",
        `${section.path}.${name}`,
        field.offset,
        field.width,
        `${field.value} here; the rows add up to ${sum}.`,
      );
    }
  }
  if (positions.size !== rows.length || [...positions].some((position) => position >= rows.length)) {
    add(
      "tensor.position",
      `${section.path}.rows`,
      section.entry.values.offset,
      section.entry.values.size,
      "A position is missing or stands twice.",
    );
  }
}

/** Digests, when all are known: Map of the section's number to hex. */
function digests(found, known, add) {
  found.entries.forEach((entry, index) => {
    const field = entry.fields.find((item) => item.name === "sha256");
    if (known.has(index) && known.get(index) !== field.value) {
      const { offset, size } = entry.values;
      add(
        "section.sha256",
        `$.sections[${index}].sha256`,
        offset,
        size,
        `The payload of ${named(entry.values)} has ${known.get(index)}.`,
      );
    }
    if (entry.values.kind === MANIFEST && known.has(index) && found.footer?.values) {
      const stated = found.footer.fields.find((item) => item.name === "manifest_sha256");
      if (known.get(index) !== stated.value) {
        add(
          "manifest.sha256",
          "$.footer.manifest_sha256",
          stated.offset,
          stated.width,
          `The manifest has ${known.get(index)}.`,
        );
      }
    }
  });
  for (const [offset, length] of found.gaps) {
    const bytes = found.source.read(offset, Math.min(length, 1 << 20));
    const wrong = bytes.findIndex(Boolean);
    if (wrong >= 0) {
      add(
        "section.gap_zero",
        "$",
        offset + wrong,
        1,
        `The byte at ${offset + wrong}, between two sections, is 0x${hex([bytes[wrong]])}.`,
      );
    }
  }
}

module.exports = { KINDS, SPANNING, container, digests, manifest, named, table, tensors };
