// The two models on one time axis: who writes, who judges, who waits. Drawn on a canvas, since a long
// thought has thousands of calls.

import { duration, h, plural } from "./dom.js";

const LANES = ["small", "large"];
const KINDS = { prefill: "reads the prompt", draft: "drafts", write: "writes", judge: "judges", verify: "verifies" };
const HEIGHT = 26;
const GAP = 10;
const AXIS = 20;
const LEFT = 52;

export class Lanes {
  constructor() {
    this.canvas = h("canvas", { class: "lanes", role: "img", height: 0 });
    this.tip = h("div", { class: "tip", hidden: true });
    this.element = h("figure", { class: "timeline" },
      this.canvas, this.tip,
      h("figcaption", { class: "legend" },
        key("small", "small writes"), key("large", "large writes"), key("judge", "large judges"),
        key("rejected", "rejected"), key("prefill", "reads the prompt"), key("idle", "waits")));
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("pointerleave", () => { this.tip.hidden = true; });
    this.canvas.addEventListener("repaint", () => this.draw());
    new ResizeObserver(() => this.draw()).observe(this.element);
  }

  show(run) {
    this.run = run;
    this.rejected = new Set(run.rows.flatMap((row) => row.drafts).concat(run.waiting).flatMap((draft) => draft.calls ?? []));
    this.draw();
  }

  get span() {
    const ends = this.run.calls.reduce((latest, call) => Math.max(latest, call.at_ms + call.ms), 0);
    return Math.max(1, ends, this.run.ms);
  }

  draw() {
    const width = this.element.clientWidth;
    if (!this.run || !width) return;
    const height = LANES.length * (HEIGHT + GAP) + AXIS;
    const ratio = window.devicePixelRatio || 1;
    const { canvas } = this;
    Object.assign(canvas, { width: Math.round(width * ratio), height: Math.round(height * ratio) }); // it is empty again
    canvas.style.height = `${height}px`;
    const css = getComputedStyle(document.documentElement);
    const colour = (name) => css.getPropertyValue(`--${name}`).trim();
    const g = canvas.getContext("2d");
    g.scale(ratio, ratio);
    g.textBaseline = "middle";
    const span = this.span;
    const scale = (width - LEFT - 6) / span;
    const place = (ms) => LEFT + ms * scale;
    for (const [lane, name] of LANES.entries()) {
      const top = lane * (HEIGHT + GAP);
      g.fillStyle = colour("lane");
      g.beginPath();
      g.roundRect(LEFT, top, width - LEFT - 6, HEIGHT, 4);
      g.fill();
      g.fillStyle = colour(name);
      g.font = `600 12px ${css.getPropertyValue("--sans")}`;
      g.fillText(name === "small" ? "Small" : "Large", 0, top + HEIGHT / 2 + 1);
    }
    this.boxes = [];
    const now = this.run.running.map(({ worker, kind, since_ms: since }) => ({ worker, kind, at_ms: since, ms: Math.max(0, span - since), live: true }));
    [...this.run.calls, ...now].forEach((call, index) => {
      const lane = LANES.indexOf(call.worker);
      const x = place(call.at_ms);
      const w = Math.max(1.2, call.ms * scale);
      const judge = call.kind === "judge" || call.kind === "verify";
      const y = lane * (HEIGHT + GAP) + (judge ? 7 : call.kind === "prefill" ? 9 : 2);
      const tall = judge ? HEIGHT - 14 : call.kind === "prefill" ? HEIGHT - 18 : HEIGHT - 4;
      const lost = this.rejected.has(index) && call.kind === "draft";
      g.globalAlpha = call.live ? 0.55 : call.kind === "prefill" ? 0.45 : lost ? 0.35 : judge ? 0.6 : 1;
      g.fillStyle = call.error ? colour("bad") : colour(call.worker);
      g.fillRect(x, y, Math.max(1, w - 0.6), tall);
      g.globalAlpha = 1;
      if (lost && w > 3) {
        g.strokeStyle = colour("bad");
        g.lineWidth = 1.5;
        g.beginPath();
        g.moveTo(x, y + tall / 2);
        g.lineTo(x + w, y + tall / 2);
        g.stroke();
      }
      this.boxes.push({ x, w, lane, call, lost });
    });
    g.fillStyle = colour("muted");
    g.font = `11px ${css.getPropertyValue("--sans")}`;
    const base = LANES.length * (HEIGHT + GAP) + 4;
    const step = nice(span / Math.max(2, (width - LEFT) / 110));
    for (let at = 0; at <= span * 1.0001; at += step) {
      const x = place(at);
      const text = at === 0 ? "0" : duration(at).replace(/(\.\d*?)0+ (?=m?s$)/, (_, digits) => `${digits === "." ? "" : digits} `);
      g.textAlign = x > width - 40 ? "right" : at === 0 ? "left" : "center";
      g.fillText(text, Math.min(x, width - 6), base + 6);
    }
    g.textAlign = "left";
    canvas.setAttribute("aria-label", summary(this.run, span));
  }

  point(event) {
    if (!this.boxes) return;
    const box = this.canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    const lane = Math.floor(y / (HEIGHT + GAP));
    const found = this.boxes.findLast((one) => one.lane === lane && x >= one.x - 2 && x <= one.x + one.w + 2);
    this.tip.hidden = !found;
    if (!found) return;
    const { call, lost } = found;
    const what = call.error ? `failed (${call.error})` : KINDS[call.kind];
    this.tip.textContent = [`${call.worker} ${what}`, duration(call.ms), call.tokens ? plural(call.tokens, "token") : "", lost ? "rejected" : "", call.live ? "still running" : ""].filter(Boolean).join(" · ");
    this.tip.style.left = `${Math.min(Math.max(0, x - 40), Math.max(0, box.width - 230))}px`;
    this.tip.style.top = `${lane * (HEIGHT + GAP) - 30}px`;
  }
}

function key(kind, text) {
  return h("span", {}, h("i", { class: `key ${kind}`, "aria-hidden": "true" }), text);
}

function nice(raw) {
  const power = 10 ** Math.floor(Math.log10(raw));
  return [1, 2, 5, 10].find((step) => step * power >= raw) * power;
}

function summary(run, span) {
  const busy = (worker) => run.calls.filter((call) => call.worker === worker).reduce((sum, call) => sum + call.ms, 0);
  return `Timeline of ${duration(span)}: the small model works for ${duration(busy("small"))}, the large one for ${duration(busy("large"))}, in ${plural(run.calls.length, "call")}.`;
}
