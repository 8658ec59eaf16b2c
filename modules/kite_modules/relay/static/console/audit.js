// Who did what: the audit trail, newest first; by the module `audit`.

import { html } from "../vendor/preact-htm.js";
import { Badge, Empty, Trouble, useLoaded, useStore } from "./parts.js";
import { call } from "./state.js";
import { stamp, t } from "./words.js";

const EVERY_MS = 3000;

export function Page() {
  useStore();
  const { data, error } = useLoaded(() => call("audit.query", { limit: 200 }), EVERY_MS);
  const rows = [...(data?.rows ?? [])].sort((a, b) => (b.seq ?? 0) - (a.seq ?? 0));
  return html`<section class="card"><h1>${t("audit")}</h1><${Trouble} error=${data ? null : error} module="audit" />
    ${data && (rows.length === 0 ? html`<${Empty}>${t("no_audit")}<//>` : html`<div class="scroll" tabindex="0" role="region" aria-label=${t("audit")}><table class="plain"><thead><tr><th class="num">#</th><th>${t("when")}</th><th>${t("who")}</th><th>${t("what")}</th><th>${t("verdict")}</th><th>${t("details")}</th></tr></thead>
      <tbody>${rows.map((row) => { const about = row.data ?? {}; return html`<tr key=${row.seq}><td class="num">${row.seq}</td><td>${stamp(row.at ?? about.time)}</td><td>${about.user ?? row.source ?? "–"}${about.role && html` <small>${about.role}</small>`}</td><td><code>${about.method ?? row.event}</code></td><td>${about.verdict && html`<${Badge} word=${about.verdict === "refused" ? "refused" : "ok"} text=${about.verdict} />`}</td><td><small>${about.method ? [about.address, about.reason].filter(Boolean).join(" · ") : JSON.stringify(about)}</small></td></tr>`; })}</tbody></table></div>`)}</section>`;
}
