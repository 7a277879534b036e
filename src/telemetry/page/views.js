// Views: each describes one part of the page from the report, and fills it.

import { POLL, TICK, VERSION, list, model, view } from "./model.js";
import { $, fill, h, mark, plain, show } from "./document.js";
import { OWNED, PHASES, STATES, clock, counted, isEnded, isRecorded, joined, lasting, matches, millis, named, now, number, stateOf, stuck, unbroken, until } from "./words.js";

const PAGE = 50; // rows a page

function bar(role, label, part, words, tone) {
  const share = Math.min(1, Math.max(0, part || 0));
  const percent = Math.round(share * 100);
  const values = { "aria-valuemin": 0, "aria-valuemax": 100, "aria-valuenow": percent, "aria-valuetext": words };
  return h("div", { class: `bar ${tone}`, role, "aria-label": label, ...values }, h("span", { style: { "--part": share.toFixed(4) } }));
}

// The time left: a bar that ebbs.
function timeLeft(x) {
  const left = until(x.deadline);
  if (Number.isNaN(left)) return h("div", { class: "time" }, h("p", { class: "figure" }, "no deadline"));
  const words = left > 0 ? `${lasting(left)} left` : `passed ${lasting(-left)} ago`;
  const whole = millis(x.deadline) - millis(x.since);
  const tone = left < 20_000 || left < whole / 10 ? "late" : "ebb";
  const end = x.hard ? "capacity ends" : "time limit";
  return h("div", { class: "time" },
    h("p", { class: "figure" }, words, h("small", {}, `${end} ${clock(x.deadline)}`)),
    bar("meter", "Time left", left / whole, `${words}, ${end} ${clock(x.deadline)} UTC`, tone));
}

function podsOf(drain, several) {
  const { pods, gone, leftAlone } = drain;
  const words = pods ? `${number(gone)} of ${counted(pods, "pod")} gone` : "no pods to evict";
  const rest = joined(pods > gone && `${number(pods - gone)} left`, leftAlone && `${number(leftAlone)} left alone`, drain.outcome);
  return [several && h("p", { class: "of" }, named(drain.node)),
    h("p", { class: "figure" }, words, h("small", {}, rest)),
    bar("progressbar", "Pods gone", pods ? gone / pods : 1, words, "done")];
}

function podsLeft(x) {
  const drains = list(x.drains);
  const none = isEnded(x) || isRecorded(x) ? "" : h("p", { class: "figure none" }, "drain not begun");
  return h("div", { class: "pods" }, drains.length ? drains.map((drain) => podsOf(drain, drains.length > 1)) : none);
}

function hookOf(x) {
  const beats = x.heartbeats;
  const sent = beats && joined(`${counted(beats.sent, "heartbeat")}${beats.last ? `, last ${clock(beats.last)}` : ""}`, beats.failed && `${number(beats.failed)} failed`);
  return [x.hook && h("span", {}, `hook ${x.hook}`), sent && h("span", { class: beats.failed ? "warn" : null }, sent)];
}

function heldPod(held) {
  return h("div", { class: "held" },
    h("p", {}, h("bdi", { class: "name" }, held.pod), h("small", {}, held.since && `held for ${lasting(now() - millis(held.since))}`)),
    h("p", {}, held.by),
    held.advice && h("p", { class: "advice" }, held.advice));
}

function notes(x) {
  const held = stuck(x).flatMap((drain) => [list(drain.blocked).map(heldPod),
    drain.blockedMore ? h("p", { class: "held" }, `and ${counted(drain.blockedMore, "more pod")}`) : ""]);
  const waits = list(x.waits).map((wait) => h("p", { class: "wait" }, h("b", {}, "Waits for ", wait.wait, ":"), " ", wait.reason,
    wait.until && h("small", {}, until(wait.until) > 0 ? ` at most ${lasting(until(wait.until))} more` : " its time is over")));
  return [held, waits, x.problem && h("p", { class: "problem" }, h("b", {}, isRecorded(x) ? "Node condition:" : "Retrying:"), " ", x.problem)];
}

function facts(x, ...words) {
  return h("div", { class: "facts" }, h("b", {}, x.kind), words.map((word) => word && h("span", {}, word)), hookOf(x), details(x));
}

