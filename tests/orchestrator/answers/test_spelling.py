"""One spelling for each thing that LaTeX has several for."""

from __future__ import annotations

import pytest

from orchestrator.answers.spelling import TEXT, latex, plain


@pytest.mark.parametrize(
    ("text", "spelling"),
    [
        ("\\frac\\pi6", "\\frac{\\pi}{6}"),
        ("\\dfrac 34", "\\frac{3}{4}"),
        ("\\frac{\\frac12}3", "\\frac{\\frac{1}{2}}{3}"),
        ("2^\\frac12", "2^{\\frac{1}{2}}"),
        ("\\sqrt[3]2 + \\sqrt2", "\\sqrt[3]{2} + \\sqrt{2}"),
        ("\\log_2 8", "\\log_{2} 8"),
        ("10*sqrt(2)", "10*\\sqrt{2}"),
        ("0.\\overline3", "0.\\overline{3}"),
        ("36\\pi\\text{ cm}^3", f"36\\pi{TEXT} cm^3"),
        ("6-5\\mathrm{i}", "6-5i"),
        ("11,\\! 111,\\! 100", "11,111,100"),
        ("3{,}14", "3.14"),
        ("1{,}234", "1,234"),
        ("\\begin{bmatrix}1&\\frac12\\\\[4pt] 3&4\\\\\\end{bmatrix}", "⟦1&\\frac{1}{2}↵ 3&4⟧"),
        ("12\\text{\\textbf{legs}} {a} }\\mathrm{b", f"12{TEXT}legs {{a}} }}{TEXT}b"),
        ("\\frac{", "\\frac{"),
        ("\\frac\\sqrt}2", "\\frac{\\sqrt}{2}"),
    ],
)
def test_spellings(text: str, spelling: str) -> None:
    assert plain(text) == spelling
    assert plain(spelling.replace(TEXT, " ")) == spelling.replace(TEXT, " ")


def test_an_algebra_system_gets_latex() -> None:
    matrix = "\\frac12\\begin{pmatrix}1 & 2 \\\\ 3 & 4\\end{pmatrix}"
    assert latex(plain(matrix)) == matrix.replace("\\frac12", "\\frac{1}{2}")
    assert latex(plain("6 - 5 i")) == "6 - 5i"


@pytest.mark.parametrize(
    "piece", ["\\text{", "\\frac", "\\frac{", "2^\\frac", "\\begin{matrix}", "sqrt(", "}", "&\\\\"]
)
def test_long_texts_are_read_in_one_pass(piece: str) -> None:
    assert len(plain(piece * 30_000)) <= 30_000 * (len(piece) + 5)


def test_wrappers_are_left_out() -> None:
    assert plain("\\text{" * 30_000) == ""
