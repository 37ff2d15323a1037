"""`baton calibrate`: the threshold that meets a target, on problems meant for tuning."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack, closing
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from deploy.cli.common import Config, wide_console
from orchestrator.errors import BatonError, InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deploy.evaluation.calibration import CalibrationResult, CalibrationTarget, Point, Range
    from deploy.evaluation.candidates import Candidate
    from deploy.evaluation.evaluate import Problem


class Unmet(BatonError):
    """No value of the parameter meets the target."""


def calibrate(
    policy: Annotated[str, typer.Option(help="NAME, or NAME:KEY=VALUE with other parameters.")],
    target_large_share: Annotated[
        float | None,
        typer.Option(min=0.0, max=1.0, help="At most this part of all tokens by the large model."),
    ] = None,
    target_accuracy: Annotated[
        float | None, typer.Option(min=0.0, max=1.0, help="At least this part of right answers.")
    ] = None,
    problems: Annotated[
        str, typer.Option(help="builtin:dev, or FILE.jsonl with question and answer a line.")
    ] = "builtin:dev",
    limit: Annotated[int | None, typer.Option(min=1, help="How many problems.")] = None,
    seed: Annotated[int, typer.Option(help="Which problems a builtin set draws.")] = 0,
    parameter: Annotated[
        str | None, typer.Option(help="Another parameter than the policy's own threshold.")
    ] = None,
    bounds: Annotated[
        str | None, typer.Option("--range", help="LOW,HIGH to search, where the field has none.")
    ] = None,
    recordings: Annotated[
        Path | None,
        typer.Option(help="What `baton eval --recordings` left: its answers need no model."),
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Cap on thought and answer together.")
    ] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Problems at once.")] = 4,
    config: Config = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, nothing else.")] = False,
) -> None:
    """Find the threshold that meets a target.

    The range is bisected. Greedy answers of both models are cached by the call they answer, so from
    one threshold to the next a model is called only where a decision changed; all else is replayed
    exactly.

    [bold]Examples[/]

      baton calibrate --policy specreason --target-large-share 0.2

      baton calibrate --policy specreason --target-accuracy 0.95 --limit 200 --json

      baton calibrate --policy bild --parameter rollback --range 0.5,10 --target-accuracy 0.9
    """
    from deploy.evaluation.calibration import CalibrationTarget, Range
    from deploy.evaluation.candidates import Candidate
    from deploy.evaluation.problems import load_problems
    from policies import POLICIES

    if (target_large_share is None) == (target_accuracy is None):
        raise InvalidRequest("give one target: --target-large-share or --target-accuracy")
    if problems == "builtin:heldout":
        raise InvalidRequest("nothing is tuned on held-out problems: use builtin:dev")
    candidate = Candidate.parse(policy)
    if candidate.policy not in POLICIES:
        raise InvalidRequest(f"no policy {candidate.policy!r}; there are {', '.join(POLICIES)}")
    where = Range.of(POLICIES[candidate.policy], parameter, _bounds(bounds))
    target = (
        CalibrationTarget("accuracy", target_accuracy)
        if target_accuracy is not None
        else CalibrationTarget("large_share", target_large_share or 0.0)
    )
    chosen = load_problems(problems, limit, seed)
    found, calls = asyncio.run(
        _search(candidate, where, target, chosen, recordings, max_tokens, concurrency, config)
    )
    report = {
        "policy": candidate.label,
        "parameter": where.parameter,
        "value": found.best.value if found.met else None,
        "met": found.met,
        "target": asdict(target),
        "problems": problems,
        "seed": seed,
        **_sampled(found.best, len(chosen)),
        "tried": [asdict(point) for point in found.tried],
        **calls,
    }
    if as_json:
        print(json.dumps(report))
    else:
        _show(report)
    if not found.met:
        nearest = getattr(found.best, target.measure)
        raise Unmet(
            f"no {where.parameter} from {where.low:g} to {where.high:g} meets "
            f"{target.measure} {target.value:g}; the nearest was {nearest:.3f}"
        )


async def _search(
    candidate: Candidate,
    where: Range,
    target: CalibrationTarget,
    problems: Sequence[Problem],
    recordings: Path | None,
    max_tokens: int | None,
    concurrency: int,
    config: Path | None,
) -> tuple[CalibrationResult, dict[str, int]]:
    from deploy.evaluation.cached_worker import CachedWorker
    from deploy.evaluation.calibration import Point, search
    from deploy.evaluation.candidates import Candidate, policy_of
    from deploy.evaluation.clients import LocalClient, RequestOptions, ask
    from deploy.evaluation.evaluate import run
    from deploy.evaluation.grading import Grader
    from deploy.evaluation.intervals import mean
    from deploy.evaluation.summary import figures
    from deploy.service.config import DEFAULT_FILE, load
    from deploy.service.workers import close, open_worker

    args = load(config or DEFAULT_FILE).args
    policy_of(args, candidate)
    console = Console(stderr=True, highlight=False)
    async with AsyncExitStack() as stack:

        def opened(name: str) -> Any:
            worker = open_worker(getattr(args.workers, name))
            stack.push_async_callback(close, [worker])
            return worker

        workers: dict[Any, CachedWorker] = {
            name: CachedWorker(partial(opened, name)) for name in ("small", "large")
        }
        loaded = _load_recordings(workers, recordings, args)
        grader = stack.enter_context(closing(Grader()))
        client = LocalClient(args, workers, RequestOptions(max_tokens, seed=0))

        async def measure(value: float) -> Point:
            given = int(value) if where.whole else value
            label = f"{candidate.policy}:{where.parameter}={value:g}"
            one = Candidate(label, candidate.policy, {**candidate.params, where.parameter: given})
            turns = await run(
                problems,
                [one],
                lambda question, which: ask(client, question, which),
                grader.right,
                concurrency=concurrency,
            )
            own = [turn[0] for turn in turns]
            if errors := [result.error for result in own if result.error is not None]:
                raise BatonError(f"{label}: {len(errors)} requests failed; the first: {errors[0]}")
            share = figures(own, own)["large_share"]
            point = Point(value, share, mean([result.correct for result in own]))
            console.print(f"{label}: accuracy {point.accuracy:.3f}, large share {share:.3f}")
            return point

        found = await search(measure, where, target)
        return found, {
            "replayed_calls": sum(worker.replayed for worker in workers.values()),
            "live_calls": sum(worker.live for worker in workers.values()),
            "recorded_answers": loaded,
        }


def _load_recordings(workers: dict[Any, Any], folder: Path | None, args: Any) -> int:
    """Fill both caches from recordings of the same pair; how many answers they had."""
    from deploy.evaluation import evaluation_log
    from deploy.evaluation.recording import load
    from orchestrator.errors import ConfigError

    if folder is None:
        return 0
    settings, rows = evaluation_log.read(folder / "rows.jsonl")
    for name in workers:
        spec = getattr(args.workers, name)
        now, then = (
            evaluation_log.fingerprint(spec.folder(), str(spec.model)),
            settings["pair"].get(name),
        )
        if now != then:
            raise ConfigError(f"{folder}: recorded with {then} as {name} model, not {now}")
    loaded = 0
    for row in rows:
        if "recording" in row:
            recording = load(folder / row["recording"])
            loaded += sum(
                worker.load_recording(name, recording) for name, worker in workers.items()
            )
    return loaded


def _bounds(text: str | None) -> tuple[float, float] | None:
    if text is None:
        return None
    try:
        low, high = (float(part) for part in text.split(","))
    except ValueError:
        raise InvalidRequest(f"--range {text}: want LOW,HIGH such as 0.5,10") from None
    return low, high


def _sampled(point: Point, count: int) -> dict[str, Any]:
    from deploy.evaluation.intervals import wilson

    low, high = wilson(round(point.accuracy * count), count)
    return {
        "n": count,
        "large_share": point.large_share,
        "accuracy": point.accuracy,
        "accuracy_low": low,
        "accuracy_high": high,
    }


def _show(report: dict[str, Any]) -> None:
    console = wide_console()
    if report["met"]:
        console.print(f"{report['policy']}:{report['parameter']}={report['value']:g}", style="bold")
    console.print(
        f"accuracy {100 * report['accuracy']:.1f} % "
        f"[{100 * report['accuracy_low']:.0f}, {100 * report['accuracy_high']:.0f}], "
        f"{100 * report['large_share']:.1f} % of the tokens by the large model, "
        f"{report['n']} problems; {report['live_calls']} calls made, "
        f"{report['replayed_calls']} replayed",
        style="dim",
    )
