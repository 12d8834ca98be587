"use strict";
// The page: takes a file, asks a worker for its structure and others for digests, and draws what they say.

const $ = (id) => document.getElementById(id);
const WORKERS = Math.max(1, Math.min(4, (navigator.hardwareConcurrency || 2) - 1));
const PAGE = 200; // rows that a table shows before it is asked for more

/** An element: h("td", {class: "num"}, "text", child, ...). Text is always text, whatever a file holds. */
function h(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value !== undefined && value !== false) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}

const count = (number) => Number(number).toLocaleString("en");
const plural = (number, word) => `${count(number)} ${word}${number === 1 ? "" : "s"}`;
const hexed = (number) => `0x${Number(number).toString(16)}`;

function bytes(size) {
  const units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  let value = size;
  for (; value >= 1024 && unit < units.length - 1; unit += 1) value /= 1024;
  return unit ? `${value.toFixed(value < 10 ? 2 : 1)} ${units[unit]}` : plural(size, "byte");
}

// ---------------------------------------------------------------- workers

const script = URL.createObjectURL(new Blob([$("worker").textContent], { type: "text/javascript" }));
let session = null;

/** One worker, whose answers go to `listen`. */
function start(listen) {
  const worker = new Worker(script);
  worker.onmessage = ({ data }) => listen(data);
  worker.onerror = (event) => listen({ type: "failed", of: "worker", message: event.message || "the worker ended" });
  return worker;
}

function open(file) {
  session?.end();
  session = new Session(file);
}

class Session {
  constructor(file) {
    this.file = file;
    this.workers = [];
    this.digests = new Map();
    this.results = new Map();
    this.main = this.hire((message) => this.listen(message));
    say(`Reading ${file.name} …`);
    $("result").hidden = true;
    this.main.postMessage({ type: "open", file });
  }

  hire(listen) {
    const worker = start((message) => session === this && listen(message));
    this.workers.push(worker);
    return worker;
  }

  end() {
    for (const worker of this.workers) worker.terminate();
  }

  listen(message) {
    if (message.type === "report") this.show(message.report);
    else if (message.type === "digests") this.judged(message.problems);
    else if (message.type === "vocabulary") this.view.vocabulary(message);
    else if (message.type === "failed") say(`${this.file.name} could not be read: ${message.message}`, true);
  }

  show(report) {
    this.report = report;
    this.view = new View(this);
    const found = report.problems.filter((problem) => problem.severity !== "warning").length;
    say(found ? `${this.file.name}: ${plural(found, "problem")} found.` : `${this.file.name}: the structure is right. Digests are not checked yet.`, found > 0);
  }

  // ------------------------------------------------------------ digests

  check() {
    const queue = this.report.sections.filter((section) => section.offset + section.size <= this.report.size);
    this.total = queue.reduce((sum, section) => sum + section.size, 0);
    this.done = 0;
    this.began = performance.now();
    this.left = queue.length;
    this.digests.clear();
    this.results.clear();
    queue.sort((a, b) => b.size - a.size);
    this.hashers = Array.from({ length: Math.min(WORKERS, queue.length) }, () => {
      const worker = this.hire((message) => {
        if (message.type === "progress") this.progressed(message.index, message.bytes);
        else if (message.type === "hashed") {
          this.hashed(message);
          next();
        } else if (message.type === "failed") this.stop(`The file could not be read: ${message.message}`);
      });
      const next = () => {
        const section = queue.shift();
        if (section) worker.postMessage({ type: "hash", file: this.file, index: section.index, offset: section.offset, size: section.size });
        else worker.terminate();
      };
      next();
      return worker;
    });
    if (!queue.length && !this.left) this.finish();
    this.view.progress(0, "");
  }

  progressed(index, length) {
    this.done += length;
    this.results.set(index, { ...this.results.get(index), read: (this.results.get(index)?.read ?? 0) + length });
    const seconds = (performance.now() - this.began) / 1000;
    const speed = this.done / Math.max(seconds, 0.001);
    const left = (this.total - this.done) / speed;
    this.view.progress(this.total ? this.done / this.total : 1, `${bytes(this.done)} of ${bytes(this.total)}, ${bytes(speed)}/s, ${Math.ceil(left)} s left`);
    this.view.digest(index);
  }

