// A whole module in Node, with nothing but the `ws` package (or Node's own WebSocket, from version 22 on).
// It offers `upper {text}`. Run by kite: command = ["node", "with_node.mjs"].
import { readFileSync } from "node:fs";
import { randomBytes } from "node:crypto";

const WebSocket = globalThis.WebSocket ?? (await import("ws")).WebSocket;
const NEVER = new Set([1000, 1002, 1003, 1007, 1008, 1009, 1010, 4001, 4003, 4004, 4010]);
const instance = randomBytes(8).toString("hex"); // the same for the life of this process
const { KITE_URL, KITE_TOKEN_FD, KITE_TOKEN_FILE } = process.env;
const token = readFileSync(KITE_TOKEN_FD ? Number(KITE_TOKEN_FD) : KITE_TOKEN_FILE, "utf8").trim();

let attempt = 0;
let toldToEnd = false;

function answer(method, params) {
  if (method.endsWith("health")) return { result: { status: "ok" } };
  if (typeof params?.text !== "string") return { error: { code: -32602, message: "text must be text" } };
  return { result: params.text.toUpperCase() };
}

function connect() {
  const ws = new WebSocket(KITE_URL);
  let me = "";
  const send = (frame) => ws.send(JSON.stringify({ jsonrpc: "2.0", ...frame }));
  const publish = (event, data) => send({ method: "event.publish", params: { event, data } });
  const late = setTimeout(() => ws.close(), 5000); // no answer to the upgrade or to auth

  ws.onopen = () => send({ id: 1, method: "auth", params: { token, instance, protocol: 2 } });
  ws.onmessage = ({ data: text }) => {
    const message = JSON.parse(text);
    if (message.id === 1 && message.result) {
      clearTimeout(late);
      attempt = 0;
      me = message.result.module_id;
      send({ id: 2, method: "event.subscribe", params: { events: [] } });
      send({ id: 3, method: "registry.register", params: { methods: ["upper", "health"] } });
      publish("module.ready", { module_id: me });
    } else if (message.method && message.id !== undefined) {
      send({ id: message.id, ...answer(message.method, message.params) });
    } else if (message.method === "event" && message.params.event === "system.ping") {
      publish("system.pong", { ping_time: message.params.data.ping_time, pong_time: Date.now() / 1000 });
    } else if (message.method === "event" && message.params.event === "module.shutdown") {
      publish("module.shutdown_ack", { module_id: me });
      toldToEnd = message.params.data.reason !== "kernel_stop";
      ws.close(1000);
    }
  };
  ws.onerror = () => {}; // a close event follows
  ws.onclose = ({ code }) => {
    clearTimeout(late);
    if (toldToEnd) process.exit(0);
    if (NEVER.has(code) && !(code === 1000 && me)) {
      console.error(`closed for good: ${code}`);
      process.exit(1);
    }
    attempt += 1;
    const base = Math.min(500 * 2 ** Math.min(attempt - 1, 10), 10000);
    setTimeout(connect, code === 4020 ? 10000 : Math.min(base + base * 0.2 * Math.random(), 10000));
  };
}

connect();
