"""Rows of dialogues through the real loop, over virtual workers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from deploy.evaluation.candidates import BASELINE
from deploy.evaluation.intervals import mean
from deploy.evaluation.summary import Row
from deploy.evaluation.tables import Column
from deploy.lab.call_costs import Costs
from deploy.lab.reenact import clock
from deploy.lab.reenact.dialogues import Answers, Dialogue
from deploy.lab.reenact.engine import Device, VirtualEngine
from deploy.lab.reenact.virtual_worker import VirtualWorker
from orchestrator.errors import ConfigError
from orchestrator.loop.actions import WorkerName
from orchestrator.loop.solve import solve
from orchestrator.worker import Worker

REQUESTS_A_CLIENT: Final = 4
"""At least: the end of a row, when clients run out of questions, is a small part of it."""
SPECULATING: Final = ":speculating"


@dataclass(frozen=True, slots=True)
class Played:
    """seconds: of each request; wall: from the first question to the last answer."""

    seconds: list[float]
    wall: float

    @property
    def per_s(self) -> float:
        return len(self.seconds) / self.wall


def table(
    dialogues: Sequence[Dialogue],
    costs: Costs,
    counts: Sequence[int],
    run_ahead: int = 0,
    tell: Callable[[str], None] = lambda _: None,
) -> list[Row]:
    """A row for each policy at each number of clients, and one over a large model that speculates.

    Ratios are of requests a second, to `large-only` in both ways. `run_ahead`: tokens of the small
    model.

    Raises:
        ConfigError: no dialogues of large-only, or the costs have no figures for that many clients.
    """
    by_policy: dict[str, list[Dialogue]] = {}
    for one in dialogues:
        by_policy.setdefault(one.policy, []).append(one)
    if BASELINE not in by_policy:
        raise ConfigError(f"no recordings of {BASELINE}, to which all others are compared")
    if max(counts) > costs.most:
        raise ConfigError(
            f"{costs.name}: has figures up to {costs.most} requests at once, not for {max(counts)}"
        )
    rows = []
    for clients in counts:
        found = {}
        for policy, mine in by_policy.items():
            rounds = -(-REQUESTS_A_CLIENT * clients // len(mine))
            for suffix in ("", SPECULATING) if "large" in mine[0].build_policy().called else ("",):
                tell(f"{policy}{suffix}, {clients} at once")
                found[policy + suffix] = clock.run(
                    play(mine * rounds, costs, clients, bool(suffix), run_ahead)
                )
        rows += [
            {
                "policy": policy,
                "clients": clients,
                "seconds": mean(one.seconds),
                "requests_per_s": one.per_s,
                "ratio": one.per_s / found[BASELINE].per_s,
                "ratio_speculating": one.per_s / found[BASELINE + SPECULATING].per_s,
            }
            for policy, one in found.items()
        ]
    return rows


def against_measured(dialogues: Sequence[Dialogue], costs: Costs) -> list[Row]:
    """What was measured on the hardware of the costs, beside what the shipped dialogues take here.

    `error` is a fraction of what was measured.
    """
    rows = []
    for one in costs.measured:
        mine = of_policy(dialogues, one.policy, one.questions_a_set)
        played = clock.run(play(mine, costs, one.clients))
        ours = mean(played.seconds) if one.unit == "seconds" else played.per_s
        rows.append({**one.model_dump(), "ours": ours, "error": ours / one.measured - 1})
    return rows


def of_policy(dialogues: Sequence[Dialogue], policy: str, questions_a_set: int) -> list[Dialogue]:
    """A policy's first questions of each set."""
    return [
        one
        for one in dialogues
        if one.policy == policy and int(str(one.question).rpartition("-")[2]) < questions_a_set
    ]


async def play(
    dialogues: Sequence[Dialogue],
    costs: Costs,
    clients: int,
    speculates: bool = False,
    run_ahead: int = 0,
) -> Played:
    """Play dialogues at the costs of a pair."""
    answers: dict[str, Answers] = {}
    pair = virtual_pair(costs, answers, speculates, run_ahead)
    return await play_over(pair, answers, dialogues, clients)


async def play_over(
    pair: Mapping[WorkerName, Worker],
    answers: dict[str, Answers],
    dialogues: Sequence[Dialogue],
    clients: int,
) -> Played:
    """`clients` take the dialogues in their order, each one after the other.

    The pair answers from `answers`, which are put there by request.
    """
    seconds: list[float] = []
    waiting = enumerate(dialogues)
    time = asyncio.get_running_loop().time
    start = time()

    async def client() -> None:
        for number, dialogue in waiting:
            began, name = time(), str(number)
            answers[name] = Answers(dialogue.recording)
            request = replace(dialogue.request(), id=name)
            async for _ in solve(dialogue.build_policy(), request, pair):
                pass
            seconds.append(time() - began)

    await asyncio.gather(*(client() for _ in range(clients)))
    return Played(seconds, time() - start)


def virtual_pair(
    costs: Costs, answers: Mapping[str, Answers], speculates: bool = False, run_ahead: int = 0
) -> dict[WorkerName, VirtualWorker]:
    """Both models, which answer from the record by request."""
    device = Device()
    large = VirtualEngine(
        costs.large, device, (costs.small, costs.speculation) if speculates else None
    )
    small = VirtualEngine(costs.small, device if costs.shared_device else Device())
    return {
        "small": VirtualWorker("small", small, answers, run_ahead),
        "large": VirtualWorker("large", large, answers),
    }


COLUMNS: Final[list[Column]] = [
    ("policy", lambda row: str(row["policy"])),
    ("clients", lambda row: str(row["clients"])),
    ("seconds a request", lambda row: f"{row['seconds']:.2f}"),
    ("requests a second", lambda row: f"{row['requests_per_s']:.2f}"),
    ("to large-only", lambda row: f"{row['ratio']:.2f}x"),
    ("to large-only, speculating", lambda row: f"{row['ratio_speculating']:.2f}x"),
]
MEASURED_COLUMNS: Final[list[Column]] = [
    ("policy", lambda row: str(row["policy"])),
    ("clients", lambda row: str(row["clients"])),
    ("unit", lambda row: str(row["unit"]).replace("_per_s", " a second")),
    ("ours", lambda row: f"{row['ours']:.2f}"),
    ("measured", lambda row: f"{row['measured']:.2f}"),
    ("error", lambda row: f"{row['error']:+.1%}"),
]
