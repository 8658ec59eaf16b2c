// Kite's JavaScript client: one ES module for browsers and Node, without dependencies and without DOM.
//
// A cut wire is a non-event here: calls in hand, subscriptions and stream cursors survive it. The decision when to come
// back is a pure function (decide) over one table that all of Kite's clients share; a page shows client.state, which
// tells `waiting` (with its due time and reason) from `connecting`. Types: kite-client.d.ts.
// Source: kernel/contract, the wire's page on close codes, strategies and resume.

// <contract> written by scripts/gen_contract.py
const CLOSE = {
  1000: {"name": "normal", "strategy": "never", "kind": "normal"},
  1001: {"name": "going_away", "strategy": "standard", "kind": "server"},
  1002: {"name": "protocol_error", "strategy": "never", "kind": "protocol"},
  1003: {"name": "unsupported_data", "strategy": "never", "kind": "protocol"},
  1006: {"name": "abnormal", "strategy": "standard", "kind": "transport"},
  1007: {"name": "invalid_payload", "strategy": "never", "kind": "protocol"},
  1008: {"name": "policy_violation", "strategy": "never", "kind": "policy"},
  1009: {"name": "message_too_big", "strategy": "never", "kind": "protocol"},
  1010: {"name": "mandatory_extension", "strategy": "never", "kind": "protocol"},
  1011: {"name": "internal_error", "strategy": "standard", "kind": "server"},
  1012: {"name": "service_restart", "strategy": "standard", "kind": "server"},
  1013: {"name": "try_again_later", "strategy": "standard", "kind": "server"},
  4001: {"name": "auth_failed", "strategy": "never", "kind": "auth"},
  4002: {"name": "auth_timeout", "strategy": "standard", "kind": "timeout"},
  4003: {"name": "auth_malformed", "strategy": "never", "kind": "protocol"},
  4004: {"name": "mfa_failed", "strategy": "never", "kind": "auth"},
  4010: {"name": "replaced", "strategy": "never", "kind": "replaced"},
  4011: {"name": "queue_pressure", "strategy": "standard", "kind": "pressure"},
  4012: {"name": "ping_timeout", "strategy": "standard", "kind": "timeout"},
  4020: {"name": "rate_limited", "strategy": "cooldown", "kind": "rate-limit"},
};
const LEGACY = {"4000": 4010, "4010": 4011, "4029": 4020};
const COOLDOWN = {"initialMs": 10000, "maxTries": 5};
const STANDARD = {"internal": {"initialMs": 500, "factor": 2.0, "maxMs": 10000, "jitterRatio": 0.2, "maxTries": null}, "remote": {"initialMs": 1000, "factor": 2.0, "maxMs": 15000, "jitterRatio": 0.2, "maxTries": null}};
const SHUTDOWN_FINAL = ["launcher_lost", "module_stop", "instance_stop"];
// </contract>

const policyOf = (row) => Object.freeze({ jitter: "ratio", ...row });

/** Modules on the kernel's own host. */
export const INTERNAL = policyOf(STANDARD.internal);
/** Browsers, through the relay. */
export const REMOTE = policyOf(STANDARD.remote);

const JITTER = ["ratio", "equal", "full", "none"];
const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

// errors that time may mend: away, wire lost, late, overloaded, store away
const LATER = [-32001, -32002, -32003, -32005, -32008, -32010];

/** The policy with what it leaves out taken from REMOTE. */
function checkPolicy(given) {
  if (typeof given !== "object" || given === null) throw new TypeError("policy must be an object");
  const policy = { ...REMOTE, ...given };
  const { jitter, initialMs, factor, maxMs, jitterRatio, maxTries } = policy;
  if (!JITTER.includes(jitter)) throw new RangeError(`jitter must be one of ${JITTER.join(", ")}, not ${jitter}`);
  if (!isNumber(initialMs) || initialMs <= 0) throw new RangeError(`initialMs must be a number > 0, not ${initialMs}`);
  if (!isNumber(factor) || factor < 1) throw new RangeError(`factor must be a number >= 1, not ${factor}`);
  if (!isNumber(maxMs) || maxMs < initialMs) throw new RangeError(`maxMs must be a number >= initialMs, not ${maxMs}`);
  if (!isNumber(jitterRatio) || jitterRatio < 0 || jitterRatio > 1) {
    throw new RangeError(`jitterRatio must be a number from 0 to 1, not ${jitterRatio}`);
  }
  if (maxTries != null && (!Number.isInteger(maxTries) || maxTries < 0)) {
    throw new RangeError(`maxTries must be an integer >= 0, or null for no limit, not ${maxTries}`);
  }
  return policy;
}

/** Read an old number as the one that means the same today; protocol null = not told yet. */
function modernCode(code, protocol, closeReason) {
  if (code == null || code === 1006 || protocol === 2) return code;
  if (protocol === 1 && code === 4003) return /timeout/i.test(closeReason) ? 4002 : 4003;
  const modern = LEGACY[code];
  // Before the auth answer only the numbers that exist in the old table alone say which table it is.
  return modern !== undefined && (protocol === 1 || !(code in CLOSE)) ? modern : code;
}

