// Ask one question and watch the two models write the answer.

import { get, policySchemas, refusal } from "../api.js";
import { announce, field, h, tell } from "../dom.js";
import { parameterForm } from "../parameters.js";
import { QUESTIONS } from "../questions.js";
import { Run } from "../run.js";
import { RunView } from "../runview.js";

const STARTING_MS = 2000; // between two looks at a service that starts

export class AskView {
  constructor() {
    const last = session();
    this.question = h("textarea", { id: "question", rows: 2, maxlength: 100000, placeholder: "What would you like to know?", dir: "auto", value: last.question ?? QUESTIONS[0] });
    this.model = h("select", { id: "model" }, h("option", { value: "baton" }, "baton"));
    this.cap = h("input", { type: "number", min: 1, step: 1, placeholder: "default", name: "max_tokens" });
    this.temperature = h("input", { type: "number", min: 0, max: 2, step: "any", placeholder: "0", name: "temperature" });
    this.form = parameterForm(null);
    this.own = h("div", {});
    this.trouble = h("p", { class: "bad", role: "alert" });
    this.submit = h("button", { class: "primary", type: "submit" }, "Ask", h("kbd", {}, "Ctrl ↵"));
    this.about = h("p", { class: "hint", id: "about-policy" });
    this.notes = h("div", {});
    this.result = h("div", { class: "result" });
    this.element = h("div", { class: "ask" },
      h("form", { class: "asking", novalidate: true, onsubmit: (event) => { event.preventDefault(); this.ask(); } },
        h("label", { class: "sr", for: "question" }, "Question"),
        this.question,
        h("div", { class: "samples" }, QUESTIONS.map((text) =>
          h("button", { type: "button", class: "chip", title: text, onclick: () => { this.question.value = text; this.ask(); } }, text))),
        h("div", { class: "row" },
          h("label", { class: "inline", for: "model" }, "Policy"), this.model, this.about,
          this.submit),
        h("details", { class: "more" },
          h("summary", {}, "Parameters"),
          h("div", { class: "parameters" },
            field("max_tokens", this.cap, "cap on thought and answer together, in tokens"),
            field("temperature", this.temperature, "0 is greedy; from 0 to 2")),
          this.own),
        this.trouble),
      this.notes,
      this.result);
    this.question.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); this.ask(); }
    });
    this.model.addEventListener("change", () => this.choose());
    if (last.running && last.trace) this.recover(last);
    else if (!localStorage.getItem("baton.visited")) this.welcome();
    this.load();
  }

  async load() {
    try {
      this.schemas = await policySchemas();
      const { data, notes } = await get("v1/models");
      const models = data.map((model) => model.id);
      this.notes.replaceChildren(...notes.map((note) => h("p", { class: "note" }, note)));
      this.trouble.replaceChildren();
      const wanted = session().model ?? "baton";
      this.model.replaceChildren(...models.map((id) => h("option", { value: id, selected: id === wanted }, id)));
      this.choose();
    } catch (error) {
      tell(this.trouble, ...refusal(error, () => this.load()));
      if (error.status === 503) setTimeout(() => this.load(), STARTING_MS);
    }
  }

  choose() {
    const name = this.model.value;
    const schema = this.schemas?.[name];
    this.about.textContent = name === "baton" ? "this service's default, or a running experiment"
      : String(schema?.description ?? "a published version").split("\n\n")[0];
    this.form = parameterForm(schema);
    this.own.replaceChildren(this.form.element);
  }

  /** On a first visit, ask the first question at once, so that there is something to see. */
  async welcome() {
    localStorage.setItem("baton.visited", "yes");
    this.ask(h("p", { class: "note" }, "Two language models, a small and a large one, write one line of thought, step by step. A policy decides who writes what; below each step is the reason. This sample question was just sent for you: ask your own above."));
  }

  /** The page was loaded again during an answer: show its record. */
  async recover(last) {
    remember({ ...last, running: false });
    const run = new Run(last.question, last.model);
    run.traceId = last.trace;
    try {
      const record = Run.of(await run.saved());
      if (this.run) return; // another question was asked meanwhile
      const view = new RunView({ again: (same) => this.follow(same) });
      view.show(record);
      this.result.replaceChildren(h("p", { class: "note" }, "The page was loaded again in mid-answer. This is what is on record."), view.element);
    } catch { /* it is not kept: the question is still there */ }
  }

  /** Ask what the form says; `note` stands above the answer. */
  async ask(note = null) {
    this.trouble.textContent = "";
    const question = this.question.value.trim();
    if (!question) {
      tell(this.trouble, "Write a question first.");
      this.question.focus();
      return;
    }
    let policy;
    try {
      policy = this.form.values();
      if (!this.cap.validity.valid || !this.temperature.validity.valid) throw new Error("max_tokens or temperature is not a number in its range");
    } catch (error) {
      tell(this.trouble, error.message);
      return;
    }
    const body = {};
    if (this.cap.value) body.max_tokens = Number(this.cap.value);
    if (this.temperature.value) body.temperature = Number(this.temperature.value);
    await this.follow(new Run(question, this.model.value, { policy, body }), note);
  }

  /** Send a request in place of the one before, and show its answer. */
  async follow(run, note = null) {
    this.run?.stop();
    this.run = run;
    const view = new RunView({ again: (same) => this.follow(same) });
    this.result.replaceChildren(...(note ? [note] : []), view.element);
    view.show(run);
    await run.ask((changed) => {
      view.changed(changed);
      remember({ question: run.question, model: run.model, trace: run.traceId, running: run.status === "running" });
    });
    announce(run.status === "finished" ? "The answer is complete" : "The answer has ended early");
  }
}

const session = () => JSON.parse(sessionStorage.getItem("baton.last") ?? "{}");
let remembered = "";
function remember(last) {
  const text = JSON.stringify(last);
  if (text !== remembered) sessionStorage.setItem("baton.last", text);
  remembered = text;
}
