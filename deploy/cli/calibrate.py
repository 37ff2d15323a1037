"""`baton calibrate`: a pair's thresholds, measured on any questions."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from deploy.cli.common import (
    AsJson,
    Config,
    MaxTokens,
    bar,
    print_json,
    print_table,
    wide_console,
    write,
)
from orchestrator.errors import BatonError, InvalidRequest, Unsupported

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deploy.evaluation.calibrator import JudgeCalibration
    from deploy.evaluation.candidates import Candidate
    from deploy.evaluation.evaluate import Problem
    from deploy.evaluation.threshold_search import CalibrationTarget, Range
    from deploy.service.config import Args

VERSION = 1
DEFAULT_LIMIT = 50

Share = Annotated[
    float | None,
    typer.Option(
        min=0.0,
        max=1.0,
        help="At most this part of the tokens that the large model generates alone.",
    ),
]
Agreement = Annotated[
    float | None,
    typer.Option(min=0.0, max=1.0, help="At least this part of answers as the large model alone."),
]
Accuracy = Annotated[
    float | None,
    typer.Option(min=0.0, max=1.0, help="At least this part of right answers, where known."),
]


@dataclass(frozen=True, slots=True)
class CalibrationOptions:
    """How the questions are answered; `skip` leaves out policies that the pair cannot run."""

    out: Path | None
    max_tokens: int | None
    concurrency: int
    skip: bool


class Unmet(BatonError):
    """No value of the parameter meets the target."""


def calibrate(
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME, or NAME:KEY=VALUE with other parameters; may be repeated. Default: every "
            "policy with a threshold."
        ),
    ] = None,
    target_large_share: Share = None,
    target_agreement: Agreement = None,
    target_accuracy: Accuracy = None,
    problems: Annotated[
        str, typer.Option(help="FILE.jsonl with a question a line, or builtin:dev.")
    ] = "builtin:dev",
    limit: Annotated[
        int | None, typer.Option(min=1, help=f"How many questions; default {DEFAULT_LIMIT}.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Which problems a builtin set draws.")] = 0,
    parameter: Annotated[
        str | None, typer.Option(help="Another parameter than the policy's own threshold.")
    ] = None,
    bounds: Annotated[
        str | None, typer.Option("--range", help="LOW,HIGH to search, where the field has none.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write the calibration file; the models' answers are kept beside it, so that a "
            "run that is broken off goes on."
        ),
    ] = None,
    max_tokens: MaxTokens = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Questions at once.")] = 4,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Find the thresholds of a pair of models that meet a target; no answers need to be known.

    Questions alone do: what the large model answers alone is what answers are compared with. First
    the judge is looked at (do its scores tell anything on this pair?), then each policy's range is
    bisected. Greedy answers of both models are cached by the call they answer, so from one value to
    the next, and from policy to policy, a model is called only where a decision changed.

    [bold]Examples[/]

      baton calibrate --problems my.jsonl --target-large-share 0.3 --out pair.json

      baton calibrate --policy specreason --target-agreement 0.9 --problems my.jsonl --limit 30

      baton calibrate --policy specreason --target-accuracy 0.95 --limit 200 --json

      baton calibrate --policy bild --parameter rollback --range 0.5,10 --target-accuracy 0.9
    """
    from deploy.evaluation.grading import Scored
    from deploy.evaluation.problems import for_figures, load_problems
    from deploy.launch.deployment_file import DEFAULT_FILE, load_args

    target = _target(target_large_share, target_agreement, target_accuracy)
    if for_figures(problems):
        raise InvalidRequest(f"{problems}: nothing is tuned on held-out problems: use builtin:dev")
    args = load_args(config or DEFAULT_FILE)
    searches = _searches(args, policy, parameter, bounds)
    chosen = load_problems(problems, limit or DEFAULT_LIMIT, seed, answers=False)
    known = [bool(problem.answer) or isinstance(problem, Scored) for problem in chosen]
    if target.measure == "accuracy" and not all(known):
        raise InvalidRequest(
            f"{problems}: --target-accuracy needs an answer to every question; "
            "--target-agreement needs none"
        )
    asked = {"problems": problems, "seed": seed, "n": len(chosen), "target": asdict(target)}
    asked["max_tokens"] = max_tokens
    options = CalibrationOptions(out, max_tokens, concurrency, skip=not policy)
    document = asyncio.run(_calibrate(args, searches, target, chosen, asked, options))
    if out is not None:
        write(out, json.dumps(document, indent=2) + "\n")
    if as_json:
        print_json(document)
    else:
        _show(document)
    _want_met(document, searches, target, every=bool(policy))


