// The page: a login, or the frame with its pages. Routes are the part of the address after "#".

import { html, render, useEffect, useLayoutEffect, useRef, useState } from "../vendor/preact-htm.js";
import { Overview } from "./overview.js";
import { Fence, Question, Toasts, useStore } from "./parts.js";
import { backToPassword, begin, changed, giveCode, may, shownState, signIn, signOut, store, wire } from "./state.js";
import { keep, language, t, theme, useLanguage, useTheme } from "./words.js";

const LATER = { // pages beside the first screen are fetched when they are asked for
  module: () => import("./module.js"), streams: () => import("./streams.js"), logs: () => import("./logs.js"),
  ownership: () => import("./ownership.js"), audit: () => import("./audit.js"), chat: () => import("./chat.js"),
};
const NAV = [["overview", "viewer"], ["streams", "viewer"], ["logs", "viewer"], ["ownership", "viewer"], ["audit", "admin"], ["chat", "operator"]];

function LangSwitch() {
  const next = () => { useLanguage(language() === "zh" ? "en" : "zh"); keep("kite.lang", language()); changed(); };
  return html`<button type="button" class="plain" data-test="lang-switch" lang=${language() === "zh" ? "en" : "zh"} aria-label=${t("other_lang_label")} onClick=${next}>${t("other_lang")}</button>`;
}

function ThemeSwitch() {
  const order = ["auto", "light", "dark"];
  const next = () => { const name = order[(order.indexOf(theme) + 1) % 3]; useTheme(name); keep("kite.theme", name); changed(); };
  const icon = { auto: "◐", light: "☀", dark: "☾" }[theme];
  return html`<button type="button" class="plain icon" aria-label="${t("theme")}: ${t(`theme_${theme}`)}" title="${t("theme")}: ${t(`theme_${theme}`)}" onClick=${next}>${icon}</button>`;
}

// ------------------------------------------------------------------ login

function Login() {
  useStore();
  const { phase, error } = store;
  const [user, setUser] = useState(""), [password, setPassword] = useState(""), [code, setCode] = useState("");
  const first = useRef(null), typed = useRef(false);
  const second = phase === "code" || (phase === "busy" && code !== "");
  useEffect(() => { first.current?.focus(); }, [second, phase === "login"]);
  // Before anything else happens on the page: what somebody types next is never cleared.
  useLayoutEffect(() => { if (phase === "login") { setCode(""); if (error) setPassword(""); } }, [phase, error]);
  const submit = (event) => {
    event.preventDefault();
    if (phase === "busy") return;
    if (phase === "code") return giveCode(code);
    // A click that was meant for the step before must not try the same words again: something is typed first.
    if (error && !typed.current) return;
    typed.current = false;
    signIn(user.trim(), password);
  };
  const typeCode = (event) => {
    setCode(event.target.value);
    if (phase === "code" && /^[0-9]{6}$/.test(event.target.value)) giveCode(event.target.value);
  };
  const busy = phase === "busy";
  return html`<main class="login">
    <div class="corner"><${ThemeSwitch} /><${LangSwitch} /></div>
    <form onSubmit=${submit} aria-busy=${busy}>
      <img src="/static/kite.svg" alt="" width="56" height="56" />
      <h1>${t("title")}</h1>
      <p class="quiet">${second ? t("code_head") : t("sign_in_to")}</p>
      ${error && html`<p class="error" role="alert" data-test="login-error">${t(error)}</p>`}
      ${second
        ? html`<label key="code">${t("code")}<input ref=${first} data-test="login-code" name="code" value=${code} onInput=${typeCode} autocomplete="one-time-code" inputmode="text" autocapitalize="none" spellcheck=${false} disabled=${busy} maxlength="64" required /></label>`
        : html`<label key="user">${t("user")}<input ref=${first} data-test="login-user" name="username" value=${user} onInput=${(e) => { typed.current = true; setUser(e.target.value); }} autocomplete="username" autocapitalize="none" spellcheck=${false} disabled=${busy} maxlength="64" required /></label>
          <label key="password">${t("password")}<input data-test="login-password" name="password" type="password" value=${password} onInput=${(e) => { typed.current = true; setPassword(e.target.value); }} autocomplete="current-password" disabled=${busy} maxlength="1024" required /></label>`}
      <button class="primary" data-test="login-submit" disabled=${busy}>${busy ? t("signing_in") : second ? t("next") : t("sign_in")}</button>
      ${phase === "code" && html`<button type="button" class="plain" onClick=${backToPassword}>${t("back")}</button>`}
    </form>
  </main>`;
}

