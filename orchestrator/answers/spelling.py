r"""Replaces equal spellings of LaTeX and Unicode by one.

LaTeX's wrappers are removed: `142\text{ legs}` becomes 142 legs, and `\dfrac12` `\frac{1}{2}`.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

_SAME: Final = {
    "\\lbrace": "\\{", "\\rbrace": "\\}", "\\langle": "(", "\\rangle": ")",
    "\\leqslant": "\\le", "\\geqslant": "\\ge", "\\leq": "\\le", "\\geq": "\\ge", "\\neq": "\\ne",
    "\\degree": "°", "^{\\circ}": "°", "^\\circ": "°", "^°": "°", "\\$": "$", "\\%": "%",
    "×": "\\times ", "·": "\\cdot ", "÷": "/", "\\div": "/", "∞": "\\infty ", "+\\infty": "\\infty",
    "π": "\\pi ", "≤": "\\le ", "≥": "\\ge ", "≠": "\\ne ", "∪": "\\cup ", "∈": "\\in ",
    "±": "\\pm ", "∅": "\\{\\}", "\\emptyset": "\\{\\}", "\\varnothing": "\\{\\}",
    "\\mathbb{R}": "(-\\infty,\\infty)", "\\mathbb R": "(-\\infty,\\infty)",
    "−": "-", "–": "-", "**": "^", "\\(": "", "\\)": "", "\\[": "", "\\]": "",
}  # fmt: skip
"""Spellings, and the one that replaces them."""
_VULGAR: Final = re.compile(r"(?<=\d)(?=[½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞])")
_SUPERSCRIPTS: Final = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻", "0123456789+-")
_ROOT: Final = re.compile(r"(?:√|(?<![A-Za-z\\])sqrt(?=\()|\\sqrt(?=\())\s*(\d+|\([^()]*\)|\w)")
_BARE: Final = re.compile(r"\\(?:left|right|[bB]igg?[lr]?|displaystyle|limits)(?![A-Za-z])|\\!\s*")
_BOLD: Final = re.compile(r"(?<!\S)\*\*(?=\S)(.{1,300}?)(?<=\S)\*\*(?![\w*])")
_SPACE: Final = re.compile(r"(?<!\\)\\(?:[,;:> ]|(?:quad|qquad)\b)|~")
_GROUP: Final = re.compile(r"\{,\}(?=\d{3}(?!\d))")
_TEXT: Final = re.compile(r"\\(?:text[a-z]*|mathrm|mbox)\s*\{([^{}]*)\}")
_LOOK: Final = re.compile(
    r"\\(?:math(?:bf|it|sf|tt|normal)|operatorname|underline|bold(?:symbol)?|fbox|boxed)\s*"
    r"\{([^{}]*)\}"
)
_FRAC: Final = re.compile(r"\\[dtc]?frac\s*(?:(\\[a-z]+|\w)\s*(\\[a-z]+|\w)|(?=\{))")
_ARGUMENT: Final = re.compile(r"(\\sqrt(?:\[\w{1,9}\])?|\\log\s*_)\s*(\w)")
_MOST_NESTED: Final = 8  # wrappers in wrappers


def plain(text: str) -> str:
    """Return a text in one spelling."""
    text = _VULGAR.sub(" ", text).replace("ℝ", "\\mathbb{R}")
    text = re.sub(
        "[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻]+", lambda run: f"^{{{run.group().translate(_SUPERSCRIPTS)}}}", text
    )
    text = _ROOT.sub(lambda root: f"\\sqrt{{{root[1].removeprefix('(').removesuffix(')')}}}", text)
    text = unicodedata.normalize("NFKC", text).replace("\N{FRACTION SLASH}", "/")
    text = _SPACE.sub(" ", _BARE.sub("", _BOLD.sub(r"\1", text)))
    text = _GROUP.sub(",", text).replace("{,}", ".")  # 3{,}14 is no list
    for _ in range(_MOST_NESTED):
        before, text = text, _LOOK.sub(r"\1", _TEXT.sub(_unwrapped, text))
        if text == before:
            break
    text = _FRAC.sub(lambda one: f"\\frac{{{one[1]}}}{{{one[2]}}}" if one[1] else "\\frac", text)
    text = _ARGUMENT.sub(r"\1{\2}", text)
    for spelling, same in _SAME.items():
        text = text.replace(spelling, same)
    text = text.strip()
    if len(text) > 1 and text.startswith("$") and text.endswith("$"):
        text = text.strip("$").strip()
    return text


def _unwrapped(match: re.Match[str]) -> str:
    """Return the content of `\\text{}`, apart from the mathematics before it."""
    content = match[1]
    return content if match.start() == 0 or content in ("i", "e") else f" {content}"
