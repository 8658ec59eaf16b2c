// A WebSocket whose other end is the test: nothing happens until the test says so.

export class FakeSocket {
  static made = [];
  static reset() {
    FakeSocket.made.length = 0;
  }
  static get last() {
    return FakeSocket.made.at(-1);
  }
  constructor(url, protocols) {
    Object.assign(this, { url, protocols, sent: [], closed: null });
    FakeSocket.made.push(this);
  }
  send(text) {
    this.sent.push(JSON.parse(text));
  }
  close(code) {
    this.closed = code ?? true;
  }
  // what the test makes happen
  open() {
    this.onopen?.({});
  }
  say(message) {
    this.onmessage?.({ data: typeof message === "string" ? message : JSON.stringify(message) });
  }
  end(code = 1006, reason = "") {
    this.onclose?.({ code, reason });
  }
  take(method) {
    const index = this.sent.findIndex((message) => message.method === method);
    return index < 0 ? undefined : this.sent.splice(index, 1)[0];
  }
}

export const tick = () => new Promise((resolve) => setImmediate(resolve));

/** Let the socket answer the auth request. */
export function authenticate(socket, result = {}) {
  socket.open();
  const request = socket.take("auth");
  const answer = { module_id: "page", session: "s1", protocol: 2, state: "connected", resumed: false, received: 0, ...result };
  socket.say({ jsonrpc: "2.0", id: request.id, result: answer });
  return request;
}
