"""Parses numbers in answers, exactly, with a unit, a currency or a percent sign."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from orchestrator.answers.spelling import plain

LONGEST: Final = 4000  # characters of a value; a longer text is compared as words
_MAX_LENGTH: Final = 1000  # characters of a number


@dataclass(frozen=True, slots=True)
class Number:
    """A number with its unit as it was written: no unit is converted."""

    value: Fraction
    unit: str = ""

    def equals(self, other: Number) -> bool:
        """Return whether both are equal; 50 % is 50 or 0.5, and 5 m is 5 but not 5 cm."""
        if self.unit and other.unit:
            return self == other
        values = {self.value, other.value}
        return len(values) == 1 or (
            "%" in (self.unit, other.unit)
            and (self.value / 100 if self.unit else self.value)
            == (other.value / 100 if other.unit else other.value)
        )


# Numbers.
_BLANKS: Final = r"[ \t]*"  # no line end: a rule (---) or a list above a number is not its sign
_GROUPED: Final = r"[1-9]\d{0,2}(?:(?:,\d{3})+|(?: \d{3})+|(?:['’]\d{3})+|(?:_\d{3})+)(?!\d)"
_POWER: Final = r"10\s*\^\s*(?:\{\s*[-+]?\d{1,3}\s*\}|[-+]?\d{1,3}(?!\d))"
_DIGITS: Final = (
    rf"(?:(?:(?:{_GROUPED}|\d+)(?:\.\d+)?|\.\d+)"
    rf"(?:[eE][-+]?\d{{1,3}}(?![\d.])|\s*(?:[*x]|\\times|\\cdot)\s*{_POWER})?)"
)
_SIGN: Final = rf"(?:(?<![\w)])[-+]{_BLANKS})"
_NUMBER: Final = rf"{_SIGN}?{_DIGITS}"
_QUANTITY: Final = (
    rf"(?P<mixed>{_SIGN}?\d+)[ \t]+(?P<over>\d+)/(?P<under>\d+)(?![\d/])"
    rf"|(?P<above>{_NUMBER})(?:\s*/\s*(?P<below>{_NUMBER}))?"
)
_SCALES: Final = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_SIGNS: Final = "$€£¥₹"
_FULL: Final = re.compile(
    rf"(?P<minus>[-+]?){_BLANKS}(?P<sign>[{_SIGNS}]?){_BLANKS}(?:{_QUANTITY})"
    rf"(?:\s*(?P<scale>{'|'.join(_SCALES)})s?\b)?(?P<rest>.*)",
    re.DOTALL,
)
_FOUND: Final = re.compile(_QUANTITY)
_LISTED: Final = re.compile(
    r"^\s*\d{1,2}[.)][ \t]+(?=\S)"
    r"|^[ \t]*#+[ \t]+(?:(?:step|part|case|method|question|problem)[ \t]+\d+\b[.:)]?"
    r"|\d{1,2}[.:)][ \t]+(?=\S))",
    re.MULTILINE | re.IGNORECASE,
)
_FRACTION: Final = re.compile(
    r"(?:(\d)[ \t]*)?\\frac\{\s*([-+]?[\d.,]+)\s*\}\{\s*([-+]?[\d.,]+)\s*\}"
)

# Units, and their names in the singular.
_UNITS: Final = {
    name: unit
    for unit, names in {
        "m": "meter metre", "cm": "centimeter centimetre", "mm": "millimeter millimetre",
        "km": "kilometer kilometre", "in": "inch inche", "ft": "foot feet", "mi": "mile",
        "g": "gram", "kg": "kilogram", "lb": "pound", "oz": "ounce", "s": "sec second",
        "min": "minute", "h": "hr hour", "l": "liter litre", "ml": "milliliter millilitre",
        "°": "deg degree", "°c": "celsius", "°f": "fahrenheit", "%": "percent", "$": "dollar usd",
        "€": "euro eur", "£": "gbp", "¥": "yen",
    }.items()
    for name in (unit, *names.split())
}  # fmt: skip
_KNOWN: Final = "|".join(sorted(map(re.escape, _UNITS), key=len, reverse=True))
_FOUND_UNIT: Final = re.compile(rf"(?:[ \t]*[°%]|[ \t]+(?!in\b)(?:{_KNOWN}))s?(?![\w°^/])")
_UNIT: Final = re.compile(
    r"(?:[^\W\d_]+|°[^\W\d_]?|[%$€£¥₹])(?:\^?\d)?(?:[ /-][^\W\d_]+(?:\^?\d)?)*"
)
JOINING: Final = re.compile(
    r"\b(?:or|and|to|minus|plus|times|over|not|remainder|mod|modulo|than|sin|cos|tan|log|ln|pi|sqrt)\b"
)


def number(text: str) -> Number | None:
    """Read a text that is one number, with or without a unit or a currency sign."""
    return None if len(text) > LONGEST else read_number(plain(text).rstrip("."))


def found(text: str) -> Iterator[str]:
    """Yield the numbers in a prose text without LaTeX, each with its unit, except list numbers."""
    text = _LISTED.sub("", _FRACTION.sub(_slash, plain(text)))
    for match in _FOUND.finditer(text) if "\\" not in text else ():
        unit = _FOUND_UNIT.match(text, match.end())
        if _exact(match) is not None:
            yield text[match.start() : unit.end() if unit else match.end()].strip()
        elif match["mixed"] is not None and int(match["under"]):
            yield text[match.start("over") : match.end()]


def read_number(text: str) -> Number | None:
    text = _FRACTION.sub(_slash, text.strip())
    if len(text) > _MAX_LENGTH:
        return None
    if re.fullmatch(rf"[-+]?{_POWER}", text):
        text = text.replace("10", "1*10", 1)
    match = _FULL.fullmatch(text)
    value = None if match is None else _exact(match)
    if match is None or value is None:
        return None
    if match["minus"]:
        if re.match(r"[-+]", match["above"] or match["mixed"]):
            return None  # two signs
        value = -value if match["minus"] == "-" else value
    value *= _SCALES.get(match["scale"] or "", 1)
    rest = f"{match['rest']}".rstrip(". ")
    if match["sign"]:
        rest = f" {match['sign']} {rest.strip()}".rstrip()
    unit = unit_of(rest) if rest.strip() else ""
    return None if unit is None else Number(value, unit)


def unit_of(text: str) -> str | None:
    """Return the unit that a text is, its words in the singular; None if it is none. A word that
    touches its number is a unit only if it is a known one of more than one letter."""
    name = " ".join(re.sub(r"[{}]", "", text).replace(" per ", "/").split()).rstrip(".").casefold()
    if not _UNIT.fullmatch(name) or JOINING.search(name):
        return None
    words = [re.sub(r"(?<=[^\W\d_]{2})s$", "", word) for word in re.split(r"([ /^\d-]+)", name)]
    first, touches = words[0], not text[0].isspace()
    if touches and first.isalpha() and (len(first) == 1 or first not in _UNITS):
        return None
    if first.isalpha() and len(first) < 3 and first not in _UNITS:
        return None
    return "".join(_UNITS.get(word, word) for word in words).replace("^", "")


def _exact(match: re.Match[str]) -> Fraction | None:
    """Return the value of a quantity; None if it divides by 0, or is no mixed number."""
    if len(match.group()) > _MAX_LENGTH:
        return None
    if match["mixed"] is not None:
        over, under = int(match["over"]), int(match["under"])
        if not 0 < over < under:
            return None
        whole = _decimal(match["mixed"])
        part = Fraction(over, under)
        return whole - part if match["mixed"].startswith("-") else whole + part
    value = _decimal(match["above"])
    if match["below"] is not None:
        divisor = _decimal(match["below"])
        return value / divisor if divisor else None
    return value


def _decimal(text: str) -> Fraction:
    text, _, power = re.sub(r"\s*(?:[*x]|\\times|\\cdot)\s*10\s*\^\s*", "^", text).partition("^")
    value = Fraction(re.sub(r"[\s'’_,]", "", text))
    return value * Fraction(10) ** int(power.strip("{} ")) if power else value


def _slash(match: re.Match[str]) -> str:
    whole, *rest = match.groups()
    above, below = (part for part in rest if part is not None)
    return f"{whole} {above}/{below}" if whole else f"{above}/{below}"
