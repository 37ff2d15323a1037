"""Where a generation's tokens came from."""

from __future__ import annotations

from orchestrator.types import Provenance, Segment, joined_provenance
from workers.text.detokenizer import Detokenizer
from workers.text.ends import Ends
from workers.text.origins import Origins

PIECES = [b"a", b"b", b"c", b"de", b"\xc3"]


def test_each_round_is_accepted_tokens_and_one_of_the_models_own() -> None:
    origins = Origins(plain=1)
    origins.add(3, 2, [1, 4])  # two accepted, then b and half a character were drafted
    origins.add(2, 2, [])  # all of it accepted
    origins.add(0, 0, [])  # nothing drafted
    origins.add(1, 0, [3])
    assert origins.provenance((1,) * 9, None, PIECES) == Provenance(
        "-aaraab-r",
        (1,) * 9,
        ((3, ("b", "\N{REPLACEMENT CHARACTER}")), (8, ("de",))),
        (3, 2, 1),
        (2, 2, 0),
    )


def test_tokens_that_the_text_lost_are_left_out_and_new_ones_are_not_known() -> None:
    origins = Origins(plain=0)
    origins.add(3, 1, [0])
    origins.add(2, 1, [1])
    made = origins.provenance((1, 1), None, PIECES)
    assert (made.origins, made.rejected) == ("ar", ((1, ("a",)),))
    text = Detokenizer(PIECES, lambda text: tuple(b"abc".index(c) for c in text.encode()))
    assert (text.cut_at, text.lengths) == (None, ())
    text = Detokenizer(PIECES, lambda _: (9, 9), Ends(stops=[("e", "stop")]))
    assert [text.push(token, 0.0) for token in (0, 1, 3)] == [None, None, "stop"]
    assert (text.cut_at, text.lengths) == (2, (1, 1, 1, 0))  # "d" is two other tokens now
    cut = origins.provenance(text.lengths, text.cut_at, PIECES)
    assert (cut.origins, cut.rejected) == ("ar??", ((1, ("a",)),))


def test_two_segments_as_one() -> None:
    first, rest = Segment("large", "abc", (1, 2)), Segment("large", "d", (3,))
    known = Provenance("r", (1,), ((0, ("x",)),), (1,), (0,))
    assert joined_provenance(first, None, rest, None) is None
    assert joined_provenance(first, None, rest, known) == Provenance(
        "??r", (0, 3, 1), ((2, ("x",)),), (1,), (0,)
    )
    longer = Provenance("ab", (1, 2), (), (1, 1), (1, 0))
    assert joined_provenance(first, longer, rest, known) == Provenance(
        "abr", (1, 2, 1), ((2, ("x",)),), (2, 1), (1, 0)
    )
    assert joined_provenance(Segment("large", ""), None, rest, known) == known
