"""An answer in the form of OpenAI's responses: `POST /v1/responses`.

The accepted thought is a reasoning item, whose summary it is; the answer is a message, and a call
of a tool an item of its own. In a stream each is announced, comes in deltas and is completed, every
event with its number. An answer that is not streamed is made of the same items.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from itertools import count, groupby
from typing import Any, Literal

from orchestrator.http.call_reader import AnswerReader, CallPiece, Piece
from orchestrator.http.chat_format import AnswerFormat
from orchestrator.http.context import RequestContext
from orchestrator.http.rendering import Json, Stripped, baton, dump, usage
from orchestrator.http.responses_schema import ResponsesRequest
from orchestrator.loop.accumulator import ResponseAccumulator
from orchestrator.loop.events import Event, TextDelta

Phase = Literal["thought", "answer"]
Kind = Literal["thought", "answer", "call"]
"""What an item holds."""


class ResponsesFormat(AnswerFormat):
    """A response, whole or as a stream of events."""

    def __init__(self, context: RequestContext, response: ResponseAccumulator) -> None:
        super().__init__(context, response)
        assert isinstance(context.body, ResponsesRequest)
        self._body = context.body
        self._numbers, self._strip = count(), Stripped()
        self._answer = AnswerReader(context, response)
        self._open: Kind | None = None  # what the item that is being written holds
        self._call: CallPiece | None = None  # how it began, where it is a call
        self._text = ""  # of that item, so far
        self._items: list[Json] = []  # completed ones

    def whole(self) -> Json:
        self._answer = AnswerReader(self.context, self.response, self.response.reply_start)
        for phase, text in (("thought", self.response.thought), ("answer", self.response.answer)):
            for _ in self._read(phase, text):  # type: ignore[arg-type]
                pass
        for _ in self._end():
            pass
        return self._finished()

    def begin(self) -> bytes:
        begun = self._response("in_progress", [])
        return self._event("response.created", response=begun) + self._event(
            "response.in_progress", response=begun
        )

    def more(self, events: Sequence[Event]) -> bytes:
        return b"".join(self._events(events))

    def finish(self) -> bytes:
        data = b"".join(self._end())
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
            yield from self._read(phase, "".join(item.text for item in group))

    def _read(self, phase: Phase, text: str) -> Iterator[bytes]:
        pieces = [text] if phase == "thought" else self._answer.feed(text)
        for piece in pieces:
            yield from self._piece(phase, piece)

    def _end(self) -> Iterator[bytes]:
        for piece in self._answer.end():
            yield from self._piece("answer", piece)
        yield from self._close(last=True)
        if not any(item["type"] != "reasoning" for item in self._items):
            yield from self._begin_item("answer")  # a message there is, where nothing is called
            yield from self._close(last=True)

    def _piece(self, phase: Phase, piece: Piece) -> Iterator[bytes]:
        if isinstance(piece, CallPiece):
            if piece.name is not None:
                yield from self._close()
                self._call = piece
                yield from self._begin_item("call")
            self._text += piece.arguments
            if piece.arguments:
                yield self._item_event(
                    "response.function_call_arguments.delta", delta=piece.arguments
                )
            return
        text = piece if phase == "thought" else self._strip.feed(piece)
        if not text:
            return
        if self._open != phase:
            yield from self._close()
            yield from self._begin_item(phase)
        self._text += text
        if phase == "thought":
            yield self._part_event("response.reasoning_summary_text.delta", phase, delta=text)
        else:
            yield self._part_event("response.output_text.delta", phase, delta=text, logprobs=[])

    def _begin_item(self, kind: Kind) -> Iterator[bytes]:
        self._open, self._text = kind, ""
        yield self._event(
            "response.output_item.added",
            output_index=len(self._items),
            item=self._item(kind, None, "in_progress"),
        )
        if kind != "call":
            yield self._part_event(f"response.{_PART[kind]}.added", kind, part=_part(kind, ""))

    def _close(self, *, last: bool = False) -> Iterator[bytes]:
        """Complete the item that is being written, if one is; the `last` may have been cut."""
        kind, text = self._open, self._text
        if kind is None:
            return
        if kind == "thought":
            yield self._part_event("response.reasoning_summary_text.done", kind, text=text)
        elif kind == "answer":
            yield self._part_event("response.output_text.done", kind, text=text, logprobs=[])
        else:
            assert self._call is not None
            yield self._item_event(
                "response.function_call_arguments.done", name=self._call.name, arguments=text
            )
        if kind != "call":
            yield self._part_event(f"response.{_PART[kind]}.done", kind, part=_part(kind, text))
        cut = last and self._is_cut(kind)
        item = self._item(kind, text, "incomplete" if cut else "completed")
        yield self._event("response.output_item.done", output_index=len(self._items), item=item)
        self._items.append(item)
        self._open = None

    def _part_event(self, kind: str, phase: Phase, **more: Any) -> bytes:
        index = "summary_index" if phase == "thought" else "content_index"
        return self._item_event(kind, **{index: 0}, **more)

    def _item_event(self, kind: str, **more: Any) -> bytes:
        assert self._open is not None
        return self._event(
            kind, item_id=self._item_id(self._open), output_index=len(self._items), **more
        )

    def _event(self, kind: str, **more: Any) -> bytes:
        data = {"type": kind, "sequence_number": next(self._numbers), **more}
        return b"event: " + kind.encode() + b"\ndata: " + dump(data) + b"\n\n"

    def _finished(self) -> Json:
        status = "incomplete" if self.response.finish_reason == "length" else "completed"
        return {
            **self._response(status, self._items),
            "completed_at": int(time.time()) if status == "completed" else None,
            "usage": self._usage(),
            "baton": baton(self.context, self.response),
        }

    def _is_cut(self, kind: Kind) -> bool:
        """Whether a cap cut the last item. A thought that an answer follows is complete with what
        was accepted of it, an answer that ended by itself is, also where a cap had cut the thought,
        and so is a call that has all its arguments."""
        if self.response.completed is None or self.response.finish_reason != "length":
            return False
        transcript = self.response.completed.transcript
        if kind == "thought":
            return transcript.forced and transcript.answer.is_blank
        if kind == "call" and _is_json(self._text):
            return False
        return not transcript.answer or transcript.answer[-1].finish not in ("eos", "stop")

    def _item(self, kind: Kind, text: str | None, status: str) -> Json:
        head = {"id": self._item_id(kind), "status": status}
        if kind == "call":
            assert self._call is not None
            named = {"call_id": self._call.id, "name": self._call.name, "arguments": text or ""}
            return {**head, "type": "function_call", **named}
        parts = [] if text is None else [_part(kind, text)]
        if kind == "thought":
            return {**head, "type": "reasoning", "summary": parts}
        return {**head, "type": "message", "role": "assistant", "content": parts}

    def _item_id(self, kind: Kind) -> str:
        if kind == "call":
            assert self._call is not None
            return "fc_" + self._call.id.removeprefix("call_")
        name = f"{'rs' if kind == 'thought' else 'msg'}_{self.context.trace_id}"
        more = sum(item["id"].startswith(name) for item in self._items)
        return f"{name}_{more}" if more else name

    def _response(self, status: str, output: list[Json]) -> Json:
        body, cut = self._body, status == "incomplete"
        return {
            "id": self.context.answer_id,
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
            "parallel_tool_calls": body.parallel_tool_calls,
            "previous_response_id": None,
            "reasoning": {"effort": body.reasoning.effort, "summary": body.reasoning.summary},
            "store": False,
            "temperature": self.context.sampling.temperature,
            "text": body.text.model_dump(by_alias=True, exclude_none=True),
            "tool_choice": body.tool_choice_as_given,
            "tools": [tool.model_dump() for tool in body.tools],
            "top_p": self.context.sampling.top_p,
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


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


_PART: dict[Phase, str] = {"thought": "reasoning_summary_part", "answer": "content_part"}


def _part(phase: Phase, text: str) -> Json:
    if phase == "thought":
        return {"type": "summary_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
