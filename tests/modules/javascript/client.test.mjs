// The session of the JavaScript client, against a wire that the test holds in its hands and on a clock that it moves.
import assert from "node:assert/strict";
import { beforeEach, mock, test } from "node:test";

import { CallError, Client, REMOTE, connect, matches } from "../../../modules/kite_modules/relay/static/kite-client.js";
import { FakeSocket, authenticate, tick } from "./fakes.mjs";

const options = { token: "t", WebSocket: FakeSocket, random: () => 0, signals: false };
const start = (extra = {}) => connect("ws://127.0.0.1:1/ws", { ...options, ...extra });

beforeEach(() => {
  FakeSocket.reset();
  mock.timers.reset();
  mock.timers.enable({ apis: ["setTimeout", "setInterval", "Date"], now: 1_000_000 });
});

test("it is open only after subscriptions and registration are in step", async () => {
  const seen = [];
  const client = new Client("ws://127.0.0.1:1/ws", { ...options, methods: { greet: () => "hi" } });
  client.on("state", (state) => seen.push(state.name));
  const listening = client.subscribe("orders.>", () => {});
  client.start();
  authenticate(FakeSocket.last);
  assert.deepEqual(seen, ["connecting", "authenticating", "syncing"]);
  await listening;
  await tick();
  const subscribe = FakeSocket.last.take("event.subscribe");
  assert.deepEqual(subscribe.params.events, ["orders.>"]);
  FakeSocket.last.say({ jsonrpc: "2.0", id: subscribe.id, result: { events: ["orders.>"] } });
  await tick();
  const register = FakeSocket.last.take("registry.register");
  assert.deepEqual(register.params.methods, ["greet"]);
  assert.equal(client.state.name, "syncing");
  FakeSocket.last.say({ jsonrpc: "2.0", id: register.id, result: { state: "registered" } });
  await tick();
  assert.equal(client.state.name, "open");
  assert.equal(FakeSocket.last.take("event.publish").params.event, "module.ready");
  client.close();
});

test("waiting has a due time, a reason and a retry-now; a mere connect resets nothing", async () => {
  const client = start();
  const due = [];
  for (let round = 0; round < 6; round += 1) {
    FakeSocket.last.open();
    FakeSocket.last.end(1011, "not today");
    assert.equal(client.state.name, "waiting");
    due.push(client.state.dueAt - Date.now());
    assert.match(client.state.reason, /1011/);
    mock.timers.tick(due.at(-1));
    assert.equal(client.state.name, "connecting");
  }
  assert.deepEqual(due, [1000, 2000, 4000, 8000, 15000, 15000]);
  assert.equal(client.lastCloseCode, 1011);
  FakeSocket.last.end();
  assert.ok(client.retryNow());
  assert.equal(client.state.name, "connecting");
  authenticate(FakeSocket.last);
  await tick();
  assert.equal(client.state.name, "open");
  FakeSocket.last.end();
  assert.equal(client.state.dueAt - Date.now(), 1000);
  client.close();
});

test("never sets fatalError and stops; cooldown waits 10 s five times, then never", async () => {
  const refused = start();
  FakeSocket.last.open();
  FakeSocket.last.say({ jsonrpc: "2.0", id: "auth", error: { code: -32010, message: "no", data: { close: 4001 } } });
  FakeSocket.last.end(4001, "authentication failed");
  assert.equal(refused.state.name, "stopped");
  assert.equal(refused.fatalError, true);
  assert.equal(refused.lastCloseCode, 4001);
  await assert.rejects(refused.opened());

  const limited = start();
  for (let tries = 1; tries <= 5; tries += 1) {
    FakeSocket.last.end(4020);
    assert.equal(limited.cooldownAttempts, tries);
    assert.equal(limited.state.dueAt - Date.now(), 10000);
    mock.timers.tick(10000);
  }
  FakeSocket.last.end(4020);
  assert.equal(limited.state.name, "stopped");
  assert.equal(limited.fatalError, true);
});

test("a silent server is given up after the handshake deadline, garbage at once, both by the table", () => {
  const client = start();
  FakeSocket.last.open();
  mock.timers.tick(5000);
  assert.equal(client.state.name, "waiting");
  mock.timers.tick(1000);
  FakeSocket.last.open();
  FakeSocket.last.say("<html>502</html>");
  assert.equal(client.state.name, "waiting");
  assert.equal(client.lastCloseCode, 1011);
  client.close();
});