/** The wait before jitter; capped before it can overflow. */
function ceilingMs(attempt, { initialMs, factor, maxMs }) {
  const doublings = Math.log(maxMs / initialMs) / Math.log(factor); // NaN or Infinity where factor is 1: no growth
  return attempt - 1 >= doublings ? maxMs : Math.min(maxMs, initialMs * factor ** (attempt - 1));
}

function jittered(base, { jitter, jitterRatio, maxMs }, random) {
  if (jitter === "none") return base;
  const sample = random();
  if (jitter === "ratio") return Math.min(base + base * jitterRatio * sample, maxMs);
  return jitter === "equal" ? base / 2 + (base / 2) * sample : base * sample;
}

/**
 * Decide what to do about a failed or ended connection.
 *
 * code: a close code, or null for the network; attempt from 1; random: () => [0, 1), called at most once.
 * Wrong parameters throw with the field's name.
 */
export function decide(code, attempt, given = REMOTE, random = Math.random, options = {}) {
  const { protocol = null, closeReason = "", retryAfterMs = null } = options;
  if (code != null && !Number.isInteger(code)) throw new TypeError(`code must be an integer or null, not ${code}`);
  if (!Number.isInteger(attempt) || attempt < 1) throw new RangeError(`attempt must be an integer >= 1, not ${attempt}`);
  const policy = checkPolicy(given);
  if (typeof random !== "function") throw new TypeError("random must be a function");
  if (![null, undefined, 1, 2].includes(protocol)) throw new RangeError(`protocol must be 1, 2 or null, not ${protocol}`);
  if (retryAfterMs != null && (!isNumber(retryAfterMs) || retryAfterMs < 0)) {
    throw new RangeError(`retryAfterMs must be a number >= 0, not ${retryAfterMs}`);
  }
  const modern = modernCode(code, protocol, String(closeReason ?? ""));
  const row = CLOSE[modern == null || modern === 1005 ? 1006 : modern];
  const strategy = row ? row.strategy : "standard";
  const kind = row ? row.kind : "unknown";
  const name = modern == null ? "network" : `${modern}${row ? ` ${row.name}` : ""}`;
  const stop = (why) => ({ retry: false, delayMs: 0, strategy: "never", kind, reason: why });
  if (strategy === "never") return stop(`${name}: waiting changes nothing`);
  const cooldown = strategy === "cooldown";
  const limit = cooldown ? COOLDOWN.maxTries : policy.maxTries;
  if (limit != null && attempt > limit) return stop(`${name}: given up after ${limit} tries`);
  const own = cooldown ? COOLDOWN.initialMs : jittered(ceilingMs(attempt, policy), policy, random);
  const delayMs = Math.max(own, retryAfterMs ?? 0);
  return { retry: true, delayMs, strategy, kind, reason: `${name}: try ${attempt} in ${Math.round(delayMs)} ms` };
}

/** What a change of the network means; the same signal twice changes nothing. */
export function networkTransition(previous, next, { pathChanged = false } = {}) {
  for (const [field, value] of [["previous", previous], ["next", next]]) {
    if (value !== "online" && value !== "offline") throw new RangeError(`${field} must be "online" or "offline", not ${value}`);
  }
  if (previous === "offline" && next === "online") {
    return { reconnectNow: true, resetAttempt: true, reason: "the network is back" };
  }
  if (previous === "online" && next === "online" && pathChanged) {
    return { reconnectNow: true, resetAttempt: false, reason: "another path to the same network" };
  }
  return { reconnectNow: false, resetAttempt: false, reason: next === "offline" ? "offline: waiting for the network" : "no change" };
}

/** A refused call: code, message and data of the JSON-RPC error; outcome says whether a repeat is safe. */
export class CallError extends Error {
  constructor({ code, message, data }) {
    super(message);
    this.name = "CallError";
    this.code = code;
    this.data = data;
    this.reason = data?.reason;
    this.outcome = data?.outcome ?? "done";
  }
}

const lost = (outcome) =>
  new CallError({ code: -32002, message: "connection lost", data: { reason: "connection_lost", outcome } });

/**
 * May a failed call be repeated: "safe" (it had no effect), "with_key" (it may have had one), "no" (it ran);
 * later: waiting could help. code and data are those of the error.
 */
export function repeatAdvice(code, data) {
  const outcome = data?.reason === undefined ? "done" : (data.outcome ?? "done");
  const repeat = outcome === "not_sent" ? "safe" : outcome === "done" ? "no" : "with_key";
  return { repeat, later: repeat !== "no" && LATER.includes(code) };
}

const isId = (id) => id === null || typeof id === "string" || typeof id === "number";

