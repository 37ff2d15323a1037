r"""Replaces equal spellings of LaTeX and Unicode by one.

LaTeX's wrappers are removed: `142\text{ legs}` becomes 142 legs. Missing braces around an argument
are added: `\frac\pi6` becomes `\frac{\pi}{6}`.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

TEXT: Final = "\N{NO-BREAK SPACE}"
"""The blank between mathematics and `\\text{}`: the text after it is no factor."""
MATRIX: Final = "⟦⟧"
ROW: Final = "↵"
"""Matrices are `⟦1 & 2 ↵ 3 & 4⟧`."""

_SAME: Final = {
    "\\dfrac": "\\frac", "\\tfrac": "\\frac", "\\cfrac": "\\frac", "\\dbinom": "\\binom",
    "\\lbrace": "\\{", "\\rbrace": "\\}", "\\langle": "(", "\\rangle": ")",
    "\\leqslant": "\\le", "\\geqslant": "\\ge", "\\leq": "\\le", "\\geq": "\\ge", "\\neq": "\\ne",
    "{.}": ".", "\\degree": "°", "^{\\circ}": "°", "^\\circ": "°", "{}^°": "°", "^°": "°",
    "^{°}": "°", "\\$": "$", "\\%": "%", "\\#": "#", "\\&": "&", "\\_": "_",
    "×": "\\times ", "·": "\\cdot ", "÷": "/", "\\div": "/", "∞": "\\infty ", "+\\infty": "\\infty",
    "π": "\\pi ", "≤": "\\le ", "≥": "\\ge ", "≠": "\\ne ", "∪": "\\cup ", "∈": "\\in ",
    "±": "\\pm ", "∅": "\\{\\}", "\\emptyset": "\\{\\}", "\\varnothing": "\\{\\}",
    "m\\angle": "\\angle", "\\measuredangle": "\\angle", "∠": "\\angle ",
    "\\text{all real numbers}": "\\mathbb{R}", "\\text{All real numbers}": "\\mathbb{R}",
    "\\lor": "\\text{ or }", "\\mathbb{R}": "(-\\infty,\\infty)",
    "\\mathbb R": "(-\\infty,\\infty)", "\\Reals": "(-\\infty,\\infty)",
    "−": "-", "–": "-", "**": "^", "\\(": "", "\\)": "", "\\[": "", "\\]": "",
    "\\euro": "€", "\\pounds": "£", "\\cents": "¢",
}  # fmt: skip
"""Spellings, and the one that replaces them."""
_VULGAR: Final = re.compile(r"(?<=\d)(?=[½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞])")
_SUPERSCRIPTS: Final = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻", "0123456789+-")
_ROOT: Final = re.compile(r"(?:√|(?<![A-Za-z\\])sqrt(?=\()|\\sqrt(?=\())\s*(\d+|\([^()]*\)|\w)")
_MATRIX: Final = re.compile(
    r"\\begin\{([pbB]?matrix|array)\}(?:\{[lcr|]*\})?((?:(?!\\begin).)*?)\\end\{\1\}", re.DOTALL
)
_BARE: Final = re.compile(
    r"\\(?:left|right|[bB]igg?[lr]?|displaystyle|limits)(?![A-Za-z])|\\!\s*"
    r"|\\(?:rm|bf|it)\s(?!\w*\{)"
)
_BOLD: Final = re.compile(r"(?<!\S)\*\*(?=\S)(.{1,300}?)(?<=\S)\*\*(?![\w*])")
_SPACE: Final = re.compile(r"\\(?:[,;:> ]|(?:quad|qquad|thinspace|medspace|nobreakspace)\b)|~")
_GROUP: Final = re.compile(r"\{,\}(?=\d{3}(?!\d))")
_SIGN: Final = re.compile(
    r"\\(?P<text>text(?:bf|it|rm|tt|sf|sc|up|normal)?|mathrm|mbox|hbox|emph)\s*\{(?!\s*[ie]\})"
    r"|\\(?P<look>text|math(?:rm|bf|it|sf|tt|normal)|operatorname\*?|underline|bold(?:symbol)?"
    r"|fbox|boxed)\s*\{"
    r"|(?P<taking>\\(?:frac|binom|overline|bar|dot)(?![A-Za-z])|\\sqrt(?:\s*\[[^][{}]{0,20}\])?"
    r"|\\log\s*_|\^(?=\s*\\(?:frac|sqrt)))"
    r"|\\[A-Za-z]+|\\.|.",
    re.DOTALL,
)
_TWO: Final = ("\\frac", "\\binom")  # take two arguments


def plain(text: str) -> str:
    """Return a text in one spelling."""
    text = _VULGAR.sub(" ", text).replace("ℝ", "\\mathbb{R}")
    text = re.sub(
        "[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻]+", lambda run: f"^{{{run.group().translate(_SUPERSCRIPTS)}}}", text
    )
    text = _ROOT.sub(lambda root: f"\\sqrt{{{root[1].removeprefix('(').removesuffix(')')}}}", text)
    text = unicodedata.normalize("NFKC", text).replace("\N{FRACTION SLASH}", "/")
    text = _MATRIX.sub(_matrix, text)
    text = _SPACE.sub(" ", _BARE.sub("", _BOLD.sub(r"\1", text)))
    text = _GROUP.sub(",", text).replace("{,}", ".")  # 3{,}14 is no list
    for spelling, same in _SAME.items():
        text = text.replace(spelling, same)
    text = _in_braces(text).strip()
    if len(text) > 1 and text.startswith("$") and text.endswith("$"):
        text = text.strip("$").strip()
    return text


def latex(text: str) -> str:
    """Return a spelling of this module as LaTeX, for an algebra system."""
    for sign, command in zip(
        (*MATRIX, ROW, TEXT), ("\\begin{pmatrix}", "\\end{pmatrix}", "\\\\", " "), strict=True
    ):
        text = text.replace(sign, command)
    return re.sub(r"(?<=\d)[ \t]+(?=[A-Za-z])", "", text)  # math-verify: 5 i is not 5i


def _matrix(match: re.Match[str]) -> str:
    rows = re.sub(r"\\hline|(?:\\\\)\s*$", "", match[2])
    return MATRIX[0] + re.sub(r"\\\\(?:\[[\w. -]{0,20}\])?", ROW, rows) + MATRIX[1]


def _in_braces(text: str) -> str:
    r"""Remove commands that only change how their content looks; put arguments in braces."""
    kept: list[str] = []
    closing, wanted, before = [""], [0], ""  # of each open brace; the last sign that is no blank

    def keep(sign: str) -> None:
        nonlocal before
        kept.append(sign)
        before = sign[-1] if sign.strip() else before

    def taken() -> None:
        wanted[-1] = max(0, wanted[-1] - 1)
        while closing[-1] == "^" and not wanted[-1]:  # a command that was an argument is complete
            keep("}")
            closing.pop()
            wanted.pop()
            wanted[-1] = max(0, wanted[-1] - 1)

    for match in _SIGN.finditer(text):
        sign, wrapper = match[0], match["text"] or match["look"]
        if wrapper or sign == "{":
            shown = not wrapper or wanted[-1] > 0
            if shown:
                keep("{")
            elif match["text"] and (before.isalnum() or before in tuple("})°$⟧")):
                kept.append(
                    TEXT if text[match.end() : match.end() + 2].strip()[:1].isalpha() else ""
                )
            closing.append("}" if shown else "")
            wanted.append(0)
        elif sign == "}" and len(closing) > 1:
            closed = closing.pop()
            wanted.pop()
            keep("}" if closed == "^" else closed)
            taken()
        elif match["taking"] is not None:
            if wanted[-1]:
                keep("{")
                closing.append("^")
                wanted.append(0)
            keep(sign)
            wanted[-1] = 2 if sign in _TWO else 1
        elif not wanted[-1]:
            keep(sign)
        elif sign.isalnum() or re.fullmatch(r"\\[A-Za-z]+", sign):
            keep(f"{{{sign}}}")
            taken()
        elif not sign.isspace():
            keep(sign)
            wanted[-1] = 0
    return "".join(kept)
