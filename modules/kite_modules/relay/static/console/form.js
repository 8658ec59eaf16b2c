// A form made from a method's JSON Schema: one field a parameter; what no field can hold is written as JSON.

import { html, useState } from "../vendor/preact-htm.js";
import { t } from "./words.js";

/** The kind of field for a schema: text, number, integer, boolean, choice or json; `null` among the types = may be left out. */
export function kindOf(schema = {}) {
  if (Array.isArray(schema.enum)) return { kind: "choice", values: schema.enum };
  const some = schema.anyOf ?? schema.oneOf;
  if (some) {
    const rest = some.filter((one) => one.type !== "null");
    return rest.length === 1 ? kindOf(rest[0]) : { kind: "json" };
  }
  const type = Array.isArray(schema.type) ? schema.type.find((one) => one !== "null") : schema.type;
  return { kind: { string: "text", number: "number", integer: "integer", boolean: "boolean" }[type] ?? "json" };
}

/** What was typed as a value; undefined = left out. Throws with the field's name. */
export function valueOf(name, kind, typed, required) {
  if (kind.kind === "boolean") return typed === undefined ? undefined : Boolean(typed);
  if (kind.kind === "choice") return typed === undefined || typed === "" ? undefined : kind.values[Number(typed)];
  if (kind.kind === "text") return typed === undefined || (typed === "" && !required) ? undefined : typed;
  if (typed === undefined || typed.trim() === "") return undefined;
  if (kind.kind === "json") {
    try { return JSON.parse(typed); } catch { throw new Error(`${name}: ${t("bad_json")}`); }
  }
  const value = Number(typed);
  if (!Number.isFinite(value)) throw new Error(`${name}: ${typed}`);
  return value;
}

function Field({ name, schema, required, typed, onType }) {
  const kind = kindOf(schema);
  const label = html`<span>${name}${required && html` <em>${t("required")}</em>`}</span>`;
  const hint = schema.description ?? "";
  const shown = typed ?? (schema.default === undefined || schema.default === null ? "" : kind.kind === "json" ? JSON.stringify(schema.default) : schema.default);
  if (kind.kind === "boolean") return html`<label class="check" title=${hint}><input type="checkbox" checked=${typed ?? schema.default ?? false} onChange=${(e) => onType(e.target.checked)} />${label}</label>`;
  if (kind.kind === "choice") return html`<label title=${hint}>${label}<select value=${typed ?? ""} onChange=${(e) => onType(e.target.value)}><option value=""></option>${kind.values.map((value, i) => html`<option key=${i} value=${i}>${String(value)}</option>`)}</select></label>`;
  if (kind.kind === "json") return html`<label title=${hint}>${label}<textarea rows="2" spellcheck=${false} value=${shown} onInput=${(e) => onType(e.target.value)}></textarea></label>`;
  return html`<label title=${hint}>${label}<input type=${kind.kind === "text" ? "text" : "number"} step=${kind.kind === "integer" ? 1 : "any"} value=${shown} onInput=${(e) => onType(e.target.value)} spellcheck=${false} /></label>`;
}

export function Form({ schema, onSubmit, busy, mayCall }) {
  const [typed, setTyped] = useState({}), [whole, setWhole] = useState("{}"), [wrong, setWrong] = useState("");
  const fields = Object.entries(schema?.properties ?? {});
  const required = schema?.required ?? [];
  const free = !schema || (fields.length === 0 && schema.additionalProperties !== false && !("properties" in schema));
  const submit = (event) => {
    event.preventDefault();
    try {
      let params;
      if (free) params = valueOf(t("params"), { kind: "json" }, whole) ?? {};
      else params = Object.fromEntries(fields.map(([name, one]) => [name, valueOf(name, kindOf(one), typed[name], required.includes(name))]).filter(([, value]) => value !== undefined));
      setWrong("");
      onSubmit(params);
    } catch (error) {
      setWrong(error.message);
    }
  };
  return html`<form class="call" onSubmit=${submit}>
    ${free ? html`<label><span>${t("params")}</span><textarea rows="3" spellcheck=${false} value=${whole} onInput=${(e) => setWhole(e.target.value)}></textarea></label>`
      : fields.map(([name, one]) => html`<${Field} key=${name} name=${name} schema=${one} required=${required.includes(name)} typed=${typed[name]} onType=${(value) => setTyped((old) => ({ ...old, [name]: value }))} />`)}
    ${wrong && html`<p class="error" role="alert">${wrong}</p>`}
    <div class="buttons"><button class="primary" disabled=${busy || !mayCall}>${t("call")}</button></div>
  </form>`;
}
