"""Requests a second of policies on the pretrained pair with many clients at once.

`python -m tests.real.load` serves the pair in 8 bits, as deploy/evaluation/real_pair.yaml does, and
asks every candidate the same questions by the official client: one candidate after the other, so
many clients at once, each of whom asks the next question as soon as it is answered; the second
round in the opposite order. `NAME@METHOD` lets the large model decode by a lossless method. Rounds
are kept in a file as they come, so a run that was broken off goes on.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from operator import itemgetter
from pathlib import Path
from statistics import fmean
from typing import Any

from openai import OpenAI

from deploy.evaluation.candidates import Candidate
from deploy.evaluation.evaluate import Problem
from deploy.evaluation.grading import Grader
from deploy.evaluation.intervals import wilson
from deploy.evaluation.problems import load_problems
from deploy.evaluation.tables import markdown
from tests.real.conftest import open_model, served
from tests.real.fetch import LINKS

PROBLEMS = "gym:gsm_symbolic,chain_sum,simple_equations:20261201"
CANDIDATES = "large-only,large-only@chain,bild:rollback=0,bild:rollback=1.5,small-only"
PLAIN, SPECULATING = "large-only", "large-only@chain"
MAX_TOKENS, SEED = 400, 1


def round_of(
    api: OpenAI,
    candidate: str,
    problems: Sequence[Problem],
    clients: int,
    temperature: float,
    grader: Grader,
) -> dict[str, Any]:
    """One candidate's answers to all questions."""
    name, _, method = candidate.partition("@")
    chosen = Candidate.parse(name)
    more = {"policy": chosen.params} | ({"speculation": method} if method else {})

    def ask(problem: Problem) -> tuple[str, Counter[str]]:
        answer = api.chat.completions.create(
            model=chosen.policy,
            messages=[{"role": "user", "content": problem.question}],
            max_tokens=MAX_TOKENS,
            temperature=temperature,
            seed=SEED,
            extra_body=more,
        )
        kept = Counter[str]()
        for step in (answer.model_extra or {})["baton"]["steps"]:
            kept[step["author"]] += step["tokens"] * step["accepted"]
        return answer.choices[0].message.content or "", kept

    with ThreadPoolExecutor(clients) as pool:
        began = time.perf_counter()
        answers = list(pool.map(ask, problems))
        seconds = time.perf_counter() - began

    async def graded() -> int:
        pairs = zip(answers, problems, strict=True)
        return sum([await grader.right(text, problem) for (text, _), problem in pairs])

    kept = sum((own for _, own in answers), Counter[str]())
    return {"seconds": round(seconds, 2), "kept": kept, "right": asyncio.run(graded())}


def table(rows: Sequence[dict[str, Any]], problems: int) -> str:
    """Requests a second by candidate, and what they are to those of the large model alone."""
    by_candidate: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_candidate.setdefault(row["candidate"], []).append(row)
    rate = {
        name: problems / fmean(row["seconds"] for row in own) for name, own in by_candidate.items()
    }
    made = []
    for name, own in by_candidate.items():
        low, high = wilson(own[0]["right"], problems)
        each = [problems / row["seconds"] for row in own]
        made.append(
            {
                "candidate": name,
                "right": f"{own[0]['right']} of {problems}, {100 * low:.0f} to {100 * high:.0f} %",
                "rate": f"{rate[name]:.3f} ({min(each):.3f} to {max(each):.3f})",
                "share": f"{own[0]['kept'].get('large', 0) / sum(own[0]['kept'].values()):.0%}",
                **{
                    other: f"{rate[name] / rate[other]:.2f}x"
                    for other in (PLAIN, SPECULATING)
                    if other in rate
                },
            }
        )
    columns = {
        "candidate": "policy",
        "right": "right [95 %]",
        "share": "large share",
        "rate": "requests a second (rounds)",
        PLAIN: "to `large-only`",
        SPECULATING: "to `large-only` by `chain`",
    }
    shown = [(title, itemgetter(key)) for key, title in columns.items() if key in made[0]]
    return markdown(made, shown)


@contextmanager
def serving(clients: int) -> Iterator[OpenAI]:
    """The pair in 8 bits with as many rows as clients."""
    small = open_model("small", dtype="int8", rows=clients)
    also = [{"method": "chain", "draft": str(LINKS / "small")}]
    large = open_model("large", dtype="int8", rows=clients, also=also)
    with closing(small), closing(large), served(small, large) as api:
        yield api


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--candidates", default=CANDIDATES)
    parser.add_argument("--problems", type=int, default=32)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--out", type=Path, default=Path("build/load-real.jsonl"))
    options = parser.parse_args()
    problems = load_problems(PROBLEMS, options.problems, 0)
    settings = {name: getattr(options, name) for name in ("problems", "clients", "temperature")}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    lines = options.out.read_text().splitlines() if options.out.is_file() else []
    rows = [row for row in map(json.loads, lines) if settings.items() <= row.items()]
    done = {(row["candidate"], row["round"]) for row in rows}
    candidates = options.candidates.split(",")
    left = [
        (name, number)
        for number in range(options.rounds)
        for name in candidates[:: 1 if number % 2 == 0 else -1]
        if (name, number) not in done
    ]
    if left:
        with (
            serving(options.clients) as api,
            closing(Grader()) as grader,
            options.out.open("a") as file,
        ):
            for name, number in left:
                made = round_of(api, name, problems, options.clients, options.temperature, grader)
                rows.append({"candidate": name, "round": number, **settings, **made})
                file.write(json.dumps(rows[-1]) + "\n")
                file.flush()
                print(f"{name}, round {number + 1}: {made['seconds']} s", flush=True)
    print(table([row for row in rows if row["candidate"] in candidates], len(problems)))


if __name__ == "__main__":
    main()
