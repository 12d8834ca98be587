"use strict";
// What stands above the tabs.

const { bytes, count, h, plural } = require("./elements");

class Summary {
  constructor(session) {
    this.session = session;
    this.report = session.report;
    this.element = this.draw();
  }

  /** The card: verdict, facts, a map of the file, and the button that checks digests. */
  draw() {
    const { report, session } = this;
    const model = report.manifest?.value?.model ?? {};
    const facts = [
      ["File", session.file.name],
      ["Size", `${bytes(report.size)} (${count(report.size)} bytes)`],
      ["Model", [model.name, model.architecture && `(${model.architecture})`].filter(Boolean).join(" ") || "not told"],
      ["Parameters", model.parameter_count === undefined ? "not told" : count(model.parameter_count)],
      ["Tensors", count(report.sections.find((section) => section.name === "TensorIndexBin")?.tables.rows?.count ?? 0)],
      [
        "Identity",
        h(
          "code",
          { class: "digest" },
          report.footer?.fields.find((field) => field.name === "manifest_sha256")?.value ?? "unknown",
        ),
      ],
    ];
    this.verdict = h("p", { class: "verdict" });
    this.bar = h(
      "div",
      {
        class: "bar",
        role: "progressbar",
        "aria-label": "Digests",
        "aria-valuemin": "0",
        "aria-valuemax": "100",
        hidden: true,
      },
      h("div"),
    );
    this.speed = h("span", { class: "speed" });
    this.button = h(
      "button",
      { type: "button", class: "primary", onclick: () => session.check() },
      "Check all digests",
    );
    this.button.disabled = !report.sections.length;
    return h(
      "div",
      { class: "card" },
      this.verdict,
      h(
        "dl",
        {},
        facts.map(([name, value]) =>
          h("div", { class: name === "Identity" ? "broad" : undefined }, h("dt", {}, name), h("dd", {}, value)),
        ),
      ),
      this.map(),
      h("div", { class: "check" }, this.button, this.bar, this.speed),
    );
  }

  /** The file as a strip: every section in its place, at least a hair wide. */
  map() {
    const { report } = this;
    if (!report.sections.length) return null;
    const strip = report.sections
      .filter((section) => section.size)
      .map((section) => {
        const item = h("span", {
          class: `kind k${section.kind < 15 ? section.kind : "x"}`,
          title: `${section.name}: ${bytes(section.size)} at ${count(section.offset)}`,
        });
        item.style.flexGrow = String(Math.max(section.size / report.size, 0.004));
        return item;
      });
    const largest = [...report.sections].sort((a, b) => b.size - a.size).slice(0, 6);
    const legend = largest.map((section) =>
      h(
        "li",
        {},
        h("span", { class: `swatch k${section.kind < 15 ? section.kind : "x"}` }),
        `${section.name} ${bytes(section.size)}`,
      ),
    );
    return h(
      "div",
      { class: "map" },
      h("div", { class: "strip", "aria-hidden": "true" }, strip),
      h("ul", { class: "legend", "aria-label": "Largest sections" }, legend),
    );
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

  /** What is known by now, in a line. */
  judge() {
    const { report, session } = this;
    const errors = report.problems.filter((problem) => problem.severity !== "warning");
    const digests = session.checked ? "all digests are right" : "digests are not checked yet";
    this.verdict.textContent = errors.length
      ? `${plural(errors.length, "problem")} found`
      : `The structure is right; ${digests}`;
    this.verdict.className = `verdict ${errors.length ? "bad" : session.checked ? "good" : "fair"}`;
  }
}

module.exports = { Summary };
