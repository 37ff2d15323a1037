// The state of one request, from a stream's events or a saved trace.
//
// The page shows a row as one step: the accepted text between two blank lines. It has spans, each by
// one author, since a policy may change the author within a step, and the drafts that were rejected
// before it. If the steps have the origins of their tokens, a row has its tokens, too.

import { events as streamed, get, send } from "./api.js";
import { sleep } from "./dom.js";

export class Run {
  constructor(question, model, { policy = {}, body = {}, messages = [{ role: "user", content: question }] } = {}) {
    Object.assign(this, { question, model, policy, body, messages });
    this.status = "waiting"; // running, finished, failed, cancelled
    this.traceId = null;
    this.origin = null; // the policy that answers, its version and parameters
    this.rows = [];
    this.calls = [];
    this.running = [];
    this.ms = 0; // on the service's clock
    this.metrics = null;
    this.acceptance = {}; // of drafted tokens by position, by worker
    this.finish = null;
    this.forced = false;
    this.error = null;
    this.place = { row: 0, span: 0, at: 0 }; // in the accepted text: the tokens before it are in rows
    this.unplaced = []; // tokens of accepted steps whose text no row has yet
    this.waiting = []; // rejected drafts that no row has yet
  }

  get requestBody() {
    const { model, messages, policy, body } = this;
    return { model, messages, ...(Object.keys(policy).length ? { policy } : {}), ...body };
  }

  /** The same request, not yet sent. */
  again() {
    return new Run(this.question, this.model, this);
  }

  /** Ask the service, and follow the stream to its end; `changed` is called with every event. */
  async ask(changed) {
    this.abort = new AbortController();
    this.began = performance.now();
    try {
      const body = { ...this.requestBody, stream: true, stream_options: { include_events: true } };
      for await (const chunk of streamed("v1/chat/completions", body, this.abort.signal)) {
        this.take(chunk);
        changed(this);
      }
      this.end("finished");
    } catch (error) {
      if (error.name === "AbortError") this.end("cancelled");
      else {
        this.error = error;
        this.end("failed");
      }
    }
    changed(this);
    return this;
  }

  stop() {
    this.abort?.abort();
  }

  /** Have the thought end at once, and the answer follow. */
  answerNow() {
    send("POST", `v1/requests/${encodeURIComponent(this.traceId)}/answer`, {}).catch(() => {}); // it may have ended
  }

  end(status) {
    this.status = status;
    this.running = [];
    if (this.waiting.length) this.row(this.rows.at(-1)?.phase ?? "thought", true);
    for (const row of this.rows) row.closed = true;
    if (!this.ms) this.ms = this.began ? performance.now() - this.began : 0;
  }

  /** One chunk of a stream. */
  take(chunk) {
    const { baton } = chunk;
    const finish = chunk.choices?.[0]?.finish_reason;
    if (finish) this.settle(finish, baton);
    else if (baton?.events) {
      this.ms = baton.ms;
      this.running = baton.running;
      for (const event of baton.events) this.event(event);
    } else if (baton) {
      this.origin = baton;
      this.traceId = baton.trace_id;
      this.status = "running";
    }
  }

  /** What is known of the whole at its end. */
  settle(finish, { metrics = null, acceptance = {}, forced = false }) {
    Object.assign(this, { finish, metrics, acceptance, forced });
    this.ms = metrics?.ms?.total || this.ms;
  }

  event(event) {
    if (event.type === "call") this.calls.push(event);
    else if (event.type === "text") this.text(event);
    else if (event.type === "step") this.step(event);
  }

  /** The row to which text of this phase is added. */
  row(phase, fresh = false) {
    let last = this.rows.at(-1);
    if (fresh || !last || last.closed || last.phase !== phase) {
      if (last) last.closed = true;
      last = { phase, spans: [], pieces: [], drafts: [], score: null, ms: 0, tokens: 0, closed: false, version: 0, unread: "", marks: { "```": 0, "$$": 0, "\\[": 0, "\\]": 0 } };
      this.rows.push(last);
    }
    if (this.waiting.length) {
      last.drafts.push(...this.waiting);
      this.waiting = [];
    }
    last.version += 1;
    return last;
  }

