// Curves over steps or time, with attempts, checkpoints and a read-out.

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
