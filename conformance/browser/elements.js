"use strict";
// Elements, numbers and tables: what the page is drawn with.

const $ = (id) => document.getElementById(id);
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

function say(text, bad = false) {
  $("status").textContent = text;
  $("status").classList.toggle("bad", bad);
}

/** A table with a filter where there are many rows; `columns` are {title, cell(row), number?, text?(row)}. */
function table(caption, columns, rows, filterLabel) {
  const body = h("tbody");
  let shown = rows;
  let limit = PAGE;
  const more = h("button", { type: "button", class: "more", onclick: () => ((limit += 5 * PAGE), draw()) });
  const state = h("p", { class: "state", role: "status" });
  const draw = () => {
    body.replaceChildren(
      ...shown.slice(0, limit).map((row) =>
        h(
          "tr",
          {},
          columns.map((column) => h("td", { class: column.number ? "num" : column.class }, column.cell(row))),
        ),
      ),
    );
    more.hidden = shown.length <= limit;
    more.textContent = `Show ${count(Math.min(5 * PAGE, shown.length - limit))} more`;
    state.textContent =
      shown.length === rows.length ? "" : `${count(shown.length)} of ${count(rows.length)} rows match.`;
  };
  const filter =
    filterLabel &&
    h(
      "label",
      { class: "filter" },
      filterLabel,
      h("input", {
        type: "search",
        autocomplete: "off",
        spellcheck: "false",
        oninput: (event) => {
          const wanted = event.target.value.toLowerCase();
          shown = wanted
            ? rows.filter((row) => columns.some((column) => column.text?.(row).toLowerCase().includes(wanted)))
            : rows;
          limit = PAGE;
          draw();
        },
      }),
    );
  draw();
  const head = h(
    "thead",
    {},
    h(
      "tr",
      {},
      columns.map((column) => h("th", { scope: "col", class: column.number ? "num" : undefined }, column.title)),
    ),
  );
  return h(
    "div",
    { class: "table" },
    filter ?? null,
    state,
    h(
      "div",
      { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
      h("table", {}, h("caption", {}, caption), head, body),
    ),
    more,
  );
}

/** The fields of a record, the broken ones marked. */
function fields(record, caption) {
  if (!record) return h("p", {}, "It could not be read: the file ends before it.");
  const columns = [
    { title: "Offset", number: true, cell: (field) => h("span", { title: count(field.offset) }, hexed(field.offset)) },
    { title: "Field", cell: (field) => h("code", {}, field.name) },
    {
      title: "Value",
      class: "value",
      cell: (field) => [
        h("span", { class: field.broken ? "broken" : undefined }, String(field.value)),
        ...(field.broken ?? []).map((rule) => h("span", { class: "rule" }, rule)),
      ],
    },
    { title: "Meaning", class: "wide", cell: (field) => field.doc },
  ];
  return table(caption, columns, record.fields);
}

/** Tabs as WAI-ARIA has them: arrows move, one is in the tab order; a panel is drawn when it is first shown. */
function tabs(panels) {
  const made = panels.map(([title, draw], index) => {
    const panel = h("div", { role: "tabpanel", id: `panel${index}`, "aria-labelledby": `tab${index}`, hidden: true });
    const tab = h(
      "button",
      { type: "button", role: "tab", id: `tab${index}`, "aria-controls": `panel${index}`, onclick: () => show(index) },
      title,
    );
    return { tab, panel, draw };
  });
  const show = (chosen, focus = false) =>
    made.forEach(({ tab, panel, draw }, index) => {
      const on = index === chosen;
      tab.setAttribute("aria-selected", String(on));
      tab.tabIndex = on ? 0 : -1;
      panel.hidden = !on;
      if (on && !panel.firstChild) panel.append(...draw());
      if (on && focus) tab.focus();
    });
  const list = h(
    "div",
    {
      role: "tablist",
      "aria-label": "Parts of the file",
      onkeydown: (event) => {
        const now = made.findIndex(({ tab }) => tab === document.activeElement);
        const to = { ArrowRight: now + 1, ArrowLeft: now - 1, Home: 0, End: made.length - 1 }[event.key];
        if (to === undefined || now < 0) return;
        event.preventDefault();
        show((to + made.length) % made.length, true);
      },
    },
    made.map(({ tab }) => tab),
  );
  show(0);
  return [list, ...made.map(({ panel }) => panel)];
}

module.exports = { $, bytes, count, fields, h, hexed, plural, say, table, tabs };
