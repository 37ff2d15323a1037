// Whether the service is healthy, and if not, which part.

import { get, load, request } from "../api.js";
import { h, number, percent, plural, redraw } from "../dom.js";

const POLL_MS = 2000;

export class HealthView {
  constructor() {
    this.glance = h("p", { class: "glance", role: "status" }, "…");
    this.note = h("p", { class: "note", role: "status" });
    this.cards = h("div", { class: "cards" });
    this.series = []; // of the metrics, which need another key than the rest
    this.element = h("div", { class: "health" }, this.glance, this.note, this.cards);
  }

  enter() {
    load(this.note, async () => {
      const ready = await this.look();
      if (!ready) return;
      try {
        this.methods ??= (await get("v1/models")).data[0].speculation;
        this.series = parse(await (await request("metrics")).text());
      } finally {
        this.draw(ready);
      }
    }, () => {}, POLL_MS);
  }

  /** Say whether the service is ready. Return what is known of its parts; null if nothing is. */
  async look() {
    try {
      const ready = await get("ready");
      if (!ready.degraded) this.tell("finished", "Well: both models answer, and the store takes what is written.");
      else if (ready.store) this.tell("cancelled", "It answers, but something that was published is not in effect: Policies and Experiments say what.");
      else this.tell("cancelled", "It answers, but the store is out of reach: versions may be old, and outcomes wait.");
      return ready;
    } catch ({ message, body }) {
      const down = Object.entries(body?.reasons ?? {}).map(([pool, why]) => `the ${pool} pool does not answer: ${why}`);
      this.tell("failed", down.length ? `Ill: ${down.join("; ")}` : message);
      if (down.length) return body;
      this.cards.replaceChildren(); // what stood there is no longer so
      return null;
    }
  }

  tell(tone, text) {
    this.glance.className = `glance ${tone}`;
    redraw(this.glance, text); // a poll must not scroll the page
  }

  draw(ready) {
    const sum = (name, labels) => total(this.series, name, labels);
    const rate = (part, whole) => (whole ? part / whole : null);
    const age = sum("baton_config_age_seconds");
    redraw(this.cards,
      Object.entries(ready.workers).map(([pool, well]) => {
        const worker = (name) => sum(`baton_worker_${name}`, { worker: pool });
        return card(`${pool[0].toUpperCase()}${pool.slice(1)} model`, well ? "finished" : "failed", well ? "answers" : "does not answer", [
          ["replicas", number(worker("replicas"))],
          ["rows at work", worker("live_rows") === null ? null : `${number(worker("live_rows"))} of ${number(worker("rows"))}`],
          ["calls waiting", number(worker("queued"))],
          ["tokens generated", number(worker("generated_tokens_total"))],
          ["prompt tokens from the cache", percent(rate(worker("cached_tokens_total"), worker("prompt_tokens_total")))],
          ["decoding", this.methods?.[pool]],
          ["tokens a round (mean acceptance length)", number(rate(worker("emitted_tokens_total"), worker("rounds_total")), 2)],
          ["drafted tokens accepted", percent(rate(worker("accepted_tokens_total"), worker("drafted_tokens_total")))],
        ]);
      }),
      card("Requests", "finished", "", [
        ["being answered", number(sum("baton_live_requests"))],
        ["answered", number(sum("baton_requests_total", { outcome: ["stop", "length"] }))],
        ["ended by an error", number(sum("baton_requests_total", { outcome: ["error", "unavailable", "deadline", "overloaded"] }))],
        ["HTTP errors, probes included", number(sum("baton_http_responses_total", { code: (code) => code >= "400" }))],
        ["drafts of the small model kept", percent(rate(sum("baton_steps_total", { author: "small", accepted: "true" }), sum("baton_steps_total", { author: "small" })))],
      ]),
      card("Store", ready.store ? "finished" : "failed", ready.store ? "answers" : "out of reach", [
        ["writes waiting", number(sum("baton_store_waiting"))],
        ["writes lost", number(sum("baton_store_lost_total"))],
        ["published, not in effect", number(sum("baton_config_set_aside"))],
        ["age of the configuration", age === null ? null : plural(Math.round(age), "second")],
      ]));
  }
}

/** A part's state and figures, without those that are not known. */
function card(title, tone, state, rows) {
  return h("section", { class: "card", "aria-label": title },
    h("div", { class: "row" }, h("h2", {}, title), state ? h("span", { class: `state ${tone}` }, state) : null),
    h("dl", { class: "plain" }, rows.filter(([, value]) => value && value !== "–").map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)))));
}

/** Prometheus text as series: name, labels, value. */
function parse(text) {
  const series = [];
  for (const line of text.split("\n")) {
    const match = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)/.exec(line);
    if (!match) continue;
    const labels = Object.fromEntries([...(match[2] ?? "").matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)].map(([, name, value]) => [name, value]));
    series.push({ name: match[1], labels, value: Number(match[3]) });
  }
  return series;
}

/** The sum over the series with these labels; null if there are none. */
function total(series, name, labels = {}) {
  const fits = (label, wanted) => (typeof wanted === "function" ? wanted(label) : Array.isArray(wanted) ? wanted.includes(label) : label === wanted);
  const found = series.filter((one) => one.name === name && Object.entries(labels).every(([key, wanted]) => fits(one.labels[key], wanted)));
  return found.length ? found.reduce((sum, one) => sum + one.value, 0) : null;
}
