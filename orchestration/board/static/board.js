// The board's page. The server sends the whole document once, then what changes (JSON merge patches). `state` is the document; a patch marks
// what it touches, and the next frame renders that alone. Everything that comes from Kafka becomes text, never markup.
import { Flow } from "./flow.js";

const BEAT_MS = 3500; // a stream that is silent for longer hangs: the server sends something each second
const MOVES_SHOWN = 40, EVENTS_SHOWN = 60, SPARK = 120;
const $ = (id) => document.getElementById(id);
const numbers = new Intl.NumberFormat("en");
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const natural = new Intl.Collator("en", { numeric: true }).compare;

let state = {}, chosen = null, wanted = null, token = null, ahead = 0, heard = 0, lostAt = null, attempt = null;
let dirty = new Map(), scheduled = false;
const flow = new Flow($("flow"));
const instances = new Map(), tiles = new Map(), cards = new Map(), moves = new Map(), listed = new Map();
let spark = [], ordered = null; // keys of tasks in natural order; null when a task has come or gone

// -- small helpers ---------------------------------------------------------------------------------------------------------------

function make(name, className, content) {
  const element = document.createElement(name);
  if (className) element.className = className;
  if (content !== undefined) element.textContent = content;
  return element;
}

function set(element, content) {
  const value = String(content);
  if (element.textContent !== value) element.textContent = value;
}

const now = () => Date.now() + ahead; // by the server's clock
const number = (value) => (value === undefined ? "–" : value >= 100000 ? compact.format(value) : numbers.format(value));
const clock = (ms) => new Date(ms - ahead).toLocaleTimeString("en-GB");
const app = () => (state.applications || {})[chosen] || {};

function age(ms) {
  const seconds = Math.max(0, Math.round((now() - ms) / 1000));
  if (seconds < 120) return `${seconds} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} d`;
}

function bytes(count) {
  return count === undefined ? "–" : count >= 2 ** 30 ? `${(count / 2 ** 30).toFixed(1)} GiB` : `${Math.round(count / 2 ** 20)} MiB`;
}

function look(task) {
  if (task.kind === "LEARNER") return "learner";
  if (task.kind === "STANDBY") return task.move ? "learner" : "standby";
  return { RUNNING: "running", PAUSED: "paused", RESTORING: "restoring", SUSPENDED: "standby" }[task.state] || "created";
}

const done = (move) => (move.of ? Math.max(0, Math.min(100, Math.round(100 * (1 - move.left / move.of)))) : 0);
const moveText = (move) =>
  `${numbers.format(move.left)} of ${numbers.format(move.of)} left${move.rate ? `, ${number(move.rate)}/s` : ""}${
    move.seconds !== undefined ? `, ${move.seconds} s` : ""}`;

// -- the stream ------------------------------------------------------------------------------------------------------------------

function merge(target, patch) {
  for (const [key, value] of Object.entries(patch)) {
    if (value === null) delete target[key];
    else if (typeof value === "object" && !Array.isArray(value)) {
      const inner = target[key];
      target[key] = merge(inner && typeof inner === "object" && !Array.isArray(inner) ? inner : Object.create(null), value);
    } else target[key] = value;
  }
  return target;
}

function mark(patch) {
  for (const [name, sections] of Object.entries(patch.applications || {})) {
    touch("applications", name);
    if (name !== chosen || sections === null) continue;
    for (const [section, changes] of Object.entries(sections)) {
      for (const key of changes === null ? ["*"] : Object.keys(changes)) touch(section, key);
    }
  }
}

function touch(section, key) {
  if (!dirty.has(section)) dirty.set(section, new Set());
  dirty.get(section).add(key);
  if (!scheduled) {
    scheduled = true;
    requestAnimationFrame(render);
  }
}

function receive(message, first) {
  heard = Date.now();
  ahead = message.now - heard;
  if (first) state = Object.create(null);
  if (message.patch) {
    merge(state, message.patch);
    const names = Object.keys(state.applications || {});
    if (names.length && (first || !names.includes(chosen))) choose([chosen, wanted].find((name) => names.includes(name)) ?? names[0]);
    mark(message.patch);
  }
  if (lostAt !== null) {
    lostAt = null;
    touch("reading", "*");
  }
}