/** What one text message of the kernel is: answer, request, event, notice, or bad (dropped and counted). */
export function classify(text) {
  return sort(parse(text));
}

function sort(message) {
  if (message === undefined || Array.isArray(message) || message.jsonrpc !== "2.0") return "bad";
  const { id, method, params, error } = message;
  if ("method" in message) {
    if (typeof method !== "string") return "bad";
    if ("id" in message) return isId(id) ? "request" : "bad";
    if (method !== "event") return "notice";
    return typeof params?.event === "string" ? "event" : "bad";
  }
  if (!("id" in message) || !isId(id) || "result" in message === "error" in message) return "bad";
  return "result" in message || Number.isInteger(error?.code) ? "answer" : "bad";
}

/** What one side of a session has sent and received since auth, and what the other has not acknowledged yet. */
export class ResumeBook {
  constructor({ framesMax, bytesMax }) {
    Object.assign(this, { framesMax, bytesMax });
    this.#fresh(null);
  }
  #fresh(session) {
    Object.assign(this, { session, count: 0, receivedCount: 0, kept: [], bytes: 0, broken: false });
  }
  /** A text message went out for the first time. */
  sent(frame) {
    this.count += 1;
    this.kept.push(frame);
    this.bytes += frame.length;
    while (this.kept.length > this.framesMax || this.bytes > this.bytesMax) this.#forget();
  }
  #forget() {
    this.bytes -= this.kept.shift().length;
  }
  received() {
    this.receivedCount += 1;
  }
  /** The other side has `received` of ours; more than was sent, or less than is known, changes nothing. */
  acknowledged(received) {
    if (!Number.isInteger(received) || received > this.count) return;
    while (this.kept.length > this.count - received) this.#forget();
    this.acked = Math.max(this.acked ?? 0, received);
  }
  /** What the auth request offers, or null: frames that were dropped unacknowledged can't be promised. */
  resume() {
    const whole = this.count - this.kept.length <= (this.acked ?? 0);
    return this.session === null || this.broken || !whole ? null : { session: this.session, received: this.receivedCount };
  }
  /** The auth result: the frames to send again before anything new, or null = start over. */
  resumed({ session = null, resumed, received }) {
    const again = this.count - received;
    if (resumed === true && session === this.session && Number.isInteger(received) && again >= 0 && again <= this.kept.length) {
      this.acknowledged(received);
      return [...this.kept];
    }
    this.#fresh(session);
    this.acked = 0;
    this.broken = resumed === true; // the kernel thinks this session goes on; it can't
    return null;
  }
}

const STATES = ["idle", "connecting", "authenticating", "syncing", "open", "waiting", "stopped"];
const DEFAULTS = {
  policy: REMOTE,
  random: Math.random,
  handshakeTimeoutMs: 5000,
  callTimeoutMs: 30000,
  maxQueued: 1000, // publishes and calls kept while away, and frames kept for a resume
  maxQueuedBytes: 8 << 20,
  maxPending: 10000,
  whileAway: "keep", // or "refuse"
  signals: true, // follow the browser's own online, offline and wake-up signals
};

const unref = (timer) => (timer?.unref?.(), timer);
const randomId = () => Array.from(crypto.getRandomValues(new Uint8Array(16)), (b) => b.toString(16).padStart(2, "0")).join("");

/** The handshake of the module plane: one auth request. A relay's login offers the same two functions. */
export function tokenHandshake({ token, moduleId, instance }) {
  return {
    start(send, resume) {
      const params = { token: typeof token === "function" ? token() : token, protocol: 2, instance };
      if (moduleId !== undefined) params.module_id = moduleId;
      if (resume) params.resume = resume;
      send({ jsonrpc: "2.0", id: "auth", method: "auth", params });
    },
    frame(message) {
      return message.id === "auth" && message.result ? { opened: message.result } : undefined;
    },
  };
}

/**
 * A connection that comes back by itself until it is closed or refused for good.
 * Use connect(); all callbacks run on the caller's own event loop.
 */
export class Client {
  #socket = null;
  #timer = null;
  #guard = null;
  #probing = false;
  #generation = 0;
  #nextId = 1;
  #pending = new Map(); // id -> call
  #queue = []; // texts that wait for an open session
  #handlers = new Map(); // pattern -> Set of {fn}
  #policies = new Map(); // pattern -> {policy, queue}
  #listeners = new Map();
  #retryAfterMs = null;
  #handshake;
  #streams = new Set();
  #detach = [];
  #lastHeardAt = 0;
  #online = true;
  #final = null; // told to end: the reason
  #serving = new Map();

