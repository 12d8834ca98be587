"use strict";
// One file that is open: its workers, what they found, and the digests.

const { $, bytes, plural, say } = require("./elements");
const { View } = require("./view");

const WORKERS = Math.max(1, Math.min(4, (navigator.hardwareConcurrency || 2) - 1));
const script = URL.createObjectURL(new Blob([$("worker").textContent], { type: "text/javascript" }));

/** One worker, whose answers go to `listen`. */
function start(listen) {
  const worker = new Worker(script);
  worker.onmessage = ({ data }) => listen(data);
  worker.onerror = (event) => listen({ type: "failed", of: "worker", message: event.message || "the worker ended" });
  return worker;
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
    const worker = start((message) => !this.ended && listen(message));
    this.workers.push(worker);
    return worker;
  }

  end() {
    this.ended = true;
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
    say(
      found
        ? `${this.file.name}: ${plural(found, "problem")} found.`
        : `${this.file.name}: the structure is right. Digests are not checked yet.`,
      found > 0,
    );
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
    this.report.problems = this.report.problems.filter((problem) => problem.level !== "digest"); // of an earlier check
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
        if (section)
          worker.postMessage({
            type: "hash",
            file: this.file,
            index: section.index,
            offset: section.offset,
            size: section.size,
          });
        else worker.terminate();
      };
      next();
      return worker;
    });
    if (!queue.length && !this.left) this.finish();
    this.view.summary.progress(0, "");
  }

  progressed(index, length) {
    this.done += length;
    this.results.set(index, { ...this.results.get(index), read: (this.results.get(index)?.read ?? 0) + length });
    const seconds = (performance.now() - this.began) / 1000;
    const speed = this.done / Math.max(seconds, 0.001);
    const left = (this.total - this.done) / speed;
    this.view.summary.progress(
      this.total ? this.done / this.total : 1,
      `${bytes(this.done)} of ${bytes(this.total)}, ${bytes(speed)}/s, ${Math.ceil(left)} s left`,
    );
    this.view.digest(index);
  }

  hashed({ index, digest }) {
    this.digests.set(index, digest);
    this.results.set(index, {
      done: true,
      right: digest === this.report.sections.find((section) => section.index === index).sha256,
    });
    this.view.digest(index);
    this.left -= 1;
    if (!this.left) this.finish();
  }

  finish() {
    this.main.postMessage({ type: "digests", known: [...this.digests] });
  }

  stop(reason) {
    for (const worker of this.hashers) worker.terminate();
    this.view.summary.progress(null, reason);
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
    this.view.summary.progress(null, `${bytes(this.total)} hashed in ${seconds} s.`);
    this.view.problems();
    say(
      problems.length ? `${plural(problems.length, "digest problem")} found.` : "All digests are right.",
      problems.length > 0,
    );
  }
}

module.exports = { Session };
