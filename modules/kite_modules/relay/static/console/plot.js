// Plots over time, by uPlot, which is fetched when the first one is drawn.

import { html, useEffect, useRef } from "../vendor/preact-htm.js";

let library = null;
function load() {
  library ??= new Promise((resolve, reject) => {
    const sheet = Object.assign(document.createElement("link"), { rel: "stylesheet", href: "/static/vendor/uplot.css" });
    const script = Object.assign(document.createElement("script"), { src: "/static/vendor/uplot.js", onload: () => resolve(globalThis.uPlot), onerror: () => reject(new Error("uPlot")) });
    document.head.append(sheet, script);
  });
  return library;
}

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** columns: [[x seconds], [y], …]; series: [{label, colour: "--accent", unit}]. */
export function Plot({ columns, series, label, height = 200 }) {
  const place = useRef(null), chart = useRef(null), last = useRef(columns);
  last.current = columns;
  useEffect(() => {
    let live = true, watch = null;
    load().then((UPlot) => {
      if (!live || !place.current) return;
      const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
      const options = {
        width: Math.max(200, place.current.clientWidth), height, legend: { show: true, live: false }, cursor: { y: false },
        scales: { y: { range: (_, min, max) => [0, Math.max(max ?? 1, 0.001) * 1.1] } },
        axes: [axis, { ...axis, size: 56, values: (_, ticks) => ticks.map((value) => `${+value.toFixed(3)}${series[0].unit ?? ""}`) }],
        series: [{}, ...series.map((one) => ({ label: one.label, stroke: colour(one.colour), width: 1.6, points: { show: false }, spanGaps: true, fill: one.fill ? `${colour(one.colour)}22` : undefined }))],
      };
      chart.current = new UPlot(options, last.current, place.current);
      watch = new ResizeObserver(() => place.current && chart.current?.setSize({ width: Math.max(200, place.current.clientWidth), height }));
      watch.observe(place.current);
    }, () => {});
    return () => { live = false; watch?.disconnect(); chart.current?.destroy(); chart.current = null; };
  }, [document.documentElement.lang, document.documentElement.dataset.theme]);
  useEffect(() => { chart.current?.setData(columns); }, [columns]);
  return html`<div class="plot" ref=${place} role="img" aria-label=${label}></div>`;
}
