"""One run of `baton lab bench-decode`: load, take turns, report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import torch

from deploy.cli.common import Bar
from deploy.evaluation.candidates import Candidate
from deploy.evaluation.evaluate import Question
from deploy.evaluation.problems import load_problems
from deploy.evaluation.summary import Row
from deploy.evaluation.tables import Column
from deploy.lab.bench.candidates import Field, entries
from deploy.lab.bench.rounds import rows, take_turns
from orchestrator.answers.equality import compare
from orchestrator.errors import InvalidRequest
from orchestrator.types import Message, Transcript
from workers.engine.loading import LoadedTarget, open_target
from workers.text.prompt import PromptRenderer


@dataclass(frozen=True, slots=True)
class DecodeSettings:
    """The options of the command line."""

    model: str
    draft: str | None
    device: str
    dtype: str | None
    threads: int | None
    prompts: int
    rounds: int
    max_new: int
    temperatures: Sequence[float]
    streams: Sequence[int]
    seed: int
    problems: str


def bench(
    settings: DecodeSettings, requested: Sequence[Candidate] | None, shown: Bar
) -> dict[str, Any]:
    """Measure all rows; say what was not available."""
    chosen = list(entries(requested))
    loaded = open_target(
        settings.model, device=settings.device, dtype=settings.dtype, slots=max(settings.streams)
    )
    threads = settings.threads
    if threads is None and settings.device == "cpu" and loaded.is_small:
        threads = 1
    if threads is not None:
        torch.set_num_threads(threads)
    problems = load_problems(settings.problems, settings.prompts, settings.seed)
    if len(problems) < settings.prompts:
        raise InvalidRequest(
            f"--prompts {settings.prompts}: {settings.problems} has {len(problems)} problems: "
            "give less"
        )
    prompts = rendered(loaded, problems, settings)

    def is_right(prompt: int, output: list[int]) -> bool:
        return bool(compare(loaded.tokenizer.decode(output), problems[prompt].answer))

    field = Field(loaded, settings.model, settings.draft, settings.device, settings.max_new)
    entered = {streams: field.enter(chosen, streams) for streams in settings.streams}
    turns = sum(
        len(candidates) * (1 + settings.rounds * settings.prompts // streams)
        for streams, candidates in entered.items()
    )
    shown.set_total(turns * len(settings.temperatures))
    measured: list[Row] = []
    for streams, candidates in entered.items():
        groups = [prompts[at : at + streams] for at in range(0, len(prompts), streams)]
        for temperature in settings.temperatures:
            taken = take_turns(
                candidates, groups, settings.rounds, temperature, settings.seed, shown.advance
            )
            measured += rows(taken, temperature, streams, is_right)
    about = asdict(settings) | {"dtype": loaded.dtype, "threads": torch.get_num_threads()}
    return {"rows": measured, "unavailable": field.missing, "about": about}


def rendered(
    loaded: LoadedTarget, problems: Sequence[Question], settings: DecodeSettings
) -> list[list[int]]:
    """Problems as chat prompts."""
    prompts = PromptRenderer(loaded.tokenizer)
    ids = [prompts.transcript(Transcript((Message("user", one.question),))) for one in problems]
    longest, context = max(map(len, ids)), loaded.target.max_len
    if longest + settings.max_new > context:
        raise InvalidRequest(
            f"--max-new {settings.max_new}: prompts have up to {longest} tokens, "
            f"and {settings.model} holds {context}: give less"
        )
    return ids


def _percent(row: Row, name: str) -> str:
    return "" if row[name] is None else f"{row[name]:.0%}"


COLUMNS: Final[list[Column]] = [
    ("method", lambda row: row["label"] + ("" if row["lossless"] else " (lossy)")),
    ("tokens/s", lambda row: f"{row['tokens_per_s']:.0f}"),
    (
        "to vanilla [95 %]",
        lambda row: f"{row['ratio']:.2f} [{row['ratio_low']:.2f}, {row['ratio_high']:.2f}]",
    ),
    ("tokens a round", lambda row: f"{row['mean_acceptance_length']:.2f}"),
    ("accepted drafts", lambda row: _percent(row, "acceptance_rate")),
    ("target passes", lambda row: f"{row['target_passes']:.0f}"),
    ("as vanilla", lambda row: _percent(row, "identical")),
    ("right", lambda row: _percent(row, "right")),
]


def notes(data: dict[str, Any]) -> list[str]:
    """The notes under the tables."""
    about = data["about"]
    setting = f"{about['dtype']}, {about['threads']} threads, {about['device']}"
    return [
        f"{about['model']} ({setting}), draft {about['draft'] or 'none'}; {about['prompts']} "
        f"prompts of {about['problems']}, {about['rounds']} rounds, at most {about['max_new']} new "
        "tokens. Reading the prompt is part of every time.",
        "Tokens a round are those of one target pass, its bonus token included; as vanilla: "
        "prompts whose every token is plain decoding's.",
        *(f"Not available: {label}: {why}" for label, why in data["unavailable"].items()),
    ]
