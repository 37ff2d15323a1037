"""Two engines on the same problems: what is counted as equal, and what explains the rest."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deploy.evaluation.candidates import Candidate
from deploy.evaluation.engines import EngineDifferences, cause, compare, main, page, tally
from deploy.evaluation.evaluate import EvaluatedAnswer, EvaluationResult, Question
from deploy.evaluation.evaluation_log import EvaluationLog, read
from deploy.evaluation.recording import Recording
from orchestrator.errors import ConfigError, WorkerUnavailable
from orchestrator.loop.actions import Account, Classify, Generate
from orchestrator.loop.events import ActionCompleted
from orchestrator.types import (
    Classification,
    Cost,
    Generation,
    Message,
    Sampling,
    Segment,
    Step,
    StopCriteria,
    Transcript,
    Verification,
)
from policies.specreason import SpecReason
from tests.deploy.evaluation.recorded_runs import record

BEGIN = Transcript((Message("user", "2+2?"),))
MADE, _ = asyncio.run(record(SpecReason(threshold=7), scores=(9, 3)))
RECORDING = replace(MADE, request=replace(MADE.request, sampling=Sampling()))


def generated(tokens: tuple[int, ...], logprobs: tuple[float, ...], finish: Any = "until") -> Any:
    return Generation(Segment("small", "x" * len(tokens), tokens, logprobs, "t", finish))


def recorded(*answers: Any, temperature: float = 0.0) -> Recording:
    """A draft, and a judgement of it, answered so."""
    draft, *rest = answers
    events = [ActionCompleted(Generate("small", BEGIN, StopCriteria(9)), draft, 1.0)]
    for answer in rest:
        judged = Classify("large", BEGIN.extend(draft.segment), (), "", ("0", "1"), nll=True)
        events.append(ActionCompleted(judged, answer, 1.0))
    request = RECORDING.request
    return Recording(replace(request, sampling=Sampling(temperature)), tuple(events))


def test_equal_tokens_with_other_log_probabilities_are_alike() -> None:
    first = recorded(
        generated((1, 2), (-0.5, -0.25)), Classification(("0", "1"), (0.25, 0.75), nll=(1.0, 2.0))
    )
    second = recorded(
        generated((1, 2), (-0.5, -0.26)), Classification(("0", "1"), (0.26, 0.74), nll=(1.0, 2.5))
    )
    found = EngineDifferences()
    compare(first, second, found)
    assert (found.calls, found.alike, found.margins) == (2, 2, [])
    assert found.probability == pytest.approx(0.01)
    assert found.logprob == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("ours", "theirs", "margin"),
    [
        (generated((1, 2), (-0.5, -0.70)), generated((1, 3), (-0.5, -0.69)), 0.01),
        (generated((1, 2), (-0.5, -0.7)), generated((1,), (-0.5,), "doubt"), None),
        (Verification((1.0,), (4, 5), logprobs=(-0.1, -0.2)),
         Verification((1.0,), (4, 6), logprobs=(-0.1, -0.5)), 0.3),
    ],
)  # fmt: skip
def test_other_tokens_are_counted_with_their_margin(
    ours: Any, theirs: Any, margin: float | None
) -> None:
    found = EngineDifferences()
    found.add(ours, theirs)
    assert (found.calls, found.alike, len(found.margins)) == (1, 0, 1)
    if margin is None:
        assert found.margins[0] != found.margins[0]
    else:
        assert found.margins[0] == pytest.approx(margin)


def test_drawn_calls_and_failures_are_not_compared() -> None:
    found = EngineDifferences()
    ours, theirs = generated((1,), (-0.5,)), generated((2,), (-0.5,))
    compare(recorded(ours, temperature=1.0), recorded(theirs, temperature=1.0), found)
    lost = recorded(WorkerUnavailable("gone"))
    compare(lost, lost, found)
    compare(recorded(ours), lost, found)
    assert found.calls == 0


def test_causes_go_from_the_surest_to_the_rest() -> None:
    plain = recorded(generated((1,), (-0.5,)))
    timed = replace(plain, events=(*plain.events, ActionCompleted(Account(), Cost(), 0.0)))
    assert cause(plain, True) == "choice"
    assert cause(recorded(generated((1,), (-0.5,)), temperature=1.0), False) == "drawn"
    assert cause(timed, False) == "time"
    assert cause(plain, False) == "score"


def write(
    folder: Path,
    change: Callable[[EvaluatedAnswer], EvaluatedAnswer] = lambda answer: answer,
    *,
    recordings: bool = True,
    problems: int = 3,
) -> Path:
    settings = {"problems": "builtin:heldout", "speculation": "vanilla"}
    log = EvaluationLog(
        folder / "rows.jsonl", settings, [Candidate.parse("specreason")], recordings=recordings
    )
    asked = [Question(f"{number}?", "4") for number in range(problems)]
    log.resume(asked)
    for number, problem in enumerate(asked):
        steps = (Step("small", "2+2 is 4.", True, 5, 1.0),)
        answer = EvaluatedAnswer("4", steps=steps, recording=RECORDING)
        answer = change(answer) if number == 1 else answer
        log.add(number, problem, [EvaluationResult(answer.text == "4", 1.0, answer)])
    log.close()
    return folder


def cells(text: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if line.startswith("| `specreason` |")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_page_says_what_the_rows_say(tmp_path: Path) -> None:
    def other(answer: EvaluatedAnswer) -> EvaluatedAnswer:
        return replace(answer, text="5", steps=(Step("large", "2+2 is 5.", True, 5, 1.0),))

    first, second = write(tmp_path / "a"), write(tmp_path / "b", other)
    served = write(tmp_path / "c", other, recordings=False)
    text = page(tally(first, second, served), read(first / "rows.jsonl")[0], served=True)
    calls = cells(text)[4].split(" of ")
    assert cells(text)[1:4] == ["2 of 3", "2", "3 / 2"]
    assert calls[0] == calls[1] != "0"
    assert cells(text)[7] == "2 / 2"
    assert "- `specreason`, 1 of 3: a score on the other side" in text
    same = page(tally(first, first), read(first / "rows.jsonl")[0], served=False)
    assert cells(same)[1:3] == ["3 of 3", "3"]
    assert "Steps differ nowhere." in same
    assert "service" not in same


def test_what_cannot_be_compared_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, short = write(tmp_path / "a"), write(tmp_path / "b", problems=2)
    with pytest.raises(ConfigError, match="expected an answer of specreason to problem 2"):
        tally(whole, short)
    bare = write(tmp_path / "c", recordings=False)
    with pytest.raises(ConfigError, match="run without --recordings"):
        tally(whole, bare)
    assert main([str(tmp_path / "page.md"), str(whole)]) == 2
    assert main([str(tmp_path / "page.md"), str(whole), str(tmp_path / "none")]) == 1
    assert "none/rows.jsonl" in capsys.readouterr().err
    assert main([str(tmp_path / "page.md"), str(whole), str(whole)]) == 0
    assert "Two engines" in (tmp_path / "page.md").read_text()
