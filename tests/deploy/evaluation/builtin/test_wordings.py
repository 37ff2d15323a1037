"""Word lists: every file is checked when it is read, and read quickly."""

from __future__ import annotations

import importlib
import time
from pathlib import Path

import pytest

from deploy.evaluation.builtin import wordings
from deploy.evaluation.builtin.word_file import FOLDER, WordFile
from orchestrator.errors import ConfigError


@pytest.fixture
def words(tmp_path: Path) -> WordFile:
    (tmp_path / "words.yaml").write_text(
        """
plain: [pens, apples]
sum: ["Add {a} and {b}.", "{a} and {b} for {N}?"]
answer: "It is {v}."
change: {"+": ["Add {n}."], "-": ["Take {n}."]}
scenes: {birds: {has: ["{a} birds."], now: ["How many?"]}}
"""
    )
    return WordFile("words", tmp_path)


def test_entries_are_read_by_their_kind(words: WordFile) -> None:
    with words as file:
        assert file.phrases("plain") == ("pens", "apples")
        assert file.wordings("sum", "ab", "N") == ("Add {a} and {b}.", "{a} and {b} for {N}?")
        assert file.wording("answer", "v") == "It is {v}."
        assert file.by_name("change", {"+": "n", "-": "n"})["-"] == ("Take {n}.",)
        scenes = file.groups("scenes", {"has": "a", "now": ""})
        assert scenes == {"birds": {"has": ("{a} birds.",), "now": ("How many?",)}}


def test_an_entry_that_nothing_reads_is_an_error(words: WordFile) -> None:
    words.phrases("plain")
    words.groups("scenes", {"has": "a", "now": ""})
    with pytest.raises(ConfigError, match=r"words\.yaml: unknown entries: sum, answer, change"):
        words.__exit__(None, None, None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("other: [a]", "words.yaml: sum is missing"),
        ("sum: Add {a}.", "sum: expected a list of texts, got 'Add {a}.'"),
        ("sum: []", "sum: expected a list of texts"),
        ("sum: ['{a} {b}', yes]", "sum[1]: expected a text (quote it), got 'True'"),
        ("sum: ['{a} {b}', 'Add {a}.']", "sum[1]: expected {a} {b}, and at most {N} besides"),
        ("sum: ['{a} {b} {M}']", "sum[0]: expected {a} {b}, and at most {N} besides, got"),
        ("sum: ['{a} {b']", "sum[0]: expected placeholders such as {a}, got '{a} {b'"),
        ("- sum", "the file: expected a mapping of names to word lists"),
        ("sum: [", "words.yaml: cannot be read:"),
    ],
)
def test_a_faulty_entry_is_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "words.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        WordFile("words", tmp_path).wordings("sum", "ab", "N")
    assert message in str(caught.value)


def test_a_missing_name_is_an_error(words: WordFile) -> None:
    with pytest.raises(ConfigError, match=r"change: expected the names \+, -, \*, got '\+, -'"):
        words.by_name("change", {"+": "n", "-": "n", "*": "n"})


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing\.yaml: cannot be read"):
        WordFile("nothing", tmp_path)


def test_all_words_are_read_within_a_tenth_of_a_second() -> None:
    assert len(list(FOLDER.glob("*.yaml"))) == 10
    started = time.process_time()
    importlib.reload(wordings)
    assert time.process_time() - started < 0.1
