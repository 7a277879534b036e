// Words: numbers, times, names and states as people read them.

import { list, model, view } from "./model.js";
import { LONGEST, h } from "./document.js";

export const STATES = { __proto__: null, ok: "Calm", working: "At work", blocked: "Blocked", failed: "Failed", unready: "Not ready" };
export const PHASES = { __proto__: null, completing: "completing the hook", elsewhere: "another replica acts on it, or did", marked: "acted on earlier; its node stays cordoned" };
export const OWNED = ["blocked", "draining", "waiting", "completing", "received", "elsewhere", "marked"];

const { format } = new Intl.NumberFormat("en");
export const number = (value) => (Number.isFinite(value) ? format(value) : "?");
export const counted = (value, one, many = `${one}s`) => `${number(value)} ${value === 1 ? one : many}`;
export const now = () => Date.now() + model.ahead;
export const millis = (time) => (typeof time === "string" ? Date.parse(time) : NaN);
export const until = (time) => millis(time) - now();
export const joined = (...parts) => parts.flat().filter(Boolean).join(" · ");

export function lasting(duration) {
  const seconds = Math.max(0, Math.floor(duration / 1000));
  const pad = (value) => String(value).padStart(2, "0");
  if (seconds < 60) return `${seconds} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${pad(seconds % 60)} s`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${pad(minutes % 60)} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

// The time of day in UTC, as in the log; with its date unless that is today.
export function clock(time, end = 19) {
  const at = typeof time === "number" ? time : millis(time);
  if (Number.isNaN(at)) return "an unknown time";
  const iso = new Date(at).toISOString();
  const today = new Date(now()).toISOString().slice(0, 10);
  return `${iso.startsWith(today) ? "" : `${iso.slice(5, 10)} `}${iso.slice(11, end)}`;
}

// A Node's name: users call it by its first label.
export function named(name, otherwise) {
  if (!name) return h("bdi", { class: "name" }, otherwise);
  const dot = String(name).indexOf(".");
  return h("bdi", { class: "name" }, dot < 1 ? name : [name.slice(0, dot), h("span", {}, name.slice(dot))]);
}

// Text whose short words are not split at their hyphens: ip-10-0-0-7.
export const unbroken = (text) => text.slice(0, LONGEST).split(/(\S*-\S*)/).map((part, i) => (i % 2 && part.length < 22 ? h("span", {}, part) : part));

// Most budgets allow an eviction soon: a pod that has been held for less than 5 s is no news.
const isOld = (held) => !(now() - millis(held.since) < 5000);
export const stuck = (x) => (x.ended ? [] : list(x.drains).filter((drain) => !drain.outcome && list(drain.blocked).some(isOld)));
// Only the record on its Node is known: an earlier process, or another replica, acts on it or has done.
export const isRecorded = (x) => x.phase === "elsewhere" || x.phase === "marked";
export const isEnded = (x) => Boolean(x.ended) || x.phase === "ended";
export const stateOf = (x) => (isEnded(x) ? "ended" : stuck(x).length || (isRecorded(x) && x.problem) ? "blocked" : String(x.phase));

const haystacks = new WeakMap();
export function matches(x) {
  if (!view.terms.length) return true;
  if (!haystacks.has(x)) {
    const drains = list(x.drains).flatMap((drain) => [drain.node, ...list(drain.blocked).map((held) => held.pod)]);
    haystacks.set(x, [x.node, x.instance, x.kind, x.message, x.id, x.ended?.outcome, ...drains].join("\n").toLowerCase());
  }
  return view.terms.every((term) => haystacks.get(x).includes(term));
}
