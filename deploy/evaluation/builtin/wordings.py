"""The words of the generated problems by name, from `words/*.yaml`.

No wording of a question has a reflection keyword (`deploy.lab.pair.steps.KEYWORDS`): in chains of
thought those occur only if the model reflects.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

Wordings = list[str]


def read_words(folder: Path) -> dict[str, Any]:
    """The lists in the files of a folder, by name."""
    words: dict[str, Any] = {}
    for file in sorted(folder.glob("*.yaml")):
        words |= yaml.load(file.read_text(encoding="utf-8"), yaml.CSafeLoader)
    return words


WORDS = read_words(Path(__file__).parent / "words")