async function follow() {
  const control = new AbortController();
  attempt = control;
  heard = heard || Date.now();
  try {
    const response = await fetch("stream", { headers: { Authorization: `Bearer ${token}` }, cache: "no-store", signal: control.signal });
    if (response.status === 401) return ask("The token is wrong, or from an earlier start of the board.");
    if (!response.ok) throw new Error((await response.text()).trim());
    $("ask").hidden = true;
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "", first = true;
    for (;;) {
      const { done: ended, value } = await reader.read();
      if (ended) throw new Error("the stream has ended");
      const parts = (rest + value).split("\n\n");
      rest = parts.pop();
      for (const part of parts) {
        receive(JSON.parse(part.slice(6)), first);
        first = false;
      }
    }
  } catch (error) {
    if (attempt !== control) return;
    lose(error.message);
    setTimeout(() => attempt === control && follow(), 1000);
  }
}

function lose(why) {
  if (lostAt === null) lostAt = heard || Date.now();
  $("banner").dataset.why = why;
  status();
}

setInterval(() => {
  if (token && attempt && Date.now() - heard > BEAT_MS) {
    if (lostAt === null) lose("no answer");
    const hanging = attempt;
    if (Date.now() - heard > 2 * BEAT_MS) {
      heard = Date.now() - BEAT_MS; // give the next attempt as long
      attempt = null;
      hanging.abort();
      follow();
    }
  }
  status();
  ages();
}, 1000);

function ask(why) {
  attempt = null;
  $("ask").hidden = false;
  $("main").hidden = true;
  if (why) set($("ask-why"), `${why} Open the URL that penstock board printed, or enter the token from it.`);
  set($("live-text"), "not open");
  $("token").focus();
}

function enter(given) {
  token = given;
  sessionStorage.setItem("token", given);
  follow();
}

// -- state of the connection -----------------------------------------------------------------------------------------------------

// Say how old the state is as soon as it is not live: the board is away, or no broker answers.
function status() {
  if (!token || !$("ask").hidden) return;
  const reading = app().reading || {};
  let text = "", lost = true;
  if (lostAt !== null) {
    text = `The board does not answer: is penstock board still running? What is shown is ${age(lostAt + ahead)} old, of ${clock(lostAt + ahead)}.`;
  } else if (reading.state === "lost") {
    const old = reading.since_ms === undefined ? "Nothing was read yet." : `What is shown is ${age(reading.since_ms)} old, of ${clock(reading.since_ms)}.`;
    text = `${reading.error}. ${old} The instances go on by themselves when a broker answers.`;
  } else lost = false;
  const banner = $("banner");
  banner.hidden = !lost;
  if (lost) set(banner, text);
  document.body.classList.toggle("stale", lost);
  renderHeadline();
  $("live").dataset.state = lost ? "lost" : reading.state === "live" ? "live" : "waiting";
  set($("live-text"), lost ? "not live" : reading.state === "live" ? "live" : reading.state === "missing" ? "never started" : "reading");
}

function ages() {
  for (const [name, row] of instances) heardOf(row, (app().instances || {})[name] || {});
  for (const [task, card] of cards) sinceOf(card, (app().paused || {})[task] || {});
  const totals = app().totals;
  if (totals && lostAt === null && (app().reading || {}).state === "live") {
    spark.push(totals.rate || 0);
    spark = spark.slice(-SPARK);
    drawSpark();
  }
}

function drawSpark() {
  const most = Math.max(1, ...spark), step = 160 / (SPARK - 1), left = 160 - (spark.length - 1) * step;
  const points = spark.map((value, index) => `${(left + index * step).toFixed(1)} ${(34 - (30 * value) / most).toFixed(1)}`);
  const [area, line] = $("spark").children;
  line.setAttribute("d", points.length > 1 ? `M${points.join("L")}` : "");
  area.setAttribute("d", points.length > 1 ? `M${left.toFixed(1)} 36L${points.join("L")}L160 36Z` : "");
}

// -- rendering -------------------------------------------------------------------------------------------------------------------

function choose(name) {
  chosen = name;
  for (const kept of [instances, tiles, cards, moves, listed]) kept.clear();
  for (const id of ["instances", "paused", "moves-list", "events", "globals-list", "idle-list"]) $(id).replaceChildren();
  spark = [];
  ordered = null;
  $("main").hidden = false;
  for (const other of Object.keys(state.applications)) touch("applications", other);
  for (const [section, content] of Object.entries(app())) for (const key of Object.keys(content)) touch(section, key);
  for (const section of ["flow", "paused", "idle", "headline", "totals", "globals", "reading", "events"]) touch(section, "*");
}

