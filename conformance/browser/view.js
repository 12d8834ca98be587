"use strict";
// What the page shows of a file.

const { $, bytes, count, fields, h, hexed, table, tabs } = require("./elements");
const { Summary } = require("./summary");

class View {
  constructor(session) {
    this.session = session;
    this.report = session.report;
    this.digestCells = new Map();
    this.problemList = h("div");
    this.ruleTable = h("details");
    this.summary = new Summary(session);
    const panels = this.panels();
    const result = $("result");
    result.replaceChildren(this.summary.element, ...tabs(panels));
    result.hidden = false;
    this.problems();
    result.focus({ preventScroll: true });
  }

  panels() {
    const { report } = this;
    const made = [
      ["Checks", () => this.checks()],
      ["Sections", () => this.sections()],
    ];
    const add = (title, amount, draw) => made.push([`${title} (${count(amount)})`, draw]);
    if (report.metadata.length) add("Metadata", report.metadata.length, () => this.metadata());
    if (report.tensors.length) add("Tensors", report.tensors.length, () => this.tensors());
    if (report.experts.length) add("Experts", report.experts.length, () => this.experts());
    if (report.tokenizer) add("Tokenizer", report.tokenizer.vocabulary, () => this.tokenizer());
    if (report.assets.length) add("Assets", report.assets.length, () => this.assets());
    if (report.manifest) made.push(["Manifest", () => this.manifest()]);
    made.push(["Header and footer", () => this.records()]);
    return made;
  }

  // ------------------------------------------------------------ checks

  problems() {
    const { report } = this;
    this.summary.judge();
    this.ruleTable.replaceChildren(...this.rules());
    this.problemList.replaceChildren(
      ...(report.problems.length
        ? [
            h(
              "ol",
              { class: "problems" },
              report.problems.map((problem) => this.problem(problem)),
            ),
          ]
        : [h("p", { class: "fine" }, "No rule that was checked is broken.")]),
    );
  }

  problem({ rule, path, offset, length, message, doc, severity }) {
    const place = length
      ? `bytes ${count(offset)} to ${count(offset + length - 1)} (${hexed(offset)})`
      : `at byte ${count(offset)}`;
    return h(
      "li",
      { class: severity === "warning" ? "warning" : "error" },
      h("p", {}, h("strong", {}, rule), " ", h("code", {}, path)),
      h("p", {}, message),
      h("p", { class: "quiet" }, `Must hold: ${doc} ${place[0].toUpperCase()}${place.slice(1)}.`),
    );
  }

  checks() {
    const { report } = this;
    const { kaitai } = report;
    const words = {
      accept: "accepts the file",
      skip: `was not run: ${kaitai.message}`,
      reject: `rejects the file (${kaitai.kind}) at byte ${count(kaitai.offset ?? 0)}: ${kaitai.message}`,
    };
    const notes = [`The parser that the Kaitai compiler makes of schema/gpack.ksy ${words[kaitai.verdict]}.`];
    if (!report.complete)
      notes.push("Some tables are longer than the page shows; rows beyond the first 20,000 were not checked.");
    notes.push([
      "A full check of every rule: ",
      h("code", {}, "guild verify FILE"),
      " or ",
      h("code", {}, "gpack-conformance check FILE"),
      ".",
    ]);
    return [this.problemList, ...notes.map((note) => h("p", { class: "quiet" }, note)), this.ruleTable];
  }

  /** All rules, and which of them hold; of a file that could not be read far enough nothing is claimed. */
  rules() {
    const { report } = this;
    const digest = (rule) => rule.level === "digest" && !this.session.checked;
    const state = (rule) => {
      if (rule.broken) return "broken";
      if (!rule.checked) return "not checked here";
      if (!report.sections.length) return "not reached";
      return digest(rule) ? "with the digests" : "holds";
    };
    const columns = [
      { title: "Rule", text: (rule) => rule.id, cell: (rule) => h("code", {}, rule.id) },
      {
        title: "State",
        text: state,
        cell: (rule) => h("span", { class: rule.broken ? "broken" : undefined }, state(rule)),
      },
      { title: "Must hold", class: "wide", text: (rule) => rule.doc, cell: (rule) => rule.doc },
    ];
    const unchecked = report.rules.filter((rule) => !rule.checked).length;
    const title = `All ${report.rules.length} rules of the format; ${unchecked} of them need a full check`;
    return [h("summary", {}, title), table("Rules", columns, report.rules, "Filter by rule or state")];
  }

