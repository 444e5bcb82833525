// Draws the report of one run from the JSON beside it. Texts of the run are only ever set as text.
"use strict";
(() => {
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

// ---- Head ---------------------------------------------------------------------------------------

function drawHead() {
  const name = plain(data.name);
  document.title = `${name} - muster report`;
  const head = put(page, "header");
  const line = put(head, "div", {class: "head"});
  put(line, "h1", {}, name);
  const status = data.finished ? ["finished", "good"]
    : rowCount || data.attempts.length ? ["not finished", "warn"] : ["nothing recorded", "bad"];
  put(line, "span", {class: `pill ${status[1]}`, id: "status"}, status[0]);
  if (restarts) put(line, "span", {class: "pill warn"}, `${restarts} restart${restarts > 1 ? "s" : ""}`);
  put(head, "p", {class: "soft mono"}, plain(data.folder));

  const tiles = put(head, "div", {class: "tiles"});
  const tile = (id, value, label, full) => {
    const node = put(tiles, "div", {class: "tile", id});
    put(node, "b", full === undefined ? {} : {title: String(full), "data-value": String(full)}, value);
    put(node, "span", {}, label);
  };
  const steps = lastRow >= 0 ? metrics.step[lastRow] : 0;
  tile("tile-step", data.planned_steps ? `${steps} / ${data.planned_steps}` : String(steps), "steps", steps);
  if (lastRow >= 0) {
    const loss = (columns.loss || [])[lastRow];
    tile("tile-loss", typeof loss === "number" ? short(loss) : lossText(lastRow), "last loss", lossText(lastRow));
    const speed = median((columns.tokens_per_s || []).slice(1));
    if (speed !== null) tile("tile-speed", grouped(speed), "tokens/s, median", speed);
    const tokens = kept.reduce((sum, row) => sum + ((columns.tokens || [])[row] || 0), 0);
    if (tokens) tile("tile-tokens", tokens < 1e6 ? grouped(tokens) : `${short(tokens / 1e6, 4)} M`, "tokens seen", tokens);
    const memory = largest(columns.rss_mb || []);
    if (memory !== null) tile("tile-memory", `${grouped(memory)} MB`, "most memory, rank 0", memory);
    const seconds = metrics.seconds[lastRow];
    if (seconds !== null) tile("tile-time", duration(seconds), "start to last step", seconds);
  }
  if (data.layout.world_size) tile("tile-ranks", String(data.layout.world_size), "ranks", data.layout.world_size);
  tile("tile-attempts", String(data.attempts.length), `attempt${data.attempts.length === 1 ? "" : "s"}, ${data.incidents.length} incident${data.incidents.length === 1 ? "" : "s"}`, data.attempts.length);

  for (const text of warnings()) put(head, "p", {class: "card note"}, text);
}

function warnings() {
  const texts = [];
  if (data.damaged.length) {
    const count = data.damaged.reduce((sum, file) => sum + file.lines, 0);
    const files = data.damaged.map((file) => `${plain(file.file)}: ${file.lines}`).join(", ");
    texts.push(`${count} damaged line${count > 1 ? "s were" : " was"} passed over (${files}).`);
  }
  if (data.clock_restarts) texts.push(`The clock began anew ${data.clock_restarts} times (reboots): times before and after do not compare.`);
  if (data.recipe_error) texts.push(`The recipe could not be read, so layout and planned steps are missing: ${plain(data.recipe_error)}`);
  return texts;
}

// ---- Charts -------------------------------------------------------------------------------------

const kKnown = {
  loss: {title: "Loss", wide: true},
  lr: {title: "Learning rate"},
  tokens_per_s: {title: "Tokens per second", zero: true},
  rss_mb: {title: "Memory of rank 0", unit: "MB", zero: true},
  grad_norm: {title: "Gradient norm", log: true},
};
const charts = [];
let axis = "step";
let cursorRow = lastRow;
let pointing = false;

function xOf(row) { return axis === "step" ? metrics.step[row] : metrics.seconds[row]; }

function niceStep(span, count) {
  const rough = span / Math.max(count, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  for (const factor of [1, 2, 2.5, 5, 10]) if (factor * power >= rough) return factor * power;
  return 10 * power;
}

function ticksOf(low, high, count) {
  const step = niceStep(high - low || 1, count);
  const ticks = [];
  for (let at = Math.ceil(low / step - 1e-9); at * step <= high + step * 1e-9; ++at) ticks.push(at * step);
  return ticks;
}

function logTicks(low, high) {
  const ticks = [];
  const from = Math.floor(low), to = Math.ceil(high);
  const digits = to - from <= 2 ? [1, 2, 5] : [1];
  const every = Math.max(1, Math.ceil((to - from) / 5));
  for (let power = from; power <= to; power += every) {
    for (const digit of digits) {
      const at = power + Math.log10(digit);
      if (at >= low - 1e-9 && at <= high + 1e-9) ticks.push(at);
    }
  }
  return ticks;
}

function tickText(value) {
  const size = Math.abs(value);
  if (size >= 1e9) return `${short(value / 1e9, 3)}G`;
  if (size >= 1e6) return `${short(value / 1e6, 3)}M`;
  if (size >= 1e4) return `${short(value / 1e3, 3)}k`;
  if (size !== 0 && size < 1e-3) return Number(value.toPrecision(3)).toExponential();
  return String(Number(value.toPrecision(4)));
}

function secondsText(value, span) {
  if (span < 120) return `${Number(value.toPrecision(4))} s`;
  if (span < 7200) return `${Number((value / 60).toPrecision(4))} min`;
  return `${Number((value / 3600).toPrecision(4))} h`;
}

// Rows by their place on the axis, for the cursor; a later attempt hides an earlier one.
let ordered = [];
function sortRows() {
  const rows = axis === "step" ? kept : [...Array(rowCount).keys()];
  ordered = rows.filter((row) => xOf(row) !== null).map((row) => [xOf(row), row]);
  ordered.sort((a, b) => a[0] - b[0] || a[1] - b[1]);
}

function nearestRow(x) {
  let low = 0, high = ordered.length - 1;
  if (high < 0) return -1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (ordered[middle][0] < x) low = middle + 1; else high = middle;
  }
  if (low > 0 && x - ordered[low - 1][0] < ordered[low][0] - x) --low;
  return ordered[low][1];
}

class Chart {
  constructor(parent, key, options) {
    this.values = columns[key];
    this.options = options;
    this.box = put(parent, "figure", {class: `chart${options.wide ? " wide" : ""}`, id: `chart-${charts.length}`, "data-column": key});
    const head = put(this.box, "header");
    put(head, "h3", {}, plain(options.title));
    this.output = put(head, "output");
    const positive = this.values.some((v) => v > 0) && !this.values.some((v) => v !== null && v <= 0);
    this.log = positive && Boolean(options.log);
    this.noisy = isNoisy(this.values);
    if (positive && !options.zero) {
      const button = put(head, "button", {type: "button", "aria-pressed": String(this.log)}, "log");
      button.addEventListener("click", () => {
        this.log = !this.log;
        button.setAttribute("aria-pressed", String(this.log));
        this.draw();
      });
    }
    this.svg = put(this.box, "svg", {tabindex: "0", role: "img"});
    this.svg.setAttribute("aria-label", `${plain(options.title)} of ${rowCount} steps; arrow keys move the cursor`);
    this.svg.addEventListener("pointermove", (event) => this.point(event));
    this.svg.addEventListener("pointerdown", (event) => this.point(event));
    this.svg.addEventListener("pointerleave", () => moveCursor(lastRow, false));
    this.svg.addEventListener("keydown", (event) => this.key(event));
  }

  key(event) {
    const by = {ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10}[event.key];
    if (!by) return;
    event.preventDefault();
    const at = ordered.findIndex(([, row]) => row === cursorRow);
    const next = Math.min(Math.max(at + by, 0), ordered.length - 1);
    if (ordered[next]) moveCursor(ordered[next][1]);
  }

  point(event) {
    const bounds = this.svg.getBoundingClientRect();
    const x = this.low + (event.clientX - bounds.left - this.left) / this.plotWidth * (this.high - this.low);
    const row = nearestRow(x);
    if (row >= 0) moveCursor(row);
  }

  scale() {
    this.width = Math.max(this.svg.clientWidth || 600, 200);
    this.height = this.options.wide ? (this.width < 560 ? 250 : 310) : 180;
    this.left = 50;
    this.plotWidth = this.width - this.left - 10;
    this.top = 18;
    this.plotHeight = this.height - this.top - (this.options.wide ? 46 : 24);
    const xs = ordered.map(([x]) => x);
    const all = metrics.step.map((step, row) => xOf(row)).filter((x) => x !== null);
    this.low = axis === "step" ? Math.min(...minMax(all)) : 0;
    this.high = Math.max(minMax(all)[1], this.low + (xs.length > 1 ? 0 : 1));
    if (this.high <= this.low) this.high = this.low + 1;
    let [low, high] = minMax(this.values.filter((v) => v !== null).map((v) => this.y(v)));
    if (this.options.zero) low = Math.min(low, 0);
    if (!Number.isFinite(low)) [low, high] = [0, 1];
    const pad = (high - low) * 0.06 || Math.abs(high) * 0.06 || 1;
    this.bottomValue = this.options.zero && low === 0 ? 0 : low - pad;
    this.topValue = high + pad;
  }

  y(value) { return this.log ? Math.log10(value) : value; }
  px(x) { return this.left + (x - this.low) / (this.high - this.low) * this.plotWidth; }
  py(value) {
    return this.top + (this.topValue - this.y(value)) / (this.topValue - this.bottomValue) * this.plotHeight;
  }

  draw() {
    this.scale();
    this.svg.replaceChildren();
    this.svg.setAttribute("class", this.noisy && meanWindow() ? "noisy" : "");
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${this.height}`);
    this.svg.style.height = `${this.height}px`;
    this.drawLost();
    this.drawGrid();
    this.drawRestarts();
    this.drawCurves();
    this.drawMean();
    if (this.options.wide) this.drawCheckpoints();
    this.cursor = put(this.svg, "line", {class: "cursor", y1: this.top, y2: this.top + this.plotHeight});
    this.cursorDot = put(this.svg, "circle", {class: "cursor-dot", r: 3.5});
    this.showCursor();
  }

  drawGrid() {
    const bottom = this.top + this.plotHeight;
    const ys = this.log ? logTicks(this.bottomValue, this.topValue) : ticksOf(this.bottomValue, this.topValue, this.plotHeight / 42);
    for (const at of ys) {
      const y = this.top + (this.topValue - at) / (this.topValue - this.bottomValue) * this.plotHeight;
      put(this.svg, "line", {class: "gridline", x1: this.left, x2: this.left + this.plotWidth, y1: y, y2: y});
      put(this.svg, "text", {x: this.left - 6, y: y + 4, "text-anchor": "end"}, tickText(this.log ? 10 ** at : at));
    }
    put(this.svg, "line", {class: "axis", x1: this.left, x2: this.left + this.plotWidth, y1: bottom, y2: bottom});
    const unit = axis === "step" ? 1 : this.high < 120 ? 1 : this.high < 7200 ? 60 : 3600;
    let xs = ticksOf(this.low / unit, this.high / unit, this.plotWidth / 90).map((at) => at * unit);
    if (axis === "step") xs = xs.filter(Number.isInteger);
    for (const at of xs) {
      const x = this.px(at);
      const anchor = x > this.width - 24 ? "end" : "middle";
      put(this.svg, "text", {x: anchor === "end" ? this.width - 2 : x, y: this.height - 6, "text-anchor": anchor},
        axis === "step" ? String(at) : secondsText(at, this.high));
    }
  }

  // The time between the last step of an attempt and the first of the next.
  drawLost() {
    if (axis !== "time") return;
    data.attempts.forEach((attempt, at) => {
      const before = data.attempts.slice(0, at).reverse().find((a) => a.last_row !== null);
      if (!before || attempt.first_row === null) return;
      const from = metrics.seconds[before.last_row], to = metrics.seconds[attempt.first_row];
      if (from === null || to === null) return;
      put(this.svg, "rect", {class: "lost", x: this.px(from), width: Math.max(this.px(to) - this.px(from), 1), y: this.top, height: this.plotHeight});
    });
  }

  drawRestarts() {
    let free = -Infinity;
    data.attempts.forEach((attempt, at) => {
      if (at === 0 || attempt.first_row === null) return;
      const x0 = xOf(attempt.first_row);
      if (x0 === null) return;
      const x = this.px(x0);
      put(this.svg, "line", {class: "restart", x1: x, x2: x, y1: this.top, y2: this.top + this.plotHeight});
      const generation = attempt.generation === null || this.width < 420 ? "" : `, generation ${attempt.generation}`;
      const text = `attempt ${attempt.attempt}${generation}`;
      const length = text.length * 6.2;
      if (x < free) return;
      const end = x + length > this.width;
      put(this.svg, "text", {class: "restart-text", x: end ? x - 4 : x + 4, y: this.top - 6, "text-anchor": end ? "end" : "start"}, text);
      free = x + length + 8;
    });
  }

  drawCurves() {
    const pieces = [];
    for (const attempt of data.attempts) {
      if (attempt.first_row === null) continue;
      for (let row = attempt.first_row; row <= attempt.last_row;) {
        const old = replaced[row];
        const rows = [];
        while (row <= attempt.last_row && replaced[row] === old) rows.push(row++);
        // Join both parts of an attempt, so that no gap opens where the replay begins.
        if (row <= attempt.last_row) rows.push(row);
        pieces.push({old, rows});
      }
    }
    pieces.sort((a, b) => Number(b.old) - Number(a.old));
    for (const {old, rows} of pieces) this.drawPiece(rows, old ? " old" : "");
  }

  drawPiece(rows, kind) {
    let path = "", run = 0, column = null;
    const dots = [];
    const flush = () => {
      if (!column) return;
      // Within one pixel: first, extremes, last.
      for (const [x, y] of [column.first, column.least, column.most, column.last]) {
        path += `${run++ ? "L" : "M"}${x.toFixed(1)},${y.toFixed(1)}`;
      }
      column = null;
    };
    let before = null;
    for (const row of rows) {
      const x0 = xOf(row), value = this.values[row];
      if (x0 === null) continue;
      if (value === null || !Number.isFinite(this.y(value))) {
        flush();
        if (run === 1 && before) dots.push(before);
        run = 0;
        before = null;
        if (value === null && this.box.dataset.column === "loss") {
          put(this.svg, "circle", {class: "dot bad", r: 3, cx: this.px(x0), cy: this.top + 4});
        }
        continue;
      }
      const at = [this.px(x0), this.py(value)];
      if (column && Math.floor(at[0]) !== column.pixel) flush();
      if (!column) column = {pixel: Math.floor(at[0]), first: at, least: at, most: at, last: at};
      if (at[1] > column.least[1]) column.least = at;
      if (at[1] < column.most[1]) column.most = at;
      column.last = at;
      before = at;
    }
    flush();
    if (path) put(this.svg, "path", {class: `curve${kind}`, d: path});
    if (rows.length === 1 && before) dots.push(before);
    for (const [cx, cy] of dots) put(this.svg, "circle", {class: `dot${kind}`, r: 2.5, cx, cy});
  }

  // Long noisy curves get their running mean on top, of the steps that count.
  drawMean() {
    const window = this.noisy ? meanWindow() : 0;
    if (!window) return;
    let sum = 0, count = 0, path = "", before = null;
    const values = kept.map((row) => {
      const value = this.values[row];
      return value === null || !Number.isFinite(this.y(value)) ? null : value;
    });
    kept.forEach((row, at) => {
      if (values[at] !== null) { sum += values[at]; ++count; }
      if (at >= window && values[at - window] !== null) { sum -= values[at - window]; --count; }
      const x0 = xOf(row);
      if (at < window - 1 || count < window / 2 || x0 === null) return;
      const x = this.px(x0);
      const gap = axis === "time" && metrics.attempt[row] !== metrics.attempt[kept[Math.max(at - 1, 0)]];
      if (before !== null && x - before < 1 && !gap) return;
      path += `${path && !gap ? "L" : "M"}${x.toFixed(1)},${this.py(sum / count).toFixed(1)}`;
      before = x;
    });
    if (path) put(this.svg, "path", {class: "mean", d: path});
  }

  drawCheckpoints() {
    const y = this.top + this.plotHeight + 8;
    for (const event of data.events) {
      if (event.step === null) continue;
      const kind = {saved: "saved", checkpoint_skipped: "skipped", resumed: "resumed"}[event.event];
      if (!kind) continue;
      let x0 = event.step;
      if (axis === "time") {
        const row = eventRow(event);
        if (row === null) continue;
        x0 = metrics.seconds[row];
      }
      if (x0 === null || x0 < this.low || x0 > this.high) continue;
      const mark = checkpointMark(this.svg, kind, this.px(x0) - (kind === "skipped" && axis === "time" ? 11 : 0),
        kind === "saved" ? y : y + 12);
      put(mark, "title", {}, `${event.event.replace(/_/g, " ")}: step ${event.step}, attempt ${event.attempt}`);
    }
  }

  showCursor() {
    const row = cursorRow;
    this.output.replaceChildren();
    if (row < 0) return;
    const value = this.values[row];
    const isLoss = this.box.dataset.column === "loss";
    const unit = this.options.unit ? ` ${this.options.unit}` : "";
    const text = value === null && isLoss ? lossText(row) : short(value, isLoss ? 6 : 5) + (value === null ? "" : unit);
    put(this.output, "b", {title: String(value), "data-value": isLoss ? lossText(row) : String(value)}, text);
    let where = `step ${metrics.step[row]}`;
    if (axis === "time" && metrics.seconds[row] !== null) where += `, ${duration(metrics.seconds[row])}`;
    if (data.attempts.length > 1) where += `, attempt ${metrics.attempt[row]}`;
    put(this.output, "span", {}, where);
    const x0 = xOf(row);
    const shown = x0 !== null && value !== null && Number.isFinite(this.y(value));
    this.cursor.style.display = x0 === null || !pointing ? "none" : "";
    this.cursorDot.style.display = shown ? "" : "none";
    if (x0 !== null) {
      this.cursor.setAttribute("x1", this.px(x0));
      this.cursor.setAttribute("x2", this.px(x0));
    }
    if (shown) {
      this.cursorDot.setAttribute("cx", this.px(x0));
      this.cursorDot.setAttribute("cy", this.py(value));
    }
  }
}

// How many steps a running mean takes in; 0 for runs that need none.
function meanWindow() { return kept.length < 600 ? 0 : Math.round(kept.length / 100); }

// A curve that goes up and down many times; a schedule or a staircase does not.
function isNoisy(values) {
  const known = kept.map((row) => values[row]).filter((v) => v !== null);
  const [low, high] = minMax(known);
  const way = known.reduce((sum, v, at) => sum + (at ? Math.abs(v - known[at - 1]) : 0), 0);
  return way > 8 * (high - low);
}

function minMax(values) {
  let low = Infinity, high = -Infinity;
  for (const value of values) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return [low, high];
}

// The row of the step that an event belongs to, in its attempt (a resume: the first row after it).
function eventRow(event) {
  let found = null;
  for (let row = 0; row < rowCount; ++row) {
    if (metrics.attempt[row] !== event.attempt) continue;
    if (event.event === "saved" ? metrics.step[row] === event.step : found === null) found = row;
  }
  return found;
}

function checkpointMark(svg, kind, x, y) {
  if (kind === "saved") return put(svg, "path", {class: kind, d: `M${x - 4},${y - 4}h8v8h-8z`});
  if (kind === "resumed") return put(svg, "path", {class: kind, d: `M${x - 5},${y + 5}l5,-10l5,10z`});
  return put(svg, "path", {class: kind, d: `M${x - 4},${y - 4}l8,8M${x + 4},${y - 4}l-8,8`});
}

function moveCursor(row, isPointing = true) {
  cursorRow = row;
  pointing = isPointing;
  for (const chart of charts) chart.showCursor();
}

function drawCurves() {
  const node = section("curves");
  const bar = put(node, "div", {class: "bar"});
  put(bar, "h2", {}, "Curves");
  if (!rowCount) {
    put(node, "p", {class: "card soft"}, "metrics.jsonl holds no completed step.");
    return;
  }
  const choice = put(bar, "div", {class: "switch", role: "group", "aria-label": "horizontal axis"});
  const buttons = ["step", "time"].map((name) => put(choice, "button", {type: "button", id: `axis-${name}`}, name));
  const choose = (name) => {
    axis = name;
    buttons.forEach((button) => button.setAttribute("aria-pressed", String(button.textContent === name)));
    sortRows();
    for (const chart of charts) chart.draw();
  };
  buttons.forEach((button) => button.addEventListener("click", () => choose(button.textContent)));
  if (metrics.seconds.every((s) => s === null)) buttons[1].disabled = true;

  const grid = put(node, "div", {class: "charts"});
  const known = Object.keys(kKnown).filter((key) => key in columns);
  const others = Object.keys(columns).filter((key) => !(key in kKnown) && key !== "tokens").sort();
  for (const key of [...known, ...others]) charts.push(new Chart(grid, key, kKnown[key] || {title: key}));
  drawLegend(node);
  choose(location.hash === "#time" && !buttons[1].disabled ? "time" : "step");
  if (window.ResizeObserver) {
    let width = grid.clientWidth;
    new ResizeObserver(() => {
      if (grid.clientWidth === width) return;
      width = grid.clientWidth;
      for (const chart of charts) chart.draw();
    }).observe(grid);
  }
}

function drawLegend(parent) {
  const legend = put(parent, "div", {class: "legend"});
  const entry = (text, draw) => {
    const line = put(legend, "span");
    draw(put(line, "svg", {viewBox: "0 0 16 11", "aria-hidden": "true"}));
    line.append(text);
  };
  const has = (name) => data.events.some((event) => event.event === name);
  if (meanWindow()) entry(`mean of ${meanWindow()} steps`, (svg) => put(svg, "path", {class: "mean", d: "M0,6H16"}));
  if (replaced.includes(true)) entry("steps that were done again after a restart", (svg) => put(svg, "path", {class: "curve old", d: "M0,6H16"}));
  if (data.attempts.length > 1) entry("a new attempt begins", (svg) => put(svg, "path", {class: "restart", d: "M8,0V11"}));
  if (has("saved")) entry("checkpoint saved", (svg) => checkpointMark(svg, "saved", 8, 6));
  if (has("checkpoint_skipped")) entry("checkpoint passed over", (svg) => checkpointMark(svg, "skipped", 8, 6));
  if (has("resumed")) entry("resumed from", (svg) => checkpointMark(svg, "resumed", 8, 6));
}

// ---- Attempts, checkpoints, incidents -----------------------------------------------------------

function drawAttempts() {
  if (!data.attempts.length) return;
  const card = put(section("attempts", "Attempts"), "div", {class: "card"});
  const add = table(card, [{text: "attempt", number: true}, {text: "generation", number: true}, {text: "resumed from", number: true},
    {text: "steps"}, {text: "time"}, {text: "recovery"}, {text: "end", grow: true}]);
  for (const attempt of data.attempts) {
    const some = attempt.first_row !== null;
    const steps = some ? `${metrics.step[attempt.first_row]} to ${metrics.step[attempt.last_row]}` : "none";
    const from = some ? metrics.seconds[attempt.first_row] : null, to = some ? metrics.seconds[attempt.last_row] : null;
    add([attempt.attempt, attempt.generation, attempt.resumed_from === null ? "-" : `step ${attempt.resumed_from}`, steps,
      from === null || to === null ? "-" : duration(to - from), duration(attempt.recovery_s),
      attempt.finished ? tag(attempt.ended, "good") : attempt.ended]);
  }
  if (data.attempts.some((attempt) => attempt.recovery_s !== null)) {
    put(card, "p", {class: "soft"}, data.agent.length ? "Recovery: from the first worker's end to the first step of the new attempt."
      : "Recovery: from the last step of the attempt before to the first step of the new one.");
  }
}

function drawCheckpoints() {
  const names = {saved: ["saved", "good"], checkpoint_skipped: ["passed over", "bad"], resumed: ["resumed from", "warn"]};
  const events = data.events.filter((event) => event.event in names);
  if (!events.length) return;
  const onDisk = new Set(data.checkpoints_on_disk);
  const card = put(section("checkpoints", "Checkpoints"), "div", {class: "card"});
  const add = table(card, [{text: "step", number: true}, {text: ""}, {text: "attempt", number: true}, {text: "on disk"}, {text: "digest or reason", grow: true}]);
  if (events.length > 30) card.classList.add("tall");
  const newest = new Map();
  events.forEach((event, at) => { if (event.event === "saved") newest.set(event.step, at); });
  events.forEach((event, at) => {
    const [text, kind] = names[event.event];
    const kept = event.event === "saved" && newest.get(event.step) === at && onDisk.has(event.step);
    const detail = put(null, "span", {class: event.event === "saved" ? "mono" : ""}, plain(event.detail));
    add([event.step, tag(text, kind), event.attempt, kept ? "yes" : "", detail]);
  });
}

function exitText(rank) {
  let text = rank.signal ? String(rank.signal) : rank.status !== undefined ? `exit ${rank.status}` : "did not end";
  if (rank.class) text += ` (${rank.class})`;
  if (rank.memory_limit) text += ", memory limit";
  if (rank.told) text += `, told ${rank.told}`;
  return text;
}

function linesOf(value) { return Array.isArray(value) ? value.filter((line) => typeof line === "string") : []; }

function drawIncidents() {
  if (!data.incidents.length) return;
  const node = section("incidents", "Incidents");
  for (const {file, record} of data.incidents) {
    const card = put(node, "article", {class: "card"});
    if (typeof record !== "object" || record === null) {
      put(card, "h3", {}, `${plain(file)}: damaged`);
      put(card, "pre", {class: "wrap"}, plain(record));
      continue;
    }
    const decision = record.decision || {};
    put(card, "h3", {}, plain(decision.reason || file));
    const facts = [`attempt ${record.attempt}`, `generation ${record.generation}`];
    if (typeof record.seconds_into_attempt === "number") facts.push(`${duration(record.seconds_into_attempt)} into it`);
    facts.push(record.wall_time, file);
    put(card, "p", {class: "soft"}, plain(facts.filter(Boolean).join("  \u00b7  ")));
    const ranks = [record.cause, ...(Array.isArray(record.ranks) ? record.ranks : [])].filter((rank) => rank && typeof rank === "object");
    if (ranks.length) {
      const add = table(card, [{text: "rank", number: true}, {text: "pid", number: true}, {text: "after the cause", number: true}, {text: ""}, {text: "end", grow: true}]);
      for (const rank of ranks) {
        const after = typeof rank.ms_after_cause === "number" ? `${rank.ms_after_cause >= 0 ? "+" : ""}${rank.ms_after_cause.toFixed(1)} ms` : "-";
        const role = rank.role || "";
        add([rank.global_rank, rank.pid, after, tag(role, role === "cause" ? "bad" : "soft"), exitText(rank)]);
      }
    }
    for (const rank of ranks) {
      if (rank.error && typeof rank.error === "object") {
        put(card, "p", {}, `Error of rank ${plain(rank.global_rank)}`);
        put(card, "pre", {class: "wrap"}, plain([rank.error.message, rank.error.stack].filter(Boolean).join("\n")));
      }
      for (const stream of ["stderr", "stdout"]) {
        const lines = linesOf(rank[stream]);
        if (!lines.length) continue;
        put(card, "p", {}, `Last lines of ${stream} of rank ${plain(rank.global_rank)}`);
        put(card, "pre", {class: "wrap"}, plain(lines.join("\n")));
      }
    }
  }
}

// ---- Layout, logs, recipe, steps ----------------------------------------------------------------

const kMostRanks = 1024;

function drawLayout() {
  const {axes, world_size: worldSize, source} = data.layout;
  if (!axes.length && !worldSize) return;
  const node = section("layout", "Layout");
  const card = put(node, "div", {class: "card"});
  const known = axes.length > 0 && axes.every((a) => a.size > 0);
  const product = axes.reduce((total, a) => total * a.size, 1);
  put(card, "p", {}, axes.map((a) => `${a.name} ${a.size > 0 ? a.size : "?"}`).join("  \u00d7  ") +
    (worldSize ? `  =  ${worldSize} rank${worldSize > 1 ? "s" : ""}` : known ? `  =  ${product} ranks` : ""));
  if (source) put(card, "p", {class: "soft"}, `Number of ranks from ${plain(source)}.`);
  if (failedRanks.size) put(card, "p", {class: "soft"}, `Ranks that failed have a red border: ${[...failedRanks].sort((a, b) => a - b).join(", ")}.`);
  const total = worldSize || product;
  if (total > kMostRanks || (known && product !== total)) return;
  const inner = known ? axes.filter((a) => a.size > 1) : [{name: "rank", size: total}];
  drawAxes(put(card, "div", {class: "mesh"}), inner, 0, "");
}

function rankCell(parent, rank, where) {
  const failed = failedRanks.has(rank);
  put(parent, "div", {class: `rank${failed ? " failed" : ""}`, title: `rank ${rank}${where ? `: ${where}` : ""}${failed ? "; failed" : ""}`}, String(rank));
}

function drawAxes(parent, axes, first, where) {
  const join = (more) => (where ? `${where}, ${more}` : more);
  if (axes.length <= 1) {
    const [last] = axes.length ? axes : [{name: "", size: 1}];
    const box = put(parent, "div", {class: "box"});
    if (last.name) put(box, "div", {class: "soft"}, `${last.name} \u2192`);
    const list = put(box, "div", {class: "ranks list"});
    for (let i = 0; i < last.size; ++i) rankCell(list, first + i, last.name ? join(`${last.name} ${i}`) : "");
    return;
  }
  const [outer, ...rest] = axes;
  const stride = rest.reduce((total, a) => total * a.size, 1);
  if (axes.length === 2) {
    const box = put(parent, "div", {class: "box"});
    put(box, "div", {class: "soft"}, `${outer.name} \u2193  ${rest[0].name} \u2192`);
    const grid = put(box, "div", {class: "ranks"});
    grid.style.gridTemplateColumns = `repeat(${rest[0].size}, max-content)`;
    for (let i = 0; i < outer.size; ++i) {
      for (let j = 0; j < rest[0].size; ++j) rankCell(grid, first + i * stride + j, join(`${outer.name} ${i}, ${rest[0].name} ${j}`));
    }
    return;
  }
  for (let i = 0; i < outer.size; ++i) {
    const box = put(parent, "div", {class: "box"});
    put(box, "div", {class: "soft"}, `${outer.name} ${i}`);
    drawAxes(put(box, "div", {class: "mesh"}), rest, first + i * stride, join(`${outer.name} ${i}`));
  }
}

// The schedule, drawn by the launcher.
function drawPipeline() {
  if (!data.pipeline) return;
  const card = put(section("pipeline", "Pipeline"), "div", {class: "card"});
  put(card, "p", {class: "soft"}, plain(data.pipeline.title));
  put(card, "pre", {}, plain(data.pipeline.drawing));
}

// A part that is filled when it is opened.
function folded(parent, id, title, note, fill) {
  const node = put(parent, "details", {id});
  put(put(node, "summary", {}, title), "span", {class: "soft"}, note);
  let filled = false;
  const open = () => {
    if (!node.open || filled) return;
    filled = true;
    fill(node);
  };
  node.addEventListener("toggle", open);
  if (location.hash === `#${id}`) {
    node.open = true;
    open();
  }
}

function drawDetails() {
  const node = section("details", "Details");
  if (data.recipe) folded(node, "recipe", "Recipe", "every value, recipe.resolved.yaml", (box) => put(box, "pre", {}, plain(data.recipe)));
  if (data.logs.length) {
    folded(node, "logs", "Logs", `the last lines of each rank, attempt ${data.logs[0].attempt}`, (box) => {
      for (const tail of data.logs) {
        put(box, "p", {}, `rank ${tail.rank}, ${tail.stream}${tail.cut ? ", its end" : ""}`);
        put(box, "pre", {class: "wrap"}, plain(tail.lines.join("\n")));
      }
    });
  }
  if (data.agent.length) folded(node, "agent", "Agent", `${data.agent.length} events of the launcher`, drawAgent);
  if (rowCount) folded(node, "steps", "Steps", `${rowCount} lines of metrics.jsonl, every digit`, drawSteps);
}

function drawAgent(box) {
  const start = data.agent[0].t_ns;
  const add = table(box, [{text: "time", number: true}, {text: "attempt", number: true}, {text: "event"}, {text: "", grow: true}]);
  for (const record of data.agent) add([`${((record.t_ns - start) / 1e9).toFixed(3)} s`, record.attempt, record.event, record.text]);
}

function drawSteps(box) {
  const names = Object.keys(columns);
  const add = table(box, [{text: "step", number: true}, {text: "attempt", number: true}, ...names.map((name) => ({text: plain(name), number: true}))], "plain");
  for (let row = 0; row < rowCount; ++row) {
    add([metrics.step[row], metrics.attempt[row], ...names.map((name) => (name === "loss" ? lossText(row) : columns[name][row]))]);
  }
}

drawHead();
drawCurves();
drawAttempts();
drawCheckpoints();
drawIncidents();
drawLayout();
drawPipeline();
drawDetails();
put(page, "footer", {}, "Made by muster report. The file is complete in itself; it loads nothing.");
document.documentElement.dataset.ready = "yes";
})();
