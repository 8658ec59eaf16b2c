// Types of kite-client.js.

export type Strategy = "never" | "standard" | "cooldown";
export type Outcome = "not_sent" | "unknown" | "done";
export type StateName = "idle" | "connecting" | "authenticating" | "syncing" | "open" | "waiting" | "stopped";

export interface Policy {
  jitter?: "ratio" | "equal" | "full" | "none";
  initialMs?: number;
  factor?: number;
  maxMs?: number;
  jitterRatio?: number;
  /** null: no limit */
  maxTries?: number | null;
}

export interface Decision {
  retry: boolean;
  delayMs: number;
  strategy: Strategy;
  kind: string;
  reason: string;
}

export const INTERNAL: Readonly<Required<Policy>>;
export const REMOTE: Readonly<Required<Policy>>;

export function decide(
  code: number | null | undefined,
  attempt: number,
  policy?: Policy,
  random?: () => number,
  options?: { protocol?: 1 | 2 | null; closeReason?: string; retryAfterMs?: number | null },
): Decision;

export function networkTransition(
  previous: "online" | "offline",
  next: "online" | "offline",
  options?: { pathChanged?: boolean },
): { reconnectNow: boolean; resetAttempt: boolean; reason: string };

export function matches(pattern: string, event: string): boolean;

export class CallError extends Error {
  code: number;
  data?: any;
  reason?: string;
  outcome: Outcome;
}

/** May a failed call be repeated: it had no effect, it may have had one, it ran. */
export function repeatAdvice(code: number, data?: any): { repeat: "safe" | "with_key" | "no"; later: boolean };

/** What one text message of the kernel is; "bad" is dropped and counted. */
export function classify(text: string): "answer" | "request" | "event" | "notice" | "bad";

/** The handshake of the module plane. */
export function tokenHandshake(options: { token?: string | (() => string); moduleId?: string; instance: string }): Handshake;

/** What a side keeps of a session so that a cut loses nothing. */
export class ResumeBook {
  constructor(bounds: { framesMax: number; bytesMax: number });
  session: string | null;
  sent(frame: string): void;
  received(): void;
  acknowledged(received: number): void;
  resume(): { session: string; received: number } | null;
  /** The frames to send again, or null: start over. */
  resumed(answer: { session?: string; resumed?: boolean; received?: number }): string[] | null;
}

export interface State {
  name: StateName;
  reason: string;
  /** When the next try is due (ms since 1970), or null. */
  dueAt: number | null;
  since: number;
}

export interface Handshake {
  /** Called once the wire is open. */
  start(send: (message: object) => void, resume: { session: string; received: number } | null): void;
  /** Called with each message until it returns { opened } or { fatal }. */
  frame(message: any, send: (message: object) => void): { opened: any } | { fatal: string } | undefined;
}

export interface MethodContext {
  meta?: { caller: string; deadline: number; [name: string]: unknown };
  progress(value: unknown): void;
  signal: AbortSignal;
}

export interface Options {
  token?: string | (() => string);
  moduleId?: string;
  instance?: string;
  /** Given: this client is a module; it registers these methods and says module.ready. */
  methods?: Record<string, (params: any, context: MethodContext) => unknown>;
  policy?: Policy;
  random?: () => number;
  WebSocket?: any;
  protocols?: string[];
  handshake?: Handshake;
  handshakeTimeoutMs?: number;
  callTimeoutMs?: number;
  /** Publishes and calls kept while away; frames kept for a resume. */
  maxQueued?: number;
  maxQueuedBytes?: number;
  maxPending?: number;
  whileAway?: "keep" | "refuse";
  signals?: boolean;
}

export interface CallOptions {
  timeoutMs?: number;
  /** Idempotency key: the same key counts once. */
  key?: string;
  /** false: don't wait for a module that is just reconnecting. */
  wait?: boolean;
  onProgress?: (value: any) => void;
  signal?: AbortSignal;
  whileAway?: "keep" | "refuse";
}

export interface KiteEvent {
  event: string;
  data: any;
  source: string;
  time: number;
}

export interface StreamOptions extends Options {
  last?: number | null;
  epoch?: string | null;
  onRecord?: (record: { seq: number; data: string }) => unknown;
  onReset?: (reset: { seq: number; last: number | null; epoch?: string; why?: string; first?: number }) => unknown;
  maxBuffered?: number;
}

export class Subscription {
  constructor(url: string | URL, options: StreamOptions);
  last: number | null;
  epoch: string | null;
  state: "connecting" | "open" | "waiting" | "stopped";
  lastCloseCode: number | null;
  done: Promise<{ last: number | null; epoch: string | null; code?: number | null; reason?: string; reset?: any; error?: unknown }>;
  close(): void;
}

export class Client {
  constructor(url: string, options?: Options);
  readonly state: State;
  readonly attempt: number;
  readonly cooldownAttempts: number;
  readonly lastCloseCode: number | null;
  readonly fatalError: boolean;
  readonly session: any;
  readonly book: ResumeBook;
  readonly counts: { attempts: Record<string, number>; droppedFrames: number; dropped: number; reconnects: number };
  start(): this;
  close(reason?: string): void;
  retryNow(): boolean;
  /** Replace the wire by a new one. */
  reconnect(): void;
  /** The server asked for this wait before the next try. */
  hintRetryAfter(ms: number): void;
  network(next: "online" | "offline", options?: { pathChanged?: boolean }): { reconnectNow: boolean; resetAttempt: boolean; reason: string };
  opened(): Promise<this>;
  on(event: "state", fn: (state: State) => void): () => void;
  on(event: string, fn: (value: any) => void): () => void;
  call(method: string, params?: object | unknown[], options?: CallOptions): Promise<any>;
  publish(event: string, data?: unknown, options?: CallOptions & { excludeSelf?: boolean; retain?: boolean }): Promise<number>;
  subscribe(
    pattern: string,
    fn: (event: KiteEvent) => void,
    options?: { policy?: "close" | "drop_oldest" | "latest"; queue?: number },
  ): Promise<() => Promise<void>>;
  stream(name?: string): {
    subscribe(options?: StreamOptions): Subscription;
    publish(data: string, options?: CallOptions & { id?: string }): Promise<{ seq: number; epoch: string }>;
  };
}

export function connect(url: string, options?: Options): Client;
