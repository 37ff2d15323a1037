// The form of a question, with samples for a first visit. With the embedded pair they show: a wrong
// draft that the large model writes again; drafts that are kept; a takeover after three corrections;
// a corrected digit.

import { h, tell } from "./dom.js";

export const QUESTIONS = [
  "A school buys nine toys at 17 dollars each as well as three balls at eight dollars each. How much does the school spend?",
  "Rosa has 6 bags with 17 marbles each. She gives 25 of the marbles to Ben. How many marbles does she have left?",
  "What is 37*46+12?",
  "Lucas sold 475 balls on Monday, 442 on Tuesday and 134 on Friday. How many did Lucas sell in all?",
];

/** `submit` gets the question; `controls` are beside the button, `more` is below. */
export function questionForm({ id, value = QUESTIONS[0], verb, submit, controls, more = null }) {
  const question = h("textarea", { id, rows: 2, placeholder: "What would you like to know?", dir: "auto", value });
  const trouble = h("p", { class: "bad", role: "alert" });
  const ask = () => {
    const text = question.value.trim();
    tell(trouble, text ? "" : "Write a question first.");
    if (text) submit(text);
    else question.focus();
  };
  const sample = (text) => h("button", { type: "button", class: "chip", title: text, onclick: () => { question.value = text; ask(); } }, text);
  question.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    ask();
  });
  const element = h("form", { class: "asking", novalidate: true, onsubmit: (event) => { event.preventDefault(); ask(); } },
    h("label", { class: "sr", for: id }, "Question"), question,
    h("div", { class: "samples" }, QUESTIONS.map(sample)),
    h("div", { class: "row" }, controls, h("button", { class: "primary", type: "submit" }, verb, h("kbd", {}, "Ctrl ↵"))),
    more, trouble);
  return { element, trouble };
}
