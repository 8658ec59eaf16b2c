// The JavaScript client obeys the vectors that hold every client of Kite. No skips.
import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import { mock, test } from "node:test";

import {
  INTERNAL, REMOTE, Client, ResumeBook, classify, decide, networkTransition, repeatAdvice,
} from "../../../modules/kite_modules/relay/static/kite-client.js";
import { FakeSocket, tick } from "./fakes.mjs";

const FOLDER = new URL("../../../kernel/contract/vectors/", import.meta.url);

const VERDICT = { never: "never", standard: "retry", cooldown: "back_off" };
const FIELD = {
  attempt: "attempt", factor: "factor", initial_s: "initialMs", jitter: "jitter", jitter_ratio: "jitterRatio",
  max_s: "maxMs", max_tries: "maxTries",
};

const policyOf = (row) => ({
  jitter: row.jitter, initialMs: row.initial_s * 1000, factor: row.factor, maxMs: row.max_s * 1000,
  jitterRatio: row.jitter_ratio, maxTries: row.max_tries,
});

const seconds = (decision) => ({ ...decision, delay_s: decision.delayMs / 1000 });

function holds(decision, then) {
  for (const [field, wanted] of Object.entries(then)) {
    if (field === "delay_s") assert.ok(Math.abs(decision.delay_s - wanted) <= 0.001, `delay ${decision.delay_s} is not ${wanted}`);
    else assert.equal(field === "verdict" ? VERDICT[decision.strategy] : decision[field], wanted, field);
  }
  assert.ok(decision.reason.length > 0 && decision.kind.length > 0);
}

function eachTry({ code, tries, policy = null, retry_after_s: hint = null, ...rest }, then) {
  const extra = { protocol: rest.protocol ?? null, closeReason: rest.close_reason ?? "" };
  const run = ({ attempt, random }) => {
    let calls = 0;
    const decision = decide(code, attempt, policy ? policyOf(policy) : INTERNAL, () => ((calls += 1), random), {
      ...extra, retryAfterMs: hint === null ? null : hint * 1000,
    });
    assert.ok(calls <= 1, "random is called at most once");
    return seconds(decision);
  };
  if (!Array.isArray(then)) {
    return assert.throws(() => tries.map(run), (error) => error.message.includes(FIELD[then.refused]));
  }
  assert.equal(tries.length, then.length);
  tries.forEach((one, index) => holds(run(one), then[index]));
}

const one = (given, then) => eachTry({ ...given, tries: [{ attempt: 1, random: 0 }] }, [then]);

const LAWS = {
  close: one,
  legacy: one,
  backoff: eachTry,
  policy: eachTry,
  network({ previous, next, path_changed: pathChanged }, then) {
    if (then.refused) {
      return assert.throws(() => networkTransition(previous, next, { pathChanged }), (error) => error.message.includes(then.refused));
    }
    const signal = networkTransition(previous, next, { pathChanged });
    assert.deepEqual({ reconnect_now: signal.reconnectNow, reset_attempt: signal.resetAttempt }, then);
    assert.ok(signal.reason.length > 0);
  },
};

LAWS.errors = ({ code, data }, then) => assert.deepEqual(repeatAdvice(code, data), then);
LAWS.framing = ({ text, times }, then) => assert.equal(classify(text.repeat(times)), then.kind);
LAWS.resume = ({ frames_max: framesMax, bytes_max: bytesMax }, _, steps) => {
  const book = new ResumeBook({ framesMax, bytesMax });
  for (const { event, then = {} } of steps) {
    const did = { sent: () => book.sent(event.frame), received: () => book.received(),
      acknowledged: () => book.acknowledged(event.received), resume: () => book.resume(),
      resumed: () => book.resumed(event.answer) }[event.do]();
    if ("offer" in then) assert.deepEqual(did, then.offer);
    if ("again" in then) assert.deepEqual(did, then.again);
  }
};

const answer = (socket, method, result) => socket.say({ jsonrpc: "2.0", id: socket.take(method)?.id, result });

LAWS.session = async ({ column, random }, _, steps) => {
  mock.timers.reset();
  mock.timers.enable({ apis: ["setTimeout", "setInterval", "Date"], now: 1_000_000 });
  FakeSocket.reset();
  let seconds = 0;
  const client = new Client("ws://127.0.0.1:1/", {
    token: "t", WebSocket: FakeSocket, random: () => random, signals: false, methods: {}, handshakeTimeoutMs: 1e9,
    policy: column === "internal" ? INTERNAL : REMOTE,
  });
  const wire = (number) => FakeSocket.made[number === undefined ? FakeSocket.made.length - 1 : number - 1];
  const events = {
    none: () => {}, time: () => {},
    connect: () => client.start(),
    connected: () => wire().open(),
    authenticated: ({ protocol }) => answer(wire(), "auth", { session: `s${FakeSocket.made.length}`, protocol, resumed: false, received: 0 }),
    async synced() {
      for (const method of ["event.subscribe", "registry.register"]) {
        await tick();
        answer(wire(), method, {});
      }
      await tick();
    },
    lost({ code, wire: number, retry_after_s: after }) {
      if (after !== undefined) client.hintRetryAfter(after * 1000);
      wire(number).end(code ?? 1006);
    },
    retry_now: () => client.retryNow(),
    reconnect: () => client.reconnect(),
    stop: () => client.close(),
    network: ({ next, path_changed: pathChanged }) => client.network(next, { pathChanged }),
    shutdown: ({ reason }) => wire().say({ jsonrpc: "2.0", method: "event", params: { event: "module.shutdown", data: { reason, deadline_s: 10 }, source: "kernel" } }),
  };
  const shown = {
    state: () => client.state.name, attempt: () => client.attempt, cooldown_attempts: () => client.cooldownAttempts,
    fatal: () => client.fatalError, last_close_code: () => client.lastCloseCode, wire: () => FakeSocket.made.length,
    due_in_s: () => (client.state.dueAt - Date.now()) / 1000,
  };
  for (const { at_s: at, event, then = {} } of steps) {
    mock.timers.tick(Math.round((at - seconds) * 1000));
    seconds = at;
    await events[event.do](event);
    for (const [name, wanted] of Object.entries(then)) {
      const seen = name === "last_close_code" && shown[name]() === 1006 ? null : shown[name]();
      assert.equal(typeof wanted === "number" ? Math.round(seen * 1000) / 1000 : seen, wanted, `${name} at ${at} s`);
    }
  }
  client.close();
};

for (const file of readdirSync(FOLDER).filter((name) => name.endsWith(".json"))) {
  const law = file.replace(".json", "");
  test(`the client offers the law ${law}`, () => assert.ok(law in LAWS, `no adapter for ${law}`));
  const { vectors } = JSON.parse(readFileSync(new URL(file, FOLDER)));
  for (const { name, given, then, steps } of vectors) test(`${law}: ${name}`, () => LAWS[law](given, then, steps));
}

test("no attempt number overflows", () => {
  for (const attempt of [1e4, 1e6, Number.MAX_SAFE_INTEGER]) assert.equal(decide(null, attempt, INTERNAL, () => 0).delayMs, 10000);
});
