// The list of steps. A row is drawn again only when it changed. Rows come in groups, each laid out by
// the browser only while it is near the screen (`content-visibility`); near it, too, Markdown and
// formulas are set, and taken back to plain text far from it, so that a long thought stays light.

import { duration, h, number, plural, svg } from "./dom.js";
import { LETTERS, NAMES, authorsOf, draftReason, rowReason, threshold, writtenBy } from "./reasons.js";
import { blocks, inline, plain } from "./richtext.js";
import { tokenView } from "./tokens.js";

const MARGIN = "800px";
const GROUP = 20; // rows

export class Steps {
  constructor() {
    this.element = h("section", { class: "steps", "aria-label": "Steps of the thought" });
    this.items = []; // the elements, by index
    this.observer = new IntersectionObserver((entries) => {
      for (const { target, isIntersecting } of entries) {
        target.near = isIntersecting;
        for (const row of target.children) (isIntersecting ? enrich : impoverish)(row);
      }
    }, { rootMargin: MARGIN });
  }

  clear() {
    this.observer.disconnect();
    this.items = [];
    this.element.replaceChildren();
  }

  show(run, rows) {
    if (rows.length < this.items.length || this.run !== run) this.clear();
    this.run = run;
    rows.forEach((row, index) => {
      const item = this.items[index];
      const stamp = `${row.version}${row.closed}`;
      if (item?.row === row && item.stamp === stamp) return;
      if (item && !row.closed && !item.whole && item.drafts === row.drafts.length) {
        item.body.replaceChildren(...spans(row)); // text that arrives: no more than the text changes
        item.stamp = stamp;
        return;
      }
      const focused = document.activeElement;
      const made = stepItem(run, row);
      if (item) {
        item.replaceWith(made);
        if (focused === item) made.focus();
        else if (made.contains(focused)) focused.focus();
      } else this.group(index).append(made);
      this.items[index] = Object.assign(made, { stamp, drafts: row.drafts.length });
      if (made.parentElement.near) enrich(made);
    });
  }

  /** The list that a row belongs to. */
  group(index) {
    const found = this.element.children[Math.floor(index / GROUP)];
    if (found) return found;
    const list = h("ol", { start: index + 1 });
    this.element.append(list);
    this.observer.observe(list);
    return list;
  }
}

function stepItem(run, row) {
  const body = h("div", { class: "text plain", dir: "auto" }, spans(row));
  const reason = row.closed ? rowReason(run, row) : "";
  const element = h("li", { class: `step ${writtenBy(row) ?? ""}`, tabindex: "-1" },
    h("div", { class: "who" }, row.spans.length ? badge(row) : null),
    h("div", { class: "what" },
      row.drafts.map((draft) => (draft.element ??= rejected(run, draft))), // an unfolded one stays so
      body,
      reason ? h("p", { class: "reason" }, reason) : null,
      row.closed ? tokenView(row.pieces) : null),
    h("div", { class: "meta" },
      row.score === null ? null : meter(row.score, threshold(run)),
      h("span", {}, row.closed ? [plural(row.tokens, "token"), row.ms ? ` · ${duration(row.ms)}` : ""] : h("span", { class: "writing" }, "writing"))));
  return Object.assign(element, { row, body, whole: row.closed });
}

/** Go to the next or last step of a list, or unfold or fold what its steps hold; return whether this
 * key does that. */
export function stepKey(list, key) {
  const by = { j: 1, k: -1 }[key];
  const folded = { r: "details.rejected", t: "details.tokens" }[key];
  if (by) {
    const steps = [...list.querySelectorAll(".step")];
    const at = steps.findIndex((step) => step.contains(document.activeElement));
    const next = steps[Math.max(0, Math.min(steps.length - 1, at + by))];
    next?.focus();
    next?.scrollIntoView({ block: "nearest" });
  } else if (folded) {
    const all = [...list.querySelectorAll(folded)];
    const open = !all.every((one) => one.open);
    for (const one of all) one.open = open;
  }
  return Boolean(by ?? folded);
}

/** Markdown and formulas in place of a row's plain text. */
function enrich({ row, body, whole }) {
  if (!whole || !body.classList.contains("plain")) return;
  body.classList.remove("plain");
  if (authorsOf(row).length === 1) body.replaceChildren(...blocks(row.spans.map((span) => span.text).join("")));
  else {
    body.classList.add("spans"); // the author of each part matters more than the layout of blocks
    if (row.spans.some((span) => span.text.includes("```"))) body.classList.add("fenced");
    row.spans.forEach((_, index) => body.children[index].replaceChildren(...inline(text(row, index))));
  }
}

