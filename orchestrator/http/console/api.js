// The service's API, as every client uses it. Keys are kept only in this module's memory.

import { field, h, sleep, tell } from "./dom.js";

const ROOT = new URL("./", document.baseURI); // `ui` is beside `v1`, after any prefix
const STARTING_MS = 2000; // between two looks at a service that starts
const READ_MS = 60_000; // the longest wait for what is read; a lost connection may never say so
const keys = { user: "", observer: "", admin: "" };
const refused = new Map(); // reads whose key the user did not give, by path
const wrong = new Set(); // roles whose key was refused, until the dialog shows it
let asking = null;

/** Whether a user's key was given. */
export const hasKey = () => Boolean(keys.user || keys.admin);
export const url = (path) => new URL(path, ROOT).href;

export class ApiError extends Error {
  constructor(status, body) {
    const error = body?.error;
    super(error?.message ?? `the service answered ${status}`);
    this.status = status;
    this.body = body;
    this.wants = wanted(status, error); // the role whose key would help; null if none would
  }
}

const lost = (message) => new ApiError(0, { error: { message } });

const TITLES = {
  user: ["This service needs an API key", "API key"],
  observer: ["This needs an observer's key, or the admin key", "Observer's or admin key"],
  admin: ["This needs the admin key", "Admin key"],
};

/** The role whose key may do most of what is wanted: ask, read, or change. */
function roleFor(method, path) {
  if (/^v1\/(chat|requests)\//.test(path)) return keys.user || !keys.admin ? "user" : "admin";
  if (keys.admin) return "admin";
  return method === "GET" && keys.observer ? "observer" : "user";
}

function wanted(status, error) {
  if (status === 401 || error?.code === "api_key_required") return "user";
  if (error?.code === "observer_key_required") return "observer";
  return error?.code === "admin_key_required" && /needs an admin key$/.test(error.message) ? "admin" : null;
}

/**
 * Return a response that is not an error; ask for a key if one is needed. A read for which the user
 * gave none is refused without being sent from then on, until a key is entered.
 */
export async function request(path, { method = "GET", body, signal } = {}) {
  const read = method === "GET" ? path.split("?")[0] : null;
  if (refused.has(read)) throw refused.get(read);
  for (;;) {
    const role = roleFor(method, path);
    const key = keys[role];
    const headers = { accept: "application/json", ...(body && { "content-type": "application/json" }), ...(key && { authorization: `Bearer ${key}` }) };
    const response = await fetch(url(path), { method, headers, signal: signal ?? (read && AbortSignal.timeout(READ_MS)), cache: "no-store", body: body && JSON.stringify(body) }).catch((error) => {
      if (error.name === "AbortError") throw error;
      throw lost(error.name === "TimeoutError" ? "The service does not answer" : "The service cannot be reached. Is it running?");
    });
    if (response.ok) return response;
    const error = new ApiError(response.status, await response.json().catch(() => null)); // without JSON the status says it
    if (!error.wants) throw error;
    if (keys[roleFor(method, path)] !== key) continue; // another request has set or dropped it meanwhile
    if (key && (error.status === 401 || role !== "user")) {
      keys[role] = ""; // mistyped, or not a key of this role
      wrong.add(role);
      if (role !== "user") continue; // the other key may be enough, or its refusal says which is needed
    }
    const declined = read && [...refused.values()].some(({ wants }) => wants === error.wants);
    if (declined || !(await askForKey(error.wants))) {
      if (read) refused.set(read, error);
      throw error;
    }
  }
}

export const get = async (path, options) => (await request(path, options)).json();
export const send = async (method, path, body) => (await request(path, { method, body })).json();

const newest = new WeakMap(); // the load that was wanted last, by place

/**
 * Find something, and show it; if it cannot be had, `place` says why, and has a button to give the key
 * that would help. `show` may return what the place says all the same. Of several loads for one place,
 * the last counts. It is done again after `every` milliseconds, in any case after a 503 or if the
 * service is out of reach, as long as the place is on the page.
 */
export async function load(place, find, show, every = 0) {
  const again = () => load(place, find, show, every);
  newest.set(place, again);
  const counts = () => newest.get(place) === again;
  let wait = every;
  try {
    const found = await find();
    if (!counts()) return;
    tell(place, show(found) ?? "");
  } catch (error) {
    if (!counts()) return;
    // A later load that is refused alike leaves this button as it is.
    const enterKey = async () => { if (await askForKey(error.wants)) newest.get(place)(); };
    tell(place, `${error.message} `, error.wants ? h("button", { type: "button", class: "quiet", onclick: enterKey }, "Enter a key") : "");
    if ([0, 503].includes(error.status)) wait ||= STARTING_MS;
  }
  if (!wait) return;
  do await sleep(wait); while (document.hidden);
  if (counts() && place.isConnected) again();
}

/** Yield the server-sent events of a POST as JSON. Throws the error that the stream reports. */
export async function* events(path, body, signal) {
  const response = await request(path, { method: "POST", body, signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  const broken = lost("The connection broke before the answer ended");
  for (let rest = ""; ;) {
    const { value, done } = await reader.read().catch((error) => { throw error.name === "AbortError" ? error : broken; });
    if (done) throw broken;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const data = block.split("\n").find((line) => line.startsWith("data: "))?.slice(6);
      if (data === "[DONE]") return;
      if (!data) continue;
      const event = JSON.parse(data);
      if (event.error) throw new ApiError(response.status, event);
      yield event;
    }
  }
}

/** Ask for a key once for all requests that want one; return false if the user declines. */
function askForKey(which) {
  asking ??= new Promise((resolve) => {
    const input = h("input", { type: "password", autocomplete: "off", spellcheck: "false", required: true, name: "key" });
    const dialog = h("dialog", { class: "keys", "aria-labelledby": "key-title" },
      h("form", { method: "dialog" },
        h("h2", { id: "key-title" }, TITLES[which][0]),
        wrong.has(which) ? h("p", { class: "bad" }, "The key that was sent was not accepted.") : null,
        field(TITLES[which][1], input, "It is kept in this page's memory only, and gone when the page is closed or loaded again."),
        h("div", { class: "row end" },
          h("button", { type: "button", class: "quiet", onclick: () => dialog.close("") }, "Cancel"),
          h("button", { type: "submit", class: "primary", value: "use" }, "Use key"))));
    dialog.addEventListener("close", () => {
      wrong.delete(which);
      const given = dialog.returnValue === "use" && input.value.trim();
      if (given) {
        keys[which] = given;
        refused.clear();
      }
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

/** A policy's parameters as JSON schemas with this service's defaults, by policy. */
export async function policySchemas() {
  const { components } = await get("openapi.json");
  return Object.fromEntries(Object.entries(components.schemas)
    .filter(([name]) => name.startsWith("policy."))
    .map(([name, schema]) => [name.slice(7), schema]));
}
