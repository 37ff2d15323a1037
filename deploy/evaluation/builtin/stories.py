"""The people, things and sentences of a word problem."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence

from deploy.evaluation.builtin.sketch import GeneratedProblem, Sketch, spelled, words_below
from deploy.evaluation.builtin.wordings import WORDS, Wordings


class Story:
    """The people and things of one word problem, and the wordings of its sentences.

    The wordings of each part ("has", "gain", "left", ...) are about another person's things, about
    the narrator's, or about a scene, such as birds on a tree.
    """

    def __init__(self, sketch: Sketch, *, scenes: bool = False, mine: bool = True) -> None:
        rng = sketch.rng
        self.sketch = sketch
        self.names = dict(zip("NM", rng.sample(WORDS["names"], 2), strict=True))
        self.things = dict(zip("ij", rng.sample(WORDS["items"], 2), strict=True))
        self.container = rng.choice(WORDS["containers"])
        self.pronoun = rng.choice(("he", "she", None))
        self.in_words = words_below(rng)
        self.scene: dict[str, Wordings] = {}
        self.parts = WORDS["mine"] if mine and rng.random() < 0.15 else WORDS["theirs"]
        if scenes and rng.random() < 0.2:
            self.things["i"], self.scene = rng.choice(list(WORDS["scenes"].items()))
        elif rng.random() < 0.1:  # invented things can be counted too
            self.things = {name: _invented(rng) for name in self.things}

    def part(self, name: str, **numbers: int) -> str:
        """Write one part of a story of several sentences."""
        if self.scene:
            return self._fill(self.sketch.rng.choice(self.scene[name]), numbers)
        return self.filled(self.parts[name], **numbers)

    def filled(self, wordings: Wordings, **numbers: int) -> str:
        """Draw a wording and fill in names, things and numbers."""
        return self._fill(self.sketch.words(wordings), numbers)

    def problem(
        self, family: str, wording: str, key: str, **numbers: int
    ) -> GeneratedProblem | None:
        """Return the finished problem, asked by a wording of this name."""
        return self.sketch.problem(family, self.filled(WORDS[wording], **numbers), key)

    def _fill(self, wording: str, numbers: Mapping[str, int]) -> str:
        spell = str if "$" in wording else self._number  # not "$seven"
        words = {**self.names, **self.things, "c": self.container}
        text = wording.format(**words | {name: spell(n) for name, n in numbers.items()})
        return text[0].upper() + text[1:]

    def joined(self, sentences: Sequence[str]) -> str:
        """Join the sentences as people do: some run together, some with pronouns for names."""
        rng, name = self.sketch.rng, self.names["N"]
        names = (name, self.names["M"], "I")
        text, subject = sentences[0], sentences[0].split()[0]
        for sentence in sentences[1:]:
            dice, statements = rng.random(), text[-1] == "." and sentence[-1] == "."
            if (
                statements
                and subject in names
                and sentence.startswith(f"{subject} ")
                and dice < 0.35
            ):
                link = rng.choice((" and ", " and ", ", then ", " and then ", ", "))
                text = text[:-1] + link + sentence.removeprefix(f"{subject} ")
            elif text.startswith(f"{name} ") and self.pronoun is not None and dice < 0.75:
                text = f"{text} {_with_pronoun(sentence, name, self.pronoun)}"
            elif statements and dice > 0.9:
                rest = sentence.removeprefix("Then ")
                start = rest if rest.split()[0] in names else rest[0].lower() + rest[1:]
                text = text[:-1] + rng.choice((" and ", ", and ", ", then ")) + start
            else:
                text = f"{text} {sentence}"
            subject = sentence.split()[0]
        return text

    def _number(self, n: int) -> str:
        return spelled(n) if n < self.in_words else str(n)


def _with_pronoun(sentence: str, name: str, pronoun: str) -> str:
    """Replace the name by a pronoun if it is the sentence's subject."""
    if sentence.startswith(f"{name} "):
        return pronoun.capitalize() + sentence[len(name) :]
    return re.sub(rf"(does|did|will|has) {name}\b", rf"\1 {pronoun}", sentence)


def _invented(rng: random.Random) -> str:
    """Invent a plural that is in no list."""
    syllables = [rng.choice("bcdfgklmnprstvz") + rng.choice("aeiou") for _ in range(3)]
    return "".join(syllables[: rng.randint(2, 3)]) + rng.choice(("s", "ks", "ns", "ps", "ts"))
