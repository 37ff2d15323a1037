// Ask one question and watch the two models write the answer.

import { get, load, policySchemas } from "../api.js";
import { announce, field, h, offer, tell } from "../dom.js";
import { ParameterForm } from "../parameters.js";
import { QUESTIONS, questionForm } from "../questions.js";
import { Run } from "../run.js";
import { RunView } from "../runview.js";

export class AskView {
  constructor() {
    const last = session();
    this.model = h("select", { id: "model", onchange: () => this.choose() }, h("option", { value: "baton" }, "baton"));
    this.cap = h("input", { type: "number", min: 1, step: 1, placeholder: "default", name: "max_tokens" });
    this.temperature = h("input", { type: "number", min: 0, max: 2, step: "any", placeholder: "0", name: "temperature" });
    this.parameters = new ParameterForm();
    this.about = h("p", { class: "hint", id: "about-policy" });
    this.form = questionForm({
      id: "question",
      value: last.question,
      verb: "Ask",
      submit: (question) => this.ask(question),
      controls: [h("label", { class: "inline", for: "model" }, "Policy"), this.model, this.about],
      more: h("details", { class: "more" },
        h("summary", {}, "Parameters"),
        h("div", { class: "parameters" },
          field("max_tokens", this.cap, "cap on thought and answer together, in tokens"),
          field("temperature", this.temperature, "0 is greedy; from 0 to 2")),
        this.parameters.element),
    });
    this.notes = h("div", {});
    this.result = h("div", { class: "result" });
    this.element = h("div", { class: "ask" }, this.form.element, this.notes, this.result);
    if (last.running) this.recover(last);
  }

  enter() {
    const first = !this.run && !localStorage.getItem("baton.visited");
    const ready = () => first && get("ready"); // the sample needs the models, which load longer than they are listed
    load(this.form.trouble, () => Promise.all([policySchemas(), get("v1/models"), ready()]), ([schemas, { data, notes }]) => {
      this.notes.replaceChildren(...notes.map((note) => h("p", { class: "note" }, note)));
      offer(this.model, data.map(({ id }) => id), this.schemas ? this.model.value : session().model);
      this.schemas = schemas;
      this.choose();
      if (first && !this.run) this.welcome();
    });
  }

  choose() {
    const name = this.model.value;
    const schema = this.schemas?.[name];
    this.about.textContent = name === "baton" ? "this service's default, or a running experiment"
      : String(schema?.description ?? "a published version").split("\n\n")[0];
    this.parameters.show(schema);
  }

  /** On a first visit, ask the first question at once, so that there is something to see. */
  welcome() {
    this.follow(new Run(QUESTIONS[0], "baton"));
    this.result.prepend(h("p", { class: "note" }, "Two language models, a small and a large one, write one line of thought, step by step. A policy decides who writes what; below each step is the reason. This sample question was just sent for you: ask your own above."));
  }

  /** The page was loaded again during an answer: show its record. */
  async recover(last) {
    remember({ ...last, running: false });
    const run = new Run(last.question, last.model);
    run.traceId = last.trace;
    try {
      const record = Run.of(await run.saved());
      if (this.run) return; // another question was asked meanwhile
      this.show(record, h("p", { class: "note" }, "The page was loaded again in mid-answer. This is what is on record."));
    } catch { /* it is not kept: the question is still there */ }
  }

  show(run, ...notes) {
    const view = new RunView({ again: (same) => this.follow(same) });
    this.result.replaceChildren(...notes, view.element);
    view.show(run);
    return view;
  }

  /** Ask a question under the policy and the parameters of the form. */
  ask(question) {
    try {
      const policy = this.parameters.values();
      if (!this.cap.validity.valid || !this.temperature.validity.valid) throw new Error("max_tokens or temperature is not a number in its range");
      const body = {};
      if (this.cap.value) body.max_tokens = Number(this.cap.value);
      if (this.temperature.value) body.temperature = Number(this.temperature.value);
      this.follow(new Run(question, this.model.value, { policy, body }));
    } catch (error) {
      tell(this.form.trouble, error.message);
    }
  }

  /** Send a request in place of the one before, and show its answer. */
  async follow(run) {
    localStorage.setItem("baton.visited", "yes");
    this.run?.stop();
    this.run = run;
    const view = this.show(run);
    await run.ask(() => {
      view.changed(run);
      remember({ question: run.question, model: run.model, trace: run.traceId, running: run.status === "running" });
    });
    announce(run.status === "finished" ? "The answer is complete" : "The answer has ended early");
  }
}

const session = () => JSON.parse(sessionStorage.getItem("baton.last") ?? "{}");
let remembered = "";
function remember(last) {
  const text = JSON.stringify(last);
  try {
    if (text !== remembered) sessionStorage.setItem("baton.last", text);
  } catch { /* it is longer than a browser remembers */ }
  remembered = text;
}