function details(x) {
  const all = { Instance: x.instance, Message: x.message, Received: x.since && `${clock(x.since)} UTC`, Action: x.action,
    Copies: x.copies ? `${number(x.copies)} joined` : null, Waited: x.ended?.waited, Replica: x.replica };
  return h("details", {}, h("summary", {}, "Details", h("span", { class: "unseen" }, " of ", x.node ?? x.instance)),
    h("dl", {}, Object.entries(all).filter(([, value]) => value).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, h("bdi", {}, value))))));
}

function runningRow(x) {
  return h("li", { key: x.id, class: `row ${stuck(x).length ? "blocked" : ""}` },
    h("div", { class: "who" }, h("h4", {}, named(x.node, x.instance ?? "no node")),
      facts(x, PHASES[x.phase] ?? x.phase, !x.node && "no Node known")),
    timeLeft(x), podsLeft(x), h("div", { class: "notes" }, notes(x)));
}

function endedRow(x) {
  const { at, outcome, failed, report } = x.ended ?? {};
  return h("li", { key: x.id, class: `row over ${failed ? "failed" : ""}` },
    h("div", { class: "who" }, h("h3", {}, named(x.node, x.instance ?? "no node")), facts(x)),
    h("p", { class: "outcome" }, h("b", { class: failed ? "bad" : "good" }, outcome ?? "ended"), h("small", {}, report)),
    h("p", { class: "when" }, at ? clock(at) : "", h("small", {}, at && x.since && `after ${lasting(millis(at) - millis(x.since))}`)));
}

function paged(name, items, rows) {
  const last = Math.max(0, Math.ceil(items.length / PAGE) - 1);
  const page = (view.page[name] = Math.min(view.page[name], last));
  const button = (words, to) => h("button", { type: "button", "data-page": name, "data-to": to, "aria-disabled": to < 0 || to > last ? "true" : null }, words);
  const range = `${number(page * PAGE + 1)}–${number(Math.min(items.length, (page + 1) * PAGE))} of ${number(items.length)}`;
  return [rows(items.slice(page * PAGE, (page + 1) * PAGE)),
    last > 0 && h("nav", { class: "pages", "aria-label": `Pages: ${name}` }, button("Previous", page - 1), h("span", {}, range), button("Next", page + 1))];
}

export function drawRunning(all) {
  const running = all.filter((x) => !isEnded(x));
  const shown = ["all", "ended", "failed"].includes(view.state) ? (view.state === "all" ? running : []) : running.filter((x) => stateOf(x) === view.state);
  const urgency = (x) => millis(x.deadline) || Infinity;
  const found = shown.filter(matches).sort((a, b) =>
    (stateOf(b) === "blocked") - (stateOf(a) === "blocked") || isRecorded(a) - isRecorded(b) || urgency(a) - urgency(b) || 0);
  const empty = h("p", { class: "none" }, running.length ? "No running interruption matches." : "Nothing is being drained.");
  const group = (title, rows) => rows.length > 0 && h("div", { key: title }, h("h3", { class: "group" }, title), h("ul", {}, rows.map(runningRow)));
  const groups = (rows) => [group("Blocked", rows.filter((x) => stateOf(x) === "blocked")),
    group("By deadline", rows.filter((x) => stateOf(x) !== "blocked" && !isRecorded(x))),
    group("Records on nodes", rows.filter((x) => stateOf(x) !== "blocked" && isRecorded(x)))];
  fill($("running").lastElementChild, found.length ? paged("running", found, groups) : empty);
  show("running", shown.length > 0 || !running.length);
}

export function drawEnded(all) {
  const ended = all.filter(isEnded);
  const shown = ended.filter((x) => ["all", "ended"].includes(view.state) || (view.state === "failed" && x.ended?.failed));
  const found = shown.filter(matches).sort((a, b) => millis(b.ended?.at) - millis(a.ended?.at) || 0);
  show("ended", shown.length > 0);
  const rows = (items) => h("ul", {}, items.map(endedRow));
  fill($("ended").lastElementChild, found.length ? paged("ended", found, rows) : h("p", { class: "none" }, "No ended interruption matches."));
}

