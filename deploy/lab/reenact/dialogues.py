"""The recorded dialogues that ship, and their answers by the call they answer."""

from __future__ import annotations

import lzma
import re
from collections import deque
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeAlias

from deploy.evaluation.candidates import build_policy
from deploy.evaluation.recording import Recording, loads
from orchestrator.errors import BatonError
from orchestrator.loop.actions import Classify, Verify, WorkerName
from orchestrator.loop.budget import Budget
from orchestrator.loop.policy import Policy
from orchestrator.loop.request import Request
from orchestrator.types import LabelQuery, Segment, StopCriteria, Transcript

SHIPPED: Final = Path(__file__).parent / "dialogues.jsonl.xz"
About: TypeAlias = StopCriteria | LabelQuery | Segment
"""What a call asks: to generate, to classify, or to verify a segment."""


class CallMissing(BatonError):
    """The loop made a call that the recording has no answer to."""


@dataclass(frozen=True)
class Dialogue:
    """A recorded request under a policy; `question` is the same under each."""

    policy: str
    question: Any
    recording: Recording

    def request(self) -> Request:
        asked = self.recording.request
        return Request(asked.request_id, asked.messages, asked.sampling, asked.limits)

    def build_policy(self) -> Policy:
        return build_policy(self.recording.request.policy, self.recording.request.parameters)


@dataclass
class Answers:
    """The answers of a recorded request, each of which is given once."""

    recording: Recording
    _known: dict[Any, deque[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        asked = self.recording.request
        budget = Budget(build_policy(asked.policy, asked.parameters), asked.limits)
        for called in self.recording.calls():
            action: Any = called.action
            about: About
            if isinstance(action, Classify):
                about = action.query
            elif isinstance(action, Verify):
                about = action.segment
            else:
                about = budget.clip(action.transcript, action.criteria)
            key = _key(action.worker, action.transcript, about)
            self._known.setdefault(key, deque()).append(called.answer)

    @property
    def prompt_tokens(self) -> int:
        """How many tokens the question has, with its template."""
        first: Any = next(iter(self.recording.calls()))
        return int(first.answer.usage.prompt)

    def take(self, worker: WorkerName, transcript: Transcript, about: About) -> Any:
        """The answer to a call.

        Raises:
            CallMissing: the recording has none, or none any more.
        """
        known = self._known.get(_key(worker, transcript, about))
        if not known:
            raise CallMissing(
                f"{self.recording.request.request_id}: {self.recording.request.policy} made a call "
                f"that is not on record: {worker}, after {transcript.text[-60:]!r}, {about}"
            )
        answer = known.popleft()
        if isinstance(answer, BaseException):
            raise answer
        return answer


def token_ids(transcript: Transcript) -> tuple[int, ...]:
    """The ids of the phase that is being written."""
    return tuple(token for segment in transcript.phase for token in segment.tokens)


def _key(worker: WorkerName, transcript: Transcript, about: About) -> Any:
    """A generation is the same under every cap that leaves it room."""
    if isinstance(about, StopCriteria):
        about = replace(about, max_tokens=min(about.max_tokens, 1))
    return worker, transcript, about


@cache
def shipped() -> tuple[Dialogue, ...]:
    """48 questions under five policies, as the pretrained pair answered them."""
    text = lzma.decompress(SHIPPED.read_bytes()).decode()
    each = map(loads, re.split(r"\n(?={\"baton\")", text))
    return tuple(Dialogue(one.request.policy, one.request.request_id, one) for one in each)
