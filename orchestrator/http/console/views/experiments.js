// Running experiments: the readout as intervals, guardrails, the ramp.

import { get, load, policySchemas } from "../api.js";
import { h, inTrouble, moment, percent, plural, svg, table } from "../dom.js";
import { changed, shown } from "../parameters.js";
import { plain } from "../richtext.js";

const POLL_MS = 5000;
const WIDEST = 1.5; // the plot over time shows this many widths of the latest interval beyond it
const VERDICTS = { better: "finished", worse: "failed", breaks_bounds: "failed", sample_ratio_mismatch: "failed" };

export class ExperimentsView {
  constructor() {
    this.trouble = h("p", { class: "bad", role: "alert" });
    this.list = h("div", {});
    this.element = h("div", { class: "experiments" }, this.trouble, this.list);
  }

  enter() {
    this.schemas = null;
    load(this.trouble, async () => {
      const overview = await get("v1/experiments");
      const reports = await Promise.all(overview.data.map((run) => run.experiment && reportOf(run)));
      if (overview.data.length) this.schemas ??= await policySchemas();
      return [overview, reports];
    }, ([overview, reports]) => {
      this.draw(overview.data, reports);
      return inTrouble(overview);
    }, POLL_MS);
  }

  draw(runs, reports) {
    const drawn = JSON.stringify([runs, reports]);
    if (drawn === this.drawn) return; // what is selected or focused there stays so
    this.drawn = drawn;
    this.list.replaceChildren(...(runs.length ? runs.map((run, index) => (run.experiment ? card(run, reports[index], this.schemas) : unreadable(run))) : [empty()]));
  }
}

/** A run's report, or why it cannot be had. */
const reportOf = ({ id }) => get(`v1/experiments/${encodeURIComponent(id)}/report`).catch(({ message }) => ({ trouble: message }));

function card(run, report, schemas) {
  const { experiment } = run;
  const tone = Object.values(report.verdicts ?? {}).map((verdict) => VERDICTS[verdict]).find(Boolean) ?? "waiting";
  return h("section", { class: "card", "aria-label": `Experiment ${run.id}` },
    h("div", { class: "row" }, h("h2", {}, run.id),
      h("span", { class: `state ${run.status === "running" ? "running" : "cancelled"}` }, run.status),
      run.trouble ? h("span", { class: "state failed" }, "not in effect") : null,
      h("span", { class: "hint" }, `run ${run.run}, since ${moment(run.state.started)}; ${percent(run.coverage)} of the units take part`)),
    experiment.note ? h("p", { class: "hint" }, plain(experiment.note)) : null,
    run.trouble ? h("p", { class: "bad" }, run.trouble) : null,
    report.trouble ? h("p", { class: "bad" }, `There is no readout: ${report.trouble}`) : h("p", { class: `verdict ${tone}` }, report.sentence),
    arms(run, report, schemas),
    report.trouble ? null : differences(run, report, experiment.goal.metric),
    guardrails(run, report));
}

function differences(run, report, goal) {
  const primary = report.comparisons.filter((one) => one.metric === goal);
  const now = { at: run.state.ended ?? Date.now() / 1000, intervals: Object.fromEntries(primary.map(({ arm, always_valid: { estimate, low, high } }) => [arm, [estimate, low, high]])) };
  const series = [...report.readouts, now];
  const rows = report.comparisons.map(({ arm, metric, always_valid: interval }) => h("tr", { class: metric === goal ? "goal" : null },
    h("td", {}, arm), h("td", {}, metric, metric === goal ? " (goal)" : ""),
    h("td", { class: "figure" }, signed(interval.estimate)),
    h("td", { class: "figure" }, interval.low === null ? (report.since === null ? "too early" : "not known") : `${signed(interval.low)} to ${signed(interval.high)}`),
    h("td", {}, whisker(interval))));
  return h("div", {},
    h("h3", {}, "Differences from the control, with intervals that hold at any number of looks"),
    table("Differences", ["arm", "metric", "difference", "interval", ""], h("tbody", {}, rows)),
    h("figure", { class: "overtime" },
      h("figcaption", {}, `${goal}: difference from the control, as it was read at each time`),
      primary.map((one) => overTime(series, one.arm))));
}

