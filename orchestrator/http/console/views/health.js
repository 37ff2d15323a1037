// Whether the service is healthy, and if not, which part.

import { get, load, request } from "../api.js";
import { h, number, percent, plural, tell } from "../dom.js";

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
    tell(this.glance, text);
  }

  draw(ready) {
    const { series } = this;
    const sum = (name, labels = {}) => total(series, name, labels);
    const share = (part, whole) => (whole ? percent(part / whole) : "–");
    this.cards.replaceChildren(
      ...Object.entries(ready.workers).map(([pool, well]) => {
        const of = { worker: pool };
        const prompt = sum("baton_worker_prompt_tokens_total", of);
        const cached = sum("baton_worker_cached_tokens_total", of);
        const rounds = sum("baton_worker_rounds_total", of);
        const [drafted, accepted] = ["drafted", "accepted"].map((name) => sum(`baton_worker_${name}_tokens_total`, of));
        return card(`${pool[0].toUpperCase()}${pool.slice(1)} model`, well ? "finished" : "failed", well ? "answers" : "does not answer", [
          ["replicas", whole(sum("baton_worker_replicas", of))],
          ["rows at work", of_rows(sum("baton_worker_live_rows", of), sum("baton_worker_rows", of))],
          ["calls waiting", whole(sum("baton_worker_queued", of))],
          ["tokens generated", whole(sum("baton_worker_generated_tokens_total", of))],
          ["prompt tokens from the cache", prompt ? share(cached, prompt) : null],
          ["decoding", this.methods?.[pool]],
          ["tokens a round (mean acceptance length)", rounds ? number(sum("baton_worker_emitted_tokens_total", of) / rounds, 2) : null],
          ["drafted tokens accepted", drafted ? share(accepted, drafted) : null],
        ]);
      }),
      card("Requests", "finished", "", [
        ["being answered", whole(sum("baton_live_requests"))],
        ["answered", whole(sum("baton_requests_total", { outcome: ["stop", "length"] }))],
        ["ended by an error", whole(sum("baton_requests_total", { outcome: ["error", "unavailable", "deadline", "overloaded"] }))],
        ["HTTP errors, probes included", whole(responses(series))],
        ["drafts of the small model kept", kept(series)],
      ]),
      card("Store", ready.store ? "finished" : "failed", ready.store ? "answers" : "out of reach", [
        ["writes waiting", whole(sum("baton_store_waiting"))],
        ["writes lost", whole(sum("baton_store_lost_total"))],
        ["published, not in effect", whole(sum("baton_config_set_aside"))],
        ["age of the configuration", age(sum("baton_config_age_seconds"))],
      ]));
  }
}

function card(title, tone, state, rows) {
  return h("section", { class: "card", "aria-label": title },
    h("div", { class: "row" }, h("h2", {}, title), state ? h("span", { class: `state ${tone}` }, state) : null),
    h("dl", { class: "plain" }, rows.filter(([, value]) => value !== null && value !== undefined).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)))));
}

const whole = (value) => (value === null ? null : number(value));
const of_rows = (live, rows) => (live === null ? null : `${number(live)} of ${number(rows)}`);
const age = (seconds) => (seconds === null ? null : plural(Math.round(seconds), "second"));
const responses = (series) => total(series, "baton_http_responses_total", { code: (code) => code >= "400" });

function kept(series) {
  const steps = (accepted) => total(series, "baton_steps_total", { author: "small", accepted }) ?? 0;
  const all = steps("true") + steps("false");
  return all ? percent(steps("true") / all) : null;
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
