// The first screen: is everything all right, what broke, what changed.

import { Component, html, useEffect, useMemo, useState } from "../vendor/preact-htm.js";
import { Badge, Empty, isUnderWay, order, Spark, useStore } from "./parts.js";
import { may, store } from "./state.js";
import { Topology } from "./topology.js";
import { bytes, clock, number, since, t } from "./words.js";

const BLOCK = 25; // rows that are drawn together: a frame of 1,000 is made of many small tasks
const SHOWN_EVENTS = 60;
const BAD = ["failed", "backoff"];

// ------------------------------------------------------------------ verdict

function verdict(head, rows) {
  const state = ["ok", "degraded", "failed"].includes(head.state) ? head.state : "unknown";
  const list = [...rows.values()];
  const trouble = list.filter((row) => BAD.includes(row.state) || row.state === "starting" || row.state === "stopping" || (row.state === "running" && row.ready === false));
  const named = trouble.slice(0, 4).map((row) => `${row.name}: ${t(`st_${row.state}`)}`).join(" · ");
  const own = Object.entries(head.own ?? {}).filter(([, row]) => row.state && row.state !== "running").map(([name, row]) => `${t(`own_${name}`)}: ${row.state}`).join(" · ");
  const text = state === "ok" ? t("v_running", list.length) : [own, named, trouble.length > 4 ? "…" : ""].filter(Boolean).join(" · ");
  if (state !== "unknown") return { state, text };
  return { state, text: head.state === "unknown" && list.length ? t("v_alone", list.length) : head.state === "stopped" ? t("v_stopped") : "" };
}

function Verdict() {
  const { head, rows, synced } = store;
  const { state, text } = verdict(head, rows);
  return html`<section class="verdict" data-test="verdict" data-state=${state} aria-live="polite">
    <i class="lamp" aria-hidden="true"></i>
    <div><h1>${t(`v_${state}`)}</h1><p>${synced ? text : t("v_away")}</p></div>
    <ul class="own">${["kernel", "launcher", "watchdog"].map((name) => {
      const row = head.own?.[name];
      if (!row?.pid) return null;
      return html`<li key=${name}><b>${t(`own_${name}`)}</b><span>${t("pid")} ${row.pid}</span><span>${t("up", since(row.since))}</span><span>${number(row.cpu)} % · ${bytes(row.memory)}</span></li>`;
    })}</ul>
  </section>`;
}

// ------------------------------------------------------------------ modules

class Row extends Component {
  shouldComponentUpdate(next) {
    return next.row !== this.props.row || next.line !== this.props.line || next.lang !== this.props.lang || next.busy !== this.props.busy || next.mayAct !== this.props.mayAct;
  }
  render({ row, line, busy, mayAct }) {
    const { name, state } = row;
    return html`<div class="row" role="row" data-test="module-row" data-module=${name} data-state=${state}>
      <div role="cell" class="name"><a href="#/module/${encodeURIComponent(name)}">${name}</a>${row.why && state !== "running" && html`<small>${row.why}</small>`}</div>
      <div role="cell" data-label=${t("m_state")}><${Badge} word=${state} text=${t(`st_${state}`)} /></div>
      <div role="cell" data-label=${t("m_grade")}>${row.grade ? html`<span class="grade ${row.grade}">${t(`g_${row.grade}`)}</span>` : "–"}</div>
      <div role="cell" class="num" data-label=${t("m_restarts")}>${row.restarts ?? "–"}</div>
      <div role="cell" class="num" data-label=${t("m_cpu")}>${Number.isFinite(row.cpu) ? `${number(row.cpu)} %` : "–"}</div>
      <div role="cell" class="num" data-label=${t("m_memory")}>${bytes(row.memory)}</div>
      <div role="cell" class="num ${["warning", "critical"].includes(row.pressure) ? "warn" : ""}" data-label=${t("m_queue")}>${row.queue ?? "–"}</div>
      <div role="cell" class="num rtt" data-label=${t("m_rtt")}><${Spark} values=${line} label=${t("spark", number(row.rtt, 2))} /><span>${Number.isFinite(row.rtt) ? `${number(row.rtt, 1)} ms` : "–"}</span></div>
      <div role="cell" class="act">${mayAct && html`<button type="button" data-test="restart-button" aria-label="${t("restart")} ${name}" disabled=${busy} onClick=${() => order("restart", name)}>${t("restart")}</button>`}</div>
    </div>`;
  }
}

