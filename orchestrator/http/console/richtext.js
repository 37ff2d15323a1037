// Markdown and LaTeX of models, as elements. Every character of the source becomes part of a text
// node, so a model can cause no markup, no link and no image.

import { h } from "./dom.js";

const CONTROL = /[\u202A-\u202E\u2066-\u2069\u200E\u200F\u061C]/g; // they reorder the text around them
const LONGEST_FORMULA = 5000;
const LONGEST_LINE = 20_000; // a longer one is shown as it is

let katex = null;
let loading = null;
/** Load the typesetter at the first formula. */
async function loadKatex() {
  loading ??= import("./vendor/katex/katex.min.js").then(() => { katex = globalThis.katex; });
  return loading;
}

/** Plain text, with visible signs for characters that change the direction of writing. */
export function plain(text) {
  const parts = [];
  let at = 0;
  for (const match of text.matchAll(CONTROL)) {
    const name = `U+${match[0].codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;
    parts.push(text.slice(at, match.index), h("span", { class: "control", title: "a mark that changes the direction of writing" }, name));
    at = match.index + 1;
  }
  return [...parts, text.slice(at)].filter((part) => part !== "");
}

function maths(source) {
  const block = source.startsWith("$$") || source.startsWith("\\[");
  const inner = source.startsWith("\\boxed") ? source : block || source.startsWith("\\(") ? source.slice(2, -2) : source.slice(1, -1);
  const node = h("span", { class: block ? "maths block" : "maths" }, source);
  if (inner.length <= LONGEST_FORMULA) {
    const set = () => {
      try {
        katex.render(inner, node, { displayMode: block, throwOnError: true, trust: false, maxExpand: 200, maxSize: 8, strict: "ignore" });
      } catch {
        node.replaceChildren(source); // not LaTeX, or one that would expand without end: shown as it was written
      }
    };
    if (katex) set();
    else loadKatex().then(set, () => {});
  }
  return node;
}

const BETWEEN = { "$$": "$$", "\\(": "\\)", "\\[": "\\]", "**": "**" };

/**
 * Some lines as text, code, emphasis and formulas. It searches for one closing mark at a time, and
 * never twice for a missing one, so that a hostile text takes no longer than another.
 */
export function inline(text, depth = 0) {
  if (text.length > LONGEST_LINE || depth > 3) return plain(text);
  const nodes = [];
  const missing = new Set();
  let done = 0;
  const find = (mark, from) => {
    if (missing.has(mark)) return -1;
    const at = text.indexOf(mark, from);
    if (at < 0) missing.add(mark);
    return at;
  };
  const put = (from, to, node) => {
    nodes.push(...plain(text.slice(done, from)), node);
    done = to;
    return to;
  };
  const special = /`+|\*+|_|\$\$?|\\[([]|\\boxed\{/g;
  for (let match; (match = special.exec(text));) {
    const [mark] = match;
    const [from, inside] = [match.index, special.lastIndex];
    let to = inside;
    if (mark[0] === "`") {
      const end = find(mark, inside);
      if (end > inside && text[end + mark.length] !== "`") to = put(from, end + mark.length, h("code", {}, plain(text.slice(inside, end).trim())));
    } else if (mark === "\\boxed{") {
      const end = braced(text, inside);
      if (end > 0) to = put(from, end, maths(text.slice(from, end)));
    } else if (mark === "$") {
      const end = find("$", inside);
      const inner = text.slice(inside, Math.max(inside, end));
      if (end > inside && !/^\s|\s$|\n/.test(inner) && !/\d/.test(text[end + 1] ?? "")) to = put(from, end + 1, maths(text.slice(from, end + 1)));
    } else if (mark in BETWEEN) {
      const end = find(BETWEEN[mark], inside);
      if (end > inside) {
        const whole = text.slice(from, end + 2);
        if (mark !== "**") to = put(from, end + 2, maths(whole));
        else if (/\S/.test(text[inside])) to = put(from, end + 2, h("strong", {}, inline(whole.slice(2, -2), depth + 1)));
      }
    } else if ((mark === "*" || mark === "_") && !/[\w*]/.test(text[from - 1] ?? "") && /[^\s*_]/.test(text[inside] ?? " ")) {
      const end = find(mark, inside);
      const inner = text.slice(inside, Math.max(inside, end));
      if (end > inside && !inner.includes("\n") && !/[\w*]/.test(text[end + 1] ?? "")) to = put(from, end + 1, h("em", {}, inline(inner, depth + 1)));
    }
    special.lastIndex = to;
  }
  nodes.push(...plain(text.slice(done)));
  return nodes;
}

/** The index after the brace that closes the one before `from`; -1 if none is near. */
function braced(text, from) {
  const last = Math.min(text.length, from + LONGEST_FORMULA);
  for (let at = from, open = 1; at < last; at += 1) {
    if (text[at] === "{") open += 1;
    else if (text[at] === "}") open -= 1;
    if (!open) return at + 1;
  }
  return -1;
}

const FENCE = /^\s*(```|~~~)\s*([\w+#.-]*)/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const HEADING = /^(#{1,6})\s+(.*)$/;
const TABLE = /^\s*\|?\s*:?-{2,}:?\s*(\|\s*:?-{2,}:?\s*)*\|?\s*$/;
const LONGEST_RULE = 1000; // characters of the line under a table's head
const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());

/** A whole text as blocks. */
export function blocks(text) {
  const lines = text.replace(/\r\n?/g, "\n").split("\n");
  const made = [];
  let index = 0;
  let paragraph = [];
  const found = {}; // by closing mark, the first line with it from the last place searched on
  const lineWith = (mark, from) => {
    if (!(found[mark] >= from)) for (found[mark] = from; found[mark] < lines.length && !lines[found[mark]].includes(mark);) found[mark] += 1;
    return found[mark];
  };
  const flush = () => {
    if (paragraph.length) made.push(h("p", { dir: "auto" }, inline(paragraph.join("\n"))));
    paragraph = [];
  };
  while (index < lines.length) {
    const line = lines[index];
    const fence = FENCE.exec(line);
    if (fence) {
      flush();
      const body = [];
      for (index += 1; index < lines.length && !lines[index].trim().startsWith(fence[1]); index += 1) body.push(lines[index]);
      index += 1;
      made.push(h("pre", { class: "code", tabindex: "0", "data-language": fence[2] || null }, h("code", {}, plain(body.join("\n")))));
      continue;
    }
    const opens = /^\s*(\$\$|\\\[)/.exec(line);
    if (opens) {
      const closes = opens[1] === "$$" ? "$$" : "\\]";
      const last = line.trim().slice(2).includes(closes) ? index : lineWith(closes, index + 1);
      if (last < lines.length && lines[last].trimEnd().endsWith(closes)) {
        flush();
        made.push(h("p", {}, inline(lines.slice(index, last + 1).join("\n").trim())));
        index = last + 1;
        continue;
      }
    }
    const heading = HEADING.exec(line);
    if (heading) {
      flush();
      made.push(h("p", { class: "heading", dir: "auto" }, inline(heading[2])));
      index += 1;
    } else if (line.includes("|") && (lines[index + 1] ?? "").length < LONGEST_RULE && TABLE.test(lines[index + 1] ?? "")) {
      flush();
      const head = cells(line);
      const rows = [];
      for (index += 2; index < lines.length && lines[index].includes("|"); index += 1) rows.push(cells(lines[index]));
      made.push(h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "table" }, h("table", {},
        h("thead", {}, h("tr", {}, head.map((cell) => h("th", { scope: "col", dir: "auto" }, inline(cell))))),
        h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell) => h("td", { dir: "auto" }, inline(cell)))))))));
    } else if (ITEM.test(line)) {
      flush();
      const [, , mark] = ITEM.exec(line);
      const ordered = /\d/.test(mark);
      const list = h(ordered ? "ol" : "ul", ordered ? { start: parseInt(mark, 10) } : {});
      let match;
      while (index < lines.length && ((match = ITEM.exec(lines[index])) || /^\s+\S/.test(lines[index]))) {
        if (match) list.append(h("li", { dir: "auto", class: match[1].length > 1 ? "nested" : null }, inline(match[3])));
        else list.lastChild.append("\n", ...inline(lines[index].trim()));
        index += 1;
      }
      made.push(list);
    } else if (line.length < LONGEST_RULE && /^\s*([-*_])(\s*\1){2,}\s*$/.test(line)) {
      flush();
      made.push(h("hr", {}));
      index += 1;
    } else if (!line.trim()) {
      flush();
      index += 1;
    } else {
      paragraph.push(line);
      index += 1;
    }
  }
  flush();
  return made;
}