export function drawTools(all) {
  const counts = new Map([["all", all.length], ...OWNED.map((state) => [state, 0])]);
  const add = (state) => counts.set(state, (counts.get(state) ?? 0) + 1);
  for (const x of all) {
    add(stateOf(x));
    if (x.ended?.failed) add("failed");
  }
  if (view.state !== "all" && !counts.get(view.state)) counts.set(view.state, 0);
  const chips = [...counts].filter(([state, count]) => count || state === view.state);
  show("tools", all.length > 5 || view.state !== "all" || view.terms.length > 0);
  fill($("states"), chips.map(([state, count]) => h("button", { key: state, type: "button", "data-state": state, "aria-pressed": String(state === view.state) },
    state, " ", h("span", {}, number(count)))));
}

// What a person must do: before everything else. Pods that the same reason holds back are one entry.
export function drawBlockers(all) {
  const causes = new Map();
  for (const x of all.filter((x) => stuck(x).length).sort((a, b) => millis(a.deadline) - millis(b.deadline))) {
    for (const held of stuck(x).flatMap((drain) => list(drain.blocked))) {
      const cause = `${held.by}\n${held.advice}`;
      if (!causes.has(cause)) causes.set(cause, { x, held, pods: 0 });
      causes.get(cause).pods += 1;
    }
  }
  const card = ({ x, held, pods }, index) => h("article", { key: index, class: "card" },
    h("p", { class: "pod" }, h("bdi", { class: "name" }, held.pod), pods > 1 && h("small", {}, ` and ${counted(pods - 1, "more pod")}`)),
    h("p", {}, held.by),
    h("p", { class: "advice" }, h("b", {}, "What to do"), " ", held.advice || "See what the budget or the annotation protects."),
    h("p", { class: "left" }, h("b", {}, until(x.deadline) > 0 ? `${lasting(until(x.deadline))} left` : x.deadline && "Its time is over"), " on ", named(x.node, x.instance)));
  const more = causes.size - 3;
  fill($("blockers"), causes.size > 0 && [h("h2", { class: "unseen" }, "What blocks"), h("div", {}, [...causes.values()].slice(0, 3).map(card)),
    more > 0 && h("p", {}, h("a", { href: "#running" }, `${counted(more, "more reason")} below`))]);
}

// The last day as a sea: bars are exact, the water is their swell. Heights are square roots, so that one notice shows next to a storm.
export function drawDay({ day }) {
  const notices = list(day?.notices);
  const failed = list(day?.failed);
  const slots = notices.length;
  if (!slots) return fill($("day"));
  const [width, level, height] = [10 * slots, 128, 112];
  const most = Math.max(25, ...notices);
  const rise = (value) => height * Math.sqrt(Math.max(0, value) / most);
  const reach = Array.from({ length: 33 }, (_, j) => Math.exp(-((j - 16) ** 2) / 60));
  const swell = notices.map((_, i) => height * Math.tanh(Math.hypot(...reach.map((share, j) => share * rise(notices[i + j - 16] ?? 0))) / height / 1.5));
  const crest = swell.map((value, i) => `L${10 * i + 5} ${(level - value).toFixed(1)}`).join("");
  const bars = (values) => values.map((value, i) => (value ? `M${10 * i + 5} ${level}V${(level - rise(value)).toFixed(1)}` : "")).join("");
  const wave = (y, phase) => `M${-phase} ${y}q30 -7 60 0${"t60 0".repeat(width / 60 + 3)}`;
  const sum = (values) => values.reduce((a, b) => a + b, 0);
  const peak = notices.indexOf(Math.max(...notices));
  const minutes = day.minutesPerSlot || 10;
  const from = (slot) => millis(day.since) + slot * minutes * 60_000;
  const slotText = (slot) => `${clock(from(slot), 16)}–${clock(from(slot + 1), 16)}: ${counted(notices[slot], "notice")}${failed[slot] ? `, ${number(failed[slot])} failed` : ""}`;
  const total = sum(notices);
  const summary = total ? `${counted(total, "notice")} in the last day${sum(failed) ? `, ${number(sum(failed))} failed` : ""}, most at ${clock(from(peak), 16)}` : "No notice in the last day";
  const busy = [...notices.keys()].filter((slot) => notices[slot] || failed[slot]).reverse();
  fill($("day"), h("div", { class: "sea" }, h("i", { class: "disc" }),
    h("svg", { viewBox: `0 0 ${width} 200`, preserveAspectRatio: "none", role: "img", "aria-label": summary },
      h("path", { class: "water", d: `M0 200V${level - swell[0]}${crest}H${width}V200z` }),
      [148, 166, 184].map((y, i) => h("path", { class: "wave", d: wave(y, 60 + 23 * i) })),
      h("path", { class: "notices", d: bars(notices) }), h("path", { class: "failures", d: bars(failed) })), h("i", { class: "glint" })),
  h("div", { class: "axis", "aria-hidden": "true" }, ["24 h ago", "18 h", "12 h", "6 h", "now"].map((words) => h("span", {}, words))),
  h("div", { class: "reading" }, h("p", {}, view.slot == null || view.slot >= slots ? summary : slotText(view.slot)), busy.length > 0 && h("details", {}, h("summary", {}, "The day as a table"),
    h("table", {}, h("caption", {}, "Notices of the last day, the newest first (UTC)"),
      h("thead", {}, h("tr", {}, ["From", "Notices", "Failed"].map((words) => h("th", { scope: "col" }, words)))),
      h("tbody", {}, busy.map((slot) => h("tr", { key: slot }, h("th", { scope: "row" }, clock(from(slot), 16)),
        h("td", {}, number(notices[slot])), h("td", {}, number(failed[slot] ?? 0)))))))));
}

