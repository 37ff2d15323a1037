"""Words of the training documents that no question has: conversations, steps, noise."""

from __future__ import annotations

from pathlib import Path

from deploy.evaluation.builtin.wordings import Wordings, read_words

_HERE = Path(__file__).parent

_words = read_words("conversation", _HERE)
SYSTEM: Wordings = _words["system"]
FOLLOW_UP: dict[str, Wordings] = _words["follow_up"]
ANSWER: str = _words["answer"]
UNKNOWN_TOPIC: Wordings = _words["unknown_topic"]
PLACES: Wordings = _words["places"]
TOPICS: Wordings = _words["topics"]
LANGUAGES: Wordings = _words["languages"]
ADJECTIVES: Wordings = _words["adjectives"]
DECLINE_STEP: str = _words["decline_step"]
DECLINE: str = _words["decline"]

_words = read_words("steps", _HERE)
LEAD_FIRST: Wordings = _words["lead_first"]
LEAD_NEXT: Wordings = _words["lead_next"]
CONCLUDE: Wordings = _words["conclude"]
WRONG: Wordings = _words["wrong"]
RIGHT: Wordings = _words["right"]

_words = read_words("noise", _HERE)
BEFORE: Wordings = _words["before"]
AFTER: Wordings = _words["after"]
ASIDES: Wordings = _words["asides"]
FILLERS: Wordings = _words["fillers"]
