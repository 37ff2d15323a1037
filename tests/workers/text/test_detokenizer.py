"""Whole characters, delimiters and stop strings across token borders."""

from __future__ import annotations

import pytest

from orchestrator.types import Finish
from workers.text.boundaries import StepEnd
from workers.text.detokenizer import Detokenizer, token_texts, unfinished
from workers.text.ends import Ends

BYTES = [bytes([b]) for b in range(256)]


def encode(text: str) -> tuple[int, ...]:
    return tuple(text.encode())


@pytest.mark.parametrize(
    ("data", "until", "stop", "text", "deltas", "finish"),
    [
        ("aé€😀b".encode(), "", (), "aé€😀b", ["a", "é", "€", "😀", "b"], None),
        ("a😀".encode()[:-1], "", (), "a", ["a"], None),
        (b"a\xffb", "", (), "a�b", ["a", "�", "b"], None),
        (b"1\n\n2", "\n\n", (), "1\n\n", ["1", "\n", "\n"], "until"),
        (b"1\n2", "\n\n", (), "1\n2", ["1", "\n", "2"], None),
        (b"so STOP no", "", ("STOP", "S!"), "so ", ["s", "o", " "], "stop"),
        (b"a ST b", "", ("STOP",), "a ST b", ["a", " ", "ST ", "b"], None),
    ],
)
def test_deltas_are_whole_characters_that_nothing_may_cut_off(
    data: bytes, until: str, stop: tuple[str, ...], text: str, deltas: list[str], finish: Finish
) -> None:
    writer = Detokenizer(BYTES, encode, Ends(StepEnd((until,)), [(s, "stop") for s in stop]))
    found, ended = [], None
    for byte in data:
        if ended := writer.push(byte, -1.0):
            break
        found.append(writer.take())
    given = [delta for delta in (*found, writer.end()) if delta]
    assert (writer.text, [delta.text for delta in given], ended) == (text, deltas, finish)
    assert [token for delta in given for token in delta.tokens] == writer.tokens
    assert len(writer.tokens) == len(writer.logprobs)
    assert b"".join(BYTES[t] for t in writer.tokens).decode("utf-8", "replace") == text


@pytest.mark.parametrize(
    ("pieces", "finish", "text", "tokens"),
    [
        ([b"abSTOPcd"], "stop", "ab", [97, 98]),  # what a stop leaves of a token is encoded
        ([b"xS", b"TOPy"], "stop", "x", [120]),
        ([b".\n\nSo"], "until", ".\n\nSo", [0]),  # a delimiter's token stays whole
        ([b"a\n\nSTOP"], "stop", "a\n\n", [97, 10, 10]),  # a stop wins over a delimiter
    ],
)
def test_a_cut_inside_a_token(
    pieces: list[bytes], finish: str, text: str, tokens: list[int]
) -> None:
    writer = Detokenizer(pieces, encode, Ends(StepEnd(["\n\n"]), [("STOP", "stop")]))
    *begun, last = range(len(pieces))
    assert [(writer.push(token, -0.5), writer.take()) for token in begun] == [(None, None)] * last
    assert writer.push(last, -0.5 - last) == finish
    writer.end()
    assert (writer.text, writer.tokens) == (text, tokens)
    assert writer.logprobs == [-0.5] * len(tokens)


def test_white_space_before_an_answer_holds_no_stop_string() -> None:
    writer = Detokenizer(BYTES, encode, Ends(stops=[("\n", "stop")], begins_answer=True))
    assert [writer.push(byte, -1.0) for byte in b"\n\nso 4\n"] == [None] * 6 + ["stop"]
    writer.end()
    assert (writer.text, writer.tokens) == ("\n\nso 4", list(b"\n\nso 4"))
    assert Detokenizer(BYTES, encode, Ends(stops=[("\n", "stop")])).push(10, -1.0) == "stop"


@pytest.mark.parametrize(
    ("data", "min_tokens", "finish", "text"),
    [
        (b"ab", 0, "stop", ""),
        (b"abab", 2, "stop", "ab"),
        (b"abab", 1, "stop", "ab"),  # the first began before
        (b"abab", 3, None, "abab"),
        (b"a//", 3, "think_end", "a"),  # the end of a thought may
    ],
)
def test_no_stop_string_begins_before_min_tokens(
    data: bytes, min_tokens: int, finish: str, text: str
) -> None:
    ends = Ends(stops=[("ab", "stop"), ("//", "think_end")], min_tokens=min_tokens)
    writer = Detokenizer(BYTES, encode, ends)
    assert [writer.push(byte, -1.0) for byte in data] == [None] * (len(data) - 1) + [finish]
    writer.end()
    assert writer.text == text


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
    places = [b"az", euro[:1], bytes([ord("b"), euro[1], ord("d")]), b"c"]
    added, instead = token_texts(BYTES, euro, [list(place) for place in places])
    assert added == ["", "", "€"]
    # A second first byte begins another character.
    assert instead == [["a", "z"], ["�"], ["�b", "₂", "�d"], ["c"]]


@pytest.mark.parametrize(
    ("data", "rest"),
    [(b"", b""), (b"ab", b""), (b"a\xc3", b"\xc3"), (b"\xf0\x9f\x98", b"\xf0\x9f\x98"),
     (b"ab\xf0\x9f", b"\xf0\x9f"), ("😀".encode(), b""), (b"\x98\x80", b""), (b"\xff", b"")],
)  # fmt: skip
def test_what_is_unfinished(data: bytes, rest: bytes) -> None:
    assert unfinished(data) == rest