  constructor(url, options = {}) {
    this.url = String(url);
    this.options = { ...DEFAULTS, ...options };
    checkPolicy(this.options.policy);
    this.instance = this.options.instance ?? randomId();
    this.book = new ResumeBook({ framesMax: this.options.maxQueued, bytesMax: this.options.maxQueuedBytes });
    this.methods = { ...this.options.methods };
    this.attempt = 0;
    this.cooldownAttempts = 0;
    this.lastCloseCode = null;
    this.fatalError = false;
    this.protocol = null;
    this.session = null;
    this.counts = { attempts: {}, droppedFrames: 0, dropped: 0, reconnects: 0 };
    this.state = { name: "idle", reason: "", dueAt: null, since: Date.now() };
    this.#handshake =
      this.options.handshake ??
      tokenHandshake({ token: this.options.token, moduleId: this.options.moduleId, instance: this.instance });
  }

  // ------------------------------------------------------------------ life

  start() {
    if (this.state.name !== "idle") return this;
    if (this.options.signals) this.#followSignals();
    this.#connect();
    return this;
  }

  /** Stop for good; open calls fail with outcome "unknown". */
  close(reason = "closed by the page") {
    if (this.#socket && this.state.name === "open" && this.options.methods) {
      this.#raw({ jsonrpc: "2.0", method: "event.publish", params: { event: "module.exiting", data: { reason } } });
    }
    this.#stop(reason, false);
  }

  /** Don't wait for the due time. */
  retryNow() {
    if (this.state.name !== "waiting") return false;
    this.#connect();
    return true;
  }

