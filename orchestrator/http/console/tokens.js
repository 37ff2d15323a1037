// The origins of a step's tokens in speculative decoding: each with a mark beside its colour, and the
// rejected draft if the large model chose another token.

import { h, number, plural } from "./dom.js";
import { plain } from "./richtext.js";

const KINDS = {
  a: ["accepted", "drafted, and accepted by the model"],
  r: ["recovered", "the model's own, where it rejected the draft"],
  b: ["bonus", "the model's own, after a draft that was accepted whole"],
};

/** A folded list of tokens; nothing if they are unknown, or none was drafted. */
export function tokenView(pieces) {
  const tokens = pieces.filter((piece) => !piece.continues);
  const count = (origin) => tokens.filter((piece) => piece.origin === origin).length;
  const kinds = Object.keys(KINDS).filter(count);
  if (!kinds.length) return [];
  const view = h("details", { class: "tokens" },
    h("summary", {}, `Tokens: ${number(count("a"))} of ${number(tokens.length)} were drafted and accepted`),
    h("div", { class: "made" }));
  view.addEventListener("toggle", () => {
    if (!view.open) return;
    view.lastChild.replaceChildren(
      h("p", { class: "words", dir: "auto" }, pieces.map(token)),
      h("p", { class: "marks" }, kinds.map((kind) => legend(kind, count(kind)))));
  });
  return [view];
}

function token({ text, origin, drafts }) {
  if (!text && origin === "?") return []; // its text is shown with that of a later token
  const shown = text.replaceAll("\n", "↵") || "·"; // the beginning of a character, or white space that is not shown
  const [name, meaning] = KINDS[origin] ?? ["", origin === "-" ? "nothing was drafted here" : "not known"];
  const made = h(origin === "r" ? "ins" : "span", { class: `token ${name || "plain"}`, title: name ? `${name}: ${meaning}` : meaning }, plain(shown));
  if (!drafts.length) return made;
  const other = drafts.map((draft) => draft.replaceAll("\n", "↵")).join(" | ");
  return [h("del", { title: `the draft had ${other}` }, plain(other)), made];
}

function legend(origin, count) {
  const [name, meaning] = KINDS[origin];
  const struck = origin === "r";
  return h("span", {}, struck ? h("del", {}, "draft") : null, h(struck ? "ins" : "span", { class: `token ${name}` }, name),
    ` ${plural(count, "token")}: ${meaning}`);
}
