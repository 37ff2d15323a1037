// Published versions: what is active, how versions differ, publish, roll back.

import { get, load, policySchemas, send } from "../api.js";
import { field, h, inTrouble, moment, offer, say, tell } from "../dom.js";
import { ParameterForm, changed, shown } from "../parameters.js";
import { plain } from "../richtext.js";

export class PoliciesView {
  constructor() {
    this.now = h("section", { class: "card", "aria-label": "What the model baton means" });
    this.trouble = h("p", { class: "bad", role: "alert" });
    this.versions = h("section", { "aria-label": "Versions" });
    this.history = h("section", { "aria-label": "History" });
    this.policy = h("select", { id: "publish-policy", onchange: () => this.choose() });
    this.note = h("input", { type: "text", maxlength: 500, placeholder: "why", name: "note" });
    this.activate = h("input", { type: "checkbox", checked: true });
    this.form = new ParameterForm();
    this.element = h("div", { class: "policies" },
      this.now, this.trouble,
      h("details", { class: "card more" },
        h("summary", {}, "Publish a version"),
        h("form", { novalidate: true, onsubmit: (event) => { event.preventDefault(); this.publish(); } },
          field("policy", this.policy), this.form.element,
          field("note", this.note, "shown in the history"),
          h("div", { class: "row" },
            h("label", { class: "check" }, this.activate, "make it what baton means"),
            h("button", { class: "primary", type: "submit" }, "Publish")))),
      this.versions, this.history);
  }

  enter() {
    load(this.trouble, async () => {
      const [overview, active, history, schemas] = await Promise.all([
        get("v1/policies"), get("v1/policies/active"), get("v1/policies/history?count=20"), policySchemas()]);
      const published = overview.data.filter((row) => row.latest > 0);
      const lists = await Promise.all(published.map((row) => get(`v1/policies/${encodeURIComponent(row.policy)}?count=20`)));
      Object.assign(this, { overview, schemas });
      return [active, lists.map((list) => list.data), history.data];
    }, (found) => {
      this.draw(...found);
      return inTrouble(this.overview);
    });
  }

  draw(active, lists, history) {
    const { overview } = this, busy = overview.when_busy;
    this.now.replaceChildren(
      h("p", {}, "The model ", h("code", {}, "baton"), " means ", h("strong", {}, active.version ? active.id : `${active.policy}, the deployment file's default`), active.version || !busy ? "." : `; ${busy.policy} while ${busy.answers} answers or more are made.`),
      active.trouble ? h("p", { class: "bad" }, `Not in effect: ${active.trouble}. ${overview.answering ?? `${overview.default}, the deployment file's default,`} answers instead; activate another version, or roll back.`) : "",
      active.note && active.version ? h("p", { class: "hint" }, plain(active.note)) : "",
      values(active.params, this.schemas[active.policy]),
      h("div", { class: "row" },
        h("button", { onclick: () => this.change("Rolled back", () => send("POST", "v1/policies/rollback", { to: overview.previous ?? "default" })), disabled: !overview.can_roll_back }, "Roll back"), // to what stands beside it, whatever happened since
        h("span", { class: "hint" }, overview.can_roll_back ? `to ${overview.previous ?? "the deployment file's default"}` : "nothing was active before")));
    offer(this.policy, overview.data.map((row) => row.policy), this.policy.value || active.policy);
    this.choose();
    this.versions.replaceChildren(h("h2", {}, "Versions"), ...(lists.length ? lists.map((versions) => this.list(versions)) : [h("p", { class: "note" }, "A version is a policy with its parameters. Publish one to change what the model baton means, without a restart; roll back to undo it. No version has been published: baton is the deployment file's default.")]));
    this.history.replaceChildren(h("h2", {}, "History"), history.length ? h("ul", { class: "plain" }, history.map((entry) => h("li", {}, event(entry)))) : h("p", { class: "note" }, "No changes yet."));
  }

  list(versions) {
    return h("div", { class: "card" }, h("h3", {}, versions[0].policy),
      versions.map((version, index) => h("div", { class: "version" },
        h("div", { class: "row" },
          h("strong", {}, version.id),
          version.id === this.overview.active ? h("span", { class: `state ${version.trouble ? "failed" : "finished"}` }, "active") : version.trouble ? null : h("button", { class: "quiet", onclick: () => this.change(`${version.id} is active`, () => send("PUT", "v1/policies/active", { version: version.id })) }, "Activate"),
          version.trouble ? h("span", { class: "state failed" }, "not in effect") : null,
          h("span", { class: "hint" }, version.created && moment(version.created), version.author ? ` by ${version.author}` : "")),
        version.trouble ? h("p", { class: "bad" }, version.trouble) : null,
        version.note ? h("p", { class: "hint" }, plain(version.note)) : null,
        difference(version, versions[index + 1], this.schemas[version.policy]))));
  }

  choose() {
    this.form.show(this.schemas[this.policy.value]);
  }

  publish() {
    this.change("Published", () => send("POST", "v1/policies", { policy: this.policy.value, params: this.form.values(), note: this.note.value, activate: this.activate.checked }));
  }

  async change(done, make) {
    if (this.changing) return; // a second click
    this.changing = true;
    tell(this.trouble); // a fault that is met twice is said twice
    try {
      await make();
      say(done);
      this.enter();
    } catch (error) {
      tell(this.trouble, error.message);
    }
    this.changing = false;
  }
}

/** The parameters that are not the service's defaults. */
function values(params, schema) {
  const names = changed(params, schema);
  if (!names.length) return h("p", { class: "hint" }, "All its parameters are this service's defaults.");
  return h("p", { class: "params" }, shown(params, names));
}

/** The changes since the version before; for the first, since the defaults. */
function difference(version, before, schema) {
  if (!before) return values(version.params, schema);
  const names = [...new Set([...Object.keys(version.params), ...Object.keys(before.params)])];
  const value = ({ params }, name) => JSON.stringify(name in params ? params[name] : schema?.properties[name]?.default);
  const rows = names.filter((name) => value(version, name) !== value(before, name));
  if (!rows.length) return h("p", { class: "hint" }, `The same parameters as ${before.id}.`);
  return h("p", { class: "params" }, rows.map((name) => h("code", {}, `${name}: `, h("del", {}, value(before, name)), " → ", h("ins", {}, value(version, name)))));
}

function event(entry) {
  const who = [entry.author, entry.key ? `key ${entry.key}` : ""].filter(Boolean).join(", ");
  return [h("span", { class: "figure" }, moment(entry.at)), " ", h("strong", {}, `${entry.action ?? "changed"} ${entry.what ?? ""}`), who ? ` by ${who}` : "", entry.note ? h("span", { class: "hint" }, " – ", plain(entry.note)) : ""];
}
