// The page: tabs by the address, the theme, keys of the keyboard.

import { h } from "./dom.js";
import { stepKey } from "./steps.js";
import { AskView } from "./views/ask.js";
import { CompareView } from "./views/compare.js";
import { ExperimentsView } from "./views/experiments.js";
import { HealthView } from "./views/health.js";
import { PoliciesView } from "./views/policies.js";
import { ReferenceView } from "./views/reference.js";
import { TracesView } from "./views/traces.js";

const TABS = {
  ask: ["Ask", AskView],
  compare: ["Compare", CompareView],
  traces: ["Traces", TracesView],
  policies: ["Policies", PoliciesView],
  experiments: ["Experiments", ExperimentsView],
  health: ["Health", HealthView],
  api: ["API", ReferenceView],
};
const views = {};
const main = document.getElementById("main");
const nav = document.getElementById("tabs");

function route() {
  const [, name = "ask", argument = ""] = location.hash.split("/");
  const tab = name === "trace" ? "traces" : Object.hasOwn(TABS, name) ? name : "ask";
  const [title, View] = TABS[tab];
  views[tab] ??= new View();
  const view = views[tab];
  main.replaceChildren(h("h1", { class: "sr" }, title), view.element);
  document.title = tab === "ask" ? "Baton" : `${title} – Baton`;
  for (const link of nav.children) {
    if (link.dataset.tab === tab) {
      link.setAttribute("aria-current", "page");
      nav.scrollLeft = link.offsetLeft + link.offsetWidth / 2 - nav.clientWidth / 2; // a phone shows some tabs
    } else link.removeAttribute("aria-current");
  }
  view.enter(argument);
}

nav.append(...Object.entries(TABS).map(([name, [title]]) => h("a", { href: `#/${name}`, "data-tab": name }, title)));
addEventListener("hashchange", route);
addEventListener("click", ({ target }) => {
  if (target.closest("a")?.getAttribute("href") === location.hash) route(); // the address stays: show it again
});

const theme = document.getElementById("theme");
const dark = matchMedia("(prefers-color-scheme: dark)");
function paint() {
  const chosen = localStorage.getItem("baton.theme");
  const name = chosen ?? (dark.matches ? "dark" : "light");
  document.documentElement.dataset.theme = name;
  theme.setAttribute("aria-label", name === "dark" ? "Light theme" : "Dark theme");
  theme.title = theme.getAttribute("aria-label");
  for (const canvas of main.querySelectorAll("canvas")) canvas.dispatchEvent(new Event("repaint")); // its colours are drawn
}
theme.addEventListener("click", () => {
  localStorage.setItem("baton.theme", document.documentElement.dataset.theme === "dark" ? "light" : "dark");
  paint();
});
dark.addEventListener("change", paint);

addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !document.querySelector("dialog[open]")) {
    for (const stop of main.querySelectorAll("button.stop")) stop.click();
  }
  const typing = event.target.closest?.("input, textarea, select");
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "/") {
    event.preventDefault();
    main.querySelector("textarea")?.focus();
  } else {
    const list = event.target.closest?.(".steps") ?? main.querySelector(".steps");
    if (list && stepKey(list, event.key)) event.preventDefault();
  }
});

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
paint();
route();
