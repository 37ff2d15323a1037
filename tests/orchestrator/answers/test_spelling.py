"""One spelling for each thing that LaTeX has several for."""

from __future__ import annotations

import pytest

from orchestrator.answers.spelling import plain


@pytest.mark.parametrize(
    ("text", "spelling"),
    [
        ("\\dfrac 34", "\\frac{3}{4}"),
        ("\\frac\\pi6", "\\frac{\\pi}{6}"),
        ("\\sqrt[3]2 + \\sqrt2", "\\sqrt[3]{2} + \\sqrt{2}"),
        ("\\log_2 8", "\\log_{2} 8"),
        ("10*sqrt(2)", "10*\\sqrt{2}"),
        ("36\\pi\\text{ cm}^3", "36\\pi  cm^3"),
        ("6-5\\mathrm{i}", "6-5i"),
        ("11,\\! 111,\\! 100", "11,111,100"),
        ("3{,}14", "3.14"),
        ("1{,}234", "1,234"),
        ("12\\text{\\textbf{legs}}", "12  legs"),
        ("\\frac{", "\\frac{"),
    ],
)
def test_spellings(text: str, spelling: str) -> None:
    assert plain(text) == spelling
    assert plain(spelling) == spelling


@pytest.mark.parametrize("piece", ["\\text{", "\\frac", "\\frac{", "sqrt(", "}", "&\\\\"])
def test_long_texts_are_read_in_one_pass(piece: str) -> None:
    assert len(plain(piece * 30_000)) <= 30_000 * (len(piece) + 5)
