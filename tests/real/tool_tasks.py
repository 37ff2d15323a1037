"""Small tasks that take a tool, or two in a row: the share that each policy solves.

`python -m tests.real.tool_tasks --policies large-only,specreason --tasks 50` asks the real pair
behind a service of its own, by the official client, and prints a table. A task is solved where the
last answer holds the right value and the tools were called. The seed is fixed: every policy gets
the same tasks.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from openai import OpenAI

from tests.real.conftest import open_model, served

SEED = 20261122
TURNS = 4
PRICES = {name: 3 + 7 * i % 40 for i, name in enumerate(("tea", "lamp", "chair", "book", "pen"))}
SYSTEM = "Use the tools. Then answer in one short sentence."


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
DO: dict[str, Callable[..., Any]] = {
    "multiply": lambda a, b: a * b,
    "price_of": lambda thing: PRICES.get(thing.lower().rstrip("s"), "unknown"),
}


@dataclass(frozen=True)
class Task:
    kind: str
    question: str
    answer: int
    calls: int  # at least so many


def tasks(count: int) -> list[Task]:
    rng, made = random.Random(SEED), []
    for i in range(count):
        thing, a, b = rng.choice(sorted(PRICES)), rng.randint(12, 99), rng.randint(12, 99)
        kind = ("calculator", "look-up", "two in a row")[i % 3]
        if kind == "calculator":
            made.append(Task(kind, f"What is {a} times {b}?", a * b, 1))
        elif kind == "look-up":
            made.append(Task(kind, f"What does a {thing} cost?", PRICES[thing], 1))
        else:
            question = f"Look up the price of a {thing}. What do {a} of them cost together?"
            made.append(Task(kind, question, PRICES[thing] * a, 2))
    return made


def solved(api: OpenAI, policy: str, task: Task) -> bool:
    """Run the agent's loop; whether it ends with the right value and the tools were called."""
    messages: list[Any] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": task.question},
    ]
    called = 0
    for _ in range(TURNS):
        message = (
            api.chat.completions.create(
                model=policy, messages=messages, tools=TOOLS, max_tokens=120, temperature=0
            )
            .choices[0]
            .message
        )
        if not message.tool_calls:
            text = (message.content or "").replace(",", "")
            return called >= task.calls and str(task.answer) in text
        messages.append(message.model_dump(exclude_none=True))
        for call in message.tool_calls:
            called += 1
            assert call.type == "function"
            try:
                result = DO[call.function.name](**json.loads(call.function.arguments))
            except (TypeError, ValueError) as error:
                result = f"error: {error}"
            messages.append({"role": "tool", "tool_call_id": call.id, "content": str(result)})
    return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--policies", default="large-only,small-only,specreason")
    parser.add_argument("--tasks", type=int, default=50)
    options = parser.parse_args()
    made = tasks(options.tasks)
    small, large = open_model("small"), open_model("large")
    try:
        with served(small, large) as api:
            print("| policy | calculator | look-up | two in a row | all | seconds a task |")
            print("| --- | --- | --- | --- | --- | --- |")
            for policy in options.policies.split(","):
                began, rows = time.perf_counter(), list[tuple[str, bool]]()
                for i, task in enumerate(made):
                    rows.append((task.kind, solved(api, policy, task)))
                    print(f"{policy}: {i + 1}/{len(made)}", end="\r", flush=True)
                cells = []
                for kind in ("calculator", "look-up", "two in a row"):
                    hits = [hit for one, hit in rows if one == kind]
                    cells.append(f"{sum(hits)}/{len(hits)}")
                total = sum(hit for _, hit in rows)
                each = (time.perf_counter() - began) / len(rows)
                print(f"| {policy} | {' | '.join(cells)} | {total}/{len(rows)} | {each:.1f} |")
    finally:
        small.close()
        large.close()


if __name__ == "__main__":
    main()
