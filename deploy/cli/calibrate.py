"""`baton calibrate`: a pair's thresholds, measured on any questions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import AsyncExitStack, closing
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.console import Console

from deploy.cli.common import (
    AsJson,
    Config,
    Limit,
    MaxTokens,
    Problems,
    Seed,
    bar,
    print_json,
    print_table,
    wide_console,
    write,
)
from deploy.evaluation.cached_worker import opened_pair
from deploy.evaluation.calibrator import Calibrator
from deploy.evaluation.candidates import Candidate, policy_of
from deploy.evaluation.clients import LocalClient, RequestOptions, ask
from deploy.evaluation.evaluate import Question
from deploy.evaluation.grading import Grader
from deploy.evaluation.problems import for_figures, load_problems
from deploy.evaluation.threshold_search import CalibrationTarget, Measure, Range
from deploy.launch.deployment_file import DEFAULT_FILE, load_args
from deploy.service.calibration import to_be_extended
from deploy.service.config import Args
from deploy.service.extras import want
from deploy.service.notes import pair_of
from orchestrator.errors import BatonError, InvalidRequest, Unsupported
from policies import POLICIES
from policies.judge import Judging


def _share(text: str) -> Any:
    return typer.Option(min=0.0, max=1.0, help=text)


@dataclass(frozen=True, slots=True)
class CalibrationOptions:
    """How the questions are answered; `skip` leaves out policies that the pair cannot run."""

    out: Path | None
    max_tokens: int | None
    concurrency: int
    skip: bool


def calibrate(
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME, or NAME:KEY=VALUE with other parameters; may be repeated. Default: every "
            "policy with a threshold."
        ),
    ] = None,
    target_large_share: Annotated[
        float | None,
        _share("At most this part of the tokens that the large model generates alone."),
    ] = None,
    target_agreement: Annotated[
        float | None, _share("At least this part of answers as the large model alone.")
    ] = None,
    target_accuracy: Annotated[
        float | None, _share("At least this part of right answers, if they are known.")
    ] = None,
    problems: Problems = "builtin:dev",
    limit: Limit = 50,
    seed: Seed = 0,
    parameter: Annotated[
        str | None, typer.Option(help="Another parameter than the policy's own threshold.")
    ] = None,
    bounds: Annotated[
        str | None, typer.Option("--range", help="LOW,HIGH to search, if the field has none.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write the calibration file; the models' answers are kept beside it, so that an "
            "interrupted run continues."
        ),
    ] = None,
    max_tokens: MaxTokens = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Questions at once.")] = 4,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Find the thresholds of a pair of models that meet a target; no answers need to be known.

    Answers are compared with those of the large model alone. First the judge is measured (do its
    scores tell anything on this pair?), then each policy's range is bisected. Greedy answers of
    both models are cached by their call, so a model is called again only if a decision changed.

    [bold]Examples[/]

      baton calibrate --problems my.jsonl --target-large-share 0.3 --out pair.json

      baton calibrate --policy specreason --target-agreement 0.9 --problems my.jsonl --limit 30

      baton calibrate --policy specreason --target-accuracy 0.95 --limit 200 --json

      baton calibrate --policy bild --parameter rollback --range 0.5,10 --target-accuracy 0.9
    """
    shares = {
        "large_share": target_large_share,
        "agreement": target_agreement,
        "accuracy": target_accuracy,
    }
    targets = [
        CalibrationTarget(cast("Measure", measure), value)
        for measure, value in shares.items()
        if value is not None
    ]
    if len(targets) != 1:
        raise InvalidRequest(
            "give one target: --target-large-share, --target-agreement or --target-accuracy"
        )
    (target,) = targets
    if for_figures(problems):
        raise InvalidRequest(f"{problems}: nothing is tuned on held-out problems: use builtin:dev")
    want("eval", "baton calibrate", "pebble", "math_verify")
    args = load_args(config or DEFAULT_FILE)
    known: dict[str, Any] = {"pair": pair_of(args.workers), "policies": {}}
    if out is not None:
        known = to_be_extended(out, known["pair"])  # refuses a file of another pair before the work
    searches = _searches(args, known, policy, parameter, bounds)
    chosen = load_problems(problems, limit, seed, answers=False)
    if target.measure == "accuracy" and not all(problem.known for problem in chosen):
        raise InvalidRequest(
            f"{problems}: --target-accuracy needs an answer to every question; "
            "--target-agreement needs none"
        )
    asked = {"problems": problems, "seed": seed, "n": len(chosen), "target": asdict(target)}
    asked["max_tokens"] = max_tokens

    options = CalibrationOptions(out, max_tokens, concurrency, skip=not policy)
    document = asyncio.run(_calibrate(args, known, searches, target, chosen, asked, options))
    if out is not None:
        write(out, json.dumps(document, indent=2) + "\n")
    if as_json:
        print_json(document)
    else:
        _show(document)
    searched = document["searched"]
    if not searched:
        raise BatonError("no policy could be calibrated on this pair")
    missed = [(one, where) for one, where in searches if one.policy in document["unmet"]]
    missed = [(one, where) for one, where in missed if one.policy in searched]
    if missed and (policy or len(missed) == len(searched)):
        candidate, where = missed[0]
        nearest = document["unmet"][candidate.policy][target.measure]
        raise BatonError(
            f"{candidate.policy}: no {where.parameter} from {where.low:g} to {where.high:g} meets "
            f"{target.measure} {target.value:g}; the nearest was {nearest:.3f}"
        )