function render() {
  scheduled = false;
  const changed = dirty;
  dirty = new Map();
  const has = (name) => changed.has(name), keys = (name) => changed.get(name) || [];
  if (has("applications")) renderNames();
  if (has("reading")) status();
  if (has("headline") || has("paused")) renderHeadline();
  if (has("totals")) renderTotals();
  if (has("flow")) flow.draw(app().flow || {}, chosen);
  const redraw = has("flow");
  for (const edge of redraw ? Object.keys(app().rates || {}) : keys("rates")) flow.rate(edge, (app().rates || {})[edge], number((app().rates || {})[edge]));
  for (const topic of redraw ? Object.keys(app().lags || {}) : keys("lags")) flow.lag(topic, (app().lags || {})[topic], number((app().lags || {})[topic]));
  if (redraw || has("late")) flow.late(app().late || {});
  renderFleet(keys("instances"), keys("tasks"), redraw);
  if (has("paused")) renderPaused();
  if (has("idle") || has("unread")) renderIdle();
  if (has("globals")) renderGlobals();
  if (has("events")) renderEvents();
}

function renderNames() {
  const names = Object.keys(state.applications || {}).sort(natural);
  const nav = $("applications");
  const buttons = new Map([...nav.children].map((button) => [button.dataset.name, button]));
  names.forEach((name) => {
    let button = buttons.get(name);
    if (!button) {
      button = make("button");
      button.type = "button";
      button.dataset.name = name;
      const dot = make("span", "dot");
      dot.ariaHidden = "true";
      button.append(dot, make("span", "", name));
      button.addEventListener("click", () => choose(name));
      nav.append(button);
    }
    const lost = (state.applications[name].reading || {}).state === "lost";
    button.dataset.level = lost ? "none" : (state.applications[name].headline || {}).level || "none";
    button.setAttribute("aria-pressed", String(name === chosen));
  });
  for (const [name, button] of buttons) if (!names.includes(name)) button.remove();
}

// The time of what is shown, by the server's clock, if it is not live: the board is away, or no broker answers. Null: it is live.
function lastKnown() {
  const reading = app().reading || {};
  return lostAt !== null ? lostAt + ahead : reading.state === "lost" ? reading.since_ms ?? 0 : null;
}

function renderHeadline() {
  if (chosen === null) return;
  const headline = app().headline || {}, at = lastKnown(), text = headline.text || "";
  set($("headline"), at === null ? text : at ? `Last known, at ${clock(at)}: ${text}` : "Nothing is known yet");
  $("headline").dataset.level = (at === null && headline.level) || "none";
  const paused = Object.keys(app().paused || {}).length;
  document.title = `${at !== null ? "(not live) " : paused ? `(${paused} paused) ` : ""}${chosen} · Penstock`;
}

function figure(id, value, note, bad) {
  const element = $(id), small = make("small", "", note || "");
  element.className = bad ? "bad" : "";
  element.replaceChildren(value, ...(note ? [small] : []));
}

function renderTotals() {
  const totals = app().totals || {};
  const away = (totals.wanted || 0) - (totals.running || 0);
  figure("figure-instances", number(totals.running), away > 0 ? `of ${totals.wanted}` : "", away > 0);
  const copies = totals.copies ? `+ ${number(totals.copies)} ${totals.copies === 1 ? "copy" : "copies"}` : "";
  figure("figure-tasks", number(totals.active), totals.paused ? `${totals.paused} paused` : copies, Boolean(totals.paused));
  const known = totals.rate_of === undefined ? "" : `, of ${totals.rate_of} of ${totals.running} instances`;
  figure("figure-rate", number(totals.rate), `in, ${number(totals.written)} out${known}`);
  figure("figure-lag", number(totals.lag));
  figure("figure-moving", number(totals.moving));
}

