"""What travels of a transcript, and what a replica makes of it."""

from __future__ import annotations

import asyncio
import pickle
import random
import tracemalloc
from dataclasses import fields, replace
from hashlib import blake2b
from typing import Any

import pytest

from orchestrator.errors import InvalidRequest
from orchestrator.types import LabelQuery, Message, Segment, Segments, ToolCall, Transcript
from orchestrator.worker import Call, Delta
from tests.workers.replica.handles import CRITERIA, GREEDY, Handle, pool, story
from workers.replica import prefixes
from workers.replica.prefixes import (
    CallSuffix,
    PrefixMissing,
    PrefixReceiver,
    PrefixSender,
    digest,
)
from workers.replica.server import ReplicaServer

QUESTION = Transcript((Message("system", "Be brief."), Message("user", "How many?")))
DIGITS = LabelQuery((), "", ("9",))


def said(number: int) -> Segment:
    return Segment("small", f"step {number}\n\n", (number, 7), (-0.1, -0.2), "words")


def bare(transcript: Transcript) -> Transcript:
    """Without log-probabilities, and with nothing shared."""
    return replace(
        transcript,
        thought=Segments(replace(one, logprobs=()) for one in transcript.thought),
        answer=Segments(replace(one, logprobs=()) for one in transcript.answer),
    )


def thought(size: int) -> Transcript:
    transcript = QUESTION
    for number in range(size):
        transcript = transcript.extend(said(number))
    return transcript


def travelled(sent: Call | CallSuffix) -> Any:
    return pickle.loads(pickle.dumps(sent))


def delivered(sender: PrefixSender, receiver: PrefixReceiver, call: Call) -> Call | CallSuffix:
    """What of a call a replica took; it has the whole of it then."""
    for sent in sender.forms(call):
        if (whole := receiver.restore(travelled(sent))) is not None:
            receiver.keep(whole)
            assert whole == replace(call, transcript=bare(call.transcript))
            sender.delivered(call)
            return sent
    raise AssertionError("a whole call was not taken")


def test_only_what_is_new_travels() -> None:
    sender, receiver = PrefixSender(), PrefixReceiver()
    assert isinstance(delivered(sender, receiver, Call("r", QUESTION)), Call)
    assert isinstance(delivered(sender, receiver, Call("r", thought(3))), Call)
    transcript = thought(3)
    delivered(sender, receiver, Call("r", transcript))
    longer = transcript.extend(said(3)).extend(said(4))
    sent = delivered(sender, receiver, Call("r", longer))
    assert isinstance(sent, CallSuffix)
    assert sent.call.transcript.messages == ()
    assert sent.call.transcript.thought == bare(thought(5)).thought[3:]
    answered = replace(longer, closed=True).extend(said(9))
    sent = delivered(sender, receiver, Call("r", answered))
    assert isinstance(sent, CallSuffix)
    assert (len(sent.call.transcript.thought), len(sent.call.transcript.answer)) == (0, 1)


@pytest.mark.parametrize("seed", range(8))
def test_transcripts_that_branch_arrive_as_they_are(seed: int) -> None:
    chance = random.Random(seed)
    sender, receivers = PrefixSender(), [PrefixReceiver(), PrefixReceiver()]
    known = [QUESTION]
    for number in range(60):
        before = chance.choice(known[-4:])
        if chance.random() < 0.1:
            before = replace(before, closed=True, forced=chance.random() < 0.5)
        transcript = before.extend(said(number))
        known.append(transcript)
        if chance.random() < 0.7:  # to either replica, as the router likes
            delivered(sender, chance.choice(receivers), Call("r", transcript))


def test_a_replica_that_has_something_else_says_so() -> None:
    sender, transcript = PrefixSender(), thought(3)
    delivered(sender, PrefixReceiver(), Call("r", transcript))
    suffix, whole = map(travelled, sender.forms(Call("r", transcript.extend(said(3)))))
    others = [
        thought(2),
        thought(2).extend(said(8)),
        thought(2).extend(replace(said(2), tokens=(2, 8))),
        thought(2).extend(replace(said(2), finish="length")),
        replace(thought(3), messages=QUESTION.messages[1:]),
        QUESTION.without_thought().extend(said(0)).extend(said(1)).extend(said(2)),
    ]
    for other in others:
        receiver = PrefixReceiver()
        assert receiver.restore(suffix) is None
        receiver.keep(Call("r", bare(other)))
        receiver.keep(Call("another", bare(transcript)))
        assert receiver.restore(suffix) is None
        assert receiver.restore(whole) == whole
    receiver.keep(Call("r", bare(thought(5))))
    assert receiver.restore(suffix) is not None  # more than it needs


def test_nobody_can_tell_what_another_request_said(monkeypatch: pytest.MonkeyPatch) -> None:
    made = 0

    def counted(*args: Any, **more: Any) -> Any:
        nonlocal made
        made += 1
        return blake2b(*args, **more)

    def effort(request: str) -> int:
        before = made
        assert digest(request, QUESTION) == expected
        return made - before

    monkeypatch.setattr(prefixes, "blake2b", counted)
    expected = digest("mine", QUESTION)
    assert effort("mine") < effort("another's")


