// What the page knows of Ebbtide, and what the reader has chosen to see.

export const VERSION = 1; // of the report
export const TICK = 1000; // ms between two views of the countdowns
export const POLL = 5000; // ms between two requests while there is no stream

export const model = { report: null, interruptions: new Map(), storms: new Map(), ahead: 0, heard: 0, live: false, problem: null, program: null };
export const view = { terms: [], state: "all", page: { running: 0, ended: 0 }, allPools: false, slot: null };

export const list = (value) => (Array.isArray(value) ? value : []);