// Update the rows of instances and the tiles of tasks that have changed; rows that are open, with their table.
function renderFleet(changedInstances, changedTasks, redraw) {
  const shown = app().instances || {}, tasks = app().tasks || {};
  const rows = new Set(), order = new Set(), parts = new Set();
  for (const name of changedInstances) {
    if (!(name in shown)) {
      const row = instances.get(name);
      if (row) row.root.remove();
      instances.delete(name);
    } else rows.add(name);
  }
  for (const key of changedTasks) {
    const at = key.indexOf("@"), name = key.slice(at + 1), task = tasks[key], tile = tiles.get(key);
    parts.add(Number(key.split("_")[0]));
    rows.add(name);
    if (!task) {
      if (tile) tile.remove();
      tiles.delete(key);
      ordered = null;
      continue;
    }
    if (!tile) {
      const made = make("i", "tile");
      made.dataset.task = key;
      tiles.set(key, made);
      order.add(name);
      ordered = null;
    }
    paint(tiles.get(key), task);
  }
  let added = false;
  for (const name of rows) {
    if (!(name in shown)) continue;
    if (!instances.has(name)) {
      instances.set(name, instanceRow(name));
      added = true;
    }
  }
  if (added) $("instances").append(...[...instances.keys()].sort(natural).map((name) => instances.get(name).root));
  const own = new Map();
  if (rows.size || parts.size || redraw) ordered = ordered || Object.keys(tasks).sort(natural);
  if (rows.size) {
    for (const key of ordered) {
      const name = key.slice(key.indexOf("@") + 1);
      if (!rows.has(name)) continue;
      if (!own.has(name)) own.set(name, []);
      own.get(name).push(key);
    }
  }
  for (const name of rows) {
    const row = instances.get(name);
    if (!row) continue;
    const keys = own.get(name) || [];
    if (order.has(name)) row.tiles.append(...keys.map((key) => tiles.get(key)));
    updateRow(row, shown[name], keys.map((key) => tasks[key]));
    if (row.root.open) fillTable(row, keys.map((key) => tasks[key]));
  }
  if (parts.size || redraw) {
    const looks = new Map();
    for (const key of ordered) {
      const part = parseInt(key, 10);
      if (!(redraw || parts.has(part)) || tasks[key].kind !== "ACTIVE") continue;
      if (!looks.has(part)) looks.set(part, []);
      looks.get(part).push(look(tasks[key]));
    }
    for (const part of redraw ? looks.keys() : parts) flow.tasks(part, looks.get(part) || []);
  }
  renderMoves(changedTasks);
}

function paint(tile, task) {
  const kind = look(task);
  if (tile.dataset.look !== kind) tile.dataset.look = kind;
  if (task.move) tile.style.setProperty("--done", `${done(task.move)}%`);
}

function instanceRow(name) {
  const root = make("details", "instance"), summary = make("summary"), who = make("span", "who"), note = make("span");
  const boxes = make("span", "tiles"), spoken = make("span", "hidden");
  boxes.ariaHidden = "true";
  const cells = ["in/s", "out/s", "lag", "memory"].map((label) => {
    const cell = make("span", `number ${label}`), value = make("span", "", "–");
    cell.append(value, make("small", "", label));
    return { cell, value };
  });
  who.append(make("b", "", name), note);
  summary.append(who, boxes, spoken, ...cells.map(({ cell }) => cell));
  const table = make("div", "tasks");
  root.append(summary, table);
  const row = { root, note, tiles: boxes, spoken, read: cells[0].value, written: cells[1].value, lag: cells[2].value, memory: cells[3].value, table };
  root.addEventListener("toggle", () => {
    if (!root.open) table.replaceChildren();
    else fillTable(row, Object.values(app().tasks || {}).filter((task) => task.instance === name).sort((a, b) => natural(a.task, b.task)));
  });
  return row;
}

function updateRow(row, instance, tasks) {
  const active = tasks.filter((task) => task.kind === "ACTIVE"), paused = active.filter((task) => task.state === "PAUSED").length;
  row.instance = instance;
  heardOf(row, instance);
  set(row.read, number(instance.read));
  set(row.written, number(instance.written));
  set(row.lag, active.length ? number(active.reduce((sum, task) => sum + (task.lag || 0), 0)) : "–");
  set(row.memory, bytes(instance.memory));
  set(row.spoken, `${active.length} active tasks, ${paused} paused, ${tasks.length - active.length} copies`);
}

function heardOf(row, instance) {
  const silent = ["gone", "silent", "never started"].includes(instance.state) || (instance.state === "stopped" && instance.wanted);
  const parts = [instance.state, instance.leads && "leads", instance.host && `${instance.host}:${instance.pid}`];
  if (instance.workers > 1) parts.push(`${instance.workers} workers`);
  if (instance.heard_ms && now() - instance.heard_ms > 8000) parts.push(`heard ${age(instance.heard_ms)} ago`);
  set(row.note, parts.filter(Boolean).join(" · "));
  row.note.classList.toggle("bad", silent && Boolean(instance.wanted));
}

