// One module: its numbers, what happened to it, its round trip over time, its methods with a form, its log.

import { html, useEffect, useMemo, useState } from "../vendor/preact-htm.js";
import { Form } from "./form.js";
import { LogLines } from "./logs.js";
import { Badge, Empty, isUnderWay, order, Trouble, useLoaded, useStore } from "./parts.js";
import { Plot } from "./plot.js";
import { call, may, store } from "./state.js";
import { bytes, number, since, stamp, t } from "./words.js";

const OWN = ["kernel", "launcher", "watchdog"];

function Head({ name, row, story }) {
  const state = story?.state ?? row?.state;
  const busy = isUnderWay(name);
  const acts = may("operator") && row && !OWN.includes(name) ? (["running", "starting", "backoff"].includes(row.state) ? ["restart", "stop"] : ["start"]) : [];
  return html`<section class="card">
    <div class="bar"><h1>${name}</h1>${state && html`<${Badge} word=${state} text=${t(`st_${state}`)} />`}
      <div class="buttons">${acts.map((what) => html`<button key=${what} type="button" disabled=${busy} data-test="${what}-module" onClick=${() => order(what, name)}>${t(what)}</button>`)}</div></div>
    ${story?.why && html`<p>${story.why}</p>`}
    ${story?.budget && html`<p class="quiet">${t("budget", story.budget.left, story.budget.of, story.budget.within_s)}</p>`}
    ${row && html`<dl class="facts">
      ${[["m_grade", row.grade ? t(`g_${row.grade}`) : "–"], ["score", number(row.score)], ["pid", row.pid ?? "–"], ["since", row.since ? since(row.since) : "–"], ["m_restarts", row.restarts ?? "–"], ["reconnects", row.reconnects ?? "–"],
        ["m_cpu", Number.isFinite(row.cpu) ? `${number(row.cpu)} %` : "–"], ["m_memory", bytes(row.memory)], ["m_queue", row.queue ?? "–"], ["calls_now", row.calls ?? "–"], ["in_out", `${number(row.in_rate)} / ${number(row.out_rate)}${t("per_s")}`], ["m_rtt", Number.isFinite(row.rtt) ? `${number(row.rtt, 2)} ms (p95 ${number(row.p95, 2)})` : "–"]]
        .map(([key, value]) => html`<div key=${key}><dt>${t(key)}</dt><dd>${value}</dd></div>`)}</dl>`}
  </section>`;
}

function Timeline({ story, error }) {
  const rows = [...(story?.timeline ?? [])].reverse();
  return html`<section class="card"><h2>${t("timeline")}</h2><${Trouble} error=${error} module="launcher" />
    ${rows.length === 0 ? html`<${Empty}>${t("no_timeline")}<//>` : html`<ol class="timeline">${rows.map((row, i) => html`<li key=${row.at + i}><time title=${stamp(row.at)}>${stamp(row.at)}</time><b>${row.event}</b>${row.cause && html` <span>${row.cause}</span>`}${row.detail && html` <small>${typeof row.detail === "string" ? row.detail : JSON.stringify(row.detail)}</small>`}</li>`)}</ol>`}
  </section>`;
}

function Latency({ name }) {
  const points = store.latency.get(name) ?? [];
  const columns = useMemo(() => [points.map((p) => p[0]), points.map((p) => p[1]), points.map((p) => p[2] ?? null)], [points.length, points.at(-1)?.[0]]);
  return html`<section class="card"><h2>${t("latency")}</h2>${points.length < 2 ? html`<${Empty}>${t("no_latency")}<//>` : html`<${Plot} label=${t("latency")} columns=${columns} series=${[{ label: t("m_rtt"), colour: "--accent", unit: " ms", fill: true }, { label: "p95", colour: "--warn" }]} />`}</section>`;
}

function Method({ module, method }) {
  const name = typeof method === "string" ? method : method.name;
  const about = typeof method === "string" ? {} : method;
  const [answer, setAnswer] = useState(null);
  const run = async (params) => {
    setAnswer({ busy: true });
    const began = performance.now();
    const steps = [];
    try {
      const result = await call(`${module}.${name}`, params, { onProgress: (value) => { steps.push(value); setAnswer({ busy: true, steps: [...steps] }); } });
      setAnswer({ result, steps, ms: performance.now() - began });
    } catch (error) {
      setAnswer({ error, steps, ms: performance.now() - began });
    }
  };
  return html`<details class="method"><summary><code>${module}.${name}</code>${about.doc && html`<span>${about.doc.split("\n")[0]}</span>`}</summary>
    <${Form} schema=${about.params} onSubmit=${run} busy=${answer?.busy} mayCall=${may("operator") || name === "health"} />
    ${answer && html`<div class="answer" aria-live="polite">
      ${answer.busy && html`<p class="quiet">${t("calling")}</p>`}
      ${answer.steps?.length > 0 && html`<pre>${answer.steps.map((step) => JSON.stringify(step)).join("\n")}</pre>`}
      ${"result" in answer && html`<p class="quiet">${t("result")} · ${number(answer.ms, 1)} ms</p><pre>${JSON.stringify(answer.result, null, 2)}</pre>`}
      ${answer.error && html`<p class="error">${t("error")} ${answer.error.code ?? ""}: ${answer.error.message}</p>${answer.error.data !== undefined && html`<pre>${JSON.stringify(answer.error.data, null, 2)}</pre>`}`}
    </div>`}</details>`;
}

function Methods({ name }) {
  const { data, error } = useLoaded(() => call("registry.get_module", { module_id: name }), 15000, [name, store.rows.get(name)?.pid]);
  const methods = [...(data?.methods ?? [])].sort((a, b) => (a.name ?? a).localeCompare(b.name ?? b));
  return html`<section class="card"><h2>${t("methods")}</h2><${Trouble} error=${data ? null : error} />
    ${data && methods.length === 0 ? html`<${Empty}>${t("no_methods")}<//>` : methods.map((method) => html`<${Method} key=${method.name ?? method} module=${name} method=${method} />`)}</section>`;
}

export function Page({ of: name }) {
  useStore();
  const row = store.rows.get(name) ?? (OWN.includes(name) ? { ...store.head.own?.[name], name } : undefined);
  const known = `${row?.state}${row?.pid}${row?.restarts}`;
  const { data: story, error } = useLoaded(() => call("launcher.why", { name }), 10000, [name, known]);
  useEffect(() => { document.getElementById("content")?.focus(); }, []);
  if (!row && store.synced && error && error.code !== -32001) return html`<section class="card"><${Empty}>${t("no_module", name)}<//></section>`;
  return html`<${Head} name=${name} row=${row} story=${story} />
    <div class="columns even"><div class="side"><${Latency} name=${name} /><${Methods} name=${name} /></div>
    <div class="side"><${Timeline} story=${story} error=${story ? null : error} />
      <section class="card"><h2>${t("log_of")}</h2><${LogLines} modules=${[name]} limit=${200} follow=${true} /></section></div></div>`;
}