class Block extends Component {
  shouldComponentUpdate(next) {
    const { rows, stamp } = this.props;
    return stamp !== next.stamp || rows.length !== next.rows.length || rows.some((row, i) => row !== next.rows[i]);
  }
  render({ rows, lang, mayAct }) {
    return html`<div class="block" role="rowgroup">${rows.map((row) => html`<${Row} key=${row.name} row=${row} line=${store.rtt.get(row.name)} lang=${lang} busy=${isUnderWay(row.name)} mayAct=${mayAct} />`)}</div>`;
  }
}

function Modules() {
  const [filter, setFilter] = useState("");
  const all = [...store.rows.values()];
  const wanted = filter.trim().toLowerCase();
  const rows = wanted ? all.filter((row) => `${row.name} ${row.state} ${row.grade} ${t(`st_${row.state}`)}`.toLowerCase().includes(wanted)) : all;
  const blocks = [];
  for (let at = 0; at < rows.length; at += BLOCK) blocks.push(rows.slice(at, at + BLOCK));
  const [drawn, setDrawn] = useState(1);
  useEffect(() => {
    if (drawn >= blocks.length) return undefined;
    const timer = setTimeout(() => setDrawn((n) => n + 1), 0);
    return () => clearTimeout(timer);
  }, [drawn, blocks.length]);
  const lang = document.documentElement.lang;
  const mayAct = may("operator") && store.head.instance !== null;
  const busy = rows.filter((row) => isUnderWay(row.name)).map((row) => row.name).join();
  const heads = ["m_module", "m_state", "m_grade", "m_restarts", "m_cpu", "m_memory", "m_queue", "m_rtt"];
  return html`<section class="card modules">
    <div class="bar"><h2>${t("modules")} <span class="count">${all.length}</span></h2>
      <input type="search" placeholder=${t("filter")} aria-label=${t("filter")} value=${filter} onInput=${(e) => setFilter(e.target.value)} /></div>
    <div class="table" role="table" aria-label=${t("modules")} aria-rowcount=${all.length + 1}>
      <div class="row head" role="row">${heads.map((name, i) => html`<div key=${name} role="columnheader" class=${i > 2 ? "num" : ""}>${t(name)}</div>`)}<div role="columnheader" class="act"><span class="hidden">${t("restart")}</span></div></div>
      ${blocks.slice(0, drawn).map((some) => html`<${Block} key=${some[0].name} rows=${some} lang=${lang} mayAct=${mayAct} stamp=${lang + mayAct + busy} />`)}
    </div>
    ${all.length === 0 && html`<${Empty}>${store.synced ? t("no_modules") : t("loading")}<//>`}
    ${all.length > 0 && rows.length === 0 && html`<${Empty}>${t("none_match")}<//>`}
  </section>`;
}

// ------------------------------------------------------------------ events

export function Events() {
  useStore("events");
  const [filter, setFilter] = useState("");
  const [held, setHeld] = useState(null); // the list as it was when paused
  const source = held ?? store.events;
  const wanted = filter.trim().toLowerCase();
  const shown = useMemo(() => {
    const rows = wanted ? source.filter((row) => `${row.event} ${row.source} ${row.data}`.toLowerCase().includes(wanted)) : source;
    return rows.slice(-SHOWN_EVENTS).reverse();
  }, [source, wanted]);
  const newer = held ? store.events.filter((row) => row.n > (held.at(-1)?.n ?? 0)).length : 0;
  return html`<section class="card events">
    <div class="bar"><h2>${t("events")}</h2>
      <input type="search" placeholder=${t("filter_events")} aria-label=${t("filter_events")} value=${filter} onInput=${(e) => setFilter(e.target.value)} />
      <button type="button" aria-pressed=${held !== null} onClick=${() => setHeld(held ? null : store.events)}>${held ? t("resume") : t("pause")}</button></div>
    ${held && html`<p class="hint">${t("events_paused", newer)}</p>`}
    ${store.skipped > 0 && html`<p class="hint">${t("missed", store.skipped)}</p>`}
    ${shown.length === 0 ? html`<${Empty}>${t("no_events")}<//>` : html`<ol class="feed" tabindex="0" aria-label=${t("events")}>${shown.map((row) => html`<li key=${row.n} data-test="event-row" data-n=${row.n} class=${row.event.startsWith("module.") || row.event.endsWith("alarm") ? "loud" : ""}>
      <time>${clock(row.time)}</time><b>${row.event}</b><span class="from">${row.source}</span><code>${row.data}</code></li>`)}</ol>`}
  </section>`;
}

export function Overview() {
  useStore();
  const few = store.rows.size <= 12; // then there is room below the table; a long table would bury the picture
  return html`<${Verdict} />
    <div class="columns first">
      <div class="side"><${Modules} />${few && html`<${Topology} />`}</div>
      <div class="side"><${Events} />${!few && html`<${Topology} />`}</div>
    </div>`;
}

