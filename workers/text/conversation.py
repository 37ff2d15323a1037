"""Forms of a conversation, for chat templates that are strict about roles or calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from orchestrator.types import Message


def arrangements(messages: Sequence[Message]) -> tuple[tuple[Message, ...], ...]:
    """Return four forms of a conversation, each changed more than the one before.

    System messages at the beginning are joined; later ones become the user's; neighbours of the
    same role are joined; the system message begins the last question, as in Mistral's tokenizer.
    The forms depend on the texts only by which of them are blank.
    """
    systems = next((i for i, one in enumerate(messages) if one.role != "system"), len(messages))
    one_system = _joined(messages, lambda at, message: at < systems)
    later = [
        replace(message, role="user") if i and message.role == "system" else message
        for i, message in enumerate(one_system)
    ]
    alternating = _joined(later, lambda at, message: message.role in ("user", "assistant"))
    return tuple(map(tuple, (one_system, later, alternating, _in_question(alternating))))


def one_call_a_turn(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Split turns with several calls, so that each call is a turn, followed by its result."""
    turns, left = list[Message](), list(messages)
    while left:
        message = left.pop(0)
        results = left[: next((i for i, one in enumerate(left) if one.role != "tool"), len(left))]
        if len(message.calls) < 2:
            turns.append(message)
            continue
        left = left[len(results) :]
        for call in message.calls:
            turns.append(replace(message, calls=(call,)))
            message = replace(message, content="", reasoning="")
            if own := [one for one in results if one.call_id == call.id][:1]:
                turns += own
                results.remove(own[0])
        turns += results
    return tuple(turns)


def _joined(messages: Sequence[Message], may_join: Callable[[int, Message], bool]) -> list[Message]:
    """Join neighbours of the same role, if the second of them `may_join`."""
    joined: list[Message] = []
    for i, message in enumerate(messages):
        last = joined[-1] if joined else None
        if last and last.role == message.role and not last.calls and may_join(i, message):
            joined[-1] = replace(
                message,
                content=_text(last.content, message.content),
                reasoning=_text(last.reasoning, message.reasoning),
            )
        else:
            joined.append(message)
    return joined


def _in_question(messages: Sequence[Message]) -> Sequence[Message]:
    system, *rest = messages
    if system.role != "system":
        return messages
    for i in reversed(range(len(rest))):
        if rest[i].role == "user":
            rest[i] = replace(rest[i], content=_text(system.content, rest[i].content))
            return rest
    return [replace(system, role="user"), *rest]


def _text(first: str, second: str) -> str:
    return "\n\n".join(filter(str.strip, (first, second))) or first
