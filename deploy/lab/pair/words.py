"""Words of the training documents that no question has: conversations, steps, noise."""

from __future__ import annotations

from pathlib import Path

from deploy.evaluation.builtin.wordings import read_words

WORDS = read_words(Path(__file__).parent / "words")
