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

    from deploy.evaluation.calibration import Found, Point, Range, Target
    from deploy.evaluation.evaluate import Contender, Problem


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

    The range is bisected. Greedy answers of both models are remembered by what was asked, so from
    one threshold to the next only what a changed decision leads to is asked of a model; all else
    is replayed, exactly.

    [bold]Examples[/]

      baton calibrate --policy specreason --target-large-share 0.2

      baton calibrate --policy specreason --target-accuracy 0.95 --limit 200 --json

      baton calibrate --policy bild --parameter rollback --range 0.5,10 --target-accuracy 0.9
    """
    from deploy.evaluation.calibration import Range, Target
    from deploy.evaluation.evaluate import Contender
    from deploy.evaluation.problems import load_problems
    from policies import POLICIES

    if (target_large_share is None) == (target_accuracy is None):
        raise InvalidRequest("give one target: --target-large-share or --target-accuracy")
    if problems == "builtin:heldout":
        raise InvalidRequest("nothing is tuned on held-out problems: use builtin:dev")
    contender = Contender.parse(policy)
    if contender.policy not in POLICIES:
        raise InvalidRequest(f"no policy {contender.policy!r}; there are {', '.join(POLICIES)}")
    where = Range.of(POLICIES[contender.policy], parameter, _bounds(bounds))
    target = (
        Target("accuracy", target_accuracy)
        if target_accuracy is not None
        else Target("large_share", target_large_share or 0.0)
    )
    chosen = load_problems(problems, limit, seed)
    found, calls = asyncio.run(
        _search(contender, where, target, chosen, recordings, max_tokens, concurrency, config)
    )
    told = {
        "policy": contender.label,
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
        print(json.dumps(told))
    else:
        _show(told)
    if not found.met:
        nearest = getattr(found.best, target.measure)
        raise Unmet(
            f"no {where.parameter} from {where.low:g} to {where.high:g} meets "
            f"{target.measure} {target.value:g}; the nearest was {nearest:.3f}"
        )


async def _search(
    contender: Contender,
    where: Range,
    target: Target,
    problems: Sequence[Problem],
    recordings: Path | None,
    max_tokens: int | None,
    concurrency: int,
    config: Path | None,
) -> tuple[Found, dict[str, int]]:
    from deploy.evaluation.askers import LocalAsker, Options, ask, policy_of
    from deploy.evaluation.calibration import Point, search
    from deploy.evaluation.evaluate import Contender, run
    from deploy.evaluation.grading import Grader
    from deploy.evaluation.intervals import mean
    from deploy.evaluation.memo import Memo
    from deploy.evaluation.summary import figures
    from deploy.service.config import DEFAULT_FILE, load
    from deploy.service.workers import close, open_worker

    args = load(config or DEFAULT_FILE).args
    policy_of(args, contender)
    console = Console(stderr=True, highlight=False)
    async with AsyncExitStack() as stack:

        def opened(name: str) -> Any:
            worker = open_worker(getattr(args.workers, name))
            stack.push_async_callback(close, [worker])
            return worker

        memos: dict[Any, Memo] = {name: Memo(partial(opened, name)) for name in ("small", "large")}
        learnt = _learn(memos, recordings, args)
        grader = stack.enter_context(closing(Grader()))
        asker = LocalAsker(args, memos, Options(max_tokens, seed=0))

        async def measure(value: float) -> Point:
            given = int(value) if where.whole else value
            label = f"{contender.policy}:{where.parameter}={value:g}"
            one = Contender(label, contender.policy, {**contender.params, where.parameter: given})
            turns = await run(
                problems,
                [one],
                lambda question, which: ask(asker, question, which),
                grader.same,
                concurrency=concurrency,
            )
            own = [turn[0] for turn in turns]
            if errors := [outcome.error for outcome in own if outcome.error is not None]:
                raise BatonError(f"{label}: {len(errors)} requests failed; the first: {errors[0]}")
            share = figures(own, own)["large_share"]
            point = Point(value, share, mean([outcome.correct for outcome in own]))
            console.print(f"{label}: accuracy {point.accuracy:.3f}, large share {share:.3f}")
            return point

        found = await search(measure, where, target)
        return found, {
            "replayed_calls": sum(memo.replayed for memo in memos.values()),
            "live_calls": sum(memo.live for memo in memos.values()),
            "recorded_answers": learnt,
        }


def _learn(memos: dict[Any, Any], folder: Path | None, args: Any) -> int:
    """Fill both memories from recordings of the same pair."""
    from deploy.evaluation import journal
    from deploy.evaluation.recording import load
    from orchestrator.errors import ConfigError

    if folder is None:
        return 0
    settings, rows = journal.read(folder / "rows.jsonl")
    for name in memos:
        spec = getattr(args.workers, name)
        now, then = journal.fingerprint(spec.folder(), str(spec.model)), settings["pair"].get(name)
        if now != then:
            raise ConfigError(f"{folder}: recorded with {then} as {name} model, not {now}")
    learnt = 0
    for row in rows:
        if "recording" in row:
            recording = load(folder / row["recording"])
            learnt += sum(memo.learn(name, recording) for name, memo in memos.items())
    return learnt


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


def _show(told: dict[str, Any]) -> None:
    console = wide_console()
    if told["met"]:
        console.print(f"{told['policy']}:{told['parameter']}={told['value']:g}", style="bold")
    console.print(
        f"accuracy {100 * told['accuracy']:.1f} % "
        f"[{100 * told['accuracy_low']:.0f}, {100 * told['accuracy_high']:.0f}], "
        f"{100 * told['large_share']:.1f} % of the tokens by the large model, "
        f"{told['n']} problems; {told['live_calls']} calls made, "
        f"{told['replayed_calls']} replayed",
        style="dim",
    )