  // ------------------------------------------------------------ sections

  sections() {
    const { report } = this;
    const detail = h("div", { class: "detail" });
    const columns = [
      {
        title: "Name",
        text: (section) => section.name,
        cell: (section) =>
          h(
            "button",
            { type: "button", class: "link", onclick: () => detail.replaceChildren(...this.section(section)) },
            section.name,
          ),
      },
      {
        title: "Kind",
        number: true,
        cell: (section) => (section.kind < 256 ? String(section.kind) : hexed(section.kind)),
      },
      { title: "Offset", number: true, cell: (section) => count(section.offset) },
      {
        title: "Size",
        number: true,
        cell: (section) => h("span", { title: `${count(section.size)} bytes` }, bytes(section.size)),
      },
      { title: "Align", number: true, cell: (section) => String(section.alignment) },
      {
        title: "Items",
        number: true,
        cell: (section) => `${count(section.items)} ${section.unit.replace(/ \(.*/, "")}`,
      },
      { title: "SHA-256", cell: (section) => this.digestCell(section) },
      { title: "Holds", class: "wide", cell: (section) => section.doc },
    ];
    if (!report.sections.length) return [h("p", {}, "The directory could not be read.")];
    return [table("Section directory, in file order", columns, report.sections), detail];
  }

  digestCell(section) {
    const state = h("span", { class: "digeststate" });
    this.digestCells.set(section.index, state);
    this.digest(section.index);
    return h(
      "span",
      { class: "digestcell" },
      state,
      h("code", { title: section.sha256 }, `${section.sha256.slice(0, 12)}…`),
    );
  }

  digest(index) {
    const state = this.digestCells.get(index);
    const result = this.session.results.get(index);
    if (!state || !result) return;
    const { size } = this.report.sections.find((section) => section.index === index);
    state.textContent = result.done
      ? result.right
        ? "✓ right"
        : "✗ wrong"
      : `${Math.floor((100 * result.read) / size)} %`;
    state.className = `digeststate ${result.done ? (result.right ? "good" : "bad") : ""}`;
  }

  section(section) {
    const made = [h("h3", {}, section.name), fields(section.entry, `Directory entry ${section.index}`)];
    if (section.header) made.push(fields(section.header, `Header of ${section.name}`));
    for (const [id, list] of Object.entries(section.tables)) made.push(this.rows(`${section.name}: ${id}`, list));
    return made;
  }

  rows(caption, list) {
    const columns = list.columns.map((title, index) => ({
      title,
      text: (row) => String(row[index].value),
      class: "value",
      cell: (row) =>
        h(
          "span",
          { class: row[index].broken ? "broken" : undefined, title: row[index].broken?.join(", ") },
          String(row[index].value),
        ),
    }));
    const short = list.rows.length < list.count ? `, the first ${count(list.rows.length)} of ${count(list.count)}` : "";
    return table(`${caption}${short}`, columns, list.rows, list.rows.length > 8 ? "Filter" : undefined);
  }

  // ------------------------------------------------------------ contents

  metadata() {
    const columns = [
      { title: "Key", text: (row) => row.key, cell: (row) => h("code", {}, row.key) },
      { title: "Type", text: (row) => row.type, cell: (row) => row.type },
      {
        title: "Value",
        text: (row) => row.value,
        class: "value",
        cell: (row) => (row.value.length > 300 ? `${row.value.slice(0, 300)}…` : row.value),
      },
      { title: "Bytes", number: true, cell: (row) => count(row.length) },
    ];
    return [table("Metadata of the source", columns, this.report.metadata, "Filter by key, type or value")];
  }

  tensors() {
    const columns = [
      { title: "Name", text: (row) => row.name, cell: (row) => h("code", {}, row.name) },
      { title: "Type", text: (row) => row.type, cell: (row) => row.type },
      { title: "Shape", number: true, text: (row) => row.shape, cell: (row) => row.shape },
      { title: "Elements", number: true, cell: (row) => count(row.elements) },
      {
        title: "Size",
        number: true,
        cell: (row) => h("span", { title: `${count(row.bytes)} bytes` }, bytes(row.bytes)),
      },
      { title: "Home", text: (row) => row.home, cell: (row) => row.home },
      { title: "At byte", number: true, cell: (row) => (row.at === null ? "in a shard" : count(row.at)) },
      { title: "Notes", text: (row) => row.notes, cell: (row) => row.notes },
    ];
    return [
      table(
        "Tensors, by name; the contiguous axis first",
        columns,
        this.report.tensors,
        "Filter by name, type, shape or home",
      ),
    ];
  }