  /** Tell the client what the system says of the network: "online" or "offline". */
  network(next, { pathChanged = false } = {}) {
    const signal = networkTransition(this.#online ? "online" : "offline", next, { pathChanged });
    this.#online = next === "online";
    if (this.state.name === "stopped" || this.state.name === "idle") return signal;
    if (signal.resetAttempt) this.attempt = 0;
    // Offline: a wire that still stands may go on standing; only the waiting has no due time any more.
    if (next === "offline" && this.state.name === "waiting") this.#wait(null, signal.reason, this.state.kind);
    if (signal.reconnectNow) this.reconnect();
    return signal;
  }

  /** The server asked for a wait before the next try (a 503's Retry-After, which a browser's WebSocket hides). */
  hintRetryAfter(ms) {
    if (isNumber(ms) && ms >= 0) this.#retryAfterMs = ms;
  }

  /** Replace the wire by a new one, whatever state it is in. */
  reconnect() {
    if (this.state.name !== "stopped" && this.state.name !== "idle") this.#connect();
  }

  on(event, fn) {
    if (!this.#listeners.has(event)) this.#listeners.set(event, new Set());
    this.#listeners.get(event).add(fn);
    return () => this.#listeners.get(event)?.delete(fn);
  }

  /** Resolves once the state is `open`; rejects when the client stopped. */
  opened() {
    return new Promise((resolve, reject) => {
      const look = () => {
        if (this.state.name === "open") return off(), resolve(this);
        if (this.state.name === "stopped") return off(), reject(new Error(this.state.reason));
      };
      const off = this.on("state", look);
      look();
    });
  }

  #emit(event, value) {
    for (const fn of [...(this.#listeners.get(event) ?? [])]) {
      try {
        fn(value);
      } catch (error) {
        queueMicrotask(() => { throw error; }); // a page's fault is the page's to see, and never ours to die of
      }
    }
  }

  #become(name, reason = "", dueAt = null) {
    if (!STATES.includes(name)) throw new RangeError(`state ${name}`);
    this.state = { name, reason, dueAt, since: Date.now() };
    this.#emit("state", this.state);
  }

  #stop(reason, fatal) {
    if (this.state.name === "stopped") return;
    this.fatalError = fatal;
    const socket = this.#forget();
    socket?.close(1000);
    for (const detach of this.#detach.splice(0)) detach();
    this.#become("stopped", reason);
    this.#failPending(lost("unknown"));
    for (const item of this.#queue.splice(0)) item.refuse?.(lost("not_sent"));
    for (const stream of [...this.#streams]) stream.close();
  }

  /** Take the hands off the present socket; its late events no longer reach us. */
  #forget() {
    const socket = this.#socket;
    this.#socket = null;
    this.#generation += 1;
    clearTimeout(this.#timer);
    clearTimeout(this.#guard);
    this.#probing = false;
    return socket;
  }

  #drop(code, why) {
    const socket = this.#forget();
    try {
      socket?.close(); // never awaited: a dead wire doesn't answer
    } catch {} // closing a socket that is still connecting may throw in old engines
    this.#ended(code, why);
  }

  #connect() {
    this.#forget()?.close();
    const mine = this.#generation;
    this.protocol = null; // the next wire may lead to another kernel
    const current = (fn) => (event) => mine === this.#generation && fn(event);
    if (this.state.name !== "idle") {
      const reason = this.state.kind ?? "transport";
      this.counts.attempts[reason] = (this.counts.attempts[reason] ?? 0) + 1;
      this.#emit("attempt", { reason, attempt: this.attempt });
    }
    this.#become("connecting", this.state.reason);
    const Socket = this.options.WebSocket ?? globalThis.WebSocket;
    if (!Socket) return this.#stop("no WebSocket here: pass one as options.WebSocket", true);
    let socket;
    try {
      socket = new Socket(this.url, this.options.protocols ?? []);
    } catch (error) {
      return this.#stop(`${error.message}`, true); // a wrong URL stays wrong
    }
    this.#socket = socket;
    let authenticated = false;
    this.#guard = setTimeout(current(() => this.#drop(4002, "no answer in time")), this.options.handshakeTimeoutMs);
    socket.onopen = current(() => {
      this.#become("authenticating");
      this.#handshake.start((message) => socket.send(JSON.stringify(message)), this.book.resume());
    });
    socket.onmessage = current((event) => {
      this.#lastHeardAt = Date.now();
      if (authenticated) return this.#frame(event.data);
      const message = parse(event.data);
      if (message === undefined) return this.#drop(1011, "an answer that is no JSON"); // garbage: the server's fault
      if (message.error && message.error.data?.close) return; // the close that follows says it all
      const answer = this.#handshake.frame(message, (m) => socket.send(JSON.stringify(m)));
      if (answer?.fatal) return this.#stop(answer.fatal, true);
      if (!answer?.opened) return;
      clearTimeout(this.#guard);
      authenticated = true;
      this.#enter(answer.opened);
    });
    socket.onclose = current((event) => {
      this.#forget();
      this.#ended(event.code === 1005 ? null : event.code, event.reason || "");
    });
    socket.onerror = () => {}; // the close that follows is the one that counts
  }

  #ended(code, reason) {
    if (this.state.name === "stopped") return;
    const before = this.state.name;
    this.lastCloseCode = code;
    if (this.#final !== null) return this.#stop(`told to end: ${this.#final}`, false);
    this.#emit("close", { code, reason });
    const { policy, random } = this.options;
    const cooldown = code === 4020 || (code === 4029 && this.protocol !== 2);
    this.cooldownAttempts = cooldown ? this.cooldownAttempts + 1 : this.cooldownAttempts;
    if (!cooldown) this.attempt += 1;
    const tries = cooldown ? this.cooldownAttempts : Math.max(1, this.attempt);
    const verdict = decide(code, tries, policy, random, {
      protocol: this.protocol, closeReason: reason, retryAfterMs: this.#retryAfterMs,
    });
    this.#retryAfterMs = null;
    if (!verdict.retry) return this.#stop(reason ? `${verdict.reason} (${reason})` : verdict.reason, true);
    if (before === "open" || before === "syncing") this.#emit("cut", { code, reason });
    this.#wait(this.#online ? verdict.delayMs : null, verdict.reason, verdict.kind);
  }

  #wait(delayMs, reason, kind = "transport") {
    clearTimeout(this.#timer);
    this.#become("waiting", reason, delayMs === null ? null : Date.now() + delayMs);
    this.state.kind = kind;
    if (delayMs !== null) this.#timer = unref(setTimeout(() => this.#connect(), delayMs));
  }

  // --------------------------------------------------------------- session

  #enter(result) {
    const first = this.book.session === null;
    const again = this.book.resumed(result);
    this.session = result;
    this.protocol = result.protocol ?? 2;
    this.attempt = 0;
    this.cooldownAttempts = 0;
    if (!first) this.counts.reconnects += 1;
    this.#become("syncing", again ? "resumed" : "starting over");
    if (again) {
      for (const text of again) this.#socket.send(text);
      return this.#opened();
    }
    this.#failPending(lost("unknown"), (call) => call.onWire !== false);
    this.#sync().catch((error) => (error instanceof CallError && error.code === -32002) || this.#emit("error", error));
  }

  /** subscribe → register → ready: the session is in step before anybody is told that it is open. */
  async #sync() {
    const generation = this.#generation;
    const patterns = [...this.#handlers.keys()];
    const groups = new Map();
    for (const pattern of patterns) {
      const key = JSON.stringify(this.#policies.get(pattern) ?? {});
      groups.set(key, [...(groups.get(key) ?? []), pattern]);
    }
    for (const [key, events] of groups) await this.#request("event.subscribe", { events, ...JSON.parse(key) });
    if (this.options.methods) {
      if (!patterns.length) await this.#request("event.subscribe", { events: [] });
      await this.#request("registry.register", { methods: Object.keys(this.methods) });
      this.#raw({ jsonrpc: "2.0", method: "event.publish", params: { event: "module.ready", data: {} } });
    }
    if (generation === this.#generation) this.#opened();
  }

  #opened() {
    this.#become("open");
    for (const { text, sent } of this.#queue.splice(0)) {
      sent?.();
      this.#send(text);
    }
  }

  #send(text) {
    this.book.sent(text);
    this.#socket.send(text);
  }

  #raw(message) {
    this.#send(JSON.stringify(message));
  }

  #request(method, params, extra = {}) {
    return new Promise((resolve, reject) => {
      const id = this.#nextId++;
      this.#pending.set(id, { resolve, reject, ...extra });
      this.#raw({ jsonrpc: "2.0", id, method, params });
    });
  }

  #failPending(error, which = () => true) {
    for (const [id, call] of [...this.#pending].filter(([, call]) => which(call))) {
      this.#pending.delete(id);
      clearTimeout(call.timer);
      call.off?.();
      call.reject(error);
    }
  }

  #frame(data) {
    this.book.received();
    const message = parse(data);
    const kind = sort(message);
    if (kind === "bad") return void (this.counts.droppedFrames += 1);
    const { id, method, params, result, error } = message;
    if (kind === "answer") return this.#answer(id, result, error);
    if (kind === "request") return void this.#serve(id, method, params, message.meta);
    if (kind === "event") return this.#event(params);
    if (method === "$/progress") return void this.#pending.get(params?.id)?.onProgress?.(params.value);
    if (method === "$/cancelRequest") return void this.#serving.get(params?.id)?.abort();
    if (method === "bye") {
      this.hintRetryAfter(params?.retry_after_s * 1000);
      return this.#emit("bye", params);
    }
    this.#emit(method, params); // pressure, event.gap and whatever a later kernel says
  }

  #answer(id, result, error) {
    const call = this.#pending.get(id);
    if (!call) return void (this.counts.dropped += 1);
    this.#pending.delete(id);
    clearTimeout(call.timer);
    call.off?.();
    if (error) call.reject(new CallError(error));
    else call.resolve(result);
  }

