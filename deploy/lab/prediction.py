"""Recorded evaluations at other costs: what a policy would take on a pair that cannot run here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import yaml
from pydantic import ValidationError
from rich.console import Console

from deploy.evaluation import evaluation_log
from deploy.evaluation.candidates import BASELINE
from deploy.evaluation.intervals import mean, paired, quantile, wilson
from deploy.evaluation.recording import Recording, load
from deploy.evaluation.summary import Row
from deploy.evaluation.tables import Column, difference, label, percent, show
from deploy.lab.call_costs import ASSUMPTIONS, Costs, Predicted, predict_loaded
from deploy.service.config import explain
from orchestrator.errors import ConfigError
from orchestrator.loop.actions import WorkerName
from policies import POLICIES

HERE = Path(__file__).parent / "costs"


def load_costs(source: str) -> Costs:
    """Costs by file, or by the name of a file in deploy/lab/costs.

    Raises:
        ConfigError: names the file and the key that is wrong.
    """
    path = Path(source)
    if not path.is_file() and (HERE / f"{source}.yaml").is_file():
        path = HERE / f"{source}.yaml"
    try:
        return Costs.model_validate(yaml.safe_load(path.read_text(encoding="utf-8-sig")))
    except OSError as error:
        known = ", ".join(sorted(one.stem for one in HERE.glob("*.yaml")))
        raise ConfigError(f"{source}: {error.strerror or error}; there are {known}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{source}: not YAML: {' '.join(str(error).split())}") from None
    except ValidationError as error:
        raise ConfigError(f"{source}: {explain(error)}") from None


Name: TypeAlias = tuple[str, int | None]
"""A policy and its budget."""


@dataclass(frozen=True, slots=True)
class PredictedColumn:
    """One policy's rows with what becomes of them, and each model's live streams then.

    Nothing becomes of a request that failed: it has no recording.
    """

    rows: list[tuple[dict[str, Any], Predicted | None]]
    live: dict[WorkerName, float]


def predicted(
    folders: Path | Sequence[Path], costs: Costs, streams: Sequence[int] = ()
) -> dict[str, Any]:
    """What `baton lab predict --json` writes: rows, costs and assumptions, all marked as predicted.

    A row for each policy and number of requests at once; without `streams` the fewest that the
    costs are for. A request that failed is a wrong answer without a time: times are those of the
    `timed` problems, which the policy and `large-only` both answered, and None without any. Several
    folders are one evaluation: what the first of them holds of a problem and policy counts, and its
    settings are told.

    Raises:
        ConfigError: a folder holds no recordings that can be used, or such as were not made like
            the others', or the costs say nothing of so many streams.
    """
    folders = [folders] if isinstance(folders, Path) else folders
    named: dict[Name, dict[Any, dict[str, Any]]] = {}
    recorded = [_recorded(folder, named) for folder in folders]
    evaluation_log.check_alike(dict(zip(folders, recorded, strict=True)))
    if not any(policy == BASELINE for policy, _ in named):
        raise ConfigError(f"{folders[0]}: no recordings of {BASELINE}")
    counts = streams or (costs.fewest,)
    tables: dict[int, dict[Name, PredictedColumn]] = {count: {} for count in counts}
    for name, by_problem in named.items():  # one policy's recordings in memory at a time
        mine = list(by_problem.values())
        recordings = [_loaded(row["recording"]) for row in mine if row["recording"]]
        for count, columns in tables.items():
            found, live = predict_loaded(recordings, costs, count)
            times = iter(found)
            columns[name] = PredictedColumn(
                [(row, next(times) if row["recording"] else None) for row in mine], live
            )
    table = [row for count in counts for row in _rows(tables[count], costs, count)]
    if any(
        one.get("concurrency", 1) > 1 for one in recorded
    ):  # its times are those of requests that wait for others
        for one in table:
            one["measured_speedup"] = None
    return {
        "predicted": True,
        "rows": table,
        "costs": costs.model_dump(mode="json"),
        "assumptions": [*ASSUMPTIONS, *costs.assumptions],
        "recorded": recorded[0],
    }


def _loaded(path: Path) -> Recording:
    """A recording whose tokens are the two models' own."""
    recording = load(path)
    if lossy := recording.request.lossy("small", "large"):
        raise ConfigError(
            f"{path}: recorded with {lossy}, whose text is not the model's own: record with a "
            "lossless method"
        )
    return recording


def _recorded(folder: Path, named: dict[Name, dict[Any, dict[str, Any]]]) -> dict[str, Any]:
    """The folder's settings; its rows are added to those of their policy and budget, by problem."""
    settings, rows = evaluation_log.read(folder / "rows.jsonl")
    if settings.get("speculation") != "vanilla":
        raise ConfigError(
            f"{folder}: recorded with {settings.get('speculation')!r} in the large worker; the "
            "cost model charges a pass per token: record with vanilla"
        )
    for row in rows:
        if row["policy"].partition(":")[0] not in POLICIES:
            continue  # recorded by a version that had it: its actions cannot be read
        problem = (settings.get("problems"), row["problem"])
        known = named.setdefault((row["policy"], row["budget"]), {})
        if problem in known:
            continue
        if row["error"] is None and "recording" not in row:
            raise ConfigError(
                f"{folder}: its rows of {row['policy']} have no recordings (`baton eval` was to "
                "keep none, or --beside named another folder that has them)"
            )
        recording = folder / row["recording"] if "recording" in row else None
        known[problem] = {**row, "problem": problem, "recording": recording}
    return settings


