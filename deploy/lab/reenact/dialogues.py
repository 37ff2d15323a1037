"""The recorded dialogues that ship, and their answers by the call they answer."""

from __future__ import annotations

import json
import lzma
from collections import deque
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from deploy.evaluation.calls import Refusal
from deploy.evaluation.candidates import build_policy
from deploy.evaluation.recording import CallMissing, Recording, parse
from orchestrator.errors import ConfigError
from orchestrator.loop.actions import WorkerName
from orchestrator.loop.policy import Policy
from orchestrator.loop.request import Request
from orchestrator.types import Transcript
from orchestrator.worker import Delta

SHIPPED: Final = Path(__file__).parent / "dialogues.jsonl.xz"


@dataclass(frozen=True)
class Dialogue:
    """A recorded request under a policy; `question` is the same under each."""

    recording: Recording

    @property
    def policy(self) -> str:
        return self.recording.policy

    @property
    def question(self) -> str:
        return str(self.recording.about["id"])

    def request(self) -> Request:
        asked = self.recording
        return Request(self.question, asked.messages, asked.sampling, asked.limits)

    def build_policy(self) -> Policy:
        return build_policy(self.policy, self.recording.parameters)


class Answers:
    """The answers of a recorded request, each of which is given once."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._known: dict[tuple[str, str | None], deque[Any]] = {}
        for one in recording.calls:
            self._known.setdefault((one.worker, one.key), deque()).append(one.answer)

    @property
    def prompt_tokens(self) -> int:
        """How many tokens the question has, with its template."""
        first: Any = self._recording.calls[0].answer
        return int(first.usage.prompt)

    def take(self, worker: WorkerName, key: str | None, transcript: Transcript) -> Any:
        """The answer to a call by its key (`deploy.evaluation.calls`), after a transcript.

        Raises:
            CallMissing: the recording has none, or none any more.
        """
        known = self._known.get((worker, key))
        if not known:
            raise CallMissing(
                f"{self._recording.about['id']}: {self._recording.policy} made a call that is not "
                f"on record: {worker}, after {transcript.text[-60:]!r}"
            )
        return known.popleft()


def token_ids(transcript: Transcript) -> tuple[int, ...]:
    """The ids of the phase that is being written."""
    return tuple(token for segment in transcript.phase for token in segment.tokens)


@cache
def shipped() -> tuple[Dialogue, ...]:
    """48 questions under five policies, as the pretrained pair answered them.

    Raises:
        ConfigError: one has an answer that is not whole.
    """
    lines = map(json.loads, lzma.decompress(SHIPPED.read_bytes()).decode().splitlines())
    each: list[list[Any]] = []
    for line in lines:
        if isinstance(line, dict):
            each.append([])
        each[-1].append(line)
    found = [parse(SHIPPED, head, rows) for head, *rows in each]
    for one in found:
        if any(isinstance(call.answer, Delta | Refusal) for call in one.calls):
            raise ConfigError(
                f"{SHIPPED}: {one.about['id']} under {one.policy} has a text that was broken off, "
                "or a refusal, and only whole answers can be played; leave it out"
            )
    return tuple(map(Dialogue, found))
