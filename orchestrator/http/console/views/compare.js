// The same question under two policies, side by side.

import { get, load } from "../api.js";
import { duration, h, number, offer, percent } from "../dom.js";
import { questionForm } from "../questions.js";
import { Run } from "../run.js";
import { RunView } from "../runview.js";

export class CompareView {
  constructor() {
    this.models = ["baton", "large-only"].map((name, side) =>
      h("select", { "aria-label": side ? "Second policy" : "First policy" }, h("option", { value: name }, name)));
    this.turns = h("input", { type: "checkbox", checked: true });
    this.form = questionForm({
      id: "compare-question",
      verb: "Compare",
      submit: (question) => this.ask(question),
      controls: [this.models[0], h("span", { class: "inline" }, "against"), this.models[1],
        h("label", { class: "check" }, this.turns, "one after the other, for fair times")],
    });
    this.verdict = h("p", { class: "verdict", role: "status" }, "Two policies answer the same question. Then this line says whether their answers agree, how long each took, and how much the large model wrote.");
    this.sides = h("div", { class: "sides" });
    this.element = h("div", { class: "compare" }, this.form.element, this.verdict, this.sides);
  }

  enter() {
    load(this.form.trouble, () => get("v1/models"), ({ data }) => {
      for (const select of this.models) offer(select, data.map(({ id }) => id));
    });
  }

  async ask(question) {
    for (const run of this.runs ?? []) run.stop();
    const runs = this.models.map((select) => new Run(question, select.value));
    this.runs = runs;
    this.verdict.textContent = "";
    this.sides.replaceChildren();
    const start = (run) => {
      const view = new RunView({ compact: true });
      this.sides.append(view.element);
      view.show(run);
      return run.ask(() => view.changed(run));
    };
    if (this.turns.checked) {
      await start(runs[0]);
      if (this.runs !== runs || runs[0].status === "cancelled") return;
      await start(runs[1]);
    } else await Promise.all(runs.map(start));
    if (this.runs === runs) this.verdict.textContent = compared(runs);
  }
}

function compared([one, other]) {
  if (one.status !== "finished" || other.status !== "finished") return "";
  const plain = (run) => run.answerText.replace(/\s+/g, " ");
  const same = plain(one) === plain(other) ? "The answers are the same" : "The answers differ";
  const [first, second] = one.ms <= other.ms ? [one, other] : [other, one];
  const share = (run) => percent(run.totals.large / Math.max(1, run.totals.accepted));
  return `${same}. ${first.name} took ${duration(first.ms)}, ${second.name} ${duration(second.ms)} (${number(second.ms / first.ms, 2)}×). `
    + `The large model wrote ${share(first)} of the first and ${share(second)} of the second.`;
}