function fillTable(row, tasks) {
  const table = make("table"), head = make("tr"), body = make("tbody"), top = make("thead");
  for (const [label, side] of [["task", ""], ["kind", ""], ["state", ""], ["lag", "r"], ["records/s", "r"], ["checkpoint", "r"], ["progress", ""]]) {
    const cell = make("th", side, label);
    cell.scope = "col";
    head.append(cell);
  }
  for (const task of tasks) {
    const line = make("tr"), name = make("th", "mono", task.task);
    name.scope = "row";
    line.append(name, make("td", "", task.kind.toLowerCase()), make("td", task.state === "PAUSED" ? "bad" : "", task.state.toLowerCase()));
    line.append(make("td", "r", number(task.lag)), make("td", "r", number(task.rate)));
    line.append(make("td", "r", task.checkpoint_ms ? `${age(task.checkpoint_ms)} ago` : "–"), make("td", "", task.move ? moveText(task.move) : ""));
    body.append(line);
  }
  top.append(head);
  table.append(top, body);
  row.table.replaceChildren(tasks.length ? table : make("p", "faint", "It runs no tasks."));
}

function renderMoves(changed) {
  const tasks = app().tasks || {}, list = $("moves-list");
  for (const key of changed) {
    const task = tasks[key];
    let item = moves.get(key);
    if (!task || !task.move) {
      if (item) item.root.remove();
      moves.delete(key);
      continue;
    }
    if (!item) {
      const root = make("li"), what = make("span"), kind = make("span", "faint"), bar = make("progress"), left = make("span", "faint"), percent = make("span");
      const line = make("span", "what"), under = make("span", "figures-line");
      bar.max = 100;
      line.append(what, kind);
      under.append(left, percent);
      root.append(line, bar, under);
      item = { root, what, kind, bar, left, percent };
      moves.set(key, item);
      if (list.children.length < MOVES_SHOWN) list.append(root);
    }
    set(item.what, `${task.task} on ${task.instance}`);
    set(item.kind, task.kind === "ACTIVE" ? "restores" : task.kind === "LEARNER" ? "learns, then takes over" : "standby catches up");
    item.root.className = task.kind === "ACTIVE" ? "restoring" : "";
    item.bar.value = done(task.move);
    item.bar.setAttribute("aria-label", `${task.task} on ${task.instance}`);
    set(item.left, moveText(task.move));
    set(item.percent, `${done(task.move)} %`);
  }
  if (list.children.length < Math.min(MOVES_SHOWN, moves.size)) {
    for (const item of moves.values()) if (!item.root.isConnected && list.children.length < MOVES_SHOWN) list.append(item.root);
  }
  $("moves").hidden = moves.size === 0;
  set($("moves-title"), moves.size > MOVES_SHOWN ? `Restores and moves: ${MOVES_SHOWN} of ${moves.size}` : "Restores and moves");
}

function renderPaused() {
  const paused = app().paused || {};
  for (const [task, card] of cards) {
    if (!(task in paused) || JSON.stringify(paused[task]) !== card.content) {
      card.root.remove();
      cards.delete(task);
    }
  }
  for (const [task, pause] of Object.entries(paused)) if (!cards.has(task)) cards.set(task, pauseCard(pause));
  $("paused").append(...[...cards.keys()].sort(natural).map((task) => cards.get(task).root));
  $("paused").hidden = cards.size === 0;
}

function pauseCard(pause) {
  const root = make("article", "card"), title = make("h2"), since = make("small");
  title.append(make("span", "", `Task ${pause.task} is paused at ${pause.record}`), since);
  root.append(title);
  if (pause.error) root.append(make("p", "error", pause.error));
  else root.append(make("p", "", "It was paused by hand."));
  if (pause.location) root.append(make("p", "faint", `at ${pause.location}`));
  const record = make("div", "record");
  for (const part of ["key", "value"]) {
    const data = pause[part];
    if (!data) continue;
    const figure = make("figure");
    figure.append(make("figcaption", "", `${part}, ${numbers.format(data.size)} bytes`), make("pre", "text", data.text), make("pre", "", data.hex));
    record.append(figure);
  }
  if (record.children.length) root.append(record);
  if (pause.absent) root.append(make("p", "faint", pause.absent));
  const repair = make("div", "repair");
  if (/^https?:\/\//.test(pause.link || "")) {
    const link = make("a", "button", "Open the run-book in Dagster");
    link.href = pause.link;
    link.target = "_blank";
    link.rel = "noopener noreferrer";
    repair.append(link);
  }
  const copy = make("button", "copy", "Copy");
  copy.type = "button";
  copy.setAttribute("aria-label", "Copy the command");
  copy.addEventListener("click", () => navigator.clipboard.writeText(pause.command).then(() => set(copy, "Copied"), () => set(copy, "Select it")));
  repair.append(make("code", "", pause.command), copy);
  root.append(repair);
  const card = { root, since, content: JSON.stringify(pause) };
  sinceOf(card, pause);
  return card;
}