  text({ author, phase, text, tokens }) {
    if (!text) return;
    for (const part of paragraphs(text)) {
      const row = this.row(phase);
      const span = row.spans.at(-1);
      if (span?.author === author) span.text += part;
      else row.spans.push({ author, text: part, tokens: 0 });
      const share = text.length === part.length ? tokens : Math.round((tokens * part.length) / text.length);
      row.spans.at(-1).tokens += share;
      row.tokens += share;
      row.unread += part;
      if (endsBlank(part) && balanced(row)) row.closed = true;
    }
    this.placeTokens();
  }

  step(step) {
    if (!step.accepted) {
      this.waiting.push(step);
      return;
    }
    this.unplaced.push(...tokensOf(step));
    this.placeTokens();
    const row = this.rows.at(-1);
    if (!row) return;
    row.version += 1;
    row.ms += step.ms;
    if (step.score !== null && step.score !== undefined) row.score = step.score;
  }

  /** Give the tokens of accepted steps to the rows of their text. If a token lies across two spans,
   * each has a piece, the second marked `continues`; one that adds no text has a piece, too. */
  placeTokens() {
    const { place, unplaced } = this;
    while (unplaced.length) {
      this.advance();
      const [token] = unplaced;
      const row = this.rows[place.row];
      const span = row?.spans[place.span];
      if (!span) return;
      const part = token.text.slice(0, span.text.length - place.at);
      if (token.text && !part) return; // held back: it may begin a stop string
      const text = token.text.trimStart();
      if (!span.text.startsWith(part, place.at) && text !== token.text) {
        unplaced[0] = { ...token, text }; // white space before an answer with stop strings is not shown
        continue;
      }
      if (token.origin) row.pieces.push({ ...token, text: part });
      row.version += 1;
      place.at += part.length;
      if (part === token.text) unplaced.shift();
      else unplaced[0] = { ...token, text: token.text.slice(part.length), drafts: [], continues: true };
    }
  }

  /** Move `place` from the end of a span to the next one, if there is one: the last may grow. */
  advance() {
    const { place, rows } = this;
    for (;;) {
      const spans = rows[place.row]?.spans ?? [];
      if (place.at < (spans[place.span]?.text.length ?? 0)) return;
      if (place.span + 1 < spans.length) Object.assign(place, { span: place.span + 1, at: 0 });
      else if (place.row + 1 < rows.length) Object.assign(place, { row: place.row + 1, span: 0, at: 0 });
      else return;
    }
  }

  get live() { return this.status === "waiting" || this.status === "running"; }
  get thought() { return this.rows.filter((row) => row.phase === "thought"); }
  get answer() { return this.rows.filter((row) => row.phase === "answer"); }
  get answerText() { return this.answer.flatMap((row) => row.spans.map((span) => span.text)).join("").trim(); }
  get policyName() { return this.origin?.policy ?? this.model; }
  get name() { return this.origin?.version ? `${this.policyName}@${this.origin.version}` : this.policyName; }
  get parameters() { return this.origin?.parameters ?? {}; }

  /** Accepted tokens by author, discarded ones, and how many drafts were judged and accepted. */
  get totals() {
    const by = { small: 0, large: 0, policy: 0 };
    let kept = 0;
    let rejected = 0;
    for (const row of this.rows) {
      for (const span of row.spans) by[span.author] += span.tokens;
      rejected += row.drafts.length;
      if (row.score !== null) kept += 1;
    }
    const accepted = by.small + by.large + by.policy;
    return { ...by, accepted, kept, rejected: rejected + this.waiting.length };
  }

  /** The time of the large model alone, in ms: reading the prompt, then the accepted tokens at its pace
   * here; null if it wrote too few. */
  get largeOnly() {
    const wrote = this.calls.filter((call) => call.worker === "large" && ["write", "draft"].includes(call.kind) && !call.error);
    const tokens = wrote.reduce((sum, call) => sum + call.tokens, 0);
    if (tokens < 8) return null;
    const pace = wrote.reduce((sum, call) => sum + call.ms, 0) / tokens;
    const prompt = this.calls.find((call) => call.worker === "large" && call.kind === "prefill")?.ms ?? 0;
    return prompt + pace * this.totals.accepted;
  }

