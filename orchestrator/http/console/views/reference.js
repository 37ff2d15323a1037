// The API's endpoints, from /openapi.json.

import { get, refusal } from "../api.js";
import { h } from "../dom.js";

export class ReferenceView {
  constructor() {
    this.note = h("p", { class: "note", role: "status" });
    this.list = h("div", {});
    this.element = h("div", { class: "reference" },
      h("p", {}, "Every endpoint of this service. ", h("code", {}, "/openapi.json"), " is the same for programs."),
      this.note, this.list);
  }

  async enter() {
    try {
      const document = await get("openapi.json");
      this.note.textContent = "";
      this.list.replaceChildren(...Object.entries(document.paths).flatMap(([path, operations]) =>
        Object.entries(operations).map(([method, operation]) => endpoint(document, method, path, operation))));
    } catch (error) {
      this.note.replaceChildren(...refusal(error, () => this.enter()));
    }
  }
}

function endpoint(document, method, path, { summary, parameters = [], requestBody, responses }) {
  const body = resolved(document, requestBody?.content["application/json"].schema);
  const given = parameters.map(({ name, required, schema }) => [name, required, schema]);
  const fields = Object.entries(body?.properties ?? {}).map(([name, schema]) => [name, body.required?.includes(name), schema]);
  return h("details", {},
    h("summary", {}, h("code", {}, `${method.toUpperCase()} ${path}`), ` ${summary}`),
    table("Parameters", given), table("Body", fields),
    h("p", {}, `Answers: ${Object.entries(responses).map(([status, { description }]) => `${status} ${description}`).join(", ")}`));
}

function table(title, rows) {
  if (!rows.length) return null;
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": title }, h("table", { class: "list" },
    h("thead", {}, h("tr", {}, [title, "type", "about"].map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", {}, rows.map(([name, required, schema]) => h("tr", {},
      h("td", {}, h("code", {}, name), required ? " (required)" : ""),
      h("td", {}, type(schema)),
      h("td", { class: "wide" }, about(schema)))))));
}

function type(schema) {
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.anyOf) return [...new Set(schema.anyOf.map(type))].join(" or ");
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" or ");
  return schema.type === "array" ? `list of ${schema.items ? type(schema.items) : "any"}` : (schema.type ?? "any");
}

function about({ description = "", default: value }) {
  return value === undefined || value === null ? description : `${description}${description && "; "}default ${JSON.stringify(value)}`;
}

const resolved = (document, schema) => (schema?.$ref ? document.components.schemas[schema.$ref.split("/").pop()] : schema);