  experts() {
    const columns = [
      { title: "Layer", number: true, cell: (row) => String(row.layer) },
      { title: "Experts", number: true, cell: (row) => count(row.n_expert) },
      ...["gate", "up", "down"].map((role) => ({ title: role, cell: (row) => row[role] })),
      { title: "Stride", number: true, cell: (row) => (row.stride ? bytes(row.stride) : "in shards") },
      { title: "Notes", cell: (row) => row.notes },
    ];
    const made = [table("Routed experts by layer", columns, this.report.experts)];
    if (this.report.shards.length) {
      made.push(
        table(
          "External shards, which lie beside the file",
          [
            { title: "File", cell: (row) => h("code", {}, row.name) },
            { title: "Size", number: true, cell: (row) => bytes(row.size) },
            {
              title: "Full digest",
              cell: (row) => (row.full ? "recorded" : "not recorded: only its header is covered"),
            },
          ],
          this.report.shards,
        ),
      );
    }
    return made;
  }

  tokenizer() {
    const t = this.report.tokenizer;
    this.tokens = h("div", {}, h("p", {}, "Reading the vocabulary …"));
    this.session.main.postMessage({ type: "vocabulary" });
    const facts = [
      ["Tokens", count(t.vocabulary)],
      ["Merges", count(t.merges)],
      ["End of sequence", t.eos < 0 ? "none" : count(t.eos)],
      ["Special tokens", count(t.special)],
      ["Precomputed", t.arrays.join(", ").toLowerCase() || "nothing"],
    ];
    return [
      h(
        "dl",
        { class: "facts" },
        facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))),
      ),
      this.tokens,
    ];
  }

  vocabulary({ tokens, template }) {
    const types = ["not stored", "normal", "unknown", "control", "user-defined", "unused", "byte"];
    const columns = [
      { title: "Id", number: true, text: (row) => String(row.id), cell: (row) => String(row.id) },
      { title: "Token", text: (row) => row.text, cell: (row) => h("code", {}, JSON.stringify(row.text)) },
      { title: "Type", text: (row) => types[row.type] ?? "", cell: (row) => types[row.type] ?? String(row.type) },
    ];
    this.tokens.replaceChildren(
      table("Vocabulary", columns, tokens, "Filter by token, id or type"),
      ...(template ? [h("h3", {}, "Chat template"), h("pre", { tabindex: "0" }, template)] : []),
    );
  }

  assets() {
    const columns = [
      { title: "File", cell: (row) => h("code", {}, row.name) },
      { title: "Size", number: true, cell: (row) => bytes(row.size) },
      {
        title: "",
        cell: (row) =>
          h("button", { type: "button", class: "link", onclick: () => this.save(row) }, `Save ${row.name}`),
      },
    ];
    return [table("Raw tokenizer files", columns, this.report.assets)];
  }

  save({ name, at, size }) {
    const url = URL.createObjectURL(this.session.file.slice(at, at + size, "application/octet-stream"));
    h("a", { href: url, download: name }).click();
    setTimeout(() => URL.revokeObjectURL(url), 60_000);
  }

  manifest() {
    const { text, value } = this.report.manifest;
    return [
      h(
        "p",
        { class: "quiet" },
        value === undefined
          ? "The bytes as they are:"
          : "The manifest binds every section by its digest; its own digest is the file's identity.",
      ),
      h("pre", { tabindex: "0" }, value === undefined ? text : JSON.stringify(value, null, 2)),
    ];
  }

  records() {
    const { report } = this;
    const flags = h(
      "p",
      {},
      "Flags: ",
      ...report.flags.map((name) => h("span", { class: "chip" }, name.toLowerCase().replaceAll("_", " "))),
    );
    return [fields(report.header, "Header"), flags, fields(report.footer, "Footer")];
  }
}

module.exports = { View };
