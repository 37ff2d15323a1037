"""Answers that take algebra, and algebra that never ends."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from deploy.evaluation.grading import LONGEST, Grader


@pytest.fixture(scope="module")
def grader() -> Iterator[Grader]:
    made = Grader(timeout_s=30)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("text", "answer", "equal"),
    [
        ("\\boxed{2\\sqrt3}", "\\sqrt{12}", True),
        ("\\boxed{2\\sqrt{3}}", "3", False),
        ("\\boxed{x = 5}", "5", True),
        ("\\boxed{5\\text{ apples}}", "5", True),
        ("\\boxed{(1,2)}", "(1, 2)", True),
        ("\\boxed{2, 1}", "\\{1,2\\}", True),
        ("\\boxed{\\frac{\\sqrt{2}}{2}}", "\\frac{1}{\\sqrt{2}}", True),
        ("\\boxed{\\frac{", "\\sqrt{2}", False),
        ("\\boxed{2\\sqrt{3}\\text{ m}}", "2\\sqrt{3}\\text{ cm}", False),
        ("\\boxed{1 - \\sqrt2, 1 + \\sqrt2}", "1 \\pm \\sqrt{2}", True),
        ("\\boxed{\\sqrt{2}, \\sqrt{3}, \\sqrt{3}}", "\\sqrt{2}, \\sqrt{3}", False),
        ("\\boxed{(\\sqrt{2}, 1)}", "(1, \\sqrt{2})", False),
        ("\\boxed{x \\in (1, 2)}", "(1, 2)", True),
        ("\\boxed{x > 5}", "(5, \\infty)", True),
        ("\\boxed{(5, \\infty)}", "x > 5", True),
        ("\\boxed{1.414214}", "\\sqrt{2}", False),
        ("\\boxed{x'}", "x", False),
        ("\\boxed{2xy}", "2x", False),
        ("\\boxed{2yx}", "2xy", True),
        ("\\boxed{5 - 3i}", "-3i + 5.0", True),
        ("\\boxed{36\\pi\\text{ cm}^3}", "36\\pi", True),
        ("\\boxed{36\\pi\\text{ cm}^3}", "36\\pi\\text{ cm}^2", False),
        ("\\boxed{10\\sqrt{2}\\text{ units}}", "\\sqrt{200}", True),
        ("\\boxed{\\frac\\pi6\\text{ radians}}", "\\frac{\\pi}{6}", True),
        ("\\boxed{\\frac{\\pi}{6}\\text{ radians}}", "\\frac{\\pi}{3}", False),
        ("\\boxed{5h}", "5", False),
        ("\\boxed{2m}", "2", False),
        ("\\boxed{\\log_2 8}", "3", True),
        ("\\boxed{\\log_2 3}", "\\frac{\\ln 3}{\\ln 2}", True),
        ("\\boxed{\\log_2 3}", "\\log_3 2", False),
        ("\\boxed{1+\\log_5 9}", "\\log_{5} 45", True),
        ("\\boxed{x\\leq2}", "(-\\infty,2]", True),
        ("\\boxed{3 > x > -2}", "(-2,3)", True),
        ("\\boxed{x \\ne 2}", "\\mathbb{R}\\setminus\\{2\\}", True),
        ("\\boxed{\\{1\\pm\\sqrt2\\}}", "1-\\sqrt{2}, 1+\\sqrt{2}", True),
        ("\\boxed{6 - 5 i}", "6-5\\mathrm{i}", True),
        ("\\boxed{-b + c}", "-b+c", True),
        ("\\boxed{ab}", "b \\cdot a", True),
        ("\\boxed{\\{1\\}\\cup\\{2\\}}", "\\{1,2\\}", True),
        (
            "\\boxed{\\frac12\\begin{pmatrix} 1 & 4 \\end{pmatrix}}",
            "\\begin{bmatrix} \\frac12 & 2 \\end{bmatrix}",
            True,
        ),
        (
            "\\boxed{\\begin{pmatrix} \\sqrt2 \\\\ 2x+1 \\end{pmatrix}}",
            "\\begin{pmatrix} \\sqrt{2} \\\\ 1+2x \\end{pmatrix}",
            True,
        ),
        (
            "\\boxed{\\begin{pmatrix} \\sqrt2 \\\\ 2x+1 \\end{pmatrix}}",
            "\\begin{pmatrix} \\sqrt{2} \\\\ 1-2x \\end{pmatrix}",
            False,
        ),
        ("\\boxed{" + "x+" * LONGEST + "1}", "\\sqrt{2}", False),
    ],
)
async def test_by_algebra(grader: Grader, text: str, answer: str, equal: bool) -> None:
    assert await grader.same(text, answer) is equal


async def test_plain_numbers_start_no_process() -> None:
    grader = Grader()
    assert await grader.same("The answer is \\boxed{1,714}.", "1714")
    assert not await grader.same("\\boxed{50\\%}", "0.4")
    assert grader._pool is None
    grader.close()


async def test_what_hangs_is_killed_and_wrong() -> None:
    grader = Grader(timeout_s=1.0)
    assert not await grader.same("\\boxed{9^{9^{9^{9}}}}", "7")
    assert grader.timeouts == 1
    grader._timeout_s = 30.0  # a new process compiles its grammar first
    assert await grader.same("\\boxed{1+x}", "x+1")  # the pool lives on
    grader.close()