/** An experiment of which only the name is known. */
function unreadable(run) {
  return h("section", { class: "card", "aria-label": `Experiment ${run.id}` },
    h("div", { class: "row" }, h("h2", {}, run.id), h("span", { class: "state failed" }, "not in effect")),
    h("p", { class: "bad" }, run.trouble),
    h("p", { class: "hint" }, "It gets no requests. ", h("code", {}, `baton experiment remove ${run.id}`), " removes it."));
}

function empty() {
  return h("p", { class: "note" }, "An experiment gives shares of the requests to different policies or parameters, and says here which does better, and how surely. No experiment has been started. ", h("code", {}, "baton experiment start FILE.yaml"), " starts one.");
}

function arms(run, report, schemas) {
  const { base } = run;
  const all = Object.values(run.arms);
  const names = (policy) => new Set(all.flatMap((arm) => (arm.policy === policy ? changed(arm.params, schemas[policy]) : [])));
  return h("div", { class: "arms" }, Object.entries(run.arms).map(([name, arm]) => {
    const weight = run.weights[name] ?? null;
    const units = Object.values(report.arms?.[name] ?? {})[0]?.units ?? 0;
    const bar = svg("svg", { viewBox: "0 0 100 6", preserveAspectRatio: "none", "aria-hidden": "true" },
      svg("rect", { x: 0, y: 0, width: 100, height: 6, class: "track" }), svg("rect", { x: 0, y: 0, width: (weight ?? 0) * 100, height: 6, class: "fill" }));
    const stopped = run.state.stopped?.[name];
    return h("div", { class: "arm" },
      h("strong", {}, name), name === base ? " (control)" : "", h("div", {}, h("code", {}, arm.version ? `${arm.policy}@${arm.version}` : arm.policy)),
      h("p", { class: "params" }, shown(arm.params, [...names(arm.policy)]),
        arm.speculation ? h("code", {}, `speculation: ${arm.speculation}`) : null),
      bar, h("span", { class: "hint" }, weight === null ? "shadow" : `weight ${percent(weight)}`, `, ${plural(units, "unit")}`),
      stopped ? h("span", { class: "bad" }, `stopped: ${stopped.why}`) : null);
  }));
}

function guardrails({ experiment, state }, report) {
  const bounds = (report.bounds ?? []).map((one) => [`${one.arm}: ${one.metric} at most ${one.by} worse than ${one.than}`, one.broken ? "broken" : one.surely ? "kept" : "not sure yet"]);
  const rules = (experiment.guardrails ?? []).map((one) => [`${rule(one)}${soFar(one, report)}`, "watched"]);
  const ramp = experiment.ramp ? [[rampWords(experiment.ramp, state), state.step < experiment.ramp.steps.length - 1 ? "going up" : "at its top"]] : [];
  const all = [...bounds, ...rules, ...ramp];
  if (!all.length) return null;
  return h("div", {}, h("h3", {}, "Bounds and guardrails"), h("ul", { class: "plain" }, all.map(([what, state]) =>
    h("li", {}, h("span", { class: `state ${{ broken: "failed", kept: "finished" }[state] ?? "waiting"}` }, state), " ", what))));
}

/** The state of a ramp, and the time of its next possible step. */
function rampWords({ steps, hold_s: hold }, { step, step_since: since }) {
  const now = `step ${Math.min(step, steps.length - 1) + 1} of ${steps.length} (${steps.map((share) => percent(share)).join(" → ")}) since ${moment(since)}`;
  return `ramp: ${now}${step < steps.length - 1 ? `, the next not before ${moment(since + hold)}` : ""}`;
}

function rule({ metric, quantile, at_most, at_least, worse_than_control_by }) {
  const what = quantile ? `p${quantile * 100} of ${metric}` : metric;
  if (at_most !== null) return `${what} at most ${at_most}`;
  return at_least !== null ? `${what} at least ${at_least}` : `${what} worse than the control by at most ${worse_than_control_by}`;
}

