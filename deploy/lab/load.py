"""Requests a second of policies with many clients at once, of the embedded or the pretrained pair.

`python -m deploy.lab.load --pair embedded|real` serves the pair and asks every candidate the same
questions: one candidate after the other, by clients that ask again once they are answered; every
second round in the opposite order. `NAME@METHOD` lets the large model decode by a lossless method.
Rounds are kept in a file as they come, so an interrupted run continues.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

from deploy.cli.common import print_table
from deploy.evaluation.candidates import Candidate
from deploy.evaluation.evaluate import Question
from deploy.evaluation.grading import Grader
from deploy.evaluation.intervals import wilson
from deploy.evaluation.json_lines import RowFile
from deploy.evaluation.problems import load_problems
from deploy.lab.clients import ask_all
from deploy.lab.peers.servers import baton
from deploy.lab.processes import running
from deploy.launch.placement import AUTO
from deploy.launch.plan import BUSY, SHARING

PLAIN, SPECULATING = "large-only", "large-only@chain"
MAX_TOKENS, SEED = 400, 1


@dataclass(frozen=True)
class LoadPlan:
    """What is served, and what it is asked.

    `count` problems are asked; `chain` has the method's parameters beside its draft, which is the
    small model.
    """

    file: str
    problems: str
    seed: int
    count: int
    clients: int
    candidates: str
    chain: dict[str, Any]
    large_threads: int
    max_len: int
    rounds: int
    temperature: float = 0.0
    dtype: str | None = None  # of both models; None: as in the file
    policy: dict[str, Any] | None = None  # None: the file's


PLANS = {
    "embedded": LoadPlan(
        file="deploy/local.yaml",
        problems="builtin:heldout",
        seed=20261126,
        count=200,
        clients=8,
        candidates="large-only,large-only@chain,small-only,baton,"
        "specreason,specreason@chain,bild,bild@chain,learned-gate,learned-gate@chain",
        chain={"gamma": 16, "threshold": 0.6},
        large_threads=1,
        max_len=512,
        rounds=2,
    ),
    "real": LoadPlan(
        file="deploy/lab/real_pair.yaml",
        problems="gym:gsm_symbolic,chain_sum,simple_equations",
        seed=20261201,
        count=32,
        clients=16,
        candidates="large-only,large-only@chain,large-only@auto,bild:rollback=1.5,small-only,baton",
        chain={"gamma": 12, "threshold": 0.6},
        large_threads=2,
        max_len=1024,
        rounds=1,
        policy=SHARING | {"when_busy": BUSY},
    ),
}


async def round_of(
    url: str, plan: LoadPlan, candidate: str, problems: Sequence[Question], grader: Grader
) -> dict[str, Any]:
    """One candidate's answers to all questions: seconds, kept tokens by author, right answers."""
    name, _, method = candidate.partition("@")
    chosen = Candidate.parse(name)
    shared = {"model": chosen.policy, "max_tokens": MAX_TOKENS, "seed": SEED}
    shared |= {"temperature": plan.temperature, "policy": chosen.params}
    shared |= {"speculation": method} if method else {}
    bodies = [
        {**shared, "messages": [{"role": "user", "content": problem.question}]}
        for problem in problems
    ]
    answers, seconds = await ask_all(url, bodies, plan.clients)
    kept = Counter[str]()
    for answer in answers:
        for step in (*answer.baton["steps"], *answer.baton.get("answer_steps", ())):
            kept[step["author"]] += step["tokens"] * step["accepted"]
    pairs = zip(answers, problems, strict=True)
    right = sum([await grader.right(answer.text, problem) for answer, problem in pairs])
    return {"seconds": round(seconds, 2), "kept": kept, "right": right}


def table(rows: Sequence[dict[str, Any]], count: int) -> tuple[list[str], list[list[str]]]:
    """Requests a second by candidate, and what they are to those of the large model alone."""
    by_candidate: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_candidate.setdefault(row["candidate"], []).append(row)
    rate = {
        name: count / fmean(row["seconds"] for row in own) for name, own in by_candidate.items()
    }
    bases = [name for name in (PLAIN, SPECULATING) if name in rate]
    cells = []
    for name, (first, *others) in by_candidate.items():
        low, high = wilson(first["right"], count)
        kept = first["kept"]
        right = f"{first['right']} of {count} [{100 * low:.0f}, {100 * high:.0f}]"
        share = f"{kept.get('large', 0) / max(1, sum(kept.values())):.0%}"
        each = ", ".join(f"{count / row['seconds']:.3f}" for row in (first, *others))
        cells.append(
            [name, right, share, each, *(f"{rate[name] / rate[one]:.2f}x" for one in bases)]
        )
    heads = ["policy", "right [95 %]", "large share", "requests a second by round"]
    return [*heads, *(f"to {base}" for base in bases)], cells


@contextmanager
def serving(plan: LoadPlan) -> Iterator[str]:
    """Serve the pair with as many rows as clients; yield its address."""

    def edit(args: dict[str, Any]) -> None:
        workers = args["workers"]
        for name, threads in (("small", 1), ("large", plan.large_threads)):
            workers[name] |= {"rows": plan.clients, "max_len": plan.max_len, "threads": threads}
            if plan.dtype is not None:
                workers[name]["dtype"] = plan.dtype
        draft = {"draft": workers["small"]["model"]}
        chain = {"method": "chain", "params": draft | plan.chain}
        auto = {"method": "auto", "params": draft | AUTO}
        workers["large"]["speculation"] = {"also": [chain, auto]}
        if plan.policy is not None:
            args["policy"] = plan.policy

    with TemporaryDirectory() as name:
        how = baton(Path(plan.file), Path(name), edit)
        with running(how, Path(name, "log")) as server:
            yield server.url


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the server is ended on the way out
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pair", choices=PLANS, required=True)
    parser.add_argument("--candidates")
    for name in ("count", "clients", "rounds"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--temperature", type=float)
    parser.add_argument("--dtype")
    parser.add_argument("--out", type=Path)
    options = vars(parser.parse_args())
    pair, out = options.pop("pair"), options.pop("out")
    plan = replace(PLANS[pair], **{k: value for k, value in options.items() if value is not None})
    problems = load_problems(plan.problems, plan.count, plan.seed)
    names = plan.candidates.split(",")
    settings = {k: v for k, v in asdict(plan).items() if k not in ("candidates", "rounds")}
    path = out or Path(f"build/results/load-{pair}.jsonl")
    with closing(RowFile(path, "baton_load", settings)) as file, closing(Grader()) as grader:
        rows = file.rows
        done = {(row["candidate"], row["round"]) for row in rows}
        orders = (names, names[::-1])
        turns = [(name, n) for n in range(plan.rounds) for name in orders[n % 2]]
        if left := [turn for turn in turns if turn not in done]:
            with serving(plan) as url:
                # The first requests warm up.
                asyncio.run(round_of(url, plan, left[0][0], problems[: plan.clients], grader))
                for name, number in left:
                    made = asyncio.run(round_of(url, plan, name, problems, grader))
                    rows.append({"candidate": name, "round": number, **made})
                    file.add(rows[-1])
                    print(f"{name}, round {number + 1}: {made['seconds']} s", flush=True)
    print_table(*table([row for row in rows if row["candidate"] in names], len(problems)))


if __name__ == "__main__":
    main()
