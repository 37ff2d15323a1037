"""Conversations are brought into forms that strict templates take, and no text is lost."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.types import Message, ToolCall
from workers.text.conversation import arrangements

CALL = ToolCall("c1", "add", "{}")


def told(*turns: str) -> tuple[Message, ...]:
    names = {"s": "system", "u": "user", "a": "assistant"}
    return tuple(Message(names[turn[0]], turn[1:]) for turn in turns)  # type: ignore[arg-type]


def test_from_the_least_changed_form_on() -> None:
    given = told("s1", "s2", "u3", "u4", "a5", "a6", "s7", "u8")
    assert arrangements(given) == (
        told("s1\n\n2", "u3", "u4", "a5", "a6", "s7", "u8"),
        told("s1\n\n2", "u3", "u4", "a5", "a6", "u7", "u8"),
        told("s1\n\n2", "u3\n\n4", "a5\n\n6", "u7\n\n8"),
        told("u3\n\n4", "a5\n\n6", "u1\n\n2\n\n7\n\n8"),
    )


def test_a_system_message_alone_becomes_the_question() -> None:
    assert arrangements(told("s1", "s2"))[-1] == told("u1\n\n2")


def test_blank_messages_join_nothing() -> None:
    assert arrangements(told("s", "s1", "u2"))[0] == told("s1", "u2")
    assert arrangements(told("s ", "u2"))[-1] == told("u2")


def test_calls_stay_with_their_results() -> None:
    calling = Message("assistant", "I look.", calls=(CALL,), reasoning="why")
    result = Message("tool", "5", call_id="c1")
    given = (*told("u1", "a2"), calling, result, result, *told("a3", "u4"))
    joined = Message("assistant", "2\n\nI look.", calls=(CALL,), reasoning="why")
    assert arrangements(given)[2] == (*told("u1"), joined, result, result, *told("a3", "u4"))


def test_the_first_system_messages_are_counted_once() -> None:
    class Counted(tuple[Message, ...]):
        read = 0

        def __iter__(self) -> Iterator[Message]:
            Counted.read += 1
            return super().__iter__()

    arrangements(Counted(told(*["u1"] * 50)))
    assert Counted.read <= 3


@given(st.lists(st.sampled_from(["s", "s ", "s1", "u2", "u3", "a4", "a5"]), min_size=1))
def test_all_texts_are_in_every_form(turns: list[str]) -> None:
    given = told(*turns)
    for form in arrangements(given):
        for text in {message.content for message in given if message.content.strip()}:
            count = sum(text in message.content.split("\n\n") for message in given)
            assert sum(m.content.split("\n\n").count(text) for m in form) == count
        assert arrangements(form)[0] == form or form[:2] == arrangements(form)[0][:2]
