"""Whole characters, delimiters and stop strings across token borders."""

from __future__ import annotations

import pytest

from orchestrator.types import Finish
from workers.text.boundaries import StepEnd
from workers.text.detokenizer import Detokenizer, Ends, Stop, token_texts, unfinished

BYTES = [bytes([b]) for b in range(256)]


def encode(text: str) -> tuple[int, ...]:
    return tuple(text.encode())


def run(
    data: bytes, *, until: tuple[str, ...] = (), stop: tuple[str, ...] = ()
) -> tuple[str, list[str], Finish | None, Detokenizer]:
    """Feed bytes one token each; returns the text, the deltas' texts and the finish."""
    writer = Detokenizer(BYTES, encode, Ends(StepEnd(until), [(s, "stop") for s in stop]))
    deltas, finish = [], None
    for byte in data:
        finish = writer.push(byte, -1.0)
        if finish:
            break
        if delta := writer.take():
            deltas.append(delta)
    if delta := writer.end():
        deltas.append(delta)
    assert "".join(d.text for d in deltas) == writer.text
    assert [t for d in deltas for t in d.tokens] == writer.tokens
    assert len(writer.tokens) == len(writer.logprobs)
    assert b"".join(BYTES[t] for t in writer.tokens).decode("utf-8", "replace") == writer.text
    return writer.text, [d.text for d in deltas], finish, writer


def test_split_characters_are_never_shown_in_part() -> None:
    text, deltas, _, _ = run("aé€😀b".encode())
    assert text == "aé€😀b"
    assert deltas == ["a", "é", "€", "😀", "b"]
    text, _, _, writer = run("a😀".encode()[:-1])
    assert text == "a"
    assert len(writer.tokens) == 1


def test_bytes_that_are_no_character_at_all() -> None:
    assert run(b"a\xffb")[0] == "a�b"


def test_until_stays_in_the_text() -> None:
    text, deltas, finish, _ = run(b"one\n\ntwo", until=("\n\n",))
    assert (text, finish) == ("one\n\n", "until")
    assert "".join(deltas) == text
    assert run(b"one\ntwo", until=("\n\n",))[2] is None


def test_stop_is_cut_off_and_never_streamed() -> None:
    text, deltas, finish, _ = run(b"yes STOP no", stop=("STOP", "S!"))
    assert (text, finish) == ("yes ", "stop")
    assert deltas == ["y", "e", "s", " "]
    text, deltas, finish, _ = run(b"a ST b", stop=("STOP",))
    assert (text, finish) == ("a ST b", None)
    assert deltas == ["a", " ", "ST ", "b"]


def test_what_a_stop_leaves_of_a_token_is_encoded_anew() -> None:
    writer = Detokenizer([b"abSTOPcd", b"xS", b"TOPy"], encode, Ends(stops=[("STOP", "stop")]))
    assert writer.push(0, -0.5) == "stop"
    writer.end()
    assert (writer.text, writer.tokens, writer.logprobs) == ("ab", [97, 98], [-0.5, -0.5])
    writer = Detokenizer([b"abSTOPcd", b"xS", b"TOPy"], encode, Ends(stops=[("STOP", "stop")]))
    assert writer.push(1, -1.0) is None
    assert writer.take() is None
    assert writer.push(2, -2.0) == "stop"
    writer.end()
    assert (writer.text, writer.tokens, writer.logprobs) == ("x", [120], [-1.0])


def test_a_delimiter_inside_a_token_keeps_the_token() -> None:
    writer = Detokenizer([b".\n\nSo"], encode, Ends(StepEnd(["\n\n"])))
    assert writer.push(0, 0.0) == "until"
    assert writer.text == ".\n\nSo"


def test_a_stop_wins_over_a_delimiter() -> None:
    writer = Detokenizer([b"a\n\nEND"], encode, Ends(StepEnd(["\n\n"]), [("END", "stop")]))
    assert writer.push(0, 0.0) == "stop"
    assert writer.text == "a\n\n"


def test_white_space_before_an_answer_holds_no_stop_string() -> None:
    writer = Detokenizer(BYTES, encode, Ends(stops=[("\n", "stop")], begins_answer=True))
    ends = [writer.push(byte, -1.0) for byte in b"\n\nso 4\n"]
    assert ends == [None] * 6 + ["stop"]
    writer.end()
    assert (writer.text, writer.tokens) == ("\n\nso 4", list(b"\n\nso 4"))
    assert Detokenizer(BYTES, encode, Ends(stops=[("\n", "stop")])).push(10, -1.0) == "stop"


def test_no_stop_string_begins_before_min_tokens_but_the_end_of_a_thought() -> None:
    def ends(data: bytes, min_tokens: int) -> tuple[list[str | None], str]:
        stops: list[Stop] = [("ab", "stop"), ("//", "think_end")]
        writer = Detokenizer(BYTES, encode, Ends(stops=stops, min_tokens=min_tokens))
        found = [writer.push(byte, -1.0) for byte in data]
        writer.end()
        return found, writer.text

    assert ends(b"ab", 0) == ([None, "stop"], "")
    assert ends(b"abab", 2) == ([None] * 3 + ["stop"], "ab")
    assert ends(b"abab", 1) == ([None] * 3 + ["stop"], "ab")  # the first began before
    assert ends(b"abab", 3) == ([None] * 4, "abab")
    assert ends(b"a//", 3) == ([None, None, "think_end"], "a")


@pytest.mark.parametrize("text", ["aé€😀b", "plain", "", "\N{ZERO WIDTH JOINER}😀😀"])
def test_a_text_can_be_cut_at_any_token_and_go_on_anywhere(text: str) -> None:
    data = text.encode()
    added, instead = token_texts(BYTES, data, [[i] for i in (*data, ord("!"))])
    assert "".join(added) == text
    for at in range(len(data) + 1):
        kept, unfinished_bytes = "".join(added[:at]), unfinished(data[:at])
        assert kept.encode() + unfinished_bytes == data[:at]
        # The same choice completes what the cut left open, or shows that it never was.
        choice = [*data, ord("!")][at]
        assert token_texts(BYTES, b"", [[choice]], unfinished_bytes)[1] == [instead[at]]
        following = Detokenizer(BYTES, encode, unfinished_bytes=unfinished_bytes)
        for byte in data[at:]:
            following.push(byte, -1.0)
        assert kept + following.text == text
        assert following.tokens == list(data[at:])


def test_a_choice_that_leaves_a_character_unfinished_for_good() -> None:
    euro = "€".encode()
    added, instead = token_texts(
        BYTES, euro, [[ord("a"), ord("z")], [euro[0]], [ord("b"), euro[1], ord("d")], [ord("c")]]
    )
    assert added == ["", "", "€"]
    assert instead == [
        ["a", "z"],
        ["�"],
        ["�b", "₂", "�d"],
        ["c"],
    ]  # a second first byte begins a character anew
    assert (euro[:2] + b"b").decode("utf-8", "replace") == "�b"


@pytest.mark.parametrize(
    ("data", "rest"),
    [(b"", b""), (b"ab", b""), (b"a\xc3", b"\xc3"), (b"\xf0\x9f\x98", b"\xf0\x9f\x98"),
     (b"ab\xf0\x9f", b"\xf0\x9f"), ("😀".encode(), b""), (b"\x98\x80", b""), (b"\xff", b"")],
)  # fmt: skip
def test_what_is_unfinished(data: bytes, rest: bytes) -> None:
    assert unfinished(data) == rest
