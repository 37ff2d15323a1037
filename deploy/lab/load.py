"""Requests a second of policies with many clients at once, of the embedded or the pretrained pair.

`python -m deploy.lab.load --pair embedded|real` serves the pair and asks every candidate the same
questions by the official client: one candidate after the other, so many clients at once, each of
whom asks the next question as soon as it is answered; every second round in the opposite order.
`NAME@METHOD` lets the large model decode by a lossless method. Rounds are kept in a file as they
come, so a run that was broken off goes on.
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
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

from openai import OpenAI

from deploy.cli.common import wide_console
from deploy.evaluation.candidates import Candidate
from deploy.evaluation.evaluate import Problem
from deploy.evaluation.grading import Grader
from deploy.evaluation.intervals import wilson
from deploy.evaluation.problems import load_problems
from deploy.evaluation.tables import show
from deploy.lab.peers.servers import baton, running

PLAIN, SPECULATING = "large-only", "large-only@chain"
MAX_TOKENS, SEED = 400, 1


@dataclass(frozen=True)
class Pair:
    """What is served, and what it is asked."""

    file: Path
    """The deployment file."""
    problems: str
    seed: int
    count: int
    """How many of the problems are asked."""
    clients: int
    candidates: str
    chain: dict[str, Any]
    """Parameters of `chain` beside its draft, which is the small model."""
    threads: dict[str, int]
    max_len: int
    rounds: int
    out: Path


EMBEDDED = Pair(
    file=Path("deploy/local.yaml"),
    problems="builtin:heldout",
    seed=20261126,
    count=200,
    clients=8,
    candidates="large-only,large-only@chain,small-only,"
    "specreason,specreason@chain,bild,bild@chain,learned-gate,learned-gate@chain",
    chain={"gamma": 16, "threshold": 0.6},
    threads={"small": 1, "large": 1},
    max_len=512,
    rounds=2,
    out=Path("build/results/load.jsonl"),
)
REAL = Pair(
    file=Path("deploy/lab/real_pair.yaml"),
    problems="gym:gsm_symbolic,chain_sum,simple_equations",
    seed=20261201,
    count=32,
    clients=16,
    candidates="large-only,large-only@chain,bild:rollback=1.5,small-only",
    chain={},
    threads={"small": 1, "large": 2},
    max_len=1024,
    rounds=1,
    out=Path("build/results-real/load.jsonl"),
)
PAIRS = {"embedded": EMBEDDED, "real": REAL}


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
        own = (answer.model_extra or {})["baton"]
        for step in (*own["steps"], *own["answer_steps"]):
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


def show_rates(rows: Sequence[dict[str, Any]], problems: int) -> None:
    """Show requests a second by candidate, and what they are to those of the large model alone."""
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
                "rate": f"{rate[name]:.3f}"
                + (f" ({min(each):.3f} to {max(each):.3f})" if len(each) > 1 else ""),
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
        "rate": "requests a second",
        PLAIN: "to large-only",
        SPECULATING: "to large-only by chain",
    }
    shown = [(title, itemgetter(key)) for key, title in columns.items() if key in made[0]]
    show(made, shown, wide_console())


@contextmanager
def serving(pair: Pair, clients: int) -> Iterator[OpenAI]:
    """`baton serve` of the pair, with as many rows as clients."""

    def edit(args: dict[str, Any]) -> None:
        workers = args["workers"]
        for name, worker in workers.items():
            worker |= {"rows": clients, "max_len": pair.max_len, "threads": pair.threads[name]}
        chain = {"method": "chain", "params": {"draft": workers["small"]["model"]} | pair.chain}
        workers["large"]["speculation"] = {"also": [chain]}

    with TemporaryDirectory() as name:
        folder = Path(name)
        with running(**baton(pair.file, folder, edit), log=folder / "log") as server:
            yield OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=3600)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pair", choices=PAIRS, required=True)
    parser.add_argument("--candidates")
    parser.add_argument("--problems", type=int)
    parser.add_argument("--clients", type=int)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    pair = PAIRS[options.pair]
    clients = options.clients or pair.clients
    out = options.out or pair.out
    candidates = (options.candidates or pair.candidates).split(",")
    problems = load_problems(pair.problems, options.problems or pair.count, pair.seed)
    settings = {
        "problems": len(problems),
        "clients": clients,
        "temperature": options.temperature,
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    lines = out.read_text().splitlines() if out.is_file() else []
    rows = [row for row in map(json.loads, lines) if settings.items() <= row.items()]
    done = {(row["candidate"], row["round"]) for row in rows}
    left = [
        (name, number)
        for number in range(options.rounds or pair.rounds)
        for name in candidates[:: 1 if number % 2 == 0 else -1]
        if (name, number) not in done
    ]
    if left:
        with serving(pair, clients) as api, closing(Grader()) as grader, out.open("a") as file:
            # What only the first requests pay is nobody's.
            round_of(api, left[0][0], problems[:clients], clients, options.temperature, grader)
            for name, number in left:
                made = round_of(api, name, problems, clients, options.temperature, grader)
                rows.append({"candidate": name, "round": number, **settings, **made})
                file.write(json.dumps(rows[-1]) + "\n")
                file.flush()
                print(f"{name}, round {number + 1}: {made['seconds']} s", flush=True)
    show_rates([row for row in rows if row["candidate"] in candidates], len(problems))


if __name__ == "__main__":
    main()
