// The latest requests, and the replay of one from the service or a saved file.

import { get, load } from "../api.js";
import { duration, field, h, moment, number, offer, percent, table } from "../dom.js";
import { outcome } from "../reasons.js";
import { plain } from "../richtext.js";
import { Run } from "../run.js";
import { RunView } from "../runview.js";

const LARGEST_FILE = 64 << 20;

export class TracesView {
  constructor() {
    const select = (name) => h("select", { name, onchange: () => this.load() });
    const input = (name, props) => h("input", { name, ...props, onchange: () => this.load() });
    this.filters = {
      policy: select("policy"),
      status: select("status"),
      version: input("version", { type: "number", min: 0, step: 1 }),
      arm: input("arm", { type: "text" }),
      min_ms: input("min_ms", { type: "number", min: 0, step: 100 }),
      min_large_tokens: input("min_large_tokens", { type: "number", min: 0, step: 10 }),
    };
    offer(this.filters.policy, [""]);
    offer(this.filters.status, ["", "finished", "failed", "cancelled"]);
    const names = { policy: "policy", status: "ended", version: "version", arm: "arm", min_ms: "time from, ms", min_large_tokens: "by large, from" };
    this.body = h("tbody", {});
    this.trouble = h("p", { class: "bad", role: "alert" });
    this.note = h("p", { class: "note", role: "status" });
    const file = h("input", { type: "file", accept: ".json,application/json", class: "sr", id: "file", onchange: () => { this.open(file.files[0]); file.value = ""; } });
    this.list = h("div", {},
      h("div", { class: "row filters" }, Object.entries(this.filters).map(([name, control]) => field(names[name], control)),
        h("button", { class: "quiet", onclick: () => this.load() }, "Refresh"),
        h("span", { class: "file" }, file, h("label", { class: "button", for: "file" }, "Open a saved trace"))),
      this.note,
      table("Latest requests", ["asked", "question", "policy", "ended", "time", "by large", "drafts kept"], this.body));
    this.one = h("div", { hidden: true });
    this.element = h("div", { class: "traces" }, this.trouble, this.list, this.one);
    this.element.addEventListener("dragover", (event) => event.preventDefault());
    this.element.addEventListener("drop", (event) => { event.preventDefault(); this.open(event.dataTransfer.files[0]); });
  }

  /** `#/traces`, or `#/trace/ID`. */
  enter(id) {
    if (!id) {
      this.turnTo(this.list);
      this.load();
      return;
    }
    const run = new Run("", "");
    run.traceId = id;
    const pending = h("p", { class: "pending" }, "…");
    this.one.replaceChildren(back(), pending);
    this.turnTo(this.one);
    load(this.trouble, async () => Run.of(await run.saved().finally(() => pending.remove())), (saved) => this.show(saved));
  }

  turnTo(part) {
    for (const one of [this.list, this.one]) one.hidden = one !== part;
  }

  load() {
    const query = new URLSearchParams(Object.entries(this.filters).map(([name, control]) => [name, control.value]).filter(([, value]) => value !== ""));
    load(this.trouble, () => Promise.all([get(`v1/traces?${query}`), get("v1/models")]), ([{ data }, models]) => {
      this.note.textContent = data.length ? "" : "Each request leaves a trace: who wrote which step, when, and why it was kept. No request fits yet. Ask one, or open a saved trace.";
      this.body.replaceChildren(...data.map(line));
      const policies = models.data.map(({ id }) => id).filter((id) => id !== "baton" && !id.includes("@")); // `v1/policies` would need an observer's key
      offer(this.filters.policy, ["", ...policies]);
    });
  }

  open(file) {
    if (!file) return;
    load(this.trouble, () => read(file), (run) => {
      this.turnTo(this.one);
      this.show(run, h("p", { class: "note" }, `From the file ${file.name}.`));
    });
  }

  show(run, ...notes) {
    const view = new RunView();
    this.one.replaceChildren(back(), ...notes, view.element);
    view.show(run);
  }
}

const back = () => h("p", {}, h("a", { href: "#/traces" }, "← all requests"));

/** The run that a file has. */
async function read(file) {
  try {
    if (file.size > LARGEST_FILE) throw new Error("it is larger than a trace can be");
    const record = JSON.parse(await file.text());
    if (!Array.isArray(record?.steps)) throw new Error("it has no `steps`: expected a trace as /v1/traces/ID gives it");
    return Run.of(record);
  } catch (error) {
    throw new Error(`${file.name} cannot be shown: ${error.message}`);
  }
}

function line(row) {
  const tokens = row.small_tokens + row.large_tokens;
  return h("tr", {},
    h("td", { class: "figure" }, moment(row.at)),
    h("td", { class: "wide", dir: "auto" }, h("a", { href: `#/trace/${encodeURIComponent(row.id)}` }, plain(row.question?.trim() === "" ? "(empty)" : row.question ?? "(its text is not kept any more)"))),
    h("td", {}, h("code", {}, row.version ? `${row.policy}@${row.version}` : row.policy), row.arm ? ` ${row.experiment}/${row.arm}` : ""),
    h("td", {}, h("span", { class: `state ${outcome({ status: row.status, finish: row.finish_reason })[1]}` }, row.status === "finished" ? (row.finish_reason ?? "stop") : row.status)),
    h("td", { class: "figure" }, duration(row.ms)),
    h("td", { class: "figure" }, tokens ? `${number(row.large_tokens)} of ${number(tokens)}` : "–"),
    h("td", { class: "figure" }, percent(row.accepted)));
}
