// The API's endpoints, from /openapi.json.

import { get, load } from "../api.js";
import { h, table } from "../dom.js";

export class ReferenceView {
  constructor() {
    this.trouble = h("p", { class: "bad", role: "alert" });
    this.list = h("div", {});
    this.element = h("div", { class: "reference" },
      h("p", {}, "Every endpoint of this service. ", h("code", {}, "/openapi.json"), " is the same for programs."),
      this.trouble, this.list);
  }

  enter() {
    load(this.trouble, () => get("openapi.json"), (document) => {
      this.list.replaceChildren(...Object.entries(document.paths).flatMap(([path, operations]) =>
        Object.entries(operations).map(([method, operation]) => endpoint(document, method, path, operation))));
    });
  }
}

function endpoint(document, method, path, { summary, parameters = [], requestBody, responses }) {
  const body = resolved(document, requestBody?.content["application/json"].schema);
  const given = parameters.map(({ name, required, schema }) => [name, required, schema]);
  const fields = Object.entries(body?.properties ?? {}).map(([name, schema]) => [name, body.required?.includes(name), schema]);
  return h("details", {},
    h("summary", {}, h("code", {}, `${method.toUpperCase()} ${path}`), ` ${summary}`),
    properties("Parameters", given), properties("Body", fields),
    h("p", {}, `Answers: ${Object.entries(responses).map(([status, { description }]) => `${status} ${description}`).join(", ")}`));
}

function properties(title, rows) {
  return rows.length ? table(title, [title, "type", "about"], h("tbody", {}, rows.map(([name, required, schema]) => h("tr", {},
    h("td", {}, h("code", {}, name), required ? " (required)" : ""),
    h("td", {}, type(schema)),
    h("td", { class: "wide" }, about(schema)))))) : null;
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
