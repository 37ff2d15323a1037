r"""Answers of every kind in every spelling: one value's are equal, different values' never are."""

from __future__ import annotations

from fractions import Fraction
from itertools import permutations

from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.answers.equality import compare, equal

Spelled = tuple[object, list[str]]
"""A value, by what tells it from all others, and spellings of it."""

EXAMPLES = settings(max_examples=50)
UNITS = {
    "m": ["m", "meters", "meter", "metres"],
    "cm": ["cm", "centimeters"],
    "km": ["km", "kilometers"],
    "kg": ["kg", "kilograms"],
    "g": ["g", "grams"],
    "min": ["min", "minutes"],
    "h": ["h", "hours", "hrs"],
}
WORDS = ["Monday", "Tuesday", "blue", "Yes", "No", "north", "the red cube", "true", "false"]


@st.composite
def integers(draw: st.DrawFn) -> Spelled:
    value = draw(st.integers(-(10**12), 10**12) | st.integers(-2000, 2000))
    texts = [
        f"{value}",
        f"{value}.0",
        f"{value}e0",
        f"{value} \\times 10^{{0}}",
        f"\\mathbf{{{value}}}",
    ]
    marks = (",", " ", "\u00a0", "\u202f", "\u2009", "\\,", "\\ ", "~", "{,}", ",\\!", "'", "_")
    texts += [f"{value:,}".replace(",", mark) for mark in marks]
    if value < 0:
        texts += [f"\N{MINUS SIGN}{-value}", f"- {-value}", f"\N{EN DASH}{-value}"]
    else:
        texts += [f"+{value}", f"0{value}"]
    return Fraction(value), texts


@st.composite
def decimals(draw: st.DrawFn) -> Spelled:
    value, places = draw(st.integers(1001, 10**9)), draw(st.integers(1, 6))
    exact = Fraction(value, 10**places)
    whole, part = divmod(value, 10**places)
    texts = [f"{whole}.{part:0{places}}", f"{whole}.{part:0{places}}0", f"{value}/{10**places}"]
    texts += [f"\\frac{{{value}}}{{{10**places}}}", f"{value}e-{places}"]
    texts += [f"{value} \\cdot 10^{{-{places}}}", f"{value}×10⁻{str(places).translate(RAISED)}"]
    texts += [f"{whole:,}.{part:0{places}}"]
    return exact, texts


RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


@st.composite
def fractions(draw: st.DrawFn) -> Spelled:
    value = Fraction(draw(st.integers(1, 400)), draw(st.integers(2, 99)))
    sign, factor = draw(st.sampled_from(["", "-"])), draw(st.integers(1, 5))
    above, below = value.numerator * factor, value.denominator * factor
    texts = [f"{sign}{above}/{below}", f"{sign}{above} / {below}"]
    texts += [
        f"{sign}\\{name}{{{above}}}{{{below}}}" for name in ("frac", "dfrac", "tfrac", "cfrac")
    ]
    texts += [f"\\frac{{{sign}{above}}}{{{below}}}", f"${sign}\\frac{{{above}}}{{{below}}}$"]
    whole, over = divmod(above, below)
    if whole and over:
        texts += [f"{sign}{whole}\\frac{{{over}}}{{{below}}}", f"{sign}{whole} {over}/{below}"]
        texts += [f"{sign}{whole}\\ \\dfrac{{{over}}}{{{below}}}"]
    if (above, below) == (above % 10, below % 10):
        texts.append(f"{sign}\\frac{above}{below}" if below else "")
    return (-value if sign else value), texts


@st.composite
def quantities(draw: st.DrawFn) -> Spelled:
    number, unit = draw(st.integers(1, 9999)), draw(st.sampled_from(sorted(UNITS)))
    names = UNITS[unit]
    texts = [f"{number} {name}" for name in names] + [
        f"{number}\\text{{ {name}}}" for name in names
    ]
    texts += [f"{number}\\,\\mathrm{{{name}}}" for name in names] + [f"\\text{{{number} {unit}}}"]
    return (unit, number), texts


