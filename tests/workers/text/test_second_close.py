"""Where a thought ends in an answer, and where its marker is only named."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.text.second_close import SecondClose
from workers.text.thinking import FORMATS, ThinkingFormat

OPEN, CLOSE = "<think>", "</think>"
MARKED = [one for one in FORMATS if not one.direct]


def ended(
    text: str,
    *,
    forced: bool = True,
    before: str = "",
    cuts: list[int] | None = None,
    family: ThinkingFormat | None = None,
) -> str | None:
    """What stands before the end of the thought; None where the text has none."""
    opening, closing = (family.open.strip(), family.close.strip()) if family else (OPEN, CLOSE)
    second = SecondClose(opening, closing, before, forced=forced)
    places, shown = sorted({0, *(cuts or ()), len(text)}), 0
    for start, end in zip(places, [*places[1:], len(text)], strict=True):
        if (found := second.feed(text[start:end])) is not None:
            assert text[slice(*found)] == closing
            assert shown <= found[0]  # nothing of the marker was shown
            return text[: found[0]]
        shown = end - second.held
    found = second.end()
    assert found is None or shown <= found[0]
    return None if found is None else text[: found[0]]


THOUGHTS = [
    "Wait, 6*7 is 42.\n</think>\n\n42",
    "Wait, 6*7 is 42.\n</think>42",
    "Wait, 6*7 is 42.</think>\n\n42",
    "Wait, 6*7 is 42.</think>The answer is 42.",
    "Wait, 6*7 is 42.</think> 42",
    "Wait, 6*7 is 42. </think>\n\n42",
    "so that is 42</think>\n42",
    "so that is 42</think>42",
    "\\boxed{42}</think>42",
    "Wait.\n</think>**42**",
    "Wait.\n  </think>  \n42",
    "6乘7是42。</think>答案是42",
    "The tag </think> ends it.\n\nSo 42.\n</think>\n\n42",
    "Both, <think> and </think>, are tags.\n</think>\n\n42",
    "```\n</think>\n```\nSo 42.\n</think>\n\n42",
    "Wait, 6*7 is 42.\n</think>",
]
NAMES = [
    "Reasoning ends with the tag </think> and then the answer comes.",
    "Reasoning ends with the tag </think>, and then the answer comes.",
    "Reasoning ends with the tag </think>.",
    "Reasoning ends with `</think>`.\n\nSo there.",
    'It splits at "</think>" once.',
    "re.sub('.*</think>', '', text)",
    "It is the marker (</think>) that ends it.",
    "The tag is </think>\n\nIt ends a thought.",
    "Use the tag:\n\n</think>\n\nto end.",
    "用这个标签：\n</think>\n结束。",
    "In a list:\n- </think> ends it",
    "Tags:\n<think>\nopens, and\n</think>\ncloses.",
    "Wrap it in <think>...</think> tags.",
    "<think>Once more: 42.\n</think>\n\n42",
    "The marks:\n</think> ends a thought.",
    "```\nhm\n</think>\n```\nis the form.",
    "推理以标签</think>结束。",
    "It begins with </thi",
]


@pytest.mark.parametrize("text", THOUGHTS)
def test_what_a_model_still_thought_ends_with_its_marker(text: str) -> None:
    thought, _, answer = text.rpartition(CLOSE)
    assert ended(text) == thought
    assert ended(text, forced=False) is None  # it had ended its thought itself
    assert ended(f" {CLOSE} {answer}", before=text, forced=False) is None


@pytest.mark.parametrize("text", NAMES)
@pytest.mark.parametrize("forced", [True, False])
def test_a_marker_that_is_named_is_text(text: str, forced: bool) -> None:
    assert ended(text, forced=forced) is None
    assert ended(text[9:], before=text[:9], forced=forced) is None


@pytest.mark.parametrize("forced", [True, False])
@pytest.mark.parametrize(
    ("text", "closes"),
    [
        ("</think>\n\n42", True),
        ("\n\n</think>\n\n42", True),
        ("</think>The answer is 42.", True),
        ("</think>", True),
        ("</think> ends a thought.", False),
        ("</think>, the tag, ends a thought.", False),
        ("`</think>` ends a thought.", False),
    ],
)
def test_a_marker_before_anything_else_ends_the_thought_again(
    text: str, forced: bool, closes: bool
) -> None:
    assert ended(text, forced=forced) == (text.partition(CLOSE)[0] if closes else None)


@pytest.mark.parametrize("family", MARKED, ids=lambda one: one.name)
def test_the_same_of_every_family(family: ThinkingFormat) -> None:
    opening, closing = family.open.strip(), family.close.strip()
    if closing[0].isalnum():  # a sentence of its own, which nobody names in passing
        assert ended(f"So 42.\n{closing} 42", family=family) == "So 42.\n"
        return
    for text in THOUGHTS:
        thought, _, answer = text.replace(OPEN, opening).rpartition(CLOSE)
        thought = thought.replace(CLOSE, closing)
        assert ended(thought + closing + answer, family=family) == thought
    for text in NAMES:
        named = text.replace(OPEN, opening).replace(CLOSE, closing)
        assert ended(named, family=family) is None


@settings(max_examples=500)
@given(
    st.lists(st.sampled_from([*THOUGHTS, *NAMES, "</th", "<", "\n", " "]), min_size=1, max_size=3),
    st.lists(st.integers(0, 120), max_size=8),
    st.booleans(),
)
def test_it_does_not_matter_in_which_pieces_a_text_comes(
    texts: list[str], cuts: list[int], forced: bool
) -> None:
    text = "".join(texts)
    assert ended(text, cuts=[at for at in cuts if at < len(text)], forced=forced) == ended(
        text, forced=forced
    )


@pytest.mark.parametrize(
    "piece", ["So it is. ", "the tag </think> ends ", "<think> and </think>, "]
)
@pytest.mark.parametrize("forced", [True, False])
def test_what_is_kept_of_a_text_does_not_grow(piece: str, forced: bool) -> None:
    second = SecondClose(OPEN, CLOSE, "", forced=forced)
    for _ in range(500):
        assert second.feed(piece) is None
    assert len(second._text) < 50
    assert second._searched <= len(second._text)
