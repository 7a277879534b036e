// Ebbtide's status page: the connection, and what makes the page draw. docs/status.schema.json describes the report.

import { POLL, TICK, list, model, view } from "./model.js";
import { $, fill } from "./document.js";
import { isEnded, isRecorded } from "./words.js";
import { drawBlockers, drawConnection, drawDay, drawEnded, drawFigures, drawHealth, drawPools, drawReplicas, drawRunning, drawStorms, drawTools } from "./views.js";

const SILENCE = 40_000; // ms without an event until the connection counts as dead; one event comes every 15 s
const BACKOFF = 30_000; // ms between two attempts to open a stream, at most

let stream = null;
let opened = false;
let polling = false;
let attempts = 0;
const timers = {};

function after(name, delay, run) {
  clearTimeout(timers[name]);
  timers[name] = setTimeout(run, delay);
}

function connect() {
  stream?.close();
  opened = false;
  stream = new EventSource("api/events");
  stream.onopen = () => (opened = true);
  stream.onerror = lost;
  stream.addEventListener("full", (event) => take(event.data, true, true));
  stream.addEventListener("update", (event) => take(event.data, false, true));
  // A forwarded port can break without an error.
  after("silence", SILENCE, lost);
}

// Reports are polled until a stream opens. A stream that never opened was refused (too many viewers): poll at once.
function lost() {
  stream?.close();
  clearTimeout(timers.silence);
  model.live = false;
  after("retry", Math.min(BACKOFF, 1000 * 2 ** attempts++) * (0.5 + Math.random() / 2), connect);
  if (!polling) {
    polling = true;
    if (opened) after("poll", POLL, poll);
    else poll();
  }
  draw();
}

async function poll() {
  let text = null;
  try {
    const answer = await fetch("api/status", { cache: "no-store", signal: AbortSignal.timeout(2 * POLL) });
    if (answer.ok) text = await answer.text();
  } catch {
    // The next poll asks again.
  }
  if (!polling) return;
  if (text !== null) take(text, true, false);
  else {
    model.problem = "Ebbtide does not answer";
    draw();
  }
  after("poll", POLL, poll);
}

// Takes a report: a whole one, or one that holds only what changed.
function take(text, whole, live) {
  let report = null;
  try {
    report = JSON.parse(text);
  } catch {
    // Reported below.
  }
  if (typeof report?.health?.text !== "string") {
    model.problem = "Ebbtide's report can't be read";
    return draw();
  }
  if (!whole && !model.report) return;
  for (const name of ["interruptions", "storms"]) {
    if (whole) model[name].clear();
    for (const item of list(report[name])) model[name].set(item.id, item);
  }
  for (const id of list(report.removed)) model.interruptions.delete(id);
  Object.assign(model, { report, live, problem: null, heard: Date.now() });
  model.ahead = (Date.parse(report.time) || Date.now()) - Date.now();
  model.program ??= report.program;
  if (live) {
    polling = false;
    attempts = 0;
    clearTimeout(timers.poll);
    after("silence", SILENCE, lost);
  }
  draw();
}

function draw() {
  const { report } = model;
  drawConnection(report);
  if (!report) return;
  const focused = document.activeElement;
  // A Node's record adds nothing to what a replica shows.
  const rows = [...model.interruptions.values()];
  const known = new Set(rows.filter((x) => !isRecorded(x) && !isEnded(x)).map((x) => x.instance));
  const all = rows.filter((x) => !isRecorded(x) || !known.has(x.instance));
  drawHealth(report);
  drawBlockers(all);
  drawDay(report);
  drawFigures(report, all);
  drawTools(all);
  drawRunning(all);
  drawStorms();
  drawEnded(all);
  drawPools(report);
  drawReplicas(report);
  fill($("program"), `Ebbtide ${report.program ?? ""}`);
  // A row that moves loses the focus.
  if (focused !== document.activeElement && focused?.isConnected) focused.focus({ preventScroll: true });
}

document.addEventListener("click", ({ target }) => {
  const button = target.closest("button");
  if (!button || button.getAttribute("aria-disabled")) return;
  const { state, page, to, pools } = button.dataset;
  if (state) Object.assign(view, { state, page: { running: 0, ended: 0 } });
  if (page) view.page[page] = Number(to);
  if (pools !== undefined) view.allPools = !view.allPools;
  draw();
  if (page) $(page).scrollIntoView();
});

$("filter").addEventListener("input", ({ target }) => {
  Object.assign(view, { terms: target.value.toLowerCase().split(/\s+/).filter(Boolean), page: { running: 0, ended: 0 } });
  draw();
});

$("day").addEventListener("pointermove", ({ target, clientX }) => {
  const sea = target.closest(".sea")?.getBoundingClientRect();
  view.slot = sea ? Math.max(0, Math.floor(((clientX - sea.left) / sea.width) * list(model.report?.day?.notices).length)) : null;
  draw();
});

$("day").addEventListener("pointerleave", () => {
  view.slot = null;
  draw();
});

// A phone that wakes up: its stream is dead, or its next attempt far away.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) return;
  draw();
  if (model.live && Date.now() - model.heard < SILENCE) return;
  attempts = 0;
  connect();
});

setInterval(() => document.hidden || draw(), TICK);
connect();