def _rows(columns: Mapping[Name, PredictedColumn], costs: Costs, streams: int) -> list[Row]:
    table = []
    usual = next(column for (policy, _), column in columns.items() if policy == BASELINE)
    for (policy, budget), column in columns.items():
        base = {
            row["problem"]: (row, one) for row, one in columns.get((BASELINE, budget), usual).rows
        }
        both = [
            (row, one, *base[row["problem"]]) for row, one in column.rows if row["problem"] in base
        ]
        timed = [
            (row, one, base_row, base_one)
            for row, one, base_row, base_one in both
            if one is not None and base_one is not None
        ]
        right = [row["correct"] for row, *_ in both]
        times = [one.ms for _, one, *_ in timed]
        measured = sum(row["ms"] for row, *_ in timed)
        gpus = costs.gpus([name for name, busy in column.live.items() if busy])
        # Of 1,000 requests of so many ms each.
        gpu_hours = gpus * mean(times) / 3600 / streams if timed else None
        low, high = wilson(sum(right), len(right))
        against = paired(right, [row["correct"] for *_, row, _ in both])
        table.append(
            {
                "predicted": True,
                "policy": policy,
                "budget": budget,
                "streams": streams,
                "live": column.live,
                "gpus": gpus,
                "gpu_hours_per_1000": gpu_hours,
                "money_per_1000": None
                if gpu_hours is None or costs.gpu_hour is None
                else gpu_hours * costs.gpu_hour,
                "n": len(both),
                "errors": sum(row["error"] is not None for row, *_ in both),
                "timed": len(timed),
                "accuracy": mean(right),
                "accuracy_low": low,
                "accuracy_high": high,
                "difference": against.difference,
                "difference_low": against.low,
                "difference_high": against.high,
                "p50_ms": quantile(times, 0.50) if timed else None,
                "p95_ms": quantile(times, 0.95) if timed else None,
                "mean_ms": mean(times) if timed else None,
                "total_ms": sum(times) if timed else None,
                "speedup": sum(one.ms for *_, one in timed) / sum(times) if sum(times) else None,
                "measured_speedup": sum(row["ms"] for *_, row, _ in timed) / measured
                if measured
                else None,
                "ms": {
                    name: mean([getattr(one, name) for _, one, *_ in timed]) if timed else None
                    for name in ("small", "large", "classify", "overlap")
                },
                "large_tokens": mean([row["metrics"]["large_tokens"] for row, *_ in timed])
                if timed
                else None,
            }
        )
    return table


def _seconds(row: Row) -> str:
    both = row["p50_ms"], row["p95_ms"]
    return "" if None in both else "/".join(f"{ms / 1000:.3g}" for ms in both)


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}"


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}x"


def _known(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


COLUMNS: list[Column] = [
    ("policy", label),
    ("requests at once", lambda row: str(row.get("streams", 1))),
    ("predicted seconds p50/p95", _seconds),
    ("predicted speedup", lambda row: _ratio(row["speedup"])),
    ("GPU-hours per 1,000 requests", lambda row: _known(row.get("gpu_hours_per_1000"))),
    ("money per 1,000 requests", lambda row: _known(row.get("money_per_1000"))),
    ("measured speedup of the recorded pair", lambda row: _ratio(row["measured_speedup"])),
    ("ms small", lambda row: _ms(row["ms"]["small"])),
    ("ms large", lambda row: _ms(row["ms"]["large"])),
    ("ms judge", lambda row: _ms(row["ms"]["classify"])),
    ("ms overlap", lambda row: _ms(row["ms"]["overlap"])),
    ("failed", lambda row: str(row.get("errors") or "")),
    ("accuracy % of the recorded pair", percent),
    ("difference to large-only", difference),
]


def show_prediction(data: dict[str, Any], console: Console) -> None:
    """Print the table of a prediction, and what it rests on."""
    show(data["rows"], COLUMNS, console, f"PREDICTION, not a measurement: {data['costs']['name']}")
    for line in basis(data):
        console.print(f"- {line}", style="dim", markup=False)


def basis(data: dict[str, Any]) -> list[str]:
    """What a prediction rests on, one statement each: hardware, sources, assumptions."""
    costs = data["costs"]
    pair = " and ".join(
        f"{costs[name]['model']} ({_tokens(costs[name]['token_ms'])}, "
        f"{costs[name]['read_ms']:g} + {costs[name]['read_token_ms']:g} a token read, "
        f"{costs[name]['call_ms']:g} a call)"
        for name in ("small", "large")
    )
    return [
        f"Pair: {pair}.",
        f"Hardware: {costs['hardware']}.",
        *(f"Source of {source}" for source in costs["sources"]),
        *data["assumptions"],
    ]


def _tokens(token_ms: float | Mapping[Any, float]) -> str:
    """A token's time; a mapping's keys are texts where it comes from JSON."""
    if not isinstance(token_ms, Mapping):  # as it once was
        token_ms = {1: token_ms}
    if len(token_ms) == 1:
        return f"{next(iter(token_ms.values())):g} ms a token"
    each = ", ".join(f"{ms:g} at {streams}" for streams, ms in token_ms.items())
    return f"ms a token by live streams: {each}"
