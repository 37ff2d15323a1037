"""An answer in the form of OpenAI's responses: `POST /v1/responses`.

The accepted thought is a reasoning item, whose summary it is; the answer is a message. In a stream
each is announced, comes in deltas and is completed, every event with its number.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import count, groupby
from typing import Any, Literal

from orchestrator.http.chat_format import AnswerFormat
from orchestrator.http.context import RequestContext
from orchestrator.http.rendering import RESPONSE, Json, Stripped, baton, dump, finish_reason, usage
from orchestrator.http.responses_schema import ResponsesRequest
from orchestrator.loop.accumulator import ResponseAccumulator
from orchestrator.loop.events import Event, TextDelta

Phase = Literal["thought", "answer"]


class ResponsesFormat(AnswerFormat):
    """A response, whole or as a stream of events."""

    def __init__(self, context: RequestContext, response: ResponseAccumulator) -> None:
        super().__init__(context, response)
        assert isinstance(context.body, ResponsesRequest)
        self._body = context.body
        self._numbers, self._strip = count(), Stripped()
        self._open: Phase | None = None  # what the item that is being streamed holds
        self._items = 0  # completed ones

    def whole(self) -> Json:
        return self._finished()

    def begin(self) -> bytes:
        begun = self._response("in_progress", [])
        return self._event("response.created", response=begun) + self._event(
            "response.in_progress", response=begun
        )

    def more(self, events: Sequence[Event]) -> bytes:
        return b"".join(self._events(events))

    def end(self) -> bytes:
        data = b"".join(self._close())
        if not self.response.answer:  # a message there is always
            data += b"".join((*self._begin_item("answer"), *self._close()))
        finished = self._finished()
        return data + self._event(f"response.{finished['status']}", response=finished)

    def failure(self, body: Json) -> bytes:
        error = body["error"]
        return self._event(
            "error",
            code=error["code"],
            message=error["message"],
            param=error["param"],
            error=error,
        )

    def _events(self, events: Sequence[Event]) -> Iterator[bytes]:
        texts = [event for event in events if isinstance(event, TextDelta)]
        for phase, group in groupby(texts, key=lambda text: text.phase):
            text = "".join(item.text for item in group)
            if phase == "answer":
                text = self._strip.feed(text)
            if not text:
                continue
            if self._open != phase:
                yield from self._close()
                yield from self._begin_item(phase)
            if phase == "thought":
                yield self._part_event("response.reasoning_summary_text.delta", phase, delta=text)
            else:
                yield self._part_event("response.output_text.delta", phase, delta=text, logprobs=[])

    def _begin_item(self, phase: Phase) -> Iterator[bytes]:
        self._open = phase
        yield self._event(
            "response.output_item.added",
            output_index=self._items,
            item=self._item(phase, None, "in_progress"),
        )
        yield self._part_event(f"response.{_PART[phase]}.added", phase, part=_part(phase, ""))

    def _close(self) -> Iterator[bytes]:
        """Complete the item that is being streamed, if one is."""
        phase, self._open = self._open, None
        if phase is None:
            return
        text = self.response.thought if phase == "thought" else self.response.answer
        if phase == "thought":
            yield self._part_event("response.reasoning_summary_text.done", phase, text=text)
        else:
            yield self._part_event("response.output_text.done", phase, text=text, logprobs=[])
        yield self._part_event(f"response.{_PART[phase]}.done", phase, part=_part(phase, text))
        item = self._item(phase, text, self._status(phase))
        yield self._event("response.output_item.done", output_index=self._items, item=item)
        self._items += 1

    def _part_event(self, kind: str, phase: Phase, **more: Any) -> bytes:
        index = "summary_index" if phase == "thought" else "content_index"
        return self._event(
            kind, item_id=self._item_id(phase), output_index=self._items, **{index: 0}, **more
        )

    def _event(self, kind: str, **more: Any) -> bytes:
        data = {"type": kind, "sequence_number": next(self._numbers), **more}
        return b"event: " + kind.encode() + b"\ndata: " + dump(data) + b"\n\n"

    def _finished(self) -> Json:
        response, output = self.response, []
        if response.thought:
            output.append(self._item("thought", response.thought, self._status("thought")))
        output.append(self._item("answer", response.answer, self._status("answer")))
        status = "incomplete" if finish_reason(response) == "length" else "completed"
        return {
            **self._response(status, output),
            "completed_at": int(time.time()) if status == "completed" else None,
            "usage": self._usage(),
            "baton": baton(self.context, response),
        }

    def _status(self, phase: Phase) -> str:
        """Of an item. A thought that an answer follows is complete with what was accepted of it,
        and an answer that ended by itself is, also where a cap had cut the thought."""
        if self.response.completed is None or finish_reason(self.response) != "length":
            return "completed"
        transcript = self.response.completed.transcript
        if phase == "thought":
            cut = transcript.forced and transcript.answer.is_blank
        else:
            cut = not transcript.answer or transcript.answer[-1].finish not in ("eos", "stop")
        return "incomplete" if cut else "completed"

    def _item(self, phase: Phase, text: str | None, status: str) -> Json:
        parts = [] if text is None else [_part(phase, text)]
        head = {"id": self._item_id(phase), "status": status}
        if phase == "thought":
            return {**head, "type": "reasoning", "summary": parts}
        return {**head, "type": "message", "role": "assistant", "content": parts}

    def _item_id(self, phase: Phase) -> str:
        return f"{'rs' if phase == 'thought' else 'msg'}_{self.context.trace_id}"

    def _response(self, status: str, output: list[Json]) -> Json:
        body, cut = self._body, status == "incomplete"
        return {
            "id": RESPONSE + self.context.trace_id,
            "object": "response",
            "created_at": self.context.created,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata,
            "model": body.model,
            "output": output,
            "parallel_tool_calls": False,
            "previous_response_id": None,
            "reasoning": {"effort": body.reasoning.effort, "summary": body.reasoning.summary},
            "store": False,
            "temperature": body.temperature,
            "text": {"format": {"type": "text"}},
            "tool_choice": "none",
            "tools": [],
            "top_p": body.top_p,
            "truncation": "disabled",
            "usage": None,
            "user": body.user,
        }

    def _usage(self) -> Json:
        counted = usage(self.response) or {}
        return {
            "input_tokens": counted["prompt_tokens"],
            "input_tokens_details": {**counted["prompt_tokens_details"], "cache_write_tokens": 0},
            "output_tokens": counted["completion_tokens"],
            "output_tokens_details": counted["completion_tokens_details"],
            "total_tokens": counted["total_tokens"],
        }


_PART: dict[Phase, str] = {"thought": "reasoning_summary_part", "answer": "content_part"}


def _part(phase: Phase, text: str) -> Json:
    if phase == "thought":
        return {"type": "summary_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
