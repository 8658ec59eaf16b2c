// What the page knows, and the one connection that tells it. Views read `store`, and are drawn at most once a frame.

import { connect, REMOTE } from "../kite-client.js";

const HISTORY = 60; // points of a sparkline
const EVENTS = 500;
const LOGIN_MS = 200000; // a person looks for the phone
const RETURN_MS = 10000;

export const store = {
  phase: "starting", // starting | login | code | busy | inside
  error: null, // a name in words.js
  user: null, role: null,
  connection: { name: "idle", reason: "", dueAt: null },
  synced: false,
  head: { state: "unknown", own: {}, instance: null },
  rows: new Map(), // name -> row, in the launcher's order
  rtt: new Map(), // name -> [milliseconds]
  latency: new Map(), // name -> [[seconds since 1970, rtt, p95]]
  events: [], // newest last
  skipped: 0, after: null, boot: null,
  traffic: [], flows: [],
  toasts: [],
};

let client = null;
let attempt = null; // what the person typed, while a login is under way
// Two topics: a flood of events draws its own list a few times a second, and nothing else.
const topics = { page: { watchers: new Set(), asked: false }, events: { watchers: new Set(), asked: false } };
const EVENTS_MS = 200;

export function onChange(fn, topic = "page") {
  topics[topic].watchers.add(fn);
  return () => topics[topic].watchers.delete(fn);
}
/** Draw soon; a hidden page is drawn when it is seen again. */
export function changed(topic = "page") {
  const it = topics[topic];
  if (it.asked) return;
  it.asked = true;
  const draw = () => { it.asked = false; for (const fn of [...it.watchers]) fn(); };
  if (topic === "events" || document.visibilityState === "hidden") setTimeout(draw, EVENTS_MS);
  else requestAnimationFrame(draw);
}
function set(values) { Object.assign(store, values); changed(); }

export const wire = () => client;
export const may = (role) => ["viewer", "operator", "admin"].indexOf(store.role) >= ["viewer", "operator", "admin"].indexOf(role);
/** The state that is shown: open only once the page is in step. */
export const shownState = () => (store.connection.name === "open" && !store.synced ? "syncing" : store.connection.name);

// ---------------------------------------------------------------- the way in

/** The relay's login as a handshake of the client: challenge → session, or password → code. */
function handshake(typed) {
  let number = 0;
  const ask = (send, method, params) => send({ jsonrpc: "2.0", id: `in-${(number += 1)}`, method, params });
  return {
    start() {},
    frame(message, send) {
      if (message.method === "challenge") {
        const { nonce, resumable } = message.params;
        if (store.user !== null || (!typed && resumable)) {
          ask(send, "login.resume", memory === null ? { nonce } : { nonce, session: memory });
        } else if (typed) ask(send, "login", { nonce, user: typed.user, password: typed.password });
        else return void queueMicrotask(() => client?.close("nobody is signed in"));
      } else if (message.result?.stage === "totp") {
        typed.giveCode = (code) => {
          const digits = code.replace(/\s/g, "");
          ask(send, "login.totp", /^[0-9]{6}$/.test(digits) ? { code: digits } : { recovery_code: code.trim() });
        };
        set({ phase: "code", error: null });
      } else if (message.result?.stage === "open") {
        const { user, role, session } = message.result;
        if (session) memory = session;
        return { opened: { user, role } };
      }
    },
  };
}

let memory = null; // the session, until it is traded for a cookie that no script can read

async function trade() {
  if (memory === null) return;
  const body = JSON.stringify({ session: memory });
  const answer = await fetch("/session", { method: "POST", headers: { "content-type": "application/json" }, body }).catch(() => null);
  if (answer?.status === 204) memory = null;
}

function open(typed) {
  client?.close();
  const url = `${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/ws`;
  const mine = connect(url, { handshake: handshake(typed), policy: REMOTE, handshakeTimeoutMs: typed ? LOGIN_MS : RETURN_MS, whileAway: "refuse" });
  client = mine;
  const current = (fn) => (value) => mine === client && fn(value);
  mine.on("state", current((state) => follow(mine, state)));
  mine.on("close", current(({ code }) => { if (store.phase !== "inside" && typed) ended(code); }));
  mine.on("relay.overview", current(takeOverview));
  mine.on("relay.events", current(takeEvents));
  follow(mine, mine.state);
}

