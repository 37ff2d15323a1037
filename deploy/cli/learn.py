"""`baton learn`: what a pair's recorded requests teach."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from deploy.cli.common import Config, bar, lossy, print_table, wide_console, write
from deploy.evaluation.cached_worker import opened_pair
from deploy.evaluation.gate_learning import FittedModel, GateExample, by_question, examples, fit
from deploy.evaluation.grading import Grader
from deploy.evaluation.json_lines import brief, is_of
from deploy.evaluation.problems import EXTERNAL, for_figures, load_problems
from deploy.evaluation.recording import KIND, Recording, load
from deploy.launch.deployment_file import DEFAULT_FILE, load_args
from deploy.service.calibration import to_be_extended
from deploy.service.extras import want
from deploy.service.notes import pair_of, settings_of
from deploy.service.worker_spec import Workers
from orchestrator.errors import ConfigError

learn = typer.Typer(help="Learn from a pair's recorded requests.")


@learn.command("gate")
def gate(
    recordings: Annotated[
        Path, typer.Argument(help="What `baton eval --recordings` left, or a folder of recordings.")
    ],
    out: Annotated[
        Path,
        typer.Option(
            help="The calibration file to write; thresholds of the same pair that it already "
            "holds stay. The models' answers are kept beside it, so that an interrupted run "
            "continues."
        ),
    ],
    limit: Annotated[
        int | None, typer.Option(min=1, help="How many questions; default: all of them.")
    ] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Branches at once.")] = 4,
    config: Config = None,
) -> None:
    """Learn the gate of the policy `learned-gate` from recorded requests; no answers are needed.

    Each recorded draft of the small model is tried twice: kept, and replaced by the large model's
    step; then the small model continues alone. A rewrite helped if it alone gives the large model's
    answer. The branches run in this process, greedily and cached; then two logistic models are
    fitted and calibrated. Their figures are measured on requests that they had not seen.

    [bold]Examples[/]

      baton eval --problems my.jsonl --policies specreason --recordings runs/mine

      baton learn gate runs/mine --out pair.json

      baton calibrate --policy learned-gate --target-agreement 0.95 --problems my.jsonl \\
        --out pair.json
    """
    want("eval", "baton learn", "sklearn")
    args = load_args(config or DEFAULT_FILE)
    if notes := lossy(args.workers.speculation()):
        raise ConfigError(
            f"{notes[0]}: a gate is learned from the models' own text; name a lossless method"
        )
    pair = pair_of(args.workers)
    known = to_be_extended(out, pair)  # refuses a file of another pair before the work
    found = _recordings(recordings, settings_of(args.workers))
    log = out.with_suffix(".calls.jsonl")
    console = wide_console()
    examples, failures = asyncio.run(_examples(found, args.workers, log, limit, concurrency))
    if failures:  # maybe also why there are too few examples for a fit
        console.print(
            f"{len(failures)} drafts are left out, the first because: {failures[0]}", markup=False
        )
    report = fit(examples)
    models: dict[str, FittedModel[Any]] = {"draft": report.draft, "reading": report.reading}
    learned: dict[str, Any] = {
        "requests": report.requests,
        "drafts": report.examples,
        "failed": len(failures),
        "helped": report.helps,
    }
    for name, model in models.items():
        learned[name] = {
            "auc": round(model.auc, 4),
            "brier": round(model.brier, 4),
            "reliability": [[round(p, 4), round(s, 4), n] for p, s, n in model.reliability],
        }
    known["policies"]["learned-gate"] = {
        "params": {"gate": report.gate.model_dump(mode="json")},
        "learned": learned,
    }
    known.get("unmet", {}).pop("learned-gate", None)  # that was another gate
    write(out, json.dumps(known, indent=2) + "\n")
    console.print(
        f"{report.requests} questions, {report.examples} drafts; a rewrite would have helped "
        f"{report.helps}"
    )
    for name, model in models.items():
        before = "before" if name == "draft" else "after"
        console.print(f"{before} reading: AUC {model.auc:.3f}, Brier score {model.brier:.4f}")
        rows = ((f"{100 * p:.1f}", f"{100 * s:.1f}", n) for p, s, n in model.reliability)
        print_table(("said %", "helped %", "drafts"), rows)


async def _examples(
    found: Iterable[Recording], workers: Workers, log: Path, limit: int | None, concurrency: int
) -> tuple[list[GateExample], list[str]]:
    questions = (await by_question(found))[:limit]
    if not questions:
        raise ConfigError(
            "expected drafts of the small model, found none in the recordings: record greedy "
            "requests (temperature 0) of a policy that drafts step by step, as specreason, by no "
            "lossy method"
        )
    async with opened_pair(workers, log) as pair:
        with closing(Grader()) as grader, bar(Console(stderr=True, highlight=False)) as shown:
            return await examples(
                questions,
                pair,
                grader.same,
                concurrency=concurrency,
                progress=lambda done: shown.set_label(f"{done} of {len(questions)} questions"),
            )


def _recordings(place: Path, settings: dict[str, Any]) -> Iterator[Recording]:
    """Yield the recordings of a folder and those in it, among other files.

    Raises:
        ConfigError: no recording was found, or one is of another pair, or figures are measured on
            its problems.
    """
    paths = [path for path in sorted(place.glob("**/*.jsonl")) if is_of(path, KIND)]
    if not paths:
        raise ConfigError(f"{place}: expected recordings, found none (baton eval --recordings)")
    external = {one.question for one in load_problems(str(EXTERNAL), None, 0)}
    for path in paths:
        recording = load(path)
        about = recording.about
        asked = {recording.question, *(message.content for message in recording.messages)}
        if for_figures(about.get("problems", "")) or not external.isdisjoint(asked):
            raise ConfigError(
                f"{path}: expected recordings to learn from, found a question of "
                f"{about.get('problems', 'builtin:strangers')}, on which figures are measured: "
                "record builtin:train, or questions of your own"
            )
        for name in ("pair", "answering"):
            then = about.get("served_by", {}).get(name, settings[name])
            if then != settings[name]:
                raise ConfigError(
                    f"{path}: recorded with {brief(then)}, not {brief(settings[name])}: name the "
                    "deployment file that it was recorded with (--config)"
                )
        yield recording  # thousands may not fit in memory
