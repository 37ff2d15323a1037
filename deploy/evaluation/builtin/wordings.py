"""The words of the generated problems, from `words/*.yaml`.

The last two wordings of each list are kept out of training, so that they measure what an unknown
wording does. No wording of a question contains a reflection keyword (`steps.KEYWORDS`): those occur
in chains of thought only where the model reflects.
"""

from __future__ import annotations

from deploy.evaluation.builtin.word_file import WordFile

KEPT_OUT = 2
"""How many wordings at the end of each list are never trained on."""

_OPERATIONS = dict.fromkeys("+-*/", "n")
_STORY = "NMijc"  # people, things and containers

with WordFile("calculations") as file:
    EXPRESSION = file.wordings("expression", "e")
    TWO_OPERANDS = file.by_name("two_operands", dict.fromkeys("+-*/", "ab"))
    REMAINDER = file.wordings("remainder", "ab")
    SUM = file.wordings("sum", "l")

with WordFile("unknowns") as file:
    ONE_UNKNOWN = file.wordings("one_unknown", "q")
    ONE_UNKNOWN_PLUS = file.wordings("one_unknown_plus", "mbc", _STORY)
    ONE_UNKNOWN_MINUS = file.wordings("one_unknown_minus", "mbc", _STORY)
    TWO_UNKNOWNS = file.wordings("two_unknowns", "sdw")
    LARGER = file.wordings("larger", "sd", _STORY)
    SMALLER = file.wordings("smaller", "sd", _STORY)

with WordFile("operate") as file:
    START = file.wordings("start", "n")
    OPERATE = file.by_name("operate", _OPERATIONS)
    DOUBLE = file.phrases("double")
    HALVE = file.phrases("halve")
    TRIPLE = file.phrases("triple")
    OPERATE_END = file.phrases("end")
    SHORT = file.by_name("short", _OPERATIONS)

with WordFile("stories") as file:
    NAMES = file.phrases("names")
    ITEMS = file.phrases("items")
    CONTAINERS = file.phrases("containers")
    _PARTS = {"has": "a", "gain": "a", "loss": "a", "now": "", "left": ""}
    THEIRS = file.by_name("theirs", _PARTS | {"groups": "ab", "share": "k"}, _STORY)
    MINE = file.by_name("mine", _PARTS | {"groups": "ab", "share": "k"}, _STORY)
    SCENES = file.groups("scenes", _PARTS, _STORY)

with WordFile("word_total") as file:
    TWO_PEOPLE = file.wordings("two_people", "ab", _STORY)
    MORE_THAN = file.wordings("more_than", "ab", _STORY)
    MORE_ONE = file.wordings("more_one", "ab", _STORY)
    TIMES_ONE = file.wordings("times_one", "ab", _STORY)
    TIMES_BOTH = file.wordings("times_both", "ab", _STORY)
    PRICE = file.wordings("price", "abpr", _STORY)
    LOOSE = file.wordings("loose", "abd", _STORY)
    THREE = file.wordings("three", "abd", _STORY)

with WordFile("word_left") as file:
    TAKEN = file.wordings("taken", "ab", _STORY)
    TWO_LOSSES = file.wordings("two_losses", "bd", _STORY)
    CHANGE = file.wordings("change", "abp", _STORY)
    FEWER_ONE = file.wordings("fewer_one", "ab", _STORY)
    USED_DAILY = file.wordings("used_daily", "abd", _STORY)

with WordFile("word_share") as file:
    RATE = file.wordings("rate", "ab", _STORY)
    GROUPS_NEEDED = file.wordings("groups_needed", "ab", _STORY)
    TOGETHER_SHARED = file.wordings("together_shared", "abk", _STORY)
    REST_SHARED = file.wordings("rest_shared", "abk", _STORY)

with WordFile("conversation") as file:
    SYSTEM = file.phrases("system")
    FOLLOW_UP = file.by_name("follow_up", dict.fromkeys("+-*", "n"))
    ANSWER = file.wording("answer", "v")
    UNKNOWN_TOPIC = file.wordings("unknown_topic", optional="ptlc")
    PLACES = file.phrases("places")
    TOPICS = file.phrases("topics")
    LANGUAGES = file.phrases("languages")
    ADJECTIVES = file.phrases("adjectives")
    DECLINE_STEP = file.wording("decline_step")
    DECLINE = file.wording("decline")

with WordFile("steps") as file:
    LEAD_FIRST = file.phrases("lead_first")
    LEAD_NEXT = file.phrases("lead_next")
    CONCLUDE = file.wordings("conclude", "v")
    WRONG = file.wordings("wrong", "s", "w")
    RIGHT = file.wordings("right", "s", "v")

with WordFile("noise") as file:
    BEFORE = file.phrases("before")
    AFTER = file.phrases("after")
    ASIDES = file.phrases("asides")
    FILLERS = file.phrases("fillers")
