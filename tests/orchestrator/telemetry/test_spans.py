"""A request as spans: who is whose child, what they say, and what they never say."""

from __future__ import annotations

from contextlib import aclosing, suppress
from itertools import count
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from orchestrator.errors import Overloaded, WorkerUnavailable
from orchestrator.loop.accumulator import ResponseAccumulator
from orchestrator.loop.actions import Verify
from orchestrator.loop.events import TextDelta
from orchestrator.loop.request import Request
from orchestrator.loop.solve import solve
from orchestrator.telemetry.spans import Spans
from orchestrator.types import Message, Segment, Transcript, Verification
from policies.specreason import SpecReason
from tests.orchestrator.serving import client, service, serving
from tests.workers.scripted import Scripted

STORY = ("a b\n\nc d", "four")
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
REQUEST = "chat specreason"
ATTRIBUTES = {
    "baton.trace_id": "t",
    "baton.policy": "specreason",
    "gen_ai.operation.name": "chat",
    "gen_ai.request.model": "specreason",
}
CALLER = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "theirs=1"}


class Memory:
    """Spans of this test, as they ended."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.spans = Spans(provider.get_tracer("test"))

    @property
    def ended(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())

    def tree(self) -> Any:
        """Names as (name, [children]), in the order in which they began."""
        below: dict[int | None, list[ReadableSpan]] = {}
        for span in sorted(self.ended, key=lambda span: span.start_time or 0):
            below.setdefault(span.parent.span_id if span.parent else None, []).append(span)

        def subtree(span: ReadableSpan) -> Any:
            children = [subtree(child) for child in below.get(span.context.span_id, [])]
            return (span.name, *children) if children else span.name

        return subtree(self.request())

    def request(self) -> ReadableSpan:
        (root,) = [span for span in self.ended if span.name == REQUEST]
        return root

    def named(self, name: str) -> list[dict[str, Any]]:
        return [dict(span.attributes or {}) for span in self.ended if span.name == name]


def events(response: ResponseAccumulator, **small: Any) -> Any:
    workers: Any = {
        "small": Scripted(story=STORY, **small),
        "large": Scripted(story=STORY, scores=(9, 2)),
    }
    return solve(SpecReason(), Request("r", (Message("user", "2+2?"),)), workers, response)


async def run(memory: Memory, caller: dict[str, str] | None = None, **small: Any) -> ReadableSpan:
    """The span of one request; its steps and calls are in the memory."""
    response = ResponseAccumulator()
    with memory.spans.request(caller or {}, ATTRIBUTES, response):
        async for _ in events(response, **small):
            pass
    return memory.request()


async def test_a_request_its_steps_and_their_calls() -> None:
    memory = Memory()
    attributes = dict((await run(memory)).attributes or {})
    assert memory.tree() == (
        REQUEST,
        "generate",  # both models read the prompt
        "generate",
        ("step", "generate", "classify"),  # accepted
        ("step", "generate", "classify"),  # rejected
        ("step", "generate"),  # and rewritten
        ("step", "generate"),  # the answer
    )
    steps = memory.named("step")
    keys = ("baton.author", "baton.accepted", "baton.score", "baton.phase")
    assert [tuple(step.get(key) for key in keys) for step in steps] == [
        ("small", True, 9.0, "thought"),
        ("small", False, 2.0, "thought"),
        ("large", True, None, "thought"),
        ("large", True, None, "answer"),
    ]
    assert {call["baton.worker"] for call in memory.named("classify")} == {"large"}
    expected = {
        "baton.policy": "specreason",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.input_tokens": 1,
        "gen_ai.usage.output_tokens": 7,
        "gen_ai.usage.reasoning.output_tokens": 4,
        "baton.outcome": "stop",
        "baton.small_tokens": 4,
        "baton.discarded_tokens": 2,
    }
    assert attributes.items() >= expected.items()
    calls = [*memory.named("generate"), *memory.named("classify"), *steps]
    assert not any(name.startswith("gen_ai.usage") for call in calls for name in call)


async def test_times_lie_inside_each_other() -> None:
    memory = Memory()
    await run(memory)
    spans = {span.context.span_id: span for span in memory.ended}
    slack = 1_000_000  # a nanosecond clock and a millisecond one meet here
    for span in spans.values():
        assert span.start_time <= span.end_time  # type: ignore[operator]
        if span.parent is not None:
            outer = spans[span.parent.span_id]
            assert outer.start_time - slack <= span.start_time  # type: ignore[operator]
            assert span.end_time <= outer.end_time + slack  # type: ignore[operator]


async def test_a_clock_that_is_moved_moves_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    day, now = 86_400 * 10**9, count(10**18, -86_400 * 10**9)
    monkeypatch.setattr("orchestrator.telemetry.spans.time_ns", lambda: next(now))
    memory = Memory()
    await run(memory)
    calls = [span for span in memory.ended if span.name != REQUEST]
    began = [span.start_time or 0 for span in calls]
    assert len(calls) > 4
    assert max(began) - min(began) < day // 2
    assert all(0 <= (span.end_time or 0) - (span.start_time or 0) < day // 2 for span in calls)


async def test_a_pass_that_the_answers_form_asks_for_belongs_to_the_request() -> None:
    memory, response = Memory(), ResponseAccumulator()
    with memory.spans.request({}, ATTRIBUTES, response):
        async for _ in events(response):
            pass
        asked = Verify("large", Transcript(()), Segment("large", "four"))
        response.add_scoring(asked, Verification((0.1,), (1,)), 0.0)
    assert memory.tree()[-1] == "verify"


async def test_the_clients_trace_goes_on() -> None:
    memory = Memory()
    request = await run(memory, CALLER)
    assert {format(span.context.trace_id, "032x") for span in memory.ended} == {TRACE}
    assert request.parent is not None
    assert format(request.parent.span_id, "016x") == PARENT
    assert request.context.trace_state["theirs"] == "1"


@pytest.mark.parametrize("header", ["", "00-x-y-01", f"00-{'0' * 32}-{PARENT}-01", "ü" * 60])
async def test_a_traceparent_that_is_none_begins_a_trace(header: str) -> None:
    assert (await run(Memory(), {"traceparent": header})).parent is None


async def test_what_goes_wrong_is_marked() -> None:
    memory = Memory()
    with pytest.raises(Overloaded):
        await run(memory, down=Overloaded("full of xyzzy"))
    request = memory.request()
    assert request.status.status_code is StatusCode.ERROR
    expected = {"baton.outcome": "overloaded", "error.type": "Overloaded"}
    assert (request.attributes or {}).items() >= expected.items()
    assert all("xyzzy" not in span.to_json() for span in memory.ended)


async def test_a_call_that_fails_says_how() -> None:
    memory = Memory()
    await run(memory, failures={0: WorkerUnavailable("xyzzy")})
    failed = [span for span in memory.ended if span.status.status_code is StatusCode.ERROR]
    assert [(span.name, (span.attributes or {})["error.type"]) for span in failed] == [
        ("generate", "WorkerUnavailable")
    ]
    assert all("error.type" not in step for step in memory.named("step"))


async def test_a_client_that_leaves_ends_all_spans() -> None:
    memory = Memory()
    response = ResponseAccumulator()
    with suppress(GeneratorExit), memory.spans.request({}, ATTRIBUTES, response):
        async with aclosing(events(response)) as items:
            async for item in items:
                if isinstance(item, TextDelta):
                    raise GeneratorExit  # as whoever drives the events is closed
    assert (memory.request().attributes or {})["baton.outcome"] == "cancelled"


def test_over_http_with_the_clients_headers_and_without_any_text() -> None:
    memory = Memory()
    with serving(service(spans=memory.spans)) as url, client(url) as api:
        question: Any = [{"role": "user", "content": "xyzzy?"}]
        answers = [
            api.chat.completions.create(
                model="specreason",
                messages=question,
                extra_headers=CALLER,
                reasoning_effort="low",
            ),
            api.completions.create(model="large-only", prompt="xyzzy?", n=2),
            api.responses.create(model="large-only", input="xyzzy?"),
        ]
    shown = [dict(span.attributes or {}).get("gen_ai.response.id") for span in memory.ended]
    assert [shown.count(answer.id) for answer in answers] == [1, 2, 1]
    request = memory.request()
    assert format(request.context.trace_id, "032x") == TRACE
    expected = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "specreason",
        "gen_ai.response.model": "specreason",
        "gen_ai.request.reasoning.level": "low",
        "gen_ai.request.stream": False,
    }
    assert (request.attributes or {}).items() >= expected.items()
    text = "".join(span.to_json() for span in memory.ended)
    assert all(word not in text for word in ("xyzzy", "2+2", "answer is", "none"))
