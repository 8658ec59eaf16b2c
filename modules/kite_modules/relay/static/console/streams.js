// Streams: rate, subscribers, lag, what was dropped, and the tail of one.

import { html, useEffect, useRef, useState } from "../vendor/preact-htm.js";
import { Empty, Trouble, useLoaded, useStore } from "./parts.js";
import { Plot } from "./plot.js";
import { call, may, wire } from "./state.js";
import { bytes, number, t } from "./words.js";

const EVERY_MS = 2000;
const KEPT = 200;

function Tail({ name }) {
  const [rows, setRows] = useState([]), [note, setNote] = useState(null);
  const { connection } = useStore();
  const last = useRef(null);
  useEffect(() => {
    const client = wire();
    if (!client || connection.name !== "open") return undefined;
    let mine = null, live = true, waiting = [];
    const take = (record) => {
      if (record.end) return setNote(t("tail_end", record.why ?? ""));
      if (record.reset) return setNote(t("reset"));
      last.current = record.seq;
      setRows((old) => [...old, record].slice(-KEPT));
    };
    const off = client.on("relay.record", (record) => {
      if (mine === null) return void waiting.push(record);
      if (record.tail === mine) take(record);
    });
    call("relay.tail", last.current === null ? { stream: name } : { stream: name, last: last.current }).then(
      (answer) => {
        if (!live) return void call("relay.untail", { tail: answer.tail }).catch(() => {});
        mine = answer.tail;
        for (const record of waiting) if (record.tail === mine) take(record);
        waiting = [];
      },
      (error) => live && setNote(error.message),
    );
    return () => { live = false; off(); if (mine !== null) call("relay.untail", { tail: mine }).catch(() => {}); };
  }, [name, connection.name === "open"]);
  return html`<section class="card"><h2>${t("tail_of", name)}</h2>${note && html`<p class="hint">${note}</p>`}
    <div class="log" tabindex="0" role="log" aria-live="off" aria-label=${t("tail_of", name)}>${rows.length === 0 && html`<${Empty}>${t("no_lines")}<//>`}${rows.map((row) => html`<div key=${row.seq}><time>${row.seq}</time><span>${row.data}</span></div>`)}</div></section>`;
}

export function Page() {
  const { data, error } = useLoaded(() => call("stream.list"), EVERY_MS);
  const [followed, setFollowed] = useState(null), [shown, setShown] = useState(null);
  const seen = useRef(new Map());
  const streams = data?.streams ?? [];
  const now = Date.now() / 1000;
  for (const row of streams) {
    const name = row.stream ?? row.name;
    const points = seen.current.get(name) ?? [];
    if (points.at(-1)?.row !== row) {
      const before = points.at(-1);
      const rate = before ? Math.max(0, (row.seq - before.row.seq) / Math.max(0.1, now - before.at)) : null;
      points.push({ at: now, row, rate });
      seen.current.set(name, points.slice(-900));
    }
  }
  const name = shown ?? streams[0]?.stream ?? streams[0]?.name;
  const points = (seen.current.get(name) ?? []).filter((one) => one.rate !== null);
  const columns = [points.map((one) => one.at), points.map((one) => one.rate)];
  return html`<section class="card"><h1>${t("streams")}</h1><${Trouble} error=${data ? null : error} />
      ${data && streams.length === 0 ? html`<${Empty}>${t("no_streams")}<//>` : html`<div class="scroll" tabindex="0" role="region" aria-label=${t("streams")}><table class="plain"><thead><tr><th>${t("stream")}</th><th class="num">${t("rate")}</th><th class="num">${t("seq")}</th><th class="num">${t("subscribers")}</th><th class="num">${t("lag")}</th><th class="num">${t("dropped")}</th><th class="num">${t("bytes")}</th><th></th></tr></thead>
        <tbody>${streams.map((row) => { const id = row.stream ?? row.name; return html`<tr key=${id} class=${id === name ? "chosen" : ""}><td><button type="button" class="link" onClick=${() => setShown(id)}>${id}</button>${row.durable && html` <span class="badge quiet">durable</span>`}</td><td class="num">${number(seen.current.get(id)?.at(-1)?.rate)}${t("per_s")}</td><td class="num">${row.seq}</td><td class="num">${row.subscribers ?? "–"}</td><td class="num">${row.lag ?? row.lag_max ?? "–"}</td><td class="num ${row.dropped ? "warn" : ""}">${row.dropped ?? "–"}</td><td class="num">${bytes(row.bytes)}</td>
          <td>${may("operator") && html`<button type="button" aria-pressed=${followed === id} onClick=${() => setFollowed(followed === id ? null : id)}>${followed === id ? t("stop_tail") : t("tail")}</button>`}</td></tr>`; })}</tbody></table></div>`}
    </section>
    ${points.length > 1 && html`<section class="card"><h2>${t("stream_rate")}: ${name}</h2><${Plot} key=${name} label=${t("stream_rate")} columns=${columns} series=${[{ label: name, colour: "--accent", fill: true }]} /></section>`}
    ${followed && html`<${Tail} key=${followed} name=${followed} />`}`;
}