def _want_met(
    document: dict[str, Any],
    searches: Sequence[tuple[Candidate, Range]],
    target: CalibrationTarget,
    *,
    every: bool,
) -> None:
    """Whether every policy of this run meets the target, or one at least.

    Raises:
        Unmet: it is not so.
    """
    if not document["searched"]:
        raise Unmet("no policy could be calibrated on this pair")
    missed = [one for one in searches if one[0].policy in document["unmet"]]
    missed = [one for one in missed if one[0].policy in document["searched"]]
    if missed and (every or len(missed) == len(document["searched"])):
        candidate, where = missed[0]
        nearest = document["unmet"][candidate.policy][target.measure]
        raise Unmet(
            f"{candidate.policy}: no {where.parameter} from {where.low:g} to {where.high:g} meets "
            f"{target.measure} {target.value:g}; the nearest was {nearest:.3f}"
        )


def _target(
    large_share: float | None, agreement: float | None, accuracy: float | None
) -> CalibrationTarget:
    from deploy.evaluation.threshold_search import CalibrationTarget, Measure

    measures: dict[Measure, float | None] = {
        "large_share": large_share,
        "agreement": agreement,
        "accuracy": accuracy,
    }
    given = [
        CalibrationTarget(name, value) for name, value in measures.items() if value is not None
    ]
    if len(given) != 1:
        raise InvalidRequest(
            "give one target: --target-large-share, --target-agreement or --target-accuracy"
        )
    return given[0]


def _searches(
    args: Args, names: Sequence[str] | None, parameter: str | None, bounds: str | None
) -> list[tuple[Candidate, Range]]:
    """The candidates with the range of each."""
    from deploy.evaluation.candidates import Candidate, policy_of
    from deploy.evaluation.threshold_search import Range
    from policies import POLICIES

    if (parameter is not None or bounds is not None) and len(names or ()) != 1:
        raise InvalidRequest("--parameter and --range go with one --policy")
    if not names:
        names = [name for name, policy in POLICIES.items() if policy.calibrated is not None]
    candidates = [Candidate.parse(name) for name in names]
    for candidate in candidates:
        if candidate.policy not in POLICIES:
            raise InvalidRequest(f"no policy {candidate.policy!r}; there are {', '.join(POLICIES)}")
    if len({candidate.policy for candidate in candidates}) < len(candidates):
        raise InvalidRequest("--policy: each policy once; its parameters go behind its name")
    limits = _bounds(bounds)
    searches = []
    for one in candidates:
        built = policy_of(args, one)
        searches.append((one, Range.of(type(built), parameter, limits, built.model_dump())))
    for candidate, where in searches:
        if where.parameter in candidate.params:
            raise InvalidRequest(
                f"{candidate.label}: {where.parameter} is what is searched for; leave it out, or "
                "name another with --parameter"
            )
    return searches


