"""Small tasks that take a tool, or two in a row: the share that each policy solves.

`python -m tests.lab.tool_tasks --policies large-only,bild:rollback=1.5 --tasks 50` asks the real
pair behind a service of its own, by the official client, and prints a table. A task is solved where
the last answer holds the right value and as many calls as it takes gave a result. The seed is
fixed: every policy gets the same tasks, with the thresholds that were calibrated on the pair unless
others are given. Each result is kept in a file as it comes, with the calls made and the texts
said, so a run that was broken off goes on and each failure can be read.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openai import OpenAI

from deploy.cli.common import print_table
from deploy.evaluation.candidates import Candidate
from deploy.evaluation.intervals import paired, wilson
from deploy.evaluation.json_lines import RowFile
from deploy.service.calibration import read as read_calibration
from policies import POLICIES
from tests.real.conftest import open_model, served

SEED = 20261122
TURNS = 4
PRICES = {name: 3 + 7 * i % 40 for i, name in enumerate(("tea", "lamp", "chair", "book", "pen"))}
KINDS = ("calculator", "look-up", "two in a row")
SYSTEM = "Use the tools. Then answer in one short sentence."
OWN_PARAMS = {
    "advisor": "advisor:advise_by=beginning:advice_tokens=4",  # on 6 tasks of another seed
    # As in `baton lab run deploy/lab/experiments/real-pair.yaml`:
    "coin": "coin:large_probability=0.3",
    "bild": "bild:rollback=1.5",
    "speculative-thinking": "speculative-thinking:begin=60:every_delimiter=true",
}
"""Of policies without a calibrated threshold, or whose other settings are better."""
CANDIDATES = ("bild", *(OWN_PARAMS.get(name, name) for name in POLICIES if name != "learned-gate"))
"""Every policy, but the one that wants a gate of the pair's own."""
CALIBRATION = Path("deploy/lab/real_pair_calibration.json")


def tool(name: str, about: str, **kinds: str) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": {key: {"type": kind} for key, kind in kinds.items()},
        "required": list(kinds),
        "additionalProperties": False,
    }
    function = {"name": name, "description": about, "parameters": schema}
    return {"type": "function", "function": function}


TOOLS: list[Any] = [
    tool("multiply", "The product of two whole numbers.", a="integer", b="integer"),
    tool("price_of", "The price of a thing in euros.", thing="string"),
]
UNKNOWN = "unknown"
DO: dict[str, Callable[..., Any]] = {
    "multiply": lambda a, b: a * b,
    "price_of": lambda thing: PRICES.get(thing.lower().rstrip("s"), UNKNOWN),
}


@dataclass(frozen=True)
class Task:
    kind: str
    question: str
    answer: int
    calls: int  # at least so many


def tasks(count: int, seed: int = SEED) -> list[Task]:
    rng, made = random.Random(seed), []
    for i in range(count):
        thing, a, b = rng.choice(sorted(PRICES)), rng.randint(12, 99), rng.randint(12, 99)
        kind = KINDS[i % 3]
        if kind == "calculator":
            made.append(Task(kind, f"What is {a} times {b}?", a * b, 1))
        elif kind == "look-up":
            made.append(Task(kind, f"What does a {thing} cost?", PRICES[thing], 1))
        else:
            question = f"Look up the price of a {thing}. What do {a} of them cost together?"
            made.append(Task(kind, question, PRICES[thing] * a, 2))
    return made


def tried(api: OpenAI, policy: str, params: dict[str, Any], task: Task) -> dict[str, Any]:
    """Run the agent's loop; return whether it solves the task, and each model's tokens."""
    messages: list[Any] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": task.question},
    ]
    said: list[str] = []
    called = 0
    made = {"solved": False, "small_tokens": 0, "large_tokens": 0, "said": said}
    for _ in range(TURNS):
        answer = api.chat.completions.create(
            model=policy,
            messages=messages,
            tools=TOOLS,
            max_tokens=120,
            temperature=0,
            extra_body={"policy": params},
        )
        metrics = (answer.model_extra or {})["baton"]["metrics"]
        for name in ("small_tokens", "large_tokens"):
            made[name] += metrics[name]
        message = answer.choices[0].message
        if message.content:
            said.append(message.content)
        if not message.tool_calls:
            text = (message.content or "").replace(",", "")
            made["solved"] = called >= task.calls and str(task.answer) in text
            return made
        messages.append(message.model_dump(exclude_none=True))
        for call in message.tool_calls:
            assert call.type == "function"
            try:
                result = DO[call.function.name](**json.loads(call.function.arguments))
                called += result != UNKNOWN
            except (TypeError, ValueError) as error:
                result = f"error: {error}"
            said.append(f"{call.function.name}({call.function.arguments}) -> {result}")
            messages.append({"role": "tool", "tool_call_id": call.id, "content": str(result)})
    return made


