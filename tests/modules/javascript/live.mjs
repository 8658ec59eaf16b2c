// One scenario a run against a real kernel; prints one JSON line with what was seen. Arguments: scenario, url, token.
import { connect } from "../../../modules/kite_modules/relay/static/kite-client.js";

const [, , scenario, url, token, more] = process.argv;
const lines = process.stdin[Symbol.asyncIterator]();
const say = (value) => console.log(JSON.stringify(value));
const heard = async () => (await lines.next()).value?.toString();
const policy = { initialMs: 50, maxMs: 200 };
const until = async (what) => {
  for (let tries = 0; tries < 1000; tries += 1) {
    if (what()) return;
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  throw new Error("never came true");
};

const scenarios = {
  // serves a method, calls itself through the kernel, hears its own event
  async module() {
    const events = [];
    const client = connect(`${url}/ws`, { token, policy, methods: { double: ({ n }, { progress }) => (progress("half"), n * 2) } });
    await client.subscribe("orders.>", (event) => events.push(event.data));
    await client.opened();
    const progress = [];
    const answer = await client.call("page.double", { n: 21 }, { onProgress: (value) => progress.push(value) });
    const delivered = await client.publish("orders.created", { id: 7 });
    await until(() => events.length);
    const refused = await client.call("nobody.home").catch((error) => [error.code, error.outcome]);
    say({ answer, progress, delivered, events, refused });
    client.close();
  },
  // lives through a kill -9 of the kernel
  async restart() {
    const states = [];
    const events = [];
    const client = connect(`${url}/ws`, { token, policy, methods: { slow: () => new Promise(() => {}) } });
    client.on("state", (state) => states.push(state.name));
    await client.subscribe("a.*", (event) => events.push(event.data));
    await client.opened();
    const call = client.call("page.slow").catch((error) => [error.code, error.outcome]);
    await client.call("kernel.info"); // the call before it is on the kernel's side now
    say("open");
    await heard();
    await until(() => client.state.name === "waiting" || states.includes("waiting"));
    const kept = client.publish("a.b", "kept");
    await until(() => client.state.name === "open");
    say({ states, call: await call, kept: await kept, events, reconnects: client.counts.reconnects });
    client.close();
  },
  // a wire cut by a proxy, and resumed
  async resume() {
    const client = connect(`${url}/ws`, { token, policy, methods: { echo: (params) => params } });
    await client.opened();
    say("open");
    await heard();
    const answers = await Promise.all(Array.from({ length: 50 }, (_, n) => client.call("page.echo", { n })));
    await until(() => client.counts.reconnects > 0);
    say({ sum: answers.reduce((sum, { n }) => sum + n, 0), resumed: client.session.resumed, reconnects: client.counts.reconnects });
    client.close();
  },
  async refused() {
    const client = connect(`${url}/ws`, { token: "wrong", policy });
    await client.opened().catch(() => {});
    say({ fatal: client.fatalError, code: client.lastCloseCode, state: client.state.name });
  },
  async stream() {
    const records = [];
    const client = connect(`${url}/ws`, { token, policy });
    await client.opened();
    const stream = client.stream(more);
    for (let n = 1; n <= 3; n += 1) await stream.publish(`m${n}`);
    const reader = stream.subscribe({ last: 1, onRecord: (record) => void records.push(record) });
    await until(() => records.length === 2);
    await stream.publish("m4");
    await until(() => records.length === 3);
    reader.close();
    say({ records, last: (await reader.done).last });
    client.close();
  },
  // reads a stream over a wire that is cut three times while it is published to
  async cutStream() {
    const seen = [];
    const client = connect(`${url}/ws`, { token, policy });
    await client.opened();
    const stream = client.stream(more);
    await stream.publish("first", { id: "0" });
    const reader = stream.subscribe({ last: 0, onRecord: (record) => void seen.push(record.seq) });
    await until(() => seen.length === 1);
    say("reading");
    for (let round = 0; round < 3; round += 1) {
      await heard();
      for (let n = 0; n < 19; n += 1) await stream.publish(`m${round}.${n}`, { id: `${round}.${n}` });
      say("published");
    }
    await heard();
    for (let n = 0; n < 2; n += 1) await stream.publish(`end${n}`, { id: `end${n}` });
    await until(() => seen.length >= 60);
    reader.close();
    say(seen);
    client.close();
  },
};

await scenarios[scenario]();
process.exit(0);