  hashed({ index, digest }) {
    this.digests.set(index, digest);
    this.results.set(index, { done: true, right: digest === this.report.sections.find((section) => section.index === index).sha256 });
    this.view.digest(index);
    this.left -= 1;
    if (!this.left) this.finish();
  }

  finish() {
    this.main.postMessage({ type: "digests", known: [...this.digests] });
  }

  stop(reason) {
    for (const worker of this.hashers) worker.terminate();
    this.view.progress(null, reason);
    say(reason, true);
  }

  judged(problems) {
    this.report.problems.push(...problems);
    for (const problem of problems) {
      const rule = this.report.rules.find((item) => item.id === problem.rule);
      if (rule) rule.broken = true;
    }
    const seconds = ((performance.now() - this.began) / 1000).toFixed(1);
    this.checked = true;
    this.view.progress(null, `${bytes(this.total)} hashed in ${seconds} s.`);
    this.view.problems();
    say(problems.length ? `${plural(problems.length, "digest problem")} found.` : "All digests are right.", problems.length > 0);
  }
}

function say(text, bad = false) {
  $("status").textContent = text;
  $("status").classList.toggle("bad", bad);
}

// ---------------------------------------------------------------- tables

/** A table with a filter where there are many rows; `columns` are {title, cell(row), number?, text?(row)}. */
function table(caption, columns, rows, filterLabel) {
  const body = h("tbody");
  let shown = rows;
  let limit = PAGE;
  const more = h("button", { type: "button", class: "more", onclick: () => ((limit += 5 * PAGE), draw()) });
  const state = h("p", { class: "state", role: "status" });
  const draw = () => {
    body.replaceChildren(...shown.slice(0, limit).map((row) => h("tr", {}, columns.map((column) => h("td", { class: column.number ? "num" : column.class }, column.cell(row))))));
    more.hidden = shown.length <= limit;
    more.textContent = `Show ${count(Math.min(5 * PAGE, shown.length - limit))} more`;
    state.textContent = shown.length === rows.length ? "" : `${count(shown.length)} of ${count(rows.length)} rows match.`;
  };
  const filter = filterLabel && h("label", { class: "filter" }, filterLabel, h("input", { type: "search", autocomplete: "off", spellcheck: "false", oninput: (event) => {
    const wanted = event.target.value.toLowerCase();
    shown = wanted ? rows.filter((row) => columns.some((column) => column.text?.(row).toLowerCase().includes(wanted))) : rows;
    limit = PAGE;
    draw();
  } }));
  draw();
  const head = h("thead", {}, h("tr", {}, columns.map((column) => h("th", { scope: "col", class: column.number ? "num" : undefined }, column.title))));
  return h("div", { class: "table" }, filter ?? null, state, h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, h("table", {}, h("caption", {}, caption), head, body)), more);
}

/** The fields of a record, the broken ones marked. */
function fields(record, caption) {
  if (!record) return h("p", {}, "It could not be read: the file ends before it.");
  const columns = [
    { title: "Offset", number: true, cell: (field) => h("span", { title: count(field.offset) }, hexed(field.offset)) },
    { title: "Field", cell: (field) => h("code", {}, field.name) },
    { title: "Value", class: "value", cell: (field) => [h("span", { class: field.broken ? "broken" : undefined }, String(field.value)), ...(field.broken ?? []).map((rule) => h("span", { class: "rule" }, rule))] },
    { title: "Meaning", class: "wide", cell: (field) => field.doc },
  ];
  return table(caption, columns, record.fields);
}

// ---------------------------------------------------------------- the result

class View {
  constructor(session) {
    this.session = session;
    this.report = session.report;
    this.digestCells = new Map();
    this.problemList = h("div");
    const panels = this.panels();
    const result = $("result");
    result.replaceChildren(this.summary(), ...tabs(panels));
    result.hidden = false;
    this.problems();
    result.focus({ preventScroll: true });
  }