function follow(mine, state) {
  set({ connection: state });
  if (state.name === "open") return void enter(mine);
  store.synced = false;
  if (state.name !== "stopped") return;
  if (store.phase === "starting") set({ phase: "login" });
  else if (store.phase === "inside" || store.phase === "busy" || store.phase === "code") ended(mine.lastCloseCode, state.reason);
}

/** A login that failed, or a session that was ended: say why, and show the form again. */
function ended(code, reason = "") {
  const inside = store.phase === "inside";
  const why = { 4001: inside ? "err_ended" : "err_password", 4002: "err_late", 4004: "err_code", 4020: "err_rate", 1008: "err_1008" };
  if (inside && code !== 4001) return void set({ error: reason }); // stopped for good for another reason: the bar says it
  const old = client;
  client = null;
  old?.close();
  attempt = null;
  memory = null;
  set({ phase: "login", error: why[code] ?? "err_wire", user: null, role: null, synced: false, rows: new Map(), events: [], after: null, boot: null });
}

async function enter(mine) {
  const { user, role } = mine.session;
  mine.options.handshakeTimeoutMs = RETURN_MS;
  attempt = null;
  set({ phase: "inside", error: null, user, role });
  trade();
  try {
    const known = store.after === null ? {} : { boot: store.boot, after: store.after };
    const all = await mine.call("relay.watch", known, { timeoutMs: 15000 });
    if (mine !== client) return;
    store.rows = new Map(all.rows.map((row) => [row.name, row]));
    for (const row of all.rows) measure(row);
    if (all.boot !== store.boot) store.events = [];
    Object.assign(store, { head: all.head, traffic: all.traffic, flows: all.flows, boot: all.boot });
    takeEvents({ events: all.events, n: all.n, skipped: 0 });
    set({ synced: true });
  } catch {
    if (mine === client && mine.state.name === "open") setTimeout(() => mine === client && mine.state.name === "open" && enter(mine), 1000);
  }
}

export function begin() { open(null); }
export function signIn(user, password) {
  if (store.phase === "busy") return;
  attempt = { user, password };
  set({ phase: "busy", error: null });
  open(attempt);
}
export function giveCode(code) {
  if (!attempt?.giveCode || store.phase === "busy") return; // by the sixth digit and by the button: once
  set({ phase: "busy" });
  attempt.giveCode(code);
}
export function backToPassword() {
  const old = client;
  client = null;
  old?.close();
  attempt = null;
  set({ phase: "login", error: null });
}
export async function signOut() {
  await fetch("/session", { method: "DELETE" }).catch(() => null);
  const old = client;
  client = null;
  await old?.call("relay.logout", {}, { timeoutMs: 2000 }).catch(() => null);
  old?.close();
  memory = null;
  set({ phase: "login", error: null, user: null, role: null, synced: false, rows: new Map(), events: [], after: null, boot: null });
}

// ---------------------------------------------------------------- what is told

function measure(row) {
  if (!Number.isFinite(row.rtt)) return;
  const line = store.rtt.get(row.name) ?? [];
  store.rtt.set(row.name, [...line.slice(-HISTORY + 1), row.rtt]);
  const points = store.latency.get(row.name) ?? [];
  points.push([Date.now() / 1000, row.rtt, row.p95]);
  if (points.length > 1800) points.splice(0, points.length - 1800);
  store.latency.set(row.name, points);
}

function takeOverview({ head, rows, gone, traffic, flows }) {
  for (const row of rows) {
    store.rows.set(row.name, row);
    measure(row);
  }
  for (const name of gone) store.rows.delete(name);
  set({ head, traffic, flows });
}

function takeEvents({ events, n, skipped }) {
  const known = store.after ?? -1;
  const fresh = events.filter((row) => row.n > known);
  if (fresh.length) store.events = store.events.concat(fresh).slice(-EVENTS);
  store.skipped += skipped;
  store.after = n;
  changed("events");
}

/** Call; the error's text is made for a person. */
export async function call(method, params = {}, options = {}) {
  if (client === null) throw new Error("not connected");
  return client.call(method, params, { timeoutMs: 30000, ...options });
}

let toasts = 0;
export function toast(text, kind = "ok") {
  const id = (toasts += 1);
  set({ toasts: [...store.toasts.slice(-3), { id, text, kind }] });
  setTimeout(() => set({ toasts: store.toasts.filter((one) => one.id !== id) }), 6000);
}

// a page of a phone that slept draws what it missed
document.addEventListener("visibilitychange", () => document.visibilityState === "visible" && changed());
