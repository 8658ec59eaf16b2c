// Conversations: answers are shown while they are written, over cuts and over replicas that take over.

import { html, useEffect, useRef, useState } from "../vendor/preact-htm.js";
import { Empty, Trouble, useLoaded, useStore } from "./parts.js";
import { call, toast, wire } from "./state.js";
import { t } from "./words.js";

const textOf = (message) => (message.parts ? message.parts.map((part) => part.text).join("") : message.text ?? "");
const callsOf = (message) => (message.parts ?? []).flatMap((part) => part.calls);

function Conversation({ id, onChange }) {
  const { connection } = useStore();
  const [chat, setChat] = useState(null), [error, setError] = useState(null), [typed, setTyped] = useState(""), [writing, setWriting] = useState({});
  const end = useRef(null);
  const load = () => call("chat.get", { chat_id: id }).then((found) => { setChat(found); setError(null); return found; }, setError);
  useEffect(() => {
    const client = wire();
    if (!client || connection.name !== "open") return undefined;
    let live = true, mine = null;
    const off = client.on("relay.record", (record) => {
      if (!live || record.tail !== mine || record.end || record.reset) return;
      let piece;
      try { piece = JSON.parse(record.data); } catch { return; }
      if (typeof piece.text === "string") setWriting((old) => { const before = old[piece.message] ?? ""; return { ...old, [piece.message]: before.slice(0, Math.max(0, piece.at - piece.text.length)) + piece.text }; });
      if (piece.state || piece.call) load();
    });
    load();
    call("relay.tail", { stream: `chat.${id}` }).then((answer) => { mine = answer.tail; if (!live) call("relay.untail", { tail: mine }).catch(() => {}); }, () => {});
    return () => { live = false; off(); if (mine !== null) call("relay.untail", { tail: mine }).catch(() => {}); };
  }, [id, connection.name === "open"]);
  const messages = chat?.messages ?? [];
  useEffect(() => { end.current?.scrollIntoView({ block: "end" }); }, [messages.length, writing]);
  const busy = messages.at(-1)?.state === "writing";
  const send = async (event) => {
    event?.preventDefault();
    const text = typed.trim();
    if (!text || busy) return;
    setTyped("");
    try {
      await call("chat.send", { chat_id: id, text, message_id: `u-${crypto.randomUUID?.() ?? Math.random().toString(16).slice(2)}` });
      await load();
      onChange();
    } catch (trouble) {
      setTyped(text);
      toast(trouble.message, "bad");
    }
  };
  const decide = (verdict, one) => call(`chat.${verdict}`, { chat_id: id, call_id: one.id }).then(load, (trouble) => toast(trouble.message, "bad"));
  const key = (event) => { if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send(event); };
  return html`<section class="card conversation"><h2>${chat?.title || t("untitled")}</h2><${Trouble} error=${chat ? null : error} module="chat" />
    <div class="messages" role="log" aria-live="polite" tabindex="0" aria-label=${t("chat")}>${messages.map((message) => {
      const kept = textOf(message), live = writing[message.id] ?? "";
      return html`<article key=${message.id} class=${message.role}><h3>${message.role === "user" ? t("you") : t("assistant")}${message.state === "writing" && html` <span class="badge busy">…</span>`}${["failed", "stopped"].includes(message.state) && html` <span class="badge ${message.state === "failed" ? "bad" : "quiet"}">${t(`st_${message.state}`)}</span>`}</h3>
        <p>${message.state === "writing" && live.length > kept.length ? live : kept}</p>
        ${callsOf(message).map((one) => html`<div key=${one.id} class="tool"><code>${one.name}(${JSON.stringify(one.arguments)})</code> <span class="badge quiet">${one.state}</span>${one.state === "waiting" && html`<p>${t("tool_wait", one.name)}</p><div class="buttons"><button type="button" onClick=${() => decide("deny", one)}>${t("deny")}</button><button type="button" class="primary" onClick=${() => decide("approve", one)}>${t("approve")}</button></div>`}</div>`)}
      </article>`; })}<div ref=${end}></div></div>
    <form class="say" onSubmit=${send}><textarea rows="2" aria-label=${t("say")} placeholder=${t("say")} value=${typed} onInput=${(e) => setTyped(e.target.value)} onKeyDown=${key}></textarea>
      ${busy ? html`<button type="button" onClick=${() => call("chat.stop", { chat_id: id }).then(load, () => {})}>${t("stop_answer")}</button>` : html`<button class="primary" disabled=${!typed.trim()}>${t("send")}</button>`}</form></section>`;
}

export function Page({ of: chosen }) {
  useStore();
  const [round, setRound] = useState(0);
  const { data, error } = useLoaded(() => call("chat.list"), 10000, [round]);
  const chats = data?.chats ?? [];
  const begin = async () => {
    try {
      const { chat_id } = await call("chat.create", { title: new Date().toLocaleString() });
      location.hash = `#/chat/${chat_id}`;
    } catch (trouble) { toast(trouble.message, "bad"); }
  };
  return html`<div class="columns chats"><section class="card"><div class="bar"><h1>${t("chat")}</h1><button type="button" class="primary" onClick=${begin}>${t("new_chat")}</button></div><${Trouble} error=${data ? null : error} module="chat" />
      ${data && chats.length === 0 && html`<${Empty}>${t("no_chats")}<//>`}<ul class="list">${chats.map((row) => html`<li key=${row.chat_id}><a href="#/chat/${encodeURIComponent(row.chat_id)}" aria-current=${row.chat_id === chosen ? "page" : undefined}>${row.title || t("untitled")}</a> <small>${row.messages}</small></li>`)}</ul></section>
    ${chosen ? html`<${Conversation} key=${chosen} id=${chosen} onChange=${() => setRound((n) => n + 1)} />` : html`<section class="card"><${Empty}>${t("pick_chat")}<//></section>`}</div>`;
}