  panels() {
    const { report } = this;
    const made = [["Checks", () => this.checks()], ["Sections", () => this.sections()]];
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

  // ------------------------------------------------------------ above the tabs

  summary() {
    const { report, session } = this;
    const model = report.manifest?.value?.model ?? {};
    const facts = [
      ["File", session.file.name],
      ["Size", `${bytes(report.size)} (${count(report.size)} bytes)`],
      ["Model", [model.name, model.architecture && `(${model.architecture})`].filter(Boolean).join(" ") || "not told"],
      ["Parameters", model.parameter_count === undefined ? "not told" : count(model.parameter_count)],
      ["Tensors", count(report.sections.find((section) => section.name === "TensorIndexBin")?.tables.rows?.count ?? 0)],
      ["Identity", h("code", { class: "digest" }, report.footer?.fields.find((field) => field.name === "manifest_sha256")?.value ?? "unknown")],
    ];
    this.verdict = h("p", { class: "verdict" });
    this.bar = h("div", { class: "bar", role: "progressbar", "aria-label": "Digests", "aria-valuemin": "0", "aria-valuemax": "100", hidden: true }, h("div"));
    this.speed = h("span", { class: "speed" });
    this.button = h("button", { type: "button", class: "primary", onclick: () => session.check() }, "Check all digests");
    this.button.disabled = !report.sections.length;
    return h("div", { class: "card" },
      this.verdict,
      h("dl", {}, facts.map(([name, value]) => h("div", { class: name === "Identity" ? "broad" : undefined }, h("dt", {}, name), h("dd", {}, value)))),
      this.map(),
      h("div", { class: "check" }, this.button, this.bar, this.speed));
  }

  /** The file as a strip: every section in its place, at least a hair wide. */
  map() {
    const { report } = this;
    if (!report.sections.length) return null;
    const strip = report.sections.filter((section) => section.size).map((section) => {
      const item = h("span", { class: `kind k${section.kind < 15 ? section.kind : "x"}`, title: `${section.name}: ${bytes(section.size)} at ${count(section.offset)}` });
      item.style.flexGrow = String(Math.max(section.size / report.size, 0.004));
      return item;
    });
    const largest = [...report.sections].sort((a, b) => b.size - a.size).slice(0, 6);
    const legend = largest.map((section) => h("li", {}, h("span", { class: `swatch k${section.kind < 15 ? section.kind : "x"}` }), `${section.name} ${bytes(section.size)}`));
    return h("div", { class: "map" }, h("div", { class: "strip", "aria-hidden": "true" }, strip), h("ul", { class: "legend", "aria-label": "Largest sections" }, legend));
  }

  progress(part, text) {
    this.bar.hidden = part === null;
    this.button.disabled = part !== null;
    this.speed.textContent = text;
    if (part === null) return;
    const percent = Math.floor(100 * part);
    this.bar.setAttribute("aria-valuenow", String(percent));
    this.bar.setAttribute("aria-valuetext", `${percent} %`);
    this.bar.firstChild.style.width = `${100 * part}%`;
  }

  // ------------------------------------------------------------ checks

  problems() {
    const { report, session } = this;
    const errors = report.problems.filter((problem) => problem.severity !== "warning");
    const digests = session.checked ? "all digests are right" : "digests are not checked yet";
    this.verdict.textContent = errors.length ? `${plural(errors.length, "problem")} found` : `The structure is right; ${digests}`;
    this.verdict.className = `verdict ${errors.length ? "bad" : session.checked ? "good" : "fair"}`;
    this.problemList.replaceChildren(...(report.problems.length ? [h("ol", { class: "problems" }, report.problems.map((problem) => this.problem(problem)))] : [h("p", { class: "fine" }, "No rule that was checked is broken.")]));
  }

  problem({ rule, path, offset, length, message, doc, severity }) {
    const place = length ? `bytes ${count(offset)} to ${count(offset + length - 1)} (${hexed(offset)})` : `at byte ${count(offset)}`;
    return h("li", { class: severity === "warning" ? "warning" : "error" },
      h("p", {}, h("strong", {}, rule), " ", h("code", {}, path)),
      h("p", {}, message),
      h("p", { class: "quiet" }, `Must hold: ${doc} ${place[0].toUpperCase()}${place.slice(1)}.`));
  }

  checks() {
    const { report } = this;
    const { kaitai } = report;
    const words = { accept: "accepts the file", skip: `was not run: ${kaitai.message}`, reject: `rejects the file (${kaitai.kind}) at byte ${count(kaitai.offset ?? 0)}: ${kaitai.message}` };
    const notes = [`The parser that the Kaitai compiler makes of schema/gpack.ksy ${words[kaitai.verdict]}.`];
    if (!report.complete) notes.push("Some tables are longer than the page shows; rows beyond the first 20,000 were not checked.");
    notes.push(["A full check of every rule: ", h("code", {}, "guild verify FILE"), " or ", h("code", {}, "gpack-conformance check FILE"), "."]);
    const digest = (rule) => rule.level === "digest" && !this.session.checked;
    const state = (rule) => (rule.broken ? "broken" : !rule.checked ? "not checked here" : digest(rule) ? "with the digests" : "holds");
    const columns = [
      { title: "Rule", text: (rule) => rule.id, cell: (rule) => h("code", {}, rule.id) },
      { title: "State", text: state, cell: (rule) => h("span", { class: rule.broken ? "broken" : undefined }, state(rule)) },
      { title: "Must hold", class: "wide", text: (rule) => rule.doc, cell: (rule) => rule.doc },
    ];
    const unchecked = report.rules.filter((rule) => !rule.checked).length;
    this.ruleTable = h("details", {}, h("summary", {}, `All ${report.rules.length} rules of the format; ${unchecked} of them need a full check`), table("Rules", columns, report.rules, "Filter by rule or state"));
    return [this.problemList, ...notes.map((note) => h("p", { class: "quiet" }, note)), this.ruleTable];
  }

  // ------------------------------------------------------------ sections

  sections() {
    const { report } = this;
    const detail = h("div", { class: "detail" });
    const columns = [
      { title: "Name", text: (section) => section.name, cell: (section) => h("button", { type: "button", class: "link", onclick: () => detail.replaceChildren(...this.section(section)) }, section.name) },
      { title: "Kind", number: true, cell: (section) => (section.kind < 256 ? String(section.kind) : hexed(section.kind)) },
      { title: "Offset", number: true, cell: (section) => count(section.offset) },
      { title: "Size", number: true, cell: (section) => h("span", { title: `${count(section.size)} bytes` }, bytes(section.size)) },
      { title: "Align", number: true, cell: (section) => String(section.alignment) },
      { title: "Items", number: true, cell: (section) => `${count(section.items)} ${section.unit.replace(/ \(.*/, "")}` },
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
    return h("span", { class: "digestcell" }, state, h("code", { title: section.sha256 }, `${section.sha256.slice(0, 12)}…`));
  }

  digest(index) {
    const state = this.digestCells.get(index);
    const result = this.session.results.get(index);
    if (!state || !result) return;
    const { size } = this.report.sections.find((section) => section.index === index);
    state.textContent = result.done ? (result.right ? "✓ right" : "✗ wrong") : `${Math.floor((100 * result.read) / size)} %`;
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
      cell: (row) => h("span", { class: row[index].broken ? "broken" : undefined, title: row[index].broken?.join(", ") }, String(row[index].value)),
    }));
    const short = list.rows.length < list.count ? `, the first ${count(list.rows.length)} of ${count(list.count)}` : "";
    return table(`${caption}${short}`, columns, list.rows, list.rows.length > 8 ? "Filter" : undefined);
  }

  // ------------------------------------------------------------ contents

  metadata() {
    const columns = [
      { title: "Key", text: (row) => row.key, cell: (row) => h("code", {}, row.key) },
      { title: "Type", text: (row) => row.type, cell: (row) => row.type },
      { title: "Value", text: (row) => row.value, class: "value", cell: (row) => (row.value.length > 300 ? `${row.value.slice(0, 300)}…` : row.value) },
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
      { title: "Size", number: true, cell: (row) => h("span", { title: `${count(row.bytes)} bytes` }, bytes(row.bytes)) },
      { title: "Home", text: (row) => row.home, cell: (row) => row.home },
      { title: "At byte", number: true, cell: (row) => (row.at === null ? "in a shard" : count(row.at)) },
      { title: "Notes", text: (row) => row.notes, cell: (row) => row.notes },
    ];
    return [table("Tensors, by name; the contiguous axis first", columns, this.report.tensors, "Filter by name, type, shape or home")];
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
      made.push(table("External shards, which lie beside the file", [
        { title: "File", cell: (row) => h("code", {}, row.name) },
        { title: "Size", number: true, cell: (row) => bytes(row.size) },
        { title: "Full digest", cell: (row) => (row.full ? "recorded" : "not recorded: only its header is covered") },
      ], this.report.shards));
    }
    return made;
  }

  tokenizer() {
    const t = this.report.tokenizer;
    this.tokens = h("div", {}, h("p", {}, "Reading the vocabulary …"));
    this.session.main.postMessage({ type: "vocabulary" });
    const facts = [["Tokens", count(t.vocabulary)], ["Merges", count(t.merges)], ["End of sequence", t.eos < 0 ? "none" : count(t.eos)], ["Special tokens", count(t.special)], ["Precomputed", t.arrays.join(", ").toLowerCase() || "nothing"]];
    return [h("dl", { class: "facts" }, facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)))), this.tokens];
  }

  vocabulary({ tokens, template }) {
    const types = ["not stored", "normal", "unknown", "control", "user-defined", "unused", "byte"];
    const columns = [
      { title: "Id", number: true, text: (row) => String(row.id), cell: (row) => String(row.id) },
      { title: "Token", text: (row) => row.text, cell: (row) => h("code", {}, JSON.stringify(row.text)) },
      { title: "Type", text: (row) => types[row.type] ?? "", cell: (row) => types[row.type] ?? String(row.type) },
    ];
    this.tokens.replaceChildren(table("Vocabulary", columns, tokens, "Filter by token, id or type"), ...(template ? [h("h3", {}, "Chat template"), h("pre", { tabindex: "0" }, template)] : []));
  }

  assets() {
    const columns = [
      { title: "File", cell: (row) => h("code", {}, row.name) },
      { title: "Size", number: true, cell: (row) => bytes(row.size) },
      { title: "", cell: (row) => h("button", { type: "button", class: "link", onclick: () => this.save(row) }, `Save ${row.name}`) },
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
    return [h("p", { class: "quiet" }, value === undefined ? "The bytes as they are:" : "The manifest binds every section by its digest; its own digest is the file's identity."), h("pre", { tabindex: "0" }, value === undefined ? text : JSON.stringify(value, null, 2))];
  }

  records() {
    const { report } = this;
    const flags = h("p", {}, "Flags: ", ...report.flags.map((name) => h("span", { class: "chip" }, name.toLowerCase().replaceAll("_", " "))));
    return [fields(report.header, "Header"), flags, fields(report.footer, "Footer")];
  }
}

