"""Answers compared by value, without a computer algebra system."""

from __future__ import annotations

import pytest

from orchestrator.answers.equality import compare
from orchestrator.answers.text import expected, final


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("so 3+4=7.\n\nThe answer is \\boxed{7}.", "7"),
        ("\\boxed{1} no, \\boxed{-12}", "-12"),
        ("\\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("\\boxed{4", "4"),
        ("first 12, then 34", "34"),
        ("it costs $1,234.50 in all", "1,234.50"),
        ("between 3 and 4.", "4"),
        ("First this.\n\n---\n\n1. Buy 3", "3"),
        ("First this.\n\n---\n\n7", "7"),
        ("It is\n\n---\n\n\\frac{1}{2}", "1/2"),
        ("It is 2 \\frac{1}{2}", "2 1/2"),
        ("Then\n\\[ 66 + 9 = 75 \\]\nSo it is 75.", "75"),
        ("Thus, \\(144 \\div 9 = 16\\).", "16"),
        ("We get $x$ as $\\frac{1}{2}$, as asked.", "\\frac{1}{2}"),
        ("\\[ -16 + j = 0 \\]\n\n4. **Solve for \\(", "0"),
        ("\\[ 362 - 271 = 91 \\]\n\nTherefore, the \\text{amount", "91"),
        ("It costs $5 and then $6 more", "6"),
        ("So we add 3 and 4.\n#### 7", "7"),
        ("#### 42", "42"),
        ("#### \\frac{1}{2}", "\\frac{1}{2}"),
        ("#### The answer is 42.", "42"),
        ("#### 7\nQuestion: what are 3 and 5?", "7"),
        ("#### Step 1\nWe get 42.", "42"),
        ("#### 1. Add\nWe get 42.\n#### 2. Check", "42"),
        ("It is\n#### blue", "blue"),
        ("## Answer: 7", "7"),
        ("### Step 3\nWe get 42.\n### Answer: 17", "17"),
        ("We get 42.\n### **Step 2:** Check", "42"),
        ("It is 1 here.\n" * 500 + "So it is 42.", "42"),
        ("blue", "blue"),
        ("", ""),
    ],
)
def test_what_a_text_gives(text: str, told: str) -> None:
    assert final(text) == told


def test_what_a_problem_wants() -> None:
    assert expected("3 boxes of 14 make 42\n#### 42") == "42"
    assert expected("so it is \\boxed{\\sqrt{2}}") == "\\sqrt{2}"
    assert expected(" (1, 2) ") == "(1, 2)"


