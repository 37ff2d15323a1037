// The service's API, as every client uses it. Keys live in this module's memory and nowhere else.

import { field, h } from "./dom.js";

const ROOT = new URL("./", document.baseURI); // `ui` lies beside `v1`, behind any prefix
const keys = { user: "", observer: "", admin: "" };
let asking = null;

export const url = (path) => new URL(path, ROOT).href;

export class ApiError extends Error {
  constructor(status, body, headers) {
    const error = body?.error;
    super(error?.message ?? `the service answered ${status}`);
    this.status = status;
    this.code = error?.code ?? null;
    this.param = error?.param ?? null;
    this.body = body;
    this.retryAfter = Number(headers?.get("retry-after")) || null;
  }
}

const TITLES = {
  user: ["This service needs an API key", "API key"],
  observer: ["This needs an observer's key, or the admin key", "Observer's or admin key"],
  admin: ["This needs the admin key", "Admin key"],
};

/** The key that may do most of what is wanted: to ask, to read, or to change. */
function keyFor(method, path) {
  if (path.startsWith("v1/chat/")) return keys.user || keys.admin;
  return keys.admin || (method === "GET" && keys.observer) || keys.user;
}

/** Whose key a refusal asks for; null where none would help. */
function wanted(status, error) {
  if (status === 401) return "user";
  if (error?.code === "observer_key_required") return "observer";
  return error?.code === "admin_key_required" && /needs an admin key$/.test(error.message) ? "admin" : null;
}

/** A response that is not an error; asks for a key where one is needed. */
export async function request(path, { method = "GET", body, signal } = {}) {
  for (;;) {
    const key = keyFor(method, path);
    const headers = { accept: "application/json" };
    if (body !== undefined) headers["content-type"] = "application/json";
    if (key) headers.authorization = `Bearer ${key}`;
    let response;
    try {
      response = await fetch(url(path), { method, headers, signal, cache: "no-store", body: body === undefined ? undefined : JSON.stringify(body) });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ApiError(0, { error: { message: "The service cannot be reached. Is it running?" } });
    }
    if (response.ok) return response;
    let answer = null;
    try { answer = await response.json(); } catch { /* no JSON: the status says it */ }
    const wants = wanted(response.status, answer?.error);
    if (wants && keyFor(method, path) !== key) continue; // given meanwhile, for another request
    if (!wants || !(await askForKey(wants, Boolean(key) && response.status === 401))) throw new ApiError(response.status, answer, response.headers);
  }
}

export const get = async (path, options) => (await request(path, options)).json();
export const send = async (method, path, body) => (await request(path, { method, body })).json();

/** Server-sent events of a POST, each as JSON. Throws what the stream reports as its error. */
export async function* events(path, body, signal) {
  const response = await request(path, { method: "POST", body, signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  let ended = false;
  while (!ended) {
    const { value, done } = await reader.read();
    if (done) break;
    buffer += value;
    const blocks = buffer.split("\n\n");
    buffer = blocks.pop();
    for (const block of blocks) {
      const data = block.split("\n").filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trimStart()).join("\n");
      if (!data) continue;
      if (data === "[DONE]") { ended = true; break; }
      const event = JSON.parse(data);
      if (event.error) throw new ApiError(response.status, event);
      yield event;
    }
  }
  if (!ended) throw new ApiError(0, { error: { message: "The connection broke before the answer ended" } });
}

/** Ask for a key once, however many requests want one; false where the user declines. */
function askForKey(which, wrong) {
  asking ??= new Promise((resolve) => {
    const input = h("input", { type: "password", autocomplete: "off", spellcheck: "false", required: true, name: "key" });
    const dialog = h("dialog", { class: "keys", "aria-labelledby": "key-title" },
      h("form", { method: "dialog" },
        h("h2", { id: "key-title" }, TITLES[which][0]),
        wrong ? h("p", { class: "bad" }, "The key that was sent does not do.") : null,
        field(TITLES[which][1], input, "It is kept in this page's memory only, and gone when the page is closed or loaded again."),
        h("div", { class: "row end" },
          h("button", { type: "button", class: "quiet", onclick: () => dialog.close("") }, "Cancel"),
          h("button", { type: "submit", class: "primary", value: "use" }, "Use key"))));
    dialog.addEventListener("close", () => {
      const given = dialog.returnValue === "use" && input.value.trim();
      if (given) keys[which] = given;
      dialog.remove();
      asking = null;
      resolve(Boolean(given));
    });
    document.body.append(dialog);
    dialog.showModal();
    input.focus();
  });
  return asking;
}

let described = null;
/** A policy's parameters as JSON schemas with this service's defaults, by policy. */
export async function policySchemas() {
  described ??= get("openapi.json").catch((error) => { described = null; throw error; });
  const { components } = await described;
  return Object.fromEntries(Object.entries(components.schemas)
    .filter(([name]) => name.startsWith("policy."))
    .map(([name, schema]) => [name.slice(7), schema]));
}