async def _calibrate(
    args: Args,
    searches: Sequence[tuple[Candidate, Range]],
    target: CalibrationTarget,
    problems: Sequence[Problem],
    asked: dict[str, Any],
    options: CalibrationOptions,
) -> dict[str, Any]:
    """The calibration file's content."""
    from deploy.evaluation.cached_worker import opened_pair
    from deploy.evaluation.calibration_file import document_of
    from deploy.evaluation.calibrator import Calibrator, as_json
    from deploy.evaluation.candidates import policy_of
    from deploy.evaluation.clients import LocalClient, RequestOptions, ask
    from deploy.evaluation.grading import Grader
    from deploy.service.notes import pair_of
    from policies import POLICIES
    from policies.judge import Judging

    pair = pair_of(args.workers)
    known = document_of(options.out, pair) if options.out is not None else {}
    kept: dict[str, Any] = known.get("policies", {})
    for candidate, _ in searches:
        learned = kept.get(candidate.policy, {}).get("params", {}).get("gate")
        if gate := learned or args.policy.params.get(candidate.policy, {}).get("gate"):
            candidate.params.setdefault("gate", gate)  # a threshold means nothing without it
    console = Console(stderr=True, highlight=False)
    log = options.out.with_suffix(".calls.jsonl") if options.out is not None else None
    async with opened_pair(args.workers, pair, log) as workers, AsyncExitStack() as stack:
        grader = stack.enter_context(closing(Grader()))
        client = LocalClient(args, workers, RequestOptions(options.max_tokens, seed=0))
        shown = stack.enter_context(bar(console))
        calibrator = Calibrator(
            problems,
            lambda question, which: ask(client, question, which),
            grader,
            concurrency=options.concurrency,
            tell=console.print,
            progress=lambda label, done: shown.set_label(f"{label}: {done} of {len(problems)}"),
        )
        ends = await calibrator.ends()
        judges: dict[str, JudgeCalibration] = {}  # by the question that is asked
        policies: dict[str, Any] = {}
        unmet: dict[str, Any] = {}
        for candidate, where in searches:
            judge = None
            if issubclass(POLICIES[candidate.policy], Judging):
                built = policy_of(args, candidate).model_dump(mode="json", include={"judge"})
                question = json.dumps(built)
                if question not in judges:
                    judges[question] = await calibrator.judge(built)
                judge = judges[question]
            try:
                found = await calibrator.threshold(candidate, where, target, judge)
            except Unsupported as error:
                if not options.skip:
                    raise
                console.print(f"{candidate.policy} is left out: {error}")
                continue
            row = as_json(found, ends, len(problems)) | asked | _learned(kept, candidate.policy)
            (policies if found.found.met else unmet)[candidate.policy] = row
        for name in unmet:  # what met another target does not meet this one
            kept.pop(name, None)
            if "learned" in unmet[name]:
                gate = {"gate": unmet[name]["params"]["gate"]}
                kept[name] = {"params": gate, "learned": unmet[name]["learned"]}
        missed = {n: row for n, row in known.get("unmet", {}).items() if n not in policies}
        return {
            "baton_calibration": VERSION,
            "pair": pair,
            **asked,
            "searched": [*policies, *unmet],
            "small_only": asdict(ends[0]),
            "large_only": asdict(ends[1]),
            "judge": [
                asdict(one) | {"tells": one.tells, "verdict": one.verdict()}
                for judge in judges.values()
                for one in judge.reports
            ],
            "policies": {**kept, **policies},
            "unmet": {**missed, **unmet},
            "replayed_calls": sum(worker.replayed for worker in workers.values()),
            "live_calls": sum(worker.live for worker in workers.values()),
        }


def _learned(known: dict[str, Any], policy: str) -> dict[str, Any]:
    """What `baton learn` left in the file of a policy's gate."""
    learned = known.get(policy, {}).get("learned")
    return {} if learned is None else {"learned": learned}


def _bounds(text: str | None) -> tuple[float, float] | None:
    if text is None:
        return None
    try:
        low, high = (float(part) for part in text.split(","))
    except ValueError:
        raise InvalidRequest(f"--range {text}: want LOW,HIGH such as 0.5,10") from None
    return low, high


def _show(document: dict[str, Any]) -> None:
    console = wide_console()
    known = document["large_only"]["accuracy"] is not None
    columns = ["policy", "calibrated", "large tokens %", "agreement % [95 %]", "a coin's"]
    columns += ["accuracy %"] * known
    found, rows = {**document["policies"], **document["unmet"]}, []
    for name in ("small_only", "large_only"):
        end = document[name]
        cells = [name.replace("_", "-"), "", _percent(end["large_share"])]
        rows.append([*cells, _percent(end["agreement"]), "", _percent(end["accuracy"])])
    for name in document["searched"]:
        row = found[name]
        between = f"[{100 * row['agreement_low']:.0f}, {100 * row['agreement_high']:.0f}]"
        setting = f"{row['parameter']}={row['value']:g}" if row["met"] else "misses the target"
        cells = [name, setting, _percent(row["large_share"])]
        cells += [f"{_percent(row['agreement'])} {between}", _percent(row["coin"])]
        rows.append([*cells, _percent(row["accuracy"])])
    print_table(columns, (cells[: len(columns)] for cells in rows))
    for judge in document["judge"]:
        console.print(f"judge by {judge['scoring']}: {judge['verdict']}", style="dim")
    target = document["target"]
    console.print(
        f"target: {target['measure']} {target['value']:g}; {document['n']} questions; "
        f"{document['live_calls']} calls made, {document['replayed_calls']} replayed",
        style="dim",
    )
    console.print(
        "measured on the questions that the thresholds were chosen by; on others expect no more: "
        "baton eval on questions of their own tells",
        style="dim",
    )
    if others := [name for name in document["policies"] if name not in document["searched"]]:
        console.print(f"kept in the file as they were: {', '.join(others)}", style="dim")


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f}"
