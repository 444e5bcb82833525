// The report's data, facts that follow from it, and small helpers. Texts of the run are only ever set as text.
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const metrics = data.metrics;
const columns = metrics.columns;
const rowCount = metrics.step.length;
const page = document.getElementById("page");

// ---- Small helpers ------------------------------------------------------------------------------

function put(parent, tag, attributes, ...children) {
  const svg = parent instanceof SVGElement || tag === "svg";
  const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) node.setAttribute(name, value);
  for (const child of children) node.append(child);
  if (parent) parent.append(node);
  return node;
}

// Logs may hold colours for terminals.
function plain(text) {
  return String(text).replace(/\u001b\[[0-9;?]*[A-Za-z]/g, "").replace(/[\u0000-\u0008\u000b-\u001f]/g, "\ufffd");
}

function short(value, digits = 5) {
  if (value === null || value === undefined) return "-";
  if (!Number.isFinite(value)) return String(value);
  if (value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e7)) return value.toExponential(Math.max(digits - 2, 1));
  if (Number.isInteger(value)) return String(value);
  return String(Number(value.toPrecision(digits)));
}

function grouped(value) {
  return Math.round(value).toString().replace(/\B(?=(\d{3})+(?!\d))/g, "\u202f");
}

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "-";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${Number(seconds.toPrecision(3))} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.floor(seconds % 60)} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

function section(id, title) {
  const node = put(page, "section", {id});
  if (title) put(node, "h2", {}, title);
  return node;
}

// Cells know their head, for screens on which a row becomes a block.
function table(parent, heads, kind = "stacks") {
  const node = put(put(parent, "div", {class: "scroll"}), "table", {class: kind});
  const row = put(put(node, "thead"), "tr");
  for (const head of heads) put(row, "th", head.number ? {class: "number"} : {}, head.text);
  const body = put(node, "tbody");
  return (cells) => {
    const line = put(body, "tr");
    cells.forEach((cell, at) => {
      const kind = heads[at].number ? "number" : heads[at].grow ? "grow" : "";
      put(line, "td", {class: kind, "data-head": heads[at].text}, cell instanceof Node ? cell : plain(cell === null ? "-" : cell));
    });
    return line;
  };
}

function tag(text, kind) { return put(null, "span", {class: `tag ${kind}`}, plain(text)); }

// A loss that is no number is null; its text is in loss_hex.
function lossText(row) {
  const value = (columns.loss || [])[row];
  return value === null || value === undefined ? metrics.loss_hex[row] || "-" : String(value);
}

// ---- Facts --------------------------------------------------------------------------------------

// Rows whose step a later attempt did again.
const replaced = new Array(rowCount).fill(false);
const kept = [];
for (let row = rowCount - 1, lowest = Infinity; row >= 0; --row) {
  replaced[row] = metrics.step[row] >= lowest;
  lowest = Math.min(lowest, metrics.step[row]);
  if (!replaced[row]) kept.unshift(row);
}
const lastRow = rowCount - 1;
const restarts = data.attempts.filter((a, at) => at > 0 && a.attempt > data.attempts[at - 1].attempt).length;
const failedRanks = new Set();
for (const incident of data.incidents) {
  const cause = incident.record && incident.record.cause;
  if (cause && Number.isInteger(cause.global_rank)) failedRanks.add(cause.global_rank);
}

function median(values) {
  const sorted = values.filter((v) => v !== null && Number.isFinite(v)).sort((a, b) => a - b);
  return sorted.length ? sorted[sorted.length >> 1] : null;
}

function largest(values) {
  return values.reduce((best, v) => (v !== null && (best === null || v > best) ? v : best), null);
}