function sinceOf(card, pause) {
  set(card.since, `on ${pause.instance}${pause.since_ms ? `, since ${clock(pause.since_ms)}, ${age(pause.since_ms)} ago` : ""}`);
}

function renderIdle() {
  const idle = Object.entries(app().idle || {}).sort(([a], [b]) => natural(a, b));
  const unread = Object.entries(app().unread || {});
  const lines = [...idle.slice(0, 20).map(([task, reason]) => `${task}: ${reason}`), ...unread.map(([topic, text]) => `input topic ${topic}: ${text}`)];
  if (idle.length > 20) lines.push(`and ${idle.length - 20} more tasks: penstock status -a ${chosen}`);
  $("idle-list").replaceChildren(...lines.map((line) => make("li", "", line)));
  $("idle").hidden = lines.length === 0;
}

function renderGlobals() {
  const found = Object.entries(app().globals || {}).sort(([a], [b]) => natural(a, b)).map(([, row]) => row);
  const items = found.slice(0, 20).map((row) => {
    const item = make("li"), ready = row.state === "RUNNING";
    item.append(make("span", "", `${row.store} on ${row.instance}`));
    const text = row.move ? moveText(row.move) : ready ? `lag ${number(row.lag)}` : row.state.toLowerCase();
    item.append(make("span", ready ? "faint" : "warn", row.reason ? `${text}: ${row.reason}` : text));
    return item;
  });
  if (found.length > 20) items.push(make("li", "faint", `and ${found.length - 20} more copies`));
  $("globals-list").replaceChildren(...items);
  $("globals").hidden = items.length === 0;
}

const LOOKS = { TASK_PAUSED: "bad", TASK_CORRUPTED: "bad", OFFSET_MOVED: "bad", SHUTDOWN: "bad", TASK_RESUMED: "good", TASK_TAKEN_OVER: "move", RESTORE_STARTED: "move", RESTORE_ENDED: "move", TASKS_ASSIGNED: "move" };

function renderEvents() {
  const events = app().events || {}, list = $("events");
  for (const [key, item] of listed) {
    if (!(key in events)) {
      item.remove();
      listed.delete(key);
    }
  }
  for (const key of Object.keys(events).sort((a, b) => a - b).slice(-EVENTS_SHOWN)) {
    if (listed.has(key)) continue;
    const event = events[key], item = make("li"), time = make("time", "", clock(event.at_ms)), what = make("span"), kind = make("span", "kind");
    time.dateTime = new Date(event.at_ms).toISOString();
    time.title = time.dateTime;
    set(kind, event.kind.toLowerCase().replaceAll("_", " "));
    kind.dataset.look = LOOKS[event.kind] || "";
    what.append(kind, ` ${event.task ? `${event.task} on ` : ""}${event.instance}`);
    item.append(time, what);
    if (event.text) item.append(make("p", "", event.text));
    listed.set(key, item);
    list.prepend(item);
  }
}

// -- start -----------------------------------------------------------------------------------------------------------------------

$("instances").addEventListener("pointerover", (event) => {
  const task = (app().tasks || {})[event.target.dataset.task];
  if (!task) return;
  const parts = [`${task.task}: ${task.kind.toLowerCase()}, ${task.state.toLowerCase()}`, `lag ${number(task.lag)}`];
  if (task.rate !== undefined) parts.push(`${number(task.rate)}/s`);
  if (task.move) parts.push(moveText(task.move));
  event.target.title = parts.join(", ");
});
$("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  enter($("token").value.trim());
});
const fragment = new URLSearchParams(location.hash.slice(1)), given = fragment.get("token");
wanted = fragment.get("app"); // a link from Dagster names the application
if (given) {
  history.replaceState(null, "", location.pathname); // not in the address bar, where others may see or copy it
  enter(given);
} else if (sessionStorage.getItem("token")) enter(sessionStorage.getItem("token"));
else ask("");