def table(rows: list[dict[str, Any]], policies: list[str]) -> tuple[list[str], list[list[str]]]:
    """Shares with 95 % intervals, and differences to `large-only` on the tasks that both did."""
    results: dict[str, dict[int, dict[str, Any]]] = {policy: {} for policy in policies}
    for row in rows:
        results[row["policy"]][row["task"]] = row
    alone = results.get("large-only", {})
    lines = []
    for policy, own in results.items():
        if not own:
            continue
        count, solved = len(own), sum(row["solved"] for row in own.values())
        low, high = wilson(solved, count)
        cells = [policy]
        for kind in KINDS:
            hits = [row["solved"] for row in own.values() if row["kind"] == kind]
            cells.append(f"{sum(hits)} of {len(hits)}")
        cells.append(f"{solved} of {count} [{100 * low:.0f}, {100 * high:.0f}]")
        both = [task for task in own if task in alone and policy != "large-only"]
        ours, theirs = ([of[task]["solved"] for task in both] for of in (own, alone))
        points, least, most = (100 * one for one in paired(ours, theirs))
        cells.append(f"{points:+.0f} [{least:+.0f}, {most:+.0f}]" if both else "")
        made = [sum(row[f"{by}_tokens"] for row in own.values()) for by in ("small", "large")]
        cells.append(f"{100 * made[1] / max(1, sum(made)):.0f}")
        cells.append(f"{sum(row['seconds'] for row in own.values()) / count:.0f}")
        lines.append(cells)
    heads = ["policy", *KINDS, "all [95 %]", "points to large-only", "large tokens %", "s a task"]
    return heads, lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--policies", default=",".join(CANDIDATES))
    parser.add_argument("--tasks", type=int, default=50)
    parser.add_argument("--seed", type=int, default=SEED, help="another one for tuning")
    parser.add_argument("--at-once", type=int, default=16)
    parser.add_argument("--out", type=Path, default=Path("build/tool-tasks.jsonl"))
    options = parser.parse_args()
    policies = options.policies.split(",")
    calibration = read_calibration(CALIBRATION)
    candidates = {policy: Candidate.parse(policy) for policy in policies}
    params = {
        policy: calibration.params(one.policy) | one.params for policy, one in candidates.items()
    }
    with closing(RowFile(options.out, "baton_tool_tasks", {"seed": options.seed})) as file:
        rows = [row for row in file.rows if row["params"] == params.get(row["policy"])]
        done = {(row["policy"], row["task"]) for row in rows}
        # Policy by policy within a task: what was broken off has the same tasks of each.
        left = [
            (policy, number, task)
            for number, task in enumerate(tasks(options.tasks, options.seed))
            for policy in policies
            if (policy, number) not in done
        ]
        for row in _measured(left, candidates, params, options.at_once) if left else ():
            rows.append(row)
            file.add(row)
            print(f"{len(rows) - len(done)}/{len(left)}", end="\r", flush=True)
    print_table(*table(rows, policies))


def _measured(
    left: list[tuple[str, int, Task]],
    candidates: dict[str, Candidate],
    params: dict[str, dict[str, Any]],
    at_once: int,
) -> Iterator[dict[str, Any]]:
    # As in deploy/lab/real_pair.yaml, whose thresholds these are.
    small, large = (open_model(name, dtype="int8", rows=at_once) for name in ("small", "large"))

    def attempt(policy: str, number: int, task: Task) -> dict[str, Any]:
        began = time.perf_counter()
        found = tried(api, candidates[policy].policy, params[policy], task)
        seconds = round(time.perf_counter() - began, 1)
        row = {"policy": policy, "params": params[policy], "task": number, "kind": task.kind}
        return {**row, **found, "seconds": seconds}

    with (
        closing(small),
        closing(large),
        served(small, large) as api,
        ThreadPoolExecutor(at_once) as pool,
    ):
        for made in as_completed([pool.submit(attempt, *one) for one in left]):
            yield made.result()


if __name__ == "__main__":
    main()
