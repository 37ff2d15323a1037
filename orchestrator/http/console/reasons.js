// The reasons of a policy's decisions, in words and numbers.

import { number, plural } from "./dom.js";

const JUDGED = new Set(["specreason", "cascade", "advisor"]);
const UNSCORED = {
  bild: "the large model found its first token unlikely",
  "learned-gate": "a step before it was corrected, or it has no text",
  advisor: "the small model was unsure or repeated a call, or tools failed",
};
const TOGETHER = {
  bild: (count) => `The large model wrote ${plural(count, "part")} of it, where the small one was unsure or a token was rolled back.`,
  "learned-gate": (count) => `The large model corrected ${plural(count, "part")} of the draft; the small model wrote the rest.`,
};
export const NAMES = { small: "small model", large: "large model", policy: "policy" };
export const LETTERS = { small: "S", large: "L", policy: "P" };

/** The authors of a row. */
export const authorsOf = ({ spans }) => Object.keys(NAMES).filter((author) => spans.some((span) => span.author === author));

/** Who wrote a row: its author, "both" if there are several, or "rewritten" if the large model wrote
 * the step of a rejected draft. */
export function writtenBy(row) {
  const [author, other] = authorsOf(row);
  if (other) return "both";
  return author === "large" && row.drafts.length ? "rewritten" : author;
}

/** The score below which a policy gives a step to the large model, on the scale 0 to 9; or null. */
export function threshold(run) {
  const { parameters, policyName } = run;
  if (policyName === "learned-gate") return 9 * (1 - parameters.correct_above);
  return JUDGED.has(policyName) ? (parameters.threshold ?? null) : null;
}

const shown = (value) => number(value, Number.isInteger(value) ? 0 : 1);
/** Two numbers with enough digits to differ. */
function pair(one, other) {
  const digits = one !== other && one.toFixed(1) === other.toFixed(1) ? 3 : 1;
  return [one, other].map((value) => (Number.isInteger(value) ? number(value) : number(value, digits)));
}

export function draftReason(run, draft) {
  if (draft.given_up) return "accepted, but max_tokens then left no room for an answer";
  const limit = threshold(run);
  if (draft.score === null || draft.score === undefined)
    return UNSCORED[run.policyName] ?? "rejected without a score";
  if (limit === null) return `rejected at score ${shown(draft.score)}`;
  const [score, wanted] = pair(draft.score, limit);
  return draft.score < limit ? `score ${score} is under ${wanted}` : `score ${score}: a step before it was rejected`;
}

/** Why this row's text was accepted, and who wrote it. */
export function rowReason(run, row) {
  if (!row.spans.length) return ""; // its drafts were rejected, and nothing came after
  const [author, other] = authorsOf(row);
  const { policyName, parameters } = run;
  const limit = threshold(run);
  if (author === "policy") return "The policy put this in.";
  if (other) {
    const parts = row.spans.filter((span) => span.author === "large").length;
    return TOGETHER[policyName]?.(parts) ?? "The two models wrote it together.";
  }
  if (policyName === "small-only" || policyName === "large-only") return "";
  if (author === "large") {
    const [draft] = row.drafts.slice(-1);
    if (draft && policyName === "advisor") return "The large model gave advice.";
    if (draft) return sameText(row, draft) ? "The large model wrote the step itself, in the same words." : "The large model wrote the step itself.";
    if (row.phase === "answer") return "This policy has the large model write the answer.";
    if (parameters.first_n) return `This policy has the large model write the first ${plural(parameters.first_n, "step")}.`;
    if (policyName === "coin") return "The coin fell on the large model.";
    return "The large model wrote this.";
  }
  if (row.score !== null && limit !== null) {
    const [score, wanted] = pair(row.score, limit);
    return row.score >= limit ? `Score ${score} reaches ${wanted}: the small model's draft is kept.`
      : `Score ${score} is under ${wanted}, and the draft is kept all the same.`;
  }
  if (policyName === "bild") return "The large model found no token of it too unlikely.";
  if (policyName === "coin") return "The coin fell on the small model.";
  if (row.phase === "answer") return "This policy has the small model write the answer.";
  return row.score !== null ? `Score ${shown(row.score)}: the draft is kept.` : "The small model wrote this.";
}

const words = (text) => text.trim().replace(/\s+/g, " ");
const sameText = (row, draft) => words(row.spans.map((span) => span.text).join("")) === words(draft.text);

/** How a request ended, in a word, and the colour of that. That it ended says nothing of whether the
 * answer is right. */
export function outcome({ status, finish, forced }) {
  if (status !== "finished") return { waiting: ["asked", "waiting"], running: ["thinking", "running"], failed: ["failed", "failed"], cancelled: ["stopped", "cancelled"] }[status];
  if (finish === "length") return ["cut", "cancelled"];
  return forced ? ["closed early", "cancelled"] : ["done", "waiting"];
}

/** Why a request ended early. */
export function ending(run) {
  if (run.status === "cancelled") return "Stopped before the end.";
  if (run.status === "failed") return run.error?.message ?? "The request failed.";
  if (run.finish === "length") return "Cut: the cap on tokens was reached.";
  if (run.forced) return "The thought was closed early, by its budget or because it repeated itself.";
  return "";
}
