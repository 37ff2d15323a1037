"""One run of `baton lab bench-decode`: load, take turns, report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from deploy.cli.common import Bar
from deploy.evaluation.evaluate import Problem
from deploy.evaluation.problems import load_problems
from deploy.lab.bench.candidates import BASELINE, CandidateSpec, DecodingCandidate, enter, entries
from deploy.lab.bench.divergence import divergences
from deploy.lab.bench.rounds import right, rows, take_turns
from deploy.lab.bench.turn_log import TurnLog
from deploy.service.calibration import fingerprint
from orchestrator.answers.equality import compare
from orchestrator.errors import InvalidRequest
from orchestrator.types import Message, Transcript
from workers.embedded.checkpoints import place_of
from workers.engine.loading import LoadedTarget, open_target
from workers.text.prompt import PromptRenderer


@dataclass(frozen=True, slots=True)
class Settings:
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
    settings: Settings,
    requested: Sequence[CandidateSpec] | None,
    shown: Bar,
    rows_file: Path | None = None,
) -> dict[str, Any]:
    """Measure all rows; say what was not available.

    Raises:
        ConfigError: `rows_file` is of another run.
    """
    chosen = list(entries(requested))
    log = TurnLog(rows_file, _shared(settings, chosen))
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

    data: dict[str, Any] = {"rows": [], "unavailable": []}
    fields: list[tuple[int, list[DecodingCandidate]]] = []
    for streams in settings.streams:
        entered, missing = enter(
            chosen, loaded, settings.model, settings.draft,
            device=settings.device, max_new=settings.max_new, streams=streams,
        )  # fmt: skip
        fields.append((streams, entered))
        data["unavailable"] += [one for one in missing if one not in data["unavailable"]]
    turns = sum(
        len(entered) * (1 + settings.rounds * settings.prompts // streams)
        for streams, entered in fields
    )
    shown.set_total(turns * len(settings.temperatures))
    for streams, entered in fields:
        groups = [prompts[at : at + streams] for at in range(0, len(prompts), streams)]
        for temperature in settings.temperatures:
            finished = take_turns(
                entered, groups, settings.rounds, temperature, settings.seed, shown.advance, log
            )
            measured = rows(finished, temperature, streams)
            if temperature == 0:
                base = next(one for one in finished if one.candidate.entry.method == BASELINE)
                margins = divergences(finished, base, prompts, loaded.target)
                for row in measured:
                    row |= margins.get(row["label"], {})
            shares = {one.candidate.entry.label: right(one, is_right) for one in finished}
            for row in measured:
                row |= shares[row["label"]].keys("right")
            data["rows"] += measured
    data["about"] = {
        "model": settings.model,
        "draft": settings.draft,
        "device": settings.device,
        "dtype": loaded.dtype,
        "threads": torch.get_num_threads(),
        "problems": settings.problems,
        "prompts": settings.prompts,
        "rounds": settings.rounds,
        "max_new": settings.max_new,
        "seed": settings.seed,
    }
    return data


def _shared(settings: Settings, chosen: Sequence[CandidateSpec]) -> dict[str, Any]:
    """What two runs must share for their turns to be of one."""
    models = {
        name: fingerprint(place_of(model), model)
        for name, model in (("model", settings.model), ("draft", settings.draft))
        if model is not None
    }
    return asdict(settings) | models | {"methods": [one.label for one in chosen]}


def rendered(
    loaded: LoadedTarget, problems: Sequence[Problem], settings: Settings
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