export function drawFigures(report, all) {
  const replicas = list(report.replicas);
  const here = replicas.find((replica) => replica.here) ?? replicas[0] ?? {};
  const queues = replicas.map((replica) => replica.queue).filter(Boolean);
  const held = queues.reduce((sum, queue) => sum + queue.held, 0);
  const oldest = Math.max(0, ...queues.map((queue) => queue.oldestSeconds ?? 0));
  const failing = queues.find((queue) => queue.failing)?.failing;
  const running = all.filter((x) => !isEnded(x) && x.phase !== "marked");
  const blocked = running.filter((x) => stateOf(x) === "blocked").length;
  const silent = replicas.filter((replica) => replica.silent).length;
  const figure = (name, value, rest, bad) => h("div", {}, h("dt", {}, name), h("dd", {}, value), h("dd", { class: bad ? "bad" : null }, rest));
  fill($("figures"),
    figure("Running", number(running.length), blocked ? `${number(blocked)} blocked` : "none blocked", blocked),
    figure("Queue", number(held), failing ? `receiving fails: ${failing}` : held ? `held, the oldest for ${lasting(oldest * 1000)}` : "messages held", failing),
    figure("Nodes", number(here.nodes), "watched"),
    figure("Replicas", number(replicas.length - silent), silent ? `${number(silent)} of ${number(replicas.length)} silent` : replicas.length === 1 ? "answers" : "all answer", silent));
}

export function drawStorms() {
  const storms = [...model.storms.values()].sort((a, b) => millis(b.since) - millis(a.since) || 0);
  show("storms", storms.length > 0);
  fill($("storms").lastElementChild, storms.map((storm) => {
    const { notices, inTime, failed, running } = storm;
    const part = (value) => ({ "--part": (notices ? value / notices : 0).toFixed(4) });
    const failures = list(storm.failures);
    const words = joined(`${number(inTime)} in time`, failed && `${number(failed)} failed`, running && `${number(running)} running`);
    return h("article", { key: storm.id, class: "storm" },
      h("h3", {}, counted(notices, "notice"), h("small", {}, storm.until ? `${clock(storm.since, 16)}–${clock(storm.until, 16)}` : `since ${clock(storm.since, 16)}, still running`)),
      h("div", { class: "shares", role: "img", "aria-label": `Of ${number(notices)}: ${words}` },
        h("span", { class: "in-time", style: part(inTime) }), h("span", { class: "bad-part", style: part(failed) }), h("span", { class: "open", style: part(running) })),
      h("p", { class: "counts" }, h("b", {}, number(inTime), " in time"), failed > 0 && h("b", { class: "bad" }, number(failed), " failed"), running > 0 && h("b", { class: "soft" }, number(running), " running")),
      h("p", { class: "soft" }, joined(Object.entries(storm.kinds ?? {}).map(([kind, count]) => `${kind} ${number(count)}`)),
        storm.slowest && [" · slowest ", named(storm.slowest.node), `, ${lasting(storm.slowest.seconds * 1000)}`]),
      failures.length > 0 && h("details", { open: failures.length < 10 }, h("summary", {}, "Failed, by name"),
        h("ul", {}, failures.map((failure) => h("li", {}, named(failure.node, "no node"), " ", h("b", { class: "bad" }, failure.outcome), " ", h("small", {}, failure.kind))),
          storm.failuresMore > 0 && h("li", {}, `and ${number(storm.failuresMore)} more`))));
  }));
}