/** The plain text again. */
function impoverish({ row, body }) {
  if (body.classList.contains("plain")) return;
  body.className = "text plain";
  body.replaceChildren(...spans(row));
}

function spans(row) {
  return row.spans.map((span, index) => h("span", { class: `by ${span.author}`, title: `by the ${NAMES[span.author]}, ${plural(span.tokens, "token")}` }, plain(text(row, index))));
}

/** A span's text, without the blank line that ends the step. */
const text = (row, index) => (index === row.spans.length - 1 ? row.spans[index].text.trimEnd() : row.spans[index].text);

/** The letters of who wrote a row. */
export function badge(row) {
  const kind = writtenBy(row);
  const authors = authorsOf(row);
  const names = kind === "rewritten" ? "drafted by the small model, rewritten by the large model" : `by the ${authors.map((author) => NAMES[author]).join(" and the ")}`;
  return h("span", { class: `badge ${kind}`, role: "img", "aria-label": names, title: names },
    kind === "rewritten" ? [h("s", {}, "S"), "L"] : authors.map((author) => LETTERS[author]).join(""));
}

/** A score from 0 to 9 on a bar, with a mark where the threshold is. */
function meter(score, limit) {
  const ok = limit === null || score >= limit;
  const words = limit === null ? `score ${number(score, 1)} of 9` : `score ${number(score, 1)} of 9, the threshold is ${number(limit, 1)}`;
  return h("span", { class: `score ${ok ? "ok" : "low"}`, title: words },
    h("b", {}, number(score, 1)),
    svg("svg", { viewBox: "0 0 90 14", role: "img", "aria-label": words },
      svg("rect", { x: 0, y: 3, width: 90, height: 8, rx: 2, class: "track" }),
      svg("rect", { x: 0, y: 3, width: Math.max(1, score * 10), height: 8, rx: 2, class: "fill" }),
      limit === null ? null : svg("rect", { x: Math.min(87, limit * 10 - 1.5), y: 0, width: 3, height: 14, class: "limit" })));
}

function rejected(run, draft) {
  const judge = (draft.calls ?? []).map((index) => run.calls[index]).findLast((call) => call?.probabilities);
  return h("details", { class: "rejected" },
    h("summary", {}, h("span", { class: `dot ${draft.author}` }, LETTERS[draft.author]),
      h("span", { class: "draft" }, h("del", { dir: "auto" }, plain(draft.text.trim() || "(empty)")),
        h("span", { class: "reason" }, `Rejected draft: ${draftReason(run, draft)}`))),
    h("div", { class: "gone" },
      h("p", { class: "reason" }, `${plural(draft.tokens, "token")}, ${duration(draft.ms)}, thrown away`),
      judge ? histogram(judge, draft.score, threshold(run)) : null));
}

/** The judge's distribution over its digits. */
function histogram({ worker, probabilities, surprise }, score, limit) {
  const words = probabilities.map((p, digit) => `${digit}: ${number(p * 100)} %`).join(", ");
  const mean = probabilities.reduce((sum, p, digit) => sum + p * digit, 0);
  const top = Math.max(...probabilities, 0.01);
  return h("figure", { class: "judge" },
    h("figcaption", {}, `How the ${NAMES[worker]} grades it, 0 to ${probabilities.length - 1}; on average ${number(mean, 1)}`),
    svg("svg", { viewBox: "0 0 220 62", role: "img", "aria-label": words },
      probabilities.map((p, digit) => {
        const height = (p / top) * 40;
        const x = digit * 22 + 2;
        return svg("g", { class: limit !== null && digit < limit ? "under" : "over" },
          svg("title", {}, `${digit}: ${number(p * 100, 1)} %`),
          svg("rect", { x, y: 46 - height, width: 18, height: Math.max(height, 0.5), rx: 1.5 }),
          svg("text", { x: x + 9, y: 58, "text-anchor": "middle" }, digit));
      })),
    surprise !== undefined && score !== null && mean - score > 0.05
      ? h("p", { class: "reason" }, `The score is lower, since the large model finds a token of it unlikely (negative log-likelihood ${number(surprise, 2)}).`) : null);
}
