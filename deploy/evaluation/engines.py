"""The page "Two engines": `python -m deploy.evaluation.engines PAGE FIRST SECOND [SERVED]`.

FIRST and SECOND are recorded evaluations of the same problems (`baton eval --recordings`), each
over an engine of its own; SERVED holds the rows of a service over the second (`baton eval --url
... --rows SERVED/rows.jsonl`). Answers and steps are compared, and the calls that both engines were
asked: what is greedy has to come out the same. Where it does not, the log-probabilities of what
each engine chose tell how near a tie it was.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal

from deploy.evaluation.evaluation_log import read
from deploy.evaluation.recorded_answers import answered_calls
from deploy.evaluation.recording import Recording, load
from deploy.evaluation.tables import Column, markdown, write_page
from orchestrator.errors import ConfigError
from orchestrator.loop.actions import Account, Action, Generate, Recent
from orchestrator.loop.events import ActionCompleted
from orchestrator.types import (
    Classification,
    Generation,
    Segment,
    Segments,
    Transcript,
    Verification,
)

Cause = Literal["choice", "drawn", "time", "score"]
CAUSES: Mapping[Cause, str] = {
    "choice": "the engines chose other tokens",
    "drawn": "drafts drawn at a temperature",
    "time": "the policy goes by measured time",
    "score": "a score on the other side of a threshold, or another order of jobs",
}
Rows = dict[tuple[str, int], dict[str, Any]]
"""The rows of an evaluation by policy and problem."""


@dataclass(slots=True)
class EngineDifferences:
    """What two engines made of the same calls.

    calls, alike: greedy calls that both were asked; those answered by the same tokens.
    logprob, probability: the largest differences of a log-probability and of a label's probability,
    in calls answered alike.
    margins: where the answers part, by how much the log-probabilities of the two choices differ.
    """

    calls: int = 0
    alike: int = 0
    logprob: float = 0.0
    probability: float = 0.0
    margins: list[float] = field(default_factory=list)

    def add(self, first: Any, second: Any) -> None:
        """One call, and what each engine answered to it."""
        self.calls += 1
        if isinstance(first, Classification):
            self.alike += 1
            self.probability = max(
                self.probability, _apart(first.probabilities, second.probabilities)
            )
            self.logprob = max(self.logprob, _apart(first.nll or (), second.nll or ()))
            return
        (ours, values), (theirs, others) = _chosen(first), _chosen(second)
        if ours == theirs:
            self.alike += 1
            self.logprob = max(self.logprob, _apart(values, others))
            if isinstance(first, Verification):
                self.logprob = max(self.logprob, _apart(first.nll, second.nll))
            return
        both = min(len(values), len(others))
        at = next((i for i in range(both) if ours[i] != theirs[i]), both)
        # One of them may have ended, or held back what it was unsure of, where the other went on.
        self.margins.append(abs(values[at] - others[at]) if at < both else float("nan"))


@dataclass(slots=True)
class PolicyComparison:
    """One policy over all problems.

    `right` is for the first and the second, `served` equal answers and equal steps of a service;
    `parted` counts problems whose steps differ, by cause.
    """

    policy: str
    problems: int = 0
    answers: int = 0
    steps: int = 0
    right: list[int] = field(default_factory=lambda: [0, 0])
    parted: dict[Cause, int] = field(default_factory=lambda: dict.fromkeys(CAUSES, 0))
    served: list[int] = field(default_factory=lambda: [0, 0])
    compared: EngineDifferences = field(default_factory=EngineDifferences)


def tally(first: Path, second: Path, served: Path | None = None) -> list[PolicyComparison]:
    """Every policy of the first evaluation, in its order.

    Raises:
        ConfigError: a folder holds no evaluation, one of other problems, or no recordings.
    """
    ours, theirs = rows_of(first), rows_of(second)
    answered = {} if served is None else rows_of(served)
    found: dict[str, PolicyComparison] = {}
    for key, row in ours.items():
        policy, _ = key
        one = found.setdefault(policy, PolicyComparison(policy))
        other = _same_problem(second, theirs, key, row)
        one.problems += 1
        one.answers += row["text"] == other["text"]
        for index, result in enumerate((row, other)):
            one.right[index] += result["correct"]
        recording, before = _recording(first, row), len(one.compared.margins)
        compare(recording, _recording(second, other), one.compared)
        if steps(row) == steps(other):
            one.steps += 1
        else:
            one.parted[cause(recording, len(one.compared.margins) > before)] += 1
        if served is not None:
            there = _same_problem(served, answered, key, row)
            one.served[0] += row["text"] == there["text"]
            one.served[1] += steps(row) == steps(there)
    return list(found.values())


def rows_of(folder: Path) -> Rows:
    """The rows of an evaluation."""
    _, rows = read(folder / "rows.jsonl")
    return {(row["policy"], row["problem"]): row for row in rows}


def steps(row: Mapping[str, Any]) -> list[tuple[str, str, bool]]:
    """Who wrote what, and whether it stayed."""
    return [(step["author"], step["text"], step["accepted"]) for step in row["steps"]]


def compare(first: Recording, second: Recording, into: EngineDifferences) -> None:
    """Compare the answers to all greedy calls that are in both recordings."""
    known = {
        _key(called.action): called.answer
        for called in answered_calls(second.events)
        if not _drawn(second, called.action)
    }
    for called in answered_calls(first.events):
        theirs = known.pop(_key(called.action), None)
        answered = isinstance(theirs, Generation | Classification | Verification)
        if answered and type(theirs) is type(called.answer):  # neither is a failure
            into.add(called.answer, theirs)


def cause(recording: Recording, chose: bool) -> Cause:
    """Why the steps of two recordings differ, given whether the engines chose other tokens."""
    if chose:
        return "choice"
    if any(_drawn(recording, called.action) for called in answered_calls(recording.events)):
        return "drawn"
    read_time = any(
        isinstance(event, ActionCompleted) and isinstance(event.action, Account | Recent)
        for event in recording.events
    )
    return "time" if read_time else "score"


def page(tallies: Sequence[PolicyComparison], settings: Mapping[str, Any], *, served: bool) -> str:
    """The page in Markdown."""
    table = [_row(one, served=served) for one in tallies]
    columns: list[Column] = [(head, itemgetter(head)) for head in table[0]]
    parted = [
        f"- `{one.policy}`, {count} of {one.problems}: {CAUSES[why]}"
        + (f" ({_margins(one.compared.margins)})" if why == "choice" else "")
        for one in tallies
        for why, count in one.parted.items()
        if count
    ]
    service = (
        "The service is `baton serve` with vLLM in both replicas, several requests at once; its "
        "answers are compared with the builtin engine's, too."
    )
    parts = [
        "# Two engines, the same answers",
        "Generated by `make results-vllm`; do not edit. The embedded pair in float32 on a CPU, "
        "both models over Baton's own engine and both over vLLM: "
        f"{tallies[0].problems} problems of `{settings['problems']}`, greedy, with the policies' "
        "parameters of deploy/local.yaml.",
        markdown(table, columns),
        "Steps: who wrote what, and whether it stayed. Greedy calls are those that both engines "
        "were asked behind the same transcript; alike are those answered by the same tokens (a "
        "judgement has none). The largest differences of these calls stand beside them.",
        *[service] * served,
        "Where steps differ in this process, and why:" if parted else "Steps differ nowhere.",
        "\n".join(parted),
    ]
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def _row(one: PolicyComparison, *, served: bool) -> dict[str, str]:
    compared = one.compared
    row = {
        "policy": f"`{one.policy}`",
        "answers equal": f"{one.answers} of {one.problems}",
        "steps equal": str(one.steps),
        "right, builtin / vLLM": _slashed(one.right),
        "greedy calls alike": f"{compared.alike} of {compared.calls}",
        "log-probabilities apart": _small(compared.logprob),
        "labels' probabilities apart": _small(compared.probability),
    }
    return row | ({"service: answers / steps equal": _slashed(one.served)} if served else {})


def _small(difference: float) -> str:
    return f"{difference:.1e}" if difference else ""


def _slashed(counts: Sequence[int]) -> str:
    return " / ".join(map(str, counts))


def _margins(margins: Sequence[float]) -> str:
    known = [margin for margin in margins if margin == margin]
    if not known:
        return "one ended where the other went on"
    return f"their log-probabilities {max(known):.1e} apart at most"


def _same_problem(
    folder: Path, rows: Rows, key: tuple[str, int], row: Mapping[str, Any]
) -> dict[str, Any]:
    found = rows.get(key)
    if found is None or found["question"] != row["question"]:
        raise ConfigError(
            f"{folder}: expected an answer of {key[0]} to problem {key[1]}, as in the first "
            "evaluation; run both with the same --problems, --seed, --limit and --policies"
        )
    return found


def _recording(folder: Path, row: Mapping[str, Any]) -> Recording:
    if row["error"] is not None or "recording" not in row:
        why = row["error"] or "it was run without --recordings"
        raise ConfigError(f"{folder}: no recording of {row['policy']}, {row['problem']}: {why}")
    return load(folder / row["recording"])


def _drawn(recording: Recording, action: Action[Any]) -> bool:
    """Whether the answer comes from a random number."""
    own = action.temperature if isinstance(action, Generate) else None
    return (recording.request.sampling.temperature if own is None else own) > 0


def _key(action: Action[Any]) -> tuple[Any, ...]:
    """What is asked, without the log-probabilities of what it follows."""
    values = (getattr(action, spec.name) for spec in fields(action))  # type: ignore[arg-type]
    return (type(action), *map(_plain, values))


def _plain(value: Any) -> Any:
    if isinstance(value, Transcript):
        return tuple(_plain(getattr(value, spec.name)) for spec in fields(value) if spec.compare)
    if isinstance(value, Segments):
        return tuple(map(_plain, value))
    if isinstance(value, Segment):
        return (value.author, value.text, value.tokens)
    return value


def _chosen(answer: Generation | Verification) -> tuple[tuple[Any, ...], tuple[float, ...]]:
    """What an engine chose, and the log-probabilities of it."""
    if isinstance(answer, Verification):
        return answer.choices, answer.logprobs
    segment = answer.segment
    return (*segment.tokens, segment.finish), segment.logprobs


def _apart(values: Sequence[float], others: Sequence[float]) -> float:
    return max((abs(a - b) for a, b in zip(values, others, strict=True)), default=0.0)


def main(arguments: Sequence[str]) -> int:
    if not 3 <= len(arguments) <= 4:
        print("usage: PAGE FIRST SECOND [SERVED]", file=sys.stderr)
        return 2
    out, first, second, *rest = map(Path, arguments)
    served = rest[0] if rest else None

    def whole() -> str:
        settings, _ = read(first / "rows.jsonl")
        return page(tally(first, second, served), settings, served=served is not None)

    return write_page("engines", out, whole)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
