"""The tables of `baton lab bench-decode`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from deploy.evaluation.tables import Column, markdown
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


def predicted(row: Row) -> str:
    return figure("predicted")(row)


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
LENGTH: list[Column] = [
    ("method", label),
    ("target tokens", lambda row: f"{row['budget']}"),
    ("tokens a round", figure("mean_acceptance_length")),
    ("to chain", figure("accepted_over_chain")),
    ("predicted", predicted),
    ("tokens/s to chain", figure("over_chain")),
]
BUDGET: list[Column] = [
    ("method", label),
    ("draft length", lambda row: f"{row['length']}"),
    ("tokens a round", figure("mean_acceptance_length")),
    ("predicted", predicted),
    ("tokens/s", lambda row: f"{row['tokens_per_s']:.0f}"),
]
ABLATION: list[Column] = [
    ("heads", lambda row: f"{row['variant']} x{len(row['seeds'])}"),
    ("temperature", lambda row: f"{row['temperature']:g}"),
    ("accepted drafts a round [95 %]", figure("accepted")),
    ("each head's", lambda row: " ".join(f"{one:.2f}" for one in row["seeds"])),
    ("most there can be", lambda row: f"{row['depth']}"),
    ("below that", lambda row: f"{row['below_cap']:.2f}"),
    ("more than its ablation", lambda row: figure("difference")(row)),
]


def at_length(rows: Sequence[Row], length: int) -> list[Row]:
    """Methods with a draft model that draft so deep, the longest rounds first."""
    return _longest([row for row in rows if row["length"] == length and _drafts(row)])


def at_budget(rows: Sequence[Row], budget: int) -> list[Row]:
    """Methods with a draft model of whose drafts the target reads so many, likewise."""
    return _longest([row for row in rows if row["budget"] == budget and _drafts(row)])


def _drafts(row: Row) -> bool:
    return bool(row["method"] != "lookup")


def _longest(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: -row["mean_acceptance_length"])


def sections(data: Data) -> list[tuple[str, list[Column], list[Row]]]:
    """(heading, columns, rows) of every table that has rows."""
    about, tables = data["about"], []
    cases = dict.fromkeys((row["temperature"], row["streams"]) for row in data["rows"])
    for temperature, streams in cases:
        here = [
            row
            for row in data["rows"]
            if (row["temperature"], row["streams"]) == (temperature, streams)
        ]
        where = f"temperature {temperature:g}, {streams} stream{'s' * (streams > 1)}"
        tables.append((where.capitalize(), MAIN, here))
        if temperature > 0:
            length, budget = about["length"], about["budget"]
            tables.append((f"At draft length {length}, {where}", LENGTH, at_length(here, length)))
            title = f"At {budget} target tokens a round, {where}"
            tables.append((title, BUDGET, at_budget(here, budget)))
    tables.append(("Feature drafters beside their ablation", ABLATION, data["ablations"]))
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
        "margin between both tokens' logits; right: outputs that give the "
        "problem's answer. SpecTr's paper: 1.37x to chain.",
    ]
    lines += [
        f"Temperature {one['temperature']:g}: a token of the draft model is accepted with a "
        f"chance of {figure('draft_acceptance', '{:.3f}')(one)}. {one['told']}"
        for one in data["laws"]
    ]
    lines += [f"Not available: {one['label']}: {one['reason']}" for one in data["unavailable"]]
    return lines


def report(data: Data) -> str:
    """Everything in Markdown."""
    parts = ["# Decoding side by side\n"]
    parts += [
        f"## {heading}\n\n{markdown(rows, columns)}" for heading, columns, rows in sections(data)
    ]
    parts.append("\n".join(f"- {line}" for line in notes(data)) + "\n")
    return "\n".join(parts)
