r"""The value that an answer writes: a number, a sequence of values, words, or an expression.

LaTeX's wrappers say nothing of a value: `\boxed{142\text{ legs}}` is the number 142 with a unit.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction
from itertools import accumulate, pairwise
from typing import Final

LONGEST: Final = 4000  # characters that are read as a value; a longer text is compared as words
_MAX_LENGTH: Final = 1000  # characters of a number; anything longer is no answer
_DEEPEST: Final = 50  # brackets within brackets; what nests deeper is compared as it is written


@dataclass(frozen=True, slots=True)
class Number:
    """A number with its mark: a unit, `%`, `base`, a `clock` or a `date`.

    `unmarked` is what it equals if the mark is left out: numbers, or digits of a base above ten.
    """

    value: Fraction
    mark: str = ""
    unmarked: tuple[Fraction | str, ...] = ()

    def equals(self, other: Number) -> bool:
        """Whether both are one value; 50 % is 50 or 0.5, and 5 m is 5 but not 5 cm."""
        if self.mark == other.mark:
            return self.value == other.value
        if self.mark and other.mark:
            return False
        marked, plain = (self, other) if self.mark else (other, self)
        return plain.value in marked.unmarked


@dataclass(frozen=True, slots=True)
class Sequence:
    """Values between brackets, or bare ones; `decimal` if the comma may be a decimal one."""

    brackets: str
    items: tuple[Value, ...]
    text: str
    decimal: Number | None = None


@dataclass(frozen=True, slots=True)
class Named:
    """A value with a name, as in x = 5."""

    name: str
    value: Value
    text: str


@dataclass(frozen=True, slots=True)
class Words:
    """Lines of words, in small letters; numbers among them by their value."""

    lines: tuple[tuple[str | Fraction, ...], ...]


@dataclass(frozen=True, slots=True)
class Expression:
    """What takes algebra to compare, in LaTeX, with its unit and what one is in the first of it."""

    text: str
    unit: str = ""
    factor: Fraction = Fraction(1)

    @property
    def is_set(self) -> bool:
        """Whether it may be what a sequence in brackets writes otherwise."""
        return (
            self.is_relation or re.search(r"\\(?:cup|cap|setminus|times)\b", self.text) is not None
        )

    @property
    def is_relation(self) -> bool:
        return re.search(r"[=<>]|\\(?:in|le|ge|neq?|lt|gt)\b", self.text) is not None


Value = Number | Sequence | Named | Words | Expression

# Numbers.
_BLANKS: Final = r"[ \t]*"  # a rule (---) or a list above is no sign of what follows
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
_REPEATING: Final = re.compile(r"([-+]?)(\d+)\.(\d*)\\overline\s*\{(\d+)\}")
_BASED: Final = re.compile(r"\(?([-+]?)([0-9A-Za-z]+)\)?_(?:\{(\d+)\}|(\d))")
_PREFIXED: Final = re.compile(r"([-+]?)0([bBoOxX])([0-9A-Fa-f]+)")
_BASES: Final = {"b": 2, "o": 8, "x": 16}
_DECIMAL_COMMA: Final = re.compile(rf"({_SIGN}?\d+),(\d{{2,}})(.*)", re.DOTALL)  # 1,2 is a list

# Units: what one is in the first unit of its kind, and its names without the plural's s.
_UNITS: Final = {
    name: (kind, Fraction(factor))
    for kind, factor, names in (
        ("m", "1", "m meter metre"), ("m", "1/100", "cm centimeter centimetre"),
        ("m", "1/1000", "mm millimeter millimetre"), ("m", "1000", "km kilometer kilometre"),
        ("m", "0.0254", "inch inche"), ("m", "0.3048", "ft foot feet"), ("m", "0.9144", "yd yard"),
        ("m", "1609.344", "mi mile"),
        ("g", "1", "g gram gramme"), ("g", "1/1000", "mg milligram"), ("g", "1000", "kg kilogram"),
        ("s", "1", "s sec second"), ("s", "60", "min minute"), ("s", "3600", "h hr hour"),
        ("s", "86400", "d day"), ("s", "604800", "week"), ("s", "1/1000", "ms millisecond"),
        ("l", "1", "l L liter litre"), ("l", "1/1000", "ml mL milliliter millilitre"),
        ("°", "1", "° deg degree"), ("°C", "1", "°C celsius"), ("°F", "1", "°F fahrenheit"),
        ("$", "1", "$ dollar usd"), ("$", "1/100", "¢ cent"), ("€", "1", "€ euro eur"),
        ("£", "1", "£ gbp"), ("¥", "1", "¥ yen"), ("₹", "1", "₹ rupee inr"),
    )
    for name in names.split()
}  # fmt: skip
_KNOWN: Final = "|".join(sorted(map(re.escape, _UNITS), key=len, reverse=True))
_FOUND_UNIT: Final = re.compile(rf"(?:[ \t]*[°%]|[ \t]+(?:{_KNOWN}))s?(?![\w°^/])")
_ORDINAL: Final = re.compile(r"(?:st|nd|rd|th)\b")
_MEASURED: Final = re.compile(rf"(.*[\d)}}])(\s+(?:{_KNOWN})s?(?:\^?\{{?\d\}}?)?)")
_UNIT_PART: Final = re.compile(r"(?:(square|sq|cubic) )?([^\W\d_]+|[°¢$€£¥₹][CF]?)\.?(?:\^?(\d))?")
_JOINING: Final = re.compile(
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

# Words and LaTeX.
_COMMAND: Final = re.compile(r"\\[A-Za-z]+")
_FUNCTIONS: Final = re.compile(
    r"\b(?:a?(?:rc)?(?:sin|cos|tan|cot|sec|csc)h?|log|ln|exp|sqrt|pi|abs|min|max|gcd|lcm|mod)\b"
)
_WORD: Final = re.compile(r"[^\W\d_]{2,}")
_QUOTES: Final = "\"'`“”‘’"
_NAMED: Final = re.compile(r"(\\?[^\W\d_]\w*(?:\([^()]\))?)\s*=\s*([^=<>]+)")
_OPAQUE: Final = re.compile(
    r"[:?'\"#@&;\n]|[^\x00-\x7f]|!!|\d\s+[\d.]|\d\.\d+\.\d|[A-Za-z]\d"
    r"|(?<![\d.A-Za-z_^{])(?:1|0\d*)[A-Za-z]"
)
"""What an algebra system would read and should not: it drops primes, divides at colons, and takes
the digits of 3a0 for factors."""
_CLOSING: Final = {"(": ")", "[": "]", "{": "}"}
_BRACE: Final = re.compile(
    r"(\\(?:text(?:bf|it|rm|tt|sf|sc|up|normal)?|math(?:rm|bf|it|sf|tt|normal)|operatorname\*?|mbox"
    r"|hbox|emph|underline|bold(?:symbol)?|fbox|boxed))\s*\{|[{}]"
)
_BARE: Final = re.compile(
    r"\\(?:left|right|[bB]igg?[lr]?|displaystyle|limits|!)(?![A-Za-z])|\\(?:rm|bf|it)\s(?!\w*\{)"
)
_BOLD: Final = re.compile(r"(?<!\S)\*\*(?=\S)(.{1,300}?)(?<=\S)\*\*(?![\w*])")
_SPACE: Final = re.compile(r"\\(?:[,;:> ]|(?:quad|qquad|thinspace|medspace|nobreakspace)\b)|~")
_FRACTION: Final = re.compile(
    r"(?:(\d)[ \t]*)?\\frac\s*(?:\{\s*([-+]?[\d.,]+)\s*\}\s*\{\s*([-+]?[\d.,]+)\s*\}"
    r"|(\d)\s*(\d)(?!\d)|(\d)\s*\{([\d.,]+)\}|\{([\d.,]+)\}\s*(\d))"
)
_MATRIX: Final = re.compile(r"\\begin\{(\w*matrix|array)\}(?:\{[lcr|]*\})?(.*?)\\end\{\1\}", re.S)
_SUPERSCRIPTS: Final = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻", "0123456789+-")
_SAME: Final = {
    "\\dfrac": "\\frac", "\\tfrac": "\\frac", "\\cfrac": "\\frac", "\\lbrace": "\\{",
    "\\rbrace": "\\}", "\\leq": "\\le", "\\geq": "\\ge", "{,}": ",", "{.}": ".", "\\degree": "°",
    "^{\\circ}": "°", "^\\circ": "°", "{}^°": "°", "^°": "°", "^{°}": "°", "\\$": "$", "\\%": "%",
    "\\#": "#", "\\&": "&", "\\_": "_", "×": "\\times ", "·": "\\cdot ", "∞": "\\infty ",
    "π": "\\pi ", "≤": "\\le ", "≥": "\\ge ", "∪": "\\cup ", "±": "\\pm ",
    "−": "-", "–": "-", "**": "^", "\\(": "", "\\)": "", "\\[": "", "\\]": "",
    "\\euro": "€", "\\pounds": "£", "\\cents": "¢",
}  # fmt: skip
"""Spellings, and one that stands for them all."""


def read(text: str) -> Value:
    """The value that a text writes, if the text is a value and nothing else."""
    if len(text) > LONGEST:
        return _words(text)
    text = plain(text)
    nested = accumulate((sign in "([{") - (sign in ")]}") for sign in text)
    return _words(text) if max(nested, default=0) > _DEEPEST else _read(text)


def plain(text: str) -> str:
    """A text with one spelling of what LaTeX and Unicode have several for."""
    text = re.sub(r"(?<=\d)(?=[½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞])", " ", text)
    text = re.sub(
        "[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻]+", lambda run: f"^{{{run.group().translate(_SUPERSCRIPTS)}}}", text
    )
    text = re.sub(r"√\s*(\d+|\([^()]*\)|\w)", r"\\sqrt{\1}", text)
    text = unicodedata.normalize("NFKC", text).replace("\N{FRACTION SLASH}", "/")
    text = _MATRIX.sub(lambda found: found[2].replace("&", " ").replace("\\\\", "\n"), text)
    text = _SPACE.sub(" ", _BARE.sub("", _BOLD.sub(r"\1", text)))
    for spelling, same in _SAME.items():
        text = text.replace(spelling, same)
    text = _unwrapped(text).strip()
    if len(text) > 1 and text.startswith("$") and text.endswith("$"):
        text = text.strip("$").strip()
    return text


def number(text: str) -> Number | None:
    """A text that is one number and nothing else, with or without a unit or a currency sign."""
    return None if len(text) > LONGEST else _number(plain(text).rstrip("."))


def found(text: str) -> Iterator[str]:
    """The numbers in a prose text without LaTeX, but those of lists, each with its unit."""
    text = _LISTED.sub("", _FRACTION.sub(_slash, plain(text)))
    for match in _FOUND.finditer(text) if "\\" not in text else ():
        unit = _FOUND_UNIT.match(text, match.end())
        if _exact(match) is not None:
            yield text[match.start() : unit.end() if unit else match.end()].strip()
        elif match["mixed"] is not None and int(match["under"]):
            yield text[match.start("over") : match.end()]


def _read(text: str) -> Value:
    text = _stripped(text)
    for reader in (_number, _summed, _clock, _date, _ratio, _sequence):
        value: Value | None = reader(text)
        if value is not None:
            return value
    if (match := _NAMED.fullmatch(text)) is not None and len(match[1]) < 40:
        return Named(match[1].lstrip("\\").casefold(), _read(match[2]), text)
    if (match := _MEASURED.fullmatch(text)) is not None and _is_math(match[1]):
        unit = _unit(match[2])
        return Expression(match[1].strip(), *unit) if unit else Expression(text)
    return Expression(text) if _is_math(text) else _words(text)


def _stripped(text: str) -> str:
    """A text without what stands around a value: quotes, brackets of one item, a full stop."""
    while True:
        before, text = text, text.strip()
        if text.endswith(".") and not text.endswith(".."):
            text = text[:-1]
        if len(text) > 1 and text[0] in _QUOTES and text[-1] in _QUOTES:
            inner = text[1:-1]
            text = text if any(quote in inner for quote in _QUOTES) else inner
        if text[:1] in ("(", "{") and "," not in text and _end(text) == len(text) - 1:
            text = text[1:-1] if text[-1] == _CLOSING[text[0]] else text
        if text == before:
            return text


def _number(text: str) -> Number | None:
    text = _FRACTION.sub(_slash, text.strip())
    if len(text) > _MAX_LENGTH:
        return None
    if (match := _REPEATING.fullmatch(text)) is not None:
        sign, whole, fixed, again = match.groups()
        repeated = Fraction(int(again), 10 ** len(fixed) * (10 ** len(again) - 1))
        repeated += Fraction(f"{whole}.{fixed or 0}")
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
    if unit is None or (sign and unit[0] != sign):
        return None
    return Number(value * unit[1], unit[0], (value,))


def _exact(match: re.Match[str]) -> Fraction | None:
    """The value of a quantity; None if it divides by nothing, or is no mixed number."""
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
    """A number with its base, as 1101_2 or 0x1f; without it, its digits or its value may stand."""
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
    """A unit and what one is in the first of its kind; a letter that touches is a factor."""
    touches, name = not text[0].isspace(), " ".join(re.sub(r"[{}]", "", text).split()).rstrip(".")
    kinds, factor = [], Fraction(1)
    for at, part in enumerate(re.split(r"\s*/\s*|\s+per\s+", name)):
        match = _UNIT_PART.fullmatch(part)
        known = None if match is None else _known(match[2])
        if match is None or known is None:
            break
        power = int(match[3] or {"square": 2, "sq": 2, "cubic": 3}.get(match[1] or "", 1))
        kinds.append(known[0] if power == 1 else f"{known[0]}^{power}")
        factor = factor / known[1] ** power if at else factor * known[1] ** power
    else:
        if touches and len(name) == 1 and name.isalpha():
            return None
        return "/".join(kinds), factor
    words = name.casefold().replace("-", " ").split()
    if touches or not words or not words[0].isalpha() or len(words[0]) < 3:
        return None
    if not all(word.isalpha() for word in words) or _JOINING.search(name.casefold()):
        return None
    return " ".join(word.removesuffix("s") for word in words), Fraction(1)


def _known(name: str) -> tuple[str, Fraction] | None:
    folded = name if len(name) < 3 else name.casefold()
    return _UNITS.get(name) or _UNITS.get(folded) or _UNITS.get(folded.removesuffix("s"))


def _summed(text: str) -> Number | None:
    """Parts of one quantity, as 2 hours and 30 minutes."""
    parts = [_number(part) for part in re.split(r"(?<=[a-z])(?:,? and |,? )(?=\d)", text)]
    first, *rest = parts
    if first is None or not rest or not first.mark or first.mark not in "msgl":
        return None
    for before, part in pairwise(parts):
        if before is None or part is None or part.mark != first.mark or part.value >= before.value:
            return None
    return Number(sum((part.value for part in parts if part), Fraction(0)), first.mark)


def _clock(text: str) -> Number | None:
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


def _date(text: str) -> Number | None:
    text = _WEEKDAY.sub("", " ".join(text.split()))
    text = re.sub(r"(?<=\d)(?:st|nd|rd|th)\b", "", text)
    for form in _DATES if re.search(r"\b\d{4}\b", text) else ():
        try:
            return Number(Fraction(datetime.strptime(text, form).toordinal()), "date")
        except ValueError:
            continue
    return None


def _ratio(text: str) -> Sequence | None:
    """Numbers between colons, or a date in numbers, as they are written: 2:5 may be a score."""
    for sign, least in ((":", 2), ("/", 3)):
        parts = text.split(sign)
        if len(parts) >= least and all(re.fullmatch(r"\s*\d+(?:\.\d+)?\s*", one) for one in parts):
            return Sequence(sign, tuple(_read(part) for part in parts), text)
    return None


def _sequence(text: str) -> Sequence | None:
    brackets, inner = "", re.sub(r",?\s+and\s+", ", ", text)
    if text.startswith("\\{") and text.endswith("\\}"):
        brackets, inner = "{}", text[2:-2]
    elif text[:1] in _CLOSING and text[-1:] in _CLOSING.values() and _end(text) == len(text) - 1:
        brackets, inner = text[0] + text[-1], text[1:-1]
    parts = _parts(inner)
    if len(parts) < 2 and (not brackets or brackets == "()"):
        return _both_signs(text)
    if any(not part.strip() for part in parts) and inner.strip():
        return None
    items = tuple(_read(part) for part in parts if part.strip())
    return Sequence(brackets, items, text, None if brackets else _with_decimal_comma(text))


def _both_signs(text: str) -> Sequence | None:
    if text.count("\\pm") != 1:
        return None
    return Sequence("", tuple(_read(text.replace("\\pm", sign)) for sign in "+-"), text)


def _with_decimal_comma(text: str) -> Number | None:
    match = _DECIMAL_COMMA.fullmatch(text)
    return None if match is None else _number(f"{match[1]}.{match[2]}{match[3]}")


def _parts(text: str) -> list[str]:
    """What stands between the commas outside all brackets; a comma within a number is none."""
    depth, parts, begin = 0, [], 0
    spaced = re.search(r",\s|;", text) is not None
    for at, sign in enumerate(text):
        depth += (sign in "([{") - (sign in ")]}")
        within = spaced and re.match(r",\d", text[at : at + 2]) and text[at - 1 : at].isdigit()
        if depth == 0 and (sign == ";" or (sign == "," and not within)):
            parts.append(text[begin:at])
            begin = at + 1
    return [*parts, text[begin:]]


def _end(text: str) -> int:
    """Where the bracket closes that a text opens with; half-open intervals end with another."""
    depth = 0
    for at, sign in enumerate(text):
        depth += (sign in "([{") - (sign in ")]}")
        if depth == 0:
            return at
    return -1


def _is_math(text: str) -> bool:
    """Whether an algebra system may read it; words are no products of their letters."""
    letters = _FUNCTIONS.sub("|", _COMMAND.sub("|", text))
    if not text.strip() or _OPAQUE.search(letters):
        return False
    letters = re.sub(r"\s*([-+*/=<>^(),|])\s*", r"\1", letters)
    for match in _WORD.finditer(letters):
        around = letters[: match.start()][-1:] + letters[match.end() :][:1]
        factors = len(match.group()) < 4 and " " not in around and re.search(r"[\d+*/=^-]", text)
        if not factors or _JOINING.fullmatch(match.group()) or _known(match.group()):
            return False
    return True


def _words(text: str) -> Words:
    lines = (line.split() for line in text.casefold().splitlines())
    return Words(
        tuple(
            tuple(
                Fraction(word) if re.fullmatch(r"[-+]?\d{1,50}(?:\.\d{1,50})?", word) else word
                for word in line
            )
            for line in lines
            if line
        )
    )


def _unwrapped(text: str) -> str:
    r"""A text without the commands that only say how their content looks, as `\text{}`."""
    kept: list[str] = []
    left_out: list[bool] = []  # for each open brace, whether it is a command's
    begin, last = 0, ""
    for match in _BRACE.finditer(text):
        if match.start() > begin:
            kept.append(text[begin : match.start()])
            last = kept[-1][-1]
        begin = match.end()
        if match[1] is not None:
            left_out.append(True)
            if last.isdigit() and text[begin : begin + 1].isalpha():
                kept.append(last := " ")
        elif match[0] == "{" or not left_out or not left_out.pop():
            left_out += [False] * (match[0] == "{")
            kept.append(last := match[0])
    return "".join([*kept, text[begin:]])


def _slash(match: re.Match[str]) -> str:
    whole, *rest = match.groups()
    above, below = (part for part in rest if part is not None)
    return f"{whole} {above}/{below}" if whole else f"{above}/{below}"
