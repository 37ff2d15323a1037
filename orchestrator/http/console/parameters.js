// A form for a policy's JSON schema. Only changed values are sent.

import { field, h } from "./dom.js";

/** The form of a policy. */
export class ParameterForm {
  element = h("div", { class: "parameters" });
  schema = null;
  controls = [];

  /** What was entered stays, unless the schema is another. */
  show(schema) {
    if (!differs(schema, this.schema)) return;
    this.schema = schema;
    this.controls = Object.entries(schema?.properties ?? {})
      .filter(([name]) => name !== "name")
      .map(([name, about]) => [name, about, control(name, about)]);
    this.element.replaceChildren(...this.controls.map(([name, about, input]) =>
      field(name, input, [about.description, range(about)].filter(Boolean).join("; "))));
  }

  /** The changed parameters. Throws the fault of one. */
  values() {
    return Object.fromEntries(this.controls
      .map(([name, about, input]) => [name, read(name, about, input), about.default])
      .filter(([, value, usual]) => value !== undefined && differs(value, usual)));
  }
}

const differs = (one, other) => JSON.stringify(one) !== JSON.stringify(other);

/** The names of the parameters that are not the service's defaults. */
export const changed = (params, schema) =>
  Object.keys(params ?? {}).filter((name) => differs(params[name], schema?.properties[name]?.default));

/** Parameters as they are shown. */
export const shown = (params, names) => names.map((name) => h("code", {}, `${name}: ${JSON.stringify(params[name])}`));

/** The schema of values other than null; if there are several, the first. */
const kind = (about) => (about.anyOf ?? about.oneOf)?.find((one) => one.type !== "null") ?? about;

function control(name, about) {
  const one = kind(about);
  const value = about.default;
  if (one.enum?.includes(value)) return h("select", { name }, one.enum.map((item) => h("option", { value: item, selected: item === value }, item)));
  if (one.type === "boolean") return h("input", { type: "checkbox", name, checked: Boolean(value) });
  if (one.type === "integer" || one.type === "number") {
    return h("input", { type: "number", name, value: value ?? "", placeholder: about.anyOf ? "none" : "", min: one.minimum, max: one.maximum, step: one.type === "integer" ? 1 : "any" });
  }
  return h("input", { type: "text", name, value: JSON.stringify(value), spellcheck: "false" });
}

function read(name, about, input) {
  const one = kind(about);
  if (input.localName === "select") return input.value;
  if (one.type === "boolean") return input.checked;
  if (one.type === "integer" || one.type === "number") {
    if (!input.validity.valid) throw new Error(`${name}: ${input.validationMessage}`);
    if (input.value === "") return about.anyOf ? null : undefined;
    return Number(input.value);
  }
  try {
    return JSON.parse(input.value);
  } catch {
    throw new Error(`${name}: expected JSON, such as ${JSON.stringify(about.default)}`);
  }
}

function range(about) {
  const one = kind(about);
  const bounds = [["from", one.minimum], ["above", one.exclusiveMinimum], ["to", one.maximum], ["below", one.exclusiveMaximum]];
  return bounds.filter(([, value]) => value !== undefined && Math.abs(value) < 2 ** 31 - 1).map(([word, value]) => `${word} ${value}`).join(" ");
}
