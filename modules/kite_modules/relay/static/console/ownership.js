// Who owns what, by epoch; what waits to be recovered; which replicas are there.

import { html } from "../vendor/preact-htm.js";
import { Badge, Empty, Trouble, useLoaded, useStore } from "./parts.js";
import { call } from "./state.js";
import { number, since, t } from "./words.js";

const EVERY_MS = 3000;

export function Page() {
  useStore();
  const owned = useLoaded(() => call("ownership.list"), EVERY_MS);
  const waiting = useLoaded(() => call("recovery.list"), EVERY_MS);
  const copies = useLoaded(() => call("replica.list"), EVERY_MS);
  const records = owned.data?.records ?? [], recoveries = waiting.data?.recoveries ?? [], replicas = copies.data?.replicas ?? [];
  const table = (label, heads, rows) => html`<div class="scroll" tabindex="0" role="region" aria-label=${label}><table class="plain"><thead><tr>${heads.map((head) => html`<th key=${head}>${t(head)}</th>`)}</tr></thead><tbody>${rows}</tbody></table></div>`;
  return html`<section class="card"><h1>${t("ownership")}</h1><h2>${t("owners")}</h2><${Trouble} error=${owned.data ? null : owned.error} />
      ${owned.data && (records.length === 0 ? html`<${Empty}>${t("no_keys")}<//>` : table(t("owners"), ["key", "m_state", "owner", "since", "epoch"], records.map((row) => html`<tr key=${row.key}><td>${row.key}</td><td><${Badge} word=${row.state} /></td><td>${row.owner?.replica_id ?? "–"}</td><td>${row.owner?.since ? since(row.owner.since) : "–"}</td><td class="num">${row.epoch}</td></tr>`)))}</section>
    <section class="card"><h2>${t("recoveries")}</h2><${Trouble} error=${waiting.data ? null : waiting.error} />
      ${waiting.data && (recoveries.length === 0 ? html`<${Empty}>${t("no_recoveries")}<//>` : table(t("recoveries"), ["key", "m_state", "cause", "why"], recoveries.map((row) => html`<tr key=${row.recovery_id}><td>${row.key}</td><td><${Badge} word=${row.state} /></td><td>${row.cause}</td><td>${row.why ?? ""}</td></tr>`)))}</section>
    <section class="card"><h2>${t("replicas")}</h2><${Trouble} error=${copies.data ? null : copies.error} />
      ${copies.data && (replicas.length === 0 ? html`<${Empty}>${t("no_replicas")}<//>` : table(t("replicas"), ["m_module", "m_state", "beat", "tasks"], replicas.map((row) => html`<tr key=${row.replica_id}><td>${row.module_id ?? row.replica_id}</td><td><${Badge} word=${row.state} /></td><td>${number(row.beat_age_s)} s</td><td class="num">${row.tasks ?? "–"}</td></tr>`)))}</section>`;
}
