// The latest requests, and the replay of one from the service or a saved file.

import { get, refusal } from "../api.js";
import { duration, field, h, moment, number, percent, say } from "../dom.js";
import { outcome } from "../reasons.js";
import { plain } from "../richtext.js";
import { Run } from "../run.js";
import { RunView } from "../runview.js";

const LARGEST_FILE = 64 << 20;

export class TracesView {
  constructor() {
    const select = (name, options) => h("select", { name, onchange: () => this.load() },
      h("option", { value: "" }, "all"), options.map((value) => h("option", { value }, value)));
    const input = (name, props) => h("input", { name, ...props, onchange: () => this.load() });
    this.filters = {
      policy: select("policy", []),
      status: select("status", ["finished", "failed", "cancelled"]),
      version: input("version", { type: "number", min: 0, step: 1 }),
      arm: input("arm", { type: "text" }),
      min_ms: input("min_ms", { type: "number", min: 0, step: 100 }),
      min_large_tokens: input("min_large_tokens", { type: "number", min: 0, step: 10 }),
    };
    const names = { policy: "policy", status: "ended", version: "version", arm: "arm", min_ms: "time from, ms", min_large_tokens: "by large, from" };
    this.body = h("tbody", {});
    this.note = h("p", { class: "note", role: "status" });
    const file = h("input", { type: "file", accept: ".json,application/json", class: "sr", id: "file", onchange: () => { this.open(file.files[0]); file.value = ""; } });
    this.list = h("div", {},
      h("div", { class: "row filters" }, Object.entries(this.filters).map(([name, control]) => field(names[name], control)),
        h("button", { class: "quiet", onclick: () => this.load() }, "Refresh"),
        h("span", { class: "file" }, file, h("label", { class: "button", for: "file" }, "Open a saved trace"))),
      this.note,
      h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Latest requests" }, h("table", { class: "list" },
        h("thead", {}, h("tr", {}, ["asked", "question", "policy", "ended", "time", "by large", "drafts kept"].map((name) => h("th", { scope: "col" }, name)))),
        this.body)));
    this.one = h("div", { hidden: true });
    this.element = h("div", { class: "traces" }, this.list, this.one);
    this.element.addEventListener("dragover", (event) => event.preventDefault());
    this.element.addEventListener("drop", (event) => { event.preventDefault(); this.open(event.dataTransfer.files[0]); });
  }

  /** `#/traces`, or `#/trace/ID`. */
  async enter(id) {
    this.one.hidden = !id;
    this.list.hidden = Boolean(id);
    if (!id) {
      this.load();
      return;
    }
    this.one.replaceChildren(h("p", { class: "pending" }, "…"));
    const run = new Run("", "");
    run.traceId = id;
    try {
      this.show(await run.saved());
    } catch (error) {
      this.one.replaceChildren(back(), h("p", { class: "trouble failed", role: "alert" }, error.status === 404 ? "This trace is not kept, or no longer." : error.message));
    }
  }

  async load() {
    const query = new URLSearchParams(Object.entries(this.filters).map(([name, control]) => [name, control.value]).filter(([, value]) => value !== ""));
    try {
      const { data } = await get(`v1/traces?${query}`);
      this.note.textContent = data.length ? "" : "Each request leaves a trace: who wrote which step, when, and why it was kept. No request fits yet. Ask one, or open a saved trace.";
      this.body.replaceChildren(...data.map(line));
      if (this.filters.policy.options.length === 1) {
        const { data: models } = await get("v1/models"); // `v1/policies` would need an observer's key
        const policies = models.map(({ id }) => id).filter((id) => id !== "baton" && !id.includes("@"));
        this.filters.policy.append(...policies.map((policy) => h("option", { value: policy }, policy)));
      }
    } catch (error) {
      this.note.replaceChildren(...refusal(error, () => this.load()));
    }
  }

  async open(file) {
    if (!file) return;
    try {
      if (file.size > LARGEST_FILE) throw new Error("the file is larger than a trace can be");
      const record = JSON.parse(await file.text());
      if (!Array.isArray(record?.steps)) throw new Error("it has no `steps`: expected a trace as /v1/traces/ID gives it");
      this.list.hidden = true;
      this.one.hidden = false;
      this.show(record, file.name);
    } catch (error) {
      say(`${file.name} cannot be shown: ${error.message}`);
      this.note.textContent = `${file.name} cannot be shown: ${error.message}`;
    }
  }

  show(record, name = "") {
    const view = new RunView();
    this.one.replaceChildren(back(), name ? h("p", { class: "note" }, `From the file ${name}.`) : "", view.element);
    view.show(Run.of(record));
  }
}

const back = () => h("p", {}, h("a", { href: "#/traces", onclick: () => { if (location.hash === "#/traces") dispatchEvent(new HashChangeEvent("hashchange")); } }, "← all requests"));

function line(row) {
  const tokens = row.small_tokens + row.large_tokens;
  return h("tr", { class: row.status },
    h("td", { class: "figure" }, moment(row.at)),
    h("td", { class: "wide", dir: "auto" }, h("a", { href: `#/trace/${encodeURIComponent(row.id)}` }, plain(row.question ?? "(its text is not kept any more)"))),
    h("td", {}, h("code", {}, row.version ? `${row.policy}@${row.version}` : row.policy), row.arm ? ` ${row.experiment}/${row.arm}` : ""),
    h("td", {}, h("span", { class: `state ${outcome({ status: row.status, finish: row.finish_reason })[1]}` }, row.status === "finished" ? (row.finish_reason ?? "stop") : row.status)),
    h("td", { class: "figure" }, duration(row.ms)),
    h("td", { class: "figure" }, tokens ? `${number(row.large_tokens)} of ${number(tokens)}` : "–"),
    h("td", { class: "figure" }, percent(row.accepted)));
}