/** Tabs as WAI-ARIA has them: arrows move, one is in the tab order; a panel is drawn when it is first shown. */
function tabs(panels) {
  const made = panels.map(([title, draw], index) => {
    const panel = h("div", { role: "tabpanel", id: `panel${index}`, "aria-labelledby": `tab${index}`, hidden: true });
    const tab = h("button", { type: "button", role: "tab", id: `tab${index}`, "aria-controls": `panel${index}`, onclick: () => show(index) }, title);
    return { tab, panel, draw };
  });
  const show = (chosen, focus = false) => made.forEach(({ tab, panel, draw }, index) => {
    const on = index === chosen;
    tab.setAttribute("aria-selected", String(on));
    tab.tabIndex = on ? 0 : -1;
    panel.hidden = !on;
    if (on && !panel.firstChild) panel.append(...draw());
    if (on && focus) tab.focus();
  });
  const list = h("div", { role: "tablist", "aria-label": "Parts of the file", onkeydown: (event) => {
    const now = made.findIndex(({ tab }) => tab === document.activeElement);
    const to = { ArrowRight: now + 1, ArrowLeft: now - 1, Home: 0, End: made.length - 1 }[event.key];
    if (to === undefined || now < 0) return;
    event.preventDefault();
    show((to + made.length) % made.length, true);
  } }, made.map(({ tab }) => tab));
  show(0);
  return [list, ...made.map(({ panel }) => panel)];
}

// ---------------------------------------------------------------- the file

const drop = $("drop");
$("file").addEventListener("change", ({ target }) => {
  const [file] = target.files;
  target.value = ""; // or the same file could not be chosen again
  if (file) open(file);
});
for (const name of ["dragenter", "dragover"]) {
  document.addEventListener(name, (event) => {
    event.preventDefault();
    drop.classList.add("over");
  });
}
for (const name of ["dragleave", "drop"]) document.addEventListener(name, () => drop.classList.remove("over"));
document.addEventListener("drop", (event) => {
  event.preventDefault();
  const [file] = event.dataTransfer.files;
  if (file) open(file);
});