@st.composite
def words(draw: st.DrawFn) -> Spelled:
    word = draw(st.sampled_from(WORDS))
    wrapped = [f"\\{name}{{{word}}}" for name in ("text", "textbf", "mathrm", "mathbf", "textit")]
    return word, [word, word.upper(), f"{word}.", f'"{word}"', f"**{word}**", f"({word})", *wrapped]


@st.composite
def sequences(draw: st.DrawFn) -> Spelled:
    items = draw(st.lists(st.integers(-50, 1500), min_size=2, max_size=4, unique=True))
    left, right = draw(st.sampled_from([("(", ")"), ("[", "]"), ("[", ")"), ("\\{", "\\}")]))
    orders = [items] if left != "\\{" else [[*one] for one in permutations(items)]
    texts = []
    for order in orders:
        texts += [f"{left}{', '.join(map(str, order))}{right}"]
        texts += [f"\\left{left} {', '.join(f'{one}.0' for one in order)} \\right{right}"]
        texts += [f"${left}{','.join(map(str, order))}{right}$"]
    return (left, right, frozenset(items) if left == "\\{" else tuple(items)), texts


def spelled() -> st.SearchStrategy[Spelled]:
    return st.one_of(integers(), decimals(), fractions(), quantities(), words(), sequences())


@given(spelled(), st.data())
@EXAMPLES
def test_spellings_of_one_value_are_equal(value: Spelled, data: st.DataObject) -> None:
    one, other = (data.draw(st.sampled_from(value[1])) for _ in range(2))
    assert compare(f"So it is \\boxed{{{one}}}.", other) is True, (one, other)
    assert equal(one, other) is equal(other, one) is equal(one, one) is True


@given(spelled(), spelled(), st.data())
@EXAMPLES
def test_different_values_are_never_equal(a: Spelled, b: Spelled, data: st.DataObject) -> None:
    one, other = data.draw(st.sampled_from(a[1])), data.draw(st.sampled_from(b[1]))
    if a[0] == b[0] or _left_out(a[0], b[0]) or _left_out(b[0], a[0]):
        return
    assert equal(one, other) is equal(other, one) is False, (one, other)


def _left_out(marked: object, bare: object) -> bool:
    """Whether one may be the other without its unit."""
    return isinstance(marked, tuple) and len(marked) == 2 and isinstance(bare, Fraction)


@given(st.one_of(integers(), decimals(), fractions(), quantities(), words()), st.data())
@EXAMPLES
def test_neighbours_of_a_value_are_not_equal(value: Spelled, data: st.DataObject) -> None:
    """The same spelling with a digit, a sign or a letter more."""
    one = data.draw(st.sampled_from(value[1]))
    for other in (f"1{one}", f"7{one}", f"-{one}", f"x{one}") if value[0] != 0 else ():
        assert equal(one, other) is not True, (one, other)
        assert equal(other, one) is not True, (one, other)


PIECES = [*"0123456789+-*/.,:;=<>()[]{}%$€°^_ \n'\"xeimMC", "\\frac", "\\text{", "\\{", "\\}"]
PIECES += ["\\boxed{", "\\pm", "\\sqrt", "\\overline{", "10^", " and ", "Monday"]
PIECES += ["½", "²", " km", "0x"]


@given(*[st.lists(st.sampled_from(PIECES), min_size=1, max_size=9).map("".join)] * 2)
@EXAMPLES
def test_whatever_a_model_writes_is_compared(one: str, other: str) -> None:
    assert compare(one, other) in (True, False, None)
    assert equal(one, other) is equal(other, one)
    assert equal(one, one) is True


def test_what_nests_too_deep_is_compared() -> None:
    assert equal("[" * 3000 + "1" + "]" * 3000, "1") is False
