"""Stop strings in a text that comes in pieces."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.loop.stop_strings import StopStrings

TEXT = st.text("ab \n", max_size=30)


@given(TEXT, st.lists(st.text("ab \n", min_size=1, max_size=4), max_size=3), st.data())
def test_pieces_give_what_the_whole_gives(text: str, stops: list[str], data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    filtered, shown = StopStrings(stops), ""
    for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        shown += filtered.feed(text[start:end])
        assert not any(stop in shown.lstrip() for stop in stops)
    shown += filtered.end()
    answer = text.lstrip() if stops else text
    found = [(at + len(stop), at) for stop in stops if (at := answer.find(stop)) >= 0]
    assert bool(filtered.found) == bool(found)
    expected = answer[: min(found)[1]] if found else answer
    assert shown == expected or (not expected.strip() and not shown.strip())
