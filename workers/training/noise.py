"""What people wrap around a question: greetings, asides, stray words, slips of the finger.

Training questions get some of it, so that the models learn to find the numbers and the
operations instead of recognising a wording. Numbers and signs are never touched.
"""

from __future__ import annotations

import random
import re

BEFORE = [
    "Hi! ", "Hello, ", "Please help me: ", "Question: ", "Q: ", "Hey, ", "Here is my homework. ",
    "I have a question. ", "Quick one: ", "Solve this: ", "Math problem: ", "Can you help? ",
    "Please solve: ", "Problem: ", "I am stuck. ", "Help me with this: ", "Good morning. ",
    "Please answer: ", "Tell me: ", "My teacher asked: ", "ok so ", "So, ", "Task: ",
]  # fmt: skip
AFTER = [
    " Thanks!", " Please explain.", " Show your work.", " Explain step by step.", " Thank you.",
    " Please think step by step.", " I am not sure.", " Give the number only.", " Please.",
    " Be quick.", " Answer with a number.", " Can you help me?", " Please reason step by step.",
    " What is the answer?", " Write the answer in a box.", " Thx", " Let me know.",
]  # fmt: skip
ASIDES = [
    "It is a sunny day.", "The sun is out.", "Everyone is happy.", "It was a long day.",
    "They like it a lot.", "The shop is around the corner.", "It is a nice game.",
    "This happened on Monday.", "School is over.", "The weather is good.", "It is Sunday.",
    "The family lives in a small town.", "Dinner is ready.", "They are very nice.",
    "Some are red and some are blue.", "The box is made of wood.", "He is a good friend.",
    "She is very careful.", "The garden is big.", "They play after school.",
]  # fmt: skip
FILLERS = re.findall(
    r"\w+",
    """
    just really please also today quickly kindly simply now here there small big red blue new old
    nice good whole very quite exactly actually maybe well my your our their his her this these
    those some any certain own little large green yellow fresh happy kind lovely heavy light  long
    short sweet round wooden early late slowly carefully happily often always soon  yesterday
    again together morning evening week school home garden kitchen table family  mother father
    sister brother teacher neighbor cousin uncle aunt grandma store market party
    """,
)

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
        question = rng.choice(BEFORE) + question
    if rng.random() < 0.25:
        question = question + rng.choice(AFTER)
    return question


def _stray_words(question: str, rng: random.Random) -> str:
    """One to three filler words before plain words."""
    parts = _SPLIT.split(question)
    places = [i for i, part in enumerate(parts) if i and _PLAIN_WORD.match(part)]
    for place in sorted(rng.sample(places, min(len(places), rng.randint(1, 3))), reverse=True):
        parts[place:place] = [rng.choice(FILLERS), " "]
    return "".join(parts)


def _aside(question: str, rng: random.Random) -> str:
    """A sentence that has nothing to do with it, between two others or in front."""
    sentences = re.split(r"(?<=[.]) (?=[A-Za-z])", question)
    sentences.insert(rng.randrange(len(sentences)), rng.choice(ASIDES))
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