def _searches(
    args: Args,
    known: dict[str, Any],
    names: Sequence[str] | None,
    parameter: str | None,
    bounds: str | None,
) -> list[tuple[Candidate, Range]]:
    """Return the candidates with the range of each.

    What the file that is added to has of a policy holds for its other thresholds too.
    """
    if (parameter is not None or bounds is not None) and len(names or ()) != 1:
        raise InvalidRequest("--parameter and --range go with one --policy")
    if not names:
        names = [name for name, policy in POLICIES.items() if policy.calibrated is not None]
    candidates = [Candidate.parse(name) for name in names]
    if len({candidate.policy for candidate in candidates}) < len(candidates):
        raise InvalidRequest("--policy: name each policy once, its parameters after its name")
    limits = _bounds(bounds)
    searches = []
    for candidate in candidates:
        if candidate.policy not in POLICIES:
            raise InvalidRequest(f"no policy {candidate.policy!r}; there are {', '.join(POLICIES)}")
        searched = parameter or POLICIES[candidate.policy].calibrated
        if searched in candidate.params:
            raise InvalidRequest(
                f"{candidate.label}: {searched} is what is searched for; leave it out, or "
                "name another with --parameter"
            )
        kept = {**known["policies"].get(candidate.policy, {}).get("params", {})}
        if gate := args.policy.params.get(candidate.policy, {}).get("gate"):
            kept.setdefault("gate", gate)  # a threshold means nothing without it
        for key, value in kept.items():
            if key not in (searched, "scoring"):  # the judge is measured again
                candidate.params.setdefault(key, value)
        built = policy_of(args, candidate)
        where = Range.of(type(built), parameter, limits, built.model_dump())
        searches.append((candidate, where))
    return searches


def _bounds(text: str | None) -> tuple[float, float] | None:
    if text is None:
        return None
    try:
        low, high = (float(part) for part in text.split(","))
    except ValueError:
        raise InvalidRequest(f"--range {text}: want LOW,HIGH such as 0.5,10") from None
    return low, high


async def _calibrate(
    args: Args,
    known: dict[str, Any],
    searches: Sequence[tuple[Candidate, Range]],
    target: CalibrationTarget,
    problems: Sequence[Question],
    asked: dict[str, Any],
    options: CalibrationOptions,
) -> dict[str, Any]:
    """Return the calibration file's content."""
    kept: dict[str, Any] = known["policies"]
    console = Console(stderr=True, highlight=False)
    log = options.out.with_suffix(".calls.jsonl") if options.out is not None else None
    async with opened_pair(args.workers, log) as workers, AsyncExitStack() as stack:
        client = LocalClient(args, workers, RequestOptions(options.max_tokens, seed=0))
        shown = stack.enter_context(bar(console))
        calibrator = Calibrator(
            problems,
            partial(ask, client),
            stack.enter_context(closing(Grader())),
            concurrency=options.concurrency,
            tell=console.print,
            progress=lambda label, done: shown.set_label(f"{label}: {done} of {len(problems)}"),
        )
        await calibrator.begin()
        found: dict[str, dict[str, Any]] = {}
        for candidate, where in searches:
            try:
                built = policy_of(args, candidate)
                question = built.model_dump(mode="json", include={"judge"})
                judge = await calibrator.judge(question) if isinstance(built, Judging) else None
                row = await calibrator.threshold(candidate, where, target, judge)
            except Unsupported as error:
                if not options.skip:
                    raise
                console.print(f"{candidate.policy} is left out: {error}")
                continue
            learned = kept.get(candidate.policy, {}).get("learned")
            found[candidate.policy] = row | asked | ({"learned": learned} if learned else {})
    met = {name: row for name, row in found.items() if row["met"]}
    unmet = {name: row for name, row in found.items() if not row["met"]}
    for name, row in unmet.items():  # what met another target does not meet this one
        kept.pop(name, None)
        if "learned" in row:
            kept[name] = {"params": {"gate": row["params"]["gate"]}, "learned": row["learned"]}
    missed = {name: row for name, row in known.get("unmet", {}).items() if name not in met}
    small, large = calibrator.ends
    return {
        "baton_calibration": 1,
        "pair": known["pair"],
        **asked,
        "searched": [*met, *unmet],
        "small_only": asdict(small),
        "large_only": asdict(large),
        "judge": [
            asdict(one) | {"tells": one.tells, "verdict": one.verdict()}
            for judge in calibrator.judges.values()
            for one in judge.reports
        ],
        "policies": {**kept, **met},
        "unmet": {**missed, **unmet},
        "replayed_calls": sum(worker.replayed for worker in workers.values()),
        "live_calls": sum(worker.live for worker in workers.values()),
    }


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
        "measured on the questions that chose the thresholds, so expect no more on others: "
        "run baton eval on separate questions",
        style="dim",
    )
    if others := [name for name in document["policies"] if name not in document["searched"]]:
        console.print(f"kept in the file as they were: {', '.join(others)}", style="dim")


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f}"
