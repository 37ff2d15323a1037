"""`stream_options.include_events`: what a stream tells beside the accepted text."""

from __future__ import annotations

import json
from typing import Any

from tests.orchestrator.serving import (
    HTTP,
    STORY,
    Speculating,
    post,
    scripted,
    service,
    serving,
    until,
)

EVENTS = {"stream": True, "stream_options": {"include_events": True}}


def chunks(url: str, **body: Any) -> list[dict[str, Any]]:
    lines = post(url, {**EVENTS, **body}).text.split("\n\n")
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    assert data[-1] == "[DONE]"
    return [json.loads(line) for line in data[:-1]]


def test_events_tell_each_call_text_and_step_once_and_in_order() -> None:
    with serving(service(scripted(), scripted(scores=[9, 2]))) as url:
        got = chunks(url)
    first = got[0]["baton"]
    assert first["policy"] == "specreason"
    assert first["parameters"]["threshold"] == 7.0
    told = [event for chunk in got if not chunk["choices"] for event in chunk["baton"]["events"]]
    steps = [event for event in told if event["type"] == "step"]
    final = got[-1]["baton"]
    assert [(step["author"], step["accepted"]) for step in steps][:3] == [
        ("small", True),
        ("small", False),
        ("large", True),
    ]
    same = ("author", "text", "accepted", "score")
    shown = [*final["steps"], *final["answer_steps"]]
    assert [[s[k] for k in same] for s in steps] == [[s[k] for k in same] for s in shown]
    calls = [event for event in told if event["type"] == "call"]
    assert [calls[index]["kind"] for index in steps[0]["calls"]] == ["draft", "judge"]
    assert calls[steps[1]["calls"][1]]["probabilities"][2] == 1.0
    for index, event in enumerate(told):  # a step never names a call that comes later
        if event["type"] == "step":
            earlier = sum(one["type"] == "call" for one in told[:index])
            assert all(number < earlier for number in event["calls"])
    thought = "".join(e["text"] for e in told if e["type"] == "text" and e["phase"] == "thought")
    assert thought == STORY[0]


def test_where_tokens_came_from_is_told_in_events_and_traces_and_counted_in_answers() -> None:
    large = Speculating(story=STORY, scores=[2])
    with serving(service(scripted(), large)) as url:
        got = chunks(url)
        final = got[-1]["baton"]
        kept = f"{url}/v1/traces/{final['trace_id']}"
        until(lambda: HTTP.get(kept).status_code == 200)
        trace = HTTP.get(kept).json()
    told = [event for chunk in got if not chunk["choices"] for event in chunk["baton"]["events"]]
    steps = [event for event in told if event["type"] == "step"]
    known = [step for step in trace["steps"] if "provenance" in step]
    assert {step["author"] for step in known} == {"large"}  # the small one drafts no tokens
    assert [s["provenance"] for s in known] == [s["provenance"] for s in steps if "provenance" in s]
    assert known[0]["text"] == "First, 2+2 is 4.\n\n"
    assert known[0]["provenance"] == {
        "origins": "aara",
        "lengths": [7, 4, 3, 4],
        "rejected": [[2, ["draft "]]],
        "drafted_at": [2, 2, 1],
        "accepted_at": [2, 2, 0],
    }
    # An answer counts: the thought's steps and the answer, in as many rounds.
    rounds = sum(step["provenance"]["drafted_at"][0] for step in known)
    assert final["acceptance"] == trace["acceptance"]
    assert final["acceptance"]["large"]["drafted_at"][:2] == [rounds, rounds]
    assert final["acceptance"].keys() == {"large"}
    assert not any("provenance" in step for step in final["steps"])
