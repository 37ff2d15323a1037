"""Parses numbers in answers: with units or a currency, in any base, percentages, times, dates."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction
from itertools import pairwise
from typing import Final

from orchestrator.answers.spelling import TEXT, plain

LONGEST: Final = 4000  # characters of a value; a longer text is compared as words
_MAX_LENGTH: Final = 1000  # characters of a number


@dataclass(frozen=True, slots=True)
class Number:
    """A number with its mark: a unit, `%`, `base`, a `clock` or a `date`.

    `unmarked` has the values that it equals without the mark: numbers, or digits of a base above
    ten.
    """

    value: Fraction
    mark: str = ""
    unmarked: tuple[Fraction | str, ...] = ()

    def equals(self, other: Number) -> bool:
        """Return whether both are equal; 50 % is 50 or 0.5, and 5 m is 5 but not 5 cm.

        $5 per hour equals $5.
        """
        if self.mark == other.mark:
            return self.value == other.value
        less, more = sorted((self, other), key=lambda one: len(one.mark))
        if less.mark and not (less.mark in _SIGNS and more.mark.startswith(f"{less.mark}/")):
            return False
        return less.unmarked[0] in more.unmarked if less.unmarked else less.value in more.unmarked


# Numbers.
_BLANKS: Final = r"[ \t]*"  # no line end: a rule (---) or a list above a number is not its sign
_GROUPED: Final = r"[1-9]\d{0,2}(?:(?:,\d{3})+|(?: \d{3})+|(?:['’]\d{3})+|(?:_\d{3})+)(?!\d)"
_INDIAN: Final = r"[1-9]\d?(?:,\d\d)+,\d{3}(?!\d)"
_CONTINENTAL: Final = (
    r"[1-9]\d{0,2}(?:(?:\.\d{3})+,\d+|(?: \d{3})+,\d+|(?:\.\d{3}){2,})(?![\d.,]\d)"
)
_POWER: Final = r"10\s*\^\s*(?:\{\s*[-+]?\d{1,3}\s*\}|[-+]?\d{1,3}(?!\d))"
_DIGITS: Final = (
    rf"(?:{_CONTINENTAL}|(?:(?:{_GROUPED}|{_INDIAN}|\d+)(?:\.\d+)?|\.\d+)"
    rf"(?:[eE][-+]?\d{{1,3}}(?![\d.])|\s*(?:[*x]|\\times|\\cdot)\s*{_POWER})?)"
)
_SIGN: Final = rf"(?:(?<![\w)])[-+]{_BLANKS})"
_NUMBER: Final = rf"{_SIGN}?{_DIGITS}"
_QUANTITY: Final = (
    rf"(?P<mixed>{_SIGN}?\d+)[ \t]+(?P<over>\d+)/(?P<under>\d+)(?![\d/])"
    rf"|(?P<above>{_NUMBER})(?:\s*/\s*(?P<below>{_NUMBER}))?"
)
_SCALES: Final = {
    "hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12,
    "dozen": 12,
}  # fmt: skip
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
_PERCENT: Final = re.compile(r"\s*(?:%|percent|per cent)\s*")
_REPEATING: Final = re.compile(r"([-+]?)(\d*)\.(\d*)\\(?:overline|bar|dot)\{(\d+)\}")
_BASED: Final = re.compile(r"\(?([-+]?)([0-9A-Za-z]+)\)?_(?:\{(\d+)\}|(\d))")
_PREFIXED: Final = re.compile(r"([-+]?)0([bBoOxX])([0-9A-Fa-f]+)")
_BASES: Final = {"b": 2, "o": 8, "x": 16}

# Units: the first unit of their kind, the factor to it, and names without the plural's s.
_UNITS: Final = {
    name: (kind, Fraction(factor))
    for kind, factor, names in (
        ("m", "1", "m meter metre"), ("m", "1/100", "cm centimeter centimetre"),
        ("m", "1/1000", "mm millimeter millimetre"), ("m", "1000", "km kilometer kilometre"),
        ("m", "0.0254", "in inch inche"), ("m", "0.3048", "ft foot feet"),
        ("m", "0.9144", "yd yard"), ("m", "1609.344", "mi mile"),
        ("g", "1", "g gram gramme"), ("g", "1/1000", "mg milligram"), ("g", "1000", "kg kilogram"),
        ("g", "453.59237", "lb pound"), ("g", "28.349523125", "oz ounce"),
        ("s", "1", "s sec second"), ("s", "60", "min minute"), ("s", "3600", "h hr hour"),
        ("s", "86400", "d day"), ("s", "604800", "week"), ("s", "1/1000", "ms millisecond"),
        ("l", "1", "l L liter litre"), ("l", "1/1000", "ml mL milliliter millilitre"),
        ("unit", "1", "unit"), ("rad", "1", "rad radian"), ("°", "1", "° deg degree"),
        ("°C", "1", "°C celsius"), ("°F", "1", "°F fahrenheit"),
        ("$", "1", "$ dollar usd"), ("$", "1/100", "¢ cent"), ("€", "1", "€ euro eur"),
        ("£", "1", "£ gbp"), ("¥", "1", "¥ yen"), ("₹", "1", "₹ rupee inr"),
    )
    for name in names.split()
}  # fmt: skip
_KNOWN: Final = "|".join(sorted(map(re.escape, _UNITS), key=len, reverse=True))
_FOUND_UNIT: Final = re.compile(rf"(?:[ \t]*[°%]|[ \t]+(?!in\b)(?:{_KNOWN}))s?(?![\w°^/])")
_DECIMAL_COMMA: Final = re.compile(
    rf"([-+ {_SIGNS}]*)(\d+),(\d+)(\s*(?:[%°{_SIGNS}]|(?:{_KNOWN})s?\b).*|)", re.DOTALL
)
_ORDINAL: Final = re.compile(r"(?:st|nd|rd|th)\b")
_MEASURED: Final = re.compile(
    rf"(?P<of>[^{TEXT}]*[^\s{TEXT}])(?P<unit>\s*{TEXT}[^{TEXT}]+|\s*°[CF]?)"
    r"|(?P<plain>.*?\S)(?P<word>\s+[A-Za-z][A-Za-z ./^{}\d]{0,60})"
)
_UNIT_PART: Final = re.compile(
    r"(?:(square|sq|cubic)\.? )?([^\W\d_]+|[°¢$€£¥₹][CF]?)\.?(?:\^?(\d))?"
)
_ANGLE_OF: Final = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![a-z])")
_CONSTANT: Final = re.compile(r"\\(?:frac|sqrt|pi|cdot|times|log|ln)(?![A-Za-z])")
_SHORT: Final = {"mph": "mi/h", "kph": "km/h", "kmh": "km/h"}
JOINING: Final = re.compile(
    r"\b(?:or|and|to|minus|plus|times|over|not|remainder|mod|modulo|than|sin|cos|tan|log|ln|pi|sqrt)\b"
)

# Clocks and dates.
_CLOCK: Final = re.compile(
    r"(\d{1,2})(?::(\d{2})(?::(\d{2}(?:\.\d+)?))?)?(?:\s*([ap])\.?m\.?)?", re.IGNORECASE
)
_WEEKDAY: Final = re.compile(r"^(?:(?:mon|tues|wednes|thurs|fri|satur|sun)day),?\s+", re.IGNORECASE)
_DATES: Final = (
    "%Y-%m-%d", "%Y/%m/%d", "%B %d, %Y", "%B %d %Y", "%b %d, %Y", "%b %d %Y", "%d %B %Y",
    "%d %b %Y", "%d. %B %Y",
)  # fmt: skip

_FRACTION: Final = re.compile(
    r"(?:(\d)[ \t]*)?\\frac\{\s*([-+]?[\d.,]+)\s*\}\{\s*([-+]?[\d.,]+)\s*\}"
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
    if (match := _DECIMAL_COMMA.fullmatch(text)) is not None:
        before, whole, part, unit = match.groups()
        grouped = len(part) == 3 and whole != "0"
        if not grouped and (unit or set(before) & set(_SIGNS) or re.match(r"0\d", part)):
            text = f"{before}{whole}.{part}{unit}"  # bare, 3,14 is a list
    if (match := _REPEATING.fullmatch(text)) is not None:
        sign, whole, fixed, again = match.groups()
        repeated = Fraction(int(again), 10 ** len(fixed) * (10 ** len(again) - 1))
        repeated += Fraction(f"{whole or 0}.{fixed or 0}")
        return Number(-repeated if sign == "-" else repeated)
    if (based := _based(text)) is not None:
        return based
    if re.fullmatch(rf"[-+]?{_POWER}", text):
        text = text.replace("10", "1*10", 1)
    match = _FULL.fullmatch(text)
    value = None if match is None else _exact(match)
    if match is None or value is None:
        return None
    return _marked(match, value)


def _marked(match: re.Match[str], value: Fraction) -> Number | None:
    if match["minus"]:
        if re.match(r"[-+]", match["above"] or match["mixed"]):
            return None  # two signs
        value = -value if match["minus"] == "-" else value
    value *= _SCALES.get(match["scale"] or "", 1)
    sign, rest = match["sign"], match["rest"]
    if _PERCENT.fullmatch(rest) and not sign:
        return Number(value / 100, "%", (value / 100, value))
    rest = rest.rstrip(". ") if match["scale"] is None else rest
    if not rest.strip() or (_ORDINAL.fullmatch(rest) and not sign):
        return Number(value, sign, (value,)) if sign else Number(value)
    unit = _unit(rest)
    if sign and (unit is None or unit[0] != sign):  # $5 per hour, $5 each
        unit = _unit(f" {sign} {rest}") or (unit and (sign, Fraction(1)) if TEXT in rest else None)
    if unit is None:
        return None
    return Number(value * unit[1], unit[0], (value,))


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
    text = re.sub(r"[\s'’_]", "", text)
    if re.search(r"\d\.\d{3}\.|\.\d{3},", text) or re.fullmatch(rf"{_SIGN}?\d+,\d+", text.strip()):
        grouped = bool(re.fullmatch(r"[-+]?[1-9]\d{0,2},\d{3}", text))
        text = text.replace(",", "") if grouped else text.replace(".", "").replace(",", ".")
    value = Fraction(text.replace(",", ""))
    return value * Fraction(10) ** int(power.strip("{} ")) if power else value


def _based(text: str) -> Number | None:
    """Read a number with its base, as 1101_2 or 0x1f, which equals its digits or its value."""
    if (match := _PREFIXED.fullmatch(text)) is not None:
        sign, base, digits = match[1], _BASES[match[2].lower()], match[3]
    elif (match := _BASED.fullmatch(text)) is not None:
        sign, base, digits = match[1], int(match[3] or match[4]), match[2]
    else:
        return None
    try:
        value = Fraction(int(sign + digits, base))
    except ValueError:  # no such base, or not its digits
        return None
    written = Fraction(sign + digits) if digits.isdecimal() else (sign + digits).casefold()
    return Number(value, "base", (value, written))


def _unit(text: str) -> tuple[str, Fraction] | None:
    """Return a unit and its factor to the first of its kind; one letter without a blank is none."""
    touches, name = not text[0].isspace(), " ".join(re.sub(r"[{}]", "", text).split()).rstrip(".")
    if touches and len(name) == 1 and name.isalpha():
        return None
    kinds, factor = [], Fraction(1)
    for at, part in enumerate(re.split(r"\s*/\s*|(?:^|\s+)per\s+", _SHORT.get(name, name))):
        match = _UNIT_PART.fullmatch(part)
        known = None if match is None else known_unit(match[2])
        if match is not None and known is not None:
            power = int(match[3] or {"square": 2, "sq": 2, "cubic": 3}.get(match[1] or "", 1))
            kinds.append(known[0] if power == 1 else f"{known[0]}^{power}")
            factor = factor / known[1] ** power if at else factor * known[1] ** power
        elif not at and not part and name.startswith("per"):
            kinds.append("")
        elif (words := _counted(part, surely=TEXT in text)) is not None and (at or not touches):
            kinds.append(words)
        else:
            return None
    return "/".join(kinds), factor


def _counted(text: str, *, surely: bool) -> str | None:
    """Return the words of a count in the singular; one or two letters count only if `surely`."""
    words = text.casefold().replace("-", " ").split()
    if not words or not all(word.isalpha() for word in words) or JOINING.search(text.casefold()):
        return None
    if len(words[0]) < 3 and not surely:
        return None
    return " ".join(word.removesuffix("s") for word in words)


def known_unit(name: str) -> tuple[str, Fraction] | None:
    folded = name if len(name) < 3 else name.casefold()
    return _UNITS.get(name) or _UNITS.get(folded) or _UNITS.get(folded.removesuffix("s"))


def measured(text: str) -> tuple[str, str, Fraction] | None:
    """Split an expression that ends in a unit: the rest, the unit, its factor to the first."""
    match = _MEASURED.fullmatch(text)
    if match is None:
        return None
    of, unit = match["of"] or match["plain"], _unit(match["unit"] or match["word"])
    if unit is None or _ANGLE_OF.search(of):
        return None
    return None if match["word"] and re.search(r"[A-Za-z]", _CONSTANT.sub("", of)) else (of, *unit)


def summed(text: str) -> Number | None:
    """Add the parts of one quantity, as 2 hours and 30 minutes."""
    parts = [read_number(part) for part in re.split(r"(?<=[a-z])(?:,?\s+and\s+|,?\s+)(?=\d)", text)]
    first, *rest = parts
    if first is None or not rest or not first.mark or first.mark not in "msgl":
        return None
    for before, part in pairwise(parts):
        if before is None or part is None or part.mark != first.mark or part.value >= before.value:
            return None
    return Number(sum((part.value for part in parts if part), Fraction(0)), first.mark)


def clock(text: str) -> Number | None:
    match = _CLOCK.fullmatch(text)
    if match is None or (match[2] is None and match[4] is None):
        return None
    hours, minutes, seconds = int(match[1]), int(match[2] or 0), Fraction(match[3] or 0)
    if minutes > 59 or seconds >= 60:
        return None
    if match[4] is not None:
        if not 1 <= hours <= 12:
            return None
        hours = hours % 12 + 12 * (match[4].lower() == "p")
    return Number(hours * 3600 + minutes * 60 + seconds, "clock")


def date_of(text: str) -> Number | None:
    text = _WEEKDAY.sub("", " ".join(text.split()))
    text = re.sub(r"(?<=\d)(?:st|nd|rd|th)\b", "", text)
    for form in _DATES if re.search(r"\b\d{4}\b", text) else ():
        try:
            return Number(Fraction(datetime.strptime(text, form).toordinal()), "date")
        except ValueError:
            continue
    return None


def _slash(match: re.Match[str]) -> str:
    whole, *rest = match.groups()
    above, below = (part for part in rest if part is not None)
    return f"{whole} {above}/{below}" if whole else f"{above}/{below}"
