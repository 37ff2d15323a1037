// Elements from code. Text of a model or a user becomes text nodes, never markup.

const SVG = "http://www.w3.org/2000/svg";
let fields = 0;

function fill(node, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked" || name === "open") node[name] = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(2).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

export const h = (tag, props, ...children) => fill(document.createElement(tag), props, children);
export const svg = (tag, props, ...children) => fill(document.createElementNS(SVG, tag), props, children);

/** A label above a control, and a hint below it. */
export function field(label, control, hint = "") {
  fields += 1;
  control.id ||= `field-${fields}`;
  if (hint) control.setAttribute("aria-describedby", `hint-${fields}`);
  return h("div", { class: "field" }, h("label", { for: control.id }, label), control,
    hint ? h("span", { class: "hint", id: `hint-${fields}` }, hint) : null);
}

export const number = (value, digits = 0) =>
  value === null || value === undefined ? "–"
    : value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });

export function duration(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms < 9.95) return `${number(ms, 1)} ms`;
  if (ms < 999.5) return `${number(ms)} ms`;
  if (ms < 59_950) return `${number(ms / 1000, ms < 9995 ? 2 : 1)} s`;
  const seconds = Math.round(ms / 1000);
  return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
}

export const percent = (share, digits = 0) =>
  share === null || share === undefined ? "–" : `${number(share * 100, digits)} %`;

export const plural = (count, word) => `${number(count)} ${word}${count === 1 ? "" : "s"}`;

/** Seconds since 1970 as a local time; with its day if that is not today. */
export function moment(seconds) {
  if (!seconds) return "–";
  const at = new Date(seconds * 1000);
  const time = at.toLocaleTimeString("en", { hourCycle: "h23" });
  return at.toDateString() === new Date().toDateString() ? time
    : `${at.toLocaleDateString("en", { day: "numeric", month: "short" })} ${time}`;
}

/** The faults of a list that the store holds; nothing if there are none. */
export function inTrouble({ degraded, not_in_effect: aside }) {
  if (!degraded) return "";
  return Object.keys(aside ?? {}).length ? `Not everything is in order: ${degraded}` : `The store is out of reach, and this may be old: ${degraded}`;
}

/** Offer these names in a select; the one that was chosen stays, if it is among them. */
export function offer(select, names, chosen = select.value) {
  redraw(select, names.map((name) => h("option", { value: name }, name || "all"))); // other options would close an open list
  if (names.includes(chosen)) select.value = chosen;
}

/** A table in a region that scrolls; `body` is its tbody. */
export function table(label, head, body) {
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, h("table", { class: "list" },
    h("thead", {}, h("tr", {}, head.map((name) => h("th", { scope: "col" }, name)))), body));
}

export function saveFile(name, text, type = "application/json") {
  const url = URL.createObjectURL(new Blob([text], { type }));
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

/** Give an element other children, unless they look the same: what is selected, focused or scrolled
 * there stays so. Return whether they are new. */
export function redraw(place, ...children) {
  const made = fill(place.cloneNode(), {}, children);
  if (made.isEqualNode(place)) return false;
  place.replaceChildren(...made.childNodes);
  return true;
}

/** Show a fault, or nothing, and bring it into view. */
export function tell(place, ...words) {
  if (redraw(place, words.filter(Boolean)) && place.textContent) place.scrollIntoView({ block: "nearest" });
}

export const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** Announce a text to screen readers alone. */
export function announce(text) {
  document.getElementById("spoken").textContent = text;
}

/** Show a text for a moment. */
export function say(text) {
  const place = document.getElementById("toast");
  place.textContent = text;
  place.classList.add("shown");
  clearTimeout(say.timer);
  say.timer = setTimeout(() => place.classList.remove("shown"), 3000);
}

export async function copy(text, what) {
  try {
    await navigator.clipboard.writeText(text);
    say(`${what} copied`);
  } catch {
    say("The browser does not allow copying here");
  }
}
