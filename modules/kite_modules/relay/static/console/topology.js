// Who calls whom, with live rates: a picture, and the same as a table for whoever can't see it.

import { html } from "../vendor/preact-htm.js";
import { Empty } from "./parts.js";
import { store } from "./state.js";
import { number, t } from "./words.js";

const NODES = 24; // more would be a hairball
const WIDE = 340, HIGH = 260;

function layout(edges) {
  const names = [];
  for (const edge of edges) for (const name of [edge.from, edge.to]) if (!names.includes(name) && names.length < NODES) names.push(name);
  names.sort();
  const places = new Map();
  names.forEach((name, i) => {
    const angle = (i / names.length) * 2 * Math.PI - Math.PI / 2;
    places.set(name, { x: WIDE / 2 + Math.cos(angle) * (WIDE / 2 - 62), y: HIGH / 2 + Math.sin(angle) * (HIGH / 2 - 26) });
  });
  return places;
}

function Edge({ edge, from, to }) {
  const bend = 0.18, mx = (from.x + to.x) / 2 + (to.y - from.y) * bend, my = (from.y + to.y) / 2 - (to.x - from.x) * bend;
  const width = edge.rate > 0 ? Math.min(5, 1.2 + Math.log10(1 + edge.rate) * 1.4) : 1;
  return html`<path class=${edge.rate > 0 ? "edge live" : "edge"} d="M${from.x.toFixed(1)} ${from.y.toFixed(1)}Q${mx.toFixed(1)} ${my.toFixed(1)} ${to.x.toFixed(1)} ${to.y.toFixed(1)}" stroke-width=${width.toFixed(1)} marker-end="url(#arrow)" />`;
}

export function Topology() {
  const edges = store.flows.filter((edge) => edge.from !== edge.to);
  const places = layout(edges);
  const shown = edges.filter((edge) => places.has(edge.from) && places.has(edge.to));
  return html`<section class="card topology">
    <div class="bar"><h2>${t("topology")}</h2></div>
    ${shown.length === 0 ? html`<${Empty}>${t("no_flows")}<//>` : html`
      <svg class="graph" viewBox="0 0 ${WIDE} ${HIGH}" aria-hidden="true">
        <defs><marker id="arrow" viewBox="0 0 8 8" refX="15" refY="4" markerWidth="7" markerHeight="7" markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0 8 4 0 8Z" /></marker></defs>
        ${shown.map((edge) => html`<${Edge} key=${`${edge.from}>${edge.to}`} edge=${edge} from=${places.get(edge.from)} to=${places.get(edge.to)} />`)}
        ${[...places].map(([name, at]) => html`<g key=${name} transform="translate(${at.x.toFixed(1)} ${at.y.toFixed(1)})"><circle r="6" class=${store.rows.get(name)?.state ?? "other"} /><text y=${at.y > HIGH / 2 ? 20 : -11} text-anchor="middle">${name.length > 18 ? `${name.slice(0, 17)}…` : name}</text></g>`)}
      </svg>
      <div class="scroll" tabindex="0" role="region" aria-label=${t("topology")}><table class="plain"><thead><tr><th>${t("from")}</th><th>${t("to")}</th><th class="num">${t("rate")}</th><th class="num">${t("total")}</th></tr></thead>
        <tbody>${edges.slice(0, 30).map((edge) => html`<tr key=${`${edge.from}>${edge.to}`}><td>${edge.from}</td><td>${edge.to}</td><td class="num">${number(edge.rate)}${t("per_s")}</td><td class="num">${edge.calls}</td></tr>`)}</tbody></table></div>`}
    ${store.traffic.length > 0 && html`<h3>${t("publishes")}</h3><ul class="rates">${store.traffic.slice(0, 8).map((row) => html`<li key=${row.from + row.topic}><span>${row.from || "–"} → <b>${row.topic}.*</b></span><span class="num">${number(row.rate)}${t("per_s")}</span></li>`)}</ul>`}
  </section>`;
}
