// Small pieces that several pages use: state badges, sparkline, the question before an order, hints.

import { Component, html, useEffect, useRef, useState } from "../vendor/preact-htm.js";
import { call, changed, may, onChange, store, toast } from "./state.js";
import { t } from "./words.js";

/** Draw a page again whenever something changed. */
export function useStore(topic = "page") {
  const [, again] = useState(0);
  useEffect(() => onChange(() => again((n) => n + 1), topic), []);
  return store;
}

const TONE = {
  running: "ok", done: "ok", ok: "ok", healthy: "ok", excellent: "ok", good: "ok", idle: "quiet", stopped: "quiet", waiting: "quiet",
  starting: "busy", stopping: "busy", backoff: "warn", degraded: "warn", fair: "warn", warning: "warn", interrupted: "warn",
  failed: "bad", critical: "bad", poor: "bad", unhealthy: "bad", refused: "bad",
};
export const tone = (word) => TONE[word] ?? "quiet";
export const Badge = ({ word, text }) => html`<span class="badge ${tone(word)}">${text ?? word}</span>`;

/** A line of the last values; drawn as one polyline. */
export function Spark({ values, label }) {
  if (!values || values.length < 2) return null;
  const top = Math.max(...values, 1), step = 60 / (values.length - 1);
  const points = values.map((value, i) => `${(i * step).toFixed(1)},${(17 - (value / top) * 15).toFixed(1)}`).join(" ");
  return html`<svg class="spark" role="img" aria-label=${label} viewBox="0 0 60 18" preserveAspectRatio="none"><polyline points=${points} /></svg>`;
}

// ------------------------------------------------------------------ questions

let question = null;
/** Ask before an order; resolves with true or false. */
export function ask(text, why, yes) {
  question?.answer(false);
  return new Promise((resolve) => {
    question = { text, why, yes, from: document.activeElement, answer: (said) => { question = null; changed(); resolve(said); } };
    changed();
  });
}

export function Question() {
  useStore();
  const box = useRef(null);
  const present = question;
  useEffect(() => {
    const dialog = box.current;
    if (!dialog) return undefined;
    if (!dialog.open) dialog.showModal();
    dialog.querySelector(".primary")?.focus();
    const from = present.from;
    return () => from?.isConnected && from.focus();
  }, [present]);
  if (!present) return null;
  const cancel = (event) => { event.preventDefault(); present.answer(false); };
  return html`<dialog ref=${box} class="question" onCancel=${cancel} aria-labelledby="question-text" aria-describedby="question-why">
    <h2 id="question-text">${present.text}</h2>
    <p id="question-why">${present.why}</p>
    <div class="buttons">
      <button type="button" onClick=${() => present.answer(false)}>${t("cancel")}</button>
      <button type="button" class="primary" data-test="confirm-button" onClick=${() => present.answer(true)}>${present.yes}</button>
    </div>
  </dialog>`;
}

const under_way = new Set();
export const isUnderWay = (name) => under_way.has(name);

/** Restart, stop or start a module, after a question. */
export async function order(what, name) {
  if (!may("operator") || under_way.has(name)) return;
  const why = t(what === "stop" ? "confirm_stop_why" : "confirm_why");
  if (!(await ask(t(`confirm_${what}`, name), what === "start" ? "" : why, t(`yes_${what}`)))) return;
  under_way.add(name);
  changed();
  try {
    const answer = await call(`launcher.${what}`, { names: [name] }, { timeoutMs: 120000 });
    const note = answer.notes?.join("; ");
    if (answer.exit) toast(t("failed_do", name, note ?? answer.modules?.[0]?.why ?? ""), "bad");
    else toast(t(`done_${what}`, name));
  } catch (error) {
    toast(t("failed_do", name, error.message), "bad");
  } finally {
    under_way.delete(name);
    changed();
  }
}

export function Toasts() {
  const { toasts } = useStore();
  return html`<div class="toasts" role="status" aria-live="polite">${toasts.map((one) => html`<p key=${one.id} class=${one.kind}>${one.text}</p>`)}</div>`;
}

// ------------------------------------------------------------------ loading

/** Load something again and again; shows why it can't be had. */
export function useLoaded(load, every_ms, keys = []) {
  const [value, setValue] = useState({});
  useEffect(() => {
    let live = true, timer = null;
    const again = async () => {
      try {
        const data = await load();
        if (live) setValue({ data });
      } catch (error) {
        if (live) setValue((old) => ({ data: old.data, error }));
      }
      if (live && every_ms) timer = setTimeout(again, every_ms);
    };
    again();
    return () => { live = false; clearTimeout(timer); };
  }, keys);
  return value;
}

export function Trouble({ error, module }) {
  if (!error) return null;
  const text = error.code === -32004 ? t("not_allowed") : error.code === -32001 && module ? t("unavailable", module) : error.message;
  return html`<p class="hint">${text}</p>`;
}

export const Empty = ({ children }) => html`<p class="hint">${children}</p>`;

/** A child's fault is shown in its place; the rest of the page lives on. */
export class Fence extends Component {
  constructor() { super(); this.state = { error: null }; }
  componentDidCatch(error) { this.setState({ error }); console.error(error); }
  componentDidUpdate(before) { if (before.of !== this.props.of && this.state.error) this.setState({ error: null }); }
  render({ children }, { error }) { return error ? html`<p class="hint">${String(error.message ?? error)}</p>` : children; }
}