test("offline waits for the network without a due time, online reconnects at once from zero, twice is once", () => {
  const client = start();
  FakeSocket.last.end();
  FakeSocket.last.end();
  mock.timers.tick(1000);
  FakeSocket.last.end();
  assert.equal(client.attempt, 2);
  client.network("offline");
  assert.equal(client.state.name, "waiting");
  assert.equal(client.state.dueAt, null);
  mock.timers.tick(60000);
  assert.equal(client.state.name, "waiting");
  const before = FakeSocket.made.length;
  client.network("online");
  client.network("online");
  assert.equal(client.state.name, "connecting");
  assert.equal(FakeSocket.made.length, before + 1);
  assert.equal(client.attempt, 0);
  client.close();
});

test("another path keeps the count and comes back at once", async () => {
  const client = start();
  FakeSocket.last.end();
  mock.timers.tick(1000);
  FakeSocket.last.end();
  client.network("online", { pathChanged: true });
  assert.equal(client.state.name, "connecting");
  assert.equal(client.attempt, 2);
  client.close();
});

test("a cut inside the debounce loses nothing and repeats nothing, in both directions", async () => {
  const client = start();
  const first = FakeSocket.last;
  assert.equal(authenticate(first).params.resume, undefined);
  await tick();
  const answers = [client.call("c.a"), client.call("c.b"), client.call("c.c")];
  const calls = first.sent.filter((message) => message.method?.startsWith("c."));
  first.say({ jsonrpc: "2.0", id: calls[0].id, result: "A" });
  first.end();
  mock.timers.tick(1000);
  const second = FakeSocket.last;
  // The kernel had received two of the three calls.
  const request = authenticate(second, { resumed: true, received: 2 });
  assert.deepEqual(request.params.resume, { session: "s1", received: 1 });
  assert.equal(client.state.name, "open");
  assert.deepEqual(second.sent.map((message) => message.method), ["c.c"]);
  second.say({ jsonrpc: "2.0", id: calls[1].id, result: "B" });
  second.say({ jsonrpc: "2.0", id: calls[2].id, result: "C" });
  assert.deepEqual(await Promise.all(answers), ["A", "B", "C"]);
  client.close();
});

test("a session that is gone fails the calls in hand as unknown and starts over", async () => {
  const client = start();
  const heard = [];
  const subscribed = client.subscribe("a.*", (event) => heard.push(event.data));
  authenticate(FakeSocket.last);
  await subscribed;
  const say = async () => {
    await tick();
    const subscribe = FakeSocket.last.take("event.subscribe");
    FakeSocket.last.say({ jsonrpc: "2.0", id: subscribe.id, result: { events: ["a.*"] } });
    await tick();
  };
  await say();
  const call = client.call("c.pay");
  const refused = assert.rejects(call, (error) => error instanceof CallError && error.code === -32002 && error.outcome === "unknown");
  FakeSocket.last.end();
  mock.timers.tick(1000);
  authenticate(FakeSocket.last, { session: "s2", resumed: false });
  await refused;
  await say();
  assert.equal(client.state.name, "open");
  FakeSocket.last.say({ jsonrpc: "2.0", method: "event", params: { event: "a.b", data: 1, source: "c" } });
  assert.deepEqual(heard, [1]);
  client.close();
});

test("the ping is answered at once with what was received", async () => {
  const client = start();
  authenticate(FakeSocket.last);
  await tick();
  FakeSocket.last.say({ jsonrpc: "2.0", method: "event", params: { event: "system.ping", data: { ping_time: 7, received: 0 }, source: "kernel" } });
  const pong = FakeSocket.last.take("event.publish");
  assert.equal(pong.params.event, "system.pong");
  assert.equal(pong.params.data.ping_time, 7);
  assert.equal(pong.params.data.received, 1);
  client.close();
});

test("publishes made while away are kept in order and bounded, or refused as asked", async () => {
  const client = start({ maxQueued: 3 });
  const kept = [1, 2, 3].map((n) => client.publish("a.b", n));
  await assert.rejects(client.publish("a.b", 4), (error) => error.outcome === "not_sent");
  await assert.rejects(client.publish("a.b", 5, { whileAway: "refuse" }), (error) => error.outcome === "not_sent");
  authenticate(FakeSocket.last);
  await tick();
  const sent = FakeSocket.last.sent.filter((message) => message.method === "event.publish");
  assert.deepEqual(sent.map((message) => message.params.data), [1, 2, 3]);
  for (const message of sent) FakeSocket.last.say({ jsonrpc: "2.0", id: message.id, result: { delivered: 0 } });
  assert.deepEqual(await Promise.all(kept), [0, 0, 0]);
  client.close();
});