@pytest.mark.parametrize(
    ("text", "answer", "equal"),
    [
        ("\\boxed{0.50}", "1/2", True),
        ("\\boxed{\\frac{2}{4}}", "0.5", True),
        ("7.0", "7", True),
        ("007", "7", True),
        ("71", "7", False),
        ("", "7", False),
        ("Blue", "blue", True),
        ("least", "stale", False),
        ("\\boxed{50\\%}", "0.5", True),
        ("\\boxed{0.5}", "50%", True),
        ("\\boxed{50}", "50%", True),
        ("\\boxed{5000\\%}", "50%", False),
        ("\\boxed{1,000}", "1e3", True),
        ("\\boxed{2\\sqrt{3}}", "3", None),
        ("\\boxed{x = 5}", "5", True),
        ("\\boxed{(1,2)}", "(1, 2)", True),
    ],
)
def test_compare(text: str, answer: str, equal: bool | None) -> None:
    assert compare(text, answer) is equal


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("\\boxed{2\\frac{1}{2}}", "2.5"),
        ("\\boxed{12\\tfrac12}", "25/2"),
        ("\\boxed{-2\\frac{1}{2}}", "-2.5"),
        ("\\boxed{2½}", "2.5"),
        ("\\boxed{\\text{Monday}}", "Monday"),
        ("\\boxed{\\boxed{\\textbf{Monday}}}", "monday."),
        ("\\boxed{\\text{(B)}}", "B"),
        ("He has 1 000 euros", "1000"),
        ("He has 1 000 euros", "€1,000"),
        ("That makes 12\u202f345.5 in all", "12345.5"),
        ("\\boxed{142\\text{ legs}}", "142"),
        ("\\boxed{142\\text{legs}}", "142 legs"),
        ("\\boxed{10^\\circ}", "10"),
        ("\\boxed{10^{\\circ}}", "10°"),
        ("\\boxed{10 \\text{ degrees}}", "10^\\circ"),
        ("\\boxed{5 m^2}", "5\\text{ m}²"),
        ("\\boxed{60\\text{ km/h}}", "60 km per hour"),
        ("\\boxed{3{,}14}", "3.14"),
        ("\\boxed{5\\text{ or }7}", "5, 7"),
        ("\\boxed{5 or 6}", "6 or 5"),
        ("\\boxed{x=5\\text{ or }x=7}", "\\{7, 5\\}"),
        ("\\boxed{x \\in \\{2,3\\}}", "3, 2"),
        ("\\boxed{x = \\frac{10}{2} = 5}", "5"),
        ("\\boxed{10\\text{ in}}", "10"),
        ("\\boxed{10\\text{ in.}}", "10 inches"),
        ("\\boxed{\\mathbb{R}}", "(-\\infty, \\infty)"),
        ("\\boxed{\\varnothing}", "\\{\\}"),
        ("\\boxed{\\langle 1, 2\\rangle}", "(1,2)"),
        ("\\boxed{5 million}", "5000000"),
        ("\\boxed{\\{2, 1\\}}", "{1, 2}"),
        ("\\boxed{x = 1, x = 2}", "2, 1"),
        ("\\boxed{\\pm 2}", "-2, 2"),
        ("\\boxed{(-\\infty, 5]}", "(-∞, 5]"),
    ],
)
def test_spellings(text: str, answer: str) -> None:
    assert compare(text, answer) is True
    assert compare(f"\\boxed{{{answer}}}", final(text)) is True


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("2\\frac{1}{2}", "10.5"),
        ("5 m", "5 cm"),
        ("$5", "5 euros"),
        ("5 m^2", "5 m"),
        ("5 apples", "5 pears"),
        ("2:5", "12:30"),
        ("2:5", "2/5"),
        ("2:30 PM", "2:30 AM"),
        ("1,2", "1.2"),
        ("1,2", "1,2,2"),
        ("(1,2)", "(2,1)"),
        ("(1,2)", "[1,2]"),
        ("[1,2)", "[1,2]"),
        ("1/6/2024", "2/12/2024"),
        ("x = 5", "y = 5"),
        ("3a0", "2b0"),
        ("E9", "E8"),
        ("1 2 3", "6"),
        ("5 million", "5"),
        ("red, blue", "blue, red"),
        ("nan", "0"),
        ("5 or 6", "5 or 7"),
        ("5 or 6", "5"),
        ("2 or more", "2 or less"),
        ("yes or no", "no or yes"),
        ("10,20", "10.20"),
        ("3,14", "3.14"),
        ("5 m", "5\\text{ m}^2"),
        ("\\$5\\text{ per hour}", "\\$5\\text{ per day}"),
        ("\\frac34\\text{ of the pie}", "\\frac34\\text{ of the cake}"),
        ("m\\angle A = 50^\\circ", "m\\angle B = 50^\\circ"),
        ("x \\in \\{2,3\\}", "(2,3)"),
        ("\\mathbb{R}", "\\mathbb{Z}"),
        ("\\begin{pmatrix} 1 & 2 \\\\ 3 & 4 \\end{pmatrix}", "1 2 3 4"),
        ("1.2.3", "1.23"),
    ],
)
def test_what_looks_alike(text: str, answer: str) -> None:
    assert compare(f"\\boxed{{{text}}}", answer) is False
    assert compare(f"\\boxed{{{answer}}}", text) is False


@pytest.mark.parametrize(
    "piece", ["\\text{", "\\text{a} ", "**a ", "\\(1 ", "$1 ", "\\[", "\\frac", "9,", "and "]
)
def test_long_answers_are_compared_in_one_pass(piece: str) -> None:
    long = piece * 30_000  # in the square of its length this would take minutes
    assert compare(f"{long}\nSo it is 42.", "42") is True
    assert compare(f"\\boxed{{{long}}}", "42") is False
    assert compare(long, "43") is not True