def test_a_call_that_comes_late_takes_nothing_away() -> None:
    sender, receiver, transcript = PrefixSender(), PrefixReceiver(), thought(5)
    delivered(sender, receiver, Call("r", transcript))
    receiver.keep(travelled(sender.whole(Call("r", thought(2)))))
    assert isinstance(
        delivered(sender, receiver, Call("r", transcript.extend(said(5)))), CallSuffix
    )


def test_a_request_that_has_long_not_called_is_forgotten() -> None:
    sender, receiver, transcript = PrefixSender(), PrefixReceiver(kept_s=0.0), thought(5)
    delivered(sender, receiver, Call("r", transcript))
    suffix = next(sender.forms(Call("r", transcript.extend(said(6)))))
    assert isinstance(suffix, CallSuffix)
    assert receiver.restore(suffix) is None


def test_the_requests_that_called_longest_ago_are_forgotten() -> None:
    sender, receiver = PrefixSender(), PrefixReceiver(max_bytes=11_000)  # 4.3 to 5.0 kB each
    mine, other = thought(4), thought(4)
    delivered(sender, receiver, Call("mine", mine))
    delivered(sender, receiver, Call("other", other))
    mine = mine.extend(said(4))
    assert isinstance(delivered(sender, receiver, Call("mine", mine)), CallSuffix)
    delivered(sender, receiver, Call("third", thought(4)))
    assert isinstance(delivered(sender, receiver, Call("mine", mine.extend(said(5)))), CallSuffix)
    assert isinstance(delivered(sender, receiver, Call("other", other.extend(said(4)))), Call)


LONG = "x" * 10_000
SAID: dict[str, Any] = {"tokens": tuple(range(1000)), "calls": (ToolCall("c", "f", LONG),)}


@pytest.mark.parametrize("said", [spec.name for spec in fields(Message) if spec.name != "role"])
def test_whatever_a_message_says_counts(said: str) -> None:
    receiver = PrefixReceiver(max_bytes=100_000)
    message = replace(Message("user", ""), **{said: SAID.get(said, LONG)})
    for number in range(50):
        receiver.keep(Call(f"r{number}", Transcript((message,))))
    assert 1 <= len(receiver._known) < 10


@pytest.mark.parametrize("letter", ["x", "\N{GREEK SMALL LETTER PI}", "\N{PILE OF POO}"])
def test_what_is_kept_takes_no_more_than_it_may(letter: str) -> None:
    """In fact, with the digests that are kept beside the segments."""

    def sent(number: int) -> Any:
        messages = [
            Message("user", letter * (500 + number)),
            Message("assistant", "", calls=(ToolCall("c", "f", letter * 3000),), reasoning=letter),
            Message("prompt", "", tuple(range(1000, 1200))),
            *(Message("tool", str(n), name="f", call_id=str(n)) for n in range(10)),
        ]
        transcript = Transcript(tuple(messages))
        for n in range(20):
            transcript = transcript.extend(Segment("small", f"{n} {letter}", (1000 + n,) * 2))
        return pickle.dumps(Call(f"r{number}", transcript))

    every = [sent(number) for number in range(300)]
    receiver = PrefixReceiver(max_bytes=1 << 20)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for one in every:
            call = pickle.loads(one)
            receiver.keep(call)
            digest(call.request, replace(call.transcript, messages=()))
        del call
        assert tracemalloc.get_traced_memory()[0] - before < 1 << 20
    finally:
        tracemalloc.stop()
    assert 10 < len(receiver._known) < 300


async def test_what_a_worker_refuses_is_not_kept() -> None:
    refusals = {n: InvalidRequest("too long") for n in range(2)}
    replica = ReplicaServer(lambda: story(failures=refusals))
    call = Call("r", QUESTION)
    answer = await replica.answer_call("r", False, call, "classify", DIGITS)
    assert isinstance(answer, InvalidRequest)
    args = Delta("", ()), CRITERIA, GREEDY
    *_, last = [item async for item in replica.stream_call("r", False, call, *args)]
    assert isinstance(last, InvalidRequest)
    assert not replica._prefixes._known
    await replica.answer_call("r", False, call, "classify", DIGITS)
    assert list(replica._prefixes._known) == ["r"]
    call = Call("s", QUESTION)
    async for _ in replica.stream_call("s", False, call, *args):
        pass
    assert list(replica._prefixes._known) == ["r", "s"]


async def test_a_request_that_moves_to_another_replica_is_answered_all_the_same() -> None:
    handle = Handle(story(), story())
    worker, transcript = pool(handle), thought(2)
    await worker.classify(Call("r", transcript), DIGITS)
    first, other = sorted(handle.replicas, key=lambda one: -len(one.got))
    transcript = transcript.extend(said(2))
    assert (await worker.classify(Call("r", transcript), DIGITS)).labels == ("9",)
    first.end()
    handle.replicas.remove(first)
    await asyncio.sleep(0)
    transcript = transcript.extend(said(3))
    items = [item async for item in worker.generate(Call("r", transcript), CRITERIA, GREEDY)]
    assert [type(one) for one in first.got] == [Call, CallSuffix]
    assert [type(one) for one in other.got] == [CallSuffix, Call]
    assert other.got[-1] == Call("r", bare(transcript))
    assert not any(isinstance(item, PrefixMissing) for item in items)
    stats = [replica.server.stats() for replica in (first, other)]
    assert [one["calls"] for one in stats] == [2, 1]  # one that was refused is none