test("a deadline and an abort cancel at the callee; progress reaches the caller", async () => {
  const client = start();
  authenticate(FakeSocket.last);
  await tick();
  const progress = [];
  const abort = new AbortController();
  const call = client.call("c.job", {}, { onProgress: (value) => progress.push(value), signal: abort.signal });
  const { id } = FakeSocket.last.take("c.job");
  FakeSocket.last.say({ jsonrpc: "2.0", method: "$/progress", params: { id, value: 1 } });
  FakeSocket.last.say({ jsonrpc: "2.0", method: "$/progress", params: { id, value: 2 } });
  const refused = assert.rejects(call, (error) => error.code === -32800 && error.outcome === "unknown");
  abort.abort();
  await refused;
  assert.deepEqual(progress, [1, 2]);
  assert.equal(FakeSocket.last.take("$/cancelRequest").params.id, id);

  const late = client.call("c.slow", {}, { timeoutMs: 50 });
  const deadline = assert.rejects(late, (error) => error.code === -32003);
  mock.timers.tick(1050);
  await deadline;
  client.close();
});

test("a module's methods are served; what they throw is an error and no end", async () => {
  const client = start({ methods: { ok: ({ n }) => n + 1, bad: () => { throw new Error("broken"); } } });
  authenticate(FakeSocket.last);
  await tick();
  for (const method of ["event.subscribe", "registry.register"]) {
    const request = FakeSocket.last.take(method);
    FakeSocket.last.say({ jsonrpc: "2.0", id: request.id, result: {} });
    await tick();
  }
  FakeSocket.last.say({ jsonrpc: "2.0", id: 1, method: "ok", params: { n: 1 } });
  FakeSocket.last.say({ jsonrpc: "2.0", id: 2, method: "bad", params: {} });
  FakeSocket.last.say({ jsonrpc: "2.0", id: 3, method: "none", params: {} });
  await tick();
  const answers = FakeSocket.last.sent.filter((message) => message.method === undefined);
  assert.equal(answers.length, 3);
  const byId = new Map(answers.map((answer) => [answer.id, answer]));
  assert.equal(byId.get(1).result, 2);
  assert.equal(byId.get(2).error.code, -32603);
  assert.equal(byId.get(3).error.code, -32601);
  client.close();
});

test("after module.shutdown with a final reason it acknowledges and never comes back; kernel_stop is followed by a return", async () => {
  const client = start();
  authenticate(FakeSocket.last);
  await tick();
  const shutdown = (reason) => FakeSocket.last.say({ jsonrpc: "2.0", method: "event", params: { event: "module.shutdown", data: { reason, deadline_s: 10 }, source: "kernel" } });
  shutdown("kernel_stop");
  assert.equal(client.state.name, "open");
  FakeSocket.last.end(1001);
  assert.equal(client.state.name, "waiting");
  mock.timers.tick(1000);
  authenticate(FakeSocket.last, { session: "s2" });
  await tick();
  shutdown("instance_stop");
  assert.equal(FakeSocket.last.sent.at(-1).params.event, "module.shutdown_ack");
  assert.equal(FakeSocket.last.closed, 1000);
  FakeSocket.last.end(1000);
  assert.equal(client.state.name, "stopped");
  assert.equal(client.fatalError, false);
});

test("patterns: a star is one segment, an angle is the rest", () => {
  assert.ok(matches("orders.*", "orders.a") && !matches("orders.*", "orders") && !matches("orders.*", "orders.a.b"));
  assert.ok(matches("orders.>", "orders.a.b") && !matches("orders.>", "orders") && matches(">", "a.b"));
});

test("ten thousand clients spread by jitter, and stand in one instant without", async () => {
  const { decide } = await import("../../../modules/kite_modules/relay/static/kite-client.js");
  let seed = 1;
  const random = () => (seed = (seed * 16807) % 2147483647) / 2147483647;
  const first = (jitter) => new Set(Array.from({ length: 10000 }, () => decide(1001, 1, { ...REMOTE, jitter }, random).delayMs));
  assert.ok(first("equal").size > 1000);
  assert.equal(first("none").size, 1);
});
