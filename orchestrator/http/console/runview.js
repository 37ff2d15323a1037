// One request as people see it: totals, lanes, steps, the answer. Grows while it streams.

import { hasKey, url } from "./api.js";
import { copy, duration, h, number, percent, plural, redraw, saveFile, say, tell } from "./dom.js";
import { Lanes } from "./lanes.js";
import { NAMES, ending, outcome, rowReason, writtenBy } from "./reasons.js";
import { blocks, plain } from "./richtext.js";
import { Run } from "./run.js";
import { Steps, badge } from "./steps.js";
import { tokenView } from "./tokens.js";

const REFRESH_MS = 80; // a stream of 200 tokens a second is drawn a dozen times a second

export class RunView {
  /** `compact`: beside another one, with buttons only while it runs. */
  constructor({ compact = false, again = null } = {}) {
    Object.assign(this, { compact, again });
    this.head = h("div", { class: "run-head" });
    this.totals = h("section", { class: "totals", "aria-label": "Totals" });
    this.lanes = new Lanes();
    this.steps = new Steps();
    this.authors = h("p", { class: "authors" });
    this.empty = h("p", { class: "pending", role: "status" });
    this.answer = h("section", { class: "answer", "aria-label": "Answer", hidden: true });
    this.trouble = h("p", { role: "alert" });
    this.buttons = h("div", { class: "row actions" });
    this.element = h("article", { class: compact ? "run compact" : "run" },
      this.head, this.trouble, this.totals, this.lanes.element, this.empty, this.authors, this.steps.element, this.answer, this.buttons);
  }

  /** Draws soon: at most a dozen times a second. */
  changed(run) {
    this.run = run;
    this.timer ??= setTimeout(() => {
      this.timer = null;
      this.draw();
    }, REFRESH_MS);
  }

  show(run) {
    this.run = run;
    this.draw();
  }

  draw() {
    const { run } = this;
    this.element.dataset.status = run.status;
    this.element.setAttribute("aria-busy", String(run.live));
    redraw(this.head, header(run));
    redraw(this.totals, totals(run));
    this.lanes.element.hidden = run.calls.length === 0;
    this.lanes.show(run);
    const noThought = run.thought.length === 0 && run.status !== "waiting" && run.answer.length > 0;
    const steps = noThought ? run.answer : run.thought;
    this.steps.show(run, steps);
    redraw(this.authors, legend(steps));
    this.empty.hidden = !run.live || run.rows.length > 0;
    this.empty.textContent = run.status === "waiting" ? "Both models read the question …" : waitingFor(run);
    this.answer.hidden = noThought || !run.answerText;
    if (!this.answer.hidden) redraw(this.answer, answer(run));
    this.trouble.className = `trouble ${run.status}`;
    tell(this.trouble, ending(run));
    redraw(this.buttons, this.actions());
  }

  actions() {
    const { run } = this;
    const button = (name, onclick, kind = "quiet") => h("button", { class: kind, onclick }, name);
    if (run.live) return [
      button(["Stop", h("kbd", {}, "Esc")], () => this.run.stop(), "stop"),
      run.record || !run.traceId ? null : button("Answer now", () => run.answerNow()), // neither in a replay nor in the queue
    ];
    if (this.compact) return [];
    const known = run.messages.length > 0; // a record without text has none
    return [
      this.again && known ? button("Ask again", () => this.again(run.again()), "") : null,
      run.script?.length ? button("Replay", () => this.replay(), "") : null,
      known ? button("Copy as curl", () => copy(curl(run.requestBody), "curl command")) : null,
      known ? button("Copy as Python", () => copy(python(run.requestBody), "Python")) : null,
      run.traceId ? button("Copy link", () => copy(`${url("ui")}#/trace/${run.traceId}`, "Link")) : null,
      run.traceId ? button("Download trace", () => this.download()) : null,
    ];
  }

  async download() {
    try {
      const record = await this.run.saved();
      saveFile(`baton-${this.run.traceId.slice(0, 8)}.json`, JSON.stringify(record, null, 1));
    } catch (error) {
      say(error.message);
    }
  }

  replay() {
    const run = Run.begin(this.run.record);
    this.show(run); // at once: its first event may be far off
    run.replay(() => this.changed(run));
  }
}

const LEGEND = {
  small: "written by the small model",
  large: "by the large model",
  rewritten: "drafted by the small model, rejected, and written by the large one",
  both: "by both, in turn",
  policy: "put in by the policy",
};

/** The meanings of the letters beside the steps. */
function legend(rows) {
  const examples = Object.keys(LEGEND).map((kind) => rows.find((row) => writtenBy(row) === kind));
  return examples.filter(Boolean).map((row) => h("span", {}, badge(row), LEGEND[writtenBy(row)]));
}

function answer(run) {
  const { live, answer: rows, answerText: text } = run;
  const head = h("h3", {}, badge({ spans: rows.flatMap((row) => row.spans), drafts: [] }), "Answer");
  if (live) return [head, h("div", { class: "text plain", dir: "auto" }, plain(text))];
  const reason = rowReason(run, rows.at(-1));
  return [head, h("div", { class: "text", dir: "auto" }, blocks(text)), reason ? h("p", { class: "reason" }, reason) : null, tokenView(rows.flatMap((row) => row.pieces))];
}

function waitingFor(run) {
  const [one] = run.running;
  if (!one) return "…";
  const what = { draft: "drafts a step", judge: "judges a draft", verify: "reads a draft", write: "writes" }[one.kind] ?? "works";
  return `The ${NAMES[one.worker]} ${what} …`;
}

