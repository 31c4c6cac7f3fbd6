"use strict";
// Small builders. Text from the run enters the page through textContent only, here and nowhere else.

const SVG = "http://www.w3.org/2000/svg";
const page = JSON.parse(document.getElementById("data").textContent);

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true && !name.startsWith("aria-") ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return node;
}

const el = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
const last = (values) => values.findLast(isNumber);
const mean = (values) => (values.length ? values.reduce((a, b) => a + b, 0) / values.length : null);

const format = {
  share: (v) => `${(100 * v).toFixed(1)} %`,
  count: (v) => Math.round(v).toLocaleString("en"),
  short(v) {
    const size = Math.abs(v);
    if (size >= 1e9) return `${trim(v / 1e9)}G`;
    if (size >= 1e6) return `${trim(v / 1e6)}M`;
    if (size >= 1e4) return `${trim(v / 1e3)}k`;
    return format.number(v);
  },
  number(v) {
    const size = Math.abs(v);
    if (size < 1e-12) return "0"; // rounding, never a measured value
    if (size < 1e-3) return v.toExponential(1).replace("e-", "e−").replace(/^-/, "−");
    const text = size >= 1000 ? format.count(v) : String(+v.toPrecision(3));
    return text.replace("-", "−");
  },
  signed: (v) => (v > 0 ? "+" : "") + format.number(v),
  seconds(v) {
    if (v < 60) return `${+v.toPrecision(2)} s`;
    const whole = Math.round(v);
    if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
    return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  },
};

function trim(v) {
  return String(+v.toPrecision(3));
}

function heading(title, note) {
  return el("div", { class: "section" }, el("h2", null, title), note && el("p", null, note));
}

function table(columns, rows) {
  const head = columns.map((column) => el("th", { class: column.num && "num" }, column.title));
  const body = rows.map((row) =>
    el(
      "tr",
      null,
      row.map((cell, i) => el("td", { class: columns[i].num && "num" }, cell)),
    ),
  );
  return el(
    "div",
    { class: "scroll" },
    el("table", null, el("thead", null, el("tr", null, head)), el("tbody", null, body)),
  );
}