// ------------------------------------------------------------------ frame

function Connection() {
  useStore();
  const { dueAt, reason } = store.connection;
  const name = shownState();
  const [, tick] = useState(0);
  useEffect(() => {
    if (name !== "waiting") return undefined;
    const timer = setInterval(() => tick((n) => n + 1), 500);
    return () => clearInterval(timer);
  }, [name]);
  const left = dueAt === null ? t("offline") : t("due", Math.max(0, Math.ceil((dueAt - Date.now()) / 1000)));
  return html`<div class="connection" data-test="connection-state" data-state=${name} title=${reason}>
    <i class="dot" aria-hidden="true"></i><span role="status">${t(`s_${name}`)}</span>
    ${name === "waiting" && html`<span class="due">${left}</span><button type="button" onClick=${() => wire()?.retryNow()}>${t("retry")}</button>`}
    ${name === "stopped" && html`<button type="button" onClick=${begin}>${t("retry")}</button>`}
  </div>`;
}

function useRoute() {
  const read = () => location.hash.replace(/^#\/?/, "") || "overview";
  const [route, setRoute] = useState(read);
  useEffect(() => {
    const go = () => { setRoute(read()); document.getElementById("content")?.focus(); scrollTo(0, 0); };
    addEventListener("hashchange", go);
    return () => removeEventListener("hashchange", go);
  }, []);
  return route;
}

function Page({ name, rest }) {
  const [views, setViews] = useState({});
  const view = name === "overview" ? Overview : views[name];
  useEffect(() => {
    if (view || !LATER[name]) return;
    LATER[name]().then((room) => setViews((old) => ({ ...old, [name]: room.Page })), (error) => setViews((old) => ({ ...old, [name]: () => html`<p class="hint">${error.message}</p>` })));
  }, [name]);
  if (!view && !LATER[name]) return html`<p class="hint">${t("not_found")}</p>`;
  return view ? html`<${Fence} of=${name + rest}><${view} key=${rest} of=${rest} /><//>` : html`<p class="hint">${t("loading")}</p>`;
}

function Shell() {
  useStore();
  const route = useRoute();
  const slash = route.indexOf("/");
  const name = slash < 0 ? route : route.slice(0, slash);
  let rest = slash < 0 ? "" : route.slice(slash + 1);
  try { rest = decodeURIComponent(rest); } catch { /* shown as it is */ }
  const here = name === "module" ? "overview" : name;
  return html`<div class="shell">
    <a class="skip" href="#content" onClick=${(e) => { e.preventDefault(); document.getElementById("content").focus(); }}>${t("skip")}</a>
    <header>
      <a class="brand" href="#/overview"><img src="/static/kite.svg" alt="" width="26" height="26" /><b>${store.head.instance ?? t("title")}</b></a>
      <nav aria-label=${t("menu")}>${NAV.filter(([, role]) => may(role)).map(([page]) => html`<a key=${page} href="#/${page}" aria-current=${here === page ? "page" : undefined}>${t(`nav_${page}`)}</a>`)}</nav>
      <div class="tools">
        <${Connection} />
        <span class="who" title=${t(`role_${store.role}`)}>${store.user}</span>
        <${ThemeSwitch} /><${LangSwitch} />
        <button type="button" class="plain" onClick=${signOut}>${t("logout")}</button>
      </div>
    </header>
    <main id="content" tabindex="-1"><${Page} name=${name} rest=${rest} /></main>
    <${Toasts} /><${Question} />
  </div>`;
}

function App() {
  const { phase } = useStore();
  useEffect(() => { document.title = store.head.instance ? `${store.head.instance} · Kite` : "Kite"; });
  if (phase === "inside") return html`<${Shell} />`;
  if (phase === "starting") {
    return html`<main class="login"><div class="corner"><${ThemeSwitch} /><${LangSwitch} /></div><img src="/static/kite.svg" alt="" width="56" height="56" /><${Connection} /></main>`;
  }
  return html`<${Login} />`;
}

render(html`<${App} />`, document.getElementById("app"));
begin();
