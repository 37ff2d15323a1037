"""A step is never cut where a judge would see half of something."""

from __future__ import annotations

import pytest

from orchestrator.types import Message, Segment, Segments, Transcript
from workers.text.boundaries import StepEnd, begun
from workers.text.detokenizer import Detokenizer
from workers.text.ends import Ends

BLANK = ("\n\n",)
STEP = "So it is 4.\n\n"


def steps(text: str, delimiters: tuple[str, ...] = BLANK, size: int = 1 << 30) -> list[str]:
    """The steps of a whole text, found one after another; it is fed in pieces of `size`."""
    found, rest = [], text
    while (end := first_end(rest, delimiters, size)) is not None:
        found.append(rest[:end])
        rest = rest[end:]
    return [*found, rest] if rest else found


def first_end(text: str, delimiters: tuple[str, ...], size: int) -> int | None:
    step = StepEnd(delimiters)
    for begin in range(0, len(text), size):
        if (end := step.feed(text[begin : begin + size])) is not None:
            return begin + end
    return None


@pytest.mark.parametrize(
    "block",
    [
        "```python\nx = 1\n\nprint(x)\n```",
        "~~~\na\n\n```\n\nb\n~~~",
        "````md\n```\n\n```\n\nstill\n````",
        "   ```\nindented\n\nfence\n   ```",
        "- ```sh\n  ls\n\n  pwd\n  ```",
        "1. a\n   - ~~~\n     b\n\n     ~~~",
        "````md\n- ```\n  x\n\ny\n```\n\n````",
        "10. Run it:\n\n    ```sh\n    ls\n\n    pwd\n    ```",
        "```python\nif x:\n    s = '''\n    ```\n\n    '''\n```",
        "$$\nx = 1\n\n+ y\n$$",
        "\\[\nx\n\n= 2\n\\]",
        "\\begin{align*}\nx &= 1\n\n\\\\ y &= 2\n\\end{align*}",
        "\\begin{aligned}\\begin{cases}1\n\n2\\end{cases}\n\n3\\end{aligned}",
        "We compute:\n\n2 + 2 = 4.",
        "计算：\n\n2 + 2 = 4。",
        "Here is the code:\n\n```python\nx = 1\n\nprint(x)\n```",
    ],
)
@pytest.mark.parametrize("size", [1, 2, 5, 1 << 30])
def test_a_block_stays_whole(block: str, size: int) -> None:
    text = f"{STEP}{block}\n\nNext.\n\n"
    assert steps(text, size=size) == [STEP, f"{block}\n\n", "Next.\n\n"]


@pytest.mark.parametrize(
    "text",
    [
        "Use `x` and ```y``` in a line.\n\n",
        "```y``` is `$$`, ``\\[ ` `` and `\\begin{align}`.\n\n",
        "An odd ` and \\` here, `$$` there.\n\n",
        "- ```sh\n  ls\n  ```\n\n",
        "> ```\n> a blank line ends a quote\n\n",
        "$$ \\begin{a} $$\n\n",
        "It costs \\$\\$5.\n\n",
        "a \\\\[2pt] b\n\n",
        "\\end{align} alone\n\n",
        "漢字です。\n\n",
        "שלום\n\n",
        "🙂\n\n",
        "| a | b |\n| - | - |\n| 1 | 2 |\n\n",
    ],
)
@pytest.mark.parametrize("size", [1, 2, 5, 1 << 30])
def test_what_is_no_open_block_ends_as_ever(text: str, size: int) -> None:
    assert steps(text + "b\n\n", size=size) == [text, "b\n\n"]


def test_a_table_is_one_step_also_line_by_line() -> None:
    table = "| a | b |\n| - | - |\n| 1 | 2 |\n\n"
    assert steps(f"first\n{table}last\n", ("\n",)) == ["first\n", table, "last\n"]
    unclosed = "```\na\n\nb\n\n"
    assert steps(unclosed) == [unclosed]


@pytest.mark.parametrize("mark", ["$$", "\\[", "\\begin{align}", "$$ \\["])
@pytest.mark.parametrize("size", [1, 5, 1 << 30])
def test_a_formula_that_never_closes_is_none_in_the_end(mark: str, size: int) -> None:
    text = f"{mark} a.\n\nb.\n\nc.\n\nd.\n\n"
    assert steps(f"{text}e.\n\n", size=size) == [text, "e.\n\n"]


def test_each_formula_has_blank_lines_of_its_own() -> None:
    two = "$$\na\n\nb\n\nc\n$$ and $$\nd\n\ne\n\nf\n$$\n\n"
    assert steps(f"{two}g\n\n") == [two, "g\n\n"]


def test_several_delimiters_the_first_wins() -> None:
    assert steps("one. two\n\nthree. ", (". ", "\n\n")) == ["one. ", "two\n\n", "three. "]
    assert StepEnd(()).feed("a\n\nb") is None
    assert StepEnd(("",)).feed("a\n\nb") is None


def test_white_space_alone_is_no_step() -> None:
    assert StepEnd(BLANK).feed("\n\n") is None
    assert steps("\n\n\n\na\n\n") == ["\n\n\n\na\n\n"]


def test_a_step_is_begun_by_what_was_written_before() -> None:
    question = (Message("user", "?"),)
    code = Segment("large", "```\nx\n\n", finish="length")
    thought = Segments((Segment("small", STEP), code))
    for transcript in (
        Transcript(question, thought),
        Transcript(question, answer=thought).without_thought(),
    ):
        assert begun(transcript, BLANK) == code.text
        assert StepEnd(BLANK, begun(transcript, BLANK)).feed("y\n\n```\n\nz") == len("y\n\n```\n\n")
        assert begun(transcript, ()) == ""
    assert begun(Transcript(question, Segments((code, Segment("small", STEP)))), BLANK) == ""
    spaced = Segments((Segment("small", "It is 4. "),))
    assert begun(Transcript(question, spaced), (". ",)) == ""


def test_token_by_token_it_is_the_same() -> None:
    text = "Code:\n\n```\na\n\nb\n```\n\nNext"
    writer = Detokenizer(
        [bytes([b]) for b in range(256)], lambda t: tuple(t.encode()), Ends(StepEnd(BLANK))
    )
    for byte in text.encode():
        if writer.push(byte, -1.0):
            break
    assert writer.text == "Code:\n\n```\na\n\nb\n```\n\n"
