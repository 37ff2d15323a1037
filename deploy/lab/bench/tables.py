"""The tables of `baton lab bench-decode`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from deploy.evaluation.tables import Column
from deploy.lab.bench.rounds import Row

Data = dict[str, Any]


def figure(name: str, form: str = "{:.2f}") -> Callable[[Row], str]:
    """A figure with its interval."""

    def text(row: Row) -> str:
        if row.get(name) is None:
            return ""
        value, low, high = (form.format(row[f"{name}{end}"]) for end in ("", "_low", "_high"))
        return f"{value} [{low}, {high}]"

    return text


def label(row: Row) -> str:
    return str(row["label"]) + ("" if row["lossless"] else " (lossy)")


def identical(row: Row) -> str:
    if (same := row["identical_prompts"]) is None:
        return ""
    if "divergence_margin" not in row:
        return f"{same}/{row['prompts']}"
    margin = row["divergence_margin"]
    return f"{same}/{row['prompts']}, margin " + ("unknown" if margin is None else f"{margin:.2g}")


def rate(row: Row) -> str:
    return "" if row["acceptance_rate"] is None else f"{row['acceptance_rate']:.2f}"


MAIN: list[Column] = [
    ("method", label),
    ("tokens/s", lambda row: f"{row['tokens_per_s']:.0f}"),
    ("to vanilla [95 %]", figure("over_vanilla")),
    ("to hf-generate", figure("over_hf_generate")),
    ("to hf-assisted", figure("over_hf_assisted")),
    ("tokens a round", lambda row: f"{row['mean_acceptance_length']:.2f}"),
    ("accepted drafts", rate),
    ("target passes", lambda row: f"{row['target_passes']:.0f}"),
    ("as vanilla", identical),
    ("right", figure("right", "{:.0%}")),
]


def sections(data: Data) -> list[tuple[str, list[Column], list[Row]]]:
    """(heading, columns, rows) of every table that has rows."""
    tables = []
    cases = dict.fromkeys((row["temperature"], row["streams"]) for row in data["rows"])
    for temperature, streams in cases:
        here = [
            row
            for row in data["rows"]
            if (row["temperature"], row["streams"]) == (temperature, streams)
        ]
        where = f"temperature {temperature:g}, {streams} stream{'s' * (streams > 1)}"
        tables.append((where.capitalize(), MAIN, here))
    return [(heading, columns, rows) for heading, columns, rows in tables if rows]


def notes(data: Data) -> list[str]:
    """The notes under the tables."""
    about = data["about"]
    setting = f"{about['dtype']}, {about['threads']} threads, {about['device']}"
    lines = [
        f"{about['model']} ({setting}), draft {about['draft'] or 'none'}; {about['prompts']} "
        f"prompts of {about['problems']}, {about['rounds']} rounds, at most {about['max_new']} new "
        "tokens. Reading the prompt is part of every time.",
        "Ratios are of tokens a second, medians over the rounds, with bootstrap intervals over the "
        "prompts; tokens a round are those of one target pass, its bonus token included; as "
        "vanilla: prompts whose every token is plain decoding's, and where texts part the widest "
        "margin between both tokens' logits; right: outputs that give the problem's answer.",
    ]
    lines += [f"Not available: {one['label']}: {one['reason']}" for one in data["unavailable"]]
    return lines
