"""The page "A real pair": `python -m deploy.lab.real_pair FOLDER PAGE`.

`FOLDER/NAME` are recorded evaluations for accuracy and tokens (`baton eval --recordings`); two of
the same problems are one, so that a policy can be added without measuring the others again.
`FOLDER/latency` is one at concurrency 1, `FOLDER/speculation/rows.jsonl` the same questions with a
lossless method in the large worker, `FOLDER/relaxed-NAME` those of `NAME` with a lossy one;
`latency-more` adds to `latency`. `FOLDER/latency.NAME`, `FOLDER/speculation.NAME` and
`FOLDER/relaxed.NAME` are times on another machine. What is not there yet, or not whole, is left
out and named.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from deploy.evaluation.candidates import BASELINE
from deploy.evaluation.evaluation_log import check_alike, read
from deploy.evaluation.intervals import mean, mean_interval, paired, ratio_of_sums, wilson
from deploy.evaluation.summary import SMALL
from deploy.evaluation.tables import Column, escape, markdown, write_page
from deploy.lab import prediction
from deploy.lab.tally import ALONE, Key, Tally, above_coin, tally
from orchestrator.errors import ConfigError

NOTES = {
    "bild:rollback=0": "`bild` with `rollback` 0 keeps what the large model would have written and "
    "nothing else: greedy, its text is `large-only`'s, but where passes of other widths break a "
    "tie in bfloat16 otherwise. It is speculation, with drafts of a step's length; its accuracy is "
    "`large-only`'s by construction, so that it is not set against a coin. What it measures is "
    "tokens and time.",
    "bild": "`bild` without parameters has its defaults, `fallback` 0.6 and `rollback` 5.",
    "speculative-thinking": "Speculative Thinking with a small model that does not reason gained "
    "7.8 points on that model in its paper (74.0 to 81.8 %); here no model of the pair reasons.",
}
"""What a reader must know of a policy, by its label or name."""
PEERS = (
    "Other engines on the same models and machine, for speed: "
    "[transformers' `generate` and assisted generation](decoding/real-pair-int8.md), "
    "[llama.cpp](decoding/real-pair-llama-cpp.md). "
    "Many clients at once: [load-real.md](load-real.md)."
)
LOSSLESS = ("bild:rollback=0",)
LATENCY, SPECULATION, RELAXED = "latency", "speculation", "relaxed"
TIMES = {
    "plain": "wall time, large-only plain = 1",
    "speculated": "wall time, large-only speculating = 1",
}
MISSING = "not measured"


def page(folder: Path, costs: Sequence[str]) -> str:
    """The page in Markdown, of what is in the folder.

    Raises:
        ConfigError: nothing is there, or not what `baton eval` wrote.
    """
    present = {one.parent.name: one.parent for one in sorted(folder.glob("*/rows.jsonl"))}
    machines = {
        name: at
        for name, at in present.items()
        if "." in name and _part(name) in (LATENCY, SPECULATION, RELAXED)
    }
    present = {name: at for name, at in present.items() if name not in machines}
    others = (LATENCY, SPECULATION, RELAXED)
    kinds = {name: at for name, at in present.items() if _part(name) not in others}
    if not kinds:
        raise ConfigError(f"{folder}: no evaluation in it; `make results-real` measures them")
    settings = {name: read(at / "rows.jsonl")[0] for name, at in present.items()}
    check_alike({folder: settings[name] for name, folder in kinds.items()})
    tallies = tally(list(kinds.values()))
    timed = [at for name, at in present.items() if _part(name) == LATENCY]
    latency = {one.label: one for one in tally(timed)}
    speculating = [present[SPECULATION]] if SPECULATION in present else []
    fast = {one.label: one for one in tally(speculating)}
    predictions = [
        prediction.predicted(list(kinds.values()), prediction.load_costs(one)) for one in costs
    ]
    base = next((one for one in tallies if one.label == BASELINE), None)
    if base is None:
        raise ConfigError(f"{folder}: no rows of {BASELINE}")
    table = [_row(one, base, tallies, latency, fast, predictions) for one in tallies]
    measured = {one.label for one in tallies}
    only_timed = [one for one in latency.values() if one.label not in measured]
    if BASELINE in latency:
        timed_base, alike = latency[BASELINE], list(latency.values())
        table += [_row(one, timed_base, alike, latency, fast, predictions) for one in only_timed]
    if BASELINE in fast and BASELINE in latency:
        table.append(_speculated(settings[SPECULATION]["speculation"], latency, fast))
    relaxed = {name: at for name, at in present.items() if _part(name) == RELAXED}
    lossy = _lossy(relaxed, kinds, settings)
    shown = ("policy", "problems", "accuracy", "difference", "gain", "share")
    for one in lossy:
        row = _row(one, base, tallies, {}, {}, predictions=[])
        table.append({key: row[key] for key in shown})
    parts = [
        "# A real pair",
        "Generated by `make results-real`; do not edit. Qwen2.5-Coder-0.5B-Instruct beside "
        "Qwen2.5-Coder-1.5B-Instruct (`make real-pair`), neither of which has a thought of its "
        "own: what they share step by step is the answer.",
        _measured(kinds, settings, tallies),
        markdown(table, _columns(predictions)),
        "Accuracy with its interval of 95 %, and the differences to `large-only` and to "
        "`small-only` on the same problems with their own. Large share: the large model's part of "
        "the tokens that stayed. Judge tokens: those computed to judge drafts, a problem. Wall "
        "time: `large-only`'s summed time over the policy's, one request at a time, with its "
        "interval, both of one run; above 1 is faster. What speculation makes of `large-only` was "
        "measured in one of the runs and is taken over to the others. "
        f"{_timed(latency)}Against the coin: "
        "points above the accuracy that coins have at the same share of large tokens, between the "
        "two nearest ones and on the problems that all of them answered, with its interval; a "
        "policy that is not above 0 does not beat chance.",
        *_thresholds(settings.values(), [*tallies, *only_timed]),
        PEERS,
        *_left_out(present, [*tallies, *lossy]),
        *_notes([*tallies, *only_timed]),
        *_on_machines(machines),
        *_by_set(tallies),
        *(prediction.report(data, "##") for data in predictions),
    ]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _thresholds(settings: Iterable[Mapping[str, Any]], tallies: Sequence[Tally]) -> list[str]:
    """What the calibration says of the policies that were measured."""
    calibrated: dict[str, Any] = {}
    for own in settings:
        params = (own.get("pair") or {}).get("params", {})
        measured = {label.partition(":")[0] for label, _ in own["policies"]}
        calibrated |= {name: one for name, one in params.items() if name in measured}
    said = [
        f"`{name}` {key} {value:g}"
        for name in dict.fromkeys(one.policy for one in tallies)
        for key, value in calibrated.get(name, {}).items()
        if isinstance(value, int | float)
    ]
    if not said:
        return []
    return [
        "Thresholds from [a calibration](../deploy/lab/real_pair_calibration.json) on other "
        f"questions (`make calibrate-real`): {', '.join(said)}. What a row does not name and this "
        "does not say is the policy's default."
    ]


def _notes(tallies: Sequence[Tally]) -> list[str]:
    keys = dict.fromkeys(key for one in tallies for key in (one.label, one.policy))
    return [NOTES[key] for key in keys if key in NOTES]


def _by_set(tallies: Sequence[Tally]) -> list[str]:
    """What each policy got right of each set of problems, where there are several."""
    sets = sorted({problems for one in tallies for problems, _ in one.right})
    if len(sets) < 2:
        return []
    rows = []
    for one in tallies:
        row = {"policy": one.label}
        for problems in sets:
            if here := [key for key in one.right if key[0] == problems]:
                right = {key: one.right[key] for key in here}
                row[problems] = f"{sum(right.values())} of {len(here)}, {one.share_of(here):.0%}"
                if above := _above(replace(one, right=right), tallies):
                    row[problems] += f", {_interval(above)}"
        rows.append(row)
    columns = [_column("policy", "policy"), *(_column(one, f"`{one}`") for one in sets)]
    return [
        "## Each set of problems",
        "Right answers, the large model's part of the tokens that stayed, points above the coin.",
        markdown(rows, columns),
    ]


def _lossy(
    relaxed: Mapping[str, Path], kinds: Mapping[str, Path], settings: Mapping[str, dict[str, Any]]
) -> list[Tally]:
    """`large-only` with a lossy method in the large worker, named after it.

    Raises:
        ConfigError: its rows were not made by one method, or as the others were.
    """
    check_alike({at: settings[name] for name, at in relaxed.items()})
    every = {**kinds, **relaxed}
    check_alike({at: settings[name] | {"speculation": None} for name, at in every.items()})
    return [
        replace(one, label=f"{BASELINE}, {settings[next(iter(relaxed))]['speculation']}")
        for one in tally(list(relaxed.values()))
        if one.label == BASELINE
    ]


def _on_machines(machines: Mapping[str, Path]) -> list[str]:
    """Wall times on other machines, each with its own lossless method: a section for each."""
    parts = []
    for name in sorted({name.partition(".")[2] for name in machines}):
        latency, fast, relaxed = (
            {one.label: one for one in tally([at] if at is not None else [])}
            for at in (machines.get(f"{part}.{name}") for part in (LATENCY, SPECULATION, RELAXED))
        )
        check_alike(
            {
                at: read(at / "rows.jsonl")[0] | {"speculation": None}
                for folder, at in machines.items()
                if folder.partition(".")[2] == name
            }
        )
        parts.append(f"## Times on another machine: {name}")
        if BASELINE not in latency:
            parts.append(f"`{LATENCY}.{name}` has no rows of {BASELINE} yet.")
            continue
        rows = [
            {
                "policy": one.label,
                "plain": _ratio(one.base_ms, one.ms),
                "speculated": _ratio(_speculating(one, latency, fast), one.ms),
            }
            for one in latency.values()
        ]
        if BASELINE in fast:
            settings, _ = read(machines[f"{SPECULATION}.{name}"] / "rows.jsonl")
            rows.append(_speculated(settings["speculation"], latency, fast))
        if BASELINE in fast and BASELINE in relaxed:
            settings, _ = read(machines[f"{RELAXED}.{name}"] / "rows.jsonl")
            row = _speculated(settings["speculation"], latency, relaxed)
            rows.append(row | {"speculated": _ratio(fast[BASELINE].ms, relaxed[BASELINE].ms)})
        parts += [
            f"Of {len(latency[BASELINE].ms)} of the timed questions, with weights in 8 bits, one "
            "request at a time.",
            markdown(rows, [_column(*one) for one in ({"policy": "policy"} | TIMES).items()]),
        ]
    return parts


def _timed(latency: Mapping[str, Tally]) -> str:
    """What times are of."""
    if BASELINE not in latency:
        return ""
    problems = sorted({problems for problems, _ in latency[BASELINE].ms})
    return (
        f"Times are of {len(latency[BASELINE].ms)} of the problems "
        f"({', '.join(f'`{one}`' for one in problems)}) with weights in 8 bits "
        "(`deploy/lab/real_pair.yaml`). "
    )


def _part(name: str) -> str:
    """What a folder was measured for: `latency-more` and `latency.NAME` for what `latency` was."""
    return name.partition("-")[0].partition(".")[0]


def _measured(
    kinds: Mapping[str, Path], settings: Mapping[str, Any], tallies: Sequence[Tally]
) -> str:
    named = ", ".join(f"`{one}`" for one in sorted({settings[name]["problems"] for name in kinds}))
    at = sorted({settings[name]["concurrency"] for name in kinds})
    problems = sorted({len(one.right) for one in tallies})
    each = " (accuracies of unlike numbers do not compare; differences do)"
    return (
        f"{' or '.join(map(str, problems))} problems{each * (len(problems) > 1)}, of {named}; "
        f"{' or '.join(map(str, at))} at once, greedy, "
        f"{settings[next(iter(kinds))]['max_tokens']} tokens at most."
    )


def _row(
    one: Tally,
    base: Tally,
    tallies: Sequence[Tally],
    latency: Mapping[str, Tally],
    fast: Mapping[str, Tally],
    predictions: Sequence[dict[str, Any]],
) -> dict[str, Any]:
    small = next((other for other in tallies if other.label == SMALL), None)
    low, high = wilson(sum(one.right.values()), len(one.right))
    above = _above(one, tallies)
    timed = one.label in latency
    speculating = _speculating(latency[one.label], latency, fast) if timed else {}
    row = {
        "policy": one.label,
        "problems": str(len(one.right)),
        "accuracy": f"{100 * one.accuracy:.1f} [{100 * low:.0f}, {100 * high:.0f}]",
        "difference": "" if one is base else _difference(one, base),
        "gain": "" if one is small or small is None else _difference(one, small),
        "share": f"{one.share:.0%}",
        "judged": f"{one.judged / len(one.right):.0f}",
        "coin": _interval(above) if above else "",
        "plain": _ratio(latency[one.label].base_ms, latency[one.label].ms) if timed else MISSING,
        "speculated": _ratio(speculating, latency[one.label].ms) if timed else MISSING,
    }
    for data in predictions:
        found = [
            made
            for made in data["rows"]
            if made["policy"] == one.label and made["speedup"] is not None
        ]
        row[data["costs"]["name"]] = f"{found[0]['speedup']:.2f}x" if found else MISSING
    return row


def _interval(differences: Sequence[float]) -> str:
    """Their mean, in points, with its interval of 95 %."""
    low, high = mean_interval(differences)
    return f"{100 * mean(differences):+.1f} [{100 * low:+.0f}, {100 * high:+.0f}]"


def _difference(ours: Tally, theirs: Tally) -> str:
    """Ours less theirs, in points, on the problems that both answered, with its interval."""
    both = [key for key in ours.right if key in theirs.right]
    against = paired([ours.right[key] for key in both], [theirs.right[key] for key in both])
    low, high = 100 * against.low, 100 * against.high
    return f"{100 * against.difference:+.1f} [{low:+.0f}, {high:+.0f}]"


def _speculated(
    method: str, latency: Mapping[str, Tally], fast: Mapping[str, Tally]
) -> dict[str, Any]:
    """`large-only` with a lossless method: the same text sooner."""
    return {
        "policy": f"{BASELINE}, {method}",
        "plain": _ratio(latency[BASELINE].ms, fast[BASELINE].ms),
        "speculated": "1.00x",
    }


def _speculating(
    one: Tally, latency: Mapping[str, Tally], fast: Mapping[str, Tally]
) -> dict[Key, float]:
    """What `large-only` with the lossless method would have taken in the policy's own run.

    Runs are of other days and machines: it is the policy's own `large-only`, times what the method
    makes of `large-only` where it was measured.
    """
    if BASELINE not in fast or BASELINE not in latency:
        return {}
    plain, sped = latency[BASELINE].ms, fast[BASELINE].ms
    both = one.base_ms.keys() & plain.keys() & sped.keys()
    return {key: one.base_ms[key] * sped[key] / plain[key] for key in both}


def _ratio(theirs: Mapping[Key, float], ours: Mapping[Key, float]) -> str:
    """Their times over ours on the problems that both have, with its interval."""
    both = [key for key in ours if key in theirs]
    if not both:
        return MISSING
    times = [theirs[key] for key in both], [ours[key] for key in both]
    low, high = ratio_of_sums(*times)
    return f"{sum(times[0]) / sum(times[1]):.2f}x [{low:.2f}, {high:.2f}]"


def _above(one: Tally, tallies: Sequence[Tally]) -> list[float]:
    """The same as `above_coin`, of a policy that is to be set against a coin."""
    shares = one.policy not in ALONE and one.label not in LOSSLESS
    return above_coin(one, tallies) if shares else []


def _columns(predictions: Sequence[dict[str, Any]]) -> list[Column]:
    heads = {
        "policy": "policy",
        "problems": "problems",
        "accuracy": "accuracy % [95 %]",
        "difference": "difference to large-only",
        "gain": "to small-only",
        "share": "large share",
        "coin": "against the coin",
        "judged": "judge tokens",
    }
    heads |= TIMES | {
        data["costs"]["name"]: f"predicted: {data['costs']['name']}" for data in predictions
    }
    return [_column(key, head) for key, head in heads.items()]


def _column(key: str, head: str) -> Column:
    return head, lambda row: str(row.get(key, ""))


def _left_out(present: Mapping[str, Path], tallies: Sequence[Tally]) -> list[str]:
    """What a reader must know of gaps: parts that are not there, requests that failed."""
    lacking = [name for name in (LATENCY, SPECULATION) if name not in map(_part, present)]
    failed = [f"`{escape(one.label)}` {one.failed}" for one in tallies if one.failed]
    parts = [f"Not measured yet: {', '.join(lacking)}."] if lacking else []
    return parts + (
        [f"Requests that failed, counted as wrong: {', '.join(failed)}."] * bool(failed)
    )


def main(arguments: Sequence[str]) -> int:
    if len(arguments) < 2:
        print("usage: FOLDER PAGE [COSTS ...]", file=sys.stderr)
        return 2
    folder, out, *costs = arguments
    return write_page("real_pair", Path(out), lambda: page(Path(folder), costs))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
