"""What people wrap around a question: greetings, asides, stray words, slips of the finger.

Training questions get some of it, so that the models learn to find the numbers and the
operations instead of recognising a wording. Numbers and signs are never touched.
"""

from __future__ import annotations

import random
import re

from deploy.lab.pair.words import WORDS

_SPLIT = re.compile(r"(\s+)")
_PLAIN_WORD = re.compile(r"[A-Za-z]{2,}[.,?]?$")


def disturb(question: str, rng: random.Random) -> str:
    """The question as somebody else might type it; most stay as they are."""
    dice = rng.random()
    if dice < 0.55:
        return question
    if dice < 0.75:
        question = _stray_words(question, rng)
    elif dice < 0.82:
        question = _aside(question, rng)
    elif dice < 0.88:
        question = _slip_of_the_finger(question, rng)
    if rng.random() < 0.35:
        question = rng.choice(WORDS["before"]) + question
    if rng.random() < 0.25:
        question = question + rng.choice(WORDS["after"])
    return question


def _stray_words(question: str, rng: random.Random) -> str:
    """One to three filler words before plain words."""
    parts = _SPLIT.split(question)
    places = [i for i, part in enumerate(parts) if i and _PLAIN_WORD.match(part)]
    for place in sorted(rng.sample(places, min(len(places), rng.randint(1, 3))), reverse=True):
        parts[place:place] = [rng.choice(WORDS["fillers"]), " "]
    return "".join(parts)


def _aside(question: str, rng: random.Random) -> str:
    """A sentence that has nothing to do with it, between two others or in front."""
    sentences = re.split(r"(?<=[.]) (?=[A-Za-z])", question)
    sentences.insert(rng.randrange(len(sentences)), rng.choice(WORDS["asides"]))
    return " ".join(sentences)


def _slip_of_the_finger(question: str, rng: random.Random) -> str:
    """One letter of a longer word lost or swapped with its neighbour."""
    parts = _SPLIT.split(question)
    long = [i for i, part in enumerate(parts) if part.isalpha() and len(part) > 4]
    if long:
        place = rng.choice(long)
        word = parts[place]
        at = rng.randrange(1, len(word) - 1)
        parts[place] = (
            word[:at] + word[at + 1 :]
            if rng.random() < 0.5
            else word[: at - 1] + word[at] + word[at - 1] + word[at + 1 :]
        )
    return "".join(parts)