/** The arms' values so far; the readout has none of a quantile, or against the control. */
function soFar({ metric, quantile, worse_than_control_by: relative }, report) {
  if (quantile || relative !== null) return "";
  const seen = Object.entries(report.arms ?? {}).filter(([, metrics]) => metrics[metric]);
  return seen.length ? ` (so far ${seen.map(([arm, metrics]) => `${arm} ${figure(metrics[metric].mean)}`).join(", ")})` : "";
}

const figure = (value) => Number(value.toPrecision(3)).toLocaleString("en");
const signed = (value) => (value === null ? "–" : `${value > 0 ? "+" : value < 0 ? "−" : ""}${Number(Math.abs(value).toPrecision(3)).toLocaleString("en")}`);

/** An interval against zero, each on its own scale. */
function whisker({ estimate, low, high }) {
  if (low === null || high === null) return null;
  const reach = Math.max(Math.abs(low), Math.abs(high), 1e-12) * 1.1;
  const x = (value) => 70 + (value / reach) * 66;
  const tone = low > 0 || high < 0 ? "sure" : "unsure";
  return svg("svg", { class: `whisker ${tone}`, viewBox: "0 0 140 16", width: 140, height: 16, role: "img", "aria-label": tone === "sure" ? "differs from zero" : "zero lies within" },
    svg("line", { x1: 70, x2: 70, y1: 0, y2: 16, class: "zero" }),
    svg("line", { x1: x(low), x2: x(high), y1: 8, y2: 8 }),
    svg("circle", { cx: x(estimate), cy: 8, r: 3.5 }));
}

/** An arm's interval over time. */
function overTime(series, arm) {
  const points = series.filter((one) => one.intervals[arm]?.every(Number.isFinite))
    .map(({ at, intervals: { [arm]: [estimate, low, high] } }) => ({ at, estimate, low, high }));
  if (points.length < 2) return h("p", { class: "hint" }, `${arm}: too early for an interval.`);
  const [from, to] = [points[0].at, points.at(-1).at];
  // The first intervals are far wider than the last: the scale is that of the last, with room.
  const latest = points.at(-1);
  const room = WIDEST * Math.max(latest.high - latest.low, Math.abs(latest.estimate));
  const low = Math.max(Math.min(0, ...points.map((one) => one.low)), Math.min(0, latest.low) - room);
  const high = Math.min(Math.max(0, ...points.map((one) => one.high)), Math.max(0, latest.high) + room);
  const x = (at) => 60 + ((at - from) / Math.max(1, to - from)) * 530;
  const y = (value) => 8 + ((high - Math.min(high, Math.max(low, value))) / Math.max(1e-12, high - low)) * 104;
  const line = (pick) => points.map((one) => `${x(one.at).toFixed(1)},${y(pick(one)).toFixed(1)}`);
  return svg("svg", { class: "band", viewBox: "0 0 600 132", role: "img", "aria-label": `${arm}: from ${signed(points.at(-1).low)} to ${signed(points.at(-1).high)} now` },
    svg("polygon", { points: [...line((one) => one.high), ...line((one) => one.low).reverse()].join(" ") }),
    svg("polyline", { points: line((one) => one.estimate).join(" ") }),
    svg("line", { x1: 60, x2: 590, y1: y(0), y2: y(0), class: "zero" }),
    svg("text", { x: 54, y: y(0) + 4, "text-anchor": "end" }, "0"),
    [high, low].filter((edge) => Math.abs(y(edge) - y(0)) > 14).map((edge) => svg("text", { x: 54, y: y(edge) + (edge > 0 ? 8 : 0), "text-anchor": "end" }, signed(edge))),
    svg("text", { x: 60, y: 128 }, `${arm}, ${moment(from)}`),
    svg("text", { x: 590, y: 128, "text-anchor": "end" }, moment(to)));
}
