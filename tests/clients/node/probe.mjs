// What the scripts beside this one share; see ../python/probe.py.

export const URL = process.env.BATON_URL + "/v1";
export const MODEL = process.env.BATON_MODEL;
export const KEY = "none";
export const QUESTION = "What is 37*46+12?";
export const EARLIER = "What is 12+30?";
export const LATER = "What is 37+12?";
export const SCHEMA = {
  type: "object",
  properties: { answer: { type: "integer" } },
  required: ["answer"],
  additionalProperties: false,
};
export const TOOL_ABOUT = "Multiply two whole numbers.";
export const TOOL_SCHEMA = {
  type: "object",
  properties: { a: { type: "integer" }, b: { type: "integer" } },
  required: ["a", "b"],
  additionalProperties: false,
};
export const TOOL_QUESTION = "Multiply 37 by 46 with the tool.";
const TIMEOUT_MS = 1000 * (process.env.BATON_TIMEOUT_S ?? 60);

function check(true_, message) {
  if (!true_) throw new Error(message);
}

const said = (wanted) => (text) =>
  check(typeof text === "string" && text.includes(wanted), `expected ${wanted} in ${text}`);

const CHECKS = {
  chat: said("1714"),
  stream: (pieces) => said("1714")(pieces.join("")),
  reasoning: said("1702"),
  structured: (value) =>
    check(
      Object.keys(value).join() === "answer" && Number.isInteger(value.answer),
      `not of the schema: ${JSON.stringify(value)}`,
    ),
  tools: ([name, given]) => {
    const made = typeof given === "string" ? JSON.parse(given) : given;
    check(name === "multiply", `called ${name}`);
    check(Number.isInteger(made.a) && Number.isInteger(made.b), `called with ${JSON.stringify(made)}`);
  },
  history: said("49"),
};

// Try each capability that a script names, and print how it went.
export async function run(script) {
  const wanted = process.env.BATON_CHECKS?.split(",") ?? Object.keys(CHECKS);
  for (const [capability, judge] of Object.entries(CHECKS)) {
    if (!wanted.includes(capability)) continue;
    const attempt = script[capability];
    let why = "";
    try {
      if (typeof attempt === "string") throw attempt;
      const late = new Promise((_, reject) =>
        setTimeout(() => reject(new Error(`nothing after ${TIMEOUT_MS / 1000} s`)), TIMEOUT_MS).unref(),
      );
      judge(await Promise.race([attempt(), late]));
    } catch (error) {
      const message = String(error?.error?.message ?? error?.message ?? error);
      why = error?.status === 400 || error?.statusCode === 400 ? `the service: ${message.replace(/^400 /, "")}` : message;
    }
    console.log(JSON.stringify({ capability, works: why === "", why: why.slice(0, 300) }));
  }
}
