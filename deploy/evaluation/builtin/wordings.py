"""The words of the generated problems, from `words/*.yaml`.

The last two wordings of each list are kept out of training, to measure the effect of an unknown
wording. No wording of a question has a reflection keyword (`deploy.lab.pair.steps.KEYWORDS`): in
chains of thought those occur only if the model reflects.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

KEPT_OUT = 2
"""The number of wordings at the end of each list that are kept out of training."""
Wordings = list[str]


def read_words(name: str, folder: Path = Path(__file__).parent) -> dict[str, Any]:
    """The lists of a file of words, by name."""
    text = (folder / "words" / f"{name}.yaml").read_text(encoding="utf-8")
    words: dict[str, Any] = yaml.load(text, yaml.CSafeLoader)
    return words


_words = read_words("calculations")
EXPRESSION: Wordings = _words["expression"]
TWO_OPERANDS: dict[str, Wordings] = _words["two_operands"]
REMAINDER: Wordings = _words["remainder"]
SUM: Wordings = _words["sum"]

_words = read_words("unknowns")
ONE_UNKNOWN: Wordings = _words["one_unknown"]
ONE_UNKNOWN_PLUS: Wordings = _words["one_unknown_plus"]
ONE_UNKNOWN_MINUS: Wordings = _words["one_unknown_minus"]
TWO_UNKNOWNS: Wordings = _words["two_unknowns"]
LARGER: Wordings = _words["larger"]
SMALLER: Wordings = _words["smaller"]

_words = read_words("operate")
START: Wordings = _words["start"]
OPERATE: dict[str, Wordings] = _words["operate"]
DOUBLE: Wordings = _words["double"]
HALVE: Wordings = _words["halve"]
TRIPLE: Wordings = _words["triple"]
OPERATE_END: Wordings = _words["end"]
SHORT: dict[str, Wordings] = _words["short"]

_words = read_words("stories")
NAMES: Wordings = _words["names"]
ITEMS: Wordings = _words["items"]
CONTAINERS: Wordings = _words["containers"]
THEIRS: dict[str, Wordings] = _words["theirs"]
MINE: dict[str, Wordings] = _words["mine"]
SCENES: dict[str, dict[str, Wordings]] = _words["scenes"]

_words = read_words("word_total")
TWO_PEOPLE: Wordings = _words["two_people"]
MORE_THAN: Wordings = _words["more_than"]
MORE_ONE: Wordings = _words["more_one"]
TIMES_ONE: Wordings = _words["times_one"]
TIMES_BOTH: Wordings = _words["times_both"]
PRICE: Wordings = _words["price"]
LOOSE: Wordings = _words["loose"]
THREE: Wordings = _words["three"]

_words = read_words("word_left")
TAKEN: Wordings = _words["taken"]
TWO_LOSSES: Wordings = _words["two_losses"]
CHANGE: Wordings = _words["change"]
FEWER_ONE: Wordings = _words["fewer_one"]
USED_DAILY: Wordings = _words["used_daily"]

_words = read_words("word_share")
RATE: Wordings = _words["rate"]
GROUPS_NEEDED: Wordings = _words["groups_needed"]
TOGETHER_SHARED: Wordings = _words["together_shared"]
REST_SHARED: Wordings = _words["rest_shared"]