function header(run) {
  const { origin } = run;
  const [state, tone] = outcome(run);
  return [
    h("h2", { class: "question", dir: "auto" }, plain(run.question)),
    h("p", { class: "about" },
      h("span", { class: `state ${tone}`, role: "status" }, state),
      h("code", {}, run.name),
      origin?.experiment ? h("span", {}, `experiment ${origin.experiment}, arm ${origin.arm}`) : null,
      origin?.created ? h("span", {}, new Date(origin.created * 1000).toLocaleString("en", { hourCycle: "h23" })) : null,
      ...lossy(origin)),
  ];
}

function lossy(origin) {
  return Object.entries(origin?.speculation ?? {})
    .filter(([, method]) => String(method).includes("lossy"))
    .map(([worker, method]) => h("span", { class: "bad" }, `${worker}: ${method}`));
}

function totals(run) {
  const sum = run.totals;
  if (!sum.accepted) return [];
  const judged = sum.kept + sum.rejected;
  const rate = run.metrics ? run.metrics.acceptance_rate : sum.kept ? sum.kept / judged : null;
  const discarded = run.metrics?.discarded_tokens ?? null;
  const figures = [
    figure(duration(run.ms), "time", run.status === "finished" && run.policyName !== "large-only" ? against(run) : null),
    figure(percent(sum.small / sum.accepted), "by the small model", `${number(sum.small)} of ${plural(sum.accepted, "accepted token")}`),
    figure(percent(rate), "of judged drafts kept", rate === null ? "none was judged" : sum.kept || rate === 0 ? `${number(sum.kept)} of ${number(judged)}` : "accepted over judged drafts"),
    discarded === null ? null : figure(number(discarded), "tokens thrown away", `of ${number(run.metrics.small_tokens + run.metrics.large_tokens)} generated`),
    run.metrics ? figure(number(run.metrics.large_passes), "passes of the large model", `${number(run.metrics.judge_calls)} of its calls were judgements`) : null,
    tokenDrafts(run),
    cost(run),
  ];
  return [share(sum), h("dl", { class: "figures" }, figures)];
}

function against({ largeOnly, ms }) {
  return largeOnly && `estimate for large-only: ${duration(largeOnly).replace(" ", "\u00a0")} (${number(largeOnly / ms, 2)}× as fast)`;
}

/** How many drafted tokens the large model accepted, and how far into a draft. */
function tokenDrafts({ acceptance }) {
  const { drafted_at: drafted, accepted_at: accepted } = acceptance.large ?? {};
  if (!drafted?.length) return null;
  const sum = (counts) => counts.reduce((all, count) => all + count, 0);
  const places = drafted.slice(0, 4).map((count, index) => percent(accepted[index] / count));
  return figure(percent(sum(accepted) / sum(drafted)), "of tokens guessed ahead accepted", `within the large model; by place in the guess: ${places.join(", ")}${drafted.length > 4 ? ", …" : ""}`);
}

/** The cost that the service counted; nothing if the deployment names no prices. */
function cost({ metrics }) {
  if (metrics?.cost === undefined) return null;
  return figure(metrics.cost.toLocaleString("en", { maximumSignificantDigits: 2 }), "cost of the tokens", "at the deployment's prices");
}

function figure(value, name, note) {
  return h("div", {}, h("dt", {}, name), h("dd", {}, value), note ? h("dd", { class: "note" }, note) : null);
}

/** Accepted tokens by author, as a bar. */
function share(sum) {
  const parts = ["small", "large", "policy"].filter((author) => sum[author] > 0);
  const bar = h("div", { class: "share", role: "img", "aria-label": `Accepted tokens: ${parts.map((author) => `${percent(sum[author] / sum.accepted)} by ${author}`).join(", ")}` });
  for (const author of parts) {
    const part = h("div", { class: author });
    const wide = sum[author] / sum.accepted > 0.16;
    part.append(h("span", {}, wide ? `${author} ${percent(sum[author] / sum.accepted)}` : ""));
    part.style.flexGrow = String(sum[author]);
    bar.append(part);
  }
  return bar;
}

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
const KEY = ' -H "authorization: Bearer ${BATON_API_KEY:?set it to your API key}"';
const curl = (body) => `curl -s ${url("v1/chat/completions")} -H 'content-type: application/json'${hasKey() ? KEY : ""} -d ${quoted(JSON.stringify(body, null, 2))}`;

function python({ model, messages, ...rest }) {
  const extra = Object.keys(rest).length ? `,\n    extra_body=${literal(rest)}` : "";
  return `${hasKey() ? "import os\n\n" : ""}from openai import OpenAI

client = OpenAI(base_url=${JSON.stringify(url("v1"))}, api_key=${hasKey() ? 'os.environ["BATON_API_KEY"]' : '"none"'})
reply = client.chat.completions.create(
    model=${JSON.stringify(model)},
    messages=${literal(messages)}${extra},
)
print(reply.choices[0].message.content)
for step in reply.baton["steps"]:
    print(step["author"], step["score"], step["text"])
`;
}

/** A JSON value as Python writes it. */
function literal(value) {
  if (value === null) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (Array.isArray(value)) return `[${value.map(literal).join(", ")}]`;
  if (typeof value === "object") return `{${Object.entries(value).map(([key, inner]) => `${JSON.stringify(key)}: ${literal(inner)}`).join(", ")}}`;
  return JSON.stringify(value);
}
