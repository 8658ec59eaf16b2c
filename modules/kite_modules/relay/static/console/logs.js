// What modules printed: follow, filter, search; by the module `logs`.

import { html, useEffect, useRef, useState } from "../vendor/preact-htm.js";
import { Empty, Trouble, useStore } from "./parts.js";
import { call, store } from "./state.js";
import { clock, t } from "./words.js";

const KEPT = 2000;
const EVERY_MS = 1000;

/** Lines of some modules; follows by asking for what came after the last one. */
export function LogLines({ modules = [], grep = "", limit = 500, follow = true }) {
  const [lines, setLines] = useState(null), [error, setError] = useState(null);
  const box = useRef(null), low = useRef(true);
  useEffect(() => {
    let live = true, timer = null, after;
    const again = async () => {
      const wish = { limit };
      if (modules.length) wish.modules = modules;
      if (grep) wish.grep = grep;
      if (after !== undefined && after !== null) wish.after = after;
      try {
        const answer = await call("logs.query", wish);
        if (!live) return;
        const fresh = answer.lines ?? answer.rows ?? [];
        const first = after === undefined;
        after = answer.after ?? answer.next ?? answer.cursor ?? after ?? null;
        setError(null);
        if (first || after === null) setLines(fresh);
        else if (fresh.length) setLines((old) => (old ?? []).concat(fresh).slice(-KEPT));
      } catch (trouble) {
        if (live) setError(trouble);
      }
      if (live && follow) timer = setTimeout(again, EVERY_MS);
    };
    setLines(null);
    again();
    return () => { live = false; clearTimeout(timer); };
  }, [modules.join(), grep, limit, follow]);
  useEffect(() => { if (low.current && box.current) box.current.scrollTop = box.current.scrollHeight; }, [lines]);
  const scrolled = () => { const { scrollTop, scrollHeight, clientHeight } = box.current; low.current = scrollHeight - scrollTop - clientHeight < 24; };
  if (error && !lines) return html`<${Trouble} error=${error} module="logs" />`;
  if (lines === null) return html`<${Empty}>${t("loading")}<//>`;
  return html`<div class="log" ref=${box} onScroll=${scrolled} tabindex="0" role="log" aria-label=${t("logs")} aria-live="off">
    ${lines.length === 0 && html`<${Empty}>${t("no_lines")}<//>`}
    ${lines.map((row, i) => html`<div key=${i} class=${row.stream === "err" ? "err" : ""}><time>${clock(row.time)}</time>${modules.length !== 1 && html`<b>${row.module}</b>`}<span>${row.line}</span></div>`)}</div>`;
}

export function Page() {
  useStore();
  const [module, setModule] = useState(""), [typed, setTyped] = useState(""), [grep, setGrep] = useState(""), [follow, setFollow] = useState(true);
  const submit = (event) => { event.preventDefault(); setGrep(typed); };
  return html`<section class="card tall"><form class="bar" onSubmit=${submit}><h1>${t("logs")}</h1>
      <select aria-label=${t("m_module")} value=${module} onChange=${(e) => setModule(e.target.value)}><option value="">${t("all_modules")}</option>${["kernel", "launcher", "watchdog", "logkeeper", ...store.rows.keys()].map((name) => html`<option key=${name} value=${name}>${name}</option>`)}</select>
      <input type="search" placeholder=${t("search")} aria-label=${t("search")} value=${typed} onInput=${(e) => setTyped(e.target.value)} spellcheck=${false} />
      <button>${t("run_search")}</button>
      <label class="check"><input type="checkbox" checked=${follow} onChange=${(e) => setFollow(e.target.checked)} /><span>${t("follow")}</span></label></form>
    <${LogLines} modules=${module ? [module] : []} grep=${grep} follow=${follow} /></section>`;
}