  #event(params) {
    const { event, data } = params;
    if (event === "system.ping") {
      this.book.acknowledged(data?.received);
      const pong = { ping_time: data?.ping_time, pong_time: Date.now() / 1000, received: this.book.receivedCount };
      return this.#raw({ jsonrpc: "2.0", method: "event.publish", params: { event: "system.pong", data: pong } });
    }
    if (event === "module.shutdown") return this.#shutdown(data ?? {}, params);
    this.#emit("event", params);
    for (const [pattern, fns] of this.#handlers) {
      if (matches(pattern, event)) for (const fn of [...fns]) fn(params);
    }
  }

  /** Acknowledge; after a final reason finish what is being served, close 1000 and never come back. */
  #shutdown(data, params) {
    const ack = { event: "module.shutdown_ack", data: { module_id: this.session?.module_id } };
    this.#raw({ jsonrpc: "2.0", method: "event.publish", params: ack });
    if (SHUTDOWN_FINAL.includes(data.reason)) {
      this.#final = data.reason;
      const deadlineMs = isNumber(data.deadline_s) ? data.deadline_s * 1000 : 10000;
      this.#guard = unref(setTimeout(() => this.#stop(`told to end: ${this.#final}`, false), deadlineMs));
      this.#finish();
    }
    this.#emit("event", params);
    this.#emit("shutdown", data);
  }

  #finish() {
    if (this.#final !== null && this.#serving.size === 0) this.#socket?.close(1000);
  }

  // ------------------------------------------------------------- the face

  async #serve(id, method, params, meta) {
    const fn = this.methods[method] ?? this.methods[method.slice(method.indexOf(".") + 1)];
    const reply = (body) => this.#socket && this.state.name !== "stopped" && this.#raw({ jsonrpc: "2.0", id, ...body });
    if (!fn) return reply({ error: { code: -32601, message: `no method ${method}` } });
    const abort = new AbortController();
    this.#serving.set(id, abort);
    const session = this.book.session;
    try {
      const progress = (value) => this.#raw({ jsonrpc: "2.0", method: "$/progress", params: { id, value } });
      const result = await fn(params, { meta, progress, signal: abort.signal });
      if (session === this.book.session) reply({ result: result ?? null });
    } catch (error) {
      const { code = -32603, message = "failed", data } = error ?? {};
      if (session === this.book.session) reply({ error: { code: Number.isInteger(code) ? code : -32603, message, data } });
    } finally {
      this.#serving.delete(id);
      this.#finish();
    }
  }

  /** Queue or send a frame; refused when away and the caller wants no waiting, or the queue is full. */
  #submit(message, { refuse, sent, whileAway = this.options.whileAway }) {
    const text = JSON.stringify(message);
    if (this.state.name === "stopped") return refuse(lost("not_sent"));
    if (this.state.name === "open") return sent?.(), this.#send(text);
    if (whileAway === "refuse" || this.#queue.length >= this.options.maxQueued) return refuse(lost("not_sent"));
    this.#queue.push({ text, sent, refuse });
  }

  /** Call MODULE.METHOD. Options: timeoutMs, key (idempotency), wait, onProgress, signal, whileAway. */
  call(method, params = {}, options = {}) {
    const { timeoutMs = this.options.callTimeoutMs, key, wait, onProgress, signal, whileAway } = options;
    const id = this.#nextId++;
    const meta = { timeout: timeoutMs / 1000 };
    if (key !== undefined) meta.key = key;
    if (wait !== undefined) meta.wait = wait;
    return new Promise((resolve, reject) => {
      if (this.#pending.size >= this.options.maxPending) {
        return reject(new CallError({ code: -32005, message: "too many calls", data: { reason: "too_many_in_flight", outcome: "not_sent" } }));
      }
      const refuse = (error) => (this.#pending.delete(id), clearTimeout(entry.timer), reject(error));
      const entry = { resolve, reject, onProgress, onWire: false };
      const give = (code, message, reason) => () => {
        if (!this.#pending.has(id)) return;
        this.#queue = this.#queue.filter((item) => item.id !== id);
        if (entry.onWire && this.#socket && this.state.name === "open") {
          this.#raw({ jsonrpc: "2.0", method: "$/cancelRequest", params: { id } });
        }
        refuse(new CallError({ code, message, data: { reason, outcome: entry.onWire ? "unknown" : "not_sent" } }));
      };
      // One second more than the kernel's own deadline: where the wire works the kernel's answer is the better one.
      entry.timer = unref(setTimeout(give(-32003, "deadline exceeded", "deadline"), timeoutMs + 1000));
      if (signal) {
        const abort = give(-32800, "cancelled", "cancelled");
        if (signal.aborted) return abort();
        signal.addEventListener("abort", abort, { once: true });
        entry.off = () => signal.removeEventListener("abort", abort);
      }
      this.#pending.set(id, entry);
      this.#submit({ jsonrpc: "2.0", id, method, params, meta }, { refuse, sent: () => (entry.onWire = true), whileAway });
      const queued = this.#queue.at(-1);
      if (queued && !entry.onWire) queued.id = id;
    });
  }

  /** Publish an event; resolves with the number of subscribers that it reached. */
  publish(event, data = null, options = {}) {
    const { excludeSelf, retain, key, ...rest } = options;
    const params = { event, data };
    if (excludeSelf) params.exclude_self = true;
    if (retain) params.retain = true;
    if (key !== undefined) params.key = key;
    return this.call("event.publish", params, rest).then((answer) => answer.delivered);
  }

  /** Hear events of a pattern; returns a function that stops it. Options: policy, queue. */
  async subscribe(pattern, fn, options = {}) {
    const fns = this.#handlers.get(pattern) ?? new Set();
    this.#handlers.set(pattern, fns.add(fn));
    if (fns.size === 1) {
      this.#policies.set(pattern, options);
      if (this.state.name === "open") await this.#request("event.subscribe", { events: [pattern], ...options });
    }
    return async () => {
      fns.delete(fn);
      if (fns.size || this.#handlers.get(pattern) !== fns) return;
      this.#handlers.delete(pattern);
      if (this.state.name === "open") await this.#request("event.unsubscribe", { events: [pattern] });
    };
  }

  /** A stream of the kernel, read on a wire of its own. See Subscription. */
  stream(name = "default") {
    const base = new URL(this.url);
    base.pathname = `/sub/${encodeURIComponent(name)}`;
    return {
      subscribe: (options = {}) => {
        const subscription = new Subscription(base, { ...this.options, ...options });
        this.#streams.add(subscription);
        subscription.done.finally(() => this.#streams.delete(subscription));
        return subscription;
      },
      publish: (data, options = {}) =>
        this.call("stream.publish", { stream: name, data: String(data), ...(options.id && { id: options.id }) }, options),
    };
  }

  // --------------------------------------------------------------- signals

  #followSignals() {
    const listen = (target, event, fn) => {
      if (!target?.addEventListener) return;
      target.addEventListener(event, fn);
      this.#detach.push(() => target.removeEventListener(event, fn));
    };
    listen(globalThis.window, "online", () => this.network("online"));
    listen(globalThis.window, "offline", () => this.network("offline"));
    listen(globalThis.navigator?.connection, "change", () => this.network(this.#online ? "online" : "offline", { pathChanged: true }));
    listen(globalThis.document, "resume", () => this.#probe("the page woke up"));
    listen(globalThis.document, "visibilitychange", () => document.visibilityState === "visible" && this.#probe("the page is seen again"));
    // A machine that slept fires its timers late: the gap itself is the signal.
    let last = Date.now();
    const clock = unref(setInterval(() => {
      const gap = Date.now() - last;
      last = Date.now();
      if (gap > 15000) this.#probe("the machine slept");
    }, 5000));
    this.#detach.push(() => clearInterval(clock));
  }

  /** Is the wire still alive? Any frame within the deadline says yes, else it is dropped and made anew. */
  #probe(why) {
    if (this.state.name === "waiting") return void this.retryNow();
    if (this.state.name !== "open" || this.#probing) return;
    this.#probing = true;
    const heard = this.#lastHeardAt;
    this.#request("kernel.info", {}).catch(() => {});
    this.#guard = unref(setTimeout(() => {
      this.#probing = false;
      if (this.#lastHeardAt === heard) this.#drop(null, `${why}; the wire is dead`);
    }, this.options.handshakeTimeoutMs));
  }
}

function parse(data) {
  if (typeof data !== "string") return undefined;
  try {
    const value = JSON.parse(data);
    return value !== null && typeof value === "object" ? value : undefined;
  } catch {
    return undefined;
  }
}

/** `*` stands for one segment, `>` for the rest. */
export function matches(pattern, event) {
  const wanted = pattern.split(".");
  const parts = String(event).split(".");
  for (let i = 0; i < wanted.length; i += 1) {
    if (wanted[i] === ">") return parts.length > i;
    if (i >= parts.length || (wanted[i] !== "*" && wanted[i] !== parts[i])) return false;
  }
  return wanted.length === parts.length;
}

/**
 * A reader of one stream: resumes after every cut where it stood, hands over each record once and in order.
 * onRecord({seq, data}) may return a promise: the cursor moves on only when it has settled.
 * onReset({seq, epoch, why, first}): the range after the cursor is lost; without a handler the reader stops and says so.
 */
export class Subscription {
  #socket = null;
  #timer = null;
  #attempt = 0;
  #chain = Promise.resolve();
  #waiting = 0;
  #finish;

  constructor(url, options) {
    this.url = new URL(url);
    this.options = { policy: REMOTE, random: Math.random, handshakeTimeoutMs: 5000, maxBuffered: 1000, ...options };
    this.last = options.last ?? null;
    this.epoch = options.epoch ?? null;
    this.state = "connecting";
    this.lastCloseCode = null;
    this.done = new Promise((resolve) => (this.#finish = resolve));
    this.#connect();
  }

  close() {
    this.#end({ reason: "closed" });
  }

  #end(result) {
    if (this.state === "stopped") return;
    this.state = "stopped";
    clearTimeout(this.#timer);
    const socket = this.#socket;
    this.#socket = null;
    socket?.close(1000);
    this.#finish({ last: this.last, epoch: this.epoch, ...result });
  }

  #connect() {
    if (this.last !== null) this.url.searchParams.set("last", String(this.last));
    if (this.epoch !== null) this.url.searchParams.set("epoch", this.epoch);
    const token = typeof this.options.token === "function" ? this.options.token() : this.options.token;
    const Socket = this.options.WebSocket ?? globalThis.WebSocket;
    const socket = new Socket(this.url.href, token ? ["kite.stream", `kite.bearer.${token}`] : []);
    this.#socket = socket;
    this.state = "connecting";
    clearTimeout(this.#timer);
    this.#timer = unref(setTimeout(() => socket === this.#socket && this.#ended(null, "no answer in time"), this.options.handshakeTimeoutMs));
    const current = (fn) => (event) => socket === this.#socket && fn(event);
    socket.onopen = current(() => (clearTimeout(this.#timer), (this.state = "open")));
    socket.onmessage = current((event) => this.#message(socket, event.data));
    socket.onerror = () => {};
    socket.onclose = current((event) => this.#ended(event.code === 1005 ? null : event.code, event.reason));
  }

  #message(socket, text) {
    this.#waiting += 1;
    if (this.#waiting > this.options.maxBuffered) {
      // The handler is slower than the stream: take the wire down, keep the cursor, come back when it has caught up.
      this.#socket = null;
      socket.close(1000);
      const again = () => this.state !== "stopped" && this.#connect();
      this.#chain = this.#chain.then(again, again);
      return;
    }
    this.#chain = this.#chain.then(() => this.#take(text)).catch((error) => this.#end({ error })).finally(() => (this.#waiting -= 1));
  }

  async #take(text) {
    if (this.state === "stopped") return;
    const record = parse(text);
    if (!record) return;
    this.#attempt = 0;
    if (record.reset) {
      if (!this.options.onReset) return this.#end({ reset: record, reason: `reset: asked after ${this.last}, the stream is at ${record.seq}` });
      await this.options.onReset({ ...record, last: this.last });
      this.last = record.seq;
      if (record.epoch !== undefined) this.epoch = record.epoch;
    } else if (Number.isInteger(record.seq) && (this.last === null || record.seq > this.last)) {
      await this.options.onRecord?.(record);
      this.last = record.seq;
    }
  }

  #ended(code, reason) {
    const socket = this.#socket;
    this.#socket = null;
    socket?.close();
    this.lastCloseCode = code;
    this.#attempt += 1;
    const verdict = decide(code, this.#attempt, this.options.policy, this.options.random, { closeReason: reason });
    if (!verdict.retry) return void this.#chain.then(() => this.#end({ code, reason: reason || verdict.reason }));
    this.state = "waiting";
    clearTimeout(this.#timer);
    // What was received is handed over first: the next `last` must stand for what the handler really has.
    this.#timer = unref(setTimeout(() => this.#chain.then(() => this.state === "waiting" && this.#connect()), verdict.delayMs));
  }
}

/** Connect and keep connected. See kite-client.d.ts for the options. */
export function connect(url, options = {}) {
  return new Client(url, options).start();
}
