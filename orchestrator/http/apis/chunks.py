"""What chat and text completions share: OpenAI's objects with `choices`, whole or as chunks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from orchestrator.http.api import sse
from orchestrator.http.apis.parameters import TextRequest
from orchestrator.http.ask import Choice, Encoder
from orchestrator.http.body import Json
from orchestrator.http.rendering import baton, total_usage, usage, usage_of
from orchestrator.loop.accumulator import ResponseAccumulator

DONE: Final = b"data: [DONE]\n\n"
"""The end of a stream."""


class ChunkEncoder(Encoder):
    """Encodes an answer as one of an object's `choices`; `kind` and `chunk_kind` are OpenAI's names
    of the whole object and of a chunk."""

    kind: ClassVar[str]
    chunk_kind: ClassVar[str]

    def __init__(self, body: TextRequest, choice: Choice, response: ResponseAccumulator) -> None:
        super().__init__(choice, response)
        self._request = body

    def completion(self, choice: Json) -> Json:
        return {
            **self._object(self.kind, [choice]),
            "usage": usage(self.response),
            "baton": baton(self.choice, self.response),
        }

    def chunk(self, choice: Json, so_far: Json | None = None) -> Json:
        """Return a chunk with this choice; `so_far` is the usage, for clients that want it in every
        chunk."""
        made = self._object(self.chunk_kind, [choice])
        if not self._request.wants_usage:
            return made
        return {**made, "usage": so_far if self._request.wants_running_usage else None}

    def last_chunk(self, choice: Json) -> bytes:
        last = self.chunk(choice, usage(self.response))
        return sse({**last, "baton": baton(self.choice, self.response)})

    def end(self, responses: Sequence[ResponseAccumulator]) -> bytes:
        if not self._request.wants_usage:
            return DONE
        total = total_usage(map(usage, responses), self.choice.ask.answers_each)
        return sse({**self._object(self.chunk_kind, []), "usage": total}) + DONE

    @property
    def running_usage(self) -> Json:
        """The usage so far: the tokens of the text that was sent."""
        thought, answer = self.response.shown["thought"], self.response.shown["answer"]
        return usage_of(self.response, thought + answer, thought)

    def _object(self, kind: str, choices: list[Json]) -> Json:
        return {
            "id": self.choice.answer_id,
            "object": kind,
            "created": self.choice.incoming.created,
            "model": self.choice.ask.policy.model,
            "choices": choices,
        }
