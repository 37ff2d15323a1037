"""Recordings: the exact round trip, and the names of version 1 of the format."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from deploy.evaluation import recording
from deploy.evaluation.recording import (
    RecordedRequest,
    Recording,
    RecordingError,
    dumps,
    load,
    loads,
)
from orchestrator.errors import ConfigError, UnknownPolicy, WorkerUnavailable
from orchestrator.loop.actions import Verify
from orchestrator.loop.events import ActionCompleted
from orchestrator.loop.policy import Policy
from orchestrator.loop.request import Request
from orchestrator.loop.solve import solve
from orchestrator.types import Limits, Segment, Transcript, Verification
from policies.specreason import SpecReason
from tests.deploy.evaluation.recorded_runs import QUESTION, RUNS, record
from tests.workers.scripted import Scripted

pytestmark = pytest.mark.asyncio
FILES = Path(__file__).parent / "recordings"
"""Written by the version of Baton that began the format, or that added to it. They never change."""


@pytest.mark.parametrize(("policy", "run"), RUNS)
async def test_the_round_trip_is_exact(policy: Policy, run: dict[str, Any]) -> None:
    recording, _ = await record(policy, **run)
    text = dumps(recording)
    again = loads(text)
    assert again.request == recording.request
    assert again.events == recording.events
    assert dumps(again) == text
    assert all(json.loads(line) for line in text.split("\n")[:-1])
    assert text.isascii()


@pytest.mark.parametrize(
    "error", [WorkerUnavailable("gone"), UnknownPolicy("no", param="model", code="x")]
)
async def test_errors_keep_their_fields(error: Any) -> None:
    action = Verify("large", Transcript(QUESTION), Segment("small", "a", (1,), (-0.1,), "words"))
    events = (
        ActionCompleted(action, error, 1.5),
        ActionCompleted(action, Verification((0.1,), (1, 2)), 0.1),
    )
    back = loads(dumps(Recording(RecordedRequest("r", "p", QUESTION), events)))
    first = back.events[0]
    assert isinstance(first, ActionCompleted)
    assert (type(first.answer), vars(first.answer)) == (type(error), vars(error))
    assert str(first.answer) == str(error)
    assert first.action == action
    assert back.events[1] == events[1]


async def test_a_recording_grows_with_the_text_not_its_square() -> None:
    sizes = []
    for steps in (50, 200):
        thought = "\n\n".join(f"step {n} says something new" for n in range(steps))
        workers = {name: Scripted(story=(thought, "done")) for name in ("small", "large")}
        events = solve(SpecReason(), Request("r", QUESTION), workers)  # type: ignore[arg-type]
        asked = RecordedRequest("r", "specreason", QUESTION)
        sizes.append(len(dumps(Recording(asked, tuple([event async for event in events])))))
    assert sizes[1] < 5 * sizes[0]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "empty"),
        ("{}", "line 1"),
        ('{"baton": 99}', "version 1"),
        ("not json", "line 1"),
        (
            '{"baton":1,"request":"r","policy":"p","messages":[]}\n{"$":"Start"}',
            "line 2: cannot be read: this version has no 'Start'",
        ),
        ('{"baton":1,"request":"r","policy":"p","messages":[]}\n{"$":7}', "line 2"),
        ('{"baton":1,"request":"r","policy":"p","messages":[]}\n[]', "line 2"),
    ],
)
async def test_what_is_no_recording_is_refused_by_line(text: str, named: str) -> None:
    with pytest.raises(RecordingError, match=named):
        loads(text)


@pytest.mark.parametrize("name", ["specreason", "every_kind", "tools", "spending", "advice"])
async def test_files_of_the_first_version_are_read_and_written_with_their_names(name: str) -> None:
    text = (FILES / f"{name}.jsonl").read_text()
    assert dumps(loads(text)) == text.replace('"budget":12,', "")


async def test_fields_that_no_longer_exist_are_read_and_ignored() -> None:
    text = (FILES / "every_kind.jsonl").read_text()
    assert '"budget":12,' in text
    limits = loads(text).request.limits
    assert limits == Limits(max_tokens=99, deadline_s=60.0, stop=("END",))
    drawn = text.replace('"$":"Generate",', '"$":"Generate","temperature":0.7,')
    assert drawn != text
    assert dumps(loads(drawn)) == dumps(loads(text))
    with pytest.raises(RecordingError, match="line 1"):
        loads(text.replace('"budget"', '"unknown"'))


async def test_every_name_of_the_format_stands_in_the_file_that_holds_them_all() -> None:
    text = "".join(file.read_text() for file in FILES.glob("*.jsonl"))
    kinds = set(re.findall(r'"\$":"(\w+)"', text)) | {"Asked"}  # the first line names no kind
    assert kinds == set(recording._KINDS)
    assert set(re.findall(r'"(trace|span|surprise|request)":', text)) == set(recording._FIELDS)


async def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    with pytest.raises(ConfigError, match=r"a\.jsonl: No such file"):
        load(file)
    file.write_text("[]")
    with pytest.raises(ConfigError, match=r"a\.jsonl: line 1: "):
        load(file)
