// The parts of the page from top to bottom, and the call of them all.

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
    const detail = event.detail ? put(null, "span", {class: event.event === "saved" ? "mono" : ""}, plain(event.detail)) : "";
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
