"""The page of a run, and its file of costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final

from deploy.evaluation.candidates import BASELINE
from deploy.evaluation.summary import Row
from deploy.lab.call_costs import Costs, WorkerCosts

NEAR: Final = 1.15
"""A pass that takes up to this much longer than one over a token costs nothing for reading."""
SOURCES: Final = (
    "token_ms: 48 tokens after a prefix of 256, by live streams of one model while the other is "
    "loaded and idle",
    "call_ms: a call that reads 1 token after 800 cached ones, less a decoding pass",
    "read_token_ms and no_graph_ms: the line through calls that read 256 and 1,024 tokens",
    "verify_ms: a verification of 16 tokens, less a call that reads as many",
)
NOTES: Final = (
    "Weights are random; each call makes and reads as many tokens as its recording has.",
    "What the large model wrote after a text of the small one counts as the small one's own next "
    "token, so run-ahead is adopted more often than with real models.",
    "Drafts of the draft model are kept at 4.1 tokens a round (synthetic); those of n-grams as the "
    "random text allows.",
    "The loop is in these times; Ray and HTTP are not.",
)


def page(rows: Sequence[Row], device: str) -> str:
    """The rows as Markdown."""
    played = [row for row in rows if "requests_per_s" in row]
    plain = {row["clients"]: row for row in played if _label(row) == BASELINE}
    drafted = {row["clients"]: row for row in played if _label(row) == f"{BASELINE}, draft-model"}
    parts = [f"# One GPU, measured\n\n{device}\n", "## Recorded dialogues\n"]
    parts += _table(
        {
            "policy": _label,
            "at once": itemgetter("clients"),
            "seconds each": lambda row: f"{row['seconds']:.2f}",
            "requests a second": lambda row: f"{row['requests_per_s']:.2f}",
            "to large-only": lambda row: _ratio(row, plain),
            "to it with drafts": lambda row: _ratio(row, drafted),
        },
        sorted(played, key=itemgetter("clients")),
    )
    parts.append("## Costs of calls, ms\n")
    parts += _table(
        {
            "model": itemgetter("row"),
            "a token, by streams": lambda row: _list(row["token_ms"]),
            "reads, by tokens": lambda row: _list(row["read_ms"]),
            "verifies 16": lambda row: f"{row['verify_ms']:.1f}",
            "a call beside its passes": lambda row: f"{row['call_ms']:.1f}",
        },
        [row for row in rows if "token_ms" in row],
    )
    parts.append("## Greedy texts of our engine\n")
    parts += _table(
        {
            "model": itemgetter("row"),
            "dtype": itemgetter("dtype"),
            "as transformers": lambda row: row.get("as_transformers", ""),
            "as on the CPU in float32": itemgetter("as_on_cpu"),
            "of": itemgetter("of"),
        },
        [row for row in rows if "as_on_cpu" in row],
    )
    ended = {row["stage"] for row in rows if row["row"] == "ended"}
    parts += [
        f"- {row['stage']}: {row['row']}, {row['status']}"
        for row in rows
        if "status" in row and row["stage"] not in ended
    ]
    return "\n".join([*parts, *(f"- {note}" for note in NOTES)]) + "\n"


def _table(columns: Mapping[str, Callable[[Row], Any]], rows: Sequence[Row]) -> list[str]:
    cells = [[str(cell(row)) for cell in columns.values()] for row in rows]
    lines = [[*columns], ["---"] * len(columns), *cells]
    return [f"| {' | '.join(line)} |" for line in lines] + [""]


def _label(row: Row) -> str:
    return str(row["row"]) if row["stage"] == "sharing" else f"{row['row']}, {row['stage']}"


def _ratio(row: Row, to: dict[Any, Row]) -> str:
    base = to.get(row["clients"])
    return "" if base is None else f"{row['requests_per_s'] / base['requests_per_s']:.2f}x"


def _list(by_count: dict[str, float]) -> str:
    return ", ".join(f"{count}: {ms:.1f}" for count, ms in by_count.items())


def costs(rows: Sequence[Row], device: str) -> Costs | None:
    """The costs of the pair over vLLM; None: they were not measured."""
    found = {row["row"]: row for row in rows if "token_ms" in row}
    pair = [found.get(f"vllm {shape}") for shape in ("1.5b", "32b")]
    if pair[0] is None or pair[1] is None:
        return None
    return Costs(
        name=f"Qwen2.5 1.5B + 32B shapes, {device}",
        hardware=f"{device}, which both models share; vLLM in Baton's worker, rows 32, bfloat16",
        sources=SOURCES,
        assumptions=(
            "A text that Baton ends before its cap leaves two passes running.",
            f"A pass up to {NEAR:g} times as long as one over a token has a CUDA graph.",
        ),
        shared_device=True,
        small=_worker("Qwen2.5-1.5B", pair[0]),
        large=_worker("Qwen2.5-32B", pair[1]),
    )


def _worker(model: str, row: Row) -> WorkerCosts:
    token_ms = {int(count): float(ms) for count, ms in row["token_ms"].items()}
    read = {int(count): float(ms) for count, ms in row["read_ms"].items()}
    (fewer, fast), (more, slow) = sorted(read.items())[-2:]
    each = max(0.0, (slow - fast) / (more - fewer))
    return WorkerCosts(
        model=model,
        call_ms=round(row["call_ms"], 2),
        read_ms=round(token_ms[1], 2),
        read_token_ms=round(each, 4),
        graph_tokens=max(count for count, ms in read.items() if ms <= NEAR * read[1]),
        no_graph_ms=round(max(0.0, fast - read[1] - each * fewer), 2),
        verify_ms=round(max(0.0, row["verify_ms"] - read[16]), 2),
        abort_passes=2,
        token_ms={count: round(ms, 2) for count, ms in token_ms.items()},
    )