function table(caption, heads, rows) {
  return h("table", {}, h("caption", {}, caption),
    h("thead", {}, h("tr", {}, heads.map((head) => h("th", { scope: "col" }, head)))), h("tbody", {}, rows));
}

export function drawPools({ pools }) {
  const all = list(pools);
  const most = Math.max(1, ...all.map((pool) => pool.interruptions));
  const shown = view.allPools ? all : all.slice(0, 8);
  show("pools", all.length > 0);
  fill($("pools").lastElementChild, table("Most interrupted", ["Pool", "Kind", "Interruptions"], shown.map((pool) => h("tr", {},
    h("th", { scope: "row" }, h("bdi", {}, pool.instanceType || "unknown type"), h("small", {}, joined(pool.zone, pool.group))), h("td", {}, pool.kind),
    h("td", { class: "count" }, h("div", {}, h("i", { style: { "--part": (pool.interruptions / most).toFixed(3) } }), number(pool.interruptions)))))),
  all.length > 8 && h("button", { type: "button", "data-pools": "", "aria-expanded": String(view.allPools) }, view.allPools ? "Show fewer" : `Show all ${number(all.length)}`));
}

export function drawReplicas({ replicas }) {
  const rows = list(replicas);
  show("replicas", rows.length > 0);
  fill($("replicas").lastElementChild, table("What each holds", ["Replica", "State", "Queue"], rows.map((replica) => {
    const { queue, silent } = replica;
    const ready = replica.ready ? h("b", { class: "good" }, "ready") : h("b", { class: "bad" }, silent ? "silent" : "not ready");
    return h("tr", { key: replica.name }, h("th", { scope: "row" }, h("bdi", {}, replica.name), h("small", {}, replica.here ? "this one" : "")),
      h("td", {}, ready, h("small", {}, silent ?? joined(replica.started && `for ${lasting(now() - millis(replica.started))}`, replica.nodes != null && counted(replica.nodes, "node")))),
      h("td", {}, queue ? [`${number(queue.held)} held`, h("small", { class: queue.failing ? "bad" : null }, queue.failing ? `fails: ${queue.failing}` : queue.held ? `oldest ${lasting(queue.oldestSeconds * 1000)}` : "")] : "unknown"));
  })));
}

export function drawConnection(report) {
  const stale = Date.now() - model.heard;
  mark($("live"), "live", model.live);
  fill($("live"), model.live ? "Live" : report ? "Not live" : "Connecting", report && h("time", {}, `${clock(now())} UTC`));
  const age = report && stale > 2 * TICK ? `; this is from ${lasting(stale)} ago` : "";
  const lines = [report?.dryRun && "Dry run: Ebbtide watches, and changes nothing.",
    model.problem && `${model.live ? "" : "Not live: "}${model.problem}${age}. The page tries again.`,
    !model.live && report && !model.problem && `Not live: the page asks every ${POLL / 1000} s${age}.`,
    report && report.version !== VERSION && `The report has version ${report.version}, and this page knows ${VERSION}: reload the page.`,
    report && model.program !== report.program && `Ebbtide ${report.program} runs now: reload the page.`];
  show("stale", lines.some(Boolean));
  fill($("stale"), lines.filter(Boolean).map((line) => h("span", {}, line)));
}

export function drawHealth(report) {
  const { state, text } = report.health;
  const word = STATES[state] ?? state;
  const [, first, rest] = /^(.+?[.!?])\s+(.+)$/s.exec(text) ?? [null, text, ""];
  const title = plain(`${word}${model.live ? "" : " (not live)"} · Ebbtide`);
  mark(document.body, "state", Object.hasOwn(STATES, state) ? state : "unknown");
  mark(document.body, "live", model.live);
  if (document.title !== title) document.title = title;
  fill($("health"), h("p", { class: "word" }, word), h("h1", { class: first.length > 48 ? "long" : null }, unbroken(first)), rest && h("p", { class: "rest" }, rest));
}