  /** A saved record, whole. */
  static of(record) {
    const run = Run.begin(record);
    for (const item of run.script) run.event(item);
    run.conclude();
    return run;
  }

  /** A saved record before its replay; `script` has its events in order, with `at_ms`. */
  static begin(record) {
    const { parameters = {}, overrides = [] } = record;
    const policy = Object.fromEntries(overrides.filter((name) => name in parameters).map((name) => [name, parameters[name]]));
    if (record.model === "baton" && Object.keys(policy).length) policy.name = record.policy; // the parameters are of no other
    const asked = record.messages?.findLast((one) => one.role === "user")?.content; // the record cuts a long `question`
    const run = new Run(asked ?? record.question ?? "", record.model ?? record.policy, { policy, messages: record.messages });
    run.record = record;
    run.traceId = record.trace_id ?? record.id ?? null;
    run.origin = { ...record, trace_id: run.traceId };
    run.status = "running";
    let end = 0; // a call's result came after those of the calls before it: steps name calls by their places
    const calls = (record.calls ?? []).map((call) => {
      end = Math.max(end, call.at_ms + call.ms);
      return { ...call, type: "call", due: end };
    });
    let last = 0;
    const steps = (record.steps ?? []).flatMap((step) => {
      last = step.at_ms ?? last + step.ms;
      const told = { ...step, type: "step", due: last };
      return step.accepted ? [{ ...step, type: "text", due: last }, told] : [told];
    });
    run.script = [...calls, ...steps].sort((a, b) => a.due - b.due);
    return run;
  }

  conclude() {
    const { record } = this;
    this.ms = this.script.at(-1)?.due ?? 0;
    this.settle(record.finish_reason ?? null, record);
    this.error = record.error ?? null;
    this.end(record.status === "failed" || record.status === "cancelled" ? record.status : "finished");
  }

  /** Replay a saved record at its own pace; after `stop`, the rest of it at once. */
  async replay(changed) {
    this.abort = new AbortController();
    const { signal } = this.abort;
    const stopped = new Promise((resolve) => signal.addEventListener("abort", resolve));
    const began = performance.now();
    for (const item of this.script) {
      const wait = item.due - (performance.now() - began);
      if (wait > 4 && !signal.aborted) await Promise.race([stopped, sleep(wait)]);
      this.ms = item.due;
      this.event(item);
      changed(this);
    }
    this.conclude();
    changed(this);
  }

  /** Fetch the service's record, which is written soon after the answer. */
  async saved() {
    if (this.record) return this.record;
    for (let tries = 0; ; tries += 1) {
      try {
        return await get(`v1/traces/${encodeURIComponent(this.traceId)}`);
      } catch (error) {
        if (error.status !== 404 || tries === 5) throw error;
        await sleep(200);
      }
    }
  }
}

/** A step's tokens with their origins and the drafts in their places; if they are unknown, all of
 * its text as one. */
function tokensOf({ text, provenance }) {
  if (!provenance) return text ? [{ text }] : [];
  const drafted = new Map(provenance.rejected);
  const characters = [...text]; // lengths count code points
  let end = 0;
  return provenance.lengths.map((length, index) => {
    end += length;
    return { text: characters.slice(end - length, end).join(""), origin: provenance.origins[index], drafts: drafted.get(index) ?? [] };
  });
}

/** A text split after its blank lines. */
function paragraphs(text) {
  return text.match(/[\s\S]*?\n[ \t]*\n\s*|[\s\S]+$/g) ?? [];
}

/** Whether a text ends with a blank line. */
function endsBlank(text) {
  const tail = text.slice(text.trimEnd().length);
  return tail.indexOf("\n") !== tail.lastIndexOf("\n");
}

/** Whether no code block or formula is open, which a blank line does not end. */
function balanced(row) {
  for (const mark of Object.keys(row.marks)) row.marks[mark] += row.unread.split(mark).length - 1;
  row.unread = "";
  const { marks } = row;
  return marks["```"] % 2 === 0 && marks["$$"] % 2 === 0 && marks["\\["] <= marks["\\]"];
}
